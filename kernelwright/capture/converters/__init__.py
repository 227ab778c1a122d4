"""From operators of an exported program to ours, one module for each family of them."""
