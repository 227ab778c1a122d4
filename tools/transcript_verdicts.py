"""Judge the answers in tests/transcripts and keep the judge's documents beside them, for tests that judge nothing.

    python tools/transcript_verdicts.py               # judge all, write tests/transcripts/*/verdicts.json
    python tools/transcript_verdicts.py norm_softmax  # one of them

Certificates are left out. ``tests/process/propose`` judges some of the answers anew.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from kernelwright.judge.settings import JudgeSettings
from kernelwright.progress import make_progress
from kernelwright.propose.session import judge_document
from kernelwright.propose.sources import find_answers

TRANSCRIPTS = Path(__file__).resolve().parent.parent / "tests" / "transcripts"
SEED = 11


def judged(problem: Path, folder: Path, *, only: tuple[str, ...] = (), time: bool = True) -> dict[str, Any]:
    """The judge's document on the answers for a problem; candidates are called as their answers."""
    found = [f for f in find_answers(problem / "model.py", [problem / "answers"]) if not only or f.name in only]
    files = []
    for number, answer in enumerate(found):
        files.append(folder / f"{number:02d}.py")
        files[-1].write_text(answer.answer.candidate, encoding="utf-8")
    settings = JudgeSettings(target="cpp", seed=SEED, time=time)
    document = judge_document(problem / "model.py", files, settings, make_progress(quiet=True))
    for answer, candidate in zip(found, document["candidates"], strict=True):
        candidate |= {"file": answer.name, "certificate": None}
    return {**document, "path": "model.py", "ranking": {}}


def main(arguments: list[str]) -> int:
    """Write the documents."""
    for problem in sorted(path.parent for path in TRANSCRIPTS.glob("*/model.py")):
        if not arguments or problem.name in arguments:
            with tempfile.TemporaryDirectory() as folder:
                document = judged(problem, Path(folder))
            (problem / "verdicts.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            print(problem.name, *(f"{c['file']}: {c['verdict']}" for c in document["candidates"]), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
