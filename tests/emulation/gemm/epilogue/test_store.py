"""Epilogue store through subtiles, and prepacking, around a plain core: against float64."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf, nan

import pytest
import torch
from contraction_cases import ContractionCase, cases, convolution, matmul, with_epilogue
from contraction_tools import build, check_thread_order, guessed_scales, run, source, unit, wrong_scales
from gemm_matrix import EDITS, HALF, check_images, same_where_not_finite

from kernelwright.build.module import compile_cuda, find_cuda_compiler
from kernelwright.codegen.cuda.gemm.epilogue.subtile import epilogue, subtile_columns
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.reference.contraction import evaluate_contraction, sums_of_products
from kernelwright.plan.expressions import Apply, Constant, Guard, Index, Load, Reduced
from kernelwright.plan.kernels import Store

NARROW = Tiling("wgmma", rows=64, columns=32, depth=32, stages=2)
WIDE = Tiling("wgmma", rows=128, columns=192, depth=16, stages=2)


def several(case: ContractionCase, dtypes: tuple[str, ...]) -> ContractionCase:
    """Stores of several types and orders: the sums, their sigmoid plus a value per row, whether they are positive, and
    one with a shifted, guarded value per column."""
    kernel = case.kernel
    first = kernel.stores[0].index
    turned = Index(tuple(reversed(_strides(tuple(reversed(kernel.domain))))))
    row = Load(2, Index((1, *[0] * (len(kernel.domain) - 1))))
    beside = Load(2, Index((0, 0, 1, *[0] * (len(kernel.domain) - 3)), 1),
                  (Guard(Index((0, 0, 1, *[0] * (len(kernel.domain) - 3)), 1), kernel.out_channels),), -1.0)
    values = (Reduced(0), Apply("add", (Apply("sigmoid", (Reduced(0),)), row)),
              Apply("gt", (Reduced(0), Constant(0.0))), Apply("maximum", (Apply("mul", (Reduced(0), beside)), row)))
    stores = tuple(Store(n, turned if n % 2 else first, values[n]) for n in range(len(dtypes)))
    size = max(kernel.batch, kernel.out_channels)
    changed = replace(kernel, stores=stores, input_dtypes=(*kernel.input_dtypes, "float32"), output_dtypes=dtypes)
    return ContractionCase(f"{case.name}_{'_'.join(dtypes)}", changed, (*case.shapes, (size,)))


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    result = [1]
    for size in reversed(shape[1:]):
        result.insert(0, result[0] * size)
    return tuple(result)


def every() -> list[tuple[ContractionCase, Tiling]]:
    """Cases and tilings: all families in narrow blocks, some in wide ones, types and stores."""
    found = [(case, NARROW) for case in cases()]
    types = ("float32", "float16", "bool", "bfloat16")
    native = convolution(2, 2, 9, 10, (7, 9), (3, 3), stride=2, padding=1, scheme="native", dtype="bfloat16")
    found += [(matmul(130, 20, 200), WIDE), (with_epilogue(matmul(20, 36, 150)), WIDE),
              (convolution(2, 1, 5, 200, (6, 5), (3, 3), padding=1), WIDE),
              (matmul(30, 20, 13), replace(NARROW, columns=8)),
              (several(matmul(40, 20, 36), types), NARROW), (several(matmul(40, 20, 35), types), NARROW),
              (several(convolution(2, 1, 5, 12, (6, 5), (3, 3)), types), NARROW),
              (matmul(33, 24, 20, scheme="fp16"), NARROW),
              (matmul(33, 24, 20, scheme="native", dtype="float16"), NARROW),
              (native, NARROW)]
    return found


EVERY = every()
NAMES = [case.name for case, _ in EVERY]


@pytest.fixture(scope="module")
def built():
    return dict(zip(NAMES, build([(case.kernel, tiling) for case, tiling in EVERY], sanitize=False), strict=True))


def magnitudes(case: ContractionCase, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The root mean square of the sums of magnitudes of products."""
    kernel = case.kernel
    positive = replace(kernel, left=Apply("abs", (kernel.left,)), right=Apply("abs", (kernel.right,)))
    return sums_of_products(positive, inputs).square().mean().sqrt()


@pytest.mark.parametrize("case", [case for case, _ in EVERY], ids=NAMES)
def test_outputs_are_those_of_float64(case, built):
    inputs, kernel = case.inputs(), case.kernel
    outputs, _ = run(*built[case.name], inputs)
    single = evaluate_contraction(kernel, inputs, torch.float32)
    scale = magnitudes(case, inputs)
    # A short sum rounds less in float32 than two operands of 22 bits do; longer ones round more.
    most = {"fp16x3": 2.0**-23, "fp16": 2.0**-11, "native": 2.0**-23}[kernel.scheme] * scale
    for number, (found, expected, other) in enumerate(zip(outputs, case.expected(inputs), single, strict=True)):
        if found.dtype == torch.bool:
            assert (found != expected).double().mean() < 0.01
            continue
        error = (found.double() - expected).square().mean().sqrt()
        rounding = 2 * HALF[kernel.output_dtypes[number]] * expected.square().mean().sqrt()
        assert error < most + rounding, number
        if kernel.scheme == "fp16x3" and kernel.in_channels >= 20 and found.dtype == torch.float32:
            assert error < 1.2 * (other.double() - expected).square().mean().sqrt(), number


CHOSEN = (0, 1, 5, 7, 10, 14, 15, 20, 22)


@pytest.mark.parametrize("order", ["reverse", "12345"])
def test_no_order_of_threads_changes_a_bit(order, built):
    chosen = [EVERY[number][0] for number in CHOSEN]
    check_thread_order(order, chosen, [built[case.name] for case in chosen])


@pytest.mark.parametrize("number", [0, 1, 2, 5, 7, 10, 12, 15, 22])
def test_nan_and_inf_come_out_where_pytorch_has_them(number, built):
    case = EVERY[number][0]
    inputs = case.inputs()
    x, w = inputs[0].view(-1), inputs[1].view(-1)
    x[3], x[-1], w[2], w[-3] = nan, inf, -inf, 0.0
    expected = evaluate_contraction(case.kernel, inputs)
    scale = magnitudes(case, case.inputs())
    for found, right in zip(run(*built[case.name], inputs)[0], expected, strict=True):
        if found.dtype == torch.bool:
            continue
        finite = same_where_not_finite(found, right)
        assert bool((~finite).any()) and bool(finite.any())
        tolerance = 4 * HALF[str(found.dtype).removeprefix("torch.")] * (right[finite].abs().max() + scale)
        assert (found.double() - right)[finite].abs().max() < tolerance


@pytest.mark.parametrize("left, right", [(1e-35, 1e30), (1e34, 1e-33), (1e25, 1e-40), (1e-22, 1e-20), (1e-42, 1e36),
                                         (1e18, 1e18)])
@pytest.mark.parametrize("number", [0, 3, 5, 12])
def test_every_magnitude_comes_through(number, left, right, built):
    """Products in the range of float32, of operands anywhere in it."""
    case = EVERY[number][0]
    inputs = [t.clamp(-3, 3) for t in case.inputs()]
    inputs = [inputs[0] * left, inputs[1] * right]
    (found,), (expected,) = run(*built[case.name], inputs)[0], evaluate_contraction(case.kernel, inputs)
    error = (found.double() - expected).square().mean().sqrt()
    # Denormal results are rounded to multiples of 2^-149.
    assert error < 2.0**-22 * magnitudes(case, inputs) + 2.0**-149


def test_rows_and_columns_of_zeros_and_giants_stand_side_by_side(built):
    case = EVERY[0][0]
    inputs = case.inputs()
    x, w = inputs[0][0], inputs[1][0]
    x[1::7], x[2::7], w[:, ::5], w[:, 3] = 0.0, x[2::7] * 1e30, w[:, ::5] * 1e-30, 0.0
    (found,), (expected,) = run(*built[case.name], inputs)[0], evaluate_contraction(case.kernel, inputs)
    found, expected = (t.double().reshape(70, 36) for t in (found, expected))
    sizes = x.double().norm(dim=1)[:, None] * w.double().norm(dim=0)
    assert bool(((found - expected).abs() <= 2.0**-21 * sizes).all())
    assert not found[1::7].any() and not found[:, 3].any()


def test_sums_beyond_float32_are_infinite_as_in_pytorch(built):
    case = EVERY[0][0]
    inputs = [t * 1e20 for t in case.inputs()]
    (found,) = run(*built[case.name], inputs)[0]
    expected = case.expected(inputs)[0]
    large = expected.abs() > 1e39
    assert large.double().mean() > 0.9 and torch.equal(found[large], expected[large].float())


@pytest.fixture(scope="module")
def guessing():
    """Convolutions whose scales of x are guessed: groups of 9600 elements, of which runs of 128 are looked at."""
    chosen = [convolution(2, 1, 24, 9, (20, 20), (3, 3), padding=1),
              with_epilogue(convolution(2, 2, 12, 5, (20, 40), (2, 2), stride=2)),
              convolution(1, 1, 4, 16, (20, 120), (9, 9), stride=2)]  # blocks of w come before those of x
    with guessed_scales():
        return list(zip(chosen, build([(case.kernel, NARROW) for case in chosen]), strict=True))


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_guessed_scales_are_mended(number, name, guessing):
    case, (library, text) = guessing[number]
    edit, wrong = EDITS[name]
    inputs = case.inputs()
    edit(inputs[0])
    (found,), workspace = run(library, text, inputs)
    assert wrong_scales(text, workspace) == wrong
    expected = evaluate_contraction(case.kernel, inputs)[0]
    assert bool(expected.isfinite().all()) == (name != "nan")
    check_images(case, inputs, found, 2.0**-21)


@pytest.fixture(scope="module")
def guessing_matrices():
    """Products of matrices, rows of which are 4400 elements long, in every order of memory."""
    chosen = [matmul(20, 4400, 40, transposed=t) for t in ((False, False), (False, True), (True, False), (True, True))]
    chosen.append(with_epilogue(matmul(40, 4400, 9, groups=2)))
    with guessed_scales("LEAST_DEPTH"):
        return list(zip(chosen, build([(case.kernel, NARROW) for case in chosen]), strict=True))


@pytest.mark.parametrize(("number", "side", "name"), [
    *((number, side, name) for number in range(5) for side in ("left", "right") for name in ("rare", "nan")),
    *((number, side, name) for number, side in ((0, "right"), (1, "left"))
      for name in ("plain", "zeros", "tiny", "huge"))
])
def test_guessed_scales_of_matrices_are_mended(number, side, name, guessing_matrices):
    """An element that the search does not look at first costs that row a second look."""
    case, (library, text) = guessing_matrices[number]
    inputs = case.inputs()
    operand = inputs[side == "right"]
    rows = operand if operand.shape[-1] == 4400 else operand.mT  # (group, row, what is summed)
    if name in ("rare", "nan"):  # of 512 neighbours 128 are looked at, or the first 64 of 1024 rows of neighbours
        rows[0, 3, 4392] = nan if name == "nan" else 1e7
    elif name != "plain":
        rows.mul_({"zeros": 0.0, "tiny": 1e-36, "huge": 1e30}[name])
    (found,), workspace = run(library, text, inputs)
    at, size = text.geometry.places[f"{side}_scales"]
    signs = workspace[at:at + size].view(torch.float32).signbit()
    assert int(signs.sum()) == (name in ("rare", "nan"))
    expected = evaluate_contraction(case.kernel, inputs)[0]
    finite = same_where_not_finite(found, expected)
    assert bool(finite.all()) == (name != "nan")
    sizes = evaluate_contraction(case.kernel, [x.abs() for x in inputs])[0]
    off = (found.double() - expected)[finite].abs()
    assert (off <= 2.0**-20 * sizes[finite].abs() + 1e-30).all()


def test_subtiles_divide_a_blocks_columns():
    for columns in range(8, 264, 8):
        subtile = subtile_columns(EVERY[0][0].kernel, replace(NARROW, columns=columns))
        assert subtile <= 128 and subtile % 8 == 0 and columns % subtile == 0


def test_accesses_to_a_subtile_meet_no_bank_conflict():
    """Fragments of 8 rows x 4 pairs of columns, and the epilogue's reads, fall into different banks."""
    for case, tiling in EVERY:
        made = epilogue(Geometry(case.kernel, tiling), "k")
        row, column = made.row_stride, made.column_stride
        assert made.floats >= 1 + 63 * row + (subtile_columns(case.kernel, tiling) - 1) * column
        lanes = [(lane // 4) * row + (lane % 4) * 2 * column for lane in range(32)]
        if column == 1:  # pairs of columns are written together, in two halves of a warp
            assert len({place % 32 // 2 for place in lanes[:16]}) == 16
            assert row % 4 == 0
        else:
            assert len({place % 32 for place in lanes}) == 32


@pytest.mark.skipif(find_cuda_compiler() is None, reason="no nvcc")
def test_nvcc_accepts_the_text():
    tiling = Tiling("wgmma", rows=128, columns=128, depth=64, stages=2)
    chosen = [with_epilogue(matmul(1024, 8192, 8192, transposed=(False, True))),
              several(matmul(512, 100, 4096, scheme="native", dtype="bfloat16"), ("bfloat16", "float16")),
              convolution(16, 1, 32, 64, (16, 32, 32), (3, 3, 3), transposed=True, stride=2, padding=1)]
    text = unit([source(Geometry(case.kernel, tiling), f"k{n}") for n, case in enumerate(chosen)])
    assert compile_cuda(text) == ""


def test_offsets_beyond_31_bits_are_computed_in_64():
    large = matmul(70000, 64, 40000)
    made = epilogue(Geometry(large.kernel, replace(NARROW, columns=128)), "k")
    assert re.search(r"out0 \+ \(n \* 40000LL", made.definitions)
    small = epilogue(Geometry(matmul(700, 64, 400).kernel, NARROW), "k")
    assert "LL" not in re.sub(r"min\(64LL.*|\d+ - first_row", "", small.definitions)


@pytest.mark.parametrize("kernel", [matmul(1 << 20, 16, 64, groups=4096, transposed=(False, True)).kernel,
                                    convolution(1 << 20, 4096, 16, 64, (4,), (1,)).kernel])
def test_scales_of_more_than_31_bits_of_groups_are_found(kernel):
    large = replace(kernel, out_channels=1 << 19)
    made = epilogue(Geometry(large, replace(NARROW, columns=128)), "k").definitions
    assert "n * 4096LL + g" in made and "g * 524288LL + o" in made
    assert "n * 4096 + g" not in made and "g * 524288 + o" not in made
    made = epilogue(Geometry(replace(kernel, batch=1 << 18), NARROW), "k").definitions
    assert "n * 4096 + g" in made and "g * 64 + o" in made
