"""Channels last, decided by measurement: convolutions alone in both memory orders, then the two whole programs.

A convolution by itself is timed on distinct shapes only. Those that lose no more than copies would cost become
channels-last together, and if that promises a gain beyond the copies that the program then needs, both programs are
built and run on the example inputs: the faster one stays. On a GPU, whose kernels read and write every order alike, the
convolutions' times decide for the first file, and where there is no time to build two programs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import inf, prod

import torch
from torch import nn

from kernelwright.device_lock import clock, locked_device
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node
from kernelwright.ir.registry import torch_dtype
from kernelwright.plan.layouts.channels_last import below_views, can_be_channels_last, given_last
from kernelwright.plan.planner import ALONE, make_plan
from kernelwright.plan.records import KernelConfig, Plan
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.progress import counted
from kernelwright.roofline.cost import node_seconds, node_work
from kernelwright.roofline.devices import Device
from kernelwright.timing.clock import without_collector
from kernelwright.timing.rounds import Times, measure
from kernelwright.tune.contraction_fit import fitting
from kernelwright.tune.in_place import FORMATS
from kernelwright.tune.memory import machine, recall, remember
from kernelwright.tune.regions import SLOWER

FIRST, LAST = "channels first", "channels last"
# The channels-last program must take less than this share of the other one's time: with measurements enough, and
# with fewer than _FEW of them.
_WIN, _WIN_ONCE, _FEW = 0.97, 0.9, 5
# An order whose error is larger by this factor computes in another precision.
_LESS_ACCURATE = 1.25
# How many times the bytes of weights are moved, by a copy's rate, to turn them: pieces of a few bytes each (measured).
_TURNED = 8
# Seconds of timing one convolution.
_MOST_SECONDS = 0.5
_KIND = "layouts"

Seconds = Mapping[Node, tuple[float, float]]
"""For each convolution its time alone, channels-first and channels-last."""


def convolution_seconds(plan: Plan, device: torch.device, budget_seconds: float) -> Seconds:
    """Time the torch calls of a plan's graph that are convolutions and could be channels-last, for so many seconds: one
    of each kind, then those with most work; {} where the memory does not do for it. What earlier runs measured is
    known.
    """
    nodes = [n for n in plan.graph.nodes() if can_be_channels_last(n) and n not in plan.contractions]
    if not nodes:
        return {}
    alike: dict[Hashable, list[Node]] = {}
    for node in nodes:
        alike.setdefault(_form(node), []).append(node)
    ends, found = clock() + budget_seconds, dict[Hashable, dict[str, float]]()
    waiting = sorted(alike, key=lambda form: -len(alike[form]) * node_work(alike[form][0]).operations)
    largest = {_sort(alike[form][0]): form for form in reversed(waiting)}.values()
    waiting.sort(key=lambda form: form not in largest)
    try:
        with locked_device(), without_collector(), torch.no_grad():
            for place, form in enumerate(waiting):
                counted(place, len(waiting))
                key = repr((machine(device), _tf32(), form))
                known = recall(_KIND, key)
                if known is None and (left := ends - clock()) > 0.0:
                    calls, is_as_accurate = _calls(alike[form][0], device)
                    times = measure(calls, device=device,
                                    budget_seconds=min(_MOST_SECONDS, left / (len(waiting) - place)))
                    known = {name: times[name].median for name in (FIRST, LAST)}
                    # The library may round to TF32 in one order and not in the other: that is no gain.
                    if known[LAST] < known[FIRST] and not is_as_accurate():
                        known[LAST] = inf
                    if any(t.busy for t in times.values()):
                        known = None  # such times are no reason
                    else:
                        remember(_KIND, key, known)
                if known:
                    found[form] = known
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return {}
    return {n: (found[form][FIRST], found[form][LAST]) for n in nodes if (form := _form(n)) in found}


def _sort(node: Node) -> Hashable:
    """What libraries have ways of their own for: types, and convolutions of each channel alone, or of groups."""
    groups, weight = node["groups"], node.inputs[1]
    return node.dtype, node["transposed"], groups > 1, groups > 1 and weight.shape[1] == 1


def like_others(plan: Plan, seconds: Seconds, device: Device) -> Seconds:
    """The convolutions of a plan that were not timed, as far as some of their sort were: with their predicted time, and
    what the others gain or lose together."""
    sums: dict[Hashable, tuple[float, float]] = {}
    for node, (first, last) in seconds.items():
        if last == inf:
            continue
        before = sums.get(_sort(node), (0.0, 0.0))
        sums[_sort(node)] = before[0] + first, before[1] + last
    found: dict[Node, tuple[float, float]] = {}
    for node in plan.graph.nodes():
        if node not in seconds and can_be_channels_last(node) and node not in plan.contractions and _sort(node) in sums:
            first, last = sums[_sort(node)]
            own = node_seconds(node, device)
            found[node] = own, own * last / first
    return found


def _tf32() -> tuple[bool, bool]:
    return torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark


def _form(node: Node) -> Hashable:
    return node.attributes, node.dtype, *(i.shape for i in node.inputs[:2])


def _calls(node: Node, device: torch.device) -> tuple[dict[str, Callable[[], torch.Tensor]], Callable[[], bool]]:
    """The convolution in both orders, result included, and whether channels-last is as accurate against float64
    (on one entry of the batch). The weight lies as parameters do."""
    shape, weight_shape = (i.shape for i in node.inputs[:2])
    dtype = torch_dtype(node.dtype)
    weight = torch.randn(weight_shape, dtype=torch.float32, device=device).to(dtype)
    given = torch.randn(shape, dtype=torch.float32, device=device).to(dtype)

    def call(memory_format: torch.memory_format) -> Callable[[], torch.Tensor]:
        x = given.contiguous(memory_format=memory_format)

        def run() -> torch.Tensor:
            with _true_float32() if node.get("exact") and device.type == "cuda" else nullcontext():
                result = node.operator.reference(x, weight, **dict(node.attributes))
            return result.contiguous(memory_format=memory_format)

        return run

    calls = {FIRST: call(torch.contiguous_format), LAST: call(FORMATS[node.rank])}

    def is_as_accurate() -> bool:
        expected = node.operator.reference(given[:1].double(), weight.double(), **dict(node.attributes))
        first, last = ((calls[name]()[:1].double() - expected).norm() for name in (FIRST, LAST))
        return bool(last <= _LESS_ACCURATE * first + 1e-7 * expected.norm())

    return calls, is_as_accurate


def _true_float32():
    """As the emitted file calls it (``_kernelwright_exact``)."""
    cudnn = torch.backends.cudnn
    return cudnn.flags(cudnn.enabled, cudnn.benchmark, deterministic=True, allow_tf32=False)


def predicted_seconds(plan: Plan, device: Device) -> Seconds:
    """What the convolutions of a plan are expected to take on a CPU, whose library is known by how it computes; {} for
    other devices.

    It computes depthwise ones channels-last alone: what lies otherwise is copied on the way in and on the way out.
    Dense ones take either order, but turn the weights of windows for channels-last at every call. Others are computed
    as they lie.
    """
    found: dict[Node, tuple[float, float]] = {}
    for node in plan.graph.nodes() if device.kind == "cpu" else ():
        if not can_be_channels_last(node) or node in plan.contractions or node["transposed"] or node.dtype != "float32":
            continue
        x, weight = node.inputs[:2]
        seconds = node_seconds(node, device)
        if node["groups"] > 1 and weight.shape[1] == 1:
            found[node] = seconds + (x.bytes + node.bytes) / device.copy, seconds
        elif node["groups"] == 1:
            windows = prod(weight.shape[2:]) > 1
            found[node] = seconds, seconds + (_TURNED * weight.bytes / device.copy if windows else 0.0)
    return found


def predicted_plan(plan: Plan, captured: Graph, device: Device) -> Plan:
    """The plan with convolutions channels-last where that is expected to gain, and nothing was measured."""
    other = channels_last_plan(plan, captured, predicted_seconds(plan, device), device)
    return plan if other is None else replace(other, layout=words(other, None))


def first_plan(plan: Plan, captured: Graph, device: Device) -> Plan:
    """The plan with no convolution channels-last."""
    kept = {n: r for n, r in plan.kept.items() if r != ALONE}
    return make_plan(plan.graph, captured, kept, move_bias=device.adds_bias_apart, contractions=plan.contractions,
                     fused_products=plan.fused_products)


def promising(seconds: Seconds, device: Device) -> frozenset[Node]:
    """The convolutions that gain channels-last, or lose less than it costs to leave the order around them.

    What kernels read or write changes its order on the way, which is taken to cost half of a copy. What the
    model is given needs a whole one.
    """
    def allowance(node: Node) -> float:
        x = node.inputs[0]
        before = -_copy_seconds([x], device) if below_views(x).kind == "leaf" else _copy_seconds([x], device) / 2
        return before + _copy_seconds([node], device) / 2

    chosen = frozenset(n for n, (first, last) in seconds.items() if last < first + allowance(n))
    return chosen if any(seconds[n][1] < _WIN * seconds[n][0] for n in chosen) else frozenset()


def _copy_seconds(nodes: Iterable[Node], device: Device) -> float:
    return sum(2 * n.bytes / device.copy for n in nodes)


def channels_last_plan(plan: Plan, captured: Graph, seconds: Seconds, device: Device) -> Plan | None:
    """The plan with the promising convolutions channels-last, and with those of which nothing is known that PyTorch is
    given so; None where it promises no gain.

    Their biases move to the kernels that read them: cuDNN adds a bias in a pass of its own, and oneDNN begins a
    channels-last sum with it, so that the rounding of one channel all goes one way and its mean has fewer digits.

    Operators whose regions lost against PyTorch stay with it, unless their kernel now changes the order as well,
    for which PyTorch would need a pass of its own.
    """
    chosen = promising(seconds, device)
    given = given_last(plan.graph.roots()).difference(seconds, plan.contractions)  # as PyTorch has them
    chosen |= given
    if not chosen:
        return None
    free = make_plan(plan.graph, captured, move_bias=True, channels_last=chosen, contractions=plan.contractions,
                     fused_products=plan.fused_products)
    moving = {n for s in free.kernels if s.transposes for n in s.covers}
    kept = {n: r for n, r in plan.kept.items() if r != ALONE and not (r.startswith(SLOWER) and n in moving)}

    def laid_out(contractions: Mapping[Node, KernelConfig]) -> Plan:
        return make_plan(plan.graph, captured, kept, move_bias=True, channels_last=chosen, contractions=contractions,
                         fused_products=plan.fused_products)

    # What stores into this order may need other tiles than those that it was measured in.
    result = laid_out(fitting(laid_out, plan.contractions))
    gain = sum(seconds[n][0] - seconds[n][1] for n in chosen - given)
    gain += _copy_seconds((n.inputs[0] for n in given), device)  # that would be stored once more for kernels
    return result if gain > _copy_seconds((s.outputs[0] for s in result.kernels if s.copies), device) else None


def saved_seconds(plan: Plan, captured: Graph, seconds: Seconds, device: Device) -> dict[Node, float]:
    """What the library's convolutions of a plan take less channels-last, where they promise a gain together: each less
    its part of the copies that the program then needs. A kernel in their place has to beat that."""
    last = channels_last_plan(plan, captured, seconds, device) if seconds else None
    if last is None:
        return {}
    gains = {n: seconds[n][0] - seconds[n][1] for n in last.channels_last if n in seconds}
    copies = _copy_seconds((s.outputs[0] for s in last.kernels if s.copies), device)
    share = max(0.0, 1.0 - copies / gain) if (gain := sum(gains.values())) > 0.0 else 0.0
    return {n: share * gain for n, gain in gains.items() if gain > 0.0}


def promised_seconds(last: Collection[Node], before: Collection[Node], seconds: Seconds) -> float:
    """What convolutions are to take less with those of ``last`` channels-last, where those of ``before`` were."""
    return sum(found[n in before] - found[n in last] for n, found in seconds.items()
               if (n in last) != (n in before) and found[1] < inf)


def measured_programs(programs: Mapping[str, nn.Module], example: Sequence[object], device: torch.device,
                      budget_seconds: float) -> Mapping[str, Times]:
    """Time whole models on the example inputs, without gradients; {} where the memory does not do for both."""
    def call(model: nn.Module) -> Callable[[], object]:
        def run() -> object:
            with torch.no_grad():
                return model(*example)
        return run

    try:
        with locked_device():
            return measure({name: call(model) for name, model in programs.items()}, device=device,
                           budget_seconds=budget_seconds)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return {}


def faster(times: Mapping[str, Times]) -> float | None:
    """How many times faster the channels-last program is, or None where the other one stays.

    It must win by a margin on the device, and must not lose where calls follow each other, the host's work included.
    Times of a busy machine are no reason.
    """
    if not times or any(t.busy for t in times.values()):
        return None
    first, last = times[FIRST], times[LAST]
    usual, own = first.back_to_back_seconds, last.back_to_back_seconds
    slower = usual is not None and own is not None and own > usual / _WIN
    share = _WIN if min(first.repetitions, last.repetitions) >= _FEW else _WIN_ONCE
    if last.median >= share * first.median or slower:
        return None
    return first.median / last.median


def words(plan: Plan, ratio: float | None) -> str:
    """The decision for the report. ratio: of the programs' times; None where nothing was measured."""
    count = len(plan.channels_last)
    of = sum(n.op == "convolution" for n in plan.graph.nodes())
    subject = "the convolution runs" if of == 1 else f"{count} of {of} convolutions run" if count < of \
        else f"all {of} convolutions run"
    return f"{subject} channels-last" + (f": {ratio:.2f}x as fast as channels-first, measured" if ratio else "")
