"""The report: what it says, once, in which words, and its JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.describe import tiling_words
from kernelwright.records import BackwardUse, ContractionUse, Kept, KernelUse, Mode, RuleUse, Step, Work
from kernelwright.report import as_json, render_explanation, render_text, units
from kernelwright.report.layout import Page
from kernelwright.result import Result
from kernelwright.timing.baselines import (
    CANDIDATE,
    COMPILED,
    EAGER,
    GRAPHED,
    MAX_AUTOTUNE,
    REDUCE_OVERHEAD,
    summarize,
)
from kernelwright.timing.rounds import Times
from kernelwright.verify import Plan, TrialPlan, certify

RULE = RuleUse("sum of a convolution", "sum_p conv(x, w)[p] = contraction of sums", "any axes but the channels",
               "reassociates sums", "model.py:9: x = x.mean((2, 3))", "mean(convolution[16, 32])", "add[16, 32]")
KERNEL = KernelUse("k0_region_sum", "region sum", "sums over classes of positions, one pass",
                   ("conv_transpose2d (model.py:8: x = self.up(x))", "mean ()"))


CONTRACTION = KernelUse(
    "k1_contraction", "contraction", "product of 64 x 8 and 8 x 8, a second time", (),
    ContractionUse("fp16x3", tiling_words(Tiling("wgmma", 64, 64, 16, 3, pingpong=3, overlap=12, converts_left=True)),
                   1 << 20))
KEPT = Kept("linear", "model.py:10: self.fc(x)", "the library does it well")


def mode(name: str = "inference", **changes: object) -> Mode:
    base = Mode(name, 4, 3, (RULE,), (KERNEL,), (KEPT,),
                Work(38_900_000_000, 2_210_000_000), Work(17_900_000, 67_800_000), 5.0e-3, "one read of the input")
    return dataclasses.replace(base, **changes)


def result(*modes: Mode, **changes: object) -> Result:
    base = Result("model", "source", Path("out/model_new.py"), "cpp", "A Processor", modes or (mode(),),
                  ("Not timed: there is no GPU here.",), {"load": 0.5})
    return dataclasses.replace(base, **changes)


def measured(name: str, seconds: list[float]) -> Times:
    middle = sorted(seconds)[len(seconds) // 2]
    return Times(name, tuple(seconds), tuple(seconds), middle, min(seconds), max(seconds), min(seconds),
                 (min(seconds), max(seconds)), len(seconds), 2, middle, None, 0, 0.0)


def timing(candidate: float = 0.01, floor: float | None = 5e-3):
    entries = {EAGER: measured(EAGER, [0.4, 0.41, 0.42, 0.41, 0.41]),
               CANDIDATE: measured(CANDIDATE, [candidate, candidate * 1.01, candidate * 1.02] + [candidate * 1.01] * 2)}
    return summarize(entries, device="cpu", floor_seconds=floor, failures={"torch.compile": "no compiler"})


class Linear(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale


def certificate(scale: float = 1.0, budget: float = 20.0):
    def inputs(seed: int) -> list[torch.Tensor]:
        return [torch.rand(4, 8, generator=torch.Generator().manual_seed(seed))]

    plan = Plan(trials=(TrialPlan(0), TrialPlan(1), TrialPlan(2, "normal", True)), budget_seconds=budget)
    return certify(Linear, lambda: Linear(scale), inputs, plan=plan)


def test_everything_is_said():
    text = render_text(result(mode(certificate=certificate(), timing=timing())), width=100)
    for words in ("captured 4 operators; 1 kernel does the work of 3 of them", "sum_p conv(x, w)[p]",
                  "reassociates sums", "model.py:9: x = x.mean((2, 3))", "does mean; conv_transpose2d (model.py:8)",
                  "linear (model.py:10: self.fc(x))", "the library does it well", "38.9 GFLOP", "17.9 MFLOP",
                  "2170x fewer", "2.21 GB", "67.8 MB", "5.00 ms: one read of the input",
                  "3 of 3 trials passed: as given (2), normal with other parameters", "the same bits",
                  "410 ms", "400-420 ms", "40.6x", "roofline", "torch.compile: no time, no compiler",
                  "Not timed: there is no GPU here.", "Written to out/model_new.py", "from model_new import ModelNew",
                  "model = ModelNew(*get_init_inputs())"):
        assert words in text, words
    assert all(len(line) <= 100 for line in text.splitlines())
    assert text == "\n".join(line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("render", [render_text, render_explanation])
def test_how_a_contraction_runs_is_said(render):
    text = " ".join(render(result(mode(kernels=(KERNEL, CONTRACTION)))).split())
    for words in ("a second time", "wgmma 64x64x16: tiles of 64 rows by 64 channels", "overlap by 12 rows",
                  "3 consumer warpgroups", "x is read where it lies"):
        assert words in text
    assert "tiles of" not in render(result(mode()))


def test_colours_change_nothing_but_colours():
    full = result(mode(certificate=certificate(), timing=timing()))
    plain, painted = render_text(full), render_text(full, colour=True)
    assert "\x1b[" not in plain and "\x1b[" in painted
    assert re.sub(r"\x1b\[[\d;]*m", "", painted) == plain


def test_one_program_is_said_once_and_two_are_told_apart():
    same = render_text(result(mode("inference"), mode("training")))
    assert same.count("k0_region_sum") == 1
    assert "the same program for inference and training" in " ".join(same.split())
    other = render_text(result(mode("inference"), mode("training", kernels=(), replaced=0, rules=())))
    assert "Algebra (inference)" in other and "Algebra (training)" not in other
    assert "training: captured 4 operators; nothing is replaced" in other
    assert "The result is the original computation" not in other


def test_nothing_pays():
    text = render_text(result(mode(kernels=(), rules=(), replaced=0)))
    assert "The result is the original computation" in text
    assert "the library does it well" in " ".join(text.split())


def test_kernels_that_lost_are_no_success():
    text = render_text(result(mode(kernels=(), timing=timing(candidate=0.5).of_original(), certificate=certificate())))
    assert "not worth it, 0.812x over eager" in " ".join(text.split())
    assert re.search(r"ModelNew +[\d.-]+ (ms|us|s)\b", render_text(result(mode(timing=timing()))))
    assert not re.search(r"ModelNew +[\d.-]+ (ms|us|s)\b", text)  # no row for what the file does not have
    assert "speed-up: of" not in text
    both = timing()
    in_a_row = {EAGER: 2.0, CANDIDATE: 3.0}
    entries = {n: dataclasses.replace(both.entries[n], back_to_back_seconds=s) for n, s in in_a_row.items()}
    text = render_text(result(mode(kernels=(), timing=dataclasses.replace(both, entries=entries).of_original(),
                                   certificate=certificate())))
    assert "on flushed caches, but each of the calls in a row takes 3.00 s, eager's 2.00 s" in " ".join(text.split())
    entries = {n: dataclasses.replace(both.entries[n], back_to_back_seconds=None, waited_seconds=s)
               for n, s in in_a_row.items()}
    text = render_text(result(mode(kernels=(), timing=dataclasses.replace(both, entries=entries).of_original(),
                                   certificate=certificate())))
    assert "on flushed caches, but a call that is waited for takes 3.00 s, eager's 2.00 s" in " ".join(text.split())


def test_times_that_do_not_hold_are_no_number():
    """Cold and warm side by side; a busy machine, or two that disagree, has no speed-up."""
    def with_rows(**changes):
        found = timing()
        return dataclasses.replace(found, entries={n: dataclasses.replace(t, **changes.get(n, {}))
                                                   for n, t in found.entries.items()})

    text = render_text(result(mode(timing=with_rows(eager={"back_to_back_seconds": 0.39},
                                                    candidate={"back_to_back_seconds": 0.009}))))
    assert re.search(r"eager +410 ms +390 ms +40\.6x", text) and re.search(r"ModelNew +10\.1 ms +9\.00 ms", text)
    busy = render_text(result(mode(timing=with_rows(eager={"busy": True, "note": "busy machine: threads waited"}))))
    assert " ".join(busy.split()).count("not measurable here (busy machine: ") == 2 and "40." not in busy
    apart = render_text(result(mode(timing=with_rows(eager={"back_to_back_seconds": 0.009},
                                                     candidate={"back_to_back_seconds": 0.02}))), width=200)
    assert "not measurable here (cold and warm times disagree: 40.59x on flushed caches, 0.45x in a row)" in apart


def test_what_waited_for_processors_has_no_share_of_the_roofline():
    quiet = timing()
    busy = {name: dataclasses.replace(entry, busy=name == CANDIDATE) for name, entry in quiet.entries.items()}
    assert set(quiet.share_of_floor) == {EAGER, CANDIDATE}
    assert set(summarize(busy, device="cpu", floor_seconds=5e-3).share_of_floor) == {EAGER}


@pytest.mark.parametrize("width", [40, 60])
def test_tables_fit_narrow_terminals(width):
    """Sixty columns, with every entry that a GPU has."""
    found = timing()
    times = {name: dataclasses.replace(found.entries[EAGER], name=name, lower_quartile=0.9994e-3,
                                       upper_quartile=1.01e-3, repetitions=1000, waited_seconds=0.123,
                                       back_to_back_seconds=0.123)
             for name in (EAGER, GRAPHED, COMPILED, REDUCE_OVERHEAD, MAX_AUTOTUNE)}
    text = render_text(result(mode(certificate=certificate(), timing=summarize(
        {**times, CANDIDATE: found.entries[CANDIDATE]}, device="cpu", floor_seconds=5e-3))), width=width)
    assert max(map(len, text.splitlines())) <= 60 and "eager, CUDA graph" in text and "999 us-1.01 ms" in text


def test_how_kernels_are_launched_and_what_a_graph_keeps():
    both = timing()
    graph = dataclasses.replace(both.entries[CANDIDATE], waited_seconds=2e-3)
    launches = {"graph": graph, "direct": dataclasses.replace(graph, waited_seconds=3e-3)}
    for launch, words in (("graph", "A call is one launch, of a CUDA graph, which keeps 64.0 MB of the device's "
                           "memory: the latency of a call is 2.00 ms by a graph and 3.00 ms without."),
                          ("direct", "Its kernels are launched one by one: the latency of a call is")):
        found = dataclasses.replace(both, launch=launch, launches=launches, graph_bytes=64 * 10**6)
        text = " ".join(render_text(result(mode(timing=found, certificate=certificate()))).split())
        assert words in text


def test_failed_and_skipped_checks_are_shown():
    failed = render_text(result(mode(certificate=certificate(scale=1.5))), width=200)
    assert "FAILED: " in failed and "0 of 3 trials passed" in failed
    skipped = render_text(result(mode(certificate=certificate(budget=0.0))), width=200)
    assert "1 of 1 trial passed" in skipped
    assert re.search(r"skipped: as given, normal with other parameters \(.*s are left\)", skipped) or (
        skipped.count("skipped: ") == 2)


def test_a_time_below_the_limit_is_doubted():
    text = render_text(result(mode(timing=timing(candidate=0.001))))
    assert "ModelNew is faster than the roofline" in text


def test_explanation_has_every_step():
    graphs = mode(graph="%0: float32[16] = mean(x)", rewritten="%0: float32[16] = region_sum(x)")
    text = render_explanation(result(graphs, path=None))
    for label in ("law", "condition", "exactness", "where"):
        assert re.search(rf"^ +{label} ", text, re.MULTILINE), label
    assert "before" not in text.split("Work of")[0] and "float32[16]" not in render_text(result(graphs))
    assert "Captured graph" in render_text(result(graphs), verbose=True)
    for label in ("before", "after"):
        assert re.search(rf"^ +{label} ", render_explanation(result(graphs), verbose=True), re.MULTILINE), label
    assert "Captured graph" not in text and "Written to" not in text
    verbose = render_explanation(result(graphs, path=None), verbose=True)
    assert "Captured graph" in verbose and "  %0: float32[16] = region_sum(x)" in verbose
    assert "no rule applies" in render_explanation(result(mode(rules=())))


def test_json():
    infinite = mode(floor_seconds=float("inf"), certificate=certificate(), timing=timing())
    document = json.loads(json.dumps(as_json(result(infinite, mode("training"))), allow_nan=False))
    assert document["schema"] == 1 and document["path"] == "out/model_new.py"
    first, second = document["modes"]
    assert first["floor_seconds"] == "inf"
    assert first["rules"][0]["law"] == RULE.law and first["kernels"][0]["covers"] == list(KERNEL.covers)
    assert first["before"] == {"operations": 38_900_000_000, "bytes": 2_210_000_000}
    assert first["certificate"]["passed"] is True and first["timing"]["entries"][EAGER]["repetitions"] == 5
    assert second["certificate"] is None and second["timing"] is None
    assert as_json(result(path=None))["path"] is None


@pytest.mark.parametrize(("value", "text"), [
    (0, "0 s"), (1.0, "1.00 s"), (0.9999, "1.00 s"), (0.5, "500 ms"), (12.3456e-6, "12.3 us"), (7e-9, "7.00 ns"),
    (1e-12, "0.00100 ns"), (123.4, "123 s")])
def test_seconds(value, text):
    assert units.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [
    (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (2_210_000_000, "2.21 GB"), (999_600, "1.00 MB"),
    (10**20, "100 EB")])
def test_bytes(value, text):
    assert units.memory(value) == text


@pytest.mark.parametrize(("before", "after", "text"), [
    (10, 10, "the same"), (100, 10, "10.0x less"), (10, 25, "2.50x more"), (10, 0, "none left"), (0, 0, "the same"),
    (0, 5, "more")])
def test_change(before, after, text):
    assert units.change(before, after) == text


def test_text_of_others_is_no_markup_and_stays_whole():
    """What looks like markup or a number, words longer than a line and hyphens, at any width and with colours."""
    path = "/" + "very-long-folder/" * 8 + "model.py:9"
    said = f"[bold]a[/bold] [link=x]b[/] {path} :warning: 12 0x7f 'text' well-known"
    graph = "%0: float32[16] = mean(x)  # [red]no colour[/red] " + "wide " * 60
    for colour in (False, True):
        page = Page(colour, 40)
        page.paragraph(said, "yellow")
        page.verbatim(graph)
        page.table([["[red]x[/red]", "y" * 200]], head=("", "[b]"), styles=("green",))
        lines = re.sub(r"\x1b\[[\d;]*m", "", page.text()).split("\n")
        assert " ".join(" ".join(lines[:-3]).split()) == said and any(path in line for line in lines)
        assert lines[-3] == "  " + graph.rstrip()
        assert lines[-2:] == ["                [b]", "  [red]x[/red]  " + "y" * 200]
        assert set(re.findall(r"\x1b\[([\d;]*)m", page.text())) == ({"0", "2", "32", "33"} if colour else set())


def backward_use() -> BackwardUse:
    step = Step("k4_mul_sum", "model.py:9: x = x.mean((2, 3))", 1000, 4096, 3e-6, 2e-6, is_kernel=True)
    own = dataclasses.replace(KERNEL, name="k4_mul_sum", meaning="sum over rows")
    return BackwardUse("parameters alone", (own,), (KEPT,), (step,), 7e-6, "one read of the gradients",
                       ("linear (model.py:10: self.fc(x))",), 2048)


def test_kernels_of_the_backward_are_listed_with_the_least_that_they_take():
    found = result(mode("training", backward=(backward_use(),)), mode("inference"))
    for text in (render_text(found), render_explanation(found)):
        heading = next(line for line in text.split("\n") if "of the backward" in line)
        assert heading.endswith(", for parameters alone")
        part = text[text.index(heading):]
        assert "k4_mul_sum (region sum)" in part
        assert "takes 2.00 us or more on this device" in part
        assert "reads 2.05 kB that the call hands over: linear (model.py:10)" in part
        assert "roofline of this device: 7.00 us: one read of the gradients" in part
        assert text.count("of the backward") == 1
    document = json.loads(json.dumps(as_json(found), allow_nan=False))["modes"]
    assert document[0]["backward"][0]["saved_bytes"] == 2048 and document[1]["backward"] == []
    assert document[0]["backward"][0]["steps"][0]["least_seconds"] == 2e-6
