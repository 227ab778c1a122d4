"""A server of the OpenAI protocol for tests: each request gets what a script says, good, bad or broken."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Said:
    """What a request gets. ``status`` other than 200 is an error with ``body`` as its message; ``raw`` is sent as it
    stands. Of an answer: ``finish``, ``usage`` (None: not counted), ``thought`` before it, ``drop`` after so many
    characters, ``endless``: until the reader has gone, ``pause``: seconds between its parts."""

    text: str = ""
    finish: str | None = "stop"
    usage: tuple[int, int] | None = (100, 50)
    thought: str = ""
    drop: int | None = None
    endless: bool = False
    pause: float = 0.0
    status: int = 200
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None


class ChatServer(ThreadingHTTPServer):
    """``requests``: the bodies and headers of all requests; ``script`` makes a reply of a request's number, from 0, and
    its body."""

    daemon_threads = True

    def __init__(self, script: Callable[[int, dict[str, Any]], Said | str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.requests: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.lock = threading.Lock()

    @property
    def address(self) -> str:
        """The base address to give to a client."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that has gone is no error."""


@contextmanager
def serving(script: Callable[[int, dict[str, Any]], Said | str]) -> Iterator[ChatServer]:
    """A server while the block runs."""
    server = ChatServer(script)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            number = len(self.server.requests)
            self.server.requests.append((body, {k.lower(): v for k, v in self.headers.items()}))
        said = self.server.script(number, body)
        said = Said(said) if isinstance(said, str) else said
        if said.raw is not None:
            self.wfile.write(said.raw)
            self.close_connection = True
        elif said.status != 200:
            self._refuse(said)
        else:
            self._stream(said)

    def _refuse(self, said: Said) -> None:
        data = json.dumps({"error": {"message": said.body, "type": "error", "code": said.status}}).encode()
        self.send_response(said.status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(data)), **said.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, said: Said) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for start in range(0, len(said.thought), 40):
            self._event({"reasoning_content": said.thought[start:start + 40]})
        text = said.text if said.drop is None else said.text[:said.drop]
        for start in range(0, len(text), 40):
            self._event({"content": text[start:start + 40]})
            time.sleep(said.pause)
        while said.endless:
            self._event({"content": "x" * 4096})
        if said.drop is None:
            self._event({}, finish=said.finish)
            if said.usage is not None:
                counted = {"prompt_tokens": said.usage[0], "completion_tokens": said.usage[1],
                           "total_tokens": sum(said.usage)}
                self._data({"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
                            "usage": counted})
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _event(self, delta: dict[str, Any], finish: str | None = None) -> None:
        self._data({"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m",
                    "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def _data(self, document: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(document)}\n\n".encode())
        self.wfile.flush()

