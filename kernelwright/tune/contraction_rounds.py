"""The rounds in which contractions are measured: a look at the torch call, compilation, trials, and if need be again.

The look costs a few runs of the torch call and of its reference in float64, and decides what is compiled; that happens
for all contractions at the same time and without the device. The trials have the device to themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

import torch

from kernelwright.ir.node import Node
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.roofline.devices import Device
from kernelwright.timing.clock import without_collector
from kernelwright.timing.turns import exclusive, without_device
from kernelwright.tune.budget import Budget
from kernelwright.tune.contraction_guess import split_forms
from kernelwright.tune.contraction_memory import Measured, remember
from kernelwright.tune.contraction_trials import Build, Case, build, try_out


def measure_cases(cases: Mapping[str, Case], own: Mapping[Node, torch.Tensor], device: torch.device, row: Device,
                  budget: Budget, build_all: Build, *, strict: bool) -> dict[str, Measured]:
    """What is measured of contractions, by the key under which it is kept; none of those that do not fit the memory.

    A case is tried in the forms that promise to be accurate. If none of them is, it is tried in the others once more:
    what is left of the budget's kernels is shared among such cases, and their seconds are those that were not spent.
    """
    first, others = {}, {}
    for key, case in cases.items():
        forms, rest = split_forms(case, own, device)
        first[key] = replace(case, forms=forms)
        others |= {key: replace(case, forms=rest)} if rest else {}
        _forget(device)
    seconds = budget.contraction_seconds / max(1, len(cases))
    left = budget.contraction_kernels - sum(len(case.forms) for case in first.values())
    others = others if left > 0 else {}
    measured: dict[str, Measured] = {}
    waiting: dict[str, Case] = {}
    for key, found in _round(first, others, own, device, row, build_all, strict=strict, seconds=seconds):
        measured[key] = found
        if key in others and not found.accurate:
            waiting[key] = others[key]  # kept with what comes of it: a run that ends before goes on from here
        else:
            remember(key, found)
    each = max(1, left // max(1, len(waiting)))
    again = {key: replace(case, forms=case.forms[:each]) for key, case in list(waiting.items())[:left]}
    for key, found in _round(again, {}, own, device, row, build_all, strict=strict, seconds=seconds):
        before = measured[key]
        measured[key] = replace(found, trials=before.trials + found.trials, failures=before.failures + found.failures)
        remember(key, measured[key])
    for key in waiting.keys() - again.keys():  # what did not fit the memory is tried anew, as ever
        remember(key, measured[key])
    return measured


def _round(cases: Mapping[str, Case], others: Mapping[str, Case], own: Mapping[Node, torch.Tensor],
           device: torch.device, row: Device, build_all: Build, *, strict: bool, seconds: float
           ) -> Iterator[tuple[str, Measured]]:
    """Build cases and try them out, ``seconds`` for each. others: those that have other forms if none is accurate."""
    if not cases:
        return
    with without_device():
        compiled = build(list(cases.values()), build_all)
    with exclusive(), without_collector():
        for (key, case), (built, failures) in zip(cases.items(), compiled, strict=True):
            try:
                found = try_out(case, key, built, failures, own, device, row, strict=strict, budget_seconds=seconds,
                                final=key not in others)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                continue
            finally:
                _forget(device)
            yield key, found


def _forget(device: torch.device) -> None:
    """Give back the memory that nothing uses any more."""
    if device.type == "cuda":
        with suppress(RuntimeError):  # of a device that was lost, which is said already
            torch.cuda.empty_cache()
