"""What PLAN hands on: steps in order, each a kernel or a torch call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kernelwright.ir.graph import BufferUpdate, Check, Graph
from kernelwright.ir.node import Node
from kernelwright.plan.contraction.record import ROUNDED_SCHEMES, Contraction, TargetTiling
from kernelwright.plan.expressions import Index, Load, walk
from kernelwright.plan.kernels import (
    Attention,
    BatchedProduct,
    Extremum,
    LoopKernel,
    Recurrence,
    RegionSum,
    Scan,
    SpectralEnergy,
)

Kernel = (LoopKernel | RegionSum | SpectralEnergy | Scan | Extremum | Recurrence | Attention | BatchedProduct
          | Contraction)
"""What a kernel means: one of these records."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured of a contraction: seconds of the kernel and of the torch calls that it replaces, and the
    largest rms error of each against float64, over the rms of the result."""

    seconds: float
    torch_seconds: float
    error: float
    torch_error: float


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """How a contraction becomes a kernel (see :class:`kernelwright.plan.contraction.record.Contraction`).

    measurement: None where nothing was measured. reduces: whether reductions of its output channels or positions join
    it, where a kernel can take them. lines: whether windows of positions that join it have two lines, where they can.
    exact_functions: as in the kernel. recompute: how pass 2 computes it, once statistics of its results are known; None
    where the results are stored, and read from memory.
    """

    scheme: str
    tiling: TargetTiling | int | None = None
    measurement: Measurement | None = None
    reduces: bool = True
    lines: bool = True
    exact_functions: bool = False
    recompute: KernelConfig | None = None

    def exact(self) -> KernelConfig:
        """The same with exact functions, of which nothing was measured; itself where no operands are rounded."""
        recompute = self.recompute.exact() if self.recompute is not None else None
        if self.scheme not in ROUNDED_SCHEMES:
            return self if recompute == self.recompute else replace(self, recompute=recompute)
        return replace(self, exact_functions=True, measurement=None, recompute=recompute)


@dataclass(frozen=True, slots=True)
class KernelStep:
    """A kernel's call. ``inputs`` and ``outputs`` are in the order of the kernel's buffers.

    covers: nodes of the rewritten graph whose work the kernel does.
    buffers: output number -> name of the model's buffer that the kernel updates in place.
    pass_number: of a contraction that is recomputed (:mod:`kernelwright.plan.fusion.recompute`) 1 or 2; else 0.
    beside: of a recurrence, torch calls that do some of the work of what it covers, as the products with all inputs.
    """

    name: str
    kernel: Kernel
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    covers: tuple[Node, ...]
    buffers: tuple[tuple[int, str], ...] = ()
    pass_number: int = 0
    beside: tuple[Node, ...] = ()

    @property
    def rolls(self) -> bool:
        """Whether the kernel is a loop that was written out, of whose steps it does the work, or such an attention, or
        a batched product."""
        return isinstance(self.kernel, (Recurrence, Attention, BatchedProduct)) and len(self.covers) > 1

    def left(self, reason: str) -> dict[Node, str]:
        """What becomes of the covered nodes without the kernel: the steps of a loop are planned one by one, others are
        PyTorch's."""
        return dict.fromkeys(self.covers, Unrolled(reason) if self.rolls else reason)

    @property
    def copies(self) -> bool:
        """Whether the kernel only stores its input in another order."""
        return all(n.op == "copy" for n in self.outputs) and isinstance(self.kernel, LoopKernel) and all(
            isinstance(s.expression, Load) for s in (*self.kernel.row_stores, *self.kernel.outer_stores))

    @property
    def transposes(self) -> bool:
        """Whether a pointwise kernel reads a whole tensor in another order than it writes."""
        if not isinstance(self.kernel, LoopKernel) or self.kernel.row:
            return False
        return any(all(load.index.strides) and _order(load.index) != _order(store.index)
                   for store in self.kernel.outer_stores for load in walk(store.expression) if isinstance(load, Load))


def _order(index: Index) -> list[int]:
    """The axes in the order in which memory holds them."""
    return sorted(range(len(index.strides)), key=lambda axis: -abs(index.strides[axis]))


class LibraryCall(str):
    """Why a contraction stays a torch call, where that is the library's product alone: its bias may still move to the
    kernels that read it. For any other reason PyTorch computes all of an operator."""

    __slots__ = ()


class Unrolled(str):
    """Why the steps of a loop, or the operators of an attention or of a batched product, are not one kernel: each is
    planned like all else."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TorchStep:
    """A torch call that computes one node."""

    node: Node


Step = KernelStep | TorchStep


def kept_whole(kept: Mapping[Node, str]) -> frozenset[Node]:
    """The nodes of which PyTorch computes all, of those that stay torch calls for these reasons."""
    return frozenset(n for n, reason in kept.items() if not isinstance(reason, (LibraryCall, Unrolled)))


def unrolled(kept: Mapping[Node, str]) -> frozenset[Node]:
    """The nodes that are in no recurrence for these reasons."""
    return frozenset(n for n, reason in kept.items() if isinstance(reason, Unrolled))


@dataclass(frozen=True, slots=True)
class Plan:
    """The program of one mode of a model.

    results: the node that holds each of ``graph.outputs`` (lowering may have replaced it).
    effects: buffer updates that must be written out after the steps.
    checks: the truth values among ``graph.checks``, as the steps compute them.
    kept: nodes of the graph that stay torch calls, with the reason for the report, which for contractions may be a
    :class:`LibraryCall`; or that are steps of a loop, each for itself (:class:`Unrolled`).
    channels_last: convolutions of the graph, or calls for gradients, whose tensors are stored so. layout: what that
    gave, in words for the report. contractions: contractions of the graph that are kernels, and how. fused_products:
    the kinds of kernels that products may be with what stands around them.
    """

    graph: Graph
    steps: tuple[Step, ...]
    results: tuple[Node, ...]
    effects: tuple[BufferUpdate, ...]
    kept: dict[Node, str] = field(default_factory=dict)
    channels_last: frozenset[Node] = frozenset()
    layout: str = ""
    contractions: dict[Node, KernelConfig] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    fused_products: tuple[str, ...] = ()

    @property
    def kernels(self) -> tuple[KernelStep, ...]:
        """The kernel steps, in order."""
        return tuple(s for s in self.steps if isinstance(s, KernelStep))

    @property
    def kept_whole(self) -> frozenset[Node]:
        """The nodes of ``kept`` of which PyTorch computes all."""
        return kept_whole(self.kept)

    @property
    def unrolled(self) -> frozenset[Node]:
        """The nodes of ``kept`` that are in no recurrence."""
        return unrolled(self.kept)
