"""Compile a piece of generated text on its own, through the same path as an emitted file."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any

import torch

from kernelwright.build.module import BuildFailed, build_failure
from kernelwright.codegen.generate import TARGETS
from kernelwright.emit.embedded import Library
from kernelwright.emit.runtime import build_text, fitting_text
from kernelwright.processors import end_children, share_of_processors

#: How kernels of each target are built. Made once: libraries are built in threads, and no two of them may parse Python
#: at once (CPython 3.11 counts the depth of all trees in one place: issue 106905 of python/cpython).
_BUILD_TEXTS = {name: build_text(target) for name, target in TARGETS.items()}
#: How an emitted file finds out whether a library is for a machine: of processors, and of GPUs.
_FITTING = tuple(compile(fitting_text(cuda=cuda), "<kernelwright fitting>", "exec") for cuda in (False, True))
#: The launchers that a text defines.
LAUNCHER = re.compile(r'^(?:extern "C" )?const char\* (\w+)\(', re.MULTILINE)


#: Of so many processors one compiles ahead.
_SHARED = 2
#: Fewer leave none for it.
_FEWEST = 3


def spare_processors() -> int:
    """Those that may compile ahead while something else goes on; none of few."""
    count = share_of_processors()
    return count // _SHARED if count >= _FEWEST else 0


def build_libraries(sources: Sequence[str], target: str, names: Sequence[str]) -> list[ctypes.CDLL | BuildFailed]:
    """The libraries of several texts, compiled at the same time; in place of each that does not compile, why.

    Their symbols share the process: what the texts define outside of ``static`` has to have different names.
    """
    def build(source: str, name: str) -> ctypes.CDLL | BuildFailed:
        try:
            return build_library(source, target, name)
        except BuildFailed as failure:
            return failure

    workers = max(1, min(len(sources), share_of_processors()))
    with _architecture(target), ThreadPoolExecutor(workers) as pool:
        return list(pool.map(build, sources, names))


_VARIABLE = "TORCH_CUDA_ARCH_LIST"


class _Architecture:
    """A build sets a variable for its compiler and restores it: builds at the same time must find it set, so that the
    first of them sets it and the last one restores it."""

    def __init__(self) -> None:
        self.lock, self.users, self.before = threading.Lock(), 0, ""

    @contextmanager
    def set_for(self, target: str) -> Iterator[None]:
        if TARGETS[target].built_by != "cuda extension" or not torch.cuda.is_available():
            yield
            return
        with self.lock:
            if not self.users:
                self.before = os.environ.get(_VARIABLE, "")
                major, minor = torch.cuda.get_device_capability()
                os.environ[_VARIABLE] = f"{major}.{minor}" + ("a" if (major, minor) == (9, 0) else "")
            self.users += 1
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                if not self.users:
                    os.environ.pop(_VARIABLE)
                    if self.before:
                        os.environ[_VARIABLE] = self.before


_architecture = _Architecture().set_for


class BuiltAhead:
    """Libraries that are compiled while something else goes on, and lie in the cache when :func:`build_libraries` is
    asked for them. What does not compile is no matter here.

    texts: pairs of a text and its name, in the order in which they are wanted. Each is asked for when it can be
    compiled, by the threads that compile, which may have to wait for it: whatever takes long to find it should leave
    the interpreter to others. workers: how many are compiled at a time; by default half of the processors, as the
    others have what goes on, and none of few.
    """

    def __init__(self, texts: Iterable[tuple[str, str]], target: str, workers: int | None = None) -> None:
        count = spare_processors() if workers is None else workers
        self._waiting, self._turn = iter(texts), threading.Lock()
        self._target = target
        self._begun, self._ended = dict[str, float](), dict[str, float]()  # when each was, by name
        # Not daemons: a process that ends within a build would leave it half done, and locked.
        self._stopped, self._changed = False, threading.Condition()
        self._threads = [threading.Thread(target=self._work) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        with _architecture(self._target):
            while (found := self._next()) is not None:
                source, name = found
                try:
                    build_library(source, self._target, name)
                    ended = time.perf_counter()
                except Exception:
                    ended = inf
                with self._changed:
                    self._ended[name] = ended
                    self._changed.notify_all()

    def _next(self) -> tuple[str, str] | None:
        """The next text and its name; None where there is none, or none can be written."""
        with self._turn, suppress(Exception):
            found = None if self._stopped else next(self._waiting, None)
            if found is not None:
                with self._changed:
                    self._begun[found[1]] = time.perf_counter()
            return found
        return None

    @property
    def there(self) -> dict[str, float]:
        """The names of the libraries that are there, or soon will be, with the seconds that each took so far."""
        with self._changed:
            ended, now = dict(self._ended), time.perf_counter()
            took = {name: ended.get(name, now) - begun for name, begun in self._begun.items()}
        return {name: seconds for name, seconds in took.items() if seconds < inf}

    def build(self, sources: Sequence[str], target: str, names: Sequence[str]) -> list[ctypes.CDLL | BuildFailed]:
        """:func:`build_libraries`, which compiles none of those that have begun once more."""
        with self._changed:
            self._changed.wait_for(lambda: not self._begun.keys() & set(names) - self._ended.keys())
        return build_libraries(sources, target, names)

    def goes_on(self) -> bool:
        """Whether something is being compiled, or still to be."""
        return any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Begin no other. Those that have begun go on."""
        self._stopped = True

    def abandon(self) -> None:
        """Begin no other, and end the compilers of those that have begun, where the system tells which they are."""
        self.stop()
        end_children(thread.native_id for thread in self._threads)

    def finish(self) -> None:
        """Begin no other, and wait for those that have begun."""
        self.stop()
        for thread in self._threads:
            thread.join()


@contextmanager
def built_meanwhile(source: str, target: str, name: str) -> Iterator[Callable[[], bool]]:
    """While the block does something else, a library is compiled for :func:`build_library`, or for a file with this
    text. The block gets what tells whether that still goes on; after it, it has ended."""
    ahead = BuiltAhead([(source, name)], target, workers=1)
    try:
        yield ahead.goes_on
    finally:
        ahead.finish()


def build_library(source: str, target: str, name: str = "kernelwright_region") -> ctypes.CDLL:
    """The library of a text whose launchers are extern "C" functions of (tensors, stream).

    Raises BuildFailed, and FolderFull (KW306).
    """
    space: dict = {
        "_KERNELWRIGHT_NAME": name, "_KERNELWRIGHT_DEVICE": TARGETS[target].device,
        "_KERNELWRIGHT_FLAGS": list(TARGETS[target].flags), "_KERNELWRIGHT_SOURCE": source,
        "_KERNELWRIGHT_LAUNCHERS": LAUNCHER.findall(source),
    }
    exec(compile(_BUILD_TEXTS[target], "<kernelwright build>", "exec"), space)
    if space["_kernelwright_library"] is None:
        raise build_failure(space["_kernelwright_details"] or space["_kernelwright_trouble"])
    return space["_kernelwright_library"]


def runs_here(library: Library) -> bool:
    """Whether an emitted file would load a library that it holds on this machine."""
    space: dict[str, Any] = {}
    label = {"system": library.system, "glibc": library.glibc, **dict(library.needs)}
    exec(_FITTING["toolkit" in label], space)
    try:
        return not space["_kernelwright_unfit"](label)
    except Exception:
        return False


def opened(library: Library, source: str) -> ctypes.CDLL:
    """A library of an emitted file, with the launchers of its source. Raises OSError."""
    with tempfile.TemporaryDirectory(prefix="kernelwright_") as folder:
        path = Path(folder) / "kernels.so"
        path.write_bytes(library.data)
        loaded = ctypes.CDLL(str(path))
    for launcher in LAUNCHER.findall(source):
        getattr(loaded, launcher).argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        getattr(loaded, launcher).restype = ctypes.c_char_p
    return loaded
