"""Chains of views in one form: slices of axes, one split, slices within axes, one permutation, one merge.

A chain of reshapes, permutations and slices maps every element of its last tensor to one of its first. Each axis of the
first tensor is factored into *atoms*, of which the axes of every tensor along the chain are products: a reshape whose
axes begin and end where atoms do splits and joins atoms, a permutation reorders them, a slice restricts them. Where all
steps do, the whole chain is ::

    x -> slices of its axes -> reshape (split) -> slices of parts -> permute -> reshape (merge)

of which only the merge may have to copy. It does only where the tensor at the end is no view of the memory that the
chain begins with, while each reshape that stands between two permutations copies by itself. Where an axis does not
factor (12 elements as 4 by 3 and then as 6 by 2, permuted in between) the chain stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from kernelwright.algebra.rule import Context, Exactness, Rule, rule
from kernelwright.ir.node import Node, make

VIEWS = ("reshape", "permute", "slice")
#: No more views than these are looked at from each, so that the work is linear in long chains that do not factor.
_MOST_VIEWS = 12


@dataclass(slots=True, eq=False)
class _Atom:
    """A factor of an axis of the source: of ``full`` entries those ``size`` that begin at ``start``."""

    axis: int
    full: int
    start: int = 0
    step: int = 1
    size: int = 0

    @property
    def is_whole(self) -> bool:
        return self.size == self.full


class Factored:
    """What the views so far do with a source.

    slices: of each axis of the source the first entry, the step and the number of entries that are left. factors: the
    atoms of what is left of each axis, outer ones first. axes: the atoms of each axis of the last view, in order; none
    where it has one element.
    """

    def __init__(self, source: Node) -> None:
        self.source = source
        self.slices = [(0, 1, size) for size in source.shape]
        self.factors = [[_Atom(axis, size, size=size)] if size != 1 else [] for axis, size in enumerate(source.shape)]
        self.axes = [list(atoms) for atoms in self.factors]

    def take(self, view: Node) -> bool:
        """Go over to a view of the last one; whether it factors. If not, nothing else may be asked."""
        if view.op == "permute":
            self.axes = [self.axes[axis] for axis in view["axes"]]
            return True
        if view.op == "slice":
            axis = view["axis"]
            return self._slice(self.axes[axis], view["start"], view["step"], view.shape[axis])
        return self._reshape(view.shape)

    def _slice(self, atoms: list[_Atom], start: int, step: int, size: int) -> bool:
        if size == prod(atom.size for atom in atoms):
            return True
        inner = prod(atom.size for atom in atoms[1:])
        if len(atoms) > 1 and start // inner == (start + step * (size - 1)) // inner:
            self._restrict(atoms, start // inner, 1, 1)
            return self._slice(atoms, start % inner, step, size)
        if len(atoms) > 1 and (step != 1 or start % inner or size % inner):
            return False
        if len(atoms) > 1:
            self._restrict(atoms, start // inner, 1, size // inner)
        else:
            self._restrict(atoms, start, step, size)
        return True

    def _restrict(self, atoms: list[_Atom], start: int, step: int, size: int) -> None:
        """Slice the first of the atoms of an axis of the last view; drop it from there if one entry is left."""
        atom = atoms[0]
        atom.start, atom.step, atom.size = atom.start + start * atom.step, atom.step * step if size > 1 else 1, size
        if size == 1:
            atoms.pop(0)
        # What is sliced of the outermost part of an axis is sliced of the axis.
        factors = self.factors[atom.axis]
        while factors and not factors[0].is_whole and (factors[0].step == 1 or len(factors) == 1):
            outer, inner = factors[0], prod(part.full for part in factors[1:])
            begin, every, _ = self.slices[outer.axis]
            size = outer.size * inner
            self.slices[outer.axis] = (begin + every * outer.start * inner, every * outer.step if size > 1 else 1, size)
            outer.full, outer.start, outer.step = outer.size, 0, 1
            if outer.full == 1:
                factors.pop(0)

    def _reshape(self, shape: tuple[int, ...]) -> bool:
        left = [atom for atoms in reversed(self.axes) for atom in reversed(atoms)]
        axes: list[list[_Atom]] = []
        for size in shape:
            taken: list[_Atom] = []
            while size > 1:
                atom = left.pop()
                if size % atom.size:
                    inner = self._split(atom, atom.size // size) if not atom.size % size else None
                    if inner is None:
                        return False
                    left.append(inner)
                taken.append(atom)
                size //= atom.size
            axes.append(taken)
        self.axes = axes
        return True

    def _split(self, atom: _Atom, size: int) -> _Atom | None:
        """Leave of an atom its outer part, and return its inner one, of this size; None where there are no such."""
        if atom.step != 1 or atom.full % size or atom.start % size:
            return None
        factors = self.factors[atom.axis]
        inner = _Atom(atom.axis, size, size=size)
        factors.insert(factors.index(atom) + 1, inner)
        atom.full, atom.start, atom.size = atom.full // size, atom.start // size, atom.size // size
        return inner

    # The one form ----------------------------------------------------------------------------------

    def built(self) -> Node:
        """The last view, made of the source in the one form."""
        shape = tuple(prod(atom.size for atom in atoms) for atoms in self.axes)
        y = self.source
        for axis, (start, step, size) in enumerate(self.slices):
            y = _sliced(y, axis, start, step, size)
        runs = self._runs()
        place = {run[0]: number for number, run in enumerate(runs)}
        merged = [[place[atom] for atom in atoms if atom in place] for atoms in self.axes]
        order = [number for numbers in merged for number in numbers]
        sizes = [prod(atom.full for atom in run) for run in runs]
        stays = order == sorted(order)
        parted = [number for number, run in enumerate(runs) if not run[0].is_whole]
        if stays and not parted:
            return _reshaped(y, shape)
        # A permutation can be the last step where it has nothing to join or drop.
        is_last = len(order) == len(runs) and all(len(numbers) < 2 for numbers in merged)
        units = sum(not numbers for numbers in merged)
        wide = [axis for axis, size in enumerate(y.shape) if size != 1]
        if [y.shape[axis] for axis in wide] != sizes or (is_last and y.rank - len(wide) != units):
            y = _reshaped(y, ((1,) * units if is_last else ()) + tuple(sizes))
            wide = list(range(y.rank - len(sizes), y.rank))
        narrow = iter([axis for axis in range(y.rank) if axis not in wide])
        for number in parted:
            atom = runs[number][0]
            y = _sliced(y, wide[number], atom.start, atom.step, atom.size)
        if not stays:
            axes = [wide[numbers[0]] if numbers else next(narrow) for numbers in merged] if is_last else \
                [wide[number] for number in order]
            y = make("permute", y, axes=(*axes, *(axis for axis in range(y.rank) if axis not in axes)))
        return _reshaped(y, shape)

    def _runs(self) -> list[list[_Atom]]:
        """The atoms of the source in order, those together that also stand so in one axis of the last view."""
        after = {first: second for atoms in self.axes for first, second in pairwise(atoms)}
        runs: list[list[_Atom]] = []
        for atom in (atom for factors in self.factors for atom in factors):
            last = runs[-1][-1] if runs else None
            # Memory has gaps where an inner axis is sliced.
            if last is not None and last.is_whole and atom.is_whole and after.get(last) is atom and (
                    last.axis == atom.axis or self.slices[atom.axis] == (0, 1, self.source.shape[atom.axis])):
                runs[-1].append(atom)
            else:
                runs.append([atom])
        return runs


def _sliced(y: Node, axis: int, start: int, step: int, size: int) -> Node:
    if size == y.shape[axis]:
        return y
    return make("slice", y, axis=axis, start=start, stop=start + step * (size - 1) + 1, step=step)


def _reshaped(y: Node, shape: tuple[int, ...]) -> Node:
    return y if y.shape == shape else make("reshape", y, shape=shape)


def chain_below(node: Node) -> tuple[Node, list[Node]]:
    """What a chain of views begins with, and the views, the first one first."""
    chain: list[Node] = []
    while node.op in VIEWS and len(chain) < _MOST_VIEWS:
        chain.append(node)
        node = node.inputs[0]
    return node, chain[::-1]


def factored(source: Node, chain: Sequence[Node]) -> Node | None:
    """A chain of views in the one form; None where it does not factor."""
    atoms = Factored(source)
    return atoms.built() if all(atoms.take(view) for view in chain) else None


def viewed(shape: Sequence[int], strides: Sequence[int], after: Sequence[int]) -> tuple[int, ...] | None:
    """The strides of a view of another shape; None where such a reshape copies."""
    left = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    result: list[int] = []
    # From the innermost axis outwards: (size, stride) of what is joined so far and not yet given away.
    have, step = 1, 1
    for size in reversed(after):
        if size == 1:
            result.append(step)
            continue
        if have == 1:
            have, step = left.pop()
        while have % size and left and left[-1][1] == have * step:
            have *= left.pop()[0]
        if have % size:
            return None
        result.append(step)
        have, step = have // size, step * size
    return tuple(reversed(result))


def laid_out(source: Node, chain: Sequence[Node]) -> tuple[tuple[int, ...], list[Node]]:
    """The strides at the end of a chain whose source is contiguous, and the reshapes in it that copy."""
    strides = contiguous(source.shape)
    copying: list[Node] = []
    for view in chain:
        below = view.inputs[0]
        if view.op == "permute":
            strides = tuple(strides[axis] for axis in view["axes"])
        elif view.op == "slice":
            strides = tuple(stride * view["step"] if axis == view["axis"] else stride
                            for axis, stride in enumerate(strides))
        else:
            shown = viewed(below.shape, strides, view.shape)
            copying += [view] if shown is None else []
            strides = contiguous(view.shape) if shown is None else shown
    return strides, copying


def copies(source: Node, chain: Sequence[Node]) -> list[Node]:
    """The reshapes of a chain that copy, if its source is contiguous."""
    return laid_out(source, chain)[1]


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(prod(shape[axis + 1:]) for axis in range(len(shape)))


@rule("chain of views", *VIEWS, law="views of views = slices, a split, a permutation and a merge of the axes' factors",
      condition="every reshape joins and splits whole factors; fewer copies are made, or fewer views; where the caller "
                "or a drawing call sees the memory, none was made before", exactness=Exactness.BITWISE)
def chain_of_views(node: Node, context: Context) -> Node | None:
    source, chain = chain_below(node)
    if len(chain) < 2 or not node.size:
        return None
    while chain:
        result = factored(source, chain)
        if result is not None:
            break
        source = chain.pop(0)
    if len(chain) < 2 or result is None:
        return None
    before, after = copies(source, chain), copies(source, chain_below_to(source, result))
    if before and node in context.laid:
        return None
    if len(after) != len(before):
        return result if len(after) < len(before) else None
    # Of a copy that others read through other views there would be one for each of them.
    shorter = len(chain_below_to(source, result)) < len(chain)
    return result if shorter and (not before or before == [node]) else None


def chain_below_to(source: Node, node: Node) -> list[Node]:
    """The views between a source and a node, the first one first."""
    chain: list[Node] = []
    while node is not source:
        chain.append(node)
        node = node.inputs[0]
    return chain[::-1]


VIEW_RULES: tuple[Rule, ...] = (chain_of_views,)
