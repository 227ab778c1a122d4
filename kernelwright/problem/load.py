"""Stage LOAD: a problem file or an nn.Module becomes a Problem."""

from __future__ import annotations

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
    InitInputsMismatch,
    InputsInvalid,
    InstanceNeedsInputs,
    ModelNotCopyable,
    ModelNotModule,
    NoCudaDevice,
    NoGetInputs,
    StateWithoutValues,
    describe,
    place,
    where_of,
)
from kernelwright.problem.arguments import (
    Unreadable,
    chosen,
    forward_signature,
    in_order,
    readings,
    signature_of,
    split,
    takes_keywords_only,
    together,
    unpack_keywords,
)
from kernelwright.problem.choice import line_of, model_class
from kernelwright.problem.construct import Constructor, shown_arguments
from kernelwright.problem.importing import import_file, read_source
from kernelwright.problem.inputs import checked_inputs, fresh_copy, holds_arrays, map_tensors, random_like
from kernelwright.problem.memory import is_out_of_memory, memory_checked
from kernelwright.problem.record import Problem
from kernelwright.problem.seeds import seeded
from kernelwright.problem.state import without_values
from kernelwright.problem.tiny import apply_tiny
from kernelwright.settings import check_versions


def load_problem(model_or_path: str | Path | nn.Module | type[nn.Module], inputs: Any = None,
                 init_inputs: Any = None, device: str | torch.device | None = None, tiny: bool = False,
                 model: str | None = None, kwargs: dict[str, Any] | None = None) -> Problem:
    """Load a problem: a file in the KernelBench form, an nn.Module instance, or an nn.Module class.

    A file defines the model's class, ``get_inputs()`` and, if the constructor takes arguments,
    ``get_init_inputs()``; ``inputs`` and ``init_inputs`` take their place where given, and ``inputs`` are required for
    an instance or a class. Both may be a list or tuple of positional arguments, ``[[positional], {keyword}]``, a
    dictionary of keyword arguments, or the one argument itself; ``kwargs`` are keyword arguments beside positional
    ``inputs``. ``model`` names the class in a file; by default it is
    ``Model``, else the only module class that no other one of the file uses. ``device`` is where models and inputs are
    put; by default the current CUDA device if there is one, else the CPU. ``tiny`` gives globals of a file the values
    of its dictionary ``TINY``.

    The file's top level and ``get_init_inputs`` run once, here; a model is constructed only where nothing else can tell
    in which form arguments are given.
    Raises KW101 to KW109, KW111, KW113, KW116, KW119, KW302 and KW304.

    >>> problem = load_problem(torch.nn.Linear(4, 2), inputs=(torch.ones(3, 4),), device="cpu")
    >>> problem.make_model(0)(*problem.make_inputs(0)).shape
    torch.Size([3, 2])
    """
    check_versions(torch.__version__)
    place_on = _device(device)
    try:
        inputs = together(inputs, kwargs)
    except Unreadable as unreadable:
        raise InputsInvalid(where="", source="load_problem", found=str(unreadable)) from None
    if isinstance(model_or_path, (str, Path)):
        return _load_file(Path(model_or_path), inputs, init_inputs, place_on, tiny, model)
    if inputs is None:
        raise InstanceNeedsInputs(model=_label(model_or_path))
    if isinstance(model_or_path, nn.Module):
        kind: type[nn.Module] = type(model_or_path)
        arguments: tuple[Any, ...] = ()
        build_model: Callable[..., nn.Module] = _copier(model_or_path, place_on)
    elif isinstance(model_or_path, type) and issubclass(model_or_path, nn.Module):
        kind = model_or_path
        arguments = _constructor_arguments(init_inputs, kind, "init_inputs", source_file(kind), "", place_on,
                                           lambda _: inputs)
        build_model = Constructor(kind, arguments, source_file(kind), place_on)
    else:
        raise ModelNotModule(subject="The first argument of load_problem", found=_label(model_or_path),
                             expected="a path, an nn.Module instance or an nn.Module class")
    signature = forward_signature(model_or_path)
    build_model = _unpacking(build_model, signature)
    reader = _Reader("load_problem", "", signature, build_model)
    make_inputs = _given_inputs(reader(inputs), place_on)
    file = source_file(kind)
    source = read_source(file) if file is not None and file.suffix == ".py" and file.exists() else None
    return Problem(name=kind.__name__, path=None, source=source, class_name=kind.__name__, model_class=kind,
                   init_inputs=arguments, device=place_on, is_instance=isinstance(model_or_path, nn.Module),
                   build_inputs=make_inputs, build_model=build_model, gives_arrays=lambda: reader.arrays)


def _load_file(path: Path, inputs: Any, init_inputs: Any, device: torch.device, tiny: bool, model: str | None
               ) -> Problem:
    module, text, draws = import_file(path)
    if tiny:
        text = apply_tiny(module, text, path)
    kind = model_class(module, text, path, model)
    get_inputs = getattr(module, "get_inputs", None)
    raw: Callable[[int], Any]
    if inputs is not None:
        raw = lambda _: inputs  # noqa: E731
    elif callable(get_inputs):
        raw = _called(get_inputs, path, device)
    else:
        raise NoGetInputs(path=path, where=place(path))
    if init_inputs is not None:
        arguments = _constructor_arguments(init_inputs, kind, path, path, place(path), device, raw)
    else:
        arguments = _init_inputs(module, text, kind, path, device, raw)
    signature = forward_signature(kind)
    build_model = _unpacking(Constructor(kind, arguments, path, device), signature)
    if inputs is not None:
        reader = _Reader("load_problem", "", signature, build_model)
        make_inputs = _given_inputs(reader(inputs), device)
    else:
        code = getattr(get_inputs, "__code__", None)
        where = place(path, code.co_firstlineno) if code else place(path)
        reader = _Reader("get_inputs()", where, signature, build_model)
        make_inputs = _called_inputs(raw, reader, path, device)
    return Problem(name=path.stem, path=path, source=text, class_name=kind.__name__, model_class=kind,
                   init_inputs=arguments, device=device, is_instance=False, build_inputs=make_inputs,
                   build_model=build_model, asked=model, draws=draws, gives_arrays=lambda: reader.arrays)


class _Reader:
    """The arguments of forward in what was given for them, read in the way that fits the first values."""

    def __init__(self, source: str, where: str, signature: inspect.Signature | None,
                 build_model: Callable[[int], nn.Module]) -> None:
        self._source, self._where, self._signature, self._build_model = source, where, signature, build_model
        self._way = ""
        self.arrays = False  # whether arguments were NumPy arrays

    def __call__(self, values: Any) -> list[Any]:
        """Raises InputsInvalid (KW113)."""
        if values is None:
            raise InputsInvalid(where=self._where, source=self._source, found="they are None")
        try:
            self._way = self._way or chosen(values, self._signature, self._attempt)
        except Unreadable as unreadable:
            raise InputsInvalid(where=self._where, source=self._source, found=f"forward{self._signature} takes them in "
                                f"no form: {unreadable}") from None
        arguments = readings(values).get(self._way)
        if arguments is None:
            raise InputsInvalid(where=self._where, source=self._source, found=f"they were {self._way} before, and are "
                                "in another form now")
        self.arrays = self.arrays or any(map(holds_arrays, arguments))
        return in_order(checked_inputs(arguments, self._source, self._where), self._signature)

    def _attempt(self, arguments: list[Any]) -> None:
        usable = checked_inputs(arguments, self._source, self._where)
        model = self._build_model(0)
        device = next((t.device for t in (*model.parameters(), *model.buffers())), None)
        given, keywords = split(map_tensors(usable, lambda x: fresh_copy(x, device or x.device)))
        with seeded(0), torch.no_grad():
            model(*given, **keywords)


def _unpacking(build: Callable[..., nn.Module], signature: inspect.Signature | None) -> Callable[..., nn.Module]:
    """Models as ``build`` makes them, which also take keyword arguments as the last positional one (`Keywords`)."""
    if not takes_keywords_only(signature):
        return build

    def make(*arguments: Any) -> nn.Module:
        model = build(*arguments)
        model.register_forward_pre_hook(unpack_keywords, prepend=True, with_kwargs=True)
        return model
    return make


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


def _label(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"an object of type {type(value).__name__}"


def _init_inputs(module: ModuleType, text: str, kind: type[nn.Module], path: Path, device: torch.device,
                 inputs: Callable[[int], Any]) -> tuple[Any, ...]:
    function = getattr(module, "get_init_inputs", None)
    if function is None:
        return ()
    try:
        with seeded(0):
            values = function()
    except Exception as exception:
        raise GetInitInputsFailed(where=where_of(exception, path), path=path,
                                  exception=describe(exception)) from exception
    where = place(path, line_of(text, "get_init_inputs"))
    return _constructor_arguments(values, kind, "get_init_inputs()", path, where, device, inputs)


def _constructor_arguments(values: Any, kind: type[nn.Module], source: Any, file: Path | None, where: str,
                           device: torch.device, inputs: Callable[[int], Any]) -> tuple[Any, ...]:
    """The arguments of the constructor in ``values``, keyword arguments last. Raises InitInputsMismatch (KW111)."""
    if values is None:
        return ()

    def attempt(arguments: list[Any]) -> None:
        build = _unpacking(Constructor(kind, tuple(arguments), file, device), forward)
        reader = _Reader(str(source), where, forward, build)
        reader._attempt(reader(inputs(0)))

    signature, forward = signature_of(kind), forward_signature(kind)
    try:
        return tuple(readings(values)[chosen(values, signature, attempt)])
    except Unreadable as unreadable:
        likeliest = next(iter(readings(values).values()))
        raise InitInputsMismatch(where=where, model=kind.__name__, count=len(likeliest), signature=signature,
                                 arguments=shown_arguments(likeliest), exception=str(unreadable)) from None


def _called(function: Callable[[], Any], path: Path, device: torch.device) -> Callable[[int], Any]:
    """What get_inputs returns under a seed."""
    def make(seed: int) -> Any:
        with memory_checked("the inputs", device, path):
            try:
                return _made_on(device, function, seed)
            except Exception as exception:
                if is_out_of_memory(exception):
                    raise
                raise GetInputsRaised(where=where_of(exception, path), path=path,
                                      exception=describe(exception)) from exception
    return make


def _called_inputs(raw: Callable[[int], Any], read: _Reader, path: Path, device: torch.device
                   ) -> Callable[[int], list[Any]]:
    def make(seed: int) -> list[Any]:
        with memory_checked("the inputs", device, path):
            # A file may return a tensor that it keeps; calls must not share storage.
            return map_tensors(read(raw(seed)), lambda x: fresh_copy(x, device))
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
