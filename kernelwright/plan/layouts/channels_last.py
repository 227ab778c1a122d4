"""Channels last: convolutions whose tensors are stored in the order (N, *space, C).

Libraries compute many convolutions on such memory and transpose tensors that are stored otherwise, on the way in
and on the way out. A lowered graph is rewritten here so that the chosen convolutions read and write it. Every value
gets an *order*, the order in which memory holds its axes: its node in the new graph is the permuted tensor, stored
contiguous as everything else. Permutations are views, through which kernels read, so orders cost kernels nothing;
a torch call gets the permuted tensor seen in its own axes (``reordered``), which is a tensor with channels-last
strides, and so is what it returns (``contiguous`` makes sure). Only where what is in memory already must be stored
in another order does a ``copy`` appear.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from kernelwright.algebra.build import align
from kernelwright.algebra.views import chain_below, contiguous, laid_out
from kernelwright.ir.node import Node, make, number_of, rebuild, walk
from kernelwright.ir.registry import torch_dtype
from kernelwright.plan.layouts.orders import (
    Order,
    channels_last,
    first_order,
    in_axes_of,
    inverse,
    reshaped,
    reshaped_order,
    seen,
    transposed,
)
from kernelwright.plan.lowering.lower import FLOATS
from kernelwright.plan.roles import role

# Operators that we do not know but of which we know that any memory order does.
_ANY_ORDER = ("aten.upsample_", "aten._upsample_", "aten.pixel_", "aten.native_batch_norm", "aten.silu", "aten.gelu")


def can_be_channels_last(node: Node) -> bool:
    """Whether libraries have channels-last forms of this convolution: 2-D and 3-D ones of floats."""
    return node.op == "convolution" and node.rank in (4, 5) and node.dtype in FLOATS and node.size > 0


def depthwise_backward(roots: Iterable[Node]) -> frozenset[Node]:
    """PyTorch's calls for the gradients of 2-D and 3-D convolutions of each channel alone, in float32. A CPU's library
    takes several times as long for them where tensors are not channels-last."""
    found = set()
    for node in walk(roots):
        if node.op == "opaque" and node["target"] == "aten.convolution_backward.default":
            g, _, weight = node.inputs
            transposed, groups = node["template"][7], node["template"][9]
            depthwise = not transposed and 1 == weight.shape[1] < groups
            if depthwise and g.rank in (4, 5) and g.dtype == "float32" and g.size:
                found.add(node)
    return frozenset(found)


def given_last(roots: Iterable[Node]) -> frozenset[Node]:
    """The convolutions that are given a view which shows contiguous memory channels-last: a sequence (N, *space, C) of
    which PyTorch, too, copies nothing."""
    found = set()
    for node in walk(roots):
        if can_be_channels_last(node) and (x := node.inputs[0]).kind == "view":
            source, chain = chain_below(x)
            strides, copying = laid_out(source, chain)
            order = channels_last(x.rank)
            shape = tuple(x.shape[axis] for axis in order)
            wide = [axis for axis in order if x.shape[axis] != 1]
            if source.kind != "view" and not copying and x.shape[1] > 1 and wide != sorted(wide) and \
                    all(strides[a] == stride for a, stride in zip(order, contiguous(shape), strict=True) if a in wide):
                found.add(node)
    return frozenset(found)


def _places(node: Node) -> tuple[int, ...]:
    """The operands of a convolution, or of its gradients' call, that lie channels-last with it."""
    return (0, 1) if node.op == "opaque" else (0,)


def _draws(node: Node) -> bool:
    """Whether an operator draws random numbers: in memory order, so that its operands have to lie as they did."""
    return node.get("serial", -1) >= 0


def below_views(node: Node) -> Node:
    """The node whose elements a view shows."""
    while node.kind == "view":
        node = node.inputs[0]
    return node


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A graph with orders.

    values: for every node of the given graph a node of the same axes and value; roots are contiguous in memory
        where the given ones are. computed: for every node the one that now does its work. source: see
        :func:`kernelwright.plan.lowering.lower.lower`.
    """

    values: dict[Node, Node]
    computed: dict[Node, Node]
    source: dict[Node, Node]


def lay_out(roots: Iterable[Node], kept: set[Node], source: dict[Node, Node], chosen: frozenset[Node]) -> LaidOut:
    """Give orders to everything below ``roots`` of a lowered graph.

    kept: nodes that stay torch calls. source: the node of the graph before lowering that each came from;
    ``chosen`` holds those of the convolutions, and of the calls for gradients of some, that become channels-last.
    """
    roots = list(roots)
    layout = _Layout(roots, kept, {n for n in walk(roots) if n.op in ("convolution", "opaque") and source[n] in chosen})
    sources: dict[Node, Node] = {}

    def attribute(built: Node, node: Node) -> None:
        while layout.copies:
            copied, original = layout.copies.popitem()
            below = below_views(original)  # a copy belongs to what it copies, where that is computed at all
            sources.setdefault(copied, source[node if below.kind == "leaf" else below])
        stack = [built]
        while stack:
            part = stack.pop()
            if part not in sources or part is built:
                sources.setdefault(part, source[node])
                stack += part.inputs

    for node in walk(roots):
        layout.place(node)
        attribute(layout.stored[node], node)
    values = {}
    for node in roots:
        values[node] = layout.as_result(node)
        attribute(values[node], node)
    return LaidOut(values, layout.computed, sources)


class _Layout:
    """Orders of the values of one graph; ``stored[n]`` is n with its axes permuted to ``orders[n]``."""

    def __init__(self, roots: list[Node], kept: set[Node], chosen: set[Node]) -> None:
        self.kept, self.chosen = kept, chosen
        self.roles = {n: role(n, kept) for n in walk(roots)}
        self.wanted = self._wanted(roots)
        self.stored: dict[Node, Node] = {}
        self.orders: dict[Node, Order] = {}
        self.computed: dict[Node, Node] = {}
        self.copies: dict[Node, Node] = {}

    # Which order the readers of a value would like -------------------------------------------------

    def _wanted(self, roots: list[Node]) -> dict[Node, Order]:
        """The order that the last reader of each value wants; a convolution's wish comes first."""
        wanted = {below_views(r): first_order(below_views(r).rank) for r in roots}
        firmly: set[Node] = set()
        for node in reversed(list(walk(roots))):
            order = wanted.get(node)
            for place, operand in enumerate(node.inputs):
                wish = self._wish(node, place, operand, order)
                firm = node in self.chosen and place in _places(node)
                if wish is not None and operand not in firmly and (firm or operand not in wanted):
                    wanted[operand] = wish
                    firmly.update([operand] if firm else [])
        return wanted

    def _wish(self, node: Node, place: int, operand: Node, order: Order | None) -> Order | None:
        """The order that ``node``, wanted in ``order`` itself, wants of an operand."""
        if node in self.chosen and node.op == "opaque":
            return channels_last(operand.rank) if place in _places(node) else None
        if node.op == "convolution":
            return (channels_last(node.rank) if node in self.chosen else first_order(node.rank)) if place == 0 else None
        if node.op == "reshape":
            order = order or first_order(node.rank)
            return reshaped_order(order, node.shape, operand.shape) or first_order(operand.rank)
        if node.op in ("linear", "matmul") and self.roles[node] == "torch":
            return first_order(operand.rank)
        if order is None or operand.rank != node.rank or node.op in ("windows", "opaque", "item", "lookup"):
            return None
        if node.op == "permute":
            return tuple(node["axes"][a] for a in order)
        return order

    # From inputs to results ----------------------------------------------------------------------

    def place(self, node: Node) -> None:
        """Build a node in the order that suits it; its inputs have been placed."""
        kind = self.roles[node]
        if kind == "leaf" or not node.inputs:
            self._set(node, node, first_order(node.rank), node)
        elif kind == "torch":
            self._place_call(node)
        elif kind == "reduction":
            self._place_reduction(node)
        elif kind == "view" or node.op == "lookup":  # which names axes of its operand and of its result
            self._place_view(node)
        elif kind == "pointwise":
            order = self.wanted.get(node) or self._usual(node)
            attributes = dict(node.attributes)
            built = make(node.op, *(self._aligned(i, order) for i in node.inputs), origin=node.origin,
                         **{**attributes, **in_axes_of(order, attributes)})
            self._set(node, built, order, built)
        else:
            self._unordered(node)

    def _set(self, node: Node, stored: Node, order: Order, computed: Node) -> None:
        self.stored[node], self.orders[node], self.computed[node] = stored, order, computed

    def _usual(self, node: Node) -> Order:
        """The order of most of the bytes that a node reads."""
        amounts: dict[Order, int] = {}
        for operand in node.inputs:
            if operand.rank == node.rank and number_of(operand) is None:
                amounts[self.orders[operand]] = amounts.get(self.orders[operand], 0) + operand.bytes
        return max(amounts, key=lambda o: amounts[o], default=first_order(node.rank))

    def _place_reduction(self, node: Node) -> None:
        x = node.inputs[0]
        order = self.orders[x]
        if self.wanted.get(node) is not None and node.rank == x.rank:
            order = self.wanted[node]
        axes = tuple(i for i, a in enumerate(order) if a in node["axes"])
        built = make(node.op, self.in_order(x, order), origin=node.origin, **{**dict(node.attributes), "axes": axes})
        if not node["keepdim"]:
            left = [a for a in range(x.rank) if a not in node["axes"]]
            order = tuple(left.index(a) for a in order if a in left)
        self._set(node, built, order, built)

    def _place_view(self, node: Node) -> None:
        x = node.inputs[0]
        order, below = self.orders[x], self.stored[x]
        attributes = dict(node.attributes)
        if node.op == "permute":
            axes = node["axes"]
            self._set(node, below, tuple(axes.index(a) for a in order), below)
        elif node.op in ("slice", "flip", "concatenate", "pad", "roll"):
            order = order if node.kind == "view" else self.wanted.get(node) or self._usual(node)
            built = make(node.op, *(self.in_order(i, order) for i in node.inputs), origin=node.origin,
                         **{**attributes, **in_axes_of(order, attributes)})
            self._set(node, built, order, built)
        elif node.op == "expand" and node.rank == x.rank:
            built = make("expand", below, shape=tuple(node.shape[a] for a in order), origin=node.origin)
            self._set(node, built, order, built)
        elif node.op == "reshape" and (after := reshaped_order(order, x.shape, node.shape)) is not None:
            built = reshaped(below, tuple(node.shape[a] for a in after))
            self._set(node, built, after, built)
        elif node.op == "windows":
            built = make("windows", self.in_order(x, first_order(x.rank)), origin=node.origin, **attributes)
            order = (*order, *range(x.rank, node.rank))
            self._set(node, transposed(built, order), order, built)
        else:
            built = rebuild(node, tuple(self.in_order(i, first_order(i.rank)) for i in node.inputs))
            first = first_order(node.rank)
            order = self.wanted.get(node, order) if node.op == "upsample_nearest" else first
            moved = built if order == first else make("copy", transposed(built, order), origin=node.origin)
            self._set(node, moved, order, built)

    def _place_call(self, node: Node) -> None:
        """A torch call: on permuted tensors where that does, else on what it would get without us."""
        if node in self.chosen and node.op == "opaque":
            self._place_backward(node)
            return
        if node in self.chosen:
            order = channels_last(node.rank)
            first = seen(self.in_memory(node.inputs[0], order), order)
            call = rebuild(node, (first, *(self._plain(i) for i in node.inputs[1:])))
            self._set(node, make("contiguous", call, axes=order), order, call)
            return
        if not self._takes_any_order(node) or all(self.orders[i] == first_order(i.rank) for i in node.inputs):
            self._unordered(node)
            return
        call = rebuild(node, tuple(seen(self.stored[i], self.orders[i]) for i in node.inputs))
        order = self._order_of_call(node)
        self._set(node, make("contiguous", call, axes=order), order, call)

    def _place_backward(self, node: Node) -> None:
        """The call for a convolution's gradients: what it is given in channels-last order, and the items of it that are
        a gradient of such a tensor."""
        inputs = [seen(self.in_memory(i, channels_last(i.rank)), channels_last(i.rank)) if place in _places(node)
                  else self._plain(i) for place, i in enumerate(node.inputs)]
        call = rebuild(node, tuple(inputs))
        self._set(node, call, first_order(node.rank), call)

    def _place_item(self, node: Node) -> None:
        """A gradient of a convolution in channels-last order: that of its input lies so, others as parameters do."""
        item = rebuild(node, (self.stored[node.inputs[0]],))
        order = channels_last(node.rank) if node["index"] == 0 else first_order(node.rank)
        self._set(node, make("contiguous", item, axes=order), order, item)

    def _unordered(self, node: Node) -> None:
        if node.op == "item" and node.inputs[0] in self.chosen:
            self._place_item(node)
            return
        built = rebuild(node, tuple(map(self.as_result if _draws(node) else self._plain, node.inputs)))
        order = first_order(node.rank)
        stored = make("contiguous", built, axes=order) if self._strided(node) else built
        self._set(node, stored, order, built)

    def _strided(self, node: Node) -> bool:
        """Whether a torch call reads a view of permuted memory, after which its result may be strided."""
        if self.roles[node] != "torch" or node.dtype == "tuple" or node.kind == "view":
            return False
        for operand in node.inputs:
            while operand.kind == "view":
                operand = operand.inputs[0]
                if self.orders[operand] != first_order(operand.rank):
                    return True
        return False

    def _takes_any_order(self, node: Node) -> bool:
        if _draws(node):
            return False
        if node.op == "opaque":
            return node["target"].startswith(_ANY_ORDER) and node.dtype != "tuple"
        return node.op not in ("item", "cast", "convolution", "linear", "matmul", "contract")

    def _order_of_call(self, node: Node) -> Order:
        """The order in which a torch call stores its result, asked of PyTorch's meta tensors. Where the library
        does otherwise, ``contiguous`` copies."""
        def meta(operand: Node) -> object:
            if operand.op == "constant":
                return operand["value"]
            order = self.orders[operand]
            stored = torch.empty([operand.shape[a] for a in order], dtype=torch_dtype(operand.dtype), device="meta")
            return stored.permute(inverse(order))

        with torch.no_grad():
            result = node.operator.reference(*map(meta, node.inputs), **dict(node.attributes))
        order = tuple(sorted(range(node.rank), key=lambda a: (-result.stride(a), a)))
        wide = [a for a in order if node.shape[a] != 1]
        dense = result.permute(order).is_contiguous()
        return order if dense and wide != sorted(wide) else first_order(node.rank)

    # The same value in another order -----------------------------------------------------------------

    def in_order(self, node: Node, order: Order) -> Node:
        """The value permuted to ``order``, as a view of what is stored."""
        have = self.orders[node]
        return self.stored[node] if have == order else transposed(self.stored[node], tuple(map(have.index, order)))

    def in_memory(self, node: Node, order: Order) -> Node:
        """The value stored in ``order``: a copy where it is in memory in another one."""
        wide = [[a for a in o if node.shape[a] != 1] for o in (self.orders[node], order)]
        if wide[0] == wide[1]:
            return self.in_order(node, order)
        copied = make("copy", self.in_order(node, order), origin=node.origin)
        self.copies[copied] = node
        return copied

    def _plain(self, node: Node) -> Node:
        if self.orders[node] == first_order(node.rank):
            return self.stored[node]
        below = below_views(node)
        if node.kind == "view" and self.orders[below] == first_order(below.rank):
            return self.as_result(node)  # a view of what lies as it always did
        return self.in_memory(node, first_order(node.rank))

    def as_result(self, node: Node) -> Node:
        """A root, or what is drawn for: views stand as they stood, since callers see their strides."""
        views = []
        while node.kind == "view":
            views.append(node)
            node = node.inputs[0]
        result = self._plain(node)
        for view in reversed(views):
            result = rebuild(view, (result,))
        return result

    def _aligned(self, operand: Node, order: Order) -> Node:
        """An operand that broadcasts to a result in ``order``."""
        if operand.op == "constant":
            return operand
        if operand.rank == len(order):
            return self.in_order(operand, order)
        if order == first_order(len(order)):
            return self.in_order(operand, first_order(operand.rank))
        return transposed(align(self.in_order(operand, first_order(operand.rank)), len(order)), order)
