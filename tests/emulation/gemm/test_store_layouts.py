"""Stores of positions in each of their thread-value layouts: under the CPU emulation against float64, and on a device.

What holds of one layout alone (which sectors of memory who stores, what is refused, which tilings are proposed) is in
the module that has its cases.
"""

from __future__ import annotations

from functools import cache

import pytest
import test_store_aligned as aligned
import test_store_from_registers as registers
import test_store_overlapped as overlapped
import test_store_row_pairs as pairs
import torch
from contraction_cases import ContractionCase
from contraction_tools import all_generated, check_thread_order, compiled, on_hopper, run
from test_sm90 import check, check_on_the_device

from kernelwright.codegen.reference.contraction import evaluate_contraction

LAYOUTS = {"overlapped": overlapped, "aligned": aligned, "registers": registers, "pairs": pairs}
#: Of each layout those of its cases in which scales are not usual.
UNUSUAL = {"overlapped": [2, 3, 6, 10, 13], "aligned": [2, 3, 7, 12, 13, 16], "registers": [1, 2, 3, 8, 9, 12],
           "pairs": [1, 2, 5, 7, 8]}
ALL = [pytest.param(layout, number, id=f"{layout}-{case.name}-{t.core}{t.rows}x{t.columns}x{t.depth}"
                    f"t{t.pingpong}s{t.split_k}p{t.parities}o{t.overlap}")
       for layout, module in LAYOUTS.items() for number, (case, t) in enumerate(module.CHECKED)]

pytestmark = pytest.mark.usefixtures("few_processors")


@cache
def libraries(layout: str):
    """A library and its source for each case of a layout."""
    return compiled(all_generated(LAYOUTS[layout].CHECKED))


@pytest.mark.parametrize(("layout", "number"), ALL)
def test_agrees_with_float64(layout, number):
    case, _ = LAYOUTS[layout].CHECKED[number]
    check(case, run(*libraries(layout)[number], case.inputs())[0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_thread_order_changes_nothing(layout):
    check_thread_order("reverse", [case for case, _ in LAYOUTS[layout].CHECKED[::3]], libraries(layout)[::3])


@pytest.mark.parametrize(("layout", "number"), [(layout, n) for layout, chosen in UNUSUAL.items() for n in chosen])
def test_scales_that_are_not_usual(layout, number):
    """An image so small, and an output channel so large, that their scales are not usual; and what is not finite."""
    case, _ = LAYOUTS[layout].CHECKED[number]
    bound = {"fp16x3": 2.0**-20, "fp16": 2.0**-10}[case.kernel.scheme]
    for factor, value in ((2.0**90, 1.0), (1.0, float("inf")), (1.0, float("nan"))):
        inputs = case.inputs()
        inputs[0][1] /= factor
        (inputs[1][:, 1] if case.name.startswith("convolution_t_") else inputs[1][0]).mul_(factor)
        inputs[0].view(-1)[5] *= value
        found, expected = run(*libraries(layout)[number], inputs)[0][0], case.expected(inputs)[0]
        size = evaluate_contraction(case.kernel, [x.abs() for x in inputs])[0].abs()
        single = expected.float()
        assert torch.equal(found.isnan(), single.isnan()) and torch.equal(found.isinf(), single.isinf())
        finite = single.isfinite()
        assert ((found.double() - expected).abs() <= bound * size + 1e-37)[finite].all()
        assert value != 1.0 or finite.all()


@on_hopper
@pytest.mark.parametrize("layout", LAYOUTS)
def test_on_the_device(layout, tmp_path):
    def check_stored(case: ContractionCase, found: list[torch.Tensor]) -> None:
        for output, store in zip(found, case.kernel.stores, strict=True):
            before = output[:store.index.offset]  # it belongs to nobody
            assert layout not in ("overlapped", "pairs") or before.isnan().all()
            before.zero_()
        check(case, found)

    checked = [entry for entry in LAYOUTS[layout].CHECKED if entry[1].core == "wgmma"]
    check_on_the_device(checked, tmp_path, check_stored)
