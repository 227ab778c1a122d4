"""Files for models with batched products, on a machine without a GPU: certified by emulation, and as eager is all
around; what loses when it is measured goes back to its operators."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from emitted_tools import write_problem

import kernelwright
from kernelwright import emulated
from kernelwright.capture.export import capture
from kernelwright.fuzz import product
from kernelwright.plan.kernels import BatchedProduct
from kernelwright.plan.lowering.fused import FUSED
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import Plan, TorchStep, Unrolled
from kernelwright.problem import load_problem
from kernelwright.report import render_text
from kernelwright.tune import regions

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the emulation is for machines without a GPU")

TEXT = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.decay = nn.Parameter(torch.randn(8, 32))
            self.b = nn.Parameter(torch.randn(16, 32, 8, 12))

        def forward(self, x):
            decay = (self.decay[:, -1:] - self.decay).sigmoid().t()[..., None]
            states = torch.einsum("blhn,blhp->bhpn", self.b[:x.shape[0]] * decay, x)
            y = torch.einsum("blhn,bhpn->blhp", self.b[:x.shape[0]], states) * 0.1
            return {line}

    def get_inputs():
        return [torch.randn(16, 32, 8, 32)]

    def get_init_inputs():
        return []
"""
LINES = {"stored": "torch.tanh(y + x).flatten(2)", "returned too": "(states, y)"}


def problem_of(folder: Path, name: str) -> Path:
    return write_problem(folder, "batched", TEXT.format(line=LINES[name]))


def test_batched_products_are_certified_by_emulation(tmp_path, monkeypatch):
    monkeypatch.setattr(emulated, "find_cuda_compiler", lambda: None)
    result = kernelwright.optimize(problem_of(tmp_path, "stored"), effort="quick", target="cuda")
    assert [k.kind for k in result.modes[0].kernels] == ["batched product"] * 2
    assert result.source.count("__launch_bounds__") == result.source.count("__global__") >= 2
    words = " ".join(render_text(result).split())
    assert "Checked by emulation" in words and "128 products of 32 x 12 and 12 x 32 matrices" in words
    assert "Stays with PyTorch" not in words


@pytest.mark.parametrize("name", LINES)
def test_files_are_as_eager_is(name, tmp_path):
    """Gradients, containers, strides and aliases too, and numbers of any scale."""
    made = product.make(problem_of(tmp_path, name), "cuda")
    assert made.runs_kernels()
    assert not [d for d in made.all_differences() if d.kind != "strides"]


def planned(folder: Path) -> Plan:
    problem = load_problem(problem_of(folder, "stored"), device="cpu")
    graph = capture(problem.make_model(0).eval(), tuple(problem.make_inputs(0)))
    return make_plan(graph, graph, fused_products=FUSED)


def test_a_product_that_loses_goes_back(tmp_path):
    """To its operators, which are planned one by one; the other one stays."""
    plan = planned(tmp_path)
    first, last = (steps for steps in regions.regions(plan) if isinstance(steps[0].kernel, BatchedProduct))
    form = regions._form(last, plan)
    assert not regions.losing_regions(plan, {form: {"kernels": 0.5, "torch": 1.0}})
    lost = regions.losing_regions(plan, {form: {"kernels": 1.5, "torch": 1.0}})
    assert set(lost) == set(last[0].covers) and all(isinstance(reason, Unrolled) for reason in lost.values())
    again = make_plan(plan.graph, plan.graph, lost, fused_products=FUSED)
    assert [s.kernel for s in again.kernels if isinstance(s.kernel, BatchedProduct)] == [first[0].kernel]
    assert [s.node.op for s in again.steps if isinstance(s, TorchStep) and s.node.kind == "linear"] == ["matmul"]
