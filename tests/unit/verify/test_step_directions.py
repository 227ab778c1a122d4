"""What a step of training computes: the same gradients in whatever type, along the same directions."""

from __future__ import annotations

import copy

import torch
from torch import nn

from kernelwright.training.steps import TrainingStep


def test_directions_are_the_same_numbers_in_all_types() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(5, 7), nn.Tanh()), torch.randn(3, 5)
    found = TrainingStep(model, [x])(x)
    exact = TrainingStep(copy.deepcopy(model).double(), [x.double()])(x.double())
    for gradient, wide in zip(found, exact, strict=True):
        assert wide.dtype == torch.float64
        torch.testing.assert_close(gradient.double(), wide, rtol=1e-5, atol=1e-6)


def test_complex_results_have_complex_directions() -> None:
    x = torch.randn(4)
    step = TrainingStep(nn.Sequential(nn.Linear(4, 3, dtype=torch.complex64)), [x.to(torch.complex64)])
    gradients = step(x.to(torch.complex64))
    assert step.directions[0].dtype == torch.complex64
    assert bool(step.directions[0].imag.abs().max() > 0)
    assert all(g is not None for g in gradients)
