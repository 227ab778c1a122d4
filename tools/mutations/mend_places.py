"""Rules for what is left out, read from elsewhere, or not added: loops, indices, operands, signs."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from mutations.mend_text import (
    Edits,
    factors_of,
    functions_of,
    nodes_in,
    operands_of,
    places_of,
    unused_of,
    values_of,
)


def loops(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """All of a range, a tile, an index: without what leaves something out."""
    for node in nodes_in(tree, ast.BinOp):
        words = ast.unparse(node)
        found = re.fullmatch(r"(.+?) // (\w+) \* \2", words)
        if found:
            yield node, found.group(1)
    for node in nodes_in(tree, ast.If):
        if not node.orelse and isinstance(node.body[-1], ast.Continue):
            yield node, ""
    for node in nodes_in(tree, ast.Assign):
        target, value = ast.unparse(node.targets[0]), ast.unparse(node.value)
        if re.search(r"\[\w+ \+ 1:", target) and value.endswith("[1:]"):
            target = re.sub(r"(\[\w+) \+ 1:", r"\1:", target)
            yield node, f"{target} = {value.removesuffix('[1:]')}"
    for node in nodes_in(tree, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        if name == "range" and len(node.args) == 2 and ast.unparse(node.args[0]) == "1":
            yield node, f"range({ast.unparse(node.args[1])})"
        if name in ("range", "min"):
            for argument in node.args:
                if isinstance(argument, ast.BinOp) and isinstance(argument.op, ast.Sub) \
                        and ast.unparse(argument.right) == "1":
                    yield argument, ast.unparse(argument.left)
        if name.startswith("empty"):
            yield node, ast.unparse(node).replace("empty", "zeros", 1)
    yield from indices(tree, finding)
    yield from accumulations(tree, finding)


def indices(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Indices without what is added to them, and without a remainder."""
    for node in nodes_in(tree, ast.Subscript):
        without = re.sub(r"(\w) [+-] \d+(?=[:,\]])", r"\1", ast.unparse(node))
        if without != ast.unparse(node) and isinstance(node.ctx, ast.Load):
            yield node, without
    for node in nodes_in(tree, ast.Subscript):
        where = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for index in where:
            parts = [index.lower, index.upper] if isinstance(index, ast.Slice) else [index]
            for part in parts:
                if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Add, ast.Sub, ast.Mod)) \
                        and isinstance(part.right, ast.Constant):
                    yield part, ast.unparse(part.left)
    for node in nodes_in(tree, ast.BinOp):
        if isinstance(node.op, ast.Mod) and isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.Add):
            yield node, ast.unparse(node.left.left)
    for node in nodes_in(tree, ast.Call):
        name = ast.unparse(node.func)
        if name.endswith(("roll", "flip")) and node.args:
            yield node, ast.unparse(node.args[0] if name.startswith("torch.") else node.func.value)
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("t", "transpose", "mT"):
            yield node, ast.unparse(node.func.value)
    for value in nodes_in(tree, ast.Attribute):
        if value.attr == "weight" and isinstance(value.ctx, ast.Load):
            yield value, f"{ast.unparse(value)}.t()"


def accumulations(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """What a loop assigns is added to what was there; what it carries is handed on."""
    for loop in nodes_in(tree, ast.For):
        before = {ast.unparse(t) for f in functions_of(tree) for s in f.body if isinstance(s, ast.Assign)
                  for t in s.targets}
        for node in ast.walk(loop):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = ast.unparse(node.targets[0]), ast.unparse(node.value)
                if target in before or isinstance(node.targets[0], ast.Subscript):
                    yield node.value, f"{target} + {value}"


def empty(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Memory that is set to zero where it is made."""
    for node in nodes_in(tree, ast.Call):
        if ast.unparse(node.func).rpartition(".")[2] in ("empty", "empty_like"):
            yield node, ast.unparse(node).replace("empty", "zeros", 1)
    yield from loops(tree, finding)


def exclusive(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """A scan with its own element."""
    for node in nodes_in(tree, ast.BinOp):
        if isinstance(node.op, ast.Sub):
            yield node, ast.unparse(node.left)


# ---- operands


def additions(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """What is missing is added, at each place."""
    yield from _with_operand(tree, finding, "{0} + {1}")


def factors(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """What is missing is multiplied by, at each place."""
    yield from _with_operand(tree, finding, "({0}) * {1}")


def affine(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """A norm's weight and bias, both."""
    weights = [p for p in operands_of(tree, finding) if "weight" in p]
    for weight in weights:
        bias = weight.replace("weight", "bias")
        for value in [*factors_of(tree), *values_of(tree)]:
            yield value, f"(({ast.unparse(value)}) * {weight} + {bias})"


def subtractions(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """What is there and not read is subtracted; or a mean of the same values."""
    for name in unused_of(tree):
        for node in places_of(tree):
            yield node, f"({ast.unparse(node)} - {name})"
    for call in nodes_in(tree, ast.Call):
        name = ast.unparse(call.func).rpartition(".")[2]
        if name in ("square", "exp") and isinstance(call.func, ast.Attribute):
            inner = call.func.value
            words = ast.unparse(inner)
            yield inner, f"({words} - {words}.mean(dim=-1, keepdim=True))"


def _with_operand(tree: ast.Module, finding: Mapping[str, Any], form: str) -> Edits:
    for operand in operands_of(tree, finding)[:3]:
        for shape in ("", "[:, None, None]", "[:, None]"):
            for value in places_of(tree):
                words = ast.unparse(value)
                if operand not in words:
                    if not shape and isinstance(value, ast.Subscript):  # the same part of both
                        yield value, form.format(words, f"{operand}[{ast.unparse(value.slice)}]")
                    yield value, form.format(words, f"{operand}{shape}")


def signs(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Plus for minus, and minus for plus; a negation taken away."""
    for node in nodes_in(tree, ast.UnaryOp):
        if isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
            yield node, ast.unparse(node.operand)
    for node in nodes_in(tree, ast.BinOp):
        left, right = ast.unparse(node.left), ast.unparse(node.right)
        if isinstance(node.op, ast.Sub):
            yield node, f"({left}) + {right}"
        if isinstance(node.op, ast.Add) and not isinstance(node.right, ast.Constant):
            yield node, f"({left}) - ({right})"
    for value in values_of(tree):
        yield value, f"-({ast.unparse(value)})"


def exchanges(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Operands in the other order."""
    for node in nodes_in(tree, ast.BinOp):
        if isinstance(node.op, (ast.Sub, ast.Div, ast.MatMult)):
            sign = {"Sub": "-", "Div": "/", "MatMult": "@"}[type(node.op).__name__]
            yield node, f"({ast.unparse(node.right)}) {sign} ({ast.unparse(node.left)})"
    for node in nodes_in(tree, ast.Call):
        if len(node.args) >= 2:
            arguments = [ast.unparse(a) for a in node.args] + [ast.unparse(k) for k in node.keywords]
            for i in range(len(node.args) - 1):
                other = list(arguments)
                other[i], other[i + 1] = other[i + 1], other[i]
                yield node, f"{ast.unparse(node.func)}({', '.join(other)})"
