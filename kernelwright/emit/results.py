"""From what a program gives to what the caller gets: the tensors that eager returns, each an object of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from kernelwright.algebra.views import contiguous
from kernelwright.ir.graph import Given, Result, is_given, lies_as, memory
from kernelwright.ir.node import Node
from kernelwright.plan.records import KernelStep, Plan

#: Of a result: its place among what was computed and then given, and the tensors that its gradient does not reach
#: (None where it has no gradient).
Row = tuple[int, tuple[Given, ...] | None]


def computed_results(plan: Plan) -> list[Node]:
    """The nodes of results that a program computes, each once."""
    given = set(given_results(plan))
    return list(dict.fromkeys(node for number, node in enumerate(plan.results) if number not in given))


def given_results(plan: Plan) -> list[int]:
    """The results, by number, that are tensors which the forward was given, or views of them."""
    return [number for number, node in enumerate(plan.results) if is_given(node) or updated_buffer(plan, number)]


def updated_buffer(plan: Plan, number: int) -> str:
    """The buffer that a result is itself, with what the forward wrote into it; "" for another result."""
    value = plan.graph.outputs[number]
    name = known(plan, number).given
    is_buffer = isinstance(name, str) and any(e.name == name and e.value is value for e in plan.graph.effects)
    return name if is_buffer else ""


def result_rows(plan: Plan, model: nn.Module, inputs: Sequence[Any]
                ) -> tuple[tuple[Row, ...], tuple[int, ...], tuple[int, ...]]:
    """A row for each result; for each computed node the result that stands for it in a backward; the given results.

    inputs: the leaves of the example's arguments.
    """
    computed, given = computed_results(plan), given_results(plan)
    everything: list[Given] = [place for place, value in enumerate(inputs) if _may_have_gradient(value)]
    everything += [name for name, parameter in model.named_parameters() if _may_have_gradient(parameter)]
    places = {node: place for place, node in enumerate(computed)}
    places_given = {number: len(computed) + place for place, number in enumerate(given)}
    rows: list[Row] = []
    standing: dict[int, int] = {}
    for number, node in enumerate(plan.results):
        place = places_given.get(number, places.get(node, -1))
        rows.append((place, _blind(known(plan, number), node, everything)))
        if place < len(computed) and (place not in standing or (rows[standing[place]][1] is None is not rows[-1][1])):
            standing[place] = number
    return tuple(rows), tuple(standing[place] for place in range(len(computed))), tuple(given)


def known(plan: Plan, number: int) -> Result:
    """What is known of a result beside its value."""
    return plan.graph.results[number] if plan.graph.results else Result()


def _may_have_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _blind(result: Result, node: Node, everything: Sequence[Given]) -> tuple[Given, ...] | None:
    if result.reaches is None:
        return () if node.dtype.startswith(("float", "bfloat", "complex")) else None
    return tuple(g for g in everything if g not in result.reaches) if result.reaches else None


def result_strides(plan: Plan) -> tuple[tuple[int, ...] | None, ...]:
    """The strides of the results that a program gives; None of those that the forward was given."""
    given = set(given_results(plan))
    return tuple(None if number in given else known(plan, number).strides or contiguous(node.shape)
                 for number, node in enumerate(plan.results))


def other_strides(plan: Plan) -> dict[Node, tuple[int, ...]]:
    """The strides that eager gives computed results, of those of which the program's may be others."""
    stored = {node for step in plan.steps if isinstance(step, KernelStep) for node in step.outputs}
    result: dict[Node, tuple[int, ...] | None] = {}
    for number, node in enumerate(plan.results):
        wanted = known(plan, number).strides
        right = wanted is None or not node.size or (memory(node) in stored and lies_as(node, wanted))
        result.setdefault(node, None if right else wanted)
    return {node: strides for node, strides in result.items() if strides is not None}
