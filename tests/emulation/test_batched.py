"""Batched products as kernels against their meaning in float64: sizes, layouts, operands, epilogues and types."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
import torch
from batched_cases import CASES, Case, ordered, plain
from graph_tools import examples
from hypothesis import given
from hypothesis import strategies as st
from native_tools import aligned, compiled, launch

from kernelwright.codegen.cuda.batched import generate
from kernelwright.codegen.cuda.batched.layout import Layout, Side, along_depth, choose, layouts
from kernelwright.codegen.source import Unsuitable
from kernelwright.ir.registry import torch_dtype
from kernelwright.plan.expressions import Constant, Index, Load, Reduced
from kernelwright.plan.kernels import BatchedProduct, Store

#: Beside what a sum of float32 may be off by, its last rounding; of a result of 16 bits that of this type.
_UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def run(library: tuple, number: int, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The result of a case's kernel."""
    cases, sources, built = library
    case = cases[number]
    output = aligned(case.node.size, torch_dtype(case.node.dtype)).fill_(-7.0)
    launch(built, sources[number], "cuda", inputs, [output])
    return output.reshape(case.node.shape)


def check(case: Case, inputs: list[torch.Tensor], found: torch.Tensor) -> None:
    """No further from float64 than a sum of so many terms in float32 may be."""
    wanted = case.wanted(inputs)
    off = (found.double() - wanted).abs()
    depth = case.kernel.sizes[2]
    granted = (8 + depth) * 2.0**-24 * wanted.abs().max() + _UNIT[case.node.dtype] * wanted.abs()
    assert bool((off <= granted).all()), (case.name, float((off / granted).max()))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory):
    sources = [generate.generate(case.kernel, f"k{n}_batched") for n, case in enumerate(CASES)]
    return CASES, sources, compiled(sources, "cuda", tmp_path_factory.mktemp("batched"))


numbered = pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{n}-{CASES[n].name}")


@numbered
def test_records_mean_what_nodes_mean(number):
    case, inputs = CASES[number], CASES[number].tensors()
    torch.testing.assert_close(case.meant(inputs), case.wanted(inputs), rtol=1e-11, atol=1e-12)


@numbered
def test_results(library, number):
    case, inputs = CASES[number], CASES[number].tensors()
    once, again = (run(library, number, inputs) for _ in range(2))
    assert torch.equal(once, again)
    check(case, inputs, once)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["7x7x5x3", "3x20x12x8", "decayed 1", "handed on 3", "finished 3"])
def test_what_is_not_finite_reaches_what_it_reaches_in_float64(library, name, value):
    """Points beyond the last one of depth, which are zeros, and rows beyond the last one, which are anything, reach no
    result."""
    number = next(n for n, case in enumerate(CASES) if case.name.startswith(name))
    case, inputs = CASES[number], CASES[number].tensors()
    for operand, tensor in enumerate(inputs):
        if tensor.is_floating_point():
            given = [t.clone() for t in inputs]
            given[operand].view(-1)[tensor.numel() // 2] = value
            found, wanted = run(library, number, given), case.wanted(given)
            assert torch.equal(found.isnan(), wanted.isnan()) and torch.equal(found.isinf(), wanted.isinf())
            assert found.isfinite().any() and (found.isnan().any() or value == float("inf"))


# Layouts ---------------------------------------------------------------------------------------------


def test_every_layout_gives_the_same_bits(tmp_path):
    """A sum has one order, whatever part of it a thread has."""
    case = plain(5, 9, 20, 21, left=True)
    found = list(layouts(case.kernel))
    some = found[::max(1, len(found) // 40)]
    sources = [generate.generate(case.kernel, f"k{n}_batched", layout) for n, layout in enumerate(some)]
    built = compiled(sources, "cuda", tmp_path)
    inputs = case.tensors()
    results = [run(([case] * len(some), sources, built), n, inputs) for n in range(len(some))]
    check(case, inputs, results[0])
    assert len(some) > 20 and all(torch.equal(result, results[0]) for result in results)


def sided(draw: st.DrawFn, size: int) -> Side:
    tile = draw(st.sampled_from([size, max(1, size // 2 // 4 * 4 or size)]))
    vector, times = draw(st.sampled_from([(4, 1), (2, 2), (1, 1), (1, 3), (4, 2), (2, 1)]))
    return Side(tile, -(-tile // (vector * times)), vector, times)


@st.composite
def kernels(draw: st.DrawFn) -> tuple[Case, Layout]:
    """Products of drawn sizes with a layout that nobody would choose."""
    sizes = [draw(st.integers(1, 5)), *(draw(st.integers(1, 40)) for _ in range(3))]
    case = plain(*sizes, left=draw(st.booleans()), right=draw(st.booleans()), result=draw(st.booleans()))
    layout = Layout(sided(draw, sizes[1]), sided(draw, sizes[2]), draw(st.sampled_from([4, 8, 16, 40])),
                    draw(st.integers(1, 3)))
    return case, layout


@examples(3)
@given(st.lists(kernels(), min_size=8, max_size=8))
def test_any_layout_of_any_sizes(tmp_path_factory, drawn):
    drawn = [(case, layout) for case, layout in drawn if layout.threads <= 512]
    sources = [generate.generate(case.kernel, f"k{n}_batched", layout) for n, (case, layout) in enumerate(drawn)]
    built = compiled(sources, "cuda", tmp_path_factory.mktemp("drawn"))
    for number, (case, _) in enumerate(drawn):
        inputs = case.tensors()
        check(case, inputs, run(([case for case, _ in drawn], sources, built), number, inputs))


@st.composite
def orders(draw: st.DrawFn) -> Case:
    """Products of drawn sizes, of which each tensor lies in a drawn order."""
    sizes = {c: draw(st.sampled_from([1, 2, 3, 4, 5, 8, 12, 16])) for c in "ghimjnk"}
    terms = ["".join(draw(st.permutations(letters))) for letters in ("ghimk", "ghkjn", "ghimjn")]
    return ordered(sizes, terms, **{word: draw(st.booleans()) for word in ("factor", "beside", "joined")})


@examples(4)
@given(st.lists(orders(), min_size=8, max_size=8))
def test_any_order_of_axes(tmp_path_factory, drawn):
    sources = [generate.generate(case.kernel, f"k{n}_batched") for n, case in enumerate(drawn)]
    built = compiled(sources, "cuda", tmp_path_factory.mktemp("drawn"))
    for number, case in enumerate(drawn):
        inputs = case.tensors()
        torch.testing.assert_close(case.meant(inputs), case.wanted(inputs), rtol=1e-11, atol=1e-12)
        check(case, inputs, run((drawn, sources, built), number, inputs))


def test_chosen_layouts_have_room():
    for case in CASES:
        layout = choose(case.kernel)
        assert layout is not None and layout.shared_bytes(along_depth(case.kernel)) <= 48 << 10
        assert layout.threads <= 256 and layout.step % 4 == 0


def test_products_that_a_model_of_state_spaces_has_leave_few_threads_without_work():
    """No more than two fifths of what threads multiply are thrown away, ragged as tiles may be; none of round ones."""
    for sizes in ((64, 64, 16), (16, 64, 64), (2, 1024, 3), (48, 80, 24), (33, 65, 20), (100, 100, 100)):
        layout = choose(plain(4096, *sizes).kernel)
        assert layout is not None
        useful = 1.0
        for side, size in zip((layout.rows, layout.columns), sizes, strict=False):
            useful *= size / (side.extent * -(-size // side.tile))
        useful *= layout.active / layout.threads
        assert useful == 1.0 if all(size in (2, 16, 64, 1024) for size in sizes[:2]) else useful > 0.6, (sizes, layout)


# Edges -----------------------------------------------------------------------------------------------


def product_of(outer: tuple[int, ...], rows: int, columns: int, depth: int) -> BatchedProduct:
    count = len(outer)
    lead = [0] * count
    lead[-1:] = [1]
    left = Load(0, Index((*(rows * depth * n for n in lead), depth, 0, 1)))
    right = Load(1, Index((*(depth * columns * n for n in lead), 0, 1, columns)))
    store = Store(0, Index((*(rows * columns * n for n in lead), columns, 1, 0)), Reduced(0))
    return BatchedProduct(outer, (rows,), (columns,), (depth,), left, right, store, ("float32", "float32"),
                          ("float32",))


def test_empty_axes(tmp_path):
    """Nothing is launched for no results, and sums of nothing are zeros."""
    empty = [product_of((0,), 4, 4, 4), product_of((3,), 0, 4, 4), product_of((3,), 4, 0, 4)]
    nothing = replace(product_of((3,), 4, 5, 0), left=Constant(1.0), right=Constant(2.0))
    sources = [generate.generate(kernel, f"k{n}_batched") for n, kernel in enumerate([*empty, nothing])]
    assert all("KW_LAUNCH" not in source.definition for source in sources[:3])
    built = compiled(sources, "cuda", tmp_path)
    for n in range(3):
        output = aligned(16, torch.float32).fill_(-7.0)
        launch(built, sources[n], "cuda", [torch.zeros(16), torch.zeros(16)], [output])
        assert bool((output == -7.0).all())
    output = aligned(60, torch.float32).fill_(-7.0)
    launch(built, sources[3], "cuda", [torch.zeros(1), torch.zeros(1)], [output])
    assert bool((output == 0.0).all())


def test_indices_beyond_31_bits(tmp_path):
    """Two products that lie 2**31 elements apart; the memory between them is never touched, so it is never there."""
    far = 2**31 + 64
    case = product_of((2,), 4, 8, 8)
    x = torch.empty(far + 64, dtype=torch.bfloat16)
    y = torch.empty(far + 64, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(1)
    for at in (0, far):
        x[at:at + 64] = torch.randn(64, generator=generator).bfloat16()
    left = Load(0, Index((far, 8, 0, 1)))
    right = Load(0, Index((far, 0, 1, 8)))
    kernel = replace(case, left=left, right=right, store=Store(0, Index((far, 8, 1, 0)), Reduced(0)),
                     input_dtypes=("bfloat16",), output_dtypes=("bfloat16",))
    source = generate.generate(kernel, "k0_batched")
    built = compiled([source], "cuda", tmp_path)
    function = built.run_k0_batched
    function.restype = ctypes.c_char_p
    assert function(*(ctypes.c_void_p(t.data_ptr()) for t in (x, y)), None, None) is None
    for at in (0, far):
        matrix = x[at:at + 64].double().reshape(8, 8)
        assert torch.equal(y[at:at + 32].reshape(4, 8), (matrix[:4] @ matrix).bfloat16())


def test_groups_beyond_31_bits_are_counted(tmp_path):
    """Read here, as no run would end."""
    kernel = product_of((70000, 50000), 4, 4, 4)
    layout = Layout(Side(4, 1, 4, 1), Side(4, 1, 4, 1), 4, 32)
    assert "const long long first = static_cast<long long>" in generate.generate(kernel, "many", layout).definition
    with pytest.raises(Unsuitable, match="more than a launch has blocks"):
        generate.generate(kernel, "many", replace(layout, products=1))
