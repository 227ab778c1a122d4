"""Region sums of both targets against float64: C++ compiled, CUDA under the CPU emulation."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from kernelwright.codegen.cpp.region_sum import generate as cpp
from kernelwright.codegen.cpp.support.snippets import snippets as cpp_snippets
from kernelwright.codegen.cuda.emulation.compile import compile_emulated
from kernelwright.codegen.cuda.math import SCALAR_SNIPPETS, scalar_snippets
from kernelwright.codegen.cuda.region_sum import generate as cuda
from kernelwright.codegen.cuda.support.snippets import snippets
from kernelwright.codegen.region_sum.axes import TooFineError, join_axes, split_by_key
from kernelwright.codegen.region_sum.planning import plan_stream
from kernelwright.codegen.source import KernelSource
from kernelwright.plan.kernels import RegionSum

TARGETS = ("cpp", "cuda")


def reference(kernel: RegionSum, x: torch.Tensor) -> torch.Tensor:
    result = x.double()
    for axis, classes in enumerate(kernel.classes):
        if classes is not None:
            parts = []
            for one in classes:
                positions = torch.tensor([q for p in one for q in range(*p)], dtype=torch.int64)
                parts.append(result.index_select(axis, positions).sum(axis))
            result = torch.stack(parts, axis) if parts else result.narrow(axis, 0, 0)
    return result * kernel.scale


class Compiled:
    """Several kernels in one translation unit."""

    def __init__(self, target: str, kernels: list[RegionSum], folder: Path, dtype: str = "float32") -> None:
        module = cpp if target == "cpp" else cuda
        self.kernels = kernels
        self.dtype = getattr(torch, dtype)
        self.sources: list[KernelSource] = [
            module.generate(replace(kernel, input_dtype=dtype), f"k{i}_region_sum") for i, kernel in enumerate(kernels)
        ]
        names = {name for source in self.sources for name in source.support}
        text = "\n".join(source.definition for source in self.sources)
        stream = "" if target == "cpp" else ", nullptr"
        for source in self.sources:
            text += (
                f'\nextern "C" const char* call_{source.name}(const void* x, void* out, void* workspace) {{\n'
                f"  return {source.name}(static_cast<const {module.SCALARS[dtype]}*>(x), "
                f"static_cast<decltype(kw_out({source.name}))>(out), workspace{stream});\n}}\n"
            )
        argument = "" if target == "cpp" else ", cudaStream_t"
        helper = f"template <class A, class B> B* kw_out(const char* (*)(const A*, B*, void*{argument}));\n"
        if target == "cpp":
            path = folder / "kernels.cpp"
            path.write_text(cpp_snippets(names) + helper + text)
            library = path.with_suffix(".so")
            flags = [
                "-O3",
                "-march=native",
                "-fopenmp",
                "-shared",
                "-fPIC",
                "-std=c++17",
                "-Wall",
                "-Wno-unused-function",
            ]
            done = subprocess.run(
                ["g++", *flags, "-Werror", str(path), "-o", str(library)], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr[-4000:]
            self.library = ctypes.CDLL(str(library))
        else:
            scalar = scalar_snippets(names & SCALAR_SNIPPETS.keys())
            self.library = compile_emulated(snippets(names - SCALAR_SNIPPETS.keys()) + scalar + helper + text)

    def run(self, number: int, x: torch.Tensor) -> torch.Tensor:
        kernel, source = self.kernels[number], self.sources[number]
        assert x.is_contiguous() and x.dtype == self.dtype
        guard = 32
        flat = torch.full(
            (prod(kernel.output_shape) + 2 * guard,), -12345.0, dtype=getattr(torch, kernel.dtype)
        )
        out = flat[guard : flat.numel() - guard]
        workspace = torch.full((source.workspace_bytes + 256,), 255, dtype=torch.uint8)
        function = getattr(self.library, f"call_{source.name}")
        function.restype = ctypes.c_char_p
        function.argtypes = [ctypes.c_void_p] * 3
        start = -(-workspace.data_ptr() // 256) * 256
        message = function(x.data_ptr(), out.data_ptr(), start)
        assert message is None, message
        assert (flat[:guard] == -12345.0).all() and (flat[-guard:] == -12345.0).all()
        assert (workspace[start - workspace.data_ptr() + source.workspace_bytes :] == 255).all()
        return out.reshape(kernel.output_shape)

    def check(self, number: int, x: torch.Tensor, tolerance: float = 2e-7) -> None:
        got, want = self.run(number, x).double(), reference(self.kernels[number], x)
        bound = reference(self.kernels[number], x.abs()).abs() * tolerance
        assert torch.equal(got.isnan(), want.isnan()), self.kernels[number]
        wrong = (got != want) & ((got - want).abs() > bound) & ~want.isnan()
        assert not wrong.any(), (self.kernels[number], wrong.nonzero()[:3], got[wrong][:3], want[wrong][:3])


@st.composite
def axis_classes(draw, size: int):
    kind = draw(st.sampled_from(["kept", "full", "borders", "residues", "random", "empty"]))
    if kind == "kept":
        return None
    if kind == "full":
        return (((0, size, 1),),)
    if kind == "borders":
        pad = draw(st.integers(0, 2))
        return tuple(((max(0, t), min(size, size + t), 1),) for t in range(-pad, pad + 1))
    if kind == "residues":
        step = draw(st.integers(2, 4))
        return tuple(((r, max(r, size - draw(st.integers(0, 3))), step),) for r in range(step) if r < size)
    if kind == "empty":
        return ((), ((0, size, 1),))
    classes = []
    for _ in range(draw(st.integers(1, 4))):
        middle = draw(st.integers(0, size))
        left = (draw(st.integers(0, middle)), middle, draw(st.integers(1, 5)))
        right = (middle, draw(st.integers(middle, size)), draw(st.integers(1, 5)))
        classes.append((left, right))
    return tuple(classes)


@st.composite
def region_sums(draw):
    rank = draw(st.integers(1, 6))
    limit = {1: 5000, 2: 200, 3: 40, 4: 16, 5: 8, 6: 6}[rank]
    shape = tuple(draw(st.integers(1, limit)) for _ in range(rank))
    classes = tuple(draw(axis_classes(size)) for size in shape)
    return RegionSum(
        shape,
        classes,
        draw(st.sampled_from([1.0, -0.125, 3.0])),
        draw(st.sampled_from(["float32", "float64"])),
    )


@pytest.mark.parametrize("target", TARGETS)
def test_random_kernels(target: str, tmp_path: Path) -> None:
    round_number = 0

    @seed(7)
    @settings(
        max_examples=2,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(st.lists(region_sums(), min_size=40, max_size=40))
    def sweep(kernels: list[RegionSum]) -> None:
        nonlocal round_number
        round_number += 1
        folder = tmp_path / str(round_number)
        folder.mkdir()
        compiled = Compiled(target, kernels, folder)
        generator = torch.Generator().manual_seed(round_number)
        for number, kernel in enumerate(kernels):
            x = torch.randn(kernel.shape, generator=generator)
            compiled.check(number, x)
            spots = torch.randint(0, max(1, x.numel()), (3,), generator=generator)
            x.view(-1)[spots] = torch.tensor([float("nan"), float("inf"), float("-inf")])
            compiled.check(number, x)

    sweep()


def whole(size: int):
    return (((0, size, 1),),)


def taps(size: int, count: int = 3):
    pad = count // 2
    return tuple(((max(0, t - pad), min(size, size + t - pad), 1),) for t in range(count))


SHAPES = [
    RegionSum(
        (2, 3, 128, 128), (None, None, (((0, 128, 1),), ((1, 128, 1),)), (((0, 128, 1),), ((1, 128, 1),)))
    ),
    RegionSum((2, 2, 256, 256), (None, None, whole(256), whole(256)), 1 / 65536),
    RegionSum((2, 4, 3, 9, 32), (None, None, taps(3), taps(9), taps(32))),
    RegionSum(
        (3, 2, 8, 32, 32), (None, None, taps(8), taps(32), taps(32))
    ),  # fetches the next unit ahead (C++)
    RegionSum((64, 7, 40), (whole(64), None, None)),  # sum over the batch, columns kept
    RegionSum((6, 5, 8, 300), (whole(6), None, taps(8), None)),  # kept axes between and inside
    RegionSum((3, 50, 40, 3), (None, taps(50), whole(40), None)),  # short kept innermost axis
    RegionSum((5, 33, 33), (None, taps(33, 5), taps(33, 5))),  # unaligned planes
    RegionSum((8, 9, 3, 3), (None, None, taps(3), taps(3))),  # a convolution's weights
    RegionSum((4, 8, 5, 5, 5), (None, None, taps(5), taps(5), taps(5))),
    RegionSum((200003,), (whole(200003),)),
    RegionSum((1 << 20,), ((((1, 1 << 20, 1),), ((0, 1 << 20, 2),), ((0, 5, 1), (100000, 700001, 3))),)),
    RegionSum((2, 12, 6, 512), (None, whole(12), None, (((0, 512, 2),), ((1, 511, 2),)))),
    RegionSum((3, 1000, 130), (None, taps(1000), None), dtype="float64"),
    RegionSum(
        (2, 1, 700, 260), (None, (((0, 1, 1),), (), ((0, 1, 1),)), taps(700), taps(260))
    ),  # split over blocks
    RegionSum((1, 4100, 256), (whole(1), whole(4100), None)),  # few columns, many rows
    RegionSum((2, 30, 30), (None, tuple(((2 * i, 2 * i + 2, 1),) for i in range(15)), taps(30))),  # pooling
    RegionSum((2, 0, 3), (None, whole(0), None)),
    RegionSum((2, 5, 3), (None, (), None)),
    RegionSum((4, 5), (None, None), 2.0),
    RegionSum((8, 8), (((),), None)),
]


@pytest.mark.parametrize("target", TARGETS)
def test_chosen_shapes(target: str, tmp_path: Path) -> None:
    compiled = Compiled(target, SHAPES, tmp_path)
    generator = torch.Generator().manual_seed(3)
    for number, kernel in enumerate(SHAPES):
        x = torch.rand(kernel.shape, generator=generator)
        compiled.check(number, x, 1.5e-7)
        assert torch.equal(compiled.run(number, x), compiled.run(number, x))
    # A NaN reaches exactly the classes that contain it.
    x = torch.rand(SHAPES[0].shape, generator=generator)
    x[1, 2, 0, 7] = float("nan")
    lost = compiled.run(0, x).isnan()
    assert lost.sum() == 2 and lost[1, 2, 0].all()


@pytest.mark.parametrize("target", TARGETS)
def test_float64_input(target: str, tmp_path: Path) -> None:
    kernels = [
        RegionSum((3, 40, 64), (None, taps(40), taps(64)), 0.5, "float64"),
        RegionSum((3, 41, 67), (whole(3), taps(41), None), 0.5, "float64"),
    ]
    compiled = Compiled(target, kernels, tmp_path, "float64")
    for number, kernel in enumerate(kernels):
        compiled.check(number, torch.randn(kernel.shape, dtype=torch.float64), 1e-15)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_input(dtype: str, target: str, tmp_path: Path) -> None:
    kernels = [
        RegionSum((3, 40, 64), (None, taps(40), taps(64)), 0.5, "float64"),  # whole vectors of eight
        RegionSum((3, 41, 67), (whole(3), taps(41), None), 0.5),  # odd rows, kept columns
        RegionSum((2, 3, 130, 12), (None, None, taps(130), taps(12))),
        RegionSum((5, 33, 33), (None, taps(33, 5), taps(33, 5))),
        RegionSum((8, 9, 3, 3), (None, None, taps(3), taps(3))),
        RegionSum((2, 1, 700, 260), (None, (((0, 1, 1),), (), ((0, 1, 1),)), taps(700), taps(260))),
        RegionSum((100003,), (whole(100003),), dtype="float64"),
        RegionSum((64, 7, 42), (whole(64), None, None)),
        RegionSum((40, 50), (tuple(((i, i + 1, 1),) for i in range(40)), whole(50))),
    ]
    compiled = Compiled(target, kernels, tmp_path, dtype)
    for number, kernel in enumerate(kernels):
        # float16 holds no partial sum of these: the products of 100 and the number of terms pass 65504.
        compiled.check(number, (torch.rand(kernel.shape) * 100).to(compiled.dtype))
    x = torch.ones(kernels[3].shape, dtype=compiled.dtype)
    x[1, 2, 3], x[2, 0, 0], x[3, 32, 32] = float("nan"), float("inf"), -0.0
    compiled.check(3, x)


def test_accuracy_of_long_sums(tmp_path: Path) -> None:
    kernels = [
        RegionSum((3000000,), (whole(3000000),), dtype="float64"),
        RegionSum((20000, 70), (whole(20000), None), dtype="float64"),
    ]
    for target in TARGETS:
        folder = tmp_path / target
        folder.mkdir()
        compiled = Compiled(target, kernels, folder)
        for number, kernel in enumerate(kernels):
            x = torch.rand(kernel.shape, generator=torch.Generator().manual_seed(5)) + 1
            compiled.check(number, x, 5e-8)


def test_huge_sizes_stay_64_bit() -> None:
    kernel = RegionSum((3, 70000, 70000), (None, whole(70000), whole(70000)))
    for module in (cpp, cuda):
        assert "4900000000LL" in module.generate(kernel, "huge").definition


def test_main_shapes_use_whole_vectors() -> None:
    for size in (128, 512):
        axis = (((0, size, 1),), ((1, size, 1),))
        text = cuda.generate(RegionSum((16, 64, size, size), (None, None, axis, axis)), "kernel").definition
        assert "float4" in text
        # Small planes fill the device one block each; only large ones are worth a second kernel.
        assert ("kernel_finish" in text) == (size == 512)


def test_bad_records_are_refused() -> None:
    with pytest.raises(ValueError, match="leaves an axis"):
        cpp.generate(RegionSum((4, 4), (None, (((0, 5, 1),),))), "bad")
    with pytest.raises(ValueError, match="from float32 to bfloat16"):
        cuda.generate(RegionSum((4, 4), (None, whole(4)), dtype="bfloat16"), "bad")


def test_progressions_of_a_strided_axis() -> None:
    found = split_by_key(128, {1, 126, 127}, 2, lambda q: "even" if q % 2 == 0 else "odd")
    assert found == [("even", (0, 64, 2)), ("odd", (1, 64, 2))]


def test_too_fine_classes_are_left_to_the_direct_text() -> None:
    classes = tuple(((i, i + 1, 1),) for i in range(3000))
    with pytest.raises(TooFineError):
        plan_stream(
            join_axes(RegionSum((3000, 3000), (classes, whole(3000)))), lambda columns, alignment: 1.0, 128
        )
