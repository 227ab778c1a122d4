"""Folded taps, neighbours of a line as channels of one: the same sums in float64, and kernels of the cores sm90 and
sm80."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from contraction_cases import ContractionCase, convolution, with_epilogue
from contraction_tools import all_generated, compiled, guessed_scales, run, tilings_of_rows
from gemm_matrix import Matrix, built, check_images, one_in
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plan_tools import Of, contractions
from test_contractions_twice_tune import captured
from torch import nn

from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.search import tilings
from kernelwright.codegen.cuda.gemm.tap_folding import foldable_taps, with_folded_taps
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.reference.contraction import evaluate_contraction
from kernelwright.ir.node import Node
from kernelwright.plan.contraction.products import can_contract
from kernelwright.plan.expressions import Index, Load, Reduced
from kernelwright.plan.kernels import Reduction, Store
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelConfig, Plan
from kernelwright.tune.contraction_fit import fitting

TWO_TAPS = Tiling("wgmma", rows=64, columns=24, depth=8, stages=4, promote=1)
WIDE = Tiling("wgmma", rows=128, columns=32, depth=16, stages=3, promote=2, pingpong=2)
PORTABLE = Tiling("mma", rows=64, columns=32, depth=16, stages=2, promote=1)


def averaged(case: ContractionCase) -> ContractionCase:
    """The sum over positions in place of the result."""
    kernel = case.kernel
    place = Index((kernel.groups * kernel.out_channels, kernel.out_channels, 1, *(0 for _ in kernel.axes)))
    changed = replace(kernel, position_reductions=(Reduction("sum", Reduced(0)),),
                      stores=(Store(0, place, Reduced(1)),))
    return replace(case, name=case.name + "_total", kernel=changed)


def with_bias(case: ContractionCase) -> ContractionCase:
    """The case with an epilogue, its x as it is."""
    changed = with_epilogue(case)
    return replace(changed, kernel=replace(changed.kernel, left=case.kernel.left))


CASES = [
    convolution(2, 1, 3, 24, (6, 7, 9), (3, 3, 3)),
    with_bias(convolution(3, 1, 3, 20, (9, 12), (3, 3), padding=1)),
    with_bias(convolution(2, 1, 3, 20, (11, 15), (7, 7), stride=2, padding=3)),
    convolution(2, 2, 1, 9, (8, 23), (3, 5), padding=(1, 2)),
    convolution(2, 1, 2, 12, (40,), (11,), stride=4, padding=2),
    convolution(2, 1, 1, 16, (9, 30), (2, 3), dilation=2),
    convolution(2, 1, 4, 12, (7, 13), (3, 3), padding=1, transposed=True),
    convolution(2, 1, 3, 10, (9, 12), (3, 3), padding=1, scheme="fp16"),
    convolution(2, 1, 3, 10, (9, 12), (2, 4), scheme="native", dtype="float16"),
    averaged(convolution(2, 1, 3, 10, (9, 12), (3, 3), padding=1)),
]
CHECKED = [
    (case, replace(tiling, folded_taps=foldable_taps(case.kernel),
                   promote=tiling.promote * (case.kernel.scheme == "fp16x3")))
    for case in CASES for tiling in (TWO_TAPS, WIDE, PORTABLE)
    if not (case.kernel.position_reductions and tiling.core == "mma")]
CHECKED += [(CASES[1], replace(TWO_TAPS, folded_taps=2, converts_left=True)),
            (CASES[2], replace(WIDE, folded_taps=2, packs_concurrently=True, rows=64, promote=1))]

pytestmark = pytest.mark.usefixtures("few_processors")
libraries = built(CHECKED)


class TestMatrix(Matrix):
    """What is not finite meets the taps that it meets, and none that stand behind the window."""

    entries = CHECKED
    orders = ("reverse",)
    in_orders = one_in(3)
    not_finite = [n for n, (case, _) in enumerate(CHECKED) if case.kernel.scheme != "native"][::2]
    on_device = [n for n, (_, tiling) in enumerate(CHECKED) if tiling.core == "wgmma"]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_same_sums(data):
    """Whatever the stride, the padding, the dilation and the order of the taps."""
    rank = data.draw(st.integers(1, 3))

    def each(least: int, most: int) -> tuple[int, ...]:
        return tuple(data.draw(st.lists(st.integers(least, most), min_size=rank, max_size=rank)))

    transposed = data.draw(st.booleans())
    strides = each(1, 3)
    options = {"stride": (*strides[:-1], 1) if transposed else strides, "padding": each(0, 3), "dilation": each(1, 3)}
    case = convolution(data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2)), data.draw(st.integers(1, 4)),
                       data.draw(st.integers(1, 3)), (*each(1, 6)[1:], data.draw(st.integers(1, 14))),
                       (*each(1, 3)[1:], data.draw(st.integers(2, 9))), transposed=transposed, **options)
    assume(all(axis.out_size > 0 for axis in case.kernel.axes))
    kernel = case.kernel
    count = data.draw(st.integers(2, 8 // kernel.in_channels))
    assume(count <= len(kernel.axes[-1].taps))
    changed = with_folded_taps(kernel, count)
    assert changed.in_channels == count * kernel.in_channels and changed.domain == kernel.domain
    assert len(changed.axes[-1].taps) == -(-len(kernel.axes[-1].taps) // count)
    (found,), (expected,) = (evaluate_contraction(k, case.inputs()) for k in (changed, kernel))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_scales_that_were_guessed():
    """A channel of a tap finds the same greatest magnitude as x does."""
    case, tiling = CHECKED[3]
    inputs = case.inputs()
    inputs[0].view(-1)[7] = 1e5
    with guessed_scales():
        (library,) = compiled(all_generated([(case, tiling)]))
    (found,), _ = run(*library, inputs)
    check_images(case, inputs, found, 2.0**-21)


def test_what_is_joined():
    """As many taps as eight channels hold, shared evenly."""
    def count(channels: int, taps: int, **options) -> int:
        return foldable_taps(convolution(1, 1, channels, 8, (32, 32), (3, taps), **options).kernel)

    assert [count(c, 3) for c in (1, 2, 3, 4, 5, 8)] == [3, 3, 2, 2, 1, 1]
    assert [count(1, taps) for taps in (1, 2, 7, 8, 9, 11)] == [1, 2, 7, 8, 5, 6]
    assert count(3, 3, stride=2) == 2 and count(3, 4, stride=2, transposed=True) == 1
    assert count(3, 3, stride=(2, 1), transposed=True) == 2
    assert count(3, 3, scheme="native", dtype="float16") == 1 and count(3, 4, scheme="native", dtype="float16") == 2
    assert foldable_taps(with_epilogue(CASES[0]).kernel) == 1  # a function of x stands for zeros, too


def test_strides_are_taken_in():
    """Of stride 2 and 2 taps x has half as many positions, -1, 1, ..., 19, and no stride."""
    axis = with_folded_taps(convolution(1, 1, 3, 8, (20, 20), (7, 7), stride=2, padding=3).kernel, 2).axes[-1]
    assert (axis.in_stride, len(axis.taps), axis.in_size) == (1, 4, 11)


def test_proposed_first_and_in_turn():
    """Of three channels both kinds are tried; of eight there is nothing to join."""
    for core in ("wgmma", "mma"):
        found = tilings(CASES[0].kernel, core)
        assert [t.folded_taps for t in found[:6]] == [2, 2, 1, 2, 2, 1], core
        assert not any(t.folded_taps > 1 and t.converts_left for t in found)
        for tiling in found:
            generate(replace(CASES[0].kernel, tiling=tiling), "k")
        assert all(t.folded_taps == 1 for t in tilings(convolution(2, 1, 8, 24, (20, 20), (3, 3)).kernel, core))


def test_tall_tiles_are_among_the_first():
    """One tile of 256 rows, of x as it lies where no taps are joined, where sums of few channels are promoted."""
    eight, three = (convolution(128, 1, c, 64, (16, 64, 64), (3, 3, 3)).kernel for c in (8, 3))
    for kernel, joins, raw in ((eight, 1, True), (three, 2, False)):
        tall = [t for t in tilings_of_rows(kernel)[:5] if t.rows == 256 and t.folded_taps == joins]
        assert tall and tall[0].converts_left == raw and tall[0].depth == 8
    assert all(t.rows < 256 for t in tilings_of_rows(replace(eight, scheme="fp16"))[:5])


def test_another_plan_joins_no_taps():
    """A tiling that was measured with x as it lies is changed where a plan has a function of x in the kernel."""
    model = Of(lambda m, x: m.a(x.relu()), a=nn.Conv2d(3, 24, 3, bias=False))
    graph = captured(model, 2, 3, 32, 32)
    (node,) = (n for n in graph.nodes() if can_contract(n))
    for tiling, others in ((TWO_TAPS, {}), (replace(TWO_TAPS, rows=128, pingpong=2, overlap=12), {"overlap": 12})):
        choice = KernelConfig("fp16x3", replace(tiling, folded_taps=2))

        def plan_of(choices: dict[Node, KernelConfig]) -> Plan:
            return make_plan(graph, graph, move_bias=True, contractions=choices)

        (kernel,) = contractions(plan_of({node: choice}))
        assert not isinstance(kernel.left, Load)
        with pytest.raises(ValueError, match="no taps to fold"):
            generate(kernel, "k")
        found = fitting(plan_of, {node: choice})[node].tiling
        assert found.folded_taps == 1 and (found.rows, found.depth) == (tiling.rows, 8)
        assert all(getattr(found, name) == value for name, value in others.items())


def test_refused():
    """Taps that cannot be joined are a ValueError, of the generator, too."""
    kernel = CASES[0].kernel
    for changed, taps in ((kernel, 1), (kernel, 3), (with_epilogue(CASES[0]).kernel, 2),
                          (replace(kernel, left=Load(0, kernel.left.index, otherwise=1.0)), 2),
                          (convolution(1, 1, 3, 8, (9, 9), (3, 3), stride=2, transposed=True).kernel, 2),
                          (replace(kernel, axes=()), 2)):
        with pytest.raises(ValueError, match="taps"):
            with_folded_taps(changed, taps)
    with pytest.raises(ValueError, match="taps"):
        generate(replace(kernel, tiling=replace(TWO_TAPS, folded_taps=3)), "k")


def test_x_and_w_themselves_are_read_again():
    """Sums that are not finite come from the operands as they lie."""
    text = generate(replace(CASES[0].kernel, tiling=CHECKED[0][1]), "k").definition
    recompute = text[text.index("k_recompute("):]
    assert "k_own_left(" in recompute and "k_own_right(" in recompute
    assert "k_own_left(" not in generate(replace(CASES[0].kernel, tiling=TWO_TAPS), "k").definition
