"""The plan of a mode for other sizes than the example's, with the decisions that were made for the example.

A plan is made anew at a few points: the model is captured, rewritten and planned with inputs of those sizes. What was
decided for the example by measurement (operators that stay with PyTorch, layouts, contractions) is decided alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from kernelwright.algebra.engine import rewrite
from kernelwright.algebra.precision import exact_convolutions
from kernelwright.dynamic.formulas import Sizes, unknowns
from kernelwright.dynamic.records import Differs, Template
from kernelwright.dynamic.sizes import Size, of_sizes
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node
from kernelwright.modes import ModeProgram
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import Plan
from kernelwright.problem import Problem
from kernelwright.programs import Stages, captured_mode
from kernelwright.roofline.devices import Device
from kernelwright.selection import with_strides_of_eager
from kernelwright.settings import Settings

#: Values of a size beside the example's: these many more, or less, whichever lie in the range.
_STEPS = (1, -1, 3, -3, 2, -2, 7, 5, -5, 4, 8, 16, 32, 64, -4, -8)


def template_of(problem: Problem, mode: ModeProgram, sizes: Sequence[Size], device: Device, settings: Settings,
                stages: Stages) -> tuple[Template, list[Sizes]]:
    """The mode's plan as a function of sizes, and the points of which it was made. Raises Differs."""
    example = tuple(size.example for size in sizes)
    plans: dict[Sizes, Plan] = {example: mode.plan}
    if planned_at(problem, mode, sizes, example, device, settings, stages).steps != mode.plan.steps:
        raise Differs("the example's plan is made otherwise a second time")
    most = [size.high - size.low + 1 for size in sizes]
    reason = Differs("there are too few values of the sizes to make formulas of")
    known, needed = unknowns(list(plans), most)
    attempts, spare = 2 * needed + len(_STEPS), 1
    for point in _points(sizes):
        rank, _ = unknowns([*plans, point], most)
        if rank == known < needed:
            continue  # it would tell nothing
        attempts -= 1
        try:
            plan = planned_at(problem, mode, sizes, point, device, settings, stages)
            Template([example, point], [mode.plan, plan], spare=0)
        except Differs as differs:  # another program is best there
            reason = differs
            if not attempts:
                break
            continue
        plans[point] = plan
        if rank == known == needed:
            break
        known = rank
    else:
        spare = 0 if len(plans) == prod(most) else 1
    if known < needed:
        raise reason
    found = Template(list(plans), list(plans.values()), spare=spare)
    for point, plan in plans.items():
        if found.at(point).steps != plan.steps:
            raise Differs("a plan is not what its formulas give")
    return found, list(plans)


def _points(sizes: Sequence[Size]) -> list[Sizes]:
    """Points beside the example, in the order in which they are tried: near ones first."""
    values = [[size.example, *(size.example + step for step in _STEPS if size.low <= size.example + step <= size.high)]
              for size in sizes]
    places = sorted(itertools.product(*(range(len(own)) for own in values)), key=lambda p: (sum(p), max(p), p))
    return [tuple(own[n] for own, n in zip(values, place, strict=True)) for place in places[1:]]


def planned_at(problem: Problem, mode: ModeProgram, sizes: Sequence[Size], point: Sizes, device: Device,
               settings: Settings, stages: Stages) -> Plan:
    """The mode's plan for some sizes. Raises Differs where the model is another graph there."""
    other = of_sizes(problem, sizes, point)
    inputs = other.make_inputs(settings.seed)
    graph = captured_mode(other, mode, inputs, settings, stages)
    if not isinstance(graph, Graph):
        raise Differs(f"at sizes {in_words(sizes, point)} the model is not captured: {graph}")
    if settings.precision == "strict" and device.rounds_products:
        graph = exact_convolutions(graph)
    with stages.stage("plan", f"at sizes {in_words(sizes, point)}"):
        found = ModeProgram(mode.name, mode.model, graph, rewrite(graph, device, mode.rewriting.dropped), mode.plan,
                            mode.recordings)
        found = replace(found, plan=_planned(found, mode, device))
    laid = [part for part in with_strides_of_eager(other, found, inputs, device, settings)
            if part.recordings == mode.recordings]
    if not laid:
        raise Differs(f"at sizes {in_words(sizes, point)} results lie otherwise where gradients are recorded")
    return _planned(laid[0], mode, device)


def _planned(found: ModeProgram, mode: ModeProgram, device: Device) -> Plan:
    """A plan with the decisions of the mode's."""
    same = _together(mode.rewriting.graph, found.rewriting.graph)
    plan = mode.plan

    def moved(nodes: Sequence[Node]) -> list[Node]:
        return [same[node] for node in nodes if node in same]

    last = frozenset(moved(list(plan.channels_last)))
    kept = {same[node]: reason for node, reason in plan.kept.items() if node in same}
    contractions = {same[node]: config for node, config in plan.contractions.items() if node in same}
    made = make_plan(found.rewriting.graph, found.captured, kept, move_bias=device.adds_bias_apart or bool(last),
                     channels_last=last, contractions=contractions, fused_products=plan.fused_products)
    return replace(made, layout=plan.layout)


def _together(one: Graph, other: Graph) -> dict[Node, Node]:
    """The nodes of a graph with those in their places in another one of other sizes. Raises Differs."""
    ours, theirs = list(one.nodes()), list(other.nodes())
    if [node.op for node in ours] != [node.op for node in theirs]:
        raise Differs("other operators are computed at other sizes")
    return dict(zip(ours, theirs, strict=True))


def in_words(sizes: Sequence[Size], point: Sizes) -> str:
    """Some sizes in words."""
    return ", ".join(f"{size.name.removeprefix('size_')} = {value}" for size, value in zip(sizes, point, strict=True))

