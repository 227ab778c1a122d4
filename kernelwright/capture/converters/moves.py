"""Converters of operators that copy elements to other places: shuffling, repetition, padding, rolling, concatenation
(see :mod:`kernelwright.capture.converters.table`)."""

from __future__ import annotations

import torch

from kernelwright.capture.converters.table import (
    Arguments,
    NotConvertible,
    axis_of,
    converts,
    float_only,
    held,
    part,
    permuted,
    reshape,
    spread,
)
from kernelwright.capture.values import NotCapturable
from kernelwright.ir.node import Node, constant, make

# Rearranged copies are views of views here: kernels read through them -----------------------------


@converts("pixel_shuffle.default")
def _pixel_shuffle(a: Arguments) -> Node:
    x, factor = a["self"], a["upscale_factor"]
    *lead, channels, height, width = x.shape
    count = len(lead)
    parts = reshape(x, (*lead, channels // factor**2, factor, factor, height, width))
    moved = permuted(parts, (*range(count), count, count + 3, count + 1, count + 4, count + 2))
    return reshape(moved, (*lead, channels // factor**2, height * factor, width * factor))


@converts("pixel_unshuffle.default")
def _pixel_unshuffle(a: Arguments) -> Node:
    x, factor = a["self"], a["downscale_factor"]
    if 0 in x.shape:
        raise NotCapturable("pixel_unshuffle of no element, which eager leaves in its shape on the CPU")
    *lead, channels, height, width = x.shape
    count = len(lead)
    parts = reshape(x, (*lead, channels, height // factor, factor, width // factor, factor))
    moved = permuted(parts, (*range(count), count, count + 2, count + 4, count + 1, count + 3))
    return reshape(moved, (*lead, channels * factor**2, height // factor, width // factor))


@converts("channel_shuffle.default")
def _channel_shuffle(a: Arguments) -> Node:
    x, groups = a["self"], a["groups"]
    parts = reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    return reshape(permuted(parts, (0, 2, 1, *range(3, parts.rank))), x.shape)


def _repeated(x: Node, axis: int, count: int, *, inner: bool) -> Node:
    """x with every element (inner), or the whole, ``count`` times along an axis."""
    if count == 1:
        return x
    place = axis + 1 if inner else axis
    wide = reshape(x, (*x.shape[:place], 1, *x.shape[place:]))
    wider = make("expand", wide, shape=(*x.shape[:place], count, *x.shape[place:]))
    return reshape(wider, (*x.shape[:axis], x.shape[axis] * count, *x.shape[axis + 1:]))


@converts("repeat_interleave.self_int")
def _repeat_interleave(a: Arguments) -> Node:
    x = a["self"]
    if not isinstance(a["repeats"], int) or a["repeats"] < 1:
        raise NotConvertible("no repetition")
    if a["dim"] is None:
        return _repeated(reshape(x, (x.size,)), 0, a["repeats"], inner=True)
    return _repeated(x, axis_of(a["dim"], x.rank), a["repeats"], inner=True)


@converts("repeat.default", "tile.default")
def _repeat(a: Arguments) -> Node:
    x = a["self"]
    counts = list(a.get("repeats", a.get("dims")))
    counts = [1] * (x.rank - len(counts)) + counts
    if 0 in counts or x.size == 0:
        raise NotConvertible("an empty repetition")
    x = reshape(x, (*(1,) * (len(counts) - x.rank), *x.shape))
    for axis, count in enumerate(counts):
        x = _repeated(x, axis, count, inner=False)
    return x


# Copies -------------------------------------------------------------------------------------------


@converts("pad.default", "constant_pad_nd.default")
def _pad(a: Arguments) -> Node:
    x = float_only(a["self"])
    given = list(a["pad"])
    if (mode := a.get("mode", "constant")) != "constant":
        pairs = list(zip(given[::2], given[1::2], strict=True))[::-1]
        if min(given) < 0 or x.rank < len(pairs) + 1:
            raise NotConvertible("a border that takes elements away")
        return make("border", x, amounts=tuple(pairs), mode=mode) if any(given) else x
    pairs = [(0, 0)] * (x.rank - len(given) // 2) + [(given[i], given[i + 1]) for i in range(len(given) - 2, -1, -2)]
    for axis, (before, after) in enumerate(pairs):
        x = part(x, axis, max(-before, 0), x.shape[axis] - max(-after, 0))
    amounts = tuple((max(before, 0), max(after, 0)) for before, after in pairs)
    value = a["value"] if a["value"] is not None else 0.0
    return make("pad", x, amounts=amounts, value=held(float(value), x.dtype)) if any(map(any, amounts)) else x


@converts("roll.default")
def _roll(a: Arguments) -> Node:
    x = a["self"]
    shifts, axes = (list(v) if isinstance(v, (list, tuple)) else [v] for v in (a["shifts"], a["dims"]))
    if not axes and len(shifts) == 1 and x.size:  # of all elements in a row
        shift = shifts[0] % x.size
        row = reshape(x, (x.size,))
        return reshape(make("roll", row, shifts=(shift,), axes=(0,)) if shift else row, x.shape)
    if len(shifts) != len(axes) or x.size == 0:
        raise NotConvertible("a roll of nothing")
    total: dict[int, int] = {}
    for shift, given in zip(shifts, axes, strict=True):
        axis = axis_of(given, x.rank)
        total[axis] = (total.get(axis, 0) + shift) % x.shape[axis]
    moved = {axis: shift for axis, shift in sorted(total.items()) if shift}
    return make("roll", x, shifts=tuple(moved.values()), axes=tuple(moved)) if moved else x


@converts("tril.default", "triu.default")
def _triangle(a: Arguments) -> Node:
    x = a["self"] if a["self"].dtype == "bool" else float_only(a["self"])
    return make("triangle", x, lower=a["operator"].startswith("tril"), diagonal=a["diagonal"])


@converts("im2col.default")
def _windows_as_columns(a: Arguments) -> Node:
    """The windows of padded images, each as a column."""
    x = float_only(a["self"])
    kernel, dilation, padding, stride = (spread(a[name], 2) for name in
                                         ("kernel_size", "dilation", "padding", "stride"))
    if x.rank != 4 or dilation != (1, 1):
        raise NotConvertible("an image without a batch, or windows with gaps")
    if any(padding):
        x = make("pad", x, amounts=((0, 0), (0, 0), *((p, p) for p in padding)), value=0.0)
    for axis in (0, 1):
        x = make("unfold", x, axis=axis + 2, size=kernel[axis], step=stride[axis])
    batch, channels, rows, columns = x.shape[:4]
    return reshape(permuted(x, (0, 1, 4, 5, 2, 3)), (batch, channels * kernel[0] * kernel[1], rows * columns))


@converts("col2im.default")
def _folded(a: Arguments) -> Node:
    """Columns added up where their windows lie; windows that lie side by side are the image in another order."""
    x = float_only(a["self"])
    kernel, dilation, padding, stride, size = (spread(a[name], 2) for name in
                                               ("kernel_size", "dilation", "padding", "stride", "output_size"))
    if x.rank != 3 or 0 in x.shape:
        raise NotConvertible("columns without a batch, or none")
    blocks = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1
                   for n, p, d, k, s in zip(size, padding, dilation, kernel, stride, strict=True))
    parts = reshape(x, (x.shape[0], x.shape[1] // (kernel[0] * kernel[1]), *kernel, *blocks))
    if kernel == stride and dilation == (1, 1) and padding == (0, 0) and all(
            b * k == n for b, k, n in zip(blocks, kernel, size, strict=True)):
        image = reshape(permuted(parts, (0, 1, 4, 2, 5, 3)), (*parts.shape[:2], *size))
        return make("add", image, constant(0.0))  # as sums of one element are, which make +0 of -0
    return make("fold", parts, size=size, dilation=dilation, padding=padding, stride=stride)


_MODES = {
    **{f"upsample_nearest{rank}d.vec": "nearest" for rank in (1, 2, 3)},
    **{f"_upsample_nearest_exact{rank}d.vec": "nearest-exact" for rank in (1, 2, 3)},
    "upsample_linear1d.vec": "linear", "upsample_bilinear2d.vec": "bilinear", "upsample_trilinear3d.vec": "trilinear",
    "upsample_bicubic2d.vec": "bicubic",
}


def _is_ratio(scale: float, before: int, after: int) -> bool:
    """Whether elements are as far apart by the scale as by the sizes."""
    by_scale, by_size = torch.tensor([1 / scale, before / max(after, 1)], dtype=torch.float32).tolist()
    return by_scale == by_size


@converts(*_MODES)
def _upsample(a: Arguments) -> Node:
    x, mode = float_only(a["input"]), _MODES[a["operator"]]
    scales = list(a["scale_factors"] or [])
    sizes = list(a["output_size"] or [])
    if mode == "nearest":
        if scales:
            factors = tuple(int(s) if s == int(s) else 0 for s in scales)
        else:
            factors = tuple(n // s if n % s == 0 else 0 for n, s in zip(sizes, x.shape[2:], strict=True))
        if 0 not in factors:
            return make("upsample_nearest", x, factors=factors) if any(f != 1 for f in factors) else x
    if mode.startswith("nearest") and any(
            not _is_ratio(scale, n, int(n * scale)) for scale, n in zip(scales, x.shape[2:], strict=False)):
        raise NotConvertible("a scale other than that of the sizes, which PyTorch takes for some shapes alone")
    return make("resampled", x, mode=mode, size=None if scales else tuple(sizes), scales=tuple(scales) or None,
                aligned=a.get("align_corners"), device=a["runs_on"])


@converts("grid_sampler.default", "grid_sampler_2d.default")
def _sampled(a: Arguments) -> Node:
    x, grid = float_only(a["input"]), a["grid"]
    mode = ("bilinear", "nearest", "bicubic")[a["interpolation_mode"]]
    if x.rank != 4 or mode == "bicubic" or x.dtype != grid.dtype or x.dtype not in ("float32", "float64"):
        raise NotConvertible("samples of volumes, by cubic weights, or in 16 bits")
    return make("sampled", x, grid, mode=mode, padding=("zeros", "border", "reflection")[a["padding_mode"]],
                aligned=a["align_corners"], device=a["runs_on"])


@converts("diff.default")
def _diff(a: Arguments) -> Node:
    x, axis = a["self"], axis_of(a["dim"], a["self"].rank)
    if a["prepend"] is not None or a["append"] is not None or x.dtype == "bool" or not 0 < a["n"] < x.shape[axis]:
        raise NotConvertible("differences with other elements, of truth values, or none")
    for _ in range(a["n"]):
        size = x.shape[axis]
        x = make("sub", part(x, axis, 1, size), part(x, axis, 0, size - 1))
    return x


@converts("slice_scatter.default", "select_scatter.default")
def _with_part(a: Arguments) -> Node:
    """x with other elements in a part of an axis."""
    x, new, axis = a["self"], a["src"], axis_of(a["dim"], a["self"].rank)
    size = x.shape[axis]
    if "index" in a:
        start, step = a["index"] % size, 1
        stop, new = start + 1, reshape(new, (*x.shape[:axis], 1, *x.shape[axis + 1:]))
    else:
        start, stop, step = slice(a["start"], a["end"], a["step"]).indices(size)
    if step != 1 or stop <= start or new.dtype != x.dtype:
        raise NotConvertible("every other element, no element, or another type")
    ends = [part(x, axis, *ends) for ends in ((0, start), (stop, size)) if ends[0] < ends[1]]
    pieces = [*ends[:start > 0], new, *ends[start > 0:]]
    return new if len(pieces) == 1 else make("concatenate", *pieces, axis=axis, shape=x.shape, dtype=x.dtype)


@converts("cat.default", "concat.default", "stack.default")
def _concatenate(a: Arguments) -> Node:
    tensors = list(next(iter(a.values())))
    rank = tensors[0].rank
    if a["operator"] == "stack.default":
        axis = a["dim"] % (rank + 1)
        tensors = [reshape(t, (*t.shape[:axis], 1, *t.shape[axis:])) for t in tensors]
    else:
        tensors = [t for t in tensors if t.shape != (0,)]
        axis = axis_of(a["dim"], rank)
    if len({t.dtype for t in tensors}) != 1:
        raise NotConvertible("concatenation of several types")
    first = tensors[0]
    shape = (*first.shape[:axis], sum(t.shape[axis] for t in tensors), *first.shape[axis + 1:])
    return make("concatenate", *tensors, axis=axis, shape=shape, dtype=first.dtype)
