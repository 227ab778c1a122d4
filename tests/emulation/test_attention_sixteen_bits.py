"""Attention in bfloat16 and float16 as a kernel against its meaning in float64, of operands of these types."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from attention_cases import CASES, Case, attention, error, narrow, rectifies
from native_tools import aligned, compiled, launch

from kernelwright.codegen.cuda.attention import generate
from kernelwright.codegen.cuda.attention.narrow_layout import MOST_WIDTH, NarrowLayout, choose, layouts
from kernelwright.codegen.source import Unsuitable
from kernelwright.ir.registry import torch_dtype

#: Half a unit in the last place of a result, and of a weight, by type; and of sums that tensor cores cut.
ROUNDED = {"bfloat16": 2.02 * 2.0**-8, "float16": 2.02 * 2.0**-11}
#: One type for each case: both see every kind of score.
NARROW = [narrow(case, ("bfloat16", "float16")[n % 2]) for n, case in enumerate(CASES)]
#: By name, one each: a softmax of multiples of products, of any score, none, and hidden columns, in both types.
KINDS = {f"{name} {dtype}": narrow(next(c for c in CASES if c.name == name), dtype)
         for name in ("divided", "bias", "rectified", "causal") for dtype in ROUNDED}
kinds = pytest.mark.parametrize("kind", KINDS)


def run(library: tuple, number: int, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """The result of a case's kernel."""
    cases, sources, built = library
    case = cases[number]
    output = aligned(case.node.size, torch_dtype(case.kernel.compute)).fill_(-7.0)
    launch(built, sources[number], "cuda", list(inputs), [output])
    return output.reshape(case.node.shape)


def check(case: Case, inputs: list[torch.Tensor], found: torch.Tensor, beside: float = 0.0) -> None:
    """As near to float64 as weights and results of the type are, and not finite where float64 is not, or where it
    leaves the range of the type."""
    dtype = torch_dtype(case.kernel.compute)
    wanted = case.computed(inputs)
    assert torch.equal(found.isnan(), wanted.isnan())
    rounded = wanted.to(dtype).double()
    off = error(case, inputs, found.double().where(rounded.isfinite(), wanted), wanted)
    assert off <= ROUNDED[case.kernel.compute] + beside, (case.name, off)


def build(cases: Sequence[Case], folder) -> tuple:
    sources = [generate.generate(case.kernel, f"k{n}_attention") for n, case in enumerate(cases)]
    return cases, sources, compiled(sources, "cuda", folder)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory):
    return build(NARROW, tmp_path_factory.mktemp("attention"))


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory):
    cases, sources, built = build(list(KINDS.values()), tmp_path_factory.mktemp("attention"))
    numbers = {kind: n for n, kind in enumerate(KINDS)}
    return (cases, sources, built), numbers


@pytest.mark.parametrize("number", range(len(NARROW)), ids=lambda n: f"{n}-{NARROW[n].name}")
def test_results(library, number):
    case, inputs = NARROW[number], NARROW[number].tensors()
    once, again = (run(library, number, inputs) for _ in range(2))
    assert torch.equal(once.nan_to_num(), again.nan_to_num())
    check(case, inputs, once)


@kinds
@pytest.mark.parametrize("scales", [(1e-3, 1, 1), (30, 30, 1), (1, 1, 1e-3), (1, 1, 1e3)], ids=str)
def test_magnitudes_come_through(some, kind, scales):
    (cases, *_), numbers = some
    case = cases[numbers[kind]]
    inputs = case.tensors()
    inputs[:3] = [t * scale for t, scale in zip(inputs, scales, strict=False)]
    # Weights below what float16 holds as usual numbers have fewer digits, as they have where a model rounds them.
    tiny = 2.0**-13 if case.kernel.compute == "float16" and not case.kernel.softmax else 0.0
    check(case, inputs, run(some[0], numbers[kind], inputs), tiny)


@kinds
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("operand", range(4))
def test_what_is_not_finite_reaches_what_it_reaches_in_pytorch(some, kind, operand, value):
    (cases, *_), numbers = some
    case = cases[numbers[kind]]
    inputs = case.tensors()
    if operand < len(inputs):
        inputs[operand].flatten(0, -3)[-1, 11, 5] = value
        found = run(some[0], numbers[kind], inputs)
        check(case, inputs, found)
        assert found[0, 0].isfinite().all() or "causal" in kind


@pytest.mark.parametrize("dtype", ROUNDED)
def test_columns_that_are_hidden_have_no_influence(some, dtype):
    number = some[1][f"causal {dtype}"]
    case = some[0][0][number]
    inputs = case.tensors()
    before = run(some[0], number, inputs)
    for operand in (1, 2):
        for value in (float("nan"), float("inf"), 1e4):
            inputs = case.tensors()
            inputs[operand][:, :, 90:] = value
            found = run(some[0], number, inputs)
            torch.testing.assert_close(found[:, :, :90], before[:, :, :90], rtol=2.0**-7, atol=2.0**-7)


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("rows", [slice(3, 4), slice(None)])
def test_rows_without_weights(some, dtype, rows):
    number = some[1][f"bias {dtype}"]
    case = some[0][0][number]
    inputs = case.tensors()
    inputs[3][1, rows] = -float("inf")
    found = run(some[0], number, inputs)
    check(case, inputs, found)
    assert found[0, 1, rows].isnan().all() and found[0, 0].isfinite().all()


@kinds
@pytest.mark.parametrize("order", ["reverse", "1"])
def test_no_order_of_threads_changes_a_bit(some, kind, order, monkeypatch):
    number = some[1][kind]
    inputs = some[0][0][number].tensors()
    before = run(some[0], number, inputs)
    monkeypatch.setenv("KERNELWRIGHT_EMULATION_ORDER", order)
    assert torch.equal(before, run(some[0], number, inputs))


@kinds
def test_pieces_that_one_block_has_one_after_the_other(some, kind, few_processors):
    number = some[1][kind]
    inputs = some[0][0][number].tensors()
    check(some[0][0][number], inputs, run(some[0], number, inputs))


# Layouts ----------------------------------------------------------------------------------------------

def test_every_layout_computes_the_same(tmp_path):
    """Of one to three warpgroups, one and two stages, and some numbers of columns."""
    case = narrow(attention("layouts", 200, 200, 40, 72, causal=True, empty_rows=True), "bfloat16")
    alike = narrow(attention("layouts", 200, 200, 40, 72, softmax=False, score=rectifies), "float16")
    found = [NarrowLayout(groups, columns, 48, 72, stages, 1, turns) for groups, columns, stages, turns in (
        (1, 16, 2, False), (1, 64, 1, False), (2, 48, 2, True), (2, 176, 1, False), (3, 96, 1, False), (3, 64, 2, True),
        (3, 48, 1, True), (2, 80, 3, True))]
    cases = [(case, alike)[n % 2] for n in range(len(found))]
    sources = [generate.generate(c.kernel, f"k{n}_attention", layout)
               for n, (c, layout) in enumerate(zip(cases, found, strict=True))]
    library = cases, sources, compiled(sources, "cuda", tmp_path)
    for number, c in enumerate(cases):
        inputs = c.tensors()
        check(c, inputs, run(library, number, inputs))


@pytest.mark.parametrize("rows", [1, 64, 65, 4096])
@pytest.mark.parametrize("depth", [1, 16, 64, 100, 256])
@pytest.mark.parametrize("width", [1, 64, 128, 130, 512])
@pytest.mark.parametrize("causal", [False, True])
def test_layouts_have_room_for_all(rows, depth, width, causal):
    kernel = narrow(attention("room", rows, 200, depth, width, causal=causal, heads=100), "bfloat16").kernel
    found = list(layouts(kernel))
    assert found and choose(kernel) == found[0]
    for layout in found:
        assert layout.deep >= depth and layout.wide * -(-width // layout.wide) >= width and layout.wide <= MOST_WIDTH
        assert layout.shared_bytes <= 227 * 1024 and layout.threads <= 1024 and layout.fits
        fewer, more = layout.registers
        assert layout.blocks * 128 * (fewer + layout.groups * more) <= 1 << 16


def test_queries_that_no_multiprocessor_holds_are_refused():
    with pytest.raises(Unsuitable, match="300 elements"):
        generate.generate(narrow(attention("long", 8, 8, 300, 8), "float16").kernel, "k0_attention")
