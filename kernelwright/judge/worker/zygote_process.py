"""The process that forks workers: it imports PyTorch once, before any candidate, and never runs a kernel."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import torch

from kernelwright.judge.sandbox import launcher
from kernelwright.judge.worker.main import Handlers, handlers, import_inside, serve

_MOST_DESCRIPTORS, _LONGEST_ORDER = 16, 1 << 20


def main(line: int) -> None:
    """Fork a worker for each order that comes in on ``line``, until the judge closes it."""
    _import_extensions()
    inside = Path(__file__).parents[1] / "inside"
    import_inside(inside)
    known = handlers(inside)
    connection = socket.socket(fileno=line)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the judge hears from the workers themselves
    gc.collect()
    gc.freeze()
    if len(os.listdir("/proc/self/task")) > 1:
        os._exit(1)  # a fork would take along a part of them
    connection.send(b'{"ready": true}')
    while True:
        order, descriptors, _, _ = socket.recv_fds(connection, _LONGEST_ORDER, _MOST_DESCRIPTORS)
        if not order:
            os._exit(0)
        child = os.fork()
        if child == 0:
            try:
                connection.close()
                _become_launcher(json.loads(order), descriptors, known)
            finally:
                os._exit(launcher.FAILED)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(json.dumps({"pid": child}).encode())


def _import_extensions() -> None:
    """Import what every candidate with kernels wants. It asks whether there is a GPU, only to warn where there is none,
    and the answer would open the device in this process, after which no fork of it could."""
    asked, torch.cuda.is_available = torch.cuda.is_available, lambda: True
    try:
        importlib.import_module("torch.utils.cpp_extension")
    finally:
        torch.cuda.is_available = asked


def _become_launcher(order: dict[str, Any], descriptors: list[int], known: Handlers) -> None:
    """In the forked child: the process above a worker, as the one that `isolation.start` starts."""
    *passed, output, status, control, ended = descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.environ.clear()
    os.environ.update(order["environment"])
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(order["folder"])
    launcher.launch({"plan": order["plan"], "pass_fds": passed, "status": status, "control": control, "ended": ended},
                    become=lambda: _become_worker(passed, status, Path(order["folder"]), known))


def _become_worker(passed: list[int], status: int, folder: Path, known: Handlers) -> None:
    """In the confined process: say that it runs, forget the package, and serve."""
    os.close(status)
    for name in [name for name in sys.modules if name.partition(".")[0] == "kernelwright"]:
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parents[3])]
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    with contextlib.suppress(RuntimeError):
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    os.chdir(folder / "work")
    line, inputs, outputs = passed
    serve(line, inputs, outputs, folder, known)
