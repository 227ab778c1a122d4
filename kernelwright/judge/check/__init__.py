"""One candidate checked: what must be known of its problem, calls beyond a certificate's, and how it is refused."""
