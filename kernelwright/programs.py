"""The modes of a model on their way to a file: captured, rewritten, planned, and their emitted text."""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
from torch import nn

import kernelwright
from kernelwright.algebra.engine import Rewriting, rewrite
from kernelwright.algebra.precision import exact_convolutions
from kernelwright.capture.export import NotCapturable, capture
from kernelwright.capture.parts import hooked
from kernelwright.capture.values import stored_as
from kernelwright.codegen.generate import KernelFailed, generate, has_skeleton, support_text
from kernelwright.emit.facts import own_classes
from kernelwright.emit.file import Variant, emit_file
from kernelwright.emit.header import make_header
from kernelwright.emit.model_source import extract_model_source
from kernelwright.errors import (
    DataDependentControlFlow,
    ForwardRaised,
    HiddenState,
    KernelwrightError,
    SourceUnavailable,
)
from kernelwright.failures import FAILED, is_ours, told
from kernelwright.fallback import StepBack, steps_back, whole_mode
from kernelwright.ir.graph import Graph, render
from kernelwright.ir.node import Node
from kernelwright.plan.contraction import Contraction
from kernelwright.plan.describe import describe
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import Plan
from kernelwright.problem import Problem
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.problem.outside import read_outside
from kernelwright.problem.probe import probe_forward
from kernelwright.problem.state import in_mode_of, modes_of
from kernelwright.progress import Progress
from kernelwright.records import Mode, words_of
from kernelwright.roofline.devices import Device
from kernelwright.settings import Settings
from kernelwright.timing.turns import clock
from kernelwright.tune.contractions import predicted

#: The mode in which a constructor leaves some modules in training and others in evaluation.
MIXED = "mixed"
#: More submodules than these are not left to PyTorch one by one: each costs a trace.
_MOST_LEFT = 16
#: A mode's graph, or why there is none.
Captured = Graph | NotCapturable | ForwardRaised | DataDependentControlFlow | HiddenState
_WHY = {DataDependentControlFlow: "it decides by the values of a tensor",
        HiddenState: "it keeps state in plain attributes"}
#: Ends the name of a mode that differs where gradients are recorded.
RECORDED = "with_gradients"


@dataclass(slots=True)
class Stages:
    """Progress, and the seconds that each stage took."""

    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = clock()
        with self.progress.stage(name):
            yield
        self.seconds[name] = self.seconds.get(name, 0.0) + clock() - started


@dataclass(frozen=True)
class ModeProgram:
    """One mode on its way: the model in it, what was captured, and what became of that.

    recordings: whether its calls record gradients; both where that changes nothing in the graph. notes: sentences on
    what was given up, and why.
    """

    name: str
    model: nn.Module
    captured: Graph
    rewriting: Rewriting
    plan: Plan
    recordings: tuple[bool, ...] = (False, True)
    notes: tuple[str, ...] = ()

    @cached_property
    def program(self) -> Hashable:
        """Equal for modes that run the same program."""
        contractions = frozenset((node, repr(choice)) for node, choice in self.plan.contractions.items())
        return (render(self.captured), repr(self.captured.structure),
                tuple(r.strides for r in self.captured.results), render(self.rewriting.graph),
                frozenset(self.plan.kept), contractions, self.plan.channels_last)


def understand(problem: Problem, example: list[Any], device: Device, settings: Settings, stages: Stages, *,
               predict: bool = False) -> tuple[list[ModeProgram], list[str]]:
    """Capture the modes, rewrite and plan them: training and inference, and the mode in which the constructor leaves
    the model where that is neither.

    A forward may ask whether gradients are recorded: each mode is captured under both answers, and is two modes where
    the graphs differ. A mode in which the model itself raises an error is left out: so does what is emitted. One that
    no graph can hold stays as it is.
    predict: let the roofline model choose the contractions that become kernels, as nothing will be measured.
    Raises ForwardRaised where the model raises in every mode, DataDependentControlFlow and HiddenState where no mode
    is a graph.
    """
    notes = [f"{note[:1].upper()}{note[1:]}." for note in extract_model_source(problem).notes]
    modes: list[ModeProgram] = []
    raised: list[ForwardRaised] = []
    refused: list[KernelwrightError] = []
    predict = predict and settings.contractions == "measured" and device.kind == "cuda" and has_skeleton(
        Contraction, "cuda")
    for mode, candidate in _models(problem, settings.seed).items():
        left: dict[str, str] = {}
        for name, recordings, graph in _captured(problem, mode, candidate, example, settings, stages, left):
            if isinstance(graph, ForwardRaised):
                raised.append(graph)
                notes.append(f"{words_of(name).capitalize()} mode stays as it is: {graph.what}")
                continue
            if not isinstance(graph, Graph):
                refused += [graph] if isinstance(graph, KernelwrightError) else []
                notes.append(f"{words_of(name).capitalize()} mode stays as it is: {_why(graph).rstrip('.')}.")
                modes.append(unknown(name, candidate, recordings))
                continue
            if settings.precision == "strict" and device.kind == "cuda":
                graph = exact_convolutions(graph)
            try:
                with stages.stage("rewrite"):
                    rewriting = rewrite(graph, device)
                with stages.stage("plan"):
                    chosen = predicted(rewriting.graph, graph, device) if predict else {}
                    # cuDNN's convolutions add their bias in a second pass over the output; oneDNN's do not.
                    plan = make_plan(rewriting.graph, graph, move_bias=device.kind == "cuda", contractions=chosen)
                    modes.append(_with_failures(ModeProgram(name, candidate, graph, rewriting, plan, recordings)))
            except Exception as error:
                if not is_ours(error) or is_out_of_memory(error):
                    raise
                modes.append(_after(error, ModeProgram(name, candidate, graph, *_planned(graph), recordings), device))
        notes += [f"{path} stays with PyTorch in {words_of(mode)} mode: {reason.rstrip('.')}."
                  for path, reason in left.items() if isinstance(graph, Graph)]
    if refused and not any(m.captured.outputs for m in modes):
        raise refused[0]
    if not modes:
        raise raised[0]
    return modes, notes


def _why(refusal: NotCapturable | DataDependentControlFlow | HiddenState) -> str:
    """Why no graph holds something, and in which of the user's lines."""
    if isinstance(refusal, NotCapturable):
        return str(refusal)
    return _WHY[type(refusal)] + (f" ({' '.join(refusal.where.split())})" if refusal.where else "")


def _after(error: Exception, mode: ModeProgram, device: Device) -> ModeProgram:
    """A mode whose rewriting or planning failed, with as little given up as does."""
    for step in steps_back(mode.captured, device, told(error)):
        try:
            return stepped_back(mode, step, device, told(error))
        except Exception as again:
            if not is_ours(again):
                raise
    note = f"{words_of(mode.name).capitalize()} mode stays as it is: {told(error)}."
    return replace(unknown(mode.name, mode.model, mode.recordings), notes=(note,))


def without(modes: Sequence[ModeProgram], failed: KernelFailed, device: Device) -> list[ModeProgram]:
    """The modes with the kernels that could not be written or built left to PyTorch. Raises what failed where no mode
    has such a kernel."""
    reason = told(failed.cause)
    # Of another number of batch entries it is another kernel for the same operators.
    at_fault = {(n.op, n.origin) for step in failed.steps for n in step.covers}
    result = [keeping(mode, {n: reason for step in mode.plan.kernels for n in step.covers
                             if (n.op, n.origin) in at_fault}, device) for mode in modes]
    if all(old is new for old, new in zip(modes, result, strict=True)):
        raise failed.cause
    return [_with_failures(mode) for mode in result]


def _with_failures(mode: ModeProgram) -> ModeProgram:
    """The mode with a note on each bug of ours that leaves operators of it to PyTorch."""
    notes = [f"{words_of(mode.name).capitalize()} mode leaves operators to PyTorch: {reason}."
             for reason in mode.plan.kept.values() if reason.startswith(FAILED)]
    return replace(mode, notes=tuple(dict.fromkeys((*mode.notes, *notes))))


def writable(modes: Sequence[ModeProgram], target: str, device: Device) -> list[ModeProgram]:
    """The modes, of which every kernel has a text for the target."""
    while True:
        try:
            generate([m.plan for m in modes], target)
            return list(modes)
        except KernelFailed as failed:
            modes = without(modes, failed, device)


def _models(problem: Problem, seed: int) -> dict[str, nn.Module]:
    """A model in each mode by the mode's name, first as the constructor leaves it.

    That may be a mode of its own, with some modules in training and others in evaluation.
    """
    made = problem.make_model(seed)
    found = {MIXED: made}
    for training in (made.training, not made.training):
        model = problem.make_model(seed).train(training)
        name = "training" if training else "inference"
        if modes_of(model) == modes_of(made):
            found = {name: made}
        else:
            found[name] = model
    return found


def _with_parts_left(problem: Problem, model: nn.Module, example: list[Any], settings: Settings, recording: bool,
                     left: dict[str, str]) -> Graph:
    """A mode's graph with those submodules left to PyTorch that are in its way: ``left`` gets their paths and reasons.

    Raises NotCapturable and the coded errors of :func:`capture` where the model's own forward is in the way.
    """
    left |= hooked(model)
    while True:
        try:
            return capture(
                model, example, name=problem.class_name, file=str(problem.path) if problem.path else None,
                fresh=lambda: in_mode_of(problem.make_model(settings.seed), model),
                check_state=lambda: probe_forward(problem, settings.seed).state_attributes, recording=recording,
                left=tuple(left))
        except (NotCapturable, DataDependentControlFlow, HiddenState) as reason:
            if not reason.module or reason.module in left or len(left) >= _MOST_LEFT:
                raise
            left[reason.module] = _why(reason)


def _captured(problem: Problem, name: str, model: nn.Module, example: list[Any], settings: Settings, stages: Stages,
              left: dict[str, str]) -> list[tuple[str, tuple[bool, ...], Captured]]:
    """A mode's graph, or why it has none, by name and by whether gradients are recorded: one entry where both agree."""
    found: dict[bool, Captured] = {}
    for recording in (False, True):
        try:
            with stages.stage("capture"):
                found[recording] = _with_parts_left(problem, model, example, settings, recording, left)
        except (NotCapturable, ForwardRaised, DataDependentControlFlow, HiddenState) as reason:
            found[recording] = reason
        except Exception as error:
            if not is_ours(error) or is_out_of_memory(error):
                raise
            found[recording] = NotCapturable(told(error))
    if _asked_in_vain(found[False], found[True]):
        return [(name, (False, True), found[True])]
    return [(name, (False,), found[False]), (f"{name}_{RECORDED}", (True,), found[True])]


def _asked_in_vain(plain: Captured, recorded: Captured) -> bool:
    """Whether what was captured without gradients and with them is the same but for how far gradients reach."""
    if isinstance(plain, Graph) and isinstance(recorded, Graph):
        kept = [[(r.given, r.strides) for r in graph.results] for graph in (plain, recorded)]
        return (render(plain) == render(recorded) and plain.structure == recorded.structure
                and plain.asks == recorded.asks and kept[0] == kept[1])
    return type(plain) is type(recorded) and str(plain) == str(recorded)


def unknown(name: str, model: nn.Module, recordings: tuple[bool, ...] = (False, True)) -> ModeProgram:
    """A mode that could not be captured: a graph of nothing, whose original computation stays."""
    nothing = Graph((), (), (), (), model.training)
    return ModeProgram(name, model, nothing, *_planned(nothing), recordings)


def _planned(graph: Graph) -> tuple[Rewriting, Plan]:
    """A graph of which nothing is planned."""
    return Rewriting(graph, (), 0.0, 0.0), Plan(graph, (), (), ())


def emitted_text(problem: Problem, modes: Sequence[ModeProgram], example: list[Any], target: str, device: Device
              ) -> tuple[str, tuple]:
    """The emitted file's text, and its parts (variants, sources, support) for those who check them."""
    useful = [m for m in modes if m.plan.kernels]
    plans, sources = generate([m.plan for m in useful], target)
    support = support_text(sources.values(), target) if sources else ""
    variants = [Variant(m.name, p, m.model, example, m.recordings) for m, p in zip(useful, plans, strict=True)]
    served = {m.model.training for m in useful}
    left = [name for name, training in (("training", True), ("inference", False)) if training not in served]
    described = [described_mode(m, device) for m in distinct(modes)]
    header = make_header(problem.name, described, kernelwright.__version__, device.name)
    names = {n for v in variants for n in own_classes(v.plan, v.model, v.inputs)}
    source = extract_model_source(problem, names=names)
    if source.clashes:
        raise SourceUnavailable(model=problem.class_name, found="it uses names that the emitted file needs: "
                                + ", ".join(source.clashes))
    text = emit_file(header, source, variants, left, sources, support, cuda=target == "cuda",
                     name=problem.name if problem.name.isidentifier() else "model")
    return text, (variants, sources, support)


def distinct(modes: Sequence[ModeProgram]) -> list[ModeProgram]:
    """The modes without repetition of the same program."""
    return list({m.program: m for m in reversed(modes)}.values())[::-1]


def described_mode(mode: ModeProgram, device: Device) -> Mode:
    return describe(mode.name, mode.captured, mode.rewriting, mode.plan, device,
                    texts=(render(mode.captured), render(mode.rewriting.graph)))


def keeping(mode: ModeProgram, kept: dict[Node, str], device: Device) -> ModeProgram:
    """The mode planned again with more operators left to PyTorch."""
    if not kept:
        return mode
    return replace(mode, plan=make_plan(mode.rewriting.graph, mode.captured, {**mode.plan.kept, **kept},
                                        move_bias=device.kind == "cuda" or bool(mode.plan.channels_last),
                                        channels_last=mode.plan.channels_last, contractions=mode.plan.contractions))


def stepped_back(mode: ModeProgram, step: StepBack, device: Device, found: str) -> ModeProgram:
    """The mode planned again with something given up, and the note that says so. found: what was wrong with it."""
    note = f"{words_of(mode.name).capitalize()} mode is planned without {step.without}, as the program with them " \
        f"failed: {found}"
    return replace(mode, rewriting=step.rewriting, plan=step.plan(mode.captured, device), notes=(*mode.notes, note))


def original(mode: ModeProgram, reason: str, device: Device) -> ModeProgram:
    """The mode with all operators left to PyTorch as captured; as it is where there is no reason."""
    if not reason:
        return mode
    step = whole_mode(mode.captured, reason)
    return replace(mode, rewriting=step.rewriting, plan=step.plan(mode.captured, device))


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
        rewriting = rewrite(captured, device)
        kept = {n: mode.plan.kept[n] for n in rewriting.graph.nodes() if n in mode.plan.kept}
        return replace(mode, captured=captured, rewriting=rewriting,
                       plan=make_plan(rewriting.graph, captured, kept, move_bias=device.kind == "cuda"))

    if len(set(map(tuple, strides.values()))) == 1:
        return [with_strides(mode, next(iter(strides.values())))]
    return [with_strides(part, strides[part.recordings[0]]) for part in apart(mode)]


def apart(mode: ModeProgram) -> list[ModeProgram]:
    """A mode as two where it serves calls that record gradients and calls that do not."""
    if len(mode.recordings) == 1:
        return [mode]
    return [replace(mode, recordings=(False,)), replace(mode, name=f"{mode.name}_{RECORDED}", recordings=(True,))]


class _Recording(nn.Module):
    """A module whose calls record gradients."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        with torch.enable_grad():
            return self.module(*inputs)


def as_called(mode: ModeProgram | Variant, module: nn.Module) -> nn.Module:
    """A module to be called without gradients, as the mode is: one of recorded calls alone records them itself."""
    return module if False in mode.recordings else _Recording(module)


def share_tables(emitted: ModuleType, problem: Problem) -> None:
    """Let the emitted module of a model that was given from Python read the tensors that the model's own module has:
    nobody knows where the generators stood when that module drew them. A file is imported under a seed."""
    if problem.path is not None:
        return
    own = vars(sys.modules[problem.model_class.__module__])
    for text in read_outside(problem.make_model(0)).tensors:
        name = re.split(r"\W", text, maxsplit=1)[0]
        if name in own and name in vars(emitted) and isinstance(own[name], (torch.Tensor, list, tuple, dict)):
            setattr(emitted, name, own[name])


def new_model(emitted: Any, problem: Problem, seed: int) -> nn.Module:
    """A ModelNew with the problem's parameters: constructed alike, or a copy of the instance in its class."""
    if problem.is_instance:
        model = problem.make_model(seed)
        if hasattr(emitted, "_kernelwright_own"):  # submodules keep the classes of the user's file
            emitted._kernelwright_own.add(type(model).__module__)
        model.__class__ = emitted.ModelNew
        return model
    return problem.make_model(seed, emitted.ModelNew)
