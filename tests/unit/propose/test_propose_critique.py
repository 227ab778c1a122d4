"""The critique of recorded verdicts, the choice among them, and that nothing is said that was not measured."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from judge_tools import certificate as certified
from judge_tools import judged, output, right
from places import TESTS
from transcript_cases import EXPECTED

from kernelwright.judge.records import CandidateResult, Finding
from kernelwright.judge.verdicts import VERDICTS
from kernelwright.propose.choice import choose
from kernelwright.propose.critique import Critique, criticize
from kernelwright.propose.critique_text import markdown, render_critique
from kernelwright.propose.sources import find_answers
from kernelwright.propose.standing import nearness, standing
from kernelwright.report.layout import Page

TRANSCRIPTS = TESTS / "transcripts"
CASES = [(problem, name) for problem, answers in EXPECTED.items() for name in answers]


def recorded(problem: str) -> dict[str, Any]:
    return json.loads((TRANSCRIPTS / problem / "verdicts.json").read_text(encoding="utf-8"))


def critique_of(problem: str) -> Critique:
    document = recorded(problem)
    found = find_answers(TRANSCRIPTS / problem / "model.py", [TRANSCRIPTS / problem / "answers"])
    return criticize(problem, {c["file"]: c for c in document["candidates"]}, document["problem_profile"],
                     {f.name: f.answer.form for f in found})


def said(critique: Critique, name: str) -> str:
    review = next(r for r in critique.reviews if r.name == name)
    return json.dumps([review.what, review.standing, review.wrong, review.where, review.mend, *review.speed,
                       *review.limits, *review.hints], ensure_ascii=False)


@pytest.mark.parametrize(("problem", "name"), CASES)
def test_each_transcript_has_its_verdict_and_its_review(problem: str, name: str) -> None:
    expected = EXPECTED[problem][name]
    (verdict,) = (c for c in recorded(problem)["candidates"] if c["file"] == name)
    assert verdict["verdict"] in expected.verdicts
    text = said(critique_of(problem), name)
    assert [part for part in expected.said if part not in text] == [], text


def test_there_are_twenty_transcripts_of_four_models() -> None:
    found = {p: [f.name for f in find_answers(TRANSCRIPTS / p / "model.py", [TRANSCRIPTS / p / "answers"])]
             for p in EXPECTED}
    assert {p: sorted(names) for p, names in found.items()} == {p: sorted(names) for p, names in EXPECTED.items()}
    assert len(found) == 4 and sum(map(len, found.values())) == 20
    forms = {f.name: f.answer.form for p in EXPECTED
             for f in find_answers(TRANSCRIPTS / p / "model.py", [TRANSCRIPTS / p / "answers"])}
    assert forms == {name: e.form for answers in EXPECTED.values() for name, e in answers.items()}


@pytest.mark.parametrize("problem", EXPECTED)
def test_figures_of_a_critique_are_those_of_the_verdicts(problem: str) -> None:
    """Sentences on speed are of candidates that were timed, and each verdict is its own."""
    document, critique = recorded(problem), critique_of(problem)
    timed = {c["file"] for c in document["candidates"] if c["timing"]}
    assert {r.name for r in critique.reviews if r.speed} == timed
    assert {r.name: r.verdict for r in critique.reviews} == {c["file"]: c["verdict"] for c in document["candidates"]}
    for review in critique.reviews:
        assert bool(review.wrong) != review.verdict.startswith("OK")
    assert [r.verdict.startswith("OK") for r in critique.reviews] == sorted(
        (r.verdict.startswith("OK") for r in critique.reviews), reverse=True)


def test_text_markdown_and_json_say_the_same() -> None:
    critique = critique_of("conv_scale")
    page = Page(False, 200)
    render_critique(page, critique)
    text, marked, plain = page.text(), markdown(critique), json.dumps(critique.to_json(), ensure_ascii=False)
    squeezed = " ".join(text.split())
    for sentence in (*critique.common, *critique.combinations, *critique.next):
        assert " ".join(sentence.split()) in squeezed and sentence in marked.replace("&lt;", "<")
        assert json.dumps(sentence, ensure_ascii=False) in plain
    assert all(f"## {r.name}: {r.verdict}" in marked for r in critique.reviews)


def wrong(file: str, kind: str, fix: str, verdict: str = "WRONG-NUMERIC", **fields: Any) -> CandidateResult:
    finding = Finding(kind, f"It is wrong: {kind}.", "run", fix, **fields)
    return CandidateResult(file, verdict, finding.sentence, fix, (finding,))


def set_of(*results: CandidateResult) -> dict[str, Any]:
    return {c["file"]: c for c in judged(*results).to_json()["candidates"]}


def test_what_a_set_has_in_common_and_what_could_be_combined() -> None:
    line = {"line": 7, "text": "y = x"}
    critique = criticize("p", set_of(
        right("a", 1e-3, share=0.9), right("b", 2e-3, share=0.0), wrong("c", "missing-bias", "add the bias"),
        wrong("d", "missing-bias", "add the bias"), wrong("e", "tail", "compute the rest", **line),
        wrong("f", "transposed", "exchange the axes", **line)), {}, same={"g": "a"})
    common, combined = "\n".join(critique.common), "\n".join(critique.combinations)
    assert "c and d have the same fault (missing-bias)" in common and "e and f fail on the same line: `y = x`" in common
    assert "a and g are one text" in common
    assert "c is wrong in one respect (missing-bias) and e in another (tail)" in combined
    assert "e would be right with what a does in its place: compute the rest" in combined


def test_two_faults_of_one_candidate_are_no_single_respect() -> None:
    two = wrong("c", "missing-bias", "add the bias")
    two = CandidateResult("c", two.verdict, two.reason, two.fix, (*two.findings, Finding("tail", "And.", "run", "Do.")))
    critique = criticize("p", set_of(two, wrong("d", "transposed", "exchange")), {})
    assert critique.combinations == ()


def test_why_the_fast_ones_are_fast() -> None:
    critique = criticize("p", set_of(right("own", share=0.95), right("library", share=0.01),
                                     right("tf32", share=0.5, precision="tf32")), {"roof": {"words": "memory"}})
    assert "Its speed is its kernels': 95 %" in said(critique, "own")
    assert "Its time is the library's: 1 %" in said(critique, "library")
    assert "fewer digits" in said(critique, "tf32") and "50 % of the limit of the device (the limit is memory)" in \
        said(critique, "tf32")


def test_texts_of_candidates_move_no_cursor_and_make_no_markup() -> None:
    evil = wrong("c", "tail", "\x1b[2J<script>alert(1)</script>", line=1, text="\x1b]0;x\x07`rm`")
    critique = criticize("p", set_of(evil), {})
    assert "\x1b" not in markdown(critique) and "<script" not in markdown(critique)
    page = Page(False, 100)
    render_critique(page, critique)
    assert "\x1b" not in page.text()


def test_standings_cover_every_verdict() -> None:
    for code in VERDICTS:
        verdict = {"verdict": code, "findings": [], "reason": "", "fix": "", "limits": []}
        assert standing(verdict) and 0 <= nearness(verdict) <= 1
        assert (nearness(verdict) == 1) == VERDICTS[code].passed


# ---- the choice ------------------------------------------------------------------------------------------

OWN = right("ours", 2e-3)
FLOAT32 = {"outputs": [{"dtype": "torch.float32"}]}


def chosen(*candidates: CandidateResult, ours: CandidateResult | None = OWN) -> tuple[int | None, dict[int, str]]:
    verdicts = judged(*([ours] if ours else []), *candidates).to_json()["candidates"]
    own = verdicts.pop(0) if ours else None
    found = choose(own, verdicts, FLOAT32)
    return found.index, dict(found.against)


def exact(error: float) -> dict[str, Any]:
    return {"certificate": certified(output(), candidate=error)}


def test_only_what_is_better_and_worse_in_nothing_is_taken() -> None:
    assert chosen(right("a", 1e-3))[0] == 0
    assert chosen(right("a", 1e-3), right("b", 0.5e-3))[0] == 1
    assert chosen() == (None, {})
    assert chosen(right("slower", 3e-3)) == (None, {0: "it is not shown to be faster"})
    assert chosen(right("same", 2e-3))[0] is None
    assert chosen(right("untimed", None)) == (None, {0: "it was not timed"})
    assert "less accurate" in chosen(right("loose", 1e-3, **exact(3.1e-7)))[1][0]
    assert chosen(right("limited", 1e-3, verdict="OK-BUT", limits=("other batch sizes fail",)))[0] is None
    assert chosen(wrong("wrong", "tail", "mend"))[0] is None


def test_one_rounding_is_no_loss_and_common_limits_are_none() -> None:
    ours = right("ours", 2e-3, **exact(1e-9))
    assert chosen(right("a", 1e-3, **exact(5e-8)), ours=ours)[0] == 0
    assert chosen(right("a", 1e-3, **exact(7e-8)), ours=ours)[0] is None
    limited = {"verdict": "OK-BUT", "limits": ("PyTorch differs",)}
    assert chosen(right("a", 1e-3, **limited), ours=right("ours", 2e-3, **limited))[0] == 0


def test_few_rounds_show_nothing() -> None:
    fast = judged(OWN, right("a", 1e-3)).to_json()["candidates"]
    few = copy.deepcopy(fast)
    for verdict in few:
        verdict["timing"]["samples"] = verdict["timing"]["samples"][:3]
    assert choose(fast[0], fast[1:], FLOAT32).index == 0
    assert choose(few[0], few[1:], FLOAT32).index is None


def test_without_a_file_of_ours_eager_is_to_be_beaten() -> None:
    assert chosen(right("a", 1e-3), ours=None)[0] == 0
    unfit = CandidateResult("ours", "JUDGE-ERROR", "The judge could not go on.")
    assert chosen(right("a", 1e-3), ours=unfit)[0] == 0
