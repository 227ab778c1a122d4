"""The record that stage LOAD hands on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Problem:
    """A model to optimize: how to construct it, how to make its inputs, and where it came from.

    Holds no tensors of its own for a file: every model and every list of inputs is made anew, from a
    seed, when asked for. The user's code runs only then (and once at loading).
    """

    name: str
    """The file's stem, or the class's name for a module given from Python."""
    path: Path | None
    """The problem file as the user gave it, or None."""
    source: str | None
    """The file's text as it was loaded, newlines as ``\\n``; None where there is no file."""
    class_name: str
    """The name under which the class stands in its file (``Model``, unless Model is an alias)."""
    model_class: type[nn.Module]
    """The class itself, in a module of ``sys.modules``, so that ``inspect.getsource`` works."""
    init_inputs: tuple[Any, ...]
    """Arguments of the constructor, those by keyword last (`Keywords`); () for an instance, which is copied instead."""
    device: torch.device
    """Where models and inputs are put."""
    is_instance: bool
    """Whether models are copies of an instance (then every seed gives the same parameters)."""
    build_inputs: Callable[[int], list[Any]] = field(repr=False)
    """Implementation of :meth:`make_inputs`."""
    build_model: Callable[..., nn.Module] = field(repr=False)
    """Implementation of :meth:`make_model`."""
    asked: str | None = None
    """The name by which the class was asked for, or None where it was found."""
    draws: tuple[int, ...] = ()
    """First lines of the file's statements that drew random numbers, or seeded them, when it was imported."""
    gives_arrays: Callable[[], bool] = field(default=lambda: False, repr=False)
    """Whether NumPy arrays stood in place of tensors among the arguments that were made so far."""

    def make_inputs(self, seed: int) -> list[Any]:
        """Fresh arguments of forward on ``device``: tensors, plain values, and containers of these; what can be given
        by keyword only stands last (`Keywords`), and models of :meth:`make_model` take it there.

        The same seed gives the same values; no tensor is shared with another call. The global random
        states are left as they were. For a module given from Python, seed 0 gives copies of the given
        inputs and other seeds random values of the same shape, dtype and range.
        Raises GetInputsRaised (KW112), InputsInvalid (KW113), NotEnoughMemory (KW115).
        """
        return self.build_inputs(seed)

    def make_model(self, seed: int, kind: type[nn.Module] | None = None) -> nn.Module:
        """The model on ``device``, constructed under ``torch.manual_seed(seed)``, mode as constructed.

        kind: another class to construct alike (a ModelNew); not for an instance.
        ``torch.manual_seed(seed); Model(*init_inputs)`` gives the same parameters. An instance is
        deep-copied. The global random states are left as they were.
        Raises InitInputsMismatch (KW111), ConstructorRaised (KW110), ModelNotCopyable (KW117),
        NotEnoughMemory (KW115).
        """
        return self.build_model(seed) if kind is None else self.build_model(seed, kind)
