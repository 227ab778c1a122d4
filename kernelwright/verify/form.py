"""What a result is beside its values: its strides, whether gradients go through it, and whose memory it lies in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kernelwright.verify.flatten import flatten
from kernelwright.verify.state import State


@dataclass(frozen=True, slots=True)
class Form:
    """One output tensor. ``strides`` are those of axes longer than 1 (none of a tensor without elements); ``home``
    names the input, parameter, buffer, attribute or earlier output whose memory it lies in, "" where that is its own,
    and ``place`` is where in that memory it begins and how it goes on: offset, shape and strides."""

    strides: tuple[int, ...]
    requires_grad: bool
    is_leaf: bool
    home: str = ""
    place: tuple[Any, ...] = ()


def forms(outputs: Any, arguments: Any, module: nn.Module, changed: Collection[str] = ()) -> dict[str, Form]:
    """The forms of the strided tensors in ``outputs``, by path, right after ``module`` was called on ``arguments``; and
    of those in the plain attributes that are ``changed``."""
    homes: dict[tuple[Any, int], str] = {}
    for name, tensor in _owners(arguments, module):
        if (key := _memory(tensor)) is not None:
            homes.setdefault(key, name)
    found: dict[str, Form] = {}
    state = State.of(module, parameters=False, owned=False).attributes if changed else {}
    kept = {f"attribute {path}": leaf for name, value in state.items() if name in changed
            for path, leaf in flatten(value, name).items()}
    for path, leaf in {**flatten(outputs), **kept}.items():
        if type(leaf) not in (torch.Tensor, nn.Parameter) or leaf.layout is not torch.strided or leaf.is_nested:
            continue
        strides = tuple(s for s, n in zip(leaf.stride(), leaf.shape, strict=True) if n > 1) if leaf.numel() else ()
        key = _memory(leaf)
        home = homes.setdefault(key, path) if key is not None else path
        place = () if home == path else (leaf.storage_offset(), tuple(leaf.shape), strides)
        found[path] = Form(strides, leaf.requires_grad, leaf.is_leaf, "" if home == path else home, place)
    return found


def differences(candidate: Mapping[str, Form], eager: Mapping[str, Form]) -> dict[str, str]:
    """What is wrong with a candidate's forms, as kinds by sentence: strides, requires-grad, leaf, alias (memory of
    something, where the model's output has its own) or alias-missing (not the memory, or not the view, that the
    model's output is)."""
    found: dict[str, str] = {}
    for path, right in eager.items():
        own = candidate.get(path)
        if own is None:
            continue
        if own.home and own.home != right.home:
            found[f"{path} is memory of {own.home}, the model's is {right.home or 'its own'}"] = "alias"
        elif own.home != right.home:
            found[f"{path} has memory of its own, the model's is memory of {right.home}"] = "alias-missing"
        elif own.place != right.place and own.place[1:2] == right.place[1:2]:
            found[f"{path} is another view of {own.home} than the model's"] = "alias-missing"
        elif own.strides != right.strides and len(own.strides) == len(right.strides):
            found[f"{path} has strides {own.strides}, the model's {right.strides} (of axes longer than 1)"] = "strides"
        if own.requires_grad != right.requires_grad:
            words = ("does not require gradients", "requires gradients")
            found[f"{path} {words[own.requires_grad]}, the model's {'does' if right.requires_grad else 'does not'}"
                  ] = "requires-grad"
        elif own.is_leaf != right.is_leaf:
            found[f"{path} is {'a' if own.is_leaf else 'no'} leaf of the graph of gradients, the model's is "
                  f"{'one' if right.is_leaf else 'none'}"] = "leaf"
    return found


def _owners(arguments: Any, module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for index, argument in enumerate(arguments):
        yield from ((path, leaf) for path, leaf in flatten(argument, f"input {index}").items()
                    if isinstance(leaf, torch.Tensor))
    yield from ((f"parameter {name}", value) for name, value in module.named_parameters())
    yield from ((f"buffer {name}", value) for name, value in module.named_buffers())
    for name, attribute in State.of(module, parameters=False, owned=False).attributes.items():
        yield from ((f"attribute {path}", leaf) for path, leaf in flatten(attribute, name).items()
                    if isinstance(leaf, torch.Tensor))


def _memory(tensor: torch.Tensor) -> tuple[Any, int] | None:
    if tensor.layout is not torch.strided or tensor.is_nested or not tensor.numel():
        return None
    address = tensor.untyped_storage().data_ptr()
    return (tensor.device, address) if address else None
