"""Attention for CUDA: a :class:`kernelwright.plan.kernels.Attention` to the text of its launches.

How operands, weights and results are rounded is a scheme: :mod:`three_terms` has the accuracy of float32,
:mod:`sixteen_bits` that of a model in bfloat16 or float16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from kernelwright.codegen.cuda.attention import layout, narrow_layout
from kernelwright.codegen.cuda.attention.sixteen_bits import SixteenBits
from kernelwright.codegen.cuda.attention.text import Text
from kernelwright.codegen.cuda.attention.three_terms import ThreeTerms
from kernelwright.codegen.source import KernelSource, Unsuitable
from kernelwright.plan.kernels import Attention


class Scheme(NamedTuple):
    """The text of a kernel, and how its blocks have their parts of the work, the better ways first."""

    text: Callable[[Attention, str, Any], Text]
    layouts: Callable[[Attention], Iterator[Any]]


_NARROW = Scheme(SixteenBits, narrow_layout.layouts)
SCHEMES: Mapping[str, Scheme] = MappingProxyType({
    "float32": Scheme(ThreeTerms, layout.layouts), "bfloat16": _NARROW, "float16": _NARROW})
"""Schemes by the type of a kernel's arithmetic."""


def generate(kernel: Attention, name: str, layout: Any = None) -> KernelSource:
    """The text of the kernels and of their host function ``name``. ``layout``, one of the scheme's, replaces the best.

    Raises Unsuitable where queries or values are too long.
    """
    scheme = SCHEMES[kernel.compute]
    layout = layout or next(scheme.layouts(kernel), None)
    if layout is None:
        raise Unsuitable(f"queries of {kernel.depth} elements need more than a multiprocessor holds")
    if kernel.batch * -(-kernel.rows // (64 * layout.groups)) * -(-kernel.width // layout.wide) >= 2**31 - 2**20:
        raise Unsuitable("more rows than 31 bits count")
    return scheme.text(kernel, name, layout).source()
