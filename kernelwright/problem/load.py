"""Stage LOAD: a problem file or an nn.Module becomes a Problem."""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from kernelwright.errors import (
    GetInitInputsFailed,
    GetInputsRaised,
    InstanceNeedsInputs,
    ModelNotCopyable,
    ModelNotModule,
    NoCudaDevice,
    NoGetInputs,
    NoModelClass,
    StateWithoutValues,
    describe,
    place,
    where_of,
)
from kernelwright.problem.construct import Constructor
from kernelwright.problem.importing import import_file, read_source
from kernelwright.problem.inputs import checked_inputs, fresh_copy, map_tensors, random_like
from kernelwright.problem.memory import is_out_of_memory, memory_checked
from kernelwright.problem.record import Problem
from kernelwright.problem.seeds import seeded
from kernelwright.problem.state import without_values
from kernelwright.problem.tiny import apply_tiny
from kernelwright.settings import check_versions


def load_problem(model_or_path: str | Path | nn.Module | type[nn.Module], inputs: Any = None,
                 init_inputs: Any = None, device: str | torch.device | None = None, tiny: bool = False) -> Problem:
    """Load a problem: a file in the KernelBench form, an nn.Module instance, or an nn.Module class.

    A file defines ``Model``, ``get_inputs()`` and, if the constructor takes arguments,
    ``get_init_inputs()``; ``inputs`` and ``init_inputs`` (lists or tuples) take their place where given,
    and ``inputs`` are required for an instance or a class. ``device`` is where models and inputs are put;
    by default the current CUDA device if there is one, else the CPU. ``tiny`` gives globals of a file the values of
    its dictionary ``TINY``.

    The file's top level and ``get_init_inputs`` run once, here; nothing is constructed yet.
    Raises KW101 to KW109, KW113, KW116, KW119, KW302 and KW304.
    """
    check_versions(torch.__version__)
    place_on = _device(device)
    if isinstance(model_or_path, (str, Path)):
        return _load_file(Path(model_or_path), inputs, init_inputs, place_on, tiny)
    if inputs is None:
        raise InstanceNeedsInputs(model=_label(model_or_path))
    make_inputs = _given_inputs(checked_inputs(inputs, "load_problem"), place_on)
    if isinstance(model_or_path, nn.Module):
        kind: type[nn.Module] = type(model_or_path)
        arguments: tuple[Any, ...] = ()
        make_model = _copier(model_or_path, place_on)
    elif isinstance(model_or_path, type) and issubclass(model_or_path, nn.Module):
        kind = model_or_path
        arguments = _checked_arguments(init_inputs, "init_inputs", "")
        make_model = Constructor(kind, arguments, source_file(kind), place_on)
    else:
        raise ModelNotModule(subject="The first argument of load_problem", found=_label(model_or_path),
                             expected="a path, an nn.Module instance or an nn.Module class")
    file = source_file(kind)
    source = read_source(file) if file is not None and file.suffix == ".py" and file.exists() else None
    return Problem(name=kind.__name__, path=None, source=source, class_name=kind.__name__, model_class=kind,
                   init_inputs=arguments, device=place_on, is_instance=isinstance(model_or_path, nn.Module),
                   build_inputs=make_inputs, build_model=make_model)


def _load_file(path: Path, inputs: Any, init_inputs: Any, device: torch.device, tiny: bool) -> Problem:
    module, text = import_file(path)
    if tiny:
        text = apply_tiny(module, text, path)
    kind = _model_class(module, text, path)
    if inputs is not None:
        make_inputs = _given_inputs(checked_inputs(inputs, "load_problem"), device)
    elif callable(getattr(module, "get_inputs", None)):
        make_inputs = _called_inputs(module.get_inputs, path, device)
    else:
        raise NoGetInputs(path=path, where=place(path))
    if init_inputs is not None:
        arguments = _checked_arguments(init_inputs, path, place(path))
    else:
        arguments = _init_inputs(module, text, path)
    return Problem(name=path.stem, path=path, source=text, class_name=kind.__name__, model_class=kind,
                   init_inputs=arguments, device=device, is_instance=False, build_inputs=make_inputs,
                   build_model=Constructor(kind, arguments, path, device))


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device(device)
    if chosen.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (chosen.index or 0) >= count:
            found = f"PyTorch {torch.__version__} sees {count} CUDA device(s)"
            raise NoCudaDevice(device=device, found=found)
        if chosen.index is None:
            chosen = torch.device("cuda", torch.cuda.current_device())
    return chosen


def _model_class(module: ModuleType, text: str, path: Path) -> type[nn.Module]:
    if not hasattr(module, "Model"):
        names = [node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
        classes = "it defines " + ", ".join(names) if names else "it defines no class at all"
        raise NoModelClass(where=place(path), path=path, classes=classes)
    found = module.Model
    if not isinstance(found, type) or not issubclass(found, nn.Module):
        line = _line_of(text, "Model")
        raise ModelNotModule(where=place(path, line), subject="Model", found=_label(found),
                             expected="a class derived from torch.nn.Module")
    return found


def _line_of(text: str, name: str) -> int:
    """Line of the last top-level statement that binds ``name``, or 0."""
    line = 0
    for node in ast.parse(text).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            bound = {node.name}
        else:
            bound = {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
            bound |= {x.asname or x.name for x in ast.walk(node) if isinstance(x, ast.alias)}
        line = node.lineno if name in bound else line
    return line


def _label(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"an object of type {type(value).__name__}"


def _init_inputs(module: ModuleType, text: str, path: Path) -> tuple[Any, ...]:
    function = getattr(module, "get_init_inputs", None)
    if function is None:
        return ()
    try:
        with seeded(0):
            values = function()
    except Exception as exception:
        raise GetInitInputsFailed(where=where_of(exception, path), path=path,
                                  problem=f"raised {describe(exception)}") from exception
    return _checked_arguments(values, path, place(path, _line_of(text, "get_init_inputs")))


def _checked_arguments(values: Any, path: Any, where: str) -> tuple[Any, ...]:
    if values is None and path == "init_inputs":
        return ()
    if not isinstance(values, (list, tuple)):
        raise GetInitInputsFailed(where=where, path=path, problem=f"returned {_label(values)}, not a list")
    return tuple(values)


def _called_inputs(function: Callable[[], Any], path: Path,
                   device: torch.device) -> Callable[[int], list[Any]]:
    def make(seed: int) -> list[Any]:
        with memory_checked("the inputs", device, path):
            try:
                values = _made_on(device, function, seed)
            except Exception as exception:
                if is_out_of_memory(exception):
                    raise
                raise GetInputsRaised(where=where_of(exception, path), path=path,
                                      exception=describe(exception)) from exception
            code = getattr(function, "__code__", None)
            where = place(path, code.co_firstlineno) if code else place(path)
            # A file may return a tensor that it keeps; calls must not share storage.
            return map_tensors(checked_inputs(values, "get_inputs()", where), lambda x: fresh_copy(x, device))
    return make


def _made_on(device: torch.device, function: Callable[[], Any], seed: int) -> Any:
    """What get_inputs returns, made on a CUDA device at once where its code allows: drawing gigabytes on the
    host and moving them takes longer than everything else."""
    if device.type == "cuda":
        try:
            with seeded(seed), device:
                return function()
        except Exception as exception:
            if is_out_of_memory(exception):
                raise
    with seeded(seed):
        return function()


def _given_inputs(values: list[Any], device: torch.device) -> Callable[[int], list[Any]]:
    def make(seed: int) -> list[Any]:
        with memory_checked("the inputs", device, None), seeded(seed):
            if seed == 0:
                return map_tensors(values, lambda x: fresh_copy(x, device))
            return map_tensors(values, lambda x: fresh_copy(random_like(x), device))
    return make


def _copier(model: nn.Module, device: torch.device) -> Callable[..., nn.Module]:
    def make(seed: int) -> nn.Module:
        with memory_checked("a copy of the model", device, source_file(type(model))):
            try:
                with seeded(seed):
                    duplicate = copy.deepcopy(model)
            except Exception as exception:
                if is_out_of_memory(exception):
                    raise
                raise ModelNotCopyable(model=type(model).__name__,
                                       exception=describe(exception)) from exception
            if empty := without_values(duplicate):
                raise StateWithoutValues(model=type(model).__name__, name=empty[0], found=empty[1])
            return duplicate.to(device)
    return make


def source_file(kind: type) -> Path | None:
    """The file that defines a class, or None where there is none (a console, built-in classes)."""
    try:
        file = inspect.getsourcefile(kind)
    except (TypeError, OSError):
        return None
    return Path(file) if file else None
