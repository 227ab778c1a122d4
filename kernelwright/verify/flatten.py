"""Nested outputs and inputs as named leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def flatten(value: Any, root: str = "output") -> dict[str, Any]:
    """Return the leaves of nested tuples, lists and mappings by path, in order.

    ``flatten((a, {"k": b}))`` is ``{"output[0]": a, "output[1]['k']": b}``. Leaves are tensors and whatever
    else is not a container. Empty containers are leaves, so that ``()`` and ``None`` stay different.
    """
    return dict(_leaves(value, root))


def _leaves(item: Any, path: str) -> Iterator[tuple[str, Any]]:
    # No function inside `flatten`: one that calls itself is a cycle, and so the tensors would live until Python looks
    # for cycles, which it does after so many objects, however many gigabytes they hold.
    if isinstance(item, Mapping) and item:
        for key, child in item.items():
            yield from _leaves(child, f"{path}[{key!r}]")
    elif isinstance(item, (list, tuple)) and item:
        for index, child in enumerate(item):
            yield from _leaves(child, f"{path}[{index}]")
    else:
        yield path, item


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors among the leaves of ``value``, in order."""
    return [leaf for leaf in flatten(value).values() if isinstance(leaf, torch.Tensor)]


def map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return ``value`` with ``function`` applied to each tensor; containers are rebuilt, other leaves copied.

    Raises what ``function`` raises. Leaves that cannot be copied are handed on as they are.
    """
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        mapped = {key: map_tensors(item, function) for key, item in value.items()}
        return mapped if type(value) is dict else _rebuilt(value, mapped)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, function) for item in value))
    if type(value) in (list, tuple):
        return type(value)(map_tensors(item, function) for item in value)
    try:
        return copy.deepcopy(value)
    except Exception:  # a leaf of an unknown kind that cannot be copied is shared
        return value


def _rebuilt(original: Any, mapped: dict[Any, Any]) -> Any:
    try:
        return type(original)(mapped)
    except Exception:  # a mapping with a constructor of its own
        return mapped


def clone_tensors(value: Any) -> Any:
    """Return a copy of ``value`` whose tensors own fresh memory and keep their strides and requires_grad."""
    return map_tensors(value, clone)


def clone(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that owns fresh memory and keeps strides and requires_grad; of a parameter it is one, too."""
    copied = tensor.detach().clone()
    if type(tensor) is torch.nn.Parameter:
        return torch.nn.Parameter(copied, tensor.requires_grad)
    return copied.requires_grad_(tensor.requires_grad)
