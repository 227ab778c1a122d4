"""What a candidate is timed against: the model in eager mode and under torch.compile, and the floor."""

from __future__ import annotations

import importlib
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import geometric_mean
from types import FrameType
from typing import Any

import torch
from torch import nn

from kernelwright.device_lock import clock, locked_device
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.progress import doing
from kernelwright.roofline.devices import processor_name
from kernelwright.timing.environment import environment
from kernelwright.timing.graphed import graph_of
from kernelwright.timing.renewed import renewed
from kernelwright.timing.rounds import Times, measure, ratio
from kernelwright.timing.speedup import FASTER, FEWEST_PAIRS, UNKNOWN, WALL_NOISE, SpeedUp, speed_up
from kernelwright.timing.statistics import Ratio
from kernelwright.verify.flatten import tensors_of
from kernelwright.verify.plain import plain

EAGER, COMPILED, CANDIDATE = "eager", "torch.compile", "candidate"
GRAPHED = "CUDA graph of eager"
REDUCE_OVERHEAD = "torch.compile reduce-overhead"
MAX_AUTOTUNE = "torch.compile max-autotune"
#: No model is compiled in less.
_LEAST_COMPILE_SECONDS = 0.05
#: The compiled baselines by the value of the setting ``baselines``, with their options of torch.compile (None: none is
#: compiled). Where the device takes the time, and not the host, max-autotune is faster without graphs, which copy the
#: inputs: it is timed without, and reduce-overhead has them.
_COMPILERS: dict[str, dict[str, dict[str, str] | None]] = {
    "none": {}, "graph": {GRAPHED: None}, "compile": {GRAPHED: None, COMPILED: {}},
    "all": {GRAPHED: None, COMPILED: {}, REDUCE_OVERHEAD: {"mode": "reduce-overhead"},
            MAX_AUTOTUNE: {"mode": "max-autotune-no-cudagraphs"}}}
#: What only a GPU has: graphs, without which reduce-overhead is torch.compile as it is.
_OF_GRAPHS = (GRAPHED, REDUCE_OVERHEAD)
#: A call's launches matter where one that is waited for takes longer than the device does by this factor.
_LAUNCHES_MATTER = 1.2
#: What each compilation may take of the time for all, in parts of those that are still to come; 1 where nothing stands.
_COMPILE_PARTS = {MAX_AUTOTUNE: 4.0, GRAPHED: 0.1}
#: Calls until a graph is there: one compiles, one settles its memory, one records.
_CALLS_TO_RECORD = 3


#: How a candidate's kernels are launched: as one CUDA graph, or one after another.
GRAPH, DIRECT = "graph", "direct"
#: How reasons begin for which a compiled baseline has no time, where more time would do.
_NO_TIME, _TOOK = "the budget left no time to compile it", "compilation took"
#: A graph keeps memory, and stays where it gains this much.
_GRAPH_GAIN = 1.02

# Medians that differ by less are equal to whoever has to choose.
_TIE = 0.02
#: An expired compilation that was not ended is told so again.
_AGAIN_SECONDS = 1.0
#: The compiler's own modules, which raise errors themselves, and those in which it waits: what interrupts it is raised
#: where one of these is at work. Elsewhere C++ may have called Python, and ends the process where it expects no error.
_INTERRUPTIBLE = ("torch._dynamo.", "torch._inductor.", "torch.fx.passes.", "torch.fx.interpreter", "triton.compiler.",
                  "concurrent.futures.", "threading", "subprocess", "selectors")
#: How often an expired compilation is looked at, and how long at most until it is interrupted wherever it is.
_LOOK_SECONDS, _GRACE_SECONDS = 0.01, 5.0


@dataclass(frozen=True)
class Timing:
    """Times by entry, ratios over the candidate, and what no honest time can beat. All times in seconds.

    ``failures`` gives the reason for each baseline without a time. ``ratios`` holds each other entry over the
    candidate. ``share_of_floor`` is floor / median by entry: 1 is the machine's limit. ``below_floor`` names
    entries faster than the floor: their time, or the floor, cannot be right. ``compile_seconds`` is the first
    call under torch.compile (all compiled baselines together). ``launches`` has the times of a candidate that was
    launched in both ways, as `GRAPH` and `DIRECT`; ``launch`` is that of the candidate's entry, "" where it has one
    only. ``graph_bytes`` is what the candidate's graph keeps of the device's memory. ``given_up`` has the times of
    kernels that are not in the file, and ``given_up_ratio`` how they compare with eager: no entry stands for them.
    """

    entries: dict[str, Times]
    ratios: dict[str, Ratio]
    failures: dict[str, str] = field(default_factory=dict)
    floor_seconds: float | None = None
    share_of_floor: dict[str, float] = field(default_factory=dict)
    below_floor: tuple[str, ...] = ()
    compile_seconds: float | None = None
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    launch: str = ""
    launches: dict[str, Times] = field(default_factory=dict)
    graph_bytes: int | None = None
    given_up: Times | None = None
    given_up_ratio: Ratio | None = None

    def speed_up(self, baseline: str = EAGER) -> SpeedUp | None:
        """How many times faster the candidate is than a baseline, or why that cannot be said; None where one of them
        was not timed."""
        if baseline not in self.ratios or CANDIDATE not in self.entries:
            return None
        return speed_up(self.entries, baseline, CANDIDATE)

    def of_original(self) -> Timing:
        """The timing of a file that is the original: kernels that were timed and given up are no entry of it."""
        if CANDIDATE not in self.entries:
            return self
        return replace(self, entries={n: t for n, t in self.entries.items() if n != CANDIDATE}, ratios={},
                       share_of_floor={n: s for n, s in self.share_of_floor.items() if n != CANDIDATE},
                       below_floor=tuple(n for n in self.below_floor if n != CANDIDATE), launch="", launches={},
                       graph_bytes=None, given_up=self.entries[CANDIDATE], given_up_ratio=self.ratios.get(EAGER))

    def sentence(self) -> str:
        """Say the result in words."""
        parts = [_told(found) for name in self.ratios if (found := self.speed_up(name)) is not None]
        parts += [f"{name}: no time ({why})." for name, why in self.failures.items()]
        parts += [f"{name} is below the floor of {self.floor_seconds:.3g} s." for name in self.below_floor]
        return " ".join(parts)

    def compiled_wins(self, *, replaced: bool) -> str:
        """Say that torch.compile is the best there is, if its time is below that of the emitted file.

        replaced: whether the file has a program; without one its time is eager's.
        """
        ours = self.entries[CANDIDATE if replaced else EAGER]
        wins = [(found.value, name) for name in _COMPILERS["all"] if name in self.entries
                if (found := speed_up({EAGER: ours, name: self.entries[name]}, EAGER, name)).verdict == FASTER
                and found.low > 1.0 + _TIE]
        if not wins:
            return ""
        value, name = max(wins)
        kept = "this file" if replaced else "the original, in which no kernel of ours pays"
        return f"{name} is the best that was found here: {value:.2f}x as fast as {kept}."

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with the sentence."""
        entries, launches = ({name: times.to_json() for name, times in some.items()}
                             for some in (self.entries, self.launches))
        return {**plain(self), "entries": entries, "launches": launches, "sentence": self.sentence(),
                "given_up": self.given_up.to_json() if self.given_up is not None else None}


@dataclass(frozen=True)
class CompiledBaseline:
    """The model under torch.compile: ``call`` after its first successful call, or the reason for none."""

    call: Callable[[], object] | None
    reason: str
    seconds: float


class _OutOfTime(BaseException):
    """Not an Exception, so that no compiler stage takes it for one of its own failures."""


def compilers_of(setting: str, device: torch.device | str, *, launches: bool = False
                 ) -> dict[str, dict[str, str] | None]:
    """The compiled baselines of a value of the setting ``baselines``, with their options of torch.compile. launches:
    whether a call's launches matter, of which reduce-overhead makes one."""
    found = dict(_COMPILERS[setting])
    if launches and COMPILED in found:
        found[REDUCE_OVERHEAD] = _COMPILERS["all"][REDUCE_OVERHEAD]
    return {name: options for name, options in found.items()
            if name not in _OF_GRAPHS or torch.device(device).type == "cuda"}


def launches_matter(timing: Timing) -> bool:
    """Whether what the host does for a call of eager takes longer than the device's work."""
    eager = timing.entries[EAGER]
    return eager.waited_seconds is not None and eager.waited_seconds > _LAUNCHES_MATTER * eager.median


def graph_promises(timing: Timing) -> bool:
    """Whether a model's calls are likely to be faster in one launch: as a graph of eager is, where one was timed."""
    graph = timing.entries.get(GRAPHED)
    return graph_pays(graph, timing.entries[EAGER]) if graph is not None else launches_matter(timing)


def module_callable(module: Callable[..., object], inputs: Sequence[Any] | Callable[[], Sequence[Any]]
                    ) -> Callable[[], object]:
    """Return a callable that runs ``module(*inputs)``, or ``module(*inputs())``, under no_grad, as this field's
    harnesses do."""

    def call() -> object:
        with torch.no_grad():
            return module(*(inputs() if callable(inputs) else inputs))

    return call


def compiled_baseline(
    model: nn.Module, inputs: Sequence[Any] | Callable[[], Sequence[Any]], *, limit_seconds: float = 120.0,
    **options: Any
) -> CompiledBaseline:
    """Compile ``model`` with ``torch.compile(model, **options)`` and call it, until its graph, if any, is recorded.

    Compilation happens in this process. In the main thread it is interrupted after ``limit_seconds``, of which the
    import of the compiler is a part; in other threads the limit is checked afterwards. With less than 0.05 s nothing is
    begun. Never raises an Exception: the reason is in the result.
    """
    if limit_seconds < _LEAST_COMPILE_SECONDS:
        return CompiledBaseline(None, f"{_NO_TIME}: a larger --budget does", 0.0)
    started = clock()
    import_compiler()
    reason = ""
    call: Callable[[], object] | None = None
    try:
        with _limit(limit_seconds - (clock() - started)):
            call = module_callable(torch.compile(model, **options), inputs)
            for _ in range(_CALLS_TO_RECORD if options.get("mode") == "reduce-overhead" else 1):
                call()
            _synchronize(inputs() if callable(inputs) else inputs)
    except _OutOfTime:
        reason = f"{_TOOK} longer than {limit_seconds:g} s"
    except Exception as error:  # any failure of the compiler is a result
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = f"{type(error).__name__}: {lines[0] if lines else ''}"[:400]
    seconds = clock() - started
    if not reason and seconds > limit_seconds:
        reason = f"{_TOOK} {seconds:.0f} s, more than {limit_seconds:g} s"
    if reason:
        return CompiledBaseline(None, reason, seconds)
    return CompiledBaseline(call, "", seconds)


def wants_time(reason: str) -> bool:
    """Whether a reason for which a baseline has no time is that of the budget."""
    return reason.startswith((_NO_TIME, _TOOK))


def graphed_baseline(model: nn.Module, inputs: Sequence[Any]) -> CompiledBaseline:
    """The model's own calls as a CUDA graph, as users record one by hand. Never raises an Exception: the reason for
    none is in the result."""
    started = clock()
    try:
        call = graph_of(model, inputs)
        call()
        _synchronize(inputs)
    except Exception as error:  # what cannot be recorded is a result
        lines = str(error).strip().splitlines()
        return CompiledBaseline(None, f"{type(error).__name__}: {lines[0] if lines else ''}"[:400], clock() - started)
    return CompiledBaseline(call, "", clock() - started)


def import_compiler() -> None:
    """Import what torch.compile imports when it is first used, which takes seconds. A module whose import is
    interrupted cannot be imported again (backends would be registered twice), and so nothing in this process could be
    compiled any more."""
    with suppress(Exception):  # compilation says what is missing
        torch._dynamo.list_backends()  # imports all of them
        importlib.import_module("torch._inductor.compile_fx")


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise _OutOfTime inside the block after ``seconds``; without effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    end, over = clock() + seconds, False

    def expired(signum: int, frame: FrameType | None) -> None:
        if over:  # an alarm that was under way when the block ended must not strike whoever comes next
            return
        left = end - clock()
        if left > 0.0:  # a suite stopped this process meanwhile
            signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3))
        elif left > -_GRACE_SECONDS and not _is_interruptible(frame):
            signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS)
        else:
            # Python drops what is raised where a destructor or a callback of the collector happens to run.
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
            raise _OutOfTime

    previous = signal.signal(signal.SIGALRM, expired)
    began = time.monotonic()
    earlier, interval = signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        try:
            yield
        finally:
            over = True
    finally:  # also where the alarm came after the block and before that was noted
        over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if earlier:  # somebody else's alarm goes on
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, earlier - (time.monotonic() - began)), interval)


def _is_interruptible(frame: FrameType | None) -> bool:
    """Whether the function that a signal interrupted is one of `_INTERRUPTIBLE`."""
    return frame is not None and f"{frame.f_globals.get('__name__')}".startswith(_INTERRUPTIBLE)


def time_model(
    model: nn.Module,
    candidate: Callable[..., object] | None,
    inputs: Sequence[Any],
    *,
    device: torch.device | str,
    floor_seconds: float | None = None,
    budget_seconds: float = 10.0,
    repetitions: int | None = None,
    compile_limit_seconds: float = 120.0,
    compilers: Mapping[str, Mapping[str, str] | None] | None = None,
    others: Mapping[str, Callable[..., object]] | None = None,
    fresh_inputs: Callable[[], object] | None = None,
    flush_cache: bool = True,
    direct: Callable[..., object] | None = None,
) -> Timing:
    """Time eager, torch.compile, ``candidate`` and ``others`` (modules by name) on the same inputs.

    ``candidate`` may be None to time the baselines only. ``floor_seconds`` comes from the roofline.
    ``compilers`` are options of torch.compile by entry, None for a graph of eager, as of `compilers_of`; by default
    those of "compile". ``budget_seconds`` is for measuring; all compilations together have ``compile_limit_seconds``.
    Modules stay in the mode in which they are. Where a call changes a container that it is given, each gets containers
    of its own, which are made within its time. ``direct`` is the candidate with its kernels launched one by one, where
    ``candidate`` runs as a graph: what is faster is the candidate's entry. Raises what the model or
    the candidate raises.
    """
    own_containers = renewed(lambda *given: module_callable(model, given)(), inputs)
    given = own_containers or inputs
    callables = {EAGER: module_callable(model, given)}
    failures: dict[str, str] = {}
    compile_seconds = None
    compilers = compilers_of("compile", device) if compilers is None else compilers
    if compilers:
        torch._dynamo.reset()
    parts = {name: _COMPILE_PARTS.get(name, 1.0) for name in compilers}
    for name, options in compilers.items():
        limit = (compile_limit_seconds - (compile_seconds or 0.0)) * parts[name] / sum(parts.values())
        del parts[name]
        doing(f"{name} is recorded" if options is None else f"{name} compiles, {limit:.0f} s at most")
        if options is None and own_containers is not None:
            compiled = CompiledBaseline(None, "each call changes what a container holds that it is given", 0.0)
        elif options is None:
            compiled = graphed_baseline(model, inputs)
        else:
            compiled = compiled_baseline(model, given, limit_seconds=limit, **options)
            compile_seconds = (compile_seconds or 0.0) + compiled.seconds
        if compiled.call is None:
            failures[name] = compiled.reason
        else:
            callables[name] = compiled.call
    doing(f"{', '.join(callables)}, in turn" if candidate is None else f"ModelNew, {', '.join(callables)}, in turn")
    if candidate is not None:
        callables[CANDIDATE] = module_callable(candidate, given)
        if direct is not None:
            callables[DIRECT] = module_callable(direct, given)
    for name, module in (others or {}).items():
        callables[name] = module_callable(module, given)
    measured = partial(measure, device=device, repetitions=repetitions, budget_seconds=budget_seconds,
                       flush_cache=flush_cache, fresh_inputs=fresh_inputs)
    with locked_device():
        try:
            entries = measured(callables)
        except Exception as error:  # a graph keeps memory that the model itself may need
            if GRAPHED not in callables or not is_out_of_memory(error):
                raise
            del callables[GRAPHED]
            failures[GRAPHED] = "the memory that it keeps was needed"
            entries = measured(callables)
    launch, launches = "", {}
    if direct is not None:
        launches = {GRAPH: entries[CANDIDATE], DIRECT: entries.pop(DIRECT)}
        launch = GRAPH if graph_pays(launches[GRAPH], launches[DIRECT]) else DIRECT
        entries[CANDIDATE] = launches[launch]
    return replace(summarize(
        entries,
        device=device,
        floor_seconds=floor_seconds,
        failures=failures,
        compile_seconds=compile_seconds,
    ), launch=launch, launches=launches)


def graph_pays(graph: Times, direct: Times) -> bool:
    """Whether a program is better launched as a graph: by the device's time and that of a call that is waited for, of
    which either counts for somebody."""
    gains = [direct.median / graph.median]
    if graph.waited_seconds and direct.waited_seconds:
        gains.append(direct.waited_seconds / graph.waited_seconds)
    return geometric_mean(gains) >= _GRAPH_GAIN


def summarize(
    entries: dict[str, Times],
    *,
    device: torch.device | str,
    floor_seconds: float | None = None,
    failures: dict[str, str] | None = None,
    compile_seconds: float | None = None,
) -> Timing:
    """Make the `Timing` record of measured entries."""
    target = entries.get(CANDIDATE)
    ratios = {name: ratio(times, target) for name, times in entries.items() if target and name != CANDIDATE}
    # What waited for processors on a busy machine says nothing about the device's limit.
    shares = {n: floor_seconds / t.median for n, t in entries.items() if not t.busy} if floor_seconds else {}
    # The median's own interval must lie below: noise alone does not accuse anybody.
    below = tuple(n for n, t in entries.items() if floor_seconds and t.interval[1] < floor_seconds)
    return Timing(
        entries=entries,
        ratios=ratios,
        failures=failures or {},
        floor_seconds=floor_seconds,
        share_of_floor=shares,
        below_floor=below,
        compile_seconds=compile_seconds,
        device=_device_name(torch.device(device)),
        versions={
            "torch": torch.__version__,
            "python": platform.python_version(),
            "cuda": str(torch.version.cuda),
        },
        environment=environment(torch.device(device)),
    )


def is_slower(timing: Timing) -> bool:
    """Whether the candidate takes longer than eager: on the device, or, beyond the noise of a single batch, by the
    wall clock, where what the host does for a call decides. Times that do not hold say nothing, unless it is slower
    within all of their interval."""
    found = speed_up(timing.entries, EAGER, CANDIDATE)
    if found.verdict == UNKNOWN and not found.disagree:
        return not is_busy(timing) and found.high < 1.0 and timing.ratios[EAGER].pairs >= FEWEST_PAIRS
    if found.value < 1.0:
        return True
    walls = wall_seconds(timing.entries[EAGER], timing.entries[CANDIDATE])
    return walls is not None and walls[1] > WALL_NOISE * walls[0]


def is_busy(timing: Timing) -> bool:
    """Whether other programs took the processors from eager or the candidate in most rounds."""
    return any(timing.entries[name].busy for name in (EAGER, CANDIDATE) if name in timing.entries)


def _told(found: SpeedUp) -> str:
    if found.verdict == UNKNOWN:
        return f"The speed-up over {found.baseline} is {UNKNOWN}: {found.why}."
    return Ratio(found.baseline, CANDIDATE, found.value, found.low, found.high, 0).sentence()


def wall_seconds(eager: Times, candidate: Times) -> tuple[float, float, str] | None:
    """Wall seconds of eager's calls and the candidate's, and which calls, in words: those in a row, else those that are
    waited for; None where there was no time for either."""
    if eager.back_to_back_seconds is not None and candidate.back_to_back_seconds is not None:
        return eager.back_to_back_seconds, candidate.back_to_back_seconds, "each of the calls in a row"
    if eager.waited_seconds is not None and candidate.waited_seconds is not None:
        return eager.waited_seconds, candidate.waited_seconds, "a call that is waited for"
    return None


def _synchronize(inputs: Sequence[Any]) -> None:
    for device in {t.device for t in tensors_of(list(inputs)) if t.device.type == "cuda"}:
        torch.cuda.synchronize(device)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor_name()
