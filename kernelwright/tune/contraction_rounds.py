"""The rounds in which contractions are measured: a look at the torch call, compilation, trials, and if need be again.

The look costs a few runs of the torch call and of its reference in float64, and decides what is compiled; that happens
for all contractions at the same time and without the device. The trials have the device to themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import ceil, inf

import torch

from kernelwright.device_lock import clock, locked_device, without_device
from kernelwright.ir.node import Node
from kernelwright.plan.records import KernelConfig
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.processors import share_of_processors
from kernelwright.progress import counted
from kernelwright.roofline.devices import Device
from kernelwright.timing.clock import without_collector
from kernelwright.tune.budget import Budget
from kernelwright.tune.contraction_guess import split_candidates
from kernelwright.tune.contraction_memory import Measured, remember
from kernelwright.tune.contraction_trials import Build, Case, build, launcher_name, try_out

#: Contractions that are built at a time.
_TOGETHER = 8
#: What compiling a text of one takes, in seconds of one processor, where none was compiled yet.
_TEXT_SECONDS = 1.5
#: The least that is expected of it, where those that are there were found in the cache.
_LEAST_TEXT_SECONDS = 0.1


def measure_cases(cases: Mapping[str, Case], own: Mapping[Node, torch.Tensor], device: torch.device, row: Device,
                  budget: Budget, build_all: Build, *, strict: bool, seconds: float = inf,
                  there: Mapping[str, float] | None = None) -> dict[str, Measured | None]:
    """What is measured of contractions, by the key under which it is kept: None of those that do not fit the memory,
    and nothing of those for which there was no time.

    cases: in the order in which they are tried, some at a time, until ``seconds`` have passed; each is asked for when
    its turn comes, and one without candidates is none that could run. A case is tried in the candidates that promise to
    be accurate. If none of them is, it is tried in the others once more: what is left of the budget's kernels is shared
    among such cases, and their seconds are those that were not spent.
    there: names of launchers whose libraries need not be compiled, and the seconds that compiling them took. Where
    there is no time to compile all candidates of a round, it tries these, and as many of the most promising others as
    can be compiled in half of the time; what comes of them is not kept.
    """
    there = there or {}
    ends = clock() + seconds
    each = budget.contraction_seconds / max(1, len(cases))
    left = budget.contraction_kernels
    measured: dict[str, Measured | None] = {}
    waiting: dict[str, Case] = {}
    longest = 0.0
    keys = list(cases)
    while keys and ends - clock() > longest:
        counted(len(cases) - len(keys), len(cases))
        begun, now, keys = clock(), keys[:_TOGETHER], keys[_TOGETHER:]
        first, others, partly, more = {}, {}, set[str](), 0
        if ends < inf and ends - begun < _compiling((cases[key] for key in now), there):
            partly = {key for key in now if cases[key].candidates}
            more = _compiled_in((ends - begun) / 2, there) // max(1, len(partly))
            now = [key for key in now if key not in partly or more or _there(cases[key], there)]
        for key in now:
            if not cases[key].candidates:
                continue
            case = cases[key]
            candidates, rest = split_candidates(case, own, device) if more or key not in partly else ((), ())
            if key in partly:
                missing = [c for c in candidates if launcher_name(case, c) not in there]
                candidates, rest = (*_there(case, there), *missing[:more]), ()
            first[key] = replace(case, candidates=candidates)
            others |= {key: replace(case, candidates=rest)} if rest else {}
            _forget(device)
        left -= sum(len(case.candidates) for case in first.values())
        others = others if left > 0 else {}
        measured |= dict.fromkeys(now)
        for key, found in _round(first, others, own, device, row, build_all, strict=strict, seconds=each,
                                 ends=ends):
            if found is None:
                del measured[key]
                continue
            measured[key] = found
            if key in others and not found.accurate:
                waiting[key] = others[key]  # kept with what comes of it: a run that ends before goes on from here
            elif key not in partly:
                remember(key, found)
        longest = max(longest, clock() - begun)
    each = max(1, left // max(1, len(waiting)))
    again = {key: replace(case, candidates=case.candidates[:each]) for key,
             case in list(waiting.items())[:max(0, left)]} \
        if clock() < ends else {}
    for key, found in _round(again, {}, own, device, row, build_all, strict=strict, seconds=each, ends=ends):
        before = measured[key]
        assert before is not None
        whole = before if found is None else replace(found, trials=before.trials + found.trials,
                                                     failures=before.failures + found.failures)
        measured[key] = whole
        remember(key, whole)
    for key in waiting.keys() - again.keys():  # what did not fit the memory is tried anew, as ever
        tried = measured[key]
        assert tried is not None  # who waits has been tried once
        remember(key, tried)
    return measured


def _compiling(cases: Iterable[Case], there: Mapping[str, float]) -> float:
    """The seconds that compiling the first candidates of cases side by side takes, each as long as the longest so far,
    but for those that are there."""
    texts = sum(launcher_name(case, config) not in there for case in cases for config in case.rounding
                or case.candidates)
    return max(there.values(), default=_TEXT_SECONDS) * ceil(texts / share_of_processors())


def _compiled_in(seconds: float, there: Mapping[str, float]) -> int:
    """How many texts are compiled side by side in so many seconds, each as long as the longest so far."""
    longest = max(there.values(), default=_TEXT_SECONDS)
    return int(seconds / max(longest, _LEAST_TEXT_SECONDS)) * share_of_processors()


def _there(case: Case, there: Collection[str]) -> tuple[KernelConfig, ...]:
    """Those of a case's candidates whose libraries are there."""
    return tuple(config for config in dict.fromkeys((*case.rounding, *case.candidates))
                 if launcher_name(case, config) in there)


def _round(cases: Mapping[str, Case], others: Mapping[str, Case], own: Mapping[Node, torch.Tensor],
           device: torch.device, row: Device, build_all: Build, *, strict: bool, seconds: float, ends: float
           ) -> Iterator[tuple[str, Measured | None]]:
    """Build cases and try them out, at most ``seconds`` each; None of those for which no time was left, as the longest
    one before took. others: those that have other candidates if none is accurate."""
    if not cases:
        return
    with without_device():
        compiled = build(list(cases.values()), build_all)
    longest = 0.0
    with locked_device(), without_collector():
        for (key, case), (built, failures) in zip(cases.items(), compiled, strict=True):
            begun = clock()
            if longest and ends - begun < longest:
                yield key, None
                continue
            try:
                found = try_out(case, key, built, failures, own, device, row, strict=strict, budget_seconds=seconds,
                                final=key not in others, ends=ends)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                continue
            finally:
                _forget(device)
                longest = max(longest, clock() - begun)
            yield key, found


def _forget(device: torch.device) -> None:
    """Give back the memory that nothing uses any more."""
    if device.type == "cuda":
        with suppress(RuntimeError):  # of a device that was lost, which is said already
            torch.cuda.empty_cache()
