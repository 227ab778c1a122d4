"""What the judge says at the end: ranks, and the printed report."""
