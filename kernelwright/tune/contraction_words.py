"""What was measured of contractions, in words for the progress."""

from __future__ import annotations

from math import inf

from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.ir.node import Node
from kernelwright.plan.records import KernelConfig
from kernelwright.tune.contraction_memory import Measured
from kernelwright.tune.contraction_trials import Case, words


def nearest(measured: Measured) -> str:
    """By how much even the most accurate candidate is less accurate than the torch call, where that shows most."""
    granted = measured.granted or measured.errors
    ratios = [max(((e.rms / m.rms, e.largest / m.largest)
                   for e, m, g in zip(t.errors, measured.errors, granted, strict=True)
                   if m.rms and m.largest and not t.no_worse(e, m) and not t.no_worse(e, g)), default=(inf, inf))
              for t in measured.trials if len(t.errors) == len(measured.errors)]
    rms, largest = min(ratios, default=(inf, inf))
    return f"its error is {rms:.3g} times as large, the largest {largest:.3g} times"


def line(case: Case, measured: Measured | None, config: KernelConfig | None, reason: str) -> str:
    """What was measured of one contraction, and what it takes."""
    kernel, number = case.kernel, case.step.pass_number
    subject = f"{_sizes(case.node)}, its channels reduced," if kernel.reductions else \
        f"{_sizes(case.node)}, its positions reduced," if kernel.position_reductions else \
        f"{_sizes(case.node)}, its windows{' of two lines' * (kernel.pool_lines > 1)} reduced," if kernel.pools else \
        _sizes(case.node)
    subject += f" in pass {number} of two" if number else ""
    if measured is None or not measured.trials:
        return f"{subject}: {reason}" + "".join(f"; {f}" for f in (measured.failures if measured else ()))
    operations = case.node.operator.operations(case.node)

    def figure(name: str, seconds: float, rms: float) -> str:
        if seconds == inf:
            return f"{name} not timed (error {rms:.2e})"
        return f"{name} {seconds * 1e3:.4g} ms ({operations / max(seconds, 1e-12) / 1e12:.4g} TFLOP/s, error {rms:.2e})"

    found = [figure("torch", measured.seconds, measured.usual)]
    found += [figure(words(t.config), t.seconds, t.usual) for t in measured.trials]
    decision = f"takes {words(config)}{_why(config)}" if config is not None else f"stays: {reason}"
    return "; ".join([subject if number else f"{subject} {decision}", *found, *measured.failures])


def line_recompute(node: Node, config: KernelConfig, seconds: float, once: float) -> str:
    """What the two passes of a contraction take. seconds: with what follows; once: the best of what else was tried."""
    both = [words(c) + _why(c) for c in (config, config.recompute) if c is not None]
    otherwise = f", {once * 1e3:.4g} ms otherwise" if once < inf else ""
    return f"{_sizes(node)} is recomputed, first for its statistics and then with what follows from them, so that " \
        f"nothing in between is stored ({'; then '.join(both)}): {seconds * 1e3:.4g} ms with what follows{otherwise}"


def _why(config: KernelConfig) -> str:
    """What is unusual about a candidate and what that is for, in parentheses."""
    reasons = config.tiling.reasons if isinstance(config.tiling, Tiling) else []
    return f" ({', '.join(reasons)})" if reasons else ""


def _sizes(node: Node) -> str:
    return f"{node.op} " + " by ".join("x".join(map(str, i.shape)) for i in node.inputs[:2])
