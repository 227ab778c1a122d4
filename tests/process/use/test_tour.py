"""The tour of the documents is run, and shows what it speaks of."""

from __future__ import annotations

import runpy

from places import ROOT


def test_the_tour(capsys):
    off = runpy.run_path(str(ROOT / "docs" / "tour.py"))["main"]()
    shown = capsys.readouterr().out
    assert off < 1e-6
    captured, rewritten = shown.partition("planned")[0].split("rewritten")
    graph, _, rules = rewritten.partition("return")
    assert "= convolution(" in captured and "= convolution(" not in graph and "region_sum" in graph
    assert "sum of a convolution" in rules and "Passed" in shown
