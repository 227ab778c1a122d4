"""The contraction core on mma.sync: emulated against float64, and compiled for every architecture that has it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from math import prod
from types import SimpleNamespace

import pytest
import torch
from contraction_cases import ContractionCase, cases, convolution, matmul, with_epilogue
from test_loops_cuda import aligned, source_text

from kernelwright.codegen.cuda.emulation.compile import compile_emulated
from kernelwright.codegen.cuda.gemm.epilogue.subtile import epilogue
from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.mainloop.sm80.core import core, tilings_mma
from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.cuda.support.snippets import snippets
from kernelwright.codegen.reference.contraction import evaluate_contraction, operand_values, sums_of_products

STAND_IN = """
// Stores sums by class, group, row and output channel.
static __device__ __forceinline__ void @NAME@_finish(float* __restrict__ out0, const float* sums, int thread,
                                                     int phase_class, int group, long long first_row,
                                                     int first_column) {
  for (int i = thread; i < 64 * @COLUMNS@; i += 128) {
    const long long row = first_row + i / @COLUMNS@;
    const int column = first_column + i % @COLUMNS@;
    if (row < @ROWS@LL && column < @CHANNELS@)
      out0[((phase_class * @GROUPS@LL + group) * @ROWS@LL + row) * @CHANNELS@ + column] =
          sums[i / @COLUMNS@ * @ROW_STRIDE@ + i % @COLUMNS@ * @COLUMN_STRIDE@];
  }
}
"""


def stand_in(geometry: Geometry, name: str, turned: bool = False) -> SimpleNamespace:
    """An epilogue that stores the sums as they are; ``turned`` slabs have rows next to each other."""
    columns = geometry.tiling.columns
    strides = (1, 68) if turned else (columns + 8, 1)
    text = STAND_IN
    for key, value in {"NAME": name, "COLUMNS": columns, "ROWS": geometry.rows, "GROUPS": geometry.kernel.groups,
                       "CHANNELS": geometry.kernel.out_channels, "ROW_STRIDE": strides[0],
                       "COLUMN_STRIDE": strides[1]}.items():
        text = text.replace(f"@{key}@", str(value))
    floats = columns * 68 if turned else 64 * (columns + 8)
    return SimpleNamespace(definitions=text, parameters=(("float* __restrict__", "out0"),), row_stride=strides[0],
                           column_stride=strides[1], floats=floats, support=frozenset(), column_floats=0,
                           column_parameters=(), row_scales=False)


def kernel_text(case: ContractionCase, tiling: Tiling, name: str, turned: bool = False) -> tuple[str, frozenset[str]]:
    """A core between packed operands and the stand-in, exported as ``run_NAME(left, right, out0)``."""
    geometry = Geometry(case.kernel, tiling)
    epilogue = stand_in(geometry, name, turned)
    made = core(geometry, epilogue, name)
    launches = "\n  ".join(made.launches)
    return f"""{epilogue.definitions}{made.definitions}
static const char* {name}(const unsigned short* left, const unsigned short* right, float* out0, cudaStream_t stream) {{
  {launches}
  return nullptr;
}}
extern "C" const char* run_{name}(const unsigned short* left, const unsigned short* right, float* out0) {{
  return {name}(left, right, out0, nullptr);
}}
""", made.support


def packed(case: ContractionCase, geometry: Geometry) -> tuple[torch.Tensor, torch.Tensor]:
    """Both operands as the core reads them, unscaled; what no result may use is NaN."""
    kernel, inputs = case.kernel, case.inputs()
    x = operand_values(kernel.left, kernel.left_domain, kernel, inputs, torch.float32)
    w = operand_values(kernel.right, kernel.right_domain, kernel, inputs, torch.float32)
    w = w.flatten(3) if kernel.axes else w[..., None]
    phases = list(product(*map(range, geometry.input_phases)))
    channels = geometry.chunks * CHUNK
    rows = torch.full((kernel.groups, len(phases), geometry.allocated_rows, channels), torch.nan)
    rows[..., kernel.in_channels:] = 0
    places = product(range(kernel.batch), *map(range, geometry.extents))
    for row, (n, *u) in enumerate(places):
        for number, phase in enumerate(phases):
            at = [a.in_stride * (i - lead) + r
                  for a, i, lead, r in zip(kernel.axes, u, geometry.leads, phase, strict=True)]
            inside = all(0 <= q < a.in_size for q, a in zip(at, kernel.axes, strict=True))
            rows[:, number, row, :kernel.in_channels] = x[(n, slice(None), slice(None), *at)] if inside else 0
    columns = torch.full((kernel.groups, w.shape[-1], geometry.allocated_columns, channels), torch.nan)
    columns[..., kernel.in_channels:] = 0
    columns[:, :, :kernel.out_channels, :kernel.in_channels] = w.permute(0, 3, 1, 2)
    return _terms(rows, geometry), _terms(columns, geometry)


def _terms(values: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """(g, p, row, channel) as [term][g][p][chunk][row][8] in 16 bits."""
    values = values.unflatten(-1, (geometry.chunks, CHUNK)).transpose(2, 3).contiguous()
    high = values.to(getattr(torch, geometry.element))
    terms = [high, (values - high.float()).to(high.dtype)][:geometry.terms]
    return torch.stack(terms).contiguous()


def run(library: ctypes.CDLL, case: ContractionCase, tiling: Tiling, name: str) -> torch.Tensor:
    """The sums, of the kernel's domain; NaN where the core stored nothing."""
    kernel, geometry = case.kernel, Geometry(case.kernel, tiling)
    operands = [aligned(t.numel(), t.dtype).copy_(t.flatten()) for t in packed(case, geometry)]
    out = torch.full((len(geometry.classes), kernel.groups, geometry.rows, kernel.out_channels), torch.nan)
    function = getattr(library, f"run_{name}")
    function.restype = ctypes.c_char_p
    message = function(*(ctypes.c_void_p(t.data_ptr()) for t in (*operands, out)))
    assert message is None, message.decode()
    result = torch.full(kernel.domain, torch.nan)
    for number, group in enumerate(geometry.classes):
        sums = out[number].reshape(kernel.groups, kernel.batch, *geometry.extents, kernel.out_channels)
        sums = sums[(slice(None), slice(None), *(slice(0, c) for c in group.counts))]
        places = tuple(slice(p, None, a.out_stride) for p, a in zip(group.phases, kernel.axes, strict=True))
        result[(slice(None), slice(None), slice(None), *places)] = sums.movedim(-1, 2).transpose(0, 1)
    return result


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


def name_of(number: int) -> str:
    return f"case{number}"


@pytest.fixture(scope="module")
def libraries():
    """A library for each case: two translation units, compiled side by side."""
    texts = [kernel_text(case, tiling, name_of(i), turned=i % 2 == 1) for i, (case, tiling) in enumerate(CASES)]
    head = snippets(texts[0][1])
    halves = [head + "".join(text for text, _ in texts[i::2]) for i in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(compile_emulated, halves))
    return [built[i % 2] for i in range(len(CASES))]


@pytest.mark.parametrize("number", range(len(CASES)),
                         ids=[f"{case.name}-{t.rows}x{t.columns}x{t.depth}" for case, t in CASES])
def test_agrees_with_float64(number, libraries):
    case, tiling = CASES[number]
    kernel, inputs = case.kernel, case.inputs()
    found = run(libraries[number], case, tiling, name_of(number))
    expected = sums_of_products(kernel, inputs)
    sizes = sums_of_products(kernel, [i.abs() for i in inputs])  # what rounding of products may add up to
    bound = {"fp16x3": 2.0**-20, "fp16": 2.0**-10, "native": 2.0**-20}[kernel.scheme]
    assert not found.isnan().any()
    assert ((found.double() - expected).abs() <= bound * sizes).all()


#: From operands in memory to stores: a matrix product, a strided and a transposed convolution, with epilogues.
WHOLE = [replace(case, kernel=replace(case.kernel, tiling=tiling)) for case, tiling in (
    (with_epilogue(matmul(70, 200, 36, transposed=(False, True))), Tiling("mma", 64, 32, 32, 3, promote=1)),
    (convolution(2, 2, 20, 12, (9, 7), (3, 3), stride=2, padding=1), SMALL),
    (with_epilogue(convolution(2, 1, 9, 12, (7, 5), (3, 3), stride=2, padding=1, transposed=True)), SMALL),
    (matmul(64, 2048, 16, transposed=(False, True)), Tiling("mma", 64, 16, 32, 3, promote=1)))]


@pytest.fixture(scope="module")
def whole():
    sources = [generate(case.kernel, f"whole{i}") for i, case in enumerate(WHOLE)]
    return compile_emulated(source_text(sources)), sources


def outputs_of(library: ctypes.CDLL, source, case: ContractionCase, inputs: list[torch.Tensor],
               workspace: torch.Tensor | None = None) -> torch.Tensor:
    """The case's only output."""
    own = [aligned(i.numel(), i.dtype).copy_(i.flatten()) for i in inputs]
    out = aligned(prod(case.kernel.domain), torch.float32, torch.nan)
    workspace = aligned(source.workspace_bytes, torch.uint8, 255) if workspace is None else workspace
    function = getattr(library, f"run_{source.name}")
    function.restype = ctypes.c_char_p
    message = function(*(ctypes.c_void_p(t.data_ptr()) for t in (*own, out, workspace)), None)
    assert message is None, message.decode()
    return out


@pytest.mark.parametrize(("number", "scale"), [(0, 1.0), (1, 1e-12), (2, 1e12)])
def test_whole_contractions(number, scale, whole):
    case = WHOLE[number]
    inputs = case.inputs(scale)
    found, expected = outputs_of(whole[0], whole[1][number], case, inputs), case.expected(inputs)[0]
    plain = evaluate_contraction(case.kernel, inputs, torch.float32)[0]
    assert error(found, expected) <= 2 * error(plain, expected)  # which PyTorch adds up in several parts, on a CPU


@pytest.mark.parametrize("positive", [False, True])
def test_long_sums_are_more_accurate_than_float32(positive, whole):
    """Where everything is positive, sums that tensor cores truncate all the way would be too small."""
    case = WHOLE[3]
    x, w = (i.abs() if positive else i for i in case.inputs())
    found, expected = outputs_of(whole[0], whole[1][3], case, [x, w]), case.expected([x, w])[0]
    plain = torch.zeros(64, 16)
    for k in range(2048):
        plain += x[0, :, None, k] * w[0, None, :, k]
    assert error(found, expected) < 0.5 * error(plain.flatten(), expected)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square."""
    return float((found.double() - expected).pow(2).mean().sqrt())


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("order", ["reverse", "777"])
def test_order_of_threads_changes_nothing(order, number, whole, monkeypatch):
    """A missing barrier, or a buffer that is filled while others read it, shows in another order."""
    case = WHOLE[number]
    inputs = case.inputs()
    first = outputs_of(whole[0], whole[1][number], case, inputs)
    monkeypatch.setenv("KERNELWRIGHT_EMULATION_ORDER", order)
    assert torch.equal(first, outputs_of(whole[0], whole[1][number], case, inputs))


def test_values_that_are_not_finite(whole):
    case = WHOLE[0]
    inputs = case.inputs()
    inputs[0].view(70, 200)[3, 7] = torch.inf
    inputs[0].view(70, 200)[5, 9] = torch.nan
    inputs[1].view(36, 200)[11, 13] = -torch.inf
    found = outputs_of(whole[0], whole[1][0], case, inputs)
    expected = case.expected(inputs)[0]
    torch.testing.assert_close(found, expected.float(), equal_nan=True, rtol=1e-4, atol=1e-4)


#: The right operand as it lies in memory: its channels neighbours, then its output channels.
RAW = [replace(case, kernel=replace(case.kernel, tiling=tiling)) for case, tiling in (
    (with_epilogue(matmul(70, 72, 140, transposed=(False, True))),
     Tiling("mma", 64, 128, 32, 3, promote=1, converts_right=True)),
    (matmul(130, 100, 264, groups=2, transposed=(True, True)),
     Tiling("mma", 128, 256, 32, 3, promote=1, converts_right=True)),
    (matmul(66, 70, 132), Tiling("mma", 128, 128, 32, 4, promote=1, converts_right=True)),
    (convolution(2, 1, 36, 12, (5, 7), (1, 1), stride=2, padding=1, scheme="fp16"),
     Tiling("mma", 64, 128, 32, 3, promote=1, converts_right=True)))]


@pytest.fixture(scope="module")
def raw():
    sources = [generate(case.kernel, f"raw{i}") for i, case in enumerate(RAW)]
    return compile_emulated(source_text(sources)), sources


@pytest.mark.parametrize("number", range(len(RAW)))
def test_raw_right_operands(number, raw, monkeypatch):
    case = RAW[number]
    inputs = case.inputs()
    inputs[1] *= torch.logspace(-9, 9, inputs[1].numel()).reshape(inputs[1].shape)  # scales of steps differ
    workspace = aligned(raw[1][number].workspace_bytes, torch.uint8, 255)
    found, expected = outputs_of(raw[0], raw[1][number], case, inputs, workspace), case.expected(inputs)[0]
    at, size = Geometry(case.kernel, case.kernel.tiling).places["right_scales"]
    assert (workspace[at:at + size].view(torch.float32) == 1).all()  # no column is computed again
    plain = evaluate_contraction(case.kernel, inputs, torch.float32)[0]
    # A few products make the sums: two terms have 22 bits, float32 24.
    factor = 4 if case.kernel.scheme == "fp16x3" else 2**14
    assert error(found, expected) <= factor * error(plain, expected)
    monkeypatch.setenv("KERNELWRIGHT_EMULATION_ORDER", "99")
    assert torch.equal(found, outputs_of(raw[0], raw[1][number], case, inputs))


@pytest.mark.parametrize("number", range(2))
def test_raw_right_operands_out_of_range(number, raw):
    """Columns of w that are not finite, that are tiny or huge, or zero; all others stay as they were."""
    case = RAW[number]
    inputs = case.inputs()
    usual = outputs_of(raw[0], raw[1][number], case, inputs)
    w = inputs[1] if number else inputs[1][None]
    w = w.reshape(case.kernel.groups, case.kernel.out_channels, case.kernel.in_channels)
    w[0, 3, 40], w[0, 5, 2], w[0, 7, 1] = torch.inf, torch.nan, -torch.inf
    w[0, 11] *= 1e-40
    w[0, 12] *= 1e35
    w[0, 14] = 0
    found, expected = outputs_of(raw[0], raw[1][number], case, inputs), case.expected(inputs)[0]
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


def test_few_rows_read_the_weight_raw():
    assert tilings_mma(matmul(128, 32768, 32768, transposed=(False, True)).kernel)[0].converts_right
    assert not tilings_mma(matmul(4096, 4096, 4096).kernel)[0].converts_right
    assert not any(t.converts_right for t in tilings_mma(matmul(128, 32768, 32766).kernel))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
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
