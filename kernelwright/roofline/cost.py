"""What a graph costs on a device: the larger of arithmetic and memory time, summed over its operators.

This is the model that decides whether a rewrite pays. It assumes that pointwise operators fuse with
a neighbour, so that they cost half of their traffic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from kernelwright.ir.node import Node, users, walk
from kernelwright.ir.registry import torch_dtype
from kernelwright.roofline.devices import Device

# The share of the float32 peak that library convolutions and products reach, and our spectral kernels.
_LIBRARY_EFFICIENCY = 0.7
_SPECTRAL_EFFICIENCY = 0.35
# Torch operators that read of their first tensor only what indices choose.
_CHOOSING = ("embedding", "embedding_bag", "gather", "index", "index_select", "take", "take_along_dim", "taken")


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and least bytes of a graph or node."""

    operations: int
    bytes: int


def node_work(node: Node) -> Work:
    """Operations of a node, and the bytes that it reads and writes by itself."""
    if node.kind in ("leaf", "view"):
        return Work(0, 0)
    return Work(node.operator.operations(node), node.bytes + sum(i.bytes for i in node.inputs))


def node_seconds(node: Node, device: Device) -> float:
    """Estimated time of a node: launch, plus the larger of arithmetic and memory."""
    work = node_work(node)
    if node.kind in ("leaf", "view"):
        return 0.0
    share = 0.3 if node.kind == "pointwise" else 1.0
    memory = work.bytes / device.read * (0.5 if node.kind == "pointwise" else 1.0)
    return max(arithmetic_seconds(node, device), memory) + share * device.launch_seconds


def arithmetic_seconds(node: Node, device: Device) -> float:
    """Estimated time of a node's arithmetic alone, as PyTorch's library or a kernel of ours does it."""
    if node.kind in ("leaf", "view"):
        return 0.0
    peak = device.float64 if node.dtype == "float64" and node.op != "channel_energy" else device.float32_matmul
    if node.kind == "linear" and (multiplied := multiplied_type(node)).itemsize == 2:
        peak = device.best_arithmetic(multiplied)
    if node.op == "convolution":
        peak = (peak if node.get("exact") else max(peak, device.tf32)) * _LIBRARY_EFFICIENCY
    elif node.op == "channel_energy":
        peak *= _SPECTRAL_EFFICIENCY
    return node.operator.operations(node) / peak


def multiplied_type(node: Node) -> torch.dtype:
    """The type of whose units a contraction may be computed on: of 16 bits where all of its operands are numbers of
    it, be they in float32 now, else its own."""
    own = torch_dtype(node.dtype)
    held = {torch_dtype(_held(i).dtype) for i in node.inputs if own is torch.float32}
    return held.pop() if len(held) == 1 and next(iter(held)).itemsize == 2 else own


def _held(node: Node) -> Node:
    """What a node is but for casts that widen it."""
    while node.op == "cast" and torch_dtype(node.inputs[0].dtype).itemsize < torch_dtype(node.dtype).itemsize:
        node = node.inputs[0]
    return node


def graph_seconds(roots: Iterable[Node], device: Device) -> float:
    """Estimated time of everything below the roots."""
    return sum(node_seconds(node, device) for node in walk(roots))


def graph_work(roots: Iterable[Node]) -> Work:
    """Operations and bytes as the operators stand, each reading and writing memory by itself."""
    works = [node_work(n) for n in walk(roots)]
    return Work(sum(w.operations for w in works), sum(w.bytes for w in works))


def least_bytes(roots: Iterable[Node]) -> int:
    """Bytes that any version must move: what is needed of every leaf read once, every result written once."""
    roots = list(dict.fromkeys(roots))
    readers, returned = users(roots), set(roots)
    leaves = [n for n in readers if n.kind == "leaf" and n.op not in ("constant", "literal")]
    return sum(_needed(n, readers, returned) for n in leaves) + sum(r.bytes for r in roots)


def _needed(node: Node, readers: dict[Node, list[Node]], roots: set[Node]) -> int:
    """A bound from below of the bytes that are read of a node: a part of it, or rows that only the data tell."""
    needed, stack = 0, [node]
    while stack:
        current = stack.pop()
        if current in roots:
            needed = max(needed, current.bytes)
            continue
        for reader in readers[current]:
            if reader.op == "slice":
                stack.append(reader)
            elif not _chooses(reader, current):
                needed = max(needed, current.bytes)
    return needed


def _chooses(reader: Node, table: Node) -> bool:
    name = reader["target"].split(".")[1] if reader.op == "opaque" else reader.op
    return name in _CHOOSING and reader.inputs[0] is table


def floor(roots: Iterable[Node], device: Device) -> tuple[float, str]:
    """The time that no version of this graph can beat on the device, in seconds, and how it comes about."""
    roots = list(roots)
    moved = least_bytes(roots) / device.memory_peak
    nodes = list(walk(roots))
    tf32 = any(n.op == "convolution" for n in nodes)
    computed = sum(node_work(n).operations / device.best_arithmetic(multiplied_type(n), tf32=tf32)
                   for n in nodes if n.kind == "linear")
    if computed > moved:
        return computed, "arithmetic of the contractions that remain, on the fastest units"
    return moved, "what is used of every tensor read once and every result written once, at the memory's peak"
