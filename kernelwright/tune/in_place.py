"""Seconds of regions in place: a clock around each of them in the running program, on the model's own values.

By itself a kernel finds its operands where no program leaves them: out of every cache, or in all of them, in memory
that was allocated long ago. So two programs run on the example inputs, step by step: that of the plan, in which regions
are kernels, and the operators of its graph as PyTorch has them. What a region costs beside its kernels is counted as
well: memory for its results, operands that kernels want contiguous, views that only its torch calls need.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelwright import processors
from kernelwright.emit.launcher import Launcher
from kernelwright.emit.once import made_once
from kernelwright.ir.evaluate import as_stored
from kernelwright.ir.node import Node, walk
from kernelwright.ir.ops.leaves import literal_tensor
from kernelwright.ir.registry import torch_dtype
from kernelwright.plan.records import KernelStep, Plan
from kernelwright.timing.clock import DELAY_CLOCK_HERTZ, LONGEST_DELAY_SECONDS

#: Runs of both programs that are timed, at least and at most; one before them warms up. Of runs that take longer than
#: all of them may, one is timed.
LEAST_RUNS, MOST_RUNS = 3, 25

#: Channels-last, by the rank of what lies so.
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}

Memory = dict[Any, Any]
Part = tuple[list[KernelStep], dict[KernelStep, Launcher], ctypes.CDLL]
"""A region's steps, their launchers and the library that has them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A step of a program. region: whose time it is; None of what nobody asks for. last: what nobody reads after it."""

    run: Callable[[Memory], None]
    region: int | None
    last: tuple[Node, ...]


@dataclass(slots=True)
class _Clock:
    """The seconds of each region in one run: between one step of another region, or of none, and the next."""

    device: torch.device
    time: Callable[[], float] = time.perf_counter
    current: int | None = None
    marks: list[tuple[int, Any, Any]] = field(default_factory=list)
    begun: Any = None

    def turn(self, region: int | None) -> None:
        if region == self.current:
            return
        now = self._now()
        if self.current is not None:
            self.marks.append((self.current, self.begun, now))
        self.current, self.begun = region, now

    def _now(self) -> Any:
        if self.device.type != "cuda":
            return self.time()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self) -> dict[int, float]:
        self.turn(None)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        found: dict[int, float] = {}
        for region, begun, ended in self.marks:
            took = begun.elapsed_time(ended) * 1e-3 if self.device.type == "cuda" else ended - begun
            found[region] = found.get(region, 0.0) + took
        return found


@dataclass(frozen=True, slots=True)
class InPlace:
    """The least seconds of each region, as "kernels" and as "torch" calls. of_a_thread: whether they are those that a
    processor spent on one thread, as other programs had the processors in all runs; then nothing else can be told."""

    regions: list[dict[str, float]]
    of_a_thread: bool = False


def seconds_in_place(plan: Plan, tensors: Mapping[str, torch.Tensor], regions: Sequence[tuple[list[KernelStep], Part]],
                     device: torch.device, budget_seconds: float) -> InPlace:
    """The seconds of regions in runs that had the processors. Where a program has no such run, those of one thread.

    tensors: the graph's leaves by name; nobody writes to them. regions: steps of the plan, each with the library of a
    region like it. Memory that does not do is raised, as what a launcher says that fails (RuntimeError).
    """
    tensors = {name: _own(t) for name, t in tensors.items()} if any(s.buffers for s in plan.kernels) else tensors
    leaves = _leaves(plan, tensors, device)
    programs: dict[str, Sequence[Entry]] = {"kernels": _of_plan(plan, tensors, regions, leaves, device),
                "torch": _of_graph(plan, regions, leaves, device)}
    least: list[dict[str, float]] = [{} for _ in regions]
    ends, delays = time.perf_counter() + budget_seconds, dict.fromkeys(programs, 0.0)
    counted = set[str]()
    with torch.no_grad():
        for turn in range(-1, MOST_RUNS):
            begun = time.perf_counter()
            for name in programs if turn % 2 else reversed(programs):
                before = processors.waits() if device.type == "cpu" else {}
                found, delays[name] = _run(programs[name], leaves, device, delays[name])
                waited = processors.longest_wait(before, processors.waits() if before else {})
                counts = turn >= 0 and not processors.is_disturbed(delays[name], waited)
                counted |= {name} if counts else set()
                for region, took in found.items() if counts else ():
                    least[region][name] = min(took, least[region].get(name, took))
            now = time.perf_counter()
            enough = turn + 1 >= LEAST_RUNS or (turn >= 0 and now - begun > budget_seconds)
            if enough and 2 * now - begun > ends:
                break
        if len(counted) == len(programs):
            return InPlace(least)
        return InPlace(_of_a_thread(programs, leaves, device, len(regions), budget_seconds), of_a_thread=True)


def _of_a_thread(programs: Mapping[str, Sequence[Entry]], leaves: Memory, device: torch.device, count: int,
                 budget_seconds: float) -> list[dict[str, float]]:
    """The least seconds that a processor spends on each of so many regions, in runs of one thread: others that want it
    do not count, but for what they drive from its caches."""
    least: list[dict[str, float]] = [{} for _ in range(count)]
    threads, ends = torch.get_num_threads(), time.perf_counter() + budget_seconds
    torch.set_num_threads(1)
    try:
        for turn in range(LEAST_RUNS):
            if turn and time.perf_counter() > ends:
                break
            for name in programs if turn % 2 else reversed(list(programs)):
                found, _ = _run(programs[name], leaves, device, 0.0, time.thread_time)
                for region, took in found.items():
                    least[region][name] = min(took, least[region].get(name, took))
    finally:
        torch.set_num_threads(threads)
    return least


def _run(entries: Sequence[Entry], leaves: Memory, device: torch.device, delay: float,
         clock_of: Callable[[], float] = time.perf_counter) -> tuple[dict[int, float], float]:
    """The seconds of the regions in one run, and how long the host took for it: so long a device waits before the next
    one, or it would wait for the host between steps."""
    memory, clock = dict(leaves), _Clock(device, clock_of)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda._sleep(int(min(1.5 * delay, LONGEST_DELAY_SECONDS) * DELAY_CLOCK_HERTZ))
    begun = time.perf_counter()
    for entry in entries:
        clock.turn(entry.region)
        entry.run(memory)
        for node in entry.last:
            memory.pop(node, None)
    took = time.perf_counter() - begun
    return clock.seconds(), took


def _own(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone() if isinstance(tensor, torch.Tensor) else tensor


def _leaves(plan: Plan, tensors: Mapping[str, torch.Tensor], device: torch.device) -> Memory:
    """Every leaf that one of the programs reads, and what is made once. Of a buffer that a kernel writes nothing else
    has the value: what that reads is below the kernel's outputs alone."""
    roots = [*_roots(plan), *plan.results, *(e.value for e in plan.effects), *(c.value for c in plan.checks)]
    roots += [n for s in plan.steps
              for n in ((*s.inputs, *s.outputs) if isinstance(s, KernelStep) else (s.node,))]
    found: Memory = {}
    for node in walk(roots):
        if node.op == "constant":
            found[node] = node["value"]
        elif node.op == "literal":
            found[node] = literal_tensor(node, device)
        elif node.kind == "leaf" and node.get("name") in tensors:
            found[node] = as_stored(node, tensors[node["name"]])
    return found


def _roots(plan: Plan) -> list[Node]:
    graph = plan.graph
    return [*graph.outputs, *(e.value for e in graph.effects if e.owner is None), *(c.value for c in graph.checks)]


def _last(reads: Sequence[tuple[Node, ...]], kept: Sequence[Node]) -> list[tuple[Node, ...]]:
    """For each step, the values that it is the last one to read."""
    seen, found = set(kept), []
    for needed in reversed(reads):
        found.append(tuple(n for n in dict.fromkeys(needed) if n not in seen and n.kind != "leaf"))
        seen.update(needed)
    return found[::-1]


def _call(node: Node, device: torch.device) -> Callable[[Memory], None]:
    """PyTorch's call of an operator; what it makes of nothing lies where kernels read it."""
    reference, attributes, inputs = node.operator.reference, dict(node.attributes), node.inputs

    def run(memory: Memory) -> None:
        memory[node] = reference(*[memory[i] for i in inputs], **attributes)

    def made(memory: Memory) -> None:
        with device:
            run(memory)

    return run if inputs else made


def _of_graph(plan: Plan, regions: Sequence[tuple[list[KernelStep], Part]], leaves: Memory, device: torch.device
              ) -> list[Entry]:
    """The operators of a plan's graph as PyTorch's calls. Views that only a region's operators read are its own.

    Convolutions that the plan has channels-last are so here, too: what PyTorch computes of their results then lies as
    it would where a region stays with it. A copy into that order is counted with what made the value.
    """
    region_of: dict[Node, int | None] = {n: number for number, (steps, _) in enumerate(regions)
                                         for s in steps for n in s.covers}
    roots = _roots(plan)
    nodes = [n for n in walk(roots) if n not in leaves]
    readers: dict[Node, set[int | None]] = {n: {None} for n in roots}
    for node in reversed(nodes):
        if node.kind == "view" and node not in region_of and len(found := readers.get(node, {None})) == 1:
            region_of[node] = next(iter(found))
        for needed in node.inputs:
            readers.setdefault(needed, set()).add(region_of.get(node))
    last = _last([n.inputs for n in nodes], roots)
    entries: list[Entry] = []
    for node, done in zip(nodes, last, strict=True):
        if node in plan.channels_last and node.rank in FORMATS:
            entries.append(Entry(_contiguous(node.inputs[0], FORMATS[node.rank]), region_of.get(node.inputs[0]), ()))
        entries.append(Entry(_call(node, device), region_of.get(node), done))
    return entries


def _of_plan(plan: Plan, tensors: Mapping[str, torch.Tensor], regions: Sequence[tuple[list[KernelStep], Part]],
             leaves: Memory, device: torch.device) -> list[Entry]:
    """The steps of a plan: the regions' kernels, and PyTorch's calls for all others."""
    region_of = {step: number for number, (steps, _) in enumerate(regions) for step in steps}
    results = [*plan.results, *(e.value for e in plan.effects), *(c.value for c in plan.checks)]
    for step in made_once(plan.steps, results):
        if step.node not in leaves:  # as a table is that is written out
            _call(step.node, device)(leaves)
    readers: dict[Node, int] = {}
    biased: dict[tuple[Any, ...], int] = {}  # convolutions of which a region has the bias alone
    beside: dict[Node, int] = {}  # what a region makes of operators that it replaces, and leaves to PyTorch
    for step, number in region_of.items():
        beside.update(dict.fromkeys(step.beside, number))
        for node in step.inputs:
            readers.setdefault(node, number)
        biased.update({_likeness(n): number for n in step.covers if n.op == "convolution"})
    runs: list[tuple[Callable[[Memory], None], int | None, tuple[Node, ...]]] = []
    for step in plan.steps:
        if isinstance(step, KernelStep):
            number = region_of.get(step)
            if number is None:
                runs.append((_evaluated(step, plan), None, step.inputs))
            else:
                runs.append((_launched(step, *regions[number], tensors, device), number, step.inputs))
        elif step.node not in leaves:
            number = beside.get(step.node, biased.get(_likeness(step.node)))
            runs.append((_call(step.node, device), number, step.node.inputs))
            if step.node in readers and step.node.dtype != "tuple":
                runs.append((_contiguous(step.node), readers[step.node], ()))
    last = _last([reads for *_, reads in runs], results)
    return [Entry(run, number, done) for (run, number, _), done in zip(runs, last, strict=True)]


def _likeness(node: Node) -> tuple[Any, ...]:
    """Equal for a convolution with its bias and without it."""
    return node.op, node.origin, node.shape, tuple(a for a in node.attributes if a[0] != "exact")


def _contiguous(node: Node, order: torch.memory_format = torch.contiguous_format) -> Callable[[Memory], None]:
    def run(memory: Memory) -> None:
        memory[node] = memory[node].contiguous(memory_format=order)

    return run


def _evaluated(step: KernelStep, plan: Plan) -> Callable[[Memory], None]:
    """A kernel step of which nobody asks the time, as the calls of the operators that it stands for."""
    inputs = set(step.inputs)

    def run(memory: Memory) -> None:
        values = {n: memory[n] for n in inputs}
        stack = list(reversed(step.outputs))
        while stack:
            node = stack[-1]
            missing = [i for i in node.inputs if i not in values and i not in memory]
            if node in values:
                stack.pop()
            elif missing:
                stack.extend(reversed(missing))
            else:
                operands = [values[i] if i in values else memory[i] for i in node.inputs]
                values[node] = node.operator.reference(*operands, **dict(node.attributes))
                stack.pop()
        memory.update({n: values[n].contiguous() for n in step.outputs})

    return run


def _launched(step: KernelStep, steps: list[KernelStep], part: Part, tensors: Mapping[str, torch.Tensor],
              device: torch.device) -> Callable[[Memory], None]:
    """A kernel step of a region, by the launcher of one like it."""
    alike, launchers, library = part
    twin = alike[steps.index(step)]
    launcher, function = launchers[twin], getattr(library, launchers[twin].name)
    own: dict[Node | str, Node | str] = dict(zip((*twin.inputs, *twin.outputs), (*step.inputs, *step.outputs),
                                                 strict=True))
    own |= {name: mine for (_, name), (_, mine) in zip(twin.buffers, step.buffers, strict=True)}
    made = [(own[n], n.shape, torch_dtype(n.dtype)) for n in launcher.allocated]
    arguments = [own[a] for a in launcher.arguments]
    buffers = {step.outputs[number]: name for number, name in step.buffers}

    def run(memory: Memory) -> None:
        for node, shape, dtype in made:
            memory[node] = torch.empty(shape, dtype=dtype, device=device)
        passed = [tensors[a] if isinstance(a, str) else memory[a] for a in arguments]
        if launcher.workspace_bytes:
            passed.append(torch.empty(launcher.workspace_bytes, dtype=torch.uint8, device=device))
        stream = torch.cuda.current_stream().cuda_stream if device.type == "cuda" else None
        failure = function(struct.pack(f"{len(passed)}P", *[t.data_ptr() for t in passed]), stream)
        if failure:
            raise RuntimeError(failure.decode(errors="replace"))
        memory.update({node: tensors[name] for node, name in buffers.items()})

    return run
