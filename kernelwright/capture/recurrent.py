"""Recurrent layers during capture: one node each, without a walk over the time steps.

The exporter keeps ``aten.lstm`` and its kin as single operators, but finds their shapes by running their
composite definition step by step on fake tensors, which takes from ten to sixty seconds. During capture
markers with a shape rule stand in for them; the converter puts the operators back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("kernelwright::lstm", mutates_args=())
def _lstm(input: Tensor, hx: list[Tensor], params: list[Tensor], has_biases: bool, num_layers: int, dropout: float,
          train: bool, bidirectional: bool, batch_first: bool) -> tuple[Tensor, Tensor, Tensor]:
    raise NotImplementedError("a marker for capture")


@_lstm.register_fake
def _(input: Tensor, hx: list[Tensor], params: list[Tensor], has_biases: bool, num_layers: int, dropout: float,
      train: bool, bidirectional: bool, batch_first: bool) -> tuple[Tensor, Tensor, Tensor]:
    return _sequence(input, hx[0], bidirectional, batch_first), _state(hx[0]), _state(hx[1])


def _declare(name: str) -> Any:
    """A marker for gru, rnn_tanh or rnn_relu, which share one signature."""

    @torch.library.custom_op(f"kernelwright::{name}", mutates_args=())
    def marker(input: Tensor, hx: Tensor, params: list[Tensor], has_biases: bool, num_layers: int, dropout: float,
               train: bool, bidirectional: bool, batch_first: bool) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("a marker for capture")

    @marker.register_fake
    def _(input: Tensor, hx: Tensor, params: list[Tensor], has_biases: bool, num_layers: int, dropout: float,
          train: bool, bidirectional: bool, batch_first: bool) -> tuple[Tensor, Tensor]:
        return _sequence(input, hx, bidirectional, batch_first), _state(hx)

    return marker


def _sequence(x: Tensor, hidden: Tensor, bidirectional: bool, batch_first: bool) -> Tensor:
    """(time, batch, directions * hidden), or batch first as the input, which lies in memory with time first."""
    first, second = x.shape[:2]
    features = (1 + bidirectional) * hidden.shape[-1]
    return x.new_empty((second, first, features)).transpose(0, 1) if batch_first else x.new_empty(
        (first, second, features))


def _state(hidden: Tensor) -> Tensor:
    return hidden.new_empty(hidden.shape)


_MARKERS: dict[str, Any] = {"lstm": _lstm, **{name: _declare(name) for name in ("gru", "rnn_tanh", "rnn_relu")}}
#: The operator that each marker stands for.
OPERATORS = {getattr(torch.ops.kernelwright, name).default: getattr(torch.ops.aten, name).input for name in _MARKERS}


class _Marked:
    """``torch._VF`` with markers for calls on padded batches; packed sequences go their usual way."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Callable[..., Any]:
        original = getattr(self._original, name)
        if name not in _MARKERS:
            return original
        marker = _MARKERS[name]

        def call(*arguments: Any) -> Any:
            packed = len(arguments) != 9 or not isinstance(arguments[3], bool)
            return original(*arguments) if packed else marker(*arguments)

        return call


@contextmanager
def recurrent_layers_marked() -> Iterator[None]:
    """While active, nn.LSTM, nn.GRU and nn.RNN call the markers."""
    layers = torch.nn.modules.rnn
    original = layers._VF
    layers._VF = _Marked(original)  # pyrefly: ignore[bad-assignment]  # in place of a module
    try:
        yield
    finally:
        layers._VF = original
