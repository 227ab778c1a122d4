"""Numbers, texts and records of several sizes become those of any size, or say that they do not."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import pytest
from graph_tools import examples
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.dynamic.conditions import leaves, lookup, tree_of
from kernelwright.dynamic.formulas import Polynomial, fit, fit_ceiling, fit_real, points_of, unknowns
from kernelwright.dynamic.records import Differs, Template
from kernelwright.dynamic.texts import split, variants
from kernelwright.ir.node import make
from kernelwright.plan.expressions import Apply, Constant, Index, Load, walk

ONE = [(n,) for n in range(1, 18)]
TWO = list(points_of([(1, 5), (2, 6)]))


@given(st.lists(st.integers(-9, 9), min_size=9, max_size=9), st.integers(1, 2))
@examples(60)
def test_a_polynomial_is_found_from_its_values(coefficients: list[int], count: int) -> None:
    powers = [p for p in itertools.product(range(3), repeat=count) if sum(p) <= 3]
    wanted = Polynomial(tuple(zip(coefficients, powers, strict=False)))
    points = ONE if count == 1 else TWO
    found = fit(points, [wanted.at(p) for p in points], spare=1)
    assert found is not None
    assert all(found.at(p) == wanted.at(p) for p in points_of([(1, 30)] * count))


@pytest.mark.parametrize("value", [lambda n: n % 3, lambda n: 2 ** n, lambda n: n * n * n, lambda n: n // 2])
def test_other_numbers_have_no_polynomial(value) -> None:
    assert fit(ONE, [value(n) for n, in ONE]) is None


def test_a_formula_needs_more_points_than_unknowns_where_that_is_asked() -> None:
    assert fit([(2,), (3,)], [7, 9]) is not None
    assert fit([(2,), (3,)], [7, 9], spare=1) is None
    assert fit([(2,), (3,), (4,)], [7, 9, 11], spare=1) is not None


@given(st.integers(1, 6), st.integers(0, 5), st.integers(2, 16))
@examples(40)
def test_quotients_are_found_that_are_rounded_up(factor: int, more: int, divisor: int) -> None:
    inner = fit(ONE, [factor * n + more for n, in ONE])
    assert inner is not None
    values = [3 * n * -(-(factor * n + more) // divisor) for n, in ONE]
    found = fit_ceiling(ONE, values, [inner], [divisor])
    if len({-(-(factor * n + more) // divisor) for n, in ONE}) > 1:
        assert found is not None
        assert [found.at(p) for p in ONE] == values
        for over, place in (("//", 0), ("/", 1)):
            text = found.text(["n"], over)
            assert f" {over} " in text
            assert place or all(eval(text, {"n": n}) == value for (n,), value in zip(ONE, values, strict=True))


@pytest.mark.parametrize("value", [lambda n: 1 / (7 * n), lambda n: float(3 * n), lambda n: 5 * n / (5 * n - 1),
                                   lambda n: 1.0 / (n * n + n), lambda n: math.sqrt(5 * n),
                                   lambda n: 1 / math.sqrt(3 * n), lambda n: math.sqrt(5 * n / (5 * n - 1))])
def test_floating_numbers_are_those_of_a_formula_to_the_last_bit(value) -> None:
    found = fit_real(ONE, [value(n) for n, in ONE])
    assert found is not None
    assert [repr(found.at(p)) for p in ONE] == [repr(value(n)) for n, in ONE]
    assert all(eval(found.text(["n"], "float"), {"n": n}) == pytest.approx(value(n), rel=1e-15) for n, in ONE)


def test_floating_numbers_of_other_kinds_have_no_formula() -> None:
    assert fit_real(ONE, [n ** 0.3 for n, in ONE]) is None
    assert fit_real(ONE, [1.0 / (7 * n) * (1 + 2e-16 * (n == 5)) for n, in ONE]) is None


def test_points_that_lie_on_a_line_do_not_tell_two_sizes_apart() -> None:
    line = [(n, 10) for n in range(1, 9)]
    assert unknowns(line, [9, 9])[0] < unknowns(line, [9, 9])[1]
    assert unknowns(TWO, [9, 9])[0] == unknowns(TWO, [9, 9])[1]
    assert unknowns([(4,), (5,)], [2]) == (2, 2)  # of two values nobody tells a square


# Texts -------------------------------------------------------------------------------------------


def _kernel(n: int, m: int) -> str:
    """A text as generators write it, with what depends on sizes in many ways."""
    threads = "  #pragma omp parallel for\n" if n * m > 12 else ""
    offset = f"{n} * i0 + r0" if n > 1 else "r0"
    return (f"// Rows of {n} for each of {m}.\n{threads}"
            f"  for (int64_t i0 = 0; i0 < {m}; ++i0) {{\n"
            f"    alignas(64) real row0[{n}], row1[{n + 1}];\n"
            f"    constexpr int64_t begin = 0, end = {n};\n"
            f"    kw_clip(inside, outside, i0 - 1, 2, {n + 3});\n"
            f"    const real v0 = real(in0[{offset}]) * real({1.0 / n!r}) + int64_t({2 * n}LL);\n  }}\n")


def test_each_variant_gives_the_text_of_each_of_its_points() -> None:
    texts = {p: _kernel(*p) for p in TWO}
    found = variants(texts, "c", most=9)
    assert sorted(p for v in found for p in v.points) == TWO
    for variant in found:
        for point in variant.points:
            own, real = variant.at(point), split(texts[point])
            assert own.pieces == real.pieces
            assert all(repr(a) == repr(b) for n, (a, b) in enumerate(zip(own.numbers, real.numbers, strict=True))
                       if n not in variant.extents)
            assert variant.gives(point, texts[point])
            assert not variant.gives(point, texts[point].replace("begin = 0", "begin = 1"))
            others = [p for p in TWO if p != point and texts[p] != texts[point]]
            assert not any(variant.gives(point, texts[p]) for p in others if p[0] != point[0])


def test_a_text_is_written_with_names_in_the_places_of_numbers() -> None:
    points = [(n, m) for n, m in TWO if n > 1 and n * m > 12]
    variant, = variants({p: _kernel(*p) for p in points}, "c", most=9)
    text = variant.text(["size_n", "size_m"], "c")
    assert "Rows of size_n for each of size_m" in text
    assert "i0 < size_m;" in text
    assert "row0[5], row1[6];" in text, "extents of arrays are the largest"
    assert "const int64_t begin = 0, end = size_n;" in text, "what a call says is no constant expression"
    assert "size_n + 3)" in text
    assert "in0[size_n * i0 + r0]" in text
    assert "real(1.0 / double(size_n))" in text
    assert "int64_t(2 * size_n)" in text


def test_what_the_compiler_must_know_is_a_variant_of_its_own() -> None:
    texts = {(n,): f"kw_take<{n}>(in0);\n" for n in (2, 3, 4)}
    assert len(variants(texts, "c", most=9)) == 3
    assert len(variants(texts, "c", most=2)) == 2
    texts = {(n,): f"#pragma unroll {n}\nstatic_assert({n} > 1);\n" for n in (2, 3, 4)}
    assert not any(v.moves for v in variants(texts, "c", most=9))


def test_a_number_without_a_formula_parts_texts_by_its_value() -> None:
    texts = {(n,): f"f({n}, {n % 3});\n" for n in range(1, 10)}
    found = variants(texts, "c", most=9)
    assert sorted(len(v.points) for v in found) == [3, 3, 3]
    assert all(v.gives(p, texts[p]) for v in found for p in v.points)


def test_numbers_in_words_and_texts_are_no_numbers() -> None:
    assert split('in0[t12_view] = k3_max("8 of 8", 7, 0x10, 2.5e-3) + x1e5;').numbers == (7,)
    assert split("a = 0.0025 * 7LL - 16.").numbers == (0.0025, 7, 16)


def test_sizes_beyond_those_that_were_looked_at_get_arrays_for_the_highest() -> None:
    texts = {(n,): f"    real row0[{4 * n}];\n" for n in (1, 3, 8)}
    variant, = variants(texts, "c", most=9, spare=1, highest=(50,))
    assert "row0[200]" in variant.text(["n"], "c")
    falls = {(n,): f"    real row0[{60 - n}];\n" for n in (1, 3, 8)}
    assert len(variants(falls, "c", most=9, spare=1, highest=(50,))) == 3


# Conditions --------------------------------------------------------------------------------------


@given(st.integers(0, 10**6))
@examples(40)
def test_a_tree_finds_the_variant_of_each_point(seed: int) -> None:
    generator = random.Random(seed)
    chosen = {p: generator.choice([0, 1, None]) for p in TWO}
    tree = tree_of(chosen)
    assert all(lookup(tree, p) == wanted for p, wanted in chosen.items())


@pytest.mark.parametrize(("wanted", "most"), [(lambda n, m: n <= 3, 2), (lambda n, m: n * m > 11, 2),
                                              (lambda n, m: m % 4 == 0, 2), (lambda n, m: n > 2 and m % 2 == 0, 3)])
def test_trees_ask_no_more_than_they_need(wanted, most: int) -> None:
    chosen = {p: int(wanted(*p)) for p in TWO}
    assert leaves(tree_of(chosen)) == most


# Records -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Record:
    shape: tuple[int, ...]
    parts: dict[str, float]
    name: str = "kernel"


def test_a_record_of_any_size_is_made_of_those_of_some() -> None:
    found = Template(ONE[:4], [_Record((n, 3 * n, 7), {"mean": 1 / n}) for n, in ONE[:4]])
    assert found.at((16,)) == _Record((16, 48, 7), {"mean": 1 / 16})


def test_nodes_and_expressions_keep_what_is_shared_however_deep_they_lie() -> None:
    def graph(n: int):
        node = make("input", name="x", shape=(n, 4), dtype="float32")
        for _ in range(3000):
            node = make("add", node, node)
        return make("reshape", node, shape=(4 * n,))

    found = Template([(2,), (3,), (5,), (6,)], [graph(n) for n in (2, 3, 5, 6)])
    assert found.at((9,)) is graph(9)

    def value(n: int):
        found = Load(0, Index((n, 1)))
        for _ in range(3000):
            found = Apply("add", (found, found))
        return Apply("mul", (found, Constant(1 / n)))

    made = Template([(2,), (3,), (5,)], [value(n) for n in (2, 3, 5)]).at((7,))
    assert made is value(7)
    assert len(list(walk(made))) == 3003


@pytest.mark.parametrize(("one", "other"), [
    (("relu", 4), ("tanh", 4)), ((1, 2), (1, 2, 3)), ({"a": 1}, {"b": 1}), ((True,), (1,)),
    ((Constant(0.3),), (Constant(0.7),)), (frozenset({1}), frozenset({2}))])
def test_records_that_differ_in_more_than_numbers_have_no_common_form(one, other) -> None:
    with pytest.raises(Differs):
        Template([(2,), (3,), (4,)], [one, other, other])


@pytest.mark.parametrize(("outside", "count"), [("constexpr int ROWS = 7;", 1), ("constexpr int ROWS = {0};", 9)])
def test_only_the_entry_of_a_kernel_knows_sizes(outside: str, count: int) -> None:
    """What other functions of its text have of them must be known to the compiler, but for what comments say."""
    text = "// k0: {0} rows.\nnamespace k0_detail {{\n" + outside + "\n}}\n\n" \
           "static const char* k0(float* out0, void* workspace) {{\n  out0[{0}] = 0.0f;\n  return nullptr;\n}}\n"
    found = variants({(n,): text.format(n) for n in range(2, 11)}, "c", most=12)
    assert len(found) == count and {p for v in found for p in v.points} == {(n,) for n in range(2, 11)}
    if count == 1:
        assert "out0[size] = 0.0f;" in found[0].text(["size"], "c")
