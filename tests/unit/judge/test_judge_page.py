"""The page of a set of candidates: what it says, that it stands alone, and that no candidate can write on it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from judge_tools import certificate, judged, output, right, timing
from test_judge_report import all_kinds
from test_report_page import EVIL, Page

from kernelwright.judge.records import Alike, ByRules, CandidateResult, Finding, ToolRun, TriedShape
from kernelwright.judge.report.page import MOST_LINES, MOST_TEXT, headline, render_page
from kernelwright.judge.report.rank import rank
from kernelwright.judge.report.text import with_intervals

#: A candidate's attempts at the page: out of an element, out of an attribute, by a link, by what nobody sees.
ATTACKS = (EVIL, "</code></pre></details><img src=x onerror=alert(1)>", "\" onmouseover=\"alert(1)",
           "'><svg onload=x>", "javascript:alert(1)", "]]></style><style>* { display: none }", "{{ 7 * 7 }}{% raw %}",
           "<!--", "<base href=//x>")
UNSEEN = "access = '\u202e\u2066 # admin\u2069\u2066' \u200b\x1b[2J\x00\x07 \ufeff"


def page_of(result: Any, texts: dict[str, str] | None = None) -> tuple[str, Page]:
    text = render_page(result, texts if texts is not None else {})
    found = Page(text)
    assert found.open == [] and len(found.ids) == len(set(found.ids))
    return text, found


def hostile(word: str, number: int = 0) -> CandidateResult:
    """A candidate with ``word`` in every text that it has a hand in."""
    finding = Finding(word, word, "run", word, 1, word, {"message": word, "index": (0,), "got": word})
    bad = replace(certificate(output(passed=False), passed=False), why=(word,))
    trial = replace(bad.trials[0], problems=(word,), comparison=None)
    return CandidateResult(
        f"set/{number}{word}.py", "WRONG-NUMERIC", word, word, (finding,), (word,),
        certificate=replace(bad, trials=(trial, *bad.trials)), timing=replace(timing(), note=word), isolation=word,
        seconds={word: 1.0}, by_rules=(ByRules("kernelbench", "KernelBench", False, word, 0, 5),), prompt=word,
        alike=(Alike(word, 0.9, "known", word),), shapes=(TriedShape(word, False),),
        sanitizer=(ToolRun("memcheck", "found", word),))


def test_the_headline_says_what_came_of_it():
    assert headline(all_kinds()) == (
        "Of 6 candidates 4 are right, 1 of them with limits; 1 gives other results; 1 does not build. The fastest is "
        "a.py: 1.00 ms, 2.00x as fast as eager, and 1 other cannot be told from it.")
    assert headline(judged(CandidateResult("a.py", "CHEAT-STALE", "so"))) == \
        "Of 1 candidate 1 is refused for its conduct."
    assert headline(judged()).endswith("there was none.")
    once = right("a.py")
    once = replace(once, timing=replace(once.timing, samples=once.timing.samples[:1]))
    assert "fastest" not in headline(judged(once)) and with_intervals(once.timing)[0] == "1.00 ms (of 1 round)"
    unfit = judged(right("a.py"), selftest={"passed": False, "words": "One passed."})
    assert "no verdict of it counts" in headline(unfit)


def test_every_candidate_has_its_line_its_findings_and_its_text():
    result = all_kinds()
    texts = {c.file: f"import torch\n# {c.file}\nx = 1 < 2\n" for c in result.candidates}
    text, page = page_of(result, texts)
    words = page.words()
    for candidate in result.candidates:
        assert candidate.verdict in words and candidate.reason in words and f"# {candidate.file}" in page.text
    for part in ("fix: Add self.bias[c] before the store.", "line 31: out[i] = sum;", "got nan", "x = 1 < 2",
                 "Only the batch size 16 is computed.", "1.00 ms (999 us to 1.00 ms)", "own kernels, float32",
                 "seed 271828", "own user and network namespaces", "All 5 controls got their verdict.", "50 %"):
        assert part in words or part in page.text, part
    assert text == render_page(result, texts) and "1= " in words.replace("1=", "1= ")
    assert page.counts["h1"] == 1 and all(b - a <= 1 for a, b in zip(page.headings, page.headings[1:]))
    links = [value for _, name, value in page.attributes if name == "href"]
    assert links and all(link.startswith("#") and link[1:] in page.ids for link in links)


def test_a_line_that_a_finding_names_is_a_link():
    finding = Finding("x", "Here.", line=2, text="two")
    _, page = page_of(judged(CandidateResult("a.py", "WRONG-NUMERIC", "so", findings=(
        finding, replace(finding, line=9)))), {"a.py": "one\r\ntwo\rthree\n"})
    links = [value for _, name, value in page.attributes if name == "href"]
    assert "#c1l2" in links and "#c1l9" not in links and "c1l3" in page.ids and "c1l4" not in page.ids


def test_other_rules_shapes_near_duplicates_and_scores_are_told():
    ours = right("a.py", by_rules=(ByRules("kernelbench", "KernelBench", False, "of NaN", 4, 5),), shapes=(
        TriedShape("the problem's own", True), TriedShape("batch of 1", False)), alike=(
        Alike("b.py", 1.0, "candidate", "is the same text as"),), sanitizer=(
        ToolRun("memcheck", "clean", "nothing in its own kernels"),))
    ours = replace(ours, timing=replace(timing(), sol_score=0.83, own_share=None))
    theirs = right("b.py", None, verdict="WRONG-DISTRIBUTION", reason="The output is wrong.", by_rules=(
        ByRules("kernelbench", "KernelBench", True, "", 5, 5),), alike=(
        Alike("a.py", 1.0, "candidate", "is the same text as"),))
    _, page = page_of(judged(*rank([ours, theirs])))
    words = page.words()
    for part in ("1 of 2", "batch of 1: wrong", "memcheck: clean, nothing in its own kernels",
                 "a.py is the same text as b.py.", "0.83", "not measured",
                 "wrong by KernelBench's rules (4 of 5 trials), right by ours: of NaN.",
                 "right by KernelBench's rules (5 of 5 trials), wrong by ours (WRONG-DISTRIBUTION), since the output "
                 "is wrong.", "https://github.com/ScalingIntelligence/KernelBench"):
        assert part in words, part
    assert words.count("is the same text as b.py.") == 1


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_candidate_writes_on_the_page(attack):
    result = replace(judged(*rank([hostile(attack), right("set/right.py")])), problem=attack, device=attack,
                     isolation=attack, environment={"words": [attack], attack: attack}, versions={"torch": attack})
    file = result.candidates[0].file
    plain, _ = page_of(judged(*rank([hostile("word"), right("set/right.py")])), {})
    _, page = page_of(result, {file: f"{attack}\n{attack}"})
    expected = Page(plain)
    assert not {"script", "img", "svg", "base", "iframe", "link"} & set(page.counts)
    assert page.counts["style"] == 1 and page.counts["details"] == expected.counts["details"]
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert all(value.startswith("#") for _, name, value in page.attributes if name in ("href", "src"))
    assert page.text.count(attack) > 20, "told as it stands"


def test_what_no_screen_shows_is_written_out():
    text, page = page_of(judged(hostile(UNSEEN)), {f"set/0{UNSEEN}.py": UNSEEN + "\n\tindented"})
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u200b\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]", text)
    for escape in ("\\u202e", "\\u2066", "\\x1b[2J", "\\x00", "\\u200b", "\\ufeff"):
        assert escape in page.text
    assert "\tindented" in page.text
    text.encode("utf-8")
    render_page(judged(hostile("\ud800")), {}).encode("utf-8")


def test_large_texts_are_cut_and_said_so():
    _, page = page_of(judged(right("a.py")), {"a.py": "x\n" * (MOST_LINES + 5)})
    assert "5 lines and 0 characters more are not shown" in page.words()
    _, page = page_of(judged(right("a.py")), {"a.py": "y" * (MOST_TEXT + 7)})
    assert "0 lines and 7 characters more are not shown" in page.words()


def test_it_stands_alone_on_every_screen_and_paper():
    text, page = page_of(all_kinds())
    assert "default-src 'none'" in text and "script-src" not in text and "<script" not in text
    for query in ("prefers-color-scheme: dark", "@media print", "@media (max-width: 40rem)"):
        assert query in text
    assert "width=device-width" in text and not re.search(r"url\(|@import|https?://(?!github\.com)", text)
    assert any(name == "lang" for _, name, _ in page.attributes)


def test_of_no_candidate_there_is_a_page_too():
    assert "None." in page_of(judged())[1].words()
