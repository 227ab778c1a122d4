"""Where a candidate stands by its verdict alone, and how near it is to being right.

Everything here is read from the judge's JSON document of a candidate (``docs/judge.md``), so that it holds for
verdicts of this run and for those that were recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelwright.judge.verdicts import VERDICTS

#: A candidate's part of the judge's document.
Verdict = Mapping[str, Any]

RIGHT, LIMITED, ALMOST, WRONG, FAILS, NO_BUILD, NOTHING, CHEATS, UNKNOWN = (
    "right", "right with limits", "almost right", "wrong", "does not run", "does not build", "nothing to judge",
    "refused for its conduct", "not judged")
#: Findings that say that something is wrong without saying what of the computation it is.
_VAGUE = frozenset({"", "values", "everywhere", "somewhere", "nonfinite", "zeros", "constant", "unwritten"})
_NEARNESS = {"WRONG-PRECISION": 0.9, "WRONG-DISTRIBUTION": 0.8, "WRONG-PARAMETERS": 0.8, "WRONG-STATE": 0.8,
             "WRONG-NONFINITE": 0.75, "WRONG-DTYPE": 0.75, "WRONG-MUTATES-INPUT": 0.85, "WRONG-ALIAS": 0.85,
             "WRONG-GRADIENT": 0.85, "WRONG-NONDETERMINISTIC": 0.7, "WRONG-RACE": 0.65,
             "WRONG-OUT-OF-BOUNDS": 0.65, "WRONG-STALE": 0.6, "WRONG-SHAPE": 0.5,
             "CRASH-LAUNCH": 0.45, "CRASH-RAISED": 0.4, "BUILD-COMPILE": 0.35, "BUILD-LINK": 0.35,
             "BUILD-INCOMPLETE": 0.3, "BUILD-CONSTRUCT": 0.3, "BUILD-IMPORT": 0.3, "BUILD-SYNTAX": 0.2,
             "BUILD-NO-CLASS": 0.1, "BUILD-EMPTY": 0.0}
_FAMILY = {"WRONG": 0.5, "CRASH": 0.35, "BUILD": 0.2, "CHEAT": 0.05, "PROBLEM": 0.0, "JUDGE": 0.0}
#: From here on a candidate is almost right.
ALMOST_FROM = 0.7


def passed(verdict: Verdict) -> bool:
    """Whether the judge found it right, with limits or without."""
    code = VERDICTS.get(verdict["verdict"])
    return code is not None and code.passed


def family(verdict: Verdict) -> str:
    """OK, BUILD, CRASH, WRONG, CHEAT, PROBLEM or JUDGE."""
    return str(verdict["verdict"]).partition("-")[0]


def decisive(verdict: Verdict) -> Mapping[str, Any] | None:
    """The finding that is the verdict's reason: the first that was seen, said or measured, else the first hint."""
    findings = verdict.get("findings") or []
    return next((f for f in findings if f["source"] != "read"), findings[0] if findings else None)


def named_faults(verdict: Verdict) -> list[Mapping[str, Any]]:
    """The findings that were seen in results and say what of the computation is wrong, with what would mend it."""
    if family(verdict) != "WRONG":
        return []
    return [f for f in verdict.get("findings") or [] if f["source"] == "run" and f["kind"] not in _VAGUE and f["fix"]]


def nearness(verdict: Verdict) -> float:
    """How near to right, from 0 to 1: by the verdict, and by whether what is wrong has a name."""
    if passed(verdict):
        return 1.0
    known = _NEARNESS.get(verdict["verdict"])
    if known is None:
        known = 0.7 if family(verdict) == "WRONG" and named_faults(verdict) else _FAMILY.get(family(verdict), 0.0)
    return known


def standing(verdict: Verdict) -> str:
    """Where it stands, in words."""
    code = verdict["verdict"]
    if code == "OK":
        return RIGHT
    if passed(verdict):
        return LIMITED
    kind = family(verdict)
    if code == "BUILD-EMPTY":
        return NOTHING
    if kind in ("JUDGE", "PROBLEM"):
        return UNKNOWN
    if kind == "WRONG":
        return ALMOST if nearness(verdict) >= ALMOST_FROM else WRONG
    return {"CHEAT": CHEATS, "CRASH": FAILS, "BUILD": NO_BUILD}[kind]


def speed(verdict: Verdict) -> float | None:
    """How many times as fast as eager, where it was timed."""
    timing = verdict.get("timing")
    return timing["speedup"]["value"] if timing and timing.get("speedup") else None


def seconds(verdict: Verdict) -> float | None:
    """Its time, where it was timed."""
    timing = verdict.get("timing")
    return timing["seconds"] if timing else None


def error(verdict: Verdict) -> float | None:
    """Its worst relative error against float64, where it was compared; infinite where it had NaN."""
    found = verdict.get("error")
    return None if not found else number(found["candidate"])


def number(value: Any) -> float:
    """A number of a document, in which NaN and infinities are strings. NaN is as bad as infinite."""
    found = float(value)
    return float("inf") if found != found else found
