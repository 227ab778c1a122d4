"""Stage 6, GENERATE: the text of every kernel of a plan, for a target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from kernelwright.codegen.cpp.fft_energy import generate as cpp_spectral
from kernelwright.codegen.cpp.loops import generate as cpp_loops
from kernelwright.codegen.cpp.region_sum import generate as cpp_region_sum
from kernelwright.codegen.cpp.scan import argreduce as cpp_extrema
from kernelwright.codegen.cpp.scan import generate as cpp_scans
from kernelwright.codegen.cpp.support import snippets as cpp_support
from kernelwright.codegen.cuda import math as cuda_math
from kernelwright.codegen.cuda import support as cuda_support
from kernelwright.codegen.cuda.fft_energy import generate as cuda_spectral
from kernelwright.codegen.cuda.gemm import generate as cuda_contraction
from kernelwright.codegen.cuda.loops import generate as cuda_loops
from kernelwright.codegen.cuda.region_sum import generate as cuda_region_sum
from kernelwright.codegen.cuda.scan import argreduce as cuda_extrema
from kernelwright.codegen.cuda.scan import generate as cuda_scans
from kernelwright.codegen.source import KernelSource
from kernelwright.failures import is_ours
from kernelwright.plan.contraction import Contraction
from kernelwright.plan.kernels import Extremum, LoopKernel, RegionSum, Scan, SpectralEnergy
from kernelwright.plan.records import Kernel, KernelStep, Plan

TARGETS = ("cpp", "cuda")


class KernelFailed(Exception):
    """The kernels of ``steps`` could not be written or built: ``cause`` says why."""

    def __init__(self, steps: Sequence[KernelStep], cause: Exception) -> None:
        super().__init__(str(cause))
        self.steps, self.cause = steps, cause


class Generator(Protocol):
    """A skeleton's entry: the text of a kernel under a name."""

    def __call__(self, kernel: Kernel, name: str) -> KernelSource: ...


_SKELETONS: dict[tuple[str, type], Generator] = {
    ("cpp", LoopKernel): cpp_loops.generate, ("cuda", LoopKernel): cuda_loops.generate,
    ("cpp", RegionSum): cpp_region_sum.generate, ("cuda", RegionSum): cuda_region_sum.generate,
    ("cpp", Extremum): cpp_extrema.generate, ("cuda", Extremum): cuda_extrema.generate,
    ("cpp", Scan): cpp_scans.generate, ("cuda", Scan): cuda_scans.generate,
    ("cpp", SpectralEnergy): cpp_spectral.generate, ("cuda", SpectralEnergy): cuda_spectral.generate,
    ("cuda", Contraction): cuda_contraction.generate,
}


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
    return (target, kind) in _SKELETONS


def generate_kernel(kernel: Kernel, name: str, target: str) -> KernelSource:
    """The text of one kernel. Raises what its skeleton raises for sizes that it does not take (ValueError)."""
    return _SKELETONS[target, type(kernel)](kernel, name)


def support_text(sources: Iterable[KernelSource], target: str) -> str:
    """The shared snippets that the texts use, each once."""
    wanted = {name for source in sources for name in source.support}
    if target == "cpp":
        return cpp_support.snippets(wanted)
    scalar = wanted & cuda_math.SCALAR_SNIPPETS.keys()
    return "\n".join([cuda_support.snippets(wanted - scalar), cuda_math.scalar_snippets(scalar)])
