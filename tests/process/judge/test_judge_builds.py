"""Extensions of candidates are built once for each text, and nobody can plant one for somebody else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import kernelwright
from kernelwright.judge.check import builds, precompiled
from kernelwright.judge.check.builds import attach, can_be_kept, prebuild
from kernelwright.judge.inside.builds import key_of
from kernelwright.judge.sandbox import landlock
from kernelwright.judge.sandbox.limits import Limits
from kernelwright.judge.worker.process import Worker
from kernelwright.judge.worker.remote import CandidateRaised, RemoteCandidate
from kernelwright.problem import Problem
from kernelwright.problem.load import load_problem

CPU = torch.device("cpu")
PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return x * 3

def get_inputs():
    return [torch.ones(2)]
"""
#: A candidate whose extension gives a number; without PyTorch's headers, which take half a minute.
CANDIDATE = '''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <Python.h>
static PyObject* number(PyObject*, PyObject*) {{ return PyLong_FromLong({number}); }}
static PyMethodDef methods[] = {{{{"number", number, METH_NOARGS, ""}}, {{nullptr, nullptr, 0, nullptr}}}};
static PyModuleDef definition = {{PyModuleDef_HEAD_INIT, "{name}", nullptr, -1, methods}};
PyMODINIT_FUNC PyInit_{name}() {{ return PyModule_Create(&definition); }}
"""
built = load_inline("{name}", SOURCE, no_implicit_headers=True{options})
{after}

class ModelNew(nn.Module):
    def forward(self, x):
        return x * built.number()
'''


def candidate(file: Path, number: str = "3", name: str = "numbers", options: str = "", after: str = "") -> Path:
    """The file, written."""
    file.write_text(CANDIDATE.format(number=number, name=name, options=options, after=after))
    return file


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A cache of its own; what was built on the judge's side, in order."""
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "cache"))
    asked: list[dict[str, Any]] = []

    class Counted(Worker):
        def request(self, kind: str, payload: dict[str, Any], **how: Any) -> dict[str, Any]:
            if kind == "compile":
                asked.append(payload)
            return super().request(kind, payload, **how)

    monkeypatch.setattr(builds, "Worker", Counted)
    return asked


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    """Three times the input."""
    (tmp_path / "problem.py").write_text(PROBLEM)
    return load_problem(tmp_path / "problem.py")


def result(file: Path, problem: Problem) -> tuple[float, set[str]]:
    """What a candidate with its libraries gives for 1, and what stands where its own process would have built."""
    libraries = prebuild(file, file.read_text(), CPU, Limits())
    with Worker(file, CPU) as worker:
        attach(libraries, worker)
        remote = RemoteCandidate(worker, problem, 0, True)
        given = float(remote(*problem.make_inputs(1))[0])
        return given, {path.name for path in (worker.folder / "build").rglob("*")}


def libraries_in(folder: Path) -> Iterator[str]:
    """Hashes of what the cache holds."""
    return (hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.rglob("*.so")))


def test_one_text_is_built_once_and_not_by_the_candidates_process(tmp_path: Path, problem: Problem,
                                                                   compiled: list[dict[str, Any]]) -> None:
    for name in ("first.py", "second.py"):
        given, built = result(candidate(tmp_path / name), problem)
        assert given == 3 and "numbers.so" in built and not built & {"build.ninja", "main.o"}
    assert len(compiled) == 1


def test_another_text_flag_or_name_is_another_library(tmp_path: Path, problem: Problem,
                                                      compiled: list[dict[str, Any]]) -> None:
    three = result(candidate(tmp_path / "a.py", "N", options=", extra_cflags=['-DN=3']"), problem)
    four = result(candidate(tmp_path / "b.py", "N", options=", extra_cflags=['-DN=4', '-O2']"), problem)
    five = result(candidate(tmp_path / "c.py", "5"), problem)  # of the same name
    other = result(candidate(tmp_path / "d.py", "5", name="others"), problem)
    assert [given for given, _ in (three, four, five, other)] == [3, 4, 5, 5] and len(compiled) == 4
    assert len({key_of(request) for request in compiled}) == 4


def test_what_a_candidate_writes_reaches_no_other(tmp_path: Path, problem: Problem, compiled: list[dict[str, Any]]
                                                  ) -> None:
    """The first overwrites every library that it can find, in its folder and in the cache."""
    cache = tmp_path / "cache"
    honest = candidate(tmp_path / "honest.py")
    hostile = candidate(tmp_path / "hostile.py", after=f"""
import pathlib
if not isinstance(built, type(torch)) or hasattr(built, "__file__"):
    here = pathlib.Path(built.__file__).parents[2]
    (here / "build" / "attacked").touch()
    for place in (here, pathlib.Path({str(cache)!r})):
        try:
            for file in place.rglob("*.so"):
                file.unlink()
                file.write_bytes(b"planted")
        except OSError as error:
            print(error)
""")
    assert result(honest, problem)[0] == 3
    before = list(libraries_in(cache))
    assert len(before) == 1
    assert "attacked" in result(hostile, problem)[1]
    if landlock.version():
        assert list(libraries_in(cache)) == before
        assert result(honest, problem)[0] == 3 and len(compiled) == 1


def test_a_request_that_a_candidate_makes_up_is_built_under_its_own_text(tmp_path: Path, problem: Problem,
                                                                         compiled: list[dict[str, Any]]) -> None:
    """A candidate asks for a build of another text under the name of an honest one's extension."""
    forged = candidate(tmp_path / "forged.py", after="""
import os, tempfile
from torch.utils import cpp_extension
folder = tempfile.mkdtemp()
with open(os.path.join(folder, "main.cpp"), "w") as stream:
    stream.write(SOURCE.replace("(3)", "(666)"))
if not hasattr(built, "__file__"):
    cpp_extension._write_ninja_file_and_build_library(name="numbers", sources=[stream.name], with_cuda=False)
""")
    assert result(forged, problem)[0] == 3 and len(compiled) == 2
    assert result(candidate(tmp_path / "honest.py"), problem)[0] == 3 and len(compiled) == 2


@pytest.mark.skipif(not landlock.version(), reason="files may be read here")
def test_a_compiler_reads_nothing_that_the_candidate_may_not_read(tmp_path: Path, problem: Problem,
                                                                  compiled: list[dict[str, Any]]) -> None:
    (tmp_path / "secret").write_bytes(b"a secret of the judge")
    spy = candidate(tmp_path / "spy.py")
    spy.write_text(spy.read_text().replace("#include <Python.h>", "#include <Python.h>\n"
                                           f'asm(".incbin \\"{tmp_path / "secret"}\\"");'))
    with pytest.raises(CandidateRaised, match="Error building extension"):
        result(spy, problem)
    assert len(compiled) == 1 and not list(libraries_in(tmp_path / "cache"))


def test_what_a_compiler_refuses_is_left_to_the_candidates_process(tmp_path: Path, problem: Problem,
                                                                   compiled: list[dict[str, Any]]) -> None:
    wrong = candidate(tmp_path / "wrong.py", "three")
    for _ in range(2):
        with pytest.raises(CandidateRaised, match=r"three.* was not declared"):
            result(wrong, problem)
    assert len(compiled) == 1, "what was refused once is not tried again"


@pytest.mark.parametrize("options", ["", ", verbose=True"])
def test_what_a_compiler_refuses_is_told_however_it_is_asked(tmp_path: Path, options: str) -> None:
    """A verbose build prints the compiler's messages, and raises without them."""
    problem = tmp_path / "problem.py"
    problem.write_text(PROBLEM)
    file = candidate(tmp_path / "candidate.py", number="3 +", options=options)
    settings = kernelwright.JudgeSettings(target="cpp", time=False)
    (found,) = kernelwright.judge_files(problem, [file], settings).candidates
    assert found.verdict == "BUILD-COMPILE", found.reason
    assert "expected primary-expression" in found.reason


def test_a_text_that_is_not_unicode_is_built_by_the_candidates_process(tmp_path: Path, problem: Problem,
                                                                      compiled: list[dict[str, Any]]) -> None:
    """Through ``load``, which takes files as they are."""
    file = candidate(tmp_path / "bytes.py")
    lines = file.read_text().replace("import load_inline", "import load").split("\n")
    at = next(number for number, line in enumerate(lines) if line.startswith("built = "))
    lines[at:at + 1] = ["import os, tempfile", "folder = tempfile.mkdtemp()",
                        "with open(os.path.join(folder, 'numbers.cpp'), 'wb') as stream:",
                        "    stream.write(SOURCE.encode() + b'// \\xff\\n')",
                        "built = load('numbers', [stream.name], build_directory=folder)"]
    file.write_text("\n".join(lines))
    assert result(file, problem)[0] == 3 and compiled == []


def test_a_file_that_ends_while_it_is_imported_has_none(tmp_path: Path, compiled: list[dict[str, Any]]) -> None:
    file = candidate(tmp_path / "ends.py", after="import os; os._exit(3)")
    assert prebuild(file, file.read_text(), CPU, Limits()) == {} and compiled == []


def test_headers_are_precompiled_when_enough_was_built_with_the_same_flags(
        tmp_path: Path, problem: Problem, compiled: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small header of PyTorch's in the place of the one that takes half a minute."""
    monkeypatch.setattr(precompiled, "HEADER", "torch/headeronly/macros/Export.h")
    monkeypatch.setattr(precompiled, "WORTH", 2)

    def includes(number: int, flags: str = "'-O1'") -> Path:
        file = candidate(tmp_path / f"n{number}.py", str(number), options=f", extra_cflags=[{flags}]")
        file.write_text(file.read_text().replace("#include <Python.h>", f"#include <{precompiled.HEADER}>\n"
                                                 "#include <Python.h>"))
        return file

    assert result(includes(1), problem)[0] == 1 and compiled[0]["headers"] is None
    assert result(includes(2), problem)[0] == 2
    folder = Path(compiled[1]["headers"])
    assert folder.parent.parent == tmp_path / "cache" and (folder / f"{precompiled.HEADER}.gch").stat().st_size
    # Nobody reads the text again.
    (folder / precompiled.HEADER).write_text("#error this was to be precompiled\n")
    assert result(includes(3), problem)[0] == 3 and compiled[2]["headers"] == str(folder)
    assert result(includes(4, "'-O2'"), problem)[0] == 4 and compiled[3]["headers"] is None, "of other flags"


REQUEST = {"name": "x", "texts": {"main.cpp": "int x;", "cuda.cu": ""}, "cuda": False, "extra_cflags": [],
           "extra_cuda_cflags": [], "extra_ldflags": [], "extra_include_paths": []}


@pytest.mark.parametrize("flag", [
    "-O3", "-march=native", "-fopenmp", "-ffast-math", "-std=c++20", "-DNAME=1.5", "--use_fast_math", "-lineinfo",
    "-gencode=arch=compute_90a,code=sm_90a", "-gencode arch=compute_90,code=sm_90", "-Xptxas -O3", "-Wno-unused",
    "-O3 -g", "-Xcompiler -fopenmp", "-mavx2", "-lcublas"])
def test_flags_that_say_all(flag: str) -> None:
    assert can_be_kept({**REQUEST, "extra_cflags": [flag]})


@pytest.mark.parametrize("change", [
    *({"extra_cflags": [flag]} for flag in (
        "-I/tmp", "-include/tmp/x.h", "-include x.h", "@file", "-B/tmp", "-specs=x", "-fplugin=/tmp/x.so", "-L/tmp",
        "-Wl,-rpath,/tmp", "-Wa,-x", "-Wp,-x", "-fprofile-use=/tmp/x", "-wrapper x", "-DX=$(id)", "-DX='a b'", "-o x",
        "-x c", "/etc/passwd", "-ltorch;id", "-fdump-tree-all", "-ccbin=x", "-Xcompiler=-fplugin=/tmp/x")),
    {"extra_include_paths": ["/usr/include"]}, {"extra_ldflags": ["-L."]}, {"name": "../x"}, {"name": 3},
    {"texts": {"../main.cpp": ""}}, {"texts": {"main.o": ""}}, {"texts": {}}, {"texts": {"main.cpp": None}},
    {"cuda": 1}, {"extra_cuda_cflags": "-O3"}, {"more": 1}], ids=str)
def test_requests_that_name_something_else_are_left_to_the_candidates_process(change: dict[str, Any]) -> None:
    assert can_be_kept(REQUEST) and not can_be_kept({**REQUEST, **change})
