"""Dropout as a product with numbers that PyTorch draws, of which kernels make the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelwright.ir.node import Node, Origin, constant, make

Opaque = Callable[[Any, str, dict[str, Any], Any, Origin], Node]


def dropped(x: Node, arguments: dict[str, Any], meaning: torch.Tensor, opaque: Opaque, origin: Origin
            ) -> Node | None:
    """What dropout leaves of x, where PyTorch draws as many numbers as x has elements and divides them by their share;
    None where it draws none, or elsewhere in memory than their order here.

    arguments: of the operator, by schema name. meaning: what the trace gives. opaque: makes the node of a torch call.
    On a GPU that is so of the operator in place alone. The call gets a number in x's shape: it asks x for that alone.
    """
    kept = 1 - arguments["p"]
    if not arguments["train"] or not 0 < kept < 1 or not meaning.is_contiguous():
        return None
    like = make("literal", value=0.0, shape=(1,) * x.rank, dtype=x.dtype)
    if like.shape != x.shape:
        like = make("expand", like, shape=x.shape)
    drawn = opaque(torch.ops.aten.bernoulli.p, "aten.bernoulli.p", {"self": like, "p": kept, "generator": None},
                   meaning, origin)
    return make("mul", x, make("div", drawn, constant(kept), origin=origin), origin=origin)
