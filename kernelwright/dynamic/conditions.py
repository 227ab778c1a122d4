"""Which sizes each of several variants serves, as a tree of tests of one size each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelwright.dynamic.formulas import Sizes

#: Numbers by which a size may be divisible that decide among variants: extents of vectors and tiles.
_DIVISORS = (2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Test:
    """``yes`` where a size is at most ``most``, or where it is a multiple of ``divisor``; else ``no``. Leaves are
    numbers of variants, None where there is none."""

    place: int
    most: int | None
    divisor: int
    yes: Tree
    no: Tree

    def holds(self, sizes: Sizes) -> bool:
        """Whether ``yes`` is for these sizes."""
        return sizes[self.place] <= self.most if self.most is not None else not sizes[self.place] % self.divisor

    def text(self, names: Sequence[str]) -> str:
        """The test, as C and Python write it."""
        name = names[self.place]
        return f"{name} <= {self.most}" if self.most is not None else f"{name} % {self.divisor} == 0"


Tree = Test | int | None


def tree_of(chosen: Mapping[Sizes, int | None]) -> Tree:
    """The tests by which the variant of each point is found."""
    kinds = set(chosen.values())
    if len(kinds) == 1:
        return next(iter(kinds))
    place, most, divisor, yes = min(_tests(chosen), key=lambda test: (_mixed(chosen, test[3]), test[1] is None))
    inside = {p: v for p, v in chosen.items() if p in yes}
    outside = {p: v for p, v in chosen.items() if p not in yes}
    return Test(place, most, divisor, tree_of(inside), tree_of(outside))


def _tests(chosen: Mapping[Sizes, int | None]) -> list[tuple[int, int | None, int, frozenset[Sizes]]]:
    found: list[tuple[int, int | None, int, frozenset[Sizes]]] = []
    for place in range(len(next(iter(chosen)))):
        values = sorted({point[place] for point in chosen})
        found += [(place, value, 0, frozenset(p for p in chosen if p[place] <= value)) for value in values[:-1]]
        for divisor in _DIVISORS:
            yes = frozenset(p for p in chosen if not p[place] % divisor)
            if 0 < len(yes) < len(chosen):
                found.append((place, None, divisor, yes))
    return found


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
