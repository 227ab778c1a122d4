"""Packed operands of contractions, under the CPU emulation: every byte against PyTorch, and the scales."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf, nan, prod

import pytest
import torch
from contraction_cases import ContractionCase, cases, convolution, matmul
from contraction_tools import build, run

from kernelwright.codegen.cuda.gemm.operands import prepack_windows
from kernelwright.codegen.cuda.gemm.operands.prepack import packing
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.reference.contraction import operand_values
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Apply, Guard, Index, Load
from kernelwright.plan.reading.access import strides_of

TILING = Tiling("wgmma", rows=64, columns=32, depth=32, stages=2)


def channels_last(case: ContractionCase) -> ContractionCase:
    """A convolution of one group whose x and w lie channels-last in memory."""
    kernel = case.kernel
    x = (kernel.batch, *(a.in_size for a in kernel.axes), kernel.in_channels)
    w = (kernel.out_channels, *(a.kernel for a in kernel.axes), kernel.in_channels)
    (n, *q, c), (o, *k, d) = strides_of(x), strides_of(w)
    changed = replace(kernel, left=Load(0, Index((n, 0, c, *q))), right=Load(1, Index((0, o, d, *k))))
    return ContractionCase(case.name + "_last", changed, (x, w))


def padded(case: ContractionCase) -> ContractionCase:
    """Rows that are read from a place beyond the tensor, guarded, and multiplied by a value of their channel."""
    kernel = case.kernel
    moved = Guard(Index((1, 0, 0), -3), kernel.batch)
    left = Load(0, Index((kernel.in_channels, 0, 1), -3 * kernel.in_channels), (moved,), 0.5)
    scaled = Apply("mul", (left, Load(2, Index((0, 0, 1)))))
    changed = replace(kernel, left=scaled, input_dtypes=(*kernel.input_dtypes, "float32"))
    return ContractionCase(case.name + "_padded", changed, (*case.shapes, (kernel.in_channels,)))


def every() -> list[ContractionCase]:
    """The cases of all families, and those that take the other ways of packing."""
    found = cases()
    found = [*found[:9], found[10], found[12], *found[14:]]
    found += [channels_last(convolution(2, 1, 24, 9, (6, 7), (3, 2), stride=2, padding=1)),
              channels_last(convolution(2, 1, 21, 9, (6, 7), (1, 1))),
              convolution(1, 1, 8, 5, (41, 40), (2, 2)),  # one row of scales in several parts
              convolution(2, 1, 3, 4, (60,), (45,)),  # a window of more than one tile
              matmul(5, 1100, 9),  # too few rows for blocks of their own
              matmul(5, 1060, 3, groups=100),  # rows of more than a thread keeps
              matmul(5, 300, 3, groups=100, transposed=(True, False)), padded(matmul(50, 24, 8)),
              matmul(33, 24, 20, scheme="fp16"), matmul(33, 24, 20, scheme="native", dtype="float16"),
              convolution(2, 2, 9, 10, (7, 9), (3, 3), stride=2, padding=1, scheme="native", dtype="bfloat16")]
    return found


CASES = every()


@pytest.fixture(scope="module")
def built():
    made = build([(c.kernel, TILING) for c in CASES], whole=False)
    return {case.name: one for case, one in zip(CASES, made, strict=True)}


def factors(magnitudes: torch.Tensor) -> torch.Tensor:
    """What operands are multiplied by, of greatest magnitudes: 1 for zeros, 0 where they are not finite."""
    exponent = torch.frexp(magnitudes)[1].clamp_min(-111)  # magnitudes are in [2^(exponent - 1), 2^exponent)
    scale = torch.ldexp(torch.ones_like(magnitudes), 15 - exponent)
    scale = torch.where(magnitudes == 0, torch.ones_like(scale), scale)
    return torch.where(magnitudes.isfinite(), scale, torch.zeros_like(scale))


def packed(geometry: Geometry, inputs: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the parts of the workspace hold; channels last in packed operands, NaN where anything may stand."""
    kernel = geometry.kernel
    x = operand_values(kernel.left, kernel.left_domain, kernel, inputs, torch.float32)
    w = operand_values(kernel.right, kernel.right_domain, kernel, inputs, torch.float32)
    result, kind = {}, getattr(torch, geometry.element)
    if geometry.scaled:
        scales = [factors(t.abs().nan_to_num(nan=inf, posinf=inf).flatten(2).amax(2)) for t in (x, w)]
        result = {name: torch.where(s == 0, torch.full_like(s, inf), 1 / s)
                  for name, s in zip(("left_scales", "right_scales"), scales, strict=True)}
        x, w = (torch.where(s[..., None] == 0, torch.zeros(()), t.flatten(2) * s[..., None]).reshape(t.shape)
                for t, s in zip((x, w), scales, strict=True))
    phases = list(product(*map(range, geometry.input_phases)))
    channels = geometry.chunks * 8
    left = torch.full((kernel.groups, len(phases), geometry.allocated_rows, channels), nan)
    left[:, :, :geometry.rows] = 0.0
    for n, u in product(range(kernel.batch), product(*map(range, geometry.extents))):
        row = sum(i * p for i, p in zip((n, *u), geometry.pitches, strict=True))
        for number, phase in enumerate(phases):
            at = [a.in_stride * (i - lead) + r
                  for a, i, lead, r in zip(kernel.axes, u, geometry.leads, phase, strict=True)]
            if all(0 <= q < a.in_size for q, a in zip(at, kernel.axes, strict=True)):
                left[:, number, row, :kernel.in_channels] = x[(n, slice(None), slice(None), *at)]
    right = torch.full((kernel.groups, geometry.entries, geometry.allocated_columns, channels), nan)
    right[:, :, :kernel.out_channels] = 0.0  # behind the window's entries stand zeros where taps are paired
    entries = w.reshape(kernel.groups, kernel.out_channels, kernel.in_channels, -1)
    right[:, :prod(geometry.window), :kernel.out_channels, :kernel.in_channels] = entries.permute(0, 3, 1, 2)
    for name, values in (("left", left), ("right", right)):
        high = values.to(kind)
        result[name] = torch.stack([high, (values - high.float()).to(kind)][:geometry.terms])
    return result


def held(geometry: Geometry, workspace: torch.Tensor) -> dict[str, torch.Tensor]:
    """The parts of a workspace, in the form of `packed`."""
    kernel, result = geometry.kernel, {}
    for name, (at, size) in geometry.places.items():
        part = workspace[at:at + size]
        if name == "repack":
            continue
        if name.endswith("_scales"):
            result[name] = part.view(torch.float32).reshape(
                (kernel.batch, kernel.groups) if name == "left_scales" else (kernel.groups, kernel.out_channels))
            continue
        lines = geometry.allocated_rows if name == "left" else geometry.allocated_columns
        part = part.view(getattr(torch, geometry.element))
        together = geometry.left_block if name == "left" else geometry.right_block
        part = part.reshape(geometry.terms, kernel.groups, -1, lines // together, geometry.chunks, together, 8)
        result[name] = part.permute(0, 1, 2, 3, 5, 4, 6).flatten(5).flatten(3, 4)
    return result


def check(geometry: Geometry, inputs: list[torch.Tensor], workspace: torch.Tensor) -> None:
    """Every byte that means something."""
    found = held(geometry, workspace)
    for name, expected in packed(geometry, inputs).items():
        means = ~expected.isnan()
        assert torch.equal(found[name][means], expected[means]), name


def test_large_weights_pass_tile_by_tile(monkeypatch):
    """A block takes all entries of a window, several at once, where there are many blocks."""
    chosen = [c for c in CASES if Geometry(c.kernel, TILING).entries > 1][::3]
    monkeypatch.setattr(prepack_windows, "_FEW_BLOCKS", 0)
    monkeypatch.setattr(prepack_windows, "_TILE_ENTRIES", 5)
    made = build([(c.kernel, TILING) for c in chosen], whole=False)
    assert sum("for (int first_entry" in source.text for _, source in made) > 2
    for case, one in zip(chosen, made, strict=True):
        inputs = case.inputs()
        check(one[1].geometry, inputs, run(*one, inputs)[1])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_packed_operands_are_pytorchs(case, built):
    inputs = case.inputs()
    check(built[case.name][1].geometry, inputs, run(*built[case.name], inputs)[1])


@pytest.mark.parametrize("order", ["reverse", "12345"])
def test_no_order_of_threads_changes_a_byte(order, built, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_EMULATION_ORDER", order)
    for case in (CASES[0], CASES[1], CASES[5], *CASES[12:18]):
        inputs = case.inputs()
        check(built[case.name][1].geometry, inputs, run(*built[case.name], inputs)[1])


EDGES = (0, 5, 6, 13)


@pytest.mark.parametrize("scale", [1e-44, 1e-39, 1e-30, 1e30, 3e37])
@pytest.mark.parametrize("number", EDGES)
def test_scales_lift_denormals_and_lower_giants(number, scale, built):
    case = CASES[number]
    inputs = [t.clamp(-4, 4) for t in case.inputs()]
    inputs[0] = inputs[0] * scale
    geometry, workspace = built[case.name][1].geometry, run(*built[case.name], inputs)[1]
    check(geometry, inputs, workspace)
    # Two terms hold a float32 nearly whole, denormal or not.
    parts = held(geometry, workspace)
    values = parts["left"].double().sum(0)[:, :, :geometry.rows].abs().amax((1, 3))
    images = torch.arange(geometry.rows) // geometry.pitches[0]
    values = values * parts["left_scales"].double()[images].T
    x = operand_values(geometry.kernel.left, geometry.kernel.left_domain, geometry.kernel, inputs, torch.float64)
    assert abs(values.max() / x.abs().max() - 1) < 2.0**-20


@pytest.mark.parametrize("number", EDGES)
def test_what_is_not_finite_is_packed_as_zeros(number, built):
    case = CASES[number]
    inputs = case.inputs()
    inputs[0].view(-1)[3], inputs[1].view(-1)[2] = nan, -inf
    inputs[0].view(-1)[-1] = inf
    check(built[case.name][1].geometry, inputs, run(*built[case.name], inputs)[1])


@pytest.mark.parametrize("number", EDGES)
def test_zeros_have_scale_one(number, built):
    case = CASES[number]
    inputs = [torch.zeros_like(t) for t in case.inputs()]
    parts = held(built[case.name][1].geometry, run(*built[case.name], inputs)[1])
    assert bool((parts["left_scales"] == 1).all()) and bool((parts["right_scales"] == 1).all())


def test_operands_without_elements_are_refused():
    kernel: Contraction = matmul(3, 0, 4).kernel
    with pytest.raises(ValueError, match="no elements"):
        packing(Geometry(kernel, TILING), "k")


def test_vectors_need_aligned_tensors():
    """Where 16 bytes are read at once the host says so before it launches anything."""
    launches = packing(Geometry(matmul(64, 64, 64).kernel, TILING), "k").launches
    assert "must be aligned to 16 bytes" in launches[0] and "KW_LAUNCH" not in launches[0]
    assert "aligned" not in "".join(packing(Geometry(matmul(9, 9, 9).kernel, TILING), "k").launches)


def test_offsets_beyond_31_bits_are_computed_in_64():
    large = packing(Geometry(convolution(200, 1, 64, 8, (512, 512), (3, 3)).kernel, TILING), "k").definitions
    assert "n * 16777216LL" in large and "i0 * 16777216LL" in large
    small = packing(Geometry(convolution(2, 1, 64, 8, (512, 512), (3, 3)).kernel, TILING), "k").definitions
    assert "n * 16777216 " in small
    rows = packing(Geometry(matmul(2**31 + 5, 8, 8).kernel, TILING), "k").definitions
    assert "const long long row" in rows
