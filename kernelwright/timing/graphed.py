"""A baseline without a compiler: the model's own calls, recorded as a CUDA graph and launched as one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
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
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                results = call(*arguments)
            finally:
                graph.capture_end()
    finally:
        if collects:
            gc.enable()

    def launched() -> object:
        for value, fresh in zip(own, given, strict=True):
            value.copy_(fresh)
        graph.replay()
        return results

    return launched
