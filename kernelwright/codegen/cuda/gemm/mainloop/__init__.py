"""The loops that multiply, by compute capability."""
