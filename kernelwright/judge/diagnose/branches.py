"""Changes of several operators at once, and changes that one reader of a value sees alone.

A loop that a model's graph holds unrolled has one fault in every step, and one loop of a kernel may compute two
reductions; a kernel that computes a mean twice may get it wrong once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from kernelwright.ir.node import Node
from kernelwright.judge.diagnose.change import Change
from kernelwright.judge.diagnose.graph_values import Get, GraphValues, recomputed
from kernelwright.judge.diagnose.naming import told

#: Operators whose result a kernel is likely to compute anew, or otherwise, for each place where it is needed.
_KINDS = ("reduction", "row", "norm", "pointwise")
#: Changes that are likelier than this are tried for one reader, too; readers beyond this number are not.
LIKELY, MOST_READERS = 2.2, 4


def alone(values: GraphValues, changes: Iterable[Change]) -> Iterator[Change]:
    """Each change of one operator whose value, or what is made of it, is read in several places, for each place."""
    for change in changes:
        if len(change.changes) != 1 or change.prior > LIKELY:
            continue
        node = next(iter(change.changes))
        fork = _fork(values, node) if node.kind in _KINDS else None
        if fork is None:
            continue
        for reader in values.readers[fork]:
            yield replace(change, words=f"{change.words}, but only as {told(reader)} sees it", prior=change.prior + 1.0,
                          changes={reader: lambda get, c=change, f=fork, r=reader: _seen(values, get, c, f, r)})


def _fork(values: GraphValues, node: Node) -> Node | None:
    """The first value on the way from a node that a few operators read."""
    while True:
        readers = values.readers.get(node, [])
        if len(readers) != 1:
            return node if 1 < len(readers) <= MOST_READERS else None
        node = readers[0]


def _seen(values: GraphValues, get: Get, change: Change, fork: Node, reader: Node) -> Any:
    other = values.changed(change.changes, [fork])[0]
    return recomputed(reader, get, *(other if part is fork else get(part) for part in reader.inputs))


def together(changes: Iterable[Change]) -> Iterator[Change]:
    """The same change in all operators of one kind that stand in one line of the model, and in all reductions of one
    value over the same axes."""
    groups: dict[tuple[Hashable, ...], dict[Hashable, dict[Node, Change]]] = defaultdict(lambda: defaultdict(dict))
    members: dict[Hashable, set[Node]] = defaultdict(set)
    for change in changes:
        node = next(iter(change.changes))
        if len(change.changes) != 1 or change.prior > LIKELY:
            continue
        for key in _keys(node):
            members[key].add(node)
            groups[key][change.kind, change.words.replace(told(node), "")].setdefault(node, change)
    for key, alike in groups.items():
        for of_node in alike.values():
            if 1 < len(of_node) == len(members[key]):
                first, *others = of_node.values()
                changed = {node: own for change in of_node.values() for node, own in change.changes.items()}
                more = f"{len(others)} more of this line" if key[0] == "line" else " and ".join(
                    told(node) for node in list(of_node)[1:])
                yield replace(first, words=f"{first.words}, and so in {more}", prior=first.prior + 0.2,
                              changes=changed)


def _keys(node: Node) -> Iterator[tuple[Hashable, ...]]:
    if node.kind != "leaf" and node.origin is not None and node.origin.line:
        yield "line", node.op, node.origin.file, node.origin.line
    if node.kind == "reduction":
        yield "value", node.inputs[0], node.get("axes")
