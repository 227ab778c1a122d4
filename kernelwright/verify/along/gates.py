"""Parameters under which a recurrence keeps its state: gates that stay open, decays near 1, a state that goes on as it
is. With those of a constructor most recurrences have forgotten after some twenty steps whatever stood before.

A gate of T steps is open where each step loses less than 1 / (2 T) of the state. Nothing is amplified, so that eager
itself stays accurate: gates and decays go no further than 1, and a matrix that hands on the state becomes the identity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from kernelwright.ir.graph import Graph, memory
from kernelwright.ir.node import Node, walk
from kernelwright.ir.ops.leaves import literal_tensor
from kernelwright.verify.along.carried import ELEMENTWISE, Along, state_factors, steps_below
from kernelwright.verify.along.origins import operand
from kernelwright.verify.records import Opened

#: Of biases and weights beside a state that goes on as it is.
FAINT = 2.0**-10
#: Runs of elements of a parameter that are moved; of more it is left.
_MOST_RUNS = 256
#: The gate of a layer or cell that keeps the state, and how many it has.
_KEEPS = {"lstm": (1, 4), "gru": (1, 3)}


def opened(graph: Graph, along: Along, values: Mapping[str, torch.Tensor], paths: Mapping[Node, str]
           ) -> tuple[Opened, ...]:
    """How parameters change so that the state that goes along an axis is kept, or inputs that are gates or decays
    themselves; () where nothing is known to do that.

    values: those of the graph's leaves by name, with the inputs on which decays are looked at. paths: the inputs'.
    """
    if along.call is not None:
        places = along.call["template"][2][1:]
        return tuple(_of_layer(along.call, [along.call.inputs[p[1]] for p in places], along.size))
    if along.kind != "loop":
        return ()
    found = list(_of_factors(graph, along, values, paths))
    for node in graph.nodes():  # cells that stay PyTorch's: their weights are the last four
        if str(node.get("target", "")).endswith("lstm_cell.default") and not {n for n, *_ in map(_names, found)} & {
                leaf["name"] for leaf in node.inputs if leaf.op == "parameter"}:
            weights = [w for w in (operand(node, p) for p in range(2, len(node["template"]))) if w is not None]
            found += _of_layer(node, weights, along.size)
    return tuple(dict.fromkeys(found))


def _names(change: Opened) -> tuple[str, int]:
    return change.name, change.start


def _of_layer(call: Node, weights: Sequence[Node], steps: int) -> Iterable[Opened]:
    """Of the weights of a layer's or a cell's call: of each layer and direction, what is read of the input, of the
    state, and where there are biases, two of them."""
    kind = call["target"].split(".")[1].split("_")[0]
    if kind not in _KEEPS:
        for weight in weights:
            if weight.op != "parameter":
                continue
            if weight.rank == 2 and "weight_hh" in weight["name"]:
                yield Opened(weight["name"], 0, weight.size, scale=FAINT, identity=1.0)
            elif weight.rank == 1:
                yield Opened(weight["name"], 0, weight.size, scale=FAINT)
        return
    gate, count = _KEEPS[kind]
    biases = [w for w in weights if w.op == "parameter" and w.rank == 1]
    for bias in biases[::2]:  # one of the two is enough
        width = bias.size // count
        yield Opened(bias["name"], gate * width, (gate + 1) * width, shift=math.log(4 * steps))
        if kind == "lstm":  # what is written a little in every step would push the state to where tanh is flat
            yield Opened(bias["name"], 0, width, shift=-0.5 * math.log(4 * steps))


def _of_factors(graph: Graph, along: Along, values: Mapping[str, torch.Tensor], paths: Mapping[Node, str]
                ) -> Iterable[Opened]:
    """Of what a loop multiplies its state with: changes by which it comes near 1."""
    below = steps_below(graph, along.steps)
    taken: set[str] = set()
    for factor in state_factors(graph, along):
        near = [n for n in _near(factor) if paths.get(n, n["name"]) not in taken and n.dtype in ("float32", "float64")]
        leaves = {n["name"]: values[n["name"]].detach().clone() for n in near if n.op == "parameter"}
        handed = {node for node in walk([factor]) if below[node] == 1}
        changes = _towards_one(factor, leaves, values, handed, along.size) if leaves else []
        for leaf in near:
            if leaf in paths and not changes:
                changes = _of_input(factor, leaf, paths[leaf], values, handed, along.size)
        taken |= {change.name for change in changes}
        yield from changes


def _near(factor: Node) -> Iterator[Node]:
    """The parameters and inputs of which a factor is made element by element, and the biases of the layers of which it
    is made."""
    waiting, seen = [factor], set[Node]()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op in ("parameter", "input"):
            yield node
        elif node.kind in ELEMENTWISE or node.op == "concatenate":
            waiting += node.inputs
        elif node.op == "linear":
            waiting += [bias for bias in map(memory, node.inputs[2:]) if bias.op == "parameter"]


def _towards_one(factor: Node, leaves: dict[str, torch.Tensor], values: Mapping[str, torch.Tensor],
                 handed: set[Node], steps: int) -> list[Opened]:
    """The least shift of parameters, a power of two, under which a factor in (0, 1) is within 1 / (2 steps) of 1."""
    with torch.enable_grad():
        own = {name: value.requires_grad_() for name, value in leaves.items()}
        value = _value(factor, {**values, **own}, handed)
        if not value.dtype.is_floating_point or not bool(((value > 0) & (value <= 1)).all()) or not value.requires_grad:
            return []
        slopes = torch.autograd.grad(value.log().sum(), list(own.values()), allow_unused=True)
    signs = {name: slope.sign() for name, slope in zip(own, slopes, strict=True) if slope is not None}
    runs = {name: _runs(sign) for name, sign in signs.items()}
    signs = {name: sign for name, sign in signs.items() if 0 < len(runs[name]) <= _MOST_RUNS}
    lost = float((1 - value.detach()).mean())
    for shift in (1.0, 2.0, 4.0, 8.0, 16.0):
        moved = {name: own[name].detach() + shift * sign for name, sign in signs.items()}
        with torch.no_grad():
            left = float((1 - _value(factor, {**values, **moved}, handed)).mean())
        if 0 <= left <= 0.5 / steps:
            return [Opened(name, start, stop, shift=shift * sign) for name in signs for start, stop, sign in runs[name]]
        if not left < lost:
            return []
    return []


def _of_input(factor: Node, leaf: Node, path: str, values: Mapping[str, torch.Tensor], handed: set[Node], steps: int
              ) -> list[Opened]:
    """The change of an input under which a factor is in (0, 1] and within 1 / (2 steps) of 1: it is small (where its
    exponential decays), near 1 (where it decays itself), or far to one side (where its sigmoid is a gate)."""
    least = 0.5 / steps
    given = values[leaf["name"]]
    ways = [(least, 0.0), (least, 1 - least), *((1.0, sign * shift) for shift in (4.0, 8.0, 16.0) for sign in (1, -1))]
    for scale, shift in ways:
        with torch.no_grad():
            value = _value(factor, {**values, leaf["name"]: given * scale + shift}, handed)
        if bool(((value > 0) & (value <= 1)).all()) and float((1 - value).mean()) <= least:
            return [Opened(path, 0, leaf.size, shift=shift, scale=scale)]
    return []


def _runs(sign: torch.Tensor) -> list[tuple[int, int, int]]:
    """Runs of equal signs other than zero, in the order of memory: start, stop, sign."""
    flat = sign.flatten().to(torch.int8).tolist()
    found: list[tuple[int, int, int]] = []
    for place, value in enumerate(flat):
        if value and found and found[-1][1] == place and found[-1][2] == value:
            found[-1] = (found[-1][0], place + 1, value)
        elif value:
            found.append((place, place + 1, value))
    return found


def _value(root: Node, values: Mapping[str, torch.Tensor], handed: set[Node]) -> torch.Tensor:
    """The value of a node; no gradient goes through the state that was handed to it."""
    results: dict[Node, Any] = {}
    for node in walk([root]):
        if node.op == "constant":
            results[node] = node["value"]
        elif node.op == "literal":
            results[node] = literal_tensor(node, next(iter(values.values())).device)
        elif node.kind == "leaf":
            results[node] = values[node["name"]]
        else:
            results[node] = node.operator.reference(*(results[i] for i in node.inputs), **dict(node.attributes))
        if node in handed and isinstance(results[node], torch.Tensor):
            results[node] = results[node].detach()
    return results[root]


@torch.no_grad()
def open_gates(module: nn.Module, changes: Sequence[Opened]) -> None:
    """Change parameters in place as ``changes`` say; a name that the module does not have is left out."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for change in changes:
        parameter = parameters.get(change.name)
        if parameter is None:
            continue
        flat = parameter.detach().clone(memory_format=torch.contiguous_format).flatten()
        flat[change.start:change.stop] = flat[change.start:change.stop] * change.scale + change.shift
        made = flat.view(parameter.shape)
        if change.identity:
            made.diagonal().add_(change.identity)
        parameter.copy_(made)
