"""The judge's clocks: model, candidates and a null candidate timed in the same rounds, and what counts of it."""
