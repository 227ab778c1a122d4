"""Productions: convolutions, matrix products, pools and attention."""

from __future__ import annotations

import torch

from kernelwright.fuzz.draw import Draw, Refused, Value
from kernelwright.fuzz.productions import production


def _tuple(numbers: list[int]) -> str:
    """One number where all are alike, else a tuple."""
    return str(numbers[0]) if len(set(numbers)) == 1 else str(tuple(numbers))


def _image(d: Draw, x: Value) -> Value:
    """x, or an input with one to three spatial axes."""
    return x if 3 <= x.rank <= 5 and 0 not in x.shape else d.input(d.shape(d.one_of([3, 4, 4, 5]), 9))


def convolution(d: Draw, x: Value, *, transposed: bool) -> Value:
    """A convolution of any geometry."""
    rank, channels = x.rank - 2, x.shape[1]
    groups = d.one_of([1, 1, 1, *(g for g in range(2, channels + 1) if channels % g == 0)])
    out = groups * d.number(1, max(1, 6 // groups))
    dilation = [d.one_of([1, 1, 1, 2]) for _ in range(rank)]
    kernel = [d.one_of([1, 2, 3, 3]) for _ in range(rank)]
    stride = [d.one_of([1, 1, 2, 3]) for _ in range(rank)]
    padding = [d.one_of([0, 0, 1, 2]) for _ in range(rank)]
    more = ""
    if transposed:
        extra = [d.number(0, max(s, t) - 1) if d.chance(0.3) else 0 for s, t in zip(stride, dilation, strict=True)]
        more = f", output_padding={_tuple(extra)}" if any(extra) else ""
        for i, (s, p) in enumerate(zip(x.shape[2:], padding, strict=True)):
            while p and (s - 1) * stride[i] - 2 * p + dilation[i] * (kernel[i] - 1) + extra[i] + 1 < 1:
                p -= 1
            padding[i] = p
    else:
        for i, (s, p) in enumerate(zip(x.shape[2:], padding, strict=True)):
            if s + 2 * p < dilation[i] * (kernel[i] - 1) + 1:
                kernel[i], dilation[i] = 1, 1
        if all(t == 1 for t in stride) and d.chance(0.15):
            more = ", padding='same'"
    text = f"nn.Conv{'Transpose' if transposed else ''}{rank}d({channels}, {out}, {_tuple(kernel)}"
    for name, numbers, usual in (("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1)):
        if any(n != usual for n in numbers) and not (name == "padding" and "same" in more):
            text += f", {name}={_tuple(numbers)}"
    text += f", groups={groups}" if groups > 1 else ""
    text += more + (", bias=False" if d.chance(0.25) else "")
    if not transposed and "same" not in more and d.chance(0.07) and all(
            0 < p < s for p, s in zip(padding, x.shape[2:], strict=True)):
        text += ", padding_mode='reflect'" if d.chance(0.5) else ", padding_mode='replicate'"
    result, = d.emit(f"{d.module(text + ')')}({x})", bits=max(x.bits, 0) + 1.5)
    return result


@production("convolution", 5.0, (3, 5))
def _convolution(d: Draw, x: Value) -> None:
    convolution(d, _image(d, x), transposed=False)


@production("transposed convolution", 5.0, (3, 5))
def _transposed(d: Draw, x: Value) -> None:
    convolution(d, _image(d, x), transposed=True)


@production("functional convolution", 0.6, (3, 5))
def _functional(d: Draw, x: Value) -> None:
    x = _image(d, x)
    weight = d.parameter([d.number(1, 4), x.shape[1], *(1,) * (x.rank - 2)])
    d.emit(d.one_of([f"F.conv{x.rank - 2}d({x}, {weight})", f"F.conv{x.rank - 2}d({x}, {weight}, stride=2)"]),
           bits=x.bits + 3)


@production("convolution of one image", 0.4, (3, 4))
def _unbatched(d: Draw, x: Value) -> None:
    d.emit(f"{d.module(f'nn.Conv{x.rank - 1}d({x.shape[0]}, {d.number(1, 4)}, 1)')}({x})", bits=x.bits + 1.5)


@production("linear", 3.5, (1, 4))
def _linear(d: Draw, x: Value) -> None:
    bias = d.one_of(["", "", ", bias=False"])
    d.emit(f"{d.module(f'nn.Linear({x.shape[-1]}, {d.size(9)}{bias})')}({x})", bits=max(x.bits, 0) + 1.5)


@production("matmul", 2.5, (1, 4))
def _matmul(d: Draw, x: Value) -> None:
    inner, out = x.shape[-1], d.size(8)
    kind = d.one_of(["parameter", "input", "itself", "vector", "left", "batched", "operator"])
    bits = 2 * max(x.bits, 1) + 3 if kind == "itself" else x.bits + 5
    if kind == "itself" and x.rank >= 2:
        d.emit(d.one_of([f"{x} @ {x}.transpose(-1, -2)", f"torch.matmul({x}, {x}.mT)", f"{x}.mT @ {x}"]), bits=bits)
    elif kind == "vector":
        d.emit(f"{x} @ {d.parameter([inner])}", bits=bits)
    elif kind == "left" and x.rank >= 2:
        d.emit(f"torch.matmul({d.parameter([out, x.shape[-2]])}, {x})", bits=bits)
    elif kind == "batched" and x.rank == 3:
        d.emit(f"torch.bmm({x}, {d.input((x.shape[0], inner, out))})", bits=bits)
    elif kind == "operator" and x.rank == 2:
        w = d.parameter([inner, out])
        d.emit(d.one_of([f"torch.mm({x}, {w})", f"torch.addmm({d.parameter([out])}, {x}, {w})",
                         f"torch.addmm({d.parameter([out])}, {x}, {w}, beta=0.5, alpha=2)",
                         f"F.linear({x}, {w}.t(), {d.parameter([out])})"]), bits=bits)
    elif kind == "input":
        d.emit(f"torch.matmul({x}, {d.input((inner, out))})", bits=bits)
    else:
        d.emit(f"{x} @ {d.parameter([inner, out])}", bits=bits)


@production("einsum", 1.0, (2, 4))
def _einsum(d: Draw, x: Value) -> None:
    letters = "abcd"[:x.rank]
    kind = d.one_of(["contract", "outer", "diagonal", "transpose", "batched"])
    if kind == "contract":
        d.emit(f"torch.einsum('{letters},{letters[-1]}k->{letters[:-1]}k', {x}, "
               f"{d.parameter([x.shape[-1], d.size(6)])})", bits=x.bits + 4)
    elif kind == "outer":
        d.emit(f"torch.einsum('{letters},{letters}->{letters[:-1]}', {x}, {d.input(x.shape)})", bits=x.bits + 4)
    elif kind == "diagonal":
        d.emit(f"torch.einsum('{letters}->{letters[0]}', {x})", bits=x.bits + 3)
    elif kind == "transpose":
        d.emit(f"torch.einsum('{letters}->{letters[::-1]}', {x})", bits=x.bits)
    else:
        d.emit(f"torch.einsum('{letters},{letters[:-1]}k->{letters[:-2]}{letters[-1]}k', {x}, "
               f"{d.input((*x.shape[:-1], 3))})", bits=x.bits + 4)


@production("bilinear", 0.3, (2, 3))
def _bilinear(d: Draw, x: Value) -> None:
    other = d.input((*x.shape[:-1], 3))
    d.emit(f"{d.module(f'nn.Bilinear({x.shape[-1]}, 3, 2)')}({x}, {other})", bits=x.bits + 4)


@production("attention", 0.8, (2, 4))
def _attention(d: Draw, x: Value) -> None:
    if d.chance(0.6):
        d.emit(d.one_of([f"F.scaled_dot_product_attention({x}, {x}, {x})",
                         f"F.scaled_dot_product_attention({x}, {x}, {x}, is_causal=True)"]), bits=x.bits)
    else:
        scores, = d.emit(f"{x} @ {x}.transpose(-2, -1) / {max(1, x.shape[-1])} ** 0.5", bits=2 * max(x.bits, 1) + 2)
        d.emit(f"F.softmax({scores}, dim=-1) @ {x}", bits=x.bits)


#: Sizes of heads: batch, heads, rows, columns. There are as many scores as it takes for a kernel of their own.
_HEADS = [(2, 2, 64, 64), (1, 3, 80, 70), (4, 4, 33, 40), (1, 1, 130, 130), (2, 1, 17, 500), (1, 2, 300, 29)]
_WEIGHTS = [
    "torch.softmax({q} @ {k}.transpose(-2, -1) / 3, dim=-1)", "({q} @ {k}.mT + {bias}).softmax(-1)",
    "({q} * 0.3 @ {k}.mT).masked_fill({mask}, float('-inf')).softmax(-1)", "torch.relu({q} @ {k}.mT * 0.1)",
    "F.softmax(torch.einsum('bhld,bhsd->bhls', {q}, {k}) - {bias}.abs(), -1)", "torch.sigmoid({q} @ {k}.mT - 2)",
    "torch.where({mask}, -1e9, 5 * torch.tanh({q} @ {k}.mT / 5)).softmax(-1)", "{q} @ {k}.mT * {bias} / 8",
    "F.softmax({q} @ {k}.mT, -1, dtype=torch.float32)", "({q} @ {k}.mT).softmax(-2)"]
_CALLS = ["", ", is_causal=True", ", attn_mask={bias}", ", attn_mask=~{mask}", ", scale=0.3"]


@production("attention of heads", 0.5, (1, 4))
def _heads(d: Draw, x: Value) -> None:
    batch, heads, rows, columns = d.one_of(_HEADS)
    depth, width = d.number(1, 9), d.number(1, 7)
    given = [d.input((batch, heads, size, last)) if d.chance(0.6) else
             f"{d.input((batch, size, heads, last))}.transpose(1, 2)"
             for size, last in ((rows, depth), (columns, depth), (columns, width))]
    if rows == columns and d.chance(0.2):
        given[1] = given[0]
    wide = [d.one_of([size, size, 1]) for size in (batch, heads, rows)]
    mask, bias = "", ""
    text = d.one_of(_WEIGHTS) if d.chance(0.6) else "F.scaled_dot_product_attention({q}, {k}, {v}" + d.one_of(_CALLS)
    if "{mask}" in text:
        shape = ", ".join(map(str, (*wide, columns)))
        mask = str(d.input((*wide, columns), f"torch.rand({shape}) < {d.one_of([0.2, 0.6, 0.99])}"))
    if "{bias}" in text:
        bias = str(d.input((*wide, columns)))
    text = text.format(q=given[0], k=given[1], v=given[2], mask=mask, bias=bias)
    text = f"{text})" if text.startswith("F.scaled") else f"{text} @ {given[2]}"
    d.emit(d.one_of([text, f"({text}).transpose(1, 2)", f"({text}).transpose(1, 2).flatten(2)",
                     f"({text}).flatten(0, 1)"]), bits=4.0 if "soft" in text or "scaled" in text else 16.0)


@production("recurrent", 0.25, (3, 3))
def _recurrent(d: Draw, x: Value) -> None:
    kind = d.one_of(["GRU", "LSTM", "RNN"])
    d.emit(f"{d.module(f'nn.{kind}({x.shape[-1]}, 3, batch_first=True)')}({x})[0]", bits=0.0)


@production("encoder layer", 0.2, (3, 3))
def _encoder(d: Draw, x: Value) -> None:
    if x.shape[-1] % 2:
        raise Refused("an odd width")
    module = d.module(f"nn.TransformerEncoderLayer({x.shape[-1]}, 2, 8, dropout=0.0, batch_first=True)")
    d.emit(f"{module}({x})", bits=4.0)


# Pools -------------------------------------------------------------------------------------------


def _windows(d: Draw, x: Value) -> tuple[str, list[int], list[int], str]:
    """``kernel, stride=...`` with the kernel, the padding, and the end of the call."""
    rank = x.rank - 2
    kernel = [min(d.one_of([1, 2, 2, 3, 4]), s) for s in x.shape[2:]]
    padding = [d.one_of([0, 0, 1]) if k >= 2 else 0 for k in kernel]
    text = _tuple(kernel)
    if d.chance(0.5):
        text += f", stride={_tuple([d.number(1, 3) for _ in range(rank)])}"
    if any(padding):
        text += f", padding={_tuple(padding)}"
    return text, kernel, padding, ", ceil_mode=True" if d.chance(0.25) else ""


@production("max pool", 2.5, (3, 5))
def _max_pool(d: Draw, x: Value) -> None:
    x = _image(d, x)
    text, kernel, padding, end = _windows(d, x)
    if d.chance(0.25) and all(2 * k - 1 <= s + 2 * p for k, p, s in zip(kernel, padding, x.shape[2:], strict=True)):
        text += ", dilation=2"
    rank = x.rank - 2
    if d.chance(0.12):
        d.emit(f"F.max_pool{rank}d({x}, {text}{end}, return_indices=True)", results=2, bits=x.bits)
    elif d.chance(0.5):
        d.emit(f"{d.module(f'nn.MaxPool{rank}d({text}{end})')}({x})", bits=x.bits)
    else:
        d.emit(f"F.max_pool{rank}d({x}, {text}{end})", bits=x.bits)


@production("average pool", 2.5, (3, 5))
def _average_pool(d: Draw, x: Value) -> None:
    x = _image(d, x)
    if x.rank == 5 and x.dtype in (torch.float16, torch.bfloat16):
        raise Refused("PyTorch's CPU has no average pool of three axes in 16 bits")
    text, _, _, end = _windows(d, x)
    rank = x.rank - 2
    end += d.one_of(["", "", ", count_include_pad=False"])
    if rank > 1 and d.chance(0.15):
        end += ", divisor_override=3"
    d.emit(f"F.avg_pool{rank}d({x}, {text}{end})" if d.chance(0.5) else
           f"{d.module(f'nn.AvgPool{rank}d({text}{end})')}({x})", bits=x.bits)


@production("adaptive pool", 1.2, (3, 5))
def _adaptive_pool(d: Draw, x: Value) -> None:
    x = _image(d, x)
    rank = x.rank - 2
    size = d.one_of([1, 1, 2, 3]) if d.chance(0.7) else tuple(d.number(1, 3) for _ in range(rank))
    kind = d.one_of(["avg", "avg", "avg", "max"])
    d.emit(f"F.adaptive_{kind}_pool{rank}d({x}, {size})", bits=x.bits)


@production("power pool", 0.2, (3, 4))
def _power_pool(d: Draw, x: Value) -> None:
    d.emit(f"F.lp_pool{x.rank - 2}d({x}, 2, {_tuple([min(2, s) for s in x.shape[2:]])})", bits=x.bits + 2)
