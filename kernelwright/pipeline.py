"""The product on one page: the stages, called in order, each handing a frozen record to the next."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import kernelwright
from kernelwright.algebra.engine import Rewriting, rewrite
from kernelwright.algebra.precision import exact_convolutions
from kernelwright.algebra.rule import Exactness
from kernelwright.build.emulation import fewer_entries, load_emulated
from kernelwright.build.module import BuildFailed, compile_cuda, find_cpp_compiler, find_cuda_compiler, load_text
from kernelwright.capture.batch import batch_independent
from kernelwright.capture.export import NotCapturable, capture
from kernelwright.codegen.generate import generate, support_text
from kernelwright.emit.file import Variant, emit_file, kernel_source
from kernelwright.emit.header import make_header
from kernelwright.emit.model_source import extract_model_source
from kernelwright.emit.write import default_path, write_file
from kernelwright.errors import NO_CUDA_COMPILER, KernelwrightError, SourceUnavailable, VerificationFailed
from kernelwright.ir.graph import Graph, render
from kernelwright.ir.node import Node
from kernelwright.plan.describe import describe
from kernelwright.plan.kernels import Scan
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import Plan
from kernelwright.problem import Problem, load_problem
from kernelwright.problem.memory import is_out_of_memory, out_of_memory_error
from kernelwright.problem.probe import probe_forward
from kernelwright.progress import Progress
from kernelwright.records import Mode, Result
from kernelwright.roofline.cost import graph_work
from kernelwright.roofline.devices import Device, current_device
from kernelwright.settings import Settings, check_output, check_versions
from kernelwright.timing.baselines import COMPILERS, is_slower, time_model
from kernelwright.timing.turns import clock, without_device
from kernelwright.tune import layouts
from kernelwright.tune.budget import Budget, budget_of
from kernelwright.tune.regions import SLOWER, losing_regions
from kernelwright.verify.certificate import Certificate, certify, default_trials
from kernelwright.verify.certificate import Plan as Trials
from kernelwright.verify.compare import Tolerance
from kernelwright.verify.state import float64_copy, to_float64

_MANY_OPERATIONS = 10**10  # a second or so in float64 on a few cores


@dataclass(slots=True)
class _Stages:
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
class _Mode:
    """One mode on its way: the model in it, what was captured, and what became of that."""

    name: str
    model: nn.Module
    captured: Graph
    rewriting: Rewriting
    plan: Plan


def optimize(model_or_path: str | Path | nn.Module, inputs: Any = None, *, settings: Settings | None = None,
             progress: Progress | None = None, **options: Any) -> Result:
    """Compile a model to a file with ModelNew, verified and timed.

    model_or_path: a problem file, or a module with example ``inputs``. ``options`` are fields of
    :class:`Settings`. A file is written next to the problem (``NAME_new.py``) or to ``output``; for a
    module given from Python only where ``output`` says so.
    Raises KernelwrightError for what the user can mend; then nothing is written.
    """
    settings = replace(settings or Settings(), **options) if options else settings or Settings()
    stages = _Stages(progress or Progress())
    check_versions(torch.__version__)
    target = _target(settings)
    path = settings.output or default_path(model_or_path)
    if path is not None:
        check_output(path, settings.force)
    if target == "cpp" or torch.cuda.is_available():
        find_cpp_compiler()
    with _threads(settings.threads), _memory_reported(model_or_path):
        with stages.stage("load"):
            problem, example = _load(model_or_path, inputs, target, settings)
        device = current_device("cuda" if target == "cuda" else "cpu")
        modes, notes = _understand(problem, example, device, settings, stages)
        with stages.stage("generate"):
            text, parts = _generate(problem, modes, example, target, device)
        budget = budget_of(settings.effort, target)
        if target == "cuda" and not torch.cuda.is_available():
            module, certificates, timings = None, {}, {}
            notes += _without_device(problem, example, parts, device, settings, stages)
        else:
            module, modes, text, certificates, timings = _judge(problem, modes, text, example, target, device, budget,
                                                                settings, stages)
        result = _result(problem, modes, device, target, text, notes, stages, certificates, timings, module)
        if path is not None:
            write_file(path, text, force=settings.force)
            result = replace(result, path=path)
    return result


def explain(model_or_path: str | Path | nn.Module, inputs: Any = None, *, settings: Settings | None = None,
            progress: Progress | None = None, device: Device | None = None, **options: Any) -> Result:
    """The decisions and the mathematics of :func:`optimize`, without building, checking or timing.

    device: the row to plan for, in place of the machine's own; the text then depends on no measurement.
    Raises KernelwrightError for what the user can mend.
    """
    settings = replace(settings or Settings(), **options) if options else settings or Settings()
    stages = _Stages(progress or Progress())
    check_versions(torch.__version__)
    target = _target(settings)
    with _threads(settings.threads):
        with stages.stage("load"):
            problem, example = _load(model_or_path, inputs, target, settings)
        device = device or current_device("cuda" if target == "cuda" else "cpu")
        modes, notes = _understand(problem, example, device, settings, stages)
        with stages.stage("generate"):
            text, _ = _generate(problem, modes, example, target, device)
    return _result(problem, modes, device, target, text, notes, stages, {}, {}, None)


def _target(settings: Settings) -> str:
    if settings.target == "auto":
        return "cuda" if torch.cuda.is_available() else "cpp"
    return settings.target


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _memory_reported(subject: Any) -> Iterator[None]:
    """Memory that runs out, at whatever stage, is a coded error (KW115) and no bug of ours."""
    try:
        yield
    except KernelwrightError:
        raise
    except Exception as exception:
        if not is_out_of_memory(exception):
            raise
        place = torch.device("cuda" if isinstance(exception, torch.OutOfMemoryError) else "cpu")
        where = str(subject) if isinstance(subject, (str, Path)) else ""
        raise out_of_memory_error(exception, "checking and timing", place, where) from exception


def _load(model_or_path: Any, inputs: Any, target: str, settings: Settings) -> tuple[Problem, list[Any]]:
    place = "cuda" if target == "cuda" and torch.cuda.is_available() else "cpu"
    problem = load_problem(model_or_path, inputs, device=place, tiny=settings.tiny)
    return problem, problem.make_inputs(settings.seed)


def _understand(problem: Problem, example: list[Any], device: Device, settings: Settings, stages: _Stages
                ) -> tuple[list[_Mode], list[str]]:
    """Capture both modes, rewrite and plan them. Modes with the same program appear once."""
    notes = [f"{note[:1].upper()}{note[1:]}." for note in extract_model_source(problem).notes]
    model = problem.make_model(settings.seed)
    other = problem.make_model(settings.seed).train(not model.training)
    modes: list[_Mode] = []
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
            modes.append(_unknown(name, candidate))
            continue
        if settings.precision == "strict" and device.kind == "cuda":
            graph = exact_convolutions(graph)
        with stages.stage("rewrite"):
            rewriting = rewrite(graph, device)
        with stages.stage("plan"):
            # cuDNN's convolutions add their bias in a second pass over the output; oneDNN's do not.
            plan = make_plan(rewriting.graph, graph, move_bias=device.kind == "cuda")
            modes.append(_Mode(name, candidate, graph, rewriting, plan))
    return modes, notes


def _unknown(name: str, model: nn.Module) -> _Mode:
    """A mode that could not be captured: a graph of nothing, whose original computation stays."""
    nothing = Graph((), (), (), (), model.training)
    return _Mode(name, model, nothing, Rewriting(nothing, (), 0.0, 0.0), Plan(nothing, (), (), ()))


def _generate(problem: Problem, modes: Sequence[_Mode], example: list[Any], target: str, device: Device
              ) -> tuple[str, tuple]:
    """The emitted file's text, and its parts (variants, sources, support) for those who check them."""
    useful = [m for m in modes if m.plan.kernels]
    plans, sources = generate([m.plan for m in useful], target)
    support = support_text(sources.values(), target) if sources else ""
    variants = [Variant(m.name, p, m.model, example) for m, p in zip(useful, plans, strict=True)]
    left = [n for n in ("training", "inference") if n not in {m.name for m in useful}]
    described = [_described(m, device) for m in _distinct(modes)]
    header = make_header(problem.name, described, kernelwright.__version__, device.name)
    source = extract_model_source(problem)
    if source.clashes:
        raise SourceUnavailable(model=problem.class_name, found="it uses names that the emitted file needs: "
                                + ", ".join(source.clashes))
    text = emit_file(header, source, variants, left, sources, support, cuda=target == "cuda",
                     name=problem.name if problem.name.isidentifier() else "model")
    return text, (variants, sources, support)


def _distinct(modes: Sequence[_Mode]) -> list[_Mode]:
    """The modes without repetition of the same program."""
    seen: set[str] = set()
    return [m for m in modes if not ((text := render(m.captured)) in seen or seen.add(text))]


def _described(mode: _Mode, device: Device) -> Mode:
    return describe(mode.name, mode.captured, mode.rewriting, mode.plan, device,
                    texts=(render(mode.captured), render(mode.rewriting.graph)))


def _without_device(problem: Problem, example: list[Any], parts: tuple, device: Device, settings: Settings,
                    stages: _Stages) -> list[str]:
    """CUDA kernels on a machine without a GPU: compiled where nvcc is, checked by emulation, not timed."""
    variants, _, _ = parts
    if not variants:
        return []
    notes = ["There is no CUDA device here: the file was not run on a GPU and not timed."]
    with stages.stage("build"):
        if find_cuda_compiler() is None:
            notes.append(NO_CUDA_COMPILER.what)
        else:
            messages = compile_cuda(kernel_source(*parts, cuda=True)[0])
            if messages:
                raise BuildFailed(f"nvcc refused the generated kernels:\n{messages}")
            notes.append("The kernels compile with nvcc for sm_90a.")
    with stages.stage("verify"):
        # The emulation is slow: the same program for fewer batch entries.
        most, few = 2, fewer_entries(example, 2)
        try:
            modes, _ = _understand(problem, few, device, settings, stages)
        except KernelwrightError:  # the first axis of the inputs is no batch that could be cut
            most, few = sys.maxsize, example
            modes, _ = _understand(problem, few, device, settings, stages)
        text, small = _generate(problem, modes, few, "cuda", device)
        emitted = load_emulated(text, kernel_source(*small, cuda=True)[0], problem.name)
        for variant in small[0]:
            training = variant.model.training
            if reason := _misfit(new_model(emitted, problem, settings.seed).train(training), few):
                notes.append(f"Not checked in {variant.mode} mode: {reason}")
                continue
            certificate = certify(
                lambda training=training: problem.make_model(settings.seed).train(training),
                lambda training=training: new_model(emitted, problem, settings.seed).train(training),
                lambda seed: fewer_entries(problem.make_inputs(seed), most),
                plan=Trials(trials=default_trials()[:2], budget_seconds=60, repeats=0))
            if not certificate.passed:
                raise VerificationFailed(model=problem.class_name, finding=certificate.sentence())
            entries = " with 2 batch entries" if most == 2 else ""
            notes.append(f"Checked by emulation on the CPU{entries}, {variant.mode} mode: {certificate.sentence()}")
    return notes


def _judge(problem: Problem, modes: list[_Mode], text: str, example: list[Any], target: str, device: Device,
           budget: Budget, settings: Settings, stages: _Stages
           ) -> tuple[nn.Module, list[_Mode], str, dict[str, Certificate], dict[str, Any]]:
    """Build, drop the regions that lose, verify and time; a mode that is not faster keeps the original."""
    with stages.stage("tune"):
        lost = [losing_regions(m.plan, problem.device, target, budget) for m in modes]
        modes = [_keeping(m, losers, device) for m, losers in zip(modes, lost, strict=True)]
    modes = _with_layouts(problem, modes, example, target, device, budget, settings, stages)
    certificates: dict[str, Certificate] = {}
    timings: dict[str, Any] = {}
    with stages.stage("build"):
        text, _ = _generate(problem, modes, example, target, device)
        with without_device():
            emitted = load_text(text, problem.name)
        misfits = {render(m.captured): reason for m in _distinct(modes) if m.plan.kernels and (
            reason := _misfit(new_model(emitted, problem, settings.seed).train(m.model.training), example))}
        if misfits:
            modes = [_original(m, misfits.get(render(m.captured), "")) for m in modes]
            text, _ = _generate(problem, modes, example, target, device)
            with without_device():
                emitted = load_text(text, problem.name)
    for mode in _distinct(modes):
        certificates[mode.name] = _certified(problem, mode, emitted, budget, settings, stages)
    slower = set()
    for place, mode in enumerate(_distinct(modes)):
        # Compiling a large network twice takes minutes: a quick run compares the mode as constructed.
        compilers = COMPILERS["none" if place and settings.effort == "quick" else settings.baselines]
        with stages.stage("time"):
            candidate = new_model(emitted, problem, settings.seed).train(mode.model.training)
            timing = timings[mode.name] = time_model(
                mode.model, candidate if mode.plan.kernels else None, example, device=problem.device,
                floor_seconds=_described(mode, device).floor_seconds or None,
                budget_seconds=budget.time_seconds / (2 if place and settings.effort == "quick" else 1),
                compilers=compilers, compile_limit_seconds=budget.compile_seconds)
        if mode.plan.kernels and is_slower(timing):
            slower.add(render(mode.captured))
    if slower:
        modes = [_original(m, SLOWER if render(m.captured) in slower else "") for m in modes]
        with stages.stage("build"):
            text, _ = _generate(problem, modes, example, target, device)
            with without_device():
                emitted = load_text(text, problem.name)
    return new_model(emitted, problem, settings.seed), modes, text, certificates, timings


def _with_layouts(problem: Problem, modes: list[_Mode], example: list[Any], target: str, device: Device, budget: Budget,
                  settings: Settings, stages: _Stages) -> list[_Mode]:
    """The modes with convolutions channels-last, where whole programs are faster so."""
    others: dict[str, _Mode] = {}
    seconds_each = budget.tune_seconds / 2
    with stages.stage("tune"):
        for mode in _distinct(modes):
            seconds = layouts.convolution_seconds(mode.rewriting.graph, problem.device, seconds_each)
            plan = layouts.channels_last_plan(mode.plan, mode.captured, seconds, device,
                                              move_bias=device.kind == "cuda")
            if plan is not None:
                others[render(mode.captured)] = replace(mode, plan=plan)
    if not others:
        return modes
    before = [m for m in _distinct(modes) if render(m.captured) in others]
    with stages.stage("build"), without_device():
        texts = [_generate(problem, some, example, target, device)[0] for some in (before, list(others.values()))]
        built = [load_text(text, problem.name) for text in texts]
    with stages.stage("tune"):
        for mode in before:
            programs = {name: new_model(module, problem, settings.seed).train(mode.model.training)
                        for name, module in zip((layouts.FIRST, layouts.LAST), built, strict=True)}
            times = layouts.measured_programs(programs, example, problem.device, seconds_each)
            ratio = layouts.faster(times)
            plan = others.pop(render(mode.captured)).plan
            if ratio is not None:
                others[render(mode.captured)] = replace(mode, plan=replace(plan, layout=layouts.words(plan, ratio)))
    return [replace(m, plan=replace(others[text].plan, graph=m.rewriting.graph))
            if (text := render(m.captured)) in others else m for m in modes]


def _keeping(mode: _Mode, kept: dict[Node, str], device: Device) -> _Mode:
    """The mode planned again with more operators left to PyTorch."""
    if not kept:
        return mode
    return replace(mode, plan=make_plan(mode.rewriting.graph, mode.captured, {**mode.plan.kept, **kept},
                                        move_bias=device.kind == "cuda", channels_last=mode.plan.channels_last))


def _original(mode: _Mode, reason: str) -> _Mode:
    """The mode with all operators left to PyTorch as captured; as it is where there is no reason."""
    if not reason:
        return mode
    kept = {n: reason for n in mode.captured.nodes() if n.kind not in ("leaf", "view")}
    return replace(mode, rewriting=replace(mode.rewriting, graph=mode.captured, applications=()),
                   plan=make_plan(mode.captured, mode.captured, kept))


def _misfit(model: nn.Module, example: list[Any]) -> str:
    """Why the kernels of a ModelNew do not fit its own example inputs (not contiguous, say), or ""."""
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        model(*copy.deepcopy(example))
    messages = [str(w.message) for w in caught if str(w.message).startswith("ModelNew runs the original")]
    return f"the example inputs do not fit its kernels: {messages[0].partition(': ')[2]}" if messages else ""


def _certified(problem: Problem, mode: _Mode, emitted: Any, budget: Budget, settings: Settings, stages: _Stages
               ) -> Certificate:
    """The certificate of one mode. Raises VerificationFailed."""
    with stages.stage("verify"):
        # Which of Inf and NaN comes of infinite terms depends on the order of a sum, in PyTorch as well: they
        # must stand where eager's stand. Where products were exchanged even that may differ: it is shown.
        finite = any(use.rule.exactness is Exactness.FINITE for use in mode.rewriting.applications)
        informative = {"with Inf"} if finite else set()
        if any(isinstance(s.kernel, Scan) and s.kernel.kind == "product" for s in mode.plan.kernels):
            # So it is where a running product leaves the range of its type: zero times infinity.
            informative |= {"with Inf", "large", "scaled", "heavy-tailed"}
        trials = Trials(trials=default_trials(settings.seed)[:None if mode.plan.kernels else 1],
                        repeats=2 if mode.plan.kernels else 0, unchanged=not mode.plan.kernels,
                        budget_seconds=budget.verify_seconds, tolerance=Tolerance(nonfinite="position"),
                        informative=frozenset(informative),
                        # Where float64 is slow, a few batch entries stand for all, if they are independent.
                        sample_axis0=problem.device.type == "cpu" and batch_independent(mode.captured)
                        and graph_work(mode.captured.roots()).operations > _MANY_OPERATIONS)
        make_float64 = (float64_copy if problem.is_instance else
                        lambda model: to_float64(problem.make_model(settings.seed).train(model.training)))
        certificate = certify(lambda: problem.make_model(settings.seed).train(mode.model.training),
                              lambda: new_model(emitted, problem, settings.seed).train(mode.model.training),
                              problem.make_inputs, plan=trials, make_float64=make_float64)
    if not certificate.passed:
        raise VerificationFailed(model=problem.class_name, finding=certificate.sentence())
    return certificate


def new_model(emitted: Any, problem: Problem, seed: int) -> nn.Module:
    """A ModelNew with the problem's parameters: constructed alike, or a copy of the instance in its class."""
    if problem.is_instance:
        model = problem.make_model(seed)
        if hasattr(emitted, "_kernelwright_own"):  # submodules keep the classes of the user's file
            emitted._kernelwright_own.add(type(model).__module__)
        model.__class__ = emitted.ModelNew
        return model
    return problem.make_model(seed, emitted.ModelNew)


def _result(problem: Problem, modes: Sequence[_Mode], device: Device, target: str, text: str, notes: Sequence[str],
            stages: _Stages, certificates: dict[str, Certificate], timings: dict[str, Any], module: Any) -> Result:
    described = tuple(replace(_described(m, device), certificate=certificates.get(m.name), timing=timings.get(m.name))
                      for m in _distinct(modes))
    wins = [f"{m.name.capitalize()} mode: {found}" for m in described if m.timing is not None
            and (found := m.timing.compiled_wins(replaced=bool(m.kernels)))]
    return Result(problem.name, text, None, target, device.name, described, (*notes, *wins), dict(stages.seconds),
                  module)
