"""The command ``kernelwright serve``: the judge as a service, until it is stopped."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any

from kernelwright.errors import AddressUnusable, ServerMissing
from kernelwright.progress import Progress
from kernelwright.serve.intake import Intake
from kernelwright.serve.judging import Judging
from kernelwright.serve.settings import ServeSettings
from kernelwright.serve.store import Store
from kernelwright.suite.runner import ended_by_signals

#: Connections that are served at once; each stream is one.
MOST_CONNECTIONS = 2000
#: Seconds that requests get to end when the service stops.
STOP_SECONDS = 5
BACKLOG = 512


class Running:
    """A service that can be reached, from ``serve`` until ``stop``, for tests and tools as for the command.

    Raises the errors of `serve`, before anything listens.
    """

    def __init__(self, settings: ServeSettings, progress: Progress | None = None) -> None:
        try:
            import uvicorn

            from kernelwright.serve.app import Service
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in ("uvicorn", "starlette", "anyio", "h11", "click"):
                raise
            raise ServerMissing(found=f"the package {error.name} cannot be imported") from error
        self.progress = progress or Progress()
        tokens = settings.read_tokens()
        listening = _listen(settings)
        try:
            self.store = Store(settings.folder, settings.queue)
            try:
                self.judging = Judging(self.store, settings, self.progress)
                intake = Intake(settings, self.judging.options.settings.target)
            except BaseException:
                self.store.close()
                raise
        except BaseException:
            listening.close()
            raise
        self._socket = listening
        name, port = listening.getsockname()[:2]
        self.address = f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"
        service = Service(self.store, self.judging, intake, tokens, lambda: self.server.should_exit, settings.host)
        self.server = uvicorn.Server(uvicorn.Config(
            service.app(), log_config=None, access_log=False, lifespan="off", proxy_headers=False,
            server_header=False, ws="none", limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=STOP_SECONDS))

    def serve(self) -> int:
        """Judge and answer until the server is told to exit; what runs then waits for the next service: how many do."""
        self.judging.start()
        try:
            self.server.run(sockets=[self._socket])
        finally:
            self.judging.stop()
            waiting = self.store.counts()["queued"]
            self.progress.say(f"stopped; {waiting} submissions wait for the next start")
            self.store.close()
            self._socket.close()
        return waiting

    def stop(self) -> None:
        """Tell the server to exit, from another thread."""
        self.server.should_exit = True


def serve(progress: Progress, told: Callable[[Any], None], as_json: bool = False, **given: Any) -> int:
    """Serve until a signal ends it, which goes on as ever; how many submissions wait if nothing does. ``told`` gets the
    address, as a text or as an object; ``given`` are fields of `ServeSettings`.

    Raises ServerMissing (KW753), TokensMissing (KW751), TokensUnusable (KW752), AddressUnusable (KW755),
    OutputFolderUnusable (KW401), ServiceFolderUnusable (KW754), NoCudaDevice (KW302).
    """
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    service = Running(ServeSettings(**given), progress)
    counts = service.store.counts()
    told({"schema": 1, "address": service.address} if as_json else service.address)
    progress.say(f"serving at {service.address}; {counts['queued']} submissions wait")
    with ended_by_signals():
        return service.serve()


def _listen(settings: ServeSettings) -> socket.socket:
    """A socket that listens at the address. Raises AddressUnusable (KW755)."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise AddressUnusable(address=f"{settings.host}:{settings.port}", found=error.strerror or str(error)) from error
