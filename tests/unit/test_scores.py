"""Scores of a suite, its table and its page: definitions on small numbers, texts escaped, nothing from elsewhere."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from kernelwright.suite.chart import speed_chart
from kernelwright.suite.page import render_page
from kernelwright.suite.runner import _summary
from kernelwright.suite.scores import score_groups, score_problem, score_problems
from kernelwright.suite.sets import best_baseline, parse_set, sets_table
from kernelwright.suite.table import markdown_table, render_table
from kernelwright.timing.baselines import CANDIDATE, COMPILED, EAGER, GRAPHED, MAX_AUTOTUNE, REDUCE_OVERHEAD

EVIL = "<script>alert('x')</script> & \"quoted\" | pipe"


def entry(name: str, median: float, spread: float = 0.01) -> dict[str, Any]:
    return {"name": name, "median": median, "lower_quartile": median, "upper_quartile": median, "repetitions": 9,
            "interval": [median * (1 - spread), median * (1 + spread)]}


def timing(spread: float = 0.01, **seconds: float) -> dict[str, Any]:
    """A timing's document; seconds of eager, compiled, graphs, tuned and ours."""
    names = {"eager": EAGER, "graphed": GRAPHED, "compiled": COMPILED, "graphs": REDUCE_OVERHEAD, "tuned": MAX_AUTOTUNE,
             "ours": CANDIDATE}
    entries = {names[key]: entry(names[key], value, spread) for key, value in seconds.items()}
    ours = seconds.get("ours")
    ratios = {} if ours is None else {
        name: {"value": found["median"] / ours, "low": found["median"] / ours * (1 - spread),
               "high": found["median"] / ours * (1 + spread)} for name, found in entries.items() if name != CANDIDATE}
    return {"entries": entries, "ratios": ratios, "failures": {}, "share_of_floor": {}}


def mode(times: dict[str, Any] | None, *, kernels: bool = True, passed: bool | None = True, **changes: Any) -> dict:
    certificate = None if passed is None else {"passed": passed, "why": [], "sentence": "Passed.",
                                               "candidate_error": 1e-7, "eager_error": 2e-7}
    kernel = {"name": "k0", "kind": "loop", "meaning": EVIL, "covers": ["relu (m.py:1: " + EVIL + ")"]}
    rule = {"name": "a rule", "law": "a < b & c", "condition": "c", "exactness": "exact", "where": "m.py:2: " + EVIL,
            "before": "a", "after": "b", "count": 2}
    return {"name": "training", "operators": 4, "replaced": 3 if kernels else 0, "rules": [rule] if kernels else [],
            "kernels": [kernel] if kernels else [], "kept": [{"operator": "linear", "where": "", "reason": EVIL}],
            "before": {"operations": 10, "bytes": 20}, "after": {"operations": 5, "bytes": 20}, "floor_seconds": 0.5e-3,
            "floor_words": "", "certificate": certificate, "timing": times, "simplification": "", **changes}


def record(name: str, *modes: dict, **changes: Any) -> dict[str, Any]:
    result = {"modes": list(modes), "notes": [EVIL], "stages": {"load": 1.5}}
    return {"schema": 1, "problem": name, "level": name.split("/")[0], "state": "verified", "error": None,
            "result": result, "seconds": 12.0, "attempts": 1, "peak_memory_bytes": 10**9, "device": "A Device",
            "versions": {"torch": "2.11.0"}, "settings": {}, "started": "2026-11-21T10:00:00+00:00", "emitted": None,
            "page": f"{name} & more_new.html", "stopped_seconds": 0.0, **changes}


def failed(name: str, state: str = "error") -> dict[str, Any]:
    error = {"code": "KW202", "error": "X", "what": "what " + EVIL, "where": "m.py:3", "why": "why", "fix": "fix"}
    return record(name, state=state, error=error, result=None)


RECORDS = [
    record("level1/10_original", mode(timing(eager=2e-3, compiled=1e-3), kernels=False, passed=None)),
    record("level1/9_fast", mode(timing(eager=4e-3, compiled=2e-3, ours=1e-3))),
    record("level1/2_slower", mode(timing(eager=1e-3, compiled=1e-3, ours=2e-3))),
    record("level2/1_constant", mode(timing(eager=100e-3, compiled=50e-3, ours=1e-3), simplification="constant")),
    record("level2/2_eliminated", mode(timing(eager=9e-3, ours=1e-3), simplification="eliminated")),
    record("level2/3_kernels", mode(timing(eager=3e-3, compiled=1.001e-3, ours=1e-3))),
    failed("level2/4_" + EVIL.replace("/", "")),
]


def test_a_problem_with_kernels():
    score = score_problem(RECORDS[1])
    assert (score.kind, score.verified, score.replaced, score.operators) == ("kernels", True, 3, 4)
    assert score.ours == 1e-3 and score.times == {EAGER: 4e-3, COMPILED: 2e-3}
    assert score.speeds[EAGER].value == pytest.approx(4) and score.speeds[COMPILED].high == pytest.approx(2.02)
    assert score.share_of_floor == pytest.approx(0.5)
    assert (score.error, score.eager_error) == (1e-7, 2e-7)


def test_where_nothing_is_replaced_ours_is_eager():
    score = score_problem(RECORDS[0])
    assert score.kind == "original" and score.ours == 2e-3 and score.error is None
    assert score.speeds[EAGER].value == score.speeds[EAGER].low == score.speeds[EAGER].high == 1.0
    compiled = score.speeds[COMPILED]
    assert compiled.value == pytest.approx(0.5)
    assert compiled.low == pytest.approx(0.5 * 0.99 / 1.01) and compiled.high == pytest.approx(0.5 * 1.01 / 0.99)
    assert score.share_of_floor == pytest.approx(0.25)


def test_kernels_that_were_given_up_do_not_count():
    """A candidate that was timed, found slower, and left out: the file is the original."""
    given_up = mode(timing(eager=2e-3, compiled=4e-3, ours=3e-3), kernels=False)
    score = score_problem(record("a/1", given_up))
    assert score.kind == "original" and score.ours == 2e-3
    assert score.speeds[EAGER].value == 1.0
    assert score.speeds[COMPILED].value == 1.0  # who replaces nothing wins against nobody


def test_what_is_not_measurable_is_no_speed_up():
    """A busy machine, times that spread too much, and calls in a row that say the opposite; others still count."""
    wide = timing(eager=4e-3, compiled=2e-3, ours=1e-3)
    wide["ratios"][EAGER] |= {"low": 2.0, "high": 5.0}
    opposite = timing(eager=4e-3, compiled=2e-3, ours=1e-3)
    for name, seconds in ((EAGER, 1e-3), (CANDIDATE, 2e-3), (COMPILED, 4e-3)):
        opposite["entries"][name]["back_to_back_seconds"] = seconds
    for times in (wide, opposite):
        assert set(score_problem(record("a/1", mode(times))).speeds) == {COMPILED}
    busy = timing(eager=4e-3, compiled=2e-3, ours=1e-3)
    busy["entries"][CANDIDATE]["busy"] = True
    score = score_problem(record("a/1", mode(busy)))
    assert score.verified and not score.speeds
    original = timing(eager=2e-3, compiled=1e-3)
    original["entries"][COMPILED]["busy"] = True
    assert set(score_problem(record("a/1", mode(original, kernels=False, passed=None))).speeds) == {EAGER}


def test_calls_in_one_launch_are_a_program_of_their_own():
    launched = {**mode(timing(eager=2e-3, compiled=4e-3, ours=1e-3), kernels=False), "launched": "graph"}
    score = score_problem(record("a/1", launched))
    assert score.kind == "graph" and score.verified and score.ours == 1e-3 and score.speeds[EAGER].value == 2.0
    assert not score_problem(record("a/1", {**launched, "certificate": None})).verified


@pytest.mark.parametrize("passed", [False, None])
def test_kernels_without_a_passed_certificate_are_not_verified(passed):
    second = mode(None, passed=passed, name="inference")
    score = score_problem(record("a/1", mode(timing(eager=2e-3, ours=1e-3)), second))
    assert not score.verified
    group = score_groups([score])[0]
    assert group.verified == 0 and group.against[0].fast == (0.0, 0.0, 0.0) and group.against[0].mean is None


def test_a_result_without_modes_is_the_original_without_times():
    score = score_problem(record("a/1"))
    assert score.verified and score.kind == "original" and score.ours is None and score.share_of_floor is None
    assert list(score.speeds) == [EAGER] and score.speeds[EAGER].value == 1.0


def test_levels():
    groups = {(group.name, group.part): group for group in score_groups(score_problems(RECORDS))}
    first = groups["level1", ""]
    eager, compiled = first.against
    assert (first.problems, first.verified) == (3, 3) and first.kinds == {"kernels": 2, "original": 1}
    assert eager.fast == pytest.approx((1.0, 1 / 3, 1 / 3))  # 4, 1 and 0.5: above 1 is above, not equal
    assert eager.mean == pytest.approx((4 * 1 * 0.5) ** (1 / 3)) and eager.count == 3
    assert eager.slower == ("level1/2_slower",)
    assert compiled.fast == pytest.approx((1.0, 1 / 3, 0.0))  # 2, 0.5 and 0.5
    assert compiled.slower == ("level1/2_slower", "level1/10_original")
    assert first.share_of_floor == pytest.approx(0.25)
    assert not any(name == "level1" and part for name, part in groups), "no simplified problem, no parts"


def test_simplified_problems_are_counted_apart():
    groups = {(group.name, group.part): group for group in score_groups(score_problems(RECORDS))}
    whole, rest = groups["level2", ""], groups["level2", "without constant and eliminated"]
    assert (whole.problems, whole.verified) == (4, 3) and (rest.problems, rest.verified) == (2, 1)
    assert whole.against[0].fast == pytest.approx((0.75, 0.75, 0.75))
    assert whole.against[0].mean == pytest.approx((100 * 9 * 3) ** (1 / 3))
    assert rest.against[0].fast == pytest.approx((0.5, 0.5, 0.5)) and rest.against[0].mean == pytest.approx(3)
    assert groups["level2", "constant"].problems == groups["level2", "eliminated"].problems == 1
    compiled = whole.against[1]
    assert compiled.count == 2 and compiled.mean == pytest.approx((50 * 1.001) ** 0.5)  # the eliminated has no time
    assert compiled.fast == pytest.approx((0.75, 0.5, 0.25))
    everything = groups["all levels", ""]
    assert (everything.problems, everything.verified) == (7, 6) and everything.states["error"] == 1
    assert groups["all levels", "eliminated"].verified == 1


def test_noise_is_not_slower():
    noisy = record("a/1", mode(timing(spread=0.2, eager=0.9e-3, ours=1e-3)))
    clear = record("a/2", mode(timing(spread=0.01, eager=0.9e-3, ours=1e-3)))
    assert score_groups(score_problems([noisy, clear]))[0].against[0].slower == ("a/2",)


def test_the_last_record_of_a_problem_counts_and_names_sort_by_number():
    scores = score_problems([failed("level1/9_fast"), *RECORDS])
    assert [s.name for s in scores][:3] == ["level1/2_slower", "level1/9_fast", "level1/10_original"]
    assert scores[1].verified


def test_all_baselines():
    tuned = record("a/1", mode(timing(eager=2e-3, compiled=2e-3, graphs=1.8e-3, tuned=1.5e-3, ours=1e-3)))
    group = score_groups(score_problems([tuned]))[0]
    assert [entry.baseline for entry in group.against] == [EAGER, COMPILED, REDUCE_OVERHEAD, MAX_AUTOTUNE]
    assert [entry.mean for entry in group.against[2:]] == pytest.approx([1.8, 1.5])


def test_the_graph_of_eager_has_its_own_name():
    graphed = record("a/1", mode(timing(eager=2e-3, graphed=1.8e-3, compiled=1.7e-3, graphs=1.6e-3, ours=1e-3)))
    as_rows, as_table = (" ".join(printed([graphed], width).split()) for width in (60, 200))
    assert "eager's graph ms 1.80" in as_rows and "eager's error 2.0e-07" in as_rows, as_rows
    assert "eager eager's graph compile" in as_table and "error graph" not in as_table, as_table


def printed(records: list[dict[str, Any]], width: int = 100) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(render_table(records))
    return stream.getvalue()


def test_terminal_table():
    text = printed(RECORDS)
    assert max(map(len, text.splitlines())) <= 100
    assert re.search(r"^9_fast +3/4 +4\.00 +2\.00 +1\.00 +4\.00 +2\.00 +50 % +1\.0e-07 +2\.0e-07", text, re.MULTILINE)
    assert re.search(r"^10_original +0/4 +2\.00 +1\.00 +2\.00 +1\.00 +0\.500 +25 %", text, re.MULTILINE)
    assert re.search(r"^level2 +4 +3 +1 +0 +0 +1 +1 +50 %", text, re.MULTILINE)
    assert "Slower than eager beyond the noise: level1/2_slower." in text
    assert "error, KW202: what <script>" in " ".join(text.split())
    assert printed([]) == "No problem has a result.\n"


def test_a_narrow_terminal_has_every_value_whole():
    """Rows as lines, where columns would be cut."""
    lines = printed(RECORDS, 60).splitlines()
    cut = [line for line in lines if "\u2026" in line]
    assert max(map(len, lines)) <= 60 and all(line.startswith("  without c") for line in cut), "names alone are cut"
    text = " ".join(" ".join(lines).split())
    assert ("9_fast replaced 3/4, eager ms 4.00, compile ms 2.00, ours ms 1.00, x eager 4.00, x compile 2.00, floor 50 "
            "%, error 1.0e-07, eager's error 2.0e-07") in text
    assert "level2 problems 4, verified 3, kernels 1, graph 0, original 0, constant 1, eliminated 1, floor 50 %" in text
    assert "against eager fast_0 fast_1" in text, "a table that fits stays one"


def test_markdown_table():
    text = markdown_table(RECORDS)
    rows = [line for line in text.splitlines() if line.startswith("| level1/9")]
    assert rows == [r"| level1/9\_fast | 3/4 | 4.00 | 2.00 | 1.00 | 4.00 | 2.00 | 50 % | 1.0e-07 | 2.0e-07 |"]
    assert "<script" not in text and markdown_table([]) == "No problem has a result."
    lines = [line for line in text.splitlines() if line.startswith(("| level2/", "| problem |"))]
    widths = {line.replace("\\|", "").count("|") for line in lines}
    assert len(widths) == 1, "a pipe in a name is no column"


class Checker(HTMLParser):
    """Every element is closed in order; collects what could load something, and the visible text."""

    VOID = {"meta", "input", "br", "line", "circle"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loading: list[tuple[str, str | None]] = []
        self.text = ""
        self.counts: dict[str, int] = {}

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        loads = {"src", "srcset", "xlink:href", *({"href"} if tag != "a" else ())}
        self.loading += [(name, value) for name, value in attributes if name in loads or name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in self.VOID

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page():
    page = render_page(RECORDS, title="a <title>")
    checker = Checker()
    checker.feed(page)
    assert checker.open == [] and checker.loading == []
    assert checker.counts["script"] == 1, "the records' own text stays text"
    assert "url(" not in page and "@import" not in page and "http" not in page
    assert checker.counts["details"] == len(RECORDS) and checker.counts["svg"] == 2
    assert page.count('">Its whole report</a>') == len(RECORDS) and 'href="level1/9_fast%20%26%20more_new.html"' in page
    for words in (EVIL, "a rule", "Stays with PyTorch", "KW202", "Passed.", "m.py:3", "load 1.50 s", "a < b & c"):
        assert words in checker.text
    assert render_page(RECORDS, title="a <title>") == page
    assert "No problem has a result." in render_page([])


def test_records_go_through_json():
    again = [json.loads(json.dumps(record)) for record in RECORDS]
    assert render_page(again) == render_page(RECORDS)


def test_chart_has_a_mark_for_each_verified_problem():
    chart = speed_chart(score_problems(RECORDS), EAGER)
    assert chart.count("<title>") == 6 and "level2/1_constant: 100x" in chart
    assert speed_chart(score_problems(RECORDS), MAX_AUTOTUNE) == ""


def test_sets_of_problems():
    """Members by number; each against the fastest of its baselines; what is not verified does not enter the mean."""
    one = parse_set("a few = level1/2,9-10")
    assert (one.name, one.level, one.numbers) == ("a few", "level1", (2, 9, 10))
    scores = {score.name: score for score in score_problems(RECORDS)}
    assert [name for name, score in scores.items() if one.holds(score)] == [
        "level1/2_slower", "level1/9_fast", "level1/10_original"]
    assert best_baseline(scores["level1/9_fast"])[0] == COMPILED
    assert best_baseline(scores["level1/9_fast"])[1].value == pytest.approx(2)
    assert best_baseline(scores["level2/2_eliminated"])[0] == EAGER
    table = sets_table(RECORDS, [one, parse_set("others=level2/1-5"), parse_set("nothing=level3/1")]).splitlines()
    rows = {line.split(" | ")[0].strip("| "): line for line in table if line.startswith("|")}
    assert "| 3 of 3 | 3 | 0.794x | 0.500x | 2 |" in rows["a few"]  # the cube root of 0.5, 2 and 0.5
    assert "| 4 of 5 | 3 |" in rows["others"] and "| 0 of 1 | 0 |" in rows["nothing"]
    assert "5e-09" in rows["level1/9\\_fast"] and "1.0e-07" in rows["level1/9\\_fast"]


@pytest.mark.parametrize("text", ["level1/1", "a=level1", "a=level1/", "a=level1/1-", "=level1/1", "a=level1/1,,2"])
def test_sets_that_say_nothing(text):
    with pytest.raises(ValueError, match="NAME=LEVEL"):
        parse_set(text)


def test_the_line_of_a_problem_tells_what_its_file_takes():
    """A file that is PyTorch's has eager's time, whatever programs took that were given up."""
    kept = mode(timing(eager=2e-3, ours=1e-3))
    given_up = mode(timing(eager=1e-3, compiled=5e-4, ours=2e-3), kernels=False)
    assert _summary(record("a/1", kept)).endswith(" replaced, 2x as fast as eager")
    assert _summary(record("a/1", given_up)).endswith(" replaced, 0.5x as fast as torch.compile")
