"""Digests of what a model is: of its values, and of the user's own files that are imported.

Two models of one digest compute the same; where nobody can tell, there is none (`NoDigest`).
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import os
import pickle
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from kernelwright.problem.importing import PROBLEM_MODULE
from kernelwright.problem.outside import is_installed_module, read_outside
from kernelwright.problem.record import Problem

#: How names of modules begin that are made of files, and not imported by the user.
_MADE = (PROBLEM_MODULE, "_kernelwright_emitted_")
_PIECE_BYTES = 1 << 26


class NoDigest(Exception):
    """Nobody can tell whether this value is the same as another one: its text says why."""


def digest_of(problem: Problem, example: list[Any], seed: int) -> str:
    """A digest of a problem's model under a seed, of the example inputs, of what its forward reads from outside, and of
    the user's files that are imported, the problem's own among them.

    A model is constructed for it. What a file, the environment or a clock decides counts by what came of it. Raises
    NoDigest, and what constructing a model raises.
    """
    model = problem.make_model(seed)
    outside = read_outside(model)
    if outside.refused:
        raise NoDigest(outside.refused)
    read = {**outside.values, **outside.foreign, **outside.containers, **outside.tensors}
    values = _Digest().of((model, example, problem.init_inputs, read))
    texts = [] if problem.source is None else [hashlib.sha256(problem.source.encode()).hexdigest()]
    return repr((values, texts, sorted(_files_of_user(problem)), _versions(model, problem), problem.class_name,
                 problem.asked, str(problem.path), str(problem.path and problem.path.resolve())))


def asks_for_environment(problem: Problem) -> bool:
    """Whether a file of the user's names the environment: then any variable may count."""
    texts = [problem.source or ""]
    for file, _ in _files_of_user(problem):
        texts.append(Path(file).read_text(encoding="utf-8", errors="replace"))
    return any("environ" in text or "getenv" in text for text in texts)


def _modules_of_user(problem: Problem) -> list[ModuleType]:
    """The modules with a file that are imported and of no installed package, but for those made of problem files."""
    main = sys.modules.get("__main__")
    # A script that names a problem file is no part of the model; one that hands over a module may be. Some modules that
    # packages make have no file that there is.
    return [module for name, module in list(sys.modules.items())
            if getattr(module, "__file__", None) and not name.startswith(_MADE)
            and not (problem.path is not None and module is main)
            and not is_installed_module(name) and not is_installed_module(name.split(".")[0])]


def _files_of_user(problem: Problem) -> Iterator[tuple[str, str]]:
    """The files of imported modules that no installed package has, with their digests. Raises NoDigest for one that was
    changed since this process began: what was imported of it may be another text."""
    began = _began()
    for module in _modules_of_user(problem):
        file = str(module.__file__)
        try:
            if began is None or os.stat(file).st_mtime >= began:
                raise NoDigest(f"{file} may not be what was imported")
            yield str(Path(file).resolve()), hashlib.sha256(Path(file).read_bytes()).hexdigest()
        except OSError as error:
            raise NoDigest(f"{file} can't be read") from error


def _began() -> float | None:
    """When this process began, in seconds since 1970; None where the system does not tell."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        running = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.time() - running
    return None


def _versions(model: torch.nn.Module, problem: Problem) -> list[tuple[str, str]]:
    """The versions, as far as they say them, of the installed packages that have classes of the model's modules, or of
    which the user's modules have names."""
    modules = [*_modules_of_user(problem), *filter(None, [sys.modules.get(problem.model_class.__module__)])]
    values = [value for module in modules for value in vars(module).values()]
    homes = [v.__name__ if isinstance(v, ModuleType) else str(getattr(v, "__module__", "")) for v in values]
    roots = {home.split(".")[0] for home in (*homes, *(type(module).__module__ for module in model.modules()))}
    found = {root: vars(sys.modules[root]).get("__version__") for root in roots if root in sys.modules}
    return sorted((root, version) for root, version in found.items() if isinstance(version, str))


class _Digest:
    """Digests of values. Tensors that share memory before do so after."""

    def __init__(self) -> None:
        self.storages: dict[int, int] = {}
        self.held: list[Any] = []  # so that no address is used twice

    def of(self, value: Any) -> str:
        """Raises NoDigest."""
        stream = io.BytesIO()
        try:
            _Pickler(stream, self).dump(value)
        except NoDigest:
            raise
        except Exception as error:  # what objects raise that are no data
            raise NoDigest(f"{type(error).__name__}: {error}") from error
        return hashlib.sha256(stream.getbuffer()).hexdigest()

    def tensor(self, tensor: torch.Tensor) -> tuple[object, ...]:
        """What a tensor is, without the tensor itself."""
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
            raise NoDigest(f"a tensor that is {tensor.layout}")
        self.held.append(tensor)
        storage = self.storages.setdefault(tensor.untyped_storage().data_ptr(), len(self.storages))
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        digest = hashlib.sha256()
        for start in range(0, plain.nbytes, _PIECE_BYTES):
            size = min(_PIECE_BYTES, plain.nbytes - start)
            digest.update((ctypes.c_char * size).from_address(plain.data_ptr() + start))
        return ("tensor", type(tensor).__qualname__, str(tensor.dtype), tuple(tensor.shape), tensor.stride(),
                tensor.storage_offset(), storage, str(tensor.device), tensor.requires_grad, digest.hexdigest())


class _Pickler(pickle.Pickler):
    """Writes values so that equal ones have equal bytes in every process."""

    def __init__(self, stream: io.BytesIO, digest: _Digest) -> None:
        super().__init__(stream, protocol=5)
        self._digest = digest

    def persistent_id(self, obj: Any) -> Any:
        """What stands in for an object; None where it is written as it is."""
        if isinstance(obj, torch.Tensor):
            return self._digest.tensor(obj)
        if isinstance(obj, ModuleType):
            return "module", obj.__name__
        if type(obj) in (set, frozenset):  # their order differs from process to process
            return type(obj).__name__, sorted(map(self._digest.of, obj))
        if isinstance(obj, (FunctionType, type)):
            home = obj.__module__ or ""
            if home.startswith(PROBLEM_MODULE) and not _is_made(obj):  # whose name counts the files of this process
                return "name", obj.__qualname__
            is_pythons = home.split(".")[0] in sys.stdlib_module_names and home != "__main__"
            if getattr(sys.modules.get(home), "__file__", None) is None and not is_pythons:
                raise NoDigest(f"{obj.__qualname__} stands in no file")
        return None

    def reducer_override(self, obj: Any) -> Any:
        """A function that is made by another one is what it closes over: its text stands in a file."""
        if isinstance(obj, FunctionType) and _is_made(obj):
            cells = [cell.cell_contents for cell in obj.__closure__ or ()]
            return str, ((obj.__qualname__, obj.__code__.co_firstlineno, obj.__defaults__, obj.__kwdefaults__, cells),)
        return NotImplemented


def _is_made(obj: FunctionType | type) -> bool:
    """Whether a function, or a class, is made by another function, or has no name."""
    return "<lambda>" in obj.__qualname__ or "<locals>" in obj.__qualname__
