"""Candidates that do not compute, as files: what a sweep over a collection must never see accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pprint import pformat
from typing import Any

import torch
from torch import nn

from kernelwright.judge.check.probes import constants_of, nearest_inputs
from kernelwright.problem import Problem, run_forward

_HEAD = '''"""A candidate that returns {what}: it fits the model in every respect but the values."""

import torch
from torch import nn

# One line per tensor: all its names in the state, its shape and type, and whether it is a parameter and persistent.
STATE = {state}


def put(module, path, tensor, kind, persistent):
    """Register a tensor under its dotted path."""
    *owners, name = path.split(".")
    for owner in owners:
        if owner not in module._modules:
            module.add_module(owner, nn.Module())
        module = module._modules[owner]
    if kind == "parameter":
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor, persistent=persistent)


class ModelNew(nn.Module):
    def __init__(self, *arguments, **named):
        super().__init__()
        for names, shape, dtype, kind, persistent in STATE:
            tensor = torch.zeros(shape, dtype=dtype)
            if kind == "parameter":
                tensor = nn.Parameter(tensor, requires_grad=dtype.is_floating_point or dtype.is_complex)
            for name in names:
                put(self, name, tensor, kind, persistent)

    def forward(self, {arguments}):
        {device}return {result}
'''

_REPLAY = '''

class ModelNew({base}):
    """Returns the result of its first call for ever."""

    def forward(self, *arguments):
        kept = vars(self).get("_kept")
        if kept is None:
            kept = vars(self)["_kept"] = _Kept(super().forward(*arguments))
        return kept.copy(kept.value)


class _Kept:
    """A result. Not a tensor, so that no one takes it for state."""

    def __init__(self, value):
        self.value = self.copy(value)

    def copy(self, value):
        if isinstance(value, dict):
            return type(value)((key, self.copy(item)) for key, item in value.items())
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.copy, value))
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.copy, value))
        return value.clone() if hasattr(value, "clone") else value
'''


def trivial_candidates(problem: Problem, seed: int = 0) -> dict[str, str]:
    """Texts of ModelNew files that do not compute: ``zeros``, ``constant`` (the mean of each output for other inputs),
    ``identity`` (the nearest inputs, where every output has the shape and type of one) and ``replay`` (its first
    result; only for a problem that came from a file). Shapes are those of the problem's own inputs.

    Raises ForwardRaised (KW114) where the model fails, and what making model and inputs raises.
    """
    model = problem.make_model(seed)
    inputs = problem.make_inputs(seed)
    arguments = ", ".join(f"input_{i}" for i in range(len(inputs))) or "*arguments"
    names = _input_names(inputs)
    outputs = run_forward(problem, problem.make_model(seed), problem.make_inputs(seed))
    others = run_forward(problem, problem.make_model(seed), problem.make_inputs(seed + 1))
    device = f"device = {names[0][0]}.device\n        " if names else 'device = torch.device("cpu")\n        '

    def text(what: str, device_line: str, leaf: Callable[[torch.Tensor], str]) -> str:
        return _HEAD.format(what=what, state=_state(model), arguments=arguments, device=device_line,
                            result=_expression(outputs, leaf))

    found = {"zeros": text("zeros", device, lambda t: f"torch.zeros({tuple(t.shape)}, dtype={t.dtype}, device=device)")}
    values = constants_of(others, outputs)
    if values is not None:
        waiting = iter(values)
        found["constant"] = text("one number for each output, learnt from other inputs", device, lambda t: (
            f"torch.full({tuple(t.shape)}, {_literal(next(waiting))}, dtype={t.dtype}, device=device)"))
    nearest = nearest_inputs(inputs, outputs)
    if nearest is not None:
        chosen = iter(nearest)
        known = {id(t): name for name, t in names}
        found["identity"] = text("its inputs as they are", "", lambda _: known[id(next(chosen))] + ".clone()")
    if problem.source is not None and problem.path is not None:
        found["replay"] = problem.source.rstrip() + "\n" + _REPLAY.format(base=problem.class_name)
    return found


def _input_names(inputs: list[Any]) -> list[tuple[str, torch.Tensor]]:
    """The tensors among the inputs with the expressions that name them in forward."""
    return [found for i, value in enumerate(inputs) for found in _named(value, f"input_{i}")]


def _named(value: Any, name: str) -> list[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(name, value)]
    if isinstance(value, (list, tuple)):
        return [found for i, item in enumerate(value) for found in _named(item, f"{name}[{i}]")]
    return []


def _state(model: nn.Module) -> str:
    """The parameters and buffers of a model as a literal; tensors with several names stand once."""
    persistent = set(model.state_dict())
    rows: dict[int, tuple[list[str], torch.Tensor, str]] = {}
    for kind, named in (("parameter", model.named_parameters(remove_duplicate=False)),
                        ("buffer", model.named_buffers(remove_duplicate=False))):
        for name, tensor in named:
            rows.setdefault(id(tensor), ([], tensor, kind))[0].append(name)
    lines = [f"    ({names!r}, {tuple(t.shape)}, {t.dtype}, {kind!r}, {names[0] in persistent}),"
             for names, t, kind in rows.values()]
    return "[\n" + "\n".join(lines) + "\n]" if lines else "[]"


def _expression(value: Any, leaf: Callable[[torch.Tensor], str]) -> str:
    if isinstance(value, torch.Tensor):
        return leaf(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_expression(item, leaf)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + "".join(_expression(item, leaf) + ", " for item in value) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(_expression(item, leaf) for item in value) + "]"
    return pformat(value)


def _literal(value: torch.Tensor) -> str:
    number = value.item()
    return repr(number) if number == number and abs(number) != float("inf") else f'float("{number}")'
