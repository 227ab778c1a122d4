"""Mend kernels with one injected fault each by what the judge says of them, and by nothing else.

    python tools/mend_corpus.py                                     # one candidate of each kind of fault in Python
    python tools/mend_corpus.py --each 2 --output benchmarks/results/judge_mending.md
    python tools/mend_corpus.py --only "bias dropped" --rounds 1

The faults are those of ``tools/mutation_corpus.py``. A faulty candidate is judged; ``tools/mutations/mending.py`` reads
the verdict's JSON and the candidate's text, and gives other texts; these are judged, eight in a round, in the order in
which they were given, until one is right. It stands in for a language model in the loop of ``kernelwright propose``:
what it mends, the diagnosis suffices to mend.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from mutations.corpus import Mutant, Texts, collect
from mutations.mending import mended

import kernelwright
import kernelwright.judge.run as judging
from kernelwright.judge.settings import JudgeSettings
from kernelwright.progress import make_progress
from kernelwright.propose.standing import passed

#: Texts in a round, and rounds: as many answers as ``kernelwright propose`` asks for by itself.
TOGETHER, ROUNDS = 8, 4
_self_test = functools.cache(judging.self_test)


@dataclass(slots=True)
class Case:
    """A faulty candidate, its verdict, the texts that mending gave, and the number of the one that is right."""

    mutant: Mutant
    verdict: dict[str, Any]
    texts: list[str] = field(default_factory=list)
    tried: int = 0
    right: int | None = None


def judge(texts: Texts, base: Any, named: dict[str, str], folder: Path, seed: int) -> dict[str, dict[str, Any]]:
    """The verdicts on texts by their names, as JSON."""
    files = []
    for name, text in named.items():
        files.append(folder / "candidates" / f"{name}.py")
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        files[-1].write_text(text, encoding="utf-8")
    settings = JudgeSettings(target="cpp", effort="quick", tiny=True, time=False, seed=seed, quiet=True)
    with patch.object(judging, "self_test", _self_test):
        found = judging.judge(texts.problem_path(base), files, settings, make_progress(quiet=True))
    return dict(zip(named, found.to_json()["candidates"], strict=True))


def mend(mutants: Sequence[Mutant], texts: Texts, folder: Path, seed: int, rounds: int = ROUNDS,
         together: int = TOGETHER) -> list[Case]:
    """Judge mutants and mend them, base by base."""
    cases = []
    for base in {m.base.name: m.base for m in mutants}.values():
        own = [m for m in mutants if m.base == base]
        verdicts = judge(texts, base, {m.name: m.text for m in own}, folder, seed)
        here = [Case(m, verdicts[m.name], mended(m.text, verdicts[m.name])) for m in own]
        for number in range(rounds):
            waiting = {f"{case.mutant.name}__{number}_{k}": (case, text) for case in here if case.right is None
                       for k, text in enumerate(case.texts[case.tried:case.tried + together])}
            if not waiting:
                break
            found = judge(texts, base, {name: text for name, (_, text) in waiting.items()}, folder, seed + number + 1)
            for name, (case, _) in waiting.items():
                if case.right is None and passed(found[name]):
                    case.right = case.tried
                case.tried += case.right is None
        cases += here
        done = sum(c.right is not None for c in cases)
        print(f"{base.name}: {sum(c.right is not None for c in here)} of {len(here)}; {done} of {len(cases)}",
              flush=True)
    return cases


def document(cases: Sequence[Case], command: str, seed: int, seconds: float, most: int) -> str:
    """The results as Markdown."""
    right = [c for c in cases if c.right is not None]
    first = sum(c.right == 0 for c in right)
    lines = ["# Mending by the judge's diagnosis alone", "",
             f"Kernels with one injected fault each (`tools/mutation_corpus.py`): {len(cases)} candidates, "
             f"{len({c.mutant.fault.name for c in cases})} kinds of fault.", "",
             f"**Mended: {len(right)} of {len(cases)} ({len(right) / max(1, len(cases)):.0%}), {first} of them by the "
             "first text that was tried.** Rules (`tools/mutations/mending.py`) read the verdict's JSON and the "
             f"candidate's text, and nothing else; the judge says which text is right, at most {most} for each.", "",
             f"`{command}`, seed {seed}, {seconds / 60:.0f} minutes, {time.strftime('%Y-%m-%d')}; kernelwright "
             f"{kernelwright.__version__}, effort quick, without times.", "",
             "| Fault | Base | Verdict | Finding | Texts | Right at |", "| --- | --- | --- | --- | --- | --- |"]
    for case in sorted(cases, key=lambda c: (c.right is None, c.mutant.fault.name)):
        kind = next((f["kind"] for f in case.verdict["findings"] if f["source"] != "read"), "")
        at = "" if case.right is None else str(case.right + 1)
        lines.append(f"| {case.mutant.fault.name} | {case.mutant.base.name} | {case.verdict['verdict']} | {kind} | "
                     f"{len(case.texts)} | {at} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Mend the corpus; 0 where half of it is mended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="chooses places and bases")
    parser.add_argument("--each", type=int, default=1, help="candidates of each kind of fault")
    parser.add_argument("--only", action="append", default=[], help="a kind of fault; may be given again")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds at most")
    parser.add_argument("--together", type=int, default=TOGETHER, help="texts in a round")
    parser.add_argument("--output", type=Path, help="a .md file, or a .json file")
    given = parser.parse_args(arguments)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        texts = Texts(Path(temporary))
        mutants, _ = collect(texts, given.seed, given.each, 0, given.only)
        cases = mend(mutants, texts, Path(temporary), given.seed, given.rounds, given.together)
    command = " ".join(["python tools/mend_corpus.py", *arguments])
    text = document(cases, command, given.seed, time.monotonic() - started, given.rounds * given.together)
    if given.output is not None:
        plain = [{"name": c.mutant.name, "verdict": c.verdict["verdict"], "texts": len(c.texts), "right": c.right}
                 for c in cases]
        data = json.dumps(plain, indent=1) + "\n"
        given.output.write_text(data if given.output.suffix == ".json" else text, encoding="utf-8")
    print(text)
    return int(2 * sum(c.right is not None for c in cases) < len(cases))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
