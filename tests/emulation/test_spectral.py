"""The spectral energy against torch's float64 convolutions: tables, reference and the C++ text."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from kernelwright.codegen.cpp.fft_energy.generate import generate, layout
from kernelwright.codegen.fft_energy.tables import (
    AxisSections,
    axis_sections,
    fold_matrix,
    mirrored_fold,
    reference_energy,
)
from kernelwright.plan.kernels import SpectralEnergy

FLAGS = ["-O3", "-march=native", "-fopenmp", "-std=c++17", "-fno-math-errno", "-fno-trapping-math"]
WARNINGS = ["-Wall", "-Wextra", "-Werror"]


@dataclass(frozen=True)
class Case:
    """A convolution without clipping; kernel sizes, strides and dilations per axis."""

    batch: int
    groups: int
    in_channels: int
    out_channels: int
    size: tuple[int, ...]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool

    def kernel(self) -> SpectralEnergy:
        axes = zip(self.taps, self.stride, self.dilation, strict=True)
        taps = tuple(tuple(((k * d) % s, (k * d) // s) for k in range(count)) for count, s, d in axes)
        if not self.transposed:
            taps = tuple(axis[::-1] for axis in taps)  # a convolution is a correlation: the kernel is flipped
        return SpectralEnergy(
            self.batch, self.groups, self.in_channels, self.out_channels, self.size, taps, self.transposed
        )

    def weight_shape(self) -> tuple[int, ...]:
        if self.transposed:
            return (self.groups * self.in_channels, self.out_channels, *self.taps)
        return (self.groups * self.out_channels, self.in_channels, *self.taps)

    def tensors(self, distribution: str = "normal") -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(7)
        shape = (self.batch, self.groups * self.in_channels, *self.size)
        x = torch.rand(shape, generator=generator)
        if distribution == "normal":
            x = torch.randn(shape, generator=generator)
        return x, torch.randn(self.weight_shape(), generator=generator)

    def expected(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        dims = len(self.size)
        if self.transposed:
            function = getattr(torch.nn.functional, f"conv_transpose{dims}d")
            options = {"stride": self.stride}
        else:
            function = getattr(torch.nn.functional, f"conv{dims}d")
            options = {"padding": tuple((k - 1) * d for k, d in zip(self.taps, self.dilation, strict=True))}
        y = function(x.double(), weight.double(), groups=self.groups, dilation=self.dilation, **options)
        return (y**2).sum((0, *range(2, 2 + dims)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Random small cases of one to three axes; a plain convolution has stride 1."""
    dims = draw(st.integers(1, 3))
    transposed = draw(st.booleans())
    longest = {1: 90, 2: 20, 3: 8}[dims]

    def axes(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dims))

    return Case(
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([1, 3, 5, 8, 17, 33])),
        draw(st.sampled_from([1, 4, 9, 16])),
        axes(1, longest),
        axes(1, {1: 15, 2: 5, 3: 4}[dims]),
        axes(1, 3) if transposed else (1,) * dims,
        axes(1, 3),
        transposed,
    )


def build(kernels: list[SpectralEnergy], folder: Path) -> ctypes.CDLL:
    """All kernels in one translation unit, as functions run0, run1, ..."""
    parts = []
    for number, kernel in enumerate(kernels):
        source = generate(kernel, f"energy{number}")
        assert not source.support
        parts.append(source.definition)
        parts.append(
            f'extern "C" const char* run{number}(const float* x, const float* w, double* e, void* s) '
            f"{{ return energy{number}(x, w, e, s); }}"
        )
    text, library = folder / "energies.cpp", folder / "energies.so"
    text.write_text("\n".join(parts))
    done = subprocess.run(
        ["g++", *FLAGS, *WARNINGS, "-shared", "-fPIC", str(text), "-o", str(library)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


def call(
    library: ctypes.CDLL, number: int, kernel: SpectralEnergy, x: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """The energy; the workspace is filled with NaN first and must keep a guard after its end."""
    size = layout(kernel).workspace_bytes if x.numel() else 0
    memory = torch.full((size // 4 + 256,), float("nan"))
    workspace = (memory.data_ptr() + 255) // 256 * 256
    used = (workspace - memory.data_ptr() + size) // 4
    memory[used:] = 12.0
    energy = torch.full((kernel.groups * kernel.out_channels,), float("nan"), dtype=torch.float64)
    function = library[f"run{number}"]
    function.restype = ctypes.c_char_p
    pointers = (x.data_ptr(), weight.data_ptr(), energy.data_ptr(), workspace)
    assert function(*(ctypes.c_void_p(pointer) for pointer in pointers)) is None
    assert bool((memory[used:] == 12.0).all())
    return energy


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_sections_give_every_pair_once(data: st.DataObject) -> None:
    lag = data.draw(st.integers(0, 9))
    size = data.draw(st.integers(1, 120))
    length = data.draw(st.integers(max(3 * lag, 2 * lag + 1), 60))
    cut = axis_sections(size, lag, length)
    values = np.append(np.random.default_rng(size).standard_normal(size), 0.0)
    assert list(cut.signs) == sorted(cut.signs)
    for d in range(-lag, lag + 1):
        wanted = sum(values[q] * values[q + d] for q in range(size) if 0 <= q + d < size)
        got = 0.0
        for positions, sign in zip(cut.positions, cut.signs, strict=True):
            section = np.zeros(cut.length)
            section[: cut.points] = values[list(positions)]
            got += sign * float(section @ np.roll(section, -d))
        assert got == pytest.approx(wanted, abs=1e-10)


@given(st.integers(1, 40), st.integers(0, 6))
@settings(max_examples=40, deadline=None)
def test_fold_resamples_lags(length: int, lag: int) -> None:
    length += 2 * lag
    lags = np.arange(-lag, lag + 1)
    values = np.random.default_rng(length).standard_normal(2 * lag + 1)
    spectrum = np.exp(-2j * np.pi * np.outer(np.arange(length), lags) / length) @ values
    wanted = np.exp(-2j * np.pi * np.outer(np.arange(2 * lag + 1), lags) / (2 * lag + 1)) @ values
    np.testing.assert_allclose(fold_matrix(length, lag) @ spectrum, wanted, atol=1e-12)
    own, mirror = mirrored_fold(length, lag)
    half = spectrum[: length // 2 + 1]
    np.testing.assert_allclose(own @ half + mirror @ half.conj(), wanted[: lag + 1], atol=1e-12)


def test_sections_refuse_a_short_transform() -> None:
    with pytest.raises(ValueError, match="too short"):
        axis_sections(100, 8, 20)


def test_more_than_three_axes_are_refused() -> None:
    with pytest.raises(ValueError, match="axes"):
        generate(SpectralEnergy(1, 1, 1, 1, (2,) * 4, (((0, 0),),) * 4, True), "energy")


@given(cases())
@settings(max_examples=40, deadline=None)
def test_reference_agrees_with_torch(case: Case) -> None:
    x, weight = case.tensors()
    got = reference_energy(case.kernel(), x.numpy(), weight.numpy())
    np.testing.assert_allclose(got, case.expected(x, weight).numpy(), rtol=1e-10)


def test_cpp_agrees_with_torch_on_random_cases(tmp_path: Path) -> None:
    drawn: list[Case] = []

    @seed(20)
    @settings(max_examples=24, deadline=None, database=None)
    @given(cases())
    def draw(case: Case) -> None:
        drawn.append(case)

    draw()
    chosen = list(dict.fromkeys(drawn))[-20:]
    assert {len(case.size) for case in chosen} == {1, 2, 3}
    assert {case.transposed for case in chosen} == {True, False}
    library = build([case.kernel() for case in chosen], tmp_path)
    for number, case in enumerate(chosen):
        x, weight = case.tensors()
        got = call(library, number, case.kernel(), x, weight)
        torch.testing.assert_close(got, case.expected(x, weight), rtol=1e-5, atol=0.0, msg=f"{case}")


FIXED = [
    # sections on a long axis, with packed overlaps; even and odd lengths
    Case(2, 1, 20, 10, (700,), (9,), (1,), (1,), True),
    Case(1, 2, 4, 8, (150, 130), (3, 4), (1, 1), (2, 1), False),
    # phases of a strided transposed convolution in three axes, pairs of channel blocks
    Case(3, 1, 40, 24, (5, 9, 12), (4, 3, 5), (2, 2, 2), (1, 1, 1), True),
    # wide lags: the fold needs several register chunks
    Case(2, 1, 6, 5, (40, 33), (13, 17), (1, 1), (1, 2), False),
    # kernel 1, and taps that leave phases empty
    Case(4, 1, 64, 16, (31,), (1,), (1,), (1,), False),
    Case(2, 1, 16, 8, (9, 9), (2, 3), (4, 5), (3, 1), True),
    # many positions in three axes
    Case(4, 1, 32, 16, (12, 24, 28), (3, 3, 3), (1, 1, 1), (1, 1, 1), True),
]


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    kernels = [case.kernel() for case in FIXED]
    kernels.append(SpectralEnergy(0, 1, 3, 5, (4, 4), (((0, 0),), ((0, 0), (0, 1))), True))
    return build(kernels, tmp_path_factory.mktemp("spectral"))


@pytest.mark.parametrize("number", range(len(FIXED)))
@pytest.mark.parametrize("distribution", ["normal", "uniform"])
def test_accuracy(fixed: ctypes.CDLL, number: int, distribution: str) -> None:
    case = FIXED[number]
    x, weight = case.tensors(distribution)
    got = call(fixed, number, case.kernel(), x, weight)
    torch.testing.assert_close(got, case.expected(x, weight), rtol=3e-6, atol=0.0)


def test_fixed_cases_cover_sections_and_groups() -> None:
    plans = [layout(case.kernel()) for case in FIXED]
    assert sum(plan.negative_entries > 0 for plan in plans) >= 2
    assert any(plan.lanes == 16 and plan.pairs > 1 for plan in plans)
    assert any(plan.lanes < 16 for plan in plans)


def test_chunks_agree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small memory limits: several chunks of entries, pairs and columns, in every combination."""
    from kernelwright.codegen.cpp.fft_energy import generate as spectral

    case = Case(3, 1, 40, 24, (6, 7, 90), (3, 2, 3), (1, 1, 2), (1, 1, 1), True)
    kernel, (x, weight) = case.kernel(), case.tensors()
    expected = case.expected(x, weight)
    for number, (entries, pairs) in enumerate([(1, 1), (1, 1 << 30), (1 << 30, 1)]):
        monkeypatch.setattr(spectral, "SPECTRUM_BYTES", 1 << 21 if entries == 1 else 1 << 30)
        monkeypatch.setattr(spectral, "FOLDED_BYTES", pairs)
        monkeypatch.setattr(spectral, "WHAT_BYTES", 1)
        plan = layout(kernel)
        assert (plan.entries_at_once < plan.entries) == (entries == 1)
        assert (plan.pairs_at_once < plan.pairs) == (pairs == 1)
        assert plan.column_blocks_at_once < plan.column_blocks
        folder = tmp_path / str(number)
        folder.mkdir()
        got = call(build([kernel], folder), 0, kernel, x, weight)
        torch.testing.assert_close(got, expected, rtol=3e-6, atol=0.0)


def test_same_bits_for_any_number_of_threads(fixed: ctypes.CDLL) -> None:
    openmp = ctypes.CDLL("libgomp.so.1")
    threads = openmp.omp_get_max_threads()
    case = FIXED[2]
    x, weight = case.tensors()
    results = []
    try:
        for count in (1, 2, 3, 3):
            openmp.omp_set_num_threads(count)
            results.append(call(fixed, 2, case.kernel(), x, weight))
    finally:
        openmp.omp_set_num_threads(threads)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_input_reaches_the_energy_of_its_group(fixed: ctypes.CDLL, value: float) -> None:
    case = FIXED[1]
    x, weight = case.tensors()
    x[0, 5, 40, 17] = value
    got = call(fixed, 1, case.kernel(), x, weight)
    assert bool(got[: case.out_channels].isfinite().all())
    assert not bool(got[case.out_channels :].isfinite().any())


def test_empty_batch_has_no_energy(fixed: ctypes.CDLL) -> None:
    kernel = SpectralEnergy(0, 1, 3, 5, (4, 4), (((0, 0),), ((0, 0), (0, 1))), True)
    got = call(fixed, len(FIXED), kernel, torch.empty(0, 3, 4, 4), torch.ones(3, 5, 1, 2))
    assert torch.equal(got, torch.zeros(5, dtype=torch.float64))


def test_layout_is_bounded() -> None:
    """Large kernels stay below about 1 GB, whatever the batch, the channels and the lengths."""
    for batch, channels, size, taps in [
        (16, 64, (16, 32, 32), 5),
        (512, 256, (112, 112), 3),
        (64, 512, (14, 28, 28), 3),
        (4, 16, (128, 256, 1024), 3),
        (100_000, 64, (1024,), 33),
    ]:
        axes = (tuple((0, k) for k in range(taps)),) * len(size)
        plan = layout(SpectralEnergy(batch, 1, channels, 64, size, axes, True))
        assert plan.workspace_bytes < 1 << 30
        assert all(isinstance(cut, AxisSections) and cut.length <= 260 for cut in plan.sections)


def test_reference_case_with_two_batch_elements(tmp_path: Path) -> None:
    case = Case(2, 1, 64, 128, (16, 32, 32), (5, 5, 5), (1, 1, 1), (1, 1, 1), True)
    x, weight = case.tensors("uniform")
    got = call(build([case.kernel()], tmp_path), 0, case.kernel(), x, weight)
    torch.testing.assert_close(got, case.expected(x, weight), rtol=3e-6, atol=0.0)
