"""Stage 6, GENERATE: the text of every kernel of a plan, for a target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from kernelwright.codegen.c.target import C
from kernelwright.codegen.cpp.target import CPP
from kernelwright.codegen.cuda.target import CUDA
from kernelwright.codegen.source import KernelSource
from kernelwright.codegen.target import Target
from kernelwright.failures import is_ours
from kernelwright.plan.records import Kernel, KernelStep, Plan, Step
from kernelwright.settings import HOST_TARGET

#: By name.
TARGETS: dict[str, Target] = {target.name: target for target in (CPP, CUDA, C)}


def is_here(target: str) -> bool:
    """Whether this machine has a device that runs the target's kernels."""
    return TARGETS[target].on_host or torch.cuda.is_available()


def chosen(target: str) -> str:
    """The target that "auto" stands for: CUDA where there is a device, else C++; others are as they are."""
    return target if target != "auto" else CUDA.name if is_here(CUDA.name) else HOST_TARGET


class NoSkeleton(LookupError):
    """A target writes no kernels of a kind; they stay with PyTorch. That is no fault, neither ours nor a model's."""

    def __init__(self, target: str, kind: type[Kernel]) -> None:
        super().__init__(f"the target {target} writes no kernels of the kind {kind.__name__}")
        self.kind = kind


class KernelFailed(Exception):
    """The kernels of ``steps`` could not be written or built: ``cause`` says why."""

    def __init__(self, steps: Sequence[KernelStep], cause: Exception) -> None:
        super().__init__(str(cause))
        self.steps, self.cause = steps, cause


def generate(plans: Iterable[Plan], target: str) -> tuple[list[Plan], dict[KernelStep, KernelSource]]:
    """The text of every kernel step; equal kernels of several plans share one text and name.

    Returns the plans with the steps' final names, and the texts by step. Raises KernelFailed.
    """
    plans = list(plans)
    renamed = named(plans)
    texts: dict[str, KernelSource] = {}
    sources: dict[KernelStep, KernelSource] = {}
    for step in (s for plan in renamed for s in plan.kernels):
        if step.name not in texts:
            try:
                texts[step.name] = generate_kernel(step.kernel, step.name, target)
            except Exception as error:
                if not is_ours(error):
                    raise
                failed = [s for p in plans for s in p.kernels if s.kernel == step.kernel]
                raise KernelFailed(failed, error) from error
        sources[step] = texts[step.name]
    return renamed, sources


def named(plans: Iterable[Plan]) -> list[Plan]:
    """The plans with the names that their kernels have in one file: equal kernels share one."""
    names: dict[tuple[Kernel, str], str] = {}
    renamed = []
    for plan in plans:
        steps: list[Step] = []
        for step in plan.steps:
            if isinstance(step, KernelStep):
                stem = step.name.split("_", 1)[1]
                step = replace(step, name=names.setdefault((step.kernel, stem), f"k{len(names)}_{stem}"))
            steps.append(step)
        renamed.append(replace(plan, steps=tuple(steps)))
    return renamed


def has_skeleton(kind: type, target: str) -> bool:
    """Whether a target writes kernels of this kind."""
    return kind in TARGETS[target].skeletons


def writer_of(kind: type[Kernel]) -> Target:
    """The first target that writes kernels of this kind. Raises LookupError where none does."""
    for target in TARGETS.values():
        if kind in target.skeletons:
            return target
    raise LookupError(f"no target writes kernels of the kind {kind.__name__}")


def generate_kernel(kernel: Kernel, name: str, target: str) -> KernelSource:
    """The text of one kernel. Raises NoSkeleton for a kind without one, and what its
    skeleton raises for sizes that it does not take (ValueError)."""
    if type(kernel) not in TARGETS[target].skeletons:
        raise NoSkeleton(target, type(kernel))
    return TARGETS[target].skeletons[type(kernel)](kernel, name)


def support_text(sources: Iterable[KernelSource], target: str) -> str:
    """The shared snippets that the texts use, each once."""
    return TARGETS[target].support({name for source in sources for name in source.support})
