"""What the forward of a call hands its backward: the cut between both that costs least time.

A value of the forward that gradients read is either handed over, which costs a read of it and, where the forward would
not store it anyway, a write; or it is computed once more in the backward, of what stands below it, of which the same
is asked in turn. Seconds are those of the roofline: bytes over what kernels read and write, operations over the peak.
Pointwise operators and views are computed within the kernels that read them, and cost their operations alone, and so
do norms: their gradients need the same statistics. Reductions and rows pass over what they read once more; products,
convolutions and other calls cost what they cost in the forward, and what such calls read is stored for them. What was
drawn is handed over. The least sum over all values is a minimum cut.

Source: the choice between storing and computing again as a minimum cut is that of min-cut rematerialization
(torch/_functorch/partitioners.py), here with prices for computing again in place of bans.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kernelwright.adjoint.table import FLOATS
from kernelwright.ir.graph import Graph, memory
from kernelwright.ir.node import Node, make, rebuild, walk
from kernelwright.roofline.cost import arithmetic_seconds, node_seconds
from kernelwright.roofline.devices import Device

#: How leaves are called for what the forward hands over.
SAVED = "saved"
#: Kinds of operators that kernels compute on the way of those that read them.
_ON_THE_WAY = ("pointwise", "view", "norm")
#: Kinds of operators that read what they need again, and store little or nothing of their own.
_PASSES = ("reduction", "row")
#: An extremum is one of the values that it is taken of: a backward which asks where compares it with these very values,
#: and computes both.
_EXTREMA = ("amax", "amin")
#: Operators whose results, in place of operands, PyTorch keeps for the backward: callers who write into them get an
#: error in eager, too.
_READ_IN_BACKWARD = ("relu", "sigmoid", "tanh", "exp", "expm1", "sqrt", "rsqrt", "reciprocal", "tan", "softmax",
                     "log_softmax", "logsumexp")
#: Costs are whole numbers, so that sums are exact.
_UNITS_PER_SECOND = 1e15


def chosen(gradients: Iterable[Node], incoming: Collection[Node], stands_for: Mapping[Node, Node], forward: Graph,
           captured: Graph, device: Device) -> tuple[Node, ...]:
    """The nodes of a forward that it hands its backward, in order.

    gradients: the roots of the backward's graph. incoming: its leaves for the gradients of results. stands_for: by the
    nodes below, the nodes of which they are forms. forward: the graph of which the program of calls is planned,
    rewritten from ``captured``; what it does not compute is not handed over.
    """
    order = list(walk(gradients))
    later: set[Node] = set(incoming)  # what depends on the gradients of results
    later.update(n for n in order if not later.isdisjoint(n.inputs))
    readers: dict[Node, list[Node]] = {}
    for node in order:
        for below in node.inputs:
            if below not in later:
                readers.setdefault(below, []).append(node)
    below = [n for n in order if n not in later]
    own, in_memory = _offered(forward), _stored(forward, captured)
    offered = {n for n in below if stands_for.get(n) in own}
    if not offered or any(_draws(n) and n not in offered for n in below):
        return ()
    stored = {n for n in offered if stands_for[n] in in_memory}
    return tuple(stands_for[n] for n in _cut(below, later, readers, offered, stored, device))


def _offered(forward: Graph) -> set[Node]:
    """What a forward may hand over."""
    return {n for n in walk(forward.outputs) if n.kind not in ("leaf", "view") and n.op not in _EXTREMA
            and n.dtype in (*FLOATS, "bool") and n.size}


def keeps_result(node: Node, captured: Graph) -> bool:
    """Whether eager's backward reads the very result of a node, which a caller then may not write into."""
    return node.op in _READ_IN_BACKWARD and any(
        (n.op, n.origin, n.dtype) == (node.op, node.origin, node.dtype) for n in captured.nodes())


def _stored(forward: Graph, captured: Graph) -> set[Node]:
    """What a forward's program has in memory anyway: results and operands of calls and products, and what it returns,
    as far as callers may not write into that. Kernels compute the rest on the way."""
    returned = {memory(n) for n in forward.outputs}
    found = {n for n in returned if keeps_result(n, captured)}
    for node in forward.nodes():
        if node.kind not in (*_ON_THE_WAY, *_PASSES, "leaf"):
            found.update((node, *map(memory, node.inputs)))
        elif node.kind in _PASSES:
            found.add(node)
    return found - {n for n in returned if not keeps_result(n, captured)}


def _cut(below: list[Node], later: Collection[Node], readers: Mapping[Node, list[Node]], offered: Collection[Node],
         stored: Collection[Node], device: Device) -> tuple[Node, ...]:
    """The values on the side of the forward that the other side reads, in order. below: nodes that depend on no
    incoming gradient, inputs before users."""
    import networkx  # which PyTorch needs, too; loaded where there is something to choose

    called = {memory(n) for n in below if any(
        r in later and r.kind not in (*_ON_THE_WAY, *_PASSES) for r in readers.get(n, ()))}
    network: networkx.DiGraph = networkx.DiGraph()
    # A node has an entry, on the backward's side where it is computed there, and an exit, there where it is read there.
    for number, node in enumerate(below):
        entry, leaves = (number, "entry"), (number, "exit")
        if any(reader in later for reader in readers.get(node, ())):
            network.add_edge(leaves, "backward")  # without a capacity: infinite
        if node.kind == "leaf":
            network.add_edge("forward", leaves, capacity=_units(_bytes(node) / device.read))
            continue
        if _draws(node):
            network.add_edge("forward", entry)  # nobody draws the same numbers once more
            network.add_edge(entry, leaves, capacity=_units(_bytes(node) / device.read))
            continue
        again = _seconds_again(node, device)
        if node in called and node.kind in _ON_THE_WAY:
            again += _bytes(node) / device.copy
        network.add_edge("forward", entry, capacity=_units(again))
        if node in offered:
            handed = _bytes(node) / device.read + (0.0 if node in stored else _bytes(node) / device.copy)
            network.add_edge(entry, leaves, capacity=_units(handed))
        else:
            network.add_edge(entry, leaves)
    numbers = {node: number for number, node in enumerate(below)}
    for node, number in numbers.items():
        for source in node.inputs:
            network.add_edge((numbers[source], "exit"), (number, "entry"))
    if "backward" not in network or "forward" not in network:
        return ()
    _, (kept, _) = networkx.minimum_cut(network, "forward", "backward")
    return tuple(node for node, number in numbers.items()
                 if node in offered and (number, "entry") in kept and (number, "exit") not in kept)


def _draws(node: Node) -> bool:
    """Whether a node draws random numbers."""
    return node.get("serial", -1) >= 0


def _bytes(node: Node) -> int:
    """The bytes of a value; of a constant none."""
    return 0 if node.op in ("constant", "literal", "places") else node.bytes


def _units(seconds: float) -> int:
    return round(seconds * _UNITS_PER_SECOND)


def _seconds_again(node: Node, device: Device) -> float:
    """What it takes to compute a node once more, of values that are there."""
    arithmetic = arithmetic_seconds(node, device)
    if node.kind in _ON_THE_WAY:
        return arithmetic
    if node.kind in _PASSES:
        return max(arithmetic, sum(map(_bytes, node.inputs)) / device.read) + device.launch_seconds
    return node_seconds(node, device)


def with_leaves(roots: Iterable[Node], saved: Collection[Node]) -> tuple[tuple[Node, ...], dict[Node, Node]]:
    """Roots that read leaves in the place of what is handed over, and these leaves, by what they stand for."""
    leaves = {node: make("input", name=f"{SAVED}_{number}", shape=node.shape, dtype=node.dtype)
              for number, node in enumerate(saved)}
    roots = list(roots)
    made: dict[Node, Node] = dict(leaves)
    for node in walk(roots):
        if node not in made:
            made[node] = rebuild(node, tuple(made[i] for i in node.inputs))
    return tuple(made[n] for n in roots), leaves
