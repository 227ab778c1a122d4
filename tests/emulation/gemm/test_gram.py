"""Statistics from products of x with itself (codegen/cuda/gram), against sums in float64."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from math import inf, nan, prod

import pytest
import torch
from compile_tools import check_compiles, needs_nvcc
from contraction_cases import ContractionCase, convolution, with_epilogue
from contraction_tools import compiled, generated, run
from gemm_epilogues import SUM, totalled
from gemm_matrix import Matrix, built

from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gram import generate as gram
from kernelwright.codegen.cuda.gram.problem import Correlation, correlates, interval, slope_of
from kernelwright.codegen.reference.contraction import evaluate_contraction
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.describe import meaning
from kernelwright.plan.expressions import Apply, Constant, Expression, Index, Load
from kernelwright.plan.records import KernelConfig, KernelStep
from kernelwright.tune.contraction_candidates import WGMMA, candidates


def moments(case: ContractionCase, *totals: tuple[str, Expression]) -> ContractionCase:
    """The case with nothing but totals: moments of its sums, if nothing else is said."""
    made = totalled(case, *(totals or [("moments", SUM)]), ordinary=False)
    return replace(made, kernel=replace(made.kernel, scheme="correlation"))


def affine(case: ContractionCase) -> ContractionCase:
    """The case with moments of 3 - (sum + bias[g, o]) * factor[g, o], a sum, and moments of a quotient."""
    kernel, first = case.kernel, len(case.kernel.input_dtypes)
    channel = Index((0, kernel.out_channels, 1, *[0] * len(kernel.axes)))
    value = Apply("mul", (Apply("add", (SUM, Load(first, channel))), Load(first + 1, channel)))
    shape = (kernel.groups * kernel.out_channels,)
    made = ContractionCase(case.name, replace(kernel, input_dtypes=(*kernel.input_dtypes, "float32", "float32")),
                           (*case.shapes, shape, shape))
    return moments(made, ("moments", Apply("sub", (Constant(3.0), value))), ("sum", Apply("neg", (SUM,))),
                   ("moments", Apply("div", (SUM, Constant(4.0)))))


IMAGE = convolution(2, 1, 5, 20, (7, 9), (3, 3), padding=1)
TALL = convolution(1, 1, 8, 16, (40, 37), (3, 3))  # several slots of a cell
GROUPS = convolution(2, 2, 9, 13, (8, 9), (3, 3), padding=1)  # two blocks of channels
VOLUME = convolution(1, 1, 20, 8, (4, 5, 6), (3, 3, 3), padding=1)  # several batches of shifts, three blocks
LINE = convolution(3, 1, 3, 10, (150,), (3,), padding=1)
APART = convolution(2, 1, 9, 12, (9, 10), (4, 4), stride=2, padding=1, transposed=True)
ODD = convolution(3, 2, 9, 10, (7, 9), (3, 3), stride=2, padding=1, transposed=True)
SPARSE = convolution(2, 1, 8, 8, (9, 9), (1, 1), stride=3, transposed=True)
POINTS = convolution(2, 1, 36, 72, (9, 9), (1, 1))
WIDE = convolution(1, 1, 3, 5, (12, 30), (5, 5), padding=2)  # the batch with no shift is not the first one
WIDEST = convolution(1, 1, 2, 4, (6, 8), (7, 7), padding=3)  # windows as large as x
SPACED = convolution(1, 1, 3, 4, (30, 20), (3, 3), dilation=(3, 1))  # of lines six apart
CASES = [affine(IMAGE), moments(TALL), affine(GROUPS), moments(VOLUME), moments(LINE), affine(APART), moments(ODD),
         affine(SPARSE), moments(POINTS), moments(WIDE), affine(WIDEST), affine(SPACED),
         moments(convolution(2, 1, 4, 6, (21, 17), (3, 2), dilation=2)),
         moments(convolution(1, 1, 4, 9, (5, 6, 7), (3, 3, 3), stride=2, padding=1, output_padding=1, transposed=True)),
         moments(convolution(1, 1, 3, 4, (9,), (9,), padding=4)),
         affine(convolution(2, 1, 3, 4, (3, 3), (3, 3), padding=5)),  # all taps meet all of x
         moments(convolution(2, 1, 5, 7, (6, 9), (3, 4), stride=(1, 2), padding=(1, 1), transposed=True)),
         moments(with_epilogue(IMAGE)),  # x is a function of what is read
         moments(convolution(2, 1, 5, 12, (11, 13), (3, 3), padding=1, scheme="native", dtype="float16"))]


def check(case: ContractionCase, found: list[torch.Tensor], inputs: list[torch.Tensor] | None = None) -> None:
    """What is stored is rounded to float32, after it has been in float64."""
    for mine, expected in zip(found, case.expected(inputs or case.inputs()), strict=True):
        narrow = mine.dtype != torch.float32
        bound = 2.0**-10 if narrow else 4e-7
        assert ((mine.double() - expected).abs() <= bound * expected.abs().max()).all()


CHECKED = [(case, None) for case in CASES]
libraries = built(CHECKED)


class TestMatrix(Matrix):
    entries = CHECKED
    check = staticmethod(check)
    in_orders = [0, 1, 3, 9]


@pytest.mark.parametrize("number", [0, 1, 5])
def test_nothing_is_lost_beside_a_large_mean(number, libraries):
    """Neighbours that are nearly alike, and filters that take differences of them: variances have all their digits."""
    case = CASES[number]
    x, w, *others = case.inputs()
    x = 1000 + x
    w = w - w.mean(dim=tuple(range(1, w.dim())), keepdim=True) if number < 5 else w
    inputs = [x, w, *others]
    check(case, run(*libraries[number], inputs)[0], inputs)


@pytest.mark.parametrize("number", [0, 5, 9])
@pytest.mark.parametrize("value", [inf, -inf, nan])
def test_what_is_not_finite(number, value, libraries):
    """NaN and Inf of one entry of the batch are that entry's: its variances are NaN, and so are means where the sums
    that meet it are; nothing else changes."""
    case = CASES[number]
    inputs = case.inputs()
    x = inputs[0]
    x[-1, 1].view(-1)[3] = value
    found = run(*libraries[number], inputs)[0]
    for mine, expected in zip(found, case.expected(inputs), strict=True):
        expected = expected.float()
        assert torch.equal(mine.isfinite(), expected.isfinite()) and torch.equal(mine.isnan(), expected.isnan())
        assert torch.equal(mine[mine.isinf()], expected[expected.isinf()])


def test_slots_have_every_product_once():
    """Items of a cell's slots are all of its items, and each tap's cells what it reads."""
    for case in CASES:
        numbers = Correlation(case.kernel)
        for cell in range(len(numbers.cells)):
            first, last = numbers.firsts[cell:cell + 2]
            items = [n for slot in numbers.slots[first:last] for n in range(slot.first, slot.last)]
            assert items == list(range(prod(numbers.items(cell)))) and items
        for taps in numbers.taps:
            ends = numbers.range_of(taps)
            for axis, (box, (begin, end)) in enumerate(zip(numbers.intervals(taps), ends, strict=True)):
                covered = [p for first, last in numbers.segments[axis][begin:end] for p in range(first, last)]
                assert covered == list(range(*box))


def test_pairs_of_taps_are_all_of_one_output_parity_and_each_once():
    for case in CASES:
        numbers = Correlation(case.kernel)
        pairs = {frozenset(pair[:2]) for pair in numbers.pairs}
        assert len(pairs) == len(numbers.pairs)
        alike = {frozenset((a, b)) for (a, s), (b, t) in product(enumerate(numbers.taps), repeat=2)
                 if all(x.phase == y.phase for x, y in zip(s, t, strict=True))}
        assert pairs == alike


def test_slopes():
    """Of random affine expressions, against a difference."""
    channel = Index((0, 0, 1, 0, 0))
    values = [Load(2, channel), Constant(-1.5), Apply("sigmoid", (Load(2, channel),))]
    generator = torch.Generator().manual_seed(0)

    def drawn(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    case = convolution(1, 1, 2, 3, (4, 5), (1, 1))
    for _ in range(60):
        value: Expression = SUM
        for _ in range(drawn(5)):
            function, other = ("add", "sub", "mul", "div", "neg")[drawn(5)], values[drawn(3)]
            sides = (value, other) if function == "div" or drawn(2) else (other, value)
            value = Apply(function, sides[:1] if function == "neg" and sides[0] is value else
                          (value,) if function == "neg" else sides)
        slope = slope_of(value)
        kernel = replace(case.kernel, input_dtypes=("float32",) * 3)
        x, w, extra = torch.ones(1, 2, 4, 5), torch.ones(3, 2, 1, 1), torch.tensor([0.5, 2.0, -3.0])

        def at(factor: float, expression: Expression, kernel: Contraction = kernel, x=x, w=w, extra=extra
               ) -> torch.Tensor:
            made = replace(kernel, stores=(replace(kernel.stores[0], expression=expression),))
            return evaluate_contraction(made, [factor * x, w, extra])[0]

        difference = (at(3.0, value) - at(1.0, value)) / 4  # the sums are 6 and 2
        assert torch.allclose(difference, at(1.0, slope), rtol=1e-9, atol=1e-12)


def test_what_it_refuses():
    def refused(case: ContractionCase, *totals: tuple[str, Expression]) -> bool:
        return not correlates(moments(case, *totals).kernel)

    assert correlates(moments(IMAGE).kernel)
    assert refused(IMAGE, ("moments", Apply("relu", (SUM,)))) and refused(IMAGE, ("max", SUM))
    assert refused(IMAGE, ("moments", Apply("mul", (SUM, SUM)))) and refused(IMAGE, ("sum", Constant(1.0)))
    assert refused(IMAGE, ("moments", Apply("div", (Constant(1.0), SUM))))
    place = Load(0, IMAGE.kernel.stores[0].index)  # another value at each position
    assert refused(IMAGE, ("moments", Apply("add", (SUM, place))))
    assert refused(convolution(2, 1, 3, 8, (9, 9), (3, 3), stride=2))
    assert refused(convolution(1, 1, 3, 8, (6, 9), (2, 3), dilation=(4, 1)))  # lines that no tap reads, between others
    assert refused(convolution(1, 1, 1, 2, (40, 40), (20, 20)))
    assert not correlates(totalled(IMAGE, ("moments", SUM)).kernel)  # the sums are stored as well
    assert not correlates(IMAGE.kernel)
    with pytest.raises(ValueError, match="k: no reductions over positions from products of x with itself"):
        generate(replace(IMAGE.kernel, scheme="correlation"), "k")
    assert not gram.takes(moments(convolution(1, 1, 256, 8, (9, 9), (3, 3))).kernel)


def test_lines_that_no_tap_reads_are_not_read(libraries):
    """Of a transposed convolution whose output is cut, the ends of x may be NaN."""
    case = moments(convolution(1, 1, 3, 4, (6, 8), (2, 2), stride=2, padding=2, transposed=True))
    (built,) = compiled([generated(case.kernel, None, "cut")])
    inputs = case.inputs()
    expected = case.expected(inputs)
    assert [Correlation(case.kernel).read[axis] for axis in (0, 1)] == [(1, 5), (1, 7)]
    inputs[0][:, :, ::5] = nan
    inputs[0][..., ::7] = nan
    for mine, right in zip(run(*built, inputs)[0], expected, strict=True):
        assert torch.allclose(mine.double(), right.reshape(-1), rtol=1e-6)


def test_intervals_are_what_taps_read():
    for case in CASES:
        for axis in case.kernel.axes:
            for tap in axis.taps:
                count = len(range(tap.phase, axis.out_size, axis.out_stride))
                read = [u + tap.offset for u in range(count) if 0 <= u + tap.offset < axis.in_size]
                assert list(range(*interval(axis, tap))) == read


def test_it_is_tried_first_where_it_promises_to_win():
    """Of few channels and large images, on devices that have the products."""
    def tried(case: ContractionCase, capability: tuple[int, int] = WGMMA) -> list[KernelConfig]:
        kernel = replace(moments(case).kernel, scheme="fp16x3")
        return candidates(kernel, "float32", capability, rounds=False, most=8)

    few = convolution(128, 1, 8, 64, (128, 128), (3, 3))
    assert tried(few)[0] == KernelConfig("correlation") and KernelConfig("correlation") not in tried(few, (8, 0))
    assert KernelConfig("correlation") not in tried(few, (12, 0))
    assert KernelConfig("correlation") not in tried(convolution(128, 1, 64, 128, (128, 128), (3, 3)))
    assert KernelConfig("correlation") not in tried(convolution(128, 1, 8, 64, (12, 12), (3, 3)))
    stored = totalled(few, ("moments", SUM)).kernel
    assert KernelConfig("correlation") not in candidates(stored, "float32", WGMMA, rounds=False, most=8)


def test_words_say_that_no_sum_is_formed():
    said = meaning(KernelStep("k", moments(IMAGE).kernel, (), (), ()))
    assert "from products of x with itself in float64, so that no sum is formed" in said
    assert "moments over the 63 positions of each channel" in said


def test_sizes_beyond_31_bits_compile():
    """Elements that 32 bits do not count, and entries of the batch that fill a grid."""
    far = moments(convolution(2, 1, 8, 8, (2**14, 2**15), (3, 3)))
    source = generated(far.kernel, None, "k0")
    assert "long long" in re.search(r"float k0_left\(.*?\n}", source.text, re.DOTALL)[0]
    assert len(compiled([source], sanitize=False)) == 1
    with pytest.raises(ValueError, match="blocks exceed a grid"):
        generate(moments(convolution(2**29, 1, 3, 8, (9, 9), (3, 3))).kernel, "k")


def test_no_totals_of_nothing():
    assert not correlates(replace(moments(IMAGE).kernel, batch=0))
    assert not correlates(replace(moments(IMAGE).kernel, in_channels=0))


@needs_nvcc
def test_compiles(tmp_path):
    check_compiles([case.kernel for case in CASES], "90a", tmp_path, spilled=16)
