"""What is equal is the same object, in whichever thread it is made: a process may plan two models at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from clocks import PATIENCE

from kernelwright.ir import ops as _ops  # noqa: F401  (fills the registry)
from kernelwright.ir.node import Origin, begin_run, constant, made_for, make
from kernelwright.plan.expressions import Apply, Constant

THREADS, ROUNDS = 4, 300


def expression(number: int) -> Any:
    return Apply("add", (Constant(float(number)), Constant(number + 0.5)))


def node(number: int) -> Any:
    return make("add", constant(float(number)), constant(number + 0.5))


@pytest.mark.parametrize("made", [expression, node])
def test_threads_make_the_same_objects(made: Callable[[int], Any]):
    together = Barrier(THREADS)

    def work(_: int) -> list[Any]:
        found = []
        for number in range(ROUNDS):
            together.wait(PATIENCE)
            found.append(made(number))
        return found

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            results = list(pool.map(work, range(THREADS)))
    finally:
        sys.setswitchinterval(before)
    assert all(len({id(found) for found in some}) == 1 for some in zip(*results, strict=True))


def test_a_node_that_an_earlier_run_left_behind_comes_from_where_it_is_made_now() -> None:
    """As in a process that has made many files, before anybody looks for cycles."""
    one, other = Origin("", "model.py", 3, "y = x * x"), Origin("", "model.py", 7, "z = x * x")
    x = make("input", name="left_behind", shape=(3, 5), dtype="float32")
    with made_for(one):
        held = make("mul", x, x)
    plain = make("add", x, x)
    with made_for(other):
        assert make("mul", x, x).origin == one and make("add", x, x).origin is None  # the same run's, made again
    begin_run()
    assert make("mul", x, x) is held and held.origin is None
    with made_for(other):
        assert make("add", x, x) is plain and plain.origin == other
    assert make("add", x, x).origin == other
