"""What every kernel record means, in PyTorch: the reference of every target."""
