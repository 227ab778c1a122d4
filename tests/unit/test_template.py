"""Names in texts: filled at any depth, none left, no value for nothing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import kernelwright.codegen
from kernelwright.codegen.template import TemplateError, fill, fill_some, names_in


def test_names_are_filled_at_any_depth():
    assert fill("a @B@ @C@", {"B": "[@C@]", "C": 3}) == "a [3] 3"
    assert fill_some("@A@ @B@", {"A": "@C@ 1"}) == "@C@ 1 @B@"
    assert names_in("@A@ a@b @B1@ @A@ @lower@") == ["A", "B1"]


@pytest.mark.parametrize(("template", "values", "words"), [
    ("@A@ @B@", {"A": 1}, "no value for B"),
    ("@A@", {"A": "@B@"}, "no value for B"),
    ("@A@", {"A": 1, "B": 2}, "no name for the values of B"),
    ("@A@", {"A": "@B@", "B": "@A@"}, "the value of A holds A"),
])
def test_what_does_not_fit_is_refused(template, values, words):
    with pytest.raises(TemplateError, match=words):
        fill(template, values)


def test_spare_names_need_no_place_and_take_one():
    assert fill("x", {"A": 1}, spare={"A"}) == "x"
    assert fill("@A@", {"A": 1}, spare={"A"}) == "1"
    with pytest.raises(TemplateError, match="values of B"):
        fill_some("@C@", {"A": 1, "B": 2}, spare={"A"})


def test_every_value_has_a_place_in_some_text():
    """A variant of a core takes the values that it needs; what none takes is dead."""
    folder = Path(kernelwright.codegen.__file__).parent
    places = {name for path in folder.rglob("*.cuh") for name in names_in(path.read_text(encoding="utf-8"))}
    values = {}
    for path in folder.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                places |= set(names_in(node.value))
            if isinstance(node, ast.Dict) and "gemm" in path.parts:
                values |= {key.value: path.name for key in node.keys if isinstance(key, ast.Constant)
                           and re.fullmatch(r"[A-Z][A-Z0-9_]*", str(key.value))}
    assert len(values) > 100
    assert {name: path for name, path in values.items() if name not in places} == {}
