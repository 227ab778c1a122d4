"""Moments: a variance of an affine map, and of a linear map, without the map's output.

var(y) = E[y^2] - E[y]^2. The mean collapses (see collapse.py). The energy of an unclipped linear
convolution is a quadratic form of its weights in the autocorrelation of its input, which is cheap
through the frequency domain (Parseval, Wiener-Khinchin); codegen/*/fft_energy/ computes it.
"""

from __future__ import annotations

from math import inf, prod, sqrt

from kernelwright.algebra.build import MOMENTS, align, narrow, per_channel, reduce
from kernelwright.algebra.collapse import cast, wide
from kernelwright.algebra.rule import Context, Exactness, Rule, rule
from kernelwright.ir.node import Node, constant, make, walk


@rule("biased variance", *MOMENTS, law="var with correction c = var with correction 0 times n / (n - c)",
      condition="n > c > 0; not of 16-bit values; a deviation takes the factor's root", exactness=Exactness.ROUNDING)
def biased(node: Node, context: Context) -> Node | None:
    count = prod(node.inputs[0].shape[a] for a in node["axes"])
    if node["correction"] == 0 or count <= node["correction"] or not node["keepdim"] or narrow(node):
        return None
    return make("mul", reduce(node.op, node.inputs[0], node["axes"], correction=0),
                constant(unbiasing(node.op, count, node["correction"])))


def unbiasing(op: str, count: int, correction: float) -> float:
    """The factor from a biased variance, or deviation, of ``count`` elements to the corrected one."""
    factor = count / (count - correction)
    return sqrt(factor) if op == "std" else factor


def _flat(term: Node, axes: tuple[int, ...]) -> bool:
    return term.op == "constant" or all(term.shape[a] == 1 for a in axes)


@rule("variance of an affine map", *MOMENTS, law="var(a x + b) = a^2 var(x), std(a x + b) = |a| std(x)",
      condition="a and b do not vary along the reduced axes; b is none of the inputs (it may be NaN); not of 16-bit "
                "values", exactness=Exactness.ROUNDING)
def of_affine(node: Node, context: Context) -> Node | None:
    x, axes = node.inputs[0], node["axes"]
    if not node["keepdim"] or x.op not in ("add", "sub", "mul", "div", "neg") or narrow(node):
        return None
    if x.op == "neg":
        return reduce(node.op, x.inputs[0], axes, correction=node["correction"])
    left, right = (align(i, x.rank) for i in x.inputs)
    for value, other, swapped in ((left, right, False), (right, left, True)):
        # Truth values have no variance; a value of another type has another.
        if value.dtype != x.dtype or any(value.shape[a] != x.shape[a] for a in axes) or not _flat(other, axes):
            continue
        if x.op == "div" and swapped:
            continue
        result = reduce(node.op, value, axes, correction=node["correction"])
        if x.op in ("add", "sub"):
            if any(n.op == "input" for n in walk([other])):
                return None  # the variance of what is NaN throughout is NaN, whatever x is
            return result if result.shape == node.shape else make("expand", result, shape=node.shape)
        if other.op == "constant":
            factor = constant(abs(other["value"]) if node.op == "std" else other["value"]**2)
        else:
            factor = make("abs" if node.op == "std" else "square", other)
        return make(x.op, result, factor)
    return None


def is_unclipped(node: Node) -> bool:
    """Whether the convolution's output domain holds every product of a tap and an element of x."""
    kernel = node.inputs[1].shape[2:]
    if node["transposed"]:
        return not any(node["padding"])
    full = tuple(d * (k - 1) for d, k in zip(node["dilation"], kernel, strict=True))
    return node["stride"] == (1,) * len(kernel) and node["padding"] == full


@rule("variance of a convolution", "var",
      law="sum_p (w * x)[p]^2 = sum over lags of (autocorrelation of w) (autocorrelation of x)",
      condition="float32, over batch and space, the whole linear convolution (no product is clipped)",
      exactness=Exactness.FINITE)
def of_convolution(node: Node, context: Context) -> Node | None:
    y, axes = node.inputs[0], node["axes"]
    if y.op != "convolution" or axes != (0, *range(2, y.rank)) or node["correction"] != 0 or not node["keepdim"]:
        return None
    if y.dtype != "float32" or not is_unclipped(y) or 0 in y.shape or not context.may_collapse(y):
        return None
    attributes = dict(y.attributes)
    plain = make("convolution", *y.inputs[:2], origin=y.origin, **attributes)
    energy = make("channel_energy", *y.inputs[:2], origin=y.origin,
                  **{k: attributes[k] for k in ("stride", "dilation", "groups", "transposed")})
    # Spectra of x that leave float32 make NaN of infinity minus infinity: then the energy is infinite. Where x itself
    # is not finite, the mean is not, either.
    energy = make("where", make("eq", energy, energy), energy, constant(inf))
    count = prod(y.shape[a] for a in axes)
    mean = reduce("mean", plain, axes)
    # In float64, because the two terms may be close; rounding must not make the result negative.
    square = make("square", wide(mean))
    difference = make("sub", make("mul", per_channel(energy, y.rank), constant(1.0 / count)), square)
    return cast(make("clamp_min", difference, constant(0.0)), node.dtype)


MOMENT_RULES: tuple[Rule, ...] = (biased, of_affine, of_convolution)
