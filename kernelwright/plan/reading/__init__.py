"""How a kernel finds the value of a node at a point: through views, copies and pointwise operators down to loads."""
