"""Attention as a kernel against its meaning in float64: sizes, scores, layouts, magnitudes, and what is not finite."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from attention_cases import CASES, Case, attention, error, rectifies
from native_tools import aligned, compiled, launch

from kernelwright.codegen.cuda.attention import generate
from kernelwright.codegen.cuda.attention.layout import MOST_WIDTH, Layout, choose, layouts
from kernelwright.codegen.source import Unsuitable


def run(library: tuple, number: int, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The result of a case's kernel."""
    cases, sources, built = library
    output = aligned(cases[number].node.size, torch.float32).fill_(-7.0)
    launch(built, sources[number], "cuda", inputs, [output])
    return output.reshape(cases[number].node.shape)


def check(case: Case, inputs: list[torch.Tensor], found: torch.Tensor, beside: float = 3e-7) -> None:
    """No further from float64 than twice what PyTorch's float32 is, and not finite where float64 is not."""
    wanted, eager = case.computed(inputs), case.computed(inputs, torch.float32)
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.masked_fill(found.isfinite(), 0.0), wanted.float().masked_fill(wanted.isfinite(), 0.0)
                       ) or bool(wanted.isnan().any())
    ours, theirs = (error(case, inputs, result, wanted) for result in (found, eager))
    assert ours <= 2 * theirs + beside, (case.name, ours, theirs)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory):
    sources = [generate.generate(case.kernel, f"k{n}_attention") for n, case in enumerate(CASES)]
    return CASES, sources, compiled(sources, "cuda", tmp_path_factory.mktemp("attention"))


numbered = pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{n}-{CASES[n].name}")


@pytest.mark.parametrize("number", [n for n, c in enumerate(CASES) if not c.kernel.shift])
def test_records_mean_what_nodes_mean(number):
    case, inputs = CASES[number], CASES[number].tensors()
    doubles = [t.double() if t.is_floating_point() else t for t in inputs]
    wanted = case.node.operator.reference(*doubles, **dict(case.node.attributes))
    torch.testing.assert_close(case.computed(inputs), wanted, rtol=1e-11, atol=1e-12, equal_nan=True)


@numbered
def test_results(library, number):
    case, inputs = CASES[number], CASES[number].tensors()
    once, again = (run(library, number, inputs) for _ in range(2))
    assert torch.equal(once.nan_to_num(), again.nan_to_num())
    check(case, inputs, once)


# Magnitudes ------------------------------------------------------------------------------------------

#: Cases by name, one each, that stand for all: a softmax of multiples of products, of any score, and none.
KINDS = {name: next(n for n, c in enumerate(CASES) if c.name == name) for name in ("divided", "bias", "rectified",
                                                                                  "causal")}
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
@pytest.mark.parametrize("scales", [(1e-25, 1, 1), (1, 1e25, 1), (1, 1, 1e-25), (1, 1, 1e25), (1e25, 1e-25, 1),
                                    (1e-25, 1e25, 1e25), (1e-25, 1e-25, 1e-25), (1e-18, 1e-18, 1e25), (1e18, 1e18, 1)],
                         ids=str)
def test_every_magnitude_comes_through(library, kind, scales):
    case, inputs = CASES[KINDS[kind]], CASES[KINDS[kind]].tensors()
    inputs[:3] = [t * scale for t, scale in zip(inputs, scales, strict=False)]
    check(case, inputs, run(library, KINDS[kind], inputs))


LOUD = {"a query": (0, (0, 1, 5)), "an element of queries": (0, (..., 3)), "a key": (1, (0, 1, 17)),
        "an element of keys": (1, (..., 3)), "a value": (2, (0, 1, 17)), "an element of values": (2, (..., 2)),
        "one number": (2, (0, 0, 4, 1)), "a head": (2, (0, 1)), "a tile of columns": (1, (0, 0, slice(16, 32)))}


@kinds
@pytest.mark.parametrize("name", LOUD)
@pytest.mark.parametrize("scale", [0.0, 1e4, 1e-4])
def test_what_stands_beside_the_loud_is_heard(library, kind, name, scale):
    """Numbers of one tile have one power of two: those that are 10,000 times less than others keep their digits."""
    operand, place = LOUD[name]
    case, inputs = CASES[KINDS[kind]], CASES[KINDS[kind]].tensors()
    inputs[operand][place] *= scale
    check(case, inputs, run(library, KINDS[kind], inputs), 5e-6)


# What is not finite ----------------------------------------------------------------------------------

@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(("kind", "operand"), [(k, n) for k in KINDS for n in range(4 if k == "bias" else 3)])
def test_what_is_not_finite_reaches_what_it_reaches_in_pytorch(library, kind, operand, value):
    case, inputs = CASES[KINDS[kind]], CASES[KINDS[kind]].tensors()
    inputs[operand].flatten(0, -3)[-1, 11, 5] = value
    found = run(library, KINDS[kind], inputs)
    check(case, inputs, found)
    assert found[0, 0].isfinite().all() or kind == "causal"


def test_columns_that_are_hidden_have_no_influence(library):
    number = KINDS["causal"]
    case, inputs = CASES[number], CASES[number].tensors()
    before = run(library, number, inputs)
    for operand in (1, 2):
        for value in (float("nan"), float("inf"), 1e4, 1e30):
            inputs = case.tensors()
            inputs[operand][:, :, 90:] = value
            found = run(library, number, inputs)
            torch.testing.assert_close(found[:, :, :90], before[:, :, :90], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fill", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("rows", [slice(3, 4), slice(None)])
def test_scores_that_are_not_finite(library, fill, rows):
    number = KINDS["bias"]
    case, inputs = CASES[number], CASES[number].tensors()
    inputs[3][1, rows] = fill
    found = run(library, number, inputs)
    check(case, inputs, found)
    assert found[0, 1, rows].isnan().all() and found[0, 0].isfinite().all()


@kinds
@pytest.mark.parametrize("operand", [0, 1, 2])
def test_what_is_quiet_beside_loud_values_keeps_its_digits(library, kind, operand):
    """One row of queries or keys, and two elements of all values, far below the others of their tile."""
    number = KINDS[kind]
    case, inputs = CASES[number], CASES[number].tensors()
    part = inputs[2][..., :2] if operand == 2 else inputs[operand][..., 3, :]
    part *= 1e-12
    found, right, eager = run(library, number, inputs), case.computed(inputs), case.computed(inputs, torch.float32)
    few = (..., slice(2)) if operand == 2 else (..., 3, slice(None)) if operand == 0 else (...,)
    exact = right[few].double()
    scale = exact.abs().max()
    assert (found[few].double() - exact).abs().max() <= 4 * (eager[few].double() - exact).abs().max() + 1e-6 * scale


def test_weights_that_leave_the_range_are_infinite(library):
    number = next(n for n, case in enumerate(CASES) if not case.kernel.softmax)
    inputs = [t.abs() for t in CASES[number].tensors()]
    found = run(library, number, [inputs[0] * 1e20, inputs[1] * 1e20, *inputs[2:]])
    assert found.isinf().any() and not found.isnan().any()


# Layouts, and threads --------------------------------------------------------------------------------

FORMS = [attention("one group", 50, 140, 24, 20, empty_rows=True, causal=True, shift=60),
         attention("two groups", 140, 70, 40, 72),
         attention("parts", 70, 130, 70, 150, heads=1, softmax=False, score=rectifies)]


def laid_out() -> list[tuple[Case, Layout]]:
    """Layouts of every number of groups, columns and stages, with operands split before or by the block itself, of
    which some are taken."""
    found: dict[tuple, list[tuple[Case, Layout]]] = {}
    for case in FORMS:
        for chosen in layouts(case.kernel):
            for layout in (replace(chosen, groups=groups, blocks=1) for groups in (1, 2)):
                key = layout.groups, layout.tile_columns // 16, layout.stages, layout.converts
                if layout.fits and sum(key) % 3 == 0:
                    found.setdefault(key, []).append((case, layout))
    return [some[number % len(some)] for number, some in enumerate(found.values())]


LAID_OUT = laid_out()


def test_every_layout_computes_the_same(tmp_path):
    assert {(x.groups, x.stages, x.converts) for _, x in LAID_OUT} == set(product((1, 2), (1, 2), (False, True)))
    assert len({x.tile_columns for _, x in LAID_OUT}) > 4 and len({case.name for case, _ in LAID_OUT}) > 1
    sources = [generate.generate(case.kernel, f"k{n}_attention", layout) for n, (case, layout) in enumerate(LAID_OUT)]
    library = [case for case, _ in LAID_OUT], sources, compiled(sources, "cuda", tmp_path)
    for number, (case, _) in enumerate(LAID_OUT):
        inputs = case.tensors()
        check(case, inputs, run(library, number, inputs))
        inputs[0][0, 0, 3, 1] = float("nan")
        check(case, inputs, run(library, number, inputs))


@kinds
@pytest.mark.parametrize("order", ["reverse", "1", "2"])
def test_no_order_of_threads_changes_a_bit(library, kind, order, monkeypatch):
    number, inputs = KINDS[kind], CASES[KINDS[kind]].tensors()
    before = run(library, number, inputs)
    monkeypatch.setenv("KERNELWRIGHT_EMULATION_ORDER", order)
    assert torch.equal(before, run(library, number, inputs))


def test_tiles_that_one_block_has_one_after_the_other(library, few_processors):
    for number in (*KINDS.values(), 5):
        case, inputs = CASES[number], CASES[number].tensors()
        check(case, inputs, run(library, number, inputs))


@pytest.mark.parametrize("rows", [1, 64, 65, 4096])
@pytest.mark.parametrize("depth", [1, 16, 64, 100, 256])
@pytest.mark.parametrize("width", [1, 64, 128, 130, 512])
def test_layouts_have_room_for_all(rows, depth, width):
    kernel = attention("room", rows, 200, depth, width).kernel
    found = list(layouts(kernel))
    assert found and choose(kernel) == found[0]
    for layout in found:
        assert layout.deep >= depth and layout.wide * -(-width // layout.wide) >= width and layout.wide <= MOST_WIDTH
        assert layout.shared_bytes <= 227 * 1024 and layout.threads <= 1024 and layout.fits
        fewer, more = layout.registers
        assert layout.blocks * 128 * (fewer + layout.groups * more) <= 1 << 16


def test_queries_that_no_multiprocessor_holds_are_refused():
    with pytest.raises(Unsuitable, match="300 elements"):
        generate.generate(attention("long", 8, 8, 300, 8).kernel, "k0_attention")
