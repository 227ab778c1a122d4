"""The CUDA spectral energy under emulation, and on a device, against torch's float64 convolution."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from kernelwright.codegen.cuda.emulation.compile import compile_emulated
from kernelwright.codegen.cuda.fft_energy import layout as sizes
from kernelwright.codegen.cuda.fft_energy.axes import choose_axis
from kernelwright.codegen.cuda.fft_energy.generate import generate
from kernelwright.codegen.cuda.fft_energy.layout import Layout
from kernelwright.codegen.cuda.support.snippets import snippets
from kernelwright.plan.kernels import SpectralEnergy


@dataclass(frozen=True)
class Case:
    """A convolution whose padding clips nothing; ``stride`` only where ``transposed``."""

    batch: int
    groups: int
    inputs: int
    outputs: int
    size: tuple[int, ...]
    window: tuple[int, ...]
    stride: int = 1
    dilation: int = 1
    transposed: bool = True
    mean: float = 0.3

    def kernel(self) -> SpectralEnergy:
        """The record of the energy of this convolution."""
        taps = []
        for width in self.window:
            if self.transposed:
                steps = [k * self.dilation for k in range(width)]
                taps.append(tuple((s % self.stride, s // self.stride) for s in steps))
            else:
                taps.append(tuple((0, -k * self.dilation) for k in range(width)))
        return SpectralEnergy(
            self.batch, self.groups, self.inputs, self.outputs, self.size, tuple(taps), self.transposed
        )

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Random float32 input and weight."""
        generator = torch.Generator().manual_seed(sum(self.size) + self.batch)
        x = torch.randn(self.batch, self.groups * self.inputs, *self.size, generator=generator) + self.mean
        if self.transposed:
            shape = (self.groups * self.inputs, self.outputs, *self.window)
        else:
            shape = (self.groups * self.outputs, self.inputs, *self.window)
        return x, torch.randn(shape, generator=generator)

    def energy(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The energies by torch's convolution in float64."""
        dims = len(self.size)
        functional = torch.nn.functional
        if self.transposed:
            convolution = getattr(functional, f"conv_transpose{dims}d")
            y = convolution(
                x.double(), weight.double(), stride=self.stride, dilation=self.dilation, groups=self.groups
            )
        else:
            padding = [self.dilation * (width - 1) for width in self.window]
            convolution = getattr(functional, f"conv{dims}d")
            y = convolution(
                x.double(), weight.double(), padding=padding, dilation=self.dilation, groups=self.groups
            )
        return y.square().sum(dim=[0, *range(2, 2 + dims)])


CASES = {
    "3d": Case(2, 1, 5, 6, (4, 6, 5), (3, 3, 3)),
    "3d_wide_tiles": Case(3, 1, 40, 9, (3, 4, 4), (2, 3, 2)),
    "3d_stride": Case(2, 1, 6, 4, (3, 4, 5), (3, 4, 3), stride=2),
    "3d_one_flat_axis": Case(1, 1, 4, 5, (3, 6, 7), (1, 3, 3)),
    "3d_last_axis_only": Case(2, 1, 4, 5, (2, 3, 7), (1, 1, 3)),
    "3d_groups": Case(2, 2, 3, 20, (4, 4, 4), (3, 2, 3)),
    "2d": Case(18, 1, 10, 17, (9, 11), (3, 3), transposed=False),
    "2d_dilation": Case(2, 1, 4, 6, (10, 8), (3, 2), dilation=3, transposed=False),
    "2d_stride_above_window": Case(2, 1, 4, 6, (5, 8), (2, 3), stride=3),
    "2d_first_axis_only": Case(2, 1, 4, 3, (12, 7), (5, 1)),
    "2d_groups": Case(3, 3, 2, 4, (6, 5), (3, 3), transposed=False),
    "1d": Case(3, 1, 6, 5, (50,), (5,)),
    "1d_long": Case(1, 1, 3, 4, (1000,), (7,), transposed=False),
    "1d_many_lags": Case(1, 1, 3, 4, (60,), (9,), dilation=4),
    "1x1": Case(2, 1, 9, 7, (5, 6), (1, 1)),
}


def source_text(case: Case, entry: str) -> tuple[str, int]:
    """The generated text with an exported entry point, and the workspace's size."""
    source = generate(case.kernel(), entry)
    export = (
        f'extern "C" const char* run_{entry}(const float* x, const float* w, double* e, void* workspace,\n'
        f"    cudaStream_t stream) {{ return {entry}(x, w, e, workspace, stream); }}\n"
    )
    return snippets(source.support) + source.definition + export, source.workspace_bytes


def emulate(case: Case, x: torch.Tensor, weight: torch.Tensor, entry: str = "k0") -> torch.Tensor:
    """Runs the text on the CPU; the workspace starts as NaN."""
    text, size = source_text(case, entry)
    library = compile_emulated(text)
    run = getattr(library, f"run_{entry}")
    run.restype = ctypes.c_char_p
    run.argtypes = [ctypes.c_void_p] * 5
    workspace = torch.full((size // 4 + 64,), float("nan"))
    base = (workspace.data_ptr() + 255) // 256 * 256
    energy = torch.full((case.groups * case.outputs,), float("nan"), dtype=torch.float64)
    message = run(x.data_ptr(), weight.data_ptr(), energy.data_ptr(), base, None)
    assert message is None, message
    return energy


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest relative error."""
    return float(((found - expected).abs() / expected).max())


@pytest.mark.parametrize("name", CASES)
def test_emulated_energy(name: str) -> None:
    case = CASES[name]
    x, weight = case.data()
    assert relative_error(emulate(case, x, weight), case.energy(x, weight)) < 1e-6


def test_axis_by_axis_transform_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Volumes that do not fit shared memory, and every budget exceeded, give the same energies."""
    import kernelwright.codegen.cuda.fft_energy.dft as dft

    monkeypatch.setattr(dft, "fused", lambda layout: False)
    monkeypatch.setattr(sizes, "SPECTRUM_BUDGET", 20000)
    monkeypatch.setattr(sizes, "GRAM_BUDGET", 1 << 18)
    monkeypatch.setattr(sizes, "WEIGHT_BUDGET", 1 << 15)
    for case in (
        Case(5, 1, 34, 6, (3, 5, 4), (2, 2, 3)),
        Case(3, 2, 5, 6, (5, 37), (3, 3), stride=2),
    ):
        layout = Layout(case.kernel(), "k0")
        assert layout.images < case.batch
        x, weight = case.data()
        assert relative_error(emulate(case, x, weight), case.energy(x, weight)) < 1e-6
    assert layout.workspace["end"] < 4 << 20


def test_offset_input_keeps_accuracy() -> None:
    case = replace(CASES["3d"], mean=30.0)
    x, weight = case.data()
    assert relative_error(emulate(case, x, weight), case.energy(x, weight)) < 3e-6


def test_deterministic_and_nan() -> None:
    case = CASES["2d_groups"]
    x, weight = case.data()
    assert torch.equal(emulate(case, x, weight), emulate(case, x, weight))
    x[1, 2, 3, 3] = float("nan")  # channel 2 belongs to group 1
    energy = emulate(case, x, weight)
    assert energy[4:8].isnan().all() and not energy[:4].isnan().any() and not energy[8:].isnan().any()


@pytest.mark.parametrize("size", [1, 7, 32, 100, 1024])
@pytest.mark.parametrize("lag", [1, 2, 4, 30])
@pytest.mark.parametrize("real", [False, True])
def test_transform_lengths(size: int, lag: int, real: bool) -> None:
    axis = choose_axis(size, lag, real)
    assert axis.length >= size + lag
    assert axis.length <= 1.2 * (size + lag) + 4
    assert torch.tensor(axis.radices).prod() == axis.length


def test_launches_are_checked() -> None:
    text = generate(CASES["3d"].kernel(), "k7").definition
    launched = set(re.findall(r"KW_LAUNCH\(\"(\w+)\"", text))
    assert launched == set(re.findall(r"__global__ void __launch_bounds__\([^)]*\) (\w+)\(", text))
    assert "<<<" not in text


def test_too_long_axis_is_refused() -> None:
    with pytest.raises(ValueError, match="shared memory"):
        generate(Case(1, 1, 1, 1, (100000,), (3,)).kernel(), "k0")


@pytest.fixture(scope="module")
def device_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All cases in one library for the device at hand."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not torch.cuda.is_available() or not Path(nvcc).exists():
        pytest.skip("needs a CUDA device and nvcc")
    folder = tmp_path_factory.mktemp("spectral")
    texts = [source_text(case, f"e{i}")[0] for i, case in enumerate(CASES.values())]
    check = snippets()
    (folder / "all.cu").write_text(check + "".join(text.removeprefix(check) for text in texts))
    major, minor = torch.cuda.get_device_capability()
    target = f"-gencode=arch=compute_{major}{minor},code=sm_{major}{minor}"
    command = [nvcc, "-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", target]
    subprocess.run([*command, "-o", str(folder / "all.so"), str(folder / "all.cu")], check=True)
    return ctypes.CDLL(str(folder / "all.so"))


@pytest.mark.gpu
@pytest.mark.parametrize("index", range(len(CASES)), ids=list(CASES))
def test_device_energy(index: int, device_library: ctypes.CDLL) -> None:
    case = list(CASES.values())[index]
    run = getattr(device_library, f"run_e{index}")
    run.restype, run.argtypes = ctypes.c_char_p, [ctypes.c_void_p] * 5
    x, weight = (t.cuda() for t in case.data())
    size = generate(case.kernel(), f"e{index}").workspace_bytes
    workspace = torch.full((size // 4,), float("nan"), device="cuda")
    energy = torch.empty(case.groups * case.outputs, dtype=torch.float64, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    message = run(x.data_ptr(), weight.data_ptr(), energy.data_ptr(), workspace.data_ptr(), stream)
    assert message is None, message
    assert relative_error(energy.cpu(), case.energy(*case.data())) < 1e-6
