"""Contractions: which become kernels, by which scheme and in which tiles, decided by measurement.

Every contraction with its epilogue is built in several forms, which run against the torch call that it replaces. A
form counts only where its results are no less accurate than that call's (policy ``match``: as PyTorch runs it, which
may round to TF32; ``strict``: in true float32). The fastest one that counts stays if it wins.

What the torch call would be followed by is measured as torch calls and, where kernels would fuse it, taken to be one
pass over memory: the lesser of both is what has to be beaten. A contraction whose results are reduced (output channels,
positions or windows of them) is tried with the reductions in its kernel and without them, and what either plan does
after it is added. Without a device the roofline model decides.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path

import torch

from kernelwright.build.library import build_libraries
from kernelwright.codegen.cuda.contraction import tilings
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node
from kernelwright.plan.kernels import Contraction
from kernelwright.plan.lower import lowerable
from kernelwright.plan.planner import make_plan
from kernelwright.plan.products import NARROW_TYPES, can_contract
from kernelwright.plan.records import Choice, Figures, KernelStep, Plan
from kernelwright.roofline.cost import node_seconds
from kernelwright.roofline.devices import Device
from kernelwright.tune.accuracy import DISTRIBUTIONS, Error
from kernelwright.tune.budget import Budget
from kernelwright.tune.contraction_after import seconds_after
from kernelwright.tune.contraction_fit import fitting
from kernelwright.tune.contraction_forms import forms
from kernelwright.tune.contraction_memory import Measured, generator_digest, recall
from kernelwright.tune.contraction_rounds import measure_cases
from kernelwright.tune.contraction_trials import Build, Case, words

UNTRIED = "not measured with this effort: other contractions take longer"
# Fewer operations take no longer than the launches of a kernel and of those that pack its operands.
_LEAST_OPERATIONS = 5 * 10**7
# A kernel must take less than this share of what it replaces; of one call by itself it must win clearly.
_WIN, _WIN_ALONE = 0.97, 0.9
# The share of the float16 peak that contractions on tensor cores are taken to reach where nothing is measured.
_EFFICIENCY = 0.5
#: Names of devices with wgmma, for planning without one.
_HOPPER = ("H100", "H200", "H800", "H20", "GH200")


def library_name(node: Node) -> str:
    """The library behind a contraction's torch call on a GPU."""
    return "cuDNN" if node.op == "convolution" else "cuBLAS"


def worth_trying(graph: Graph, kept: Mapping[Node, str]) -> list[Node]:
    """The contractions of a graph that kernels exist for and that are not over before a kernel starts."""
    return [n for n in graph.nodes() if n not in kept and can_contract(n)
            and n.operator.operations(n) >= _LEAST_OPERATIONS]


# Without a device ---------------------------------------------------------------------------------


def predicted(graph: Graph, captured: Graph, device: Device) -> dict[Node, Choice]:
    """The contractions for which the roofline model promises a gain, each by the scheme that is never less accurate."""
    promising: dict[Node, Choice] = {}
    for node in worth_trying(graph, {}):
        narrow = node.dtype in NARROW_TYPES
        peak = getattr(device, node.dtype) if narrow else device.float16 / 3
        # Operands are read and written to be packed, float32 ones read twice for their scales.
        packed = sum(i.bytes for i in node.inputs[:2]) * (2 if narrow else 3)
        seconds = max(node.operator.operations(node) / (peak * _EFFICIENCY), (packed + node.bytes) / device.copy)
        if seconds + 3 * device.launch_seconds < _WIN_ALONE * node_seconds(node, device):
            promising[node] = Choice("native" if narrow else "fp16x3")
    if not promising:
        return {}
    core = "wgmma" if any(name in device.name.split() for name in _HOPPER) else "mma"
    while True:
        steps = _contractions(_plan(graph, captured, {}, promising))
        best = [(s, next(iter(tilings(s.kernel, core)), None)) for s in steps]
        full = [s.covers[0] for s, tiling in best if tiling is None and _reductions(s)]
        if not full:
            break
        promising |= {n: replace(promising[n], reduces=False) for n in full}  # no tiling has room for them
    return {s.covers[0]: _as_tried(s, replace(promising[s.covers[0]], tiling=tiling)) for s, tiling in best
            if tiling is not None}


# With a device ------------------------------------------------------------------------------------


def choose(graph: Graph, captured: Graph, kept: Mapping[Node, str], own: Mapping[Node, torch.Tensor],
           device: torch.device, row: Device, budget: Budget, *, strict: bool, say: Callable[[str], None],
           build_all: Build = build_libraries) -> tuple[dict[Node, Choice], dict[Node, str]]:
    """The contractions that become kernels, and how; those that do not, and why.

    kept: nodes that stay torch calls anyway. own: the model's tensors and example inputs, by their leaves. strict:
    true float32 is what accuracy is held to. say: takes a line on each contraction that was measured.
    """
    nodes = worth_trying(graph, kept)
    first = {n: Choice("native" if n.dtype in NARROW_TYPES else "fp16x3") for n in nodes}
    whole = _plan(graph, captured, kept, first)
    steps = _contractions(whole)
    reducing = {s.covers[0] for s in steps if _reductions(s)}
    apart = whole
    if reducing:
        apart = _plan(graph, captured, kept, {n: replace(c, reduces=False) for n, c in first.items()})
        steps += [s for s in _contractions(apart) if s.covers[0] in reducing]
    after = {_variant(s): seconds_after(s, *((whole, apart) if _reductions(s) else (apart, whole)), row)
             for s in steps if s.covers[0] in reducing}
    alike, untried = _largest(steps, budget.contraction_kernels)
    most = max(1, min(budget.contraction_forms, budget.contraction_kernels // max(1, len(alike))))
    cases = [_case(some[0], device, most, _saved(some[0], after), strict=strict) for some in alike]
    keys = [_key(case, device, strict=strict) for case in cases]
    measured = {key: recall(key) for key in keys}
    missing = {k: c for k, c in zip(keys, cases, strict=True) if measured[k] is None and c.forms}
    measured |= measure_cases(missing, own, device, row, budget, build_all, strict=strict)
    chosen: dict[Node, Choice] = {}
    seconds: dict[Node, float] = {}
    left = {s.covers[0]: UNTRIED for s in untried if not lowerable(s.covers[0])}
    for key, case, some in zip(keys, cases, alike, strict=True):
        choice, reason = decide(case, measured[key])
        say(_line(case, measured[key], choice, reason))
        for step in some:
            node = step.covers[0]
            if choice is not None:
                figures = choice.figures
                took = (figures.seconds if figures is not None else 0.0) + after.get(_variant(step), 0.0)
                if took < seconds.get(node, inf):
                    chosen[node], seconds[node] = choice, took
            elif not lowerable(node):  # a small einsum may still be rows of dot products
                left[node] = reason
    left = {n: reason for n, reason in left.items() if n not in chosen}
    # Where a contraction stays a torch call, what it would have reduced may join another one, beside what that was
    # measured with.
    return fitting(lambda choices: _plan(graph, captured, {**kept, **left}, choices), chosen), left


def _plan(graph: Graph, captured: Graph, kept: Mapping[Node, str], choices: Mapping[Node, Choice]) -> Plan:
    return make_plan(graph, captured, dict(kept), move_bias=True, contractions=choices)


def _contractions(plan: Plan) -> list[KernelStep]:
    return [s for s in plan.kernels if isinstance(s.kernel, Contraction)]


def _reductions(step: KernelStep) -> bool:
    """Whether a contraction's kernel reduces: its output channels, its positions, or windows of them."""
    kernel = step.kernel
    return isinstance(kernel, Contraction) and bool(kernel.all_reductions)


def _variant(step: KernelStep) -> tuple[Node, bool]:
    """A contraction, and whether with reductions in its kernel or without."""
    return step.covers[0], _reductions(step)


def _saved(step: KernelStep, after: Mapping[tuple[Node, bool], float]) -> float:
    """What is less to do after a kernel with reductions than after the one without; infinite where there are not both.
    """
    node, reduces = _variant(step)
    known = reduces and (node, False) in after
    return after[node, False] - after[node, True] if known else inf


def _as_tried(step: KernelStep, choice: Choice) -> Choice:
    """The choice of a form that a step was tried in: a tiling that held no reductions may be too narrow for any."""
    return replace(choice, reduces=_reductions(step))


def _largest(steps: list[KernelStep], most: int) -> tuple[list[list[KernelStep]], list[KernelStep]]:
    """Contractions in groups that are alike, at most so many, those with most work; and the others."""
    alike: dict[Hashable, list[KernelStep]] = {}
    for step in steps:
        alike.setdefault(_form(step), []).append(step)
    groups = list(alike.values())
    groups.sort(key=lambda some: -sum(s.covers[0].operator.operations(s.covers[0]) for s in some))
    return groups[:most], [s for some in groups[most:] for s in some]


def _case(step: KernelStep, device: torch.device, most: int, saved: float, *, strict: bool) -> Case:
    node = step.covers[0]
    assert isinstance(step.kernel, Contraction)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)
    rounds = not strict and _rounds(node) and node.dtype not in NARROW_TYPES
    every, rounding, exact = (tuple(forms(step.kernel, node.dtype, capability, rounds=rounds, most=most, only=only))
                              for only in ("", "fp16", "fp16x3"))
    return Case(step, every, saved, rounding, exact) if rounds else Case(step, every, saved)


def _rounds(node: Node) -> bool:
    """Whether the torch call may round float32 operands to TF32."""
    if node.get("exact"):
        return False
    return torch.backends.cudnn.allow_tf32 if node.op == "convolution" else torch.backends.cuda.matmul.allow_tf32


def _form(step: KernelStep) -> Hashable:
    """What two contractions share that take the same time: a network repeats its blocks."""
    return step.kernel, tuple((n.op, n.attributes, n.shape, tuple((i.shape, i.dtype) for i in n.inputs))
                              for n in step.covers)


def _key(case: Case, device: torch.device, *, strict: bool) -> str:
    """Everything that a contraction's measurements depend on."""
    machine = (torch.cuda.get_device_name(device), _driver(), torch.version.cuda) if device.type == "cuda" else ("cpu",)
    flags = (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark)
    # Which of these forms are tried the torch call's error decides, as it does which of them pass.
    tried = case.forms, case.rounding, case.exact
    return repr((machine, torch.__version__, flags, strict, generator_digest(), tried, case.saved_seconds,
                 _form(case.step)))


def _driver() -> str:
    """The version of the device's driver, as its kernel module says it or, where that is hidden, its library."""
    with suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0].strip()
    version = ctypes.c_int()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return str(version.value)


def decide(case: Case, measured: Measured | None) -> tuple[Choice | None, str]:
    """The form that a contraction takes, or None and why it stays a torch call."""
    library = library_name(case.node)
    if measured is None:
        return None, "its operands do not fit the device's memory twice" if case.forms else \
            "no kernel of ours takes its sizes on this device"
    accurate = measured.accurate
    if not accurate:
        if not measured.trials:
            return None, "no kernel of ours ran: " + (measured.failures[0] if measured.failures else "none was tried")
        return None, f"measured on this device: no kernel of ours is as accurate as {library}: {_nearest(measured)}"
    best = min(accurate, key=lambda t: t.seconds)
    share = _WIN if len(case.step.covers) > 1 else _WIN_ALONE
    if best.seconds > share * measured.seconds:
        return None, f"measured on this device: {library} is as fast"
    figures = Figures(best.seconds, measured.seconds, _usual(best.errors), _usual(measured.errors))
    return _as_tried(case.step, replace(best.form, figures=figures)), ""


def _usual(errors: Sequence[Error]) -> float:
    """The largest rms error of a kernel's results on operands as given, which stand first."""
    return max((e.rms for e in errors[:max(1, len(errors) // len(DISTRIBUTIONS))]), default=inf)


def _nearest(measured: Measured) -> str:
    """By how much even the most accurate form is less accurate than the torch call, where that shows most."""
    ratios = [max(((e.rms / m.rms, e.largest / m.largest) for e, m in zip(t.errors, measured.errors, strict=True)
                   if m.rms and m.largest and not t.no_worse(e, m)), default=(inf, inf))
              for t in measured.trials if len(t.errors) == len(measured.errors)]
    rms, largest = min(ratios, default=(inf, inf))
    return f"its error is {rms:.3g} times as large, the largest {largest:.3g} times"


def _line(case: Case, measured: Measured | None, choice: Choice | None, reason: str) -> str:
    """What was measured of one contraction, for the progress."""
    shapes = " by ".join("x".join(map(str, i.shape)) for i in case.node.inputs[:2])
    kernel = case.kernel
    shapes += ", its channels reduced," if kernel.reductions else ", its positions reduced," if kernel.totals else \
        ", its windows reduced," if kernel.pools else ""
    if measured is None or not measured.trials:
        return f"{case.node.op} {shapes}: {reason}" + "".join(f"; {f}" for f in (measured.failures if measured else ()))
    operations = case.node.operator.operations(case.node)

    def figure(name: str, seconds: float, rms: float) -> str:
        if seconds == inf:
            return f"{name} not timed (error {rms:.2e})"
        return f"{name} {seconds * 1e3:.4g} ms ({operations / max(seconds, 1e-12) / 1e12:.4g} TFLOP/s, error {rms:.2e})"

    found = [figure("torch", measured.seconds, _usual(measured.errors))]
    found += [figure(words(t.form), t.seconds, _usual(t.errors)) for t in measured.trials]
    decision = f"takes {words(choice)}" if choice is not None else f"stays: {reason}"
    return "; ".join([f"{case.node.op} {shapes} {decision}", *found, *measured.failures])
