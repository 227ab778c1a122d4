"""What a model does along an axis, where that is, and the inputs and parameters of trials under which it shows."""
