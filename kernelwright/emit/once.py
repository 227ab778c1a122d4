"""What a program needs that depends on no input: made at its first call on a device, and kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from kernelwright.ir.node import Node
from kernelwright.plan.records import Step, TorchStep

# What is kept stays in the device's memory: larger tensors are made each time.
_MOST_BYTES = 16 << 20
_KINDS = ("leaf", "opaque", "view", "pointwise", "reduction", "row")


def made_once(steps: Sequence[Step], results: Iterable[Node]) -> list[TorchStep]:
    """The torch calls of ``steps`` whose tensors may be kept: they depend on no input, parameter or buffer, draw no
    random numbers, and nobody outside of the program gets their memory, who might write to it."""
    fixed: dict[Node, TorchStep] = {}
    for step in steps:
        if isinstance(step, TorchStep) and _is_fixed(step.node, fixed):
            fixed[step.node] = step
    returned = _may_share(steps, results)
    kept: set[Node] = set()
    for node in fixed:  # what shares memory with a tensor that is made each time is made each time
        if node not in returned and all(i in kept or i.op == "constant" for i in node.inputs):
            kept.add(node)
    return [step for node, step in fixed.items() if node in kept]


def _is_fixed(node: Node, fixed: Collection[Node]) -> bool:
    return (node.kind in _KINDS and node.dtype != "tuple" and node.op != "item" and node.get("serial", -1) < 0
            and node.bytes <= _MOST_BYTES and "empty" not in node.get("target", "")
            and all(i in fixed or i.op == "constant" for i in node.inputs))


def _may_share(steps: Iterable[Step], results: Iterable[Node]) -> set[Node]:
    """Nodes whose memory a result may show: what torch calls between them return may be a view."""
    calls = {s.node for s in steps if isinstance(s, TorchStep)}
    found: set[Node] = set()
    stack = list(results)
    while stack:
        node = stack.pop()
        if node in found:
            continue
        found.add(node)
        if node in calls and (node.kind in ("view", "opaque") or node.op in ("item", "cast", "copy")):
            stack += node.inputs
    return found
