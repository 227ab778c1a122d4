"""Rounding late: small values that were computed in float64 stay so until they meet something large.

What is left of a collapsed operator has few elements, and what follows often subtracts two of them
(a batch norm's mean, for one). PyTorch's own result averages many rounded values, so rounding each sum to
float32 at once would be less accurate than the original.

Sums of 16-bit values are taken in float32, as PyTorch takes them; where a linear operator may collapse below, what
lies between is converted as well, so that only the result is rounded.
"""

from __future__ import annotations

from dataclasses import replace

from kernelwright.algebra.build import SUMS, narrow
from kernelwright.algebra.collapse import cast
from kernelwright.algebra.identities import reaches_anchor
from kernelwright.algebra.rule import Context, Exactness, Rule, rule
from kernelwright.ir.graph import BufferUpdate, Graph
from kernelwright.ir.node import Node, make, rebuild, walk
from kernelwright.ir.scalar import FUNCTIONS, JUMPS

_MOST_ELEMENTS = 1 << 20


def _rounded(node: Node) -> bool:
    """Whether a rule rounded this (where the model itself does, that is what it means)."""
    return node.op == "cast" and node.dtype == "float32" and bool(node.get("precise"))


@rule("round late", *(name for name in FUNCTIONS if name not in JUMPS), "sum", "mean", "amax", "amin", "logsumexp",
      "reshape", "permute",
      law="f(round(x)) = round(f(x)) up to the rounding of x", condition="x is small, and f does not make it larger",
      exactness=Exactness.ROUNDING)
def round_late(node: Node, context: Context) -> Node | None:
    rounded = [i for i in node.inputs if _rounded(i)]
    if not rounded or node.dtype != "float32" or node.size > min(_MOST_ELEMENTS, max(i.size for i in rounded)):
        return None
    if any(i.dtype not in ("float32", "float64", "bool", "scalar") for i in node.inputs):
        return None
    inputs = (i.inputs[0] if i in rounded else cast(i, "float64") if i.dtype == "float32" else i for i in node.inputs)
    result = make(node.op, *inputs, origin=node.origin, **dict(node.attributes))
    return cast(result, "float32") if result.dtype == "float64" else None


@rule("sum in float32", *SUMS, law="sum(x) = round(sum(wide(x)))",
      condition="of 16-bit values, with a linear operator below that may be collapsed", exactness=Exactness.ROUNDING)
def sum_wide(node: Node, context: Context) -> Node | None:
    x = node.inputs[0]
    if not narrow(node) or not node["keepdim"] or not reaches_anchor(x, context):
        return None
    return cast(make(node.op, cast(x, "float32"), **dict(node.attributes)), node.dtype)


@rule("convert the terms", "cast", law="wide(a + b) = wide(a) + wide(b) up to the rounding of the left side",
      condition="linear in its terms, from 16 bits, with a linear operator below that may be collapsed",
      exactness=Exactness.ROUNDING)
def convert_terms(node: Node, context: Context) -> Node | None:
    x = node.inputs[0]
    linear = ("add", "sub", "mul", "div", "neg", "reshape", "permute", "batch_norm_inference", "batch_norm_training")
    if not narrow(x) or node.dtype != "float32" or x.op not in linear or not reaches_anchor(x, context):
        return None
    inputs = (cast(i, "float32") if narrow(i) else i for i in x.inputs)
    return make(x.op, *inputs, origin=x.origin, **dict(x.attributes))


def exact_convolutions(graph: Graph) -> Graph:
    """The graph with every convolution in true float32 (policy ``strict``)."""
    results: dict[Node, Node] = {}
    effects_of = [e.value for e in graph.effects]
    owners = [e.owner for e in graph.effects if e.owner is not None]
    for node in walk([*graph.outputs, *effects_of, *owners, *(c.value for c in graph.checks)]):
        inputs = tuple(results[i] for i in node.inputs)
        if node.op == "convolution":
            results[node] = make("convolution", *inputs, origin=node.origin, **{**dict(node.attributes), "exact": True})
        else:
            results[node] = rebuild(node, inputs)
    effects = tuple(BufferUpdate(e.name, results[e.value], results[e.owner] if e.owner is not None else None)
                    for e in graph.effects)
    return replace(graph, outputs=tuple(results[o] for o in graph.outputs), effects=effects,
                   checks=tuple(replace(c, value=results[c.value]) for c in graph.checks))


PRECISION: tuple[Rule, ...] = (round_late, sum_wide, convert_terms)
