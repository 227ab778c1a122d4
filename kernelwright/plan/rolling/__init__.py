"""Loops that were written out, one subgraph for each step, become one recurrence again."""
