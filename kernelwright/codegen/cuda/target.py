"""CUDA, for GPUs of NVIDIA."""

from __future__ import annotations

from collections.abc import Collection

from kernelwright.codegen.cuda import DEVICE_KIND
from kernelwright.codegen.cuda.attention import generate as attention
from kernelwright.codegen.cuda.batched import generate as batched
from kernelwright.codegen.cuda.expressions import C_TYPES
from kernelwright.codegen.cuda.fft_energy import generate as fft_energy
from kernelwright.codegen.cuda.gemm import generate as gemm
from kernelwright.codegen.cuda.loops import generate as loops
from kernelwright.codegen.cuda.math import SCALAR_SNIPPETS, scalar_snippets
from kernelwright.codegen.cuda.recurrence import generate as recurrence
from kernelwright.codegen.cuda.region_sum import generate as region_sum
from kernelwright.codegen.cuda.scan import argreduce
from kernelwright.codegen.cuda.scan import generate as scan
from kernelwright.codegen.cuda.support.snippets import snippets
from kernelwright.codegen.target import Target
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.kernels import (
    Attention,
    BatchedProduct,
    Extremum,
    LoopKernel,
    Recurrence,
    RegionSum,
    Scan,
    SpectralEnergy,
)


def _support(names: Collection[str]) -> str:
    """The text of snippets, those of scalar functions last."""
    scalar = set(names) & SCALAR_SNIPPETS.keys()
    return "\n".join([snippets(set(names) - scalar), scalar_snippets(scalar)])


CUDA = Target(
    name="cuda", language="CUDA", device=DEVICE_KIND, types=C_TYPES,
    skeletons={LoopKernel: loops.generate, RegionSum: region_sum.generate, Extremum: argreduce.generate,
               Scan: scan.generate, SpectralEnergy: fft_energy.generate, Contraction: gemm.generate,
               Recurrence: recurrence.generate, Attention: attention.generate,
               BatchedProduct: batched.generate},
    support=_support, flags=("-O3", "-std=c++17", "-lineinfo"), suffix="cu", built_by="cuda extension",
    stream="cudaStream_t", asserts_late=True, rounds_products=True, emulated=True)
