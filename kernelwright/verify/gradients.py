"""Gradients of a candidate against eager's and float64's, on a small problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from kernelwright.verify.compare import compare
from kernelwright.verify.flatten import clone_tensors, tensors_of
from kernelwright.verify.observe import first_line, seed_all
from kernelwright.verify.records import Comparison, OutputError
from kernelwright.verify.state import State, call_in_float64, widened
from kernelwright.verify.tolerance import Tolerance


def check_gradients(
    model: nn.Module,
    candidate: nn.Module,
    double: nn.Module | None,
    inputs: Sequence[Any],
    original: State,
    *,
    seed: int = 0,
    tolerance: Tolerance | None = None,
) -> Comparison:
    """Compare the gradients of a random linear function of the outputs.

    Every floating input and every parameter that requires a gradient has one; a gradient that is absent
    counts as zero. All three modules start from the state ``original``; ``double`` may be None, then eager is
    the reference. Raises what the model itself raises; a candidate's error is in the comparison.
    """
    results: list[dict[str, torch.Tensor]] = []
    for module in (model, candidate, double):
        if module is None:
            results.append(results[0])
            continue
        original.apply(module)
        try:
            results.append(_gradients(module, inputs, seed, in_float64=module is double))
        except Exception as error:
            if module is model:
                raise
            if module is double:
                results.append(results[0])
                continue
            problem = f"the candidate fails with gradients: {type(error).__name__}: {first_line(error)}"
            return Comparison(False, (OutputError("gradient", False, (problem,)),))
    eager, own, reference = results
    return compare(own, eager, reference, tolerance=tolerance, root="gradient")


def _gradients(
    module: nn.Module, inputs: Sequence[Any], seed: int, *, in_float64: bool
) -> dict[str, torch.Tensor]:
    arguments = widened(list(inputs)) if in_float64 else clone_tensors(list(inputs))
    leaves: dict[str, torch.Tensor] = {}
    for index, value in enumerate(arguments):
        for position, tensor in enumerate(tensors_of([value])):
            if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
                leaves[f"input {index}" + (f".{position}" if position else "")] = tensor.requires_grad_(True)
    leaves |= {name: p for name, p in module.named_parameters() if p.requires_grad}
    seed_all(seed)
    with torch.enable_grad():
        # Inputs are leaves; the model sees views of them, because it may work in place.
        seen = [v.view_as(v) if isinstance(v, torch.Tensor) and v.requires_grad else v for v in arguments]
        outputs = call_in_float64(module, seen) if in_float64 else module(*seen)
        floating = [t for t in tensors_of(outputs) if t.dtype.is_floating_point]
        if not any(t.requires_grad for t in floating):
            raise RuntimeError("no output requires a gradient")
        generator = torch.Generator().manual_seed(seed)
        total = sum(
            (t * torch.randn(t.shape, generator=generator, dtype=torch.float32).to(t)).sum() for t in floating
        )
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
    }
