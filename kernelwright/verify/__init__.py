"""VERIFY: does a candidate compute what the model computes, no less accurately than PyTorch does?"""

from __future__ import annotations

from kernelwright.verify.certificate import Certificate, Plan, Skipped, certify, default_trials
from kernelwright.verify.compare import Comparison, OutputError, Tolerance, compare
from kernelwright.verify.distributions import DISTRIBUTIONS, Distribution
from kernelwright.verify.trial import Trial, TrialPlan

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
