"""The result as a trace in the Chrome trace event format, which ui.perfetto.dev opens: the run's stages, and for each
program eager's operators, the steps of the file, and whole calls."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from kernelwright.records import Mode, RegionUse, ResultRecord, Step
from kernelwright.report.groups import ModeGroup, mode_groups
from kernelwright.report.html.program import MEASURED, kernel_seconds
from kernelwright.report.measured import SHORT
from kernelwright.version import VERSION

PREDICTED = "predicted"
#: A time that was measured of several kernels together, and is shared among them as the cost model says.
SHARED = "shared"
#: The process of the run; programs follow it at its multiples, each with three tracks. No track has a process's number:
#: Perfetto takes such a one for the main thread, and puts it first, whatever its place is to be.
RUN = 10
EAGER_TRACK, FILE_TRACK, CALLS_TRACK = 1, 2, 3
_HOW = {MEASURED: "measured", PREDICTED: "predicted by the cost model, its launch included"}
Event = dict[str, Any]


def render_trace(result: ResultRecord) -> str:
    """The trace as JSON text. It depends on the result alone.

    An event's ``ts`` and ``dur`` are microseconds: of the run, from the start of the command; of a program, from the
    start of a forward. An event whose ``cat`` is "predicted" was not measured.
    """
    events = _run(result)
    for number, group in enumerate(mode_groups(result), 2):
        events += _program(result, group, number * RUN)
    about = {"program": f"kernelwright {VERSION}", "model": result.name, "target": result.target,
             "device": result.device}
    document = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _run(result: ResultRecord) -> list[Event]:
    """The stages, those within others below these, and what the run said as moments."""
    events = _named(RUN, f"the run of kernelwright for {result.name}", {1: "stages"})
    for span in result.spans:
        start = _nanoseconds(span.start)
        if span.seconds is None:
            events.append({"ph": "i", "s": "t", "name": span.words, "cat": "said", "pid": RUN, "tid": 1,
                           "ts": _microseconds(start)})
            continue
        name = f"{span.name}: {span.words}" if span.words else span.name
        events.append(_event(name, MEASURED, RUN, 1, start, _nanoseconds(span.start + span.seconds),
                             {"stage": span.name, "seconds": round(span.seconds, 6)}))
    return events


def _program(result: ResultRecord, group: ModeGroup, pid: int) -> list[Event]:
    """One program: of all modes that run it."""
    mode = group.first
    launch = result.figures.launch_seconds if result.figures is not None else 0.0
    tracks = {EAGER_TRACK: "eager's operators, as predicted"}
    if mode.steps:
        tracks[FILE_TRACK] = "the file's kernels and calls of PyTorch"
    timed = next((m for m in group.modes if m.timing is not None), mode)
    if timed.timing is not None:
        tracks[CALLS_TRACK] = "whole calls, measured, one after another"
    events = _named(pid, f"a forward: {group.words()}", tracks)
    events += _steps(mode.captured_steps, pid, EAGER_TRACK, {}, (), launch, mode)
    events += _steps(mode.steps, pid, FILE_TRACK, kernel_seconds(mode), mode.regions, launch, mode)
    return events + _calls(timed, pid)


def _steps(steps: Iterable[Step], pid: int, track: int, alone: Mapping[str, float], regions: Iterable[RegionUse],
           launch: float, mode: Mode) -> list[Event]:
    """Steps one after another. alone: measured seconds of kernels. regions: kernels that were measured together."""
    steps = tuple(steps)
    own = {step.name: step for step in steps if step.is_kernel}
    together = {name: region for region in regions if len(region.kernels) > 1 for name in region.kernels}
    meanings = {kernel.name: kernel for kernel in mode.kernels}
    events, now = [], 0
    for step in steps:
        seconds, known, how = step.seconds + launch, PREDICTED, _HOW[PREDICTED]
        if step.is_kernel and step.name in alone:
            seconds, known, how = alone[step.name], MEASURED, _HOW[MEASURED]
        elif step.is_kernel and step.name in together:
            region = together[step.name]
            all_of_them = sum(own[name].seconds + launch for name in region.kernels if name in own)
            seconds, known = region.seconds * seconds / all_of_them, SHARED
            how = f"the share, as predicted, of {_us(region.seconds)} us that were measured of " \
                  f"{' + '.join(region.kernels)} together"
        about: dict[str, Any] = {"time": how, "operations": step.operations, "bytes": step.bytes,
                                 "floor_us": _us(step.least_seconds), "line": step.where or "not known"}
        if step.is_kernel:
            kernel = meanings.get(step.name)
            about |= {"meaning": kernel.meaning} if kernel is not None else {}
            about["does_the_work_of"] = [f"{before.name} ({before.where})" if before.where else before.name
                                         for before in (mode.captured_steps[n] for n in step.replaces)]
        ends = now + max(1, _nanoseconds(seconds))
        name = step.name if known == MEASURED else f"{step.name} ({known})"
        events.append(_event(name, known, pid, track, now, ends, about))
        now = ends
    return events


def _calls(mode: Mode, pid: int) -> list[Event]:
    """What whole calls took, on flushed caches, each from the end of the one before."""
    events, now = [], 0
    for name, times in mode.timing.entries.items() if mode.timing is not None else ():
        ends = now + max(1, _nanoseconds(times.median))
        about: dict[str, Any] = {
            "time": f"measured: the median of {times.repetitions} calls on flushed caches",
            "quartiles_us": [_us(times.lower_quartile), _us(times.upper_quartile)]}
        if mode.timing is not None and mode.timing.floor_seconds is not None:
            about["floor_us"] = _us(mode.timing.floor_seconds)
        if times.back_to_back_seconds is not None:
            about["in_a_row_us"] = _us(times.back_to_back_seconds)
        if times.note:
            about["note"] = times.note
        events.append(_event(SHORT.get(name, name), MEASURED, pid, CALLS_TRACK, now, ends, about))
        now = ends
    return events


def _named(pid: int, name: str, tracks: Mapping[int, str]) -> list[Event]:
    """The names of a process and of its tracks, and their order."""
    events: list[Event] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}]
    for tid, title in tracks.items():
        events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": title}})
        events.append({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}})
    return events


def _event(name: str, category: str, pid: int, tid: int, start: int, ends: int, about: dict[str, Any]) -> Event:
    """A complete event. start and ends in nanoseconds: differences of whole numbers keep what is nested nested."""
    return {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, "ts": _microseconds(start),
            "dur": _microseconds(ends - start), "args": about}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _microseconds(nanoseconds: int) -> float:
    """Microseconds of which a reader gets these very nanoseconds back, whether it rounds or, as some versions of
    Perfetto do, cuts what 1000 times as many are: events that seem to overlap by one nanosecond are not shown."""
    found = nanoseconds / 1000
    while int(found * 1000.0) < nanoseconds:
        found = math.nextafter(found, math.inf)
    return found


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
