"""Asking a language model: any endpoint that speaks the OpenAI protocol, or the answers of an earlier run.

The official client is loaded when an endpoint is asked, and never before. An answer comes as a stream, so that what
came before a line broke is not lost. What may succeed when it is repeated (a limit on the rate of calls, a broken line,
a server's fault) is repeated with growing pauses, as the endpoint asks for or else by chance of a seed; what the
endpoint refuses for good is an error. No tools are offered.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from kernelwright.errors import ClientMissing, EndpointRefused
from kernelwright.judge.report.text import clean
from kernelwright.propose.prompt import Message
from kernelwright.propose.store import Store
from kernelwright.settings import API_KEY

#: Attempts at one call, the first pause in seconds, and the longest one that nobody asked for.
ATTEMPTS, FIRST_PAUSE, LONGEST_PAUSE = 6, 1.0, 60.0
#: Seconds without a sign of life after which a line counts as broken.
SILENCE_SECONDS = 180.0
#: Bytes of a token at most, as far as an answer is read.
_BYTES_PER_TOKEN = 64
#: What stands for a key where an endpoint needs none.
_NO_KEY = "none"
_KEY_NAME = "kernelwright"


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a call. ``finish``: "stop", "length", "dropped" (the line broke), "stopped" (time was over, or it
    was longer than it may be), or another word of the endpoint. Tokens are None where the endpoint does not count them.
    ``failure``: why there is no text, "" where there is one."""

    text: str
    finish: str = "stop"
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    seconds: float = 0.0
    attempts: int = 1
    failure: str = ""


class Asked(Protocol):
    """Whoever answers."""

    def ask(self, name: str, piece: int, messages: Sequence[Message], most_tokens: int, left: Callable[[], float]
            ) -> Reply:
        """The reply to messages. ``name`` and ``piece`` tell calls apart; ``left`` gives the seconds that are left."""
        ...

    def close(self) -> None:
        """End all calls that are under way."""
        ...


def find_key(endpoint: str) -> str:
    """The endpoint's key: of the environment, else of the system's keyring, else what stands for none."""
    found = API_KEY.read() or os.environ.get("OPENAI_API_KEY")
    if found:
        return found
    with contextlib.suppress(Exception):  # a keyring that is not installed, locked, or broken
        import keyring

        found = keyring.get_password(_KEY_NAME, urlsplit(endpoint).netloc)
    return found or _NO_KEY


def call_seed(seed: int, name: str, piece: int) -> int:
    """The seed that an endpoint is given for a call, where it takes one."""
    return random.Random(f"call {seed} {name} {piece}").randrange(2**31)


class Endpoint:
    """An endpoint that speaks the OpenAI protocol. Raises ClientMissing (KW805) where the client is not installed."""

    def __init__(self, address: str, model: str, key: str, *, temperature: float | None = None, seed: int = 0,
                 folder: Any = "", pause: Callable[[float], object] | None = None) -> None:
        try:
            import openai
        except ImportError as error:
            raise ClientMissing(found=str(error)) from error
        self._openai = openai
        self.address, self.model, self.folder, self.seed = address, model, folder, seed
        self._client = openai.OpenAI(base_url=address, api_key=key, max_retries=0, timeout=SILENCE_SECONDS)
        self._key = key
        self._closed = threading.Event()
        self._pause = pause or self._closed.wait
        self._extra: dict[str, Any] = {"stream_options": {"include_usage": True}, "seed": 0}
        if temperature is not None:
            self._extra["temperature"] = temperature
        self._length = "max_tokens"

    def close(self) -> None:
        """End all calls that are under way."""
        self._closed.set()
        self._client.close()

    def ask(self, name: str, piece: int, messages: Sequence[Message], most_tokens: int, left: Callable[[], float]
            ) -> Reply:
        """As :class:`Asked`. Raises EndpointRefused (KW806) for what no repetition mends."""
        drawn = random.Random(f"{self.seed} {name} {piece}")
        began, failure, attempt, changed = time.monotonic(), "", 0, 0
        while attempt < ATTEMPTS and left() > 0 and not self._closed.is_set():
            attempt += 1
            try:
                reply = self._once(messages, most_tokens, left, call_seed(self.seed, name, piece))
                return Reply(reply.text, reply.finish, reply.prompt_tokens, reply.answer_tokens,
                             time.monotonic() - began, attempt)
            except Exception as error:
                if self._closed.is_set():
                    break
                if changed < 4 and self._without_what_it_refuses(error):
                    changed, attempt = changed + 1, attempt - 1
                    continue
                failure = self._told(error)
                if not self._may_be_repeated(error):
                    if _is_too_long(error):
                        break
                    raise EndpointRefused(endpoint=self.address, found=failure, folder=self.folder,
                                          key=API_KEY.name) from error
                pause = _asked_pause(error)
                if pause is None:
                    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1)) * (0.5 + drawn.random())
                if attempt == ATTEMPTS or pause >= left():
                    break
                self._pause(pause)
        return Reply("", "failed", 0, 0, time.monotonic() - began, attempt, failure or "time was over")

    def _once(self, messages: Sequence[Message], most_tokens: int, left: Callable[[], float], seed: int) -> Reply:
        """One attempt. What came before a line broke, or time was over, is a reply; without any text it is an error."""
        thought: list[str] = []
        said: list[str] = []
        finish, usage, size = "", None, 0
        timeout = max(1.0, min(SILENCE_SECONDS, left()))
        stream: Any = self._client.chat.completions.create(
            model=self.model, messages=list(messages), stream=True, timeout=timeout,
            **{self._length: most_tokens}, **self._extra | ({"seed": seed} if "seed" in self._extra else {}))
        try:
            for chunk in stream:
                usage = getattr(chunk, "usage", None) or usage
                for choice in (getattr(chunk, "choices", None) or [])[:1]:
                    delta = getattr(choice, "delta", None)
                    aloud = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)
                    content = getattr(delta, "content", None)
                    for text, where in ((aloud, thought), (content, said)):
                        if isinstance(text, str):
                            where.append(text)
                            size += len(text)
                    finish = getattr(choice, "finish_reason", None) or finish
                if left() <= 0 or self._closed.is_set() or size > _BYTES_PER_TOKEN * most_tokens:
                    finish = "stopped"
                    break
        except Exception:
            if not said and not thought:
                raise
            finish = "dropped"
        finally:
            with contextlib.suppress(Exception):
                stream.close()
        text = "".join(said)
        if thought:
            closing = "\n</think>\n" if said else ""
            text = f"<think>\n{''.join(thought)}{closing}{text}"
        finish = finish or ("dropped" if text else "stop")
        return Reply(text, finish, _count(usage, "prompt_tokens"), _count(usage, "completion_tokens"))

    def _without_what_it_refuses(self, error: Exception) -> bool:
        """Leave out what an endpoint does not know; whether there was something to leave out."""
        if not isinstance(error, self._openai.APIStatusError) or error.status_code not in (400, 422):
            return False
        words = str(error)
        if "max_completion_tokens" in words and self._length == "max_tokens":
            self._length = "max_completion_tokens"
            return True
        for name in list(self._extra):
            if name in words:
                del self._extra[name]
                return True
        return False

    def _may_be_repeated(self, error: Exception) -> bool:
        status = getattr(error, "status_code", None)
        if isinstance(status, int):
            return status in (408, 409, 425, 429) or status >= 500
        return True  # a line that broke, a time that was over, an answer that is no protocol

    def _told(self, error: Exception) -> str:
        status = getattr(error, "status_code", None)
        words = clean(str(error).replace(self._key, "[key]") if self._key != _NO_KEY else error, 300)
        return f"{type(error).__name__}{f' ({status})' if status and str(status) not in words else ''}: {words}"


class Recorded:
    """The answers of an earlier run, in place of an endpoint."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def ask(self, name: str, piece: int, messages: Sequence[Message], most_tokens: int, left: Callable[[], float]
            ) -> Reply:
        """The reply that was recorded for this call."""
        event = next(self.store.of("call", name=name, piece=piece), None)
        if event is None:
            return Reply("", "failed", 0, 0, failure="the run that is replayed has no answer to this call")
        return reply_of(self.store, event)

    def close(self) -> None:
        """Nothing is under way."""


def reply_of(store: Store, event: dict[str, Any]) -> Reply:
    """The reply that an event is of."""
    return Reply(store.read(event["file"]) if event["file"] else "", event["finish"], event["prompt_tokens"],
                 event["answer_tokens"], event["seconds"], event["attempts"], event["failure"])


def _count(usage: Any, name: str) -> int | None:
    found = getattr(usage, name, None)
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 2**40 else None


def _asked_pause(error: Exception) -> float | None:
    """The pause that an endpoint asks for, in seconds."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        with contextlib.suppress(TypeError, ValueError):
            pause = float(headers.get(name) or "") * unit
            if 0 <= pause < float("inf"):
                return pause
    return None


def _is_too_long(error: Exception) -> bool:
    """Whether an endpoint refuses this one prompt for its length."""
    return getattr(error, "status_code", None) == 413 or "context_length" in str(error) \
        or "maximum context" in str(error)
