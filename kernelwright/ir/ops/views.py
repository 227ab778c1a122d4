"""Views: they move elements and compute nothing. Also concatenation and copies."""

from __future__ import annotations

import torch

from kernelwright.ir.registry import Applied, declare


def _slice(x: torch.Tensor, *, axis: int, start: int, stop: int, step: int) -> torch.Tensor:
    return x[(slice(None),) * axis + (slice(start, stop, step),)]


def _slice_code(inputs: list[str], node: Applied) -> str:
    bounds = f"{node['start']}:{node['stop']}" + (f":{node['step']}" if node["step"] != 1 else "")
    return f"{inputs[0]}[{':, ' * node['axis']}{bounds}]"


def _contiguous_code(inputs: list[str], node: Applied) -> str:
    moved = "" if node["axes"] == tuple(range(node.rank)) else f".permute({node['axes']})"
    return f"{inputs[0]}{moved}.contiguous()"


declare("reshape", "view", lambda x, *, shape: x.reshape(shape), "{0}.reshape({shape})", linear_in=(0,))
declare("permute", "view", lambda x, *, axes: x.permute(axes), "{0}.permute({axes})", linear_in=(0,))
# Permuted tensors for torch calls and of torch calls: kernels do not read through these. What a call returned
# is made contiguous, which costs nothing where the library stores its result as expected.
declare("reordered", "view", lambda x, *, axes: x.permute(axes), "{0}.permute({axes})", linear_in=(0,))
declare("contiguous", "view", lambda x, *, axes: x.permute(axes).contiguous(), _contiguous_code, linear_in=(0,))
declare("expand", "view", lambda x, *, shape: x.expand(shape), "{0}.expand({shape})", linear_in=(0,))
declare("flip", "view", lambda x, *, axes: x.flip(axes), "{0}.flip({axes})", linear_in=(0,))
declare("slice", "view", _slice, _slice_code, linear_in=(0,))
# detached: the same tensor, through which no gradient goes; only graphs that are differentiated have it.
declare("detached", "opaque", lambda x: x, "{0}.detach()", operations=lambda node: 0)
# again: the same tensor as operand of a further call; only graphs that are differentiated have it.
declare("again", "opaque", lambda x, *, number: x, "{0}", operations=lambda node: 0)
# copy: the same tensor once more, contiguous.
declare("copy", "pointwise", lambda x: x.contiguous(), "{0}.contiguous()", operations=lambda node: 0, linear_in=(0,))
declare("concatenate", "opaque", lambda *xs, axis, **_: torch.cat(xs, axis),
        lambda inputs, node: f"torch.cat(({', '.join(inputs)},), {node['axis']})")
declare("cast", "opaque", lambda x, *, to, **_: x.to(getattr(torch, to)), "{0}.to(torch.{to})")
