"""Core direct_conv: float32 multiply-adds, emulated against float64, compiled for two architectures, and where they
suit."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from math import inf, nan

import pytest
import torch
import torch.nn.functional as F
from contraction_cases import ContractionCase, cases, convolution, matmul, with_epilogue
from test_loops_cuda import aligned, launch, source_text

from kernelwright.codegen.cuda.direct_conv.cells import Schedule
from kernelwright.codegen.cuda.direct_conv.generate import generate, schedules, suits
from kernelwright.codegen.cuda.emulation.compile import compile_emulated
from kernelwright.codegen.generate import support_text
from kernelwright.codegen.reference.contraction import sums_of_products
from kernelwright.codegen.reference.loops import required_output_sizes
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Apply, Constant, Guard, Index, Load, Reduced
from kernelwright.plan.kernels import LoopKernel, Reduction, Store
from kernelwright.plan.reading.access import strides_of


def conv(*sizes, **options) -> ContractionCase:
    return convolution(*sizes, scheme="float32", **options)


DEPTHWISE = conv(3, 8, 1, 1, (20, 36), (3, 3), padding=1)
SMALL = conv(2, 1, 3, 16, (6, 7, 10), (3, 3, 3))
ODD = conv(2, 1, 3, 8, (5, 6, 9), (3, 3, 3), stride=2, padding=1, transposed=True)
EVEN = conv(2, 1, 3, 8, (5, 6, 10), (3, 3, 3), stride=2, padding=1, transposed=True, output_padding=1)
LINE = conv(2, 1, 4, 3, (40,), (9,), padding=4)
LONG = conv(1, 1, 130, 3, (9, 9), (7, 7), padding=3)
MORE = [
    DEPTHWISE, SMALL, ODD, EVEN, LINE, LONG,
    conv(2, 6, 1, 2, (17, 9), (5, 3), stride=2, padding=2),
    conv(2, 2, 3, 4, (9, 12), (3, 5), stride=(2, 3), padding=(1, 2), dilation=(2, 1), transposed=True),
    conv(1, 1, 3, 4, (7, 5), (3, 3), stride=5, padding=1, dilation=2, transposed=True),  # phases without taps
    conv(1, 1, 2, 2, (9, 9), (4, 4), stride=8, transposed=True),  # a kernel for each phase of the first axis
    conv(2, 1, 7, 3, (13, 16), (1, 1)), conv(1, 1, 3, 2, (12, 12), (7, 7), padding=3),
    conv(2, 4, 2, 2, (5, 5, 6), (3, 1, 3), stride=(2, 1, 2), padding=1), conv(130, 1, 1, 1, (3, 4), (2, 2)),
    conv(1, 1, 2, 3, (200,), (40,), stride=5), conv(1, 3, 1, 1, (40, 20), (31, 5), padding=(15, 2)),
]
CASES = cases("float32") + MORE + [with_epilogue(case) for case in (DEPTHWISE, SMALL, ODD, EVEN, LINE)]


def build(kernels: list[Contraction], chosen: list[Schedule | None] | None = None) -> list[tuple]:
    """Library and source of each kernel: one library for all."""
    chosen = chosen or [None] * len(kernels)
    sources = [generate(k, f"c{n}", s) for n, (k, s) in enumerate(zip(kernels, chosen, strict=True))]
    library = compile_emulated(source_text(sources), sanitize=True)
    return [(library, source) for source in sources]


def run(library, source, kernel: Contraction, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Flat outputs; what is not written stays NaN, and so does what is read around the inputs."""
    tensors = []
    for tensor in inputs:
        own = aligned(tensor.numel() + 128, tensor.dtype, nan if tensor.is_floating_point() else 0)
        tensors.append(own[64:-64].copy_(tensor.reshape(-1)))
    sizes = required_output_sizes(LoopKernel(kernel.pooled_domain, (), (), (), kernel.stores, (), kernel.output_dtypes))
    types = [getattr(torch, t) for t in kernel.output_dtypes]
    outputs = [aligned(n, t, nan if t.is_floating_point else 0) for n, t in zip(sizes, types, strict=True)]
    message = launch(library, source, [*tensors, *outputs])
    assert message is None, message
    return outputs


def assert_exact(case: ContractionCase, outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
    """Within a few roundings of the sum of the products' sizes, which is at least as good as PyTorch's float32."""
    sizes = sums_of_products(case.kernel, [x.double().abs() for x in inputs])
    for output, expected in zip(outputs, case.expected(inputs), strict=True):
        assert torch.isfinite(output).all()
        assert (output.double() - expected).abs().max() <= 1e-6 * sizes.max()


def typed(case: ContractionCase, inputs: tuple[str, ...], outputs: tuple[str, ...], stores=None) -> ContractionCase:
    return replace(case, name="_".join((case.name, *inputs, *outputs)),
                   kernel=replace(case.kernel, input_dtypes=inputs, output_dtypes=outputs,
                                  stores=stores or case.kernel.stores))


def operand(case: ContractionCase, name: str, index: Index, shape: tuple[int, ...], **changes) -> ContractionCase:
    """A case whose left operand is read otherwise, from an input of another shape."""
    left = replace(case.kernel.left, index=index, **changes)
    return replace(case, name=name, kernel=replace(case.kernel, left=left), shapes=(shape, case.shapes[1]))


PLACE = DEPTHWISE.kernel.stores[0].index
HALF_AND_FLAG = (Store(0, PLACE, Reduced(0)), Store(1, PLACE, Apply("gt", (Reduced(0), Constant(0.5)))))
TYPED = [typed(DEPTHWISE, ("float16", "float32"), ("float16", "bool"), HALF_AND_FLAG),
         typed(SMALL, ("bfloat16",) * 2, ("bfloat16",)), typed(EVEN, ("float16",) * 2, ("float16",))]
VECTOR = conv(2, 1, 3, 8, (8, 12), (3, 3), padding=1)
#: An input that is itself read through padding, and one with its channels last.
OPERANDS = [operand(VECTOR, "padded", Index((144, 0, 48, 12, 1), -24), (2, 3, 4, 12), otherwise=0.5,
                    guards=(Guard(Index((0, 0, 0, 1, 0), -2), 4),)),
            operand(VECTOR, "channels_last", Index((288, 0, 1, 36, 3)), (2, 8, 12, 3))]


def reducing(case: ContractionCase) -> ContractionCase:
    """Softmax over the channels of sum + bias, their moments, and the log of the sum of exponentials, clamped."""
    kernel = case.kernel
    value = Apply("add", (Reduced(0), Load(2, Index((0, kernel.out_channels, 1, *[0] * len(kernel.axes))))))
    scaled = Apply("exp", (Apply("sub", (value, Reduced(1))),))
    reductions = (Reduction("max", value), Reduction("sum", scaled), Reduction("moments", value),
                  Reduction("logsumexp", value))
    sizes = (kernel.batch, kernel.groups, 1, *(a.out_size for a in kernel.axes))
    once = Index(tuple(s if size > 1 else 0 for s, size in zip(strides_of(sizes), sizes, strict=True)))
    stores = (Store(0, kernel.stores[0].index, Apply("div", (scaled, Reduced(2)))),
              Store(1, once, Apply("mul", (Apply("relu", (Reduced(4),)), Apply("add", (Reduced(3), Reduced(3, 1)))))))
    changed = replace(kernel, stores=stores, reductions=reductions, input_dtypes=("float32",) * 3,
                      output_dtypes=("float32",) * 2)
    return ContractionCase(case.name + "_reduced", changed,
                           (*case.shapes, (kernel.groups * kernel.out_channels,)))


REDUCING = [reducing(case) for case in (SMALL, ODD, LINE, conv(2, 3, 2, 5, (7, 9), (3, 3), stride=2),
                                        conv(2, 1, 3, 1, (9, 9), (3, 3)))]
STRIDED = [conv(1, 1, 2, 3, (7, 9), (3, 3), stride=2, padding=1, transposed=t) for t in (False, True)]


@pytest.fixture(scope="module")
def built() -> dict[str, tuple]:
    """Library and source by case."""
    everything = [*CASES, *TYPED, VECTOR, *OPERANDS, *STRIDED, *REDUCING]
    found = build([case.kernel for case in everything])
    return {case.name: one for case, one in zip(everything, found, strict=True)}


@pytest.mark.parametrize("case", [*CASES, *OPERANDS], ids=lambda case: case.name)
def test_sums_agree_with_float64(case, built):
    inputs = case.inputs()
    assert_exact(case, run(*built[case.name], case.kernel, inputs), inputs)


@pytest.mark.parametrize("case", REDUCING, ids=lambda case: case.name)
def test_channels_are_reduced_before_anything_is_stored(case, built):
    inputs = case.inputs()
    for found, expected in zip(run(*built[case.name], case.kernel, inputs), case.expected(inputs), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-5)


#: Every way to write, to read, to run and to share among threads.
SCHEDULES = [
    (DEPTHWISE, Schedule((8, 36), 2, 0, 4, 1, 1, 1, 4)), (DEPTHWISE, Schedule((5, 12), 3, 0, 1, 1, 1, 1, 1)),
    (SMALL, Schedule((2, 3, 8), 2, 1, 3, 4, 4, 2)), (SMALL, Schedule((4, 5, 3), 1, 0, 2, 2, 3, 1)),
    (SMALL, Schedule((1, 2, 8), 1, 2, 4, 16, 1, 3)), (LINE, Schedule((16,), 1, 0, 4, 3, 1, 3, 4)),
    (ODD, Schedule((2, 2, 9), 2, 1, 2, 4, 2, 3, 1, "traded")),
    (ODD, Schedule((2, 2, 8), 1, 0, 2, 1, 3, 2, 1, "traded")),
    (ODD, Schedule((1, 4, 6), 1, 2, 2, 2, 2, 3, 1, "traded")), (ODD, Schedule((2, 4, 6), 1, 1, 4, 2, 2, 3, 1)),
    (EVEN, Schedule((2, 2, 10), 2, 0, 1, 8, 1, 1, 1, "pairs")),
    (EVEN, Schedule((5, 3, 4), 1, 1, 3, 2, 4, 3, 1, "pairs")),
    (EVEN, Schedule((5, 3, 4), 1, 2, 2, 2, 4, 3, 1, "pairs")), (LONG, Schedule((3, 9), 1, 0, 3, 3, 1, 4)),
]


def test_every_schedule_gives_the_sums_in_any_order_of_threads(monkeypatch):
    chosen = [(with_epilogue(case), schedule) for case, schedule in SCHEDULES]
    libraries = build([case.kernel for case, _ in chosen], [s for _, s in chosen])
    for (case, schedule), (library, source) in zip(chosen, libraries, strict=True):
        inputs = case.inputs()
        results = []
        for order in ("forward", "reverse", "7"):
            monkeypatch.setenv("KERNELWRIGHT_EMULATION_ORDER", order)
            results.append(run(library, source, case.kernel, inputs)[0])
        assert_exact(case, results[:1], inputs)
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2]), schedule


@pytest.mark.parametrize("case", TYPED, ids=lambda case: case.name)
def test_other_types_and_several_stores(case, built):
    inputs = case.inputs()
    found, expected = run(*built[case.name], case.kernel, inputs), case.expected(inputs)
    step = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[case.kernel.output_dtypes[0]]
    torch.testing.assert_close(found[0].double(), expected[0], rtol=1.01 * step, atol=1e-6)
    if len(found) > 1:
        sure = (expected[0] - 0.5).abs() > 1e-3
        assert torch.equal(found[1][sure], expected[1][sure])


@pytest.mark.parametrize("case", STRIDED, ids=lambda case: case.name)
def test_infinite_values_and_nans_come_out_as_in_pytorch(case, built):
    x, w = case.inputs()
    x[0, 0, 3, 4], x[0, 1, 6, 8], x[0, 1, 0, 0], w[0, 1, 0, 0] = inf, -inf, nan, inf
    call = F.conv_transpose2d if case is STRIDED[1] else F.conv2d
    with torch.backends.mkldnn.flags(enabled=False):
        # A padding of zeros times Inf is NaN there; some of PyTorch's kernels leave such products out.
        expected = call(x, w, stride=2, padding=1).flatten()
    found = run(*built[case.name], case.kernel, [x, w])[0]
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_long_sums_are_no_worse_than_pytorchs(built):
    """Products of one sign: a single chain of 6370 additions would lose digits."""
    inputs = [x.abs() + 1 for x in LONG.inputs()]
    library, source = built[LONG.name]
    assert "total[" in source.definition
    expected = LONG.expected(inputs)[0]
    own = (run(library, source, LONG.kernel, inputs)[0].double() - expected).abs().max()
    eager = (F.conv2d(*inputs, padding=3).flatten().double() - expected).abs().max()
    assert own <= max(2 * eager, 3e-7 * expected.abs().max())


def test_what_cannot_be_launched_is_said(built):
    assert schedules(VECTOR.kernel)[0].lanes == 4
    x, w = VECTOR.inputs()
    own, weights, out = (aligned(n, x.dtype) for n in (x.numel() + 4, w.numel(), 2 * 8 * 8 * 12))
    message = launch(*built[VECTOR.name], [own[1:-3].copy_(x.flatten()), weights.copy_(w.flatten()), out])
    assert message is not None and "in0 must be aligned" in message
    with pytest.raises(ValueError, match="shared memory"):
        generate(conv(1, 1, 1, 1, (300, 300), (200, 200)).kernel, "name")
    assert not schedules(conv(1, 1, 1, 1, (100,), (1024,), stride=256, transposed=True).kernel)
    with pytest.raises(ValueError, match="does not fit a block"):
        generate(VECTOR.kernel, "name", Schedule((8, 512), 1, 0, 1, 1, 1, 1))
    with pytest.raises(ValueError, match="does not fit"):  # four at once that are not aligned
        generate(LONG.kernel, "name", Schedule((8, 8), 1, 0, 1, 1, 1, 1, 4))
    with pytest.raises(ValueError, match="blocks exceed"):
        generate(conv(2**22, 1024, 1, 1, (1,), (1,)).kernel, "name", Schedule((1,), 1, 0, 1, 1, 1, 1))
    assert "KW_LAUNCH" not in generate(conv(0, 1, 3, 4, (8,), (3,)).kernel, "name").definition


def test_offsets_have_64_bits_where_they_need_them():
    large, small = conv(256, 128, 1, 1, (256, 512), (3, 3)), conv(8, 128, 1, 1, (256, 512), (3, 3))
    assert "out0[i0 * 16581120LL + " in generate(large.kernel, "name").definition
    assert "LL" not in generate(small.kernel, "name").definition


def test_it_suits_few_channels():
    assert suits(conv(16, 64, 1, 1, (128, 128), (3, 3)).kernel)  # depthwise
    assert suits(conv(16, 1, 3, 16, (128, 128), (3, 3)).kernel)
    assert suits(ODD.kernel)
    assert suits(reducing(ODD).kernel)
    assert not suits(reducing(conv(2, 1, 8, 512, (32, 32), (3, 3))).kernel)  # more channels than a thread holds
    assert not suits(conv(16, 1, 128, 128, (128, 128), (3, 3)).kernel)
    assert not suits(matmul(512, 64, 64, scheme="float32").kernel)
    last = conv(16, 64, 1, 1, (128, 128), (3, 3)).kernel
    moved = replace(last.left, index=Index((64 * 128 * 128, 1, 0, 64 * 128, 64)))
    assert not suits(replace(last, left=moved))


def test_equal_contractions_have_equal_texts():
    first, second = (generate(conv(16, 1, 3, 16, (32, 32), (3, 3)).kernel, "name").definition for _ in range(2))
    assert first == second


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("architecture", ["90a", "80"])
def test_nothing_spills(architecture, tmp_path):
    """Large sizes, as a GPU would get them: their schedules have the most registers."""
    large = [conv(16, 64, 1, 1, (512, 512), (3, 3)), conv(128, 1, 8, 64, (128, 128), (3, 3)),
             with_epilogue(conv(128, 1, 3, 16, (16, 32, 32), (3, 3, 3), stride=2, padding=1, transposed=True)),
             conv(8, 4, 8, 8, (12, 24, 48), (3, 5, 7), stride=2, padding=(1, 2, 3), transposed=True, output_padding=1),
             conv(16, 4, 8, 16, (128, 256), (3, 5), stride=(2, 3), padding=(1, 2), dilation=(2, 1), transposed=True)]
    sources = [generate(case.kernel, f"c{n}") for n, case in enumerate(large)]
    path = tmp_path / "direct.cu"
    path.write_text(support_text(sources, "cuda") + "\n".join(s.definition for s in sources))
    done = subprocess.run(["nvcc", "-std=c++17", "-O3", f"-gencode=arch=compute_{architecture},code=sm_{architecture}",
                           "-Xptxas", "-v", "-cubin", "-o", str(tmp_path / "direct.cubin"), str(path)],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    frames = [line for line in done.stderr.splitlines() if "bytes stack frame" in line]
    assert len(frames) == sum(s.definition.count("__global__") for s in sources)
    assert [f for f in frames if not f.strip().startswith("0 bytes stack frame, 0 bytes spill stores")] == []
