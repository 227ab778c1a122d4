"""The values of a captured graph on a trial's inputs, and of the same graph with one node computed otherwise."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from kernelwright.capture.export import capture
from kernelwright.ir.evaluate import as_stored
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node, users, walk
from kernelwright.ir.ops.leaves import literal_tensor
from kernelwright.judge.diagnose.evidence import Evidence
from kernelwright.problem.memory import available_memory
from kernelwright.verify.flatten import flatten, tensors_of
from kernelwright.verify.observe import random_state, seed_all
from kernelwright.verify.state import State

Get = Callable[[Node], Any]
Compute = Callable[[Get], Any]

#: Share of the free memory that the values of a graph may take.
MEMORY_SHARE = 0.4


class NoGraph(Exception):
    """The model has no graph whose values are eager's; the reason is for the log."""


class GraphValues:
    """Every value of the model's graph on the evidence's inputs, in the model's own dtypes.

    Holds the values of all nodes. Raises NoGraph where the model cannot be captured, where its values would not fit
    into memory, or where the graph does not give eager's outputs (random numbers, hidden state).
    """

    def __init__(self, model: nn.Module, evidence: Evidence, file: str | None = None) -> None:
        evidence.state.apply(model)
        try:
            self.graph: Graph = capture(model, list(evidence.inputs), file=file, check_state=lambda changed: ())
        except Exception as error:  # whatever keeps a model from being captured, patterns do not need it
            raise NoGraph(str(error)) from error
        self.evidence = evidence
        first = {id(t): name for name, t in (*model.named_parameters(), *model.named_buffers())}
        self.aliases = {name: first[id(t)] for name, t in (*model.named_parameters(remove_duplicate=False),
                                                           *model.named_buffers(remove_duplicate=False))}
        """Every name of a parameter or buffer, with the one under which the state has it."""
        nodes = list(self.graph.nodes())
        device = next((t.device for t in tensors_of([evidence.eager, *evidence.inputs])), torch.device("cpu"))
        self.device = device
        self.readers = users(self.graph.roots())
        self.order = {node: position for position, node in enumerate(nodes)}
        self.outputs = self._outputs()
        self._evaluate()

    def on(self, evidence: Evidence) -> GraphValues:
        """The same graph on other inputs. Raises NoGraph."""
        other = copy.copy(self)
        other.evidence = evidence
        other._evaluate()
        return other

    def _evaluate(self) -> None:
        free = available_memory(self.device)
        if free is not None and sum(n.bytes for n in self.order if n.kind not in ("leaf", "view")) > \
                MEMORY_SHARE * free:
            raise NoGraph("the values of the graph do not fit into memory")
        self.bound = self._bound()
        seed_all(self.evidence.trial.seed)
        self.values: dict[Node, Any] = {}
        self.drawn: dict[Node, list[torch.Tensor]] = {}
        with torch.no_grad():
            for node in self.order:
                if node.kind == "opaque":
                    self.drawn[node] = random_state()
                self.values[node] = self._leaf(node, self.bound) if node.kind == "leaf" else _computed(node, self.get)
        self._check()

    def get(self, node: Node) -> Any:
        """The value of a node of the graph, or of any other node that is made of its leaves."""
        if node not in self.values:
            for part in walk([node]):
                if part not in self.values:
                    self.values[part] = self._leaf(part, self.bound) if part.kind == "leaf" else \
                        _computed(part, self.get)
        return self.values[node]

    def changed(self, changes: Mapping[Node, Compute], roots: list[Node]) -> list[Any]:
        """The values of ``roots`` where each node of ``changes`` is computed by its function, of a getter of values.

        Raises what the functions and the operators raise where shapes do not fit.
        """
        below: set[Node] = set()
        waiting = list(changes)
        while waiting:
            node = waiting.pop()
            if node not in below:
                below.add(node)
                waiting += self.readers.get(node, ())
        results: dict[Node, Any] = {}

        def get(node: Node) -> Any:
            return results[node] if node in results else self.get(node)

        with torch.no_grad():
            for node in sorted(below, key=self.order.__getitem__):
                if node in self.drawn:  # the same random numbers as before
                    _set_random_state(self.drawn[node])
                # A changed node is computed from what its function asks for: its own old value is self.get's.
                results[node] = changes[node](get) if node in changes else _computed(node, get)
        return [get(root) for root in roots]

    def _bound(self) -> dict[str, torch.Tensor]:
        state: State = self.evidence.state
        bound = {**state.parameters, **state.buffers,
                 **{n: v for n, v in state.attributes.items() if isinstance(v, torch.Tensor)}}
        bound.update({name: bound[known] for name, known in self.aliases.items() if known in bound})
        flat = list(flatten(list(self.evidence.inputs)).values())
        for leaf, value in zip(self.graph.inputs, flat, strict=True):
            if leaf is not None:
                bound[leaf["name"]] = value
        return bound

    def _leaf(self, node: Node, bound: Mapping[str, torch.Tensor]) -> Any:
        if node.op == "constant":
            return node["value"]
        if node.op == "literal":
            return literal_tensor(node, self.device)
        return as_stored(node, bound[node["name"]])

    def _outputs(self) -> dict[str, Node]:
        """Node by path of the output (as `flatten` names it), and of the state that the call updates."""
        paths = {path: self.graph.outputs[index] for path, index in flatten(self.graph.structure).items()
                 if type(index) is int}
        return {**paths, **{f"state {e.name}": e.value for e in self.graph.effects if e.value in self.order}}

    def _check(self) -> None:
        for path, eager in flatten(self.evidence.eager).items():
            node = self.outputs.get(path)
            value = self.values.get(node) if node is not None else None
            if not isinstance(eager, torch.Tensor) or not isinstance(value, torch.Tensor):
                raise NoGraph(f"{path} is not a tensor of the graph")
            if value.shape != eager.shape:
                raise NoGraph(f"{path} has another shape in the graph")
            rough = 1e-2 * float(eager.detach().abs().double().nan_to_num(0, 0, 0).mean()) if eager.numel() else 0.0
            near = torch.isclose(value.to(torch.float64), eager.to(torch.float64), rtol=1e-2, atol=rough + 1e-30,
                                 equal_nan=True)
            if float(near.double().mean()) < 0.99:
                raise NoGraph(f"{path} has other values in the graph")


def _set_random_state(states: list[torch.Tensor]) -> None:
    """Restore what `random_state` told."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])


def _computed(node: Node, get: Get) -> Any:
    return node.operator.reference(*(get(i) for i in node.inputs), **dict(node.attributes))


def recomputed(node: Node, get: Get, *inputs: Any, **attributes: Any) -> Any:
    """The node's operator on other inputs (all of them, or none for its own) and with other attributes."""
    own = inputs or tuple(get(i) for i in node.inputs)
    return node.operator.reference(*own, **{**dict(node.attributes), **attributes})
