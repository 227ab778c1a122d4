"""Each kernel: the user's lines, what it replaces, by which rules and at what cost, and its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kernelwright.records import BackwardUse, KernelUse, Mode, RuleUse, Step
from kernelwright.report import units
from kernelwright.report.html.program import MEASURED, modelled_seconds
from kernelwright.report.text import figures


def kernels(mode: Mode, texts: Mapping[str, str], launch: float) -> list[dict[str, Any]]:
    """The kernels of a mode, each once. texts: of the emitted file, by name. launch: seconds."""
    calls: dict[str, int] = {}
    for step in mode.steps:
        if step.is_kernel:
            calls[step.name] = calls.get(step.name, 0) + 1
    return [_kernel(mode, kernel, calls.get(kernel.name, 1), texts.get(kernel.name, ""), launch)
            for kernel in {kernel.name: kernel for kernel in mode.kernels}.values()]


def backward(mode: Mode, use: BackwardUse, texts: Mapping[str, str]) -> dict[str, Any]:
    """A program of gradients: its kernels, each with the time that no version of it beats, and what calls hand over."""
    own = replace(mode, kernels=use.kernels, steps=use.steps, regions=())
    least = {step.name: step.least_seconds for step in use.steps if step.is_kernel}
    found = kernels(own, texts, 0.0)
    for kernel in found:
        if kernel["name"] in least:
            kernel["why"] = [f"No version of it takes less than {units.seconds(least[kernel['name']])} on this device."]
    return {"of": use.of, "kernels": found, "floor": f"{units.seconds(use.floor_seconds)}: {use.floor_words}",
            "saved": [*dict.fromkeys(use.saved)], "memory": units.memory(use.saved_bytes)}


def _kernel(mode: Mode, kernel: KernelUse, calls: int, text: str, launch: float) -> dict[str, Any]:
    covers = dict.fromkeys(cover for other in mode.kernels if other.name == kernel.name for cover in other.covers)
    lines: dict[str, list[str]] = {}
    for cover in covers:
        name, _, place = cover.removesuffix(")").partition(" (")
        lines.setdefault(place, []).append(name)
    replaced = _replaced_lines(mode, kernel.name)
    return {
        "name": kernel.name, "kind": kernel.kind, "meaning": kernel.meaning, "calls": calls, "text": text,
        "lines": replaced or [place for place in lines if place],
        "covers": [{"operators": ", ".join(names), "where": place} for place, names in lines.items()],
        "tiling": kernel.contraction.tiling if kernel.contraction is not None else "",
        "figures": figures(kernel.contraction) if kernel.contraction is not None and kernel.contraction.seconds else "",
        "why": [*_passes(mode, kernel.name, launch), *_measured(mode, kernel.name)],
        "rules": [{"name": use.name, "law": use.law} for use in _rules(mode, {*lines, *replaced})],
    }


def _replaced_lines(mode: Mode, name: str) -> list[str]:
    """The user's lines whose captured operators a kernel does the work of, in order."""
    numbers = sorted({n for step in mode.steps if step.is_kernel and step.name == name for n in step.replaces})
    return list(dict.fromkeys(mode.captured_steps[n].where for n in numbers if mode.captured_steps[n].where))


def _passes(mode: Mode, name: str, launch: float) -> list[str]:
    """What the captured operators that a kernel replaces would move and take, beside what it does, by the cost model;
    of a kernel that is called several times, of its first call."""
    step = next((step for step in mode.steps if step.is_kernel and step.name == name), None)
    if step is None or not step.replaces:
        return []
    before = [mode.captured_steps[number] for number in step.replaces]
    moved, seconds = sum(s.bytes for s in before), modelled_seconds(before, launch)
    return [f"{units.counted(len(before), 'operator')} as captured: "
            f"{units.operations(sum(s.operations for s in before))}, {units.memory(moved)}, {units.seconds(seconds)} "
            f"as modelled. This kernel: {units.operations(step.operations)}, {units.memory(step.bytes)}, "
            f"{units.seconds(step.seconds + launch)} as modelled.", *_shared(mode, step, launch)]


def _shared(mode: Mode, step: Step, launch: float) -> list[str]:
    """The other steps that do some of the work of the same captured operators."""
    others = [other for other in mode.steps if other is not step and not set(step.replaces).isdisjoint(other.replaces)]
    if not others:
        return []
    names = ", ".join(dict.fromkeys(other.name for other in others))
    return [f"The work of these operators is shared with {names}: all together "
            f"{units.seconds(modelled_seconds([step, *others], launch))} as modelled."]


def _measured(mode: Mode, name: str) -> list[str]:
    found = []
    for region in dict.fromkeys(mode.regions):
        if name in region.kernels:
            others = [other for other in dict.fromkeys(region.kernels) if other != name]
            beside = f" together with {', '.join(others)}" if others else ""
            found.append(f"{MEASURED.capitalize()} in the running program{beside}: {units.seconds(region.seconds)}, "
                         f"the torch calls {units.seconds(region.torch_seconds)}.")
    return found


def _rules(mode: Mode, places: set[str]) -> list[RuleUse]:
    """The rules that were applied at these lines, each once."""
    return list({use.name: use for use in mode.rules if use.where and use.where in places}.values())
