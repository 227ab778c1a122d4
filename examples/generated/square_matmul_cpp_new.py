"""ModelNew: square_matmul, unchanged: no kernel pays. Written by kernelwright 0.1.0 for generic CPU, 8 threads.
"""


import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """The product of two square matrices."""

    def _original_forward(self, a, b):
        return torch.matmul(a, b)

    # Nothing pays here: the original computation is the result.
    forward = _original_forward

    def why(self):
        """Why calls ran the original computation in place of kernels: there are none here."""
        return {}
