"""Contractions: which become kernels, by which scheme and in which tiles, decided by measurement.

Every contraction with its epilogue is built in several candidates, which run against the torch call that it replaces. A
candidate counts only where its results are no less accurate than that call's (policy ``match``: as PyTorch runs it,
which may round to TF32; ``strict``: in true float32). The fastest one that counts stays if it wins.

What the torch call would be followed by is measured as torch calls and, where kernels would fuse it, taken to be one
pass over memory: the lesser of both is what has to be beaten. A contraction whose results are reduced (output channels,
positions or windows of them) is tried with the reductions in its kernel and without them, and where reductions over
positions are read together with the results also recomputed; what each plan does after it is added. Without a device
the roofline model decides.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, prod
from types import MappingProxyType
from typing import Any

import torch

from kernelwright.build.library import build_libraries
from kernelwright.codegen.cuda.gemm.generate import tilings
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node
from kernelwright.plan.contraction.products import NARROW_TYPES, can_contract
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Load
from kernelwright.plan.expressions import walk as walk_expression
from kernelwright.plan.lowering.fused import fused
from kernelwright.plan.lowering.lower import lowerable
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelConfig, KernelStep, LibraryCall, Measurement, Plan
from kernelwright.roofline.cost import node_seconds
from kernelwright.roofline.devices import Device
from kernelwright.tune.budget import Budget
from kernelwright.tune.contraction_candidates import WGMMA, candidates
from kernelwright.tune.contraction_fit import fitting
from kernelwright.tune.contraction_memory import Measured, recall
from kernelwright.tune.contraction_recompute import (
    Pair,
    Variant,
    alternatives,
    as_tried,
    contraction_of,
    contraction_steps,
    decide_recompute,
    predicted_recompute,
    predicted_seconds,
    reduces,
    saved,
    seconds_of,
    variant,
    without,
)
from kernelwright.tune.contraction_rounds import measure_cases
from kernelwright.tune.contraction_trials import Build, Case, written
from kernelwright.tune.contraction_words import line, line_recompute, nearest
from kernelwright.tune.memory import generator_digest, machine

UNTRIED = "not measured with this effort: other contractions take longer"
LATE = "not measured: the budget went to contractions that take longer"
# Fewer operations take no longer than the launches of a kernel and of those that pack its operands.
_LEAST_OPERATIONS = 5 * 10**7
# A kernel must take less than this share of what it replaces; of one call by itself it must win clearly.
_WIN, _WIN_ALONE = 0.97, 0.9
# What the roofline model has to promise of a kernel that is not measured before it is used.
_CLEAR = 0.6
#: So many plans are kept for those who ask again.
_PLANS = 8
#: Names of devices with wgmma, for planning without one.
_HOPPER = ("H100", "H200", "H800", "H20", "GH200")


def library_name(node: Node) -> str:
    """The library behind a contraction's torch call on a GPU."""
    return "cuDNN" if node.op == "convolution" else "cuBLAS"


def worth_trying(graph: Graph, kept: Mapping[Node, str], *, fused_products: tuple[str, ...]) -> list[Node]:
    """The contractions of a graph that kernels exist for and that are not over before a kernel starts.
    fused_products: kinds of kernels whose products are theirs."""
    found = [n for n in graph.nodes() if n not in kept and can_contract(n)
             and n.operator.operations(n) >= _LEAST_OPERATIONS]
    taken = fused(graph, kept, fused_products) if found else frozenset()
    return [n for n in found if n not in taken]


# Without a device ---------------------------------------------------------------------------------


def predicted(graph: Graph, captured: Graph, device: Device, kept: Mapping[Node, str] = MappingProxyType({}), *,
              clearly: bool = False, plans: Plans | None = None) -> dict[Node, KernelConfig]:
    """The contractions for which the roofline model promises a gain, each by the scheme that is never less accurate.

    kept: nodes that stay torch calls anyway. clearly: only those whose gain is beyond what the model may be off by, in
    float32, of which PyTorch rounds no operands on this machine; none is recomputed. plans: as in `choose`.
    """
    core = "wgmma" if any(name in device.name.split() for name in _HOPPER) else "mma"
    every = {n: KernelConfig("native" if n.dtype in NARROW_TYPES else "fp16x3", lines=core == "wgmma")
             for n in worth_trying(graph, kept, fused_products=device.fused_products)
             if not clearly or (n.dtype == "float32" and not _rounds(n))}
    share = _CLEAR if clearly else _WIN_ALONE
    promising = {n: config for n, config in every.items()
                 if predicted_seconds(n, n.bytes, device) < share * node_seconds(n, device)}
    if not every:
        return {}
    plans = plans or Plans(device.fused_products)
    while True:
        steps = contraction_steps(plans.of(graph, captured, kept, promising)) if promising else []
        best = [(s, next(iter(tilings(contraction_of(s), core)), None)) for s in steps]
        full = [s for s, tiling in best if tiling is None and reduces(s)]
        if not full:
            break
        promising |= {s.covers[0]: without(promising[s.covers[0]], s) for s in full}  # no tiling has room for them
    chosen = {s.covers[0]: as_tried(s, replace(promising[s.covers[0]], tiling=tiling)) for s, tiling in best
              if tiling is not None}
    if clearly:
        return chosen
    recomputed = predicted_recompute(partial(plans.of, graph, captured, kept), every, chosen, core, device, _WIN_ALONE)
    return chosen | recomputed


@dataclass(frozen=True)
class Candidates:
    """The candidates in which a contraction is tried, as in :class:`Case`, and the texts of those that are compiled
    first with the names of their launchers, the most promising ones first."""

    candidates: tuple[KernelConfig, ...]
    rounding: tuple[KernelConfig, ...]
    exact: tuple[KernelConfig, ...]
    texts: list[tuple[str, str]] = field(default_factory=list)


class Plans:
    """Plans with contractions as kernels, kept by what was asked for: one of a deep network takes seconds, and the same
    ones are asked for wherever tuning goes on from what is known by then. candidates: those of contractions that were
    found already, by all that they depend on."""

    def __init__(self, fused_products: tuple[str, ...] = ()) -> None:
        self.fused_products = fused_products
        self._made: dict[Hashable, tuple[Graph, Plan]] = {}
        self._known: dict[Hashable, Any] = {}
        self.candidates: dict[str, Candidates] = {}

    def of(self, graph: Graph, captured: Graph, kept: Mapping[Node, str], configs: Mapping[Node, KernelConfig]) -> Plan:
        """The plan of ``graph`` in which these become kernels, and the operators of ``kept`` stay."""
        key = id(graph), tuple(kept.items()), tuple(configs.items())
        if key not in self._made:
            plan = make_plan(graph, captured, dict(kept), move_bias=True, contractions=configs,
                             fused_products=self.fused_products, known=self._known)
            self._made[key] = graph, plan  # the graph keeps its identity
            if len(self._made) > _PLANS:
                del self._made[next(iter(self._made))]
        return self._made[key][1]


# With a device ------------------------------------------------------------------------------------


def scales(step: KernelStep) -> frozenset[Node]:
    """Inputs of a contraction's kernel by which operands or results are scaled or shifted: what other kernels computed,
    of fewer elements than that has (variances, means, gates). Numbers of both signs in their place make operands NaN,
    for which kernels take a slower path than for any of the model's."""
    kernel = step.kernel
    assert isinstance(kernel, Contraction)
    found = set[Node]()
    for domain, roots in ((kernel.left_domain, (kernel.left,)), (kernel.right_domain, (kernel.right,)),
                          (kernel.domain, tuple(s.expression for s in (*kernel.stores, *kernel.all_reductions)))):
        loaded = {step.inputs[e.buffer] for e in walk_expression(*roots) if isinstance(e, Load)}
        found |= {n for n in loaded if n.kind != "leaf" and prod(n.shape) < prod(domain)}
    return frozenset(found)


def choose(graph: Graph, captured: Graph, kept: Mapping[Node, str], own: Mapping[Node, torch.Tensor],
           device: torch.device, row: Device, budget: Budget, *, strict: bool, say: Callable[[str], None],
           build_all: Build = build_libraries, seconds: float = inf, there: Mapping[str, float] | None = None,
           order_saves: Callable[[], Mapping[Node, float]] = dict, plans: Plans | None = None
           ) -> tuple[dict[Node, KernelConfig], dict[Node, LibraryCall]]:
    """The contractions that become kernels, and how; those that do not, and why.

    kept: nodes that stay torch calls anyway. own: the model's tensors and example inputs, by their leaves. strict:
    true float32 is what accuracy is held to. say: takes a line on each contraction that was measured. seconds:
    how long those may be measured that no earlier run has, with most work first. there: see
    :func:`kernelwright.tune.contraction_rounds.measure_cases`. order_saves: gives what torch calls take less in another
    memory order than they are measured in; asked where one of those was measured that have several. plans: those that
    an earlier call for the same graph has made.
    """
    plans = plans or Plans(row.fused_products)
    tries = _tries(graph, captured, kept, device, row, budget, plans, strict=strict)
    missing, measured, after = tries.missing, tries.measured, tries.after
    now = measure_cases(missing, own, device, row, budget, build_all, strict=strict, seconds=seconds, there=there)
    measured |= now
    chosen: dict[Node, KernelConfig] = {}
    took: dict[Node, float] = {}
    saves = order_saves() if any(measured[key] is not None and case.node.op == "convolution"
                                 for key, case in zip(tries.keys, tries.bare, strict=True)) else {}
    found: dict[Variant, Measured | None] = {}
    left = {s.covers[0]: LibraryCall(UNTRIED) for s in tries.untried if not lowerable(s.covers[0])}
    for key, case, some in zip(tries.keys, tries.bare, tries.alike, strict=True):
        if key in missing and key not in now:
            config, reason = None, LATE
        else:
            config, reason = decide(missing[key] if key in now else case, measured[key],
                                    max(saves.get(s.covers[0], 0.0) for s in some))
            say(line(case, measured[key], config, reason))
        for step in some:
            node = step.covers[0]
            if step.pass_number:
                found[variant(step)] = measured[key]
            elif config is not None:
                alone = seconds_of(config) + after.get(variant(step), 0.0)
                if alone < took.get(node, inf):
                    chosen[node], took[node] = config, alone
            elif not lowerable(node):  # a small einsum may still be rows of dot products
                left[node] = LibraryCall(reason)
    for node, pair in tries.pairs.items():
        one, two = (found.get(variant(s)) for s in pair.steps)
        config = decide_recompute(pair, one, two, _WIN)
        once = took.get(node, inf)
        if config is not None and (recomputed := seconds_of(config) + after[variant(pair.second)]) < once:
            say(line_recompute(node, config, recomputed, once))
            chosen[node] = config
    left = {n: reason for n, reason in left.items() if n not in chosen}
    # Where a contraction stays a torch call, what it would have reduced may join another one, beside what that was
    # measured with.
    return fitting(lambda configs: plans.of(graph, captured, {**kept, **left}, configs), chosen), left


def to_try(graph: Graph, captured: Graph, kept: Mapping[Node, str], device: torch.device, row: Device, budget: Budget,
           plans: Plans, *, strict: bool) -> dict[str, Callable[[], Candidates]]:
    """What finds the candidates that :func:`choose` is going to build for the same arguments, with their texts: of each
    contraction that no earlier run has measured, by the key of ``plans.candidates``, in which it looks for what was
    found.
    """
    tries = _tries(graph, captured, kept, device, row, budget, plans, strict=strict)
    return {key: partial(_with_texts, tries.missing, key) for key in tries.missing}


def _with_texts(cases: Mapping[str, Case], key: str) -> Candidates:
    case = cases[key]
    found = list[tuple[str, str]]()
    # Of those that are tried in one of two schemes, as the error of rounded operands will say, it is the faster one.
    for config in case.rounding or case.candidates:
        with suppress(ValueError):  # a candidate that has no text
            text, launcher = written(case, config)
            found.append((text, launcher.name))
    return Candidates(case.candidates, case.rounding, case.exact, found)


@dataclass(frozen=True)
class _Tries:
    """What is tried of a graph's contractions. alike: steps in groups of which one is measured, of each of which
    ``bare`` is the case without its candidates, ``keys`` under what it is kept, and ``measured`` by that what earlier
    runs know; ``missing`` are the others' cases. untried: the steps that the budget has no place for. after, pairs:
    those of :func:`kernelwright.tune.contraction_recompute.alternatives`."""

    alike: list[list[KernelStep]]
    untried: list[KernelStep]
    after: dict[Variant, float]
    pairs: dict[Node, Pair]
    bare: list[Case]
    keys: list[str]
    measured: dict[str, Measured | None]
    missing: Mapping[str, Case]


def _tries(graph: Graph, captured: Graph, kept: Mapping[Node, str], device: torch.device, row: Device, budget: Budget,
           plans: Plans, *, strict: bool) -> _Tries:
    nodes = worth_trying(graph, kept, fused_products=plans.fused_products)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else WGMMA
    # Two lines of windows are two output phases of a tile, which the portable core has not.
    lines = capability == WGMMA
    first = {n: KernelConfig("native" if n.dtype in NARROW_TYPES else "fp16x3", lines=lines) for n in nodes}
    steps, after, pairs = alternatives(partial(plans.of, graph, captured, kept), first, row)
    alike, untried = _largest(steps, budget.contraction_kernels)
    most = max(1, min(budget.contraction_candidates, budget.contraction_kernels // max(1, len(alike))))
    statistics = {variant(pair.second): pair.statistics for pair in pairs.values()}
    bare = [Case(some[0], (), min(saved(s, after) for s in some),
                 statistics=statistics.get(variant(some[0]), frozenset()) | scales(some[0])) for some in alike]
    keys = [_key(case, device, most, strict=strict) for case in bare]
    measured = {key: recall(key) for key in keys}
    missing = _Cases({k: partial(_with_candidates, c, plans, k, capability, most, strict=strict)
                      for k, c in zip(keys, bare, strict=True) if measured[k] is None})
    return _Tries(alike, untried, after, pairs, bare, keys, measured, missing)


def promised(node: Node, row: Device) -> float:
    """The seconds that a contraction promises to take less as a kernel, by the roofline."""
    return max(0.0, node_seconds(node, row) - predicted_seconds(node, node.bytes, row))


def _largest(steps: list[KernelStep], most: int) -> tuple[list[list[KernelStep]], list[KernelStep]]:
    """Contractions in groups that are alike, at most so many, those with most work; and the others."""
    alike: dict[Hashable, list[KernelStep]] = {}
    for step in steps:
        alike.setdefault(_identity(step), []).append(step)
    groups = list(alike.values())
    groups.sort(key=lambda some: -sum(s.covers[0].operator.operations(s.covers[0]) for s in some))
    return groups[:most], [s for some in groups[most:] for s in some]


class _Cases(Mapping[str, Case]):
    """Cases by key, each made when it is asked for first: to find its candidates takes as long as to measure some."""

    def __init__(self, makers: Mapping[str, Callable[[], Case]]) -> None:
        self._makers, self._made = makers, dict[str, Case]()

    def __getitem__(self, key: str) -> Case:
        if key not in self._made:
            self._made[key] = self._makers[key]()
        return self._made[key]

    def __contains__(self, key: object) -> bool:
        return key in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def _with_candidates(case: Case, plans: Plans, key: str, capability: tuple[int, int], most: int, *,
                     strict: bool) -> Case:
    """The case with the candidates, at most so many, in which it is tried: those of ``plans.candidates`` where they are
    there."""
    if (found := plans.candidates.get(key)) is None:
        node = case.node
        rounds = not strict and _rounds(node) and node.dtype not in NARROW_TYPES
        find = partial(candidates, case.kernel, node.dtype, capability, rounds=rounds, most=most)
        rounding, exact = (tuple(find(only=only)) if rounds else () for only in ("fp16", "fp16x3"))
        found = Candidates(tuple(find()), rounding, exact)
    return replace(case, candidates=found.candidates, rounding=found.rounding, exact=found.exact)


def _rounds(node: Node) -> bool:
    """Whether the torch call may round float32 operands to TF32."""
    if node.get("exact"):
        return False
    return bool(torch.backends.cudnn.allow_tf32 if node.op == "convolution" else torch.backends.cuda.matmul.allow_tf32)


def _identity(step: KernelStep) -> Hashable:
    """What two contractions share that take the same time: a network repeats its blocks."""
    covers = ((n.op, n.attributes, n.shape, tuple((i.shape, i.dtype) for i in n.inputs)) for n in step.covers)
    return step.kernel, step.pass_number == 2, tuple(covers)


def _key(case: Case, device: torch.device, most: int, *, strict: bool) -> str:
    """Everything that a contraction's measurements depend on; its candidates follow from these, and from the
    generator."""
    flags = (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark)
    return repr((machine(device), flags, strict, most, generator_digest(), case.saved_seconds, _identity(case.step)))


def decide(case: Case, measured: Measured | None, saved: float = 0.0) -> tuple[KernelConfig | None, str]:
    """The candidate that a contraction takes, or None and why it stays a torch call. saved: the seconds that the torch
    call takes less in another memory order than it was measured in."""
    library = library_name(case.node)
    if measured is None:
        return None, "its operands do not fit the device's memory twice" if case.candidates else \
            "no kernel of ours takes its sizes on this device"
    accurate = measured.accurate
    if not accurate:
        if not measured.trials:
            return None, "no kernel of ours ran: " + (measured.failures[0] if measured.failures else "none was tried")
        return None, f"measured on this device: no kernel of ours is as accurate as {library}: {nearest(measured)}"
    best = min(accurate, key=lambda t: t.seconds)
    share = _WIN if len(case.step.covers) > 1 else _WIN_ALONE
    if best.seconds > share * (measured.seconds - saved):
        return None, f"measured on this device: {library} is as fast"
    measurement = Measurement(best.seconds, measured.seconds, best.usual, measured.usual)
    return as_tried(case.step, replace(best.config, measurement=measurement)), ""
