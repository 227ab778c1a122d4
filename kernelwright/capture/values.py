"""What stands in a trace, as our graph has it: tensors that were given, types, and the arguments of torch calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import prod
from typing import Any

import torch

from kernelwright.algebra.views import chain_below, laid_out
from kernelwright.ir.graph import is_given, lies_as, memory
from kernelwright.ir.node import Node, Origin, make

#: Kinds of operators whose results kernels store.
_STORED = ("pointwise", "reduction", "row", "norm")

# Fused attention stores all scores where the neighbours of an operand's last axis lie apart: it is slow there, and NaN
# reaches all of a row, which the other path leaves zero in places.
_DENSE_LAST = ("aten.scaled_dot_product_attention.",)


class NotCapturable(Exception):
    """The model can't be a graph of ours; the reason is for the report. The original computation stays.

    module: the path of the submodule that is in the way, "" where it is the model's own forward.
    """

    def __init__(self, reason: str, module: str = "") -> None:
        super().__init__(reason)
        self.module = module


class BuildsParts(NotCapturable):
    """A call builds submodules: a graph of it would build them in every call. It may do so in its first one alone."""

    def __init__(self) -> None:
        super().__init__("its calls build submodules")


def leaf_of(op: str, name: str, value: torch.Tensor) -> Node:
    """A leaf for a tensor that the trace was given, with its axes in the order in which memory has them."""
    order = memory_order(value) if op in ("input", "parameter", "attribute") else None
    dtype = dtype_name(value.dtype)
    if order is not None:
        return make(op, name=name, shape=tuple(value.shape[a] for a in order), dtype=dtype, order=order)
    return make(op, name=name, shape=tuple(value.shape), dtype=dtype)


def memory_order(value: torch.Tensor) -> tuple[int, ...] | None:
    """The axes in the order in which a tensor lies contiguously in memory; None where that is the usual one, or where
    there is none (a slice, an expanded tensor)."""
    order = tuple(sorted(range(value.ndim), key=lambda axis: -value.stride(axis)))
    return order if not value.is_contiguous() and value.permute(order).is_contiguous() else None


def in_memory_order(value: Node, traced: torch.Tensor) -> Node:
    """``value`` such that it lies in memory as the trace's tensor does: random numbers are drawn in that order.

    Whatever a plan stores is contiguous. Where that order, seen through what permutes the stored axes, is another one,
    the value is stored once more. A tensor with gaps, or of which elements share memory, is left as it is.
    """
    order = tuple(range(traced.ndim)) if traced.is_contiguous() else memory_order(traced)
    if order is None:
        return value
    below, axes = value, tuple(range(value.rank))
    while below.op == "permute":
        below, axes = below.inputs[0], tuple(below["axes"][a] for a in axes)
    wide = [a for a in order if value.shape[a] != 1]
    if _is_stored(below) and sorted(wide, key=lambda a: axes[a]) == wide:
        return value
    if order == tuple(range(value.rank)):
        return make("copy", value)
    order = (*(a for a in range(value.rank) if value.shape[a] == 1), *wide)  # however it stands among the strides
    stored = make("copy", make("permute", below, axes=tuple(axes[a] for a in order)))
    return make("permute", stored, axes=tuple(map(order.index, range(value.rank))))


def lies_otherwise(operator: Any, value: Node, traced: torch.Tensor) -> bool:
    """Whether the neighbours of an operand's last axis lie apart in what ``value`` shows, and beside each other in the
    trace's tensor, or the other way round, where the operator is another computation on such memory. The model asked
    for contiguous memory, or stores a result in the order of its operand, and capture keeps the values alone."""
    if not str(operator).startswith(_DENSE_LAST) or value.kind == "leaf" or not value.rank or value.shape[-1] == 1:
        return False
    last = laid_out(*chain_below(value))[0][-1] if value.kind == "view" else 1
    return (last > 1) != (traced.stride()[-1] > 1)


def stored_as(result: Node, strides: Sequence[int]) -> Node:
    """A result in the order in which eager stores it, where a kernel stores it in an order of ours."""
    if is_given(result) or memory(result).kind not in _STORED or lies_as(result, strides):
        return result
    views, base = [], result
    while base.kind == "view":
        views.append(base)
        base = base.inputs[0]
    lying = _strides_of_base(base, views[::-1], strides) if views else None
    if lying is None:
        return in_memory_order(result, torch.empty_strided(result.shape, strides, device="meta"))
    # Results that are views of one value stay so: their memory is laid out, not each of them.
    shown = in_memory_order(base, torch.empty_strided(base.shape, lying, device="meta"))
    for view in reversed(views):
        shown = make(view.op, shown, **dict(view.attributes))
    return shown


def _strides_of_base(base: Node, views: Sequence[Node], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The strides of a dense tensor of which views have the given strides; None where there is none, or where a view
    joins or splits axes."""
    # Strides that tell, with any step along an axis, which axis of the base an axis of the result is.
    marks = [prod(size + 1 for size in base.shape[axis + 1:]) for axis in range(base.rank)]
    shown = torch.empty_strided(base.shape, marks, device="meta")
    memory_of_base = shown.untyped_storage()._cdata
    for view in views:
        shown = view.operator.reference(shown, **dict(view.attributes))
    if shown.untyped_storage()._cdata != memory_of_base:
        return None
    known: dict[int, int] = {}
    for found, wanted, size in zip(shown.stride(), strides, shown.shape, strict=True):
        if size < 2 or not found:
            continue
        axis = next(a for a in range(base.rank) if found >= marks[a])
        step = found // marks[axis]
        if found % marks[axis] or wanted % step:
            return None
        known[axis] = wanted // step
    free = [a for a in range(base.rank) if a not in known]
    if len(free) > 3:
        return None
    for places in permutations(free):
        for order in _merged(sorted(known, key=lambda a: -known[a]), places):
            dense, elements = {}, 1
            for axis in reversed(order):
                dense[axis] = elements
                elements *= base.shape[axis]
            if all(dense[a] == known[a] for a in known):
                return tuple(dense[a] for a in range(base.rank))
    return None


def _merged(first: Sequence[int], second: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All sequences in which both stand in their order."""
    if not first or not second:
        yield (*first, *second)
        return
    for rest in _merged(first[1:], second):
        yield (first[0], *rest)
    for rest in _merged(first, second[1:]):
        yield (second[0], *rest)


def _is_stored(value: Node) -> bool:
    while value.op == "reshape":
        value = value.inputs[0]
    return value.kind != "view"


def dtype_name(dtype: torch.dtype) -> str:
    """A type by its name here: "float32"."""
    return str(dtype).removeprefix("torch.")


def tuples(value: Any) -> Any:
    """Nested lists as tuples, which can be attributes."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def is_typed_as(result: Any, traced: Any) -> bool:
    """Whether a converted result, or each of several, has the type that the trace found; where not, PyTorch promotes
    by a rule that the converter leaves out."""
    if isinstance(result, (tuple, list)):
        return not isinstance(traced, (tuple, list)) or all(map(is_typed_as, result, traced))
    return not isinstance(result, Node) or not isinstance(traced, torch.Tensor) or (
        result.shape == tuple(traced.shape) and result.dtype == dtype_name(traced.dtype))


def cast(x: Node, dtype: str) -> Node:
    """``x`` in a type."""
    return x if x.dtype == dtype else make("cast", x, to=dtype, shape=x.shape, dtype=dtype)


def as_type_of(target: Node, value: Any) -> Node:
    """``value``, a node or a number, in the type and shape of ``target``, as copy_ and fill_ store it."""
    if not isinstance(value, Node):
        value = make("literal", value=value, shape=(), dtype=target.dtype)
    value = cast(value, target.dtype)
    return value if value.shape == target.shape else make("expand", value, shape=target.shape)


def template_of(value: Any, nodes: list[Node]) -> Any:
    """A hashable form of an argument; see :func:`kernelwright.ir.ops.leaves.fill`."""
    if isinstance(value, Node):
        if value not in nodes:
            nodes.append(value)
        return ("input", nodes.index(value))
    if isinstance(value, (list, tuple)):
        return ("list", *(template_of(v, nodes) for v in value))
    if isinstance(value, str):
        return ("str", value)
    for tag, kind in (("dtype", torch.dtype), ("layout", torch.layout), ("memory_format", torch.memory_format)):
        if isinstance(value, kind):
            return (tag, str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return ("device", str(value))
    if value is None or isinstance(value, (int, float, bool, complex)):
        return value
    raise NotCapturable(f"an argument of type {type(value).__name__}")


def opaque_of(operator: Any, target: str, arguments: dict[str, Any], meta: Any, serial: int, origin: Origin,
              device: torch.device) -> Node:
    """A torch call of ``operator``, named ``target``; ``meta`` are the tensors that it gave in the trace.

    ``serial`` is its place among the calls that draw random numbers, -1 for one that does not. ``device`` is the
    program's. Raises NotCapturable.
    """
    nodes: list[Node] = []
    schema = operator._schema
    positional = [a.name for a in schema.arguments if not a.kwarg_only]
    template = tuple(template_of(arguments[n], nodes) for n in positional)
    keywords = tuple((a.name, template_of(arguments[a.name], nodes)) for a in schema.arguments
                     if a.kwarg_only and arguments[a.name] is not None)
    if not nodes and isinstance(meta, torch.Tensor) and arguments.get("dtype", "given") is None:
        keywords += (("dtype", template_of(meta.dtype, nodes)),)  # the default type may be another one later
    if isinstance(meta, torch.Tensor):
        shape, dtype, types = tuple(meta.shape), dtype_name(meta.dtype), None
    elif isinstance(meta, (list, tuple)):
        shape, dtype = (), "tuple"
        types = tuple((tuple(m.shape), dtype_name(m.dtype)) if isinstance(m, torch.Tensor) else None for m in meta)
    else:
        raise NotCapturable(f"{target} gives a plain value")
    apart = {}
    if serial >= 0 and isinstance(meta, torch.Tensor) and meta.device.type != device.type:
        if nodes:
            raise NotCapturable(f"{target} runs on {meta.device}, where the model is on {device}")
        apart = {"apart": str(device)}
    return make("opaque", *nodes, origin=origin, target=target, template=template, keywords=keywords, shape=shape,
                dtype=dtype, types=types, serial=serial, **apart)


def origin_of(node: torch.fx.Node, file: str | None) -> Origin:
    """The module that a call is in, and the line of ``file`` that made it."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    line, text = 0, ""
    trace = node.meta.get("stack_trace") or ""
    lines = trace.splitlines()
    for position, entry in enumerate(lines):
        if file and f'File "{file}"' in entry:
            line = int(entry.split("line ")[1].split(",")[0])
            text = lines[position + 1].strip() if position + 1 < len(lines) else ""
    return Origin(module=path, file=file or "", line=line, text=text)
