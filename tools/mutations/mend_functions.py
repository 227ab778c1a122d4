"""Rules for functions and numbers: activations, extrema, moments, norms, bounds, axes."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from mutations.mend_text import (
    ACTIVATIONS,
    Edits,
    arguments_of,
    nodes_in,
    number_in,
    parameters_of,
    places_of,
    sign_of,
    unused_of,
    values_of,
)

_MOMENTS = {"mean": "sum", "sum": "mean"}
_EXTREMA = {"amax": "amin", "max": "min", "maximum": "minimum", "cummax": "cummin", "argmax": "argmin",
            "clamp_min": "clamp_max", "nanmax": "nanmin"}
_EXTREMA |= {b: a for a, b in _EXTREMA.items()}
_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE)}
_SIGNS = {"<": ast.Lt, "lt": ast.Lt, "le": ast.LtE, "gt": ast.Gt, "ge": ast.GtE}
#: Functions of torch by the names that findings have for operators.
_APPLIED = {"relu": "torch.relu({})", "sigmoid": "torch.sigmoid({})", "tanh": "torch.tanh({})", "exp": "torch.exp({})",
            "log": "torch.log({})", "sqrt": "torch.sqrt({})", "rsqrt": "torch.rsqrt({})", "abs": "torch.abs({})",
            "neg": "-({})", "square": "({}) * ({})", "gelu": "torch.nn.functional.gelu({})",
            "silu": "torch.nn.functional.silu({})", "mish": "torch.nn.functional.mish({})",
            "softplus": "torch.nn.functional.softplus({})", "reciprocal": "1 / ({})",
            "leaky_relu": "torch.nn.functional.leaky_relu({}, 0.01)", "hardswish": "torch.nn.functional.hardswish({})"}


def constants(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """The number that the finding names in place of the one that it saw; a factor where there is none."""
    evidence = finding["evidence"]
    wanted = number_in(evidence.get("constant"))
    seen = number_in(evidence.get("candidate_constant", evidence.get("candidate")))
    if wanted is None:
        named = re.search(r"(?:use|is|add|by|of) (-?[\d.]+(?:e-?\d+)?)", finding["fix"])
        wanted = number_in(named.group(1)) if named else None
    if wanted is None:
        return
    for node in nodes_in(tree, ast.Constant):
        if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            near = seen is not None and abs(abs(node.value) - abs(seen)) <= 1e-4 * max(abs(seen), 1e-12)
            if near:
                yield node, repr(wanted)
    for value in places_of(tree):
        yield value, f"({ast.unparse(value)}) * {wanted!r}"
    for node in nodes_in(tree, ast.BinOp):
        if isinstance(node.op, ast.Div):
            yield node.right, f"({ast.unparse(node.right)} + {wanted!r})"
    for value in places_of(tree):
        yield value, f"{ast.unparse(value)} + {wanted!r}"


def without_factors(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Products without the number in them."""
    for node in nodes_in(tree, ast.BinOp):
        if isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Constant):
            yield node, ast.unparse(node.left)


def halved(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Numbers by the factor that was seen, and values divided by it."""
    factor = number_in(finding["evidence"].get("factor"))
    if not factor:
        return
    for node in nodes_in(tree, ast.Constant):
        if isinstance(node.value, (int, float)) and not isinstance(node.value, bool) and node.value:
            for value in (node.value / factor, node.value * factor):
                if value != node.value:
                    yield node, repr(int(value) if float(value).is_integer() and isinstance(node.value, int) else value)
    for value in values_of(tree):
        yield value, f"({ast.unparse(value)}) / {factor!r}"


def operators(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """The operator that is named, where another stands or none."""
    named = str(finding["evidence"].get("operator", ""))
    named = re.sub(r"^(?:use|apply|take) (?:the )?", "", named or finding["fix"]).split(" ")[0]
    if named in _SIGNS:
        for node in nodes_in(tree, ast.Compare):
            if len(node.ops) == 1 and not isinstance(node.ops[0], _SIGNS[named]):
                yield node, f"{ast.unparse(node.left)} {sign_of(_SIGNS[named])} {ast.unparse(node.comparators[0])}"
    if named in ("add", "sub", "mul", "div"):
        sign = {"add": "+", "sub": "-", "mul": "*", "div": "/"}[named]
        for node in nodes_in(tree, ast.BinOp):
            if isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
                yield node, f"({ast.unparse(node.left)}) {sign} ({ast.unparse(node.right)})"
        for operand in [*unused_of(tree), *arguments_of(tree)]:
            for value in places_of(tree):
                yield value, f"({ast.unparse(value)}) {sign} {operand}"
    if named in _APPLIED:
        for node in nodes_in(tree, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in ACTIVATIONS and name != named and node.args and not ast.unparse(node.func).startswith("self"):
                yield node, _APPLIED[named].replace("{}", ast.unparse(node.args[0]))
        for value in [*values_of(tree), *(a for c in nodes_in(tree, ast.Call) for a in c.args[:1]),
                      *(s for b in nodes_in(tree, ast.BinOp) for s in (b.left, b.right))]:
            yield value, _APPLIED[named].replace("{}", ast.unparse(value))
    for table in (_EXTREMA, _MOMENTS):
        for node in nodes_in(tree, ast.Attribute):
            if node.attr in table and (not named or table[node.attr] == named or node.attr != named):
                yield node, f"{ast.unparse(node.value)}.{table[node.attr]}"


def comparisons(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Comparisons the other way, and strict where they are not."""
    for node in nodes_in(tree, ast.Compare):
        for other in _COMPARISONS.get(type(node.ops[0]), ()):
            yield node, f"{ast.unparse(node.left)} {sign_of(other)} {ast.unparse(node.comparators[0])}"


def extrema(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """The other extremum, and the other comparison."""
    for node in nodes_in(tree, ast.Attribute):
        if node.attr in _EXTREMA:
            yield node, f"{ast.unparse(node.value)}.{_EXTREMA[node.attr]}"
    yield from comparisons(tree, finding)


def extremum_start(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """An extremum that begins where the finding says."""
    infinite = "torch.inf" if "+infinity" in finding["fix"] else "-torch.inf"
    for node in nodes_in(tree, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        arguments = [ast.unparse(a) for a in node.args]
        named = [ast.unparse(k) for k in node.keywords]
        if name in ("full", "full_like") and len(arguments) == 2:
            yield node, f"{ast.unparse(node.func)}({', '.join([arguments[0], infinite, *named])})"
        if name == "zeros_like":
            yield node, f"torch.full_like({', '.join([*arguments, infinite, *named])})"
        if name == "zeros":
            shape = arguments[0] if len(arguments) == 1 else f"({', '.join(arguments)})"
            yield node, f"torch.full({', '.join([shape, infinite, *named])})"
    yield from moments(tree, finding)


def moments(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """A mean for a sum, and a sum for a mean; divisors of a count."""
    for node in nodes_in(tree, ast.Attribute):
        if node.attr in _MOMENTS:
            yield node, f"{ast.unparse(node.value)}.{_MOMENTS[node.attr]}"
    yield from divisors(tree, finding)


def divisors(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Divisors without what is added to them, by what nothing reads, and by the number that the fix names."""
    for node in nodes_in(tree, ast.BinOp):
        if isinstance(node.op, ast.Div) and isinstance(node.right, ast.BinOp):
            yield node.right, ast.unparse(node.right.left)
        if isinstance(node.op, (ast.Add, ast.Sub)) and isinstance(node.right, ast.Constant) and node.right.value == 1:
            yield node, ast.unparse(node.left)
    named = re.search(r"divide by (\d+)", finding["fix"])
    names = [*unused_of(tree), *([named.group(1)] if named else [])]
    for name in names:
        for value in places_of(tree):
            yield value, f"({ast.unparse(value)}) / {name}"
    for value in values_of(tree):  # by the sum of what is divided
        words = ast.unparse(value)
        if re.fullmatch(r"\w+", words) or words.startswith("torch.exp"):
            yield value, f"{words} / {words}.sum(dim=-1, keepdim=True)"


def normalised(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Divided by its own sum."""
    for value in values_of(tree):
        words = ast.unparse(value)
        for axis in (-1, 1):
            yield value, f"({words}) / ({words}).sum(dim={axis}, keepdim=True)"


def shifted_exponents(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """An exponential of values less their largest."""
    for node in nodes_in(tree, ast.Call):
        if ast.unparse(node.func) == "torch.zeros_like" and node.args and isinstance(node.args[0], ast.Call):
            yield node, ast.unparse(node.args[0])
    for node in nodes_in(tree, ast.Call):
        if ast.unparse(node.func) == "torch.exp" and node.args:
            words = ast.unparse(node.args[0])
            for name in [*unused_of(tree), f"({words}).amax(dim=-1, keepdim=True)",
                         f"({words}).amax(dim=1, keepdim=True)"]:
                yield node.args[0], f"{words} - {name}"


def variances(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """The other divisor of a variance."""
    for node in nodes_in(tree, ast.keyword):
        if node.arg == "correction" and isinstance(node.value, ast.Constant):
            yield node.value, repr(1 - int(node.value.value))
        if node.arg == "unbiased" and isinstance(node.value, ast.Constant):
            yield node.value, repr(not node.value.value)
    for node in nodes_in(tree, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("var", "std") and not any(
                k.arg in ("correction", "unbiased") for k in node.keywords):
            arguments = [ast.unparse(a) for a in node.args] + [ast.unparse(k) for k in node.keywords]
            yield node, f"{ast.unparse(node.func)}({', '.join([*arguments, 'correction=0'])})"
    yield from divisors(tree, finding)


def roots(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """A root where none is."""
    for node in nodes_in(tree, ast.BinOp):
        if isinstance(node.op, ast.Div):
            yield node.right, f"torch.sqrt({ast.unparse(node.right)})"
    for node in nodes_in(tree, ast.Call):
        if ast.unparse(node.func).rpartition(".")[2] == "reciprocal":
            inner = ast.unparse(node.args[0] if node.args else node.func.value)
            yield node, f"torch.rsqrt({inner})"
    for value in [*values_of(tree), *(a for c in nodes_in(tree, ast.Call) for a in c.args[:1])]:
        yield value, f"torch.sqrt({ast.unparse(value)})"


def epsilons(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """A guard under the root, of the size that the module or the finding has."""
    wanted = [p for p in dict.fromkeys(re.sub(r"\.(?:weight|bias)$", ".eps", q) for q in parameters_of(tree))
              if p.endswith(".eps")]
    named = re.search(r"(?:use|add|with) (-?[\d.]+(?:e-?\d+)?)", finding["fix"])
    number = finding["evidence"].get("constant") or (named.group(1) if named else None)
    wanted = [*([repr(number_in(number))] if number_in(number) is not None else []), *wanted, "1e-05"]
    for call in nodes_in(tree, ast.Call):
        name = ast.unparse(call.func).rpartition(".")[2]
        if name in ("sqrt", "rsqrt", "log"):
            inner = call.args[0] if call.args else call.func.value
            bare = inner.left if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add) else inner
            for eps in wanted:
                yield inner, f"{ast.unparse(bare)} + {eps}"
    for node in nodes_in(tree, ast.BinOp):
        if isinstance(node.op, ast.Add) and isinstance(node.left, ast.Call):
            name = ast.unparse(node.left.func).rpartition(".")[2]
            inner = node.left.args[0] if node.left.args else getattr(node.left.func, "value", None)
            if name in ("sqrt", "rsqrt") and inner is not None:
                yield node, f"torch.{name}({ast.unparse(inner)} + {ast.unparse(node.right)})"
    for node in nodes_in(tree, ast.Constant):
        if isinstance(node.value, float) and 0 < node.value < 0.05:
            for eps in wanted:
                yield node, eps
    for value in values_of(tree):
        words = ast.unparse(value)
        if re.search(r"sqrt|norm|\.sum\(", words):
            for eps in wanted[:1]:
                yield value, f"({words}).clamp(min={eps})"
                yield value, f"({words}) + {eps}"


def clamps(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Values bounded where the finding says."""
    above = re.findall(r"from above at (-?[\d.]+(?:e-?\d+)?)", finding["fix"])[:1]
    below = re.findall(r"from below at (-?[\d.]+(?:e-?\d+)?)", finding["fix"])[:1]
    both = [*(f"min={n}" for n in below), *(f"max={n}" for n in above)]
    named = [", ".join(both)] if both else []
    for words in named:
        for value in places_of(tree):
            yield value, f"({ast.unparse(value)}).clamp({words.rstrip('.')})"
    yield from constants(tree, finding)


def axes(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Reductions along the axis that the finding names."""
    named = [int(n) for n in re.findall(r"-?\d+", re.sub(r".*(?:over|axis|axes)", "", finding["fix"]))]
    for node in nodes_in(tree, ast.keyword):
        if node.arg == "dim":
            for axis in [*named, *([tuple(named)] if len(named) > 1 else []), -1, 1, 0, 2, -2]:
                yield node.value, repr(axis)


def masks(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """What is there and not read decides which values are kept."""
    for name in [*unused_of(tree), *arguments_of(tree)]:
        for value in values_of(tree):
            yield value, f"torch.where({name}, {ast.unparse(value)}, 0.0)"
            yield value, f"torch.where({name}, {ast.unparse(value)}, -1e9)"
