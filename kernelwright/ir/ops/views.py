"""Views: they move elements and compute nothing. Also concatenation, which copies."""

from __future__ import annotations

import torch

from kernelwright.ir.registry import declare


def _slice(x: torch.Tensor, *, axis: int, start: int, stop: int, step: int) -> torch.Tensor:
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


def _slice_code(inputs: list[str], node) -> str:
    bounds = f"{node['start']}:{node['stop']}" + (f":{node['step']}" if node["step"] != 1 else "")
    return f"{inputs[0]}[{':, ' * node['axis']}{bounds}]"


declare("reshape", "view", lambda x, *, shape: x.reshape(shape), "{0}.reshape({shape})", linear_in=(0,))
declare("permute", "view", lambda x, *, axes: x.permute(axes), "{0}.permute({axes})", linear_in=(0,))
declare("expand", "view", lambda x, *, shape: x.expand(shape), "{0}.expand({shape})", linear_in=(0,))
declare("slice", "view", _slice, _slice_code, linear_in=(0,))
declare("concatenate", "opaque", lambda *xs, axis, **_: torch.cat(xs, axis),
        lambda inputs, node: f"torch.cat(({', '.join(inputs)},), {node['axis']})")
declare("cast", "opaque", lambda x, *, to, **_: x.to(getattr(torch, to)), "{0}.to(torch.{to})")
