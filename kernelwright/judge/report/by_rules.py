"""Another evaluator's verdict and ours in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.judge.records import ByRules, CandidateResult
from kernelwright.judge.verdicts import VERDICTS


def sets_of(candidates: Sequence[CandidateResult]) -> dict[str, str]:
    """The sets of rules that were asked for beside ours: name and title."""
    return {found.rules: found.title for candidate in candidates for found in candidate.by_rules}


def by(candidate: CandidateResult, rules: str) -> ByRules | None:
    """What a set of rules says of a candidate."""
    return next((found for found in candidate.by_rules if found.rules == rules), None)


def word(found: ByRules | None) -> str:
    """The verdict by other rules in a word."""
    return {True: "right", False: "wrong", None: "?"}[found.right] if found is not None else ""


def differs(candidate: CandidateResult, found: ByRules) -> bool:
    """Whether other rules and ours disagree, as far as both say something."""
    return found.right is not None and found.right is not VERDICTS[candidate.verdict].passed


def sentence(candidate: CandidateResult, found: ByRules) -> str:
    """What other rules say beside what ours do: "right by KernelBench's rules, wrong by ours, since ..."."""
    theirs, ours = f"by {found.title}'s rules", VERDICTS[candidate.verdict]
    count = f" ({found.passed} of {found.trials} trials)" if found.trials else ""
    if found.right is None:
        return f"not judged {theirs}: {found.why}."
    if found.right and ours.passed:
        return f"right {theirs}{count}, and by ours."
    if ours.passed:
        return f"wrong {theirs}{count}, right by ours: {found.why}."
    if ours.family in ("PROBLEM", "JUDGE"):
        what = "right" if found.right else "wrong"
        return f"{what} {theirs}{count}; ours say nothing of it: {_begun(candidate.reason)}"
    if found.right:
        return f"right {theirs}{count}, wrong by ours ({candidate.verdict}), since {_begun(candidate.reason)}"
    return f"wrong {theirs}{count}, as by ours: {found.why}."


def _begun(reason: str) -> str:
    """A reason as the end of a sentence; what begins with a name of its own stays."""
    first, _, rest = reason.partition(" ")
    return f"{first.lower()} {rest}" if first in ("The", "It", "Right", "Its", "A", "An", "Nothing") else reason
