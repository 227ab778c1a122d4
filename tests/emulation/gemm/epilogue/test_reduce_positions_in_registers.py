"""Epilogue reduce_positions direct from registers, of the core sm90."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf, nan, prod

import pytest
import torch
from compile_tools import check_compiles, needs_nvcc
from contraction_cases import ContractionCase, convolution
from contraction_tools import all_generated, compiled, generated, run, tilings_of_rows
from gemm_epilogues import SUM, average, every, totalled
from gemm_matrix import EDITS_OF_TOTALS, GuessedScales, Matrix, built, check, name_of, one_in
from test_reduce_positions import APART, GROUPS, IMAGE, LINE, ODD, SPARSE, VOLUME, WGMMA

from kernelwright.codegen.cuda.gemm.epilogue.reduce_positions_in_registers import IN_BOUNDS
from kernelwright.codegen.cuda.gemm.epilogue.subtile import epilogue
from kernelwright.codegen.cuda.gemm.generate import generate
from kernelwright.codegen.cuda.gemm.problem import COMPONENTS, Geometry
from kernelwright.codegen.cuda.gemm.search import tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.reference.contraction import evaluate_contraction
from kernelwright.plan.expressions import Apply, Constant, Guard, Index, Load

SMALL = convolution(9, 1, 5, 20, (6, 7), (3, 3), padding=1)  # 72 rows for each n: several n in a tile
HALVES = convolution(2, 1, 16, 24, (11, 8), (3, 2), scheme="native", dtype="bfloat16")
SINGLE = convolution(2, 1, 12, 24, (13, 15), (3, 3), padding=1, scheme="fp16")


def alone(case: ContractionCase) -> ContractionCase:
    """All kinds of totals of two expressions, of which one reads a tensor at each position, and nothing else."""
    return every(case, ordinary=False)


def many(case: ContractionCase) -> ContractionCase:
    """Totals of several expressions with more values of columns than the table holds, and with a value of each n."""
    kernel = case.kernel
    spatial = [0] * len(kernel.axes)
    channel, sample = Index((0, kernel.out_channels, 1, *spatial)), Index((1, 0, 0, *spatial))
    loads = [Load(2 + i, channel) for i in range(5)]
    widened = replace(kernel, input_dtypes=(*kernel.input_dtypes, *["float32"] * 6))
    shapes = [*[(kernel.groups * kernel.out_channels,)] * 5, (kernel.batch,)]
    first = Apply("mul", (Apply("add", (SUM, loads[0])), loads[1]))
    second = Apply("add", (Apply("mul", (Apply("relu", (Apply("sub", (SUM, loads[2])),)), loads[3])), loads[4]))
    third = Apply("mul", (first, Load(7, sample)))
    made = ContractionCase(case.name + "_many", widened, (*case.shapes, *shapes))
    return totalled(made, ("moments", first), ("min", second), ("moments", third), ("sum", second),
                    ("max", Constant(2.5)), ordinary=False)


def guarded(case: ContractionCase) -> ContractionCase:
    """The largest and the statistics of sums plus what a tensor holds at the next position of the last axis, 7 behind
    its end."""
    kernel = case.kernel
    place = kernel.stores[0].index
    size = kernel.domain[-1]
    inside = Guard(Index((*[0] * (len(kernel.domain) - 1), 1), 1), size)
    load = Load(2, replace(place, offset=1), (inside,), 7.0)
    value = Apply("add", (SUM, load))
    made = replace(kernel, input_dtypes=(*kernel.input_dtypes, "float32"))
    return totalled(ContractionCase(case.name + "_guarded", made, (*case.shapes, (prod(kernel.domain),))),
                    ("max", value), ("moments", value), ordinary=False)


CHECKED: list[tuple[ContractionCase, Tiling]] = [
    (alone(IMAGE), WGMMA), (alone(IMAGE), replace(WGMMA, rows=128, columns=16)), (alone(GROUPS), WGMMA),
    (alone(SMALL), replace(WGMMA, rows=256, columns=24)),
    (alone(SMALL), replace(WGMMA, rows=256, columns=24, stages=2, pingpong=2)),  # four products, and up to five n
    (alone(VOLUME), replace(WGMMA, columns=48, cluster=2)), (alone(LINE), replace(WGMMA, columns=40, pingpong=2)),
    (alone(LINE), replace(WGMMA, rows=128, columns=64, promote=0, pingpong=2)),
    (alone(LINE), replace(WGMMA, columns=256, stages=2, promote=0)),
    (alone(SPARSE), replace(WGMMA, columns=8)), (alone(APART), replace(WGMMA, parities=2)),
    (alone(ODD), replace(WGMMA, rows=128, columns=24, parities=2)),
    (alone(ODD), replace(WGMMA, rows=128, columns=16, parities=2, promote=0, pingpong=2)),
    (many(GROUPS), replace(WGMMA, columns=16)), (many(SMALL), replace(WGMMA, rows=128, pingpong=2)),
    (many(APART), WGMMA), (guarded(IMAGE), WGMMA), (guarded(ODD), replace(WGMMA, columns=8, parities=2)),
    (average(SINGLE), replace(WGMMA, rows=128, promote=0, pingpong=2)), (alone(SINGLE), replace(WGMMA, promote=0)),
    (alone(HALVES), replace(WGMMA, promote=0)), (average(LINE), replace(WGMMA, rows=128, columns=128, stages=2)),
]
SCALED = [n for n, (case, _) in enumerate(CHECKED) if case.kernel.scheme == "fp16x3"]

pytestmark = pytest.mark.usefixtures("few_processors")
libraries = built(CHECKED)


class TestMatrix(Matrix):
    """Tiles hold rows of several n, which are scaled each as ever."""

    entries = CHECKED
    orders = ("reverse", "7", "2026")
    in_orders = one_in(2)
    of_magnitudes = [n for n in SCALED if "many" not in CHECKED[n][0].name]
    side_by_side = SCALED


@pytest.mark.parametrize("number", [n for n, (c, _) in enumerate(CHECKED) if c.kernel.groups == 1])
def test_positions_of_cells(number, libraries):
    """Each position counts once, at its n; one cell of a warpgroup's rows has all those of an n."""
    case, tiling = CHECKED[number]
    geometry = libraries[number][1].geometry
    _, workspace = run(*libraries[number], case.inputs())
    at, size = geometry.places["position_counts"]
    found = workspace[at:at + size].view(torch.int32).reshape(len(geometry.classes), geometry.subtiles, 2)
    subtiles, pitch = tiling.rows // 64 // (1 if tiling.pingpong == 2 or tiling.rows == 64 else 2), geometry.pitches[0]
    counts = torch.zeros(case.kernel.batch, dtype=torch.int64)
    for subtile in range(geometry.subtiles):
        for which in range(2):
            n = subtile * 64 // pitch + which
            cells = found[:, subtile, which]
            first = max(subtile // subtiles * subtiles * 64, n * pitch) // 64
            if n >= case.kernel.batch or subtile != first or (which and (subtile + 1) * 64 <= n * pitch):
                assert not cells.any()
            else:
                counts[n] += cells.sum()
    assert (counts == prod(case.kernel.domain[3:])).all()


@pytest.mark.parametrize("number", range(len(CHECKED)), ids=[name_of(*entry) for entry in CHECKED])
def test_nan_and_inf_come_out_where_pytorch_has_them(number, libraries):
    case = CHECKED[number][0]
    inputs = case.inputs()
    inputs[1] = inputs[1].abs()  # so that sums are infinite, a mean as well, and its variance NaN
    inputs[0].view(-1)[3], inputs[0].view(-1)[-1] = nan, inf  # of the first n, and of the last
    found = run(*libraries[number], inputs)[0]
    if case.kernel.scheme == "fp16":
        case = replace(case, kernel=replace(case.kernel, scheme="native"))  # the last n's finite values are few
    check(case, found, inputs)
    assert any(bool(x.isnan().any()) for x in found)
    if len(found) > 1:
        assert any(bool(x.isinf().any()) for x in found) and any(bool(x.isfinite().any()) for x in found)


class TestGuessedScales(GuessedScales):
    """What marks a row as wrongly guessed is no part of its scale."""

    entries = [(alone(convolution(2, 1, 24, 9, (20, 20), (3, 3), padding=1)), WGMMA)]
    edits = EDITS_OF_TOTALS


STORED = [n for n, (case, _) in enumerate(CHECKED) if case.name.endswith("_min_alone") and n in SCALED][::2]


@pytest.fixture(scope="module")
def stored():
    """The same kernels with the values at each position as a further result: their sums have the same bits."""
    twins = [(every(case), CHECKED[n][1]) for n in STORED for case in [_plain(n)]]
    return dict(zip(STORED, compiled(all_generated(twins)), strict=True))


def _plain(number: int) -> ContractionCase:
    """The convolution of a checked case."""
    name = CHECKED[number][0].name
    return next(case for case in (IMAGE, GROUPS, SMALL, VOLUME, LINE, SPARSE, APART, ODD)
                if name.startswith(case.name))


@pytest.mark.parametrize("number", STORED)
def test_small_variances_beside_large_means(number, libraries, stored):
    """Of the values that a kernel stored, so that their rounding is not in question."""
    case = CHECKED[number][0]
    domain = case.kernel.domain
    inputs = case.inputs()
    inputs[2] += 3e4
    inputs[3] += torch.arange(inputs[3].numel()) % 97 / 40  # subtiles differ in their means
    found = run(*libraries[number], inputs)[0]
    values = run(*stored[number], inputs)[0][0].double().reshape(*domain[:3], -1)
    assert values.mean() > 1e4 * values.std(-1).max() / 4
    torch.testing.assert_close(found[2].double().reshape(domain[:3]), values.mean(-1), rtol=2.0**-23, atol=0)
    torch.testing.assert_close(found[3].double().reshape(domain[:3]), values.var(-1, correction=0), rtol=1e-6, atol=0)


def test_large_values_have_a_mean(libraries):
    """Their sum is no float."""
    number = next(n for n in SCALED if "many" in CHECKED[n][0].name)
    case = CHECKED[number][0]
    inputs = [torch.zeros_like(x) for x in case.inputs()]
    inputs[2] += 3e38
    inputs[3] += 1
    found = run(*libraries[number], inputs)[0]
    right = evaluate_contraction(case.kernel, [*inputs[:-2], torch.ones_like(inputs[-2]), inputs[-1]])
    assert right[0].isfinite().all()
    inputs[-2] += 1
    found = run(*libraries[number], inputs)[0]
    torch.testing.assert_close(found[0].double(), right[0], rtol=1e-6, atol=0)


def test_kernels_that_take_registers():
    """Those on wgmma that store nothing else, and whose sums are not cut into parts."""
    def text(case: ContractionCase, tiling: Tiling) -> tuple[str, bool]:
        kernel = replace(case.kernel, tiling=tiling)
        return generate(kernel, "k").definition, epilogue(Geometry(kernel, tiling), "k").in_registers

    for case, tiling in CHECKED:
        definition, registers = text(case, tiling)
        assert registers and "k_stage<0>(" not in definition and "k_partials(" not in definition
    for case, tiling in [(every(IMAGE), WGMMA), (alone(IMAGE), replace(WGMMA, split_k=2)),
                         (alone(IMAGE), Tiling("mma", rows=64, columns=64, depth=16, stages=2, promote=1))]:
        definition, registers = text(case, tiling)
        assert not registers and "k_partials(" in definition


def test_what_is_loaded_for_no_position_is_inside():
    """Rows that are no positions, and columns behind the last one, load what is there: it is not used."""
    definitions = epilogue(Geometry(alone(IMAGE).kernel, WGMMA), "k").definitions
    assert all(f"at{a}[set][h] = {IN_BOUNDS} ? p{a} : 0;" in definitions for a in range(2))
    assert "const int o = min(first_column + column + e, 19);" in definitions
    whole = epilogue(Geometry(alone(LINE).kernel, replace(WGMMA, columns=16)), "k").definitions
    assert "const int o = min(first_column + column + e, 99);" in whole
    assert "const int o = first_column + column + e;" in \
        epilogue(Geometry(alone(SINGLE).kernel, replace(WGMMA, columns=24)), "k").definitions
    assert "at0" not in epilogue(Geometry(many(IMAGE).kernel, WGMMA), "k").definitions


@pytest.mark.parametrize("case, barriers", [(average(SINGLE), 2), (average(IMAGE), 3), (alone(IMAGE), 5),
                                            (alone(HALVES), 4)])
def test_warps_meet_before_shared_memory_changes(case, barriers):
    """Before results are written, before they are read, and twice more for moments; and where ones replace scales. No
    order of the emulation's threads lets one warp be far ahead of another."""
    definitions = epilogue(Geometry(case.kernel, replace(WGMMA, promote=0)), "k").definitions
    finish = definitions[definitions.index("k_finish("):]
    places = [m.start() for m in re.finditer(r"kw_part_sync\(8 \+ threadIdx\.x / 128, 128\);", finish)]
    assert len(places) == barriers + (case.kernel.scheme == "fp16")
    assert finish.index("for (int of_n") < places[0] < min(finish.index("counts[warp] ="), finish.index("met[warp"))
    if case.kernel.scheme != "native":
        assert places[0] < finish.index("kw_read4(columns_fast") < places[1] < finish.index("float2 two_column_scale")


@pytest.mark.parametrize("columns, together", [(8, 2), (16, 4), (24, 8), (64, 8)])
def test_lanes_share_columns(columns, together):
    """8 lanes exchange a half of what they have in each step: 7 shuffles of 8 columns' values."""
    case = alone(LINE)
    made = epilogue(Geometry(case.kernel, replace(WGMMA, columns=columns)), "k")
    assert re.search(rf"float k_sum_of_lanes\(float \(&value\)\[{together}\], int lane\)", made.definitions)
    components = sum(COMPONENTS[total.kind] for total in case.kernel.position_reductions)
    assert made.floats == components * 4 * columns + 12 + columns


def test_moments_of_more_rows_than_a_word_counts_are_refused():
    with pytest.raises(ValueError, match="four bits"):
        epilogue(Geometry(alone(APART).kernel, replace(WGMMA, rows=256, columns=8, pingpong=2, parities=2)), "k")
    assert epilogue(Geometry(average(APART).kernel, replace(WGMMA, rows=256, columns=8, pingpong=2, parities=2)), "k")


@needs_nvcc
def test_compiles_without_trouble(tmp_path):
    """Of the statistics of what is loaded at each position too, which needs the most registers."""
    plane = convolution(128, 1, 64, 128, (56, 56), (3, 3), padding=1, scheme="fp16")
    thin = convolution(128, 1, 8, 64, (256, 256), (3, 3), padding=1)
    turned = convolution(64, 1, 64, 64, (64, 64), (4, 4), stride=2, padding=1, transposed=True, scheme="fp16")
    kernels = [replace(case.kernel, tiling=tilings_of_rows(case.kernel)[0])
               for case in (alone(plane), average(plane), average(turned), average(thin), alone(thin), many(plane))]
    sums = totalled(turned, ("moments", SUM), ("sum", Apply("relu", (SUM,))), ordinary=False)
    kernels.append(replace(sums.kernel, tiling=tilings_of_rows(sums.kernel)[0]))
    check_compiles(kernels, "90a", tmp_path)


def test_tilings_have_room():
    for case in (alone(ODD), many(LINE), average(SINGLE), alone(convolution(16, 1, 64, 256, (28, 28), (3, 3)))):
        found = tilings(case.kernel, "wgmma")
        assert found
        for tiling in found:
            generate(replace(case.kernel, tiling=tiling), "k")


def test_more_rows_than_an_int_counts_compile():
    wide = convolution(2**25, 1, 8, 8, (8, 8), (1, 1), scheme="native", dtype="float16")
    chosen = [(alone(wide), replace(WGMMA, columns=8, promote=0)),
              (alone(convolution(1, 1, 8, 8, (2**15, 2**15), (1, 1))), replace(WGMMA, columns=8))]  # of one n
    sources = [generated(case.kernel, tiling, f"k{n}") for n, (case, tiling) in enumerate(chosen)]
    assert "const long long row = first_row" not in sources[1].text
    assert "const long long begin = first_row" in sources[0].text
    assert len(compiled(sources, sanitize=False)) == 2
