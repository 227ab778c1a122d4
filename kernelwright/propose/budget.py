"""What a run may spend: tokens, seconds and money, held against what a call may cost at most, before it is made.

A call is made only where its prompt and its longest answer fit into what is left beside the calls that are under way.
A prompt has at most as many tokens as bytes, and some for each message; so no budget is exceeded, whatever the
endpoint's way of counting is, as long as it keeps to the length of answers that it is told.
"""

from __future__ import annotations

import json
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.errors import PricesUnusable
from kernelwright.propose.prompt import Message
from kernelwright.propose.records import Spent

#: Tokens around each message, and around all of them, at most.
_PER_MESSAGE, _AROUND = 16, 32
#: An answer with less room than this is no file.
LEAST_ANSWER = 256


@dataclass(frozen=True, slots=True)
class Price:
    """Money per million tokens of prompts and of answers."""

    input: float
    output: float

    def of(self, prompt_tokens: int, answer_tokens: int) -> float:
        """What so many tokens cost."""
        return (prompt_tokens * self.input + answer_tokens * self.output) / 1e6


def read_price(path: Path, model: str) -> Price:
    """The price of a model from a TOML or JSON file: a table by the model's name with ``input`` and ``output``.

    Raises PricesUnusable (KW807).
    """
    try:
        text = path.read_text(encoding="utf-8")
        document: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        entry = document[model]
        price = Price(float(entry["input"]), float(entry["output"]))
    except OSError as error:
        raise PricesUnusable(model=model, found=f"{path} cannot be read ({error.strerror})") from error
    except KeyError as error:
        raise PricesUnusable(model=model, found=f"{path} has no {error.args[0]!r} for it") from error
    except (ValueError, TypeError) as error:
        raise PricesUnusable(model=model, found=f"{path} is no table of prices ({error})") from error
    if not (0 <= price.input < float("inf") and 0 <= price.output < float("inf")):
        raise PricesUnusable(model=model, found=f"{path} has a price that is no amount")
    return price


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a call may use: tokens of its prompt and of its answer at most."""

    prompt: int
    answer: int


class Budget:
    """What is left. ``clock`` gives seconds; ``before``: what earlier runs of the same folder have spent."""

    def __init__(self, *, tokens: int | None = None, seconds: float | None = None, money: float | None = None,
                 price: Price | None = None, before: Spent | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        before = before or Spent()
        self.tokens, self.seconds, self.money, self.price = tokens, seconds, money, price
        self.calls = before.calls
        self.prompt_tokens, self.answer_tokens = before.prompt_tokens, before.answer_tokens
        self.estimated = before.estimated
        self._clock = clock
        self._begun = clock() - before.seconds
        self._reserved: list[Reservation] = []
        self._lock = threading.Lock()
        self.why = ""

    def spent_seconds(self) -> float:
        """Seconds since the run began, those of earlier runs included."""
        return self._clock() - self._begun

    def left_seconds(self) -> float:
        """Seconds until nothing more is asked; infinite without a budget."""
        return float("inf") if self.seconds is None else self.seconds - self.spent_seconds()

    def reserve(self, messages: Sequence[Message], answer_tokens: int) -> Reservation | None:
        """Set aside what a call may cost at most, with a shorter answer where only that fits; None where nothing does,
        and ``why`` says of what there is too little, if no call is under way that could leave some."""
        prompt = most_tokens(messages)
        with self._lock:
            room, why = float(answer_tokens), ""
            if self.left_seconds() <= 0:
                room, why = 0.0, f"the budget of {self.seconds:g} seconds is spent"
            if self.tokens is not None:
                used = self.prompt_tokens + self.answer_tokens + sum(r.prompt + r.answer for r in self._reserved)
                if self.tokens - used - prompt < min(room, LEAST_ANSWER):
                    why = why or f"what is left of the budget of {self.tokens} tokens suffices for no answer"
                room = min(room, self.tokens - used - prompt)
            if self.money is not None and self.price is not None:
                used_money = self.price.of(self.prompt_tokens, self.answer_tokens) + sum(
                    self.price.of(r.prompt, r.answer) for r in self._reserved)
                left = self.money - used_money - self.price.of(prompt, 0)
                each = self.price.of(0, 1)
                fits = room if left >= 0 and not each else int(left / each) if each else 0
                if fits < min(room, LEAST_ANSWER):
                    why = why or f"what is left of the budget of {self.money:g} of money suffices for no answer"
                room = min(room, fits)
            if room < min(answer_tokens, LEAST_ANSWER):
                if not self._reserved or self.left_seconds() <= 0:
                    self.why = why
                return None
            reservation = Reservation(prompt, int(room))
            self._reserved.append(reservation)
            return reservation

    def settle(self, reservation: Reservation, prompt_tokens: int, answer_tokens: int, estimated: int = 0) -> None:
        """A call has ended and has used so many tokens, of which ``estimated`` nobody counted."""
        with self._lock:
            self._reserved.remove(reservation)
            self.calls += 1
            self.prompt_tokens += prompt_tokens
            self.answer_tokens += answer_tokens
            self.estimated += estimated

    def spent(self) -> Spent:
        """What is spent."""
        money = None if self.price is None else self.price.of(self.prompt_tokens, self.answer_tokens)
        return Spent(self.calls, self.prompt_tokens, self.answer_tokens, self.spent_seconds(), money, self.estimated,
                     self.why)


def most_tokens(messages: Sequence[Message]) -> int:
    """Tokens that a prompt has at most, by whatever tokenizer works on bytes."""
    return _AROUND + sum(_PER_MESSAGE + len(m["content"].encode(errors="replace")) for m in messages)
