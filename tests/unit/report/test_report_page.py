"""The report's page: what it says of results of every kind, and that it is well formed, escaped and alone."""

from __future__ import annotations

import dataclasses
import html
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from test_report import CONTRACTION, KERNEL, backward_use, certificate, measured, mode, result, timing

from kernelwright import errors
from kernelwright.records import ContractionUse, KernelUse, RegionUse, Step
from kernelwright.report import verdict
from kernelwright.report.html import accuracy, graphs, kernels, roofline, times, untried, waterfall
from kernelwright.report.html.page import render_html
from kernelwright.report.html.program import CALL, MEASURED, MODELLED, TOGETHER, captured_rows, program_rows
from kernelwright.report.html.program import KERNEL as OF_KERNEL
from kernelwright.report.html.scale import Logarithmic, around, ticks
from kernelwright.roofline.devices import GENERIC_CPU, H200
from kernelwright.timing.baselines import CANDIDATE, DIRECT, EAGER, GRAPH, summarize
from kernelwright.timing.environment import THROTTLES

EVIL = "<script>alert('1')</script> & \"2\" {{ 3 }} ]]>"
VOID = {"meta", "br"}
LAUNCH = GENERIC_CPU.launch_seconds

CAPTURED = (
    Step("conv2d", "model.py:8: x = self.up(x)", 10**9, 10**8, 4e-3, 3e-3),
    Step("relu", "model.py:8: x = self.up(x)", 10**6, 8 * 10**6, 2e-3, 1e-3, (0,)),
    Step("mean", "model.py:9: x = x.mean((2, 3))", 10**6, 4 * 10**6, 1e-3, 1e-3, (1,)),
    Step("linear", "model.py:10: self.fc(x)", 10**7, 10**6, 5e-4, 4e-4, (2,)),
)
PROGRAM = (
    Step("k0_region_sum", "model.py:8: x = self.up(x)", 2 * 10**6, 4 * 10**7, 2e-3, 1e-3, (), (0, 1, 2), True),
    Step("linear", "model.py:10: self.fc(x)", 10**7, 10**6, 5e-4, 4e-4, (0,), (3,)),
)
FILE = '''_KERNELWRIGHT_SOURCE = r"""
#include <cmath>

//// k0_region_sum
// model.py:8: x = self.up(x)
static int k0(int a) { return a < 3 && 1; }

//// launchers
int launch() { return 0; }
"""
'''


class Page(HTMLParser):
    """The page's elements, which must be nested rightly; its text; and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.headings: list[int] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def words(self) -> str:
        return " ".join(self.text.split())


def stepped(**changes):
    return mode(**{"captured_steps": CAPTURED, "steps": PROGRAM, "rewritten_operators": 3, "rewritten_seconds": 3.5e-3,
                   **changes})


def on_a_gpu():
    """A result as a GPU gives it: a contraction and a region that were measured, a graph beside single launches."""
    use = ContractionUse("fp16x3", "tiles of 64", 10**9, 1e-3, 3e-3, 1e-7, 2e-7, 0.7)
    steps = (Step("k0_conv2d", "model.py:8: x", 10**9, 10**8, 4e-3, 3e-3, (), (0,), True),
             Step("k1_relu", "model.py:8: x", 10**6, 10**7, 1e-3, 1e-3, (0,), (1,), True),
             Step("k2_mean", "model.py:9: x", 10**6, 10**6, 1e-3, 1e-3, (1,), (2,), True), CAPTURED[3])
    found = tuple(KernelUse(s.name, "contraction" if n == 0 else "loop", "means", (), use if n == 0 else None)
                  for n, s in enumerate(steps[:3]))
    both = timing(0.005, 1e-3)
    launches = {GRAPH: both.entries[CANDIDATE], DIRECT: dataclasses.replace(both.entries[CANDIDATE], median=0.007)}
    timed = dataclasses.replace(both, launch=GRAPH, launches=launches, graph_bytes=10**6, environment={
        "load": "0.10", "clocks_event_reasons.active": hex(next(iter(THROTTLES)))})
    return result(mode("inference", captured_steps=CAPTURED, steps=steps, kernels=found, certificate=certificate(),
                       timing=timed, regions=(RegionUse(("k1_relu", "k2_mean"), 1e-3, 4e-3),), launched=GRAPH),
                  target="cuda", figures=H200, source=FILE)


def busy():
    found = timing()
    return dataclasses.replace(found, entries={n: dataclasses.replace(t, busy=True, void=3)
                                               for n, t in found.entries.items()})


def odd_errors():
    """A certificate of outputs that are infinite, not a number, exact, missing, or of a trial that did not run."""
    found = certificate()
    (first, *others) = found.trials
    outputs = [dataclasses.replace(first.comparison.outputs[0], **changes) for changes in (
        {"spread": (0.0, math.nan, 1.0, math.inf), "eager_spread": (0.0,) * 4}, {"relative": math.nan},
        {"relative": math.inf, "spread": ()}, {"reference_rms": 0.0})]
    comparison = dataclasses.replace(first.comparison, outputs=tuple(outputs))
    return dataclasses.replace(found, trials=(dataclasses.replace(first, comparison=comparison), dataclasses.replace(
        others[0], comparison=None, passed=False, problems=("it raises",)), others[1]), deterministic=None)


KINDS = {
    "kernels": lambda: result(stepped(certificate=certificate(), timing=timing()), figures=GENERIC_CPU, source=FILE),
    "all original": lambda: result(mode(kernels=(), rules=(), replaced=0, captured_steps=CAPTURED,
                                        certificate=certificate(), timing=timing(0.5).of_original()),
                                   figures=GENERIC_CPU),
    "check failed": lambda: result(stepped(certificate=certificate(scale=1.5)), figures=GENERIC_CPU),
    "several modes": lambda: result(stepped(certificate=certificate(), timing=timing()), stepped(name="training"),
                                    mode("training_with_gradients", kernels=(), rules=(), replaced=0),
                                    figures=GENERIC_CPU, source=FILE),
    "no timing": lambda: result(stepped(), figures=GENERIC_CPU, path=None),
    "busy": lambda: result(stepped(certificate=certificate(), timing=busy()), figures=GENERIC_CPU),
    "gpu": on_a_gpu,
    "odd figures": lambda: result(stepped(
        captured_steps=(*CAPTURED, Step("copy", "", 0, 0, 0.0, 0.0, (3,))), certificate=odd_errors(), timing=timing(),
        floor_seconds=math.inf, regions=(RegionUse(("k0_region_sum",), 0.0, 0.0),)), figures=GENERIC_CPU),
    "no steps": lambda: result(mode(kernels=(KERNEL, CONTRACTION))),
    "nothing captured": lambda: result(mode(kernels=(), rules=(), replaced=0, operators=0, kept=()),
                                       figures=GENERIC_CPU),
    "a backward": lambda: result(stepped(name="training", backward=(backward_use(),)), stepped(), figures=GENERIC_CPU),
    "no modes": lambda: dataclasses.replace(result(), modes=()),
}


@pytest.fixture(scope="module")
def results():
    return {kind: make() for kind, make in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_pages_are_well_formed_and_load_nothing(results, kind):
    text = render_html(results[kind])
    page = Page(text)
    assert page.open == [] and page.counts["html"] == page.counts["h1"] == page.counts["main"] == 1
    assert page.counts.get("script", 0) == 0 and not re.search(r"url\(|@import|https?:|//[a-z]+\.", text)
    assert {tag for tag, name, _ in page.attributes if name in ("src", "href", "xlink:href")} <= {"a"}
    anchors = [value[1:] for tag, name, value in page.attributes if tag == "a" and name == "href"]
    assert set(anchors) <= set(page.ids) and len(set(page.ids)) == len(page.ids)
    labels = [value for _, name, value in page.attributes if name == "aria-labelledby"]
    assert set(labels) <= set(page.ids) and page.counts.get("svg", 0) == len(labels)
    assert all(b - a <= 1 for a, b in zip(page.headings, page.headings[1:])), page.headings
    assert text.count("<th>") == 0 and text.count("<th ") == page.counts.get("th", 0) == text.count("scope=")
    assert render_html(results[kind]) == text, "the same result gives the same page"
    for table in re.findall(r'<table class="stack">.*?</table>', text, re.DOTALL):
        names = {html.unescape(name) for name in re.findall(r'<th scope="col">([^<]*)</th>', table)}
        cells = re.findall(r"<td(.*?)>(.*?)</td>", table, re.DOTALL)
        found = [re.search(r'data-name="(.*?)"', attributes) for attributes, inside in cells if inside]
        assert cells and {html.unescape(name[1]) if name else "" for name in found} <= names
    wide = [table for table in re.findall(r"<table.*?</table>", text, re.DOTALL) if table.count('scope="col"') > 4]
    assert all(table.startswith('<table class="stack">') for table in wide)


def test_kernels_of_the_backward_stand_on_the_page(results):
    words = Page(render_html(results["a backward"])).words()
    part = words[words.index("Kernels of the backward, for parameters alone"):]
    for said in ("k4_mul_sum", "No version of it takes less than 2.00 us on this device.", "Calls hand over 2.05 kB",
                 "linear (model.py:10: self.fc(x))", "Roofline of this device: 7.00 us: one read of the gradients"):
        assert said in part
    assert words.count("of the backward") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_verdict_is_that_of_the_terminal(results, kind):
    found = results[kind]
    words = Page(render_html(found)).words()
    for label, text, _ in verdict.lines(found):
        assert f"{label} {text}" in words.replace(f"{label}{text}", f"{label} {text}")
    first = words.index("Program") if found.modes else len(words)
    assert verdict.title(found) in words[:first] or not found.modes
    if "not measurable here" in str(verdict.lines(found)) or not any(m.timing for m in found.modes):
        assert not re.search(r"\d+x over eager", words)


def test_texts_are_data():
    """Names, lines, laws, reasons, notes and the kernels' texts come as they are, and as text alone."""
    kernel = dataclasses.replace(KERNEL, name=EVIL, meaning=EVIL, covers=(f"{EVIL} ({EVIL})",))
    rule = dataclasses.replace(mode().rules[0], name=EVIL, law=EVIL, where=EVIL, condition=EVIL)
    steps = [dataclasses.replace(step, name=EVIL, where=EVIL) for step in CAPTURED]
    checked = dataclasses.replace(certificate(), why=(EVIL,))
    entries = {EAGER: measured(EAGER, [0.4] * 5), EVIL: measured(EVIL, [0.1] * 5)}
    timed = dataclasses.replace(summarize(entries, device="cpu", failures={EVIL: EVIL}), environment={EVIL: EVIL})
    text = render_html(result(
        mode(kernels=(kernel,), rules=(rule,), captured_steps=tuple(steps), steps=tuple(steps), certificate=checked,
             timing=timed, graph=EVIL, rewritten=EVIL, layout=EVIL, floor_words=EVIL),
        name=EVIL, notes=(EVIL,), device=EVIL, stages={EVIL: 1.0}, construction=EVIL, figures=GENERIC_CPU,
        source=FILE.replace("k0_region_sum", "k0").replace("return a", f"return {EVIL}")))
    page = Page(text)
    assert "script" not in page.counts and page.open == []
    assert page.text.count(EVIL) > 25 and "<script" not in text


def test_kernels_stand_below_the_users_lines_with_their_texts(results):
    page = Page(render_html(results["kernels"]))
    assert "static int k0(int a) { return a < 3 && 1; }" in page.text and "int launch() { return 0; }" in page.text
    (found,) = kernels.kernels(results["kernels"].modes[0], {"k0_region_sum": "text"}, LAUNCH)
    assert found["lines"] == ["model.py:8: x = self.up(x)", "model.py:9: x = x.mean((2, 3))"]
    assert found["text"] == "text" and [rule["name"] for rule in found["rules"]] == ["sum of a convolution"]
    assert found["why"] == ["3 operators as captured: 1.00 GFLOP, 112 MB, 7.01 ms as modelled. This kernel: "
                            "2.00 MFLOP, 40.0 MB, 2.00 ms as modelled."]
    shared = dataclasses.replace(PROGRAM[1], replaces=(2, 3))
    (found,) = kernels.kernels(stepped(steps=(PROGRAM[0], shared)), {}, LAUNCH)
    assert found["why"][1] == "The work of these operators is shared with linear: all together 2.51 ms as modelled."
    (_, second, third) = kernels.kernels(on_a_gpu().modes[0], {}, LAUNCH)
    assert "together with k2_mean: 1.00 ms, the torch calls 4.00 ms" in second["why"][1] and third["why"]


def test_rows_know_what_was_measured():
    rows = program_rows(stepped(regions=(RegionUse(("k0_region_sum",), 7e-4, 3e-3),)), LAUNCH)
    assert [(row.form, row.name, row.known) for row in rows] == [
        (OF_KERNEL, "k0_region_sum", MEASURED), (CALL, "linear", MODELLED)]
    assert rows[0].seconds == 7e-4 and rows[1].seconds == pytest.approx(5e-4 + LAUNCH)
    assert sum(row.share for row in rows) == pytest.approx(1.0)
    twice = captured_rows(mode(captured_steps=CAPTURED * 2), LAUNCH)
    assert [row.count for row in twice] == [2] * 4 and sum(row.share for row in twice) == pytest.approx(1.0)
    gpu = program_rows(on_a_gpu().modes[0], LAUNCH)
    assert [(row.form, row.known) for row in gpu] == [
        (OF_KERNEL, MEASURED), (OF_KERNEL, MODELLED), (OF_KERNEL, MODELLED), (CALL, MODELLED), (TOGETHER, MEASURED)]
    alike = on_a_gpu().modes[0]
    twice = program_rows(dataclasses.replace(alike, regions=alike.regions * 2), LAUNCH)
    assert len(twice) == len(gpu) and (gpu[-1].count, twice[-1].count) == (1, 2)
    assert gpu[-1].name == "k1_relu + k2_mean" and gpu[-1].operations == 2 * 10**6


def test_marks_stand_where_their_figures_say():
    found = roofline.roofline(stepped(timing=timing()), GENERIC_CPU)
    assert [mark.shape for mark in found["marks"]] == ["circle"] * 4 + ["square", "diamond", "ring", "ring"]
    across, up = found["across"], found["up"]
    for mark in found["marks"]:
        assert mark.x == across.at(mark.row.operations / mark.row.bytes)
        assert mark.y == up.at(mark.row.operations / mark.row.seconds)
        assert mark.row.name in mark.title and mark.row.known in mark.title
        limit = min(GENERIC_CPU.float32, GENERIC_CPU.memory_peak * mark.row.intensity)
        assert mark.row.rate <= limit or mark.row.form == "captured operator"
    assert len(found["table"]) == 8 and all(len(cells) == len(roofline.TABLE_HEAD) for cells in found["table"])
    copies = (dataclasses.replace(CAPTURED[0], operations=0), CAPTURED[3])
    assert roofline.roofline(mode(captured_steps=copies), GENERIC_CPU)["without"] == 1
    assert roofline.roofline(mode(), GENERIC_CPU) is None and found["above"] == []
    fast = dataclasses.replace(timing(candidate=1e-4), floor_seconds=5e-3)
    assert roofline.roofline(stepped(timing=fast), GENERIC_CPU)["above"] == ["ModelNew"]
    assert "faster than the device's figures allow: ModelNew" in Page(render_html(result(
        stepped(timing=fast), figures=GENERIC_CPU))).words()
    assert roofline.whole_rows(stepped(timing=busy())) == []
    names = [name for name, _ in roofline.arithmetic_roofs(H200)]
    assert len(names) == 3 and names[-1].endswith("TF32") and len(roofline.arithmetic_roofs(GENERIC_CPU)) == 1


def test_numbers_do_not_stand_on_each_other():
    found = roofline.roofline(mode(captured_steps=tuple(
        dataclasses.replace(CAPTURED[0], name=f"n{n}") for n in range(5))), GENERIC_CPU)
    assert [mark.labelled for mark in found["marks"]] == [False] * 4 + [True]


def test_causes_and_the_rest_are_all_of_the_difference():
    for found, kinds in ((stepped(timing=timing()), {"modelled", "unexplained"}),
                         (on_a_gpu().modes[0], {"modelled", "measured", "unexplained"})):
        begins, ends = (found.timing.entries[name].median for name in (EAGER, CANDIDATE))
        model = sum(step.seconds + LAUNCH for step in CAPTURED)
        causes = [*waterfall.modelled(found, LAUNCH, begins / model), *waterfall.measured(found)]
        rows = waterfall.waterfall(found, GENERIC_CPU)["rows"]
        assert (rows[0]["name"], rows[-1]["name"]) == (EAGER, "ModelNew")
        assert {row["kind"] for row in rows[1:-1]} == kinds
        rest = begins - ends - sum(cause.saved for cause in causes)
        assert rows[-2]["name"] == "not attributed"
        assert rows[-2]["time"].lstrip("+-") == waterfall.units.seconds(abs(rest))
        assert all(float(row["left"]) >= 0 and float(row["left"]) + float(row["width"]) <= 100.01 for row in rows)


def test_measured_causes_are_as_measured():
    causes = {(cause.name, cause.known): cause for cause in waterfall.measured(on_a_gpu().modes[0])}
    saved = {name: cause.saved for name, cause in causes.items()}
    assert saved[("contractions: precision and schedule", MEASURED)] == pytest.approx(2e-3)
    assert saved[("fusion", MEASURED)] == pytest.approx(3e-3)
    assert saved[("launches", MEASURED)] == pytest.approx(7e-3 - 5.05e-3)
    # What was measured is no part of what is modelled.
    modelled = {cause.name: cause.saved for cause in waterfall.modelled(on_a_gpu().modes[0], LAUNCH, 1.0)}
    assert modelled["fusion"] == modelled["fewer launches"] == 0.0


def test_without_rules_nothing_is_algebra():
    causes = {cause.name: cause.saved for cause in waterfall.modelled(stepped(rules=()), LAUNCH, 1.0)}
    assert causes["algebra"] == 0.0 and causes["fusion"] == pytest.approx(7.5e-3 - 2.5e-3)
    assert causes["fewer launches"] == pytest.approx(2 * LAUNCH)
    causes = {cause.name: cause.saved for cause in waterfall.modelled(stepped(), LAUNCH, 2.0)}
    assert causes["algebra"] == pytest.approx(2 * (7.5e-3 + 4 * LAUNCH - 3.5e-3 - 3 * LAUNCH))
    assert causes["fusion"] == pytest.approx(2 * 1e-3) and causes["fewer launches"] == pytest.approx(2 * LAUNCH)


def test_times_that_do_not_hold_end_no_waterfall():
    found = waterfall.waterfall(stepped(timing=busy()), GENERIC_CPU)
    assert {row["known"] for row in found["rows"]} == {MODELLED}
    assert any("No end of it was measured: busy machine" in text for text in found["words"])
    untimed = waterfall.waterfall(stepped(), GENERIC_CPU)
    assert any("nothing was timed" in text for text in untimed["words"])
    assert waterfall.waterfall(mode(captured_steps=CAPTURED), GENERIC_CPU) is None


def test_graphs_are_folded_by_line():
    before = graphs.graph_before(stepped())
    assert [row["text"] for row in before["rows"]] == ["conv2d, relu", "mean", "linear"]
    assert len(before["arcs"]) == 2 and "done by k0_region_sum" in before["rows"][0]["title"]
    assert "done by PyTorch" in before["rows"][2]["title"]
    after = graphs.graph_after(stepped())
    assert [(row["text"], row["is_kernel"]) for row in after["rows"]] == [("k0_region_sum", True), ("linear", False)]
    assert "does conv2d, relu, mean" in after["rows"][0]["title"]


def test_blocks_are_one_row_each_and_long_graphs_end():
    block = [Step("linear", "m.py:3: a", 1, 1, 1.0, 1.0), Step("relu", "m.py:4: b", 1, 1, 1.0, 1.0)]
    steps = tuple(dataclasses.replace(block[n % 2], reads=(n - 1,) if n else ()) for n in range(24))
    lines, placed = graphs.folded(steps, [step.where for step in steps])
    assert [line.names for line in lines] == [["linear"] * 12, ["relu"] * 12] and placed == [0, 1] * 12
    assert lines[0].repeats and lines[1].reads == {0}
    long = tuple(Step(f"op{n}", f"m.py:{n}: x", 1, 1, 1.0, 1.0, (n - 1,) if n else ()) for n in range(100))
    found = graphs.graph_before(mode(captured_steps=long))
    assert len(found["rows"]) == graphs.MOST_ROWS and found["more"].startswith("40 further rows are")


def test_errors_stand_beside_eagers():
    found = accuracy.accuracy(certificate())
    assert found["passed"] and len(found["rows"]) == 3 and all(len(r["cells"]) == 7 for r in found["rows"])
    for row in found["rows"]:
        assert [strip["name"] for strip in row["strips"]] == ["ModelNew", "eager"] and row["words"].count("100 %:") == 2
        for strip in row["strips"]:
            places = list(map(float, strip["marks"]))
            assert places == sorted(places) and places[0] >= 0 and places[-1] <= 100
    failed = accuracy.accuracy(certificate(scale=1.5))
    assert not failed["passed"] and {row["cells"][2] for row in failed["rows"]} == {"failed"} and failed["why"]
    both = certificate()
    recorded = accuracy.accuracy(dataclasses.replace(both, recorded=both))
    assert len(recorded["rows"]) == 6 and "gradients recorded" in recorded["rows"][-1]["cells"][0]
    assert accuracy.accuracy(dataclasses.replace(both, given_up=True))["rows"] == []


def test_the_machine_is_not_called_quiet_where_it_was_not():
    assert "The machine was busy: other programs took the processors from eager, ModelNew." in times.quiet(busy())
    found = timing()
    some = dataclasses.replace(found, entries={n: dataclasses.replace(t, void=1) for n, t in found.entries.items()},
                               environment={"load": "3.00"})
    assert times.quiet(some).startswith("The machine was not always quiet: 1 round in which")
    assert times.quiet(some).endswith("The load was 3.00 when it ended.")
    assert times.quiet(found).startswith("No round was left out")
    assert "ran below its full speed: power cap" in times.quiet(on_a_gpu().modes[0].timing)


def test_times_have_their_spread():
    found = times.times(timing())
    assert [row["name"] for row in found["rows"]] == [EAGER, "ModelNew"]
    assert all(len(row["cells"]) == len(times.HEAD) - 1 for row in found["rows"])
    eager = found["rows"][0]
    assert eager["cells"][0] == "410 ms" and eager["cells"][1] == "400-420 ms" and "40.6x" in eager["cells"][8]
    assert float(eager["left"]) + float(eager["width"]) == pytest.approx(100, abs=0.02)
    assert times.times(busy())["rows"][0]["cells"][8] == "not measurable here"


def test_what_is_left_is_bounded():
    rows = untried.kept(stepped(), GENERIC_CPU)
    assert [(row[0], row[5], row[6]) for row in rows] == [("linear", "105 us", "the library does it well")]
    assert untried.kept(mode(captured_steps=CAPTURED), GENERIC_CPU)[0][0] == "conv2d"
    assert "at most a factor of 2.02 is left" in untried.room(stepped(timing=timing()))
    assert untried.room(stepped(timing=busy())) == "" and untried.room(mode()) == ""
    late = "There was no time to measure 3 of the contractions: that may save 1 ms a call, as predicted."
    assert untried.notes(result(notes=(late, "other"))) == ([late], ["other"])
    skipped = untried.checks_left_out(mode(certificate=certificate(budget=0.0), timing=timing()))
    assert skipped[0] == "torch.compile has no time: no compiler" and "did not run" in skipped[1]


def test_axes():
    axis = around([1.0, 100.0, 0.0, float("inf")], 0.0, 100.0, margin=1.0)
    assert axis == Logarithmic(1.0, 100.0, 0.0, 100.0) and axis.at(10.0) == pytest.approx(50.0)
    assert axis.at(1e9) == 100.0 and axis.at(1e-9) == 0.0 and around([0.0], 0.0, 1.0) is None
    assert ticks(0.5, 20.0) == [0.5, 1, 2, 5, 10, 20] and len(ticks(1e-9, 1e12)) <= 10


def test_a_page_is_saved_whole_or_not_at_all(tmp_path):
    found = result(stepped(), figures=GENERIC_CPU)
    path = found.save_report(tmp_path / "page.html")
    assert path.read_text(encoding="utf-8") == render_html(found)
    with pytest.raises(errors.OutputExists):
        found.save_report(path)
    assert found.save_report(str(path), force=True) == path
    with pytest.raises(errors.InvalidOption, match="--report cannot be"):
        found.save_report(tmp_path / "page.txt")
    with pytest.raises(errors.OutputFolderUnusable):
        found.save_report(tmp_path / "none" / "page.html")
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


#: A page in a frame of some width with all its details open, and what of its tables lies beyond their boxes.
FRAME = """<iframe src="page.html" style="border: 0; height: 3000px; width: {width}px"></iframe><p></p><script>
const frame = document.querySelector("iframe");
frame.onload = () => {{
  const page = frame.contentDocument;
  page.querySelectorAll("details").forEach(part => part.open = true);
  const boxes = [...page.querySelectorAll(".box")].filter(box => box.querySelector("table"));
  const hidden = boxes.filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.ariaLabel);
  document.querySelector("p").textContent = `${{boxes.length}} tables, hidden: ${{JSON.stringify(hidden)}},`
    + ` sideways: ${{page.documentElement.scrollWidth > {width}}}`;
}};</script>"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium")
@pytest.mark.parametrize("width", [390, 1200])
def test_no_column_is_out_of_sight(results, tmp_path, width):
    (tmp_path / "page.html").write_text(render_html(results["gpu"]))
    (tmp_path / "frame.html").write_text(FRAME.format(width=width))
    shown = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
         f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom",
         f"file://{tmp_path / 'frame.html'}"], capture_output=True, text=True, timeout=240).stdout
    tables = re.search(r"<p>(\d+) tables, hidden: (.*?), sideways: (\w+)</p>", shown)
    assert tables is not None and int(tables[1]) > 3 and tables.groups()[1:] == ("[]", "false"), shown[-500:]
