"""A client of ``kernelwright serve``. It needs Python's standard library alone: the file can be copied anywhere.

    from kernelwright.serve.client import Client

    client = Client("http://127.0.0.1:8750")
    status = client.judge(problem_text, candidate_text, verdict_only=True)
    print(status["verdict"], status["result"]["reason"])
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

ENDED = frozenset({"done", "cancelled", "failed"})
#: Statuses after which a request may be sent again: too many wait, the service stops or starts, its disk is full.
_AGAIN = frozenset({429, 502, 503, 504, 507})
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
#: A stream says something, be it an empty line, more often than this, in seconds.
_SILENCE = 60.0


class ServiceError(Exception):
    """The service refuses a request, or cannot be reached. ``status``: of HTTP, 0 where nobody answered; ``code``: of
    docs/errors.md, or ""; ``what``, ``why`` and ``fix`` are sentences; ``retry_after``: seconds after which to ask
    again, as the service says."""

    def __init__(self, status: int, error: dict[str, Any], retry_after: float = 0.0) -> None:
        self.status, self.code, self.retry_after = status, error.get("code", ""), retry_after
        self.what, self.why, self.fix = (error.get(name, "") for name in ("what", "why", "fix"))
        super().__init__(f"{self.code or status}: {self.what}")


class Client:
    """Submissions to the service at ``address``, with ``token`` (by default of the variable KERNELWRIGHT_TOKEN).

    A request that nobody answers, or that cannot be served now, is sent again for ``patience`` seconds: submitting
    twice is submitting once. ``timeout``: seconds that an answer may take. Methods raise ServiceError; those that
    give a submission give a dictionary as docs/serve.md has it.
    """

    def __init__(self, address: str = "http://127.0.0.1:8750", token: str | None = None, *, timeout: float = 60.0,
                 patience: float = 300.0) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{address!r} is no address such as http://127.0.0.1:8750")
        self._scheme, self._host, self._port = parts.scheme, parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        self._token = token if token is not None else os.environ.get("KERNELWRIGHT_TOKEN", "").strip()
        self.timeout, self.patience = timeout, patience

    def submit(self, problem: str, candidate: str, **options: Any) -> dict[str, Any]:
        """Submit two texts; options are those of `JudgeSettings`, such as ``verdict_only=True``."""
        return self._ask("POST", "/v1/submissions", {"problem": problem, "candidate": candidate, "options": options})

    def get(self, name: str) -> dict[str, Any]:
        """What is known of a submission."""
        return self._ask("GET", _of(name))

    def cancel(self, name: str) -> dict[str, Any]:
        """Have a submission not judged that has not ended; what is known of it then."""
        return self._ask("POST", f"{_of(name)}/cancel")

    def delete(self, name: str) -> None:
        """Forget a submission that has ended, with its texts."""
        self._ask("DELETE", _of(name))

    def submissions(self, state: str | None = None) -> Iterator[dict[str, Any]]:
        """All submissions of this token, in their order, without results; ``state``: those alone."""
        after: int | None = 0
        while after is not None:
            asked = {"after": after} | ({"state": state} if state else {})
            page = self._ask("GET", f"/v1/submissions?{urlencode(asked)}")
            yield from page["submissions"]
            after = page["next"]

    def health(self) -> dict[str, Any]:
        """Whether the service judges; asked once."""
        connection, response = self._send("GET", "/v1/health", None, self.timeout)
        try:
            return json.loads(response.read())
        finally:
            connection.close()

    def events(self, name: str) -> Iterator[dict[str, Any]]:
        """A submission whenever it changes, until it has ended. A stream that breaks is taken up again."""
        broken = time.monotonic()
        pause = _FIRST_PAUSE
        last: dict[str, Any] | None = None
        while True:
            try:
                for status in self._stream(name):
                    broken, pause = time.monotonic(), _FIRST_PAUSE
                    if status != last:
                        yield status
                    last = status
                    if status["state"] in ENDED:
                        return
            except ServiceError as error:
                if not _may_pass(error) or time.monotonic() - broken > self.patience:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def wait(self, name: str, seconds: float | None = None) -> dict[str, Any]:
        """A submission when it has ended. Raises TimeoutError after ``seconds``."""
        if seconds is None:
            return list(self.events(name))[-1]
        until = time.monotonic() + seconds
        while (status := self.get(name))["state"] not in ENDED:
            if time.monotonic() > until:
                raise TimeoutError(f"submission {name} has not ended after {seconds:g} s")
            time.sleep(min(_FIRST_PAUSE, max(0.0, until - time.monotonic())))
        return status

    def judge(self, problem: str, candidate: str, **options: Any) -> dict[str, Any]:
        """Submit, and wait for the end."""
        status = self.submit(problem, candidate, **options)
        return status if status["state"] in ENDED else self.wait(status["id"])

    # ---- requests ------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to a request, which is sent again while that may help."""
        until, pause = time.monotonic() + self.patience, _FIRST_PAUSE
        while True:
            try:
                return self._once(method, path, body)
            except ServiceError as error:
                wait = max(pause, error.retry_after)
                if not _may_pass(error) or time.monotonic() + wait > until:
                    raise
                time.sleep(wait)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _once(self, method: str, path: str, body: Any) -> Any:
        connection, response = self._send(method, path, body, self.timeout)
        try:
            content = _read(response)
            if response.status >= 400:
                raise _error(response, content)
            return json.loads(content) if content else None
        finally:
            connection.close()

    def _stream(self, name: str) -> Iterator[dict[str, Any]]:
        connection, response = self._send("GET", f"{_of(name)}/events", None, _SILENCE)
        try:
            if response.status >= 400:
                raise _error(response, _read(response))
            while line := _read(response, line=True):
                if line.strip():
                    yield json.loads(line)
        finally:
            connection.close()

    def _send(self, method: str, path: str, body: Any, timeout: float
              ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._scheme == "https" else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=timeout)
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, self._path + path, None if body is None else json.dumps(body).encode(), headers)
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _silent(error) from error


def _of(name: str) -> str:
    return f"/v1/submissions/{quote(name, safe='')}"


def _read(response: http.client.HTTPResponse, line: bool = False) -> bytes:
    try:
        return response.readline() if line else response.read()
    except (OSError, http.client.HTTPException) as error:
        raise _silent(error) from error


def _silent(error: Exception) -> ServiceError:
    return ServiceError(0, {"what": f"the service does not answer: {type(error).__name__}: {error}",
                            "fix": "See whether it runs, and at which address."})


def _error(response: http.client.HTTPResponse, content: bytes) -> ServiceError:
    try:
        told = json.loads(content)["error"]
    except (ValueError, KeyError, TypeError):
        told = {"what": content[:200].decode(errors="replace") or response.reason}
    after = response.headers.get("Retry-After") or ""
    return ServiceError(response.status, told, float(after) if after.isdecimal() else 0.0)


def _may_pass(error: ServiceError) -> bool:
    return error.status == 0 or error.status in _AGAIN
