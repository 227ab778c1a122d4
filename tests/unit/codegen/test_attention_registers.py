"""Registers of attention in 16 bits: ptxas takes every layout that is offered."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from attention_cases import attention, narrow

from kernelwright.codegen.cuda.attention.narrow_layout import NarrowLayout, choose, layouts

#: Elements of queries and of values: alike, and values of any size beside queries of 64.
SIZES = [*((size, size) for size in range(16, 257, 8)), *((64, size) for size in range(8, 257, 8)),
         (1, 200), (256, 8), (128, 64), (192, 128), (16, 300), (96, 512)]


def launched(layout: NarrowLayout) -> int:
    """Registers that launch bounds leave to each thread, of the 65,536 of a multiprocessor."""
    return 65536 // (layout.blocks * 128 * (layout.groups + 1)) // 8 * 8


def wanted(layout: NarrowLayout) -> int:
    """What ptxas 13.0 asks for: it names these numbers where it ends with C7602."""
    return max(layout.tile_columns // 2 + 26, layout.wide // 2 + 30)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [16, 300, 4096])
def test_products_find_the_registers_that_ptxas_asks_for(rows, causal):
    kernel = narrow(attention("registers", rows, 128, 64, 64, causal=causal), "bfloat16").kernel
    for (depth, width), columns, heads in product(SIZES, (17, 100, 197, 4096), (2, 100)):
        found = list(layouts(replace(kernel, depth=depth, width=width, columns=columns, outer=(1, heads))))
        assert found, (depth, width, columns, heads)
        for layout in found:
            fewer, more = layout.registers
            assert wanted(layout) <= launched(layout), layout
            assert fewer + layout.groups * more <= (layout.groups + 1) * launched(layout), layout


@pytest.mark.parametrize(("wide", "blocks", "compiles"), [
    (192, 2, True), (200, 2, False), (256, 1, True), (96, 3, True), (104, 3, False)])
def test_where_ptxas_ends(wide, blocks, compiles):
    """As seen: 126 registers of 128 will do, 130 will not."""
    layout = NarrowLayout(groups=1, tile_columns=32, deep=16, wide=wide, stages=1, blocks=blocks)
    assert layout.compiles == compiles
    assert not layout.fits or compiles


def test_long_values_have_a_multiprocessor_to_themselves():
    kernel = narrow(attention("long values", 16, 17, 1, 200), "bfloat16").kernel
    assert {layout.blocks for layout in layouts(kernel)} == {1}
    layout = choose(kernel)
    assert layout is not None and layout.groups == 1
