"""Results of the judge made by hand, for the tests of its report, its document and its command."""

from __future__ import annotations

from typing import Any

from kernelwright.judge.records import CandidateResult, CandidateTiming, JudgeResult
from kernelwright.timing.statistics import Ratio
from kernelwright.verify.certificate import Certificate
from kernelwright.verify.records import Comparison, OutputError, Trial, TrialPlan


def timing(seconds: float = 1e-3, *, speed: float = 2.0, share: float | None = 1.0) -> CandidateTiming:
    """Times that alternate by 0.1 % in 20 rounds; the speed-up's interval is 1 % wide on each side."""
    samples = tuple(seconds * (1.001 if i % 2 else 0.999) for i in range(20))
    return CandidateTiming(seconds, (0.999 * seconds, 1.001 * seconds), seconds, 1.01 * seconds, samples,
                           Ratio("eager", "candidate", speed, 0.99 * speed, 1.01 * speed, 20), 0.5 * seconds, 0.5,
                           share)


def certificate(*outputs: OutputError, candidate: float = 3e-7, passed: bool = True) -> Certificate:
    """One trial on the problem's own inputs with these outputs; eager's error is 2e-6."""
    comparison = Comparison(passed, outputs) if outputs else None
    trial = Trial(TrialPlan(5), passed, True, (), (), "float64", comparison, None, None, True, False, 0.1, 0.1, 0.1,
                  0.1)
    return Certificate(passed, () if passed else ("wrong",), (trial,), (), True, False, True, (), False, None,
                       candidate, 2e-6, 0.5, 60.0, {"torch": "2.13.0"})


def output(**fields: Any) -> OutputError:
    """A float32 output of 8 elements that was compared."""
    facts = {"shape": (8,), "dtype": "torch.float32", "elements": 8, "reference_rms": 1.0, "units": 0.1}
    return OutputError("output", fields.pop("passed", True), (), **facts | fields)


def right(file: str, seconds: float | None = 1e-3, *, share: float | None = 1.0, **fields: Any) -> CandidateResult:
    """A candidate that passed."""
    usual: dict[str, Any] = {"verdict": "OK", "reason": "Right in 8 trials.", "precision": "float32",
                             "certificate": certificate(output())}
    return CandidateResult(file, timing=timing(seconds, share=share) if seconds else None, **usual | fields)


def judged(*candidates: CandidateResult, **fields: Any) -> JudgeResult:
    """The result of a run with these candidates."""
    usual: dict[str, Any] = {
        "problem_profile": {"deterministic": True,
                            "words": ("The model is deterministic.", "No trivial candidate passes.")},
        "selftest": {"passed": True, "words": "All 5 controls got their verdict."},
        "isolation": "own user and network namespaces", "device": "a CPU", "versions": {"torch": "2.13.0"},
        "environment": {}, "settings": {"effort": "normal"}, "seed": 271828, "seconds": 12.5}
    return JudgeResult("convolution", "problems/convolution.py", candidates, **usual | fields)
