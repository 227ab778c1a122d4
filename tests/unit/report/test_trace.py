"""The trace of a result: well formed, nested, in order, and clear on what was measured."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest
from test_report import certificate, mode, result, timing
from test_report_page import CAPTURED, PROGRAM, on_a_gpu, stepped

from kernelwright import errors, explain
from kernelwright.programs import Stages
from kernelwright.progress import Progress
from kernelwright.records import RegionUse, Span
from kernelwright.report.trace import CALLS_TRACK, EAGER_TRACK, FILE_TRACK, RUN, render_trace
from kernelwright.roofline.devices import GENERIC_CPU

SPANS = (Span("start", "imports", 0.0, 1.5), Span("build", "", 1.5, 2.0), Span("verify", "inference", 2.0, 0.1 + 0.2),
         Span("", "3 of 4", 2.25, None), Span("verify", "training", 2.5, 1.0), Span("time", "", 3.5, 1e-9))


def events_of(found) -> list[dict]:
    """The events of a trace, of which every one has what the format asks for."""
    document = json.loads(render_trace(found), parse_constant=pytest.fail)
    assert document["otherData"]["model"] == found.name
    events = document["traceEvents"]
    for event in events:
        assert isinstance(event["name"], str) and event["name"] and event["ph"] in ("M", "X", "i")
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            assert set(event["args"]) == {"name" if event["name"].endswith("name") else "sort_index"}
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] > 0 and isinstance(event["args"], dict)
        else:
            assert event["s"] == "t"
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= named
    assert not {pid for pid, _ in named} & {tid for _, tid in named}, "Perfetto puts a main thread before all others"
    for track in named:
        nested([e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == track])
    return events


def nested(events: list[dict]) -> None:
    """Events of one track begin in order, and each lies within those that are open, or after them: for readers that
    round times to nanoseconds and for those that cut them, as Perfetto's do, which drop what overlaps."""
    for whole in (round, int):
        _nested([(start := whole(e["ts"] * 1000.0), start + whole(e["dur"] * 1000.0)) for e in events])


def _nested(events: list[tuple[int, int]]) -> None:
    waiting: list[tuple[int, int]] = []
    for start, ends in events:
        while waiting and waiting[-1][1] <= start:
            waiting.pop()
        assert not waiting or (waiting[-1][0] <= start and ends <= waiting[-1][1])
        waiting.append((start, ends))


def track(events: list[dict], tid: int, pid: int = 2 * RUN) -> list[dict]:
    return [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (pid, tid)]


def test_stages_lie_within_stages():
    events = events_of(result(stepped(), spans=SPANS))
    stages = track(events, 1, RUN)
    assert [e["name"] for e in stages] == ["start: imports", "build", "verify: inference", "verify: training", "time"]
    assert stages[1]["ts"] == 1.5e6 and stages[1]["dur"] == 2e6 and stages[-1]["dur"] == 0.001
    (said,) = [e for e in events if e["ph"] == "i"]
    assert said["name"] == "3 of 4" and said["ts"] == 2.25e6


def test_no_nanosecond_is_lost():
    """As it is where times are cut: of 1000 neighbours about five would overlap by one."""
    drawn = random.Random(0)
    spans, now = [], 0.0
    for _ in range(2000):
        seconds = drawn.randrange(1, 10 ** drawn.randrange(3, 11)) * 1e-9
        spans += [Span("outer", "", now, seconds), Span("inner", "", now, seconds)]
        now += seconds
    stages = track(events_of(result(stepped(), spans=tuple(spans))), 1, RUN)
    assert len(stages) == 4000
    starts = [round(1e9 * span.start) for span in spans]
    assert [int(e["ts"] * 1000.0) for e in stages] == [round(e["ts"] * 1000.0) for e in stages] == starts


def test_a_run_keeps_what_it_did():
    told = []

    class Told(Progress):
        def say(self, text: str) -> None:
            told.append(text)

    stages = Stages(Told())
    with stages.stage("build", "one"):
        stages.say("half")
        with pytest.raises(KeyError), stages.stage("verify"):
            raise KeyError
    assert told == ["half"] and [(s.name, s.words) for s in stages.spans] == \
        [("build", "one"), ("", "half"), ("verify", "")]
    outer, said, inner = stages.spans
    assert said.seconds is None and outer.start <= said.start <= inner.start
    assert inner.seconds is not None and outer.seconds is not None
    assert inner.start + inner.seconds <= outer.start + outer.seconds
    events_of(result(stepped(), spans=tuple(stages.spans)))


def test_a_forward_in_order_with_its_figures():
    events = events_of(result(stepped(timing=timing(), certificate=certificate()), figures=GENERIC_CPU))
    before, after, calls = (track(events, tid) for tid in (EAGER_TRACK, FILE_TRACK, CALLS_TRACK))
    assert [e["name"] for e in before] == [f"{step.name} (predicted)" for step in CAPTURED]
    assert all(e["cat"] == "predicted" and "predicted" in e["args"]["time"] for e in (*before, *after))
    launch = GENERIC_CPU.launch_seconds
    assert [e["dur"] for e in before] == pytest.approx([1e6 * (step.seconds + launch) for step in CAPTURED])
    assert [e["ts"] for e in before] == pytest.approx([sum(e["dur"] for e in before[:n]) for n in range(len(before))])
    kernel, call = (e["args"] for e in after)
    assert (kernel["operations"], kernel["bytes"], kernel["line"]) == (2 * 10**6, 4 * 10**7, PROGRAM[0].where)
    assert kernel["floor_us"] == 1000.0 and kernel["meaning"] == "sums over classes of positions, one pass"
    assert kernel["does_the_work_of"] == [f"{step.name} ({step.where})" for step in CAPTURED[:3]]
    assert "does_the_work_of" not in call
    assert [e["name"] for e in calls] == ["eager", "ModelNew"] and {e["cat"] for e in calls} == {"measured"}
    assert calls[0]["dur"] == pytest.approx(0.41e6) and calls[0]["args"]["floor_us"] == 5000.0


def test_what_was_measured_is_told_from_what_was_predicted():
    found = on_a_gpu()
    product, one, other, call = track(events_of(found), FILE_TRACK)
    assert (product["name"], product["cat"], product["dur"]) == ("k0_conv2d", "measured", 1000.0)
    # Two kernels that were measured together have shares, which are alike where the model expects the same of both.
    assert [e["cat"] for e in (one, other, call)] == ["shared", "shared", "predicted"]
    assert one["dur"] == other["dur"] == 500.0 and "k1_relu + k2_mean together" in one["args"]["time"]
    assert one["name"] == "k1_relu (shared)"
    alone = dataclasses.replace(found.modes[0], regions=(RegionUse(("k1_relu",), 2e-3, 4e-3),))
    assert track(events_of(dataclasses.replace(found, modes=(alone,))), FILE_TRACK)[1]["dur"] == 2000.0


def test_programs_are_processes_and_one_program_is_one():
    same = events_of(result(stepped(name="inference"), stepped(name="training")))
    assert {e["pid"] for e in same} == {RUN, 2 * RUN}
    other = events_of(result(stepped(name="inference"), mode("training", kernels=(), captured_steps=CAPTURED)))
    names = {e["pid"]: e["args"]["name"] for e in other if e["name"] == "process_name"}
    assert names[2 * RUN] == "a forward: inference" and names[3 * RUN] == "a forward: training"
    assert track(other, EAGER_TRACK, 3 * RUN) and not track(other, FILE_TRACK, 3 * RUN)
    assert render_trace(result(stepped())) == render_trace(result(stepped()))


def test_a_trace_is_saved_whole_or_not_at_all(tmp_path):
    import torch

    found = explain(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), inputs=(torch.randn(2, 8),),
                    target="cpp")
    path = found.save_trace(tmp_path / "trace.json")
    assert path.read_text(encoding="utf-8") == render_trace(found)
    assert {e["args"]["stage"] for e in track(events_of(found), 1, RUN)} >= {"load", "capture", "plan", "generate"}
    with pytest.raises(errors.OutputExists):
        found.save_trace(path)
    assert found.save_trace(str(path), force=True) == path
    with pytest.raises(errors.InvalidOption, match="--trace cannot be"):
        found.save_trace(tmp_path / "trace.html")
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]
