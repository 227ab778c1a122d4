"""TUNE the modes: contractions that become kernels, regions that go back to PyTorch, convolutions channels-last.

Everything is measured once for all modes and blocks alike, and kept in the cache folder for the next run. What promises
most for the whole model comes first, for as long as the budget permits; what there was no time for stays as planned,
and is told with what it promises.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from kernelwright.build.library import BuiltAhead, build_libraries, spare_processors
from kernelwright.build.module import BuildFailed
from kernelwright.codegen.generate import TARGETS, has_skeleton
from kernelwright.codegen.reference.plan import values_of
from kernelwright.device_lock import clock
from kernelwright.failures import is_ours, told
from kernelwright.forked import can_fork
from kernelwright.ir.evaluate import as_stored
from kernelwright.ir.graph import render
from kernelwright.ir.node import Node
from kernelwright.modes import ModeProgram, as_called, distinct, keeping
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.planner import ALONE, make_plan
from kernelwright.plan.records import KernelConfig, Plan
from kernelwright.problem import Problem
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.programs import Stages
from kernelwright.records import UNTRIED, RegionUse
from kernelwright.report.units import seconds as in_words
from kernelwright.roofline.devices import Device
from kernelwright.settings import Settings
from kernelwright.tune import contractions, layouts
from kernelwright.tune.contraction_ahead import TextsAhead
from kernelwright.tune.contraction_fit import fitting
from kernelwright.tune.memory import generator_digest, machine, recall, remember
from kernelwright.tune.regions import SLOWER, losing_regions, region_times, region_uses
from kernelwright.verified import built, candidate_of
from kernelwright.way_back.fallback import Level, StepBack

_Change = Callable[[list[ModeProgram], float], list[ModeProgram]]
#: Kinds of what is kept: programs in two memory orders, and those whose contractions a run has had time for.
_PROGRAMS, _CONTRACTED = "programs", "contracted"
# The parts of the time that is left for contractions, and then for regions.
_OF_CONTRACTIONS, _OF_REGIONS = 0.7, 0.6
# Seconds of a call that are worth telling where there was no time to measure what may save them.
_LEAST_SAVED = 1e-7
# The share of a run that must be left for contractions to be compiled while the first file is built and checked: where
# less is, nothing of them would be measured, and that file waits for the processors.
_LEAST_AHEAD = 1 / 2
# The share of a run, and the most seconds, in which convolutions alone are timed in both memory orders before anything
# is built.
_OF_ORDERS, _MOST_ORDERS = 0.1, 3.0


@dataclass
class Tuning:
    """The measurements of one run. untried: sentences on what there was no time to measure, of the last `modes`;
    waiting: how many contractions and regions that are.
    settled: names of modes that stepped back, of which only regions are measured. predicts: whether contractions that
    nobody has measured are kernels where their predicted gain is clear."""

    problem: Problem
    example: list[Any]
    target: str
    device: Device
    settings: Settings
    stages: Stages
    untried: list[str] = field(default_factory=list)
    waiting: int = 0
    settled: set[str] = field(default_factory=set)
    predicts: bool = False
    ahead: BuiltAhead | None = None
    found: TextsAhead | None = None
    plans: contractions.Plans = field(init=False)

    def __post_init__(self) -> None:
        self.plans = contractions.Plans(self.device.fused_products)

    def build_ahead(self, modes: list[ModeProgram]) -> None:
        """Compile what :meth:`modes` is going to measure of contractions, while something else goes on: on a machine
        with many processors, of which a build or a check of one file leaves most idle."""
        count, budget = spare_processors(), self.stages.budget
        if not self._may_contract() or not budget.measures or self.predicts or not count or not can_fork() \
                or budget.until_end() < _LEAST_AHEAD * budget.seconds:
            return
        try:
            calls: dict[str, Callable[[], contractions.Candidates]] = {}
            for mode in distinct(modes):
                calls |= contractions.to_try(
                    mode.plan.graph, mode.captured, _kept_anyway(mode), self.problem.device, self.device,
                    budget, self.plans, strict=self.settings.precision == "strict")
            self.found = TextsAhead(calls, self.plans, max(1, count // 2))
            self.ahead = BuiltAhead(self.found, self.target)
        except Exception as error:
            if not is_ours(error) or is_out_of_memory(error):
                raise

    def leave_building(self) -> None:
        """Let nothing else be compiled ahead, and wait for nothing of it: the run ends."""
        self.stop_building()
        if self.ahead is not None:
            self.ahead.abandon()

    def stop_building(self) -> None:
        """Let nothing else be compiled ahead."""
        if self.ahead is not None:
            self.ahead.stop()
        if self.found is not None:
            self.found.stop()

    def first(self, modes: list[ModeProgram]) -> list[ModeProgram]:
        """The modes as earlier runs have measured them. On a GPU the library's convolutions are timed now, each alone
        in both memory orders: which is the faster one depends on the library's version, and whole networks on it."""
        if self._orders_decide():
            seconds = min(_MOST_ORDERS, _OF_ORDERS * self.stages.budget.seconds)
            ends, programs = clock() + seconds, distinct(modes)
            with self.stages.stage("tune", "convolutions in both memory orders"):
                for place, mode in enumerate(programs):
                    layouts.convolution_seconds(mode.plan, self.problem.device,
                                                max(0.0, ends - clock()) / (len(programs) - place))
        return self.modes(modes, 0.0)

    def _orders_decide(self) -> bool:
        """Whether what convolutions take alone decides on their memory order until whole programs are measured: on a
        GPU, whose kernels read and write every order alike. On a CPU it is predicted by how its library computes."""
        return self.problem.device.type == "cuda" and self.stages.budget.measures

    def modes(self, modes: list[ModeProgram], seconds: float) -> list[ModeProgram]:
        """The modes as measurements have them: those of earlier runs and, for so many seconds, new ones. Where tuning
        fails they stay as they were, with a note."""
        self.stop_building()
        self.untried, self.waiting = [], 0
        ends = clock() + seconds
        changed = iter(self._changed([m for m in modes if m.name not in self.settled], seconds,
                                     (self._with_contractions, _OF_CONTRACTIONS), (self._without_losers, _OF_REGIONS),
                                     (self._with_layouts, 1.0)))
        settled = iter(self._changed([m for m in modes if m.name in self.settled], max(0.0, ends - clock()),
                                     (self._without_losers, 1.0)))
        return [next(settled if m.name in self.settled else changed) for m in modes]

    def less(self, mode: ModeProgram) -> Iterator[ModeProgram]:
        """The mode with fewer kernels, as it may pay where it loses as a whole: without contractions, as libraries'
        calls leave caches to each other, then with those regions alone that win clearly."""
        if mode.plan.contractions:
            mode = keeping(mode, dict.fromkeys(mode.plan.contractions, SLOWER), self.device)
            yield mode
        times, _ = region_times([mode.plan], partial(_picked, self._values, [mode]), self.problem.device, self.device,
                                self.target, 0.0)
        if lost := losing_regions(mode.plan, times, clearly=True):
            yield keeping(mode, lost, self.device)

    def measured(self, mode: ModeProgram) -> tuple[RegionUse, ...]:
        """What is known of the seconds of a mode's kernels."""
        if not self.stages.budget.measures or not mode.plan.kernels:
            return ()
        times, _ = region_times([mode.plan], partial(_picked, self._values, [mode]), self.problem.device, self.device,
                                self.target, 0.0)
        return region_uses(mode.plan, times)

    def after(self, mode: ModeProgram, step: StepBack) -> ModeProgram:
        """A mode that stepped back, as far as what is known says more of it. Without its contractions the library's
        convolutions may run channels-last."""
        self.settled.add(mode.name)
        layouts_too: tuple[tuple[_Change, float], ...] = \
            ((self._with_layouts, 1.0),) if step.level is Level.CONTRACTIONS else ()
        return self._changed([mode], 0.0, (self._without_losers, 1.0), *layouts_too)[0]

    def _changed(self, modes: list[ModeProgram], seconds: float, *changes: tuple[_Change, float]) -> list[ModeProgram]:
        """The modes after changes, each of which may take a part of the seconds that are left."""
        ends = clock() + seconds
        for change, part in changes if self.stages.budget.measures else ():
            try:
                modes = change(modes, part * max(0.0, ends - clock()))
            except Exception as error:
                if not is_ours(error) or is_out_of_memory(error):
                    raise
                note = f"Something of it was not tuned: {told(error)}."
                modes = [replace(m, notes=(*m.notes, note)) for m in modes]
        return modes

    def _note(self, count: int, what: str, seconds: float) -> None:
        if count and seconds >= _LEAST_SAVED:
            self.waiting += count
            self.untried.append(f"{UNTRIED}measure {what.format(count)}: that may save {in_words(seconds)} "
                                "a call, as predicted. A further run goes on from here.")

    def _with_contractions(self, modes: list[ModeProgram], seconds: float) -> list[ModeProgram]:
        """The modes with the contractions as kernels that win, where the target has such kernels."""
        problem, settings = self.problem, self.settings
        if not self._may_contract():
            return modes
        plans, late, unmeasured = {}, list[Node](), 0
        ends, programs = clock() + seconds, distinct(modes)
        with self.stages.stage("tune", "contractions"):
            for place, mode in enumerate(programs):
                kept, key = _kept_anyway(mode), self._key(mode)
                if not seconds and recall(_CONTRACTED, key) is None:  # to ask for each takes seconds of a deep network
                    chosen = self._unmeasured(mode, kept)
                    unmeasured += len(chosen)
                    worth = contractions.worth_trying(mode.plan.graph, kept, fused_products=mode.plan.fused_products)
                    late += [n for n in worth if n not in chosen]
                    plans[mode.program] = self._with(mode, kept, chosen) if chosen else mode.plan
                    continue
                chosen, left = contractions.choose(
                    mode.plan.graph, mode.captured, kept, self._leaf_values(mode), problem.device, self.device,
                    self.stages.budget, strict=settings.precision == "strict", say=self.stages.say,
                    seconds=max(0.0, ends - clock()) / (len(programs) - place),
                    there=self.ahead.there if self.ahead is not None else None,
                    build_all=self.ahead.build if self.ahead is not None else build_libraries,
                    order_saves=partial(self._order_saves, mode), plans=self.plans)
                if seconds:
                    remember(_CONTRACTED, key, {"chosen": len(chosen)})
                waiting = {n for n, reason in left.items() if reason == contractions.LATE}
                if waiting and (guessed := {n: config for n, config in self._unmeasured(mode, kept).items()
                                            if n in waiting}):
                    unmeasured += len(guessed)
                    left = {n: reason for n, reason in left.items() if n not in guessed}
                    chosen = fitting(partial(self.plans.of, mode.plan.graph, mode.captured, kept | left),
                                     chosen | guessed)
                late += waiting.difference(chosen)
                plans[mode.program] = self._with(mode, kept | left, chosen) if chosen or left else mode.plan
        if unmeasured:
            self.waiting += unmeasured
            self.untried.append(f"{UNTRIED}measure {unmeasured} of the contractions, which are kernels by prediction.")
        self._note(len(late), "{} of the contractions", sum(contractions.promised(n, self.device) for n in late))
        return [replace(m, plan=replace(plans[m.program], graph=m.rewriting.graph)) for m in modes]

    def _with(self, mode: ModeProgram, kept: dict[Node, str], chosen: dict[Node, KernelConfig]) -> Plan:
        """The mode's plan in which these contractions become kernels, and the operators of ``kept`` stay."""
        return make_plan(mode.plan.graph, mode.captured, kept, move_bias=True, contractions=chosen,
                         channels_last=mode.plan.channels_last.difference(chosen),
                         fused_products=mode.plan.fused_products)

    def _unmeasured(self, mode: ModeProgram, kept: dict[Node, str]) -> dict[Node, KernelConfig]:
        """The contractions that become kernels by what is predicted: those that promise most of what can be gained,
        where measurements have no time."""
        if not self.predicts:
            return {}
        return contractions.predicted(mode.plan.graph, mode.captured, self.device, kept, clearly=True,
                                      plans=self.plans)

    def _order_saves(self, mode: ModeProgram) -> dict[Node, float]:
        """What the library's convolutions take less channels-last, as far as that decides."""
        if not self._orders_decide():
            return {}
        _, known = self._convolution_seconds(mode, 0.0)
        return layouts.saved_seconds(mode.plan, mode.captured, known, self.device)

    def _convolution_seconds(self, mode: ModeProgram, seconds: float) -> tuple[layouts.Seconds, layouts.Seconds]:
        """What the library's convolutions of a mode take in both memory orders: those that were timed, in earlier runs
        or now in so many seconds, and all of which something is known."""
        timed = layouts.convolution_seconds(mode.plan, self.problem.device, seconds)
        known = {**layouts.predicted_seconds(mode.plan, self.device), **timed}
        if self._orders_decide():
            known |= layouts.like_others(mode.plan, timed, self.device)
        return timed, known

    def _may_contract(self) -> bool:
        wanted = self.settings.contractions
        return has_skeleton(Contraction, self.target) and wanted != "library" and (
            wanted != "auto" or self.problem.device.type == TARGETS[self.target].device)

    def _values(self, mode: ModeProgram) -> dict[str, torch.Tensor]:
        """The model's tensors and its example inputs, by name; buffers are copies."""
        return values_of(mode.model, mode.captured, self.example)

    def _leaf_values(self, mode: ModeProgram) -> dict[Node, torch.Tensor]:
        """The model's tensors and its example inputs, as kernels read them."""
        if not mode.captured.outputs:  # nothing was captured
            return {}
        values = self._values(mode)
        return {n: as_stored(n, values[n["name"]]).detach() for n in mode.rewriting.graph.nodes()
                if n.kind == "leaf" and n.get("name") in values}

    def _without_losers(self, modes: list[ModeProgram], seconds: float) -> list[ModeProgram]:
        """The modes with those regions left to PyTorch whose kernels do not win. The steps of a loop whose recurrence
        does not are regions, too."""
        ends = clock() + seconds
        while True:
            try:
                with self.stages.stage("tune", "regions of kernels"):
                    times, untried = region_times(
                        [m.plan for m in modes], partial(_picked, self._values, modes), self.problem.device,
                        self.device, self.target, max(0.0, ends - clock()) if seconds else 0.0)
                    left = [keeping(m, losing_regions(m.plan, times), self.device) for m in modes]
                    if all(new.plan.unrolled == old.plan.unrolled for new, old in zip(left, modes, strict=True)):
                        self._note(untried.count, "{} of the regions of kernels", untried.seconds)
                        if untried.busy:
                            self.untried.append(
                                f"Busy machine: of {untried.busy} of the regions of kernels only what one thread takes "
                                "of a processor was compared; those that do not clearly lose stay as predicted.")
                        return left
                    modes = left
            except BuildFailed as failed:
                with self.stages.stage("build"):
                    left, _, _ = built(self.problem, modes, self.example, self.target, self.device)
                if left == modes:
                    raise failed from None
                modes = left

    def _with_layouts(self, modes: list[ModeProgram], seconds: float) -> list[ModeProgram]:
        """The modes with convolutions channels-last, where whole programs are faster so."""
        others: dict[Hashable, ModeProgram] = {}
        ratios: dict[Hashable, float] = {}  # of those that earlier runs measured
        ends, programs, promised = clock() + seconds, distinct(modes), dict[Hashable, float]()
        with self.stages.stage("tune", "memory orders"):
            for place, mode in enumerate(programs):
                timed, known_seconds = self._convolution_seconds(
                    mode, max(0.0, ends - clock()) / (2 * (len(programs) - place)))
                before = mode.plan.channels_last
                if before and not timed:
                    continue
                plan = layouts.channels_last_plan(mode.plan, mode.captured, known_seconds, self.device)
                if plan is None and before:
                    plan = layouts.first_plan(mode.plan, mode.captured, self.device)
                if plan is None or plan.channels_last == before:
                    continue
                other = replace(mode, plan=plan)
                known = recall(_PROGRAMS, self._key(mode, other))
                if known is not None:
                    ratios[mode.program] = known["ratio"]
                others[mode.program] = other
                promised[mode.program] = layouts.promised_seconds(plan.channels_last, before, timed)
        waiting = [m for m in programs if m.program in others and m.program not in ratios]
        alone = set[Hashable]()
        if waiting and ends - clock() < self.stages.seconds.get("build", 0.0):  # there are two files to be built
            if self._orders_decide():
                alone = {m.program for m in waiting}
            else:
                self._note(len(waiting), "{} of the programs with convolutions channels-last",
                           sum(promised[m.program] for m in waiting))
            waiting = []
        if waiting:
            ratios |= self._measured(modes, waiting, others, ends)
        for mode in programs:
            ratio = ratios.get(mode.program, 0.0)
            if ratio or mode.program in alone:
                plan = others[mode.program].plan
                words = layouts.words(plan, None if mode.plan.channels_last else ratio) if plan.channels_last else ""
                others[mode.program] = replace(mode, plan=replace(plan, layout=words))
            else:
                others.pop(mode.program, None)
        return [replace(m, plan=replace(others[program].plan, graph=m.rewriting.graph))
                if (program := m.program) in others else m for m in modes]

    def _measured(self, modes: list[ModeProgram], waiting: list[ModeProgram], others: dict[Hashable, ModeProgram],
                  ends: float) -> dict[Hashable, float]:
        """How many times faster programs are channels-last, by the program; 0 where they stay as they are."""
        files = []
        for some in (modes, [replace(m, plan=others[m.program].plan) if m in waiting else m for m in modes]):
            with self.stages.stage("build"):
                files.append(built(self.problem, some, self.example, self.target, self.device)[2])
        found: dict[Hashable, float] = {}
        with self.stages.stage("tune", "whole programs in both memory orders"):
            for place, mode in enumerate(waiting):
                programs = {name: as_called(mode, candidate_of(module, self.problem, mode, self.settings))
                            for name, module in zip((layouts.FIRST, layouts.LAST), files, strict=True)}
                seconds = min(max(0.1, ends - clock()) / (len(waiting) - place), 0.05 * self.stages.budget.seconds)
                times = layouts.measured_programs(programs, self.example, self.problem.device, seconds)
                found[mode.program] = layouts.faster(times) or 0.0
                if times:
                    remember(_PROGRAMS, self._key(mode, others[mode.program]), {"ratio": found[mode.program]})
        return found

    def _key(self, *programs: ModeProgram) -> str:
        """All that the times of programs depend on."""
        texts = []
        for some in programs:
            places = {n: place for place, n in enumerate(some.plan.graph.nodes())}
            configs = sorted((places[n], repr(config)) for n, config in some.plan.contractions.items() if n in places)
            texts.append((render(some.captured), render(some.plan.graph), configs,
                          sorted(places[n] for n in some.plan.kept_whole if n in places),
                          sorted(places[n] for n in some.plan.unrolled if n in places),
                          sorted(places[n] for n in some.plan.channels_last if n in places)))
        return repr((machine(self.problem.device), generator_digest(), self.target, programs[0].recordings, texts))


def _kept_anyway(mode: ModeProgram) -> dict[Node, str]:
    """The operators that stay torch calls whatever becomes of contractions: one that would have been a kernel all alone
    may fuse with a contraction, and one that there was no time to measure may still be one."""
    return {n: reason for n, reason in mode.plan.kept.items() if reason not in (ALONE, contractions.LATE)}


def _picked(values: Callable[[ModeProgram], dict[str, torch.Tensor]], modes: list[ModeProgram], place: int
            ) -> dict[str, torch.Tensor]:
    return values(modes[place])
