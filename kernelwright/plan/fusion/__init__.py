"""What fuses with a contraction: what its epilogue computes, and graphs that are rewritten so that more of it can."""
