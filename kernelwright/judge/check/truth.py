"""What of VERIFY's truth decides about a candidate from elsewhere, and what is said of it and decides nothing.

A candidate that was written for its values need not keep what no value shows: these are its limits.
"""

from __future__ import annotations

from kernelwright.judge.records import Finding
from kernelwright.verify.certificate import Certificate
from kernelwright.verify.reference import FAST_PATH, SEPARATE

#: What limits a candidate, by the kinds of problems of a trial. ``separate`` is the model's own: then eager alone is
#: what candidates are held against.
_LIMITS = {
    "strides": "returns outputs whose strides are not the model's",
    "alias-missing": "returns copies, or other views, where the model returns memory of inputs, parameters or outputs",
    "random-state-after": "leaves another random state than the model",
    "does-not-raise": "", "requires-grad": "", "leaf": "", "separate": "",
}
LENIENT = frozenset(_LIMITS)
#: Trials that decide nothing: of 0.0 and -0.0 the one that was met first is the extremum, and what is divided by it has
#: its sign.
INFORMATIVE = frozenset({"signed zeros"})


def limits_of(certificate: Certificate | None) -> list[str]:
    """What limits a candidate that passed, in words that complete "the candidate ..."."""
    if certificate is None:
        return []
    found = [_LIMITS[kind] for kind in dict.fromkeys(k for t in certificate.trials for k in t.lenient)]
    outputs = [o for t in certificate.trials if t.comparison is not None for o in t.comparison.outputs]
    found.append("returns zeros of another sign than the model's" if any(o.zero_signs for o in outputs) else "")
    return list(filter(None, found))


def float64_is_right(references: list[str]) -> bool:
    """Whether a call of the model's float64 copy computes what eager does, by the references of trials."""
    return not any(words in (FAST_PATH, SEPARATE) for words in references)


def other_computation(certificate: Certificate) -> Finding | None:
    """What is said of a candidate that gives float64's results where these are not what eager computes."""
    if not any("other-computation" in trial.kinds for trial in certificate.trials):
        return None
    return Finding("other-computation", "It gives what the model gives in float64, and not what PyTorch gives for the "
                   "model: PyTorch takes a path of its own here, or the model asks for its type.",
                   fix="Compute what a call of the model computes in this mode: a fast path of a layer in inference "
                       "may leave padded places zero, and constants may depend on the type.")
