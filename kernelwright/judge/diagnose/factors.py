"""Names for a factor between wrong and right: a size, its reciprocal or root, biased for unbiased, a known constant."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from kernelwright.judge.diagnose.evidence import Evidence
from kernelwright.judge.diagnose.leaf import Leaf

#: How closely a factor must agree, relatively (means of float32 values know it better than this).
CLOSE = 2e-5


def name_factor(factor: float, leaf: Leaf, evidence: Evidence) -> tuple[str, str] | None:
    """Words that say what the factor is, and what would mend it; None where it is no number of the problem's."""
    for value, words, fix in _known(leaf, evidence):
        if abs(factor - value) <= CLOSE * abs(value):
            return words, fix
    return None


def _known(leaf: Leaf, evidence: Evidence) -> Iterator[tuple[float, str, str]]:
    for count in (2, 3, 4, 8, 10, 16):
        yield float(count), f"{count}", f"something is counted {count} times, or a factor 1/{count} is missing"
        yield 1 / count, f"1/{count}", f"a factor {count} is missing, or only one part of {count} is computed"
    sizes = _sizes(leaf, evidence)
    for size, where in sizes.items():
        yield float(size), f"{size}, {where}", "the division by the count is missing (a sum in place of a mean)"
        yield 1 / size, f"1/{size}, {size} being {where}", "a mean stands in place of a sum"
    for size, where in sizes.items():
        if size > 2:
            fix = "the variance is divided by N - 1 in one and by N in the other"
            yield size / (size - 1), f"N/(N - 1) with N = {size}, {where}", fix
            yield (size - 1) / size, f"(N - 1)/N with N = {size}, {where}", fix
            for ratio, words in ((size / (size - 1), "sqrt(N/(N - 1))"), ((size - 1) / size, "sqrt((N - 1)/N)")):
                yield math.sqrt(ratio), f"{words} with N = {size}, {where}", \
                    "the standard deviation is taken with N - 1 in one and with N in the other"
    for size, where in sizes.items():
        yield math.sqrt(size), f"sqrt({size}), {size} being {where}", f"the scale 1/sqrt({size}) is missing"
        yield 1 / math.sqrt(size), f"1/sqrt({size}), {size} being {where}", f"the scale 1/sqrt({size}) is one too many"
    for size, where in sizes.items():
        if size > 2:
            yield (size + 1) / size, f"(N + 1)/N with N = {size}, {where}", "a count is off by one"
            yield size / (size + 1), f"N/(N + 1) with N = {size}, {where}", "a count is off by one"
    for value, words in ((math.log(2), "ln 2"), (math.log2(math.e), "1/ln 2"), (math.log(10), "ln 10"),
                         (math.log10(math.e), "1/ln 10")):
        yield value, words, "the logarithm (or power) has another base: the model's is e"
    for value, words in ((math.pi, "pi"), (math.pi / 180, "pi/180"), (180 / math.pi, "180/pi"),
                         (math.sqrt(2), "sqrt(2)"), (1 / math.sqrt(2), "1/sqrt(2)")):
        yield value, words, "look for this constant in the formula"


def _sizes(leaf: Leaf, evidence: Evidence) -> dict[int, str]:
    """Sizes of axes of inputs, parameters and output, and products of an input's axes, in the order of likelihood."""
    found: dict[int, str] = {}
    tensors = [(f"input {i}", t) for i, t in enumerate(evidence.inputs) if isinstance(t, torch.Tensor)]
    for name, tensor in tensors:
        for axis, size in enumerate(tensor.shape):
            found.setdefault(size, f"the size of axis {axis} of {name}")
    for name, tensor in tensors:
        for first in range(tensor.dim()):
            for last in range(first + 2, tensor.dim() + 1):
                found.setdefault(math.prod(tensor.shape[first:last]),
                                 f"the elements of axes {first} to {last - 1} of {name}")
    for name, parameter in evidence.state.parameters.items():
        for axis, size in enumerate(parameter.shape):
            found.setdefault(size, f"the size of axis {axis} of {name}")
    for axis, size in enumerate(leaf.shape):
        found.setdefault(size, f"the size of axis {axis} of the output")
    return {size: where for size, where in found.items() if size > 1}
