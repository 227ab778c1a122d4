"""Faults of operands: biases, weights, factors, signs, their order, residuals, and where parameters are read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from mutations.fault import Fault, binary, called, constructor_of, everywhere, forward_of

_BIASES = ("bias", "beta", "places.weight", "positions")
_WEIGHTS = ("norm.weight", "self.weight", "self.gamma", "importance", "self.mix", "weight")
_INPUTS = ("x", "residual", "others", "rows", "states")
_MISSING = frozenset({"missing-operator", "missing-last-operators"})


def _is_bias(source: str) -> bool:
    return any(word in source for word in _BIASES) and "(" not in source.replace(".view(", "").replace("bias[", "")


def bias_dropped(node: ast.AST) -> str | None:
    found = binary(node, ast.Add)
    return found[0] if found and _is_bias(found[1]) else None


def bias_subtracted(node: ast.AST) -> str | None:
    found = binary(node, ast.Add)
    return f"({found[0]}) - {found[1]}" if found and _is_bias(found[1]) else None


def bias_misplaced(node: ast.AST) -> str | None:
    """The bias of the neighbour."""
    found = binary(node, ast.Add)
    if found is None or not _is_bias(found[1]):
        return None
    source = found[1]
    if source.endswith("[channel]"):
        return f"{found[0]} + {source.removesuffix('[channel]')}[channel - 1]"
    for end in ("bias", "beta"):
        at = source.find(end)
        if at >= 0:
            at += len(end)
            return f"{found[0]} + {source[:at]}.roll(1){source[at:]}"
    return None


def weight_dropped(node: ast.AST) -> str | None:
    found = binary(node, ast.Mult)
    if found and any(found[1].split("[")[0].split(".view")[0].endswith(word) for word in _WEIGHTS):
        return found[0]
    return None


def _constant(source: str) -> bool:
    try:
        float(source)
    except ValueError:
        return source in ("self.cap", "self.temperature", "self.discount", "root", "self.beta", "self.alpha",
                          "self.smoothing")
    return True


def factor_dropped(node: ast.AST) -> str | None:
    found = binary(node, ast.Mult, ast.Div)
    if found is None or any(word in " ".join(found) for word in _COUNTS):
        return None
    if _constant(found[1]):
        return found[0]
    return found[1] if binary(node, ast.Mult) and _constant(found[0]) else None


def factor_doubled(node: ast.AST) -> str | None:
    found = binary(node, ast.Mult)
    if found is None or any(word in " ".join(found) for word in _COUNTS):
        return None
    if _constant(found[1]):
        return f"{found[0]} * ({found[1]} * 2)"
    return f"({found[0]} * 2) * ({found[1]})" if _constant(found[0]) else None


#: Words of index arithmetic: factors there are no factors of values.
_COUNTS = ("step", "padding", "hidden", "start", "spread", "row", "column", "features", "extra")


def sign_flipped(node: ast.AST) -> str | None:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
        return None
    left, right = ast.unparse(node.left), ast.unparse(node.right)
    if any(word in left + right for word in ("step", "padding", "start", "first", "size", "row", "column", "eps",
                                             "1e-", "stop", "hidden", "each", "token", "extra", "channel")):
        return None
    return f"({left}) {'-' if isinstance(node.op, ast.Add) else '+'} ({right})"


def operands_exchanged(node: ast.AST) -> str | None:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Sub, ast.Div)):
        return None
    left, right = ast.unparse(node.left), ast.unparse(node.right)
    if any(word in left + right for word in ("step", "padding", "start", "size", "features", "count", "steps")):
        return None
    return f"({right}) {'-' if isinstance(node.op, ast.Sub) else '/'} ({left})"


def residual_dropped(node: ast.AST) -> str | None:
    found = binary(node, ast.Add)
    if found and re.fullmatch(rf"({'|'.join(_INPUTS)})(\[[\w:, ]*\])?", found[1]):
        return found[0]
    return None


def weight_transposed(node: ast.AST) -> str | None:
    """Square weights only: others do not fit."""
    if isinstance(node, ast.Call) and called(node) == "t" and isinstance(node.func, ast.Attribute):
        return ast.unparse(node.func.value)
    source = ast.unparse(node) if isinstance(node, ast.Subscript) else ""
    if source == "weight[:, :, row, column]":
        return "weight[:, :, column, row]"
    return None


def frozen(text: str) -> Iterator[str]:
    """A parameter is copied when the model is constructed, and the copy is used."""
    names = sorted({ast.unparse(n) for n in ast.walk(forward_of(ast.parse(text))) if isinstance(n, ast.Attribute)
                    and ast.unparse(n).startswith("self.") and ast.unparse(n).endswith(_PARAMETERS)})
    for name in names:
        tree = ast.parse(text)
        constructor = constructor_of(tree)
        if constructor is None:
            continue
        # Not registered: a plain attribute of a plain object, as caches are.
        constructor.body += ast.parse(f"self.__dict__['kept'] = {name}.detach().clone()").body

        _Renamed(name).visit(forward_of(tree))
        yield ast.unparse(ast.fix_missing_locations(tree)) + "\n"


class _Renamed(ast.NodeTransformer):
    """Reads of one attribute become reads of the copy."""

    def __init__(self, name: str) -> None:
        self.name = name

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if ast.unparse(node) == self.name:
            return ast.parse("self.__dict__['kept']").body[0].value
        return self.generic_visit(node)


_PARAMETERS = (".weight", ".bias", ".gamma", ".beta", ".centres", ".importance", ".mix", ".positions")

FAULTS = (
    Fault("bias dropped", "a bias is not added", everywhere(bias_dropped),
          frozenset({"missing-bias", "missing-addend", "parameter-ignored"}) | _MISSING),
    Fault("bias subtracted", "a bias is subtracted", everywhere(bias_subtracted),
          frozenset({"bias-subtracted", "sign", "wrong-operator"})),
    Fault("bias misplaced", "each channel gets its neighbour's bias", everywhere(bias_misplaced),
          frozenset({"bias-index", "bias-wrong-axis"})),
    Fault("weight dropped", "a norm's or a channel's weight is ignored", everywhere(weight_dropped),
          frozenset({"missing-weight", "affine-ignored", "parameter-ignored", "returns-input"}) | _MISSING),
    Fault("factor dropped", "a constant factor is missing", everywhere(factor_dropped),
          frozenset({"loss-formula", "missing-factor", "factor", "wrong-constant"}) | _MISSING),
    Fault("factor doubled", "a constant factor is twice as large", everywhere(factor_doubled),
          frozenset({"applied-twice", "loss-formula", "factor", "wrong-constant"})),
    Fault("sign flipped", "plus for minus, or minus for plus", everywhere(sign_flipped),
          frozenset({"loss-formula", "wrong-operator", "sign", "wrong-constant", "offset", "bias-subtracted"})),
    Fault("operands exchanged", "a - b for b - a, a / b for b / a", everywhere(operands_exchanged),
          frozenset({"loss-formula", "operands-exchanged", "sign"})),
    Fault("residual dropped", "a residual is not added", everywhere(residual_dropped),
          frozenset({"missing-addend"}) | _MISSING),
    Fault("weight transposed", "a square weight is read with its axes exchanged", everywhere(weight_transposed),
          frozenset({"transposed-weight", "transposed"})),
    Fault("parameters frozen", "a parameter is copied at construction", frozen,
          frozenset({"parameters-as-constructed", "parameter-ignored"})),
)
