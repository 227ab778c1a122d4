"""Two taps per MMA step, for few channels: geometry, prepacking and the cores sm90 and sm80."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from compile_tools import check_compiles, needs_nvcc
from contraction_cases import ContractionCase, convolution, few_channel_cases, matmul, two_phase_cases, with_epilogue
from contraction_tools import all_generated, build, compiled, run, tilings_of_rows
from gemm_epilogues import channels_last, softmax
from gemm_matrix import ALL, Matrix, check_closely, name_of, one_in, promoted
from test_prepack import check as check_packed

from kernelwright.codegen.cuda.gemm import packed_layout
from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.packed_layout import Rows, alike, has_two_phases
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.search import tilings
from kernelwright.codegen.cuda.gemm.tap_runs import Run, with_tap_pairs
from kernelwright.codegen.cuda.gemm.tiling import Tiling

TWO_TAPS = Tiling("wgmma", rows=64, columns=32, depth=8, stages=3, promote=1)
PINGPONG = replace(TWO_TAPS, rows=128, columns=64, stages=2, pingpong=2, promote=0)
MMA = Tiling("mma", rows=64, columns=16, depth=8, stages=3, promote=1)
BOTH = replace(TWO_TAPS, parities=2)
CASES = few_channel_cases()
LONG = CASES[6]  # one run of 33 taps
# Of 16-bit operands as they are, all taps have partners.
NATIVE = convolution(2, 1, 3, 12, (5, 70), (3, 4), padding=1, scheme="native", dtype="float16")
NATIVE_BOTH = convolution(2, 2, 5, 13, (6, 9), (4, 4), stride=(1, 2), padding=(1, 2), transposed=True, scheme="native",
                          dtype="bfloat16")
# Three runs of three taps, a step each: w stays where stages are a multiple of them. Every kind of block.
TILINGS = (replace(TWO_TAPS, stages=6, cluster=2), replace(TWO_TAPS, columns=96, cluster=4),
           replace(TWO_TAPS, rows=256, columns=64, stages=2, promote=0),
           replace(TWO_TAPS, columns=8, pingpong=2, promote=3),
           replace(TWO_TAPS, columns=256, stages=2, promote=0), replace(TWO_TAPS, split_k=2), PINGPONG,
           replace(MMA, rows=128, columns=64, stages=2), replace(MMA, rows=256, columns=128, stages=4, promote=0))
MORE = convolution(2, 1, 20, 24, (7, 9), (3, 3), padding=1)  # three steps over the channels

CHECKED: list[tuple[ContractionCase, Tiling]] = [
    *((case, TWO_TAPS) for case in CASES[:12]), *((case, MMA) for case in CASES[::3]),
    *((case, BOTH) for case in CASES[7:11]), (CASES[13], replace(BOTH, rows=128, columns=64, cluster=2)),
    *((CASES[12], tiling) for tiling in TILINGS),
    (CASES[8], replace(BOTH, rows=128, columns=16, stages=2, pingpong=2, promote=0)),
    (LONG, replace(TWO_TAPS, columns=128, stages=2, promote=0)), (MORE, TWO_TAPS), (MORE, MMA),
    (softmax(CASES[0]), TWO_TAPS),
    (few_channel_cases("fp16")[3], replace(PINGPONG, columns=32)),
    (few_channel_cases("fp16")[9], replace(MMA, promote=0)),
    *((NATIVE, replace(tiling, promote=0)) for tiling in (TWO_TAPS, MMA)), (NATIVE_BOTH, replace(BOTH, promote=0)),
    *((change(NATIVE), replace(TWO_TAPS, promote=0)) for change in (channels_last, softmax)),
    (channels_last(convolution(1, 1, 5, 9, (40,), (4,), scheme="native", dtype="float16")), replace(MMA, promote=0)),
]

pytestmark = pytest.mark.usefixtures("few_processors")


@pytest.fixture(scope="module")
def libraries():
    """A library and its source for each; every fifth one with sanitizers."""
    sources = all_generated(CHECKED)
    found = [*compiled(sources[::5]), *compiled([s for n, s in enumerate(sources) if n % 5], sanitize=False)]
    by_name = {one.name: (library, one) for library, one in found}
    return [by_name[one.name] for one in sources]


class TestMatrix(Matrix):
    """The zeros that stand for a missing tap make nothing of Inf. Those of paddings are multiplied with a weight that
    is not finite in operands of 16 bits as they are, in any tile."""

    entries = CHECKED
    check = staticmethod(check_closely)
    orders = ("reverse", "7", "2026")
    in_orders = one_in(5)
    as_accurate = promoted(CHECKED)
    not_finite = ALL
    weight_not_finite = [n for n, (case, _) in enumerate(CHECKED)
                         if case.kernel.groups > 1 and case.kernel.scheme != "native"]
    on_device = [n for n, (case, _) in enumerate(CHECKED) if not case.kernel.reductions]


def test_packed_operands_are_pytorchs():
    chosen = [*CASES[4:7], MORE, NATIVE]
    for case, one in zip(chosen, build([(c.kernel, TWO_TAPS) for c in chosen], whole=False), strict=True):
        inputs = case.inputs()
        check_packed(one[1].geometry, inputs, run(*one, inputs)[1])


ALL = [(case, tiling) for case in (*CASES, *two_phase_cases()) for tiling in (TWO_TAPS, MMA, BOTH)
       if tiling is not BOTH or has_two_phases(case.kernel)]


def with_span(monkeypatch, span):
    """Runs of so many rows, none of which is known from before or known later."""
    monkeypatch.setattr(Rows, "span", span)
    monkeypatch.setattr(packed_layout, "_canonical", packed_layout._canonical.__wrapped__)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_classes_are_those_of_the_canonical_tiling(case):
    """What is found once for many tilings is what each of them has."""
    for tiling in {*tilings(case.kernel, "wgmma"), *tilings(case.kernel, "mma")}:
        if tiling.core in ("wgmma", "mma") and tiling.folded_taps == 1:
            geometry = Geometry(case.kernel, tiling)
            assert geometry.classes == packed_layout._classes(geometry)


@pytest.mark.parametrize(("case", "tiling"), ALL, ids=[f"{c.name}-{t.core}{t.parities}" for c, t in ALL])
def test_every_tap_is_in_one_pair(case, tiling, monkeypatch):
    with_span(monkeypatch, 96)  # the same runs
    pairs, single = (Geometry(case.kernel, replace(tiling, depth=depth)) for depth in (8, 16))
    zeros = prod(pairs.window)
    assert pairs.entries == zeros + 1 and single.entries == zeros
    for group, alone in zip(pairs.classes, single.classes, strict=True):
        for run_, usual in zip(group.runs, alone.runs, strict=True):
            assert (run_.phase, run_.shift, max(run_.reaches)) == (usual.phase, usual.shift, usual.taps[-1][0])
            found = []
            for (beyond, entry), (apart, second), feed in zip(run_.taps, run_.seconds, run_.feeds, strict=True):
                found.append((beyond, entry, feed))
                if second == zeros:
                    assert apart == 0  # its own rows, which are always there
                else:
                    assert 0 < apart <= 104  # a descriptor's leading offset is positive
                    found.append((beyond + apart, second, feed))
            assert sorted(found) == sorted((*tap, feed) for tap, feed in zip(usual.taps, usual.feeds, strict=True))
            feeds = [usual.feeds.count(feed) for feed in set(usual.feeds)]
            assert len(run_.taps) == sum(-(-count // 2) for count in feeds)


def test_pairs_of_a_run():
    run_ = Run(1, 7, ((0, 4), (1, 2), (3, 9), (5, 1), (9, 0)), (0, 1, 0, 0, 1))
    assert with_tap_pairs(run_, 10) == Run(1, 7, ((0, 4), (1, 2), (5, 1)), (0, 1, 0), ((3, 9), (8, 0), (0, 10)))
    assert with_tap_pairs(run_, 10).reaches == (3, 9, 5) and run_.reaches == (0, 1, 3, 5, 9)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_x_is_half_as_large(case, monkeypatch):
    with_span(monkeypatch, 96)
    for tiling in (TWO_TAPS, MMA):
        pairs, single = (Geometry(case.kernel, replace(tiling, depth=depth)) for depth in (8, 16))
        assert 2 * pairs.places["left"][1] == single.places["left"][1]
        last = (pairs.blocks[0] - 1) * tiling.rows
        reach = max(r.shift for c in pairs.classes for r in c.runs)
        assert last + reach + pairs.run_rows <= pairs.allocated_rows


@pytest.mark.parametrize(("case", "tiling"), [
    pytest.param(c, t, id=name_of(c, t)) for c, t in CHECKED if t.core == "wgmma"])
def test_no_cut_parts_a_pair(case, tiling):
    layout = Layout(Geometry(case.kernel, tiling), 0)
    for group, tap_groups in zip(layout.geometry.classes, layout.tap_groups, strict=True):
        whole = sorted((entry, *second) for run_ in group.runs for (_, entry), second in
                       zip(run_.taps, run_.seconds, strict=True))
        assert whole == sorted((entry, *second) for tap_group in tap_groups for (_, entry), second in
                               zip(tap_group.taps, tap_group.seconds, strict=True))
        for tap_group in tap_groups:
            last = max(beyond + apart for (beyond, _),
                       (apart, _) in zip(tap_group.taps, tap_group.seconds, strict=True))
            assert tap_group.rows == tiling.rows + last <= layout.pitch  # what the products read has been brought
            assert sum(tap_group.counts) == len(tap_group.taps) == len(tap_group.seconds)
            assert not tiling.promote or len(tap_group.taps) <= 8  # no sum in tensor cores is longer than 128 channels


@pytest.mark.parametrize(("counts", "most"), [
    ([(3,), (3,)], 3), ([(5,)], 5), ([(8,), (8,)], 8), ([(9,), (9,)], 3), ([(4,), (2,)], 2), ([(8,), (4,)], 4),
    ([(3,), (2,)], 0), ([(2,), (1,)], 0), ([(1,), (1,)], 1), ([(10,), (10,)], 2), ([(11,)], 0), ([(1, 2), (1, 2)], 3),
    ([(1, 2), (1, 1)], 0), ([(5, 5)], 0), ([], 0), ([(2,), (2, 2), (2, 2), (2,)], 0)])
def test_steps_that_are_alike(counts, most):
    assert alike(counts) == most


def test_steps_are_alike_where_sums_are_promoted():
    """Of lines of 64 positions a run has the lines of all rows of the window, or one, never two and one."""
    for channels, size, window in ((8, (16, 64, 64), (3, 3, 3)), (6, (9, 64, 64), (3, 3, 2)), (8, (32, 32), (5, 5)),
                                   (8, (48, 48), (3, 3)), (8, (6, 60, 60), (3, 5, 7)), (7, (80, 80), (3, 3))):
        geometry = Geometry(convolution(4, 1, channels, 24, size, window).kernel,
                            replace(TWO_TAPS, rows=128, pingpong=2))
        assert len({tap_group.counts for group in Layout(geometry, 0).tap_groups
                    for tap_group in group}) == 1, (channels, size)
        taps = [entry for run_ in geometry.classes[0].runs for _, entry in (*run_.taps, *run_.seconds)]
        assert sorted(set(taps) - {prod(window)}) == list(range(prod(window)))


def test_long_runs_are_cut_and_weights_stay():
    assert [len(p.taps) for p in Layout(Geometry(LONG.kernel, TWO_TAPS), 0).tap_groups[0]] == [5, 6, 6]
    kept = [Layout(Geometry(CASES[0].kernel, replace(TWO_TAPS, stages=stages)), 0).keeps_right
            for stages in (2, 3, 4, 6)]
    assert kept == [False, True, False, True]


@pytest.mark.parametrize("scheme", ["fp16x3", "fp16", "native"])
@pytest.mark.parametrize("core", ["wgmma", "mma"])
def test_pairs_are_proposed_first_for_few_channels(scheme, core):
    dtype = "float16" if scheme == "native" else "float32"
    kind = {"scheme": scheme, "dtype": dtype}
    odd = [*few_channel_cases(scheme, dtype)[:6], convolution(128, 1, 8, 64, (256, 256), (3, 3), padding=1, **kind)]
    even = [convolution(16, 1, 8, 64, (64, 64), (3, 4), padding=1, **kind),
            convolution(16, 1, 4, 64, (64, 64), (4, 4), stride=2, padding=1, transposed=True, **kind)]
    for case in even if scheme == "native" else odd + even:
        found = tilings(case.kernel, core)
        assert found[0].depth == 8 and len(set(found)) == len(found) <= 8
        assert any(t.depth > 8 or t.folded_taps > 1 or t.core == "row_buffered" for t in found)
        for tiling in found:
            generate(replace(case.kernel, tiling=tiling), "k")
    for case in (convolution(2, 1, 9, 64, (64, 64), (3, 3), **kind), matmul(4096, 8, 64, **kind),
                 *(odd[-1:] if scheme == "native" else [])):
        assert all(t.depth > 8 for t in tilings(case.kernel, core))


def test_sums_in_tensor_cores_are_no_longer_than_those_of_taps():
    """Channels that are not zeros, of the products between two promotions."""
    for channels, window in ((8, (3,)), (8, (103,)), (8, (203,)), (3, (7, 7))):  # promoted after 32, 64, 128, 32
        kernel = convolution(8, 1, channels, 64, (500,) * len(window), window).kernel
        found = tilings_of_rows(kernel)
        pairs, others = ({t.promote for t in found if (t.depth == 8) == paired} for paired in (True, False))
        assert pairs and (others or channels == 3) and 0 not in pairs  # 3 channels: taps are joined
        assert 2 * max(pairs) <= max(max(others, default=0), 2)


@pytest.mark.parametrize(("case", "tiling"), [
    (matmul(70, 8, 36), TWO_TAPS), (matmul(70, 8, 36), MMA), (CASES[0], replace(TWO_TAPS, depth=24)),
    (CASES[5], replace(MMA, columns=128, converts_right=True)),
    (few_channel_cases("native", "float16")[0], replace(TWO_TAPS, promote=0))])
def test_what_has_no_pairs_is_refused(case, tiling):
    with pytest.raises(ValueError, match=r"no (tiles|pairs|threads)"):
        generate(replace(case.kernel, tiling=tiling), "k")


@needs_nvcc
def test_registers_suffice_and_products_are_not_serialised(tmp_path):
    chosen = [convolution(128, 1, 8, 64, (256, 256), (3, 3), padding=1, scheme="fp16"),
              convolution(128, 1, 3, 64, (224, 224), (7, 7), stride=2, padding=3),
              convolution(16, 1, 8, 64, (64, 64), (3, 3), stride=2, padding=1, transposed=True),
              convolution(16, 1, 8, 64, (64, 64), (3, 4), padding=1, scheme="native", dtype="float16")]
    kernels = [with_epilogue(case).kernel for case in chosen]
    kernels += [chosen[1].kernel, convolution(128, 1, 3, 24, (24, 32, 32), (3, 3, 3)).kernel]  # taps are joined
    kernels += [convolution(128, 1, c, 64, (16, 64, 64), (3, 3, 3)).kernel for c in (8, 3)]  # runs of two lines and one
    kernels = [replace(k, tiling=t) for k in kernels for t in tilings_of_rows(k)[:1]] + \
        [replace(k, tiling=t) for k in kernels[1:6:2] for t in tilings(k, "mma")[:1]]
    assert {kernel.tiling.folded_taps for kernel in kernels} == {1, 2}
    assert all(kernel.tiling.depth == 8 for kernel in kernels)
    check_compiles(kernels, "90a", tmp_path)
