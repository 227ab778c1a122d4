"""Contractions measured: each candidate of each built, run beside the torch call that it replaces, and held to
float64."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from hashlib import sha256
from math import inf

import torch

from kernelwright.build.library import build_libraries
from kernelwright.build.module import BuildFailed
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.generate import generate_kernel, support_text, writer_of
from kernelwright.device_lock import clock
from kernelwright.emit.launcher import Launcher, make_launcher
from kernelwright.ir.node import Node, walk
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Apply, Reduced
from kernelwright.plan.expressions import walk as walk_expression
from kernelwright.plan.records import KernelConfig, KernelStep
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.roofline.devices import Device
from kernelwright.timing.rounds import measure
from kernelwright.tune import accuracy
from kernelwright.tune.accuracy import Error
from kernelwright.tune.contraction_first import SAME_CALLS, affordable, first_call, hopeless
from kernelwright.tune.contraction_memory import Measured, Trial, attempt, fatal, folder
from kernelwright.tune.contraction_points import exact_sums, some_points
from kernelwright.tune.regions import tensor_for

# A kernel's workspace may take so much of the memory that is free.
_SHARE_OF_MEMORY = 0.5
# Elements of a row of which a digest adds up columns: no width that tensors have.
_ROW = 1021
UNSTABLE = "gives other bits when it is called again"
_CALL, _CALLS, _GRANTED = "torch", "torch with what follows", "granted"
Build = Callable[[Sequence[str], str, Sequence[str]], list[ctypes.CDLL | BuildFailed]]


@dataclass(frozen=True, slots=True)
class Case:
    """A contraction to be measured: the step of a plan in which it is a kernel, and the candidates to try.

    saved_seconds: what its reductions, or recomputing it, save of what is to be done after it; infinite where that is
    not known. rounding, exact: the candidates to try instead where it is known that rounding the operands to 11 bits is
    accurate enough, or that it is not. statistics: inputs that scale or shift: they follow from the contraction's own
    results, or are what other kernels found of its operands.
    """

    step: KernelStep
    candidates: tuple[KernelConfig, ...]
    saved_seconds: float = inf
    rounding: tuple[KernelConfig, ...] = ()
    exact: tuple[KernelConfig, ...] = ()
    statistics: frozenset[Node] = frozenset()

    @property
    def node(self) -> Node:
        """The contraction of the graph."""
        return self.step.covers[0]

    @property
    def kernel(self) -> Contraction:
        """The step's kernel."""
        assert isinstance(self.step.kernel, Contraction)
        return self.step.kernel


@dataclass(frozen=True, slots=True)
class Built:
    """A candidate that compiled."""

    config: KernelConfig
    launcher: Launcher
    library: ctypes.CDLL


def build(cases: Sequence[Case], build_all: Build = build_libraries) -> list[tuple[list[Built], list[str]]]:
    """Generate and compile all candidates of all cases at the same time; for each case what compiled, and why not."""
    texts: list[str] = []
    launchers: list[tuple[int, KernelConfig, Launcher]] = []
    result: list[tuple[list[Built], list[str]]] = [([], []) for _ in cases]
    for number, case in enumerate(cases):
        for config in case.candidates:
            try:
                text, launcher = written(case, config)
            except ValueError as refused:
                result[number][1].append(f"{words(config)}: {refused}")
                continue
            texts.append(text)
            launchers.append((number, config, launcher))
    libraries = build_all(texts, writer_of(Contraction).name, [launcher.name for _, _, launcher in launchers])
    for (number, config, launcher), library in zip(launchers, libraries, strict=True):
        if isinstance(library, BuildFailed):
            result[number][1].append(f"{words(config)} does not compile: {str(library).strip().splitlines()[0]}")
        else:
            function = getattr(library, launcher.name)
            function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_char_p
            result[number][0].append(Built(config, launcher, library))
    return result


def written(case: Case, config: KernelConfig) -> tuple[str, Launcher]:
    """The text of a case under a config, and what calls it. Raises ValueError where there is none."""
    kernel = _as_configured(case, config)
    name = _name(kernel)
    step = replace(case.step, name=name, kernel=kernel)
    target = writer_of(Contraction)
    source = generate_kernel(kernel, name, target.name)
    names = {n: f"v{i}" for i, n in enumerate(dict.fromkeys((*step.inputs, *step.outputs)))}
    launcher = make_launcher(_LAUNCHER.format(name), [step], {step: source}, lambda n: True, names.__getitem__,
                             target=target)
    return "\n\n".join([support_text([source], target.name), source.definition, launcher.text]), launcher


_LAUNCHER = "launch_{}"


def launcher_name(case: Case, config: KernelConfig) -> str:
    """The name of what calls a case under a config; libraries are found by it without their text."""
    return _LAUNCHER.format(_name(_as_configured(case, config)))


def _as_configured(case: Case, config: KernelConfig) -> Contraction:
    return replace(case.kernel, scheme=config.scheme, tiling=config.tiling)


def _name(kernel: Contraction) -> str:
    """Libraries share the process, and libraries of earlier runs are found by their text."""
    return f"c{sha256(repr(kernel).encode()).hexdigest()[:12]}"


def words(config: KernelConfig) -> str:
    """``fp16x3 wgmma 128x128x64, 3 stages``; of float32 ``float32 schedule 2``."""
    tiling = config.tiling
    if isinstance(tiling, Tiling):
        return f"{config.scheme} {tiling.label}"
    return config.scheme if tiling is None else f"{config.scheme} schedule {tiling}"


def try_out(case: Case, key: str, built: Sequence[Built], failures: Sequence[str], own: Mapping[Node, torch.Tensor],
            device: torch.device, row: Device, *, strict: bool, budget_seconds: float, final: bool = True,
            ends: float = inf) -> Measured | None:
    """Run and time the candidates that compiled, but those that ended a process before, and those that their first call
    shows to be too slow. None where there is no time for any of the others.

    key: what the case's measurements are kept under. own: the model's tensors and its example inputs, by their leaves.
    strict: the torch call is held to true float32. final: whether there are no others to try; else none are timed where
    none is accurate, and their seconds are infinite. ends: when the time for all contractions is over; a case may take
    ``budget_seconds`` after it. Raises DeviceLost (KW305), and what `is_out_of_memory`
    accepts.
    """
    step, why = case.step, list(failures)
    inputs = [tensor_for(n, device) for n in step.inputs]
    outputs = [torch.empty(n.shape, dtype=getattr(torch, n.dtype), device=device) for n in step.outputs]
    memory = dict(zip((*step.inputs, *step.outputs), (*inputs, *outputs), strict=True))
    given: dict[Node | str, torch.Tensor] = {**memory}
    fitting, ended = [], fatal(key)
    for candidate in built:
        if words(candidate.config) in ended:
            why.append(f"{words(candidate.config)}: ended the process that tried it ({folder()})")
        elif candidate.launcher.workspace_bytes > _SHARE_OF_MEMORY * _free_bytes(device):
            why.append(f"{words(candidate.config)}: its workspace does not fit the memory that is free")
        else:
            fitting.append(candidate)
    size = max((f.launcher.workspace_bytes for f in fitting), default=0)
    workspace = torch.empty(size, dtype=torch.uint8, device=device)
    best = _library_seconds(case, memory, device, strict=strict) if device.type == "cuda" else inf
    calls: dict[str, Callable[[], object]] = {}
    first: dict[str, float] = {}
    for number, candidate in enumerate(fitting):
        call, name = _launch(candidate, given, workspace, device), words(candidate.config)
        try:
            with attempt(key, name):
                took = first_call(call, name, device)
                if hopeless(took, best) and clock() + took < ends:  # it may have been loading that took so long
                    took = first_call(call, name, device)
        except RuntimeError as failure:
            if is_out_of_memory(failure):  # says nothing about the candidate, which is tried again when there is more
                raise
            why.append(f"{name}: {failure}")
            continue
        if hopeless(took, best):
            why.append(f"{name}: given up after a call of {took:.2g} s, as another one takes {best:.2g} s")
            continue
        best = min(best, took)
        calls[str(number)], first[str(number)] = call, took
    chosen = affordable(first, max(budget_seconds, ends - clock()))
    if first and not chosen:
        return None
    why += [f"{words(fitting[int(n)].config)}: given up after a call of {first[n]:.2g} s, as there was no time for more"
            for n in first if n not in chosen]
    calls = {n: calls[n] for n in first if n in chosen}
    tried = {n: fitting[int(n)] for n in calls}
    errors = _errors(case, calls, inputs, outputs, own, device, strict=strict)
    for n in [n for n in tried if not repeats(calls[n], outputs, workspace)]:
        why.append(f"{words(tried[n].config)}: {UNSTABLE}")
        del calls[n], tried[n]
    untimed = Measured(tuple(Trial(tried[n].config, inf, errors[n]) for n in tried), tuple(why), inf, errors[_CALL],
                       errors[_GRANTED])
    if not final and not untimed.accurate:
        return untimed
    with torch.no_grad(), accuracy.true_float32(device) if strict else nullcontext():
        calls |= _torch_calls(case, memory, device)
        times = measure(calls, device=device, budget_seconds=budget_seconds)
    alone = times[_CALL].median + _fused_seconds(case, row)
    trials = tuple(Trial(tried[n].config, times[n].median, errors[n]) for n in tried)
    return replace(untimed, trials=trials, seconds=min(alone, times[_CALLS].median))


def repeats(call: Callable[[], object], outputs: Sequence[torch.Tensor], workspace: torch.Tensor,
            times: int = SAME_CALLS) -> bool:
    """Whether a kernel writes the same bits in each of so many calls, whatever stood in its outputs and workspace."""
    found = set()
    for number in range(times):
        for tensor in (*outputs, workspace):
            tensor.reshape(-1).view(torch.uint8).fill_(255 * (number % 2))
        call()
        found.add(tuple(_digest(tensor) for tensor in outputs))
    return len(found) == 1


def _digest(tensor: torch.Tensor) -> tuple[int, ...]:
    """Two sums over the bits of a tensor, of which the second tells places apart."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = tensor.reshape(-1).view(whole)
    whole_rows = bits.numel() // _ROW * _ROW
    columns = bits[:whole_rows].view(-1, _ROW).sum(0, dtype=torch.int64)
    columns[:bits.numel() - whole_rows] += bits[whole_rows:]
    weights = torch.arange(1, 2 * _ROW, 2, device=bits.device)
    return int(columns.sum()), int((columns * weights).sum())


def _free_bytes(device: torch.device) -> float:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else float("inf")


def _launch(candidate: Built, memory: Mapping[Node | str, torch.Tensor], workspace: torch.Tensor, device: torch.device
            ) -> Callable[[], None]:
    launcher = candidate.launcher
    tensors = [memory[a] for a in launcher.arguments] + ([workspace] if launcher.workspace_bytes else [])
    addresses = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
    function = getattr(candidate.library, launcher.name)

    def call() -> None:
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
        failure = function(addresses, stream)
        if failure:
            raise RuntimeError(failure.decode(errors="replace"))

    return call


# What a kernel replaces ---------------------------------------------------------------------------


def _torch_calls(case: Case, memory: dict[Node, torch.Tensor], device: torch.device
                 ) -> dict[str, Callable[[], object]]:
    """The contraction's torch call by itself, and followed by the calls of what fuses with the kernel."""
    covers = set(case.step.covers)
    order = [n for n in walk(covers) if n in covers or (n.kind == "view" and any(i in covers for i in walk([n])))]
    outer = {i for n in order for i in n.inputs if i not in order}
    given = {n: n["value"] if n.op == "constant" else memory.get(n) for n in outer}
    given = {n: tensor_for(n, device) if v is None else v for n, v in given.items()}
    # Of other contractions the kernel does what stands after them: their bias.
    others = {n: tensor_for(n, device) for n in order if n.kind == "linear" and n is not case.node}
    own = [memory.get(i) if i not in given else given[i] for i in case.node.inputs]
    own = [tensor_for(i, device) if t is None else t for i, t in zip(case.node.inputs, own, strict=True)]
    # A kernel adds a convolution's bias on the way, where the library needs a pass of its own.
    own = own[:2] if case.node.op == "convolution" else own

    def alone() -> object:
        return _reference(case.node, own, device)

    def followed() -> object:
        values = dict(given)
        for node in order:
            operands = [values[i] for i in node.inputs]
            if node is case.node:
                values[node] = _reference(node, operands, device)
            elif node in others:
                values[node] = _with_bias(node, others[node], operands)
            else:
                values[node] = _reference(node, operands, device)
        return values

    return {_CALL: alone, _CALLS: followed}


def _library_seconds(case: Case, memory: dict[Node, torch.Tensor], device: torch.device, *, strict: bool) -> float:
    """Seconds of the torch call by itself, which may have something to load at first."""
    call = _torch_calls(case, memory, device)[_CALL]
    with torch.no_grad(), accuracy.true_float32(device) if strict else nullcontext():
        return min(first_call(call, _CALL, device) for _ in range(2))


def _with_bias(node: Node, product: torch.Tensor, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    if len(operands) < 3:
        return product
    bias = operands[2]
    return product + (bias.reshape(-1, *(1,) * (node.rank - 2)) if node.op == "convolution" else bias)


def _reference(node: Node, operands: Sequence[object], device: torch.device) -> object:
    exact: AbstractContextManager = accuracy.true_float32(device) if node.get("exact") else nullcontext()
    with exact:
        return node.operator.reference(*operands, **dict(node.attributes))


def _fused_seconds(case: Case, row: Device) -> float:
    """What one kernel each takes for what stands before and after the torch call: a pass over memory, or after it what
    the kernel's reductions save if that is less. No one pass does what a contraction that is recomputed does."""
    kernel, node, seconds = case.kernel, case.node, 0.0
    bias_alone = node.op == "linear" and len(case.step.covers) == 1
    # Sums by themselves the torch call has stored already.
    followers = [case.step.outputs[s.buffer] for s in kernel.stores if s.expression != Reduced(0)]
    if not bias_alone and followers:
        moved = node.bytes + sum(n.bytes for n in followers)
        one_pass = moved / row.copy + row.launch_seconds
        recomputes = case.step.pass_number == 2 and case.saved_seconds < inf
        seconds += case.saved_seconds if recomputes else min(one_pass, case.saved_seconds)
    if any(isinstance(e, Apply) for e in walk_expression(kernel.left)):
        seconds += 2 * node.inputs[0].bytes / row.copy + row.launch_seconds
    return seconds


# How accurate it is -------------------------------------------------------------------------------


def _errors(case: Case, calls: Mapping[str, Callable[[], object]], inputs: Sequence[torch.Tensor],
            outputs: Sequence[torch.Tensor], own: Mapping[Node, torch.Tensor], device: torch.device, *, strict: bool
            ) -> dict[str, tuple[Error, ...]]:
    """The errors of each call's results and of the torch call's, and what is granted besides, for each distribution and
    each result."""
    kernel = case.kernel
    points = some_points(kernel, device)
    errors: dict[str, tuple[Error, ...]] = dict.fromkeys((_CALL, _GRANTED, *calls), ())
    for distribution in accuracy.DISTRIBUTIONS:
        values = accuracy.operands(case.step.inputs, own, distribution, device, case.statistics)
        for tensor, value in zip(inputs, values, strict=True):
            tensor.copy_(value)
        exact = exact_sums(kernel, points, inputs)
        expected = accuracy.results_at(kernel, points, exact, inputs, exact=True)
        with torch.no_grad(), accuracy.true_float32(device) if strict else nullcontext():
            sums = accuracy.torch_sums(kernel, case.node, points, inputs)
        found = accuracy.results_at(kernel, points, sums, inputs, exact=False)
        errors[_CALL] += accuracy.errors_of(found, expected)
        errors[_GRANTED] += accuracy.granted(kernel, points, exact, sums, inputs)
        for name, call in calls.items():
            for tensor in outputs:  # what a kernel leaves out must not be an earlier one's
                tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
            call()
            errors[name] += accuracy.errors_of(accuracy.stored_at(kernel, points, outputs), expected)
    return errors
