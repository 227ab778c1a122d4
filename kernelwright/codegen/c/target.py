"""Plain C11, for one core of a CPU."""

from __future__ import annotations

from kernelwright.codegen.c import DEVICE_KIND, loops, scans
from kernelwright.codegen.c.expressions import TYPES
from kernelwright.codegen.c.support import snippets
from kernelwright.codegen.target import PLAIN_C, Target
from kernelwright.plan.kernels import Extremum, LoopKernel, Scan

#: Without -fno-trapping-math, with which gcc 12 threads the jumps of choices through loops around rows, and makes wrong
#: vectors of what it has then. C++ chooses by masks (`kw_select`), which leave no jumps.
_FLAGS = ("-O3", "-march=native", "-std=c11", "-fno-math-errno")

C = Target(
    name="c", language="C", device=DEVICE_KIND, types=TYPES,
    skeletons={LoopKernel: loops.generate, Extremum: scans.extremum, Scan: scans.scan},
    support=snippets,
    flags=_FLAGS, suffix="c", built_by="command", compiler=("CC", "cc"), syntax=PLAIN_C, stack_bytes=32768)
