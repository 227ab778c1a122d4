"""Memory that several names share while a trace is converted: what a write through one of them means for the others.

Our graph has values and no memory. A write into a view becomes a new value of what it is a view of (a scatter), up to
the tensor that owns the memory; then every other view of that memory is taken again. This is PyTorch's
functionalization (torch/csrc/functorch, "FunctionalTensorWrapper"), for the operators that the user wrote.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from kernelwright.capture.converters.table import CONVERTERS, NotConvertible
from kernelwright.capture.nodes import item_of, operator_of
from kernelwright.ir.node import Node, make

_PERMUTING = ("permute", "transpose", "t", "numpy_T", "swapaxes", "movedim", "moveaxis", "adjoint", "mT")
_RESHAPING = ("view", "reshape", "flatten", "unsqueeze", "squeeze", "unflatten", "_unsafe_view", "view_as",
              "reshape_as")
_SAME = ("alias", "detach", "lift_fresh", "contiguous", "to", "type_as", "dropout", "feature_dropout", "alpha_dropout",
         "feature_alpha_dropout")
# These return their operand itself where they have nothing to do; their schemas do not say so.
_SOMETIMES_IDENTITY = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "type_as",
                       "broadcast_tensors", "atleast_1d", "atleast_2d", "atleast_3d")


# Of a list of tensors these give a list of views, one of each.
_ONE_VIEW_EACH = ("broadcast_tensors", "meshgrid", "atleast_1d", "atleast_2d", "atleast_3d")


#: Functional forms whose names or arguments are others than those of the operators in place.
_FUNCTIONAL = {"aten.normal_.default": torch.ops.aten.normal_functional.default}


class NoInverse(Exception):
    """A write through this view cannot be undone into its source."""


def viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    """The operand whose memory a call's result shares, or None where the result has memory of its own.

    The schema says what may be a view; whether this call is one (``reshape`` and ``contiguous`` may copy) is found
    by running it on tensors without data of the same shapes and strides.
    """
    if writes(node):
        changed = written(node)[0][1]
        return changed if isinstance(changed, torch.fx.Node) else None
    source = next((a for a in node.args if isinstance(a, torch.fx.Node)), None)
    if source is None:
        return None
    called = operator_of(node)
    if all(a.alias_info is None for a in called._schema.arguments) and \
            called.overloadpacket.__name__ not in _SOMETIMES_IDENTITY:
        return None

    def without_data(operand: torch.fx.Node) -> Any:
        meta = operand.meta["val"]
        return torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device="meta") \
            if isinstance(meta, torch.Tensor) else meta

    probes = {n: without_data(n) for n in node.all_input_nodes}
    arguments, keywords = torch.fx.node.map_arg((node.args, {k: v for k, v in node.kwargs.items() if k != "device"}),
                                                probes.__getitem__)
    try:
        found = called(*arguments, **keywords)
    except (RuntimeError, TypeError):
        return source  # unknown: a write will ask for an inverse, and there is none for what is not listed here
    first = found[0] if isinstance(found, (tuple, list)) else found
    return source if first.untyped_storage()._cdata == probes[source].untyped_storage()._cdata else None


def viewed_part(node: torch.fx.Node, index: int) -> torch.fx.Node | None:
    """The operand whose memory one of several results of a call shares, where each has an operand of its own."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.overloadpacket.__name__ not in _ONE_VIEW_EACH:
        return None
    listed = node.args[0] if node.args else None
    part = listed[index] if isinstance(listed, (list, tuple)) else None
    return part if isinstance(part, torch.fx.Node) else None


def writes(node: torch.fx.Node) -> bool:
    """Whether a call changes one of its operands."""
    return isinstance(node.target, torch._ops.OpOverload) and bool(written(node))


def written(node: torch.fx.Node) -> list[tuple[str, Any]]:
    """The operands that a call changes, by their names in its schema."""
    declared = operator_of(node)._schema.arguments
    given = {**dict(zip((a.name for a in declared), node.args, strict=False)), **node.kwargs}
    return [(a.name, given.get(a.name)) for a in declared
            if a.alias_info is not None and a.alias_info.is_write]


def functional_of(operator: Any) -> Any:
    """The operator that gives as a new tensor what an operator in place writes into its first operand; None where there
    is none. Its arguments have the same types in the same order: names of overloads tell nothing (``pow_.Scalar`` has
    a scalar exponent, ``pow.Scalar`` a scalar base)."""

    def types(overload: Any) -> list[str]:
        return [str(a.type) for a in overload._schema.arguments]

    if str(operator) in _FUNCTIONAL:
        return _FUNCTIONAL[str(operator)]
    name = operator.overloadpacket.__name__
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    names = packet.overloads() if packet is not None else []
    found = [getattr(packet, overload) for overload in sorted(names, key=lambda n: n != operator._overloadname)]
    return next((kind for kind in found if types(kind) == types(operator)), None)


def functional(operator: Any) -> Any:
    """The operator that computes what one that writes its result into ``out`` computes; None where there is none."""

    def operands(overload: Any) -> list[tuple[str, str]]:
        return [(a.name, str(a.type)) for a in overload._schema.arguments
                if a.alias_info is None or not a.alias_info.is_write]

    packet = operator.overloadpacket
    return next((found for name in packet.overloads() if (found := getattr(packet, name)) is not operator
                 and operands(found) == operands(operator) and not found._schema.is_mutable
                 and len(found._schema.arguments) == len(operator._schema.arguments) - 1), None)


def scattered(view: torch.fx.Node, source: Node, value: Node, arguments: dict[str, Any],
              call: Callable[[Any, dict[str, Any], Any], Node]) -> Node:
    """The value of a view's source after ``value`` was written into the view.

    source: the source's value before. arguments: of the view's call, by schema name.
    call(operator, arguments, meta): the node of a torch operator that is not one of ours.
    Raises NoInverse.
    """
    def put(kind: Any, parts: dict[str, Any], like: torch.Tensor) -> Node:
        try:
            return CONVERTERS[str(kind).removeprefix("aten.")](parts)
        except NotConvertible:
            return call(kind, parts, like)

    meta = view.meta["val"]
    if view.target is operator.getitem:
        return _scattered_part(view, source, value, put)
    called = operator_of(view)
    name = called.overloadpacket.__name__
    if writes(view) or name in _SAME:
        return value
    if name in _RESHAPING:
        return value if value.shape == source.shape else make("reshape", value, shape=source.shape)
    if name in _PERMUTING:
        probe = torch.empty(tuple(range(2, 2 + source.rank)), device="meta")
        names = [a.name for a in called._schema.arguments]
        moved = called(probe, *(arguments[n] for n in names[1:]))
        axes = [probe.shape.index(s) for s in moved.shape]
        inverse = tuple(axes.index(a) for a in range(source.rank))
        return make("permute", value, axes=inverse)
    like = torch.empty(source.shape, dtype=meta.dtype, device="meta")
    if name == "slice":
        parts = {n: arguments[n] for n in ("dim", "start", "end", "step")}
        return put(torch.ops.aten.slice_scatter.default, {"self": source, "src": value, **parts}, like)
    if name == "narrow":
        parts = {"dim": arguments["dim"], "start": arguments["start"],
                 "end": arguments["start"] + arguments["length"], "step": 1}
        return put(torch.ops.aten.slice_scatter.default, {"self": source, "src": value, **parts}, like)
    if name == "select":
        parts = {n: arguments[n] for n in ("dim", "index")}
        return put(torch.ops.aten.select_scatter.default, {"self": source, "src": value, **parts}, like)
    if name == "diagonal":
        parts = {n: arguments[n] for n in ("offset", "dim1", "dim2")}
        return call(torch.ops.aten.diagonal_scatter.default, {"self": source, "src": value, **parts}, like)
    raise NoInverse(name)


def _scattered_part(view: torch.fx.Node, source: Node, value: Node,
                    call: Callable[[Any, dict[str, Any], Any], Node]) -> Node:
    """A write into one of the parts of a split, chunk or unbind."""
    split, index = item_of(view)
    called = operator_of(split)
    name = called.overloadpacket.__name__
    names = [a.name for a in called._schema.arguments]
    given: dict[str, Any] = {**dict(zip(names, split.args, strict=False)), **split.kwargs}
    dim = given.get("dim", 0) % max(1, source.rank)
    like = torch.empty(source.shape, dtype=view.meta["val"].dtype, device="meta")
    if name == "unbind":
        return call(torch.ops.aten.select_scatter.default,
                    {"self": source, "src": value, "dim": dim, "index": index % len(split.meta["val"])}, like)
    if name not in ("split", "split_with_sizes", "chunk"):
        raise NoInverse(name)
    sizes = [part.shape[dim] for part in split.meta["val"]]
    start = sum(sizes[:index])
    place = {"dim": dim, "start": start, "end": start + sizes[index], "step": 1}
    return call(torch.ops.aten.slice_scatter.default, {"self": source, "src": value, **place}, like)
