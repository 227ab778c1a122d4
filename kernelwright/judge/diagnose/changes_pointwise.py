"""Hypotheses about pointwise operators: left out, another one, operands, constants, order, twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from kernelwright.ir.node import Node
from kernelwright.ir.scalar import FUNCTIONS
from kernelwright.judge.diagnose.change import Change, Number, applied, on_input
from kernelwright.judge.diagnose.graph_values import Get, recomputed
from kernelwright.judge.diagnose.naming import ACTIVATIONS, name, place, told

#: Activations that stand in for each other, the likeliest first.
_LIKELY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "ReLU": torch.relu, "GELU": F.gelu, "GELU (tanh form)": lambda x: F.gelu(x, approximate="tanh"), "SiLU": F.silu,
    "x sigmoid(1.702 x)": lambda x: x * torch.sigmoid(1.702 * x), "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "leaky ReLU (0.01)": lambda x: F.leaky_relu(x, 0.01), "leaky ReLU (0.2)": lambda x: F.leaky_relu(x, 0.2),
    "ELU": F.elu, "SELU": F.selu, "softplus": F.softplus, "Mish": F.mish, "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid, "ReLU6": F.relu6, "hardtanh": F.hardtanh, "absolute value": torch.abs,
    "log(1 + exp(x)) without a guard": lambda x: torch.log(1 + torch.exp(x)),
    "x tanh(exp(x))": lambda x: x * torch.tanh(torch.exp(x)), "x tanh(x)": lambda x: x * torch.tanh(x),
    "(exp(2x) - 1) / (exp(2x) + 1)": lambda x: (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1),
    "x tanh((e^2 + 2e) / (e^2 + 2e + 2)), e = exp(x), without a guard":
        lambda x: x * (lambda n: n / (n + 2))(torch.exp(x) * (torch.exp(x) + 2)),
    "a step": lambda x: (x > 0).to(x.dtype), "2 to the x": torch.exp2, "log10": torch.log10,
}
_BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow")
_BIASED = ("linear", "convolution", "layer_norm", "group_norm", "instance_norm", "batch_norm_inference",
           "batch_norm_training")
_COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
_LOGIC = ("logical_and", "logical_or")
#: Nobody takes them for an operator of numbers, and of most numbers they are one constant.
_TRUTHS = ("isfinite", "isinf", "signbit")


def main_input(node: Node) -> int | None:
    """The input that the operator works on: of the node's shape, and no parameter or constant where there is one."""
    same = [i for i,
            n in enumerate(node.inputs) if n.shape == node.shape and n.op != "constant" and n.dtype == node.dtype]
    computed = [i for i in same if node.inputs[i].op not in ("parameter", "buffer", "literal")]
    return (computed or same or [None])[0]


def pointwise(node: Node) -> Iterator[Change]:
    """All changes of one pointwise node."""
    if node.kind != "pointwise" or not node.inputs:
        return
    yield from _left_out(node)
    yield from _exchanged(node)
    yield from _replaced(node)
    yield from _order(node)
    yield from _late_bias(node)
    yield from _other_index(node)


def _late_bias(node: Node) -> Iterator[Change]:
    """The bias of a contraction or a norm added behind the activation."""
    main = main_input(node)
    if main is None or node.op == "add":
        return
    before = node.inputs[main]
    if before.op not in _BIASED or before.shape != node.shape or before.inputs[-1].rank != 1 or \
            len(before.inputs) < 3 + 2 * (before.op == "batch_norm_inference"):
        return
    axis = node.rank - 1 if before.op in ("linear", "layer_norm") else 1
    bias = before.inputs[-1]

    def compute(get: Get) -> Any:
        without = recomputed(before, get, *map(get, before.inputs[:-1]), torch.zeros_like(get(bias)))
        own = [without if i == main else get(n) for i, n in enumerate(node.inputs)]
        return recomputed(node, get, *own) + along(get(bias), axis, node.rank)

    yield Change("order-exchanged", f"with the {name(bias)} added after {told(node)} instead of before it",
                 f"add the bias first, then apply the {name(node)}", 1.3, {node: compute}, _about(node))


def along(vector: torch.Tensor, axis: int, rank: int) -> torch.Tensor:
    """A vector as a tensor of ``rank`` axes that lies along one of them."""
    return vector.reshape([-1 if a == axis else 1 for a in range(rank)])


def misread(vector: torch.Tensor, own: int, shape: tuple[int, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    """A vector along axis ``own`` of a tensor, read at wrong indices: words, and what it then adds or multiplies."""
    rank, length = len(shape), vector.numel()
    for axis in range(rank):
        if axis != own and shape[axis] > 1:
            index = torch.arange(shape[axis], device=vector.device) % length
            yield f"by axis {axis} instead of {own}", along(vector[index], axis, rank)
    if shape[own] == length and length > 1:
        for words, moved in (("one further", vector.roll(-1)), ("one back", vector.roll(1)),
                             ("reversed", vector.flip(0)), ("at index 0 always", vector[:1].expand_as(vector))):
            yield words, along(moved, own, rank)


def _other_index(node: Node) -> Iterator[Change]:
    """A parameter along one axis, read by another axis or at a neighbouring index."""
    if node.op not in ("add", "sub", "mul", "div") or len(node.inputs) != 2:
        return
    for index, part in enumerate(node.inputs):
        leaf = _parameter(part)
        wide = [node.rank - part.rank + a for a, s in enumerate(part.shape) if s > 1]
        if leaf is None or len(wide) != 1 or leaf.size != part.size or part is node.inputs[1 - index]:
            continue
        blank = torch.zeros(leaf.size)
        for number, (words, _) in enumerate(misread(blank, wide[0], node.shape)):
            def compute(get: Get, i: int = index, p: Node = part, n: int = number, own: int = wide[0]) -> Any:
                values = [get(v) for v in node.inputs]
                values[i] = list(misread(get(p).reshape(-1), own, node.shape))[n][1]
                return recomputed(node, get, *values)

            by_axis = words.startswith("by axis")
            kind = ("bias" if node.op in ("add", "sub") else "weight") + ("-wrong-axis" if by_axis else "-index")
            yield Change(kind, f"with {leaf['name']} read {words} in {told(node)}",
                         f"index {leaf['name']} by axis {wide[0]}", 1.2, {node: compute},
                         {**_about(node), "parameter": leaf["name"]})


def _left_out(node: Node) -> Iterator[Change]:
    if node.op == "where":
        for index, words in ((1, "true"), (2, "false")):
            if node.inputs[index].shape == node.shape:
                yield Change("missing-condition", f"if the condition of {told(node)} were always {words}",
                             "evaluate the condition (a mask, say) for each element", 1.5,
                             {node: lambda get, i=index: get(node.inputs[i]).expand(node.shape)})
        return
    for index, part in enumerate(node.inputs):
        if part.shape != node.shape or part.op == "constant" or part.dtype != node.dtype:
            continue
        others = [n for i, n in enumerate(node.inputs) if i != index]
        leaf = next((n for n in others if n.op in ("parameter", "buffer")), None)
        weight = leaf or (_parameter(others[0]) if others else None)
        kind, prior = "missing-operator", 1.0
        words = f"without {told(node)}"
        fix = f"apply {told(node)}"
        if node.op in ACTIVATIONS:
            kind, prior, fix = "missing-activation", 0.5, f"apply {told(node)}"
        elif node.op in ("clamp_min", "clamp_max"):
            kind, prior = "missing-clamp", 0.6
        elif weight is not None and node.op in ("add", "sub"):
            kind, prior = "missing-bias", 0.5
            words = f"without adding {weight['name']}{place(node)}"
            fix = f"add {weight['name']}, as in {told(node)}"
        elif weight is not None and node.op in ("mul", "div"):
            kind, prior = "missing-weight", 0.8
        elif node.op in ("add", "sub") and others and others[0].op != "constant":
            kind, prior = "missing-addend", 1.0
            words = f"without the other operand ({name(others[0])}) of {told(node)}"
            fix = "add both operands (a residual connection, say)"
        elif node.op in ("mul", "div") and others and others[0].op == "constant":
            kind, prior = "missing-factor", 0.6
        yield Change(kind, words, fix, prior, {node: lambda get, p=part: get(p).clone()}, _about(node))


def _parameter(node: Node) -> Node | None:
    """The parameter under views."""
    while node.kind == "view" and node.inputs:
        node = node.inputs[0]
    return node if node.op in ("parameter", "buffer") else None


def _exchanged(node: Node) -> Iterator[Change]:
    if node.op in ("sub", "div", "pow", *_COMPARE) and len(node.inputs) == 2:
        yield Change("operands-exchanged", f"with the operands of {told(node)} exchanged",
                     "exchange the operands", 1.0, {node: applied(node, lambda a, b: _call(node.op, b, a))},
                     _about(node))
    if node.op == "where":
        yield Change("operands-exchanged", f"with the branches of {told(node)} exchanged", "exchange the branches", 1.5,
                     {node: applied(node, lambda c, a, b: torch.where(c.bool(), _tensor(b, c), _tensor(a, c)))},
                     _about(node))


def _call(op: str, a: Any, b: Any) -> Any:
    if not isinstance(a, torch.Tensor):
        a = _tensor(a, b)
    return FUNCTIONS[op].reference(a, b)


def _tensor(value: Any, like: torch.Tensor) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    kind = like.dtype if like.dtype.is_floating_point else torch.float32
    return torch.tensor(value, dtype=kind, device=like.device)


def _replaced(node: Node) -> Iterator[Change]:
    about = _about(node)
    if len(node.inputs) == 2 and node.op in (*_BINARY, *_COMPARE, *_LOGIC):
        family = next(f for f in (_BINARY, _COMPARE, _LOGIC) if node.op in f)
        for other in family:
            if other != node.op:
                prior = 1.2 if {other, node.op} in ({"add", "sub"}, {"mul", "div"}, {"maximum", "minimum"},
                                                    {"lt", "le"},
                                                    {"gt", "ge"}) else 3.0
                yield Change("wrong-operator", f"with {other} in place of {told(node)}", f"use {node.op}", prior,
                             {node: applied(node, lambda a, b, o=other: _call(o, a, b).to(_dtype(node)))}, about)
        if node.op == "add":
            yield Change("sign", f"with the first operand of {told(node)} negated", "correct its sign", 2.0,
                         {node: applied(node, lambda a, b: b - a)}, about)
        return
    main = main_input(node)
    if main is None or node.op in ("cast", "copy"):
        return
    activation = node.op in ACTIVATIONS
    for other, function in _LIKELY.items():
        yield Change("wrong-activation" if activation else "wrong-operator", f"with {other} in place of {told(node)}",
                     f"compute {told(node)}", 1.5 if activation else 3.5,
                     {node: lambda get, f=function: f(get(node.inputs[main]))}, about)
    for other, row in FUNCTIONS.items():
        if row.arity == 1 and other not in (node.op, *_TRUTHS):
            yield Change("wrong-activation" if activation else "wrong-operator",
                         f"with {other} in place of {told(node)}",
                         f"compute {told(node)}", 3.0 if not activation else 4.0,
                         {node: lambda get, f=row.reference: f(get(node.inputs[main]))}, about)
    if node.dtype.startswith(("float", "bfloat")):
        yield Change("applied-twice", f"with {told(node)} applied twice", "apply it once", 2.5,
                     {node: lambda get: recomputed(node, get, *(
                         recomputed(node, get) if i == main else get(n) for i, n in enumerate(node.inputs)))}, about)
        if node.op in ("leaky_relu", "prelu", "elu", "celu"):
            yield Change("wrong-branch", f"with the slope of {told(node)} on the positive side",
                         "the slope belongs to negative values", 3.0,
                         {node: lambda get: -recomputed(node, get, *(
                             -get(n) if i == main else get(n) for i, n in enumerate(node.inputs)))}, about)


def twice(node: Node) -> Iterator[Change]:
    """Binary operators with a constant or a parameter, applied twice."""
    main = main_input(node)
    if node.op in ("mul", "div", "add", "sub") and main is not None and len(node.inputs) == 2:
        yield Change("applied-twice", f"with {told(node)} applied twice", "apply it once", 1.4,
                     {node: lambda get: recomputed(node, get, *(
                         recomputed(node, get) if i == main else get(n) for i, n in enumerate(node.inputs)))},
                     _about(node))


def _order(node: Node) -> Iterator[Change]:
    """This operator before its predecessor instead of after it."""
    index = _first(node)
    if index is None:
        return
    before = node.inputs[index]
    inner = _first(before)
    if inner is None or before.kind in ("leaf", "view") or (before.op == node.op and before.kind == "pointwise"
                                                            and len(before.inputs) == 1):
        return

    def compute(get: Get) -> Any:
        own = list(map(get, node.inputs))
        own[index] = get(before.inputs[inner])
        early = recomputed(node, get, *own)
        others = list(map(get, before.inputs))
        others[inner] = early
        return recomputed(before, get, *others)

    yield Change("order-exchanged", f"with {told(node)} before the {name(before)} instead of after it",
                 f"apply the {name(before)} first, then the {name(node)}", 1.6, {node: compute}, _about(node))


def _first(node: Node) -> int | None:
    return next((i for i, n in enumerate(node.inputs)
                 if n.kind not in ("leaf",) and n.dtype == node.dtype), None) if node.kind != "leaf" else None


def constants(node: Node) -> Iterator[Number]:
    """The numbers among the operands of a pointwise operator."""
    if node.kind != "pointwise":
        return
    for index, part in enumerate(node.inputs):
        if part.op != "constant" or isinstance(part["value"], bool):
            continue

        # A comparison with another number is mostly one that never, or always, holds.
        prior = 1.9 if node.op in _COMPARE else 1.0

        def change(value: float, index: int = index, part: Node = part, prior: float = prior) -> Change:
            return Change("wrong-constant", f"with {value:.6g} in place of the {part['value']:.6g} of {told(node)}",
                          f"use {part['value']:.9g}", prior, {node: on_input(node, index, lambda _: value)},
                          {**_about(node), "constant": part["value"], "candidate_constant": value})

        yield Number(name(node), float(part["value"]), prior, change)


def _dtype(node: Node) -> torch.dtype:
    return getattr(torch, node.dtype)


def _about(node: Node) -> dict[str, Any]:
    origin = node.origin
    return {"operator": node.op, "model_line": origin.line if origin and origin.line else None}


about = _about
