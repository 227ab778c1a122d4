"""Stage 1, LOAD: a problem file or an nn.Module becomes a Problem."""

from __future__ import annotations

from kernelwright.problem.load import load_problem
from kernelwright.problem.memory import available_memory, require_memory
from kernelwright.problem.probe import Probe, check_outputs, probe_forward, run_forward
from kernelwright.problem.record import Problem

__all__ = ["Probe", "Problem", "available_memory", "check_outputs", "load_problem", "probe_forward",
           "require_memory", "run_forward"]
