"""TIME measures known times, in order, within a budget, and says what it could not measure."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import random
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from torch import nn

from kernelwright.timing import Times, compiled_baseline, measure, ratio, summarize, time_model
from kernelwright.timing import baselines as baselines_module
from kernelwright.timing.baselines import GRAPHED, CompiledBaseline, compilers_of, graph_promises
from kernelwright.timing.clock import CpuClock, flush_bytes
from kernelwright.timing.renewed import renewed
from kernelwright.timing.statistics import median_interval, paired_ratio, quantile


def sleeper(seconds: float):
    return lambda: time.sleep(seconds)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that passes where somebody sleeps, with a microsecond for each look at the clock, whatever else runs."""
    now = [0.0]

    def sleep(seconds: float) -> float:
        now[0] += seconds
        return now[0]

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "perf_counter", lambda: sleep(1e-6))


@pytest.mark.usefixtures("simulated")
def test_known_sleeps_and_their_ratio() -> None:
    times = measure(
        {"slow": sleeper(0.02), "fast": sleeper(0.005)}, device="cpu", budget_seconds=1.5, flush_cache=False
    )
    slow, fast = times["slow"], times["fast"]
    assert 0.02 <= slow.minimum <= slow.lower_quartile <= slow.median <= slow.upper_quartile
    assert slow.minimum < 0.03 and fast.minimum < 0.009
    found = ratio(slow, fast)
    assert 2.5 < found.value < 5 and found.low <= found.value <= found.high and not found.is_tie()
    assert found.pairs == len(slow.rounds) == len(fast.rounds) >= 5
    assert slow.interval[0] <= slow.median <= slow.interval[1]
    assert slow.back_to_back_seconds == pytest.approx(0.02, rel=0.5)
    assert slow.repetitions == len(slow.seconds) and slow.warmups >= 1


@pytest.mark.usefixtures("simulated")
def test_rounds_are_interleaved_and_order_changes() -> None:
    calls: list[str] = []

    def entry(name: str):
        def call() -> None:
            calls.append(name)
            time.sleep(0.001)

        return call

    fresh = []
    measure(
        {name: entry(name) for name in "abc"},
        device="cpu",
        repetitions=6,
        budget_seconds=0.3,
        flush_cache=False,
        fresh_inputs=lambda: fresh.append(len(calls)),
    )
    assert len(fresh) == 7  # before the warm-up and before each round
    measured = calls[fresh[1] : fresh[1] + 18]
    rounds = [measured[i : i + 3] for i in range(0, 18, 3)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert len({tuple(r) for r in rounds}) >= 3


@pytest.mark.usefixtures("simulated")
def test_slow_calls_get_few_repetitions_and_say_so() -> None:
    times = measure(
        {"a": sleeper(0.15), "b": sleeper(0.001)}, device="cpu", budget_seconds=0.5, flush_cache=False
    )
    assert 2 <= times["a"].repetitions < 5 and times["a"].warmups >= 1 and "only" in times["a"].note
    assert times["b"].repetitions > times["a"].repetitions  # several calls in each round
    assert len(times["b"].rounds) == len(times["a"].rounds)


@pytest.mark.usefixtures("simulated")
def test_a_call_beyond_the_budget_is_called_once() -> None:
    calls = []

    def long() -> None:
        calls.append(1)
        time.sleep(0.2)

    times = measure(
        {"long": long, "short": sleeper(0.001)}, device="cpu", budget_seconds=0.1, flush_cache=False
    )
    assert len(calls) == 1
    assert (
        times["long"].repetitions == 1
        and times["long"].warmups == 0
        and "longer than the budget" in times["long"].note
    )
    assert times["short"].repetitions >= 2
    assert ratio(times["long"], times["short"]).value > 10


def test_twice_the_cache_is_written_before_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelwright.timing.clock.flush_bytes", flush_bytes)  # which other tests do without
    clock = CpuClock()
    seen: list[float] = []
    for _ in range(3):
        clock.once(lambda: seen.append(float(clock.buffer[-1])))
    assert len(set(seen)) == 3 and clock.buffer.nbytes == flush_bytes() >= 64 << 20
    assert CpuClock(flush_cache=False).buffer is None


@pytest.mark.clocked
def test_the_cache_is_flushed() -> None:
    data = torch.ones(1 << 20)  # 4 MB: in the cache unless flushed
    call = lambda: data.sum()  # noqa: E731
    cold, warm = [], []
    for _ in range(5):  # in turns, so that a busy machine is so for both
        cold.append(measure({"sum": call}, device="cpu", repetitions=5)["sum"].minimum)
        warm.append(measure({"sum": call}, device="cpu", repetitions=5, flush_cache=False)["sum"].minimum)
    assert flush_bytes() >= 64 << 20
    assert min(cold) > min(warm)


def test_measuring_keeps_the_random_state_and_raises_what_a_call_raises() -> None:
    state = torch.get_rng_state()
    measure({"a": sleeper(0.0005)}, device="cpu", repetitions=3, flush_cache=False)
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(ValueError, match="nothing to measure"):
        measure({}, device="cpu")
    with pytest.raises(ZeroDivisionError):
        measure({"a": lambda: 1 / 0}, device="cpu")


def test_statistics() -> None:
    assert quantile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.5
    assert median_interval([2.0]) == (2.0, 2.0)
    draw = random.Random(0)
    base = [1 + draw.random() * 0.1 for _ in range(60)]
    low, high = median_interval(base)
    assert 1.02 < low < quantile(base, 0.5) < high < 1.08
    # Noise that both share (a busy machine) leaves the paired ratio alone.
    shared = [1 + 3 * draw.random() for _ in range(200)]
    twice = paired_ratio("a", "b", [2 * s for s in shared], shared)
    assert (
        twice.value == pytest.approx(2) and twice.low == pytest.approx(2) and twice.high == pytest.approx(2)
    )
    same = paired_ratio("a", "b", base, list(reversed(base)))
    assert same.is_tie() and "tie" in same.sentence()
    with pytest.raises(ValueError, match="no times"):
        paired_ratio("a", "b", [], [1.0])


class Slow(nn.Module):
    def forward(self, x):
        assert not torch.is_grad_enabled()
        time.sleep(0.006)
        return x + 1


class Fast(nn.Module):
    def forward(self, x):
        time.sleep(0.002)
        return x + 1


@pytest.mark.usefixtures("simulated")
def test_timing_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object):
        raise RuntimeError("no compiler here\nsecond line")

    monkeypatch.setattr(torch, "compile", failing)
    found = time_model(
        Slow(),
        Fast(),
        [torch.ones(4)],
        device="cpu",
        floor_seconds=0.001,
        budget_seconds=0.5,
        flush_cache=False,
    )
    assert set(found.entries) == {"eager", "candidate"} and set(found.ratios) == {"eager"}
    assert found.failures == {"torch.compile": "RuntimeError: no compiler here"}
    assert found.ratios["eager"].value == pytest.approx(3, rel=0.01)
    assert 0 < found.share_of_floor["eager"] < found.share_of_floor["candidate"] < 1 and not found.below_floor
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["entries"]["eager"]["median"] > 0 and document["versions"]["torch"] == torch.__version__
    assert "times" not in document and "no compiler here" in document["sentence"]


class Remembering(nn.Module):
    """A call puts what it computed into what it is given, as a language model does with its cache."""

    def __init__(self, found: list[int]) -> None:
        super().__init__()
        self.found = found

    def forward(self, x: torch.Tensor, cache: dict[str, list[torch.Tensor]]) -> torch.Tensor:
        cache["seen"].append(x * 2)
        self.found.append(len(cache["seen"]))
        return sum(cache["seen"])


def test_a_cache_that_grows_is_the_same_for_each_call() -> None:
    """A graph of such a model reads memory that its cache has given back, so there is none."""
    found: list[int] = []
    cache = {"seen": [torch.ones(4)]}
    timing = time_model(Remembering(found), Remembering(found), [torch.ones(4), cache], device="cpu",
                        budget_seconds=0.05, flush_cache=False, compilers={GRAPHED: None})
    assert set(found) == {2} and len(found) > 4 and len(cache["seen"]) == 1
    assert "changes what a container holds" in timing.failures[GRAPHED]
    assert renewed(lambda x, cache: len(cache["seen"]), [torch.ones(4), cache]) is None
    assert renewed(lambda x: x + 1, [torch.ones(4)]) is None


def test_compilations_share_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one leaves goes to the next, and max-autotune has the largest part."""
    limits = []

    def compiled(*_: object, limit_seconds: float, **options: str) -> CompiledBaseline:
        limits.append((options.get("mode"), limit_seconds))
        return CompiledBaseline(lambda: None, "", 2.0)

    monkeypatch.setattr("kernelwright.timing.baselines.compiled_baseline", compiled)
    monkeypatch.setattr("kernelwright.timing.baselines.graphed_baseline", lambda model, inputs: CompiledBaseline(
        None, "no graph", 0.0))
    found = time_model(Fast(), None, [torch.ones(4)], device="cpu", budget_seconds=0.01, flush_cache=False,
                       compilers=compilers_of("all", "cuda"), compile_limit_seconds=62.0)
    assert [mode for mode, _ in limits] == [None, "reduce-overhead", "max-autotune-no-cudagraphs"]
    assert [seconds for _, seconds in limits] == pytest.approx([62.0 / 6, 12.0, 58.0])
    assert found.compile_seconds == 6.0
    assert found.failures["CUDA graph of eager"] == "no graph"
    assert list(compilers_of("all", "cpu")) == ["torch.compile", "torch.compile max-autotune"]
    assert list(compilers_of("compile", "cuda")) == ["CUDA graph of eager", "torch.compile"]
    assert list(compilers_of("compile", "cuda", launches=True))[2:] == ["torch.compile reduce-overhead"]
    assert list(compilers_of("compile", "cpu", launches=True)) == ["torch.compile"]
    assert not compilers_of("none", "cuda", launches=True) and not compilers_of("graph", "cpu")
    assert compilers_of("graph", "cuda", launches=True) == {"CUDA graph of eager": None}


def test_a_graph_that_is_no_graph_is_a_reason() -> None:
    """Here there is no device: whatever recording raises is said, and nothing fails."""
    found = baselines_module.graphed_baseline(Fast(), [torch.ones(4)])
    assert found.call is None and found.reason


def made(seconds: float, waited: float | None = None, in_a_row: float | None = None) -> Times:
    some = (seconds,) * 5
    return Times("any", some, some, seconds, seconds, seconds, seconds, (seconds, seconds), 5, 1, seconds, in_a_row, 0,
                 0.0, waited)


def test_how_a_candidate_is_launched() -> None:
    pays = baselines_module.graph_pays
    assert pays(made(1.0), made(1.1)) and not pays(made(1.0), made(1.01)) and not pays(made(1.1), made(1.0))
    assert pays(made(1.0, 1.0), made(1.0, 1.1)) and not pays(made(1.0, 1.0), made(1.0, 1.01))
    assert pays(made(1.02, 1.0), made(1.0, 1.5)) and not pays(made(1.0, 2.0), made(1.01, 1.0))


def test_what_the_host_takes_decides_where_it_was_measured() -> None:
    def timing(eager: Times, candidate: Times) -> Any:
        return summarize({"eager": eager, "candidate": candidate}, device="cpu")

    slower = baselines_module.is_slower
    assert slower(timing(made(1.0), made(1.1))) and not slower(timing(made(1.1), made(1.0)))
    assert slower(timing(made(1.1, 2.0), made(1.0, 2.2))) and not slower(timing(made(1.1, 2.0), made(1.0, 2.0)))
    assert not slower(timing(made(1.1, 2.0, 3.0), made(1.0, 2.2, 2.9)))  # calls in a row say more
    matter = baselines_module.launches_matter
    assert matter(timing(made(1.0, 1.5), made(1.0))) and not matter(timing(made(1.0, 1.1), made(1.0)))
    assert not matter(timing(made(1.0), made(1.0)))


@pytest.mark.usefixtures("simulated")
def test_both_launches_are_timed_and_the_better_is_the_candidate() -> None:
    found = time_model(Slow(), Fast(), [torch.ones(4)], device="cpu", budget_seconds=0.5, flush_cache=False,
                       compilers={}, direct=Slow())
    assert found.launch == "graph" and set(found.launches) == {"graph", "direct"}
    assert set(found.entries) == {"eager", "candidate"} and found.entries["candidate"] == found.launches["graph"]
    found = time_model(Slow(), Slow(), [torch.ones(4)], device="cpu", budget_seconds=0.5, flush_cache=False,
                       compilers={}, direct=Fast())
    assert found.launch == "direct" and found.ratios["eager"].value == pytest.approx(3, rel=0.01)
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["launches"]["graph"]["median"] > document["launches"]["direct"]["median"]


@pytest.mark.usefixtures("simulated")
def test_a_graph_gives_back_memory_that_the_model_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The baseline goes, and the others are timed; without it what fails is raised."""
    measured = baselines_module.measure

    def short(callables: dict, **how: Any) -> Any:
        if how["repetitions"] is None or "CUDA graph of eager" in callables:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return measured(callables, **how)

    monkeypatch.setattr(baselines_module, "measure", short)
    monkeypatch.setattr(baselines_module, "graphed_baseline", lambda model, inputs: CompiledBaseline(
        lambda: None, "", 0.5))
    how = {"device": "cpu", "flush_cache": False, "compilers": {"CUDA graph of eager": None}}
    found = time_model(Slow(), Fast(), [torch.ones(4)], repetitions=3, **how)
    assert set(found.entries) == {"eager", "candidate"} and found.compile_seconds is None
    assert "memory" in found.failures["CUDA graph of eager"]
    with pytest.raises(torch.cuda.OutOfMemoryError):
        time_model(Slow(), Fast(), [torch.ones(4)], **how)


@pytest.mark.usefixtures("simulated")
def test_calls_that_are_waited_for() -> None:
    times = measure({"slow": sleeper(0.02), "fast": sleeper(0.005)}, device="cpu", budget_seconds=1.5,
                    flush_cache=False)
    assert times["slow"].waited_seconds == pytest.approx(0.02, rel=0.01)
    assert times["fast"].waited_seconds == pytest.approx(0.005, rel=0.01)
    times = measure({"slow": sleeper(0.2), "fast": sleeper(0.1)}, device="cpu", budget_seconds=0.5, flush_cache=False)
    assert times["slow"].waited_seconds is None  # no room for three of them


def test_nothing_honest_is_below_the_floor() -> None:
    fast = Times(
        "candidate", (1e-3,) * 5, (1e-3,) * 5, 1e-3, 1e-3, 1e-3, 1e-3, (1e-3, 1e-3), 5, 1, 1e-3, None, 0, 0.0
    )
    found = summarize({"candidate": fast}, device="cpu", floor_seconds=2e-3)
    assert found.below_floor == ("candidate",) and "below the floor" in found.sentence()


def test_compilation_is_interrupted_and_the_alarm_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(model, **_: object):
        def call(*_: object):
            for _ in range(1000):
                with contextlib.suppress(Exception):  # as a compiler does with its stages' failures
                    time.sleep(0.01)

        return call

    monkeypatch.setattr(torch, "compile", stuck)
    monkeypatch.setattr(baselines_module, "_GRACE_SECONDS", 0.0)
    handler = signal.getsignal(signal.SIGALRM)
    found = compiled_baseline(Slow(), [torch.ones(2)], limit_seconds=0.2)
    assert found.call is None and "longer than 0.2 s" in found.reason
    assert signal.getsignal(signal.SIGALRM) is handler and signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_compilation_is_interrupted_where_the_compiler_itself_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What C++ calls may be called where it expects no error, and the process would end."""
    of_compiler: dict[str, Any] = {"__name__": "torch._dynamo.symbolic_convert", "time": time}
    exec("def step(seconds):\n    end = time.monotonic() + seconds\n    while time.monotonic() < end: time.sleep(0.01)",
         of_compiler)
    done: list[str] = []

    def called_by_others() -> None:
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            time.sleep(0.01)
        done.append("others")

    def stuck(model, **_: object):
        def call(*_: object):
            called_by_others()
            of_compiler["step"](60.0)
            done.append("compiler")

        return call

    monkeypatch.setattr(torch, "compile", stuck)
    found = compiled_baseline(Slow(), [torch.ones(2)], limit_seconds=0.1)
    assert found.call is None and "longer than 0.1 s" in found.reason and done == ["others"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_compilation_whose_interruption_was_lost_is_interrupted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dawdling:
        def __del__(self) -> None:  # where Python drops what is raised
            end = time.monotonic() + 0.3
            while time.monotonic() < end:
                time.sleep(0.01)

    def stuck(model, **_: object):
        def call(*_: object):
            Dawdling()
            for _ in range(1000):
                time.sleep(0.01)

        return call

    monkeypatch.setattr(torch, "compile", stuck)
    monkeypatch.setattr(baselines_module, "_GRACE_SECONDS", 0.0)
    found = compiled_baseline(Slow(), [torch.ones(2)], limit_seconds=0.1)
    assert found.call is None and "longer than 0.1 s" in found.reason


def test_one_launch_of_all_calls_promises_what_a_graph_of_eager_shows() -> None:
    """Where the device waits for the host between kernels, its own time has that in it and says nothing."""
    def timed(device: float, waited: float) -> Times:
        five = (device,) * 5
        return Times("any", five, five, device, device, device, device, five[:2], 5, 1, device, None, 0, 0.0, waited)

    eager = timed(4e-3, 4.1e-3)
    assert not graph_promises(summarize({"eager": eager}, device="cpu"))
    assert graph_promises(summarize({"eager": timed(1e-3, 4e-3)}, device="cpu"))
    assert graph_promises(summarize({"eager": eager, "CUDA graph of eager": timed(1e-3, 1.1e-3)}, device="cpu"))
    assert not graph_promises(summarize({"eager": timed(4e-3, 8e-3), "CUDA graph of eager": timed(5e-3, 8e-3)},
                                        device="cpu"))


def test_a_budget_that_is_spent_compiles_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("it was begun"))
    found = compiled_baseline(Slow(), [torch.ones(2)], limit_seconds=0.0)
    assert found.call is None and "--budget" in found.reason and found.seconds == 0.0


def test_an_alarm_that_comes_when_the_block_has_ended_strikes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be raised in whatever runs next, and again every second."""
    set_timer, previous = signal.setitimer, signal.getsignal(signal.SIGALRM)

    def at_the_last_moment(which: int, seconds: float, *interval: float) -> tuple[float, float]:
        handler = signal.getsignal(signal.SIGALRM)
        if not seconds and callable(handler):
            handler(signal.SIGALRM, None)
        return set_timer(which, seconds, *interval)

    monkeypatch.setattr(baselines_module.signal, "setitimer", at_the_last_moment)
    monkeypatch.setattr(baselines_module, "clock", iter((0.0, 9.0)).__next__)
    with baselines_module._limit(5.0):
        pass
    assert signal.getsignal(signal.SIGALRM) is previous and signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


def test_an_interruption_leaves_the_compiler_whole() -> None:
    """Never in the middle of an import: PyTorch's backends cannot be registered a second time."""
    program = """
import time, torch
import torch._dynamo.backends.registry as registry
from kernelwright.timing import compiled_baseline
register = registry.register_debug_backend
def slowly(*arguments, **options):
    time.sleep(0.2)
    return register(*arguments, **options)
registry.register_debug_backend = slowly
model, x = torch.nn.Linear(8, 8), torch.rand(4, 8)
compiled_baseline(model, [x], limit_seconds=0.7, backend="eager")
torch._dynamo.reset()
assert torch.equal(torch.compile(model, backend="eager")(x), model(x))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_torch_compile_itself() -> None:
    """Compiles for real where a C++ compiler is; there is a time or a reason, never an error."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.rand(4, 8)
    found = compiled_baseline(model, [x], limit_seconds=100)
    if found.call is None:
        assert found.reason
    else:
        with torch.no_grad():
            assert torch.allclose(found.call(), model(x), atol=1e-6)
    torch._dynamo.reset()


def test_module_callables_run_without_gradients() -> None:
    model, x = nn.Linear(4, 4), torch.rand(2, 4)
    assert not baselines_module.module_callable(model, [x])().requires_grad


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_times_hide_the_host_and_find_other_streams() -> None:
    x = torch.rand(1 << 26, device="cuda")
    side = torch.cuda.Stream()

    def elsewhere() -> None:
        with torch.cuda.stream(side):
            for _ in range(20):
                x.sum()

    times = measure({"sum": lambda: x.sum(), "elsewhere": elsewhere}, device="cuda", budget_seconds=1)
    assert times["sum"].median > x.numel() * 4 / 2e13
    assert times["sum"].elsewhere_seconds == 0 and times["elsewhere"].elsewhere_seconds > 0
    assert "other streams" in times["elsewhere"].note


def test_batches_of_calls_in_a_row_take_turns():
    """What else a machine does for a while meets all callables alike."""
    called: list[str] = []
    times = measure({name: functools.partial(called.append, name) for name in "abc"}, device="cpu", repetitions=2,
                    budget_seconds=1.0, flush_cache=False)
    runs = [(name, len(list(some))) for name, some in itertools.groupby(called)]
    assert runs[-9:] == [(name, times[name].batch) for name in "abc" * 3]
    assert all(t.batch >= 2 and t.back_to_back_seconds for t in times.values())
