"""Only what is read of a result is computed: a slice of it becomes slices of its operands.

Models throw away much of what they compute: all but the first token behind the last block of a classifier, all but the
last one before a vocabulary, all but the last state of a chunk. Such a slice moves up through whatever gives each entry
along its axis by itself, for as long as nobody else reads more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from kernelwright.algebra.attention import CAUSAL, is_causal, is_plain_attention
from kernelwright.algebra.rule import KINKS, Context, Exactness, Rule, rule
from kernelwright.ir.graph import memory
from kernelwright.ir.node import Node, make
from kernelwright.roofline.cost import node_work

#: Operations that take as long as to move a byte, about; the share of the work that has to go; and the share of a
#: result that may be read where no product shrinks.
_OPERATIONS_OF_A_BYTE, _LEAST_SAVED, _MOST_READ = 16, 0.1, 0.5
#: No more operators than these are looked at above a slice.
_MOST_NODES = 1000
_PRODUCTS = ("linear", "matmul", "contract", "convolution")
#: Operators below which a gradient of zeros has no sign: sums of products begin with +0.
_ADDING = (*_PRODUCTS, "opaque")
#: Operators that hand a gradient of +0 on as +0, whatever they are of; `sub` does for what it takes something away of.
_KEEPING = frozenset((
    "add", "sub", "relu", "exp", "sigmoid", "tanh", "sqrt", "maximum", "minimum", "where", "clamp_min", "clamp_max",
    "cast", "sum", "mean", "softmax", "log_softmax", "concatenate"))
_OF_ROWS = ("softmax", "log_softmax", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")


class Cut(NamedTuple):
    """What is read along an axis: every ``step``-th entry from ``start`` on, ``count`` of ``size``. An axis may be
    three joined to one, (``outer``, ``size``, ``inner``), of which the middle one is cut."""

    axis: int
    start: int
    step: int
    count: int
    size: int
    outer: int = 1
    inner: int = 1

    @property
    def is_plain(self) -> bool:
        """Whether the axis is the one that is cut."""
        return self.outer == self.inner == 1

    @property
    def is_run(self) -> bool:
        """Whether what is read stands together, so that it is a view of a weight and no copy."""
        return self.outer == self.step == 1

    @property
    def share(self) -> float:
        """The share of the entries that is read."""
        return self.count / self.size

    def along(self, axis: int) -> Cut:
        """The same along another axis."""
        return self._replace(axis=axis)

    def of(self, node: Node) -> Node:
        """What is read of a node, as views of it."""
        stop = self.start + self.step * (self.count - 1) + 1
        before, after = node.shape[:self.axis], node.shape[self.axis + 1:]
        if self.is_plain:
            return make("slice", node, axis=self.axis, start=self.start, stop=stop, step=self.step)
        apart = make("reshape", node, shape=(*before, self.outer, self.size, self.inner, *after))
        cut = make("slice", apart, axis=self.axis + 1, start=self.start, stop=stop, step=self.step)
        return make("reshape", cut, shape=self.shape_of(node.shape))

    def shape_of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape after it."""
        return (*shape[:self.axis], self.outer * self.count * self.inner, *shape[self.axis + 1:])

    def before_reshape(self, shape: Sequence[int], reshaped: Sequence[int]) -> Cut | None:
        """The same in a shape from which ``reshaped`` was made; None where it is in no axis of it alone."""
        lead = prod(reshaped[:self.axis]) * self.outer
        for axis, size in enumerate(shape if all(shape) else ()):
            first = prod(shape[:axis])
            outer = lead // first
            if lead % first == 0 and size % (outer * self.size) == 0:
                return self._replace(axis=axis, outer=outer, inner=size // (outer * self.size))
        return None


#: What an operator reads of an operand: a cut of it, all of it, or nothing.
Read = Cut | None | str
UNREAD = "unread"


@rule("what is read", "slice", law="f(x)[s] = f(x[s])",
      condition="f gives each entry along the axis by itself, nobody else reads f(x), and a tenth of its work goes; in "
                "a graph that is differentiated the gradient of what is not read is +0",
      exactness=Exactness.REASSOCIATES)
def what_is_read(node: Node, context: Context) -> Node | None:
    root = context.original.get(node)
    if root is None or not root.size or root.shape == root.inputs[0].shape or _is_drawn_for(root, context):
        return None
    above = root.inputs[0]
    cuts = _cuts_above(root, context)
    if not cuts or not _pays(cuts) or (KINKS in context.dropped and _have_signs(cuts, root, context)):
        return None
    made: dict[Node, Node] = {}
    for some, cut in reversed(cuts.items()):  # operands come before those who read them
        given = []
        for operand, read in zip(some.inputs, _reads(some, cut) or (), strict=True):
            given.append(made.get(operand, operand) if not isinstance(read, Cut) or operand in made
                         else read.of(operand))
        if node in given:  # other rules have left nothing of what stood above the slice
            return None
        made[some] = _computed(some, cut, given)
    context.forms.update((form, some) for some, form in made.items())
    return made[above]


def _is_drawn_for(root: Node, context: Context) -> bool:
    """Whether a call draws numbers for what a slice shows: in the order of its memory, which would be another one."""
    stack = [root]
    while stack:
        for reader in context.readers.get(stack.pop(), ()):
            if reader.get("serial", -1) >= 0:
                return True
            stack += [reader] * (reader.kind == "view")
    return False


def _cuts_above(root: Node, context: Context) -> dict[Node, Cut]:
    """The operators above a slice of which no more is read than a cut, readers before what they read."""
    cuts: dict[Node, Cut] = {}
    asked: dict[Node, set[Read]] = defaultdict(set)
    (above,), axis = root.inputs, root["axis"]
    asked[above].add(Cut(axis, root["start"], root["step"], root.shape[axis], above.shape[axis]))
    waiting = [above]
    while waiting and len(cuts) < _MOST_NODES:
        node = waiting.pop()
        if node in cuts or node in context.roots or node.kind == "leaf" or len(asked[node]) != 1:
            continue
        (cut,) = asked[node]
        if not isinstance(cut, Cut) or any(r is not root and r not in cuts for r in context.readers.get(node, ())):
            continue
        reads = _reads(node, cut)
        if reads is None:
            continue
        cuts[node] = cut
        for operand, read in zip(node.inputs, reads, strict=True):
            asked[operand].add(read)
            waiting.append(operand)
    # Where nothing but views stands above there is nothing to gain.
    for node in reversed(list(cuts)):
        if node.kind == "view" and node.inputs[0] not in cuts:
            del cuts[node]
    return cuts


def _pays(cuts: dict[Node, Cut]) -> bool:
    """Whether enough of the work goes. Pointwise operators stay behind a product of which all is computed: they are
    fused with it, which they would not be if they were of a slice."""
    before = after = 0.0
    for node, cut in cuts.items():
        if node.kind == "view":
            continue
        work = node_work(node)
        cost = work.bytes + work.operations / _OPERATIONS_OF_A_BYTE
        before, after = before + cost, after + cost * cut.share
    if not before or after > (1 - _LEAST_SAVED) * before:
        return False
    if any(node.op in _PRODUCTS for node in cuts):
        return True
    below = (memory(operand) for node in cuts for operand in node.inputs if operand not in cuts)
    return next(iter(cuts.values())).share <= _MOST_READ and not any(operand.op in _PRODUCTS for operand in below)


def _have_signs(cuts: dict[Node, Cut], root: Node, context: Context) -> bool:
    """Whether the gradient of what is not read may be -0 somewhere, which it is +0 where it is no longer computed: the
    product of +0, which a slice's gradient is there, with a negative number. That shows where nothing is added to it:
    not in the gradient of what is read elsewhere, too, nor below a product."""
    signed: set[Node] = set()
    for node, cut in cuts.items():  # readers before what they read
        for place, (operand, read) in enumerate(zip(node.inputs, _reads(node, cut) or (), strict=True)):
            keeps = node.kind == "view" or (node.op in _KEEPING and not (node.op == "sub" and place))
            if isinstance(read, Cut) and node.op not in _ADDING and (node in signed or not keeps):
                signed.add(operand)
    return any(operand not in cuts and operand.op not in ("constant", "buffer") and memory(operand).op not in _ADDING
               and not _is_read_elsewhere(operand, cuts, context) for operand in signed)


def _is_read_elsewhere(operand: Node, cuts: dict[Node, Cut], context: Context) -> bool:
    """Whether all of an operand of what is cut is read on another way to a result, or to what is cut. A slice on that
    way reads a part of it, but behind a product, of whose results it may be any part: queries, keys and values."""
    seen, waiting = {operand}, [(operand, False)]
    while waiting and len(seen) < _MOST_NODES:
        node, is_behind = waiting.pop()
        for reader in context.readers.get(node, ()):
            if reader in cuts:
                reads = _reads(reader, cuts[reader]) or ()
                if any(read is None for given, read in zip(reader.inputs, reads, strict=True) if given is node):
                    return True
            elif reader not in seen and (is_behind or reader.op != "slice"):
                if reader in context.roots:
                    return True
                seen.add(reader)
                waiting.append((reader, is_behind or reader.op in _ADDING))
    return False


def _reads(node: Node, cut: Cut) -> tuple[Read, ...] | None:
    """What of each operand a cut of a node depends on; None of one that does not give entries along the axis by
    themselves."""
    if not node.inputs:
        return None
    x, *others = node.inputs
    axis, rank = cut.axis, len(node.shape)
    whole: tuple[Read, ...] = (None,) * len(others)
    if node.kind == "pointwise":
        return tuple(_broadcast(i, node, cut) for i in node.inputs)
    if node.kind == "reduction" and node["keepdim"]:
        return (cut, *whole) if axis not in node["axes"] else None
    if node.kind == "reduction":
        kept = [a for a in range(len(x.shape)) if a not in node["axes"]]
        return (cut.along(kept[axis]), *whole)
    if node.op in _OF_ROWS:
        return (cut, *whole) if node["axis"] != axis else None
    match node.op:
        case "cast":
            return (cut,)
        case "permute" | "contiguous":
            return (cut.along(node["axes"][axis]),)
        case "reshape":
            found = cut.before_reshape(x.shape, node.shape)
            return None if found is None else (found,)
        case "expand":
            return (_broadcast(x, node, cut),)
        case "slice" if node["axis"] == axis:
            start, step = node["start"] + cut.start * node["step"], cut.step * node["step"]
            return (cut._replace(start=start, step=step, size=x.shape[axis]),) if cut.is_plain else None
        case "slice":
            return (cut,)
        case "flip":
            return (cut,) if axis not in node["axes"] else None
        case "pad":
            return (cut,) if not any(node["amounts"][axis]) else None
        case "concatenate" if node["axis"] != axis:
            return (cut,) * len(node.inputs)
        case "concatenate" if cut.is_plain:
            return _of_pieces(node, cut)
        case "layer_norm" | "rms_norm":
            return (cut, *whole) if axis < rank - node["axes"] else None
        case "group_norm" | "instance_norm" | "batch_norm_inference":
            return (cut, *whole) if axis == 0 else None
        case "linear" if axis < rank - 1:
            return (cut, *whole)
        case "linear" if others[0].rank == 2 and cut.is_run:
            return (None, *(cut.along(0) for _ in others))
        case "convolution" if axis == 0:
            return (cut, *whole)
        case "convolution" if axis == 1 and node["groups"] == 1 and not node["transposed"] and cut.is_run:
            return (None, *(cut.along(0) for _ in others))
        case "matmul" if min(x.rank, others[0].rank) >= 2:
            return _of_product(node, cut)
        case "contract" if "." not in node["equation"]:
            return _of_letters(node, cut)
        case "opaque" if is_plain_attention(node):
            return _of_attention(node, cut)
    return None


def _broadcast(operand: Node, node: Node, cut: Cut) -> Read:
    """What is read of an operand that is broadcast to a node's shape."""
    axis = cut.axis - (len(node.shape) - len(operand.shape))
    return cut.along(axis) if axis >= 0 and operand.shape[axis] == node.shape[cut.axis] > 1 else None


def _of_pieces(node: Node, cut: Cut) -> tuple[Read, ...] | None:
    """What is read of operands that stand one behind the other, where that is of one of them alone."""
    begin, found = 0, list[Read]()
    last = cut.start + cut.step * (cut.count - 1)
    for piece in node.inputs:
        size = piece.shape[cut.axis]
        end = begin + size
        found.append(cut._replace(start=cut.start - begin, size=size) if begin <= cut.start and last < end else UNREAD)
        begin = end
    return tuple(found) if any(isinstance(read, Cut) for read in found) else None


def _of_product(node: Node, cut: Cut) -> tuple[Read, ...]:
    left, right = node.inputs
    rank = len(node.shape)
    if cut.axis == rank - 2:
        return cut.along(left.rank - 2), None
    if cut.axis == rank - 1:
        return None, cut.along(right.rank - 1)
    return _broadcast(left, node, cut), _broadcast(right, node, cut)


def _of_letters(node: Node, cut: Cut) -> tuple[Read, ...] | None:
    terms, result = node["equation"].replace(" ", "").split("->")
    letter, size = result[cut.axis], node.shape[cut.axis]
    found = list[Read]()
    for term, operand in zip(terms.split(","), node.inputs, strict=True):
        if term.count(letter) > 1:
            return None
        place = term.find(letter)
        found.append(cut.along(place) if place >= 0 and operand.shape[place] == size > 1 else None)
    return tuple(found)


def _of_attention(node: Node, cut: Cut) -> tuple[Read, ...] | None:
    """What is read of queries, keys, values and a mask: of these, where they are repeated, all."""
    query, key, value, mask = (node.inputs[part[1]] if isinstance(part, tuple) else None
                               for part in node["template"][:4])
    rank = len(node.shape)
    if query is None or key is None or value is None or cut.axis == rank - 1 or not query.rank == key.rank == rank:
        return None
    found: dict[Node, set[Read]] = defaultdict(set)
    found[query].add(cut)
    for operand in (key, value):
        if cut.axis < rank - 2 and operand.shape[cut.axis] != node.shape[cut.axis]:
            return None  # several queries have one key
        found[operand].add(cut if cut.axis < rank - 2 else None)
    if mask is not None:
        found[mask].add(_broadcast(mask, node, cut))
    # The last of as many queries as there are keys sees all of them.
    sees_all = cut.is_plain and cut.start == cut.size - 1 == key.shape[rank - 2] - 1
    if any(len(reads) > 1 for reads in found.values()) or (cut.axis == rank - 2 and is_causal(node) and not sees_all):
        return None
    return tuple(next(iter(found.get(operand, {None}))) for operand in node.inputs)


def _computed(node: Node, cut: Cut, given: Sequence[Node]) -> Node:
    """A node's cut from what it reads of its operands."""
    if node.op == "concatenate" and node["axis"] == cut.axis:
        reads = _of_pieces(node, cut) or ()
        return next(operand for operand, read in zip(given, reads, strict=True) if isinstance(read, Cut))
    if node.op == "slice" and node["axis"] == cut.axis:
        return given[0]
    attributes: dict[str, Any] = dict(node.attributes)
    if node.op == "opaque" and cut.axis == len(node.shape) - 2 and is_causal(node):
        attributes["template"] = (*node["template"][:CAUSAL], False, *node["template"][CAUSAL + 1:])
    if "shape" in attributes:
        attributes["shape"] = cut.shape_of(node.shape)
    return make(node.op, *given, origin=node.origin, **attributes)


CROPPED: tuple[Rule, ...] = (what_is_read,)
