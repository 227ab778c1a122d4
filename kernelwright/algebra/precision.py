"""Rounding late: small values that were computed in float64 stay so until they meet something large.

What is left of a collapsed operator has few elements, and what follows often subtracts two of them
(a batch norm's mean, for one). PyTorch's own result averages many rounded values, so rounding each sum to
float32 at once would be less accurate than the original.
"""

from __future__ import annotations

from dataclasses import replace

from kernelwright.algebra.collapse import cast
from kernelwright.algebra.rule import Context, Exactness, Rule, rule
from kernelwright.ir.graph import BufferUpdate, Graph
from kernelwright.ir.node import Node, make, rebuild, walk
from kernelwright.ir.scalar import FUNCTIONS

_MOST_ELEMENTS = 1 << 20
# A jump turns a rounding into a whole step: these see what PyTorch's see.
_JUMPS = ("floor", "ceil", "round", "trunc", "sign", "eq", "ne", "lt", "le", "gt", "ge")


def _rounded(node: Node) -> bool:
    return node.op == "cast" and node.dtype == "float32" and node.inputs[0].dtype == "float64"


@rule("round late", *(name for name in FUNCTIONS if name not in _JUMPS), "sum", "mean", "amax", "amin", "logsumexp",
      "reshape", "permute",
      law="f(round(x)) = round(f(x)) up to the rounding of x", condition="x is small, and f does not make it larger",
      exactness=Exactness.ROUNDING)
def round_late(node: Node, context: Context) -> Node | None:
    rounded = [i for i in node.inputs if _rounded(i)]
    if not rounded or node.dtype != "float32" or node.size > min(_MOST_ELEMENTS, max(i.size for i in rounded)):
        return None
    if any(i.dtype not in ("float32", "float64", "bool", "scalar") for i in node.inputs):
        return None
    inputs = (i.inputs[0] if i in rounded else i for i in node.inputs)
    result = make(node.op, *inputs, origin=node.origin, **dict(node.attributes))
    return cast(result, "float32") if result.dtype == "float64" else None


def exact_convolutions(graph: Graph) -> Graph:
    """The graph with every convolution in true float32 (policy ``strict``)."""
    results: dict[Node, Node] = {}
    effects_of = [e.value for e in graph.effects]
    owners = [e.owner for e in graph.effects if e.owner is not None]
    for node in walk([*graph.outputs, *effects_of, *owners]):
        inputs = tuple(results[i] for i in node.inputs)
        if node.op == "convolution":
            results[node] = make("convolution", *inputs, origin=node.origin, **{**dict(node.attributes), "exact": True})
        else:
            results[node] = rebuild(node, inputs)
    effects = tuple(BufferUpdate(e.name, results[e.value], results[e.owner] if e.owner is not None else None)
                    for e in graph.effects)
    return replace(graph, outputs=tuple(results[o] for o in graph.outputs), effects=effects)


PRECISION: tuple[Rule, ...] = (round_late,)
