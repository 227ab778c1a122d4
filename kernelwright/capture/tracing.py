"""What the exporter cannot follow, put during a trace so that it can, with the same meaning."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kernelwright.capture.recurrent import recurrent_layers_marked


@contextmanager
def traceable() -> Iterator[None]:
    """While active, modules call what a trace can follow."""
    with recurrent_layers_marked(), _data_detached(), _masks_not_inspected():
        yield


@contextmanager
def _data_detached() -> Iterator[None]:
    """``tensor.data`` gives ``tensor.detach()``: the same memory, but in sight of the trace, which otherwise loses
    what is written there. Without gradients the two differ in the count of versions only."""
    inherited = torch._C.TensorBase.data
    torch.Tensor.data = property(  # type: ignore[assignment]
        lambda tensor: tensor.detach(), inherited.__set__, inherited.__delete__)
    try:
        yield
    finally:
        del torch.Tensor.data


@contextmanager
def _masks_not_inspected() -> Iterator[None]:
    """nn.Transformer's layers use the mask that they are given. PyTorch looks at its values, to say beside the same
    mask that it is the causal one: a hint for speed, and a decision on values, which no trace can hold."""
    layers = torch.nn.modules.transformer
    original = layers._detect_is_causal_mask
    layers._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        layers._detect_is_causal_mask = original


def without_scopes(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with its scopes resolved: what stood under autocast has its casts, what stood under vmap is batched.

    Composite operators stay whole (the table of decompositions is empty), writes become values, and the new values of
    buffers become the first results. A program without scopes is returned as it is.
    """
    called = [n.target for n in program.graph.nodes if n.op not in ("placeholder", "output")]
    if all(isinstance(t, torch._ops.OpOverload) or t is operator.getitem for t in called):
        return program
    try:
        return program.run_decompositions({})
    except Exception:  # the converter names what the trace holds
        return program


def name_of(target: Any) -> str:
    """A name for what a trace calls, without addresses."""
    return str(getattr(target, "__name__", None) or type(target).__name__) if callable(target) else str(target)
