"""What the judge's figures decide from what clocks told: rounds that are made up, without a process."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kernelwright.judge.clock.figures import decide
from kernelwright.judge.clock.outer import Ran
from kernelwright.judge.records import CandidateTiming, Refusal
from kernelwright.judge.worker.machine import handout_seconds


def ran(seconds: float, count: int, *, cold: bool, wall: float | None = None, around: float = 1e-3, issued: float = 0.0,
        left: float = 0.0, each: tuple[float, ...] | None = None) -> Ran:
    """A batch of ``count`` calls that say ``seconds`` each, in truth ``wall`` each."""
    true = seconds if wall is None else wall
    own = each or (seconds,) * count
    all_calls = count * (around + true)
    return Ran(cold, 5e-3 + all_calls, all_calls, own, (issued,) * count, (left,) * count, own)


def rounds(seconds: float, number: int = 10, **fields) -> list[list[Ran]]:
    return [[ran(seconds, 2, cold=True, **fields), ran(seconds, 8, cold=True, **fields),
             ran(seconds, 4, cold=False, **fields), ran(seconds, 40, cold=False, **fields)] for _ in range(number)]


def test_clocks_that_agree():
    found, beside = decide("x", rounds(1e-3), rounds(0.0), None, None, "cpu")
    assert isinstance(found, CandidateTiming) and beside == ()
    assert found.seconds == found.inner == pytest.approx(1e-3) and found.outer == pytest.approx(1e-3)


def test_a_forged_clock_is_refused():
    found, _ = decide("x", rounds(1e-6, wall=1e-3), rounds(0.0), None, None, "cpu")
    assert isinstance(found, Refusal) and found.verdict == "CHEAT-TIMER"
    assert "1.00 us" in found.finding.sentence and found.finding.evidence["outer_seconds"] == pytest.approx(1e-3)


def test_a_small_disagreement_counts_by_the_outer_clock():
    found, beside = decide("x", rounds(1e-3, wall=1.3e-3), rounds(0.0), None, None, "cpu")
    assert isinstance(found, CandidateTiming) and [f.kind for f in beside] == ["clocks-disagree"]
    assert found.inner == pytest.approx(1e-3) and found.seconds == pytest.approx(1.3e-3) and found.note


def test_two_rounds_convict_nobody():
    found, beside = decide("x", rounds(1e-6, 3, wall=1e-3), rounds(0.0, 3), None, None, "cpu")
    assert isinstance(found, CandidateTiming) and found.seconds == pytest.approx(1e-3) and beside


def test_a_launch_bound_gpu_candidate_is_honest():
    """3 us on the device, 60 us on the host: behind the flush only the device's time is left."""
    cold = [[ran(3e-6, 2, cold=True), ran(3e-6, 8, cold=True),
             ran(3e-6, 4, cold=False, wall=6.3e-5, issued=6e-5), ran(3e-6, 40, cold=False, wall=6.3e-5, issued=6e-5)]
            for _ in range(10)]
    for one in cold:  # the judge's processors figure is the host's time, which is more than the device's
        assert one[3].ran > 40 * 6e-5
    found, beside = decide("x", cold, rounds(0.0), None, None, "cuda")
    assert isinstance(found, CandidateTiming), found
    assert found.seconds == pytest.approx(3e-6) and beside == ()


def test_a_host_that_no_flush_hides_counts():
    """Who says that its host takes long is timed by the judge's clock: it cannot excuse hidden work with that."""
    said = [[ran(3e-6, 2, cold=True, wall=3e-2, issued=3e-2), ran(3e-6, 8, cold=True, wall=3e-2, issued=3e-2)]
            for _ in range(10)]
    found, beside = decide("x", said, rounds(0.0), None, None, "cuda")
    assert isinstance(found, CandidateTiming) and found.seconds == pytest.approx(3e-2)
    assert [f.kind for f in beside] == ["clock-not-supported"] and "to launch" in found.note


@pytest.mark.parametrize(("device_seconds", "host_seconds", "size"), [
    pytest.param(3e-6, 25e-6, 1 << 16, id="launch-bound"), pytest.param(60e-6, 20e-6, 64 << 20, id="ordinary"),
    pytest.param(0.8e-3, 20e-6, 1600 << 20, id="large output"),
    pytest.param(0.2e-3, 0.6e-3, 16 << 20, id="more launches than a flush hides")])
def test_an_honest_gpu_candidate_on_a_jittery_clock(device_seconds, host_seconds, size):
    """In simulated runs of 3 to 10 rounds none is refused, and none timed by the judge's own clock.

    Every batch waits for up to a few times 50 us somewhere, every call for a tenth of that; outputs are copied on the
    device at 4 TB/s, and the flush hides 250 us of the host.
    """
    draw = random.Random(11)

    def wait(seconds: float) -> float:
        return seconds * draw.expovariate(1)

    def batch(cold: bool, count: int, device: float, host: float) -> Ran:
        own = max(0.0, host - 250e-6) if cold else host
        each = 40e-6 + 250e-6 * cold + 2 * size / 4e12 + own + device
        wall = 3e-4 + wait(50e-6) + sum(each + wait(5e-6) for _ in range(count))
        said = tuple(device * draw.uniform(1.0, 1.03) for _ in range(count))
        return Ran(cold, wall, wall, said, (host,) * count, (3e-6,) * count, (host,) * count)

    def made(number: int, device: float, host: float) -> list[list[Ran]]:
        return [[batch(cold, count, device, host) for cold, count in ((True, 2), (True, 6), (False, 4), (False, 48))]
                for _ in range(number + 1)]

    for number in (*(3,) * 60, *(4, 5, 10) * 5):
        found, beside = decide("x", made(number, device_seconds, host_seconds), made(number, 0.0, 2e-6), None, None,
                               "cuda")
        assert isinstance(found, CandidateTiming), found.finding.sentence
        assert "clocks-disagree" not in [f.kind for f in beside], (number, beside)


def busy_rounds(draw: random.Random, number: int, true: float, said: float | None = None, share: float = 0.7
                ) -> list[list[Ran]]:
    """Rounds of calls of ``true`` seconds on a busy CPU, told as they were or as ``said``. In a ``share`` of batches
    something else runs for some 10 ms: in a call, where an honest clock shows it, or around calls, where none does."""
    def batch(cold: bool, count: int) -> Ran:
        each = [true * draw.uniform(1.0, 1.2) for _ in range(count)]
        around = 5e-4 + sum((8e-3 if cold else 8e-5) * draw.uniform(0.9, 1.2) for _ in range(count))
        if draw.random() < share:
            burst = draw.expovariate(1 / 10e-3)
            if draw.random() < sum(each) / (sum(each) + around):
                each[draw.randrange(count)] += burst
            else:
                around += burst
        wall = sum(each) + around
        own = tuple(each) if said is None else (said,) * count
        return Ran(cold, wall, wall, own, own, (0.0,) * count, tuple(each))

    return [[batch(cold, count) for cold, count in ((True, 2), (True, 6), (False, 4), (False, 48))]
            for _ in range(number + 1)]


@pytest.mark.parametrize("true", [4e-4, 3e-3], ids=["small", "ordinary"])
def test_load_accuses_nobody(true):
    """What is far from the worker's own figures in a busy round is so for the model's worker, too."""
    draw, beside = random.Random(4), []
    for number in (*(3, 4, 5, 6) * 8, 8, 12):
        null, control = busy_rounds(draw, number, 0.0), busy_rounds(draw, number, true)
        eager, _ = decide("eager", control, null, None, None, "cpu", trusted=True)
        found, findings = decide("x", busy_rounds(draw, number, true), null, eager, None, "cpu", control=control)
        assert isinstance(found, CandidateTiming), found.finding.sentence
        assert found.interval[0] <= found.seconds <= found.interval[1]
        beside.append(found.seconds > found.inner and bool(findings))
    assert sum(beside) < 0.1 * len(beside), "the judge's clock counts where one cannot tell, which is seldom"


@pytest.mark.parametrize("true", [6e-5, 4e-4], ids=["tiny", "small"])
@pytest.mark.parametrize("share", [0.0, 0.7], ids=["idle", "busy"])
def test_load_makes_no_forged_time_count(true, share):
    """An idle machine convicts; on a busy one, in which there may be doubt, the time is the judge's own."""
    draw, refused, times = random.Random(5), 0, []
    for number in (*(3, 5, 6) * 8, 8, 12):
        null, control = (busy_rounds(draw, number, each, share=share) for each in (0.0, true))
        eager, _ = decide("eager", control, null, None, None, "cpu", trusted=True)
        forged = busy_rounds(draw, number, true, 1e-6, share)
        found, _ = decide("x", forged, null, eager, None, "cpu", control=control)
        refused += isinstance(found, Refusal)
        times += [found.seconds] if isinstance(found, CandidateTiming) else []
    assert all(seconds > 0.9 * true for seconds in times), min(times)
    if true == 4e-4:
        assert refused > 0 and (refused == 26 or share > 0)


def test_next_to_nothing_is_not_believed():
    """Where a worker tells next to nothing, what its calls take at least counts, also below the usual margin."""
    null, control = rounds(0.0), rounds(4e-5)
    eager, _ = decide("eager", control, null, None, None, "cpu", trusted=True)
    forged, beside = decide("x", rounds(1e-6, wall=2e-5), null, eager, None, "cpu", control=control)
    assert isinstance(forged, CandidateTiming) and forged.seconds == pytest.approx(2e-5) and beside
    honest, beside = decide("x", rounds(2e-5), null, eager, None, "cpu", control=control)
    assert isinstance(honest, CandidateTiming) and honest.seconds == pytest.approx(2e-5) and not beside


def test_a_clock_is_not_held_against_a_machine_that_shows_the_same():
    """The model's worker is as far from its own clock: where that is so, nobody is accused or timed by the judge's. Who
    says less than the model's worker would is as far from the judge's clock as anywhere."""
    far, null = rounds(1e-3, 6, wall=3e-3), rounds(0.0, 6)
    eager, _ = decide("eager", far, null, None, None, "cpu", trusted=True)
    found, beside = decide("x", far, null, eager, None, "cpu", control=far)
    assert isinstance(found, CandidateTiming) and found.seconds == pytest.approx(1e-3) and not beside
    less, beside = decide("x", rounds(8e-4, 6, wall=3e-3), null, eager, None, "cpu", control=far)
    assert isinstance(less, CandidateTiming) and less.seconds == pytest.approx(3e-3) and beside
    forged, _ = decide("x", rounds(2e-4, 6, wall=3e-3), null, eager, None, "cpu", control=far)
    assert isinstance(forged, Refusal) and forged.verdict == "CHEAT-TIMER"
    found, _ = decide("x", far, null, eager, None, "cpu", control=rounds(1e-3, 6))
    assert isinstance(found, Refusal) and found.verdict == "CHEAT-TIMER"


def test_a_short_batch_that_is_made_long_is_seen():
    """The slope between batches is small where the shorter one wastes time; the longer one alone is not."""
    slow = [[ran(1e-4, 2, cold=True, wall=3e-3), ran(1e-4, 8, cold=True, wall=1e-3),
             ran(1e-4, 4, cold=False, wall=9.1e-3), ran(1e-4, 40, cold=False, wall=1e-3)] for _ in range(10)]
    found, _ = decide("x", slow, rounds(0.0), None, None, "cpu")
    assert isinstance(found, Refusal) and found.verdict == "CHEAT-TIMER"
    assert "all of the longer batch" in found.finding.sentence
    assert found.finding.evidence["outer_low"] == pytest.approx(1e-3, rel=0.1)


def flushed(seconds: float, flush: float, *, cold: float | None = None, said: float | None = None) -> list[list[Ran]]:
    """Rounds whose calls are flushed for ``flush`` seconds each; on flushed caches they take ``cold``, and say
    ``said``."""
    longer = seconds if cold is None else cold
    told = longer if said is None else said
    return [[ran(told, 2, cold=True, wall=longer, around=flush), ran(told, 6, cold=True, wall=longer, around=flush),
             ran(seconds, 4, cold=False, around=1e-5), ran(seconds, 50, cold=False, around=1e-5)] for _ in range(15)]


@pytest.mark.parametrize("share", [0.1, 0.25])
def test_a_slower_flush_accuses_nobody(share):
    """In the memory of one process it takes longer, in all rounds: calls in a row say that the worker's clock is
    right."""
    null, control = flushed(0.0, 6e-3), flushed(2e-4, 6e-3)
    eager, _ = decide("eager", control, null, None, None, "cpu", trusted=True)
    found, beside = decide("x", flushed(2e-4, (1 + share) * 6e-3), null, eager, None, "cpu", control=control)
    assert isinstance(found, CandidateTiming) and found.seconds == pytest.approx(2e-4) and not beside


def test_a_slower_flush_hides_little():
    """Who forges times on flushed caches alone, within what a flush may take longer, is timed by calls in a row and by
    how much longer the model's take on flushed caches; beyond it, it is refused."""
    null, control = flushed(0.0, 6e-3), flushed(2e-4, 6e-3, cold=5e-4)
    eager, _ = decide("eager", control, null, None, None, "cpu", trusted=True)
    within, beside = decide("x", flushed(2e-4, 6e-3, cold=1e-3, said=1.5e-4), null, eager, None, "cpu", control=control)
    assert isinstance(within, CandidateTiming) and within.seconds == pytest.approx(5e-4)
    assert [f.kind for f in beside] == ["clocks-disagree"]
    beyond, _ = decide("x", flushed(2e-4, 6e-3, cold=3e-3, said=1.5e-4), null, eager, None, "cpu", control=control)
    assert isinstance(beyond, Refusal) and beyond.verdict == "CHEAT-TIMER"


def test_caches_that_calls_fill_accuse_nobody():
    """What is around calls takes a tenth longer than around nothing: so it does for the model's calls."""
    def made(seconds: float, around: float, said: float | None = None) -> list[list[Ran]]:
        told = seconds if said is None else said
        return [[ran(told, count, cold=cold, wall=seconds, around=around)
                 for cold, count in ((True, 2), (True, 6), (False, 4), (False, 30))] for _ in range(6)]

    null, control = made(0.0, 3.5e-3), made(2e-3, 3.9e-3)
    eager, _ = decide("eager", control, null, None, None, "cpu", trusted=True)
    found, beside = decide("x", made(7e-4, 3.9e-3), null, eager, None, "cpu", control=control)
    assert isinstance(found, CandidateTiming) and found.seconds == pytest.approx(7e-4) and not beside
    forged, beside = decide("x", made(7e-4, 3.9e-3, 4.5e-4), null, eager, None, "cpu", control=control)
    assert isinstance(forged, CandidateTiming) and forged.seconds > 7e-4 and beside


def test_the_empty_candidates_writing_does_not_count():
    """On a CPU it writes outputs, so that caches hold what they hold after any call: its worker says how long."""
    control, mine = rounds(1e-3), rounds(7e-4)
    eager, _ = decide("eager", control, rounds(0.0), None, None, "cpu", trusted=True)
    for null in (rounds(0.0), rounds(4e-4)):
        found, beside = decide("x", mine, null, eager, None, "cpu", control=control)
        assert isinstance(found, CandidateTiming) and found.seconds == pytest.approx(7e-4) and not beside
        assert found.outer == pytest.approx(7e-4)
        forged, _ = decide("x", rounds(1e-5, wall=7e-4), null, eager, None, "cpu", control=control)
        assert isinstance(forged, Refusal) and forged.verdict == "CHEAT-TIMER"
    found, _ = decide("x", rounds(7e-4), rounds(4e-4), None, None, "cuda")
    assert isinstance(found, CandidateTiming) and found.outer == pytest.approx(3e-4)


def test_longer_batches_whose_calls_take_longer_are_held_against_what_they_say():
    """Outputs that are kept need memory that was never handed out: calls of the longest batch say so."""
    null = rounds(0.0)
    control = [[*one[:3], ran(2.2e-3, 40, cold=False)] for one in rounds(1.6e-3)]
    eager, _ = decide("eager", control, null, None, None, "cpu", trusted=True)
    longer = [[*one[:3], ran(1.3e-3, 40, cold=False)] for one in rounds(6e-4)]
    found, beside = decide("x", longer, null, eager, None, "cpu", control=control)
    assert isinstance(found, CandidateTiming) and found.seconds == pytest.approx(6e-4) and not beside
    eager, _ = decide("eager", rounds(1.6e-3), null, None, None, "cpu", trusted=True)  # has memory of its own to fill
    found, beside = decide("x", longer, null, eager, None, "cpu", control=rounds(1.6e-3), handout=7e-4)
    assert isinstance(found, CandidateTiming) and found.seconds == pytest.approx(6e-4) and not beside
    far = [[*one[:3], ran(2e-3, 40, cold=False)] for one in rounds(6e-4)]
    found, beside = decide("x", far, null, eager, None, "cpu", control=control, handout=7e-4)
    assert isinstance(found, CandidateTiming) and found.seconds > 1.9e-3
    assert [f.kind for f in beside] == ["clock-not-supported"]


def test_memory_that_is_handed_out_takes_time():
    assert handout_seconds(100) == 0.0
    small, large = handout_seconds(1 << 20), handout_seconds(1 << 34)
    assert 0.0 < small < 1.0 and small < large


def test_waiting_that_is_taken_off_a_refusal_is_not_taken_off_a_time():
    """On a busy machine every clock beside calls shows waiting, so the judge's does when it counts instead."""
    busy = [[replace(one, waited=2e-3 * len(one.seconds)) for one in each] for each in rounds(1e-3, wall=1.3e-3)]
    found, _ = decide("x", busy, rounds(0.0), None, None, "cpu")
    assert isinstance(found, CandidateTiming) and found.outer == pytest.approx(1.3e-3)
    assert found.seconds == pytest.approx(3.3e-3)
    quiet, _ = decide("x", rounds(1e-3), rounds(0.0), None, None, "cpu")
    assert quiet.seconds == pytest.approx(1e-3)


def test_work_that_hides_behind_the_flush_is_seen_in_a_row():
    """A device that is told early works beside the flush; where there is none, its own clock shows how long."""
    hidden = [[ran(1e-5, 2, cold=True), ran(1e-5, 8, cold=True), ran(1e-3, 4, cold=False, issued=2e-5, wall=1.02e-3),
               ran(1e-3, 40, cold=False, issued=2e-5, wall=1.02e-3)] for _ in range(10)]
    found, beside = decide("x", hidden, rounds(0.0), None, None, "cuda")
    assert isinstance(found, CandidateTiming) and found.seconds == pytest.approx(1.02e-3)
    assert [f.kind for f in beside] == ["clock-not-supported"] and "in a row" in found.note


def test_times_that_are_smaller_only_where_caches_are_flushed():
    told = [[ran(1e-5, 2, cold=True, wall=1e-5), ran(1e-5, 8, cold=True, wall=1e-5),
             ran(1e-3, 4, cold=False), ran(1e-3, 40, cold=False)] for _ in range(10)]
    found, beside = decide("x", told, rounds(0.0), None, None, "cpu")
    assert isinstance(found, CandidateTiming) and found.seconds == pytest.approx(1e-3)
    assert beside[0].kind == "clock-not-supported"


def test_a_stream_that_is_not_joined_is_seen_in_a_row():
    """The events see nothing, and behind the flush the work hides; in a row it does not."""
    hidden = [[ran(2e-6, 2, cold=True), ran(2e-6, 8, cold=True),
               ran(2e-6, 4, cold=False, wall=1e-3, issued=2e-5), ran(2e-6, 40, cold=False, wall=1e-3, issued=2e-5)]
              for _ in range(10)]
    found, _ = decide("x", hidden, rounds(0.0), None, None, "cuda")
    assert isinstance(found, Refusal) and found.verdict == "CHEAT-TIMER"
    found, _ = decide("x", rounds(2e-6, left=1e-3, wall=1e-3), rounds(0.0), None, None, "cuda")
    assert isinstance(found, Refusal) and found.verdict == "CHEAT-ASYNC"


def test_one_call_that_works_for_all():
    each = (8e-3, *(1e-6,) * 7)
    lumpy = [[ran(1e-3, 2, cold=True), ran(1e-3, 8, cold=True, each=each)] for _ in range(8)]
    found, _ = decide("x", lumpy, rounds(0.0, 8), None, None, "cpu")
    assert isinstance(found, Refusal) and found.verdict == "CHEAT-DEFERRED"


def disturbed(those: list[list[Ran]], *, ran: float = 1.0, delayed: float = 0.0, faults: int = 0) -> list[list[Ran]]:
    """Batches whose threads spent a share ``ran`` of what they did on processors, and waited for one for a share
    ``delayed`` of the wall time."""
    return [[replace(one, ran=ran * one.ran, delayed=delayed * one.wall, faults=faults) for one in each]
            for each in those]


def verdict_of(made: list[list[Ran]], control: list[list[Ran]] = ()) -> str:
    found, _ = decide("x", made, rounds(0.0), None, None, "cpu", control=control)
    return found.verdict if isinstance(found, Refusal) else ""


def test_what_waiting_for_processors_may_have_done_convicts_nobody():
    """Nor is it a time, whoever made the threads wait. What they did on processors, and time that nobody waited in,
    convicts on any machine."""
    forged = rounds(1e-6, wall=1e-2)
    assert verdict_of(disturbed(forged, ran=0.0, delayed=0.95)) == "JUDGE-BUSY"
    assert verdict_of(disturbed(forged, ran=1.0, delayed=0.95)) == "CHEAT-TIMER"
    assert verdict_of(disturbed(forged, ran=0.0, delayed=0.3)) == "CHEAT-TIMER"
    assert verdict_of(disturbed(rounds(1e-2, wall=1e-2), ran=0.0, delayed=0.95)) == ""


def test_a_thread_that_turns_for_one_without_a_processor_does_no_work_for_later_calls(monkeypatch):
    monkeypatch.setattr("kernelwright.judge.clock.inner.processors", lambda: 2)
    each = (8e-3, *(1e-6,) * 7)
    lumpy = [[ran(1e-3, 2, cold=True), ran(1e-3, 8, cold=True, each=each)] for _ in range(8)]
    assert verdict_of(disturbed(lumpy, delayed=0.9)) == "JUDGE-BUSY"
    assert verdict_of(disturbed(lumpy, delayed=0.01)) == "CHEAT-DEFERRED"


def test_who_waits_at_first_does_not_sleep():
    usual = rounds(1e-3)
    usual[0][0] = Ran(True, 0.8, 0.0, (0.4, 0.4), (0.4, 0.4), (0.0, 0.0), (1e-4, 1e-4))
    usual[0][1] = Ran(True, 0.4, 0.0, (0.4, *(1e-3,) * 7), (0.0,) * 8, (0.0,) * 8, (1e-4, *(1e-3,) * 7))
    assert verdict_of(usual) == "CHEAT-MODE"
    assert verdict_of([disturbed(usual[:1], delayed=0.6)[0], *usual[1:]]) == "JUDGE-BUSY"
    assert verdict_of([disturbed(usual[:1], faults=50)[0], *usual[1:]]) == "JUDGE-BUSY"
    assert verdict_of([*usual[:1], *disturbed(usual[1:], delayed=0.6, faults=50)]) == "CHEAT-MODE"


def test_the_floor_refuses_threefold_and_lets_fourteenfold_pass():
    eager, _ = decide("eager", rounds(14e-3), rounds(0.0), None, None, "cuda", trusted=True)
    honest, _ = decide("x", rounds(1e-3), rounds(0.0), eager, 0.9e-3, "cuda")
    assert isinstance(honest, CandidateTiming) and honest.speedup.value == pytest.approx(14.0)
    assert honest.share_of_floor == pytest.approx(0.9)
    fast, _ = decide("x", rounds(14e-3 / 3), rounds(0.0), eager, 10e-3, "cuda")
    assert isinstance(fast, Refusal) and fast.verdict == "CHEAT-FLOOR" and "2.1 times" in fast.finding.sentence
