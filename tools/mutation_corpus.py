"""Judge kernels with one injected fault each: how many are refused, and how many are named rightly.

    python tools/mutation_corpus.py                                        # the whole corpus, a table by kind of fault
    python tools/mutation_corpus.py --output benchmarks/results/judge_mutations.md
    python tools/mutation_corpus.py --only "bias dropped" --each 8         # more of one kind

Correct candidates get one fault each, at a place that the seed chooses (``tools/mutations``). What does not differ from
its base on any input that the judge draws is no fault, and left out. The rest must be refused, for the right reason:
by the verdict's code and the kind of the finding that is its reason.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from mutations.corpus import Left, Mutant, Texts, collect

import kernelwright
import kernelwright.judge.run as judging
from kernelwright.judge.records import CandidateResult
from kernelwright.judge.settings import JudgeSettings
from kernelwright.judge.verdicts import VERDICTS
from kernelwright.progress import make_progress

#: Candidates of each kind of fault in Python and in C++; building C++ takes seconds each.
EACH, EACH_NATIVE = 4, 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the judge said of one mutant."""

    mutant: Mutant
    result: CandidateResult

    @property
    def refused(self) -> bool:
        """Whether it got a verdict against it. JUDGE-* and PROBLEM-* say nothing about the candidate."""
        return VERDICTS[self.result.verdict].family in ("BUILD", "CRASH", "WRONG", "CHEAT")

    @property
    def kind(self) -> str:
        """The kind of the finding that is the verdict's reason; "" where the verdict's code stands alone."""
        return next((f.kind for f in self.result.findings if f.source != "read"), "")

    @property
    def named(self) -> bool:
        """Whether verdict and reason name the fault. A reason that says where values are wrong says how, too."""
        fault = self.mutant.fault
        place = next((f.evidence.get("holds") for f in self.result.findings if f.source != "read"), None)
        named = bool({self.kind, place} & fault.kinds)
        said = bool(fault.says) and re.search(fault.says, self.result.reason, re.IGNORECASE) is not None
        return self.result.verdict in fault.verdicts and (named or said)


_self_test = functools.cache(judging.self_test)


def judge_all(mutants: Sequence[Mutant], texts: Texts, folder: Path, seed: int) -> list[Outcome]:
    """The judge's results, problem by problem; its self-test runs once for all."""
    settings = JudgeSettings(target="cpp", effort="quick", tiny=True, time=False, seed=seed, quiet=True)
    found = []
    for base in {m.base.name: m.base for m in mutants}.values():
        own = [m for m in mutants if m.base == base]
        files = []
        for mutant in own:
            files.append(folder / "candidates" / f"{mutant.name}_{mutant.fault.language}.py")
            files[-1].parent.mkdir(parents=True, exist_ok=True)
            files[-1].write_text(mutant.text, encoding="utf-8")
        with patch.object(judging, "self_test", _self_test):
            judged = judging.judge(texts.problem_path(base), files, settings, make_progress(quiet=True))
        if judged.unfit:
            raise SystemExit(f"the judge is unfit: {judged.selftest['words']}")
        found += [Outcome(mutant, result) for mutant, result in zip(own, judged.candidates, strict=True)]
        wrong = sum(not o.named for o in found)
        print(f"{base.name}: {len(own)} candidates, {judged.seconds:.0f} s; {len(found)} of {len(mutants)} judged, "
              f"{sum(not o.refused for o in found)} not refused, {wrong} misnamed", flush=True)
        for outcome in found[-len(own):]:
            if not outcome.named:
                print(_said(outcome), flush=True)
    return found


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """Lines of a Markdown table by kind of fault."""
    lines = ["| Fault | What is wrong | Candidates | Refused | Named rightly |", "| --- | --- | --- | --- | --- |"]
    for name in dict.fromkeys(o.mutant.fault.name for o in outcomes):
        own = [o for o in outcomes if o.mutant.fault.name == name]
        lines.append(f"| {name} | {own[0].mutant.fault.words} | {len(own)} | {sum(o.refused for o in own)} | "
                     f"{sum(o.named for o in own)} |")
    return lines


def document(outcomes: Sequence[Outcome], left: Left, seed: int, seconds: float, command: str) -> str:
    """The results as Markdown."""
    count, refused, named = len(outcomes), sum(o.refused for o in outcomes), sum(o.named for o in outcomes)
    native = sum(o.mutant.fault.language == "cpp" for o in outcomes)
    bases = len({o.mutant.base.name for o in outcomes})
    kinds = len({o.mutant.fault.name for o in outcomes})
    lines = [
        "# Mutation corpus of the judge", "",
        f"Correct kernels with one injected fault each: {count} candidates ({native} of them in C++), {kinds} kinds of "
        f"fault, {bases} bases.", "",
        f"**Refused: {refused} of {count} ({refused / max(1, count):.1%}). Named rightly: {named} of {count} "
        f"({named / max(1, count):.1%}).**", "",
        "A candidate is named rightly where the verdict's code and the kind of the finding that is its reason (or, for "
        "effects, words of the reason) are among those that `tools/mutations` states for the fault. Left out before "
        f"the judge ran: what does not differ from its base on any input that the judge draws "
        f"({len(left.equivalent)}), and what raises where its base does not ({len(left.raising)}).", "",
        f"`{command}`, seed {seed}, {seconds / 60:.0f} minutes, {time.strftime('%Y-%m-%d')}; kernelwright "
        f"{kernelwright.__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}, effort quick, without times.", "", *table(outcomes), ""]
    missed = [o for o in outcomes if not o.refused]
    lines += ["## Not refused", "", *([_said(o) for o in missed] or ["None."]), ""]
    misnamed = [o for o in outcomes if o.refused and not o.named]
    lines += ["## Refused, but named otherwise", "", *([_said(o) for o in misnamed] or ["None."]), ""]
    lines += ["## Left out", "", "Equivalent: " + (", ".join(f"`{n}`" for n in left.equivalent) or "none") + ".", "",
              "Raising: " + (", ".join(f"`{n}`" for n in left.raising) or "none") + "."]
    return "\n".join(lines) + "\n"


def _said(outcome: Outcome) -> str:
    result = outcome.result
    reason = " ".join(result.reason.split())
    return (f"- `{outcome.mutant.name}` ({outcome.mutant.fault.language}; {outcome.mutant.fault.words}): "
            f"{result.verdict}, {outcome.kind or 'no finding'}: {reason[:400]}")


def plain(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    """The results as data, one entry a candidate."""
    return [{"name": o.mutant.name, "fault": o.mutant.fault.name, "base": o.mutant.base.name,
             "language": o.mutant.fault.language, "verdict": o.result.verdict, "kind": o.kind, "refused": o.refused,
             "named": o.named, "reason": o.result.reason, "findings": [f.kind for f in o.result.findings],
             "seconds": o.result.seconds} for o in outcomes]


def main(arguments: list[str]) -> int:
    """Run the corpus; 0 where every candidate is refused and nine of ten are named rightly."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="chooses places and bases")
    parser.add_argument("--each", type=int, default=EACH, help="candidates of each kind of fault in Python")
    parser.add_argument("--each-native", type=int, default=EACH_NATIVE, help="candidates of each kind in C++")
    parser.add_argument("--only", action="append", default=[], help="a kind of fault; may be given again")
    parser.add_argument("--output", type=Path, help="a .md file, or a .json file")
    parser.add_argument("--folder", type=Path, help="where texts are kept (default: a temporary folder)")
    given = parser.parse_args(arguments)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        texts = Texts(folder)
        mutants, left = collect(texts, given.seed, given.each, given.each_native, given.only)
        print(f"{len(mutants)} candidates after {time.monotonic() - started:.0f} s; left out as equivalent: "
              f"{len(left.equivalent)}, as raising: {len(left.raising)}", flush=True)
        outcomes = judge_all(mutants, texts, folder, given.seed)
    command = " ".join(["python tools/mutation_corpus.py", *arguments])
    text = document(outcomes, left, given.seed, time.monotonic() - started, command)
    if given.output is not None:
        data = json.dumps(plain(outcomes), indent=1) + "\n"
        given.output.write_text(data if given.output.suffix == ".json" else text, encoding="utf-8")
    print(text)
    share = sum(o.named for o in outcomes) / max(1, len(outcomes))
    return int(not all(o.refused for o in outcomes) or share < 0.9)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
