"""Every model of the tables through the product: its file does what the model does in eager, seen from outside."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from kernelwright.fuzz.alike import SETTINGS
from kernelwright.fuzz.product import make
from reported.case import Case
from reported.pending import PENDING

THEMES = ("attention", "changes", "complexes", "dtypes", "gradients", "images", "indexing", "integers", "layouts",
          "loops", "losses", "modes", "norms", "outputs", "reductions", "signs", "states")
MODELS: dict[str, Case] = {f"{theme}: {name}": case for theme in THEMES
                           for name, case in importlib.import_module(f"reported.{theme}").CASES.items()}


def test_there_are_many():
    assert len(MODELS) >= 150 and len({case.number for case in MODELS.values()}) >= 100
    assert set(PENDING) <= set(MODELS)


def _marked(name: str) -> object:
    """A known fault fails its test as long as it is one, and no longer."""
    if name not in PENDING:
        return name
    return pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=PENDING[name]))


@pytest.mark.parametrize("name", map(_marked, MODELS))
def test_reported(name: str, tmp_path: Path):
    case = MODELS[name]
    path = tmp_path / "reported_model.py"
    path.write_text(case.text())
    made = make(path)
    found = made.differences(extreme=case.extreme)
    for further in case.also:
        found += made.differences(settings=SETTINGS[:2], inputs=further)
    assert not found, "\n".join(map(str, found[:8]))
    assert made.runs_kernels() or not case.kernels, made.notes
