"""The one reason for the verdict: patterns and hypotheses in one order, a verdict code, and its sentence and fix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kernelwright.judge.diagnose.digits import MOST
from kernelwright.judge.diagnose.evidence import Evidence
from kernelwright.judge.diagnose.targets import HOLDS
from kernelwright.judge.records import Finding
from kernelwright.verify.certificate import Certificate
from kernelwright.verify.distributions import AS_GIVEN, DISTRIBUTIONS
from kernelwright.verify.records import Comparison, OutputError, Trial

#: Findings that say less than any explanation of the same output.
_VAGUE = frozenset({"wrong-values", "offset-per-slice", "factor-per-slice", "affine-per-slice", "affine",
                    "some-slices"})
#: Verdicts on values by the trials that show them, which a finding may still change.
OF_VALUES = frozenset({"WRONG-NUMERIC", "WRONG-DISTRIBUTION", "WRONG-NONFINITE", "WRONG-PARAMETERS", "WRONG-RANDOM"})
#: Findings that are handed on.
MOST_FINDINGS = 8
_FORMS = (("type", "CHEAT-OUTPUT-OBJECT"), ("shape", "WRONG-SHAPE"), ("dtype", "WRONG-DTYPE"),
          ("device", "WRONG-DEVICE"), ("layout", "WRONG-DEVICE"))


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A verdict's code, its reason in one sentence, what would mend it, and all that was found, likeliest first."""

    verdict: str
    reason: str
    fix: str
    findings: tuple[Finding, ...]


def diagnose(certificate: Certificate, findings: Sequence[Finding], evidence: Evidence | None = None,
             precision: str | None = None) -> Diagnosis:
    """The diagnosis of a candidate from what `find_patterns` and `find_hypotheses` found in a failing trial.

    ``precision`` is the class that the certificate's errors show (see `judge.precision`): where nothing else explains
    a small error, it does.
    """
    merged = merge(findings)
    verdict = classify(certificate, merged)
    explained = any(weight(f) >= 1.5 for f in merged)
    if verdict in ("WRONG-NUMERIC", "WRONG-DISTRIBUTION") and not explained and \
            precision not in (None, "float32") and certificate.candidate_error < MOST:
        verdict = "WRONG-PRECISION"
    if evidence is None and not merged:
        return Diagnosis(verdict, certificate.why[0] if certificate.why else "", "", ())
    sentence, fix = reason(verdict, certificate, merged)
    return Diagnosis(verdict, sentence, fix, tuple(merged[:MOST_FINDINGS]))


def merge(findings: Sequence[Finding]) -> list[Finding]:
    """Patterns and hypotheses in one order, the likeliest explanation first.

    A hypothesis that reproduces the output exactly beats a pattern; a pattern that names a place beats one that relates
    values; what is vague is left out where something explains the same. Sentences appear once.
    """
    ordered = sorted(findings, key=lambda f: -weight(f))
    kept: list[Finding] = []
    sentences: set[str] = set()
    for finding in ordered:
        known = finding.kind in _VAGUE and any(weight(f) >= 1.0 for f in kept)
        if finding.sentence not in sentences and not known:
            spoken = f"The {finding.sentence}" if finding.sentence.startswith("output ") else finding.sentence
            kept.append(replace(finding, sentence=spoken))
            sentences.add(finding.sentence)
    return kept


def weight(finding: Finding) -> float:
    """How much a finding tells; forms (structure, shape, type) tell most."""
    return float(finding.evidence.get("weight", 3.0))


#: Hints that say more of a verdict's cause than results do.
_HINTS = {"WRONG-NONDETERMINISTIC": ("shared-sum", "divergent-barrier"),
          "WRONG-STALE": ("static-cache", "output-cache"), "CHEAT-STALE": ("static-cache", "output-cache")}


def reason(verdict: str, certificate: Certificate, findings: Sequence[Finding], hints: Sequence[Finding] = ()
           ) -> tuple[str, str]:
    """The sentence and the fix of a verdict: what is wrong, with which inputs it shows, and what would mend it.
    ``hints`` are what was read in the text, which may say where."""
    # What a state_dict does not fit is no reason for a verdict on values, forms or memory.
    first = next((f for f in findings if f.source == "run"
                  and (f.kind != "state-dict" or verdict == "WRONG-PARAMETERS")), None)
    if first is None:
        return certificate.why[0] if certificate.why else "It failed its checks.", ""
    sentence, where = first.sentence, shown_by(certificate)
    if where and verdict in ("WRONG-DISTRIBUTION", "WRONG-PARAMETERS", "WRONG-NONFINITE") and \
            first.kind != "state-dict":
        sentence = f"{where}: {sentence[:1].lower()}{sentence[1:]}"
    if first.kind == "zeros" and first.evidence["weight"] > 2:  # nothing was computed, or this was
        also = next((f for f in findings if f.evidence.get("exact", 0.0) >= HOLDS), None)
        sentence += f" (Or {also.sentence[:1].lower()}{also.sentence[1:-1]}.)" if also is not None else ""
    if verdict == "WRONG-RANDOM":
        sentence = f"The model draws random numbers, and the candidate draws others or uses them otherwise. {sentence}"
    hint = next((h for h in hints if h.kind in _HINTS.get(verdict, ())), None)
    return sentence, first.fix if hint is None else f"line {hint.line}: {hint.fix[:1].lower()}{hint.fix[1:]}"


def shown_by(certificate: Certificate) -> str:
    """Which of the trials fail, beside which pass: "right as given, wrong with shifted inputs"."""
    gating = [t for t in certificate.trials if t.gates]
    failed = list(dict.fromkeys(_inputs(t) for t in gating if not t.passed))
    passed = list(dict.fromkeys(_inputs(t) for t in gating if t.passed and _inputs(t) not in failed))
    if not failed or not passed:
        return ""
    more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
    return f"Right on inputs {passed[0]}, wrong on inputs {', '.join(failed[:3])}{more}"


def _inputs(trial: Trial) -> str:
    return trial.plan.kind


def failing_trial(certificate: Certificate) -> Trial | None:
    """The trial that is worth making again: the plainest that fails, one whose outputs are wrong first."""
    failed = [t for t in certificate.trials if t.gates and not t.passed]

    def order(trial: Trial) -> tuple[bool, bool, bool, bool, bool]:
        plan = trial.plan
        return (trial.comparison is None, _all_passed(trial), DISTRIBUTIONS[plan.distribution].plants,
                plan.distribution == "zeros", plan.distribution != AS_GIVEN)

    return min(failed, key=order, default=None)


def not_repeatable(trial: Trial) -> Finding:
    """What is said of a trial whose outputs were wrong, and right when it was made again."""
    return Finding("not-repeatable", f"The outputs were wrong on inputs {_inputs(trial)}, and right when the same call "
                   "was made again: they depend on what was called before.",
                   fix="look for a cache whose key (an address or a shape) does not tell inputs apart, for memory that "
                   "is not written in every call, and for a race")


def says_parameters(finding: Finding) -> bool:
    """Whether a candidate's parameters are others than the model's, as they neither load nor were made the same, so
    that its results say nothing else."""
    return finding.kind == "state-dict" and not finding.evidence["loads"] and not finding.evidence.get("held")


def classify(certificate: Certificate, findings: Sequence[Finding]) -> str:
    """The verdict code for a certificate and what diagnosis found about its failing trial.

    OK where it passed; CRASH-RAISED where forward raises; else one of WRONG-*, CHEAT-STALE, CHEAT-OUTPUT-OBJECT and
    CHEAT-INPUT-MUTATION. What says most about the candidate comes first: an object that answers for itself, the form of
    the outputs, effects on inputs and memory, then values, then state, randomness and gradients.
    """
    if certificate.passed:
        return "OK"
    trials = [t for t in certificate.trials if t.gates]
    failed = [t for t in trials if not t.passed]
    kinds = {kind for t in failed for kind in t.kinds}
    outputs = [o for t in failed for c in _comparisons(t) for o in c.outputs if not o.passed]
    forms = {kind for o in outputs for kind in o.kinds}
    found = {f.kind for f in findings if f.source == "run"}
    best = next((f for f in findings if f.source == "run"), None)
    if "type" in forms:
        return "CHEAT-OUTPUT-OBJECT"
    if "raises" in kinds and not any(t.comparison is not None for t in failed):
        return "CRASH-RAISED"
    if any(c.structure for t in failed for c in _comparisons(t)) or "value" in forms:
        return "WRONG-STRUCTURE"
    for kind, verdict in _FORMS:
        if kind in forms:
            return verdict
    if best is not None and says_parameters(best) and outputs:  # without them right values are in wrong memory, say
        return "WRONG-PARAMETERS"
    effect = _effect(kinds, outputs, found, best)
    if effect is not None:
        return effect
    if outputs or any(not _all_passed(t) for t in failed):
        return _values(trials, best)
    if any(t.state is not None and not t.state.passed for t in failed) or kinds & {"state-missing",
                                                                                   "parameter-changed"}:
        return "WRONG-STATE"
    if "random-state" in kinds:
        return "WRONG-RANDOM"
    if "raises" in kinds:
        return "CRASH-RAISED"
    if certificate.gradients is not None and not certificate.gradients.passed:
        return "WRONG-GRADIENT"
    if certificate.state_problems:
        return "WRONG-PARAMETERS"
    return "WRONG-NUMERIC"


def _effect(kinds: set[str], outputs: list[OutputError], found: set[str], best: Finding | None) -> str | None:
    """Verdicts on inputs and memory."""
    if "input-changed" in kinds:
        if "right-for-changed-input" in found or "parameter-changed" in kinds:
            return "CHEAT-INPUT-MUTATION"
        if not outputs:
            return "WRONG-MUTATES-INPUT"
    if best is not None and best.kind == "stale":
        return "WRONG-STALE"
    if best is not None and best.kind == "not-repeatable":
        return "WRONG-NONDETERMINISTIC"
    if "unwritten" in found:
        whole = best is not None and best.kind == "unwritten" and best.evidence.get("share", 1.0) > 0.9
        # Right as long as an earlier result lies there; NaN is then only the judge's own poison.
        return "CHEAT-STALE" if not outputs or whole else "WRONG-NUMERIC"
    if "poisoned" in kinds and (not outputs or (best is not None and best.kind in ("nondeterministic",
                                                                                   "wrong-values"))):
        return "WRONG-NONDETERMINISTIC"
    if "nondeterministic" in kinds and (not outputs or (best is not None and best.kind == "nondeterministic")):
        return "WRONG-NONDETERMINISTIC"
    if kinds & {"alias", "shared-memory"} and not outputs:
        return "WRONG-ALIAS"
    return None


def _values(trials: list[Trial], best: Finding | None) -> str:
    """Verdicts on wrong values, by the trials that show them."""
    wrong = [t for t in trials if not _all_passed(t)]
    right = [t for t in trials if _all_passed(t)]
    outputs = [o for t in wrong for c in _comparisons(t) for o in c.outputs if not o.passed]
    if best is not None and best.kind.startswith("precision"):
        return "WRONG-PRECISION"
    if best is not None and best.kind == "parameters-as-constructed":
        return "WRONG-PARAMETERS"
    if wrong and all(t.plan.redrawn_parameters for t in wrong) and any(not t.plan.redrawn_parameters for t in right) \
            and not any(t.plan.redrawn_parameters and t.plan.distribution == AS_GIVEN for t in right):
        return "WRONG-PARAMETERS"
    if outputs and all(set(o.kinds) <= {"nonfinite"} for o in outputs):
        return "WRONG-NONFINITE"
    # Then random numbers were drawn as the model draws them.
    explained = best is not None and best.kind != "state-dict" and weight(best) >= 2.0
    if any(t.uses_randomness for t in wrong) and not right and not explained:
        return "WRONG-RANDOM"
    if any(t.plan.distribution == AS_GIVEN for t in wrong):
        return "WRONG-NUMERIC"
    if all(DISTRIBUTIONS[t.plan.distribution].plants for t in wrong):
        return "WRONG-NONFINITE"
    return "WRONG-DISTRIBUTION"


def _comparisons(trial: Trial) -> Iterator[Comparison]:
    yield from (c for c in (trial.comparison, trial.against_eager) if c is not None)


def _all_passed(trial: Trial) -> bool:
    return all(c.passed for c in _comparisons(trial))
