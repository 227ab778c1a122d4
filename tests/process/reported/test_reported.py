"""All tables together."""

from __future__ import annotations

import importlib
from pathlib import Path

from reported.case import Case
from reported.pending import PENDING

MODELS: dict[str, Case] = {f"{theme}: {name}": case for path in sorted(Path(__file__).parent.glob("test_*.py"))
                           if (theme := path.stem.removeprefix("test_")) != "reported"
                           for name, case in importlib.import_module(f"reported.{path.stem}").CASES.items()}


def test_there_are_many():
    assert len(MODELS) >= 150 and len({case.number for case in MODELS.values()}) >= 100
    assert set(PENDING) <= set(MODELS)
