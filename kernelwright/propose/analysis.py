"""What a language model is told of a problem: its operators with their cost, the algebra that applies, the limit.

Made once a run, of the graph that our own compiler works on, and kept in the run's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kernelwright.codegen.generate import TARGETS, chosen, is_here
from kernelwright.errors import DataDependentControlFlow, HiddenState, OutputsUnsupported
from kernelwright.ir.node import Node, walk
from kernelwright.modes import described_mode
from kernelwright.plan.describe import place, title
from kernelwright.problem import Problem
from kernelwright.problem.load import load_problem
from kernelwright.programs import Stages, understand
from kernelwright.progress import Progress
from kernelwright.records import RuleUse
from kernelwright.roofline.cost import node_seconds, node_work
from kernelwright.roofline.devices import Device
from kernelwright.roofline.peaks import current_device
from kernelwright.settings import Settings
from kernelwright.verify.plain import plain

MEMORY, ARITHMETIC, LAUNCH = "memory", "arithmetic", "launch"


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """One operator as it stands: its user's line, shape of its result, estimated share of the model's time, bytes that
    it reads and writes, operations, and what bounds it: memory, arithmetic or launch."""

    name: str
    where: str
    shape: tuple[int, ...]
    share: float
    bytes: int
    operations: int
    bound: str


@dataclass(frozen=True, slots=True)
class Law:
    """A law of algebra that applies: in words, on which condition, how exactly, and in which of the user's lines."""

    law: str
    condition: str
    exactness: str
    where: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Analysis:
    """What is known of a problem. ``text``: of the model's file. ``language``: of kernels for the target. ``bytes`` and
    ``operations`` of the whole model, before and after the algebra; ``floor_seconds``: the time that no version beats,
    with ``floor_words``. ``kernels``: what ours compute."""

    name: str
    class_name: str
    text: str
    device: str
    language: str
    training: bool
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    operators: tuple[OperatorCost, ...]
    laws: tuple[Law, ...]
    bytes: tuple[int, int]
    operations: tuple[int, int]
    floor_seconds: float
    floor_words: str
    kernels: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return plain(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Analysis:
        """The analysis that plain data is of."""
        values: dict[str, Any] = {f.name: document[f.name] for f in fields(cls)}
        values |= {name: tuple(values[name]) for name in ("inputs", "parameters", "bytes", "operations", "kernels",
                                                          "notes")}
        values["operators"] = tuple(_operator(operator) for operator in values["operators"])
        values["laws"] = tuple(Law(**law) for law in values["laws"])
        return cls(**values)


def _operator(document: Mapping[str, Any]) -> OperatorCost:
    values: dict[str, Any] = {**document, "shape": tuple(document["shape"])}
    return OperatorCost(**values)


def analyse(path: Path, settings: Settings, progress: Progress | None = None) -> Analysis:
    """Look at the problem's model in the mode in which it is constructed.

    Of a model that no graph can hold there is the text alone. Raises the coded errors of loading it.
    """
    target = chosen(settings.target)
    device = current_device(TARGETS[target].device)
    problem = _problem(path, target, settings)
    example = problem.make_inputs(settings.seed)
    language = _language(target)
    try:
        modes, notes = understand(problem, example, device, settings, Stages(progress or Progress()))
    except (DataDependentControlFlow, HiddenState, OutputsUnsupported) as error:  # a model that no graph can hold
        return _text_alone(path, problem, settings, device.title, language, (str(error),))
    mode = modes[0]
    described = described_mode(mode, device)
    return Analysis(
        name=problem.name, class_name=problem.class_name, text=_file_text(path), device=device.title, language=language,
        training=mode.model.training,
        inputs=tuple(_input(value) for value in example),
        parameters=tuple(f"{name}: {_tensor(p)}" for name, p in mode.model.named_parameters()),
        operators=tuple(operator_costs(list(walk(mode.captured.roots())), device)),
        laws=tuple(_law(use) for use in described.rules),
        bytes=(described.before.bytes, described.after.bytes),
        operations=(described.before.operations, described.after.operations),
        floor_seconds=described.floor_seconds, floor_words=described.floor_words,
        kernels=tuple(k.meaning for k in described.kernels), notes=tuple(notes))


def text_alone(path: Path, settings: Settings) -> Analysis:
    """What is known of a problem without looking at its operators: its text, inputs and parameters. Raises the coded
    errors of loading it."""
    target = chosen(settings.target)
    return _text_alone(path, _problem(path, target, settings), settings, TARGETS[target].device, _language(target), ())


def _text_alone(path: Path, problem: Problem, settings: Settings, device: str, language: str, notes: tuple[str, ...]
                ) -> Analysis:
    model = problem.make_model(settings.seed)
    return Analysis(
        name=problem.name, class_name=problem.class_name, text=_file_text(path), device=device, language=language,
        training=model.training, inputs=tuple(_input(value) for value in problem.make_inputs(settings.seed)),
        parameters=tuple(f"{name}: {_tensor(p)}" for name, p in model.named_parameters()), operators=(), laws=(),
        bytes=(0, 0), operations=(0, 0), floor_seconds=0.0, floor_words="", kernels=(), notes=notes)


def _problem(path: Path, target: str, settings: Settings) -> Problem:
    return load_problem(path, device=TARGETS[target].device if is_here(target) else "cpu", tiny=settings.tiny,
                        model=settings.model)


def _language(target: str) -> str:
    return "CUDA" if TARGETS[target].device == "cuda" else "C++ with OpenMP"


def _file_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def operator_costs(nodes: list[Node], device: Device) -> list[OperatorCost]:
    """The operators that take time, the longest first. Shares are the roofline's estimates, not measurements."""
    timed = [(node, node_seconds(node, device)) for node in nodes if node.kind not in ("leaf", "view")]
    whole = sum(seconds for _, seconds in timed) or 1.0
    costs = []
    for node, seconds in sorted(timed, key=lambda entry: -entry[1]):
        work = node_work(node)
        costs.append(OperatorCost(title(node), place(node.origin), node.shape, seconds / whole, work.bytes,
                                  work.operations, bound_of(work.operations, work.bytes, device)))
    return costs


def bound_of(operations: int, moved: int, device: Device) -> str:
    """What takes longest of an operator by itself."""
    times = {MEMORY: moved / device.read, ARITHMETIC: operations / device.float32_matmul,
             LAUNCH: device.launch_seconds}
    return max(times, key=lambda name: times[name])


def _law(use: RuleUse) -> Law:
    return Law(use.law, use.condition, use.exactness, use.where, use.count)


def _input(value: Any) -> str:
    import torch

    return _tensor(value) if isinstance(value, torch.Tensor) else f"{type(value).__name__} {str(value)[:60]}"


def _tensor(value: Any) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
