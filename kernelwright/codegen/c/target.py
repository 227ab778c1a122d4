"""Plain C11, for one core of a CPU."""

from __future__ import annotations

from kernelwright.codegen.c import DEVICE_KIND, loops, scans
from kernelwright.codegen.c.expressions import TYPES
from kernelwright.codegen.c.support import snippets
from kernelwright.codegen.target import PLAIN_C, Target
from kernelwright.plan.kernels import Extremum, LoopKernel, Scan

#: Where comparisons may not be taken to be without effect, gcc 12 makes no vectors of loops around rows: those that it
#: does make read elements of other points.
_FLAGS = ("-O3", "-march=native", "-std=c11", "-fno-math-errno")

C = Target(
    name="c", language="C", device=DEVICE_KIND, types=TYPES,
    skeletons={LoopKernel: loops.generate, Extremum: scans.extremum, Scan: scans.scan},
    support=snippets,
    flags=_FLAGS, suffix="c", built_by="command", compiler=("CC", "cc"), syntax=PLAIN_C, stack_bytes=32768)
