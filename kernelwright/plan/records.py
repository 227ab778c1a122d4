"""What PLAN hands on: steps in order, each a kernel or a torch call."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelwright.ir.graph import BufferUpdate, Graph
from kernelwright.ir.node import Node
from kernelwright.plan.kernels import Kernel


@dataclass(frozen=True, slots=True)
class KernelStep:
    """A kernel's call. ``inputs`` and ``outputs`` are in the order of the kernel's buffers.

    covers: nodes of the rewritten graph whose work the kernel does.
    buffers: output number -> name of the model's buffer that the kernel updates in place.
    """

    name: str
    kernel: Kernel
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    covers: tuple[Node, ...]
    buffers: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TorchStep:
    """A torch call that computes one node."""

    node: Node


Step = KernelStep | TorchStep


@dataclass(frozen=True, slots=True)
class Plan:
    """The program of one mode of a model.

    results: the node that holds each of ``graph.outputs`` (lowering may have replaced it).
    effects: buffer updates that must be written out after the steps.
    kept: nodes of the graph that stay torch calls, with the reason for the report.
    """

    graph: Graph
    steps: tuple[Step, ...]
    results: tuple[Node, ...]
    effects: tuple[BufferUpdate, ...]
    kept: dict[Node, str] = field(default_factory=dict)

    @property
    def kernels(self) -> tuple[KernelStep, ...]:
        """The kernel steps, in order."""
        return tuple(s for s in self.steps if isinstance(s, KernelStep))
