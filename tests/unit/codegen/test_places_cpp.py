"""Places that indices choose are 32 bits wide in C++ where their bounds and the kernel's sizes show it."""

from __future__ import annotations

import pytest
from loop_cases import call, kernel_of, load, store

from kernelwright.codegen.cpp.loops.places import near_places
from kernelwright.plan.expressions import Apply, Element, Expression, Index, Load, Whole, element, walk

SIZES = (1000, 64)
ANY = Load(1, Index((64, 1)), whole=True)
ROW = Load(2, Index((1, 0)), whole=True, counts=True)


def whole(name: str, *arguments: Expression) -> Expression:
    return Apply(f"whole_{name}", arguments)


def within(value: Expression, size: int) -> Expression:
    return whole("minimum", whole("maximum", value, Whole(0)), Whole(size - 1))


def narrowed(place: Expression) -> bool:
    """Whether the kernel that reads at a place has it in 32 bits, and is the same otherwise."""
    read = call("mul", element(0, place, False), 2.0)
    kernel = kernel_of(SIZES, (), outer_stores=[store(0, (64, 1), read)], inputs=("float32", "int64", "int64"))
    value = near_places(kernel).outer_stores[0].expression
    (found,) = (n for n in walk(value) if isinstance(n, Element) and n.buffer == 0)
    (at,) = found.arguments
    near = isinstance(at, Apply) and at.function == "wrap_int32"
    assert (at.arguments[0] if near else at) == place or any(n.function == "wrap_int32" for n in walk(at) if isinstance(
        n, Apply))
    return near


@pytest.mark.parametrize("place, near", [
    (within(ANY, 500), True), (ANY, False), (within(ANY, 2**31), True), (within(ANY, 2**31 + 1), False),
    (whole("minimum", ANY, Whole(9)), False), (whole("maximum", ANY, Whole(9)), False),
    (whole("add", whole("mul", ROW, Whole(64)), within(ANY, 64)), True),
    (whole("add", whole("mul", ROW, Whole(2**22)), within(ANY, 64)), False),
    (whole("add", whole("mul", ROW, Whole(2**21)), within(ANY, 64)), True),
    (whole("where", whole("lt", ANY, Whole(0)), within(ANY, 5), ROW), True),
    (whole("where", whole("lt", ANY, Whole(0)), within(ANY, 5), ANY), False),
    (within(element(1, within(ANY, 7), True), 10), True), (element(1, within(ANY, 7), True), False),
    (Load(2, Index((1, 0)), whole=True), False),
    # Rows that are chosen: their elements lie side by side along a vector.
    (whole("add", whole("mul", within(Load(1, Index((1, 0)), whole=True), 9), Whole(64)),
           Load(2, Index((0, 1)), whole=True, counts=True)), False),
])
def test_places_are_near_where_bounds_show_it(place: Expression, near: bool) -> None:
    assert narrowed(place) == near


def test_what_indices_do_not_choose_stays() -> None:
    kernel = kernel_of(SIZES, (), outer_stores=[store(0, (64, 1), call("exp", load(0, 64, 1)))])
    assert near_places(kernel) == kernel
