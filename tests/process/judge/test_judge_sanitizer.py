"""Candidates under compute-sanitizer, by a stand-in that runs the process and prints reports as the tool's manual has
them: verdicts, limits, controls that are not seen, isolation under which it does not work, time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernelwright import judge_files
from kernelwright.judge.check import candidate, sanitized, sanitizer_tool
from kernelwright.judge.check.sanitized import is_wanted, with_sanitizer
from kernelwright.judge.check.sanitizer_tool import Sanitizer
from kernelwright.judge.records import CandidateResult, TriedShape
from kernelwright.judge.sandbox import isolation
from kernelwright.judge.sandbox.limits import Limits
from kernelwright.judge.settings import JudgeSettings
from kernelwright.problem.load import load_problem

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(columns))

    def forward(self, x):
        return x + self.bias


def get_inputs():
    return [torch.randn(7, 300)]


def get_init_inputs():
    return [300]
"""
CANDIDATE = MODEL.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(").replace(
    "        return x", "        print('rows', len(x), end='')\n        return x") + '''
SOURCE = """
__device__ float doubled(float x) { return x + x; }
__global__ void add(const float* x, float* y, int n) {
  __shared__ float row[32];
  __syncthreads();
  y[threadIdx.x] = doubled(x[threadIdx.x]);
}
"""
'''
#: A stand-in: it runs what it is given, says what the file beside it for its tool holds, and then sees the control.
STAND_IN = """#!{python}
import pathlib, subprocess, sys, time
here = pathlib.Path(__file__).resolve().parent
tool = sys.argv[sys.argv.index("--tool") + 1]
read = lambda name: (here / name).read_text() if (here / name).is_file() else ""
if read("refuses"):
    print("========= COMPUTE-SANITIZER\\n========= Error: " + read("refuses"), flush=True)
    sys.exit(1)
print("========= COMPUTE-SANITIZER", flush=True)
status = subprocess.call(sys.argv[sys.argv.index({python!r}):])
print(read(tool + ".txt"), flush=True)
if not read("blind"):
    print("========= Invalid __global__ write of size 4 bytes\\n=========     at kernelwright_control_" + tool
          + "(float *, int)+0x70 in faults.cu:8\\n=========", flush=True)
print("========= ERROR SUMMARY: 2 errors")
sys.exit(status)
"""
BEYOND = """
========= Invalid __global__ write of size 4 bytes
=========     at add(const float *, float *, int)+0x90
=========     by thread (44,0,0) in block (2,0,0)
=========     Access to 0x7f3b2fa00c00 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f3b2fa00000 of size 1,200 bytes
=========
"""
RACE = """
========= Error: Race reported between Write access at add(const float *, float *, int)+0x580 in cuda.cu:6
=========     and Read access at doubled(float)+0x890 in cuda.cu:3 [64 hazards]
=========
"""
WARNING = RACE.replace("Error:", "Warning:")
UNSET = """
========= Uninitialized __global__ memory read of size 4 bytes
=========     at doubled(float)+0x2a0
=========     by thread (0,0,0) in block (0,0,0)
=========
"""
OF_A_LIBRARY = BEYOND.replace("add(", "void at::native::vectorized_elementwise_kernel<(int)4>(")
PASSED = CandidateResult("x.py", "OK", "Passed.", shapes=(
    TriedShape("the problem's own", True), TriedShape("batch of 1", False), TriedShape("batch of 8", True),
    TriedShape("batch of 3", True)))
TOOLS = dict(sanitized._TOOLS)
Judge = Callable[..., CandidateResult]


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Judges a candidate's text by a stand-in for which the files given are there. Of the tools those named run."""
    place = tmp_path / "toolkit"
    place.mkdir()
    executable = place / "compute-sanitizer"
    executable.write_text(STAND_IN.format(python=sys.executable))
    executable.chmod(0o755)
    control = tmp_path / "control.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(control)], check=True, text=True,
                   input='extern "C" int kernelwright_control(const char*, float*, int) { return 0; }')
    (tmp_path / "model.py").write_text(MODEL)
    problem = load_problem(tmp_path / "model.py", device="cpu")
    tool = Sanitizer(executable, [isolation.available()] * 2)
    monkeypatch.setattr(sanitized, "find_sanitizer", lambda device: tool)
    monkeypatch.setattr(sanitized, "control_library", lambda device: control)

    def judged(tools: str, text: str = CANDIDATE, seconds: float = 300.0, sanitize: str = "auto",
               result: CandidateResult = PASSED, **said: str) -> CandidateResult:
        monkeypatch.setattr(sanitized, "_TOOLS", {n: TOOLS[n] for n in tools.split()})
        for name, words in said.items():
            (place / (name if name in ("refuses", "blind") else f"{name}.txt")).write_text(words)
        path = tmp_path / "candidate.py"
        path.write_text(text)
        return with_sanitizer(result, path, text, problem, 1, True, {}, Limits(),
                              JudgeSettings(sanitize=sanitize), seconds)

    judged.tool = tool  # type: ignore[attr-defined]
    return judged


def outcomes(result: CandidateResult) -> list[str]:
    return [run.outcome for run in result.sanitizer]


def test_memory_beyond_its_end_is_a_verdict_at_the_kernels_line(judge: Judge) -> None:
    found = judge("memcheck racecheck", memcheck=BEYOND)
    assert found.verdict == "WRONG-OUT-OF-BOUNDS" and outcomes(found) == ["found", "clean"] and not found.limits
    first = found.findings[0]
    assert first.kind == "out-of-bounds" and "add writes 4 bytes outside" in first.sentence and first.fix
    assert first.line is not None and CANDIDATE.splitlines()[first.line - 1].startswith("__global__ void add")
    assert "thread (44,0,0) of block (2,0,0)" in found.reason


def test_a_race_is_a_verdict_and_what_results_do_not_show_is_a_limit(judge: Judge) -> None:
    assert judge("racecheck", racecheck=RACE).verdict == "WRONG-RACE"
    found = judge("racecheck initcheck", racecheck=WARNING, initcheck=UNSET)
    assert found.verdict == "OK-BUT" and outcomes(found) == ["found", "found"]
    assert "doubled reads global memory that nothing has written" in found.limits[1]


def test_a_race_in_what_is_ordered_otherwise_is_a_limit(judge: Judge) -> None:
    """The tools take orders that they do not know, as by mbarriers, for races; memory beyond its end stays that."""
    text = CANDIDATE.replace("__syncthreads();", 'asm volatile("mbarrier.try_wait.shared.b64 p, [a], 0;");')
    found = judge("memcheck racecheck", text, racecheck=RACE)
    assert found.verdict == "OK-BUT" and outcomes(found) == ["clean", "found"]
    assert "does not know all of what orders memory there" in found.limits[0]
    assert judge("memcheck", text, memcheck=BEYOND).verdict == "WRONG-OUT-OF-BOUNDS"


def test_what_a_librarys_kernels_do_is_told(judge: Judge) -> None:
    found = judge("memcheck", memcheck=OF_A_LIBRARY)
    assert found.verdict == "OK" and outcomes(found) == ["clean"]
    assert "vectorized_elementwise_kernel" in found.sanitizer[0].words


def test_without_the_known_fault_nothing_is_said(judge: Judge) -> None:
    """A tool that sees nothing is no evidence, and where it was asked for a limit; each way of isolation is tried, once
    in a process. A fault that it does see counts all the same."""
    found = judge("memcheck racecheck", blind="yes")
    assert found.verdict == "OK" and outcomes(found) == ["unproven", "not-run"]
    assert "did not see the known fault" in found.sanitizer[1].words
    assert not judge.tool.ways  # type: ignore[attr-defined]
    limited = judge("memcheck", sanitize="on")
    assert limited.verdict == "OK-BUT" and "memcheck does not vouch for it" in limited.limits[0]


def test_a_tool_that_does_not_run_here_says_why(judge: Judge) -> None:
    found = judge("memcheck", refuses="Device not supported.")
    assert found.verdict == "OK" and outcomes(found) == ["unfinished"]
    assert "Device not supported" in found.sanitizer[0].words
    assert "Device not supported" in judge.tool.why  # type: ignore[attr-defined]


def test_a_fault_of_one_that_failed_is_told_beside_its_verdict(judge: Judge) -> None:
    broken = CandidateResult("x.py", "CRASH-DEVICE", "The candidate broke the device's context.")
    found = judge("memcheck", result=broken, memcheck=BEYOND, blind="yes")
    assert found.verdict == "CRASH-DEVICE" and found.reason == broken.reason
    assert [f.kind for f in found.findings] == ["out-of-bounds"]


def test_time_is_bounded_and_a_candidate_that_raises_is_seen(judge: Judge) -> None:
    slow = CANDIDATE.replace("import torch\n", "import time, torch\n", 1).replace("return x", "time.sleep(600)")
    found = judge("memcheck racecheck", slow, seconds=21.0)
    assert outcomes(found)[0] == "unfinished" and "did not end in its time" in found.sanitizer[0].words
    raising = judge("memcheck", CANDIDATE.replace("return x + self.bias", "raise ValueError('not here')"), blind="")
    assert outcomes(raising) == ["unfinished"] and "not here" in raising.sanitizer[0].words


def test_the_first_tool_sees_the_own_shapes_too(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}
    original = sanitized.observe

    def watched(command: list[str], *arguments: object, **named: object) -> object:
        found = original(command, *arguments, **named)  # type: ignore[arg-type]
        seen[command[2]] = found.printed
        return found

    monkeypatch.setattr(sanitized, "observe", watched)
    assert outcomes(judge("memcheck synccheck")) == ["clean", "clean"]
    assert ["rows 3" in seen[n] for n in ("memcheck", "synccheck")] == [True, True]
    assert ["rows 7" in seen[n] for n in ("memcheck", "synccheck")] == [True, False]


def test_text_says_what_there_is_to_look_at(judge: Judge) -> None:
    plain = CANDIDATE.replace("__shared__ float row[32];", "").replace("__syncthreads();", "")
    assert [run.tool for run in judge("racecheck synccheck initcheck", plain).sanitizer] == ["initcheck"]
    assert judge("memcheck", CANDIDATE.partition("SOURCE")[0]).sanitizer == ()  # it has no kernels


def test_without_the_tool_it_is_said(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitized, "find_sanitizer", lambda device: None)
    assert "neither beside nvcc nor on PATH" in judge("memcheck").sanitizer[0].words
    assert judge("memcheck", sanitize="on").verdict == "OK-BUT"


def test_inputs_that_are_too_large_are_left_out(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of three has 3,600 bytes, the problem's own seven rows have 8,400."""
    asked: list[int] = []
    monkeypatch.setattr(sanitized, "look", lambda looked, *_: (asked.append(sum(
        request.kind == "call-alone" for request in looked.requests)), ([], []))[1])
    for most in (8400, 3600):
        monkeypatch.setattr(sanitized, "MOST_BYTES", most)
        judge("memcheck")
    assert asked == [2, 1]
    monkeypatch.setattr(sanitized, "MOST_BYTES", 3599)
    found = judge("memcheck")
    assert outcomes(found) == ["not-run"] and "more than 0 MiB" in found.sanitizer[0].words and asked == [2, 1]


def test_who_is_looked_at() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    wrong = CandidateResult("x.py", "WRONG-NUMERIC", "")
    asked = [is_wanted(result, settings, device) for result, settings, device in (
        (PASSED, JudgeSettings(), gpu), (PASSED, JudgeSettings(), cpu), (wrong, JudgeSettings(), gpu),
        (PASSED, JudgeSettings(sanitize="off"), gpu), (PASSED, JudgeSettings(verdict_only=True), gpu),
        (PASSED, JudgeSettings(verdict_only=True, sanitize="on"), gpu))]
    assert asked == [True, False, False, False, False, True]


def test_it_is_found_beside_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bin/nvcc", "compute-sanitizer/compute-sanitizer", "elsewhere/compute-sanitizer"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("NVCC", str(tmp_path / "bin" / "nvcc"))
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    find = sanitizer_tool.find_sanitizer.__wrapped__
    found = find(torch.device("cpu"))
    assert found is not None and found.executable == tmp_path / "compute-sanitizer" / "compute-sanitizer"
    monkeypatch.setenv("NVCC", str(tmp_path / "nothing"))
    found = find(torch.device("cpu"))
    assert found is not None and found.executable.parent.name == "elsewhere"


def test_who_has_a_fault_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes is looked at before it is timed; what does not is never looked at."""
    asked: list[str] = []

    def refuse(result: CandidateResult, path: Path, *_: object) -> CandidateResult:
        asked.append(path.stem)
        return replace(result, verdict="WRONG-RACE")

    monkeypatch.setattr(candidate, "is_wanted", lambda result, settings, device: is_wanted(
        result, settings, torch.device("cuda")))
    monkeypatch.setattr(candidate, "with_sanitizer", refuse)
    right = CANDIDATE.partition("SOURCE")[0]
    for name, text in (("model", MODEL), ("right", right), ("wrong", right.replace("x + self", "x - 1 - self"))):
        (tmp_path / f"{name}.py").write_text(text)
    settings = JudgeSettings(target="cpp", effort="quick", seed=5, threads=1)
    found = judge_files(tmp_path / "model.py", [tmp_path / "right.py", tmp_path / "wrong.py"], settings)
    assert [c.verdict for c in found.candidates] == ["WRONG-RACE", "WRONG-NUMERIC"] and asked == ["right"]
    assert found.candidates[0].timing is None and "sanitize" in found.candidates[0].seconds and not found.ranking
