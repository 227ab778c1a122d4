"""A mode of a model on its way to a file, and what becomes of it: split in two, or planned again with less.

A mode serves calls that record gradients and calls that do not; where these differ it is two modes. What fails of it is
given up: operators go back to PyTorch (:func:`keeping`, :func:`without`), a step of :mod:`kernelwright.fallback` is
taken (:func:`stepped_back`), or the whole mode is as captured (:func:`original`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from kernelwright.adjoint.backward import Backward, handed_over, make_backward
from kernelwright.adjoint.described import described_backward
from kernelwright.adjoint.saved import keeps_result
from kernelwright.algebra.engine import Rewriting, rewrite
from kernelwright.capture.values import stored_as
from kernelwright.codegen.generate import KernelFailed, NoSkeleton, named
from kernelwright.codegen.source import Unsuitable
from kernelwright.emit.facts import frozen, is_recordable, plan_tensors
from kernelwright.emit.file import Variant
from kernelwright.failures import FAILED, is_ours, told
from kernelwright.fallback import StepBack, whole_mode, without_kind
from kernelwright.ir.graph import Graph, Result, in_own_memory, memory, render
from kernelwright.ir.node import Node
from kernelwright.plan.describe import describe
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelConfig, Plan
from kernelwright.plan.steps import captured_steps, planned_steps, rewritten_alone
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.records import Mode, RegionUse, words_of
from kernelwright.roofline.devices import Device
from kernelwright.timing.baselines import DIRECT, GRAPH
from kernelwright.tune.contraction_fit import fitting

#: Ends the name of a mode that differs where gradients are recorded.
RECORDED = "with_gradients"

#: Characters of why a mode has no kernels for its backward: each tensor that failed has a sentence of its own.
_LONGEST_REASON = 300


@dataclass(frozen=True)
class ModeProgram:
    """One mode on its way: the model in it, what was captured, and what became of that.

    recordings: whether its calls record gradients; both where that changes nothing in the graph. notes: sentences on
    what was given up, and why. graph: whether the program runs as a CUDA graph where it can. one_launch: whether the
    program is PyTorch's calls alone, for the sake of that graph. regions: what was measured of its kernels. dtype: the
    floating-point type of the calls that it serves, where a file serves several. backward: kernels for the gradients of
    calls that record them; none where the original computation finds these.
    """

    name: str
    model: nn.Module
    captured: Graph
    rewriting: Rewriting
    plan: Plan
    recordings: tuple[bool, ...] = (False, True)
    notes: tuple[str, ...] = ()
    graph: bool = False
    one_launch: bool = False
    regions: tuple[RegionUse, ...] = ()
    dtype: str = ""
    backward: tuple[Backward, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether a file has a program for the mode; without one the original computation stays."""
        return bool(self.plan.kernels) or self.one_launch

    @property
    def launched(self) -> str:
        """How a file launches its program, as `GRAPH` or `DIRECT`; "" where it has none."""
        return "" if not self.runs else GRAPH if self.graph and is_recordable(self.plan) else DIRECT

    def in_mode(self, name: str, model: nn.Module) -> ModeProgram:
        """The same program for another mode, in which the model computes the same."""
        training = model.training
        return replace(self, name=name, model=model, captured=replace(self.captured, training=training),
                       rewriting=replace(self.rewriting, graph=replace(self.rewriting.graph, training=training)),
                       plan=replace(self.plan, graph=replace(self.plan.graph, training=training)))

    @cached_property
    def program(self) -> Hashable:
        """Equal for modes that run the same program, whatever finds their gradients."""
        contractions = frozenset((node, repr(config)) for node, config in self.plan.contractions.items())
        return (render(self.captured), repr(self.captured.structure),
                tuple(r.strides for r in self.captured.results), repr(self.captured.left), render(self.rewriting.graph),
                self.plan.kept_whole, self.plan.unrolled, contractions, self.plan.channels_last, self.one_launch)

    def without_backward(self, reason: str) -> ModeProgram:
        """The mode whose gradients the original computation finds, with a note that says why."""
        if not self.backward:
            return self
        short = textwrap.shorten(reason.rstrip("."), _LONGEST_REASON, placeholder=" ...")
        note = f"{words_of(self.name).capitalize()} mode has no kernels for its backward: {short}. Steps of training " \
            "run the original computation from the second on."
        return replace(self, backward=(), notes=(*self.notes, note))


def unknown(name: str, model: nn.Module, recordings: tuple[bool, ...] = (False, True)) -> ModeProgram:
    """A mode that could not be captured: a graph of nothing, whose original computation stays."""
    nothing = Graph((), (), (), (), model.training)
    return ModeProgram(name, model, nothing, *unplanned(nothing), recordings)


def unplanned(graph: Graph) -> tuple[Rewriting, Plan]:
    """A graph of which nothing is planned."""
    return Rewriting(graph, (), 0.0, 0.0), Plan(graph, (), (), ())


def distinct(modes: Sequence[ModeProgram]) -> list[ModeProgram]:
    """The modes without repetition of the same program."""
    return list({m.program: m for m in reversed(modes)}.values())[::-1]


def described_mode(mode: ModeProgram, device: Device) -> Mode:
    found = describe(mode.name, mode.captured, mode.rewriting, mode.plan, device,
                     texts=(render(mode.captured), render(mode.rewriting.graph)))
    return replace(found, launched=mode.launched)


def programs_of(modes: Sequence[ModeProgram], device: Device) -> list[Plan]:
    """All programs of one file, in the order in which their kernels are named: those of the modes, those of calls that
    hand something over, and those of gradients."""
    saving = [plan for m in modes if (plan := saving_plan(m, device)) is not None]
    return [*(m.plan for m in modes), *saving, *(b.plan for m in modes for b in m.backward)]


def named_modes(modes: Sequence[ModeProgram], device: Device) -> list[ModeProgram]:
    """The modes with the names that their kernels have in one file of all of them."""
    plans = named(programs_of([m for m in modes if m.runs], device))
    of_gradients = iter(plans[len(plans) - sum(len(m.backward) for m in modes if m.runs):])
    own = iter(plans)
    found = []
    for mode in modes:
        plan = next(own) if mode.runs else mode.plan
        names = {old.name: new.name for old, new in zip(mode.plan.kernels, plan.kernels, strict=True)}
        backward = tuple(replace(b, plan=next(of_gradients)) for b in mode.backward) if mode.runs else ()
        found.append(replace(mode, plan=plan, backward=backward, regions=tuple(
            replace(r, kernels=tuple(names[name] for name in r.kernels)) for r in mode.regions)))
    return found


def with_steps(mode: Mode, program: ModeProgram, device: Device) -> Mode:
    """What is known of a mode with its program step by step, before and after."""
    if not program.captured.outputs:
        return mode
    steps = planned_steps(program.plan, program.captured, device) if program.runs else ()
    count, seconds = rewritten_alone(program.rewriting.graph, program.captured, device)
    backward = tuple(described_backward(part, device) for part in program.backward) if program.runs else ()
    return replace(mode, captured_steps=captured_steps(program.captured, device), rewritten_operators=count,
                   rewritten_seconds=seconds, steps=steps, regions=program.regions, backward=backward)


def keeping(mode: ModeProgram, kept: dict[Node, str], device: Device) -> ModeProgram:
    """The mode planned again with more operators left to PyTorch."""
    if not kept:
        return mode
    return replace(mode, plan=make_plan(mode.rewriting.graph, mode.captured, {**mode.plan.kept, **kept},
                                        move_bias=device.adds_bias_apart or bool(mode.plan.channels_last),
                                        channels_last=mode.plan.channels_last, contractions=mode.plan.contractions,
                                        fused_products=mode.plan.fused_products))


def saving_plan(mode: ModeProgram, device: Device) -> Plan | None:
    """The plan of calls that record gradients: the mode's with what it hands its backward among the results, behind
    those of the model; None where it hands over nothing. Callers may write into results, of which copies are kept where
    eager would not refuse that."""
    saved = handed_over(mode.backward)
    known: dict[Device, Plan] = vars(mode).setdefault("_saving", {})  # as of a cached property: a mode never changes
    if not saved or device in known:
        return known.get(device)
    graph = mode.plan.graph
    taken: dict[Node, Hashable] = {memory(n): None for n in graph.outputs if not keeps_result(memory(n), mode.captured)}
    own = tuple(in_own_memory(node, number, taken) for number, node in enumerate(saved))
    graph = replace(graph, outputs=(*graph.outputs, *own), results=(*graph.results, *(Result() for _ in own)))

    def planned(contractions: Mapping[Node, KernelConfig]) -> Plan:
        return make_plan(graph, mode.captured, mode.plan.kept, channels_last=mode.plan.channels_last,
                         move_bias=device.adds_bias_apart or bool(mode.plan.channels_last),
                         contractions=contractions, fused_products=mode.plan.fused_products)

    # What is handed over is stored, so that kernels may reduce less than those that were measured.
    plan = planned(fitting(planned, mode.plan.contractions))
    assert list(plan_tensors(plan)) == list(plan_tensors(mode.plan)), "a program that saves is called like the other"
    known[device] = plan
    return plan


def without(modes: Sequence[ModeProgram], failed: KernelFailed, device: Device) -> list[ModeProgram]:
    """The modes with the kernels that could not be written or built left to PyTorch; with all of them, where no mode
    has such a kernel. Raises what failed where no mode has any kernel. A kind of kernel that the target lacks is no
    fault: all of it go, with the rules that made it, and no more; nor are sizes that it does not take."""
    lost = [_fails_backward(mode, failed, device) for mode in modes]
    if any(lost):
        return [mode.without_backward(str(failed.cause)) if fails else mode
                for mode, fails in zip(modes, lost, strict=True)]
    if isinstance(failed.cause, NoSkeleton):
        return [_without_kind(mode, failed.cause, device) for mode in modes]
    reason = str(failed.cause) if isinstance(failed.cause, Unsuitable) else told(failed.cause)
    # Of another number of batch entries it is another kernel for the same operators.
    at_fault = {(n.op, n.origin) for step in failed.steps for n in step.covers}
    result = [keeping(mode, {n: why for step in mode.plan.kernels for n, why in step.left(reason).items()
                             if (n.op, n.origin) in at_fault}, device) for mode in modes]
    if all(old is new for old, new in zip(modes, result, strict=True)):
        if not any(mode.plan.kernels for mode in modes):
            raise failed.cause
        result = [original(mode, reason, device) for mode in modes]
    return [with_failures(mode) for mode in result]


def _fails_backward(mode: ModeProgram, failed: KernelFailed, device: Device) -> bool:
    """Whether a kernel that failed may be one of a mode's backward, or of calls that hand this what they computed."""
    own = [step.kernel for backward in mode.backward for step in backward.plan.kernels]
    if (saving := saving_plan(mode, device)) is not None:
        plain = [step.kernel for step in mode.plan.kernels]
        own += [step.kernel for step in saving.kernels if step.kernel not in plain]
    if isinstance(failed.cause, NoSkeleton):
        return any(type(kernel) is failed.cause.kind for kernel in own)
    kernels = [step.kernel for step in failed.steps]
    return bool(own) and (not kernels or any(kernel in kernels for kernel in own))


def _without_kind(mode: ModeProgram, lacking: NoSkeleton, device: Device) -> ModeProgram:
    """The mode without kernels of a kind, and a note on the rules that went with them."""
    if not any(type(step.kernel) is lacking.kind for step in mode.plan.kernels):
        return mode
    step = without_kind(mode.captured, device, str(lacking), mode.rewriting, mode.plan, lacking.kind)
    note = f"{words_of(mode.name).capitalize()} mode is planned without {step.without}: {lacking}."
    return replace(mode, rewriting=step.rewriting, plan=step.plan(mode.captured, device),
                   notes=(*mode.notes, note) if step.without else mode.notes)


def with_failures(mode: ModeProgram) -> ModeProgram:
    """The mode with a note on each bug of ours that leaves operators of it to PyTorch."""
    notes = [f"{words_of(mode.name).capitalize()} mode leaves operators to PyTorch: {reason}."
             for reason in mode.plan.kept.values() if reason.startswith(FAILED)]
    return replace(mode, notes=tuple(dict.fromkeys((*mode.notes, *notes))))


def stepped_back(mode: ModeProgram, step: StepBack, device: Device, found: str) -> ModeProgram:
    """The mode planned again with something given up, and the note that says so. found: what was wrong with it."""
    note = f"{words_of(mode.name).capitalize()} mode is planned without {step.without}, as the program with them " \
        f"failed: {found}"
    plan = step.plan(mode.captured, device)
    backward = mode.backward if plan.kernels else ()
    if backward and step.rewriting.dropped != mode.rewriting.dropped:  # its graph is made by the same rules
        try:
            backward = make_backward(mode.captured, device, step.rewriting.dropped, frozen(mode.model),
                                     step.rewriting.graph)
        except Exception as error:
            if not is_ours(error) or is_out_of_memory(error):
                raise
            backward = ()
    return replace(mode, rewriting=step.rewriting, plan=plan, backward=backward, notes=(*mode.notes, note))


def original(mode: ModeProgram, reason: str, device: Device) -> ModeProgram:
    """The mode with all operators left to PyTorch as captured; as it is where there is no reason."""
    if not reason:
        return mode
    step = whole_mode(mode.captured, reason)
    return replace(mode, rewriting=step.rewriting, plan=step.plan(mode.captured, device), one_launch=False, backward=())


def apart(mode: ModeProgram) -> list[ModeProgram]:
    """A mode as two where it serves calls that record gradients and calls that do not."""
    if len(mode.recordings) == 1:
        return [mode]
    return [replace(mode, recordings=(False,), backward=()),
            replace(mode, name=f"{mode.name}_{RECORDED}", recordings=(True,))]


def given_up(mode: ModeProgram, reason: str, device: Device) -> list[ModeProgram]:
    """The mode with all operators left to PyTorch, but for calls that record gradients which kernels find: these were
    kept as a step of training is faster by them, whatever a call alone takes."""
    if not mode.backward:
        return [original(mode, reason, device)]
    *others, recorded = apart(mode)
    note = f"{words_of(mode.name).capitalize()} mode has kernels in calls that record gradients alone: a step of " \
        "training is faster by them, and other calls are not."
    return [*(original(m, reason, device) for m in others),
            replace(recorded, notes=(*recorded.notes, *([note] if others else [])))]


def laid_out(mode: ModeProgram, strides: Mapping[bool, Sequence[tuple[int, ...] | None]], device: Device
             ) -> list[ModeProgram]:
    """The mode with the strides that its results have in eager calls, by whether these record gradients (None of what
    is no plain tensor); two modes where they depend on that."""

    def with_strides(mode: ModeProgram, found: Sequence[tuple[int, ...] | None]) -> ModeProgram:
        results = tuple(replace(r, strides=s) for r, s in zip(mode.captured.results, found, strict=True))
        outputs = tuple(node if wanted is None else stored_as(node, wanted)
                        for node, wanted in zip(mode.captured.outputs, found, strict=True))
        captured = replace(mode.captured, results=results, outputs=outputs)
        if outputs == mode.captured.outputs:
            rewriting = replace(mode.rewriting, graph=replace(mode.rewriting.graph, results=results))
            return replace(mode, captured=captured, rewriting=rewriting,
                           plan=replace(mode.plan, graph=replace(mode.plan.graph, results=results)))
        rewriting = rewrite(captured, device, mode.rewriting.dropped)
        nodes = set(rewriting.graph.nodes())
        last = mode.plan.channels_last & nodes
        kept = {n: reason for n, reason in mode.plan.kept.items() if n in nodes}
        plan = make_plan(rewriting.graph, captured, kept, move_bias=device.adds_bias_apart or bool(last),
                         channels_last=last, fused_products=mode.plan.fused_products)
        return replace(mode, captured=captured, rewriting=rewriting,
                       plan=replace(plan, layout=mode.plan.layout if last else ""))

    if len(set(map(tuple, strides.values()))) == 1:
        return [with_strides(mode, next(iter(strides.values())))]
    return [with_strides(part, strides[part.recordings[0]]) for part in apart(mode)]


def as_called(mode: ModeProgram | Variant, module: nn.Module) -> nn.Module:
    """A module to be called without gradients, as the mode is: one of recorded calls alone records them itself."""
    return module if False in mode.recordings else _Recording(module)


class _Recording(nn.Module):
    """A module whose calls record gradients."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        with torch.enable_grad():
            return self.module(*inputs)
