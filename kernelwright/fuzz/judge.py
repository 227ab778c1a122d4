"""Whether two results of one computation agree, given how much they may differ by rounding alone.

Random models are often badly conditioned: they round, compare, or divide by what is almost zero. How far
honest rounding can move a result is found by the method of random arithmetic (Vignes, "A stochastic
arithmetic for reliable scientific computation", 1993): the graph is evaluated several times with every
rounded value multiplied by 1 + noise, and each element may differ by what these runs differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import torch

from kernelwright.algebra.build import NARROW, per_channel, reduce, reshape
from kernelwright.algebra.collapse import cast
from kernelwright.algebra.norms import batch_norm_affine
from kernelwright.codegen.reference.plan import exact
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node, constant, make, rebuild, walk
from kernelwright.ir.registry import torch_dtype
from kernelwright.plan.lowering.losses import LOWERINGS
from kernelwright.problem.seeds import seed_generators

#: Operators that choose or move values and round nothing.
_EXACT = frozenset((
    "neg", "abs", "sign", "floor", "ceil", "round", "trunc", "maximum", "minimum", "relu", "threshold", "hardshrink",
    "clamp_min", "clamp_max", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "where",
    "amax", "amin", "max_pool", "concatenate", "item", "flip", "copy",
))
_SLACK, _RUNS = 30.0, 24
_NARROW = 1e-4
_NORMS = ("layer_norm", "group_norm", "instance_norm")
_EXPONENTIAL_LOSSES = ("soft_margin_loss", "poisson_nll_loss")
_TINY = 1e-3  # results this small are differences of equal values
_LARGE = 1e30


#: Relative rounding of a value of each type, as noise; for float64 far above it, so that it is seen.
ROUNDING = {"float64": 1e-11, "float32": 2e-7, "float16": 1e-3, "bfloat16": 8e-3}


class Disagreement(NamedTuple):
    """In what two results differ. ``kind``: "shape", "place" (of what is not finite) or "value"."""

    kind: str
    words: str

    def __str__(self) -> str:
        return self.words


def roots_of(graph: Graph) -> list[Node]:
    """Outputs and new values of buffers."""
    return [*graph.outputs, *(e.value for e in graph.effects)]


def narrowest(graph: Graph) -> float:
    """The noise of the narrowest floating type in a graph."""
    return max((ROUNDING.get(n.dtype, 0.0) for n in graph.nodes()), default=0.0) or ROUNDING["float64"]


def evaluated(graph: Graph, values: Mapping[str, torch.Tensor], disturb: Callable[[Node, Any], Any] | None = None
              ) -> list[Any]:
    """The graph's outputs and new buffer values in float64, random draws in the order of the model."""
    roots = roots_of(graph)
    drawing = sorted((n for n in walk(roots) if n.get("serial", -1) >= 0), key=lambda n: n["serial"])
    seed_generators(0)
    with torch.no_grad():
        return exact((*drawing, *roots), values, disturb)[len(drawing):]


def disagreement(found: Sequence[Any], graph: Graph, values: Mapping[str, torch.Tensor], expected: Sequence[Any],
                 noise: float, *, trade: bool = False) -> Disagreement | None:
    """What differs between results and a graph's meaning; None where nothing does that rounding could not explain.

    found, expected: the graph's outputs and new buffer values, the latter from :func:`evaluated` for these leaves.
    noise: the relative rounding of a single value; ten times it, relative to the largest magnitude of an output,
    is always accepted. trade: whether Inf and NaN may trade places, as products were exchanged: what depends on an
    infinity, wherever it comes from, may then be anything.
    """
    if not _first_difference(found, expected, [], 10 * noise):
        return None
    runs = _disturbed(graph, values, noise)
    if trade:
        runs += [_without_infinities(graph, values, instead) for instead in (math.nan, _LARGE)]
    return _first_difference(found, expected, runs, 10 * noise)


def _without_infinities(graph: Graph, values: Mapping[str, torch.Tensor], instead: float) -> list[Any]:
    """The graph's results with ``instead`` of each infinity, with its sign."""

    def replaced(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return torch.where(value.isinf(), instead * value.sign(), value)

    given = {name: replaced(value) for name, value in values.items()}
    return evaluated(_written_out(graph), given, lambda node, value: replaced(value))


def _written_out(graph: Graph) -> Graph:
    """The graph with those operators in steps whose own results rounding or the range of a type changes: norms, of
    which few digits are left where the mean is subtracted, the tails of activations, where as few are, and exponentials
    within losses."""
    replaced: dict[Node, Node] = {}
    for node in walk(roots_of(graph)):
        built = rebuild(node, tuple(replaced[i] for i in node.inputs))
        norm = node.op in ("batch_norm_training", "batch_norm_inference")
        loss = node.op in _EXPONENTIAL_LOSSES
        replaced[node] = batch_norm_affine(built) if norm else LOWERINGS[node.op](built) if loss else \
            _gelu(built) if node.op in ("gelu_erf", "gelu_tanh") else _norm(built) if node.op in _NORMS else built
    return replace(graph, outputs=tuple(replaced[n] for n in graph.outputs),
                   effects=tuple(replace(e, value=replaced[e.value]) for e in graph.effects))


def _norm(node: Node) -> Node:
    """x r - m r, as libraries compute (x - m) r, for the mean m and r = 1 / sqrt(v + eps) of the variance v. Of a norm
    of one value nothing but the rounding of the two products is left."""
    if 0 in node.shape:
        return node
    x, *rest = (cast(i, "float32") if i.dtype in NARROW else i for i in node.inputs)
    rows = prod(x.shape[:x.rank - node["axes"]]) if node.op == "layer_norm" else \
        x.shape[0] * (node["groups"] if node.op == "group_norm" else x.shape[1])
    values = reshape(x, (rows, prod(x.shape) // rows))
    mean, variance = reduce("mean", values, (1,)), reduce("var", values, (1,), correction=0)
    scale = make("rsqrt", make("add", variance, constant(node["eps"])))
    result = reshape(make("sub", make("mul", values, scale), make("mul", mean, scale)), x.shape)
    for op, operand in zip(("mul", "add"), rest, strict=False):
        result = make(op, result, operand if node.op == "layer_norm" else per_channel(operand, x.rank))
    return cast(result, node.dtype)


def _gelu(node: Node) -> Node:
    """x / 2 (1 + erf(x / sqrt 2)), of which nothing but rounding is left at -6; or its form with tanh."""
    x = node.inputs[0]
    if node.op == "gelu_erf":
        inner = make("erf", make("mul", x, constant(0.5**0.5)))
    else:
        cubic = make("add", x, make("mul", make("mul", make("square", x), x), constant(0.044715)))
        inner = make("tanh", make("mul", cubic, constant((2 / math.pi)**0.5)))
    return make("mul", make("mul", x, constant(0.5)), make("add", inner, constant(1.0)))


def _disturbed(graph: Graph, values: Mapping[str, torch.Tensor], noise: float) -> list[list[Any]]:
    """The graph's results in runs of random arithmetic, each value by the noise of its type and by no more than
    ``noise``, in which what a value's type cannot hold is infinite: float64
    holds what a model and its kernels do not, and such places say nothing. So do the steps of some operators. In the
    last run each value is what its type makes of it: small ones are zeros, and those next to a whole number are it."""
    graph = _written_out(graph)
    runs = []
    for run in range(_RUNS + 1):
        generator = torch.Generator().manual_seed(run)

        def disturb(node: Node, value: Any, generator: torch.Generator = generator, last: bool = run == _RUNS) -> Any:
            if node.kind == "view" or node.op in _EXACT or not isinstance(value, torch.Tensor) \
                    or not value.is_floating_point():
                return value
            own = min(noise, ROUNDING.get(node.dtype, noise))
            moved = value * (1 + own * torch.randn(value.shape, generator=generator, dtype=value.dtype))
            if last:
                return value.to(torch_dtype(node.dtype)).to(value.dtype)
            held = moved.to(torch_dtype(node.dtype))
            return torch.where(held.isfinite(), moved, held.to(moved.dtype))

        given = values
        if noise >= _NARROW and run < _RUNS:  # PyTorch rounds the numbers that 16-bit inputs are compared with
            given = {n: v * (1 + noise * torch.randn(v.shape, generator=generator)) if v.is_floating_point() else v
                     for n, v in values.items()}
        runs.append(evaluated(graph, given, disturb))
    return runs


def _first_difference(found: Sequence[Any], expected: Sequence[Any], runs: Sequence[Sequence[Any]], tolerance: float
                      ) -> Disagreement | None:
    for number, (actual, wanted) in enumerate(zip(found, expected, strict=True)):
        if not isinstance(wanted, torch.Tensor):
            continue
        if tuple(actual.shape) != tuple(wanted.shape):
            return Disagreement("shape", f"result {number} has shape {tuple(actual.shape)}, "
                                         f"expected {tuple(wanted.shape)}")
        if found_here := _differs(actual, wanted, [run[number] for run in runs], tolerance):
            return found_here._replace(words=f"result {number}: {found_here.words}")
    return None


def _differs(actual: torch.Tensor, wanted: torch.Tensor, runs: Sequence[torch.Tensor], tolerance: float
             ) -> Disagreement | None:
    actual, wanted = actual.detach().double(), wanted.detach().double()
    runs = [r.double() for r in runs]
    finite = wanted.isfinite()
    stable = torch.ones_like(finite)
    spread = torch.zeros_like(wanted)
    for run in runs:
        stable &= run.isfinite() == finite
        spread = torch.maximum(spread, torch.where(stable & finite, (run - wanted).abs(), 0.0).nan_to_num(0.0))
    misplaced = stable & (actual.isfinite() != finite)
    if misplaced.any():
        place = tuple(misplaced.nonzero()[0].tolist())
        return Disagreement("place", f"{float(actual[place])} at {place}, expected {float(wanted[place])} "
                                     f"({int(misplaced.sum())} of {misplaced.numel()} elements)")
    compared = stable & finite & actual.isfinite()
    if not compared.any():
        return None
    scale = float(wanted[compared].abs().max())
    error = torch.where(compared, (actual - wanted).abs(), 0.0).nan_to_num(0.0)
    # What sums to almost nothing has the rounding of its terms, which only the disturbed runs know.
    excess = error - tolerance * max(scale, _TINY) - _SLACK * spread
    if not (excess > 0).any():
        return None
    place = tuple(int(i) for i in torch.unravel_index(excess.argmax(), excess.shape))
    return Disagreement("value", f"{float(actual[place])} at {place}, expected {float(wanted[place])} (the largest is "
                                 f"{scale:.3g}, rounding moves it by {float(spread[place]):.2g}; "
                                 f"{int((excess > 0).sum())} of {excess.numel()} elements)")
