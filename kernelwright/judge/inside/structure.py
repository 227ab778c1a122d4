"""Nested values as plain data, with tensors by number. Used by both sides.

``{"t": 3}`` is tensor 3, ``{"p": 3}`` a parameter on its memory, ``{"v": x}`` a JSON value, ``{"f": "nan"}`` a float in
hexadecimal, ``{"l": [...]}``, ``{"u": [...]}`` and ``{"d": [[key, value], ...]}`` a list, a tuple and a dictionary,
``{"o": "name"}`` an object of another type, of which the type's name is told (by the judge, in inputs: the pickled
object).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: The one subclass that PyTorch's own functions take for a plain tensor, whatever is set on it.
_Parameter = torch.nn.Parameter
#: Deeper nesting, more leaves or longer texts than these are no outputs of a model.
DEPTH, LEAVES, TEXT = 32, 4096, 1000


class TooComplex(Exception):
    """A value is nested more deeply, or has more leaves, than can be told."""


#: Before the name of a type that derives from tensors and may answer for itself what is asked of it.
ANSWERS = "tensor subclass: "


def type_name(value: object) -> str:
    """The qualified name of a value's type, from the type alone."""
    kind = type(value)
    module, name = type.__getattribute__(kind, "__module__"), type.__getattribute__(kind, "__qualname__")
    answers = ANSWERS if issubclass(kind, torch.Tensor) and kind not in (torch.Tensor, _Parameter) else ""
    return answers + (f"{module}.{name}"[:200] if isinstance(module, str) else str(name)[:200])


def encode(value: Any, leaf: Callable[[torch.Tensor], dict[str, Any] | None],
           other: Callable[[object], dict[str, Any]] | None = None, depth: int = 0, count: list[int] | None = None
           ) -> dict[str, Any]:
    """``value`` as plain data. ``leaf`` tells a plain tensor or a parameter, ``other`` what is of another type (by
    default its name).

    No method that an object's class defines is called. Raises TooComplex, also for a dictionary whose keys are objects
    of which only the type would be told: they could not be told apart.
    """
    named, again = other is None, other
    other = other or (lambda item: {"o": type_name(item)})
    count = [0] if count is None else count
    count[0] += 1
    if depth > DEPTH or count[0] > LEAVES:
        raise TooComplex(f"more than {LEAVES} values, or nested more than {DEPTH} deep")
    kind = type(value)
    if kind is torch.Tensor or kind is _Parameter:
        told = leaf(value) or other(value)
        return {"p": told["t"]} if kind is _Parameter and "t" in told else told
    if value is None or kind is bool or (kind is int and abs(value) < 1 << 63):
        return {"v": value}
    if kind is float:
        return {"f": float.hex(value)}
    if kind is str and len(value) <= TEXT:
        return {"v": value}
    if issubclass(kind, list):
        return {"l": [encode(item, leaf, again, depth + 1, count) for item in list.__iter__(value)]}
    if issubclass(kind, tuple):
        return {"u": [encode(item, leaf, again, depth + 1, count) for item in tuple.__iter__(value)]}
    if issubclass(kind, dict):
        if named and any(type(key) not in (str, int, float, bool, tuple, type(None)) for key in dict.keys(value)):
            raise TooComplex("a dictionary with keys that are no names or numbers")
        return {"d": [[encode(key, leaf, again, depth + 1, count), encode(item, leaf, again, depth + 1, count)]
                      for key, item in dict.items(value)]}
    return other(value)


def decode(data: Any, tensor: Callable[[int], Any], other: Callable[[str], Any], depth: int = 0) -> Any:
    """The value of `encode`'s data. ``tensor`` gives the tensor of a number, ``other`` stands for unknown objects.

    Raises ValueError, TypeError or KeyError for what `encode` cannot have written.
    """
    if depth > DEPTH + 1 or type(data) is not dict or len(data) != 1:
        raise ValueError("no encoded value")
    (kind, content), = data.items()
    again = lambda item: decode(item, tensor, other, depth + 1)  # noqa: E731
    if kind == "t" and type(content) is int:
        return tensor(content)
    if kind == "p" and type(content) is int:
        return _Parameter(tensor(content), requires_grad=False)
    if kind == "v" and (content is None or type(content) in (bool, int, str)):
        return content
    if kind == "f" and type(content) is str:
        return float.fromhex(content)
    if kind in "lu" and type(content) is list:
        return (list if kind == "l" else tuple)(again(item) for item in content)
    if kind == "d" and type(content) is list:
        return {again(key): again(item) for key, item in content}
    if kind == "o" and type(content) is str:
        return other(content)
    raise ValueError("no encoded value")


def numbers_in(data: dict[str, Any]) -> list[int]:
    """The numbers of the tensors in data that `encode` wrote, in order."""
    (kind, content), = data.items()
    if kind in "tp":
        return [content]
    if kind == "d":
        return [number for key, item in content for number in (*numbers_in(key), *numbers_in(item))]
    return [number for item in content for number in numbers_in(item)] if kind in "lu" else []
