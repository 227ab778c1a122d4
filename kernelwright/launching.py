"""How the programs of a file are launched: as one CUDA graph, or kernel by kernel, as measured beside each other. Calls
of PyTorch's alone can be one launch, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from torch import nn

from kernelwright.codegen.generate import TARGETS, is_here
from kernelwright.emit.facts import is_recordable
from kernelwright.modes import ModeProgram, distinct
from kernelwright.roofline.devices import Device
from kernelwright.settings import Settings
from kernelwright.timing.baselines import DIRECT, Timing
from kernelwright.way_back.fallback import whole_mode


def graphs_wanted(settings: Settings, target: str) -> bool:
    """Whether programs are written to run as graphs, as far as they can: measurements may say otherwise."""
    return settings.launch != "direct" and bool(TARGETS[target].stream) and \
        (is_here(target) or settings.launch == "graph")


def in_one_launch(mode: ModeProgram, device: Device, reason: str) -> ModeProgram | None:
    """A mode without kernels whose calls that record no gradients run as one graph, of PyTorch's own calls as they were
    captured; None where these make none. reason: why no kernel replaces them."""
    if False not in mode.recordings or not mode.captured.outputs:
        return None
    step = whole_mode(mode.captured, reason)
    found = replace(mode, rewriting=step.rewriting, plan=step.plan(mode.captured, device), recordings=(False,),
                    graph=True, one_launch=True, backward=())
    return found if is_recordable(found.plan) else None


def _tables(emitted: ModuleType) -> Iterator[dict[str, Any]]:
    """The facts of an emitted module's modes that run as graphs."""
    for facts in getattr(emitted, "_KERNELWRIGHT_PLANS", {}).values():
        for table in facts if isinstance(facts, tuple) else (facts,):
            if table.get("graph"):
                yield table


def runs_as_graph(emitted: ModuleType, mode: ModeProgram) -> bool:
    """Whether calls of a mode that no gradient is asked of run as a graph in an emitted module."""
    return any(table["training"] == mode.model.training for table in _tables(emitted))


class Direct(nn.Module):
    """A model of an emitted module, with its kernels launched one by one."""

    def __init__(self, model: nn.Module, emitted: ModuleType) -> None:
        super().__init__()
        self.model, self.tables = model, list(_tables(emitted))

    def forward(self, *inputs: Any) -> Any:
        for table in self.tables:
            table["graph"] = False
        try:
            return self.model(*inputs)
        finally:
            for table in self.tables:
                table["graph"] = True


def with_graph(timing: Timing, emitted: ModuleType, model: nn.Module) -> Timing:
    """The timing of an emitted module's model with the bytes that its graphs keep of the device's memory. Where none
    was recorded, as of calls that ask for gradients, both ways were one: direct, with nothing to compare."""
    bindings = getattr(emitted, "_kernelwright_bindings", {}).get(model, {}).values()
    found = [b.graph.bytes for b in bindings if getattr(b, "graph", None) is not None]
    if found or not timing.launches:
        return replace(timing, graph_bytes=sum(found) if found else None)
    return replace(timing, launch=DIRECT, launches={})


def as_measured(modes: Sequence[ModeProgram], timings: Mapping[str, Timing]) -> list[ModeProgram]:
    """The modes, those without graphs whose calls were no faster by one."""
    chosen = {mode.program: timings[mode.name].launch for mode in distinct(modes) if mode.name in timings}
    return [replace(mode, graph=False) if chosen.get(mode.program) == DIRECT else mode for mode in modes]
