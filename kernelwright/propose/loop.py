"""The loop: ask, read, judge, tell what was wrong, and ask again, until rounds or a budget are over.

Each round is a function of the seed and of what stands in the run's folder. What was answered or judged before is taken
from there, so that going on after an interruption and replaying are the same code as running.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelwright.judge.report.text import clean
from kernelwright.propose.analysis import Analysis
from kernelwright.propose.answers import Answer, continued, read_answer
from kernelwright.propose.budget import Budget, Reservation, most_tokens
from kernelwright.propose.critique import criticize
from kernelwright.propose.endpoint import Asked, Reply, call_seed, reply_of
from kernelwright.propose.prompt import Message, ask, go_on
from kernelwright.propose.records import Candidate, Spent
from kernelwright.propose.regions import regions_of, shown
from kernelwright.propose.search import Ask, plan_round
from kernelwright.propose.session import Session
from kernelwright.propose.standing import Verdict, passed

#: How often an answer that is cut off is asked to go on.
MOST_PIECES = 4
#: From this share of the device's limit on nothing is left to gain.
_AT_LIMIT = 0.97
#: Sentences on the whole set that a prompt has.
_MOST_SENTENCES = 8
#: How long an interrupted run waits for answers that are under way.
_LAST_SECONDS = 2.0

#: Python counts the depth of syntax trees once for all threads, and takes fright where two of them parse at a time.
_reading = threading.Lock()


@dataclass(slots=True)
class Loop:
    """A run that asks. ``own``: the text of our kernels, "" to withhold them, with their verdict."""

    session: Session
    analysis: Analysis
    asked: Asked
    budget: Budget
    own: str = ""
    own_verdict: Verdict | None = None
    profile: dict[str, Any] = field(default_factory=dict)
    judging_seconds: float = 0.0

    def run(self, ours: Any) -> Spent:
        """All rounds. ours: our file, which is judged beside the candidates of each round, or None."""
        settings, session = self.session.settings, self.session
        for number in range(1, settings.rounds + 1):
            texts = {name: shown(session.store.read(c.file), c.regions) if c.regions else session.store.read(c.file)
                     for name, c in session.candidates.items()}
            asks = plan_round(settings.search, number, settings.candidates, session.candidates, texts, settings.seed)
            self._say(f"round {number}: asking for {len(asks)} answers")
            answers = self._ask_all(number, asks, texts)
            names = []
            for entry in asks:
                if entry.name in answers:
                    candidate = session.admit(entry.name, f"round {number}, {entry.task}", answers[entry.name],
                                              round=number, island=entry.island, parents=entry.parents)
                    names += [] if candidate.same_as else [entry.name]
            if names:
                self._say(f"round {number}: judging {len(names)} candidates")
                document = session.judge(f"round{number}", names, ours)
                self.judging_seconds = max(self.judging_seconds, float(document["seconds"]))
                self.profile = document["problem_profile"]
            if not self.budget.why:
                self.budget.why = self._why_stop(number)
            if self.budget.why:
                break
        return self.budget.spent()

    def _why_stop(self, number: int) -> str:
        """Why another round makes no sense, "" where it does."""
        right = [c for c in self.session.candidates.values() if c.verdict and passed(c.verdict)]
        shares = [(c.verdict["timing"] or {}).get("share_of_floor") or 0.0 for c in right if c.verdict.get("timing")]
        if max(shares, default=0.0) >= _AT_LIMIT:
            return "the best candidate is at the device's limit"
        if number < self.session.settings.rounds and self.budget.left_seconds() <= self.judging_seconds:
            return "what is left of the budget of seconds does not suffice for another round's verdicts"
        return ""

    def _say(self, text: str) -> None:
        self.session.progress.say(text)

    # ---- asking

    def _ask_all(self, number: int, asks: Sequence[Ask], texts: dict[str, str]) -> dict[str, Answer]:
        """The answers of a round, by name. Calls run side by side; as many at once as the budget has room for."""
        answers: dict[str, Answer] = {}
        waiting = []
        for entry in asks:
            messages = self._messages(entry, texts)
            first = next(self.session.store.of("call", name=entry.name, piece=0), None)
            if first is None:
                self.session.store.put_json(f"prompts/{entry.name}.json", messages)
            waiting.append((entry, messages, first is not None))
        while waiting:
            batch, later = [], []
            for entry, messages, known in waiting:
                room = None if known else self.budget.reserve(messages, self.session.settings.answer_tokens)
                if known or room is not None:
                    batch.append((entry, messages, room))
                else:
                    later.append((entry, messages, known))
            if not batch:
                break
            answers |= self._side_by_side([self._work(number, *work) for work in batch])
            if len(later) == len(waiting):
                break
            waiting = later
        return answers

    def _work(self, number: int, entry: Ask, messages: list[Message], room: Reservation | None
              ) -> Callable[[], tuple[str, Answer | None]]:
        return lambda: (entry.name, self._answer(number, entry, messages, room))

    def _side_by_side(self, works: Sequence[Callable[[], tuple[str, Answer | None]]]) -> dict[str, Answer]:
        """The results of all works. The first error of one is raised when all have ended; Ctrl-C ends all calls."""
        found: dict[str, Answer] = {}
        errors: list[BaseException] = []

        def run(work: Callable[[], tuple[str, Answer | None]]) -> None:
            try:
                name, answer = work()
                if answer is not None:
                    found[name] = answer
            except BaseException as error:  # told by the thread that waits
                errors.append(error)

        threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
                    if self.budget.left_seconds() < -_LAST_SECONDS:  # a line that is kept alive and says nothing
                        self.asked.close()
        except BaseException:
            self.asked.close()
            for thread in threads:
                thread.join(_LAST_SECONDS / len(threads))
            raise
        if errors:
            raise errors[0]
        return found

    def _answer(self, number: int, entry: Ask, base: list[Message], room: Reservation | None) -> Answer | None:
        """One answer, asked to go on where it was cut off; None where there was no reply."""
        text, answer, messages = "", None, base
        for piece in range(MOST_PIECES):
            reply = self._call(number, entry.name, piece, messages, room)
            room = None
            if reply is None or (reply.failure and not reply.text):
                break
            with _reading:
                text = continued(text, reply.text) if piece else reply.text
                before, answer = answer, read_answer(text, reply.finish)
            if not answer.may_go_on or (before is not None and answer.text == before.text):
                break
            messages = go_on(base, answer)
        return answer

    def _call(self, number: int, name: str, piece: int, messages: list[Message], room: Reservation | None
              ) -> Reply | None:
        """The reply to one call: of the folder, else of the endpoint, where the budget allows it."""
        store = self.session.store
        event = next(store.of("call", name=name, piece=piece), None)
        if event is not None:
            return reply_of(store, event)
        room = room or self.budget.reserve(messages, self.session.settings.answer_tokens)
        if room is None:
            return None
        used = (0, 0, 0)
        try:
            reply = self.asked.ask(name, piece, messages, room.answer, self.budget.left_seconds)
            used = _used(messages, reply)
        finally:
            self.budget.settle(room, *used)
        file = f"answers/{name}{f'_{piece + 1}' if piece else ''}.txt" if reply.text else ""
        if file:
            store.put(file, reply.text)
        store.add("call", name=name, piece=piece, round=number, file=file, finish=reply.finish,
                  seed=call_seed(self.session.settings.seed, name, piece), prompt_tokens=used[0], answer_tokens=used[1],
                  estimated=used[2], seconds=round(reply.seconds, 3), attempts=reply.attempts, failure=reply.failure)
        if reply.failure:
            self._say(f"{name}: no answer: {clean(reply.failure)}")
        return reply

    def _messages(self, entry: Ask, texts: dict[str, str]) -> list[Message]:
        candidates = self.session.candidates
        parents: list[tuple[Candidate, str]] = [(candidates[n], texts[n]) for n in entry.parents]
        sentences: list[str] = []
        if entry.parents:
            judged = {n: c.verdict for n, c in candidates.items() if c.verdict}
            critique = criticize(self.analysis.name, judged, self.profile)
            sentences = [*critique.common, *critique.combinations][:_MOST_SENTENCES]
        return ask(self.analysis, entry.task, parents, direction=entry.direction, own=self.own,
                   own_verdict=self.own_verdict, critique=sentences, regions=self._regions())

    def _regions(self) -> list[str]:
        """How the functions are called that an answer may exchange; none where our kernels are withheld."""
        return [r.signature for r in regions_of(self.session.ours_text).values()] if self.own else []


def _used(messages: Sequence[Message], reply: Reply) -> tuple[int, int, int]:
    """Tokens of a call's prompt and answer, and how many of them nobody counted: these are bounds."""
    if reply.failure and not reply.text:
        return reply.prompt_tokens or 0, reply.answer_tokens or 0, 0
    prompt = reply.prompt_tokens if reply.prompt_tokens is not None else most_tokens(messages)
    said = len(reply.text.encode(errors="replace"))
    answer = reply.answer_tokens if reply.answer_tokens is not None else said
    return prompt, answer, (prompt if reply.prompt_tokens is None else 0) + (
        answer if reply.answer_tokens is None else 0)
