"""The modes of a model are made: captured, rewritten, planned, and written as the text of a file."""

from __future__ import annotations

import itertools
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch
from torch import nn

from kernelwright.adjoint.backward import handed_over
from kernelwright.algebra.engine import rewrite
from kernelwright.algebra.precision import exact_convolutions
from kernelwright.capture.carried import Carries
from kernelwright.capture.deciding import decided_by
from kernelwright.capture.export import NotCapturable, capture
from kernelwright.capture.parts import alike, hooked
from kernelwright.capture.tracing import Questions, import_tracer
from kernelwright.capture.values import BuildsParts
from kernelwright.codegen.generate import TARGETS, KernelFailed, generate, support_text
from kernelwright.device_lock import clock
from kernelwright.emit.embedded import Library
from kernelwright.emit.facts import own_classes
from kernelwright.emit.file import Sized, Variant, emit_file
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
from kernelwright.ir.graph import Graph, render
from kernelwright.modes import (
    RECORDED,
    ModeProgram,
    described_mode,
    distinct,
    keeping,
    named_modes,
    programs_of,
    stepped_back,
    unknown,
    unplanned,
    with_failures,
    without,
)
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelStep
from kernelwright.problem import Problem
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.problem.outside import read_outside
from kernelwright.problem.probe import after_first_call, carried_attributes
from kernelwright.problem.state import classes_of, in_mode_of, modes_of, tensors_kept
from kernelwright.progress import Progress, counting
from kernelwright.records import Span, words_of
from kernelwright.roofline.devices import Device
from kernelwright.settings import Settings
from kernelwright.tune.budget import Budget, unmeasured
from kernelwright.tune.contractions import predicted
from kernelwright.tune.layouts import predicted_plan
from kernelwright.version import VERSION
from kernelwright.way_back.culprits import at_fault
from kernelwright.way_back.fallback import steps_back

#: The mode in which a constructor leaves some modules in training and others in evaluation.
MIXED = "mixed"
#: A mode is not traced again more often than this, each time with other submodules left to PyTorch.
_MOST_TRACES = 16
#: Models of so many bytes share their parameters: those that modes are captured of, and the one that trials change and
#: leave as it was.
_MANY_BYTES = 1 << 30
#: For the search for kernels with which no file can be made.
_WRITING_SECONDS = 60.0
#: A mode's graph, or why there is none.
Captured = Graph | NotCapturable | ForwardRaised | DataDependentControlFlow | HiddenState
_WHY = {DataDependentControlFlow: "it decides by the values of a tensor",
        HiddenState: "it keeps state in plain attributes"}
@dataclass(slots=True)
class Stages:
    """Progress, the budget of the run, and the seconds that each stage took."""

    progress: Progress
    budget: Budget = field(default_factory=lambda: unmeasured(20.0))
    seconds: dict[str, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    began: float = field(default_factory=clock)

    @contextmanager
    def stage(self, name: str, of: str = "") -> Iterator[None]:
        """The block does the work of a stage. of: which part of it, for the trace of the run."""
        started, place = clock(), len(self.spans)
        self.spans.append(Span(name, of, started - self.began, None))  # before those within it
        try:
            with self.progress.stage(name, of), counting(self):
                yield
        finally:
            self.spans[place] = replace(self.spans[place], seconds=clock() - started)
        self.seconds[name] = self.seconds.get(name, 0.0) + clock() - started

    def say(self, text: str) -> None:
        """Show one line of detail within the current stage, and keep it."""
        self.spans.append(Span("", text, clock() - self.began, None))
        self.progress.say(text)

    def count(self, done: int, total: int) -> None:
        """Show how many parts of the current stage are done."""
        self.progress.count(done, total)


def understand(problem: Problem, example: list[Any], device: Device, settings: Settings, stages: Stages, *,
               predict: bool = False) -> tuple[list[ModeProgram], list[str]]:
    """Capture the modes, rewrite and plan them: training and inference, and the mode in which the constructor leaves
    the model where that is neither.

    A forward may ask whether gradients are recorded, and in which mode its modules are: what asks is captured once for
    each set of answers, and calls with gradients are a mode of their own where the graphs differ. A mode in which the
    model itself raises an error is left out: so does what is emitted. One that no graph can hold stays as it is.
    predict: let the roofline model choose the contractions that become kernels, as nothing will be measured.
    Raises ForwardRaised where the model raises in every mode, DataDependentControlFlow and HiddenState where no mode
    is a graph.
    """
    with stages.stage("capture", "imports"):
        import_tracer()
    notes = [f"{note[:1].upper()}{note[1:]}." for note in extract_model_source(problem).notes]
    if problem.gives_arrays():
        notes.append("The example has NumPy arrays; kernels are for tensors of their types: calls with "
                     "torch.from_numpy(array) have them, and calls with arrays run the original computation.")
    modes: list[ModeProgram] = []
    raised: list[ForwardRaised] = []
    refused: list[KernelwrightError] = []
    predict = predict and settings.contractions == "measured" and any(
        t.device == device.kind and Contraction in t.skeletons for t in TARGETS.values())
    served: list[tuple[str, Questions, dict[str, bool], list[ModeProgram]]] = []  # what each mode asked, and is told
    models = _models(problem, settings.seed)
    in_training, in_inference = (modes_of(models[name]) for name in ("training", "inference"))
    for mode, candidate in models.items():
        left: dict[str, str] = {}
        asked, answers = Questions(), modes_of(candidate)
        alike = next((e for e in served if e[1].same_answers(e[2], answers)), None)
        if alike is not None:
            if alike[1].builds:
                after_first_call(problem, candidate, settings.seed)
            modes += [m.in_mode(mode + m.name.removeprefix(alike[0]), candidate) for m in alike[3]]
            continue
        made: list[ModeProgram] = []
        for name, recordings, graph in _captured(problem, mode, candidate, example, settings, stages, left, asked):
            if isinstance(graph, ForwardRaised):
                raised.append(graph)
                notes.append(f"{words_of(name).capitalize()} mode stays as it is: {graph.what}")
                continue
            if not isinstance(graph, Graph):
                refused += [graph] if isinstance(graph, KernelwrightError) else []
                notes.append(f"{words_of(name).capitalize()} mode stays as it is: {_why(graph).rstrip('.')}.")
                modes.append(unknown(name, candidate, recordings))
                continue
            if settings.precision == "strict" and device.rounds_products:
                graph = exact_convolutions(graph)
            try:
                with stages.stage("rewrite", words_of(name)):
                    rewriting = rewrite(graph, device)
                with stages.stage("plan", words_of(name)):
                    chosen = predicted(rewriting.graph, graph, device) if predict else {}
                    plan = make_plan(rewriting.graph, graph, move_bias=device.adds_bias_apart, contractions=chosen,
                                     fused_products=device.fused_products)
                    plan = predicted_plan(plan, graph, device)
                    modes.append(with_failures(ModeProgram(name, candidate, graph, rewriting, plan, recordings)))
            except Exception as error:
                if not is_ours(error) or is_out_of_memory(error):
                    raise
                modes.append(_after(error, ModeProgram(name, candidate, graph, *unplanned(graph), recordings), device))
            made.append(modes[-1])
            notes += [note for note in [decided_by(graph)] if note and note not in notes]
            # The mode of a module tells what it was told, where it follows.
            asked.others = asked.others or not all(in_training.get(p) and not in_inference.get(p) for p in asked.told)
            if {recording for m in made for recording in m.recordings} == {False, True}:
                served.append((mode, asked, answers, made))
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
            share_large(made, model)
    return found


def share_large(one: nn.Module, other: nn.Module) -> nn.Module:
    """``one``, after ``other`` was given its very parameters, which are equal, where they are large."""
    own, others = dict(one.named_parameters()), dict(other.named_parameters())
    if sum(p.nbytes for p in own.values()) >= _MANY_BYTES and own.keys() == others.keys():
        for name, parameter in others.items():
            parameter.data = own[name].data
    return one


def _with_parts_left(problem: Problem, model: nn.Module, example: list[Any], settings: Settings, recording: bool,
                     left: dict[str, str], asked: Questions) -> Graph:
    """A mode's graph with those submodules left to PyTorch that are in its way: ``left`` gets their paths and reasons,
    ``asked`` what of the mode the forward asked for.

    Raises NotCapturable and the coded errors of :func:`capture` where the model's own forward is in the way.
    """
    left |= hooked(model)
    traces = itertools.count()

    def fresh() -> nn.Module:
        made = in_mode_of(problem.make_model(settings.seed), model)
        return after_first_call(problem, made, settings.seed) if asked.builds else made

    looked_at: set[str] = set()  # of these it is known whether they are caches

    def check_state(changed: Sequence[str]) -> Sequence[str]:
        if set(changed) <= looked_at:
            return asked.attributes
        carried = carried_attributes(problem, settings.seed, changed, modes_of(model))
        looked_at.update(changed, carried)
        return carried

    while True:
        attempt = next(traces)
        try:
            return capture(
                model, example, name=problem.class_name, file=str(problem.path) if problem.path else None,
                fresh=fresh, check_state=check_state, recording=recording, left=tuple(left), modes=asked,
                attributes=asked.attributes)
        except Carries as state:
            asked.attributes = tuple(dict.fromkeys((*asked.attributes, *state.names)))
            if state.later:
                asked.builds = True
                after_first_call(problem, model, settings.seed)
        except BuildsParts:
            if asked.builds:
                raise
            asked.builds = True
            after_first_call(problem, model, settings.seed)
        except (NotCapturable, DataDependentControlFlow, HiddenState) as reason:
            path, why = reason.module, _why(reason)
            if path in left:  # a call of it is no node: one of the module around it may be
                first, path = left[path], path.rpartition(".")[0]
                why = first if why in first else f"{why}; it was left to PyTorch because {first}"
                for inner in [p for p in left if p.startswith(f"{path}.")]:
                    del left[inner]
            if not path or attempt >= _MOST_TRACES:
                reason.args = (why,) if isinstance(reason, NotCapturable) else reason.args
                raise
            left |= dict.fromkeys(alike(model, path), why)


def _captured(problem: Problem, name: str, model: nn.Module, example: list[Any], settings: Settings, stages: Stages,
              left: dict[str, str], asked: Questions) -> list[tuple[str, tuple[bool, ...], Captured]]:
    """A mode's graph, or why it has none, by name and by whether gradients are recorded: one entry where both agree,
    as they do where the forward does not ask. ``asked`` gets what of the mode it did ask for."""
    found: dict[bool, Captured] = {}
    for recording in (True, False):
        try:
            with stages.stage("capture", words_of(name)):
                found[recording] = _with_parts_left(problem, model, example, settings, recording, left, asked)
            if not asked.gradients:
                return [(name, (False, True), found[recording])]
        except (NotCapturable, ForwardRaised, DataDependentControlFlow, HiddenState) as reason:
            found[recording] = reason
        except Exception as error:
            if not is_ours(error) or is_out_of_memory(error):
                raise
            found[recording] = NotCapturable(told(error))
    if _asked_in_vain(found[False], found[True]):
        return [(name, (False, True), found[True])]
    return [(name, (False,), found[False]), (f"{name}_{RECORDED}", (True,), found[True])]


def captured_mode(problem: Problem, mode: ModeProgram, example: list[Any], settings: Settings, stages: Stages
                  ) -> Captured:
    """A mode's graph with other inputs than it was captured with, or why there is none."""
    found = _captured(problem, mode.name, mode.model, example, settings, stages, {}, Questions())
    return next(graph for _, recordings, graph in found if mode.recordings[0] in recordings)


def _asked_in_vain(plain: Captured, recorded: Captured) -> bool:
    """Whether what was captured without gradients and with them is the same but for how far gradients reach."""
    if isinstance(plain, Graph) and isinstance(recorded, Graph):
        kept = [[(r.given, r.strides) for r in graph.results] for graph in (plain, recorded)]
        return (render(plain) == render(recorded) and plain.structure == recorded.structure
                and plain.asks == recorded.asks and plain.decided == recorded.decided
                and plain.asked_of_inputs == recorded.asked_of_inputs and kept[0] == kept[1])
    return type(plain) is type(recorded) and str(plain) == str(recorded)


def emitted_text(problem: Problem, modes: Sequence[ModeProgram], example: list[Any], target: str, device: Device,
                 libraries: Sequence[Library] = (), sized: Sized | None = None,
                 examples: Mapping[str, list[Any]] | None = None) -> tuple[str, tuple]:
    """The emitted file's text, and its parts (variants, sources, support) for those who check them. libraries: of its
    very kernels, that it holds. sized: what serves calls of several sizes, where the file does. examples: the example
    inputs by floating-point type, the model's own first, where the file serves several."""
    useful = [m for m in modes if m.runs]
    if sized is not None:
        useful = [replace(m, backward=()) for m in useful]
    saves = [bool(handed_over(m.backward)) for m in useful]
    plans, sources = generate(programs_of(useful, device), target)
    own = iter(plans)
    plans = [next(own) for _ in useful]
    saving = [next(own) if one else None for one in saves]
    backwards = [tuple(replace(b, plan=next(own)) for b in m.backward) for m in useful]
    support = support_text(sources.values(), target) if sources else ""
    examples = examples or {}
    variants = [Variant(m.name, p, m.model, examples.get(m.dtype, example), m.recordings, m.graph, m.dtype, b, s)
                for m, p, b, s in zip(useful, plans, backwards, saving, strict=True)]
    served = {m.model.training for m in useful}
    left = [name for name, training in (("training", True), ("inference", False)) if training not in served]
    described = [described_mode(m, device) for m in distinct(named_modes(modes, device))]
    header = make_header(problem.name, described, VERSION, device.title)
    if sized is not None:
        header = f"{header}\n\n{textwrap.fill(sized.header, 110)}"
    if examples:
        header += f"\n\nIt has kernels for {', '.join(examples)}, of which each call gets those of its tensors' type."
    names = {n for v in variants for n in own_classes(v.plan, v.model, v.inputs)}
    source = extract_model_source(problem, names=names)
    if source.clashes:
        raise SourceUnavailable(model=problem.class_name, found="it uses names that the emitted file needs: "
                                + ", ".join(source.clashes))
    text = emit_file(header, source, variants, left, sources, support, target=TARGETS[target],
                     name=name_in_file(problem), libraries=libraries, sized=sized, dtypes=tuple(examples))
    return text, (variants, sources, support)


def name_in_file(problem: Problem) -> str:
    """The name by which an emitted file calls itself and its library."""
    return problem.name if problem.name.isidentifier() else "model"


def written(problem: Problem, modes: Sequence[ModeProgram], example: list[Any], target: str, device: Device
            ) -> tuple[list[ModeProgram], str, tuple]:
    """The modes, without kernels that have no text for the target or with which no file can be made that Python reads,
    the emitted file's text, and its parts.

    Kernels with which no file can be made are found by halves: for each, modes are planned and written the logarithm of
    their number of times.
    """
    modes = list(modes)
    while True:
        try:
            return modes, *_readable_text(problem, modes, example, target, device)
        except KernelFailed as failed:
            modes = without(modes, failed, device)
        except Exception as error:
            if not is_ours(error) or is_out_of_memory(error):
                raise
            if any(m.backward for m in modes):
                modes = [m.without_backward(told(error)) for m in modes]
                continue
            refused = _unwritable(problem, modes, example, target, device)
            modes = without(modes, KernelFailed(refused, error), device)


def _readable_text(problem: Problem, modes: Sequence[ModeProgram], example: list[Any], target: str, device: Device
                   ) -> tuple[str, tuple]:
    """As :func:`emitted_text`. Raises SyntaxError, too."""
    text, parts = emitted_text(problem, modes, example, target, device)
    compile(text, f"{problem.name}_new.py", "exec", dont_inherit=True)
    return text, parts


def _unwritable(problem: Problem, modes: Sequence[ModeProgram], example: list[Any], target: str, device: Device
                ) -> list[KernelStep]:
    """The kernels with which no file can be made; none where one can be made, or where even one without them cannot."""
    kernels = list(dict.fromkeys(step for mode in modes for step in mode.plan.kernels))

    def fails(kept: Sequence[KernelStep]) -> bool:
        left = [keeping(m, {n: why for s in m.plan.kernels if s not in kept for n, why in s.left(FAILED).items()},
                        device) for m in modes]
        try:
            _readable_text(problem, left, example, target, device)
        except Exception as error:
            return is_ours(error)
        return False

    return at_fault(kernels, fails, clock() + _WRITING_SECONDS)


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


def model_of(problem: Problem, mode: ModeProgram, settings: Settings) -> nn.Module:
    """Another model of the problem as the mode's was captured."""
    return as_captured(problem, mode.model, problem.make_model(settings.seed), settings.seed)


def as_captured(problem: Problem, captured: nn.Module, made: nn.Module, seed: int) -> nn.Module:
    """``made``, the problem's model or a ModelNew, in the mode of one that was captured: called once where that was
    captured after a call that built submodules, or left the first tensors in plain attributes."""
    made = in_mode_of(made, captured)
    is_alike = classes_of(made) == classes_of(captured) and tensors_kept(made) == tensors_kept(captured)
    return made if is_alike else after_first_call(problem, made, seed)


def new_model(emitted: Any, problem: Problem, seed: int) -> nn.Module:
    """A ModelNew with the problem's parameters: constructed alike, or a copy of the instance in its class."""
    if problem.is_instance:
        model = problem.make_model(seed)
        if hasattr(emitted, "_kernelwright_own"):  # submodules keep the classes of the user's file
            emitted._kernelwright_own.add(type(model).__module__)
        model.__class__ = emitted.ModelNew
        return model
    return problem.make_model(seed, emitted.ModelNew)
