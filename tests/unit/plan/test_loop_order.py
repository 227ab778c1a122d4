"""The choice of a kernel's walk: a table from accesses to order, tile and detours."""

from __future__ import annotations

from math import prod

import pytest
from loop_cases import call, kernel_of, load, store

from kernelwright.codegen.cpp.loops.tiles import MEMORY as CPP
from kernelwright.codegen.cuda.loops.schedule import MEMORY as CUDA
from kernelwright.codegen.cuda.loops.tile_threads import Turn, conflicts
from kernelwright.codegen.loops.order import Access, Walk, accesses, choose_walk, memory_order, tile, waste
from kernelwright.codegen.loops.two_kernels import apart

N, C, S = 128, 64, 16384
FIRST, LAST = (C * S, S, 1), (C * S, 1, C)
STORE = Access(FIRST, 4, True)
READ_LAST, READ_FIRST = Access(LAST, 4), Access(FIRST, 4, buffer=1)
BIAS = Access((0, 1, 0), 4, buffer=2)

TABLE = {
    "everything in order": ((N, C, S), [STORE, READ_FIRST, BIAS], Walk((0, 1, 2)), Walk((0, 1, 2))),
    "read across": (
        (N, C, S), [STORE, READ_LAST, BIAS], Walk((0, 1, 2), (1, 32, 64), (1,)), Walk((0, 1, 2), (1, 64, 128), (1,)),
    ),
    "two reads across: the store turns": (
        (N, C, S), [STORE, READ_LAST, Access(LAST, 4, buffer=1)],
        Walk((0, 2, 1), (1, 64, 32), (0,)), Walk((0, 2, 1), (1, 64, 64), (0,)),
    ),
    "one of each: the read turns": (
        (N, C, S), [STORE, READ_LAST, READ_FIRST],
        Walk((0, 1, 2), (1, 32, 64), (1,)), Walk((0, 1, 2), (1, 64, 128), (1,)),
    ),
    "three channels: whole pixels": (
        (N, 3, S), [Access((3 * S, S, 1), 4, True), Access((3 * S, 1, 3), 4)],
        Walk((0, 1, 2), (1, 3, 1024), (1,)), Walk((0, 1, 2), (1, 3, 2048), ()),
    ),
    "small planes are not cut": (
        (N, 512, 49), [Access((512 * 49, 49, 1), 4, True), Access((512 * 49, 1, 512), 4)],
        Walk((0, 1, 2), (1, 64, 49), (1,)), None,
    ),
    "heads keep their runs": (
        (16, 12, 1024, 64), [Access((786432, 65536, 64, 1), 4, True), Access((786432, 64, 768, 1), 4)],
        Walk((0, 1, 2, 3)), Walk((0, 1, 2, 3)),
    ),
    "too small for a tile": ((2, 8, 9), [Access((72, 9, 1), 4, True), Access((72, 1, 8), 4)], None, None),
    "a guard of its own keeps a load": (
        (N, C, S), [STORE, Access(LAST, 4, fixed=True)], Walk((0, 1, 2)), Walk((0, 2, 1)),
    ),
    "a plane for every channel weighs little": (
        (N, C, 128, 128), [Access((C * S, S, 128, 1), 4, True), Access((0, 0, 1, 128), 4)],
        Walk((0, 1, 2, 3)), Walk((0, 1, 2, 3)),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_walks(name: str) -> None:
    sizes, found, cuda, cpp = TABLE[name]
    for memory, expected in ((CUDA, cuda), (CPP, cpp)):
        walk = choose_walk(sizes, found, memory)
        if expected is not None:
            assert walk == expected
        assert sorted(walk.order) == list(range(len(sizes)))
        if walk.extents:
            assert all(1 <= extent <= size for extent, size in zip(walk.extents, sizes, strict=True))
            assert prod(walk.extents) <= memory.most
    if name == "too small for a tile":
        assert choose_walk(sizes, found, CUDA).extents == ()


def test_waste_is_relative_to_the_own_order() -> None:
    assert waste(STORE, (0, 1, 2), (N, C, S), CUDA) == 1.0
    assert waste(READ_LAST, (0, 1, 2), (N, C, S), CUDA) == 8.0
    assert waste(Access(LAST, 1), (0, 1, 2), (N, C, S), CUDA) == 32.0
    every_other = Access((2 * C * S, 2 * S, 2), 4)
    assert waste(every_other, (0, 1, 2), (N, C, S), CUDA) == 1.0
    assert memory_order((0, 1, 7)) == (0, 2, 1)


def test_accesses_are_numbered_by_buffer_and_order() -> None:
    both = call("add", load(0, 1, 40), load(1, 1, 40))
    made = kernel_of((40, 30), (), outer_stores=[store(0, (30, 1), both), store(1, (1, 40), both)],
                     inputs=("float32", "bool"), outputs=("float32", "float64"))
    found = list(dict.fromkeys(accesses(made).values()))
    assert [(a.item, a.store, a.buffer) for a in found] == [
        (4, True, 0), (8, True, 1), (4, False, 0), (1, False, 1)
    ]


def test_a_short_axis_is_taken_whole_and_the_next_with_it() -> None:
    assert tile((500, 6, 20), [((0, 2, 1), 32), ((0, 1, 2), 64)], (0, 1, 2), 2048)[1:] == (6, 20)
    assert tile((1000, 1000), [((1, 0), 32), ((0, 1), 64)], (0, 1), 2048) == (32, 64)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("extents", [(1, 32, 64), (1, 3, 1024), (8, 16, 16), (1, 37, 63), (2, 24, 60)])
def test_coordinates_cover_the_tile_once(extents: tuple[int, ...], lanes: int) -> None:
    """The text of every thread's coordinates, evaluated, against each point of the tile."""
    if extents[1] % lanes:
        lanes = 1
    turn = Turn((0, 2, 1), extents, lanes, 256)
    seen = []
    for step in range(turn.steps):
        texts = {axis: text.replace("u", "").replace("/", "//").replace("threadIdx.x", "t")
                 for axis, text in turn.coordinates("s").items()}
        for thread in range(256):
            if thread + step * 256 < turn.count:
                place = [eval(texts.get(axis, "0"), {"t": thread, "s": step}) for axis in range(3)]
                assert turn.place(thread + step * 256) == {a: place[a] for a in texts}
                seen += [(place[0], place[1] + lane, place[2]) for lane in range(lanes)]
    assert len(seen) == len(set(seen)) == prod(extents)


def test_padding_avoids_conflicts() -> None:
    reader, writer = Turn((0, 1), (32, 32), 4, 256), Turn((1, 0), (32, 32), 4, 256)
    assert conflicts(reader, (33, 1), 1) == conflicts(writer, (33, 1), 1) == 0
    assert conflicts(writer, (32, 1), 1) > 0


def test_reductions_with_stores_across_come_apart() -> None:
    x = load(0, 64 * 900, 64, 1)
    made = kernel_of((2, 900), (64,), reductions=[("sum", x)],
                     row_stores=[store(0, (64 * 900, 1, 900), call("div", x, 2.0))])
    parts = apart(made, (0, 1, 2), CUDA)
    assert parts is not None and parts.first.row_stores == () and parts.second.reductions == ()
    assert apart(made, (2, 0, 1), CUDA) is None
    straight = kernel_of((2, 900), (64,), reductions=[("sum", x)],
                         row_stores=[store(0, (64 * 900, 64, 1), call("div", x, 2.0))])
    assert apart(straight, (0, 1, 2), CUDA) is None
