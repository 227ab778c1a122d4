"""Entries, rows of a matrix or of a batch, that views around a product move apart into several axes: each has a scale
of its own, so that a quiet one is as exact beside a loud one as alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from contraction_cases import ContractionCase
from contraction_tools import all_generated, compiled, guessed_scales, run
from gemm_matrix import check_channels, check_sums
from plan_tools import Of, contractions, planned
from torch import Tensor

from kernelwright.codegen.cuda.gemm.generate import tilings
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.tiling import Tiling

MMA = Tiling("mma", rows=64, columns=32, depth=16, stages=3, promote=1)
#: What entries are multiplied by, in turn.
LOUDNESS = torch.tensor([1.0, 1e14, 1e-15, 1e6, 1e16])


def tokens(_: object, first: Tensor, rest: Tensor, weight: Tensor) -> Tensor:
    return torch.cat([first, rest], dim=1) @ weight


def columns_first(_: object, first: Tensor, rest: Tensor, weight: Tensor) -> Tensor:
    return torch.cat([first, rest], dim=2).transpose(1, 2) @ weight


def turned(_: object, x: Tensor, weight: Tensor, added: Tensor) -> Tensor:
    return (x @ weight).transpose(1, 2) + added


def normalized(_: object, first: Tensor, rest: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(torch.cat([first, rest], dim=1) @ weight, (weight.shape[1],))


def frames(_: object, x: Tensor, weight: Tensor, added: Tensor) -> Tensor:
    found = F.conv2d(x.flatten(0, 1), weight, padding=1)
    return found.reshape(*x.shape[:2], *found.shape[1:]).transpose(1, 2) + added


#: Functions, and shapes of their inputs.
FORMS: dict[str, tuple[Callable[..., Tensor], Sequence[tuple[int, ...]]]] = {
    "tokens": (tokens, [(3, 1, 40), (3, 30, 40), (40, 24)]),
    "tokens of many elements": (tokens, [(2, 1, 3000), (2, 4, 3000), (3000, 24)]),
    "neighbours along rows": (columns_first, [(3, 40, 1), (3, 40, 30), (40, 24)]),
    "many such": (columns_first, [(2, 3000, 1), (2, 3000, 4), (3000, 24)]),
    "turned": (turned, [(3, 32, 40), (40, 24), (3, 24, 32)]),
    "normalized": (normalized, [(3, 1, 40), (3, 30, 40), (40, 24)]),
    "frames": (frames, [(2, 3, 5, 8, 8), (6, 5, 3, 3), (2, 6, 3, 8, 8)]),
}


def case_of(name: str) -> ContractionCase:
    function, shapes = FORMS[name]
    (kernel,) = contractions(planned(Of(function), tuple(map(torch.ones, shapes))))
    assert kernel.entry_axes == 1 and kernel.is_matrix == (name != "frames"), kernel
    return ContractionCase(name, kernel, tuple(shapes))


def loud(case: ContractionCase) -> list[Tensor]:
    """Inputs whose entries differ in size by many digits; the weight is as it was, and nothing is added."""
    inputs = case.inputs()
    weight = next(n for n, shape in enumerate(case.shapes) if len(shape) in (2, 4))
    along = 2 if FORMS[case.name][0] is columns_first else 1
    for x in inputs[:weight]:
        number = torch.arange(x.shape[0] * x.shape[along]) % len(LOUDNESS)
        x *= LOUDNESS[number].reshape(x.shape[0], *(x.shape[a] if a == along else 1 for a in range(1, x.dim())))
    for x in inputs[weight + 1:]:
        x.zero_()
    return inputs


def chosen(case: ContractionCase) -> list[Tiling]:
    """The best of each kind that the search proposes, and one of ``mma``."""
    kinds: dict[tuple[object, ...], Tiling] = {}
    for tiling in tilings(case.kernel, "wgmma"):
        kinds.setdefault((tiling.core, tiling.from_registers, tiling.takes_left, tiling.split_k > 1), tiling)
    return [*kinds.values(), MMA]


@pytest.fixture(scope="module")
def entries() -> list[tuple[ContractionCase, Tiling]]:
    return [(case, tiling) for case in map(case_of, FORMS) for tiling in chosen(case)]


@pytest.mark.parametrize("guess", [False, True], ids=["", "guessed"])
@pytest.mark.usefixtures("few_processors")
def test_quiet_entries_beside_loud_ones(entries, guess):
    with guessed_scales("LEAST_DEPTH") if guess else nullcontext():
        libraries = compiled(all_generated(entries))
    assert {tiling.core for _, tiling in entries} >= {"mma", "wgmma"}
    for (case, tiling), (library, source) in zip(entries, libraries, strict=True):
        inputs = loud(case)
        try:
            (check_channels if case.kernel.reductions else check_sums)(case, run(library, source, inputs)[0], inputs)
        except AssertionError as error:
            raise AssertionError(f"{case.name}, {tiling}") from error


def test_a_matrix_is_packed_before_whatever_its_axes():
    kernel = case_of("tokens").kernel
    assert not any(tiling.takes_left for tiling in tilings(kernel, "wgmma"))
    with pytest.raises(ValueError, match="rows of a matrix"):
        Geometry(kernel, Tiling("wgmma", rows=64, columns=32, depth=16, stages=3, promote=2, converts_left=True))
