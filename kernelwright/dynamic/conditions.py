"""Which sizes each of several variants serves, as a tree of tests of one size each."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kernelwright.dynamic.formulas import Sizes

#: Numbers by which a size may be divisible that decide among variants: extents of vectors and tiles.
_DIVISORS = (2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Test:
    """``yes`` where a size, or a product of several, is at most ``most``, or where it is a multiple of ``divisor``;
    else ``no``. Leaves are numbers of variants, None where there is none."""

    places: tuple[int, ...]
    most: int | None
    divisor: int
    yes: Tree
    no: Tree

    def holds(self, sizes: Sizes) -> bool:
        """Whether ``yes`` is for these sizes."""
        value = prod(sizes[place] for place in self.places)
        return value <= self.most if self.most is not None else not value % self.divisor

    def text(self, names: Sequence[str]) -> str:
        """The test, as C and Python write it."""
        name = " * ".join(names[place] for place in self.places)
        return f"{name} <= {self.most}" if self.most is not None else f"{name} % {self.divisor} == 0"


Tree = Test | int | None


def tree_of(chosen: Mapping[Sizes, int | None]) -> Tree:
    """The tests by which the variant of each point is found."""
    kinds = set(chosen.values())
    if len(kinds) == 1:
        return next(iter(kinds))
    places, most, divisor, yes = min(_tests(chosen), key=lambda test: (_mixed(chosen, test[3]), len(test[0]),
                                                                        test[1] is None))
    inside = {p: v for p, v in chosen.items() if p in yes}
    outside = {p: v for p, v in chosen.items() if p not in yes}
    return Test(places, most, divisor, tree_of(inside), tree_of(outside))


def _tests(chosen: Mapping[Sizes, int | None]) -> Iterator[tuple[tuple[int, ...], int | None, int, frozenset[Sizes]]]:
    """Tests that part the points: of each size, and of products of sizes, of which the work of a kernel is one."""
    count = len(next(iter(chosen)))
    for places in (places for n in range(1, count + 1) for places in itertools.combinations(range(count), n)):
        values = {point: prod(point[place] for place in places) for point in chosen}
        ordered = sorted(set(values.values()))
        # Only where the variant changes: elsewhere no test parts them better.
        of_value: dict[int, set[int | None]] = {}
        for point, value in values.items():
            of_value.setdefault(value, set()).add(chosen[point])
        for one, other in itertools.pairwise(ordered):
            if of_value[one] != of_value[other] or len(of_value[one]) > 1:
                yes = frozenset(p for p, value in values.items() if value <= one)
                yield places, one, 0, yes
        for divisor in _DIVISORS if len(places) == 1 else ():
            yes = frozenset(p for p, value in values.items() if not value % divisor)
            if 0 < len(yes) < len(chosen):
                yield places, None, divisor, yes


def _mixed(chosen: Mapping[Sizes, int | None], yes: frozenset[Sizes]) -> float:
    """How far two parts of the points are from being of one variant each."""
    result = 0.0
    for part in ([v for p, v in chosen.items() if p in yes], [v for p, v in chosen.items() if p not in yes]):
        result += len(part) - sum(count * count for count in Counter(part).values()) / len(part)
    return result


def lookup(tree: Tree, sizes: Sizes) -> int | None:
    """The variant of some sizes."""
    while isinstance(tree, Test):
        tree = tree.yes if tree.holds(sizes) else tree.no
    return tree


def leaves(tree: Tree) -> int:
    """How many ends a tree has."""
    return leaves(tree.yes) + leaves(tree.no) if isinstance(tree, Test) else 1
