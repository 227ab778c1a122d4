"""Reading the text of a candidate that is to be mended: values, names that nothing reads, parameters."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Edits = Iterator[tuple[ast.AST, str]]
Rule = Callable[[ast.Module, Mapping[str, Any]], Edits]
ACTIVATIONS = frozenset({"relu", "sigmoid", "tanh", "gelu", "silu", "mish", "softplus", "leaky_relu", "elu", "selu",
                          "hardswish", "hardtanh", "relu6", "exp", "log", "sqrt", "rsqrt", "abs"})


@functools.lru_cache(maxsize=16)
def tree_of(text: str) -> ast.Module:
    """A text as a tree, the same one for all rules: none changes it."""
    return ast.parse(text)


@functools.lru_cache(maxsize=64)
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a tree that nobody changes, in the order of `ast.walk`."""
    return tuple(ast.walk(tree))


def functions_of(tree: ast.Module) -> list[ast.FunctionDef]:
    """What runs in a call: all functions but constructors, ``forward`` last in the file first."""
    return [n for n in nodes_of(tree) if isinstance(n, ast.FunctionDef) and n.name != "__init__"]


def nodes_in(tree: ast.Module, *kinds: type[ast.AST]) -> list[Any]:
    """Nodes of these kinds in what runs, the last ones first."""
    return [n for f in functions_of(tree) for n in nodes_of(f)[::-1] if isinstance(n, kinds)]


def values_of(tree: ast.Module) -> list[ast.expr]:
    """What is returned, stored and assigned, the last first: places at which something may be missing."""
    found = []
    for function in functions_of(tree):
        statements = [n for n in nodes_of(function) if isinstance(n, (ast.Return, ast.Assign, ast.AugAssign))]
        for statement in sorted(statements, key=lambda s: -s.lineno):
            value = statement.value
            if value is None or isinstance(value, ast.Constant) or _is_shape(value):
                continue
            found += [value, *(value.elts if isinstance(value, ast.Tuple) else ())]
    return found


def _is_shape(value: ast.expr) -> bool:
    words = ast.unparse(value)
    made = r".*torch\.(empty|zeros|ones|full)\w*\(.*"
    return bool(re.fullmatch(rf"[\w.]+\.shape(\[[^\]]*\])?|{made}|[\d\w\s//+*-]*", words))


def unused_of(tree: ast.Module) -> list[str]:
    """Names and attributes of the own modules that are there and that nothing reads."""
    found = []
    for function in functions_of(tree):
        stored = {n.id for n in nodes_of(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        stored |= {a.arg for a in function.args.args if a.arg != "self"}
        read = {n.id for n in nodes_of(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        found += sorted(stored - read)
    text = "\n".join(ast.unparse(f) for f in functions_of(tree))
    for path in parameters_of(tree):
        if path not in text:
            found.append(path)
    return found


def parameters_of(tree: ast.Module) -> list[str]:
    """Paths of parameters that the constructor makes, as far as its text says it."""
    found = []
    for node in nodes_of(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            path, value = ast.unparse(node.targets[0]), ast.unparse(node.value)
            if re.match(r"(?:torch\.)?nn\.Parameter\(", value):
                found.append(path)
            elif re.match(r"(?:torch\.)?nn\.\w+\(", value):
                found += [f"{path}.weight", f"{path}.bias"]
    return found


def operands_of(tree: ast.Module, finding: Mapping[str, Any]) -> list[str]:
    """What a finding says is missing: parameters by the words of its fix, else what nothing reads."""
    words = f"{finding['fix']} {finding['sentence']} {finding['evidence'].get('parameter', '')}"
    named = [p for p in parameters_of(tree) if p.removeprefix("self.") in words]
    plain = [p for p in parameters_of(tree) for part in ("weight", "bias") if part in words and p.endswith(f".{part}")]
    unused = unused_of(tree)
    return list(dict.fromkeys([*[u for u in unused if u in named or u in plain or "." not in u], *named, *plain,
                               *unused]))


def factors_of(tree: ast.Module) -> list[ast.expr]:
    """What is multiplied, in arguments of calls, the last first."""
    inside = [a for call in nodes_in(tree, ast.Call) for a in call.args]
    return [a.left for a in inside if isinstance(a, ast.BinOp) and isinstance(a.op, ast.Mult)]


def places_of(tree: ast.Module) -> list[ast.expr]:
    """Values as a whole, then arguments of activations in them, the last first."""
    found = list(values_of(tree))
    for call in nodes_in(tree, ast.Call):
        name = ast.unparse(call.func).rpartition(".")[2]
        if name in ACTIVATIONS and call.args and ast.unparse(call.func).startswith(("torch.", "F.")):
            found.append(call.args[0])
    return found



def number_in(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def arguments_of(tree: ast.Module) -> list[str]:
    return [a.arg for f in functions_of(tree) if f.name == "forward" for a in f.args.args[1:]]


def sign_of(kind: type[ast.cmpop]) -> str:
    return {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}[kind]
