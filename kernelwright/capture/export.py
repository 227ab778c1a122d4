"""Stage 2, CAPTURE: a model and its inputs become a Graph.

``torch.export`` (non-strict) traces a deep copy at the level of the operators that the user wrote;
``capture/converter.py`` makes our graph of that. This module finds what a graph can't hold (state in
plain attributes, decisions on values).
"""

from __future__ import annotations

import copy
import io
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch

from kernelwright import errors
from kernelwright.capture.converter import Converter, NotCapturable
from kernelwright.capture.recurrent import recurrent_layers_marked
from kernelwright.ir.graph import Graph


def capture(model: torch.nn.Module, inputs: Sequence[Any], *, name: str = "Model", file: str | None = None,
            fresh: Callable[[], torch.nn.Module] | None = None,
            check_state: Callable[[], Sequence[str]] | None = None) -> Graph:
    """The graph of ``model(*inputs)`` in the model's present mode. The model is not changed.

    fresh: makes another model alike, in the same mode; by default a deep copy, in which functions that the
    constructor made still mean the original.
    check_state: called where the forward assigns plain attributes; it tells a cache from state by running the
    model, returns the attributes that carry tensors from call to call, and raises HiddenState for other state.
    Raises DataDependentControlFlow, HiddenState, ForwardRaised or OutputsUnsupported (user's errors),
    and NotCapturable where the model is legal but its graph has no form here.
    """
    work = fresh() if fresh is not None else copy.deepcopy(model)
    before = _plain_state(work)
    assigned: list[str] = []
    try:
        # The exporter prints the graph of a trace that fails.
        with warnings.catch_warnings(), torch.no_grad(), redirect_stdout(io.StringIO()), \
                _watched(work, assigned), recurrent_layers_marked():
            warnings.simplefilter("ignore")
            program = torch.export.export(work, tuple(inputs), strict=False)
    except Exception as error:
        changed = _changed(before, _plain_state(work)) or assigned
        _explain(error, model, inputs, changed, name, file)
        raise NotCapturable(errors.describe(error)) from error
    changed = _changed(before, _plain_state(work))
    if changed and check_state is None:
        raise errors.HiddenState(model=name, attributes=", ".join(changed), where=errors.place(file))
    carried = check_state() if (changed or assigned) and check_state is not None else ()
    if carried:
        raise NotCapturable(f"it carries tensors from call to call in the attribute(s) {', '.join(carried)}")
    return Converter(program, work, file).graph(training=model.training)


@contextmanager
def _watched(model: torch.nn.Module, assigned: list[str]) -> Iterator[None]:
    """Note the plain attributes that are assigned to ``model`` and its parts: the exporter takes them back."""
    paths = {id(m): path for path, m in model.named_modules()}
    original = torch.nn.Module.__setattr__

    def note(module: torch.nn.Module, key: str, value: Any) -> None:
        registered = isinstance(value, (torch.nn.Module, torch.nn.Parameter)) or key in vars(module).get("_buffers", ())
        if id(module) in paths and not registered and not key.startswith("_") and key != "training":
            name = f"{paths[id(module)]}.{key}".lstrip(".")
            if name not in assigned:
                assigned.append(name)
        original(module, key, value)

    torch.nn.Module.__setattr__ = note  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.__setattr__ = original  # type: ignore[method-assign]


def _explain(error: Exception, model: torch.nn.Module, inputs: Sequence[Any], changed: list[str], name: str,
             file: str | None) -> None:
    """Raise the coded error that fits a failed trace, if one does."""
    kinds = {type(e).__name__ for e in (error, error.__cause__, error.__context__) if e is not None}
    text = str(error)
    if kinds & {"GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException"} or \
            "data-dependent" in text.lower():
        if _inside_library(error):
            return
        raise errors.DataDependentControlFlow(model=name, exception=errors.describe(error),
                                              where=errors.where_of(error, file)) from error
    if "attribute" in text and "assigned during export" in text:
        raise errors.HiddenState(model=name, attributes=", ".join(changed) or text.splitlines()[0],
                                 where=errors.where_of(error, file)) from error
    trial = copy.deepcopy(model)
    try:
        with torch.no_grad():
            trial(*inputs)
    except Exception as failure:
        device = next((t.device for t in inputs if isinstance(t, torch.Tensor)), "cpu")
        raise errors.ForwardRaised(model=name, exception=errors.describe(failure), device=device,
                                   where=errors.where_of(failure, file)) from failure


def _inside_library(error: Exception) -> bool:
    """Whether a module of torch.nn, and not the user's own code, decides by a value."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    layers = [i for i, f in enumerate(files) if "/torch/nn/modules/" in f and not f.endswith("/module.py")]
    own = [i for i, f in enumerate(files) if "/torch/" not in f]
    return bool(layers and own) and layers[-1] > own[-1]


def _plain_state(model: torch.nn.Module) -> dict[str, Any]:
    """Every plain attribute of every module, as far as it can be compared."""
    state = {}
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            if key.startswith("_") or key == "training":
                continue
            state[f"{path}.{key}" if path else key] = _print_of(value)
    return state


def _print_of(value: Any, depth: int = 0) -> Any:
    if isinstance(value, torch.Tensor):
        return ("tensor", tuple(value.shape), str(value.dtype), id(value), value._version)
    if isinstance(value, (int, float, bool, str, bytes, type(None), complex)):
        return (type(value).__name__, value)
    if isinstance(value, (list, tuple)) and depth < 3:
        return (type(value).__name__, *(_print_of(v, depth + 1) for v in value))
    if isinstance(value, dict) and depth < 3:
        return ("dict", *((str(k), _print_of(v, depth + 1)) for k, v in value.items()))
    return (type(value).__name__, id(value))


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
