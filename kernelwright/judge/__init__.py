"""JUDGE: a verdict on any file that claims to be a model's ModelNew, with its reason, its time and its rank."""
