"""Faults of the mutation corpus, with the judge's recorded verdicts on them: how many are mended by what these say.

``tools/mutations/mending.py`` reads a verdict's JSON and the faulty text. A fault counts as mended where one of the
texts that it gives is the program of the right candidate, which it never sees. ``tests/process/propose`` mends some
with the judge itself.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from places import ROOT, TESTS

sys.path.insert(0, str(ROOT / "tools"))

from feedback_value import BLIND, document, measured
from mutations.bases import BASES
from mutations.corpus import FAULTS, Texts
from mutations.mending import MOST, mended

RECORDED = json.loads((TESTS / "records" / "mutation_verdicts.json").read_text(encoding="utf-8"))
FAULT = {fault.name: fault for fault in FAULTS}
BASE = {base.name: base for base in BASES}


def texts_of(entry: dict[str, Any], folder: Path) -> tuple[str, str]:
    """The right text, and the faulty one."""
    right = Texts(folder).text(BASE[entry["base"]])
    return right, list(dict.fromkeys(FAULT[entry["fault"]].apply(right)))[entry["place"]]


def program(text: str) -> str:
    return ast.dump(ast.parse(text))


def test_most_faults_are_mended_by_their_verdicts_alone(tmp_path: Path) -> None:
    right_at: dict[str, int] = {}
    for entry in RECORDED:
        right, faulty = texts_of(entry, tmp_path)
        ideas = mended(faulty, entry["verdict"])
        assert len(ideas) <= MOST
        found = next((n for n, idea in enumerate(ideas) if program(idea) == program(right)), None)
        if found is not None:
            right_at[f"{entry['fault']} in {entry['base']}"] = found
    assert len(RECORDED) >= 140 and len(right_at) >= 80, len(right_at)
    assert len({name.partition(" in ")[0] for name in right_at}) >= 45
    assert sum(place < 8 for place in right_at.values()) >= 70  # within the answers of one round


@pytest.mark.parametrize("verdict", ["OK", "JUDGE-ERROR", "BUILD-SYNTAX"])
def test_a_verdict_that_says_nothing_mends_nothing(verdict: str) -> None:
    said = {"verdict": verdict, "reason": "", "fix": "", "findings": []}
    assert mended("class ModelNew:\n    def forward(self, x):\n        return x - 1\n", said) == []


def test_findings_help_more_than_a_verdict_s_name() -> None:
    found = measured(RECORDED[::7])
    first = {name: sum(place == 0 for place in places) for name, places in found.items()}
    assert first["all of it"] > 2 * first[BLIND] and first["all of it"] > first["the verdict's name"]
    assert "| that it is wrong |" in document(found, "a command")
