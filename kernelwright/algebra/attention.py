"""Attention whose mask is known: it depends on no input, parameter or buffer."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

from kernelwright.algebra.rule import Context, Exactness, Rule, rule
from kernelwright.ir.evaluate import evaluate
from kernelwright.ir.node import Node, make, walk

_TARGET = "aten.scaled_dot_product_attention."
#: The place in the call's template of whether it is causal, behind queries, keys, values, a mask and what is dropped.
CAUSAL = 5
_FIXED_KINDS = ("leaf", "opaque", "view", "pointwise", "reduction")
_FIXED_LEAVES = ("constant", "literal")
#: A mask is evaluated where no node below it has more elements than this, and there are not more nodes.
_MOST_ELEMENTS, _MOST_NODES = 1 << 26, 300
_NO_MASK, _CAUSAL, _OTHER = "no mask", "causal", "other"
_known: WeakKeyDictionary[Node, str] = WeakKeyDictionary()


@rule("attention under a known mask", "opaque",
      law="attention(q, k, v, mask) = attention(q, k, v), or its causal form, where the mask is true everywhere, or on "
          "and below the diagonal",
      condition="the mask depends on no input, and widens no axis of the result; it is square where it is causal; "
                "nothing is dropped out",
      exactness=Exactness.FINITE)
def known_mask(node: Node, context: Context) -> Node | None:
    """Libraries skip what a causal form hides, and compute it, and read the mask, where that says the same. Models that
    may be given a mask look whether it hides anything, which no trace can do: it always stands in their graphs."""
    if not is_plain_attention(node):
        return None
    *operands, given, dropped, _ = node["template"][:CAUSAL + 1]
    if not isinstance(given, tuple) or given in operands or is_causal(node) or dropped:
        return None
    mask, query = node.inputs[given[1]], node.inputs[operands[0][1]]
    if node.shape[:-2] != query.shape[:-2]:  # a mask of more entries than there are queries
        return None
    if mask not in _known:
        _known[mask] = _kind_of(mask)
    if _known[mask] == _OTHER:
        return None
    kept = [i for i in node.inputs if i is not mask]
    template = (*(("input", kept.index(node.inputs[number])) for _, number in operands), None, dropped,
                _known[mask] == _CAUSAL, *node["template"][CAUSAL + 1:])
    attributes: dict[str, Any] = {**dict(node.attributes), "template": template}
    return make("opaque", *kept, **attributes)


def is_plain_attention(node: Node) -> bool:
    """Whether a node is a call of PyTorch's attention that draws no numbers and says all that it is."""
    return node.op == "opaque" and node["target"].startswith(_TARGET) and node["serial"] < 0 \
        and len(node["template"]) > CAUSAL


def is_causal(node: Node) -> bool:
    """Whether such a call is causal."""
    return node["template"][CAUSAL] is True


def _kind_of(mask: Node) -> str:
    """Whether a mask hides nothing, or what lies above the diagonal, or is another one, or not known."""
    below = list(walk([mask]))
    if len(below) > _MOST_NODES or not all(map(_is_fixed, below)) or mask.rank < 2:
        return _OTHER
    try:
        (value,) = evaluate([mask], {}, device=torch.device("cpu"))
    except Exception:  # an operator that the processor has not: the mask is as good as any other one
        return _OTHER
    if value.dtype is not torch.bool:  # what is added to scores
        hidden = torch.isneginf(value)
        if not bool((hidden | (value == 0)).all()):
            return _OTHER
        value = ~hidden
    if bool(value.all()):
        return _NO_MASK
    rows, columns = value.shape[-2:]
    causal = torch.ones(rows, columns, dtype=torch.bool).tril()
    return _CAUSAL if rows == columns and torch.equal(value, causal.expand_as(value)) else _OTHER


def _is_fixed(node: Node) -> bool:
    return (node.kind in _FIXED_KINDS and (node.kind != "leaf" or node.op in _FIXED_LEAVES) and node.op != "item"
            and node.dtype != "tuple" and node.get("serial", -1) < 0 and node.size <= _MOST_ELEMENTS
            and "empty" not in node.get("target", "") and node.get("part") is None)


ATTENTION: tuple[Rule, ...] = (known_mask,)

__all__ = ["ATTENTION"]
