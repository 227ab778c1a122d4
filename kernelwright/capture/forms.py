"""Arguments and results of any form around a trace, which itself is given and gives plain ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernelwright.capture.carried import Carried
from kernelwright.capture.values import NotCapturable
from kernelwright.containers import Form, Keywords, Unsupported, restored, structure_of
from kernelwright.problem.arguments import split

#: Plain values that the exporter takes as they are.
_CONSTANTS = (bool, int, float, str, type(None))
#: Where a module keeps the hooks of its forward.
HOOKS = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs",
          "_forward_hooks_always_called")


@dataclass
class Traced:
    """A call as a trace makes it: plain arguments, and the structure of the result, known after the trace."""

    positional: tuple[Any, ...]
    keywords: dict[str, Any]
    structure: Any = None
    """The result, with numbers for its different tensors in order."""
    unsupported: str = ""
    """What in the result is neither a tensor nor a plain value nor a container of these."""
    kept: list[torch.Tensor] = field(default_factory=list)
    changes: bool = False
    """Whether the forward changes a container that it is given: puts another tensor there, or more of them."""
    left: dict[str, Any] = field(default_factory=dict)
    """The plain attributes that the forward assigns, with numbers for the tensors in them, as in ``structure``."""


def flat(arguments: Sequence[Any]) -> tuple[list[Any], Any]:
    """The tensors and plain values of arguments in order, and the structure of the arguments with their numbers: a list
    of the positional ones and, where there are some, `Keywords`."""
    found: list[Any] = []

    def number(value: Any) -> int:
        found.append(value)
        return len(found) - 1

    positional, keywords = split(arguments)
    structure = [structure_of(value, number, number) for value in positional]
    named = {name: structure_of(value, number, number) for name, value in keywords.items()}
    return found, [*structure, Keywords(named)] if named else structure


def plain_call(model: torch.nn.Module, arguments: Sequence[Any], carried: Carried | None = None) -> Traced:
    """Make ``model`` take plain arguments in place of ``arguments``, and give the tensors of its result as a tuple. Its
    own hooks, which stand around every forward, are taken away.

    carried: plain attributes whose tensors the model gets beside its last argument, and gives after those of its
    result. Raises NotCapturable where there is no argument.
    """
    carried = carried if carried is not None else Carried(model)
    values, structure = flat(arguments)
    positional, keywords = split(_plain(structure, values))
    if carried.held:
        if not arguments:
            raise NotCapturable("it keeps state in plain attributes, and takes no argument")
        more = carried.given()  # a signature has no place for them
        if keywords:
            last = next(reversed(keywords))
            keywords = {**keywords, last: (keywords[last], more)}
        else:
            positional = [*positional[:-1], (positional[-1], more)]
    call = Traced(tuple(positional), keywords)
    given: list[Any] = []  # the arguments of a call, and what they held before it

    def before(_: torch.nn.Module, positional: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        traced = pytree.tree_leaves((positional, keywords))
        carried.enter(traced[len(values):])
        traced = traced[:len(values)]
        parts = [new if isinstance(old, torch.Tensor) else old for old, new in zip(values, traced, strict=True)]
        own = [restored(part, parts) for part in split(structure)[0]]
        named = {name: restored(part, parts) for name, part in split(structure)[1].items()}
        given[:] = [(own, named), structure_of((own, named), id)]
        return tuple(own), named

    def after(_: torch.nn.Module, positional: tuple[Any, ...], result: Any) -> tuple[torch.Tensor, ...]:
        try:
            call.changes = bool(given) and structure_of(given[0], id) != given[1]
        except Unsupported:
            call.changes = True
        call.kept = []
        places: dict[int, int] = {}

        def number(tensor: torch.Tensor) -> int:
            if id(tensor) not in places:
                places[id(tensor)] = len(call.kept)
                call.kept.append(tensor)
            return places[id(tensor)]

        try:
            call.structure = structure_of(result, number)
        except Unsupported as error:
            call.unsupported = str(error)
        call.left = {name: structure_of(value, number) for name, value in carried.leave().items()}
        return tuple(call.kept)

    for name in HOOKS:
        getattr(model, name).clear()
    parts = (*split(structure)[0], *split(structure)[1].values())
    if carried.homes or any(type(part) is not int or _is_odd(part, values) for part in parts):
        model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after)
    return call


def _plain(structure: Any, values: Sequence[Any]) -> Any:
    """A structure's value in lists, tuples and dictionaries alone, with None for what the exporter takes no constant
    of."""
    if isinstance(structure, Form):
        both = [part for part in (structure.items, structure.attributes) if part]
        return _plain(both[0] if len(both) == 1 else both, values)
    if isinstance(structure, dict):
        return type(structure)({key: _plain(part, values) for key, part in structure.items()})
    if isinstance(structure, (list, tuple)):
        return type(structure)(_plain(part, values) for part in structure)
    value = values[structure]
    return value if isinstance(value, (torch.Tensor, *_CONSTANTS)) else None


def _is_odd(structure: Any, values: Sequence[Any]) -> bool:
    """Whether a structure's value is not its plain one."""
    if isinstance(structure, (list, tuple, dict)):
        parts = structure.values() if isinstance(structure, dict) else structure
        return any(_is_odd(part, values) for part in parts)
    return isinstance(structure, Form) or not isinstance(values[structure], (torch.Tensor, *_CONSTANTS))
