"""Models whose contractions become kernels, and their plans: checked in float64, and taken apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from graph_tools import assert_same, eager, filled, run_plan, values_of
from torch import nn

from kernelwright.capture.export import capture
from kernelwright.plan.contraction.products import can_contract
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelConfig, KernelStep, Plan


def planned(model: nn.Module, inputs: tuple[Any, ...], scheme: str = "fp16x3", *, move_bias: bool = True,
            reduces: bool = True, lines: bool = True, recompute: bool = False) -> Plan:
    """The plan with every contraction as a kernel, checked against the module in float64. reduces, lines: what joins
    them, as in `KernelConfig`. recompute: those that can be are."""
    graph = capture(model, inputs)
    choice = KernelConfig(scheme, reduces=reduces, lines=lines, recompute=KernelConfig(scheme, lines=lines)
                          if recompute else None)
    chosen = {n: choice for n in graph.nodes() if can_contract(n)}
    plan = make_plan(graph, graph, move_bias=move_bias, contractions=chosen)
    double = tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)
    expected, buffers = eager(model.double(), double)
    torch.manual_seed(0)
    with torch.no_grad():
        found, after = run_plan(plan, values_of(model, graph, double))
    assert_same(filled(graph.structure, found), expected, 1e-9)
    for name, tensor in buffers.items():
        assert_same(after[name], tensor, 1e-9, f"buffer {name}")
    for step in plan.kernels:
        if isinstance(step.kernel, Contraction):
            assert step.kernel.input_dtypes == tuple(n.dtype for n in step.inputs)
            assert all(len(s.index.strides) == len(step.kernel.domain) for s in step.kernel.stores)
    return plan


def contractions(plan: Plan) -> list[Contraction]:
    return [s.kernel for s in plan.kernels if isinstance(s.kernel, Contraction)]


def kinds(plan: Plan) -> list[str]:
    return [type(s.kernel).__name__ if isinstance(s, KernelStep) else s.node.op for s in plan.steps]


class Of(nn.Module):
    """A module around a function of (module, inputs...), with tensors and modules as given."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, value in parts.items():
            setattr(self, name, nn.Parameter(value) if isinstance(value, torch.Tensor) else value)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def narrow_plan(function: Callable[..., Any], dtype: torch.dtype, *shapes: tuple[int, ...], lines: bool = True,
                **parts: Any) -> Plan:
    model = Of(function, **parts).to(dtype)
    graph = capture(model, tuple(torch.randn(s).to(dtype) for s in shapes))
    chosen = {n: KernelConfig("native", lines=lines) for n in graph.nodes() if can_contract(n)}
    assert chosen
    return make_plan(graph, graph, contractions=chosen)
