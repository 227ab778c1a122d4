"""A baseline without a compiler: the model's own calls, recorded as a CUDA graph and launched as one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils import _pytree as pytree


def graph_of(call: Callable[..., object], inputs: Sequence[Any]) -> Callable[[], object]:
    """A callable that copies ``inputs`` to where a CUDA graph of ``call`` reads them and launches it. Its results lie
    where the next call writes. Raises RuntimeError for calls that cannot be recorded, such as those that wait for the
    device, and what ``call`` raises.
    """
    leaves, form = pytree.tree_flatten(list(inputs))
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.is_cuda]
    given = [leaves[n] for n in places]
    own = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t.detach()) for t in given]
    read = list(leaves)
    for place, value in zip(places, own, strict=True):
        read[place] = value
    arguments = pytree.tree_unflatten(read, form)
    stream, graph, collects = torch.cuda.Stream(), torch.cuda.CUDAGraph(), gc.isenabled()
    stream.wait_stream(torch.cuda.current_stream())
    gc.collect()  # what it frees may wait for the device
    gc.disable()
    try:
        with torch.no_grad(), torch.cuda.stream(stream):
            call(*arguments)  # what libraries prepare at a first call on a stream
            stream.synchronize()
            results = recorded(graph, lambda: call(*arguments))
    finally:
        if collects:
            gc.enable()

    def launched() -> object:
        for value, fresh in zip(own, given, strict=True):
            value.copy_(fresh)
        graph.replay()
        return results

    return launched


def recorded(graph: torch.cuda.CUDAGraph, run: Callable[[], Any]) -> Any:
    """What ``run`` gives while the current stream's work is recorded as ``graph``. Raises what it raises, and
    RuntimeError where CUDA ends the recording with an error, as it does where a call waits for the device: PyTorch (to
    2.11) then takes random numbers and memory for recorded ones ever after, so both are told the end. The emitted
    files' runtime has the same function."""
    pool = torch.cuda.graph_pool_handle()
    graph.capture_begin(pool, capture_error_mode="thread_local")
    try:
        return run()
    finally:
        try:
            graph.capture_end()
        except RuntimeError:
            with suppress(RuntimeError, AttributeError):  # memory was told already
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
                torch._C._cuda_releasePool(torch.cuda.current_device(), pool)
            other, filled = torch.cuda.CUDAGraph(), torch.zeros(1, device=torch.cuda.current_device())
            other.capture_begin(capture_error_mode="thread_local")
            filled.zero_()
            other.capture_end()  # a recording that ends well is one for the generator, too
            raise
