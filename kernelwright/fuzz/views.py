"""Productions: views, concatenations, padding, gathers and resampling."""

from __future__ import annotations

from math import prod

from kernelwright.fuzz.draw import Draw, Refused, Value
from kernelwright.fuzz.productions import line, production


@production("reshape", 2.0, (1, 6))
def _reshape(d: Draw, x: Value) -> None:
    kind = d.one_of(["flatten", "merge", "split", "free", "minus", "unflatten"])
    if kind == "flatten":
        d.emit(d.one_of([f"torch.flatten({x}, {d.number(0, x.rank - 1)})", f"{x}.flatten()"]), bits=x.bits)
        return
    shape = list(x.shape)
    if kind == "merge" and x.rank >= 2:
        at = d.number(0, x.rank - 2)
        shape[at:at + 2] = [shape[at] * shape[at + 1]]
    elif kind in ("split", "unflatten"):
        at = d.number(0, x.rank - 1)
        first = d.one_of([p for p in range(1, shape[at] + 1) if shape[at] % p == 0] or [1])
        if kind == "unflatten":
            d.emit(f"{x}.unflatten({at}, ({first}, -1))", bits=x.bits)
            return
        shape[at:at + 1] = [first, shape[at] // first]
    else:
        left, shape = prod(x.shape), []
        for _ in range(d.number(0, 3)):
            shape.append(d.one_of([p for p in range(1, min(left, 12) + 1) if left % p == 0]))
            left //= shape[-1]
        shape.append(left)
        d.random.shuffle(shape)
    if kind == "minus":
        shape[d.number(0, len(shape) - 1)] = -1
    d.emit(f"{x}.{d.one_of(['reshape', 'reshape', 'contiguous().view'])}({', '.join(map(str, shape))})", bits=x.bits)


@production("permute", 2.0, (2, 6))
def _permute(d: Draw, x: Value) -> None:
    axes = list(range(x.rank))
    d.random.shuffle(axes)
    choices = [f"{x}.permute({', '.join(map(str, axes))})", f"{x}.transpose({d.axis(x)}, {d.axis(x)})", f"{x}.mT",
               f"torch.movedim({x}, {d.axis(x)}, {d.axis(x)})"]
    d.emit(d.one_of([*choices, f"{x}.t()"] if x.rank == 2 else choices), bits=x.bits)


@production("slice", 2.0, (1, 6))
def _slice(d: Draw, x: Value) -> None:
    axis = d.number(0, x.rank - 1)
    length = x.shape[axis]
    start = d.number(0, length - 1)
    lead = ":, " * axis
    kind = d.one_of(["from", "to", "step", "both", "end", "narrow", "negative", "ellipsis"])
    if kind == "narrow":
        d.emit(f"{x}.narrow({axis}, {start}, {d.number(1, length - start)})", bits=x.bits)
        return
    if kind == "ellipsis":
        d.emit(d.one_of([f"{x}[..., {start and min(start, x.shape[-1] - 1)}:]", f"{x}[..., None]", f"{x}[None]"]),
               bits=x.bits)
        return
    part = {"from": f"{start}:", "to": f":{start + 1}", "step": f"{start // 2}::{d.number(2, 3)}",
            "both": f"{start}:{d.number(start + 1, length)}", "end": ":-1" if length > 1 else ":",
            "negative": f"-{d.number(1, length)}:"}[kind]
    d.emit(f"{x}[{lead}{part}]", bits=x.bits)


@production("select", 0.8, (1, 6))
def _select(d: Draw, x: Value) -> None:
    axis = d.number(0, x.rank - 1)
    index = d.number(-x.shape[axis], x.shape[axis] - 1)
    d.emit(d.one_of([f"{x}.select({axis}, {index})", f"{x}[{':, ' * axis}{index}]"]), bits=x.bits)


@production("expand", 1.0, (0, 5))
def _expand(d: Draw, x: Value) -> None:
    shape = [d.size(5) if s == 1 else s for s in x.shape]
    if d.chance(0.4):
        shape.insert(0, d.size(4))
    if not shape:
        raise Refused("a number stays one")
    d.emit(f"{x}.expand({', '.join(map(str, shape))})", bits=x.bits)


@production("axis of one", 1.0, (0, 5))
def _axis_of_one(d: Draw, x: Value) -> None:
    ones = [a for a, s in enumerate(x.shape) if s == 1]
    if ones and d.chance(0.5):
        d.emit(d.one_of([f"{x}.squeeze({d.one_of(ones)})", f"{x}.squeeze()"]), bits=x.bits)
    else:
        d.emit(f"{x}.unsqueeze({d.number(-1, x.rank)})", bits=x.bits)


@production("repeat", 0.5, (1, 4))
def _repeat(d: Draw, x: Value) -> None:
    d.emit(d.one_of([f"{x}.repeat({', '.join(str(d.number(1, 2)) for _ in range(x.rank))})",
                     f"torch.repeat_interleave({x}, 2, {d.axis(x)})", f"torch.tile({x}, (2,))"]), bits=x.bits)


line("flip", "torch.flip({x}, ({axis},))", weight=0.7, ranks=(1, 5))
line("roll", "torch.roll({x}, 1, {axis})", weight=0.7, ranks=(1, 5))
line("roll back", "torch.roll({x}, -2, dims={axis})", weight=0.3, ranks=(1, 5))
line("triangle", "torch.tril({x})", weight=0.4, ranks=(2, 4))
line("upper triangle", "torch.triu({x}, 1)", weight=0.4, ranks=(2, 4))
line("diagonal", "torch.diagonal({x}, dim1=-2, dim2=-1)", weight=0.3, ranks=(2, 4))
line("unbind", "{x}.unbind({axis})[0]", weight=0.3, ranks=(1, 5))


@production("unfold", 0.6, (1, 4))
def _unfold(d: Draw, x: Value) -> None:
    axis = d.number(0, x.rank - 1)
    d.emit(f"{x}.unfold({axis}, {d.number(1, min(3, x.shape[axis]))}, {d.number(1, 2)})", bits=x.bits)


@production("image to columns", 0.3, (4, 4))
def _columns(d: Draw, x: Value) -> None:
    kernel = min(2, *x.shape[2:])
    if d.chance(0.5):
        d.emit(f"F.unfold({x}, {kernel})", bits=x.bits)
    else:
        columns, = d.emit(f"F.unfold({x}, {kernel}, padding=1)", bits=x.bits)
        d.emit(f"F.fold({columns}, {tuple(x.shape[2:])}, {kernel}, padding=1)", bits=x.bits + 1)


@production("split", 1.2, (1, 5))
def _split(d: Draw, x: Value) -> None:
    axis = d.number(0, x.rank - 1)
    length = x.shape[axis]
    count = d.number(1, min(3, length))
    size = -(-length // count)
    parts = -(-length // size)
    if parts == 1:
        raise Refused("one part")
    d.emit(d.one_of([f"torch.chunk({x}, {count}, {axis})", f"torch.split({x}, {size}, {axis})"]), results=parts,
           bits=x.bits)


@production("concatenate", 2.0, (1, 5))
def _concatenate(d: Draw, x: Value) -> None:
    others = [v for v in d.values if v.shape == x.shape and v.dtype == x.dtype]
    parts = [x, *(d.one_of(others) for _ in range(d.number(1, 2)))]
    if d.chance(0.3):
        parts.append(d.input(x.shape))
    d.random.shuffle(parts)
    listed = ", ".join(map(str, parts))
    bits = max(p.bits for p in parts)
    if d.chance(0.65):
        d.emit(f"torch.cat([{listed}], {d.axis(x)})", bits=bits)
    else:
        d.emit(f"torch.stack([{listed}], {d.number(0, x.rank)})", bits=bits)


@production("pad", 1.2, (1, 5))
def _pad(d: Draw, x: Value) -> None:
    mode = d.one_of(["constant", "constant", "reflect", "replicate", "circular"])
    if mode == "constant":
        axes = d.number(1, min(2, x.rank))
        widths = [d.number(0, 2) for _ in range(2 * axes)]
        d.emit(f"F.pad({x}, {tuple(widths)}{d.one_of(['', ', value=1.5'])})", bits=x.bits)
        return
    if not 2 <= x.rank <= 5 or any(s < 2 for s in x.shape[2 if x.rank > 2 else 1:]):
        raise Refused("nothing to reflect")
    axes = 1 if x.rank <= 3 else x.rank - 2
    d.emit(f"F.pad({x}, {(1, 0) * axes}, mode='{mode}')", bits=x.bits)


@production("gather", 0.9, (1, 4))
def _gather(d: Draw, x: Value) -> None:
    axis = d.number(0, x.rank - 1)
    length = x.shape[axis]
    kind = d.one_of(["gather", "select", "index", "take", "several", "of all"])
    if kind == "gather":
        d.emit(f"torch.gather({x}, {axis}, {d.indices(x.shape, length)})", bits=x.bits)
    elif kind == "select":
        d.emit(f"torch.index_select({x}, {axis}, {d.indices((d.size(4),), length)})", bits=x.bits)
    elif kind == "several" and x.rank > 1:
        axes = sorted(d.random.sample(range(x.rank), d.number(2, min(3, x.rank))))
        count, at = d.size(4), [":"] * (axes[-1] + 1)
        for place, one in enumerate(axes):
            at[one] = f"{d.indices((count,), x.shape[one])}{d.one_of(['', '[:, None]']) if place else ''}"
        d.emit(f"{x}[{', '.join(at)}]", bits=x.bits)
    elif kind == "of all":
        d.emit(d.one_of([f"torch.take({x}, {d.indices((2, d.size(4)), prod(x.shape))} - {prod(x.shape)})",
                         f"torch.take_along_dim({x}, {d.indices((d.size(4),), prod(x.shape))})"]), bits=x.bits)
    elif kind == "index":
        d.emit(f"{x}[{':, ' * axis}{d.indices((d.size(4),), length)}]", bits=x.bits)
    else:
        d.emit(f"torch.take_along_dim({x}, {d.indices(x.shape, length)}, {axis})", bits=x.bits)


@production("embedding", 0.7)
def _embedding(d: Draw, x: Value) -> None:
    count, width = d.size(9), d.size(6)
    t = d.indices(d.shape(d.number(1, 2), 6), count)
    if d.chance(0.15) and t.rank == 2:
        mode = d.one_of(["sum", "mean"])
        d.emit(f"{d.module(f'nn.EmbeddingBag({count}, {width}, mode={mode!r})')}({t})", bits=3.0)
    elif d.chance(0.7):
        d.emit(f"{d.module(f'nn.Embedding({count}, {width})')}({t})", bits=2.0)
    else:
        d.emit(f"F.one_hot({t}, {count}).to({d.dtype})", bits=0.0)


@production("interpolate", 0.6, (3, 5))
def _interpolate(d: Draw, x: Value) -> None:
    linear = {3: "linear", 4: "bilinear", 5: "trilinear"}[x.rank]
    mode = d.one_of(["nearest", "nearest-exact", linear, *["bicubic"] * (x.rank == 4)])
    corners = d.one_of(["", ", align_corners=True"]) if mode in (linear, "bicubic") else ""
    to = d.one_of(["scale_factor=2", "scale_factor=1.5", f"size={d.size(7)}"])
    d.emit(f"F.interpolate({x}, {to}, mode='{mode}'{corners})", bits=x.bits)


@production("scattered", 0.5, (1, 4))
def _scattered(d: Draw, x: Value) -> None:
    axis, count = d.number(0, x.rank - 1), d.number(1, 9)
    shape = (*x.shape[:axis], count, *x.shape[axis + 1:])
    source, kind = d.input(shape), d.one_of(["scatter", "scatter_add", "index_add", "index_copy"])
    index = d.indices(shape if kind.startswith("scatter") else (count,), x.shape[axis])
    d.emit(f"torch.{kind}({x}, {axis}, {index}, {source}.to({x}.dtype))", bits=x.bits + 2)


@production("samples", 0.4, (4, 4))
def _samples(d: Draw, x: Value) -> None:
    grid = d.input((x.shape[0], d.size(5), d.size(5), 2))
    how = f"mode='{d.one_of(['bilinear', 'bilinear', 'nearest'])}', " \
          f"padding_mode='{d.one_of(['zeros', 'border', 'reflection'])}', align_corners={d.chance(0.5)}"
    d.emit(f"F.grid_sample({x}, {grid}.to({x}.dtype), {how})", bits=x.bits)


@production("pixel shuffle", 0.3, (4, 4))
def _pixel_shuffle(d: Draw, x: Value) -> None:
    if x.shape[1] % 4:
        raise Refused("too few channels")
    d.emit(f"F.pixel_shuffle({x}, 2)", bits=x.bits)


@production("new tensor", 1.2, (1, 4))
def _new(d: Draw, x: Value) -> None:
    number, axis, like = d.real(-1, 1), d.axis(x), f"dtype={d.dtype}"
    beside = (f"torch.full_like({x}, {number})", str(x), f"torch.full_like({x}, {number})")[d.number(0, 1):]
    table = [number, 0.5, number + 1][:d.number(1, 3)]
    d.emit(d.one_of([
        f"{x} + torch.arange({x.shape[-1]}, {like})",
        f"{x} * torch.ones_like({x})",
        f"torch.zeros_like({x}) + {x}.sum()",
        f"torch.zeros_like({x}) - {number}",
        f"{x} + torch.full({tuple(x.shape)}, 0.5, {like})",
        f"{x} * torch.linspace(0, 1, {x.shape[-1]}, {like})",
        f"torch.min({x}, torch.tensor({number}, {like}))",
        f"torch.where({x} > {number}, {x}, torch.full_like({x}, {number}))",
        f"torch.cat(({', '.join(beside)}), {axis})",
        f"{x} / torch.sqrt(torch.tensor({x.shape[-1]}.0))",
        f"{x} * torch.tensor({table}, {like}).sum()",
        f"{x} * torch.triu(torch.ones({x.shape[-1]}, {x.shape[-1]}, {like}))[0]",
    ]), bits=x.bits + 4)
