"""Hypotheses about the model as a whole: its last operators missing, inputs exchanged, other parameters, flags."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, combinations, islice
from typing import Any

import torch

from kernelwright.ir.evaluate import as_stored
from kernelwright.ir.node import Node, walk
from kernelwright.judge.diagnose.change import Change, attribute, on_input
from kernelwright.judge.diagnose.changes_pointwise import about
from kernelwright.judge.diagnose.graph_values import GraphValues
from kernelwright.judge.diagnose.naming import name, sequence, told
from kernelwright.verify.observe import identical

#: Where an index wraps around that is too narrow, or that is taken modulo a tile.
WRAPS = (2, 4, 8, 16, 32, 64, 128, 256)

#: Numbers of the model, the last ones, of which each two are exchanged.
MOST_CONSTANTS = 10
#: Pairs of layers or parameters of which it is tried whether they were exchanged, the model's first ones.
MOST_PAIRS = 60


def intermediate(values: GraphValues, output: Node, shape: tuple[int, ...]) -> Iterator[Change]:
    """The output is an earlier value of the graph: what comes behind it is missing."""
    nodes = list(walk([output]))
    for node in nodes:
        if node is output or node.op in ("constant", "literal",
                                         "buffer") or node.shape != shape or node.dtype != output.dtype:
            continue
        behind = _between(node, output, values)
        if not behind or (len(behind) == 1 and behind[0].kind == "pointwise" and node.kind != "leaf"):
            continue  # one operator alone has better words (`changes_pointwise`)
        kind = "missing-last-operators"
        what = "input" if node.op == "input" else "value"
        words = f"before {sequence(behind)}: {'that is' if len(behind) == 1 else 'these operators are'} missing"
        if node.kind == "leaf":
            words = f"when only its {name(node)} is returned"
        yield Change(kind if node.kind != "leaf" else "returns-input", words, f"apply {sequence(behind)} to the result",
                     0.2 + 0.05 * len(behind), {output: lambda get, n=node: get(n)}, {**about(behind[0]), "from": what})


def _between(node: Node, output: Node, values: GraphValues) -> list[Node]:
    """Operators on the way from a node to the output, in order."""
    below, waiting = {node}, [node]
    while waiting:
        for reader in values.readers.get(waiting.pop(), ()):
            if reader not in below:
                below.add(reader)
                waiting.append(reader)
    return [n for n in walk([output]) if n in below and n is not node and n.kind != "view"]


def inputs(values: GraphValues) -> Iterator[Change]:
    """Two inputs of one shape exchanged; one ignored."""
    leaves = [n for n in values.order if n.op == "input"]
    for a, b in combinations(leaves, 2):
        if a.shape == b.shape and a.dtype == b.dtype:
            yield Change("inputs-exchanged", f"with {name(a)} and {name(b)} exchanged",
                         "take the inputs in forward's order", 0.8,
                         {a: lambda get, n=b: values.values[n], b: lambda get, n=a: values.values[n]})


def addresses(values: GraphValues) -> Iterator[Change]:
    """An input read at wrong addresses: one further, with axes exchanged, modulo a number, the first entry for all."""
    for leaf in (n for n in values.order if n.op == "input"):
        given = values.values[leaf]
        if given.dim() < 1 or given.numel() < 2:
            continue
        for words, prior, wrong in _misread(given, {s for n in values.order if n.kind == "leaf" for s in n.shape}):
            yield Change("input-index", f"with {name(leaf)} read {words}", f"address {name(leaf)} with its own strides",
                         prior, {leaf: lambda get, w=wrong, n=leaf: w(get(n))})


def _misread(given: torch.Tensor, known_sizes: set[int]) -> Iterator[tuple[str, float, Callable[[Any], Any]]]:
    """Words, prior and function for each wrong way to address a tensor."""
    yield "one element further in memory", 1.7, lambda v: v.flatten().roll(-1).view(v.shape)
    yield "one element back in memory", 1.7, lambda v: v.flatten().roll(1).view(v.shape)
    if given.shape[0] > 1:
        yield "at its first entry always", 1.7, lambda v: v[:1].expand_as(v)
    for a, b in combinations(range(given.dim()), 2):
        sizes = list(given.shape)
        sizes[a], sizes[b] = sizes[b], sizes[a]
        yield f"as if its axes {a} and {b} were exchanged", 1.7, \
            lambda v, s=tuple(sizes), a=a, b=b: v.reshape(s).transpose(a, b)
    if not given.dtype.is_floating_point and given.dtype != torch.bool and int(given.min()) >= 0:
        for size in sorted(s for s in known_sizes if s > int(given.max())):
            for word, by in (("large", 1), ("small", -1)):
                yield f"one too {word} (modulo {size})", 1.7, lambda v, by=by, s=size: (v + by) % s
    for axis, size in enumerate(given.shape):
        if size < 2:
            continue
        for word, by in (("further", -1), ("back", 1)) if given.dim() > 1 else ():
            yield f"one position {word} along axis {axis}", 1.8, lambda v, a=axis, by=by: v.roll(by, a)
        for period in (p for p in WRAPS if p < size):
            yield f"at position i modulo {period} along axis {axis}", 2.2, lambda v, a=axis, s=size, p=period: \
                v.index_select(a, torch.arange(s, device=v.device) % p)


def state(values: GraphValues) -> Iterator[Change]:
    """Outputs computed with state as it was before the call, where the candidate left it so."""
    _, own = values.evidence.changed
    for effect in values.graph.effects:
        old = values.evidence.state.buffers.get(effect.name)
        if effect.value in values.order and old is not None and isinstance(own.get(effect.name), torch.Tensor) and \
                identical(own[effect.name], old):
            yield Change("state-not-updated", f"with {effect.name} as it was before the call",
                         f"update {effect.name} in forward, before it is used", 0.1,
                         {effect.value: lambda get, o=old: o})


def parameters(values: GraphValues) -> Iterator[Change]:
    """Parameters and buffers as constructed instead of as given; left out; ones in place of them."""
    evidence = values.evidence
    leaves = {n["name"]: n for n in values.order if n.op in ("parameter", "buffer", "attribute")}
    original = {**evidence.original.parameters, **evidence.original.buffers}
    given = {**evidence.state.parameters, **evidence.state.buffers}
    other = {leaf: as_stored(leaf, original[path]) for path, leaf in leaves.items()
             if path in original and path in given and not identical(original[path], given[path])}

    def stored(tensor: torch.Tensor) -> Any:
        return lambda get: tensor

    # Zeros and ones are what is left of an operand that is not read, as much as of one that was copied.
    initial = {leaf: next((v for v in (0.0, 1.0) if bool((tensor == v).all())), None) for leaf, tensor in other.items()}
    if len(other) > 1:
        yield Change("parameters-as-constructed", "with the parameters as they were when it was constructed",
                     "read the parameters in every forward: copy nothing of them in the constructor or in a cache", 0.3,
                     {leaf: stored(tensor) for leaf, tensor in other.items()})
    for leaf, tensor in other.items():
        kind, words = "parameters-as-constructed", "as it was when it was constructed"
        if initial[leaf] is not None:
            kind, words = "parameter-ignored", (f"at its initial {initial[leaf]:g}: it is not read, or a copy of what "
                                                "it was when it was constructed is")
        yield Change(kind, f"with {leaf['name']} {words}", f"read {leaf['name']} in every forward",
                     0.5 if len(other) > 1 else 0.3, {leaf: stored(tensor)}, {"parameter": leaf["name"]})
    for path, leaf in leaves.items():
        value = values.values[leaf]
        if not value.dtype.is_floating_point:
            continue
        bias = path.rpartition(".")[2].startswith("bias")
        yield Change("missing-bias" if bias else "parameter-ignored", f"with zeros in place of {path}",
                     f"use {path}", 1.3 if bias else 2.0, {leaf: stored(torch.zeros_like(value))}, {"parameter": path})
        yield Change("parameter-ignored", f"with ones in place of {path}", f"use {path}", 2.0,
                     {leaf: stored(torch.ones_like(value))}, {"parameter": path})
        yield Change("sign", f"with {path} negated", f"correct the sign of {path}", 2.5, {leaf: stored(-value)},
                     {"parameter": path})
        if value.dim() == 2 and value.shape[0] == value.shape[1]:
            yield Change("transposed-weight", f"with {path} transposed", f"exchange the indices of {path}", 1.0,
                         {leaf: stored(value.t())}, {"parameter": path})


def owners_exchanged(values: GraphValues) -> Iterator[Change]:
    """Two layers with parameters of the same names and shapes, or two such parameters of one module, exchanged."""
    owners: dict[str, dict[str, Node]] = {}
    for leaf in (n for n in values.order if n.op == "parameter"):
        path, _, own = leaf["name"].rpartition(".")
        owners.setdefault(path, {})[own] = leaf
    alone = [{"": leaf} for layer in owners.values() if len(layer) > 1 for leaf in layer.values()]
    for first, second in islice(chain(combinations(owners.values(), 2), combinations(alone, 2)), MOST_PAIRS):
        pairs = [(leaf, second[own]) for own, leaf in first.items() if own in second]
        if len(pairs) == len(first) == len(second) and all(_alike(a, b) for a, b in pairs):
            names = [_owner(side) for side in (first, second)]
            yield Change("parameters-exchanged", f"with {names[0]} and {names[1]} exchanged",
                         "take each where the model does", 1.4,
                         {n: (lambda get, o=o: values.values[o]) for a, b in pairs for n, o in ((a, b), (b, a))})


def _alike(a: Node, b: Node) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.get("order") == b.get("order")


def _owner(parameters: dict[str, Node]) -> str:
    """A layer by its path, a single parameter by its name."""
    name = next(iter(parameters.values()))["name"]
    return name if "" in parameters or "." not in name else name.rpartition(".")[0]


def constants_exchanged(values: GraphValues) -> Iterator[Change]:
    """Two of the model's numbers in each other's places."""
    found = [(node, index, part["value"]) for node in values.order if node.kind == "pointwise"
             for index, part in enumerate(node.inputs) if part.op == "constant" and not isinstance(part["value"], bool)]
    for (a, i, first), (b, j, second) in combinations(found[-MOST_CONSTANTS:], 2):
        if first != second and a is not b:
            yield Change("constants-exchanged", f"with {second:g} in {told(a)} and {first:g} in {told(b)}",
                         f"exchange the two numbers: {first:g} belongs into the first, {second:g} into the second", 1.9,
                         {a: on_input(a, i, lambda _, v=second: v), b: on_input(b, j, lambda _, v=first: v)})


def flags(node: Node) -> Iterator[Change]:
    """Options of an operator that are true or false."""
    if node.kind in ("leaf", "opaque", "reduction", "window"):
        return
    for which, value in node.attributes:
        if isinstance(value, bool) and which not in ("affine", "transposed", "exact", "reverse", "exclusive", "lower"):
            yield Change("wrong-option", f"with {which}={not value} in {told(node)}", f"use {which}={value}", 1.5,
                         {node: attribute(node, **{which: not value})}, about(node))
