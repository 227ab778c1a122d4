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
from kernelwright.plan.records import Kernel, KernelStep, Plan
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
    texts: dict[tuple[Kernel, str], KernelSource] = {}
    sources: dict[KernelStep, KernelSource] = {}
    renamed = []
    for plan in plans:
        steps = []
        for step in plan.steps:
            if isinstance(step, KernelStep):
                stem = step.name.split("_", 1)[1]
                source = texts.get((step.kernel, stem))
                if source is None:
                    try:
                        source = generate_kernel(step.kernel, f"k{len(texts)}_{stem}", target)
                    except Exception as error:
                        if not is_ours(error):
                            raise
                        failed = [s for p in plans for s in p.kernels if s.kernel == step.kernel]
                        raise KernelFailed(failed, error) from error
                    texts[step.kernel, stem] = source
                step = replace(step, name=source.name)
                sources[step] = source
            steps.append(step)
        renamed.append(replace(plan, steps=tuple(steps)))
    return renamed, sources


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
