"""The product on one page: the stages, called in order, each handing a frozen record to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from kernelwright.build.embedding import names_wanted
from kernelwright.build.module import find_tools
from kernelwright.cache.results import concluded, earlier_result, name_of
from kernelwright.codegen.generate import TARGETS, chosen, is_here
from kernelwright.deploy.embedded import Emitted, Tried, with_libraries
from kernelwright.device_lock import clock
from kernelwright.dtypes import ServedDtypes, serving_dtypes
from kernelwright.dynamic.serve import serving_sizes
from kernelwright.dynamic.sizes import sizes_of
from kernelwright.emit.write import checked_path, is_as_written, remember_written, write_file
from kernelwright.emulated import select_without_device
from kernelwright.errors import KernelwrightError
from kernelwright.failures import is_ours, told, unwritable
from kernelwright.ir.node import begin_run
from kernelwright.launching import graphs_wanted
from kernelwright.modes import ModeProgram, described_mode, distinct, named_modes, with_steps
from kernelwright.problem import Problem, load_problem
from kernelwright.problem.construct import construction
from kernelwright.problem.memory import is_out_of_device_memory, is_out_of_memory, out_of_memory_error
from kernelwright.problem.seeds import others_kept
from kernelwright.programs import Stages, emitted_text, understand, written
from kernelwright.progress import Progress, progress_of_python
from kernelwright.records import Span, words_of
from kernelwright.result import Result
from kernelwright.roofline.devices import Device
from kernelwright.roofline.peaks import current_device
from kernelwright.selection import select
from kernelwright.settings import Options, Settings, changed, check_versions
from kernelwright.training.planned import with_backward
from kernelwright.truths import Truths
from kernelwright.tune.budget import budget_of
from kernelwright.verify.certificate import Certificate

_TIMES = "Times are those of the file for the example's sizes alone, from which this one was made."


def optimize(model_or_path: str | Path | nn.Module, inputs: Any = None, *, kwargs: dict[str, Any] | None = None,
             settings: Settings | None = None, progress: Progress | None = None, **options: Unpack[Options]) -> Result:
    """Compile a model to a file with ModelNew, verified and timed.

    model_or_path: a problem file, or a module with example ``inputs``: a list or tuple of positional arguments, a
    dictionary of keyword arguments, a list of both, or the one argument itself. ``kwargs`` are keyword arguments beside
    positional ``inputs``. ``options`` are fields of
    :class:`Settings`. A file is written next to the problem (``NAME_new.py``) or to ``output``; for a
    module given from Python only where ``output`` says so, and the page of ``report`` at the end.
    The file is there as soon as the plan that was predicted has passed its check; what measurements improve within the
    budget replaces it. Where an earlier run of the same command left its result, that is checked once more and given,
    with ``kept_since`` and the times of then, unless ``refresh``. On a terminal and in a notebook stderr has what is
    being done, unless ``quiet``.
    Raises KernelwrightError for what the user can mend; then nothing is written.

    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU())
    >>> result = kernelwright.optimize(model, inputs=(torch.randn(32, 64),), effort="quick", baselines="none")
    >>> result.module(torch.randn(32, 64)).shape
    torch.Size([32, 64])
    """
    settings = changed(settings, options)
    progress = progress or progress_of_python(settings.quiet)
    spent = progress.seconds_before()
    stages = Stages(progress, budget_of(settings.effort, settings.budget, baselines=settings.baselines, spent=spent),
                    spans=[Span("start", "imports", 0.0, spent)] if spent else [], began=clock() - spent)
    stages.progress.left = stages.budget.until_end
    check_versions(torch.__version__)
    begin_run()
    target = chosen(settings.target)
    path = checked_path(model_or_path, settings)
    if is_here(target):
        find_tools(TARGETS[target])
    embedded = names_wanted(settings.embed, TARGETS[target]) if settings.embed else ()
    with _threads(settings.threads), _memory_reported(model_or_path), others_kept():
        with stages.stage("load"):
            problem, example = _load(model_or_path, inputs, kwargs, target, settings)
            sizes = sizes_of(settings.dynamic, problem.make_model(settings.seed), example) if settings.dynamic else ()
        device = current_device(TARGETS[target].device)
        emulated = not is_here(target)
        files, truths = list[str](), Truths(problem.device)

        def keep(text: str) -> None:
            if path is not None and files[-1:] != [text]:
                write_file(path, text, force=settings.force or bool(files) or is_as_written(path, model_or_path))
                remember_written(path, model_or_path)
                files.append(text)

        kept_as = "" if emulated else name_of(problem, example, target, settings)
        earlier, fault = earlier_result(kept_as, problem, settings, stages)
        if earlier is not None:
            keep(earlier.source)
            return _with_pages(replace(earlier, path=path), model_or_path, settings, stages)
        modes, notes = understand(problem, example, device, settings, stages, predict=emulated)
        modes = [replace(mode, graph=graphs_wanted(settings, target)) for mode in modes]
        if emulated:
            module, certificates, timings = None, {}, {}
            with stages.stage("generate"):
                modes = [with_backward(mode, example, device, stages) for mode in modes]
                modes, _, _ = written(problem, modes, example, target, device)
            modes, text, found = select_without_device(problem, modes, example, target, device, settings,
                                                       stages)
            notes += found
        else:
            module, modes, text, certificates, timings = select(problem, modes, example, target, device, settings,
                                                                stages, keep, truths)
        final = modes
        file = Emitted(text, module, lambda libraries: emitted_text(problem, final, example, target, device,
                                                                    libraries)[0], [Tried(problem, modes, truths)])
        by_type: dict[str, Any] = {}
        if settings.dtypes:
            typed = serving_dtypes(problem, modes, example, target, device, settings, stages, timings, truths)
            if isinstance(typed, ServedDtypes):
                file, modes, certificates, timings = typed.file, typed.modes, typed.certificates, typed.timings
                by_type = typed.by_type()
            notes += typed.notes if isinstance(typed, ServedDtypes) else typed
        if sizes and any(m.runs for m in modes):
            sized = serving_sizes(problem, modes, sizes, example, target, device, settings, stages, by_type)
            if not isinstance(sized, list):
                file, certificates, found = sized
                modes = [replace(m, backward=()) for m in modes]  # such files leave gradients to the original
                notes += [*found, *([_TIMES] if timings else [])]
            else:
                notes += sized
        text = file.text
        if embedded:
            text, found = with_libraries(file, target, settings, stages, embedded)
            notes += found
        result = _result(problem, modes, device, target, text, notes, stages, certificates, timings, file.module)
        keep(text)
        result = concluded(result, kept_as, fault)
        if path is not None:
            result = replace(result, path=path)
    return _with_pages(result, model_or_path, settings, stages)


def _with_pages(result: Result, model_or_path: Any, settings: Settings, stages: Stages) -> Result:
    """The result with the page and the trace that were asked for beside its file."""
    if settings.trace is not None:
        result = _beside(result, Result.save_trace, settings.trace, model_or_path, settings.force, stages,
                         trace=settings.trace)
    if settings.report is not None:
        result = _beside(result, Result.save_report, settings.report, model_or_path, settings.force, stages)
    return result


def explain(model_or_path: str | Path | nn.Module, inputs: Any = None, *, kwargs: dict[str, Any] | None = None,
            settings: Settings | None = None, progress: Progress | None = None, device: Device | None = None,
            **options: Unpack[Options]) -> Result:
    """The decisions and the mathematics of :func:`optimize`, without building, checking or timing.

    device: the row to plan for, in place of the machine's own; the text then depends on no measurement.
    Raises KernelwrightError for what the user can mend.

    >>> result = kernelwright.explain(torch.nn.GELU(), inputs=(torch.randn(8, 16),), target="cpp")
    >>> [kernel.kind for kernel in result.modes[0].kernels]
    ['loop']
    """
    settings = changed(settings, options)
    stages = Stages(progress or progress_of_python(settings.quiet))
    check_versions(torch.__version__)
    begin_run()
    target = chosen(settings.target)
    with _threads(settings.threads):
        with stages.stage("load"):
            problem, example = _load(model_or_path, inputs, kwargs, target, settings)
        device = device or current_device(TARGETS[target].device)
        modes, notes = understand(problem, example, device, settings, stages, predict=True)
        modes = [replace(mode, graph=graphs_wanted(settings, target)) for mode in modes]
        with stages.stage("generate"):
            modes = [with_backward(mode, example, device, stages) for mode in modes]
            modes, text, _ = written(problem, modes, example, target, device)
    return _result(problem, modes, device, target, text, notes, stages, {}, {}, None)


def _beside(result: Result, save: Callable[..., Path], path: Path, of: Any, force: bool, stages: Stages,
            **changes: Any) -> Result:
    """The result with a page or a trace written beside its file, or with a note where that failed: the file is there.
    changes: what of the result is so where it is written."""
    try:
        with stages.stage("report", path.name):
            save(result, path, force=force or is_as_written(path, of))
            remember_written(path, of)
    except Exception as error:
        if not is_ours(error):
            raise
        return replace(result, notes=(*result.notes, f"{path.name} is not written: {told(error)}."))
    return replace(result, **changes)


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
    """Memory or disk space that runs out, at whatever stage, is a coded error (KW115, KW306) and no bug of ours."""
    try:
        yield
    except KernelwrightError:
        raise
    except Exception as exception:
        if (full := unwritable(exception)) is not None:
            raise full from exception
        if not is_out_of_memory(exception):
            raise
        place = torch.device("cuda" if is_out_of_device_memory(exception) else "cpu")
        where = str(subject) if isinstance(subject, (str, Path)) else ""
        raise out_of_memory_error(exception, "checking and timing", place, where) from exception


def _load(model_or_path: Any, inputs: Any, kwargs: Any, target: str, settings: Settings) -> tuple[Problem, list[Any]]:
    place = TARGETS[target].device if is_here(target) else "cpu"
    problem = load_problem(model_or_path, inputs, device=place, tiny=settings.tiny, model=settings.model,
                           kwargs=kwargs)
    return problem, problem.make_inputs(settings.seed)


def _result(problem: Problem, modes: Sequence[ModeProgram], device: Device, target: str, text: str,
            notes: Sequence[str], stages: Stages, certificates: dict[str, Certificate], timings: dict[str, Any],
            module: Any) -> Result:
    named = named_modes(modes, device)
    own = {m.program: m.backward for m in named if m.backward}  # of one of the modes that share a program
    shown = [replace(m, backward=own.get(m.program, ())) for m in distinct(named)]
    described = tuple(replace(with_steps(described_mode(m, device), m, device), certificate=certificates.get(m.name),
                              timing=timings.get(m.name)) for m in shown)
    # What is said is of what the file does: kernels that it does not have are no entry beside eager.
    described = tuple(m if m.runs else replace(
        m, timing=m.timing and m.timing.of_original(),
        certificate=m.certificate and replace(m.certificate, given_up=not m.certificate.is_of_original))
        for m in described)
    wins = [f"{words_of(m.name).capitalize()} mode: {found}" for m in described if m.timing is not None
            and (found := m.timing.compiled_wins(replaced=m.runs))]
    given_up = dict.fromkeys(note for m in modes for note in m.notes)
    return Result(problem.name, text, None, target, device.name, described, (*notes, *given_up, *wins),
                  dict(stages.seconds), module, construction(problem), device, tuple(stages.spans))
