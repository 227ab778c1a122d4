"""Files that serve calls of several sizes: numbers in the program of an example become formulas of the sizes."""
