"""In which form a problem gives arguments: read in the ways that there are, and decided by who takes them.

``get_inputs`` and ``get_init_inputs`` may return a list or tuple of positional arguments,
``[[positional], {keyword}]``, a dictionary of keyword arguments, or the one argument itself. Where a value can be read
in several ways, the signature of ``forward`` or of the constructor decides, and a real call where that leaves more than
one.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from kernelwright.containers import Keywords
from kernelwright.errors import describe
from kernelwright.problem.memory import is_out_of_memory

#: Names of the ways to read a value, as they stand in errors.
PAIR, POSITIONAL, KEYWORD, SINGLE = ("[positional, keyword] arguments", "positional arguments", "keyword arguments",
                                     "one argument")


class Unreadable(TypeError):
    """A value fits in no way: what was tried, and what was wrong with each."""


def readings(values: Any) -> dict[str, list[Any]]:
    """The ways to read ``values`` as arguments, the likeliest first; keyword arguments stand last as `Keywords`."""
    if type(values) in (list, tuple) and values and isinstance(values[-1], Keywords):  # read before
        return {POSITIONAL: list(values)}
    if type(values) in (list, tuple):
        found = {POSITIONAL: list(values)}
        if len(values) == 2 and type(values[0]) in (list, tuple) and _names(values[1]):
            found = {PAIR: [*values[0], Keywords(values[1])] if values[1] else list(values[0]), **found}
        return found
    if isinstance(values, tuple):  # of a class of its own
        return {SINGLE: [values], POSITIONAL: list(values)}
    return {KEYWORD: [Keywords(values)] if values else [], SINGLE: [values]} if _names(values) else {SINGLE: [values]}


def together(inputs: Any, kwargs: Any) -> Any:
    """Inputs (positional arguments, or the one argument) beside keyword arguments that are given apart. Raises
    Unreadable where these have no names."""
    if kwargs is None:
        return inputs
    if not _names(kwargs):
        raise Unreadable(f"kwargs is {kwargs!r:.80}, not a dictionary of keyword arguments")
    positional = [] if inputs is None else list(inputs) if type(inputs) in (list, tuple) else [inputs]
    return [*positional, Keywords(kwargs)] if kwargs else positional


def _names(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def split(arguments: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments."""
    if arguments and isinstance(arguments[-1], Keywords):
        return list(arguments[:-1]), dict(arguments[-1])
    return list(arguments), {}


def signature_of(function: Any) -> inspect.Signature | None:
    """The signature of a callable, or None where it has none."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def forward_signature(model: nn.Module | type[nn.Module]) -> inspect.Signature | None:
    """The signature of a model's forward, without ``self``, or None where it has none."""
    if isinstance(model, nn.Module):
        return signature_of(model.forward)
    signature = signature_of(model.forward)
    if signature is None or isinstance(inspect.getattr_static(model, "forward"), staticmethod):
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def takes_keywords_only(signature: inspect.Signature | None) -> bool:
    """Whether some arguments can be given by keyword only."""
    kinds = [] if signature is None else [p.kind for p in signature.parameters.values()]
    return inspect.Parameter.KEYWORD_ONLY in kinds or inspect.Parameter.VAR_KEYWORD in kinds


def mismatch(arguments: Sequence[Any], signature: inspect.Signature | None) -> str:
    """Why arguments do not fit a signature, or ""."""
    positional, keywords = split(arguments)
    try:
        if signature is not None:
            signature.bind(*positional, **keywords)
    except TypeError as error:
        return str(error)
    return ""


def chosen(values: Any, signature: inspect.Signature | None, attempt: Callable[[list[Any]], object]) -> str:
    """The name of the way to read ``values`` for a callable with this signature.

    ``attempt`` makes a real call with arguments; it is used where several ways fit the signature alone. Raises
    Unreadable, and what ``attempt`` raises for want of memory.
    """
    ways = readings(values)
    wrong = {name: mismatch(arguments, signature) for name, arguments in ways.items()}
    fitting = [name for name in ways if not wrong[name]]
    if not fitting and len(ways) > 1:
        raise Unreadable(tried(wrong))
    if len(fitting) < 2:
        return (fitting or list(ways))[0]
    for name in fitting:
        try:
            attempt(ways[name])
            return name
        except Exception as error:
            if is_out_of_memory(error):
                raise
            wrong[name] = describe(error)
    raise Unreadable(tried(wrong))


def tried(wrong: dict[str, str]) -> str:
    """What was tried, in words."""
    return "; ".join(f"as {name}: {problem}" for name, problem in wrong.items() if problem)


def in_order(arguments: Sequence[Any], signature: inspect.Signature | None) -> list[Any]:
    """Arguments with those by keyword moved to their positions, as far as they have one; defaults fill what lies
    between. As they are where they do not fit the signature."""
    positional, keywords = split(arguments)
    if not keywords or signature is None or mismatch(arguments, signature):
        return list(arguments)
    bound = signature.bind(*positional, **keywords)
    given = set(bound.arguments)
    bound.apply_defaults()
    movable = [p for p in signature.parameters.values()
               if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    last = max((place for place, p in enumerate(movable, 1) if p.name in given), default=0)
    ordered = positional if len(positional) > last else [bound.arguments[p.name] for p in movable[:last]]
    left = {name: value for name, value in bound.kwargs.items() if name in keywords}
    return [*ordered, Keywords(left)] if left else ordered


class _Received(Exception):
    """Raised in place of a forward: its arguments."""


def received(model: nn.Module, arguments: Sequence[Any]) -> list[Any]:
    """What ``forward`` is given in ``model(*arguments)``: what the model's own hooks make of the arguments, in the
    order of its signature. The model stays as it is; raises what a hook raises."""
    signature = forward_signature(model)
    if not model._forward_pre_hooks:
        return in_order(arguments, signature)

    def stop(_: nn.Module, positional: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        raise _Received(positional, keywords)

    own = copy.deepcopy(model)
    own.register_forward_pre_hook(stop, with_kwargs=True)
    positional, keywords = split(arguments)
    try:
        with torch.no_grad():
            own(*positional, **keywords)
    except _Received as found:
        positional, keywords = found.args
    return in_order([*positional, Keywords(keywords)] if keywords else list(positional), signature)


def unpack_keywords(module: nn.Module, positional: tuple[Any, ...], keywords: dict[str, Any]
                    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A forward pre-hook: `Keywords` that stand last among the arguments become keyword arguments."""
    own, more = split(positional)
    return tuple(own), {**keywords, **more}
