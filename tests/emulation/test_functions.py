"""A scalar function on its whole way, from a model to its file and to the values of its kernels, on every target."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch
from emitted_tools import write_problem
from exact_functions import erfcx
from native_tools import Natively

import kernelwright
from kernelwright.codegen.generate import TARGETS
from kernelwright.roofline.devices import GENERIC_CPU, H200

TAILS = '''
    class Model(nn.Module):
        """What is left of the normal distribution's tails when their exponential is taken out."""

        def forward(self, x):
            return torch.special.erfcx(x * 0.5) * 0.5 + 1

    def get_inputs():
        return [torch.randn(256, 1000)]
'''


@pytest.mark.parametrize("target", TARGETS)
def test_a_scaled_complementary_error_function(target: str, tmp_path) -> None:
    """In its file, and closer to the truth below zero than PyTorch's own."""
    path = write_problem(tmp_path, "tails", TAILS)
    source = kernelwright.explain(path, target=target, device=H200 if target == "cuda" else GENERIC_CPU).source
    assert "kw_erfcx" in source
    x = torch.cat([torch.linspace(-9, 30, 3000), torch.tensor([inf, -inf, nan, -0.0, 1e30, -1e30, 1e-40, -1e-40])])
    y = torch.cat([torch.linspace(-26, 40, 3000).double(), x.double()])
    functions = {"single": (lambda v: torch.special.erfcx(v * 1.5), (x,)),
                 "double": (lambda v: torch.special.erfcx(v * 1.5), (y,))}
    natively = Natively(functions, target, tmp_path)
    (single,), (double,) = natively("single"), natively("double")
    torch.testing.assert_close(single, erfcx((x * 1.5).double()).float(), rtol=3e-7, atol=0.0, equal_nan=True)
    torch.testing.assert_close(double, erfcx(y * 1.5), rtol=4e-15, atol=0.0, equal_nan=True)
    torch.testing.assert_close(torch.special.erfcx(y * 1.5), erfcx(y * 1.5), rtol=2e-13, atol=0.0, equal_nan=True)
