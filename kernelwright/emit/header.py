"""The header of an emitted file: what was replaced, by which rules, at what gain."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from kernelwright.records import Mode

_WIDTH = 110


def quantity(value: float, unit: str) -> str:
    """A number with a decimal prefix: 618 GFLOP, 1.07 GB."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def make_header(name: str, modes: Sequence[Mode], version: str, device: str) -> str:
    """The docstring of the emitted file. It depends on the problem, the plan and the device alone."""
    lines = [f"ModelNew: {name}, with custom kernels. Written by kernelwright {version} for {device}.", "",
             "Same constructor, parameters and results as the original class. Where a call does not fit what the",
             "kernels were built for, the original computation runs, with one warning."]
    for mode in modes:
        lines += ["", f"{mode.name.capitalize()} mode: {mode.replaced} of {mode.operators} operators replaced."]
        if not mode.kernels:
            lines.append("  Nothing pays here: the original computation stays.")
            continue
        lines.append(f"  operations {quantity(mode.before.operations, 'FLOP')} -> "
                     f"{quantity(mode.after.operations, 'FLOP')}, memory traffic {quantity(mode.before.bytes, 'B')} -> "
                     f"{quantity(mode.after.bytes, 'B')}")
        for rule in mode.rules:
            times = f" ({rule.count} times)" if rule.count > 1 else ""
            lines += _wrapped(f"rule {rule.name}{times}: {rule.law}; {rule.exactness}")
        for kernel in mode.kernels:
            lines += _wrapped(f"kernel {kernel.name}: {kernel.meaning}")
        for kept in mode.kept:
            lines += _wrapped(f"PyTorch keeps {kept.operator}: {kept.reason}")
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ")
