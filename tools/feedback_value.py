"""What of a verdict's feedback helps: faults that are mended by all of it, and by parts.

    python tools/feedback_value.py                                    # a table
    python tools/feedback_value.py --output benchmarks/results/feedback_value.md

The faults and the verdicts on them are recorded (``tests/records/mutation_verdicts.json``, as the judge gave them on
``tools/mutation_corpus.py``). A scripted stand-in for a language model (``tools/mutations/mending.py``) reads the
faulty text and what is left of the verdict, and gives at most 32 texts, the likeliest first. A fault counts as mended
where one of them is the program of the right candidate, which it never sees; nothing is run. Without findings the
stand-in goes by the verdict's name, and without that it tries all that it knows in one order, as whoever is told
"wrong" must.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from mutations.bases import BASES
from mutations.corpus import FAULTS, Texts
from mutations.mending import BY_VERDICT, MOST, RULES, mended

RECORDED = Path(__file__).resolve().parents[1] / "tests" / "records" / "mutation_verdicts.json"
#: Answers of a round of ``kernelwright propose``, by itself.
ROUND = 8

Verdict = Mapping[str, Any]


def _findings(verdict: Verdict, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Verdict:
    return {**verdict, "findings": [change(dict(finding)) for finding in verdict["findings"]]}


def _sentences(verdict: Verdict) -> Verdict:
    """Without what only a program reads: numbers, indices, the relation that holds."""
    return _findings(verdict, lambda finding: {**finding, "evidence": {}})


def _numbers(verdict: Verdict) -> Verdict:
    """Without what would mend it, and without sentences."""
    return {**_findings(verdict, lambda finding: {**finding, "fix": "", "sentence": ""}), "fix": "", "reason": ""}


def _first(verdict: Verdict) -> Verdict:
    """The first finding alone."""
    return {**verdict, "findings": verdict["findings"][:1]}


def _reason(verdict: Verdict) -> Verdict:
    """What a person reads: the verdict, its reason and its mend."""
    return {**verdict, "findings": []}


def _name(verdict: Verdict) -> Verdict:
    return {"verdict": verdict["verdict"], "reason": "", "fix": "", "findings": []}


PARTS: dict[str, Callable[[Verdict], Verdict]] = {
    "all of it": dict, "the first finding alone": _first, "findings without numbers and places": _sentences,
    "findings without sentences and mends": _numbers, "the verdict, its reason and its mend": _reason,
    "the verdict's name": _name}
BLIND = "that it is wrong"


def _blind(text: str) -> list[str]:
    """Texts by all rules, in one order, whatever was said."""
    ideas: dict[str, None] = {}
    for kind in RULES:
        finding = {"source": "run", "kind": kind, "evidence": {}, "fix": "", "sentence": ""}
        ideas.update(dict.fromkeys(mended(text, {"verdict": "", "reason": "", "fix": "", "findings": [finding]})))
        if len(ideas) >= MOST:
            break
    for name in BY_VERDICT:
        if len(ideas) < MOST:
            ideas.update(dict.fromkeys(mended(text, _name({"verdict": name}))))
    return list(ideas)[:MOST]


def _program(text: str) -> str:
    return ast.dump(ast.parse(text))


def measured(recorded: list[dict[str, Any]]) -> dict[str, list[int | None]]:
    """For each part of the feedback the place of the right text among those that it gave, of each fault."""
    faults, bases = {f.name: f for f in FAULTS}, {b.name: b for b in BASES}
    found: dict[str, list[int | None]] = {name: [] for name in (*PARTS, BLIND)}
    with tempfile.TemporaryDirectory() as folder:
        texts = Texts(Path(folder))
        for entry in recorded:
            right = texts.text(bases[entry["base"]])
            wanted = _program(right)
            faulty = list(dict.fromkeys(faults[entry["fault"]].apply(right)))[entry["place"]]
            for name in found:
                ideas = _blind(faulty) if name == BLIND else mended(faulty, PARTS[name](entry["verdict"]))
                places = (n for n, idea in enumerate(ideas) if _program(idea) == wanted)
                found[name].append(next(places, None))
    return found


def document(found: Mapping[str, list[int | None]], command: str) -> str:
    """The table as Markdown."""
    count = len(next(iter(found.values())))
    lines = ["# What of a verdict's feedback helps", "",
             f"{count} candidates with one injected fault each, and the judge's recorded verdicts on them. A scripted "
             "stand-in", "for a language model reads the candidate and what is left of the verdict, and gives at most "
             f"{MOST} other texts; mended:", "one of them is the program of the right candidate.", "",
             f"`{command}`, {time.strftime('%Y-%m-%d')}", "",
             f"| Told | Mended | Within a round of {ROUND} | By the first text |", "| --- | --- | --- | --- |"]
    for name, places in found.items():
        right = [place for place in places if place is not None]
        lines.append(f"| {name} | {len(right)} ({len(right) / count:.0%}) | {sum(p < ROUND for p in right)} | "
                     f"{sum(p == 0 for p in right)} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="a .md file")
    given = parser.parse_args(arguments)
    found = measured(json.loads(RECORDED.read_text(encoding="utf-8")))
    text = document(found, " ".join(["python tools/feedback_value.py", *arguments]))
    if given.output is not None:
        given.output.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
