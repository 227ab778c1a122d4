"""C++ with OpenMP, for CPUs."""

from __future__ import annotations

from kernelwright.codegen.cpp import DEVICE_KIND
from kernelwright.codegen.cpp.attention import generate as attention
from kernelwright.codegen.cpp.expressions import TYPES
from kernelwright.codegen.cpp.fft_energy import generate as fft_energy
from kernelwright.codegen.cpp.loops import generate as loops
from kernelwright.codegen.cpp.loops.text import sharing
from kernelwright.codegen.cpp.recurrence import generate as recurrence
from kernelwright.codegen.cpp.region_sum import generate as region_sum
from kernelwright.codegen.cpp.scan import argreduce
from kernelwright.codegen.cpp.scan import generate as scan
from kernelwright.codegen.cpp.support.snippets import snippets
from kernelwright.codegen.target import Target
from kernelwright.plan.kernels import Attention, Extremum, LoopKernel, Recurrence, RegionSum, Scan, SpectralEnergy

CPP = Target(
    name="cpp", language="C++", device=DEVICE_KIND, types=TYPES,
    skeletons={LoopKernel: loops.generate, RegionSum: region_sum.generate, Extremum: argreduce.generate,
               Scan: scan.generate, SpectralEnergy: fft_energy.generate, Recurrence: recurrence.generate,
               Attention: attention.generate},
    support=snippets,
    flags=("-O3", "-march=native", "-fopenmp", "-std=c++17", "-fno-math-errno", "-fno-trapping-math"),
    suffix="cpp", built_by="extension", sharing=sharing, stack_bytes=32768)
