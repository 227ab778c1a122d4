"""From nodes that have a skeleton of their own to their kernel records."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.ir.node import Node
from kernelwright.ir.spectral import taps
from kernelwright.plan.compile.attentions import compile_attention
from kernelwright.plan.compile.batched import compile_batched
from kernelwright.plan.compile.recurrences import compile_recurrence
from kernelwright.plan.kernels import Attention, BatchedProduct, Recurrence, RegionSum, SpectralEnergy


def special_kernel(nodes: Sequence[Node], buffers: Sequence[int]
                   ) -> RegionSum | SpectralEnergy | Recurrence | Attention | BatchedProduct:
    """The record of the nodes of a special group: one, or the results of one recurrence. buffers: the number of the
    kernel's input that has each of their operands; those of other kinds are one after the other."""
    node = nodes[0]
    if node.op == "channel_energy":
        return _spectral_energy(node)
    if node.op == "recurrence":
        return compile_recurrence(nodes, buffers)
    if node.op == "attention":
        return compile_attention(node, buffers)
    if node.op == "batched_product":
        return compile_batched(node, buffers)
    return RegionSum(node.inputs[0].shape, node["classes"], node["scale"], node.dtype, node.inputs[0].dtype)


def _spectral_energy(node: Node) -> SpectralEnergy:
    """Of a channel_energy node (see :func:`kernelwright.ir.ops.special.channel_energy`)."""
    x, weight = node.inputs
    groups, transposed = node["groups"], node["transposed"]
    in_channels = x.shape[1] // groups
    out_channels = weight.shape[1] if transposed else weight.shape[0] // groups
    return SpectralEnergy(x.shape[0], groups, in_channels, out_channels, x.shape[2:], taps(node), transposed)
