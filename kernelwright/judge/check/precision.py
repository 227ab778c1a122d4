"""Precision classes, from measured digits: what a candidate computes with shows in its error against float64.

An operand that is rounded to m bits behind its leading one is off by up to 2^-(m+1) of itself. Such errors and the
terms that they belong to add up alike, so a sum of products keeps about that relative error whatever its length: TF32
and float16 (m = 10) leave some 2^-12, bfloat16 (m = 7) some 2^-9, float32 (m = 23) some 2^-24 and what its additions
lose.
"""

from __future__ import annotations

import math

from kernelwright.verify.certificate import Certificate
from kernelwright.verify.distributions import AS_GIVEN

FLOAT32, TF32, HALF = "float32", "tf32", "16-bit"
#: Relative errors (rms of the error over rms of the result) between the classes: 2^-15.5 and 2^-10.5.
TF32_FROM, HALF_FROM = 2.0**-15.5, 2.0**-10.5
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
