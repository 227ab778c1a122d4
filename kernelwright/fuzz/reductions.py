"""Productions: reductions, softmaxes, norms and scans."""

from __future__ import annotations

from math import prod

from kernelwright.fuzz.draw import Draw, Refused, Value
from kernelwright.fuzz.productions import line, production


def _reduced(d: Draw, x: Value) -> str:
    """``axes, keepdim=...`` of a reduction of x."""
    axes = d.axes(x)
    text = str(axes[0]) if len(axes) == 1 and d.chance(0.7) else str(tuple(axes))
    return text + (", keepdim=True" if d.chance(0.5) else "")


@production("sum or mean", 6.0, (1, 6))
def _sum(d: Draw, x: Value) -> None:
    kind = d.one_of(["sum", "mean", "mean"])
    if d.chance(0.12):
        d.emit(f"{x}.{kind}()", bits=x.bits + 2)
    else:
        d.emit(d.one_of([f"{x}.{kind}({_reduced(d, x)})", f"torch.{kind}({x}, dim={_reduced(d, x)})"]), bits=x.bits + 1)


@production("extremum", 2.5, (1, 6))
def _extremum(d: Draw, x: Value) -> None:
    kind = d.one_of(["amax", "amin", "max", "min", "aminmax", "all"])
    keep = d.one_of(["", ", keepdim=True"])
    if kind in ("amax", "amin"):
        d.emit(f"torch.{kind}({x}, {_reduced(d, x)})", bits=x.bits)
    elif kind == "all":
        if 0 in x.shape:
            raise Refused("no extremum of nothing")
        d.emit(f"{x}.{d.one_of(['max', 'min'])}()", bits=x.bits)
    elif kind == "aminmax":
        d.emit(f"torch.aminmax({x}, dim={d.axis(x)}{keep})", results=2, bits=x.bits)
    elif d.chance(0.5):
        d.emit(f"torch.{kind}({x}, dim={d.axis(x)}{keep}).values", bits=x.bits)
    elif d.chance(0.5):
        d.emit(f"torch.{kind}({x}, {d.axis(x)}{keep})[0]", bits=x.bits)
    else:
        values, indices = d.emit(f"torch.{kind}({x}, dim={d.axis(x)}{keep})", results=2, bits=x.bits)
        if d.chance(0.5):
            d.emit(f"{values} + {indices}", bits=x.bits + 4)


@production("index of an extremum", 0.7, (1, 5))
def _argument(d: Draw, x: Value) -> None:
    kind = d.one_of(["argmax", "argmin"])
    d.emit(d.one_of([f"torch.{kind}({x}, dim={d.axis(x)}{d.one_of(['', ', keepdim=True'])})", f"torch.{kind}({x})"]),
           bits=5.0)


@production("logsumexp", 2.0, (1, 6))
def _logsumexp(d: Draw, x: Value) -> None:
    d.emit(f"torch.logsumexp({x}, {_reduced(d, x)})", bits=x.bits + 1)


@production("variance", 1.5, (1, 6))
def _variance(d: Draw, x: Value) -> None:
    kind = d.one_of(["var", "std", "var_mean", "std_mean"])
    keep = d.one_of([True, False])
    axes = d.axes(x)
    if prod(x.shape[a] for a in axes) < 2:
        raise Refused("a variance of one value")
    correction = d.one_of(["unbiased=False", "correction=1", "correction=0", "unbiased=True"])
    d.emit(f"torch.{kind}({x}, {axes}, {correction}, keepdim={keep})", results=2 if kind.endswith("mean") else 1,
           bits=2 * max(x.bits, 1))


@production("norm of a vector", 1.0, (1, 5))
def _vector_norm(d: Draw, x: Value) -> None:
    axis = d.axis(x)
    d.emit(d.one_of([
        f"torch.linalg.vector_norm({x}, dim={axis}, keepdim=True)", f"torch.norm({x}, dim={axis})",
        f"torch.norm({x}, p=1, dim={axis})", f"F.normalize({x}, dim={axis})", f"torch.norm({x})",
        f"{x} / (torch.norm({x}, p=2, dim={axis}, keepdim=True) + 0.1)", f"F.normalize({x}, p=1, dim={axis})",
        f"{x} / ({x}.abs().mean({axis}, keepdim=True) + 0.1)",
        f"{x} * torch.rsqrt({x}.pow(2).mean({axis}, keepdim=True) + 1e-5)"]), bits=x.bits + 1)


@production("softmax", 2.5, (1, 5))
def _softmax(d: Draw, x: Value) -> None:
    axis = d.axis(x)
    name, module, bits = d.one_of([("softmax", "Softmax", 0.0), ("softmax", "Softmax", 0.0),
                                   ("log_softmax", "LogSoftmax", 4.0), ("softmin", "Softmin", 0.0)])
    d.emit(d.one_of([f"F.{name}({x}, dim={axis})", f"{d.module(f'nn.{module}(dim={axis})')}({x})"]), bits=bits)


@production("product", 0.4, (1, 4))
def _product(d: Draw, x: Value) -> None:
    x, axis = d.tamed(x, 1.0), d.axis(x)
    d.emit(d.one_of([f"torch.prod({x}, {axis})", f"{x}.prod({axis}, keepdim=True)", f"torch.prod({x})",
                     f"({x} > 0).prod({axis})", f"({x} * 4).to(torch.int8).prod({axis})",
                     f"torch.prod({x}, {axis}, dtype=torch.float64)"]), bits=6.0)


@production("scan", 1.2, (1, 5))
def _scan(d: Draw, x: Value) -> None:
    axis = d.axis(x)
    d.emit(d.one_of([
        f"torch.cumsum({x}, {axis})", f"torch.cumsum({x}.flip({axis}), {axis}).flip({axis})",
        f"torch.cumprod({x}.tanh(), {axis})", f"torch.logcumsumexp({x}, {axis})", f"torch.cummax({x}, {axis})[0]",
        f"torch.cumsum({x} * 2, dim={axis}) + 1"]), bits=x.bits + 3)


@production("sort", 0.4, (1, 4))
def _sort(d: Draw, x: Value) -> None:
    axis = d.axis(x)
    count = d.number(1, x.shape[axis])
    d.emit(d.one_of([f"torch.sort({x}, {axis})", f"torch.topk({x}, {count}, {axis})"]), results=2, bits=x.bits + 1)


@production("mean and deviation by hand", 1.0, (1, 5))
def _standardise(d: Draw, x: Value) -> None:
    axis = d.axis(x)
    mean, = d.emit(f"{x}.mean({axis}, keepdim=True)", bits=x.bits)
    spread, = d.emit(f"({x} - {mean}).square().mean({axis}, keepdim=True)", bits=2 * max(x.bits, 0))
    d.emit(f"({x} - {mean}) / torch.sqrt({spread} + 0.01)", bits=4.0)


# Norms -------------------------------------------------------------------------------------------


@production("batch norm", 3.0, (2, 5))
def _batch_norm(d: Draw, x: Value) -> None:
    if prod(x.shape) // max(1, x.shape[1]) < 2:
        raise Refused("one value per channel")
    rank = {2: "1d", 3: "1d", 4: "2d", 5: "3d"}[x.rank]
    rest = d.one_of(["", "", "", ", affine=False", ", momentum=0.3", ", eps=0.01", ", track_running_stats=False"])
    d.emit(f"{d.module(f'nn.BatchNorm{rank}({x.shape[1]}{rest})')}({x})", bits=max(x.bits, 4.0))


@production("layer norm", 2.5, (1, 5))
def _layer_norm(d: Draw, x: Value) -> None:
    axes = d.number(1, min(x.rank, 3))
    shape = list(x.shape[x.rank - axes:])
    rest = d.one_of(["", "", ", elementwise_affine=False", ", bias=False", ", eps=0.1"])
    if d.chance(0.8):
        d.emit(f"{d.module(f'nn.LayerNorm({shape}{rest})')}({x})", bits=4.0)
    else:
        d.emit(f"F.layer_norm({x}, {shape}, eps=0.01)", bits=4.0)


@production("RMS norm", 1.5, (1, 5))
def _rms_norm(d: Draw, x: Value) -> None:
    shape = list(x.shape[x.rank - d.number(1, min(x.rank, 2)):])
    rest = d.one_of(["", "", ", elementwise_affine=False", ", eps=0.1", ", eps=1e-6"])
    if d.chance(0.8):
        d.emit(f"{d.module(f'nn.RMSNorm({shape}{rest})')}({x})", bits=4.0)
    else:
        d.emit(f"F.rms_norm({x}, {shape})", bits=4.0)


@production("group norm", 1.5, (2, 5))
def _group_norm(d: Draw, x: Value) -> None:
    channels = x.shape[1]
    groups = d.one_of([g for g in range(1, channels + 1) if channels % g == 0])
    if prod(x.shape[2:]) * channels // groups * x.shape[0] < 2:
        raise Refused("one value per group")
    rest = d.one_of(["", "", ", affine=False", ", eps=0.1"])
    d.emit(f"{d.module(f'nn.GroupNorm({groups}, {channels}{rest})')}({x})", bits=4.0)


@production("instance norm", 1.5, (3, 5))
def _instance_norm(d: Draw, x: Value) -> None:
    if prod(x.shape[2:]) < 2:
        raise Refused("one value per channel")
    rest = d.one_of(["", "", ", affine=True", ", track_running_stats=True", ", eps=0.1"])
    d.emit(f"{d.module(f'nn.InstanceNorm{x.rank - 2}d({x.shape[1]}{rest})')}({x})", bits=4.0)


@production("rms norm", 0.5, (1, 4))
def _rms_norm(d: Draw, x: Value) -> None:
    d.emit(f"{d.module(f'nn.RMSNorm({x.shape[-1]}, eps=1e-05)')}({x})", bits=4.0)


@production("local response norm", 0.3, (3, 5))
def _local_response(d: Draw, x: Value) -> None:
    d.emit(f"F.local_response_norm({x}, {d.number(2, 3)})", bits=x.bits)


line("log of a mean of exponentials", "torch.log(torch.mean(torch.exp({x}), {axis}, keepdim=True))", weight=0.6,
     ranks=(1, 5), tame=4.0, bits=4.0)
line("centred", "{x} - {x}.mean({axis}, keepdim=True)", weight=1.2, ranks=(1, 5))
line("less its largest", "{x} - torch.amax({x}, {axis}, keepdim=True)", weight=0.8, ranks=(1, 5))
line("less its largest values", "{x} - {x}.max(dim={axis}, keepdim=True).values", weight=0.5, ranks=(1, 5))
line("count", "({x} > 0.1).sum({axis})", weight=0.3, ranks=(1, 5), bits=4.0)
