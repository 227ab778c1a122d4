"""The process of one candidate. Copied as ``worker.py`` beside a copy of ``inside/``; with Python and PyTorch alone.

    python -I worker.py LINE INPUTS OUTPUTS
    python -I worker.py REQUESTS INPUTS

LINE is a connected socket: one JSON object a line comes in, sometimes with descriptors, and one goes out. INPUTS and
OUTPUTS are descriptors of shared memory. REQUESTS and the second INPUTS are files beside: what is asked for there is
done without an answer, where a tool looks at the process.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

#: Longest message and traceback that are told, in characters. A compiler's log may be long, and its first lines count.
LONGEST = 200_000
#: Before the number of a request of a file that is done.
DONE = "kernelwright: done"
Handlers = dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]]
_dumps, _loads, _exit, _receive = json.dumps, json.loads, os._exit, socket.recv_fds


def import_inside(folder: Path) -> None:
    """Make the package ``inside`` importable without its folder on the path."""
    spec = importlib.util.spec_from_file_location("inside", folder / "__init__.py",
                                                  submodule_search_locations=[str(folder)])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["inside"] = module
    spec.loader.exec_module(module)


def handlers(folder: Path) -> Handlers:
    """What each kind of request does: the dictionaries HANDLERS of the modules beside."""
    found: Handlers = {}
    for file in sorted(folder.glob("*.py")):
        if file.stem != "__init__":
            found |= getattr(importlib.import_module(f"inside.{file.stem}"), "HANDLERS", {})
    return found


def bounded(text: str) -> str:
    """``text``, its middle left out where it is too long."""
    return text if len(text) <= LONGEST else text[:LONGEST // 2] + "\n[...]\n" + text[-LONGEST // 2:]


def told(error: BaseException, source: Path | None) -> dict[str, Any]:
    """An exception as data. ``line`` is the innermost line of the candidate's file, or None."""
    kind = type(error).__name__
    try:
        message = str(error)
    except BaseException:  # an exception of the candidate may raise when it is asked
        message = ""
    line = None
    if source is not None:
        if isinstance(error, SyntaxError) and error.filename == str(source):
            line = error.lineno
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == str(source):
                line = frame.lineno
    try:
        trace = "".join(traceback.format_exception(error))
    except BaseException:
        trace = ""
    return {"type": kind[:200], "message": bounded(message), "line": line, "traceback": bounded(trace),
            "own": getattr(error, "kind", None) if kind == "Told" else None,
            "memory": isinstance(error, (torch.OutOfMemoryError, MemoryError))}


def serve(line: int, inputs: int, outputs: int, folder: Path, known: Handlers) -> None:
    """Answer requests until the judge closes the line. ``known`` says what each kind of request does."""
    from inside.candidate import Session
    from inside.memory import Mapped

    for descriptor in (line, inputs, outputs):
        os.set_inheritable(descriptor, False)
    session = Session(folder, Mapped(inputs), Mapped(outputs))
    connection = socket.socket(fileno=line)
    _answer(connection, {"ready": True, "torch": torch.__version__})
    unread = b""
    while True:
        while b"\n" not in unread:
            piece, descriptors, _, _ = _receive(connection, 1 << 20, 4)
            if not piece:
                _exit(0)
            unread += piece
            session.descriptors += descriptors
        text, _, unread = unread.partition(b"\n")
        request = _loads(text)
        reply: dict[str, Any] = {"nonce": request["nonce"]}
        try:
            reply |= {"ok": True, **known[request["kind"]](session, request["payload"])}
        except BaseException as error:  # SystemExit, too: whatever a candidate raises is told
            reply |= {"ok": False, "error": told(error, session.source), "broken": session.place.is_broken()}
            del error
        while session.descriptors:
            os.close(session.descriptors.pop())
        _answer(connection, reply)
        del request, reply


def replay(requests: Path, inputs: Path, folder: Path, known: Handlers) -> None:
    """Do what a file asks for, a request a line, and say on standard output how many are done. Raises what one of them
    raises."""
    from inside.candidate import Session
    from inside.memory import Mapped

    session = Session(folder, Mapped(os.open(inputs, os.O_RDWR)), Mapped(-1))
    for number, text in enumerate(requests.read_text().splitlines(), start=1):
        request = _loads(text)
        known[request["kind"]](session, request["payload"])
        os.write(1, f"\n{DONE} {number}\n".encode())  # as a candidate may leave other lines open


def _answer(connection: socket.socket, reply: dict[str, Any]) -> None:
    connection.sendall(_dumps(reply, ensure_ascii=True).encode() + b"\n")


def main() -> None:
    folder = Path(__file__).resolve().parent
    import_inside(folder / "inside")
    os.chdir(folder / "work")  # empty
    if len(sys.argv) == 3:
        replay(folder / sys.argv[1], folder / sys.argv[2], folder, handlers(folder / "inside"))
        return
    line, inputs, outputs = (int(argument) for argument in sys.argv[1:4])
    serve(line, inputs, outputs, folder, handlers(folder / "inside"))


if __name__ == "__main__":
    main()
