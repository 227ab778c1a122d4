"""The candidates for a contraction: schemes and tilings, in the order in which they are worth a try."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, zip_longest
from math import inf

from kernelwright.codegen.cuda.direct_conv.generate import is_fast, schedules, suits
from kernelwright.codegen.cuda.gemm.generate import tilings
from kernelwright.codegen.cuda.gemm.search import predicted_milliseconds
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.cuda.gram import generate as gram
from kernelwright.plan.contraction.products import NARROW_TYPES
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.records import KernelConfig

#: Kernels on tensor cores, with the least compute capability that has their instructions; wgmma is of 9.0 alone.
WGMMA, _MMA = (9, 0), (8, 0)
# With fewer channels than this on both sides, tensor cores multiply zeros for the most part.
_FED = 4


def candidates(kernel: Contraction, dtype: str, capability: tuple[int, int], *, rounds: bool, most: int, only: str = ""
               ) -> list[KernelConfig]:
    """At most ``most`` candidates of a contraction on operands of ``dtype``, one of each scheme and core first.

    rounds: whether a scheme may round operands as TF32 does. only: where it may, the one of the two schemes on tensor
    cores that is listed, with the other's share of the candidates.
    """
    columns: list[list[KernelConfig]] = []
    schemes = ["native"] if dtype in NARROW_TYPES else [*(["fp16"] if rounds else []), "fp16x3"]
    alone = len(schemes) > 1 and only in schemes
    for scheme in [only] if alone else schemes:
        variant = replace(kernel, scheme=scheme, tiling=None)
        if capability == WGMMA:
            found = [KernelConfig(scheme, tiling) for tiling in tilings(variant, "wgmma")]
            columns += [found[::2], found[1::2]] if alone else [found]
        if capability >= _MMA:
            found = [KernelConfig(scheme, tiling) for tiling in tilings(variant, "mma")]
            columns += [found[::2], found[1::2]] if alone and capability != WGMMA else [found]
    plain = replace(kernel, scheme="float32", tiling=None)
    if suits(plain):
        direct = [KernelConfig("float32", number) for number in range(len(schedules(plain)))]
        if kernel.in_channels < _FED and kernel.out_channels < _FED:
            columns = [direct]
        else:
            columns.insert(0 if is_fast(plain) else len(columns), direct)
    if capability == WGMMA and _correlates(kernel, columns):
        columns.insert(0, [KernelConfig("correlation")])
    found = [c for c in chain.from_iterable(zip_longest(*columns)) if c is not None]
    portable = [c for c in found if isinstance(c.tiling, Tiling) and c.tiling.core == "mma"]
    if capability == WGMMA and portable:
        # Beside wgmma the portable core is tried once: it may win where blocks are few. Of convolutions that may round
        # last, as there are two schemes to try on wgmma: it lost on all 12 where both were tried (H200, level 2).
        others = [c for c in found if c not in portable]
        at = len(others) if rounds and kernel.axes and others else found.index(portable[0])
        found = [*others[:at], portable[0], *others[at:]]
    return found[:most]


def _correlates(kernel: Contraction, columns: list[list[KernelConfig]]) -> bool:
    """Whether a contraction's reductions over positions may come sooner from products of x with itself than by any
    tiling of ``columns``, by the guess."""
    if not gram.takes(kernel):
        return False
    guesses = [predicted_milliseconds(replace(kernel, scheme=c.scheme, tiling=None), c.tiling) for column in columns
               for c in column if isinstance(c.tiling, Tiling) and c.tiling.core != "mma"]
    return gram.predicted_milliseconds(kernel) < min(guesses, default=inf)
