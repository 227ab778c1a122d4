"""A scripted model that reads the judge's JSON and nothing else mends candidates: the diagnosis suffices."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from places import ROOT, TESTS
from propose_tools import Scripted

from kernelwright.propose import loop
from kernelwright.propose.answers import read_answer
from kernelwright.propose.prompt import Message
from kernelwright.propose.run import propose
from kernelwright.propose.session import Tools
from kernelwright.propose.settings import ProposeSettings
from kernelwright.propose.standing import passed

sys.path.insert(0, str(ROOT / "tools"))

from mend_corpus import mend
from mutations.bases import BASES
from mutations.corpus import FAULTS, Mutant, Texts
from mutations.mending import mended

TRANSCRIPTS = TESTS / "transcripts"
RECORDED = json.loads((TESTS / "records" / "mutation_verdicts.json").read_text(encoding="utf-8"))
#: Bases that take little time, and what stands in the records of them.
SAMPLE = {"vocabulary_log_softmax": ("tail left out", "mean for sum", "result narrow", "sum not set to zero"),
          "extrema_pair": ("other extremum", "outputs exchanged", "shape wrong", "comparison not strict")}


@pytest.mark.slow
def test_faults_are_mended_by_what_the_judge_says(tmp_path: Path) -> None:
    texts, mutants = Texts(tmp_path), []
    for entry in RECORDED:
        if entry["fault"] in SAMPLE.get(entry["base"], ()):
            fault, base = (next(o for o in some if o.name == name)
                           for some, name in ((FAULTS, entry["fault"]), (BASES, entry["base"])))
            text = list(dict.fromkeys(fault.apply(texts.text(base))))[entry["place"]]
            mutants.append(Mutant(fault, base, entry["place"], text))
    assert len(mutants) >= 8
    cases = mend(mutants, texts, tmp_path, 1, rounds=2, together=4)
    assert not [c.mutant.name for c in cases if passed(c.verdict)]
    left = [(c.mutant.name, c.verdict["verdict"], len(c.texts)) for c in cases if c.right is None]
    assert len(left) <= 1, left


class Follower:
    """A model that writes what it wrote once, and where it is shown a candidate, mends that by the judge's JSON, which
    the run keeps in its folder. The candidate's text it reads in the prompt, as any model does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str, piece: int, messages: Sequence[Message]) -> str:
        told = messages[1]["content"]
        if "## Candidate " not in told:
            return (TRANSCRIPTS / "norm_softmax" / "answers" / "04_forgets_affine.md").read_text()
        document = json.loads((self.folder / "verdicts" / "round1.json").read_text())
        with loop._reading:  # it is asked in several threads, of which only one may parse at a time
            text = read_answer(told.split("## Candidate ")[1]).candidate
            ideas = mended(text, document["candidates"][-1])
        return f"```python\n{ideas[(int(name.partition('c')[2]) - 1) % len(ideas)]}\n```\n"


def test_the_loop_hands_on_what_mends(tmp_path: Path) -> None:
    """The whole loop with the judge itself: the first answer lacks a norm's affine part, the second round has it."""
    model = tmp_path / "model.py"
    model.write_text((TRANSCRIPTS / "norm_softmax" / "model.py").read_text())
    scripted = Scripted(Follower(tmp_path / "model_propose"))
    settings = ProposeSettings(endpoint="http://localhost:1/v1", model="m", candidates=8, rounds=2, target="cpp",
                               effort="quick", time=False, seed=3)

    def original(path: Path, given: object, progress: object) -> None:
        """Our own file: the model itself, which is right."""
        given.output.write_text(path.read_text().replace("class Model(", "class ModelNew("))  # pyrefly: ignore

    result = propose(model, settings, tools=Tools(endpoint=scripted, optimize=original))
    verdicts = {c.name: c.verdict["verdict"] for c in result.candidates}
    assert {v for n, v in verdicts.items() if n.startswith("r1")} == {"WRONG-PARAMETERS"}
    assert "OK" in verdicts.values(), verdicts
    asked = {call[0]: call[2][1]["content"] for call in scripted.asked}
    assert "multiply by the weight and add the bias" in asked["r2c1"]
