"""The meaning of a Recurrence, evaluated in PyTorch: the reference for every target's skeleton."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernelwright.codegen.reference.loops import node_value, positions
from kernelwright.plan.expressions import Expression, Index, Load, walk
from kernelwright.plan.kernels import Recurrence


def evaluate(kernel: Recurrence, inputs: Sequence[torch.Tensor], output_sizes: Sequence[int],
             dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """The kernel's outputs as flat tensors of ``output_sizes`` elements, computed in ``dtype``; elements that no store
    writes are 0. Raises IndexError where a load or store leaves its buffer."""
    flat = [tensor.reshape(-1) for tensor in inputs]
    outputs = [torch.zeros(size, dtype=dtype) for size in output_sizes]
    domain, one = (kernel.steps, *kernel.shape), (1, *kernel.shape)
    roots = (*kernel.initial, *kernel.updates, *(s.expression for s in kernel.stores))
    loads = {e: node_value(e, domain, flat, (), {}, dtype).expand(domain) for e in walk(*roots) if isinstance(e, Load)}
    weights = [flat[w.buffer][:w.gates * kernel.hidden ** 2].reshape(-1, kernel.hidden).to(dtype)
               for w in kernel.weights]

    def values(wanted: Sequence[Expression], step: int, states: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        gates = [gate.reshape(one) for weight in weights
                 for gate in torch.nn.functional.linear(states[0][0], weight).chunk(len(weight) // kernel.hidden, -1)]
        memo: dict[Expression, torch.Tensor] = {load: value[step:step + 1] for load, value in loads.items()}
        for e in walk(*wanted):
            if e not in memo:
                memo[e] = node_value(e, one, flat, (states, gates), memo, dtype)
        return [memo[e].expand(one) for e in wanted]

    states = values(kernel.initial, 0, [torch.zeros(one, dtype=dtype)] * len(kernel.updates))
    stored = [s.expression for s in kernel.stores]
    for step in range(kernel.steps):
        found = values([*kernel.updates, *stored], step, states)
        for store, value in zip(kernel.stores, found[len(states):], strict=True):
            place = Index((0, *store.index.strides[1:]), store.index.offset + step * store.index.strides[0])
            outputs[store.buffer][positions(place, one).expand(one).reshape(-1)] = value.reshape(-1)
        states = found[:len(states)]
    return outputs
