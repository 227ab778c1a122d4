"""DIFFERENTIATE: from a graph to the graph of its gradients, of the same operators."""
