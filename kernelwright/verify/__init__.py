"""VERIFY: does a candidate compute what the model computes, no less accurately than PyTorch does?"""

from __future__ import annotations

from kernelwright.verify.certificate import Certificate, Plan, Skipped, certify, default_trials
from kernelwright.verify.compare import compare
from kernelwright.verify.distributions import DISTRIBUTIONS, Distribution
from kernelwright.verify.records import Comparison, OutputError, Trial, TrialPlan
from kernelwright.verify.tolerance import Tolerance

__all__ = [
    "DISTRIBUTIONS",
    "Certificate",
    "Comparison",
    "Distribution",
    "OutputError",
    "Plan",
    "Skipped",
    "Tolerance",
    "Trial",
    "TrialPlan",
    "certify",
    "compare",
    "default_trials",
]
