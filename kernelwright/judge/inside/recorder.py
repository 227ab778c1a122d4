"""A candidate with CUDA kernels where there is no GPU: what it hands to the compiler is written down, and in a second
process it gets, in place of its extension, one that was built from the same texts for the CPU.

While its own code runs, CPU tensors answer as CUDA tensors do, and requests for CUDA memory give CPU memory.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import cpp_extension

_IS_CUDA = torch.Tensor.is_cuda.__get__  # pyrefly: ignore[missing-attribute]  # the stubs have a value for this descriptor
_DEVICE = torch.Tensor.device.__get__
_ELSEWHERE = ("Stream", "ExternalStream", "Event", "CUDAGraph", "graph", "make_graphed_callables")
_MOST_BYTES = 16 << 20


class NotEmulated(RuntimeError):
    """The candidate uses something that only a GPU has. The judge knows the class by its name."""


class Recorder:
    """Stands where ``load_inline`` and ``load`` do. ``calls`` are what was asked for; ``libraries`` maps the key of
    such a call to the library that answers it, or is None where calls are only to be written down."""

    def __init__(self, libraries: dict[str, str] | None) -> None:
        self.calls: list[dict[str, Any]] = []
        self.libraries = libraries
        self.original = cpp_extension.load_inline, cpp_extension.load

    def load_inline(self, name: str, cpp_sources: Any, cuda_sources: Any = None, functions: Any = None,
                    *positional: Any,
                    **options: Any) -> Any:
        """As torch.utils.cpp_extension.load_inline."""
        if not cuda_sources:
            if self.libraries is None:
                return Unbuilt(name)
            return self.original[0](name, cpp_sources, cuda_sources, functions, *positional, **options)
        flags = [*_listed(positional[0] if positional else options.get("extra_cflags")),
                 *_listed(positional[1] if len(positional) > 1 else options.get("extra_cuda_cflags"))]
        names = functions if isinstance(functions, dict) else {f: f for f in _listed(functions)}
        return self._answer({"name": str(name), "cpp": _listed(cpp_sources), "cuda": _listed(cuda_sources),
                             "functions": {str(k): str(v) for k, v in names.items()} if functions is not None else None,
                             "flags": flags}, options)

    def load(self, name: str, sources: Any, *positional: Any, **options: Any) -> Any:
        """As torch.utils.cpp_extension.load."""
        paths = [Path(str(path)) for path in _listed(sources)]
        if not any(path.suffix in (".cu", ".cuh") for path in paths):
            if self.libraries is None:
                return Unbuilt(name)
            return self.original[1](name, sources, *positional, **options)
        texts: dict[str, list[str]] = {"cpp": [], "cuda": []}
        for path in paths:
            texts["cuda" if path.suffix in (".cu", ".cuh") else "cpp"].append(path.read_text())
        flags = [*_listed(options.get("extra_cflags")), *_listed(options.get("extra_cuda_cflags"))]
        return self._answer({"name": str(name), **texts, "functions": None, "flags": flags}, options)

    def _answer(self, call: dict[str, Any], options: dict[str, Any]) -> Any:
        if len(json.dumps(call)) > _MOST_BYTES:
            raise NotEmulated("its sources have more than 16 MiB")
        self.calls.append(call)
        if self.libraries is None:
            return Unbuilt(call["name"])
        library = self.libraries.get(key_of(call))
        if library is None:
            raise NotEmulated("its sources are not the same each time")
        if options.get("is_python_module", True) is False:
            return _plain_library(library, call["name"], options)
        spec = importlib.util.spec_from_file_location(call["name"], library)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[call["name"]] = module
        return module


class Unbuilt(types.ModuleType):
    """An extension of the first process, which nothing can call."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def function(*_: Any, **__: Any) -> Any:
            raise NotEmulated(f"it calls {name} while its file is imported")

        return function


def key_of(call: dict[str, Any]) -> str:
    """What tells two requests apart."""
    return hashlib.sha256(json.dumps(call, sort_keys=True).encode()).hexdigest()[:40]


def _listed(value: Any) -> list[str]:
    return [] if value is None else [str(value)] if isinstance(value, str) else [str(item) for item in value]


def _plain_library(library: str, name: str, options: dict[str, Any]) -> Any:
    folder = options.get("build_directory")
    if folder:
        shutil.copy(library, os.path.join(folder, f"{name}.so"))
    ctypes.CDLL(library)
    return library


# ---- a device that is not there


class _AsCuda(TorchFunctionMode):
    """CPU tensors say that they are on a CUDA device, and what is asked for there comes to the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _IS_CUDA:
            return True
        if func == _DEVICE:
            return torch.device("cuda", 0)
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.get_device:
            return 0
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.cpu:
            return args[0].clone()
        args = tuple(_here(a) for a in args)
        kwargs = {k: _here(v) if k in ("device", "other") else v for k, v in (kwargs or {}).items()
                   if k != "pin_memory"}
        return func(*args, **kwargs)


def _here(value: Any) -> Any:
    if (isinstance(value, torch.device) and value.type == "cuda") or (isinstance(value, str)
                                                                      and value.split(":")[0] == "cuda"):
        return torch.device("cpu")
    return value


class _Stream:
    """The one stream that there is."""

    cuda_stream = 0
    stream_id = 0

    def synchronize(self) -> None:
        """Nothing is ever under way."""

    def query(self) -> bool:
        """Nothing is ever under way."""
        return True

    wait_stream = record_event = wait_event = lambda self, *_: None


def _refuse(name: str) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise NotEmulated(f"it uses torch.cuda.{name}")

    return function


def _properties(*_: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(name="an emulated device", major=9, minor=0, multi_processor_count=132, warp_size=32,
                                 total_memory=139 << 30, shared_memory_per_block=48 << 10, L2_cache_size=50 << 20,
                                 shared_memory_per_block_optin=227 << 10, max_threads_per_multi_processor=2048,
                                 regs_per_multiprocessor=65536)


def _replaced() -> dict[str, Any]:
    nothing = lambda *_, **__: None  # noqa: E731
    return {"is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0,
            "get_device_capability": lambda *_: (9, 0), "get_device_name": lambda *_: "an emulated device",
            "get_device_properties": _properties, "synchronize": nothing, "empty_cache": nothing, "set_device": nothing,
            "init": nothing, "current_stream": lambda *_: _Stream(), "default_stream": lambda *_: _Stream(),
            "device": lambda *_: nullcontext(), "device_of": lambda *_: nullcontext(),
            "stream": lambda *_: nullcontext(), **{name: _refuse(name) for name in _ELSEWHERE}}


_depth = threading.local()


@contextmanager
def pretending() -> Iterator[None]:
    """While it lasts, PyTorch answers as where there is a CUDA device."""
    if getattr(_depth, "inside", False):
        yield
        return
    new = _replaced()
    old = {name: getattr(torch.cuda, name) for name in new}
    _depth.inside = True
    for name, value in new.items():
        setattr(torch.cuda, name, value)
    try:
        with _AsCuda():
            yield
    finally:
        for name, value in old.items():
            setattr(torch.cuda, name, value)
        _depth.inside = False


def wrap(kind: type) -> None:
    """Let a candidate's class be constructed and called under :func:`pretending`."""
    for name in ("__init__", "forward"):
        method = getattr(kind, name)

        def wrapped(self: Any, *arguments: Any, _method: Any = method, **options: Any) -> Any:
            with pretending():
                return _method(self, *arguments, **options)

        setattr(kind, name, functools.wraps(method)(wrapped))


# ---- requests

_recorder: list[Recorder] = []


def install(libraries: dict[str, str] | None) -> Recorder:
    """Stand in for PyTorch's builders from now on, in this process."""
    recorder = Recorder(libraries)
    cpp_extension.load_inline, cpp_extension.load = recorder.load_inline, recorder.load
    _recorder.append(recorder)
    return recorder


def _record(session: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Import the candidate's file without building; what it would have built."""
    recorder = install(None)
    error = None
    try:
        with pretending():
            session.load(payload)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"[:2000]
    return {"calls": recorder.calls, "error": error}


def _emulate(session: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """From now on the candidate gets the libraries named, which lie in the worker's folder."""
    install({str(key): str(session.folder / path) for key, path in payload["libraries"].items()})
    load = session.load

    def emulated(own: dict[str, Any]) -> dict[str, Any]:
        with pretending():
            told = load(own)
        wrap(session.module.__dict__["ModelNew"])
        return dict(told)

    session.emulated_load = emulated
    return {}


def _load(session: Any, payload: dict[str, Any]) -> dict[str, Any]:
    return dict(getattr(session, "emulated_load", session.load)(payload))


HANDLERS = {"record": _record, "emulate": _emulate, "load": _load}
