"""The backward of a mode as a plan: the gradients of a captured graph, simplified and cut into kernels.

What is differentiated is the rewritten graph, so that a collapsed map has a collapsed adjoint, but without the rules
whose sides have other derivatives at kinks. The plan reads what the forward was given, and the gradients of its
results, and gives those of all inputs and parameters that eager's reach.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, replace

from kernelwright.adjoint.called import AGAIN, DETACHED, as_called, as_computed, without
from kernelwright.adjoint.graph import Gradients, gradients
from kernelwright.adjoint.known import check_known
from kernelwright.adjoint.saved import chosen
from kernelwright.adjoint.table import FLOATS, NoAdjoint
from kernelwright.algebra.engine import rewrite
from kernelwright.algebra.rule import KINKS, Dropped
from kernelwright.capture.observed import OWN_DERIVATIVE
from kernelwright.ir.graph import Given, Graph, copied, in_own_memory, is_given
from kernelwright.ir.node import Node, walk
from kernelwright.plan.layouts.channels_last import depthwise_backward
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import Plan
from kernelwright.roofline.devices import Device


@dataclass(frozen=True, slots=True)
class Backward:
    """Kernels for gradients of a mode: of its parameters alone, or of its inputs, too.

    gradients: the graph, which results' gradients it reads and whose it gives. plan: its steps. The plan's tensors are
    the forward's arguments, the gradients of results, what the forward hands over, and the model's parameters and
    buffers.
    """

    gradients: Gradients
    plan: Plan

    @property
    def of_inputs(self) -> bool:
        """Whether gradients of inputs are among them."""
        return any(isinstance(who, int) for who in self.gradients.gives)


def make_backward(captured: Graph, device: Device, dropped: Dropped = frozenset(), frozen: Collection[str] = (),
                  forward: Graph | None = None) -> tuple[Backward, ...]:
    """The backward of a captured graph: that of its parameters alone, where it has some, and that of all. dropped:
    rules that its forward was rewritten without. frozen: parameters whose gradients nobody asks for. forward: the graph
    of which a program of calls is planned that hands its backward what is worth it; None where it hands over nothing.

    Raises NoAdjoint with the reason why the original computation is to find the gradients, which it does anyway where
    no kernel is made.
    """
    check_known(captured.calls)
    original, captured = captured, as_called(captured)
    if captured.asks or captured.carried or captured.left:
        raise NoAdjoint("what a call keeps, or asks of gradients, has no backward of kernels")
    of, wanted = _reaching(captured)
    wanted -= set(frozen)
    parameters = {who for who in wanted if isinstance(who, str)}
    graph = rewrite(captured, device, dropped | {KINKS}).graph
    try:
        everything = _gradients(graph, of, wanted)
    except NoAdjoint:  # an operator that rules made, maybe
        graph = captured
        everything = _gradients(graph, of, wanted)
    saved = () if forward is None else chosen(
        everything.graph.outputs, everything.incoming, everything.stands_for, forward, original, device)
    kinds = [parameters, wanted] if parameters and parameters != wanted else [wanted]
    return tuple(_planned(_gradients(graph, of, kind).reading(saved), kind, captured, device, dropped)
                 for kind in kinds)


def _gradients(graph: Graph, of: tuple[int, ...], wanted: Collection[Given]) -> Gradients:
    """The gradients of a graph in operators as they are called, which stand for those that a forward computes. Raises
    NoAdjoint."""
    found, computed = gradients(graph, of, wanted), as_computed(graph)
    stands_for = {form: computed[n] for form, n in found.stands_for.items() if n.op != DETACHED}
    one = without(AGAIN, (*found.graph.outputs, *stands_for))  # all gradients are there: their values are one again
    return replace(found, graph=replace(found.graph, outputs=tuple(one[n] for n in found.graph.outputs)),
                   stands_for={one[form]: own for form, own in stands_for.items()})


def handed_over(backward: Iterable[Backward]) -> tuple[Node, ...]:
    """What a forward hands its backward, each once: nodes of its rewritten graph."""
    return tuple(dict.fromkeys(node for part in backward for node in part.gradients.saved))


def _planned(found: Gradients, wanted: Collection[Given], captured: Graph, device: Device,
             dropped: Dropped) -> Backward:
    """The kernels of gradients of a graph that was made of a captured one. Raises NoAdjoint."""
    if set(found.gives) != wanted:
        raise NoAdjoint("gradients reach other tensors than operators show")
    as_is = without(DETACHED, found.graph.outputs)
    found = replace(found, graph=_apart(replace(found.graph, outputs=tuple(as_is[n] for n in found.graph.outputs))))
    rewriting = rewrite(found.graph, device, dropped)
    last = depthwise_backward(rewriting.graph.outputs) if device.kind == "cpu" else frozenset()
    plan = make_plan(rewriting.graph, found.graph, move_bias=device.adds_bias_apart, channels_last=last)
    updated = {effect.name for effect in captured.effects}
    read = {n["name"] for n in walk(plan.graph.outputs) if n.op in ("buffer", "attribute")}
    if read & updated or any(n.op == "attribute" for n in walk(plan.graph.outputs)):
        raise NoAdjoint("gradients depend on a tensor that the forward changes, or that is not the model's")
    if any(n.get("serial", -1) >= 0 for n in walk(plan.graph.outputs)):
        raise NoAdjoint("gradients depend on random numbers")
    if not plan.kernels:
        raise NoAdjoint("no kernel pays in a backward")
    return Backward(found, plan)


def _reaching(captured: Graph) -> tuple[tuple[int, ...], set[Given]]:
    """The numbers of results that have gradients, and the inputs and parameters that these reach.

    Raises NoAdjoint where it is not known how far gradients reach, or where results differ in that: then backward
    passes of some of them give other tensors none.
    """
    if not captured.results:
        raise NoAdjoint("nobody knows how far gradients reach")
    of: list[int] = []
    wanted: set[Given] = set()
    for number, (node, result) in enumerate(zip(captured.outputs, captured.results, strict=True)):
        if is_given(node) or result.given is not None:
            raise NoAdjoint("a result is what the forward was given")
        if node.dtype not in FLOATS:
            continue
        if result.reaches is None:
            raise NoAdjoint("nobody knows how far gradients reach")
        if OWN_DERIVATIVE in result.reaches:
            raise NoAdjoint("the model finds derivatives by functions of its own")
        if result.reaches:
            of.append(number)
            wanted |= result.reaches
    if not of:
        raise NoAdjoint("no result has a gradient")
    return tuple(of), wanted


def _apart(graph: Graph) -> Graph:
    """The graph with results in memory of their own: callers may write into gradients."""
    taken: dict[Node, Hashable] = {}
    outputs: list[Node] = []
    for number, node in enumerate(graph.outputs):
        own = copied(node) if is_given(node) or node.op == "literal" else node
        own = in_own_memory(own, number, taken)
        outputs.append(copied(own, number + 1) if own in outputs else own)
    return replace(graph, outputs=tuple(outputs))
