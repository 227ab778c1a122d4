"""What measurements are kept under: the code that made them, whatever language it is in and wherever it stands."""

from __future__ import annotations

from pathlib import Path

import kernelwright.codegen
from kernelwright.tune.memory import digest_of


def test_every_source_file_counts(tmp_path):
    for name, text in {"a/core.py": "1", "b/core.py": "2", "b/core.cuh": "3", "c.hpp": "4"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = digest_of(tmp_path)
    (tmp_path / "notes.txt").write_text("no code")
    assert digest_of(tmp_path) == before
    for name in ("b/core.cuh", "c.hpp", "a/core.py"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text("other")
        assert digest_of(tmp_path) != before, name
        (tmp_path / name).write_text(text)
    (tmp_path / "a/core.py").write_text("2")
    (tmp_path / "b/core.py").write_text("1")
    assert digest_of(tmp_path) != before, "the two changed places"


def test_sources_of_kernels_are_among_the_suffixes():
    from kernelwright.tune import memory

    suffixes = {path.suffix for path in Path(kernelwright.codegen.__file__).parent.rglob("*") if path.is_file()}
    assert suffixes - {".pyc"} <= set(memory._SOURCES)
