"""Stepping back: what is given up, little by little, of a program that fails or is not accurate enough.

What is known to be at fault (:mod:`kernelwright.way_back.culprits`) goes first and alone: a rule at its line; a kernel
in favour of a more exact form of it, else of what it was before a rule, else of PyTorch's calls. Where nothing is
known, the least exact goes first: an order of axes in memory that is not the model's, contractions that round their
operands, contractions at all, rules (those that change most of the arithmetic before the others), kernels that sum, and
last the whole mode, which is PyTorch's then. Whoever plans, builds or checks a program takes one step after another
until one does.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

from kernelwright.algebra.engine import Rewriting, rewrite
from kernelwright.algebra.rule import Exactness, Use
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import Kernel, KernelConfig, LibraryCall, Plan
from kernelwright.roofline.devices import Device
from kernelwright.way_back.culprits import Culprits

Value = TypeVar("Value")


class Level(IntEnum):
    """What was given up, and all before it."""

    CULPRITS = 0
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
    contractions: dict[Node, KernelConfig] = field(default_factory=dict)
    channels_last: frozenset[Node] = frozenset()

    @property
    def whole(self) -> bool:
        """Whether the mode is PyTorch's."""
        return self.level is Level.WHOLE

    def plan(self, captured: Graph, device: Device) -> Plan:
        """The plan of what is left."""
        move_bias = not self.whole and (device.adds_bias_apart or bool(self.channels_last))
        return make_plan(self.rewriting.graph, captured, self.kept, move_bias=move_bias,
                         channels_last=self.channels_last, contractions=self.contractions,
                         fused_products=() if self.whole else device.fused_products)


def steps_back(captured: Graph, device: Device, reason: str, rewriting: Rewriting | None = None,
               plan: Plan | None = None, culprits: Culprits | None = None) -> Iterator[StepBack]:
    """The steps back from a program that failed, each on top of those before; the last leaves the mode to PyTorch.

    captured: the mode's graph. reason: why, for the operators that stay with PyTorch. rewriting: of the program; None
    where rewriting failed. plan: None where planning failed. culprits: what of the program is known to be at fault.
    """
    kept = dict(plan.kept) if plan is not None else {}
    contractions = dict(plan.contractions) if plan is not None else {}
    if rewriting is not None and plan is not None:
        channels_last = plan.channels_last
        if culprits:
            step = _without_culprits(captured, device, reason, rewriting, plan, culprits)
            rewriting, kept, contractions, channels_last = (step.rewriting, dict(step.kept), dict(step.contractions),
                                                            step.channels_last)
            yield step
        if channels_last:
            yield StepBack(Level.LAYOUT, "convolutions channels-last", rewriting, dict(kept), contractions)
        exact = {n: config.exact() for n, config in contractions.items()}
        if exact != contractions:
            contractions = exact
            yield StepBack(Level.FUNCTIONS, "approximate functions behind the sums of contractions", rewriting,
                           dict(kept), contractions)
        if contractions:
            kept |= dict.fromkeys(contractions, LibraryCall(reason))
            yield StepBack(Level.CONTRACTIONS, "contractions as kernels", rewriting, dict(kept))
    dropped = rewriting.dropped if rewriting is not None else frozenset()
    for exactness, level in _LEAST_EXACT.items():
        dropped |= {exactness}
        words = f"every rule that {exactness}"
        if rewriting is not None:
            names = dict.fromkeys(a.rule.name for a in rewriting.applications if a.rule.exactness is exactness)
            if not names:
                continue
            words = f"the rules {', '.join(names)}"
        try:
            fewer = rewrite(captured, device, dropped)
        except Exception:  # these rules do not do: the next step has fewer
            continue
        kept = _of(fewer, kept)
        rewriting = fewer
        yield StepBack(level, words, rewriting, dict(kept))
    if rewriting is not None:
        sums = {n: reason for n in rewriting.graph.nodes() if n.kind not in _POINT_BY_POINT and n not in kept}
        if sums:
            yield StepBack(Level.REDUCTIONS, "kernels for anything but pointwise operators", rewriting, kept | sums)
    yield whole_mode(captured, reason)


def _without_culprits(captured: Graph, device: Device, reason: str, rewriting: Rewriting, plan: Plan,
                      culprits: Culprits) -> StepBack:
    """The program without what is at fault in it, and nothing else."""
    covered = {n for step in culprits.kernels for n in step.covers}
    names = dict.fromkeys(s.name for s in culprits.kernels)
    kernels = f"the kernel{'s' if len(names) > 1 else ''} {', '.join(names)}"
    exact = {n: config.exact() for n, config in plan.contractions.items() if n in covered}
    if any(exact[n] != plan.contractions[n] for n in exact):
        return StepBack(Level.CULPRITS, f"approximate functions in {kernels}", rewriting, dict(plan.kept),
                        plan.contractions | exact, plan.channels_last)
    rules = set(culprits.rules) or _makers(captured, rewriting, covered)
    if rules and not (culprits.kernels and all(s.rolls for s in culprits.kernels)):
        return _without_rules(captured, device, rewriting, plan, rules, f", which made {kernels}" if covered else "")
    kept = plan.kept | {n: why for s in culprits.kernels for n, why in s.left(reason).items()}
    left = {n: config for n, config in plan.contractions.items() if n not in covered}
    return StepBack(Level.CULPRITS, kernels, rewriting, kept, left, plan.channels_last)


def without_kind(captured: Graph, device: Device, reason: str, rewriting: Rewriting, plan: Plan,
                 kind: type[Kernel]) -> StepBack:
    """The program without kernels of a kind that its target does not write, which is no fault: operators that have no
    torch call go with the rules that made them, and others are PyTorch's; what was fused with them is not."""
    steps = [step for step in plan.kernels if type(step.kernel) is kind]
    special = {(n.op, n.origin) for step in steps for n in step.covers if n.kind == "special"}
    if special:
        rules = {a.use for a in rewriting.applications if not a.made.isdisjoint(special)}
        return _without_rules(captured, device, rewriting, plan, rules) if rules else whole_mode(captured, reason)
    loops = {n: why for s in steps if s.rolls for n, why in s.left(reason).items()}
    own = {n for s in steps if not s.rolls for n in [n for n in s.covers if n in plan.contractions]
           or [n for n in s.covers if n.kind not in _POINT_BY_POINT] or s.covers}
    left = {n: config for n, config in plan.contractions.items() if n not in own}
    return StepBack(Level.CULPRITS, "", rewriting, plan.kept | dict.fromkeys(own, reason) | loops, left,
                    plan.channels_last)


def _without_rules(captured: Graph, device: Device, rewriting: Rewriting, plan: Plan, rules: set[Use],
                   made: str = "") -> StepBack:
    """The program without some uses of rules. made: what these made, in words."""
    try:
        fewer = rewrite(captured, device, rewriting.dropped | rules)
    except Exception:  # without them the others do not do: the step after this one drops these, too
        fewer = Rewriting(captured, (), 0.0, 0.0, rewriting.dropped | rules)
    words = f"the rule{'s' if len(rules) > 1 else ''} {', '.join(sorted(map(str, rules)))}{made}"
    return StepBack(Level.CULPRITS, words, fewer, _of(fewer, plan.kept), _of(fewer, plan.contractions),
                    frozenset(_of(fewer, dict.fromkeys(plan.channels_last))))


def _makers(captured: Graph, rewriting: Rewriting, covered: set[Node]) -> set[Use]:
    """The uses of rules that made operators without a torch call, and those, but of rules that change no bit, at the
    lines of operators that the model itself does not have there."""
    own = {(n.op, n.origin) for n in captured.nodes()}
    origins = {n.origin for n in covered if (n.op, n.origin) not in own}
    special = {(n.op, n.origin) for n in covered}
    return {a.use for a in rewriting.applications if not a.made.isdisjoint(special) or (
        a.rule.exactness is not Exactness.BITWISE and a.origin in origins)}


def _of(rewriting: Rewriting, known: dict[Node, Value]) -> dict[Node, Value]:
    """What is known of nodes, for those that a graph still has, if with other operators below them."""
    alike = {_likeness(n): value for n, value in known.items()}
    return {n: alike[_likeness(n)] for n in rewriting.graph.nodes() if _likeness(n) in alike}


def _likeness(node: Node) -> Hashable:
    """Equal for an operator of the model in several graphs."""
    return node.op, node.origin, node.shape, node.attributes


def whole_mode(captured: Graph, reason: str) -> StepBack:
    """The last step: all operators are PyTorch's as captured."""
    kept = {n: reason for n in captured.nodes() if n.kind not in ("leaf", "view")}
    return StepBack(Level.WHOLE, "kernels", Rewriting(captured, (), 0.0, 0.0), kept)
