"""Files that serve calls of several sizes: what is a number in the program of an example becomes a formula of the sizes.
"""
