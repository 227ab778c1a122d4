"""Normalisations. Optional scale and shift are trailing inputs, told by attribute ``affine``."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernelwright.ir.registry import Applied, declare


def _pair(rest: tuple) -> tuple:
    return rest if rest else (None, None)


def batch_norm_training(x: torch.Tensor, *rest: torch.Tensor, eps: float, affine: bool, momentum: float | None,
                        running: tuple[str, str] | None) -> torch.Tensor:
    """Batch norm with the batch's own statistics. Its updates of the running ones are effects of the
    graph; ``running`` names the buffers (mean, variance) that the torch call updates, or is None."""
    weight, bias = _pair(rest)
    return F.batch_norm(x, None, None, weight, bias, True, 0.0, eps)


def batch_norm_inference(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, *rest: torch.Tensor, eps: float,
                         affine: bool) -> torch.Tensor:
    """Batch norm with running statistics: affine per channel."""
    weight, bias = _pair(rest)
    return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps)


def layer_norm(x: torch.Tensor, *rest: torch.Tensor, axes: int, eps: float, affine: str) -> torch.Tensor:
    """Layer norm over the last ``axes`` axes; weight or bias may be missing ("both", "weight", "none")."""
    weight = rest[0] if rest else None
    bias = rest[1] if len(rest) > 1 else None
    return F.layer_norm(x, tuple(x.shape[x.ndim - axes:]), weight, bias, eps)


def rms_norm(x: torch.Tensor, *rest: torch.Tensor, axes: int, eps: float, affine: bool) -> torch.Tensor:
    """Division by the root of the mean square over the last ``axes`` axes (Zhang and Sennrich, 2019, section 4), and a
    weight, which may be missing. The type is that of ``x``, also beside a wider weight."""
    return F.rms_norm(x, tuple(x.shape[x.ndim - axes:]), rest[0] if rest else None, eps)


def group_norm(x: torch.Tensor, *rest: torch.Tensor, groups: int, eps: float, affine: bool) -> torch.Tensor:
    """Group norm: statistics over each group of channels of each sample."""
    weight, bias = _pair(rest)
    return F.group_norm(x, groups, weight, bias, eps)


def instance_norm(x: torch.Tensor, *rest: torch.Tensor, eps: float, affine: bool) -> torch.Tensor:
    """Instance norm with the instance's own statistics."""
    weight, bias = _pair(rest)
    return F.instance_norm(x, None, None, weight, bias, True, 0.0, eps)


def _optional(inputs: list[str], first: int) -> str:
    pair = [*inputs[first:], "None", "None"][:2]
    return ", ".join(pair)


def _batch_norm_training_code(inputs: list[str], node: Applied) -> str:
    running = node["running"]
    mean, variance = (f"_tensor[{n!r}]" for n in running) if running else ("None", "None")
    momentum = node["momentum"]
    return f"F.batch_norm({inputs[0]}, {mean}, {variance}, {_optional(inputs, 1)}, True, {momentum}, {node['eps']})"


def _normalise_operations(node: Applied) -> int:
    return 8 * node.size


declare("batch_norm_training", "norm", batch_norm_training, _batch_norm_training_code, operations=_normalise_operations)
declare("batch_norm_inference", "norm", batch_norm_inference,
        lambda i, node: f"F.batch_norm({i[0]}, {i[1]}, {i[2]}, {_optional(i, 3)}, False, 0.0, {node['eps']})",
        operations=lambda node: 2 * node.size)
declare("layer_norm", "norm", layer_norm,
        lambda i, node: f"F.layer_norm({i[0]}, {node.shape[node.rank - node['axes']:]}, {_optional(i, 1)}, "
                        f"{node['eps']})",
        operations=_normalise_operations)
declare("rms_norm", "norm", rms_norm,
        lambda i, node: f"F.rms_norm({i[0]}, {node.shape[node.rank - node['axes']:]}, {[*i, 'None'][1]}, "
                        f"{node['eps']})",
        operations=lambda node: 5 * node.size)
declare("group_norm", "norm", group_norm,
        lambda i, node: f"F.group_norm({i[0]}, {node['groups']}, {_optional(i, 1)}, {node['eps']})",
        operations=_normalise_operations)
declare("instance_norm", "norm", instance_norm,
        lambda i, node: f"F.instance_norm({i[0]}, None, None, {_optional(i, 1)}, True, 0.0, {node['eps']})",
        operations=_normalise_operations)

