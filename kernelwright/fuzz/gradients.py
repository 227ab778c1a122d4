"""The check of a model's backward: its graph and its plan against autograd, in float64."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from kernelwright.adjoint.backward import Backward, make_backward
from kernelwright.adjoint.table import NoAdjoint
from kernelwright.algebra.engine import rewrite
from kernelwright.capture.export import NotCapturable, capture
from kernelwright.capture.forms import flat
from kernelwright.codegen.reference.plan import run_plan, values_of
from kernelwright.fuzz.judge import disagreement, evaluated, narrowest
from kernelwright.ir.graph import Graph
from kernelwright.problem.arguments import received
from kernelwright.problem.seeds import seed_generators
from kernelwright.roofline.devices import Device
from kernelwright.verify.flatten import flatten
from kernelwright.verify.state import call_in_float64, float64_copy, widened


def wrong_gradients(model: nn.Module, inputs: list[Any], places: Mapping[str, int], device: Device) -> str | None:
    """What is wrong with the gradients of a model, "" where nothing is; None where kernels are to find none. places:
    the numbers of its graph's results by path."""
    try:
        graph = capture(model, inputs, recording=True)
        backwards = make_backward(graph, device, forward=rewrite(graph, device).graph)
    except (NotCapturable, NoAdjoint):
        return None
    found = [_wrong(backward, graph, model, inputs, places) for backward in backwards]
    return None if None in found else next(filter(None, found), "")


def _wrong(backward: Backward, graph: Graph, model: nn.Module, inputs: list[Any], places: Mapping[str, int]
           ) -> str | None:
    made = backward.gradients
    double, arguments = float64_copy(model), widened(inputs)
    given, _ = flat(received(double, arguments))
    tensors = {place: value for place, value in enumerate(given) if isinstance(value, torch.Tensor)}
    parameters = dict(double.named_parameters())
    leaves = [tensors[who] if isinstance(who, int) else parameters[who] for who in made.gives]
    seed_generators(0)
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for leaf in leaves:
                leaf.requires_grad_(True)
            results = flatten(call_in_float64(double, arguments), "output")
            by_number = {number: results[path] for path, number in places.items()}
            outputs = [by_number[number] for number in made.of]
            directions = [torch.randn(t.shape, dtype=t.dtype) for t in outputs]
            expected = torch.autograd.grad(outputs, leaves, copy.deepcopy(directions))
    except RuntimeError:  # it writes into its inputs, or has no derivative in float64
        return None
    values = values_of(model, graph, inputs)
    handed = evaluated(replace(graph, outputs=made.saved), values)[:len(made.saved)]
    names = [leaf["name"] for leaf in made.graph.inputs[len(graph.inputs):] if leaf is not None]
    values |= dict(zip(names, [*directions, *handed], strict=True))
    noise = max(narrowest(made.graph), 1e-7)  # some constants are rounded to float32 in a model
    if wrong := disagreement(evaluated(made.graph, values), made.graph, values, list(expected), noise):
        return f"its graph: {wrong}"
    with torch.no_grad():
        found, _ = run_plan(backward.plan, values)
    if wrong := disagreement(found, made.graph, values, list(expected), noise):
        return f"its plan: {wrong}"
    return ""
