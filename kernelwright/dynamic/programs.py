"""The texts of a program at one point: of each kernel, and of the Python and C around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from kernelwright.codegen.generate import TARGETS, generate_kernel
from kernelwright.codegen.source import KernelSource
from kernelwright.dynamic.formulas import Sizes
from kernelwright.dynamic.records import Template
from kernelwright.emit.facts import is_recordable, plan_facts
from kernelwright.emit.program import make_program
from kernelwright.ir.node import Node
from kernelwright.plan.records import KernelStep, Plan, TorchStep

_ALIGNMENT = 256
_WORKSPACE = "\n// Workspace: {} bytes\n"


@dataclass(frozen=True, slots=True)
class ModeOfSizes:
    """A mode whose plan is a function of sizes. like: the mode whose program it runs, itself where it has its own."""

    name: str
    like: str
    model: nn.Module
    template: Template
    graph: bool
    points: tuple[Sizes, ...]

    def plan(self, sizes: Sizes, names: Mapping[str, str]) -> Plan:
        """The plan for some sizes, its kernels with their names in the file."""
        plan = self.template.at(sizes)
        steps = tuple(replace(step, name=names[step.name]) if isinstance(step, KernelStep) else step
                      for step in plan.steps)
        training = self.model.training
        return replace(plan, steps=steps, graph=replace(plan.graph, training=training))


def kernel_names(modes: Sequence[ModeOfSizes]) -> dict[str, dict[str, str]]:
    """For each mode, the names that its kernels have in the file by those in its plan: kernels that are equal at all
    points of which the plans were made share one."""
    names: dict[Any, str] = {}
    result: dict[str, dict[str, str]] = {}
    for mode in modes:
        plans = [mode.template.at(point) for point in mode.points]
        own = result.setdefault(mode.name, {})
        for steps in zip(*(plan.kernels for plan in plans), strict=True):
            stem = steps[0].name.split("_", 1)[1]
            key = (tuple(zip(mode.points, (step.kernel for step in steps), strict=True)), stem)
            own[steps[0].name] = names.setdefault(key, f"k{len(names)}_{stem}")
    return result


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts around the kernels at one point. programs: by mode, Python's text and then its launchers'; facts: by
    mode, the facts of a call by key."""

    programs: Mapping[str, tuple[str, str]]
    launchers: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]]
    in_place: frozenset[tuple[str, int]]
    facts: Mapping[str, Mapping[str, str]]
    support: frozenset[str]


def kernel_texts(plans: Mapping[str, Plan], target: str) -> dict[str, KernelSource]:
    """The sources of all kernels of plans, by name."""
    found: dict[str, KernelSource] = {}
    for plan in plans.values():
        for step in plan.kernels:
            if step.name not in found:
                found[step.name] = generate_kernel(step.kernel, step.name, target)
    return found


def texts_at(modes: Sequence[ModeOfSizes], plans: Mapping[str, Plan], sources: Mapping[str, KernelSource],
             spaces: Mapping[str, int], largest: Mapping[str, Plan], inputs: Mapping[str, Sequence[Any]], target: str
             ) -> Texts:
    """The texts of plans at one point. spaces: workspace of each kernel, and largest: plans, at the sizes at which they
    are largest: what a launcher keeps between kernels has the same place for all sizes. inputs: of each mode."""
    programs: dict[str, tuple[str, str]] = {}
    launchers: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {}
    in_place: set[tuple[str, int]] = set()
    facts: dict[str, Mapping[str, str]] = {}
    for mode in modes:
        plan = plans[mode.name]
        if mode.like == mode.name:
            room = _room(plan, largest[mode.name])
            own = {step: replace(sources[step.name], workspace_bytes=spaces[step.name]) for step in plan.kernels}
            program = make_program(mode.name, plan, own, target=TARGETS[target],
                                   bytes_of=lambda node, room=room: room[node], alike=False)
            programs[mode.name] = (program.text, "\n\n".join(x.text for x in program.launchers))
            launchers[mode.name] = tuple((x.name, x.kernels) for x in program.launchers)
            in_place |= program.in_place
        facts[mode.name] = dict(plan_facts(plan, mode.model, list(inputs[mode.name]), mode.like,
                                           graph=mode.graph and is_recordable(plan)))
    return Texts(programs, launchers, frozenset(in_place), facts,
                 frozenset(name for source in sources.values() for name in source.support))


def with_workspace(source: KernelSource) -> str:
    """A kernel's definition with a line that says how much workspace it takes."""
    return source.definition + _WORKSPACE.format(source.workspace_bytes)


def without_workspace(text: str) -> str:
    """A kernel's definition without the line that says how much workspace it takes."""
    return text.partition(_WORKSPACE.partition("{}")[0])[0]


def _room(plan: Plan, largest: Plan) -> dict[Node, int]:
    """The bytes that each value has in a workspace: those of the largest sizes."""
    found: dict[Node, int] = {}
    for step, large in zip(plan.steps, largest.steps, strict=True):
        outputs = (step.node,) if isinstance(step, TorchStep) else step.outputs
        others = (large.node,) if isinstance(large, TorchStep) else large.outputs
        for node, other in zip(outputs, others, strict=True):
            found[node] = max(other.bytes, node.bytes, found.get(node, 0))
    return found
