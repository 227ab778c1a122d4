"""Packed operands: every product of a contraction is found by shifting rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from contraction_cases import cases, convolution, matmul

from kernelwright.codegen.cuda.gemm.candidates import candidates
from kernelwright.codegen.cuda.gemm.mainloop.sm90.steps import BLOCK_BYTES, least_bytes
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.search import _layout
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.reference.contraction import operand_values, sums_of_products

TILING = Tiling("wgmma", rows=64, columns=32, depth=16, stages=2)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_shifted_rows_hold_every_product(case):
    kernel, inputs = case.kernel, case.inputs()
    geometry = Geometry(kernel, TILING)
    x = operand_values(kernel.left, kernel.left_domain, kernel, inputs, torch.float64)
    w = operand_values(kernel.right, kernel.right_domain, kernel, inputs, torch.float64)
    w = w.reshape(*w.shape[:3], -1)
    phases = list(product(*map(range, geometry.input_phases)))
    packed = torch.full((kernel.groups, len(phases), kernel.in_channels, geometry.allocated_rows), torch.nan,
                        dtype=torch.float64)
    rows = {(n, u): sum(i * p for i, p in zip((n, *u), geometry.pitches, strict=True))
            for n in range(kernel.batch) for u in product(*map(range, geometry.extents))}
    assert sorted(rows.values()) == list(range(geometry.rows))
    for (n, u), row in rows.items():
        for number, phase in enumerate(phases):
            at = [a.in_stride * (i - lead) + r
                  for a, i, lead, r in zip(kernel.axes, u, geometry.leads, phase, strict=True)]
            inside = all(0 <= q < a.in_size for q, a in zip(at, kernel.axes, strict=True))
            packed[:, number, :, row] = x[(n, slice(None), slice(None), *at)] if inside else 0.0
    result = torch.full(kernel.domain, torch.nan, dtype=torch.float64)
    for group in geometry.classes:
        for n, u in product(range(kernel.batch), product(*map(range, group.counts))):
            sums = torch.zeros(kernel.groups, kernel.out_channels, dtype=torch.float64)
            for run in group.runs:
                assert max(t[0] for t in run.taps) + TILING.rows <= geometry.run_rows
                for beyond, entry in run.taps:
                    values = packed[:, run.phase, :, rows[n, u] + run.shift + beyond]
                    sums += torch.einsum("gc,goc->go", values, w[..., entry])
            at = [p + a.out_stride * i for p, a, i in zip(group.phases, kernel.axes, u, strict=True)]
            result[(n, slice(None), slice(None), *at)] = sums
    torch.testing.assert_close(result, sums_of_products(kernel, inputs), rtol=1e-12, atol=1e-12)


def test_a_blocks_runs_stay_inside():
    for case in cases():
        geometry = Geometry(case.kernel, TILING)
        last = (geometry.blocks[0] - 1) * TILING.rows
        reach = max((r.shift for c in geometry.classes for r in c.runs), default=0)
        assert last + reach + geometry.run_rows <= geometry.allocated_rows


@pytest.mark.parametrize("transposed", [False, True])
def test_sums_are_pytorchs(transposed):
    case = convolution(2, 2, 3, 4, (7, 6), (3, 3), stride=2, padding=1, transposed=transposed)
    x, w = case.inputs()
    call = F.conv_transpose2d if transposed else F.conv2d
    expected = call(x.double(), w.double(), stride=2, padding=1, groups=2)
    torch.testing.assert_close(case.expected([x, w])[0].reshape(expected.shape), expected)
    case = matmul(5, 6, 7, groups=3, transposed=(True, False))
    a, b = case.inputs()
    expected = a.double().mT @ b.double()
    torch.testing.assert_close(case.expected([a, b])[0].reshape(expected.shape), expected)


def test_tiles_are_refused_that_no_instruction_takes():
    with pytest.raises(ValueError, match="tiles"):
        Geometry(cases()[0].kernel, replace(TILING, depth=24))


@pytest.mark.parametrize("depth", [8, 16])
def test_runs_have_whole_lines(depth):
    """The taps of a line share a run, and lines a run as far as their rows are near: of 32 positions all nine taps."""
    for size in range(12, 140, 5):
        kernel = convolution(2, 1, 8, 8, (5, size), (3, 3)).kernel
        runs = Geometry(kernel, Tiling("wgmma", 64, 16, depth, 2)).classes[0].runs
        entries = [{entry for _, entry in (*run.taps, *run.seconds)} - {9} for run in runs]
        lines = [{entry // 3 for entry in some} for some in entries]
        assert sum(map(len, entries)) == 9 and sum(map(len, lines)) == 3, size
        assert len(runs) == (1 if size <= 32 or (depth == 8 and size <= 48) else 2 if size <= (96 if depth == 8 else 64)
                             else 3), size


def test_what_takes_too_many_bytes_at_the_least_fits_no_block():
    """Most tilings that do not fit are told before their layouts are made; none that fits is."""
    refused = fitting = 0
    for case in cases():
        for tiling in candidates(case.kernel):
            least = least_bytes(case.kernel, tiling)
            try:
                layout = _layout(Geometry(case.kernel, tiling))
            except ValueError:
                refused += least > BLOCK_BYTES
                continue
            fitting += 1
            assert least <= layout.shared_bytes <= BLOCK_BYTES, tiling
    assert refused > 100 and fitting > 100
