"""Whoever waits in a block that goes down strips of lines waits for what comes: its order, without its arithmetic."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from contraction_cases import convolution
from test_contraction_pools import lined, pooled
from test_contraction_strips import tiling

from kernelwright.codegen.contraction_strips import Strips
from kernelwright.plan.contraction import Contraction, Tiling


def lines_and_units(numbers: Strips, counts: list[int]) -> tuple[list[int], list[list[tuple[int, range]]]]:
    """Of each line that is brought the units that must have been finished before its slot is free again, and of each
    team in their order the units that it finishes and the lines that each needs."""
    phases, stride, items = numbers.kernel.pool_lines, numbers.line_stride, numbers.line_items
    until: list[int] = []
    of_teams: list[list[tuple[int, range]]] = [[] for _ in range(numbers.tiling.teams)]
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
                of_teams[(turn + item) % numbers.tiling.teams].append((unit, needed))
        turn += count * items
    return until, of_teams


def ends(numbers: Strips, counts: list[int]) -> bool:
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
        for team, own in enumerate(of_teams):
            if done[team] == len(own):
                continue
            unit, needed = own[done[team]]
            item = done[team] // phases * len(of_teams) + team  # of all, in turns
            before = item == 0 or done[(team - 1) % len(of_teams)] > (item - 1) // len(of_teams) * phases
            if needed[-1] < brought and (before or done[team] % phases):
                finished.add(unit)
                done[team] += 1
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
            numbers = Strips(kernel, made)
        except ValueError:
            continue
        last = numbers.lines - (numbers.parts - 1) * numbers.strip_lines
        full = min(numbers.strip_lines, 6)
        for counts in ([full, full, full], [full, min(last, full), full], [1, 1, 1, 1]):
            assert ends(numbers, counts), (kernel, made, counts)
        tried += 1


def test_what_is_refused_would_wait_for_ever():
    case = pooled(lined(convolution(1, 1, 2, 100, (6, 35), (2, 3), stride=(3, 1), padding=(0, 2))), 8)
    good = Strips(case.kernel, tiling(case, 24, 2, 5))
    assert ends(good, [1])
    with pytest.raises(ValueError, match="no strips whose ring"):
        Strips(case.kernel, tiling(case, 24, 2, 4))
    bad = object.__new__(Strips)  # without its checks
    object.__setattr__(bad, "kernel", case.kernel)
    object.__setattr__(bad, "tiling", replace(good.tiling, stages=4))
    assert not ends(bad, [1])
