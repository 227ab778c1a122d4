"""Scalar expressions and affine positions as CUDA text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isinf, isnan, prod

import numpy as np

from kernelwright.ir.scalar import KERNEL_FUNCTIONS
from kernelwright.plan.expressions import Apply, Constant, Index, Load, walk
from kernelwright.plan.kernels import LoopKernel

C_TYPES = {
    "float32": "float", "float64": "double", "float16": "kw_float16", "bfloat16": "kw_bfloat16",
    "int64": "long long", "int32": "int", "int16": "short", "int8": "signed char", "uint8": "unsigned char",
    "bool": "bool",
}
"""C type of an element, by dtype."""

#: Divisors from which on the reciprocal is a usual number.
_LEAST_DIVISOR = 2.0**-100
#: The least slope that is a usual number of float32.
_LEAST_SLOPE = 2.0**-126
#: Texts other than those of :mod:`kernelwright.ir.scalar`.
_TEXTS = {"rsqrt": "kw_rsqrt({0})", "softplus": "kw_softplus({0}, {1}, {2})", "elu": "kw_elu({0}, {1})",
          "celu": "kw_celu({0}, {1})", "softsign": "kw_softsign({0})"}
_FLOAT_TEXTS = {"div": "kw_divide({0}, {1})", "reciprocal": "kw_divide(1.0f, {0})"}
_TYPES_OF = {"whole": "(long long)", "uwhole": "(unsigned long long)"}


def literal(value: float, real: str) -> str:
    """A floating literal of type ``real`` ("float" or "double"); of an integer, one of 64 bits."""
    if isinstance(value, int):
        text = f"{value}LL" if value > -(2**63) else "(-9223372036854775807LL - 1)"
        return f"({text})" if value < 0 and value > -(2**63) else text
    if real == "float":
        with np.errstate(over="ignore"):
            value = float(np.float32(value))
    if isnan(value):
        return f"{real}(NAN)"
    if isinf(value):
        return f"{real}(INFINITY)" if value > 0 else f"{real}(-INFINITY)"
    if real == "float":
        text = str(np.float32(value)) + "f"
    else:
        text = repr(value)
    return f"({text})" if text.startswith("-") else text


def apply_text(node: Apply, arguments: Sequence[str], real: str) -> str:
    """The call of a scalar function on argument texts, which are names or literals."""
    match node:
        # As PyTorch does on a GPU; `math_branch_free.py` says what a division costs.
        case Apply(function="div", arguments=(_, Constant(value=float(divisor)))) \
                if real == "float" and _LEAST_DIVISOR <= abs(divisor) <= 1 / _LEAST_DIVISOR:
            return f"{arguments[0]} * {literal(1 / divisor, real)}"
        # One instruction, where a comparison and a choice are two; NaN stays in both.
        case Apply(function="clamp_min" | "clamp_max", arguments=(_, Constant(value=float(bound)))) \
                if real == "float" and not isnan(bound):
            return f"{'kw_greatest' if node.function == 'clamp_min' else 'kw_least'}({', '.join(arguments)})"
        case Apply(function="relu") if real == "float":
            return f"kw_greatest({arguments[0]}, 0.0f)"
        # Of x and a smaller multiple of it the greater one; not of a slope so small that infinity times it is none.
        case Apply(function="leaky_relu", arguments=(_, Constant(value=float(slope)))) \
                if real == "float" and _LEAST_SLOPE <= slope <= 1:
            return f"kw_greatest({arguments[0]}, {arguments[0]} * {arguments[1]})"
    text = KERNEL_FUNCTIONS[node.function].text
    if not isinstance(node.arguments[-1], Constant) or node.function != "div":
        text = (_FLOAT_TEXTS if real == "float" else {}).get(node.function, text)
    text = _TEXTS.get(node.function, text).format(*arguments)
    text = re.sub(r"\b(?:real|u?whole)\b", lambda found: _TYPES_OF.get(found[0], real), text)
    if text.startswith("(") and text.endswith(")") and _closes_at_end(text):
        text = text[1:-1]
    return text


def _closes_at_end(text: str) -> bool:
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position == len(text) - 1
    return False


def affine_text(strides: Sequence[int], names: Sequence[str], offset: int, long: bool) -> str:
    """``offset + sum(stride * name)`` as an expression; ``long`` makes the products 64 bits wide."""
    suffix = "LL" if long else ""
    terms = []
    for stride, name in zip(strides, names, strict=True):
        if stride == 0:
            continue
        sign = " - " if stride < 0 else " + "
        if abs(stride) == 1:
            terms.append((sign, f"{name}" if not long else f"(long long){name}"))
        else:
            terms.append((sign, f"{name} * {abs(stride)}{suffix}"))
    if offset:
        terms.append((" - " if offset < 0 else " + ", f"{abs(offset)}{suffix}"))
    if not terms:
        return "0"
    terms.sort(key=lambda term: term[0] == " - ")
    first = ("-" if terms[0][0] == " - " else "") + terms[0][1]
    return first + "".join(sign + text for sign, text in terms[1:])


def reach(index: Index, sizes: Sequence[int]) -> tuple[int, int]:
    """The least and the greatest value of an index over a domain without empty axes."""
    spans = [stride * (size - 1) for stride, size in zip(index.strides, sizes, strict=False)]
    return index.offset + sum(min(0, s) for s in spans), index.offset + sum(max(0, s) for s in spans)


def is_long(kernel: LoopKernel) -> bool:
    """Whether any offset of the kernel, or a number of outer points or of a row's, needs more than 31 bits.

    Threads beyond the last point compute a position, whose type has its own bound, but no offset.
    """
    sizes = kernel.outer + kernel.row
    if max(prod(kernel.outer), prod(kernel.row)) >= 2**31:
        return True
    indices = [store.index for store in kernel.row_stores + kernel.outer_stores]
    roots = [r.expression for r in kernel.reductions]
    roots += [s.expression for s in kernel.row_stores + kernel.outer_stores]
    for root in roots:
        for node in walk(root):
            if isinstance(node, Load):
                indices += [node.index, *(guard.index for guard in node.guards)]
    return any(is_far(index, sizes) for index in indices)


def is_far(index: Index, sizes: Sequence[int]) -> bool:
    """Whether an index over axes of such sizes needs more than 31 bits."""
    terms = [index.offset, *(s * (size - 1) for s, size in zip(index.strides, sizes, strict=False))]
    # Partial sums of an index may pass its ends: bound those of either sign.
    return max(sum(t for t in terms if t > 0), -sum(t for t in terms if t < 0)) >= 2**31 - 2**10
