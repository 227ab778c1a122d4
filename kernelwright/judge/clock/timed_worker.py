"""A timed worker: the batches that it runs, and the judge's own watch around them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from kernelwright.judge.clock.outer import Ran
from kernelwright.judge.clock.timed import Batch, Round, TimedProblem
from kernelwright.judge.clock.timed_values import marked
from kernelwright.judge.inside.structure import encode
from kernelwright.judge.inside.tensors import ON_DEVICE, Packer, aligned
from kernelwright.judge.records import Finding, Refusal
from kernelwright.judge.sandbox import process_tree
from kernelwright.judge.worker import protocol
from kernelwright.judge.worker.link import CandidateRaised
from kernelwright.judge.worker.process import Worker, WorkerFailure
from kernelwright.judge.worker.protocol import Broken
from kernelwright.processors import processors, scheduled
from kernelwright.verify.state import State

#: Seconds in which nothing is called while the judge looks whether wrong outputs still change.
GRACE_SECONDS = 0.3
#: How often limits of processes and memory are looked at: looking takes time from what is timed.
LOOK_SECONDS = 1.0
#: Explanations that what stood in memory that nothing wrote may look like; and the byte with which it is marked then.
_MAY_BE_UNWRITTEN = ("CHEAT-REPLAY", "WRONG-STALE", "CHEAT-MODE")
MARK = 0x6B
_IN_ORDER = torch.contiguous_format
#: Explanations of wrong timed calls, the one that says most first.
_STRENGTH = ("CHEAT-ASYNC", "CHEAT-DEFERRED", "CHEAT-STALE", "WRONG-STALE", "CHEAT-REPLAY", "CHEAT-INPUT-MUTATION",
             "CHEAT-MODE", "WRONG-NUMERIC", "WRONG-ALIAS", "JUDGE-ERROR")


@dataclass(slots=True)
class TimedWorker:
    """A worker that is timed. ``training``: its mode; None leaves it. ``null``: nothing is called, which is what
    everything around a call takes. ``trusted``: it holds the model itself. ``waits``: the share of wall time that may
    be taken off as waiting for a processor.

    ``waited`` is that share as it was in the last round; ``rounds`` holds what `run` has measured, by round,
    ``refusal`` why it is not timed any further, and ``wrong`` what was seen of it in the last round.
    """

    name: str
    worker: Worker
    training: bool | None
    null: bool = False
    trusted: bool = False
    waits: float = 1.0
    waited: float = 0.0
    rounds: list[list[Ran]] = field(default_factory=list)
    refusal: Refusal | None = None
    wrong: list[Refusal] = field(default_factory=list)
    calls: int = 0
    processes: tuple[int, ...] = ()

    def run(self, timed: TimedProblem, made: Round, *, flush: int, flush_bytes: int, check: bool) -> None:
        """Run a round's batches; add what was measured, or set ``refusal``. ``check``: values are compared."""
        self.worker.look_seconds, self.waited = LOOK_SECONDS, 0.0
        try:
            self._prepare(timed, made, full=not self.rounds)
            ran = [self._batch(timed, made, number, batch, flush, flush_bytes, check)
                   for number, batch in enumerate(made.batches)]
            self.worker.rest()  # the device is the next one's, and so are the processors
            self.worker.pause()
            if self.wrong:
                # What a longer batch shows may say more than the first wrong call: the strongest explanation counts.
                self.refusal = min(self.wrong, key=lambda refusal: _STRENGTH.index(refusal.verdict))
                return
            self.rounds.append(ran)
        except CandidateRaised as raised:
            error = raised.error
            lacked = error["memory"] or protocol.lacked_device_memory(error)
            kind = "CRASH-MEMORY" if lacked else "CRASH-RAISED"
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
        empty = {path: None for path, value in state.others.items() if value is None}  # calls may leave tensors there
        payload["state"] = [{"kind": kind, "path": path, "value": pack(value)}
                            for kind, values in (("p", state.parameters if parameters else {}), ("b", state.buffers),
                                                 ("a", {**empty, **state.attributes}))
                            for path, value in values.items()]
        self.ask("prepare", payload | self.worker.pack(packer))
        self.worker.inputs.release()

    def _batch(self, timed: TimedProblem, made: Round, number: int, batch: Batch, flush: int, flush_bytes: int,
               check: bool) -> Ran:
        """Run one batch; compare what its calls left where ``check``."""
        count = len(batch.calls)
        places = self._places(timed, count)
        order = {"calls": batch.calls, "key": batch.key, "varied": made.varied, "flush": flush if batch.cold else 0,
                 "flush_bytes": flush_bytes, "poison": batch.poisons, "fill": None, "null": self.null,
                 "outputs": timed.specification(), "at": places[0][0] if places and places[0] else 0}
        self.ask("forget", {})
        if not self.processes:
            leader = self.worker.process_number
            self.processes = (leader, *(p.number for p in process_tree.members(leader)))
        before = scheduled(self.processes, own=True)
        started = time.perf_counter()
        reply = self.ask("time", order)
        wall = time.perf_counter() - started
        used = scheduled(self.processes, own=True).since(before)
        checked = check and not self.null
        # At once, and without asking: what is computed from now on comes too late for it.
        probes = self._probes(timed, places, made.positions) if checked else {}
        whole = {call: self._whole(timed, places[call]) for call in batch.chosen} if checked else {}
        # Threads wait beside each other, so this subtracts too much rather than too little; what ran, took its time.
        self.waited = max(self.waited, used.waited / wall)
        least = max(wall - min(used.waited, self.waits * wall), min(wall, used.ran / processors()))
        figures = [_figures(reply, name, count) for name in ("seconds", "issued", "left", "processor")]
        odd = protocol.field(reply, "odd", str)
        if checked and odd:
            self._is_wrong("CHEAT-MODE", "other-output-when-timed", "A timed call returns another kind of output "
                           f"than the model: {odd[:200]}.", after=self.calls)
        elif checked:
            self._compare(timed, made, number, order, places, probes, whole)
            self._look(timed, batch)
        self.calls += count
        return Ran(batch.cold, least, used.ran, *figures, waited=wall - least, delayed=used.waited, faults=used.faults)

    def _places(self, timed: TimedProblem, count: int) -> list[list[int]]:
        """Where the worker puts the outputs of each call: the first byte of each tensor. There is room then."""
        sizes = [t.numel() * t.element_size() for t in timed.outputs.values()]
        size, shared = count * sum(map(aligned, sizes)), self.worker.outputs
        self.worker.share(outputs=size)
        at = ON_DEVICE if shared.holds(ON_DEVICE, size) else 0
        shared.reserve(0 if at else size + 4096)
        found: list[list[int]] = []
        for _ in range(count):
            found.append([])
            for each in sizes:
                found[-1].append(at)
                at = aligned(at + each)
        return found

    def _whole(self, timed: TimedProblem, places: list[int]) -> dict[str, torch.Tensor]:
        """A call's outputs, as they were at its return. Raises Broken."""
        found = {}
        for at, (path, like) in zip(places, timed.outputs.items(), strict=True):
            found[path] = torch.empty_like(like, memory_format=_IN_ORDER)
            self._taken(lambda at=at, tensor=found[path]: self.worker.outputs.read(at, tensor))
        return found

    def _probes(self, timed: TimedProblem, places: list[list[int]], positions: list[int]) -> dict[str, torch.Tensor]:
        """The elements at ``positions`` (modulo its size) of each output, as (calls, positions). Raises Broken."""
        found = {}
        for number, (path, like) in enumerate(timed.outputs.items()):
            if like.numel():
                chosen = [position % like.numel() for position in positions]
                found[path] = torch.stack([
                    self._taken(lambda at=at[number], like=like, chosen=chosen: self.worker.outputs.elements(
                        at, like.dtype, chosen)) for at in places])
        return found

    @staticmethod
    def _taken(take: Callable[[], Any]) -> Any:
        try:
            return take()
        except EOFError:
            raise Broken("made the memory smaller in which its results are") from None

    def _look(self, timed: TimedProblem, batch: Batch) -> None:
        """Hold a batch to what its calls must leave alone: their inputs, and earlier outputs."""
        found = self.ask("look", {})
        left = protocol.field(found, "left", list)
        again, inside = (protocol.field(found, name, bool) for name in ("again", "in_inputs"))
        calls = f"Timed calls {self.calls + 1} to {self.calls + len(batch.calls)}"
        if left != batch.left and not timed.changes_inputs:
            self._is_wrong("CHEAT-INPUT-MUTATION", "inputs-changed-when-timed", f"{calls} change their inputs, which "
                           "the candidate leaves alone where it is checked.")
        elif (inside and not timed.returns_inputs) or (again and not timed.returns_again):
            whose = "their inputs" if inside and not timed.returns_inputs else "earlier results"
            self._is_wrong("WRONG-ALIAS", "memory-again-when-timed", f"{calls} return the memory of {whose} instead of "
                           "their own, which the candidate does not do where it is checked.")

    def _compare(self, timed: TimedProblem, made: Round, number: int, order: dict[str, Any], places: list[list[int]],
                 probes: dict[str, torch.Tensor], whole: dict[int, dict[str, torch.Tensor]]) -> None:
        batch = made.batches[number]
        grossly = timed.wrong_probes(batch, made.positions, probes)
        for first in sorted(whole.keys() | set(grossly)):
            got = whole[first] if first in whole else self._whole(timed, places[first])
            if timed.differ_from_probes(first, made.positions, probes, got):
                self._is_wrong("CHEAT-DEFERRED", "computed-afterwards", f"Timed call {self.calls + first + 1} had left "
                               "other outputs than those that are there when they are looked at again: they were "
                               "computed afterwards.", call=self.calls + first + 1)
                return
            if not timed.is_right(made, number, first, got):
                break
        else:
            return
        if self.trusted:  # the model itself: what is compared here says nothing about anybody
            self._is_wrong("JUDGE-ERROR", "baseline-differs", "The model in its own process does not repeat the "
                           "model's results, so values of timed calls cannot be compared.")
            return
        source = self.worker.candidate.read_text(errors="replace")
        verdict, words, evidence = timed.explain(made, number, first, got, source)
        late = self._late(batch, first)
        if verdict in _MAY_BE_UNWRITTEN and (left := self._unwritten(timed, made, batch, first, order, places)):
            verdict, words, evidence = "CHEAT-STALE", left, {}
        right = [call for call in range(len(batch.calls)) if call not in grossly]
        if late and verdict in ("CHEAT-STALE", "CHEAT-MODE"):
            verdict, words = late
        elif verdict == "CHEAT-STALE" and (every := _period(right, len(batch.calls))):
            verdict, words = "CHEAT-DEFERRED", f"was not computed: only every {every}th call of {len(batch.calls)} is"
        name = self.calls + first + 1
        self._is_wrong(verdict, "timed-call-wrong", f"Timed call {name} {words}.", call=name,
                       wrong_calls=len({first, *grossly}), calls=len(batch.calls), **evidence)

    def _late(self, batch: Batch, call: int) -> tuple[str, str] | None:
        """Whether an output that was wrong at its return was written after it: (verdict, words), or None."""
        changed = protocol.field(self.ask("late", {"grace": GRACE_SECONDS}), "changed_after", list)
        last = len(batch.calls) - 1
        if call not in changed:
            return None
        if last in changed:
            return "CHEAT-ASYNC", "returned before its outputs were written: they changed later, while nothing was " \
                "called"
        return "CHEAT-DEFERRED", "returned without its outputs: they were written while later calls ran"

    def _unwritten(self, timed: TimedProblem, made: Round, batch: Batch, call: int, order: dict[str, Any],
                   places: list[list[int]]) -> str:
        """In words, where a batch like this one leaves marks in its outputs that all memory is full of beforehand.

        What stands in memory that nothing wrote is chance: earlier results, inputs, parts of both. So what looks like
        another computation is called again, with nothing at stake but its name."""
        if any(marked(eager, MARK) for eager in batch.eager):
            return ""
        sizes = [t.numel() * t.element_size() for t in timed.outputs.values()]
        try:
            # Inputs stay as they are: the batches that follow build upon them.
            self.ask("time", order | {"varied": [], "poison": True,
                                      "fill": {"pattern": MARK, "sizes": sizes, "empties": True}})
            probes = self._probes(timed, places, made.positions)
            share = max(marked(self._whole(timed, places[call]), MARK),
                        *(marked({path: found}, MARK) for path, values in probes.items() for found in values), 0.0)
        except (CandidateRaised, WorkerFailure):
            return ""
        return f"returns memory that it did not write (called again where all memory was marked, {share:.1%} of its " \
            "output is the mark)" if share else ""


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
