"""Texts with names to be filled in: ``@NAME@`` stands for a text, which may hold names itself.

A number that adds nothing where it is filled in, a 0 that is added or a 1 that something is multiplied by, is left out
with its operator (:func:`kernelwright.codegen.terms.joined`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from kernelwright.codegen.terms import joined

_NAME = re.compile(r"@([A-Z][A-Z0-9_]*)@")


class TemplateError(Exception):
    """A template and the values for its names do not fit: a fault of ours, never one of a model."""


def names_in(text: str) -> list[str]:
    """The names in a text, in the order of their first places."""
    return list(dict.fromkeys(_NAME.findall(text)))


def fill(template: str, values: Mapping[str, object], spare: Collection[str] = ()) -> str:
    """The template with every name replaced by its value, and every name in that value by its own.

    spare: names that some variants of the template do not have. Raises TemplateError for a name that has no value, for
    a value that no name takes, unless its name is spare, and for a value that holds its own name.
    """
    text = fill_some(template, values, spare)
    if left := names_in(text):
        raise TemplateError(f"no value for {', '.join(left)}")
    return text


def fill_some(template: str, values: Mapping[str, object], spare: Collection[str] = ()) -> str:
    """`fill`, but names that have no value stay, for a later call."""
    used: set[str] = set()
    text = _filled(template, values, used, ())
    if unused := [name for name in values if name not in used and name not in spare]:
        raise TemplateError(f"no name for the values of {', '.join(unused)}")
    return text


def _filled(text: str, values: Mapping[str, object], used: set[str], around: tuple[str, ...]) -> str:
    """The text with the names of ``values`` replaced, at any depth. around: the names whose values this text is in."""
    filled = ""
    while found := _NAME.search(text):
        name, before, text = found[1], text[:found.start()], text[found.end():]
        if name in around:
            raise TemplateError(f"the value of {name} holds {name}")
        if name not in values:
            filled += before + found[0]
            continue
        used.add(name)
        value = _filled(str(values[name]), values, used, (*around, name))
        rest = text
        filled, value, text = joined(filled + before, value, text)
        used.update(names_in(rest.removesuffix(text)))  # what was multiplied by 0
        filled += value
    return filled + text
