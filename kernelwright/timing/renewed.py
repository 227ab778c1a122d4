"""Inputs of calls that change what they are given: a cache that grows with each call is another input to each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelwright.containers import Unsupported, leaves, structure_of


def renewed(call: Callable[..., object], inputs: Sequence[Any]) -> Callable[[], Sequence[Any]] | None:
    """Where ``call`` changes what a container in its inputs holds: a function that gives inputs for one call, the same
    tensors in containers of their own. None where it changes none. Where there are containers it calls ``call``, and
    raises what that raises."""
    parts = [part for part in inputs if not isinstance(part, torch.Tensor)]
    if not any(_holds_parts(part) for part in parts):
        return None

    def copied() -> Sequence[Any]:
        return copy.deepcopy(inputs, {id(leaf): leaf for leaf in leaves(inputs) if isinstance(leaf, torch.Tensor)})

    given = copied()
    before = _held(given)
    call(*given)
    return None if before is not None and _held(given) == before else copied


def _holds_parts(value: Any) -> bool:
    return next(iter(leaves(value)), None) is not value


def _held(inputs: Sequence[Any]) -> Any:
    """Which tensors and plain values containers hold, and where; None where that cannot be told."""
    try:
        return structure_of(list(inputs), id)
    except Unsupported:
        return None
