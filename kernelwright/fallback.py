"""Stepping back: what is given up, little by little, of a program that fails or is not accurate enough.

The least exact goes first: an order of axes in memory that is not the model's, contractions that round their operands,
contractions at all, rules (those that change most of the arithmetic before the others), kernels that sum, and last the
whole mode, which is PyTorch's then. Whoever plans, builds or checks a program takes one step after another until one
does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from kernelwright.algebra.engine import Rewriting, rewrite
from kernelwright.algebra.rule import Exactness
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import Choice, KernelStep, Plan
from kernelwright.roofline.devices import Device


class Level(IntEnum):
    """What was given up, and all before it."""

    SUSPECTS = 0
    LAYOUT = 1
    FUNCTIONS = 2
    CONTRACTIONS = 3
    PRODUCTS = 4
    SUMS = 5
    ROUNDING = 6
    REDUCTIONS = 7
    WHOLE = 8


#: Classes of rules in the order in which they are dropped.
_LEAST_EXACT = {Exactness.FINITE: Level.PRODUCTS, Exactness.REASSOCIATES: Level.SUMS,
                Exactness.ROUNDING: Level.ROUNDING}
#: What the emitted file computes as the model does, to the rounding of single operators.
_POINT_BY_POINT = ("leaf", "view", "pointwise")


@dataclass(frozen=True, slots=True)
class StepBack:
    """A mode of which something was given up, as it is to be planned.

    without: what this step gave up, in words, beside what those before it did.
    """

    level: Level
    without: str
    rewriting: Rewriting
    kept: dict[Node, str]
    contractions: dict[Node, Choice] = field(default_factory=dict)
    channels_last: frozenset[Node] = frozenset()

    @property
    def whole(self) -> bool:
        """Whether the mode is PyTorch's."""
        return self.level is Level.WHOLE

    def plan(self, captured: Graph, device: Device) -> Plan:
        """The plan of what is left."""
        move_bias = not self.whole and (device.kind == "cuda" or bool(self.channels_last))
        return make_plan(self.rewriting.graph, captured, self.kept, move_bias=move_bias,
                         channels_last=self.channels_last, contractions=self.contractions)


def steps_back(captured: Graph, device: Device, reason: str, rewriting: Rewriting | None = None,
               plan: Plan | None = None, suspects: Sequence[KernelStep] = ()) -> Iterator[StepBack]:
    """The steps back from a program that failed, each on top of those before; the last leaves the mode to PyTorch.

    captured: the mode's graph. reason: why, for the operators that stay with PyTorch. rewriting: of the program; None
    where rewriting failed. plan: None where planning failed. suspects: kernels of the plan that are known to be at
    fault: they are given up before anything else.
    """
    kept = dict(plan.kept) if plan is not None else {}
    contractions = dict(plan.contractions) if plan is not None else {}
    if rewriting is not None and plan is not None:
        channels_last = plan.channels_last
        if suspects:
            kept |= {n: reason for step in suspects for n in step.covers}
            names = ", ".join(step.name for step in suspects)
            yield StepBack(Level.SUSPECTS, f"the kernel{'s' if len(suspects) > 1 else ''} {names}", rewriting,
                           dict(kept), contractions, channels_last)
        if channels_last:
            yield StepBack(Level.LAYOUT, "convolutions channels-last", rewriting, dict(kept), contractions)
        exact = {n: choice.exact() for n, choice in contractions.items()}
        if exact != contractions:
            contractions = exact
            yield StepBack(Level.FUNCTIONS, "approximate functions behind the sums of contractions", rewriting,
                           dict(kept), contractions)
        if contractions:
            kept |= dict.fromkeys(contractions, reason)
            yield StepBack(Level.CONTRACTIONS, "contractions as kernels", rewriting, dict(kept))
    dropped: frozenset[Exactness] = frozenset()
    for exactness, level in _LEAST_EXACT.items():
        dropped |= {exactness}
        if rewriting is not None:
            names = dict.fromkeys(a.rule.name for a in rewriting.applications if a.rule.exactness is exactness)
            if not names:
                continue
        try:
            fewer = rewrite(captured, device, dropped)
        except Exception:  # these rules do not do: the next step has fewer
            continue
        left = set(fewer.graph.nodes())
        kept = {n: why for n, why in kept.items() if n in left}
        words = f"the rules {', '.join(names)}" if rewriting is not None else f"every rule that {exactness}"
        rewriting = fewer
        yield StepBack(level, words, rewriting, dict(kept))
    if rewriting is not None:
        sums = {n: reason for n in rewriting.graph.nodes() if n.kind not in _POINT_BY_POINT and n not in kept}
        if sums:
            yield StepBack(Level.REDUCTIONS, "kernels for anything but pointwise operators", rewriting, kept | sums)
    yield whole_mode(captured, reason)


def whole_mode(captured: Graph, reason: str) -> StepBack:
    """The last step: all operators are PyTorch's as captured."""
    kept = {n: reason for n in captured.nodes() if n.kind not in ("leaf", "view")}
    return StepBack(Level.WHOLE, "kernels", Rewriting(captured, (), 0.0, 0.0), kept)
