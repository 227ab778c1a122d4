"""What fails is given up, and no more: what is at fault is looked for, and what stands in its place is chosen."""
