"""Regions: groups of loop kernels that together replace some operators, kept only where they win.

Collapses are not measured here: what they save is not a matter of percents. Fusions are: a region's
kernels run against the very torch calls that they would replace, in place (:mod:`kernelwright.tune.in_place`), and a
region that does not win stays with PyTorch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from kernelwright.build.library import build_libraries
from kernelwright.build.module import BuildFailed
from kernelwright.codegen.generate import TARGETS, generate_kernel, support_text
from kernelwright.device_lock import clock, locked_device, without_device
from kernelwright.emit.launcher import Launcher, make_launcher
from kernelwright.ir.node import Node
from kernelwright.ir.ops.leaves import literal_tensor
from kernelwright.ir.registry import torch_dtype
from kernelwright.plan.kernels import Attention, BatchedProduct, Extremum, LoopKernel, Recurrence, Scan
from kernelwright.plan.records import KernelStep, Plan
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.progress import counted
from kernelwright.records import RegionUse
from kernelwright.roofline.cost import node_seconds
from kernelwright.roofline.devices import Device
from kernelwright.timing.clock import without_collector
from kernelwright.tune.in_place import seconds_in_place
from kernelwright.tune.memory import generator_digest, machine, recall, remember

SLOWER = "measured on this device: PyTorch is as fast"
UNMEASURED = "not measured on this device: PyTorch's kernel may be faster"
# A region must take less than this share of PyTorch's time; one operator by itself must win clearly.
_WIN = 0.97
_WIN_ALONE = 0.9
# Of the steps of a loop kernels of their own may be faster than PyTorch, too: one for all of them must win by more.
_WIN_LOOP = 0.8
# A region that wins by so much is believed to pay even in a program that as a whole does not.
_WIN_CLEARLY = 0.75
# A region of which one thread's processor seconds alone are known loses by so much: how it shares out its work is not.
_LOSES_CLEARLY = 1.15
#: Beside the seconds of such a region.
OF_A_THREAD = "of a thread"
# Seconds of timing one region, and how many are built at a time.
_MOST_SECONDS, _TOGETHER = 0.5, 8
_KIND = "regions"
_REGIONAL = LoopKernel, Scan, Extremum, Recurrence, Attention, BatchedProduct


def regions(plan: Plan) -> list[list[KernelStep]]:
    """Kernels but contractions that share a replaced operator, as groups; those with operators that only rules made are
    left."""
    groups: list[tuple[set[Node], list[KernelStep]]] = []
    for step in plan.kernels:
        covers, steps = set(step.covers), [step]
        for group in [g for g in groups if g[0] & covers]:
            groups.remove(group)
            covers |= group[0]
            steps = group[1] + steps
        groups.append((covers, steps))
    return [steps for covers, steps in groups
            if all(isinstance(s.kernel, _REGIONAL) and not s.copies for s in steps)
            and (any(s.rolls for s in steps)
                 or all(n.kind != "special" and n.op not in ("contract", "cast") for n in covers))]


@dataclass(frozen=True, slots=True)
class Untried:
    """What there was no time to measure: how many things of a kind, and the seconds that they promise together for a
    forward, by the roofline. busy: how many were run, but on a busy machine, where one thread's seconds are all that is
    known."""

    count: int
    seconds: float
    busy: int = 0


def region_times(plans: Sequence[Plan], tensors: Callable[[int], Mapping[str, torch.Tensor]], device: torch.device,
                 row: Device, target: str, seconds: float) -> tuple[dict[Hashable, dict[str, float]], Untried]:
    """The seconds of the regions of plans in place, kernels and torch calls, by what alike regions share; and what was
    not measured.

    tensors: of a plan's leaves by name, for the number of the plan. What earlier runs measured is known. Of the rest
    those come first that promise most for the whole model, until ``seconds`` have passed: none for 0. Regions alike are
    built once, and their time is the mean of all places where they stand in one program. Raises BuildFailed.
    """
    ends = clock() + seconds
    alike: dict[Hashable, list[list[KernelStep]]] = {}
    standing: list[list[tuple[Hashable, list[KernelStep]]]] = []  # for each plan
    for plan in plans:
        standing.append([(_form(steps, plan), steps) for steps in regions(plan)])
        for form, steps in standing[-1]:
            alike.setdefault(form, []).append(steps)
    keys = {form: repr((machine(device), generator_digest(), target, form)) for form in alike}
    times = {form: known for form, key in keys.items() if (known := recall(_KIND, key)) is not None}
    missing = {form: len(found) * _promise(found[0], row) for form, found in alike.items() if form not in times}
    waiting = sorted(missing, key=lambda form: -missing[form])
    longest, disturbed = 0.0, dict[Hashable, bool]()
    while waiting and (left := ends - clock()) > longest:
        counted(len(missing) - len(waiting), len(missing))
        begun, now = clock(), waiting[:_TOGETHER]
        parts = dict(zip(now, _built([alike[form][0] for form in now], target), strict=True))
        each = min(_MOST_SECONDS, left / len(waiting)) * len(now)
        try:
            with locked_device(), without_collector():
                for number, plan in enumerate(plans):
                    here = [(form, steps) for form, steps in standing[number] if form in parts and form not in times]
                    if here:
                        found = seconds_in_place(plan, tensors(number), [(steps, parts[form]) for form, steps in here],
                                                 device, each)
                        times |= _means([form for form, _ in here], found.regions)
                        disturbed |= {form: found.of_a_thread for form, _ in here}
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            break
        for form in now:
            if form in times and not disturbed[form]:
                remember(_KIND, keys[form], times[form])
        waiting = waiting[_TOGETHER:]
        longest = max(longest, clock() - begun)
    busy = sum(len(alike[form]) for form, found in disturbed.items() if found)
    times |= {form: {**times[form], OF_A_THREAD: 1.0} for form, found in disturbed.items() if found and form in times}
    return times, Untried(sum(len(alike[form]) for form in waiting), sum(missing[form] for form in waiting), busy)


def _means(forms: Sequence[Hashable], found: Sequence[Mapping[str, float]]) -> dict[Hashable, dict[str, float]]:
    """The mean seconds of regions alike, of those that both programs compute: what planning alone has made, no call of
    PyTorch's stands for."""
    places: dict[Hashable, list[Mapping[str, float]]] = {}
    for form, seconds in zip(forms, found, strict=True):
        if len(seconds) == 2:
            places.setdefault(form, []).append(seconds)
    return {form: {name: sum(s[name] for s in some) / len(some) for name in some[0]} for form, some in places.items()}


def _built(found: Sequence[list[KernelStep]], target: str
           ) -> list[tuple[list[KernelStep], dict[KernelStep, Launcher], ctypes.CDLL]]:
    """Each region's steps, with names of their own, their launchers and library; compiled side by side. Raises
    BuildFailed."""
    made: list[tuple[list[KernelStep], dict[KernelStep, Launcher]]] = []
    texts: list[str] = []
    for number, region in enumerate(found):
        steps = [replace(step, name=f"k{number}_{place}_region") for place, step in enumerate(region)]
        sources = {step: generate_kernel(step.kernel, step.name, target) for step in steps}
        launchers = {}
        for place, step in enumerate(steps):
            names = {n: f"v{i}" for i, n in enumerate(dict.fromkeys((*step.inputs, *step.outputs)))}
            launchers[step] = make_launcher(f"region_{number}_{place}", [step], sources, lambda n: True,
                                            names.__getitem__, target=TARGETS[target])
        made.append((steps, launchers))
        texts.append("\n\n".join([support_text(sources.values(), target), *(s.definition for s in sources.values()),
                                  *(x.text for x in launchers.values())]))
    with without_device():
        libraries = build_libraries(texts, target, [f"kernelwright_region_{number}" for number in range(len(texts))])
    found_in: list[tuple[list[KernelStep], dict[KernelStep, Launcher], ctypes.CDLL]] = []
    for (steps, launchers), library in zip(made, libraries, strict=True):
        if isinstance(library, BuildFailed):
            raise library
        found_in.append((steps, launchers, library))
    return found_in


def _promise(steps: Sequence[KernelStep], row: Device) -> float:
    """The seconds that a region's kernels save over its torch calls, by the roofline: passes over memory, launches."""
    calls = sum(node_seconds(n, row) for n in dict.fromkeys(n for s in steps for n in s.covers))
    moved = sum(n.bytes for s in steps for n in (*s.inputs, *s.outputs))
    return max(0.0, calls - moved / row.read - len(steps) * row.launch_seconds)


def region_uses(plan: Plan, times: Mapping[Hashable, Mapping[str, float]]) -> tuple[RegionUse, ...]:
    """What :func:`region_times` measured of the kernels of a plan."""
    return tuple(RegionUse(tuple(s.name for s in steps), found["kernels"], found["torch"]) for steps in regions(plan)
                 if (found := times.get(_form(steps, plan))) is not None and OF_A_THREAD not in found)


def losing_regions(plan: Plan, times: Mapping[Hashable, Mapping[str, float]], *, clearly: bool = False
                   ) -> dict[Node, str]:
    """The operators whose region does not win by what :func:`region_times` measured, with the reason; those, too, of a
    doubtful one that was not measured. clearly: those of every one that was not measured or wins by little."""
    lost: dict[Node, str] = {}
    for steps in regions(plan):
        found = times.get(_form(steps, plan))
        loop = next((s for s in steps if s.rolls), None)
        share = _WIN_LOOP if loop else _WIN if len({n for s in steps for n in s.covers}) > 1 else _WIN_ALONE
        share = _WIN_CLEARLY if clearly else _LOSES_CLEARLY if found is not None and OF_A_THREAD in found else share
        if found is not None and found["kernels"] > share * found["torch"]:
            reason = slower_by(found["kernels"] / found["torch"])
        elif found is None and clearly:
            reason = SLOWER
        elif found is None and any(map(_is_doubtful, steps)):
            reason = UNMEASURED
        else:
            continue
        lost |= {n: r for s in (*steps, *([loop] if loop else [])) for n, r in s.left(reason).items()}
    return lost


def _is_doubtful(step: KernelStep) -> bool:
    """Whether a kernel is worth having only where it was measured: attention in 16 bits, in which PyTorch's own kernels
    are faster for some sizes and slower for others."""
    return isinstance(step.kernel, Attention) and step.kernel.compute != "float32"


def slower_by(ratio: float) -> str:
    """The reason for what stays with PyTorch where kernels take so many times its time."""
    return f"{SLOWER} or faster: kernels take {ratio:.1f}x as long" if ratio >= 1.05 else SLOWER


def _form(steps: Sequence[KernelStep], plan: Plan) -> Hashable:
    """What two regions share that need the same time: a network repeats its blocks. A kernel may be the same in both
    memory orders, and PyTorch's calls are not."""
    return bool(plan.channels_last), *((s.kernel, tuple((n.op, n.attributes, n.shape,
                                                         tuple((i.shape, i.dtype) for i in n.inputs))
                                                        for n in s.covers)) for s in steps)


def tensor_for(node: Node, device: torch.device) -> torch.Tensor:
    """A value for a node of which only its type matters."""
    if node.op == "literal":
        return literal_tensor(node, device)
    if node.dtype.startswith(("int", "uint")):  # zero is an index into anything
        return torch.zeros(node.shape, dtype=torch_dtype(node.dtype), device=device)
    if node.dtype == "bool":
        return torch.rand(node.shape, device=device) > 0.5
    # Inside [0.5, 1]: no operator meets a special value, variances are positive, and it may be a probability (a loss
    # that refuses others would end the device's context).
    return 0.5 * torch.rand(node.shape, dtype=torch_dtype(node.dtype), device=device) + 0.5


def kernel_calls(steps: Sequence[KernelStep], launchers: dict[KernelStep, Launcher], library: ctypes.CDLL,
                 device: torch.device, given: Mapping[Node, torch.Tensor] = MappingProxyType({})) -> Callable[[], None]:
    """A call of kernel steps on the ``given`` tensors, and on some of their own for other nodes. It raises RuntimeError
    where a launch fails."""
    memory: dict[Node | str, torch.Tensor] = {**given}
    for step in steps:
        for node in (*step.inputs, *step.outputs):
            if node not in memory:
                memory[node] = tensor_for(node, device)
        memory.update({name: memory[step.outputs[number]] for number, name in step.buffers})
    prepared = []
    for step in steps:
        launcher = launchers[step]
        tensors = [memory[a] for a in launcher.arguments]
        if launcher.workspace_bytes:
            tensors.append(torch.empty(launcher.workspace_bytes, dtype=torch.uint8, device=device))
        addresses = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
        prepared.append((getattr(library, launcher.name), addresses, tensors))

    def call() -> None:
        stream = torch.cuda.current_stream().cuda_stream if device.type == "cuda" else None
        for function, addresses, _ in prepared:
            failure = function(addresses, stream)
            if failure:
                raise RuntimeError(failure.decode(errors="replace"))

    return call
