"""The modes of a model on their way to a file: captured, rewritten, planned, and their emitted text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

import kernelwright
from kernelwright.algebra.engine import Rewriting, rewrite
from kernelwright.algebra.precision import exact_convolutions
from kernelwright.capture.export import NotCapturable, capture
from kernelwright.codegen.generate import generate, has_skeleton, support_text
from kernelwright.emit.file import Variant, emit_file
from kernelwright.emit.header import make_header
from kernelwright.emit.model_source import extract_model_source
from kernelwright.errors import SourceUnavailable
from kernelwright.fallback import StepBack, whole_mode
from kernelwright.ir.graph import Graph, render
from kernelwright.ir.node import Node
from kernelwright.plan.contraction import Contraction
from kernelwright.plan.describe import describe
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import Plan
from kernelwright.problem import Problem
from kernelwright.problem.probe import probe_forward
from kernelwright.progress import Progress
from kernelwright.records import Mode
from kernelwright.roofline.devices import Device
from kernelwright.settings import Settings
from kernelwright.timing.turns import clock
from kernelwright.tune.contractions import predicted


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


@dataclass(frozen=True, slots=True)
class ModeProgram:
    """One mode on its way: the model in it, what was captured, and what became of that.

    notes: sentences on what was given up, and why.
    """

    name: str
    model: nn.Module
    captured: Graph
    rewriting: Rewriting
    plan: Plan
    notes: tuple[str, ...] = ()


def understand(problem: Problem, example: list[Any], device: Device, settings: Settings, stages: Stages, *,
               predict: bool = False) -> tuple[list[ModeProgram], list[str]]:
    """Capture both modes, rewrite and plan them. Modes with the same program appear once.

    predict: let the roofline model choose the contractions that become kernels, as nothing will be measured.
    """
    notes = [f"{note[:1].upper()}{note[1:]}." for note in extract_model_source(problem).notes]
    model = problem.make_model(settings.seed)
    other = problem.make_model(settings.seed).train(not model.training)
    modes: list[ModeProgram] = []
    predict = predict and settings.contractions == "measured" and device.kind == "cuda" and has_skeleton(
        Contraction, "cuda")
    for candidate in (model, other):
        name = "training" if candidate.training else "inference"
        try:
            with stages.stage("capture"):
                graph = capture(candidate, example, name=problem.class_name,
                                file=str(problem.path) if problem.path else None,
                                fresh=lambda training=candidate.training:
                                problem.make_model(settings.seed).train(training),
                                check_state=lambda: probe_forward(problem, settings.seed).state_attributes)
        except NotCapturable as reason:
            notes.append(f"{name.capitalize()} mode stays as it is: {reason}.")
            modes.append(unknown(name, candidate))
            continue
        if settings.precision == "strict" and device.kind == "cuda":
            graph = exact_convolutions(graph)
        with stages.stage("rewrite"):
            rewriting = rewrite(graph, device)
        with stages.stage("plan"):
            chosen = predicted(rewriting.graph, graph, device) if predict else {}
            # cuDNN's convolutions add their bias in a second pass over the output; oneDNN's do not.
            plan = make_plan(rewriting.graph, graph, move_bias=device.kind == "cuda", contractions=chosen)
            modes.append(ModeProgram(name, candidate, graph, rewriting, plan))
    return modes, notes


def unknown(name: str, model: nn.Module) -> ModeProgram:
    """A mode that could not be captured: a graph of nothing, whose original computation stays."""
    nothing = Graph((), (), (), (), model.training)
    return ModeProgram(name, model, nothing, Rewriting(nothing, (), 0.0, 0.0), Plan(nothing, (), (), ()))


def emitted_text(problem: Problem, modes: Sequence[ModeProgram], example: list[Any], target: str, device: Device
              ) -> tuple[str, tuple]:
    """The emitted file's text, and its parts (variants, sources, support) for those who check them."""
    useful = [m for m in modes if m.plan.kernels]
    plans, sources = generate([m.plan for m in useful], target)
    support = support_text(sources.values(), target) if sources else ""
    variants = [Variant(m.name, p, m.model, example) for m, p in zip(useful, plans, strict=True)]
    left = [n for n in ("training", "inference") if n not in {m.name for m in useful}]
    described = [described_mode(m, device) for m in distinct(modes)]
    header = make_header(problem.name, described, kernelwright.__version__, device.name)
    source = extract_model_source(problem)
    if source.clashes:
        raise SourceUnavailable(model=problem.class_name, found="it uses names that the emitted file needs: "
                                + ", ".join(source.clashes))
    text = emit_file(header, source, variants, left, sources, support, cuda=target == "cuda",
                     name=problem.name if problem.name.isidentifier() else "model")
    return text, (variants, sources, support)


def distinct(modes: Sequence[ModeProgram]) -> list[ModeProgram]:
    """The modes without repetition of the same program."""
    seen: set[str] = set()
    return [m for m in modes if not ((text := render(m.captured)) in seen or seen.add(text))]


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
    note = f"{mode.name.capitalize()} mode is planned without {step.without}, as the program with them failed: {found}"
    return replace(mode, rewriting=step.rewriting, plan=step.plan(mode.captured, device), notes=(*mode.notes, note))


def original(mode: ModeProgram, reason: str, device: Device) -> ModeProgram:
    """The mode with all operators left to PyTorch as captured; as it is where there is no reason."""
    if not reason:
        return mode
    step = whole_mode(mode.captured, reason)
    return replace(mode, rewriting=step.rewriting, plan=step.plan(mode.captured, device))


def new_model(emitted: Any, problem: Problem, seed: int) -> nn.Module:
    """A ModelNew with the problem's parameters: constructed alike, or a copy of the instance in its class."""
    if problem.is_instance:
        model = problem.make_model(seed)
        if hasattr(emitted, "_kernelwright_own"):  # submodules keep the classes of the user's file
            emitted._kernelwright_own.add(type(model).__module__)
        model.__class__ = emitted.ModelNew
        return model
    return problem.make_model(seed, emitted.ModelNew)
