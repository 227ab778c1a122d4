"""Results in the memory of values that nothing reads any more.

A pointwise kernel that reads a value for the last time may write each element where it has read it: no memory is asked
for, none is touched for the first time, and what comes next finds half as much before it (torch.compile does the same).
A value's memory is free where the program has made it, by a kernel or by a product of PyTorch's, which return memory of
their own, and where no view of it is read later or returned.

A torch call that writes at indices (`aten::scatter_add`) copies its first operand to write into the copy. Where nobody
else reads that operand it is the operator in place (`aten::scatter_add_`), as models write it before they are captured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from kernelwright.ir.node import Node
from kernelwright.plan.expressions import Element, Load, walk
from kernelwright.plan.kernels import LoopKernel
from kernelwright.plan.records import KernelStep, Step

#: Operators of ATen that write at indices into a copy of their first operand; of each there is one with _ that writes
#: into the operand.
_AT_INDICES = ("index_add", "index_copy", "index_fill", "index_put", "index_reduce", "masked_fill", "masked_scatter",
               "put", "scatter", "scatter_add", "scatter_reduce")
#: Pointwise operators whose torch call may return what it is given.
_MAY_SHARE = ("cast", "copy", "item")


def written_at_indices(node: Node) -> Node | None:
    """The operand whose copy a torch call writes at indices, where its memory would do for the result."""
    if node.op != "opaque" or not node.inputs or node["template"][:1] != (("input", 0),):
        return None
    library, name, _ = node["target"].split(".")
    operand = node.inputs[0]
    is_one = library == "aten" and name in _AT_INDICES and _mentions(node["template"]) == 1 \
        and not _mentions(node["keywords"])
    return operand if is_one and operand.dtype == node.dtype and operand.shape == node.shape else None


def _mentions(template: Any) -> int:
    """How often an argument list names the first operand."""
    if not isinstance(template, tuple):
        return 0
    return 1 if template == ("input", 0) else sum(_mentions(part) for part in template)


def written_over(steps: Sequence[Step], kept: Collection[Node]) -> frozenset[Node]:
    """The torch calls of ``steps`` that may write into their first operand: tensors that the steps have made (kernels,
    arithmetic of PyTorch's, what is filled with one number, other such calls), of which they are the only readers.
    kept: read after the steps."""
    readers = Counter(node for step in steps for node in
                      (step.inputs if isinstance(step, KernelStep) else step.node.inputs))
    own, found = set[Node](), set[Node]()
    for step in steps:
        if isinstance(step, KernelStep):
            own.update(step.outputs)
            continue
        operand = written_at_indices(step.node)
        if operand is not None and operand in own and operand not in kept and readers[operand] == 1:
            found.add(step.node)
        if operand is not None or step.node.op == "literal" or (
                step.node.kind in ("pointwise", "linear") and step.node.op not in _MAY_SHARE):
            own.add(step.node)
    return frozenset(found)


def in_place(code: str, node: Node) -> str:
    """The call of a node of `written_over`, from the call of the operator that copies."""
    _, name, overload = node["target"].split(".")
    return code.replace(f".{name}.{overload}(", f".{name}_.{overload}(", 1)


class Memory:
    """Who has which memory in a program of ``steps``, of whose values ``kept`` are read after it."""

    def __init__(self, steps: Sequence[Step], kept: Collection[Node]) -> None:
        self._steps = steps
        self._owner: dict[Node, Node] = {}  # by value: the value that was made with its memory
        self._last: dict[Node, int] = {}  # by owner: the last step that reads its memory
        self._lost: set[Node] = set()  # owners whose memory somebody else may hold
        for place, step in enumerate(steps):
            inputs = step.inputs if isinstance(step, KernelStep) else step.node.inputs
            for node in inputs:
                if (owner := self._owner.get(node)) is not None:
                    self._last[owner] = place
            if isinstance(step, KernelStep):
                self._owner |= {node: node for node in step.outputs}
            elif step.node.kind == "linear":
                self._owner[step.node] = step.node
            elif step.node.kind == "view" and len(inputs) == 1:
                if inputs[0] in self._owner:
                    self._owner[step.node] = self._owner[inputs[0]]
            else:  # may return what it is given, or keep it
                self._lost |= {self._owner[node] for node in inputs if node in self._owner}
        self._lost |= {self._owner[node] for node in kept if node in self._owner}

    def taken(self, place: int) -> int | None:
        """The number of the input whose memory the only result of the kernel at this place may take; None: of none."""
        step = self._steps[place]
        if not isinstance(step, KernelStep) or step.buffers or len(step.outputs) != 1 \
                or not isinstance(step.kernel, LoopKernel):
            return None
        owners = [self._owner.get(node) for node in step.inputs]
        for number, (node, owner) in enumerate(zip(step.inputs, owners, strict=True)):
            if owner is not None and owner not in self._lost and self._last[owner] == place \
                    and owners.count(owner) == 1 and node.bytes == step.outputs[0].bytes \
                    and writes_where_it_reads(step.kernel, number):
                return number
        return None


def writes_where_it_reads(kernel: LoopKernel, number: int) -> bool:
    """Whether a kernel reads of an input, at each point, nothing but the element in whose place it stores its only
    result there."""
    if kernel.row or kernel.reductions or kernel.row_stores or len(kernel.outer_stores) != 1 \
            or kernel.input_dtypes[number] != kernel.output_dtypes[0]:
        return False
    store = kernel.outer_stores[0]
    loads = [node for node in walk(store.expression) if isinstance(node, (Load, Element)) and node.buffer == number]
    return bool(loads) and all(isinstance(load, Load) and load.index == store.index and not load.guards
                               for load in loads)
