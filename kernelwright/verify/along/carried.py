"""Where a model hands a state along an axis, and where it takes the largest of a row: what kernels do tile by tile.

A state goes along an axis in scans (a running sum, product or maximum), in recurrent layers, and in loops over steps
that a capture has unrolled: there the steps are slices of one tensor, and some value depends on the first half of them
and not on all. A largest value is taken by maxima, by softmax and its like, and by attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernelwright.ir.graph import Graph, memory
from kernelwright.ir.node import Node
from kernelwright.verify.along.origins import operand

#: Fewer steps than these are no memory worth the name, and shorter rows than these no tiles.
LEAST_STEPS, LEAST_ROW = 8, 32
#: Loops of a graph that are looked at.
_MOST_LOOPS = 8
_SCANS = frozenset({"cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"})
_LAYERS = frozenset({"aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"})
_ROWS = frozenset({"softmax", "log_softmax", "logcumsumexp", "cummax", "cummin"})
_LARGEST = frozenset({"logsumexp", "amax", "amin", "argmax", "argmin"})
#: What goes on to the next step element by element.
ELEMENTWISE = ("pointwise", "view")


@dataclass(frozen=True, slots=True)
class Along:
    """An axis of a value that a graph walks along. ``kind``: sum (or another scan), product, layer (``call`` is the
    call of it) or loop (``steps`` are its slices in their order)."""

    value: Node
    axis: int
    kind: str
    call: Node | None = None
    steps: tuple[Node, ...] = ()

    @property
    def size(self) -> int:
        """How many steps there are."""
        return self.value.shape[self.axis]


def carried(graph: Graph) -> list[Along]:
    """The axes along which a state is handed on, those of scans first."""
    found = [*_scans(graph), *_layers(graph), *_loops(graph)]
    return [along for along in found if along.size >= LEAST_STEPS]


def rows(graph: Graph) -> list[Along]:
    """The axes of whose rows the largest value is taken."""
    return [along for along in _rows(graph) if along.size >= LEAST_ROW]


def _scans(graph: Graph) -> Iterator[Along]:
    for node in graph.nodes():
        name = node.op if node.op in _SCANS else str(node.get("target", "")).split(".")[-2:-1]
        if node.op in _SCANS:
            yield Along(node.inputs[0], node["axis"], "product" if node.op == "cumprod" else "sum")
        elif node.op == "opaque" and name and name[0] in _SCANS and (value := operand(node, 0)) is not None \
                and value.rank and isinstance(node["template"][1], int):
            yield Along(value, node["template"][1] % value.rank, "product" if name[0] == "cumprod" else "sum")


def _layers(graph: Graph) -> Iterator[Along]:
    for node in graph.nodes():
        if node.get("target") in _LAYERS and (value := operand(node, 0)) is not None and value.rank > 1:
            batch_first = node["template"][-1] is True and value.rank == 3
            yield Along(value, int(batch_first), "layer", node)


def _loops(graph: Graph) -> Iterator[Along]:
    pieces: dict[tuple[Node, int], dict[int, Node]] = {}
    for node in graph.nodes():
        if node.op == "slice" and node.shape[node["axis"]] == 1 < node.inputs[0].shape[node["axis"]]:
            pieces.setdefault((node.inputs[0], node["axis"]), {})[node["start"]] = node
    long = [(place, steps) for place, steps in pieces.items()
            if len(steps) >= max(LEAST_STEPS, place[0].shape[place[1]] // 2)]
    for (value, axis), steps in long[:_MOST_LOOPS]:
        ordered = tuple(steps[start] for start in sorted(steps))
        for order in (ordered, ordered[::-1]):
            if _is_handed_on(graph, order):
                yield Along(value, axis, "loop", steps=order)
                break


def steps_below(graph: Graph, steps: tuple[Node, ...]) -> dict[Node, int]:
    """For every value the steps that it depends on, as bits."""
    bits = {step: 1 << number for number, step in enumerate(steps)}
    found: dict[Node, int] = {}
    for node in graph.nodes():
        below = bits.get(node)
        if below is None:
            below = 0
            for value in node.inputs:
                below |= found[value]
        found[node] = below
    return found


def _is_handed_on(graph: Graph, steps: tuple[Node, ...]) -> bool:
    """Whether a value is made of the first steps, at least half of them and not all, other than by joining results."""
    count = len(steps)
    prefixes = {(1 << length) - 1 for length in range(max(2, count // 2), count)}
    return any(below in prefixes and node.op != "concatenate" for node, below in steps_below(graph, steps).items())


def state_factors(graph: Graph, along: Along) -> list[Node]:
    """Of a loop, what its second step multiplies the state with element by element: gates and decays."""
    below = steps_below(graph, along.steps)
    first, both = 1, 3
    handed = {value for node in graph.nodes() if below[node] == both for value in node.inputs
              if below[value] == first and memory(value).kind != "linear"}
    state: set[Node] = set(handed)
    found: dict[Node, None] = {}
    for node in graph.nodes():
        if below[node] not in (first, both) or not (node.kind in ELEMENTWISE or node.op == "concatenate"):
            continue
        if node.op == "mul":
            left, right = node.inputs
            for value, factor in ((left, right), (right, left)):
                if value in state and factor not in state:
                    found[factor] = None
        if any(value in state for value in node.inputs):
            state.add(node)
    return list(found)


def _rows(graph: Graph) -> Iterator[Along]:
    for node in graph.nodes():
        first = node.inputs[0] if node.inputs else None
        if first is None:
            continue
        if node.op in _ROWS:
            yield Along(first, node["axis"], "row")
        elif node.op in _LARGEST and len(node["axes"]) == 1:
            yield Along(first, node["axes"][0], "row")
        elif node.op == "cross_entropy_loss" and first.rank:
            yield Along(first, min(1, first.rank - 1), "row")
        elif "attention" in str(node.get("target", "")) and (keys := operand(node, 1)) is not None and keys.rank > 1:
            yield Along(keys, keys.rank - 2, "row")
