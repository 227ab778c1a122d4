"""`kernelwright cache`: what runs keep, shown, cleared and taken along; nothing else is touched."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from schemas import assert_fits

import kernelwright
from kernelwright import cli
from kernelwright.cache import folder
from kernelwright.errors import CacheFileInvalid, FileMissing, InvalidOption, OutputExists, OutputFolderUnusable


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a file of some kinds, and one that is nobody's."""
    folder = tmp_path / "cache"
    files = {"libraries/a_1.so": "library", "times/x/y.json": "{}", "peaks/p.json": "[]", "libraries/b.so.lock": "",
             "judge_headers/h/torch.gch": "h" * 2000, "own/notes.txt": "mine"}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(folder))
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    def use() -> Path:
        monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "elsewhere"))
        return tmp_path / "elsewhere"

    return use


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_what_is_kept_is_shown(home: Path) -> None:
    found = folder.kept("show")
    assert {k.kind: (k.files, k.bytes) for k in found.kinds if k.files} == {
        "libraries": (2, 7), "times": (1, 2), "peaks": (1, 2), "judge_headers": (1, 2000)}
    narrow = found.render(60)
    assert all(len(line) <= 60 for line in narrow.splitlines()[1:])
    assert "compiled kernels of emitted files" in " ".join(narrow.split())
    text = found.render()
    assert text.startswith(f"{home}: 2.0 kB") and "just now" in text and "  own" not in text
    assert all(len(line) <= 100 for line in text.splitlines()[1:])
    assert_fits(found.to_json(), "cache")


def test_nothing_is_kept_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "none"))
    assert folder.kept("show").render() == f"{tmp_path / 'none'}: nothing is kept"
    assert folder.kept("clear").moved == 0 and not (tmp_path / "none").exists()


def test_kinds_are_cleared_and_nothing_else(home: Path, tmp_path: Path) -> None:
    found = folder.kept("clear", only=["times"])
    assert (found.moved, found.bytes) == (1, 2) and "times/x/y.json" not in names(home)
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "file").write_text("mine, too")
    (home / "graphs").symlink_to(tmp_path / "others")
    assert folder.kept("clear").moved == 4
    assert names(home) == {"own/notes.txt"} and (tmp_path / "others" / "file").exists()


def test_what_travels_is_taken_along_once(home: Path, tmp_path: Path, elsewhere: Callable[[], Path]) -> None:
    file = tmp_path / "kept.zip"
    assert (folder.kept("export", file).moved, folder.kept("export", file, force=True).moved) == (3, 3)
    first = file.read_bytes()
    folder.kept("export", file, force=True)
    assert file.read_bytes() == first, "the same cache gives the same file"
    with pytest.raises(OutputExists):
        folder.kept("export", file)
    other = elsewhere()
    (other / "libraries").mkdir(parents=True)
    (other / "libraries" / "a_1.so").write_text("its own")
    found = folder.kept("import", file)
    assert (found.moved, found.skipped) == (2, 1) and "1 were there already" in found.render()
    assert names(other) == {"libraries/a_1.so", "times/x/y.json", "peaks/p.json"}
    assert (other / "libraries" / "a_1.so").read_text() == "its own"
    assert_fits(found.to_json(), "cache")


def test_other_kinds_are_taken_along_where_they_are_named(home: Path, tmp_path: Path, elsewhere: Callable[[], Path]
                                                          ) -> None:
    folder.kept("export", tmp_path / "kept.zip", only=["judge_headers", "times"])
    other = elsewhere()
    assert folder.kept("import", tmp_path / "kept.zip", only=["judge_headers"]).moved == 1
    assert names(other) == {"judge_headers/h/torch.gch"}


def _with(name: str, data: bytes = b"x") -> Callable[[zipfile.ZipFile], Any]:
    return lambda archive: archive.writestr(name, data)


@pytest.mark.parametrize("add", [
    _with("../escaped"), _with("libraries/../../escaped"), _with("/etc/escaped"), _with("own/notes.txt"),
    _with("libraries"), _with("libraries/..\\escaped"), _with("libraries//a.so"), _with("./libraries/a.so")])
def test_a_file_with_other_places_is_refused_whole(home: Path, tmp_path: Path, elsewhere: Callable[[], Path],
                                                   add: Callable[[zipfile.ZipFile], Any]) -> None:
    file = tmp_path / "kept.zip"
    folder.kept("export", file)
    with zipfile.ZipFile(file, "a") as archive:
        add(archive)
    other, before = elsewhere(), names(tmp_path)
    with pytest.raises(CacheFileInvalid):
        folder.kept("import", file)
    assert not other.exists() and names(tmp_path) == before


def test_what_is_no_exported_cache_is_refused(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "kept.zip"
    folder.kept("export", file)
    whole = file.read_bytes()
    place = whole.index(b"a_1.so") + len(b"a_1.so")
    for data in (b"no zip", b"", whole[:-30], whole[:place] + b"\x00" + whole[place + 1:]):
        file.write_bytes(data)
        with pytest.raises(CacheFileInvalid):
            folder.kept("import", file)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("libraries/a_2.so", "without a manifest")
    with pytest.raises(CacheFileInvalid, match="none that"):
        folder.kept("import", file)
    with pytest.raises(FileMissing):
        folder.kept("import", tmp_path / "missing.zip")


@pytest.mark.parametrize(("given", "option"), [
    (("open",), "ACTION"), (("export",), "FILE"), (("show", Path("a.zip")), "FILE"),
    (("export", Path("a.txt")), "FILE")])
def test_wrong_words(home: Path, given: tuple[Any, ...], option: str) -> None:
    with pytest.raises(InvalidOption, match=option) as wrong:
        folder.kept(*given)
    # What is needed is not to be left out.
    assert ("leave it out" in wrong.value.fix) is (given[0] not in ("export", "import")), wrong.value.render()
    with pytest.raises(InvalidOption, match="--only"):
        folder.kept("show", only=["librarys"])


def test_a_folder_that_cannot_be_written(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.kept("export", tmp_path / "kept.zip")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "file"))
    with pytest.raises(OutputFolderUnusable):
        folder.kept("import", tmp_path / "kept.zip")


def test_the_command(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["cache", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["folder"] == str(home)
    assert cli.run(["cache", "export", str(tmp_path / "kept.zip"), "--quiet"]) == 0
    assert "3 files" in capsys.readouterr().out
    assert cli.run(["cache", "import", "--quiet"]) == 2
    assert "error KW403" in capsys.readouterr().err


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.tanh(x), -1)


def test_a_library_that_was_taken_along_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a file that then needs no compiler."""
    x = torch.randn(8, 16)
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "one"))
    source = kernelwright.optimize(Model(), (x,), target="cpp", effort="quick", baselines="none").source
    folder.kept("export", tmp_path / "kept.zip")
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "two"))
    folder.kept("import", tmp_path / "kept.zip")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", "none")
    names_of: dict[str, Any] = {"__name__": "taken_along"}
    exec(compile(source, "taken_along.py", "exec"), names_of)
    assert names_of["_kernelwright_library"] is not None, names_of["_kernelwright_trouble"]
