"""Core row_buffered: whoever waits in a block waits for what comes: its order, without its arithmetic."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from contraction_cases import convolution
from gemm_epilogues import lined, pooled
from test_row_buffered import tiling

from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.contraction.record import Contraction


def lines_and_units(numbers: RowBuffered, counts: list[int]) -> tuple[list[int], list[list[tuple[int, range]]]]:
    """Of each line that is brought the units that must have been finished before its slot is free again, and of each
    consumer warpgroup in their order the units that it finishes and the lines that each needs."""
    phases, stride, items = numbers.kernel.pool_lines, numbers.line_stride, numbers.line_work_tiles
    until: list[int] = []
    of_teams: list[list[tuple[int, range]]] = [[] for _ in range(numbers.tiling.pingpong)]
    turn = 0
    for count in counts:
        first, units = len(until), turn * phases
        until += [units + (min(line // (stride // phases), count * phases - 1) + 1) * items
                  for line in range((count - 1) * stride + numbers.line_span)]
        for item in range(count * items):
            for phase in range(phases):
                begin = first + item // items * stride + phase * (stride // phases)
                unit = ((turn // items + item // items) * phases + phase) * items + item % items
                needed = range(begin, begin + numbers.window_lines)
                of_teams[(turn + item) % numbers.tiling.pingpong].append((unit, needed))
        turn += count * items
    return until, of_teams


def ends(numbers: RowBuffered, counts: list[int]) -> bool:
    """Whether a block that goes down strips of so many lines comes to an end, whoever is fast or slow: nobody undoes
    what another waits for, so that one order shows it for all."""
    until, of_teams = lines_and_units(numbers, counts)
    slots, phases = numbers.tiling.stages, numbers.kernel.pool_lines
    brought, finished, done = 0, set(), [0] * len(of_teams)
    moved = True
    while moved:
        moved = False
        if brought < len(until) and (brought < slots or set(range(until[brought - slots])) <= finished):
            brought, moved = brought + 1, True
        for warpgroup, own in enumerate(of_teams):
            if done[warpgroup] == len(own):
                continue
            unit, needed = own[done[warpgroup]]
            item = done[warpgroup] // phases * len(of_teams) + warpgroup  # of all, in turns
            before = item == 0 or done[(warpgroup - 1) % len(of_teams)] > (item - 1) // len(of_teams) * phases
            if needed[-1] < brought and (before or done[warpgroup] % phases):
                finished.add(unit)
                done[warpgroup] += 1
                moved = True
    return brought == len(until) and all(count == len(own) for count, own in zip(done, of_teams, strict=True))


def drawn(random: Random) -> tuple[Contraction, Tiling]:
    """A convolution and a tiling, that may be refused."""
    window, stride = (random.randint(1, 5), random.randint(1, 3)), random.choice((1, 1, 2, 3))
    case = convolution(1, 1, 2, random.choice((5, 20, 64, 100, 200)), (random.randint(5, 40), random.randint(12, 90)),
                       window, stride=(stride, 1), dilation=(random.choice((1, 1, 2)), 1), padding=(0, 2))
    if random.random() < 0.6:
        case = pooled(lined(case) if random.random() < 0.7 else case, random.choice((2, 4, 8)))
    columns = random.choice((64, 64, 32, 16))
    made = tiling(case, random.choice((8, 16, 24, 64)), random.randint(1, 7), random.randint(2, 20), columns)
    return case.kernel, made


def test_every_block_comes_to_an_end():
    """Of tilings that are not refused; some that would be for lack of lines in the ring do not."""
    random, tried = Random(0), 0
    while tried < 400:
        kernel, made = drawn(random)
        try:
            numbers = RowBuffered(kernel, made)
        except ValueError:
            continue
        last = numbers.lines - (numbers.parts - 1) * numbers.strip_lines
        full = min(numbers.strip_lines, 6)
        for counts in ([full, full, full], [full, min(last, full), full], [1, 1, 1, 1]):
            assert ends(numbers, counts), (kernel, made, counts)
        tried += 1


def unchecked(kernel: Contraction, made: Tiling) -> RowBuffered:
    """Numbers without their checks."""
    numbers = object.__new__(RowBuffered)
    object.__setattr__(numbers, "kernel", kernel)
    object.__setattr__(numbers, "tiling", made)
    return numbers


def test_what_is_refused_would_wait_for_ever():
    case = pooled(lined(convolution(1, 1, 2, 100, (6, 35), (2, 3), stride=(3, 1), padding=(0, 2))), 8)
    good = RowBuffered(case.kernel, tiling(case, 24, 2, 5))
    assert ends(good, [1])
    with pytest.raises(ValueError, match="no strips whose ring"):
        RowBuffered(case.kernel, tiling(case, 24, 2, 4))
    assert not ends(unchecked(case.kernel, replace(good.tiling, stages=4)), [1])


class Ends:
    """Four warps of each consumer warpgroup, which leave the ends of their lines in places and take those of the lines
    before."""

    def __init__(self, warpgroups: int, blocks: int, stacked: int, places: int, firsts: set[int]) -> None:
        self.warpgroups, self.blocks, self.stacked = warpgroups, blocks, stacked
        self.places, self.firsts = places, firsts
        self.arrived = [0] * places
        self.found = [[-1] * 4 for _ in range(places)]  # of each warp's rows: whose ends they are
        self.item, self.step = [[warpgroup] * 4 for warpgroup in range(warpgroups)], [[0] * 4
                                                                                      for _ in range(warpgroups)]
        self.multiplied = [[0] * 4 for _ in range(warpgroups)]

    def _over(self, item: int) -> bool:
        """Whether a barrier says that an work tile's ends are there: it has two phases."""
        return self.arrived[item % self.places] // 4 % 2 != item // self.places % 2

    def _ready(self, item: int, warp: int, step: int) -> bool:
        """Whether a warp can take its next step."""
        if step == 0 and self.warpgroups > 1 and item:
            before = (item - 1) % self.warpgroups
            return all(count > (item - 1) // self.warpgroups for count in self.multiplied[before])
        if step != 2 or ((self.stacked > 1 or self.warpgroups == 1) and not self._over(item)):
            return step != 2
        return self._slot(warp) > 0 or item in self.firsts or self._over(item - self.blocks)

    def _slot(self, warp: int) -> int:
        """Which of the stacked lines is a warp's."""
        return warp * self.stacked // 4

    def advance(self, warpgroup: int, warp: int) -> bool:
        """Take a warp's next step, if it can: multiply; leave ends; wait for those before, and read them."""
        item, step = self.item[warpgroup][warp], self.step[warpgroup][warp]
        if not self._ready(item, warp, step):
            return False
        if step == 0:
            self.multiplied[warpgroup][warp] += 1
        elif step == 1:
            self.found[item % self.places][warp] = item
            self.arrived[item % self.places] += 1
        elif step == 3:
            slot, each = self._slot(warp), 4 // self.stacked
            source = item if slot else item - self.blocks
            if slot or item not in self.firsts:
                row = warp - each if slot else warp + 4 - each
                assert self.found[source % self.places][row] == source
        self.step[warpgroup][warp] = (step + 1) % 4
        self.item[warpgroup][warp] += self.warpgroups if step == 3 else 0
        return True


def ends_are_taken_from_who_left_them(warpgroups: int, blocks: int, stacked: int, places: int, random: Random) -> None:
    """Of strips of up to five lines, each warp as fast as it may be."""
    firsts, items = set(), 0
    while items < 60 * warpgroups:
        firsts |= set(range(items, items + blocks))
        items += blocks * random.randint(1, 5)
    ends = Ends(warpgroups, blocks, stacked, places, firsts)
    warps = [(warpgroup, warp) for warpgroup in range(warpgroups) for warp in range(4)]
    while any(ends.item[warpgroup][warp] < items for warpgroup, warp in warps):
        slow = random.choice(warps)
        fast = [(warpgroup, warp) for warpgroup, warp in warps if (warpgroup, warp) != slow
                and ends.item[warpgroup][warp] < items]
        for _ in range(random.choice((1, 100))):  # all others for as long as they can
            random.shuffle(fast)
            if not any([ends.item[warpgroup][warp] < items and ends.advance(warpgroup, warp) for warpgroup,
                        warp in fast]):
                break
        moved = ends.item[slow[0]][slow[1]] < items and ends.advance(*slow)
        assert moved or any(ends.item[t][w] < items and ends._ready(ends.item[t][w], w, ends.step[t][w])
                            for t, w in warps) or all(ends.item[t][w] >= items for t, w in warps)


@pytest.mark.parametrize("stacked", [1, 2, 4])
def test_ends_of_lines_are_taken_from_who_left_them(stacked):
    """With one place less somebody finds another's, or waits for ever."""
    random = Random(0)
    for warpgroups, blocks in ((1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (4, 2), (3, 3)):
        case = convolution(1, 1, 8, 64 // stacked * blocks, (40, 28), (3, 3))
        made = replace(tiling(case, 32, warpgroups, columns=64 // stacked), sector_aligned=True)
        places = unchecked(case.kernel, made).ends
        for _ in range(20):
            ends_are_taken_from_who_left_them(warpgroups, blocks, stacked, places, random)
        with pytest.raises(AssertionError):
            for _ in range(100):
                ends_are_taken_from_who_left_them(warpgroups, blocks, stacked, places - 1, random)
