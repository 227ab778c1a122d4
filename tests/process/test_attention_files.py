"""Files for models with attention, on a machine without a GPU: certified by emulation, and as eager is all around."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from emitted_tools import write_problem

import kernelwright
from kernelwright import emulated
from kernelwright.capture.export import capture
from kernelwright.failures import FAILED
from kernelwright.fuzz import product
from kernelwright.plan.lowering.fused import FUSED
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelStep, Plan, Unrolled
from kernelwright.problem import load_problem
from kernelwright.report import render_text
from kernelwright.tune import regions

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the emulation is for machines without a GPU")

TEXT = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.outside = nn.Linear(24, 72), nn.Linear(24, 24)
            self.bias = nn.Parameter(torch.randn(4, 48, 48))
            self.register_buffer("mask", torch.ones(48, 48, dtype=torch.bool).tril(2))

        def forward(self, x):
            q, k, v = (part.view(*x.shape[:2], 4, 6).transpose(1, 2) for part in self.inside(x).chunk(3, -1))
            {line}
            return x + self.outside(y.transpose(1, 2).flatten(2))

    def get_inputs():
        return [torch.randn(3, 48, 24)]

    def get_init_inputs():
        return []
"""
LINES = {
    "PyTorch's": "y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)",
    "PyTorch's, causal": "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "by hand": "y = torch.softmax((q @ k.mT * 0.4 + self.bias).masked_fill(~self.mask, float('-inf')), -1) @ v",
    "without a softmax": "y = torch.relu(q @ k.mT * 0.1) @ v",
}


def narrow_problem(folder: Path, name: str, dtype: str) -> Path:
    """The problem in 16 bits."""
    text = TEXT.format(line=LINES[name]).replace("def forward", f"    self.to(torch.{dtype})\n\n        def forward") \
        .replace("torch.randn(3, 48, 24)", f"torch.randn(3, 48, 24).to(torch.{dtype})")
    return write_problem(folder, "narrow", text)


def problem_of(folder: Path, name: str) -> Path:
    return write_problem(folder, "attentive", TEXT.format(line=LINES[name]))


@pytest.mark.parametrize("name", ["PyTorch's, causal", "by hand"])
def test_attention_is_certified_by_emulation(name, tmp_path, monkeypatch):
    monkeypatch.setattr(emulated, "find_cuda_compiler", lambda: None)
    result = kernelwright.optimize(problem_of(tmp_path, name), effort="quick", target="cuda")
    assert [k.kind for k in result.modes[0].kernels] == ["attention"]
    assert "no product is stored" in result.modes[0].kernels[0].meaning
    assert "static __global__" in result.source and "attention_core" in result.source
    words = " ".join(render_text(result).split())
    assert "Checked by emulation" in words and "with gradients" in words and "attention" in words
    assert ("causal softmax" in words) == (name == "PyTorch's, causal")


@pytest.mark.parametrize("name", LINES)
def test_files_are_as_eager_is(name, tmp_path):
    """Gradients, containers, strides and aliases too, and numbers of any scale."""
    made = product.make(problem_of(tmp_path, name), "cuda")
    assert made.runs_kernels()
    assert not [d for d in made.all_differences() if d.kind != "strides"]


@pytest.mark.parametrize("name", ["PyTorch's", "by hand"])
def test_files_of_the_host_are_as_eager_is(name, tmp_path):
    """Kernels of C++: PyTorch's mask of truth values, and a bias with one besides."""
    made = product.make(problem_of(tmp_path, name))
    assert [kernel.kind for mode in made.modes for kernel in mode.kernels].count("attention") and not made.given_up
    assert not [d for d in made.all_differences() if d.kind != "strides"]


@pytest.mark.parametrize(("name", "dtype"), [("PyTorch's, causal", "bfloat16"), ("by hand", "float16")])
def test_attention_in_16_bits_is_certified_by_emulation(name, dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(emulated, "find_cuda_compiler", lambda: None)
    result = kernelwright.optimize(narrow_problem(tmp_path, name, dtype), effort="quick", target="cuda")
    assert "attention" in [k.kind for k in result.modes[0].kernels]
    assert "Checked by emulation" in " ".join(render_text(result).split())
    assert f"in {dtype}" in " ".join(k.meaning for k in result.modes[0].kernels)
    assert "kw_copy_16" in result.source or "kw_shared_written" in result.source


@pytest.mark.breaks
def test_attention_that_nvcc_refuses_stays_pytorch_s(tmp_path, monkeypatch):
    """What compiles is kept beside it, and a note says what the compiler said."""
    refusal = "ptxas fatal   : (C7602) Insufficient registers (128) to compile instruction"
    monkeypatch.setattr(emulated, "_emulated", lambda problem, modes, *_: (modes, []))
    monkeypatch.setattr(emulated, "find_cuda_compiler", lambda: "nvcc")
    monkeypatch.setattr(emulated, "compile_cuda", lambda text: refusal if "attention_core" in text else "")
    result = kernelwright.optimize(narrow_problem(tmp_path, "by hand", "bfloat16"), effort="quick", target="cuda")
    kinds = [k.kind for k in result.modes[0].kernels]
    assert kinds and "attention" not in kinds and "attention_core" not in result.source
    assert any(FAILED in note and refusal in note for note in result.notes), result.notes


# Measured, and lost ------------------------------------------------------------------------------------


def planned(path: Path) -> Plan:
    problem = load_problem(path, device="cpu")
    graph = capture(problem.make_model(0).eval(), tuple(problem.make_inputs(0)))
    return make_plan(graph, graph, fused_products=FUSED)


@pytest.mark.parametrize("name", LINES)
def test_attention_that_loses_goes_back(name, tmp_path):
    """By hand to its operators, which are planned one by one; PyTorch's to its own call."""
    plan = planned(problem_of(tmp_path, name))
    (attention,) = (steps for steps in regions.regions(plan) if any(s.name.endswith("attention") for s in steps))
    form, step = regions._form(attention, plan), attention[0]
    assert not regions.losing_regions(plan, {form: {"kernels": 0.5, "torch": 1.0}})
    lost = regions.losing_regions(plan, {form: {"kernels": 1.5, "torch": 1.0}})
    assert set(lost) == set(step.covers)
    assert all(isinstance(reason, Unrolled) == step.rolls for reason in lost.values())
    again = make_plan(plan.graph, plan.graph, lost, fused_products=FUSED)
    assert not any(s.name.endswith("attention") for s in again.kernels)
    left = [s.node for s in again.steps if not isinstance(s, KernelStep)]
    assert any("attention" in n.get("target", "") for n in left) == name.startswith("PyTorch's")


def test_attention_in_16_bits_that_was_not_measured_stays_pytorch_s(tmp_path):
    """Where it was, it is kept by what it takes, as any other is."""
    plan = planned(narrow_problem(tmp_path, "PyTorch's, causal", "bfloat16"))
    (attention,) = (steps for steps in regions.regions(plan) if any(s.name.endswith("attention") for s in steps))
    form = regions._form(attention, plan)
    covered = {n for s in attention for n in s.covers}
    assert set(regions.losing_regions(plan, {})) == set(regions.losing_regions(plan, {form: {
        "kernels": 1.5, "torch": 1.0}})) == covered
    assert not covered & set(regions.losing_regions(plan, {form: {"kernels": 0.5, "torch": 1.0}}))
