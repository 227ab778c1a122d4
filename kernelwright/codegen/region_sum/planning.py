"""Planning of region sums for every target: which rows are added, and how sums become outputs.

A region sum is separable: along every reduced axis it multiplies by a 0/1 matrix. One pass over
the input is enough when its rows are added column by column, as long as only rows of the same
membership are added together. The plan therefore cuts the input into

units     one per kept position (and per tile of columns, where the innermost axis is kept),
rows      ``columns`` consecutive elements of a unit; an axis may be split so that rows have a
          good length for the target, and short inner axes are joined into one row,
atoms     progressions of rows that all classes treat alike; their column sums may be added,
tasks     one sum over a list of columns of one atom,
outputs   one sum over tasks.

Nothing is ever subtracted, so a NaN or an infinity reaches exactly the classes that contain it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

from kernelwright.codegen.region_sum.axes import MAXIMAL_ATOMS, Axis, TooFineError, period_of, row_atoms

MAXIMAL_TABLE = 1 << 15
SMALL_KEPT = 64
"""An innermost kept axis up to this size is planned as a reduced axis with singleton classes."""


@dataclass(frozen=True, slots=True)
class Atom:
    """Rows of a unit with equal membership: ``offset + sum(i[j] * strides[j]), i[j] < counts[j]``.

    Only the first ``limit`` columns of these rows may be read.
    """

    offset: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    limit: int

    @property
    def rows(self) -> int:
        """Number of rows of the atom."""
        return prod(self.counts)


@dataclass(frozen=True, slots=True)
class Stream:
    """A one-pass plan.

    ``kept`` are the axes that number the units (x stride, output stride). With a ``tile_axis``
    the columns are kept: a unit is one tile of ``columns`` of that axis, every atom is a task,
    and an output is a vector over the columns. Otherwise task ``t`` adds the columns
    ``lists[tasks[t][1]]`` of atom ``tasks[t][0]``. Output ``u`` of a unit is at
    ``outputs[u][0]`` and adds the tasks ``outputs[u][1]``. ``alignment`` divides every offset of
    a row (in elements; at most 4).
    """

    kept: tuple[Axis, ...]
    tile_axis: Axis | None
    columns: int
    atoms: tuple[Atom, ...]
    tasks: tuple[tuple[int, int], ...]
    lists: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, tuple[int, ...]], ...]
    alignment: int

    @property
    def tiles(self) -> int:
        """Number of tiles of the kept columns (1 without a tile axis)."""
        return 1 if self.tile_axis is None else -(-self.tile_axis.size // self.columns)

    @property
    def units(self) -> int:
        """Number of units."""
        return prod(axis.size for axis in self.kept) * self.tiles

    @property
    def rows(self) -> int:
        """Rows of one unit, in the order of the atoms."""
        return sum(atom.rows for atom in self.atoms)


def _inner_columns(axes: tuple[Axis, ...]) -> list[tuple[int, ...]]:
    """For every combination of classes of the joined inner axes, the columns it contains."""
    combinations: list[tuple[int, ...]] = [(0,)]
    for axis in axes:
        combinations = [
            tuple(c * axis.size + q for c in columns for q in sorted(q for p in one for q in range(*p)))
            for columns in combinations
            for one in axis.classes or ()
        ]
        if sum(map(len, combinations)) > MAXIMAL_TABLE:
            raise TooFineError
    return combinations


def _merge_row_axes(atoms: list[Atom]) -> list[Atom]:
    """Join neighbouring row axes wherever all atoms allow it, so that walks are short loops."""
    axis = 0
    while axis + 1 < len(atoms[0].counts):
        pairs = [(a.counts[axis], a.strides[axis], a.counts[axis + 1], a.strides[axis + 1]) for a in atoms]
        if all(n == 1 or m == 1 or s == m * t for n, s, m, t in pairs):
            atoms = [
                Atom(
                    a.offset,
                    (*a.counts[:axis], n * m, *a.counts[axis + 2 :]),
                    (*a.strides[:axis], t if m > 1 else s, *a.strides[axis + 2 :]),
                    a.limit,
                )
                for a, (n, s, m, t) in zip(atoms, pairs, strict=True)
            ]
        else:
            axis += 1
    return atoms


def _few_atoms(axis: Axis) -> int:
    """An estimate of the number of atoms of an axis."""
    return 1 if axis.full else min(axis.size, 2 * axis.outputs - 1)


Score = Callable[[int, int], float]
"""(columns, alignment of rows) -> how well rows of that length suit the target; 0: not at all."""


def _choose_split(
    head: tuple[Axis, ...], tail: tuple[Axis, ...], alignment: int, score: Score
) -> tuple[int, int]:
    """Which axis of the tail is cut into rows, and into how many positions per row.

    Rows over several classes are paid for when columns become tasks, which is weighed against
    the elements of a unit.
    """
    outer_alignment, elements = alignment, prod(axis.size for axis in (*head, *tail))
    best, choice = 0.0, None
    inner = 1
    for number in range(len(tail) - 1, -1, -1):
        axis = tail[number]
        outside = 0 if number == 0 else axis.size * inner
        period = period_of(axis.classes or ())
        inner_outputs = prod(a.outputs for a in tail[number:])
        outer_atoms = prod(_few_atoms(a) for a in (*head, *tail[:number]))
        for block in range(1, min(axis.size, 1024) + 1):
            rows = -(-axis.size // block)
            alignment = gcd(outer_alignment, outside, block * inner if rows > 1 else 0)
            value = score(block * inner, alignment) * axis.size / (rows * block)
            own_atoms = _few_atoms(axis) if rows > 1 else 1
            outputs = inner_outputs // max(1, axis.outputs) if block == 1 else inner_outputs
            value /= 1 + outer_atoms * min(own_atoms, rows) * outputs * block * inner / elements
            if rows > 1 and block % period:
                value *= 0.5
            if rows > 1 and block > 1 and not axis.full:
                value *= 0.9
            if value > best:
                best, choice = value, (number, block)
        inner *= axis.size
        if score(inner, 4) == 0:
            break
    if choice is None:
        raise TooFineError
    return choice


def plan_stream(axes: tuple[Axis, ...], score: Score, tile: int) -> Stream:
    """The one-pass plan of joined axes; ``tile`` is the width of a tile of kept columns.

    Raises TooFineError where a streaming plan does not pay (many tiny classes, no reduced axis,
    or an empty tensor): the target then sums every output on its own.
    """
    if any(axis.size == 0 or axis.outputs == 0 for axis in axes) or all(a.classes is None for a in axes):
        raise TooFineError
    last = axes[-1]
    if last.classes is None and last.size <= SMALL_KEPT:
        singletons = tuple(((q, q + 1, 1),) for q in range(last.size))
        axes = (*axes[:-1], Axis(last.size, singletons, last.stride, last.output_stride))
    tile_axis = axes[-1] if axes[-1].classes is None else None
    kept = tuple(axis for axis in axes if axis.classes is None and axis is not tile_axis)
    first = max((i + 1 for i, axis in enumerate(axes) if axis.classes is None), default=0)
    head, tail = tuple(axis for axis in axes[:first] if axis.classes is not None), axes[first:]

    outer = [axis.stride for axis in (*kept, *head)]
    if tile_axis is None:
        number, block = _choose_split(head, tail, gcd(4, *outer), score)
        inner = tail[number + 1 :]
        row_axes = [*((axis, 1) for axis in (*head, *tail[:number])), (tail[number], block)]
        columns = block * tail[number].stride
    else:
        number, inner = 0, ()
        row_axes = [(axis, 1) for axis in head]
        columns = min(tile, tile_axis.size)

    found = [row_atoms(axis.classes or (), axis.size, size) for axis, size in row_axes]
    if not 0 < prod(len(one) for one in found) <= MAXIMAL_ATOMS:
        raise TooFineError
    combinations = list(product(*(range(len(one)) for one in found)))
    atoms = []
    for combination in combinations:
        parts = [one[i] for one, i in zip(found, combination, strict=True)]
        strides = tuple(axis.stride * size for axis, size in row_axes)
        used = max(i + 1 for i, classes in enumerate(parts[-1][0]) if classes)
        atoms.append(
            Atom(
                sum(start * stride for (_, (start, _, _)), stride in zip(parts, strides, strict=True)),
                tuple(count for _, (_, count, _) in parts),
                tuple(step * stride for (_, (_, _, step)), stride in zip(parts, strides, strict=True)),
                columns if tile_axis is not None else used * tail[number].stride,
            )
        )

    lists: dict[tuple[int, ...], int] = {}
    tasks: list[tuple[int, int]] = []
    by_class: dict[tuple[int, ...], dict[int, int]] = {}
    if tile_axis is not None:
        tasks = [(i, 0) for i in range(len(atoms))]
    else:
        inner_columns = _inner_columns(inner)
        width = tail[number].stride
        classes = len(tail[number].classes or ())
        for index, combination in enumerate(combinations):
            pattern = found[-1][combination[-1]][0]
            for v in range(classes * len(inner_columns)):
                rest = inner_columns[v % len(inner_columns)]
                held = [i for i, several in enumerate(pattern) if v // len(inner_columns) in several]
                columns_of = tuple(i * width + c for i in held for c in rest)
                if columns_of:
                    by_class.setdefault(combination, {})[v] = len(tasks)
                    tasks.append((index, lists.setdefault(columns_of, len(lists))))
            if sum(map(len, lists)) > MAXIMAL_TABLE or len(tasks) > MAXIMAL_TABLE:
                raise TooFineError

    if not tasks:
        raise TooFineError
    outputs = _outputs(row_axes, inner, found, combinations, by_class, tile_axis is not None)
    merged = _merge_row_axes(atoms)
    alignment = gcd(
        4,
        *(axis.stride for axis in kept),
        0 if tile_axis is None or tile_axis.size <= columns else columns,
        *(atom.offset for atom in merged),
        *(s for atom in merged for n, s in zip(atom.counts, atom.strides, strict=True) if n > 1),
    )
    return Stream(kept, tile_axis, columns, tuple(merged), tuple(tasks), tuple(lists), outputs, alignment)


def _outputs(
    row_axes: list[tuple[Axis, int]],
    inner: tuple[Axis, ...],
    found: list,
    combinations: list,
    by_class: dict[tuple[int, ...], dict[int, int]],
    kept_columns: bool,
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    number_of = {combination: i for i, combination in enumerate(combinations)}
    whole = [axis for axis, _ in row_axes] if kept_columns else [axis for axis, _ in row_axes[:-1]]
    # atoms of a whole axis that lie in class u
    members = [
        [[i for i, (key, _) in enumerate(one) if u in key[0]] for u in range(axis.outputs)]
        for axis, one in zip(whole, found, strict=False)
    ]
    rest = [] if kept_columns else [row_axes[-1][0], *inner]
    result: list[tuple[int, tuple[int, ...]]] = []
    entries = 0
    for u in product(*(range(axis.outputs) for axis in (*whole, *rest))):
        offset = sum(i * axis.output_stride for i, axis in zip(u, (*whole, *rest), strict=True))
        choices = [members[j][u[j]] for j in range(len(whole))]
        if kept_columns:
            parts = tuple(number_of[combination] for combination in product(*choices))
        else:
            v = 0
            for i, axis in zip(u[len(whole) :], rest, strict=True):
                v = v * axis.outputs + i
            last = range(len(found[-1]))
            parts = tuple(
                by_class[combination][v]
                for combination in product(*choices, last)
                if v in by_class.get(combination, {})
            )
        result.append((offset, parts))
        entries += len(parts) + 1
        if entries > MAXIMAL_TABLE:
            raise TooFineError
    return tuple(result)
