"""Trials for what a model does along an axis: states that must be remembered, rows whose largest value counts.

Which axis of which input arrives where a graph walks along one is found from the graph (`verify.along.origins`);
where a row is made by a layer, and no axis of an input goes along it, the layer's weights are drawn along theirs. At
most two places of each kind count, the longest first: at most six trials of states and six of rows, and none where the
graph has no such operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from kernelwright.capture.forms import flat
from kernelwright.codegen.reference.plan import values_of
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node
from kernelwright.problem.arguments import received
from kernelwright.verify.along.carried import Along, carried, rows
from kernelwright.verify.along.gates import FAINT, opened
from kernelwright.verify.along.origins import Axes, Origin, axis_origins, meetings
from kernelwright.verify.distributions import AS_GIVEN
from kernelwright.verify.flatten import flatten
from kernelwright.verify.records import Opened, TrialPlan

#: Places of each kind.
_MOST = 2
#: Between the seed of a certification and those of these trials.
_OFFSET = 40


@dataclass(slots=True)
class _Place:
    """Where values are drawn: the axes of inputs or parameters, how many values an axis has, and what is there.
    ``floating``: whether they are numbers that can be drawn otherwise, and not tokens."""

    along: dict[tuple[str, int], None]
    size: int
    kinds: set[str]
    opened: dict[Opened, None] = field(default_factory=dict)
    floating: bool = True


def along_trials(graph: Graph, model: nn.Module, example: Sequence[Any], seed: int = 0) -> tuple[TrialPlan, ...]:
    """The trials of a model whose ``graph`` was captured with the inputs ``example``. Those of states come first, and
    of these a pair: loud at the start, and the same without that."""
    states, largest = carried(graph), rows(graph)
    if not states and not largest:
        return ()
    origins, paths = axis_origins(graph), _paths(graph, model, example)
    values = values_of(model, graph, example) if any(a.kind in ("layer", "loop") for a in states) else {}
    found: dict[TrialPlan, None] = {}
    for number, place in enumerate(_states(states, graph, origins, paths, values)):
        found |= dict.fromkeys(_of_state(place, seed + _OFFSET + 8 * number))
    for number, place in enumerate(_rows(largest, origins, paths)):
        for turn, kind in enumerate(("loud tile", "loud end", "loud start")):
            plan = TrialPlan(seed + _OFFSET + 24 + 8 * number + turn, kind, along=tuple(place.along))
            if not any((plan.distribution, plan.along) == (p.distribution, p.along) for p in found):
                found[plan] = None
    return tuple(found)


def _of_state(place: _Place, seed: int) -> list[TrialPlan]:
    along, gates = tuple(place.along), tuple(place.opened)
    if place.kinds == {"product"}:
        return [TrialPlan(seed, "near one", along=along)] if along else []
    if not along or not place.floating:
        return [TrialPlan(seed, AS_GIVEN, along=along, opened=gates)] if gates else []
    plans = [TrialPlan(seed, kind, along=along, opened=gates) for kind in ("loud start", "quiet")]
    if "loop" in place.kinds and not gates:  # decays may be inputs
        plans.append(TrialPlan(seed + 1, "near one", along=along))
    return [*plans, TrialPlan(seed + 2, "loud end", along=along)]


def _states(states: Sequence[Along], graph: Graph, origins: Mapping[Node, Axes], paths: Mapping[Any, str],
            values: Mapping[str, torch.Tensor]) -> list[_Place]:
    """Loops of as many steps are one: they walk along several tensors together."""
    places: dict[Any, _Place] = {}
    for along in states:
        comes = origins[along.value][along.axis]
        found, gates = _inputs(comes, paths), opened(graph, along, values, paths)
        if not found:  # decays that are parameters, or tokens
            beside = comes.union(*(together for together in meetings(origins) if together & comes))
            found = _inputs(frozenset(o for o in beside if not o[0].shape[o[1]] % along.size or o in comes), paths)
            gates = (*gates, *(_faint(leaf) for leaf, _ in comes if along.kind == "sum" and leaf.op == "parameter"))
        floating = bool(found)
        found = found or _inputs(comes, paths, floating=False)
        key = ("loop", along.size) if along.kind == "loop" else (tuple(found), along.kind == "product")
        place = places.setdefault(key, _Place({}, along.size, set(), floating=floating))
        place.along |= dict.fromkeys(found)
        place.kinds.add(along.kind)
        place.opened |= dict.fromkeys(gates)
    for place in places.values():  # a gate that is given is no value to be remembered, where there is another
        gates = {change.name for change in place.opened}
        place.along = {where: None for where in place.along if where[0] not in gates} or place.along
    return _longest(places)


def _faint(leaf: Node) -> Opened:
    return Opened(leaf["name"], 0, leaf.size, scale=FAINT)


def _rows(largest: Sequence[Along], origins: Mapping[Node, Axes], paths: Mapping[Any, str]) -> list[_Place]:
    places: dict[Any, _Place] = {}
    for along in largest:
        comes = origins[along.value][along.axis]
        found = _inputs(comes, paths) or sorted(
            (leaf["name"], axis) for leaf, axis in comes if leaf.op == "parameter" and _is_floating(leaf.dtype)
            and leaf.shape[axis] == along.size)
        if found:
            places.setdefault(tuple(found), _Place(dict.fromkeys(found), along.size, {"row"}))
    return _longest(places)


def _longest(places: Mapping[Any, _Place]) -> list[_Place]:
    return sorted(places.values(), key=lambda place: -place.size)[:_MOST]


def _inputs(comes: frozenset[Origin], paths: Mapping[Any, str], floating: bool = True) -> list[tuple[str, int]]:
    """The axes of floating inputs, or of others, among origins, one of each input."""
    found = sorted((paths[leaf], axis) for leaf, axis in comes
                   if leaf in paths and _is_floating(leaf.dtype) == floating)
    return sorted(dict(reversed(found)).items())


def _is_floating(dtype: str) -> bool:
    return getattr(torch, dtype).is_floating_point


def _paths(graph: Graph, model: nn.Module, example: Sequence[Any]) -> dict[Any, str]:
    """The paths of a graph's inputs among the arguments."""
    names = {id(leaf): path for path, leaf in flatten(list(example), "input").items()}
    given = flat(received(model, example))[0]
    return {node: names[id(value)] for node, value in zip(graph.inputs, given, strict=True)
            if node is not None and id(value) in names}


def output_axes(graph: Graph, model: nn.Module, example: Sequence[Any], plan: TrialPlan) -> tuple[int | None, ...]:
    """Of each result of a graph the axis along which a trial's inputs are drawn, or the only one of as many positions:
    a loop's results are joined step by step. None where it has none."""
    origins, paths, along = axis_origins(graph), _paths(graph, model, example), set(plan.along)
    sizes = {node.shape[axis] for node, path in paths.items() for where, axis in along if path == where}

    def axis_of(node: Node) -> int | None:
        places = [{(paths.get(leaf), a) for leaf, a in comes} for comes in origins[node]]
        known = [axis for axis, there in enumerate(places) if along & there]
        alike = [axis for axis, size in enumerate(node.shape) if size in sizes]
        return known[0] if known else alike[0] if len(alike) == 1 else None

    return tuple(axis_of(node) for node in graph.outputs)


def of_states(trials: Sequence[TrialPlan]) -> list[TrialPlan]:
    """Those of some trials that start as states have to be remembered: of a pair the loud one."""
    return [t for t in trials if (t.distribution in ("near one", AS_GIVEN) and t.along) or (
        t.distribution == "loud start" and replace(t, distribution="quiet") in trials)]
