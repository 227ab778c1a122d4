"""The header of an emitted file: what was replaced, by which rules, at what gain."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

from kernelwright.records import Mode, words_of

_WIDTH = 110


def quantity(value: float, unit: str) -> str:
    """A number with a decimal prefix: 618 GFLOP, 1.07 GB."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def make_header(name: str, modes: Sequence[Mode], version: str, device: str) -> str:
    """The docstring of the emitted file. It depends on the problem, the plan and the device alone."""
    if not any(mode.runs for mode in modes):
        return f"ModelNew: {name}, unchanged: no kernel pays. Written by kernelwright {version} for {device}."
    has_kernels = any(mode.kernels for mode in modes)
    what = "with custom kernels" if has_kernels else "launched as one CUDA graph"
    lines = [f"ModelNew: {name}, {what}. Written by kernelwright {version} for {device}.", "",
             "Same constructor, parameters and results as the original class. Where a call does not fit what the",
             f"{'kernels were' if has_kernels else 'graph was'} built for, the original computation runs, with one "
             "warning."]
    for mode in modes:
        name = words_of(mode.name).capitalize()
        lines += ["", f"{name} mode: {mode.replaced} of {mode.operators} operators replaced."]
        if not mode.kernels:
            lines.append("  No kernel pays here: PyTorch's own calls are launched as one CUDA graph." if mode.launched
                         else "  Nothing pays here: the original computation stays.")
            continue
        lines.append(f"  operations {quantity(mode.before.operations, 'FLOP')} -> "
                     f"{quantity(mode.after.operations, 'FLOP')}, memory traffic {quantity(mode.before.bytes, 'B')} -> "
                     f"{quantity(mode.after.bytes, 'B')}")
        rules: Counter[tuple[str, str]] = Counter()
        for rule in mode.rules:
            rules[f"{rule.law}; {rule.exactness}", rule.name] += rule.count
        for (law, title), count in rules.items():
            lines += _wrapped(f"rule {title}{_times(count)}: {law}")
        for kernel in mode.kernels:
            lines += _wrapped(f"kernel {kernel.name}: {kernel.meaning}")
        for (operator, reason), count in Counter((k.operator, k.reason) for k in mode.kept).items():
            lines += _wrapped(f"PyTorch keeps {operator}{_times(count)}: {reason}")
    return "\n".join(lines)


def _times(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ")
