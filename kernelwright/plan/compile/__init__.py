"""From a group of nodes to the record of its kernel; of contractions in `contraction/`."""
