"""Attention in bfloat16 and float16 in plans: what is one kernel, what its record says, and what stays as it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from graph_tools import run_plan, values_of
from test_attention_plan import CAUSAL, FOUND, ROWS, agrees, apart, attentions, heads, sdpa, together, turned
from test_planner import Of, kinds
from torch import nn

from kernelwright.capture.export import capture
from kernelwright.plan.expressions import Load, walk
from kernelwright.plan.lowering.fused import FUSED
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import Plan

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def typed(inputs: tuple[torch.Tensor, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)


def planned(function: Callable, inputs: tuple[torch.Tensor, ...], dtype: str, **parts) -> Plan:
    """The plan of a model in 16 bits, with attention, which gives what the model gives in float64."""
    model = Of(function, **parts).to(TYPES[dtype]).eval()
    given = typed(inputs, TYPES[dtype])
    graph = capture(model, given)
    plan = make_plan(graph, graph, fused_products=FUSED)
    assert not attentions(make_plan(graph, graph, fused_products=("attention",)))
    for step in attentions(plan):
        assert step.kernel.input_dtypes == tuple(n.dtype for n in step.inputs)
        assert step.kernel.output_dtypes == tuple(n.dtype for n in step.outputs)
    agrees(plan, graph, model, given)
    return plan


def roundings(plan: Plan) -> set[str]:
    """The functions of scores that round."""
    return {e.function for step in attentions(plan) for e in walk(step.kernel.score)
            if getattr(e, "function", "").startswith("round_")}


@pytest.mark.parametrize("name", FOUND)
def test_forms_that_are_one_kernel(name):
    function, inputs, facts, *parts = FOUND[name]
    dtype = ("bfloat16", "float16")[len(name) % 2]
    plan = planned(function, inputs, dtype, **deepcopy(dict(*parts)))
    assert kinds(plan).count("Attention") == 1, kinds(plan)
    kernel = attentions(plan)[0].kernel
    assert kernel.compute == dtype and kernel.output_dtypes == (dtype,)
    assert {fact: getattr(kernel, fact) for fact in facts} == facts
    # What is added to scores is a tensor of the model's own, which it rounds.
    assert roundings(plan) == ({f"round_{dtype}"} if name == "slopes" else set())


def by_hand_in_float32(m, q, k, v):
    """As models write it that take the softmax in float32: it rounds scores once, and weights once."""
    return torch.softmax(q @ k.mT * 0.3, -1, dtype=torch.float32).to(q.dtype) @ v


def added_in_float32(m, q, k, v):
    scores = (q @ k.mT / 3).float() + torch.where(CAUSAL, 0.0, -math.inf)
    return F.softmax(scores, -1).type_as(v) @ v


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("function", [by_hand_in_float32, added_in_float32])
def test_a_softmax_in_float32_is_the_kernel_s_own(function, dtype):
    given = typed(heads(), TYPES[dtype])
    model = Of(function)
    graph = capture(model, given)
    plan = make_plan(graph, graph, fused_products=FUSED)
    assert len(attentions(plan)) == 1 and not roundings(plan)
    assert attentions(plan)[0].kernel.compute == dtype
    doubles = tuple(x.double() for x in given)
    (found,), _ = run_plan(plan, values_of(model, graph, doubles))
    torch.testing.assert_close(found, model(*doubles).double(), rtol=1e-6, atol=1e-6)  # the model's own has float32


@pytest.mark.parametrize("dtype", TYPES)
def test_operands_that_are_computed_are_rounded_as_the_model_rounds_them(dtype):
    plan = planned(lambda m, q, k, v: sdpa(turned(q), turned(k), v, is_causal=True), heads(), dtype)
    assert [type(e) for e in (attentions(plan)[0].kernel.value,)] == [Load]
    plan = planned(lambda m, q, k, v: sdpa(q * m.scale, k, v), heads(), dtype, scale=torch.rand(8))
    (query,) = (step.kernel.query for step in attentions(plan))
    assert query.function == f"round_{dtype}"


@pytest.mark.parametrize("function", [
    lambda m, q, k, v: (q @ k.mT).softmax(-1).float() @ v.float(),
    lambda m, q, k, v: (q.float() @ k.float().mT).softmax(-1).to(v.dtype) @ v,
    lambda m, q, k, v: (q @ k.mT).double().softmax(-1).to(v.dtype) @ v,
    lambda m, q, k, v: ((q @ k.mT).softmax(-1) * 2).to(v.dtype) @ v,
    lambda m, q, k, v: sdpa(q, k, v, dropout_p=0.5),
])
def test_forms_that_are_none(function):
    given = typed(heads(), torch.bfloat16)
    graph = capture(Of(function), given)
    assert not attentions(make_plan(graph, graph, fused_products=FUSED))


def test_layers_of_pytorch_are_found():
    """nn.MultiheadAttention, with a mask of what is padded."""
    model = nn.MultiheadAttention(64, 4, batch_first=True).bfloat16()
    x = torch.randn(8, ROWS, 64).bfloat16()
    graph = capture(Of(lambda m, x: m.attends(x, x, x, need_weights=False)[0], attends=model), (x,))
    (step,) = attentions(make_plan(graph, graph, fused_products=FUSED))
    assert step.kernel.compute == "bfloat16" and step.kernel.batch == 32 and step.kernel.depth == 16


def test_an_attention_of_16_bits_within_a_model_in_float32():
    graph = capture(Of(lambda m, q, k, v: sdpa(q.half(), k.half(), v.half()).float()), heads())
    (step,) = attentions(make_plan(graph, graph, fused_products=FUSED))
    assert step.kernel.compute == "float16" and step.kernel.output_dtypes == ("float16",)


def test_results_are_stored_where_they_are_shown():
    x = heads()[0].transpose(1, 2).flatten(2).bfloat16()
    graph = capture(Of(lambda m, x: together(sdpa(apart(x), apart(x), apart(x)))), (x,))
    (step,) = attentions(make_plan(graph, graph, fused_products=FUSED))
    assert step.inputs[0].shape == x.shape and step.kernel.store.index.strides[-1] == 1
