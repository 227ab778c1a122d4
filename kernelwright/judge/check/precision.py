"""Precision classes, from measured digits: what a candidate computes with shows in its error against float64.

An operand that is rounded to m bits behind its leading one is off by up to 2^-(m+1) of itself. Such errors and the
terms that they belong to add up alike, so a sum of products keeps about that relative error whatever its length: TF32
and float16 (m = 10) leave some 2^-12, bfloat16 (m = 7) some 2^-9, float32 (m = 23) some 2^-24 and what its additions
lose.
"""

from __future__ import annotations

import math
from dataclasses import replace

from kernelwright.judge.settings import JudgeSettings
from kernelwright.verify.certificate import Certificate, Plan
from kernelwright.verify.distributions import AS_GIVEN
from kernelwright.verify.sensitivity import ROUNDING
from kernelwright.verify.tolerance import Tolerance

FLOAT32, TF32, HALF = "float32", "tf32", "16-bit"
#: Relative errors (rms of the error over rms of the result) between the classes: 2^-15.5 and 2^-10.5.
TF32_FROM, HALF_FROM = 2.0**-15.5, 2.0**-10.5
#: The relative error that operands in TF32 or float16 have, and in bfloat16: half of the largest, 2^-(m+1).
TF32_UNIT, HALF_UNIT = 2.0**-12, 2.0**-9
#: What is accepted where any precision is: an error that 16-bit operands leave, a few times over.
ANY_PRECISION = Tolerance(atol=2e-2, rtol=2e-2, scaled=2e-2, nonfinite="sign", of_size=0.1)
#: A class says something about a candidate only where eager itself, in float32, keeps this much more than its border.
MARGIN = 4.0
#: Distributions on which every digit of an operand matters, and few cancel.
TELLING = (AS_GIVEN, "normal", "shifted")


def mantissa_bits(error: float) -> float | None:
    """The bits that a relative error leaves; None for an error of zero or one without meaning."""
    return -math.log2(error) if 0 < error < 1 else None


def precision_class(certificate: Certificate) -> str | None:
    """float32, tf32 or 16-bit by the median relative error of the outputs on ordinary inputs.

    None where no output is float32, or where eager's own error hides the border that would be crossed.
    """
    pairs = sorted((o.relative, o.eager_relative) for trial in certificate.trials
                   if trial.plan.distribution in TELLING and trial.comparison is not None
                   for o in trial.comparison.outputs
                   if o.dtype == "torch.float32" and o.reference_rms and not o.is_noise)
    if not pairs:
        return None
    error, eager = pairs[len(pairs) // 2]
    if error < TF32_FROM:
        return FLOAT32
    if eager * MARGIN > error and eager >= TF32_FROM:
        # Eager loses as much: by the model's own condition, or because it computes in that precision itself.
        return TF32 if error < HALF_FROM else None
    return TF32 if error < HALF_FROM else HALF


def any_precision(precision: str | None) -> Tolerance:
    """What is accepted of a candidate of that class where any precision is: `ANY_PRECISION`, and where the model
    amplifies roundings, as sums that cancel do, twice what it is moved by those of its operands."""
    return replace(ANY_PRECISION, unit=HALF_UNIT if precision == HALF else TF32_UNIT)


def timed_tolerance(settings: JudgeSettings, distribution: str) -> Tolerance:
    """What the values of timed calls on inputs of ``distribution`` are held against."""
    usual = ANY_PRECISION if settings.precision == "any" else Tolerance(nonfinite="sign")
    return Plan(tolerance=usual).tolerance_for(distribution)


def loses_range(certificate: Certificate) -> bool:
    """Whether all that is wrong is NaN or Inf in place of numbers, on other inputs than the problem's own; where that
    is most of an output, the few numbers left say nothing of its size."""
    failed = [t for t in certificate.trials if t.gates and not t.passed]
    found = [c for t in failed for c in (t.comparison, t.against_eager, t.state) if c is not None and not c.passed]
    return bool(failed) and not any(t.problems or t.plan.distribution == AS_GIVEN for t in failed) and not any(
        c.structure or set(o.kinds) - {"nonfinite", *(ROUNDING if 2 * o.misplaced_nonfinite > o.elements else ())}
        for c in found for o in c.outputs)
