"""Converters of products (einsum and its relatives) and of pointwise operators with several names or a formula
(see :mod:`kernelwright.capture.convert`)."""

from __future__ import annotations

from math import log

from kernelwright.capture.convert import CONVERTERS, Arguments, NotConvertible, as_node, converts, reshape, spread
from kernelwright.capture.convert import _float_only as float_only
from kernelwright.capture.convert_views import permuted
from kernelwright.ir.node import Node, constant, make

# Products ----------------------------------------------------------------------------------------


@converts("einsum.default")
def _einsum(a: Arguments) -> Node:
    """Two operands as one batched matrix product, which is what PyTorch makes of them; others stay."""
    equation, operands = a["equation"].replace(" ", ""), list(a["tensors"])
    if len(operands) != 2 or "->" not in equation or "." in equation:
        raise NotConvertible("einsum other than of two operands")
    terms, result = equation.split("->")
    left, right = terms.split(",")
    sizes: dict[str, int] = {}
    for term, operand in zip((left, right), operands, strict=True):
        float_only(operand)
        for letter, size in zip(term, operand.shape, strict=True):
            if len(set(term)) != len(term) or sizes.setdefault(letter, size) != size:
                raise NotConvertible("a diagonal or a broadcast axis")
    batch = [c for c in left if c in right and c in result]
    summed = [c for c in left if c in right and c not in result]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    if set(rows + columns) - set(result) or 0 in sizes.values():
        raise NotConvertible("an axis that only one operand has is summed")

    def arranged(operand: Node, term: str, *groups: list[str]) -> Node:
        moved = permuted(operand, tuple(term.index(c) for group in groups for c in group))
        return reshape(moved, tuple(sizes[c] for c in groups[0]) + tuple(_count(g, sizes) for g in groups[1:]))

    first = arranged(operands[0], left, batch, rows, summed)
    second = arranged(operands[1], right, batch, summed, columns)
    product = make("matmul", first, second) if summed else make("mul", first, second)
    order = batch + rows + columns
    product = reshape(product, tuple(sizes[c] for c in order))
    return permuted(product, tuple(order.index(c) for c in result))


def _count(letters: list[str], sizes: dict[str, int]) -> int:
    total = 1
    for letter in letters:
        total *= sizes[letter]
    return total


@converts("mv.default", "dot.default", "vdot.default", "inner.default")
def _vector_product(a: Arguments) -> Node:
    left, right = list(a.values())[:2]
    if right.rank != 1 or left.rank not in (1, 2):
        raise NotConvertible("inner product of matrices")
    return make("matmul", float_only(left), right)


@converts("outer.default", "ger.default")
def _outer(a: Arguments) -> Node:
    left, right = list(a.values())[:2]
    return make("mul", reshape(float_only(left), (left.size, 1)), reshape(float_only(right), (1, right.size)))


@converts("baddbmm.default", "addmm.default", "addmv.default")
def _scaled_product(a: Arguments) -> Node:
    start, left, right = list(a.values())[:3]
    if a["beta"] == 0:  # then NaN of the start does not count
        raise NotConvertible("no start")
    product = make("matmul", float_only(left), right)
    if a["alpha"] != 1:
        product = make("mul", product, constant(a["alpha"]))
    return make("add", product, start if a["beta"] == 1 else make("mul", start, constant(a["beta"])))


# Pointwise ---------------------------------------------------------------------------------------


for _alias, _name in (("multiply", "mul"), ("divide", "div"), ("true_divide", "div")):
    for _kind in ("Tensor", "Scalar"):
        CONVERTERS[f"{_alias}.{_kind}"] = CONVERTERS[f"{_name}.{_kind}"]
CONVERTERS["subtract.Tensor"] = lambda a: CONVERTERS["sub.Tensor"]({**a, "operator": "sub.Tensor"})
CONVERTERS["negative.default"] = CONVERTERS["neg.default"]
CONVERTERS["absolute.default"] = CONVERTERS["abs.default"]

_LOGIC = {"and": "logical_and", "or": "logical_or", "xor": "ne"}
_LOGIC_NAMES = {f"{prefix}{name}{suffix}.Tensor": op for name, op in _LOGIC.items()
                for prefix, suffix in (("__", "__"), ("bitwise_", ""))}


@converts(*_LOGIC_NAMES, "logical_xor.default")
def _logic(a: Arguments) -> Node:
    left, right = list(a.values())[:2]
    if not (isinstance(left, Node) and isinstance(right, Node) and left.dtype == right.dtype == "bool"):
        raise NotConvertible("bits of integers")
    return make(_LOGIC_NAMES.get(a["operator"], "ne"), left, right)


@converts("bitwise_not.default", "logical_not.default")
def _negation(a: Arguments) -> Node:
    if a["operator"].startswith("bitwise") and a["self"].dtype != "bool":
        raise NotConvertible("bits of integers")
    return make("logical_not", a["self"] if a["self"].dtype == "bool" else float_only(a["self"]))


@converts("isnan.default")
def _isnan(a: Arguments) -> Node:
    return make("ne", float_only(a["self"]), a["self"])


@converts("prelu.default", "_prelu_kernel.default")
def _prelu(a: Arguments) -> Node:
    x, slope = float_only(a["self"]), a["weight"]
    shape = (1, slope.size, *(1,) * (x.rank - 2)) if slope.size != 1 else (1,) * x.rank
    return make("prelu", x, reshape(slope, shape))


@converts("log10.default")
def _log10(a: Arguments) -> Node:
    return make("mul", make("log", float_only(a["self"])), constant(1.0 / log(10.0)))


@converts("exp2.default", "pow.Scalar")
def _power_of(a: Arguments) -> Node:
    base = a["self"] if a["operator"] == "pow.Scalar" else 2.0
    if base <= 0:
        raise NotConvertible("a power of a negative number")
    return make("pow", constant(float(base)), float_only(a["exponent"] if a["operator"] == "pow.Scalar" else a["self"]))


@converts("frac.default")
def _frac(a: Arguments) -> Node:
    return make("sub", float_only(a["self"]), make("trunc", a["self"]))


@converts("addcmul.default", "addcdiv.default")
def _added_product(a: Arguments) -> Node:
    x = float_only(a["self"])
    term = make("mul" if a["operator"].startswith("addcmul") else "div", float_only(a["tensor1"]),
                float_only(a["tensor2"]))
    return make("add", x, term if a["value"] == 1 else make("mul", term, constant(a["value"])))


@converts("lerp.Scalar")
def _lerp(a: Arguments) -> Node:
    """As PyTorch does it: from the end that is nearer."""
    x, end, weight = float_only(a["self"]), float_only(a["end"]), float(a["weight"])
    way = make("sub", end, x)
    if abs(weight) < 0.5:
        return make("add", x, make("mul", way, constant(weight)))
    return make("sub", end, make("mul", way, constant(1.0 - weight)))


@converts("masked_fill.Tensor")
def _masked_fill(a: Arguments) -> Node:
    if a["value"].dtype != a["self"].dtype:
        raise NotConvertible("a value of another type")
    return make("where", a["mask"], as_node(a["value"]), float_only(a["self"]))


# Pools -------------------------------------------------------------------------------------------


@converts("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def _adaptive_max_pool(a: Arguments) -> tuple[Node, None]:
    x = float_only(a["self"])
    rank = int(a["operator"].split("pool")[1][0])
    sizes = spread(a["output_size"], rank)
    if a["results_used"] - {0} or any(n % s for n, s in zip(x.shape[-rank:], sizes, strict=True)):
        raise NotConvertible("the indices are used, or windows of several sizes")
    kernel = tuple(n // s for n, s in zip(x.shape[-rank:], sizes, strict=True))
    if all(s == 1 for s in sizes):
        return make("amax", x, axes=tuple(range(x.rank - rank, x.rank)), keepdim=True), None
    none, one = (0,) * rank, (1,) * rank
    return make("max_pool", x, kernel=kernel, stride=kernel, padding=none, dilation=one, ceil=False), None
