"""What a round asks for: which candidates are shown to whom, and what is to be done with them.

Two ways, both simple. *best*: every answer is asked for anew, and the best counts. *islands*: the answers of a round
belong to islands, each of which begins with a direction of its own. From the second round on an island builds on what
it has: its best right candidate is to become faster, the almost right ones are to be mended, something unlike the best
is asked for, and two are combined. In every second round an island also has the best of the one before it. What is
chosen depends on the seed and on verdicts alone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelwright.propose.prompt import COMBINE, DIFFER, DIRECTIONS, IMPROVE, MEND, NEW
from kernelwright.propose.records import Candidate
from kernelwright.propose.standing import nearness, passed, speed

MOST_ISLANDS = 4
#: Nearer than this there is something to mend.
_WORTH_MENDING = 0.15
#: An island gets the best of its neighbour every so many rounds.
_MIGRATION = 2


@dataclass(frozen=True, slots=True)
class Ask:
    """One answer to ask for. ``parents``: names of candidates that are shown, the one to work on first."""

    name: str
    task: str
    parents: tuple[str, ...] = ()
    direction: str = ""
    island: int = 0


def plan_round(way: str, number: int, count: int, candidates: Mapping[str, Candidate], texts: Mapping[str, str],
               seed: int) -> list[Ask]:
    """The answers to ask for in a round, from 1. texts: of the candidates, by name."""
    names = [f"r{number}c{k + 1}" for k in range(count)]
    if way == "best":
        return [Ask(n, NEW, direction=DIRECTIONS[(k + count * (number - 1)) % len(DIRECTIONS)])
                for k, n in enumerate(names)]
    islands = max(1, min(MOST_ISLANDS, count // 2))
    if number == 1:
        return [Ask(n, NEW, direction=DIRECTIONS[k % len(DIRECTIONS)], island=k % islands)
                for k, n in enumerate(names)]
    asks = []
    for island in range(islands):
        own = names[island::islands]
        members = _members(candidates, island, islands, number)
        drawn = random.Random(f"{seed} {number} {island}")
        options = _options(members, texts, drawn, island)
        asks += [Ask(n, *options[k % len(options)], island=island) for k, n in enumerate(own)]
    return sorted(asks, key=lambda ask: names.index(ask.name))


def _members(candidates: Mapping[str, Candidate], island: int, islands: int, number: int) -> list[Candidate]:
    judged = [c for c in candidates.values() if c.verdict and not c.same_as]
    members = [c for c in judged if c.island == island]
    if islands > 1 and number % _MIGRATION == 0:
        neighbour = best_of([c for c in judged if c.island == (island - 1) % islands])
        members += [neighbour] if neighbour is not None else []
    return members


def _options(members: Sequence[Candidate], texts: Mapping[str, str], drawn: random.Random, island: int
             ) -> list[tuple[str, tuple[str, ...], str]]:
    """Tasks with their parents and directions, the most promising first."""
    best = best_of(members)
    faulty = sorted((c for c in members if not passed(c.verdict) and nearness(c.verdict) > _WORTH_MENDING),
                    key=lambda c: (-nearness(c.verdict), c.name))
    direction = DIRECTIONS[(island + drawn.randrange(len(DIRECTIONS))) % len(DIRECTIONS)]
    if best is None:
        if not faulty:
            return [(NEW, (), direction)]
        mended: list[tuple[str, tuple[str, ...], str]] = [(MEND, (c.name,), "") for c in faulty[:2]]
        return [*mended, (NEW, (), direction)]
    options: list[tuple[str, tuple[str, ...], str]] = [(IMPROVE, (best.name,), direction)]
    if faulty:
        options.append((MEND, (drawn.choice(faulty[:2]).name,), ""))
    others = [c for c in members if c is not best and nearness(c.verdict) > _WORTH_MENDING]
    if others:
        other = max(others, key=lambda c: (distance(texts[c.name], texts[best.name]), c.name))
        options.append((DIFFER, (best.name, other.name), ""))
        options.append((COMBINE, (best.name, drawn.choice(others).name), ""))
    else:
        options.append((DIFFER, (best.name,), direction))
    return options


def best_of(candidates: Sequence[Candidate]) -> Candidate | None:
    """The right candidate that is the fastest, the first one where none was timed; None where none is right."""
    right = [c for c in candidates if c.verdict and passed(c.verdict)]
    return max(right, key=lambda c: speed(c.verdict) or 0.0, default=None)


def distance(one: str, other: str) -> float:
    """How different two texts are, from 0 to 1: the share of words of either that only one of them has."""
    a, b = (set(re.findall(r"\w+", text)) for text in (one, other))
    return 1 - len(a & b) / max(1, len(a | b))
