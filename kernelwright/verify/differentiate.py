"""A call of a module with gradients recorded, and the gradients of random linear functions of its outputs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from kernelwright.problem.memory import is_out_of_memory
from kernelwright.verify.flatten import clone_tensors, flatten, tensors_of
from kernelwright.verify.observe import first_line, seed_all
from kernelwright.verify.sensitivity import Rounding
from kernelwright.verify.state import OwnTypes, call_in_float64, widened

#: Outputs of which each is also differentiated alone, at most.
MOST_ALONE = 4


@dataclass
class Found:
    """A call with gradients recorded. ``outputs`` are detached; ``flags`` say which of them require gradients;
    ``gradients`` are, for all outputs together ("") and for each alone (its path), those of each input and parameter:
    None where there is none. ``error``: what the backward pass raised, of what class."""

    outputs: Any = None
    flags: dict[str, bool] = field(default_factory=dict)
    gradients: dict[str, dict[str, torch.Tensor | None]] = field(default_factory=dict)
    error: str = ""


def differentiated(module: nn.Module, inputs: Sequence[Any], seed: int, combinations: list[str] | None,
                   like: Found | None, *, in_float64: bool, strict: bool, rounding: Rounding | None = None,
                   types: OwnTypes = OwnTypes(), of_inputs: bool = True,
                   directions: Mapping[str, torch.Tensor] | None = None) -> Found:
    """A call of ``module`` and its gradients, of the outputs that require them in ``like``, or in this call. rounding:
    under which both run. directions: what outputs are multiplied by, where that is not to be drawn from the seed."""
    context = rounding or nullcontext()
    arguments = widened(list(inputs)) if in_float64 else clone_tensors(list(inputs))
    leaves: dict[str, torch.Tensor] = {}
    for index, value in enumerate(arguments):
        for position, tensor in enumerate(tensors_of([value])):
            if not of_inputs:
                tensor.requires_grad_(False)
            elif tensor.dtype.is_floating_point or tensor.dtype.is_complex:
                leaves[f"input {index}" + (f".{position}" if position else "")] = tensor.requires_grad_(True)
    leaves |= {name: p for name, p in module.named_parameters() if p.requires_grad}
    seed_all(seed)
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Inputs are leaves; the model sees views of them, because it may work in place.
        seen = [_views(value) for value in arguments]
        with context:
            outputs = call_in_float64(module, seen, own=types) if in_float64 else module(*seen)
        tensors = tensors_by_path(outputs)
        found = Found(_detached(tensors), {path: t.requires_grad for path, t in tensors.items()})
        chosen = {p for p, flag in (like or found).flags.items() if flag} & {p for p, f in found.flags.items() if f}
        given = directions_of(tensors, seed) if directions is None else {
            path: directions[path].to(tensors[path]) for path in directions if path in tensors}
        if combinations is None:
            combinations = ["", *(sorted(chosen) if 1 < len(chosen) <= MOST_ALONE else ())]
        for number, by in enumerate(combinations, 1):
            paths = [p for p in tensors if p in chosen and by in ("", p)]
            if not paths:
                gradients: Sequence[Any] = [None] * len(leaves)
            else:
                try:
                    with context:
                        gradients = torch.autograd.grad(
                            [tensors[p] for p in paths], list(leaves.values()), [given[p] for p in paths],
                            allow_unused=True, retain_graph=number < len(combinations))
                except Exception as error:
                    if is_out_of_memory(error):
                        raise
                    found.error = f"{type(error).__name__}: {first_line(error)}"
                    return found
            found.gradients[by] = {
                name: gradient if strict or gradient is not None else torch.zeros_like(leaf)
                for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)}
    return found


def _views(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.view_as(value) if value.requires_grad else value
    if type(value) in (list, tuple):
        return type(value)(_views(item) for item in value)
    return {key: _views(item) for key, item in value.items()} if type(value) is dict else value


def tensors_by_path(outputs: Any) -> dict[str, torch.Tensor]:
    """The tensors in nested outputs by their paths."""
    return {path: leaf for path, leaf in flatten(outputs).items() if isinstance(leaf, torch.Tensor)}


def _detached(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {path: t.detach().clone() if t.is_leaf else t.detach() for path, t in tensors.items()}


def directions_of(tensors: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """What outputs are multiplied by, the same for all modules: random numbers by the outputs' places, drawn where the
    outputs lie (a host draws a large output's for minutes)."""
    generators: dict[torch.device, torch.Generator] = {}
    found = {}
    for path, tensor in tensors.items():
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            device = tensor.device
            if device not in generators:
                generators[device] = torch.Generator(device).manual_seed(seed)
            dtype = torch.complex64 if tensor.dtype.is_complex else torch.float32
            found[path] = torch.randn(tensor.shape, generator=generators[device], dtype=dtype, device=device).to(tensor)
    return found
