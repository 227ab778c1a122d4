"""Candidates that end before there is anything to compare: the reason in words, and what would mend it."""

from __future__ import annotations

import pytest

from kernelwright.judge.check.refusals import failed, raised
from kernelwright.judge.reading import read_candidate
from kernelwright.judge.records import CandidateResult
from kernelwright.judge.worker.link import CandidateRaised
from kernelwright.judge.worker.process import WorkerFailure

PROBLEM = "from torch import nn\nclass Model(nn.Module):\n    def forward(self, x, residual):\n        return x\n"
TEXT = ("import torch\nfrom torch import nn\n_scale = torch.relu\nclass ModelNew(nn.Module):\n"
        "    def forward(self, x):\n        return scale(x)\n")
POINTERS = ("run(): incompatible function arguments. The following argument types are supported:\n    1. (arg0: "
            "torch.Tensor, arg1: int) -> torch.Tensor\n\nInvoked with: tensor([[1., 2., 3.]])")


def said(kind: str, message: str, line: int | None = None) -> CandidateResult:
    """The result of a forward that raises."""
    result = CandidateResult("candidate.py", "JUDGE-ERROR", "", findings=tuple(read_candidate(TEXT, PROBLEM)))
    return raised(result, CandidateRaised({"request": "call", "type": kind, "message": message, "traceback": "",
                                           "line": line}), TEXT)


@pytest.mark.parametrize(("kind", "message", "verdict", "fix"), [
    ("TypeError", "ModelNew.forward() takes 2 positional arguments but 3 were given", "CRASH-RAISED",
     "def forward(self, x, residual)"),
    ("NameError", "name 'scale' is not defined", "BUILD-INCOMPLETE", "is _scale meant?"),
    ("TypeError", POINTERS, "CRASH-RAISED", "(arg0: torch.Tensor, arg1: int)"),
    ("RuntimeError", "x must be a CUDA tensor", "CRASH-RAISED", "--target cuda"),
])
def test_what_python_says_gets_what_mends_it(kind, message, verdict, fix):
    found = said(kind, message)
    assert found.verdict == verdict and fix in found.fix, found.fix
    assert "Invoked with" not in found.reason and "tensor([[" not in found.reason


def test_other_hints_are_not_taken_for_the_cause():
    """The text also uses a name that it never defines; another name is missing here."""
    assert "_scale" not in said("AttributeError", "'ModelNew' object has no attribute 'other'").fix


@pytest.mark.parametrize(("verdict", "fix"), [("CRASH-SIGNAL", "beyond an array"), ("CRASH-TIMEOUT", "a loop"),
                                              ("CRASH-MEMORY", "Allocate less")])
def test_an_end_of_which_only_the_kind_is_known_gets_where_to_look(verdict, fix):
    result = CandidateResult("candidate.py", "JUDGE-ERROR", "")
    assert fix in failed(result, WorkerFailure(verdict, "It ended.", "", "run"), TEXT).fix


@pytest.mark.parametrize(("message", "printed", "verdict"), [
    ("Error building extension 'k'", "FAILED: cuda.cuda.o\nnvcc fatal   : Unsupported gpu architecture 'sm_70'\n",
     "BUILD-ARCHITECTURE"),
    ("Error building extension 'k'", "nothing of a compiler\n", "BUILD-IMPORT"),
    # What was printed on the way is no reason for another failure.
    ("no such shape", "nvcc fatal   : Unsupported gpu architecture 'sm_70'\n", "BUILD-IMPORT"),
])
def test_of_a_verbose_build_the_messages_are_among_what_was_printed(message, printed, verdict):
    result = CandidateResult("candidate.py", "JUDGE-ERROR", "")
    error = CandidateRaised({"request": "load", "type": "RuntimeError", "message": message, "traceback": "",
                             "line": None})
    assert raised(result, error, TEXT, printed).verdict == verdict
