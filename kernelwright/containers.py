"""Nested values: what counts as a container, what stands in one, and how another one like it is made.

A container is a list, a tuple or a dictionary, an object of a class derived from one of these (a NamedTuple, an
OrderedDict, what ``torch.max`` returns), or an object of another class written in Python, such as a dataclass, that
holds nothing but tensors, plain values and containers.
"""

from __future__ import annotations

import collections
import enum
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

#: Values that are what they are in every call: they may stand beside tensors in results.
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.Size, torch.device)
_DEPTH = 32
_WRITTEN_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE


class Keywords(dict[str, Any]):
    """The keyword arguments of a call, where they stand last among its arguments."""


class Unsupported(TypeError):
    """A value is no tensor, no plain value and no container: what it is, with its position."""


def is_plain(value: Any) -> bool:
    """Whether a value is what it is in every call: a plain one, or a class or a member of an enumeration that a module
    has a name for."""
    kind = type(value)
    if isinstance(value, type):
        return named(value) is value
    return kind in PLAIN or (isinstance(value, enum.Enum) and named(kind) is kind)


@dataclass(frozen=True, slots=True)
class Fixed:
    """In a structure: a value that is the same in every call, where a number would stand for a part."""

    value: Any


@dataclass(frozen=True, slots=True)
class Form:
    """In a structure: an object of a class of its own.

    items: what the object holds as a list, tuple or dictionary (None where it is none of these); attributes: those of
    its own, as a dictionary. Both hold numbers for the parts.
    """

    kind: type
    items: Any
    attributes: dict[str, Any]


def is_object(value: Any, depth: int = 0) -> bool:
    """Whether ``value`` is a container by its attributes."""
    kind = type(value)
    if isinstance(value, (type, enum.Enum)):
        return False
    in_python = hasattr(value, "__dict__") or any("__slots__" in vars(base) for base in kind.__mro__)
    if not in_python or not kind.__flags__ & _WRITTEN_IN_PYTHON or kind.__new__ is not object.__new__ or isinstance(
            value, (torch.nn.Module, Form, Fixed)):
        return False
    return all(_is_value(part, depth + 1) for part in attributes_of(value).values())


def _is_value(value: Any, depth: int) -> bool:
    if isinstance(value, torch.Tensor) or is_plain(value):
        return True
    if depth > _DEPTH:  # or an object that holds itself
        return False
    if isinstance(value, (dict, list, tuple)):
        return all(_is_value(part, depth + 1) for part in (value.values() if isinstance(value, dict) else value))
    return is_object(value, depth)


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes that an object has itself, in slots or in its dictionary."""
    slots = [name for kind in type(value).__mro__ for name in _slots(kind) if hasattr(value, name)]
    return {**{name: getattr(value, name) for name in slots}, **getattr(value, "__dict__", {})}


def _slots(kind: type) -> tuple[str, ...]:
    own = vars(kind).get("__slots__", ())
    names = (own,) if isinstance(own, str) else tuple(own)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def entries(value: Any) -> list[tuple[Any, Any]] | None:
    """The parts of a container with their keys, positions or attributes' names, in order; None for anything else."""
    if isinstance(value, Form):
        return entries(value.attributes if value.items is None else value.items)
    if isinstance(value, torch.Size):
        return None
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    return list(attributes_of(value).items()) if is_object(value) else None


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A container like ``value`` with ``change(part)`` in place of every part, in the order of `entries`, and of what
    else a list's, tuple's or dictionary's attributes are; ``value`` itself if it is none.

    No constructor of a class of the user's runs.
    """
    kind = type(value)
    if isinstance(value, torch.Size):
        return value
    if isinstance(value, (dict, list, tuple)):
        if kind in (list, tuple):
            return kind(map(change, value))
        items = {key: change(part) for key, part in value.items()} if isinstance(value, dict) else \
            [change(part) for part in value]
        held = items.values() if isinstance(items, dict) else items
        same = {id(part): new for (_, part), new in zip(entries(value) or (), held, strict=True)}
        # An attribute may be one of the parts by another name, as those of a model's outputs are.
        made = _made(kind, items, {name: same[id(part)] if id(part) in same else change(part)
                                   for name, part in getattr(value, "__dict__", {}).items()})
        if isinstance(value, collections.defaultdict):
            made.default_factory = value.default_factory
        return made
    if is_object(value):
        return _made(kind, None, {name: change(part) for name, part in attributes_of(value).items()})
    return value


def _made(kind: type, items: Any, attributes: dict[str, Any]) -> Any:
    """An object of a class, made without its constructor. The emitted files' runtime has the same function."""
    if items is None:
        made = object.__new__(kind)
    elif issubclass(kind, tuple):
        made = kind(items) if hasattr(kind, "n_sequence_fields") else tuple.__new__(kind, items)
    elif issubclass(kind, list):
        made = list.__new__(kind)
        list.extend(made, items)
    else:
        base: Any = next(c for c in kind.__mro__ if c.__module__ in ("builtins", "collections"))
        made = base.__new__(kind)
        for key, part in items.items():
            base.__setitem__(made, key, part)
    for name, part in attributes.items():
        object.__setattr__(made, name, part)
    return made


def restored(structure: Any, parts: Any) -> Any:
    """The value of a structure, in which numbers stand for ``parts``."""
    if isinstance(structure, Fixed):
        return structure.value
    if isinstance(structure, Form):
        items = None if structure.items is None else restored(structure.items, parts)
        return _made(structure.kind, items, restored(structure.attributes, parts))
    if type(structure) is int:
        return parts[structure]
    if isinstance(structure, dict):
        return {key: restored(part, parts) for key, part in structure.items()}
    return type(structure)(restored(part, parts) for part in structure) if isinstance(structure, (list, tuple)) \
        else structure


def renumbered(structure: Any, numbers: Any) -> Any:
    """A structure with ``numbers[n]`` in place of every number ``n``."""
    if isinstance(structure, Form):
        return Form(structure.kind, renumbered(structure.items, numbers), renumbered(structure.attributes, numbers))
    if type(structure) is int:
        return numbers[structure]
    if isinstance(structure, dict):
        return {key: renumbered(part, numbers) for key, part in structure.items()}
    return type(structure)(renumbered(part, numbers) for part in structure) if isinstance(structure, (list, tuple)) \
        else structure


def structure_of(value: Any, part: Callable[[torch.Tensor], Any], plain: Callable[[Any], Any] | None = None,
                 position: str = "", depth: int = 0) -> Any:
    """``value`` as a structure: plain lists, tuples and dictionaries, `Form` for other containers, what ``part``
    gives for a tensor (its number), and what ``plain`` gives for a plain value (by default itself; whole numbers,
    sizes, devices, classes and members of enumerations as `Fixed`).

    Raises Unsupported.
    """
    if isinstance(value, torch.Tensor):
        return part(value)
    if is_plain(value):
        is_itself = type(value) in PLAIN and type(value) not in (int, torch.Size, torch.device)
        return plain(value) if plain else value if is_itself else Fixed(value)
    kind, outer = type(value), position.removeprefix(" at ")

    def inner(items: Any) -> Any:
        def at(key: Any) -> str:
            return f" at {outer}[{key!r}]"

        if isinstance(items, dict):
            if bad := next((key for key in items if not _is_key(key)), None):
                raise Unsupported(f"a dictionary with a key of type {type(bad).__name__}{position}")
            return {key: structure_of(item, part, plain, at(key), depth + 1) for key, item in items.items()}
        return (tuple if isinstance(items, tuple) else list)(
            structure_of(item, part, plain, at(key), depth + 1) for key, item in enumerate(items))

    if entries(value) is None or depth > _DEPTH or kind is collections.defaultdict:
        raise Unsupported(f"an object of type {kind.__name__}{position}")
    if kind in (dict, list, tuple):
        return inner(value)
    if named(kind) is not kind:
        raise Unsupported(f"an object of type {kind.__name__}, which has no name in a module{position}")
    if isinstance(value, (dict, list, tuple)):
        return Form(kind, inner(value), inner(dict(getattr(value, "__dict__", {}))))
    return Form(kind, None, inner(attributes_of(value)))


def _is_key(key: Any) -> bool:
    return type(key) in (str, int, float, bool, bytes, type(None)) or (type(key) is tuple and all(map(_is_key, key)))


def named(kind: type) -> Any:
    """What stands under the name of a class in its module, or None."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found


def leaves(value: Any) -> Iterator[Any]:
    """What stands in nested containers and is none itself, in order."""
    found = entries(value)
    if found is None:
        yield value
    else:
        for _, part in found:
            yield from leaves(part)
