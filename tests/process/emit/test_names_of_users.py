"""Names of parameters, buffers and arguments never meet names of C, of CUDA, of Python or of the emitted file."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import kernelwright
from kernelwright.build.emulation import load_emulated
from kernelwright.build.module import load_text
from kernelwright.codegen.generate import TARGETS
from kernelwright.emit.file import kernel_source
from kernelwright.emit.launcher import ascii_word, c_name
from kernelwright.problem import load_problem
from kernelwright.programs import Stages, emitted_text, new_model, understand
from kernelwright.progress import Progress
from kernelwright.roofline.devices import GENERIC_CPU
from kernelwright.settings import Settings

PARAMETERS = ["M_PI", "NULL", "errno", "stdin", "main", "int", "template", "kw_tanh", "blockIdx", "float4",
              "__restrict__", "π", "größe", "torch", "inputs", "self_", "lambda", "a_b", "A_b", "_kernelwright_launch",
              "t1_view", "print", "real", "workspace", "linux", "x" * 200]
BUFFERS = ["RAND_MAX", "a_c", "INFINITY", "tensors"]


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.full((6,), 2.0))
        self.register_buffer("c", torch.full((6,), 3.0))


class Model(nn.Module):
    """Every name once; ``a.b`` and ``a_b``, ``a.c`` and ``a_c`` are other tensors. The buffers are updated."""

    def __init__(self):
        super().__init__()
        for number, name in enumerate(PARAMETERS):
            setattr(self, name, nn.Parameter(torch.full((6,), float(number + 1))))
        for number, name in enumerate(BUFFERS):
            self.register_buffer(name, torch.full((6,), 1.0 + number))
        self.a = Inner()

    def forward(self, errno, float, stream):
        y = (errno * float).relu() + stream
        for name in PARAMETERS:
            y = y + getattr(self, name)
        z = y.detach().mean(0)
        for name in BUFFERS:
            getattr(self, name).add_(z)
        self.a.c.mul_(z)
        return y * self.a.b, (errno + self.RAND_MAX).sum(1) + (self.a.c * self.a_c).sum()


@pytest.mark.parametrize("target", ["cpp", "cuda"])
def test_names(target):
    inputs = [torch.randn(5, 6, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    problem = load_problem(Model(), inputs)
    modes, _ = understand(problem, inputs, GENERIC_CPU, Settings(), Stages(Progress()))
    text, parts = emitted_text(problem, modes, inputs, target, GENERIC_CPU)
    kernels = kernel_source(*parts, target=TARGETS[target])
    emitted = load_text(text, "names") if target == "cpp" else load_emulated(text, kernels, "names")
    model, candidate = Model(), new_model(emitted, problem, 0)
    with torch.no_grad():
        for actual, expected in zip(candidate(*inputs), model(*inputs), strict=True):
            torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(candidate.state_dict(), model.state_dict())
    defined = re.findall(r"auto\* (\w+) = static_cast", kernels[kernels.index('extern "C"'):])
    assert any(name.startswith("M_PI") for name in defined)  # readers find their own names
    assert {name for name in defined if not re.search(r"_ptr$|_out[0-9]+$", name)} <= {"workspace"}


def test_c_names():
    assert ascii_word("größe.0") == "gr__e_0"
    assert c_name("M_PI") == "M_PI_ptr"


def test_buffers_of_modules_that_are_called_by_numbers_have_names_in_kernels():
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.SiLU(), nn.Linear(16, 4)).train()
    found = kernelwright.explain(model, inputs=(torch.randn(32, 8),), target="cpp", device=GENERIC_CPU)
    kernels = found.source[found.source.index("_KERNELWRIGHT_SOURCE = "):]
    assert "1_running_mean_out" in kernels and not re.search(r"(?<![\w.])\d+_[a-z]", kernels)
