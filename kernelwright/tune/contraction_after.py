"""What is left to do after a contraction: how long it takes at the speed of a copy, in one plan and in others.

Plans that join reductions to a contraction's kernel, that leave them out and that recompute it differ in the steps
behind it. Those that do not stand in all of them are what tells them apart; they are bound by memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from math import prod

from kernelwright.codegen.cuda.loops.generate import chosen_schedule
from kernelwright.codegen.cuda.loops.normal_form import normalise, passes
from kernelwright.codegen.cuda.loops.schedule import Schedule
from kernelwright.ir.node import Node
from kernelwright.ir.registry import ITEM_BYTES
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Load, walk
from kernelwright.plan.kernels import LoopKernel
from kernelwright.plan.layouts.channels_last import below_views
from kernelwright.plan.records import KernelStep, Plan, Step
from kernelwright.roofline.devices import Device


class Reading:
    """Who reads what in a plan, found once.

    meanings: what its steps give and from what.
    """

    def __init__(self, plan: Plan) -> None:
        self.steps = plan.steps
        self.meanings = {_meaning(step) for step in plan.steps}
        self._readers: dict[Node, list[int]] = {}
        for place, step in enumerate(plan.steps):
            for node in _reads(step):
                self._readers.setdefault(node, []).append(place)

    def of(self, nodes: Iterable[Node]) -> list[int]:
        """The places of the steps that read any of ``nodes``, as these see them or as they lie in memory."""
        return [place for node in nodes for place in self._readers.get(node, ())]


def seconds_after(steps: Sequence[KernelStep], plan: Reading, others: Sequence[Reading], row: Device) -> float:
    """Seconds that ``plan`` takes, after the steps of a contraction, for what ``others`` do otherwise.

    Those are the steps that read what it stored, or what such a step stored, unless all others have such steps.
    Other contractions end that: they are measured by themselves.
    """
    stored = [n for step in steps for n in step.outputs]
    waiting = plan.of({*map(below_views, stored), *stored})
    heapify(waiting)
    seconds, last = 0.0, -1
    while waiting:
        place = heappop(waiting)
        following = plan.steps[place]
        if place == last or _contracts(following) or all(_meaning(following) in other.meanings for other in others):
            continue
        last = place
        seconds += step_seconds(following, row)
        written = following.outputs if isinstance(following, KernelStep) else (following.node,)
        for reader in plan.of(written):
            heappush(waiting, reader)
    return seconds


def step_seconds(step: Step, row: Device) -> float:
    """A launch and the bytes that a step reads and writes, at the speed of a copy; nothing for a view."""
    if not isinstance(step, KernelStep):
        node = step.node
        if node.kind == "view":
            return 0.0
        return (node.bytes + sum(n.bytes for n in node.inputs)) / row.copy + row.launch_seconds
    read = _bytes_read(step.kernel, step.inputs) if isinstance(step.kernel, LoopKernel) else \
        sum(n.bytes for n in step.inputs)
    return (read + sum(n.bytes for n in step.outputs)) / row.copy + row.launch_seconds


def _bytes_read(kernel: LoopKernel, inputs: tuple[Node, ...]) -> int:
    """What a loop kernel reads: of each input what its loads reach, once for each walk along the rows that has them,
    unless rows stay on the chip from one walk to the next."""
    walks = [[s.expression for s in (*kernel.row_stores, *kernel.outer_stores)]]
    kept = True
    if kernel.reductions and prod(kernel.outer) and prod(kernel.row):
        kernel = normalise(kernel)
        joined = [(p.reductions, dict(p.exponential_sums)) for p in passes(kernel)]
        walks = [[kernel.reductions[n].expression for n in numbers if n not in pairs] for numbers, pairs in joined]
        walks.append([s.expression for s in (*kernel.row_stores, *kernel.outer_stores)])
        schedule = chosen_schedule(kernel)
        kept = isinstance(schedule, Schedule) and bool(schedule.keep)
    sizes = kernel.outer + kernel.row
    total = 0
    for number, node in enumerate(inputs):
        most = node.bytes
        reached = []
        for roots in walks:
            loads = {e for root in roots for e in walk(root) if isinstance(e, Load) and e.buffer == number}
            elements = sum(prod(n for n, stride in zip(sizes, e.index.strides, strict=True) if stride) for e in loads)
            reached.append(min(most, elements * ITEM_BYTES.get(node.dtype, 4)))
        total += max(reached) if kept else sum(reached)
    return total


def _contracts(step: Step) -> bool:
    return isinstance(step.kernel, Contraction) if isinstance(step, KernelStep) else step.node.kind == "linear"


def _meaning(step: Step) -> Hashable:
    """What a step gives and from what, whatever its name."""
    return (step.inputs, step.outputs) if isinstance(step, KernelStep) else step.node


def _reads(step: Step) -> set[Node]:
    """What a step reads, as it sees it and as it lies in memory."""
    inputs = step.inputs if isinstance(step, KernelStep) else step.node.inputs
    return {*inputs, *map(below_views, inputs)}
