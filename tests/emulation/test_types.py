"""Types other than float32: conversions of 16-bit numbers, and models of every type from capture to gradients."""

from __future__ import annotations

import copy
from math import inf, nan

import pytest
import torch
from emitted_tools import assert_like, emit, import_path, import_text, kernels_run, models, write_problem
from graph_tools import rewritten
from loop_cases import kernel_of, load, store
from test_loops_cpp import build
from test_loops_cpp import launch as launch_cpp
from torch import nn

import kernelwright
from kernelwright.capture.export import capture
from kernelwright.codegen.cpp.loops.generate import generate as generate_cpp
from kernelwright.codegen.cuda.emulation.compile import compile_emulated
from kernelwright.codegen.cuda.expressions import C_TYPES
from kernelwright.codegen.cuda.loops.generate import generate as generate_cuda
from kernelwright.codegen.cuda.math import scalar_snippets
from kernelwright.codegen.cuda.support.snippets import SNIPPETS, snippets
from kernelwright.codegen.reference.plan import values_of
from kernelwright.ir.evaluate import evaluate
from kernelwright.plan.expressions import Apply, Index, Load, Reduced
from kernelwright.plan.kernels import LoopKernel
from kernelwright.roofline.devices import GENERIC_CPU

TARGETS = ("cpp", "cuda")
NARROW = ("float16", "bfloat16")


def float_values(dtype: torch.dtype) -> torch.Tensor:
    """float32 numbers around everything that rounding to ``dtype`` decides, and random bits."""
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype).float()
    finite = every[every.isfinite()].sort().values
    between = ((finite[1:].double() + finite[:-1].double()) / 2).float()
    values = torch.cat([every, between, torch.tensor([65519.0, 65519.996, 65520.0, 65536.0, 3.3961775e38, 3.4e38])])
    bits = torch.randint(-(2**31), 2**31, (1 << 16,), generator=torch.Generator().manual_seed(5)).to(torch.int32)
    around = [torch.nextafter(values, torch.full_like(values, towards)) for towards in (inf, -inf)]
    return torch.cat([values, -values, *around, bits.view(torch.float32), torch.tensor([nan, inf, -inf])])


class Built:
    """Loop kernels of a target, compiled together; CUDA text runs under the emulation."""

    def __init__(self, target: str, kernels: dict[str, LoopKernel], folder) -> None:
        self.target = target
        generate = generate_cpp if target == "cpp" else generate_cuda
        self.sources = {name: generate(kernel, name) for name, kernel in kernels.items()}
        if target == "cpp":
            self.library = build(list(self.sources.values()), folder, "kernels")
            return
        wanted = {name for source in self.sources.values() for name in source.support}
        text = snippets(wanted & SNIPPETS.keys()) + scalar_snippets(wanted - SNIPPETS.keys())
        for name, kernel in kernels.items():
            types = [C_TYPES[d] for d in kernel.input_dtypes + kernel.output_dtypes]
            given = ", ".join(f"void* p{n}" for n in range(len(types)))
            passed = ", ".join(f"static_cast<{t}*>(p{n})" for n, t in enumerate(types))
            text += self.sources[name].definition + f'extern "C" const char* run_{name}({given}, void* workspace) ' \
                f"{{ return {name}({passed}, workspace, nullptr); }}\n"
        self.library = compile_emulated(text)

    def run(self, name: str, tensors: list[torch.Tensor]) -> None:
        launch_cpp(self.library, self.sources[name], tensors)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", NARROW)
def test_conversions_are_those_of_pytorch(dtype: str, target: str, tmp_path) -> None:
    values = float_values(getattr(torch, dtype))
    kernels = {
        "down": kernel_of((len(values),), (), outer_stores=[store(0, (1,), load(0, 1))], outputs=(dtype,)),
        "up": kernel_of((65536,), (), outer_stores=[store(0, (1,), load(0, 1))], inputs=(dtype,)),
    }
    built = Built(target, kernels, tmp_path)
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(getattr(torch, dtype))
    stored, loaded = torch.empty(len(values), dtype=every.dtype), torch.empty(65536)
    built.run("down", [values, stored])
    built.run("up", [every, loaded])
    expected = values.to(stored.dtype)
    same = (stored.view(torch.int16) == expected.view(torch.int16)) | (stored.isnan() & expected.isnan())
    assert same.all(), (values[~same][:5], stored[~same][:5], expected[~same][:5])
    every = every.float()
    same = (loaded.view(torch.int32) == every.view(torch.int32)) | (loaded.isnan() & every.isnan())
    assert same.all(), (every[~same][:5], loaded[~same][:5])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", NARROW)
def test_short_rows_are_stored_element_by_element(dtype: str, target: str, tmp_path) -> None:
    """A row of two elements, one far from the other, less its largest: a store for each of the two."""
    x = torch.randn(2, 300).to(getattr(torch, dtype))
    less = Apply("sub", (load(0, 1, 300), Reduced(0)))
    kernel = kernel_of((300,), (2,), reductions=[("max", load(0, 1, 300))], row_stores=[store(0, (1, 300), less)],
                       inputs=(dtype,), outputs=(dtype,))
    found = torch.empty_like(x)
    Built(target, {"less": kernel}, tmp_path).run("less", [x, found])
    assert torch.equal(found, x - x.amax(0))


@pytest.mark.parametrize("target", TARGETS)
def test_indices_beyond_31_bits(target: str, tmp_path) -> None:
    """Two runs of elements that lie 2**31 apart; the memory between them is never touched, so it is never there."""
    far = 2**31 + 48
    x = torch.empty(far + 64, dtype=torch.int8)
    y = torch.empty(far + 64, dtype=torch.int8)
    x[:64] = torch.arange(64, dtype=torch.int8)
    x[far:] = torch.arange(64, dtype=torch.int8) * 3
    byte = Load(0, Index((far, 1)), (), 0.0, True)
    turned = Load(0, Index((1, far)), (), 0.0, True)
    real = [Apply("to_real", (node,)) for node in (byte, turned)]
    types = {"inputs": ("int8",), "outputs": ("int8",)}
    reduced = {"inputs": ("int8",), "outputs": ("float32",)}
    kernels = {
        "points": kernel_of((2, 64), (), outer_stores=[store(0, (far, 1), Apply("whole_neg", (byte,)))], **types),
        "rows": kernel_of((2,), (64,), reductions=[("sum", real[0])], outer_stores=[store(0, (1, 0), Reduced(0))],
                          row_stores=[], **reduced),
        "columns": kernel_of((64,), (2,), reductions=[("max", real[1])], outer_stores=[store(0, (1, 0), Reduced(0))],
                             **reduced),
    }
    built = Built(target, kernels, tmp_path)
    built.run("points", [x, y])
    assert torch.equal(y[:64], -x[:64]) and torch.equal(y[far:], -x[far:])
    sums, largest = torch.empty(2), torch.empty(64)
    built.run("rows", [x, sums])
    assert sums.tolist() == [float(x[:64].sum()), float(x[far:].sum())]
    built.run("columns", [x, largest])
    assert torch.equal(largest, torch.maximum(x[:64], x[far:]).float())
    # So many points that their number needs more than 31 bits, in every schedule: read here, as no run would end.
    if target == "cuda":
        many = kernel_of((70000, 50000), (), outer_stores=[store(0, (50000, 1), load(0, 50000, 1))])
        row = kernel_of((70000,), (50000,), reductions=[("sum", load(0, 50000, 1))],
                        outer_stores=[store(0, (1, 0), Reduced(0))])
        column = kernel_of((50000,), (70000,), reductions=[("sum", load(0, 1, 50000))],
                           outer_stores=[store(0, (1, 0), Reduced(0))])
        for kernel in (many, row, column):
            assert "(long long)" in generate_cuda(kernel, "many").definition


class Collapsing(nn.Module):
    """Sums of linear operators with pointwise operators between them."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(6, 12, 3, padding=1)
        self.norm = nn.BatchNorm2d(12)
        self.linear = nn.Linear(12, 20)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.norm(self.convolution(x)) * 0.5 + 2.0
        return (y.mean((2, 3)), y.sum(3), (y * 300.0).sum((2, 3)) / 300.0, self.convolution(x).sum(1),
                self.linear(y.transpose(1, 3)).sum(-1), y.var((2, 3)))


@pytest.mark.parametrize("dtype", [*NARROW, "float64"])
def test_rewritten_graphs_lose_no_accuracy(dtype: str) -> None:
    torch.manual_seed(0)
    model = Collapsing().to(getattr(torch, dtype)).eval()
    x = torch.randn(4, 6, 20, 24, dtype=getattr(torch, dtype))
    graph = capture(model, (x,))
    result, applications = rewritten(graph)
    names = {a.rule.name for a in applications}
    assert "sum of a convolution" in names and "sum of a linear layer" in names
    values = values_of(model, graph, (x,))
    with torch.no_grad():
        found = evaluate(result.outputs, values)
        theirs = model(x)
        expected = copy.deepcopy(model).double()(x.double())
    unit = torch.finfo(x.dtype).eps
    for ours, eager, exact in zip(found, theirs, expected, strict=True):
        assert ours.dtype == eager.dtype and ours.shape == eager.shape
        scale = exact.abs().max()
        # In float64 eager is the reference itself.
        allowed = 16 * unit if dtype == "float64" else (eager - exact).abs().max() / scale + unit / 4
        assert (ours - exact).abs().max() / scale <= allowed


# Whole models, on the CPU --------------------------------------------------------------------------

FLOATING = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(64)
            self.convolution = nn.Conv1d(16, 16, 3, padding=1)
            self.running = nn.BatchNorm1d(16)

        def forward(self, x, y):
            z = self.norm(F.gelu(x * y + 0.5) * torch.sigmoid(x))
            chosen = torch.where(x > y * 1.1, z, y)
            pooled = F.avg_pool1d(F.max_pool1d(z, 3, 2, padding=1), 3, 2, padding=1)
            steps = torch.floor(x * 3) + (x + y == y + x) + torch.sign(x - y)
            shared = self.running(self.convolution(x) * 2).relu()
            return (torch.softmax(z, -1), chosen.mean(-1), pooled, steps, x > y * 1.1, torch.logsumexp(x * 4, 1),
                    shared, z.var(-1), (x.float() * 0.1).to(x.dtype), (x.float() * y).sum(1), x.sum(-1))

    def get_inputs():
        return [torch.randn(12, 16, 64, dtype=torch.DTYPE), torch.randn(12, 16, 64, dtype=torch.DTYPE)]
"""


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [*NARROW, "float64"])
def test_models_of_every_floating_type(dtype: str, training: bool, floating) -> None:
    original, emitted = floating(dtype)
    kind = getattr(torch, dtype)
    old, new, inputs = models(original, emitted)
    old.to(kind).train(training), new.to(kind).train(training)
    exact = copy.deepcopy(old).double()
    with torch.no_grad(), kernels_run(emitted, 1):
        found = new(*inputs)
    with torch.no_grad():
        theirs, expected = old(*inputs), exact(*(i.double() for i in inputs))
    unit = torch.finfo(kind).eps
    for number, (ours, eager, reference) in enumerate(zip(found, theirs, expected, strict=True)):
        assert ours.dtype == eager.dtype and ours.shape == eager.shape, number
        if number in (3, 4):  # steps and comparisons: what a rounding decides is decided as PyTorch decides it
            assert torch.equal(ours, eager)
            continue
        error, usual = (float((t.double() - reference).abs().max()) for t in (ours, eager))
        scale = float(reference.abs().max())
        # In float64 a conversion to float32 and back rounds nothing; eager's rounding is its error then.
        limit = (2e-7 if number in (8, 9) else 64 * unit) if dtype == "float64" else 1e-6
        assert error <= limit * scale + (0.0 if dtype == "float64" else 1.01 * usual), number
    for name, buffer in new.named_buffers():
        assert torch.allclose(buffer, dict(old.named_buffers())[name], rtol=4 * unit, atol=4 * unit)


@pytest.fixture(scope="module")
def floating(tmp_path_factory):
    """The floating model's file and its emitted one, by dtype."""
    done = {}

    def get(dtype: str):
        if dtype not in done:
            text = FLOATING.replace("DTYPE", dtype)
            head = f"            self.to(torch.{dtype})\n\n        def forward"
            text = text.replace("\n        def forward", head, 1)
            original, emitted, _ = emit(tmp_path_factory.mktemp("floating"), f"floating_{dtype}", text)
            done[dtype] = original, emitted
        return done[dtype]

    return get


INTEGERS = """
    class Model(nn.Module):
        def forward(self, x, token, mask):
            allowed = (token > 2) & ~mask | (token % 3 == 1)
            scores = torch.where(allowed, x, x * 0.5).masked_fill(token == 0, -1e4)
            place = ((token * 2 + 1) // 4 - (token ^ 3)).clamp(-5, 5)
            bucket = (x * 10).int() + token.to(torch.int32) * 1000003
            hot = (token.unsqueeze(-1) == torch.arange(8)).float()
            return (torch.softmax(scores, -1), place, bucket, hot.sum(1), allowed.sum(-1) * 2, mask.any(0), mask.all(1),
                    (x > 0).long().sum(), torch.where(mask, token, -token).to(torch.int8), token * 4611686018427387905,
                    token / 3 + x, torch.maximum(token, token.roll(1, 1)), (token.float() / 7).to(torch.uint8))

    def get_inputs():
        return [torch.randn(24, 32), torch.randint(0, 8, (24, 32)), torch.rand(24, 32) < 0.5]
"""


def test_integers_and_truth_values(tmp_path) -> None:
    original, emitted, text = emit(tmp_path, "integers", INTEGERS)
    assert "int64_t" in text
    old, new, inputs = models(original, emitted)
    with torch.no_grad(), kernels_run(emitted, 1):
        found = new(*inputs)
    for number, (ours, eager) in enumerate(zip(found, old(*inputs), strict=True)):
        assert ours.dtype == eager.dtype and ours.shape == eager.shape, number
        if ours.is_floating_point():
            assert torch.allclose(ours, eager, atol=1e-6), number
        else:
            assert torch.equal(ours, eager), number


def test_floats_that_no_integer_holds(tmp_path) -> None:
    original, emitted, _ = emit(tmp_path, "unholdable", """
        class Model(nn.Module):
            def forward(self, x):
                y = x * 1.0000001
                return [(y * 2 - 1).to(t) for t in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
                                                   torch.bool)]

        def get_inputs():
            special = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e10, -1e10, 1e20, 300.5, -300.5, -1.5])
            return [torch.cat([special, torch.randn(300) * 1e5, torch.randn(300)])]
    """)
    old, new, (x,) = models(original, emitted)
    with torch.no_grad(), kernels_run(emitted, 1):
        for ours, eager in zip(new(x), old(x), strict=True):
            assert torch.equal(ours, eager), (ours[:9], eager[:9])


LAYOUTS = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2d(6, 8, 3)

        def forward(self, x):
            return (F.gelu(x * 2 + 1).sum(1), torch.softmax(x * 3, 1), self.convolution(x).relu() * 2,
                    (x.reshape(x.shape[0], 720) * 2).exp())

    def get_inputs():
        return [EXAMPLE]
"""
EXAMPLES = {
    "channels last": "torch.randn(3, 6, 10, 12).to(memory_format=torch.channels_last)",
    "transposed": "torch.randn(3, 6, 12, 10).transpose(2, 3)",
    "sliced": "torch.randn(3, 6, 10, 24)[..., ::2]",
    "expanded": "torch.randn(1, 6, 10, 12).expand(3, 6, 10, 12)",
    "batch of one": "torch.randn(1, 6, 10, 12)",
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_layouts_and_sizes_of_inputs(kind: str, tmp_path) -> None:
    original, emitted, _ = emit(tmp_path, "layouts", LAYOUTS.replace("EXAMPLE", EXAMPLES[kind]))
    old, new, (x,) = models(original, emitted)
    with torch.no_grad(), kernels_run(emitted, 1):
        assert_like(new(x), old(x))
    x = x.detach().clone().requires_grad_()
    ours, theirs = (torch.autograd.grad(sum(o.sum() for o in m(x)), x)[0] for m in (new, old))
    assert_like(ours, theirs)


def test_empty_inputs(tmp_path) -> None:
    """Nothing is computed by kernels; a second input may be empty beside kernels that run."""
    path = write_problem(tmp_path, "empty", LAYOUTS.replace("EXAMPLE", "torch.randn(0, 6, 10, 12)"))
    source = kernelwright.explain(path, target="cpp", device=GENERIC_CPU).source
    original, emitted = import_path(path), import_text(source, tmp_path, "empty")
    old, new, (x,) = models(original, emitted)
    assert_like(new(x), old(x))
    original, emitted, _ = emit(tmp_path, "partly_empty", """
        class Model(nn.Module):
            def forward(self, x, more):
                return F.gelu(torch.cat((x, more)) * 2 + 1).sum(1), more * 2

        def get_inputs():
            return [torch.randn(40, 30), torch.empty(0, 30)]
    """)
    old, new, inputs = models(original, emitted)
    with torch.no_grad(), kernels_run(emitted, 1):
        assert_like(new(*inputs), old(*inputs))
