"""What the region sums of all targets share."""
