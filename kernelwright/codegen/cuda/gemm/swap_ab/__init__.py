"""Products with A and B exchanged: weights go from memory into registers."""
