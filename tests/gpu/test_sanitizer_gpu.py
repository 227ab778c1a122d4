"""compute-sanitizer itself on candidates with faults of each kind, on a GPU: what it finds, and that it works under the
judge's isolation at all. Without it, and where it does not work, the tests say why and are skipped.

    python -m pytest -m gpu tests/gpu/test_sanitizer_gpu.py -rA -s
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import kernelwright
from kernelwright.judge.check import sanitized, sanitizer_tool
from kernelwright.judge.check.sanitizer_tool import find_sanitizer
from kernelwright.judge.records import CandidateResult
from kernelwright.judge.worker.observed import Observed

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(columns))

    def forward(self, x):
        return x.flip(1) + self.bias


def get_inputs():
    return [torch.randn(16, 128)]


def get_init_inputs():
    return [128]
"""
#: Each row is reversed through shared memory by 128 threads, four warps. All cases have one text, which is built once.
CANDIDATE = PROBLEM.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(").replace(
    "return x.flip(1) + self.bias", "return extension.run(x.contiguous(), self.bias, FAULT)") + '''
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__global__ void reverse_rows(const float* x, const float* bias, float* y, const float* never, int rows, int fault) {
  __shared__ float row[128];
  const int t = threadIdx.x, at = blockIdx.x * 128 + t;
  row[t] = x[at];
  if (fault != 1) __syncthreads();
  float value = row[127 - t] + bias[t];
  if (fault == 2 && at == rows * 128 - 1 && x[at + 1] == 123.456f) value += 1e-30f;
  if (fault == 3 && never[t] == 123.456f) value += 1e-30f;
  y[at] = value;
}

torch::Tensor run(torch::Tensor x, torch::Tensor bias, int64_t fault) {
  auto y = torch::empty_like(x);
  auto never = torch::empty({128}, x.options());
  reverse_rows<<<x.size(0), 128, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(), never.data_ptr<float>(), x.size(0), fault);
  return y;
}
"""
extension = load_inline(name="reversed_rows", functions=["run"], cuda_sources=SOURCE, cpp_sources=
                        "torch::Tensor run(torch::Tensor x, torch::Tensor bias, int64_t fault);")
'''
#: By name: the verdicts that may come of it, and the tool that must find it. A race may be seen in results first; what
#: else is wrong is right in all of them.
CASES = {
    "right": (("OK",), ""),
    "no_barrier": (("WRONG-RACE", "WRONG-NUMERIC", "WRONG-NONDETERMINISTIC", "WRONG-STALE", "WRONG-DISTRIBUTION",
                    "WRONG-PARAMETERS"), "racecheck"),
    "beyond": (("WRONG-OUT-OF-BOUNDS",), "memcheck"), "never_written": (("OK-BUT",), "initcheck")}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CandidateResult]:
    """What the judge says of each case; what the tool printed is printed."""
    tool = find_sanitizer(torch.device("cuda", 0))
    if tool is None:
        pytest.skip("compute-sanitizer is neither beside nvcc nor on PATH")
    print(f"\n{tool.executable}, under {len(tool.ways)} ways of isolation: {tool.ways}")
    print("the known faults:", sanitizer_tool.control_library(torch.device("cuda", 0)))
    folder = tmp_path_factory.mktemp("sanitizer")
    (folder / "problem.py").write_text(PROBLEM)
    files = []
    for number, name in enumerate(CASES):
        files.append(folder / f"{name}.py")
        files[-1].write_text(f"FAULT = {number}\n{CANDIDATE}")
    original = sanitized.observe

    def shown(command: list[str], candidate: Path, *arguments: object, **named: object) -> Observed:
        found = original(command, candidate, *arguments, **named)  # type: ignore[arg-type]
        print(f"\n---- {candidate.stem}, {command[2]}: {found.done} requests done, status {found.status} {found.why}, "
              f"{found.seconds:.1f} s; {found.isolation}\n{found.printed[-3000:]}")
        return found

    patch = pytest.MonkeyPatch()
    patch.setattr(sanitized, "observe", shown)
    try:
        settings = kernelwright.JudgeSettings(effort="normal", target="cuda", time=False, sanitize="auto", seed=3)
        found = kernelwright.judge_files(folder / "problem.py", files, settings)
    finally:
        patch.undo()
    for candidate in found.candidates:
        print(json.dumps({"file": Path(candidate.file).stem, "verdict": candidate.verdict, "reason": candidate.reason,
                          "sanitizer": candidate.to_json()["sanitizer"]}, indent=1))
    if not tool.works:
        pytest.skip(tool.why)
    return {Path(candidate.file).stem: candidate for candidate in found.candidates}


@pytest.mark.parametrize("name", CASES)
def test_faults_are_found_by_their_tools(judged: dict[str, CandidateResult], name: str) -> None:
    found, (verdicts, tool) = judged[name], CASES[name]
    assert found.verdict in verdicts, found.reason
    outcomes = {run.tool: run.outcome for run in found.sanitizer}
    if not outcomes and found.verdict.startswith("WRONG"):
        return  # its results have shown it, and no tool was asked
    assert set(outcomes) == {"memcheck", "racecheck", "synccheck", "initcheck"}
    assert all(outcome == ("found" if it == tool else "clean") for it, outcome in outcomes.items()), found.sanitizer
    if tool:
        assert any("reverse_rows" in run.words for run in found.sanitizer if run.outcome == "found")
