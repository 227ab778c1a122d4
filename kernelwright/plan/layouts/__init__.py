"""Orders of axes in memory: convolutions that run channels-last."""
