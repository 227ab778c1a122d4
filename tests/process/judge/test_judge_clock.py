"""The judge's clocks: what figures mean, what timed calls are checked for, and attacks on both with honest twins."""

from __future__ import annotations

import math
import os
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_judge_figures import rounds
from torch import nn

from kernelwright.judge.check import own_share
from kernelwright.judge.clock import timing
from kernelwright.judge.clock.timed import Batch, Round, TimedProblem
from kernelwright.judge.clock.timed_values import marked
from kernelwright.judge.clock.timed_worker import TimedWorker
from kernelwright.judge.clock.timing import _shape, baseline_text, time_candidates
from kernelwright.judge.inside.tensors import bit_sum
from kernelwright.judge.inside.variation import Exchange
from kernelwright.judge.records import CandidateTiming, Refusal
from kernelwright.judge.selftest import CONTROLS
from kernelwright.judge.worker.process import Worker
from kernelwright.judge.worker.remote import RemoteCandidate
from kernelwright.problem.load import load_problem
from kernelwright.processors import scheduled
from kernelwright.timing import environment as surroundings
from kernelwright.verify.sensitivity import move
from kernelwright.verify.state import float64_copy

MODEL = '''
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.relu(self.linear(x)) * 2 + torch.tanh(x)

def get_inputs():
    return [torch.rand(192, 256)]

def get_init_inputs():
    return [256]
'''

HONEST = '''
import gc, sys, threading, time
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.calls, self.stored, self.waiting, self.space, self.first = 0, {}, [], {}, []

    def compute(self, x):
        return torch.relu_(self.linear(x)).mul_(2).add_(torch.tanh(x))

    def into(self, out, x):
        with torch.no_grad():
            out.copy_(self.compute(x))

    def forward(self, x):
        self.calls += 1
'''

#: Name: (code before the class, lines of forward, verdict or None where the candidate is honest).
CANDIDATES: dict[str, tuple[str, str, str | None]] = {
    "plain": ("", "return self.compute(x)", None),
    "workspace": ("", """
        if x.shape not in self.space:
            self.space[x.shape] = torch.empty_like(x)
        torch.tanh(x, out=self.space[x.shape])
        return torch.relu_(self.linear(x)).mul_(2).add_(self.space[x.shape])""", None),
    "joined_thread": ("", """
        out = torch.empty_like(x)
        thread = threading.Thread(target=self.into, args=(out, x))
        thread.start()
        thread.join()
        return out""", None),
    "late_thread": ("", """
        out = torch.empty_like(x)
        threading.Timer(0.01, self.into, (out, x)).start()
        return out""", "CHEAT-ASYNC"),
    "stale_memory": ("", "return self.compute(x) if self.calls <= 10 else torch.empty_like(x)", "CHEAT-STALE"),
    "stored_by_address": ("", """
        key = x.data_ptr()
        if key not in self.stored:
            self.stored[key] = self.compute(x)
        return self.stored[key].clone()""", "CHEAT-REPLAY"),
    "stored_by_samples": ("", """
        key = tuple(x.view(-1)[::x.numel() // 64].tolist())
        if key not in self.stored:
            self.stored[key] = self.compute(x)
        return self.stored[key].clone()""", "CHEAT-REPLAY"),
    "static_result": ("", """
        if self.calls <= 10:
            self.stored[0] = self.compute(x)
        return self.stored[0].clone()""", "CHEAT-REPLAY"),
    "first_address": ("", """
        self.first = self.first or [x]
        return self.compute(self.first[0])""", "WRONG-STALE"),
    "every_fifth": ("", """
        out = torch.empty_like(x)
        self.waiting.append((x.clone(), out))
        if len(self.waiting) == 5:
            for given, result in self.waiting:
                self.into(result, given)
            self.waiting.clear()
        return out""", "CHEAT-DEFERRED"),
    "same_memory": ("", """
        if self.calls <= 5:
            return self.compute(x)
        self.space[0] = self.space[0] if 0 in self.space else torch.empty_like(x)
        return self.space[0].copy_(self.compute(x))""", "WRONG-ALIAS"),
    "changes_inputs": ("", """
        result = self.compute(x)
        if self.calls > 5:
            x.clamp_(max=0.9999)
        return result""", "CHEAT-INPUT-MUTATION"),
    "fast_when_timed": ("", """
        if self.calls <= 5:
            return self.compute(x)
        return self.compute(x[:8]).repeat(24, 1)""", "CHEAT-MODE"),
    "sleeps_at_first": ("", """
        if self.calls <= 4:
            time.sleep(0.3)
        return self.compute(x)""", "CHEAT-MODE"),
    "patched_modules": ("""
time.perf_counter = time.time = time.monotonic = lambda: 0.0
time.process_time = lambda: 0.0
torch.cuda.Event.elapsed_time = lambda self, other: 1e-6
""", "return self.compute(x)", None),
    "patched_everywhere": ("""
steps = [0.0]
def fake():
    steps[0] += 1e-6
    return steps[0]
for module in list(sys.modules.values()):
    for name, value in list(vars(module).items()) if hasattr(module, "__dict__") else ():
        if value is time.perf_counter and module is not time:
            setattr(module, name, fake)
""", "return self.compute(x)", "CHEAT-TIMER"),
}


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    path = tmp_path_factory.mktemp("problem") / "model.py"
    path.write_text(MODEL)
    return load_problem(path, device="cpu")


@pytest.fixture(scope="module")
def clocked(problem, tmp_path_factory):
    """All candidates and the model, timed against each other on one thread."""
    folder = tmp_path_factory.mktemp("candidates")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    (folder / "baseline.py").write_text(baseline_text(problem))
    for name, (before, lines, _) in CANDIDATES.items():
        text = HONEST.replace("class ModelNew", before + "\nclass ModelNew")
        (folder / f"{name}.py").write_text(text + textwrap.indent(textwrap.dedent(lines).strip(), " " * 8) + "\n")
    workers: dict[str, Worker] = {}
    try:
        for name in ("baseline", *CANDIDATES):
            workers[name] = Worker(folder / f"{name}.py", problem.device)
            RemoteCandidate(workers[name], problem, 0, True)
        baseline = workers["baseline"]
        found = time_candidates(problem, baseline, {n: workers[n] for n in CANDIDATES}, None, 5.0,
                                model=problem.make_model(0))
        shares = {name: own_share.measure_own_share(workers[name], problem) for name in ("plain",)}
    finally:
        for worker in workers.values():
            worker.close()
        torch.set_num_threads(threads)
    return found, shares


@pytest.mark.parametrize("name", CANDIDATES)
def test_candidate(clocked, name):
    """Every attack is refused with its verdict, or gains nothing; every honest twin gets a time."""
    found = clocked[0].timings[name]
    wanted = CANDIDATES[name][2]
    if wanted is None:
        assert isinstance(found, CandidateTiming), found
        assert found.seconds > 1e-4 and found.interval[0] <= found.seconds <= found.interval[1]
        assert (len(found.samples) >= 3 and found.speedup is not None) or "fitted the budget" in found.note
    elif wanted == "CHEAT-TIMER" and isinstance(found, CandidateTiming):
        # On a busy machine clocks may show less. Then the judge's own time counts, which is no forged one.
        honest = min(min(clocked[0].timings[twin].samples) for twin in ("plain", "workspace", "patched_modules"))
        assert found.seconds > 0.5 * honest > 100 * found.inner and found.note
    else:
        # What only clocks show is no accusation on a busy machine, and no time, either.
        busy = ["JUDGE-BUSY"] if name in ("patched_everywhere", "sleeps_at_first") else []
        assert isinstance(found, Refusal) and found.verdict in [wanted, *busy], found
        assert found.finding.sentence.endswith(".")


def test_memory_that_nothing_wrote_is_named_whatever_it_holds(problem, tmp_path):
    """In the longest batch freed memory is not poisoned, so that inputs and parts of results stand there by chance."""
    lines = "        return self.compute(x) if self.calls <= 6 else torch.empty_like(x)\n"
    (tmp_path / "stale.py").write_text(HONEST + lines)
    with Worker(tmp_path / "stale.py", problem.device) as worker:
        RemoteCandidate(worker, problem, 0, True)
        timed = TimedProblem(problem, problem.make_model(0))
        stale = TimedWorker("stale", worker, True)
        stale.run(timed, timed.make_round(3, [(True, 2), (False, 4), (False, 40)]), flush=1, flush_bytes=1 << 25,
                  check=True)
    assert {refusal.verdict for refusal in stale.wrong} == {"CHEAT-STALE"}, stale.wrong


def test_marks_in_outputs():
    marks = torch.full((4, 8), 0x6B, dtype=torch.uint8)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
        assert marked({"a": torch.ones(3, dtype=dtype), "b": marks.view(dtype)}, 0x6B) == 1.0
    assert marked({"a": torch.ones(4)}, 0x6B) == marked({"a": torch.tensor([True, False])}, 0x6B) == 0.0
    assert marked({"a": torch.tensor([1.0, math.nan])}, 0x6B) == 0.5
    assert marked({"a": torch.tensor([0x6B, 1], dtype=torch.uint8)}, 0x6B) == 0.0, "one byte may be that by chance"


def test_the_clocks_own_run(clocked, problem):
    found = clocked[0]
    assert found.note == "", "the model in its own process repeats the model's results"
    assert found.baseline is not None and found.baseline.speedup is None
    assert {"threads", "load"} <= found.environment["before"].keys() & found.environment["after"].keys()
    assert min(found.timings["patched_modules"].samples) > 1e-4, "patched clocks gain nothing"
    assert clocked[1]["plain"].own_share == 0.0, "nothing but PyTorch's operators"


def test_there_are_more_rounds_for_those_whose_clocks_disagree(monkeypatch):
    """Up to twice the budget, for them and the model alone."""
    class Simulated(SimpleNamespace):
        refusal, waited, waits = None, 0.0, 1.0

        def run(self, *_, **__):
            now[0] += 4e-3
            self.rounds += rounds(self.says, 1, wall=self.true)

    now = [0.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(timing, "_shape", lambda *_: (2, []))
    monkeypatch.setattr(timing, "_eager_seconds", lambda _: 1e-3)
    timed = SimpleNamespace(make_round=lambda *_: None, problem=SimpleNamespace(device=torch.device("cpu")))
    made = [Simulated(name=name, true=true, says=says, trusted=name in ("eager", "null"), rounds=[])
            for name, true, says in (("eager", 1e-3, 1e-3), ("null", 0.0, 0.0), ("honest", 1e-3, 1e-3),
                                     ("vague", 1.3e-3, 1e-3))]
    assert timing._rounds(timed, made[0], made[1], made[2:], 0.3, 0.0) == ""
    eager, null, honest, vague = (len(one.rounds) for one in made)
    assert eager == null == vague > 1.3 * honest > 1.3 * timing.LEAST_ROUNDS


@pytest.mark.parametrize(("faster", "refused"), [(1.0, True), (1e3, False)])
def test_who_is_below_the_floor_is_held_against_a_floor_measured_anew(faster, refused, problem, monkeypatch):
    """Peaks that were measured on a busy machine are too low, and kept."""
    def simulated(_, reference, null, others, *__):
        for timed_worker in (reference, *others):
            timed_worker.rounds = rounds(1e-3)
        null.rounds = rounds(0.0)
        return ""

    monkeypatch.setattr(timing, "_rounds", simulated)
    monkeypatch.setattr(timing, "measured_faster", lambda _: faster)
    idle = SimpleNamespace(pause=lambda: None)
    found = time_candidates(problem, idle, {"x": idle}, 1.0, 0.0, model=problem.make_model(0)).timings["x"]
    assert (isinstance(found, Refusal) and found.verdict == "CHEAT-FLOOR") is refused


def test_outputs_are_taken_after_the_clock_has_stopped(problem, monkeypatch):
    """How long a transfer of large outputs takes differs from batch to batch, and says nothing about a call. What is
    taken is not asked for: nothing is requested between the clock's end and the copy."""
    timed = TimedProblem(problem, problem.make_model(0), secret=3)
    made, done = timed.make_round(2, [(True, 2)]), []

    class Slow(TimedWorker):
        def ask(self, kind, payload):
            done.append(kind)
            each = [1e-4, 1e-4]
            left = made.batches[0].left
            return {"seconds": each, "issued": each, "left": left if kind == "look" else each, "processor": each,
                    "odd": "", "again": False, "in_inputs": False}

        def _places(self, *_):
            return [[0], [512]]

        def _whole(self, _, places):
            done.append(f"whole {places[0] // 512}")
            return made.batches[0].eager[places[0] // 512]

        def _probes(self, *_):
            done.append("probes")
            time.sleep(0.3)
            outputs = torch.stack([call["output"].reshape(-1) for call in made.batches[0].eager])
            return {"output": outputs[:, torch.tensor(made.positions) % outputs.shape[1]]}

    idle = SimpleNamespace(process_number=os.getpid())
    slow = Slow("x", idle, True)
    ran = slow._batch(timed, made, 0, made.batches[0], 0, 1 << 20, check=True)
    assert done == ["forget", "time", "probes", "whole 0", "whole 1", "look"] and ran.wall < 0.2 and not slow.wrong


def test_contents_never_repeat_and_can_be_followed(problem):
    """What the judge says a call's inputs were is what a worker that follows the exchanges has."""
    model = problem.make_model(0)
    timed = TimedProblem(problem, model, secret=5)
    made = timed.make_round(3, [(True, 3), (False, 12)])
    slots = [[t.clone() for t in slot] for slot in made.slots]
    seen: list[torch.Tensor] = []
    for number, batch in enumerate(made.batches):
        exchange = Exchange(made.varied, batch.key)
        for call, (slot, other, offset, few, seed) in enumerate(batch.calls):
            exchange(slots[slot], slots[other], offset, few)
            assert seed is None
            assert all(not torch.equal(slots[slot][0], earlier) for earlier in seen)
            seen.append(slots[slot][0].clone())
            assert torch.equal(made.before(number, call)[slot][0], slots[slot][0])
            assert torch.equal(batch.eager[call]["output"], model(slots[slot][0]).detach())
        assert batch.left == [[int(bit_sum(tensor)) for tensor in slot] for slot in slots]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.int16, torch.bfloat16, torch.float32,
                                   torch.int64, torch.float64, torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [(3,), (700, 800)], ids=str)
def test_elements_are_exchanged_bit_by_bit(dtype, shape):
    """On a processor by exclusive ors of integers: nothing but places changes, of about half or a few of the elements,
    whatever the bits mean; and at the places at which elements without an order in memory are exchanged."""
    draw = torch.Generator().manual_seed(1)

    def drawn() -> torch.Tensor:
        wide = torch.randint(0, 1 << 62, shape, generator=draw)
        return wide > 1 << 61 if dtype is torch.bool else wide.to(dtype)

    for few in (False, True):
        here, there = drawn(), drawn()
        one, other = here.clone(), there.clone()
        Exchange([0], 5)([one], [other], 77, few)
        moved = (one != here) | (other != there)
        expected = torch.where(moved, there, here), torch.where(moved, here, there)
        assert torch.equal(one, expected[0]) and torch.equal(other, expected[1])
        same = Exchange([0], 5)
        apart = [torch.empty((*shape, 2), dtype=dtype)[..., 0].copy_(tensor) for tensor in (here, there)]
        same([apart[0]], [apart[1]], 77, few)  # with gaps: the other way
        assert torch.equal(apart[0], one) and torch.equal(apart[1], other)
        if len(shape) > 1 and dtype is not torch.bool:
            share = float(moved.double().mean())
            assert 0 < share < 0.003 if few else 0.4 < share <= 0.51


def contents(made: Round) -> Iterator[tuple[Batch, int, bool, torch.Tensor]]:
    """Each call of a round: its batch, its number there, whether a few elements differ, and its first input."""
    slots = [[t.clone() for t in slot] for slot in made.slots]
    for batch in made.batches:
        exchange = Exchange(made.varied, batch.key)
        for call, (slot, other, offset, few, _) in enumerate(batch.calls):
            exchange(slots[slot], slots[other], offset, few)
            yield batch, call, few, slots[slot][0].clone()


def test_no_part_of_a_result_can_be_taken_over(problem):
    """Who compares inputs with all that were there before finds no row again, and no columns that all rows share; but
    for one call in a longer batch, which a sample of 64 elements does not tell from the call before, and whose whole
    output is compared."""
    timed = TimedProblem(problem, problem.make_model(0), secret=6)
    made = timed.make_round(3, [(True, 2), (True, 6), (False, 16)])
    seen, alike = [slot[0] for slot in made.slots], []
    for batch, call, few, now in contents(made):
        if few:
            share = float((now != seen[-1]).double().mean())
            assert 0 < share < 0.003 and call in batch.chosen
            alike.append(batch)
        else:
            for earlier in seen:
                changed = now != earlier
                assert float(changed.double().mean(1).min()) > 0.25
                assert bool(changed.any(0).all())
        seen.append(now)
    assert alike == made.batches[1:]


def test_a_sample_does_not_tell_calls_apart(problem):
    """A result stored by 64 elements is wrong in nearly every round, and refused, as the whole of it is compared."""
    model, caught = problem.make_model(0), 0
    for secret in range(12):
        timed = TimedProblem(problem, model, secret=secret)
        stored: dict[tuple[float, ...], dict[str, torch.Tensor]] = {}
        wrong = 0
        made = timed.make_round(3, [(True, 2), (True, 6), (False, 4)])
        for batch, call, _, x in contents(made):
            got = stored.setdefault(tuple(x.view(-1)[::x.numel() // 64].tolist()), batch.eager[call])
            number = next(n for n, other in enumerate(made.batches) if other is batch)
            wrong += call in batch.chosen and not timed.is_right(made, number, call, got)
        caught += wrong > 0
    assert caught >= 11


LAYOUTS = {
    "channels last": "torch.rand(8, 6, 5, 7).to(memory_format=torch.channels_last)",
    "transposed": "torch.rand(40, 30).t()",
    "part of rows": "torch.rand(40, 30)[:, :17]",
    "repeated": "torch.rand(1, 30).expand(40, 30)",
    "16-bit": "torch.rand(40, 30).bfloat16()",
    "flags": "torch.rand(40, 30) > 0.5",
    "complex": "torch.rand(40, 30, dtype=torch.complex128)",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_of_any_layout_are_exchanged(layout, tmp_path):
    """Each call has contents of its own, which keep their layout; nothing but elements at equal places is exchanged."""
    path = tmp_path / "model.py"
    path.write_text(textwrap.dedent(f'''
        import torch
        from torch import nn
        class Model(nn.Module):
            def forward(self, x):
                return x * 1
        def get_inputs():
            return [{LAYOUTS[layout]}]
        '''))
    problem = load_problem(path, device="cpu")
    timed = TimedProblem(problem, problem.make_model(0), secret=2)
    assert timed.varied == [0] and not timed.own_slots
    made = timed.make_round(2, [(False, 6)])
    (first,), (second,) = made.slots
    seen = [first, second]
    for call, (slot, *_) in enumerate(made.batches[0].calls):
        slots = made.before(0, call)
        now, other = slots[slot][0], slots[1 - slot][0]
        assert now.stride() == first.stride()
        assert bool((((now == first) & (other == second)) | ((now == second) & (other == first))).all())
        assert all(not torch.equal(now, earlier) for earlier in seen)
        seen.append(now)


def test_inputs_that_cannot_be_mixed_have_slots_of_their_own(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(textwrap.dedent('''
        import torch
        from torch import nn
        class Model(nn.Module):
            def forward(self, order):
                return order * 2.0
        def get_inputs():
            return [torch.randperm(64)]
        '''))
    problem = load_problem(path, device="cpu")
    timed = TimedProblem(problem, problem.make_model(0), secret=2)
    assert timed.own_slots
    slots, batches = _shape(timed, 1e-4)
    made = timed.make_round(slots, batches)
    used = [call[0] for batch in made.batches for call in batch.calls]
    assert len(made.slots) == len(used) == len(set(used)) and {cold for cold, _ in batches} == {True, False}


def test_a_late_replay_is_wrong_in_every_round():
    """Contents of late calls differ as much as those of early ones: a result of the call before is wrong in any."""
    problem = load_problem(CONTROLS / "problem.py")
    model = problem.make_model(0)
    found = []
    for secret in range(16):
        timed = TimedProblem(problem, model, secret=secret)
        made = timed.make_round(2, [(False, 24)])
        batch = made.batches[0]
        outputs = torch.stack([call["output"].reshape(-1) for call in batch.eager])
        replayed = outputs.roll(1, 0)[:, torch.tensor(made.positions) % outputs.shape[1]]
        wrong = timed.wrong_probes(batch, made.positions, {"output": replayed})
        late = [call for call in range(12, 24) if not batch.calls[call][3]]  # where few differ, whole outputs tell
        found.append(len(set(late) & set(wrong)) / len(late))
    assert min(found) > 0.9 and sum(found) >= 0.995 * len(found)


class Counting(nn.Module):
    """Its outputs depend on its earlier calls; ``own`` changes its input, too."""

    def __init__(self, own: bool = False) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))
        self.own = own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return (x.mul_(1.5) if self.own else x).exp() * self.steps


class Counted:
    def make_inputs(self, seed: int) -> list[torch.Tensor]:
        return [torch.randn(32, 32, generator=torch.Generator().manual_seed(seed))]


@pytest.mark.parametrize("own", [False, True])
def test_other_rounding_starts_where_the_call_started(own, monkeypatch):
    """Else errors of another state, or of other inputs, would stand for errors of rounding."""
    monkeypatch.setattr("kernelwright.judge.clock.timed.may_be_rounding", lambda *_: True)
    draws = []

    def moved(*arguments):
        draws.append(move(*arguments))
        return draws[-1]

    monkeypatch.setattr("kernelwright.judge.clock.timed.move", moved)
    model = Counting(own)
    timed = TimedProblem(Counted(), model, float64_copy(model), secret=7)
    made = timed.make_round(2, [(True, 2), (True, 6)])
    for batch in (0, 1):
        for call in made.batches[batch].chosen:
            assert timed.is_right(made, batch, call, made.batches[batch].eager[call])
    assert len(draws) == (0 if own else 4)
    for found in draws:
        for statistics in found.outputs["output['output']"]:
            assert 0 < statistics.square_error < 1e-12 * statistics.square_reference


def test_words_for_wrong_outputs(problem):
    model = problem.make_model(0)
    timed = TimedProblem(problem, model, float64_copy(model), secret=7)
    made = timed.make_round(2, [(False, 8)])
    batch, right = made.batches[0], made.batches[0].eager[6]["output"]
    assert timed.is_right(made, 0, batch.chosen[0], batch.eager[batch.chosen[0]])

    def verdict(value: torch.Tensor, source: str = "") -> tuple[str, str]:
        assert not timed.is_right(made, 0, 6, {"output": value})
        return timed.explain(made, 0, 6, {"output": value}, source)[:2]

    other = made.before(0, 6)[1 - batch.calls[6][0]][0]
    holes = right.clone()
    holes[:4] = float("nan")
    assert verdict(holes) == ("CHEAT-STALE", "returns memory that it did not write (2.1% of output is still what was "
                              "there before the call)")
    assert verdict(torch.zeros_like(right))[0] == "CHEAT-STALE"
    assert verdict(batch.eager[2]["output"].clone()) == (
        "CHEAT-REPLAY", "returns the result of 4 calls before, though its inputs are new")
    assert "captured graph" in verdict(model(other).detach(), "g = torch.cuda.CUDAGraph()")[1]
    assert verdict(right * 1.005)[0] == "WRONG-NUMERIC"
    assert verdict(right.flip(0))[0] == "CHEAT-MODE"


def test_integers_that_may_be_mixed(tmp_path):
    """Labels are varied; offsets and permutations, of which a mixture would be neither, are not."""
    path = tmp_path / "model.py"
    path.write_text(textwrap.dedent('''
        import torch
        from torch import nn
        class Model(nn.Module):
            def forward(self, x, labels, offsets, order):
                return x[order] + labels + offsets
        def get_inputs():
            offsets = torch.sort(torch.randint(99, (64,)))[0]
            return [torch.rand(64), torch.randint(8, (64,)), offsets, torch.randperm(64)]
        '''))
    problem = load_problem(path, device="cpu")
    assert TimedProblem(problem, problem.make_model(0)).varied == [0, 1]


def test_the_device_that_is_asked_about(tmp_path, monkeypatch):
    """nvidia-smi numbers all devices, PyTorch those that are visible: the device is named by its UUID."""
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\n[ "$2" = "GPU-17" ] && echo "1980 MHz, 3201 MHz, 0x0000000000000004, 61, 300 W"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    properties = type("Properties", (), {"uuid": "17"})
    facts = surroundings.query(surroundings.device_name(properties), surroundings.FIELDS)
    assert facts["clocks.sm"] == "1980 MHz" and facts["temperature.gpu"] == "61"
    assert surroundings.throttling(facts) == ("power cap",)
    bus = type("Properties", (), {"pci_domain_id": 0, "pci_bus_id": 26, "pci_device_id": 0})
    assert surroundings.device_name(bus) == "00000000:1A:00.0"
    assert surroundings.query("", surroundings.FIELDS) == {}


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not tell")
def test_time_on_processors_is_the_kernels():
    before = scheduled([os.getpid()])
    sum(i * i for i in range(300_000))
    used = scheduled([os.getpid()]).since(before)
    assert 1e-3 < used.ran < 60


KERNELS = '''
source = """
// __global__ void commented(float* x) {}
template <typename T> __global__ __launch_bounds__(256, 2) void scale(T* x) {}
extern "C" __global__ void __launch_bounds__(THREADS)
add_bias(const float* x) {}
"""
@triton.autotune(configs=[])
@triton.jit
def softmax_kernel(x):
    pass
'''


def test_own_share_on_a_device():
    assert own_share.kernel_names(KERNELS) == {"scale", "add_bias", "softmax_kernel"}
    assert own_share.base_name("void (anonymous namespace)::scale<float, 4>(float*, int)") == "scale"
    assert own_share.base_name("_ZN3one5scaleEPf") == "scale"
    assert own_share.base_name("softmax_kernel") == "softmax_kernel"
    assert own_share.base_name("void at::native::elementwise<at::native::Add<float>>(int)") == "elementwise"
    found = own_share.on_device(KERNELS, {"void scale<float>(float*)": (3e-3, 5), "ampere_sgemm_128x64_tn": (9e-3, 5)})
    assert found is not None and found.own_share == pytest.approx(0.25)
    assert found.never_ran == ("add_bias", "softmax_kernel")
    assert own_share.on_device(KERNELS, {}) is None


def test_graphs_are_known_by_their_launches(monkeypatch):
    """A text may name graphs and launch none, or launch them under another name."""
    tables = [{"cudaGraphLaunch": (1e-5, 5), "aten::copy_": (1e-5, 5)}, {"cuGraphLaunch_ptsz": (1e-5, 5)},
              {"cudaLaunchKernel": (1e-5, 5), "cudaGraphLaunch": (0.0, 0)}, {}]
    assert [own_share.launches_graphs(table) for table in tables] == [True, True, False, False]
    worker = SimpleNamespace(candidate=SimpleNamespace(read_text=lambda **_: KERNELS))
    for table, found in zip(tables, (True, True, False, False), strict=True):
        monkeypatch.setattr(own_share, "_tables", lambda *_, table=table: ({"scale": (1e-3, 5)}, table, 1.0))
        share = own_share._profiled(worker, SimpleNamespace(device=torch.device("cuda")))
        assert share is not None and share.graph == found and share.own_share == 1.0


def test_launches_that_never_ran_are_seen_from_outside():
    """Where a candidate's own CUDA runtime keeps its errors: launches that the device did not run."""
    asked = {"cudaLaunchKernel": (1e-5, 10), "aten::empty": (1e-5, 5)}
    found = own_share.never_launched(KERNELS, {"Memcpy DtoD": (1e-6, 5), "elementwise_kernel": (1e-5, 5)}, asked)
    assert found is not None and "10 launches were asked for, and the device ran 5" in found.sentence
    assert found.sentence.startswith("None of its kernels (add_bias, scale, softmax_kernel) ever ran")
    # One of its own that runs, a text without kernels, and a captured graph, whose launch runs many, are no such case.
    assert own_share.never_launched(KERNELS, {"scale": (1e-5, 5)}, asked) is None
    assert own_share.never_launched("import torch", {}, asked) is None
    assert own_share.never_launched(KERNELS, {"one": (1e-5, 40)}, {"cudaGraphLaunch": (1e-5, 5)}) is None


def test_own_share_on_a_processor():
    operators = {"aten::linear": (1e-3, 5), "aten::relu_": (1e-3, 5), "other": (1.0, 1)}
    assert own_share.on_processor("import torch", operators, 10e-3).own_share == 0.0
    assert own_share.on_processor("import ctypes", operators, 10e-3).own_share == pytest.approx(0.8, abs=0.01)
    unexplained = own_share.on_processor("import ctypes", operators, 2.05e-3)
    assert unexplained.own_share == 0.0 and not unexplained.short


@pytest.mark.parametrize(("needed", "share"), [(True, None), (False, 0.0), (None, 0.0)])
def test_of_short_calls_a_share_of_nothing_is_not_measured(monkeypatch, needed, share):
    """Unless operators alone give the same bits, or that is not known: then it is refused where own kernels count."""
    found = own_share.on_processor("import ctypes", {"aten::empty": (5e-6, 10), "aten::add": (60e-6, 5)}, 1.2e-4)
    assert found is not None and found.short and found.own_share == 0.0
    assert not own_share.on_processor("import torch", {"aten::add": (60e-6, 5)}, 1.2e-4).short  # no code of its own
    monkeypatch.setattr(own_share, "_profiled", lambda worker, problem: found)
    monkeypatch.setattr(own_share, "are_needed", lambda worker, problem: needed)
    measured = own_share.measure_own_share(None, None)
    assert (None if measured is None else measured.own_share) == share
