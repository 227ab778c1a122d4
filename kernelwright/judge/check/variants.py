"""Variants: sequences of calls, layouts and sizes beyond the input distributions of a certificate.

What every caller may rely on gates: a result follows the inputs and parameters of its own call, whatever was called
before. What a candidate may say that it does not do (other layouts, sizes, modes, gradients) limits it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from kernelwright.judge.check import layouts
from kernelwright.judge.check.variant_calls import Caller
from kernelwright.judge.check.variant_records import Inputs, Step, Variant, VariantResult
from kernelwright.problem import Problem
from kernelwright.verify.distributions import AS_GIVEN, DISTRIBUTIONS
from kernelwright.verify.flatten import map_tensors, tensors_of
from kernelwright.verify.tolerance import Tolerance

__all__ = ["Variant", "VariantResult", "check_variants", "variants"]


def variants(problem: Problem, seed: int, distribution: str = AS_GIVEN, triangular: bool = False) -> list[Variant]:
    """The variants of a problem, those that gate first and the one that may end a process last. ``distribution``: the
    inputs of sequences, of which other draws should give other results (`ProblemProfile.varying`). ``triangular``: as
    of a `TrialPlan`."""
    def drawn(offset: int, kind: str = distribution) -> Inputs:
        return lambda: DISTRIBUTIONS[kind].apply(
            problem.make_inputs(seed + offset), seed + offset, triangular=triangular)

    first, second = drawn(101), drawn(102)
    found = [
        # A result kept for its input's address is stale for other parameters, too: inputs first tell which it is.
        Variant("other inputs", "the same inputs twice, then others, then the first again",
                (Step(first), Step(first), Step(second), Step(first)), True, "WRONG-STALE",
                fix="Compute every result from the inputs of its own call."),
        Variant("same memory", "other values in the memory of the inputs before",
                (Step(first), Step(second, into_last=True)), True, "WRONG-STALE",
                fix="Do not take inputs at a known address for known values."),
        Variant("other parameters", "parameters change in place between two calls",
                (Step(first), Step(first, redraw=seed + 103)), True, "WRONG-PARAMETERS",
                fix="Read the parameters in every call; keep nothing that was made of them, or make it anew when they "
                    "change."),
        Variant("two instances", "two instances with different parameters, called in turns",
                (Step(first), Step(first, instance=1), Step(first)), True, "WRONG-PARAMETERS", both_alive=True,
                fix="Keep what belongs to a model in the model, not in the module or in C++ statics."),
        Variant("second instance", "another instance with other parameters, made after the first was called",
                (Step(first), Step(first, instance=1)), True, "WRONG-PARAMETERS",
                fix="Keep what belongs to a model in the model, not in the module or in C++ statics."),
        *_numbers(problem, seed),
        Variant("other mode", "train() or eval() after the first call, and back",
                (Step(first), Step(first, switched=True), Step(first)),
                limit="only in the mode in which it is constructed",
                silent="silently wrong after eval() or train(): only the mode in which it is constructed is right",
                fix="Ask self.training in forward, where the model's layers do."),
        Variant("gradients", "inputs that require gradients", (Step(first, gradients=True),),
                limit="not for inputs that require gradients",
                silent="silently wrong for inputs that require gradients",
                fix="Take data pointers of detached tensors, or give the function a backward."),
    ]
    found += _batches(problem, seed)
    found += _layouts(problem, seed)
    return found


def _numbers(problem: Problem, seed: int) -> list[Variant]:
    """Single numbers that come as tensors are often the same in every draw, and a model may raise for all values that
    distributions give them: near their own values it is likelier to take them."""
    def is_number(tensor: torch.Tensor) -> bool:
        return tensor.dtype.is_floating_point and tensor.numel() == 1

    def made(factor: float) -> Inputs:
        return lambda: map_tensors(problem.make_inputs(seed + 107), lambda t: t * factor if is_number(t) else t)

    if not any(map(is_number, tensors_of(problem.make_inputs(seed)))):
        return []
    return [Variant(f"numbers times {factor}", f"inputs that are single numbers {factor} times as large",
                    (Step(made(factor)),), True, "WRONG-DISTRIBUTION",
                    fix="Read every number from the inputs of the call, not from a constant.")
            for factor in (1.25, 0.8)]


def _batches(problem: Problem, seed: int) -> list[Variant]:
    batch = layouts.batch_of(problem.make_inputs(seed))
    if not batch:
        return []
    sizes = dict.fromkeys(size for size in (1, batch + 1, 3 if batch > 4 else 5) if size != batch)

    def made(size: int) -> Inputs:
        return lambda: layouts.with_batch(problem.make_inputs(seed + 104), problem.make_inputs(seed + 105), size)

    return [Variant(f"batch of {size}", f"a batch of {size} instead of {batch}", (Step(made(size)),), batch=size,
                    limit="the problem's own shapes only",
                    silent=f"silently wrong for a batch of {size}: the problem's own shapes only",
                    fix="Take sizes from the inputs in forward, not from constants.") for size in sizes]


#: Name, layout, what it is in words.
_LAYOUTS = (
    ("transposed", layouts.transposed, "transposed (non-contiguous) inputs"),
    ("sliced", layouts.sliced, "slices of larger tensors (non-contiguous) as inputs"),
    ("channels-last", layouts.channels_last, "channels-last inputs"),
    ("expanded", layouts.expanded, "expanded inputs (a stride of zero)"),
)


def _layouts(problem: Problem, seed: int) -> list[Variant]:
    own = problem.make_inputs(seed)
    non_contiguous = any(not t.is_contiguous() for t in tensors_of(own))

    def made(layout: layouts.Layout) -> Inputs:
        return lambda: layouts.with_layout(problem.make_inputs(seed + 106), layout)

    found = [Variant(name, words, (Step(made(layout)),), gates=non_contiguous, own_layout=True,
                     verdict="WRONG-NUMERIC" if non_contiguous else "",
                     limit="contiguous inputs only",
                     silent=f"silently wrong for {words}",
                     fix="Call .contiguous() on inputs, or read them by their strides.")
             for name, layout, words in _LAYOUTS if layouts.has_layout(own, layout)]
    if layouts.has_layout(own, layouts.misaligned):
        off = any(t.storage_offset() * t.element_size() % 16 for t in tensors_of(own))
        found.append(Variant(
            "misaligned", "contiguous inputs that do not begin at a multiple of 16 bytes",
            (Step(made(layouts.misaligned)),), gates=off, verdict="WRONG-NUMERIC" if off else "", own_layout=True,
            limit="inputs at multiples of 16 bytes only",
            silent="silently wrong for inputs that do not begin at a multiple of 16 bytes",
            fix="Ask the address before using vector loads, or copy such inputs."))
    return found


def check_variants(make_model: Callable[[], nn.Module], candidate: nn.Module, problem: Problem,
                   tried: Sequence[Variant], tolerance: Tolerance, budget_seconds: float, *,
                   make_second: Callable[[], nn.Module] | None = None, both_alive: bool = True,
                   let_go: Callable[[], None] = lambda: None) -> list[VariantResult]:
    """Run ``tried`` on model and candidate; each result is compared with eager and float64 by ``tolerance``.

    ``make_model`` makes the model in the mode of the judgement. ``make_second`` makes a second instance of the
    candidate; with ``both_alive`` False the first one must not be called again. A variant that the model itself does
    not take, or for which there is no time, is skipped with the reason. Where the candidate says that memory is lacking
    it is tried again, after ``let_go``, which frees what is kept elsewhere; that is a limit of it then, or, where as
    much is free as it had enough with, its verdict. State and mode of the candidate are restored,
    and PyTorch's random state is. Raises nothing that a candidate does.
    """
    devices = list(range(torch.cuda.device_count())) if problem.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        caller = Caller(make_model, candidate, problem, tolerance, budget_seconds, make_second, both_alive,
                        let_go)
        return [caller.run(variant) for variant in tried]
