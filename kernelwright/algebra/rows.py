"""Rows of a linear layer in another order: a permutation of rows before it is one after it.

Models that keep positions first permute what is batch-first before a projection and permute its results back. Read
upward, the permutations meet and cancel: the projection reads its operand as it lies.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelwright.algebra.rule import Context, Exactness, Rule, rule
from kernelwright.algebra.views import Factored, chain_below, chain_below_to, factored, laid_out
from kernelwright.ir.node import Node, make, rebuild

#: No more views than these are looked at above a linear layer.
_MOST_VIEWS = 64


@rule("rows of a linear layer", "linear", law="linear(P x) = P linear(x) for a permutation P of rows",
      condition="views alone read it, none of them worse than before, and with theirs fewer bytes are copied, or read "
                "in another order than they are stored", exactness=Exactness.REASSOCIATES)
def rows_as_they_lie(node: Node, context: Context) -> Node | None:
    source, chain = chain_below(node.inputs[0])
    original = context.original.get(node)
    if not chain or original is None or not node.size:
        return None
    moved = _moved(node, source, chain)
    if moved is None:
        return None
    layer, result = moved
    shown = list(_shown(original, context))
    if not shown:
        return None
    copied, before = _cost(source, chain)
    copied_after, after = _cost(source, chain_below_to(source, layer.inputs[0]))
    if len(context.readers[original.inputs[0]]) == 1:  # else others read the copy, too
        before, after = before + copied, after + copied_after
    for views, is_laid in shown:
        last = result
        for view in views:
            last = rebuild(view, (last,))
        moved_views = chain_below_to(layer, factored(layer, chain_below_to(layer, last)) or last)
        old, new = _cost(original, views), _cost(layer, moved_views)
        # What is read in order may be fused with the layer; where it is seen how memory lies it has to lie so.
        if new[0] > old[0] or sum(new) > sum(old) or (
                is_laid and laid_out(original, views) != laid_out(layer, moved_views)):
            return None
        before, after = before + sum(old), after + sum(new)
    return result if after < before else None


def _moved(node: Node, source: Node, chain: list[Node]) -> tuple[Node, Node] | None:
    """The layer with its rows in the order in which the source has them, and its result as the node has it; None where
    they are in this order, or where views do not factor."""
    atoms = Factored(source)
    if not all(atoms.take(view) for view in chain):
        return None
    place = {atom: number for number, atom in enumerate(atom for factors in atoms.factors for atom in factors)}
    rows = [atom for axis in atoms.axes[:-1] for atom in axis]
    # Those stay together that follow each other in the source and in an axis of the operand.
    runs: list[list] = []
    for axis in atoms.axes[:-1]:
        runs += [[]]
        for atom in axis:
            if runs[-1] and place[atom] != place[runs[-1][-1]] + 1:
                runs += [[]]
            runs[-1].append(atom)
    runs = [run for run in runs if run]
    ordered = sorted(runs, key=lambda run: place[run[0]])
    if ordered == runs or not rows:
        return None
    atoms.axes = [*ordered, atoms.axes[-1]]
    layer = rebuild(node, (atoms.built(), *node.inputs[1:]))
    axes = (*(ordered.index(run) for run in runs), len(runs))
    result = make("permute", layer, axes=axes)
    return layer, result if result.shape == node.shape else make("reshape", result, shape=node.shape)


def _shown(node: Node, context: Context) -> Iterator[tuple[list[Node], bool]]:
    """The chains of views through which a node is read, each with whether it is seen how its memory lies; nothing where
    something else reads the node itself."""
    if node in context.roots or any(r.kind != "view" for r in context.readers.get(node, ())):
        return
    stack = [[view] for view in context.readers[node]]
    found = []
    looked = 0
    while stack:
        chain = stack.pop()
        looked += 1
        readers = context.readers[chain[-1]]
        if looked > _MOST_VIEWS or any(view.op not in ("reshape", "permute", "slice") for view in chain):
            return
        if chain[-1] in context.roots or any(r.kind != "view" for r in readers):
            found.append((chain, chain[-1] in context.laid))
        stack += [[*chain, r] for r in readers if r.kind == "view"]
    yield from found


def _cost(source: Node, chain: list[Node]) -> tuple[int, int]:
    """The bytes that views of contiguous memory copy, and those that are read in another order at the end."""
    if not chain:
        return 0, 0
    strides, copying = laid_out(source, chain)
    last = chain[-1]
    in_order = [stride for stride, size in zip(strides, last.shape, strict=True) if size > 1]
    moved = in_order != sorted(in_order, reverse=True)
    return sum(view.bytes for view in copying), last.bytes if moved else 0


ROW_RULES: tuple[Rule, ...] = (rows_as_they_lie,)
