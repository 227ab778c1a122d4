"""Configs for contractions that a plan can take, where it is not the plan that they were measured in.

A candidate is measured with one epilogue and one order of its results in memory. Another plan may give its kernel more
to reduce, operands that lie otherwise or are computed on their way, or results whose channels are neighbours. Then a
tiling may have no room for them, need positions side by side that are not (tiles that overlap, tiles of two output
phases), or join taps of what is no longer read as it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from kernelwright.codegen.cuda.gemm.generate import tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.generate import generate_kernel, writer_of
from kernelwright.ir.node import Node
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.records import KernelConfig, Plan
from kernelwright.tune.contraction_recompute import without


def generates(kernel: Contraction) -> bool:
    """Whether the kernel's own candidate takes all that the kernel reduces and stores."""
    try:
        generate_kernel(kernel, "kernel", writer_of(Contraction).name)
    except ValueError:
        return False
    return True


def fitting(plan_of: Callable[[Mapping[Node, KernelConfig]], Plan],
            chosen: Mapping[Node, KernelConfig]) -> dict[Node, KernelConfig]:
    """The configs, changed where the plan that they make has kernels that their candidates do not take.

    Reductions are left out first; then the tiling becomes the nearest one that the kernel takes; what none takes stays
    a torch call. A contraction that is not recomputed after all, and had the kernel of pass 1 form no sums, has that of
    pass 2 alone. ``plan_of`` makes the plan of configs.
    """
    chosen = dict(chosen)
    if not chosen:
        return chosen
    known: dict[Contraction, bool] = {}

    def fits(kernel: Contraction) -> bool:
        if kernel not in known:
            known[kernel] = generates(kernel)
        return known[kernel]

    while True:
        steps = [(s, s.kernel) for s in plan_of(chosen).kernels
                 if isinstance(s.kernel, Contraction) and s.covers[0] in chosen]
        unfit = [(s, kernel) for s, kernel in steps if _is_particular(kernel) and not fits(kernel)]
        if not unfit:
            return chosen
        for step, kernel in unfit:
            node = step.covers[0]
            config = chosen.get(node)
            if config is None:  # its other kernel has been given up, and with it this one
                continue
            second = config.recompute if step.pass_number == 2 else None
            if kernel.scheme == "correlation":  # only reductions over positions: what has the rest has all
                chosen.pop(node)
                if config.recompute is not None:
                    chosen[node] = replace(config.recompute, reduces=False, lines=False, measurement=None)
                continue
            if kernel.all_reductions and (second or config).reduces:
                chosen[node] = without(config, step)
                continue
            tiling = next((t for t in _nearest(kernel) if fits(replace(kernel, tiling=t))), None)
            if tiling is None:
                del chosen[node]
            elif second is not None:
                chosen[node] = replace(config, recompute=replace(second, tiling=tiling, measurement=None))
            else:  # what was measured was another tiling
                chosen[node] = replace(config, tiling=tiling, measurement=None)


def _is_particular(kernel: Contraction) -> bool:
    """Whether a kernel asks something of its results or its operands that another plan may not give."""
    tiling = kernel.tiling
    return bool(kernel.all_reductions) or kernel.scheme == "correlation" or (isinstance(tiling, Tiling) and (
        tiling.overlap > 0 or tiling.sector_aligned or tiling.from_registers or tiling.parities > 1
        or tiling.folded_taps > 1 or tiling.takes_left
        or tiling.converts_right or tiling.core == "row_buffered"))


def _nearest(kernel: Contraction) -> Iterator[Tiling]:
    """Tilings for the kernel: its own without what results must be neighbours for, with x packed before, and without
    joined taps, for which operands must be as they lie; then the best guesses."""
    tiling = kernel.tiling
    if not isinstance(tiling, Tiling):
        return
    plain = replace(tiling, overlap=0, sector_aligned=False, from_registers=False)
    yield plain
    yield replace(plain, converts_left=False, packs_concurrently=False)
    yield replace(plain, parities=1)
    yield replace(tiling, folded_taps=1)
    yield replace(plain, folded_taps=1)
    yield from tilings(replace(kernel, tiling=None), tiling.core)
