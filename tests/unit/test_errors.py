"""The catalogue of errors, the settings that raise some of them, and the user's line."""

from __future__ import annotations

import io
import os
import pickle
import string
from pathlib import Path

import pytest
from places import ROOT

from kernelwright import errors, settings
from kernelwright.errors import KernelwrightError, catalogue, place, user_frame, where_of
from kernelwright.settings import Settings, cache_folder, check_output, check_versions

DOCUMENT = ROOT / "docs" / "errors.md"


def filled(kind: type[KernelwrightError]) -> KernelwrightError:
    """The error with every template field filled with its own name."""
    names = {name for text in (kind.sentence, kind.reason, kind.remedy)
             for _, name, _, _ in string.Formatter().parse(text) if name}
    return kind(where="a.py:3\nreturn x", **{name: f"<{name}>" for name in names})


def test_document_is_in_step_with_the_catalogue() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == errors.catalogue_markdown()


def test_codes_are_unique_and_every_error_has_its_own_docstring() -> None:
    codes = [kind.code for kind in catalogue()]
    assert len(set(codes)) == len(codes) >= 28
    assert all("__doc__" in vars(kind) and kind.__doc__ and kind.remedy and kind.reason for kind in catalogue())


@pytest.mark.parametrize("kind", catalogue(), ids=lambda kind: kind.__name__)
def test_every_error_renders_its_four_parts_and_survives_pickling(kind: type[KernelwrightError]) -> None:
    error = filled(kind)
    text = error.render()
    assert text.startswith(f"error {kind.code}: ") and "where: a.py:3\n         return x" in text
    assert "why: " in text and "fix: " in text and "{" not in text
    assert error.as_json()["exit_status"] == 2 and str(error).startswith(kind.code)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and again.as_json() == error.as_json() and again.render() == text


def test_braces_in_the_users_text_stay() -> None:
    error = errors.ImportRaised(path="a.py", exception="KeyError: '{x}'")
    assert "{x}" in error.what and error.where == "" and "where" not in error.render()


def test_internal_error_reports_command_versions_and_traceback(tmp_path: Path) -> None:
    try:
        raise KeyError("lost")
    except KeyError as exception:
        error = errors.InternalError.wrap(exception, ["kernelwright", "optimize", "a b.py"], tmp_path / "cache")
    assert error.exit_status == 70 and "kernelwright optimize 'a b.py'" in error.report
    assert "python 3." in error.report and str(error.traceback_path) in error.report
    assert "KeyError: 'lost'" in error.traceback_path.read_text() and "bug of kernelwright" in error.render()
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "KeyError: 'lost'" in errors.InternalError.wrap(error.__cause__, ["x"], blocked / "below").report
    assert pickle.loads(pickle.dumps(error)).report == error.report


@pytest.mark.parametrize(("name", "hint"), [("efort", "did you mean 'effort'?"), ("zzz", "the options are ")])
def test_an_option_that_is_none_is_named_with_what_was_meant(name: str, hint: str) -> None:
    with pytest.raises(TypeError) as caught:
        settings.changed(None, {name: "quick"})
    assert f"there is no option {name!r}" in str(caught.value) and hint in str(caught.value)


def test_user_frame_is_the_innermost_of_the_users_file(tmp_path: Path) -> None:
    file = tmp_path / "user.py"
    file.write_text("def outer():\n    return inner()\n\ndef inner():\n    return sorted(1)\n")
    names: dict = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    with pytest.raises(TypeError) as caught:
        names["outer"]()
    assert user_frame(caught.value, file) == (5, "return sorted(1)")
    assert where_of(caught.value, file) == f"{file}:5\nreturn sorted(1)"
    try:
        raise RuntimeError("wrapped") from caught.value
    except RuntimeError as wrapped:
        assert user_frame(wrapped, file)[0] == 5
    told = ValueError(f'trace\n  File "{file}", line 2, in outer\n    return inner()')
    assert user_frame(told, file) == (2, "return inner()")
    assert user_frame(ValueError("x"), file) == (0, "") and user_frame(told, None) == (0, "")
    assert place(None) == "" and place(file) == str(file)


@pytest.mark.parametrize("options", [
    {"target": "opencl"}, {"precision": "loose"}, {"effort": "none"}, {"seed": -1}, {"seed": 2**63}, {"seed": True},
    {"threads": 0}, {"threads": 2.0}, {"force": 1}, {"output": "a.txt"},
    {"report": "a.txt"}, {"report": 3}, {"trace": "a.html"}, {"dtypes": "int8"}, {"dtypes": "half,"},
    {"dtypes": ("float16", "float16")}, {"dtypes": 3},
    {"embed": "znver4"}, {"embed": "x86-64-v3,"}, {"embed": 3}], ids=str)
def test_invalid_option(options: dict) -> None:
    with pytest.raises(errors.InvalidOption) as caught:
        Settings(**options)
    assert f"--{next(iter(options))}" in caught.value.what


def test_settings_defaults_and_output() -> None:
    chosen = Settings(output="x_new.py")
    assert chosen.output == Path("x_new.py") and chosen.as_json()["output"] == "x_new.py"
    assert Settings().as_json() == {"target": "auto", "precision": "match", "contractions": "auto",
                                    "effort": "normal", "force": False, "refresh": False,
                                    "quiet": False, "json": False, "output": None, "seed": 0, "threads": None,
                                    "baselines": "compile", "tiny": False, "model": None, "budget": None,
                                    "launch": "auto", "report": None, "trace": None, "embed": False, "dynamic": [],
                                    "dtypes": []}
    assert Settings(report="page.html").report == Path("page.html")


def test_output_folder_missing_file_and_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_output(tmp_path / "new.py", force=False)
    with pytest.raises(errors.OutputFolderUnusable, match="does not exist"):
        check_output(tmp_path / "no" / "new.py", force=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.OutputFolderUnusable, match="is a file"):
        check_output(tmp_path / "file" / "new.py", force=True)
    # The administrator may write everywhere, so the answer of the system is replaced here.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(errors.OutputFolderUnusable, match="may not be written to"):
        check_output(tmp_path / "new.py", force=True)


def test_output_exists(tmp_path: Path) -> None:
    file = tmp_path / "new.py"
    file.write_text("")
    with pytest.raises(errors.OutputExists) as caught:
        check_output(file, force=False)
    assert "--force" in caught.value.fix
    check_output(file, force=True)


def test_unsupported_version() -> None:
    check_versions("2.11.0+cu130")
    check_versions("3.0.0a0+git123")
    with pytest.raises(errors.UnsupportedVersion, match=r"PyTorch 2\.4"):
        check_versions("2.4.1")
    with pytest.raises(errors.UnsupportedVersion, match=r"Python 3\.9\.1"):
        check_versions("2.13.0", (3, 9, 1))


def test_cache_folder_and_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == tmp_path
    monkeypatch.setenv("KERNELWRIGHT_CACHE", "")
    assert cache_folder() == Path("/somewhere/kernelwright")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "kernelwright"
    monkeypatch.setenv("CXX", "clang++")
    assert settings.CXX.read() == "clang++"


def test_colour_only_on_terminals_and_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert settings.colour_allowed(Terminal()) and not settings.colour_allowed(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not settings.colour_allowed(Terminal())


def test_note_is_not_an_error() -> None:
    assert errors.NO_CUDA_COMPILER.render().startswith("note KWN01: ")
