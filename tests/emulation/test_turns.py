"""Kernels that read what another one has written begin with what it wrote last, and give the same values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from graph_tools import leaf
from plan_tools import Of, planned
from test_loops_cuda import CASES, run_case, source_text

from kernelwright.codegen.cuda.emulation.compile import compile_emulated
from kernelwright.codegen.cuda.loops.generate import generate
from kernelwright.ir.node import Node, make
from kernelwright.plan import traversal
from kernelwright.plan.kernels import LoopKernel
from kernelwright.plan.records import KernelStep, TorchStep
from kernelwright.plan.traversal import alternating


def loop(name: str, inputs: tuple[Node, ...], output: Node) -> KernelStep:
    kernel = LoopKernel(output.shape, (), (), (), (), ("float32",) * len(inputs), ("float32",))
    return KernelStep(name, kernel, inputs, (output,), (output,))


def test_every_other_kernel_goes_backwards(monkeypatch):
    monkeypatch.setattr(traversal, "_LEAST_BYTES", 4 * 100)
    x, small = leaf("x", 10, 10), leaf("s", 10, 2)
    values = [x]
    for op in ("sin", "cos", "exp", "tanh", "sigmoid"):
        values.append(make(op, values[-1]))
    torch_call, less = make("relu", values[3]), make("exp", small)
    steps = [loop("k0_a", (x,), values[1]), loop("k1_b", (values[1],), values[2]),
             loop("k2_c", (values[2],), values[3]),
             TorchStep(torch_call), loop("k3_d", (torch_call, values[2]), values[4]), loop("k4_e", (small,), less),
             loop("k5_f", (less,), make("neg", less))]
    found = alternating(steps)
    assert [s.kernel.backwards for s in found if isinstance(s, KernelStep)] == [False, True, False, True, False, False]
    assert found[3] is steps[3]


def test_what_a_contraction_stores_is_read_backwards(monkeypatch):
    """A norm and a maximum behind a convolution: a pass for statistics, and one that goes the other way."""
    monkeypatch.setattr(traversal, "_LEAST_BYTES", 1)

    def model(self, x):
        return torch.nn.functional.group_norm(torch.sigmoid(self.conv(x)), 2).amax(1)

    plan = planned(Of(model, conv=torch.nn.Conv2d(4, 6, 3)), (torch.randn(2, 4, 9, 9),), reduces=False)
    assert [s.kernel.backwards for s in plan.kernels if isinstance(s.kernel, LoopKernel)] == [True, False]


@pytest.fixture(scope="module")
def libraries():
    """Every third loop kernel, forwards and backwards, in one library."""
    chosen = [case for case in CASES[::3] if case.kernel.outer]
    sources = [[generate(replace(case.kernel, backwards=b), f"{case.name}_{'backwards' if b else 'forwards'}")
                for b in (False, True)] for case in chosen]
    library = compile_emulated(source_text([one for both in sources for one in both]))
    return library, list(zip(chosen, sources, strict=True))


def test_backwards_is_another_order_of_the_same(libraries):
    library, made = libraries
    turned = 0
    for case, sources in made:
        first, second = (run_case(case, {case.name: (library, source)}) for source in sources)
        turned += "block_number = " in sources[1].definition
        for one, other in zip(first, second, strict=True):
            assert torch.equal(one.nan_to_num(nan=5.0), other.nan_to_num(nan=5.0)), case.name
    assert turned > 5
