"""Contractions that are recomputed (:mod:`kernelwright.plan.fusion.recompute`): which can be, and whether that takes
less time than to store their results and read them from memory.

A kernel that stores, with reductions over positions or without them, and the passes behind it are held against two
kernels and what is left to do behind those. Each kernel is measured, or predicted, by itself, and what follows is taken
to run at the speed of a copy (:mod:`kernelwright.tune.contraction_after`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from kernelwright.codegen.cuda.direct_conv.generate import suits
from kernelwright.codegen.cuda.gemm.generate import tilings
from kernelwright.codegen.reference.contraction import uses_reductions
from kernelwright.ir.node import Node, walk
from kernelwright.plan.bits import union
from kernelwright.plan.contraction.products import NARROW_TYPES
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.records import KernelConfig, KernelStep, Measurement, Plan
from kernelwright.roofline.cost import node_seconds
from kernelwright.roofline.devices import Device
from kernelwright.tune.contraction_after import Reading, seconds_after
from kernelwright.tune.contraction_memory import Measured, Trial

#: See :func:`variant`.
Variant = tuple[Node, int, int]

# The share of the float16 peak that contractions on tensor cores are taken to reach where nothing is measured.
_EFFICIENCY = 0.5
# Beside a contraction's own kernel there are those that find scales and that pack operands.
_LAUNCHES = 3


@dataclass(frozen=True, slots=True)
class Pair:
    """The steps of a contraction that is recomputed. statistics: what the second reads of the first's results."""

    first: KernelStep
    second: KernelStep
    statistics: frozenset[Node]

    @property
    def steps(self) -> tuple[KernelStep, KernelStep]:
        """Both, in order."""
        return self.first, self.second


def contraction_steps(plan: Plan) -> list[KernelStep]:
    """The steps of a plan that are contractions."""
    return [s for s in plan.kernels if isinstance(s.kernel, Contraction)]


def contraction_of(step: KernelStep) -> Contraction:
    """The record of a step that is a contraction."""
    assert isinstance(step.kernel, Contraction), step.name
    return step.kernel


def reduces(step: KernelStep) -> bool:
    """Whether a contraction's kernel reduces: its output channels, its positions, or windows of them."""
    kernel = step.kernel
    return isinstance(kernel, Contraction) and bool(kernel.all_reductions)


def pools_lines(step: KernelStep) -> bool:
    """Whether a contraction's kernel reduces windows of several lines."""
    return isinstance(step.kernel, Contraction) and step.kernel.pool_lines > 1


def variant(step: KernelStep) -> Variant:
    """A contraction, in which pass, and what its kernel reduces: nothing (0), something (1), windows of lines (2)."""
    return step.covers[0], step.pass_number, reduces(step) + pools_lines(step)


def as_tried(step: KernelStep, config: KernelConfig) -> KernelConfig:
    """The config of a candidate that a step was tried in: a tiling that held no reductions may be too narrow for
    any."""
    pools = isinstance(step.kernel, Contraction) and bool(step.kernel.pools)
    return replace(config, reduces=reduces(step), lines=pools_lines(step) if pools else config.lines)


def seconds_of(config: KernelConfig) -> float:
    """What was measured of a config's kernels."""
    own = config.measurement.seconds if config.measurement is not None else 0.0
    return own + (seconds_of(config.recompute) if config.recompute is not None else 0.0)


def pairs_of(plan: Plan) -> dict[Node, Pair]:
    """The contractions that a plan recomputes, as they should be: in pass 1 nothing but reductions over positions is
    stored, and the kernel of pass 2, not another one behind it, reads what follows from them."""
    firsts = {s.covers[0]: s for s in contraction_steps(plan) if s.pass_number == 1}
    made = {n: 1 << number for number, first in enumerate(firsts.values()) for n in first.outputs}
    below: dict[Node, int] = {}  # of which first ones' results a node is made, as bits
    for node in walk(n for s in contraction_steps(plan) if s.pass_number == 2 for n in s.inputs):
        below[node] = made.get(node, 0) | union(below, node.inputs)
    result: dict[Node, Pair] = {}
    for second in contraction_steps(plan):
        first = firsts.get(second.covers[0]) if second.pass_number == 2 else None
        if first is None or not all(uses_reductions(s.expression) for s in contraction_of(first).stores):
            continue
        own = union(made, first.outputs)
        statistics = frozenset(n for n in second.inputs if below[n] & own)
        if statistics:
            result[second.covers[0]] = Pair(first, second, statistics)
    return result


def plan_recomputed(make: Callable[[Mapping[Node, KernelConfig]], Plan], configs: Mapping[Node, KernelConfig],
                    nodes: Iterable[Node]) -> tuple[Plan | None, dict[Node, Pair]]:
    """The plan in which those of ``nodes`` are recomputed that can be; None where none can.

    make: gives the plan of configs. configs: without pass 2.
    """
    wanted = set(nodes)
    while wanted:
        plan = make({n: replace(c, recompute=c) if n in wanted else c for n, c in configs.items()})
        pairs = pairs_of(plan)
        if pairs.keys() == wanted:
            return plan, pairs
        wanted &= pairs.keys()
    return None, {}


def with_position_reductions(steps: Iterable[KernelStep]) -> list[Node]:
    """The contractions whose kernels take reductions over positions."""
    return [s.covers[0] for s in steps if isinstance(s.kernel, Contraction) and s.kernel.position_reductions]


def takes_lines(kernel: Contraction) -> bool:
    """Whether some kernel takes windows of several lines: on tensor cores those that are no output phases already, and
    multiply-adds what they are fast for."""
    natural = kernel.axes[-1].out_stride > 1 or kernel.pool_planes > 1
    return not natural or suits(replace(kernel, scheme="float32", tiling=None))


def _without_lines(configs: Mapping[Node, KernelConfig], steps: Iterable[KernelStep],
                   takes: Callable[[Contraction], bool]
                   ) -> dict[Node, KernelConfig]:
    """The configs, without lines where a step pools some that no kernel takes."""
    unfit = {s.covers[0] for s in steps if pools_lines(s) and not takes(contraction_of(s))}
    return {n: replace(c, lines=False) if n in unfit else c for n, c in configs.items()}


def alternatives(make: Callable[[Mapping[Node, KernelConfig]], Plan], configs: Mapping[Node, KernelConfig], row: Device,
                 takes: Callable[[Contraction], bool] = takes_lines
                 ) -> tuple[list[KernelStep], dict[Variant, float], dict[Node, Pair]]:
    """The steps to measure, what is to be done after those of which there are several, and which of them are pairs.

    A contraction that something reduces is tried with what its kernel can reduce and without that, where windows have
    lines also with windows of the last axis alone, and where reductions over positions are read together with its
    results it is tried recomputed. The kernel of pass 2 takes what reductions it can: without them it would store as
    much as a kernel that is alone. What follows a pair counts as what follows its second step.

    takes: whether there is a kernel for windows of several lines.
    """
    given, configs = configs, _without_lines(configs, contraction_steps(make(configs)), takes)
    whole = make(configs)
    steps = contraction_steps(whole)
    found: dict[Node, list[tuple[Plan, Sequence[KernelStep]]]] = {s.covers[0]: [(whole, [s])] for s in steps
                                                                  if reduces(s)}
    if not found:
        return steps, {}, {}
    lined = {s.covers[0] for s in steps if pools_lines(s)}
    narrow = make({n: replace(c, lines=False) for n, c in configs.items()}) if lined else whole
    apart = make({n: replace(c, reduces=False) for n, c in configs.items()})
    for plan, nodes in ((narrow, lined), (apart, found.keys())):
        for step in contraction_steps(plan):
            if step.covers[0] in nodes:
                found[step.covers[0]].append((plan, [step]))
    recomputed, pairs = plan_recomputed(make, given, with_position_reductions(steps))
    fewer = _without_lines(given, (pair.second for pair in pairs.values()), takes)
    if fewer != given:
        recomputed, pairs = plan_recomputed(make, fewer, with_position_reductions(steps))
    if recomputed is not None:
        for node, pair in pairs.items():
            found[node].append((recomputed, pair.steps))
    plans = {id(plan): plan for every in found.values() for plan, _ in every}
    readings = {key: Reading(plan) for key, plan in plans.items()}
    after = {variant(some[-1]): seconds_after(some, readings[id(plan)],
                                              [readings[id(p)] for p, _ in every if p is not plan], row)
             for every in found.values() for plan, some in every}
    steps = [s for s in steps if s.covers[0] not in found]
    steps += [s for every in found.values() for _, some in every for s in some]
    return steps, after, pairs


def saved(step: KernelStep, after: Mapping[Variant, float]) -> float:
    """What is less to do after a kernel with reductions, or after two, than after the one without; infinite where that
    is not known."""
    own, apart = variant(step), (step.covers[0], 0, 0)
    known = own != apart and own in after and apart in after
    return max(0.0, after[apart] - after[own]) if known else inf


def without(config: KernelConfig, step: KernelStep) -> KernelConfig:
    """The config of a contraction of which a step's candidate has no room for its reductions: without lines, or any."""
    less: dict[str, Any] = {"lines": False} if pools_lines(step) else {"reduces": False}
    if step.pass_number == 2 and config.recompute is not None:
        return replace(config, recompute=replace(config.recompute, **less))
    return replace(config, **less, recompute=config.recompute if pools_lines(step) else None)


# Measured -----------------------------------------------------------------------------------------


def decide_recompute(pair: Pair, first: Measured | None, second: Measured | None, share: float) -> KernelConfig | None:
    """The candidates that are fastest together, of one scheme, or of which the first forms no sums; None where none are
    accurate, or where they take more than ``share`` of the torch call with all that follows it."""
    best: tuple[float, Trial, Trial] | None = None
    if first is None or second is None:
        return None
    for one in first.accurate:
        for other in second.accurate:
            seconds = one.seconds + other.seconds
            alike = one.config.scheme in (other.config.scheme, "correlation")
            if alike and seconds < (best[0] if best is not None else inf):
                best = seconds, one, other
    if best is None or best[0] > share * second.seconds:
        return None
    configs = [replace(as_tried(step, trial.config), measurement=Measurement(
        trial.seconds, measured.seconds, trial.usual, measured.usual))
        for trial, measured, step in zip(best[1:], (first, second), pair.steps, strict=True)]
    return replace(configs[0], recompute=configs[1])


# Without a device ---------------------------------------------------------------------------------


def predicted_seconds(node: Node, stored: int, row: Device) -> float:
    """Seconds of a contraction's kernel that stores so many bytes, as the roofline model has them."""
    narrow = node.dtype in NARROW_TYPES
    peak = getattr(row, node.dtype) if narrow else row.float16 / 3
    # Operands are read and written to be packed, float32 ones read twice for their scales.
    packed = sum(i.bytes for i in node.inputs[:2]) * (2 if narrow else 3)
    seconds = max(node.operator.operations(node) / (peak * _EFFICIENCY), (packed + stored) / row.copy)
    return seconds + _LAUNCHES * row.launch_seconds


def predicted_recompute(make: Callable[[Mapping[Node, KernelConfig]], Plan], configs: Mapping[Node, KernelConfig],
                        promising: Collection[Node], core: str, row: Device, share: float) -> dict[Node, KernelConfig]:
    """The contractions, of ``configs``, that the model promises to take less time when they are recomputed.

    promising: those that become kernels anyway. Of others the library's call, and what follows it as it follows a
    kernel that stores, has to be beaten as well: two kernels may take less than ``share`` of it.
    """
    steps, after, pairs = alternatives(make, configs, row, lambda kernel: bool(tilings(kernel, core)))
    found = {variant(step): step for step in steps}
    result: dict[Node, KernelConfig] = {}
    for node, pair in pairs.items():
        best = [next(iter(tilings(contraction_of(s), core)), None) for s in pair.steps]

        def taken(*some: KernelStep, contraction: Node = node) -> float:
            own = sum(predicted_seconds(contraction, sum(n.bytes for n in s.outputs), row) for s in some)
            return own + after[variant(some[-1])]

        library = node_seconds(node, row) + after[node, 0, 0]
        alone = [step for key, step in found.items() if key[:2] == (node, 0) and key[2]]
        least = min(*map(taken, alone), inf if node in promising else share * library)
        if None not in best and taken(*pair.steps) < least:
            first, second = (as_tried(step, replace(configs[node], tiling=tiling))
                             for tiling, step in zip(best, pair.steps, strict=True))
            result[node] = replace(first, recompute=second)
    return result
