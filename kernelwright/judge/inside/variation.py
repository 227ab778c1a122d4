"""How inputs change between timed calls. Used by both sides, which must make the same contents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_view, _copy, _clone, _no_grad = torch.Tensor.view, torch.Tensor.copy_, torch.Tensor.clone, torch.no_grad


def tensor_leaves(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensor_leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensor_leaves(item)


def vary(arguments: Any, donor: Any, moves: list[list[int]]) -> None:
    """Exchange elements of ``arguments`` with those at the same places of ``donor``, in place.

    Each move is [tensor, start, step, count]: of the (contiguous) tensor with that number, ``count`` elements from flat
    index ``start`` on, every ``step``-th. Values stay where they are valid: both are draws of the problem's own. They
    are exchanged, not copied: slots that take each other's values are soon alike, and a replayed result is right then.
    """
    if not moves:
        return
    targets, sources = list(tensor_leaves(arguments)), list(tensor_leaves(donor))
    with _no_grad():
        for index, start, step, count in moves:
            part = slice(start, start + (count - 1) * step + 1, step)
            here, there = _view(targets[index], -1)[part], _view(sources[index], -1)[part]
            held = _clone(here)
            _copy(here, there)
            _copy(there, held)
