"""Core sm80, on mma.sync: emulated against float64, and compiled for every architecture that has it."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
import torch
from compile_tools import needs_nvcc
from contraction_cases import ContractionCase, cases, convolution, matmul, with_epilogue
from contraction_tools import run
from gemm_matrix import Matrix, built
from test_loops_cuda import source_text

from kernelwright.codegen.cuda.gemm.epilogue.subtile import epilogue
from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.mainloop.sm80.core import core, tilings_mma
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.reference.contraction import evaluate_contraction

#: Every family in small tiles; other tiles, depths and stages in the first problems that use all of them.
SMALL = Tiling("mma", rows=64, columns=16, depth=16, stages=3, promote=1)
CASES = [(case, SMALL) for case in cases()]
CASES += [(case, Tiling("mma", rows, columns, depth, stages, promote=promote))
          for case in (matmul(150, 72, 140), convolution(2, 1, 40, 70, (9, 8), (3, 3), padding=1))
          for rows, columns, depth, stages, promote in (
              (64, 32, 32, 2, 1), (64, 64, 32, 4, 0), (128, 64, 32, 3, 1), (128, 128, 32, 3, 1))]
CASES += [(matmul(260, 40, 100), Tiling("mma", 256, 128, 32, 3, promote=1))]
CASES += [(case, Tiling("mma", 64, 32, 64, 3)) for scheme, dtype in
          (("fp16", "float32"), ("native", "float16"), ("native", "bfloat16"))
          for case in (matmul(70, 100, 36, groups=2, scheme=scheme, dtype=dtype),
                       convolution(2, 2, 9, 20, (7, 9), (3, 3), stride=2, padding=1, transposed=True, scheme=scheme,
                                   dtype=dtype))]
#: From operands in memory to stores: a matrix product, a strided and a transposed convolution, with epilogues.
WHOLE = [replace(case, kernel=replace(case.kernel, tiling=tiling)) for case, tiling in (
    (with_epilogue(matmul(70, 200, 36, transposed=(False, True))), Tiling("mma", 64, 32, 32, 3, promote=1)),
    (convolution(2, 2, 20, 12, (9, 7), (3, 3), stride=2, padding=1), SMALL),
    (with_epilogue(convolution(2, 1, 9, 12, (7, 5), (3, 3), stride=2, padding=1, transposed=True)), SMALL),
    (matmul(64, 2048, 16, transposed=(False, True)), Tiling("mma", 64, 16, 32, 3, promote=1)))]
#: The right operand as it lies in memory: its channels neighbours, then its output channels.
CONVERTED = [replace(case, kernel=replace(case.kernel, tiling=tiling)) for case, tiling in (
    (with_epilogue(matmul(70, 72, 140, transposed=(False, True))),
     Tiling("mma", 64, 128, 32, 3, promote=1, converts_right=True)),
    (matmul(130, 100, 264, groups=2, transposed=(True, True)),
     Tiling("mma", 128, 256, 32, 3, promote=1, converts_right=True)),
    (matmul(66, 70, 132), Tiling("mma", 128, 128, 32, 4, promote=1, converts_right=True)),
    (convolution(2, 1, 36, 12, (5, 7), (1, 1), stride=2, padding=1, scheme="fp16"),
     Tiling("mma", 64, 128, 32, 3, promote=1, converts_right=True)))]


def with_whole_sums(case: ContractionCase) -> ContractionCase:
    """The case whose sums are stored in float32, whatever its operands are."""
    return replace(case, kernel=replace(case.kernel, output_dtypes=("float32",)))


def checked() -> list[tuple[ContractionCase, Tiling]]:
    """All of them, with their sums in float32."""
    found = [*CASES, *((case, case.kernel.tiling) for case in [*WHOLE, *CONVERTED])]
    return [(with_whole_sums(case), tiling) for case, tiling in found]


FIRST_WHOLE, FIRST_CONVERTED = len(CASES), len(CASES) + len(WHOLE)
libraries = built(checked(), sanitize=False)


class TestMatrix(Matrix):
    """A missing barrier, or a buffer that is filled while others read it, shows in another order."""

    entries = checked()
    orders = ("reverse", "777")
    in_orders = [FIRST_WHOLE, FIRST_WHOLE + 1, *range(FIRST_CONVERTED, FIRST_CONVERTED + len(CONVERTED))]
    not_finite = weight_not_finite = [FIRST_WHOLE]
    on_device = ()


@pytest.mark.parametrize(("number", "scale"), [(0, 1.0), (1, 1e-12), (2, 1e12)])
def test_whole_contractions(number, scale, libraries):
    case = WHOLE[number]
    inputs = case.inputs(scale)
    found, expected = run(*libraries[FIRST_WHOLE + number], inputs)[0][0], case.expected(inputs)[0]
    plain = evaluate_contraction(case.kernel, inputs, torch.float32)[0]
    assert error(found, expected) <= 2 * error(plain, expected)  # which PyTorch adds up in several parts, on a CPU


@pytest.mark.parametrize("positive", [False, True])
def test_long_sums_are_more_accurate_than_float32(positive, libraries):
    """Where everything is positive, sums that tensor cores truncate all the way would be too small."""
    case = WHOLE[3]
    x, w = (i.abs() if positive else i for i in case.inputs())
    found, expected = run(*libraries[FIRST_WHOLE + 3], [x, w])[0][0], case.expected([x, w])[0]
    plain = torch.zeros(64, 16)
    for k in range(2048):
        plain += x[0, :, None, k] * w[0, None, :, k]
    assert error(found, expected) < 0.5 * error(plain.flatten(), expected)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square."""
    return float((found.double() - expected).pow(2).mean().sqrt())


@pytest.mark.parametrize("number", range(len(CONVERTED)))
def test_right_operands_converted_in_the_mainloop(number, libraries):
    case = CONVERTED[number]
    inputs = case.inputs()
    inputs[1] *= torch.logspace(-9, 9, inputs[1].numel()).reshape(inputs[1].shape)  # scales of steps differ
    (found,), workspace = run(*libraries[FIRST_CONVERTED + number], inputs)
    expected = case.expected(inputs)[0]
    at, size = Geometry(case.kernel, case.kernel.tiling).places["right_scales"]
    assert (workspace[at:at + size].view(torch.float32) == 1).all()  # no column is computed again
    plain = evaluate_contraction(case.kernel, inputs, torch.float32)[0]
    # A few products make the sums: two terms have 22 bits, float32 24.
    factor = 4 if case.kernel.scheme == "fp16x3" else 2**14
    assert error(found, expected) <= factor * error(plain, expected)


@pytest.mark.parametrize("number", range(2))
def test_right_operands_converted_in_the_mainloop_out_of_range(number, libraries):
    """Columns of w that are not finite, that are tiny or huge, or zero; all others stay as they were."""
    case = CONVERTED[number]
    inputs = case.inputs()
    usual = run(*libraries[FIRST_CONVERTED + number], inputs)[0][0]
    w = inputs[1] if number else inputs[1][None]
    w = w.reshape(case.kernel.groups, case.kernel.out_channels, case.kernel.in_channels)
    w[0, 3, 40], w[0, 5, 2], w[0, 7, 1] = torch.inf, torch.nan, -torch.inf
    w[0, 11] *= 1e-40
    w[0, 12] *= 1e35
    w[0, 14] = 0
    found, expected = run(*libraries[FIRST_CONVERTED + number], inputs)[0][0], case.expected(inputs)[0]
    plain = evaluate_contraction(case.kernel, inputs, torch.float32)[0]
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert not torch.equal(usual.isfinite(), expected.float().isfinite())
    shape = (case.kernel.groups, -1, case.kernel.out_channels)
    others = [o for o in range(case.kernel.out_channels) if o not in (3, 5, 7, 11, 12, 14)]
    assert torch.equal(found.reshape(shape)[..., others], usual.reshape(shape)[..., others])


@pytest.mark.parametrize(("case", "tiling"), [
    (matmul(70, 70, 140, transposed=(False, True)), Tiling("mma", 64, 128, 32, 3, promote=1, converts_right=True)),
    (convolution(2, 1, 8, 8, (9,), (3,)), Tiling("mma", 64, 128, 32, 3, promote=1, converts_right=True)),
    (matmul(70, 72, 140), Tiling("mma", 64, 64, 32, 3, promote=1, converts_right=True)),
    (matmul(70, 72, 140), Tiling("mma", 64, 32, 32, 3, cluster=2)),
    (matmul(70, 72, 140), Tiling("mma", 96, 32, 32, 3))])
def test_tilings_that_cannot_be_are_refused(case, tiling):
    with pytest.raises(ValueError):
        generate(replace(case.kernel, tiling=tiling), "refused")


@pytest.mark.parametrize("case", [matmul(4096, 4096, 4096), matmul(128, 32768, 32768, transposed=(False, True)),
                                  convolution(128, 1, 64, 128, (126, 126), (3, 3)), matmul(3, 16, 5, scheme="fp16"),
                                  convolution(16, 4, 20, 12, (9, 9, 9), (3, 3, 3), stride=2, transposed=True)],
                         ids=lambda case: case.name)
def test_tilings_fit_a_block(case):
    for limit in (99 * 1024, 163 * 1024, 227 * 1024):
        found = tilings_mma(case.kernel, limit)
        assert 0 < len(found) <= 8 and len(set(found)) == len(found)
        for tiling in found:
            geometry = Geometry(case.kernel, tiling)
            assert core(geometry, epilogue(geometry, "k"), "k").shared_bytes <= limit - 64  # of variables


def test_few_rows_convert_the_weight_in_the_mainloop():
    assert tilings_mma(matmul(128, 32768, 32768, transposed=(False, True)).kernel)[0].converts_right
    assert not tilings_mma(matmul(4096, 4096, 4096).kernel)[0].converts_right
    assert not any(t.converts_right for t in tilings_mma(matmul(128, 32768, 32766).kernel))


@needs_nvcc
def test_compiles_without_spills_for_every_architecture(tmp_path):
    """What needs the most registers: the largest warp tiles, with taps and promotion, with splitting, in 16 bits."""
    epilogued = with_epilogue(convolution(128, 1, 64, 128, (126, 126), (3, 3), padding=1))
    product = matmul(4096, 4096, 4096, scheme="native", dtype="bfloat16")
    sources = [generate(replace(case.kernel, tiling=tiling), f"k{i}") for i, (case, tiling) in enumerate((
        (epilogued, Tiling("mma", 256, 128, 32, 3, promote=1)),
        (matmul(128, 8192, 8192, transposed=(False, True)),
         Tiling("mma", 128, 256, 32, 3, promote=1, converts_right=True)),
        (product, Tiling("mma", 128, 128, 64, 3))))]
    (tmp_path / "kernels.cu").write_text(source_text(sources))
    architectures = ("80", "86", "89", "90a", "100")
    code = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in architectures]
    result = subprocess.run(["nvcc", "-std=c++17", "-O3", *code, "-t", "2", "-c", "-Xptxas", "-v", "kernels.cu"],
                            cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if "spill" in line]
    assert len(lines) >= len(sources) * len(architectures)
    assert all("0 bytes spill stores, 0 bytes spill loads" in line for line in lines), result.stderr
