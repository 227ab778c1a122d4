"""A critique of a set of candidates in words, as a reviewer writes it, from their verdicts and from nothing else.

Of each: what it is, what is wrong and where, what would mend it, and of what was timed, why it takes as long as it
does. Of all: what they have in common, and which parts of which could be combined. A sentence about a combination says
what the verdicts of both imply: where one is wrong in a single respect that has a name, and another is not wrong in
that respect, the other one's part is what mends the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelwright.judge.report.rank import LEAST_OWN_SHARE
from kernelwright.judge.report.text import clean
from kernelwright.propose import standing as stand
from kernelwright.propose.answers import BROKEN, COMPLETE, CUT_OFF, EMPTY, NO_CODE, PLACEHOLDER
from kernelwright.propose.standing import Verdict, decisive, named_faults, passed, seconds, speed
from kernelwright.report import units
from kernelwright.verify.plain import plain

#: Shares of the limit from which on nothing much is to be gained, and below which much is.
_NEAR_LIMIT, _FAR_FROM_LIMIT = 0.7, 0.3
_FORMS = {"cut-off": CUT_OFF, "cut-off-string": CUT_OFF, "empty-file": EMPTY, "only-comments": EMPTY, "prose": NO_CODE,
          "markdown-without-code": NO_CODE}
_WHAT = {COMPLETE: "A complete file", PLACEHOLDER: "A file with a placeholder", CUT_OFF: "A text that is cut off",
         EMPTY: "An empty answer", NO_CODE: "Words without code", BROKEN: "A text that is not Python"}
_MOST_PAIRS = 6


@dataclass(frozen=True, slots=True)
class Review:
    """What is said of one candidate. ``form``: complete, placeholder, cut off, broken, no code or empty. ``standing``:
    in words. ``wrong``, ``where`` and ``mend`` are "" of what is right. ``speed``: sentences on its time. ``hints``:
    what only stands in its text."""

    name: str
    form: str
    standing: str
    verdict: str
    what: str
    wrong: str = ""
    where: str = ""
    mend: str = ""
    speed: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Critique:
    """The reviews of a set, best first; what its members have in common; what could be combined; what to do next."""

    problem: str
    reviews: tuple[Review, ...]
    common: tuple[str, ...]
    combinations: tuple[str, ...]
    next: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"schema": 1, **plain(self)}


def criticize(problem: str, verdicts: Mapping[str, Verdict], profile: Mapping[str, Any],
              forms: Mapping[str, str] | None = None, same: Mapping[str, str] | None = None) -> Critique:
    """The critique of candidates by their names. ``forms``: what reading the answers showed of them; ``same``: the name
    of the candidate whose text one repeats."""
    forms, same = forms or {}, same or {}
    order = sorted(verdicts, key=lambda n: (-stand.nearness(verdicts[n]), -(speed(verdicts[n]) or 0.0), n))
    reviews = tuple(_review(n, verdicts[n], forms.get(n, ""), same.get(n, ""), profile) for n in order)
    own = {n: v for n, v in verdicts.items() if n not in same}
    return Critique(problem, reviews, tuple(_common(own, reviews, same)), tuple(_combinations(own)),
                    tuple(_next(own)))


# ---- one candidate


def _review(name: str, verdict: Verdict, read: str, same_as: str, profile: Mapping[str, Any]) -> Review:
    form = _form(verdict, read)
    what = _WHAT[form]
    if same_as:
        what += f", the same as {same_as}"
    findings = verdict.get("findings") or []
    main = decisive(verdict)
    wrong = where = mend = ""
    if not passed(verdict):
        wrong = clean(verdict["reason"])
        where = _where(main, wrong)
        mend = clean(verdict.get("fix") or (main or {}).get("fix") or "")
    hints = tuple(clean(f"{_at_line(f)}{f['sentence']}") for f in findings if f["source"] == "read" and f is not main)
    return Review(name, form, stand.standing(verdict), verdict["verdict"], what + ".", wrong, where, mend,
                  tuple(_speed(verdict, profile)), tuple(map(clean, verdict.get("limits") or ())), hints[:4])


def _form(verdict: Verdict, read: str) -> str:
    if passed(verdict):
        return COMPLETE
    kinds = {f["kind"] for f in verdict.get("findings") or []}
    if verdict["verdict"] == "BUILD-EMPTY":
        return read if read in (NO_CODE, CUT_OFF) else EMPTY
    if verdict["verdict"] == "BUILD-SYNTAX":
        return next((_FORMS[k] for k in _FORMS if k in kinds), read if read in (CUT_OFF, NO_CODE) else BROKEN)
    if verdict["verdict"] == "BUILD-INCOMPLETE":
        return PLACEHOLDER
    return read or COMPLETE


def _where(finding: Mapping[str, Any] | None, said: str) -> str:
    """The line and the element, as far as the reason does not say them."""
    if finding is None:
        return ""
    evidence = finding.get("evidence") or {}
    parts = []
    if finding.get("line"):
        parts.append(f"line {finding['line']}" + (f", `{clean(finding['text'], 160)}`" if finding.get("text") else ""))
    index = evidence.get("index")
    if index is not None and f"at {index}" not in said:
        values = [f"{label} {evidence[key]}" for label, key in (("got", "got"), ("expected", "expected"))
                  if evidence.get(key) is not None]
        parts.append(f"element {index}" + (f" ({', '.join(values)})" if values else ""))
    return "; ".join(parts)


def _at_line(finding: Mapping[str, Any]) -> str:
    return f"Line {finding['line']}: " if finding.get("line") else ""


def _speed(verdict: Verdict, profile: Mapping[str, Any]) -> list[str]:
    """Why it takes as long as it does, as far as that was measured."""
    timing = verdict.get("timing")
    if not timing:
        return []
    said = []
    ratio = timing.get("speedup")
    time = units.seconds(timing["seconds"])
    if ratio is None:
        said.append(f"It takes {time}; too few rounds ran to say how that compares with eager.")
    else:
        spread = f"{units.digits(ratio['low'])} to {units.digits(ratio['high'])}"
        tie = "" if ratio["low"] > 1 or ratio["high"] < 1 else ", so no difference is shown"
        said.append(f"It takes {time}, {units.digits(ratio['value'])}x as fast as eager ({spread}{tie}).")
    share = timing.get("own_share")
    if share is not None:
        percent = f"{100 * share:.0f} %"
        said.append(
            f"Its time is the library's: {percent} of it is spent in kernels of its own." if share < LEAST_OWN_SHARE
            else f"Its speed is its kernels': {percent} of its time is spent in them." if share > 0.8
            else f"{percent} of its time is spent in its own kernels, the rest in library calls.")
    limit = timing.get("share_of_floor")
    if limit is not None:
        roof = (profile.get("roof") or {}).get("words", "")
        because = f" (the limit is {roof})" if roof else ""
        said.append(
            f"It is near the limit of the device, at {100 * limit:.0f} % of it{because}: nothing much is left to gain."
            if limit >= _NEAR_LIMIT else
            f"It is far from the limit of the device, at {_percent(limit)} of it{because}: what it does beyond "
            "reading inputs and writing results once takes the time." if limit < _FAR_FROM_LIMIT else
            f"It reaches {100 * limit:.0f} % of the limit of the device{because}.")
    if verdict.get("precision") in ("tf32", "16-bit"):
        said.append(f"It computes in {verdict['precision']}: fewer digits are part of its speed.")
    if timing.get("graph"):
        said.append("Its calls launch a CUDA graph that it recorded: what stands between kernels is gone.")
    if timing.get("note"):
        said.append(f"What limits the measurement: {clean(timing['note'])}.")
    return said


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.2g} %"


# ---- the set


def _common(verdicts: Mapping[str, Verdict], reviews: Sequence[Review], same: Mapping[str, str]) -> list[str]:
    said = []
    right = [n for n, v in verdicts.items() if passed(v)]
    count = sum(r.verdict.startswith("OK") for r in reviews)
    said.append(f"Of {len(reviews)} candidates {count} {'is' if count == 1 else 'are'} right." if len(reviews) > 1 else
                "There is one candidate.")
    for name in dict.fromkeys(same.values()):
        copies = sorted(n for n, of in same.items() if of == name)
        said.append(f"{_listed([name, *copies])} are one text.")
    kinds: dict[str, list[str]] = {}
    lines: dict[str, list[str]] = {}
    for name, verdict in verdicts.items():
        if not passed(verdict):
            main = decisive(verdict)
            kinds.setdefault((main or {}).get("kind") or verdict["verdict"], []).append(name)
            if main and main.get("text"):
                lines.setdefault(main["text"], []).append(name)
    for kind, names in kinds.items():
        if len(names) > 1:
            said.append(f"{_listed(names)} have the same fault ({kind}).")
    for text, names in lines.items():
        if len(names) > 1:
            said.append(f"{_listed(names)} fail on the same line: `{clean(text, 160)}`.")
    only_other = [n for n, v in verdicts.items() if v["verdict"] in ("WRONG-DISTRIBUTION", "WRONG-PARAMETERS")]
    if only_other:
        said.append(f"{_listed(only_other)} {_are(only_other)} right on the problem's own inputs and wrong on others, "
                    "which a comparison on the given inputs would not have shown.")
    timed = [n for n in right if verdicts[n].get("timing")]
    faster = [n for n in timed if (verdicts[n]["timing"].get("speedup") or {}).get("low", 0) > 1]
    if timed and not faster:
        said.append("None of those that were timed is shown to be faster than eager.")
    shares = [verdicts[n]["timing"].get("own_share") for n in timed]
    if len(timed) > 1 and all(s is not None and s < LEAST_OWN_SHARE for s in shares):
        said.append("All that were timed lean on the library: none spends 5 % of its time in kernels of its own.")
    return said


def _combinations(verdicts: Mapping[str, Verdict]) -> list[str]:
    said = []
    right = sorted((n for n, v in verdicts.items() if passed(v)), key=lambda n: -(speed(verdicts[n]) or 0.0))
    single = {n: named_faults(v)[0] for n, v in verdicts.items() if not passed(v) and len(named_faults(v)) == 1}
    names = sorted(single)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1:] if single[a]["kind"] != single[b]["kind"]]
    for a, b in pairs[:_MOST_PAIRS]:
        said.append(f"{a} is wrong in one respect ({single[a]['kind']}) and {b} in another ({single[b]['kind']}): what "
                    f"mends each stands in the other.")
    if right:
        best = right[0]
        for name in names[:_MOST_PAIRS]:
            said.append(f"{name} would be right with what {best} does in its place: {clean(single[name]['fix'])}")
        lacking = sorted(n for n, v in verdicts.items() if v["verdict"] == "BUILD-INCOMPLETE")
        for name in lacking[:_MOST_PAIRS]:
            said.append(f"What {name} lacks, {best} has: its constructor makes everything that the model's does.")
    timed = [n for n in right if seconds(verdicts[n]) is not None and stand.error(verdicts[n]) is not None]
    if len(timed) > 1:
        fastest = min(timed, key=lambda n: seconds(verdicts[n]) or 0.0)
        exact = min(timed, key=lambda n: stand.error(verdicts[n]) or 0.0)
        own, least = stand.error(verdicts[fastest]) or 0.0, stand.error(verdicts[exact]) or 0.0
        if fastest != exact and own > 1.5 * least:
            said.append(f"{fastest} is the fastest and {exact} the most accurate ({least:.1e} against {own:.1e}): the "
                        f"sums of {exact} in {fastest} would show whether both can be had.")
        own_kernels = [n for n in timed if (verdicts[n]["timing"].get("own_share") or 0) >= LEAST_OWN_SHARE]
        if own_kernels and fastest not in own_kernels:
            said.append(f"{own_kernels[0]} has kernels of its own and {fastest}, which leans on the library, is "
                        f"faster: the calls of {fastest} may stay where the kernels of {own_kernels[0]} lose.")
    return said


def _next(verdicts: Mapping[str, Verdict]) -> list[str]:
    """What is worth doing first, by nearness."""
    order = sorted((n for n, v in verdicts.items() if not passed(v) and stand.nearness(v) > 0.1),
                   key=lambda n: (-stand.nearness(verdicts[n]), n))
    said = []
    for name in order[:3]:
        fix = clean(verdicts[name].get("fix") or (decisive(verdicts[name]) or {}).get("fix") or "")
        if fix:
            said.append(f"Mend {name}: {fix}")
    return said


def _are(names: Sequence[str]) -> str:
    return "are" if len(names) > 1 else "is"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
