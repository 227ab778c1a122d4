"""The judge's mutation corpus: correct kernels with one injected fault each. ``tools/mutation_corpus.py`` runs it."""
