"""Gradients through a candidate in another process: its backward pass is a request to its worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from kernelwright.judge.worker import protocol
from kernelwright.judge.worker.protocol import Broken
from kernelwright.verify.flatten import map_tensors, tensors_of


def call_with_gradients(remote: Any, arguments: Sequence[Any]) -> Any:
    """Call a `RemoteCandidate` so that its outputs have gradients where the candidate's have."""
    leaves = [tensor for tensor in tensors_of(list(arguments)) if tensor.requires_grad]
    parameters = [parameter for parameter in remote.link.mirror.parameters() if parameter.requires_grad]
    held: list[Any] = []
    results = iter(_Call.apply(remote, arguments, held, *leaves, *parameters))
    return map_tensors(held[0], lambda _: next(results))


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, remote: Any, arguments: Sequence[Any], held: list[Any], *leaves: torch.Tensor) -> Any:
        outputs, reply = remote.link.call(remote, arguments, gradients=True)
        found = tensors_of(outputs)
        flags = reply.get("requires_grad")
        if type(flags) is not list or len(flags) != len(found) or not all(type(flag) is bool for flag in flags):
            raise remote.link.worker.breach("did not say which results have gradients", "run")
        ctx.remote, ctx.leaves = remote, leaves
        ctx.differentiable = [number for number, flag in enumerate(flags) if flag
                              and (found[number].dtype.is_floating_point or found[number].dtype.is_complex)]
        ctx.mark_non_differentiable(*(t for number, t in enumerate(found) if number not in ctx.differentiable))
        ctx.set_materialize_grads(True)
        held.append(outputs)
        return tuple(found)

    @staticmethod
    @once_differentiable
    # pyrefly: ignore[bad-override]  # the stubs give what once_differentiable returns no type
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        link, leaves = ctx.remote.link, ctx.leaves
        given = [gradients[number] for number in ctx.differentiable]
        reply, found = link.exchange("backward", {"outputs": ctx.differentiable}, given,
                                     limit=link.limit(sum(t.numel() * t.element_size() for t in leaves)))
        told = reply.get("gradients")
        if type(told) is not list or len(told) != len(leaves):
            raise link.worker.breach("sent another number of gradients than there are", "run")
        try:
            values = [None if item is None else protocol.value(item, found) for item in told]
        except Broken as error:
            raise link.worker.breach(str(error), "run") from None
        for value, leaf in zip(values, leaves, strict=True):
            if value is not None and (not isinstance(value, torch.Tensor) or value.shape != leaf.shape):
                raise link.worker.breach("sent a gradient of another shape", "run")
        return (None, None, None, *values)
