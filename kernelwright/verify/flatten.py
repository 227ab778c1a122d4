"""Nested outputs and inputs as named leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from kernelwright.containers import entries, mapped
from kernelwright.problem.inputs import fresh_copy

_NO_KEY = object()


def flatten(value: Any, root: str = "output") -> dict[str, Any]:
    """Return the leaves of nested containers by path, in order.

    ``flatten((a, {"k": b}))`` is ``{"output[0]": a, "output[1]['k']": b}``; attributes of an object are its keys.
    Leaves are tensors and whatever else is not a container. Empty containers are leaves, so that ``()`` and ``None``
    stay different.
    """
    return dict(_leaves(value, root))


def _leaves(item: Any, path: str) -> Iterator[tuple[str, Any]]:
    # No function inside `flatten`: one that calls itself is a cycle, and so the tensors would live until Python looks
    # for cycles, which it does after so many objects, however many gigabytes they hold.
    parts = list(item.items()) if isinstance(item, Mapping) else entries(item)
    if parts:
        for key, child in parts:
            yield from _leaves(child, f"{path}[{key!r}]")
    else:
        yield path, item


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors among the leaves of ``value``, in order."""
    return [leaf for leaf in flatten(value).values() if isinstance(leaf, torch.Tensor)]


def map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return ``value`` with ``function`` applied to each tensor; containers are made anew, other leaves copied.

    Raises what ``function`` raises. Leaves that cannot be copied are handed on as they are.
    """
    if isinstance(value, torch.Tensor):
        return function(value)
    if entries(value) is not None:
        return mapped(value, partial(map_tensors, function=function))
    try:
        return copy.deepcopy(value)
    except Exception:  # a leaf of an unknown kind that cannot be copied is shared
        return value


def map_paths(value: Any, function: Callable[[str, torch.Tensor], torch.Tensor], root: str = "output") -> Any:
    """`map_tensors` with the path of each tensor in `flatten`; what that does not tell of stays as it is."""
    if isinstance(value, torch.Tensor):
        return function(root, value)
    parts = entries(value)
    if parts is None:
        return map_tensors(value, clone)
    keys = iter([key for key, _ in parts])

    def changed(part: Any) -> Any:
        key = next(keys, _NO_KEY)
        return map_tensors(part, clone) if key is _NO_KEY else map_paths(part, function, f"{root}[{key!r}]")

    return mapped(value, changed)


def clone_tensors(value: Any) -> Any:
    """Return a copy of ``value`` whose tensors own fresh memory and keep their strides and requires_grad."""
    return map_tensors(value, clone)


def clone(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that owns fresh memory and keeps strides and requires_grad; of a parameter it is one, too."""
    plain = tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_quantized
    copied = fresh_copy(tensor.detach(), tensor.device) if plain else tensor.detach().clone()
    if type(tensor) is torch.nn.Parameter:
        return torch.nn.Parameter(copied, tensor.requires_grad)
    return copied.requires_grad_(tensor.requires_grad)
