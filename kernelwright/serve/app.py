"""The service's answers to requests: who asks, what, and the queue behind it."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kernelwright.errors import (
    InternalError,
    InvalidOption,
    KernelwrightError,
    NotAuthorised,
    NotEnded,
    QueueFull,
    ServiceFull,
    SubmissionInvalid,
    SubmissionTooLarge,
    SubmissionUnknown,
)
from kernelwright.serve.intake import MOST_BYTES, Intake
from kernelwright.serve.judging import Judging
from kernelwright.serve.records import ENDED, SCHEMA, STATES, Health, Listing, Status
from kernelwright.serve.store import Store
from kernelwright.serve.tokens import Tokens
from kernelwright.settings import cache_folder
from kernelwright.version import VERSION

#: The HTTP status of each error that a request can have; others are bugs.
STATUS: dict[type[KernelwrightError], int] = {
    SubmissionInvalid: 400, InvalidOption: 400, NotAuthorised: 401, SubmissionUnknown: 404, NotEnded: 409,
    SubmissionTooLarge: 413, QueueFull: 429, ServiceFull: 507}
#: Seconds in which a body has to be there; between two empty lines of a stream that has nothing to say; and between
#: looks whether the service stops.
BODY_SECONDS, HEARTBEAT_SECONDS, LOOK_SECONDS = 60.0, 15.0, 0.5
#: Retry-After, in seconds.
LEAST_WAIT, MOST_WAIT = 1, 300
MOST_LISTED = 500
#: Names of this machine by which it may be asked where no token is needed: a page in a browser knows it by others.
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_LINES = "application/x-ndjson"


class Service:
    """The routes of a service, over its queue. stopping: whether it is about to end."""

    def __init__(self, store: Store, judging: Judging, intake: Intake, tokens: Tokens,
                 stopping: Callable[[], bool] = lambda: False, host: str = "127.0.0.1") -> None:
        self.store, self.judging, self.intake, self.tokens = store, judging, intake, tokens
        self.stopping, self.local = stopping, LOCAL | {host}

    def app(self) -> Starlette:
        """The application, for any server that speaks ASGI."""
        one = "/v1/submissions/{name}"
        routes = [Route("/v1/health", self.health), Route("/v1/submissions", self.submit, methods=["POST"]),
                  Route("/v1/submissions", self.listing), Route(one, self.get),
                  Route(one, self.delete, methods=["DELETE"]), Route(f"{one}/events", self.events),
                  Route(f"{one}/cancel", self.cancel, methods=["POST"])]
        handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
            KernelwrightError: self._refused, HTTPException: _no_such_route, Exception: _bug}
        return Starlette(routes=routes, exception_handlers=handlers)

    # ---- requests ------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """Whether submissions are judged; 503 where they are not."""
        counts = await run_in_threadpool(self.store.counts)
        status: Any = "stopping" if self.stopping() else "trouble" if self.judging.trouble else "ok"
        told: Health = {"schema": SCHEMA, "status": status, "words": self.judging.trouble, "version": VERSION,
                        "queued": counts["queued"], "running": counts["running"]}
        return _json(told, 200 if status == "ok" else 503)

    async def submit(self, request: Request) -> Response:
        """Take a submission: 202 where it is to be judged, 200 where it is known."""
        owner = self._owner(request)
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise SubmissionInvalid(found="its Content-Type is not application/json")
        body = await _body(request)

        def take() -> tuple[Status, bool]:
            asked = self.intake.read(body)
            if not self.judging.has_room():
                raise ServiceFull
            name, new = self.store.submit(owner, asked.problem, asked.candidate, asked.settings, asked.seed)
            return self._status(name, owner), new

        status, new = await run_in_threadpool(take)
        if new:
            self.judging.wake()
        return _json(status, 202 if new else 200, Location=f"/v1/submissions/{status['id']}")

    async def listing(self, request: Request) -> Response:
        """The client's submissions; ``state``, ``after`` and ``most`` choose among them."""
        owner, asked = self._owner(request), request.query_params
        state = asked.get("state")
        if state is not None and state not in STATES:
            raise SubmissionInvalid(found=f"there is no state {state}; there are {', '.join(STATES)}")
        try:
            after, most = int(asked.get("after", 0)), int(asked.get("most", MOST_LISTED))
        except ValueError:
            raise SubmissionInvalid(found="after and most are whole numbers") from None
        most = min(max(1, most), MOST_LISTED)
        found, following = await run_in_threadpool(self.store.listed, owner, state, after, most)
        told: Listing = {"schema": SCHEMA, "submissions": found, "next": following}
        return _json(told)

    async def get(self, request: Request) -> Response:
        """What is known of one."""
        owner, name = self._owner(request), request.path_params["name"]
        return _json(await run_in_threadpool(self._status, name, owner))

    async def events(self, request: Request) -> Response:
        """The same whenever it changes, one object a line, until it has ended."""
        owner, name = self._owner(request), request.path_params["name"]
        await run_in_threadpool(self._status, name, owner)
        return StreamingResponse(self._lines(name, owner), media_type=_LINES,
                                 headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def cancel(self, request: Request) -> Response:
        """Have one not judged."""
        owner, name = self._owner(request), request.path_params["name"]
        if await run_in_threadpool(self.store.cancel, name, owner):
            self.judging.cancel(name)
        return _json(await run_in_threadpool(self._status, name, owner))

    async def delete(self, request: Request) -> Response:
        """Forget one that has ended."""
        await run_in_threadpool(self.store.delete, request.path_params["name"], self._owner(request))
        return Response(status_code=204)

    # ---- behind them ---------------------------------------------------------------------------------

    def _owner(self, request: Request) -> str:
        """The name of who asks. Raises NotAuthorised (KW757)."""
        if not self.tokens:
            try:
                host = urlsplit(f"//{request.headers.get('host', '')}").hostname
            except ValueError:
                host = None
            if host not in self.local:
                raise NotAuthorised(found=f"it has no tokens, and so no other name than localhost, and not {host}")
            return ""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            raise NotAuthorised(found="the request has no token")
        owner = self.tokens.owner(token.strip())
        if owner is None:
            raise NotAuthorised(found="the request's token is not among those that it knows")
        return owner

    def _status(self, name: str, owner: str) -> Status:
        return self.store.status(name, owner, self.judging.stages.get(name, ""))

    async def _lines(self, name: str, owner: str) -> AsyncIterator[bytes]:
        said: Status | None = None
        with self.store.changes.watched(name) as changed:
            while True:
                changed.clear()
                try:
                    status = await run_in_threadpool(self._status, name, owner)
                except SubmissionUnknown:  # deleted meanwhile
                    return
                yield _line(status) if status != said else b"\n"
                said = status
                if status["state"] in ENDED:
                    return
                until = time.monotonic() + HEARTBEAT_SECONDS
                while not changed.is_set() and time.monotonic() < until:
                    if self.stopping():
                        return
                    await _any(changed, LOOK_SECONDS)

    async def _refused(self, request: Request, error: KernelwrightError) -> Response:
        status = STATUS.get(type(error))
        if status is None:
            return await _bug(request, error)
        more = {}
        if status == 401:
            more["WWW-Authenticate"] = "Bearer"
        elif status in (429, 507):
            more["Retry-After"] = str(math.ceil(min(MOST_WAIT, max(LEAST_WAIT, self.judging.pace()))))
        return _json({"schema": SCHEMA, "error": error.as_json()}, status, **more)


async def _any(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, and no longer than ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


async def _body(request: Request) -> bytes:
    """The request's body. Raises SubmissionTooLarge (KW760), SubmissionInvalid (KW756) where it does not come."""
    length, parts, size = request.headers.get("content-length", ""), [], 0
    if length.isdecimal() and int(length) > MOST_BYTES:
        raise SubmissionTooLarge(most=MOST_BYTES >> 20)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > MOST_BYTES:
                    raise SubmissionTooLarge(most=MOST_BYTES >> 20)
                parts.append(part)
    except TimeoutError:
        raise SubmissionInvalid(found=f"it was not there after {BODY_SECONDS:.0f} s") from None
    except ClientDisconnect:
        raise SubmissionInvalid(found="the connection was closed before it was there") from None
    return b"".join(parts)


def _line(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _json(told: Mapping[str, Any], status: int = 200, **headers: str) -> JSONResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse(dict(told), status, {"Cache-Control": "no-store", **named})


async def _no_such_route(request: Request, error: HTTPException) -> Response:
    what = f"{request.method} {request.url.path}: {error.detail}"
    return _json({"schema": SCHEMA, "error": {"code": "usage", "error": "HTTPException", "what": what}},
                 error.status_code, **dict(error.headers or {}))


async def _bug(request: Request, error: Exception) -> Response:
    """A bug is reported to whoever runs the service, and named to who asked."""
    command = ["kernelwright", "serve", request.method, request.url.path]
    wrapped = InternalError.wrap(error, command, Path(cache_folder()) / "tracebacks")
    return _json({"schema": SCHEMA, "error": {"code": wrapped.code, "error": "InternalError",
                                              "what": "kernelwright failed unexpectedly"}}, 500)
