"""Names in texts: filled at any depth, none left, no value for nothing."""

from __future__ import annotations

import pytest

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
