"""A candidate that is right here, and wrong by the rules of others where it is constructed anew."""

from __future__ import annotations

import pytest

from kernelwright.judge.check.by_rules import disputed
from kernelwright.judge.records import ByRules, CandidateResult

FAR, CLOSE = "25 of 40 elements are off by more than 0.01 + 0.01 of their size, at most by 0.1", ""
RAISES = "the model itself raises on what it is given there, NotImplementedError, so nobody is right"


@pytest.mark.parametrize(("verdict", "strict", "loose", "after"), [
    ("OK", (False, FAR), (False, FAR), "OK-BUT"), ("OK-BUT", (False, FAR), (False, FAR), "OK-BUT"),
    ("OK", (False, FAR), (True, CLOSE), "OK"),  # fewer digits than they want, as PyTorch has
    ("OK", (None, "memory does not suffice"), (False, FAR), "OK-BUT"),
    ("OK", (False, RAISES), (False, RAISES), "OK"), ("OK", (None, "not run"), (None, "not run"), "OK"),
    ("WRONG-NUMERIC", (False, FAR), (False, FAR), "WRONG-NUMERIC")])
def test_one_that_no_rules_call_right_is_limited(verdict: str, strict: tuple[bool | None, str],
                                                 loose: tuple[bool | None, str], after: str) -> None:
    limits = ("an own limit",) if verdict == "OK-BUT" else ()
    rules = (ByRules("kernelbench", "KernelBench", *strict), ByRules("kernelbench-2025", "KernelBench 2025", *loose))
    given = CandidateResult("x.py", verdict, "It passed.", by_rules=rules, limits=limits)
    found = disputed(given)
    assert found.verdict == after
    if FAR in str(found.limits):
        assert found.limits[1:] == limits and "constructed again" in found.reason
        assert found.reason.endswith("0.1; an own limit." if limits else "0.1.")
    else:
        assert found == given
