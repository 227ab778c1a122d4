"""One who is timed: its worker, the batches that it runs, and the judge's own watch around them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from kernelwright.judge import process_tree, protocol
from kernelwright.judge.figures import Ran
from kernelwright.judge.inside.structure import encode
from kernelwright.judge.inside.tensors import ON_DEVICE, Packer, aligned, bit_sum
from kernelwright.judge.link import CandidateRaised
from kernelwright.judge.process import Worker, WorkerFailure
from kernelwright.judge.processor import processors, scheduled
from kernelwright.judge.protocol import Broken
from kernelwright.judge.records import Finding, Refusal
from kernelwright.judge.timed import Batch, Round, TimedProblem
from kernelwright.verify.state import State

#: Seconds in which nothing is called while the judge looks whether wrong outputs still change.
GRACE_SECONDS = 0.3
#: How often limits of processes and memory are looked at: looking takes time from what is timed.
LOOK_SECONDS = 1.0
_IN_ORDER = torch.contiguous_format
#: Explanations of wrong timed calls, the one that says most first.
_STRENGTH = ("CHEAT-ASYNC", "CHEAT-DEFERRED", "WRONG-STALE", "CHEAT-REPLAY", "CHEAT-STALE", "CHEAT-MODE",
             "WRONG-NUMERIC", "JUDGE-ERROR")


@dataclass(slots=True)
class Contestant:
    """A worker that is timed. ``training``: its mode; None leaves it. ``null``: nothing is called, which is what
    everything around a call takes. ``trusted``: it holds the model itself.

    ``rounds`` holds what `run` has measured, by round; ``refusal`` why it is not timed any further, ``wrong`` what was
    seen of it in the last round.
    """

    name: str
    worker: Worker
    training: bool | None
    null: bool = False
    trusted: bool = False
    rounds: list[list[Ran]] = field(default_factory=list)
    refusal: Refusal | None = None
    wrong: list[Refusal] = field(default_factory=list)
    calls: int = 0
    processes: tuple[int, ...] = ()

    def run(self, timed: TimedProblem, made: Round, *, flush: int, flush_bytes: int, check: bool) -> None:
        """Run a round's batches; add what was measured, or set ``refusal``. ``check``: values are compared."""
        self.worker.look_seconds = LOOK_SECONDS
        try:
            self._prepare(timed, made, full=not self.rounds)
            ran = [self._batch(timed, made, number, batch, flush, flush_bytes, check)
                   for number, batch in enumerate(made.batches)]
            self.worker.rest()  # the device is the next one's
            if self.wrong:
                # What a longer batch shows may say more than the first wrong call: the strongest explanation counts.
                self.refusal = min(self.wrong, key=lambda refusal: _STRENGTH.index(refusal.verdict))
                return
            self.rounds.append(ran)
        except CandidateRaised as raised:
            error = raised.error
            kind = "CRASH-MEMORY" if error["memory"] else "CRASH-RAISED"
            words = f"{error['type']}: {(error['message'].splitlines() or [''])[0][:300]}"
            self._refuse(kind, "raises-when-timed", f"The candidate raises in timed call {self.calls + 1} or after it: "
                         f"{words}.", line=error["line"])
        except WorkerFailure as failure:
            self._refuse(failure.verdict, "ended-when-timed", failure.sentence, after=self.calls)
        except Broken as broken:
            failure = self.worker.breach(str(broken), "run")
            self._refuse(failure.verdict, "broke-the-protocol", failure.sentence)

    def _refuse(self, verdict: str, kind: str, sentence: str, line: int | None = None, **evidence: Any) -> None:
        self.refusal = Refusal(verdict, Finding(kind, sentence, "clock", line=line, evidence=evidence))

    def _is_wrong(self, verdict: str, kind: str, sentence: str, **evidence: Any) -> None:
        self.wrong.append(Refusal(verdict, Finding(kind, sentence, "clock", evidence=evidence)))

    def ask(self, kind: str, payload: dict[str, Any]) -> dict[str, Any]:
        """A request's reply. Raises CandidateRaised, WorkerFailure, Broken."""
        reply = self.worker.request(kind, payload, seconds=self.worker.limits.run_seconds, stage="run")
        if not reply["ok"]:
            error = protocol.error_of(reply)
            if reply.get("broken") is True:
                raise self.worker.lost_device(error["message"], "run")
            raise CandidateRaised({**error, "request": "call"})
        return reply

    def _prepare(self, timed: TimedProblem, made: Round, *, full: bool) -> None:
        """Write the slots' contents, every second one at new addresses, and the state that all start with."""
        for slot, contents in enumerate(made.slots):
            state = timed.start if slot == 0 else State()
            keep = bool((slot + len(self.rounds)) % 2)
            self.send(slot, contents, state, parameters=full, keep=keep)

    def send(self, slot: int, contents: list[Any], state: State, *, parameters: bool = True, keep: bool = False
             ) -> None:
        """Put inputs into a slot of the worker, and state by path."""
        packer = Packer()
        pack = lambda value: encode(value, lambda t: {"t": packer.add(t.detach())})  # noqa: E731
        payload: dict[str, Any] = {"slot": slot, "keep": keep, "training": self.training, "inputs": pack(contents)}
        payload["state"] = [{"kind": kind, "path": path, "value": pack(value)}
                            for kind, values in (("p", state.parameters if parameters else {}), ("b", state.buffers),
                                                 ("a", state.attributes)) for path, value in values.items()]
        self.ask("prepare", payload | self.worker.pack(packer))
        self.worker.inputs.release()

    def _batch(self, timed: TimedProblem, made: Round, number: int, batch: Batch, flush: int, flush_bytes: int,
               check: bool) -> Ran:
        """Run one batch; compare what its calls left where ``check``."""
        specification = timed.specification()
        order = {"calls": batch.calls, "flush": flush if batch.cold else 0, "flush_bytes": flush_bytes,
                 "null": self.null, "outputs": specification}
        count = len(batch.calls)
        places = self._places(timed, [len(batch.chosen), count], len(made.positions))
        wanted = {"whole": batch.chosen, "positions": made.positions, "at": places[0][0]}
        self.ask("forget", {})
        if not self.processes:
            leader = self.worker.process_number
            self.processes = (leader, *(p.number for p in process_tree.members(leader)))
        before = scheduled(self.processes, own=True)
        started = time.perf_counter()
        reply = self.ask("time", order)
        wall = time.perf_counter() - started
        used = scheduled(self.processes, own=True).since(before)
        self.ask("fetch", wanted)
        # Threads wait beside each other, so this subtracts too much rather than too little; what ran, took its time.
        wall = max(wall - used.waited, min(wall, used.ran / processors()))
        figures = [_figures(reply, name, count) for name in ("seconds", "issued", "left", "processor")]
        odd = protocol.field(reply, "odd", str)
        if check and not self.null:
            if odd:
                self._is_wrong("CHEAT-MODE", "other-output-when-timed", "A timed call returns another kind of output "
                               f"than the model: {odd[:200]}.", after=self.calls)
            else:
                fetched = self._fetched(timed, places, len(batch.chosen), count, len(made.positions))
                self._hold_to(_sums(reply, count, len(timed.outputs)), batch, fetched[0])
                self._compare(timed, made, number, batch, fetched)
        self.calls += count
        return Ran(batch.cold, wall, used.ran, *figures)

    def _places(self, timed: TimedProblem, counts: list[int], positions: int) -> list[tuple[int, int]]:
        """Where the worker puts what is fetched: (first byte, bytes) of each tensor, in order. There is room then."""
        whole, calls = counts
        sizes = [t.numel() * t.element_size() for t in timed.outputs.values()] * whole
        if positions:
            sizes += [calls * positions * t.element_size() for t in timed.outputs.values() if t.numel()]
        size, arena = sum(map(aligned, sizes)), self.worker.outputs
        self.worker.share(outputs=size)
        at = ON_DEVICE if arena.holds(ON_DEVICE, size) else 0
        arena.reserve(0 if at else size + 4096)
        found = []
        for each in sizes:
            found.append((at, each))
            at = aligned(at + each)
        return found or [(at, 0)]

    def _fetched(self, timed: TimedProblem, places: list[tuple[int, int]], whole: int, count: int, positions: int
                 ) -> tuple[list[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
        """Whole outputs, and probed elements by output, as the worker left them in the arena."""
        outputs: list[dict[str, torch.Tensor]] = []
        following = iter(places)
        for _ in range(whole):
            outputs.append({path: self._read(next(following)[0], torch.empty_like(like, memory_format=_IN_ORDER))
                            for path, like in timed.outputs.items()})
        probes = {path: self._read(next(following)[0], torch.empty((count, positions), dtype=like.dtype))
                  for path, like in timed.outputs.items() if positions and like.numel()}
        return outputs, probes

    def _read(self, at: int, tensor: torch.Tensor) -> torch.Tensor:
        self.worker.outputs.read(at, tensor)
        return tensor

    def _hold_to(self, told: list[list[int]], batch: Batch, whole: list[dict[str, torch.Tensor]]) -> None:
        """Whole outputs must be those of which the sums of bits were told when the batch ended."""
        for call, outputs in zip(batch.chosen, whole, strict=True):
            if told[call] != [int(bit_sum(value)) for value in outputs.values()]:
                self._is_wrong("CHEAT-DEFERRED", "computed-afterwards", f"Timed call {self.calls + call + 1} had left "
                               "other outputs than those that are handed over when they are asked for: they were "
                               "computed afterwards.", call=self.calls + call + 1)
                return

    def _compare(self, timed: TimedProblem, made: Round, number: int, batch: Batch,
                 fetched: tuple[list[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
        whole, probes = fetched
        at_return = dict(zip(batch.chosen, whole, strict=True))
        grossly = timed.wrong_probes(batch, made.positions, probes)
        wrong = sorted({call for call, got in at_return.items() if not timed.is_right(batch, call, got)} | set(grossly))
        if not wrong:
            return
        first = wrong[0]
        got = at_return.get(first) or self._outputs(timed, first)
        if timed.is_right(batch, first, got):
            return
        if self.trusted:  # the model itself: what is compared here says nothing about anybody
            self._is_wrong("JUDGE-ERROR", "baseline-differs", "The model in its own process does not repeat the "
                           "model's results, so values of timed calls cannot be compared.")
            return
        source = self.worker.candidate.read_text(errors="replace")
        verdict, words, evidence = timed.explain(made, number, first, got, source)
        late = self._late(batch, first)
        right = [call for call in range(len(batch.calls)) if call not in grossly]
        if late and verdict in ("CHEAT-STALE", "CHEAT-MODE"):
            verdict, words = late
        elif verdict == "CHEAT-STALE" and (every := _period(right, len(batch.calls))):
            verdict, words = "CHEAT-DEFERRED", f"was not computed: only every {every}th call of {len(batch.calls)} is"
        name = self.calls + first + 1
        self._is_wrong(verdict, "timed-call-wrong", f"Timed call {name} {words}.", call=name, wrong_calls=len(wrong),
                       calls=len(batch.calls), **evidence)

    def _outputs(self, timed: TimedProblem, call: int) -> dict[str, torch.Tensor]:
        """One more call's whole outputs."""
        places = self._places(timed, [1, 0], 0)
        self.ask("fetch", {"whole": [call], "positions": [], "at": places[0][0]})
        return self._fetched(timed, places, 1, 0, 0)[0][0]

    def _late(self, batch: Batch, call: int) -> tuple[str, str] | None:
        """Whether an output that was wrong at its return was written after it: (verdict, words), or None."""
        changed = protocol.field(self.ask("late", {"grace": GRACE_SECONDS}), "changed_after", list)
        last = len(batch.calls) - 1
        if call not in changed:
            return None
        if last in changed:
            return "CHEAT-ASYNC", "returned before its outputs were written: they changed later, while nothing was " \
                "called"
        return "CHEAT-DEFERRED", "returned without its outputs: a later call wrote them"


def _sums(reply: dict[str, Any], calls: int, outputs: int) -> list[list[int]]:
    """The sums of bits of every call's outputs. Raises Broken."""
    told = protocol.field(reply, "sums", list)
    if len(told) != calls or not all(type(one) is list and len(one) == outputs and all(type(n) is int for n in one)
                                     for one in told):
        raise Broken("sent an answer whose field sums has another form")
    return told


def _figures(reply: dict[str, Any], name: str, count: int) -> tuple[float, ...]:
    """One number per call. Raises Broken."""
    values = protocol.field(reply, name, list)
    if len(values) != count or not all(type(v) is float and 0 <= v < math.inf for v in values):
        raise Broken(f"sent an answer whose field {name} is no list of {count} times")
    return tuple(values)


def _period(right: list[int], count: int) -> int | None:
    """k where just every k-th call is right, at least three of them."""
    steps = {b - a for a, b in pairwise(right)}
    if len(right) < 3 or len(steps) != 1 or (step := steps.pop()) < 2:
        return None
    return step if right[0] < step and right[-1] + step >= count else None
