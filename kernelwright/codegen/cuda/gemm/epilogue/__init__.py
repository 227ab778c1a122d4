"""What becomes of a tile's sums: stores, reductions over channels and positions, pools."""
