"""Faults of functions: activations, softmax, norms, reductions, comparisons, clamps, padding, and windows."""

from __future__ import annotations

import ast
import re

from mutations.fault import Fault, binary, called, everywhere, in_forward, keyword, with_keyword

_ACTIVATIONS = ("relu", "silu", "gelu", "leaky_relu", "sigmoid", "tanh", "log1p", "abs")
_OTHER = {"torch.relu": "F.gelu", "F.silu": "torch.relu", "F.gelu": "torch.relu", "torch.tanh": "torch.sigmoid",
          "torch.sigmoid": "torch.tanh"}
_MISSING = frozenset({"missing-operator", "missing-last-operators"})
_REDUCTIONS = ("sum", "mean", "amax", "amin", "var")


def activation_dropped(node: ast.AST) -> str | None:
    return ast.unparse(node.args[0]) if called(node) in _ACTIVATIONS and isinstance(node, ast.Call) else None


def activation_replaced(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    name, given = ast.unparse(node.func), ast.unparse(node.args[0]) if node.args else ""
    return f"torch.nn.functional.{_OTHER[name].rpartition('.')[2]}({given})" if name in _OTHER else None


def approximate_gelu(node: ast.AST) -> str | None:
    if ast.unparse(node).startswith("F.gelu(") and isinstance(node, ast.Call):
        return f"F.gelu({ast.unparse(node.args[0])}, approximate='tanh')"
    return None


def leaky_slope(node: ast.AST) -> str | None:
    if called(node) == "leaky_relu" and isinstance(node, ast.Call):
        return f"F.leaky_relu({ast.unparse(node.args[0])}, 0.2)"
    return None


def maximum_not_subtracted(forward: ast.FunctionDef) -> bool:
    """What is subtracted before exp is zero, and so is what is added after the logarithm."""
    found = False
    for node in ast.walk(forward):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "largest" and called(node.value) in (
                "amax", "maximum") and "exp" in ast.unparse(forward):
            node.value = ast.parse(f"torch.zeros_like({ast.unparse(node.value)})").body[0].value
            found = True
    return found


def not_normalised(node: ast.AST) -> str | None:
    found = binary(node, ast.Div)
    return found[0] if found and found[0] == "powers" else None


def mean_for_sum(node: ast.AST) -> str | None:
    if called(node) in ("mean", "sum") and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        other = "sum" if node.func.attr == "mean" else "mean"
        given = ", ".join([*map(ast.unparse, node.args), *(ast.unparse(k) for k in node.keywords)])
        return f"{ast.unparse(node.func.value)}.{other}({given})"
    return None


def divisor_dropped(node: ast.AST) -> str | None:
    found = binary(node, ast.Div)
    if found and found[1] in ("count", "time", "pixels", "features", "(x.shape[2] * x.shape[3])",
                              "x.shape[2] * x.shape[3]"):
        return found[0]
    return None


def divisor_off(node: ast.AST) -> str | None:
    found = binary(node, ast.Div)
    if found and found[1] in ("count", "time", "pixels", "features"):
        return f"{found[0]} / ({found[1]} + 1)"
    return None


def variance_unbiased(node: ast.AST) -> str | None:
    if called(node) == "var" and isinstance(node, ast.Call) and ast.unparse(keyword(node, "correction")) == "0":
        return with_keyword(node, "correction", "1")
    found = binary(node, ast.Div)
    return f"{found[0]} / ({found[1]} - 1)" if found and found[0] == "squares" else None


def eps_dropped(node: ast.AST) -> str | None:
    found = binary(node, ast.Add)
    return found[0] if found and re.search(r"eps$|^1e-", found[1]) else None


def eps_larger(node: ast.AST) -> str | None:
    found = binary(node, ast.Add)
    return f"{found[0]} + 1e-3" if found and re.search(r"eps$|^1e-", found[1]) else None


def eps_outside(node: ast.AST) -> str | None:
    if called(node) in ("rsqrt", "sqrt") and isinstance(node, ast.Call):
        found = binary(node.args[0], ast.Add)
        if found and re.search(r"eps$|^1e-", found[1]):
            root = f"(torch.sqrt({found[0]}) + {found[1]})"
            return root if called(node) == "sqrt" else f"(1.0 / {root})"
    return None


def root_dropped(node: ast.AST) -> str | None:
    if called(node) in ("rsqrt", "sqrt") and isinstance(node, ast.Call):
        given = ast.unparse(node.args[0])
        return f"({given})" if called(node) == "sqrt" else f"(1.0 / ({given}))"
    return None


def mean_kept(node: ast.AST) -> str | None:
    """A norm does not subtract its mean from what it scales."""
    found = binary(node, ast.Sub)
    return found[0] if found and found[1].split(".view")[0] in ("mean", "mean[:, :, 0]") else None


def wrong_axis(node: ast.AST) -> str | None:
    if called(node) not in _REDUCTIONS or not isinstance(node, ast.Call) or keyword(node, "dim") is None:
        return None
    axis = ast.unparse(keyword(node, "dim"))
    other = {"1": "0", "-1": "-2", "0": "1", "2": "1", "(2, 3)": "(1, 3)", "(0, 2, 3)": "(0, 1, 3)",
             "(1, 2, 3)": "(2, 3)"}.get(axis)
    return with_keyword(node, "dim", other) if other else None


def extremum_start(node: ast.AST) -> str | None:
    if called(node) in ("full", "full_like") and "inf" in ast.unparse(node):
        return ast.unparse(node).replace("-torch.inf", "0.0").replace("torch.inf", "0.0")
    return None


def other_extremum(node: ast.AST) -> str | None:
    if called(node) in ("amax", "amin", "maximum", "minimum"):
        name = called(node)
        other = {"amax": "amin", "amin": "amax", "maximum": "minimum", "minimum": "maximum"}[name]
        head, _, tail = ast.unparse(node.func).rpartition(name)  # type: ignore[attr-defined]
        return f"{head}{other}{tail}({ast.unparse(node).partition(ast.unparse(node.func) + '(')[2]}"
    return None


def comparison_loose(node: ast.AST) -> str | None:
    """< for <=, and the like."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return None
    signs = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
    sign = signs.get(type(node.ops[0]))
    return f"{ast.unparse(node.left)} {sign} {ast.unparse(node.comparators[0])}" if sign else None


def comparison_reversed(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return None
    signs = {ast.Lt: ">", ast.Gt: "<"}
    sign = signs.get(type(node.ops[0]))
    return f"{ast.unparse(node.left)} {sign} {ast.unparse(node.comparators[0])}" if sign else None


def mask_dropped(node: ast.AST) -> str | None:
    if called(node) == "where" and isinstance(node, ast.Call) and ("valid" in ast.unparse(node.args[0])
                                                                   or "mask" in ast.unparse(node.args[0])):
        return ast.unparse(node.args[1])
    found = binary(node, ast.Mult)
    return found[0] if found and found[1] == "holds" else None


def clamp_dropped(node: ast.AST) -> str | None:
    if called(node) == "clamp" and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return ast.unparse(node.func.value)
    return None


def clamp_bound(node: ast.AST) -> str | None:
    if called(node) != "clamp" or not isinstance(node, ast.Call):
        return None
    for name in ("max", "min"):
        value = keyword(node, name)
        if value is not None and ast.unparse(value) not in ("0.0",):
            return with_keyword(node, name, f"{float(ast.literal_eval(value)) * 0.75!r}")
    return None


def padding_off(node: ast.AST) -> str | None:
    """The border lies one position too far to one side."""
    if called(node) == "pad" and isinstance(node, ast.Call) and "(padding, padding)" in ast.unparse(node):
        return ast.unparse(node).replace("(padding, padding)", "(padding + 1, padding - 1)")
    if isinstance(node, ast.Assign) and ast.unparse(node.value).endswith("* step - padding"):
        return f"{ast.unparse(node)} + 1"
    if isinstance(node, ast.Subscript) and ast.unparse(node).startswith("whole[:, :, padding"):
        return "whole[:, :, padding - 1:rows - padding - 1, padding:columns - padding]"
    return None


def padding_value(node: ast.AST) -> str | None:
    if called(node) == "pad" and isinstance(node, ast.Call):
        given = ", ".join(map(ast.unparse, node.args))
        if keyword(node, "mode") is not None:
            return f"F.pad({given}, mode='replicate')"
        if keyword(node, "value") is not None:
            return f"F.pad({given}, value=0.0)"
        return f"F.pad({given}, mode='replicate')"
    return None


def window_number(node: ast.AST) -> str | None:
    """One of kernel size, stride, padding, dilation or output padding is ignored."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
        names = [ast.unparse(n) for n in node.targets[0].elts]
        values = [ast.unparse(n) for n in node.value.elts]
        for name, other in (("spread", "1"), ("extra", "0")):
            if name in names:
                values[names.index(name)] = other
                return f"{', '.join(names)} = {', '.join(values)}"
        if "step" in names:
            values[names.index("padding")] = "0"
            return f"{', '.join(names)} = {', '.join(values)}"
    if called(node) == "unfold" and isinstance(node, ast.Call):
        return with_keyword(node, "stride", "1")
    return None


def counts_padding(node: ast.AST) -> str | None:
    if isinstance(node, ast.Assign) and ast.unparse(node) == "count = window.shape[2] * window.shape[3]":
        return "count = size * size"
    return None


def step_order(node: ast.AST) -> str | None:
    """An activation before the bias instead of after it."""
    if called(node) in ("relu", "gelu", "silu", "tanh", "sigmoid") and isinstance(node, ast.Call):
        found = binary(node.args[0], ast.Add)
        if found and "bias" in found[1]:
            return f"{ast.unparse(node.func)}({found[0]}) + {found[1]}"
    return None


FAULTS = (
    Fault("activation dropped", "an activation is not applied", everywhere(activation_dropped),
          frozenset({"loss-formula", "missing-activation", "missing-clamp"}) | _MISSING),
    Fault("activation replaced", "another activation is applied", everywhere(activation_replaced),
          frozenset({"wrong-activation", "negative-part", "wrong-operator"})),
    Fault("activation approximate", "the tanh form of GELU, or another slope",
          everywhere(approximate_gelu, leaky_slope),
          frozenset({"wrong-activation", "negative-part", "wrong-constant", "wrong-option"})),
    Fault("activation before bias", "an activation is applied before the bias is added", everywhere(step_order),
          frozenset({"order-exchanged"})),
    Fault("maximum not subtracted", "exp of values that are not shifted", in_forward(maximum_not_subtracted),
          frozenset({"max-not-subtracted", "overflow"})),
    Fault("softmax not normalised", "the division by the row's sum is missing", everywhere(not_normalised),
          frozenset({"not-normalised", "missing-operator", "factor-per-slice"})),
    Fault("mean for sum", "a mean in place of a sum, or a sum in place of a mean", everywhere(mean_for_sum),
          frozenset({"sum-for-mean", "mean-for-sum", "wrong-divisor", "factor", "wrong-reduction"})),
    Fault("divisor missing", "a sum is not divided by its count", everywhere(divisor_dropped),
          frozenset({"sum-for-mean", "wrong-divisor", "factor", "missing-factor"}) | _MISSING),
    Fault("divisor off by one", "a mean is divided by its count plus one", everywhere(divisor_off),
          frozenset({"wrong-divisor", "factor", "wrong-constant"})),
    Fault("unbiased variance", "a variance is divided by N - 1", everywhere(variance_unbiased),
          frozenset({"biased-variance", "factor", "wrong-divisor"})),
    Fault("epsilon dropped", "a guard against zero is missing", everywhere(eps_dropped),
          frozenset({"eps", "wrong-constant", "missing-operator", "division-by-zero"})),
    Fault("epsilon wrong", "a guard against zero is too large", everywhere(eps_larger),
          frozenset({"eps", "wrong-constant"})),
    Fault("epsilon outside", "epsilon is added to the root", everywhere(eps_outside), frozenset({"eps"})),
    Fault("root dropped", "a square root is missing", everywhere(root_dropped),
          frozenset({"missing-root", "missing-operator", "missing-last-operators"})),
    Fault("mean not subtracted", "a norm does not subtract its mean", everywhere(mean_kept),
          frozenset({"mean-not-subtracted", "missing-operator"})),
    Fault("wrong axis", "a reduction works along another axis", everywhere(wrong_axis), frozenset({"wrong-axis"})),
    Fault("extremum starts at zero", "a maximum or minimum starts at zero", everywhere(extremum_start),
          frozenset({"extremum-start", "cut-off"}), says="starting at 0"),
    Fault("other extremum", "the minimum for the maximum, or the reverse", everywhere(other_extremum),
          frozenset({"other-extremum", "wrong-reduction", "wrong-operator", "infinite", "overflow",
                     "max-not-subtracted"})),
    Fault("comparison not strict", "< for <= and the like", everywhere(comparison_loose),
          frozenset({"wrong-operator", "ties", "comparison", "missing-condition"})),
    Fault("comparison reversed", "< for > and the like", everywhere(comparison_reversed),
          frozenset({"loss-formula", "wrong-operator", "other-extremum", "operands-exchanged", "comparison", "inverted",
                     "infinite"})),
    Fault("mask ignored", "what a mask hides is used", everywhere(mask_dropped),
          frozenset({"missing-condition", "missing-operator", "missing-factor", "inputs-ignored"})),
    Fault("clamp dropped", "values are not clamped", everywhere(clamp_dropped),
          frozenset({"missing-clamp", "missing-activation", "overflow", "division-by-zero"}) | _MISSING),
    Fault("clamp bound wrong", "a clamp ends at another number", everywhere(clamp_bound),
          frozenset({"wrong-constant", "cut-off"})),
    Fault("padding off by one", "the border lies one position to the side", everywhere(padding_off),
          frozenset({"padding", "shifted", "input-index"})),
    Fault("padding value", "the border is filled with other values", everywhere(padding_value),
          frozenset({"padding-value", "padding-mode", "edges"})),
    Fault("window ignored", "padding, stride, dilation or output padding is ignored", everywhere(window_number),
          frozenset({"shape", "padding", "stride", "dilation", "output-padding", "edges"}),
          frozenset({"WRONG-SHAPE", "WRONG-NUMERIC"})),
    Fault("padding counted", "an average counts the padding", everywhere(counts_padding),
          frozenset({"count-include-pad", "edges"})),
)
