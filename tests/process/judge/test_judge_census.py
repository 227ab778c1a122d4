"""Whether results need a candidate's own kernels: PyTorch's operators of a call are run without them."""

from __future__ import annotations

import base64
import subprocess
import textwrap
from types import SimpleNamespace

import pytest

from kernelwright.judge.check import own_share
from kernelwright.judge.check.own_share import are_needed
from kernelwright.judge.worker.process import Worker
from kernelwright.judge.worker.remote import RemoteCandidate
from kernelwright.problem.load import load_problem

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.relu(self.linear(x))

def get_inputs():
    return [torch.rand(16, 24)]

def get_init_inputs():
    return [24]
"""

#: A library of the candidate's own: clamping from below and from above in place, a copy, the first number.
SOURCE = """
extern "C" void relu(float* x, long n) { for (long i = 0; i < n; ++i) if (x[i] < 0) x[i] = 0; }
extern "C" void copy(const float* x, float* y, long n) { for (long i = 0; i < n; ++i) y[i] = x[i]; }
extern "C" void below(float* x, float most, long n) { for (long i = 0; i < n; ++i) if (x[i] > most) x[i] = most; }
extern "C" double first(const float* x) { return x[0]; }
"""

HEAD = '''
import base64, ctypes
from pathlib import Path
import numpy as np
import torch
from torch import nn

Path("own.so").write_bytes(base64.b64decode("LIBRARY"))
OWN = ctypes.CDLL(str(Path("own.so").absolute()))
OWN.first.restype = ctypes.c_double

def at(t):
    return ctypes.c_void_p(t.data_ptr())

def size(t):
    return ctypes.c_long(t.numel())

KEPT = torch.zeros(24)

@torch.library.custom_op("own_share_test::relu", mutates_args=())
def custom(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    OWN.relu(at(y), size(y))
    return y

class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.zeros = torch.zeros(width)
        self.work = torch.zeros(16, width)
        self.weight = torch.zeros(width, width)
        self.register_buffer("table", torch.zeros(16, width))

    def forward(self, x):
'''

#: Candidates by name: the lines of their forward, and whether an own kernel is needed (None: not known).
CANDIDATES = {
    "ghost": ("small = torch.zeros(8); OWN.relu(at(small), size(small)); return torch.relu(self.linear(x))", False),
    "ghost_on_a_copy": ("y = torch.relu(self.linear(x)); z = y.clone(); OWN.below(at(z), ctypes.c_float(0), size(z)); "
                        "return y", False),
    "ghost_beside_constants": ("small = x * 2; OWN.relu(at(small), size(small)); "
                               "return torch.relu(self.linear(x) + self.zeros) + KEPT", False),
    "ghost_in_kept_memory": ("OWN.copy(at(x), at(self.work), size(x)); self.table.add_(1); "
                             "return torch.relu(self.linear(x))", False),
    "ghost_custom_operator": ("custom(x); return torch.relu(self.linear(x))", False),
    "ghost_of_no_effect": ("y = torch.relu(self.linear(x)); OWN.relu(at(y), size(y)); return y", False),
    "in_place": ("y = self.linear(x); OWN.relu(at(y), size(y)); return y", True),
    "into_empty": ("y = self.linear(x); z = torch.empty_like(y); OWN.copy(at(y), at(z), size(y)); "
                   "return torch.relu(z)", True),
    "through_kept_memory": ("OWN.copy(at(x.contiguous()), at(self.work), size(x)); "
                            "return torch.relu(self.linear(self.work[:len(x)]))", True),
    "through_a_buffer": ("OWN.copy(at(x.contiguous()), at(self.table), size(x)); "
                         "return torch.relu(self.linear(self.table[:len(x)]))", True),
    "parameters_through_kept_memory": ("OWN.copy(at(self.linear.weight), at(self.weight), size(self.weight)); "
                                       "return torch.relu(x @ self.weight.T + self.linear.bias)", True),
    "custom_operator": ("return custom(self.linear(x))", True),
    "numpy": ("y = self.linear(x); n = y.numpy(); np.maximum(n, 0, out=n); return torch.from_numpy(n)", True),
    # Large numbers only are changed, which the problem's own inputs do not have.
    "seldom": ("y = torch.relu(self.linear(x)); OWN.below(at(y), ctypes.c_float(1e2), size(y)); return y", True),
    # A number that an own kernel returns looks like a constant, unless it changes.
    "number": ("first = OWN.first(at(x)); return torch.relu(self.linear(x)) + (0.5 * x[0, 0] - 0.5 * first)", None),
    # Kernels that need tensors' memory step back where operators are recorded, as those of files that we write do.
    "otherwise_where_recorded": ("y = self.linear(x)\nif torch._C._len_torch_dispatch_stack(): return torch.relu(y)\n"
                                 "OWN.relu(at(y), size(y)); return y", None),
    "read": ("y = torch.relu(self.linear(x)); return y if float(y.sum()) > 0 else y * 1", None),
}


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    path = tmp_path_factory.mktemp("problem") / "model.py"
    path.write_text(MODEL)
    return load_problem(path, device="cpu")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    source = tmp_path_factory.mktemp("library") / "own.cpp"
    source.write_text(SOURCE)
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", str(source), "-o", str(source.with_suffix(".so"))], check=True)
    # In the candidate's text: its process may not read files of others.
    return base64.b64encode(source.with_suffix(".so").read_bytes()).decode()


@pytest.mark.parametrize("name", CANDIDATES)
def test_need(problem, library, tmp_path, name):
    """Only what PyTorch's operators do alone on every kind of inputs is called not needed."""
    lines, needed = CANDIDATES[name]
    path = tmp_path / f"{name}.py"
    path.write_text(HEAD.replace("LIBRARY", library) + textwrap.indent(lines, " " * 8) + "\n")
    with Worker(path, problem.device) as worker:
        RemoteCandidate(worker, problem, 0, True)
        assert are_needed(worker, problem) is needed


def test_what_something_else_did_to_a_profile_makes_no_ghost(tmp_path, monkeypatch):
    """Its operators took long in a profile or two, which says nothing of its own kernels."""
    (tmp_path / "candidate.py").write_text("import ctypes")
    worker = SimpleNamespace(candidate=tmp_path / "candidate.py")
    disturbed, usual = ({"aten::empty": (seconds, 5)} for seconds in (1.0, 1e-6))
    for profiles, share in (([disturbed, disturbed, usual], 1.0), ([disturbed] * own_share.ATTEMPTS, 0.0)):
        waiting = list(profiles)
        monkeypatch.setattr(own_share, "_tables", lambda *_, waiting=waiting: ({}, waiting.pop(0), 1e-2))
        found = own_share._profiled(worker, SimpleNamespace(device=SimpleNamespace(type="cpu")))
        assert found.own_share == pytest.approx(share, abs=0.01) and not waiting
