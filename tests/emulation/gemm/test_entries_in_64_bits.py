"""Contractions of more entries than 31 bits count: their texts, and small ones that count theirs as if they were."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from contraction_cases import ContractionCase, convolution, matmul
from contraction_tools import all_generated, compiled, run
from gemm_epilogues import totalled

from kernelwright.codegen.cuda.gemm import points
from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.expressions import Reduced

WGMMA = Tiling("wgmma", rows=64, columns=32, depth=16, stages=3, promote=2)
MMA = Tiling("mma", rows=64, columns=16, depth=16, stages=3, promote=1)
LINE = convolution(3, 1, 16, 8, (20,), (3,), padding=1)
TWICE = convolution(3, 1, 16, 8, (20,), (3,), stride=2, padding=1, output_padding=1, transposed=True)
TOTALS = totalled(convolution(3, 1, 16, 8, (70,), (3,), padding=1), ("sum", Reduced(0)))
#: Every kind of packing, producer and epilogue.
FORMS: dict[str, tuple[ContractionCase, Tiling]] = {
    "rows": (matmul(70, 40, 24), WGMMA), "rows of neighbours": (matmul(70, 40, 24, transposed=(True, False)), MMA),
    "groups": (convolution(3, 2, 9, 10, (7, 9), (3, 3), padding=1), MMA), "positions": (LINE, WGMMA),
    "both phases": (TWICE, replace(WGMMA, parities=2)),
    "read where they lie": (LINE, replace(WGMMA, converts_left=True)),
    "totals": (TOTALS, replace(WGMMA, promote=1)),
}
SHORT, LONG = re.compile(r"\bint (of_|first_)?n\b"), re.compile(r"\blong long (of_|first_)?n\b")

pytestmark = pytest.mark.usefixtures("few_processors")


@pytest.fixture(scope="module")
def libraries():
    """The forms' libraries where every batch is a long one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(points, "LEAST_LONG", 1)
        return dict(zip(FORMS, compiled(all_generated(list(FORMS.values())), sanitize=False), strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_entries_counted_in_64_bits_give_the_same(form, libraries):
    case, tiling = FORMS[form]
    usual = generate(replace(case.kernel, tiling=tiling), "k").definition
    assert SHORT.search(usual) and not LONG.search(usual)
    library, source = libraries[form]
    assert LONG.search(source.text) and not SHORT.search(source.text)
    inputs = case.inputs()
    inputs[0].view(-1)[-1], inputs[1].view(-1)[0] = torch.inf, -torch.inf  # sums that are computed again
    for found, expected in zip(run(library, source, inputs)[0], case.expected(inputs), strict=True):
        finite = expected.isfinite()
        assert bool((~finite).any()) and torch.equal(found.isfinite(), finite)
        if bool(finite.any()):
            torch.testing.assert_close(found[finite], expected[finite].float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("case", [matmul(2**31 + 5, 16, 8), matmul(2**31 + 5, 16, 8, scheme="native", dtype="float16"),
                                  convolution(2**31 + 5, 1, 16, 8, (3,), (3,), scheme="native", dtype="float16")],
                         ids=lambda case: case.name)
@pytest.mark.parametrize("tiling", [WGMMA, MMA], ids=["wgmma", "mma"])
def test_no_entry_is_cut_to_31_bits(case, tiling):
    """The texts of kernels that are too large to run here."""
    text = generate(replace(case.kernel, tiling=tiling), "k").definition
    assert LONG.search(text) and not SHORT.search(text)


def test_an_axis_of_too_many_positions_is_refused():
    long = convolution(1, 1, 2, 2, (2**31,), (3,))
    with pytest.raises(ValueError, match="too many positions"):
        generate(replace(long.kernel, tiling=WGMMA), "k")
