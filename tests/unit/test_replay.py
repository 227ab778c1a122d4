"""The texts of kernels are those of the record: who changes them on purpose records them anew.

Those of every fortieth case are generated here; ``tools/replay.py --check`` generates all.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys

import pytest
from places import ROOT

_PATH = ROOT / "tools" / "replay.py"


@pytest.fixture(scope="module")
def replay():
    spec = importlib.util.spec_from_file_location("replay", _PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["replay"] = module
    spec.loader.exec_module(module)
    return module


def test_texts_are_those_of_the_record(replay):
    record = replay.recorded()
    assert sum(map(len, record.values())) > 5000
    other = sorted({name for module in replay.modules() for name, keys in replay.texts_of(module, every=40).items()
                    if keys - record.get(name, set())})
    assert not other, f"other texts, if on purpose: python tools/replay.py --record: {other[:10]}"


def test_what_python_has_built_in_is_no_case(replay, monkeypatch):
    """Who evaluates an annotation of a builtin class makes the builtins a dictionary that holds itself."""
    cases = list(replay._kernels("test_rounded_functions", 1))
    monkeypatch.setitem(vars(builtins), "__builtins__", vars(builtins))
    assert list(replay._kernels("test_rounded_functions", 1)) == cases != []
