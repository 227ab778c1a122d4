"""``bench --propose``: candidates of language models over a folder of problems, and what came of them.

The options stand in a TOML file, by the names of ``kernelwright propose``. Each problem is a run of its own, in a
process of its own, through the same scheduler. Nothing here imports PyTorch.

correct: share of **all** problems with a right candidate; beside it the share of candidates that are right.
fast_p: share of all problems whose best right candidate is more than p times as fast as eager; fast_0 is ``correct``.
geometric mean: over the best right candidates that were timed; their number stands beside it.
learning curve: both, by what was there at the end of each round.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from kernelwright.errors import InvalidOption
from kernelwright.report import units
from kernelwright.report.layout import Page

WORK = "kernelwright.suite.propose_worker:propose_problem"
FILE = "proposals.md"
FAST = (0.0, 1.0, 1.5, 2.0)
#: Options of ``propose`` that a file may have, with their types.
OPTIONS: dict[str, tuple[type, ...]] = {
    "endpoint": (str,), "model": (str,), "from": (str,), "candidates": (int,), "rounds": (int,), "search": (str,),
    "blind": (bool,), "temperature": (int, float), "answer_tokens": (int,), "budget_tokens": (int,),
    "budget_seconds": (int, float), "budget_money": (int, float), "prices": (str,), "backward": (bool,),
    "own_kernels": (bool,), "time": (bool,), "limit": (int, float, str), "memory": (int, float)}


def read_options(file: Path) -> dict[str, Any]:
    """The options in a file; paths in it are taken from its folder. Raises InvalidOption (KW403)."""
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _invalid(file, f"a file that can be read ({error.strerror})") from error
    except ValueError as error:
        raise _invalid(file, f"a TOML file ({error})") from error
    for name, value in found.items():
        if name not in OPTIONS or not isinstance(value, OPTIONS[name]) \
                or (isinstance(value, bool) and bool not in OPTIONS[name]):
            raise _invalid(file, f"a file of the options {', '.join(OPTIONS)}, each with its own kind of value; it has "
                                 f"{name} = {value!r}")
    if bool(found.get("endpoint")) == bool(found.get("from")):
        raise _invalid(file, "a file that says where candidates come from: endpoint and model, or from")
    for name in ("from", "prices"):
        if name in found:
            found[name] = str((file.parent / found[name]).resolve())
    return found


def answers_of(below: Path, problem: str) -> Path:
    """Where answers to a problem that exist stand: a folder, or a file, of its name."""
    folder = below / problem
    files = (folder.with_name(folder.name + suffix) for suffix in (".md", ".txt", ".json", ".jsonl", ".py"))
    return next((path for path in (folder, *files) if path.exists()), folder)


def _invalid(file: Path, choices: str) -> InvalidOption:
    return InvalidOption(option="--propose", value=str(file), choices=choices, default="no candidates")


# ---- scores


@dataclass(frozen=True, slots=True)
class ProposalScore:
    """One problem. ``best``: the speed-up over eager of the fastest right candidate, None where none was timed.
    ``chosen``: whose file was written. ``rounds``: for each round whether a right candidate was there at its end, and
    the best speed-up up to it."""

    name: str
    state: str
    candidates: int
    right: int
    best: float | None
    chosen: str
    tokens: int
    seconds: float
    money: float | None
    rounds: tuple[tuple[bool, float | None], ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """All problems at the end of a round."""

    number: int
    correct: float
    mean: float | None


@dataclass(frozen=True, slots=True)
class ProposalScores:
    """All problems."""

    problems: tuple[ProposalScore, ...]
    correct: float
    right: float
    fast: tuple[float, ...]
    mean: float | None
    timed: int
    taken: int
    tokens: float
    seconds: float
    curve: tuple[Curve, ...]


def score(record: Mapping[str, Any]) -> ProposalScore:
    """The score of a problem's record."""
    found = record.get("propose") or {}
    candidates = found.get("candidates") or []
    right = [c for c in candidates if str(c["verdict"]).startswith("OK")]
    spent = found.get("spent") or {}
    rounds, so_far, best = [], False, None
    for entry in found.get("rounds") or []:
        so_far = so_far or entry["right"] > 0
        best = entry["best"] if entry["best"] is not None else best
        rounds.append((so_far, best))
    return ProposalScore(
        record["problem"], record["state"], len(candidates), len(right),
        max((c["speed"] for c in right if c["speed"] is not None), default=None), found.get("chosen", ""),
        spent.get("prompt_tokens", 0) + spent.get("answer_tokens", 0), spent.get("seconds", 0.0), spent.get("money"),
        tuple(rounds))


def score_all(records: Sequence[Mapping[str, Any]]) -> ProposalScores:
    """The scores of all records, which must not be none."""
    problems = tuple(map(score, records))
    count, candidates = len(problems), sum(p.candidates for p in problems)
    bests = [p.best for p in problems if p.best is not None]
    fast = tuple(sum(p.right > 0 if not limit else (p.best or 0.0) > limit for p in problems) / count
                 for limit in FAST)
    longest = max((len(p.rounds) for p in problems), default=0)
    curve = []
    for number in range(longest):
        # A run that ended early stays where it was.
        states = [p.rounds[min(number, len(p.rounds) - 1)] if p.rounds else (False, None) for p in problems]
        speeds = [best for _, best in states if best is not None]
        curve.append(Curve(number + 1, sum(correct for correct, _ in states) / count,
                           geometric_mean(speeds) if speeds else None))
    return ProposalScores(
        problems, fast[0], sum(p.right for p in problems) / max(1, candidates), fast,
        geometric_mean(bests) if bests else None, len(bests), sum(p.chosen not in ("", "ours") for p in problems),
        sum(p.tokens for p in problems) / count, sum(p.seconds for p in problems) / count, tuple(curve))


# ---- tables


def _overall(scores: ProposalScores) -> list[tuple[str, str]]:
    mean = "none was timed" if scores.mean is None else f"{units.digits(scores.mean)}x (of {scores.timed})"
    return [("problems", str(len(scores.problems))), ("correct", f"{scores.correct:.0%}"),
            ("right candidates", f"{scores.right:.0%}"),
            *((f"fast_{limit:g}", f"{share:.0%}") for limit, share in zip(FAST[1:], scores.fast[1:])),
            ("geometric mean over eager", mean), ("files that are a candidate's", str(scores.taken)),
            ("tokens a problem", f"{scores.tokens:.0f}"), ("seconds a problem", f"{scores.seconds:.0f}")]


def _problem_rows(scores: ProposalScores) -> list[list[str]]:
    return [[p.name, p.state, f"{p.right}/{p.candidates}", f"{units.digits(p.best)}x" if p.best else "", p.chosen,
             str(p.tokens), f"{p.seconds:.0f}"] for p in scores.problems]


def _curve_rows(scores: ProposalScores) -> list[list[str]]:
    return [[str(c.number), f"{c.correct:.0%}", f"{units.digits(c.mean)}x" if c.mean else ""] for c in scores.curve]


_HEAD = ("problem", "state", "right", "best over eager", "file", "tokens", "seconds")
_CURVE = ("round", "correct", "geometric mean of the best so far")


def render_proposals(records: Sequence[Mapping[str, Any]], *, colour: bool = False, width: int = 100) -> str:
    """The tables as text, no final newline."""
    scores, page = score_all(records), Page(colour, width)
    page.table(_problem_rows(scores), head=_HEAD)
    page.heading("All problems")
    page.table([list(row) for row in _overall(scores)], head=("", ""))
    if scores.curve:
        page.heading("By round")
        page.table(_curve_rows(scores), head=_CURVE)
    return page.text()


def markdown(records: Sequence[Mapping[str, Any]]) -> str:
    """The tables as Markdown, with a final newline."""
    scores = score_all(records)
    lines = ["# Candidates of language models", "", *_marked(("", "all problems"), _overall(scores)), ""]
    if scores.curve:
        lines += ["## By round", "", *_marked(_CURVE, _curve_rows(scores)), ""]
    lines += ["## Problems", "", *_marked(_HEAD, _problem_rows(scores))]
    return "\n".join(lines) + "\n"


def _marked(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *(f"| {' | '.join(row)} |" for row in cells)]
