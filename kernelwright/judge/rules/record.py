"""What a set of rules is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class RuleSet:
    """How an evaluator decides whether a candidate is right.

    ``name`` is the option's word, ``title`` what it is called, ``words`` what it asks, ``source`` where that stands.
    ``seeds``: from the run's own seed, the one of construction and one for each trial's inputs. ``cast``: from the
    tensors of the model's parameters, buffers and inputs, the type that models and inputs are cast to, or None.
    ``compare`` gets the type, the model's result and the candidate's, and returns what is wrong, or "". Nothing of a
    state_dict is asked by any: both are constructed under one seed.
    """

    name: str
    title: str
    words: str
    source: str
    seeds: Callable[[int], tuple[int, tuple[int, ...]]]
    cast: Callable[[Sequence[torch.Tensor]], torch.dtype | None]
    compare: Callable[[torch.dtype | None, Any, Any], str]


def kind_of(value: Any) -> str:
    """What a result is, in words."""
    return f"a {type(value).__name__}" if value is not None else "None"
