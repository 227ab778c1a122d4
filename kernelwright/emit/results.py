"""From what a program gives to what the caller gets: the tensors that eager returns, each an object of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from kernelwright.ir.graph import Given, Result, is_given, lies_as, memory
from kernelwright.ir.node import Node
from kernelwright.plan.records import KernelStep, Plan

#: Of a result: its place among what was computed and then given, and the tensors that its gradient does not reach
#: (None where it has no gradient).
Row = tuple[int, tuple[Given, ...] | None]


def computed_results(plan: Plan) -> list[Node]:
    """The nodes of results that a program computes, each once."""
    given = given_results(plan)
    return list(dict.fromkeys(node for number, node in enumerate(plan.results) if number not in given))


def given_results(plan: Plan) -> list[int]:
    """The results, by number, that are tensors which the forward was given, or views of them."""
    return [number for number, node in enumerate(plan.results) if is_given(node) or updated_buffer(plan, number)]


def updated_buffer(plan: Plan, number: int) -> str:
    """The buffer that a result is itself, with what the forward wrote into it; "" for another result."""
    value = plan.graph.outputs[number]
    name = known(plan, number).given
    return name if any(e.name == name and e.value is value for e in plan.graph.effects) else ""


def result_rows(plan: Plan, model: nn.Module, inputs: Sequence[Any]
                ) -> tuple[tuple[Row, ...], tuple[int, ...], tuple[int, ...]]:
    """A row for each result; for each computed node the result that stands for it in a backward; the given results.

    inputs: the leaves of the example's arguments.
    """
    computed, given = computed_results(plan), given_results(plan)
    everything: list[Given] = [place for place, value in enumerate(inputs) if _may_have_gradient(value)]
    everything += [name for name, parameter in model.named_parameters() if _may_have_gradient(parameter)]
    rows: list[Row] = []
    for number, node in enumerate(plan.results):
        place = len(computed) + given.index(number) if number in given else computed.index(node)
        rows.append((place, _blind(known(plan, number), node, everything)))
    standing = []
    for place in range(len(computed)):
        numbers = [number for number, row in enumerate(rows) if row[0] == place]
        standing.append(next((n for n in numbers if rows[n][1] is not None), numbers[0]))
    return tuple(rows), tuple(standing), tuple(given)


def known(plan: Plan, number: int) -> Result:
    """What is known of a result beside its value."""
    return plan.graph.results[number] if plan.graph.results else Result()


def _may_have_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _blind(result: Result, node: Node, everything: Sequence[Given]) -> tuple[Given, ...] | None:
    if result.reaches is None:
        return () if node.dtype.startswith(("float", "bfloat", "complex")) else None
    return tuple(g for g in everything if g not in result.reaches) if result.reaches else None


def other_strides(plan: Plan, number: int) -> tuple[int, ...] | None:
    """The strides that eager gives a computed result, where the program's may be others; else None."""
    node, wanted = plan.results[number], known(plan, number).strides
    if wanted is None or not node.size:
        return None
    below = memory(node)
    if any(isinstance(step, KernelStep) and below in step.outputs for step in plan.steps):
        return None if lies_as(node, wanted) else wanted
    return wanted
