"""Which of two schemes a contraction is tried in: what rounding its operands to 11 bits costs, beside PyTorch's error.

Where a convolution or product may round to TF32, PyTorch's library does so for most sizes and works in float32 for
others. Candidates of ``fp16`` are refused in one case, and those of ``fp16x3`` only slower in the other. So before
anything is compiled the torch call runs, and the error of sums of rounded operands is found by rounding them.

Rounding to 11 bits changes an operand by up to 2^-11 of the power of two below it, by 2^-11 / sqrt(3) in the root mean
square: between 1.4e-4 and 2.8e-4 of the operands' own, 2.1e-4 where they are normal. Two operands make that 3.0e-4 of a
sum whose terms have random signs, whatever their number; of N terms of one sign it is less by about sqrt(N). A sum in
float32 has 1e-7 or so. But operands may be short of bits (a quantized weight is), or few, and the epilogue changes it
all: hence no formula decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from kernelwright.ir.node import Node
from kernelwright.plan.records import KernelConfig
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.tune import accuracy
from kernelwright.tune.accuracy import Error
from kernelwright.tune.contraction_points import exact_sums, some_points
from kernelwright.tune.contraction_trials import Case
from kernelwright.tune.regions import tensor_for

# What kernels do beside rounding changes their errors by less than the one of these; more than the other times what
# is granted is refused whatever they do. In between nothing is said.
_SURELY, _NEVER = 1.02, 1.3


def split_candidates(case: Case, own: Mapping[Node, torch.Tensor], device: torch.device
                     ) -> tuple[tuple[KernelConfig, ...], tuple[KernelConfig, ...]]:
    """The candidates to try of a contraction, and those to try if none of them passes.

    own: the model's tensors and its example inputs, by their leaves. Only a case with a choice of schemes is looked at;
    it is tried in both where that does not tell them apart, or the memory does not do for it.
    """
    passes = None
    if set(case.rounding) != set(case.exact):
        try:
            passes = rounding_passes(case, own, device)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
    if passes is None:
        return case.candidates, ()
    first, second = (case.rounding, case.exact) if passes else (case.exact, case.rounding)
    return first, tuple(config for config in second if config not in first)


def rounding_passes(case: Case, own: Mapping[Node, torch.Tensor], device: torch.device) -> bool | None:
    """Whether a kernel that rounds its operands to 11 bits will be as accurate as the torch call; None where that is
    not clear. The torch call runs as PyTorch runs it. Raises what `is_out_of_memory` accepts."""
    sure = True
    for errors, torch_errors in rounding_errors(case, own, device):
        if not _no_worse(errors, torch_errors, 1 / _NEVER):
            return False
        sure = sure and _no_worse(errors, torch_errors, _SURELY)
    return True if sure else None


def rounding_errors(case: Case, own: Mapping[Node, torch.Tensor], device: torch.device
                    ) -> Iterator[tuple[tuple[Error, ...], tuple[Error, ...]]]:
    """On each distribution in turn, the errors of results of rounded operands with exact sums, and the torch call's."""
    kernel = case.kernel
    points = some_points(kernel, device)
    inputs = [tensor_for(n, device) for n in case.step.inputs]
    for distribution in accuracy.DISTRIBUTIONS:
        values = accuracy.operands(case.step.inputs, own, distribution, device, case.statistics)
        for tensor, value in zip(inputs, values, strict=True):
            tensor.copy_(value)
        expected = accuracy.results_at(kernel, points, exact_sums(kernel, points, inputs), inputs, exact=True)
        sums = exact_sums(kernel, points, inputs, rounded)
        errors = accuracy.errors_of(accuracy.results_at(kernel, points, sums, inputs, exact=True), expected)
        with torch.no_grad():
            sums = accuracy.torch_sums(kernel, case.node, points, inputs)
        found = accuracy.results_at(kernel, points, sums, inputs, exact=False)
        yield errors, accuracy.errors_of(found, expected)


def rounded(values: torch.Tensor) -> torch.Tensor:
    """float64 values to the nearest ones of 11 bits, as float16 has (Veltkamp's splitting)."""
    product = values * float((1 << 42) + 1)
    return product - (product - values)


def _no_worse(errors: Sequence[Error], others: Sequence[Error], factor: float) -> bool:
    return all(Error(factor * e.rms, factor * e.largest, e.count).no_worse_than(o)
               for e, o in zip(errors, others, strict=True))
