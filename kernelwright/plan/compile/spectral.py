"""From a channel_energy node to its kernel record."""

from __future__ import annotations

from kernelwright.ir.node import Node
from kernelwright.ir.spectral import taps
from kernelwright.plan.kernels import SpectralEnergy


def spectral_kernel(node: Node) -> SpectralEnergy:
    """The record of a channel_energy node (see :func:`kernelwright.ir.ops.special.channel_energy`)."""
    x, weight = node.inputs
    groups, transposed = node["groups"], node["transposed"]
    in_channels = x.shape[1] // groups
    out_channels = weight.shape[1] if transposed else weight.shape[0] // groups
    return SpectralEnergy(x.shape[0], groups, in_channels, out_channels, x.shape[2:], taps(node), transposed)
