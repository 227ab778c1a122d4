"""Rules for what a candidate does beside its result: types, shapes, memory, what it keeps, draws and state."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Mapping
from typing import Any

from mutations.mend_functions import constants, shifted_exponents, variances
from mutations.mend_text import (
    Edits,
    functions_of,
    nodes_in,
    unused_of,
    values_of,
)


def exact(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Without conversions to narrower types, and back from them."""
    narrow = r"\.(?:bfloat16|half)\(\)|\.to\((?:dtype=)?torch\.(?:bfloat16|float16|half)\)"
    for node in [*nodes_in(tree, ast.stmt), *nodes_in(tree, ast.expr)]:
        words = ast.unparse(node)
        if re.search(narrow, words) and not isinstance(node, (ast.FunctionDef, ast.For)):
            yield node, re.sub(rf"(?:{narrow})(?:\.float\(\))?", "", words)


def whole_results(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Results without methods at their end, in the model's shape and order."""
    for statement in nodes_in(tree, ast.Return):
        value = statement.value
        if isinstance(value, ast.Tuple) and len(value.elts) > 1:
            parts = [ast.unparse(e) for e in value.elts]
            yield value, f"({', '.join(reversed(parts))})"
            for k in range(len(parts)):
                yield value, f"({', '.join(parts[:k] + parts[k + 1:])},)" if len(parts) > 2 else parts[1 - k]
        if isinstance(value, ast.Tuple) and len(value.elts) == 1:
            yield value, ast.unparse(value.elts[0])
        if isinstance(value, ast.Dict):
            for entry in value.values:
                yield value, ast.unparse(entry)
    for node in nodes_in(tree, ast.keyword):
        if node.arg == "keepdim" and isinstance(node.value, ast.Constant):
            yield node.value, repr(not node.value.value)
    for node in [*values_of(tree), *nodes_in(tree, ast.Call)]:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in (
                "unsqueeze", "squeeze", "flatten", "double", "float", "half", "to", "int", "long", "clone", "expand"):
            yield node, ast.unparse(node.func.value)
        if isinstance(node, ast.Subscript) and ast.unparse(node.slice) in ("None", "None, ...", "..., None"):
            yield node, ast.unparse(node.value)
    for node in nodes_in(tree, ast.Call):
        words = ast.unparse(node)
        without = re.sub(r",? ?keepdim=True", "", words)
        if without != words:
            yield node, without
        elif ast.unparse(node.func).rpartition(".")[2] in ("sum", "mean", "amax", "amin") and node.args + node.keywords:
            yield node, words[:-1] + ", keepdim=True)"
    for function in functions_of(tree):
        if function.name == "forward" and not any(isinstance(n, ast.Return) for n in ast.walk(function)):
            last = [n for n in ast.walk(function) if isinstance(n, ast.Assign)][-1:]
            yield function, ast.unparse(function) + "".join(
                f"\n    return {ast.unparse(a.targets[0]).partition('[')[0]}" for a in last)


def types(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Results of the type that the finding names."""
    named = re.search(r"torch\.(\w+)", finding["fix"] + " " + finding["sentence"])
    yield from whole_results(tree, finding)
    for statement in nodes_in(tree, ast.Return):
        if statement.value is not None and named and not isinstance(statement.value, ast.Tuple):
            yield statement.value, f"({ast.unparse(statement.value)}).to(torch.{named.group(1)})"


def own_memory(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Work on copies of the inputs, and a result in memory of its own."""
    for function in functions_of(tree):
        if function.name == "forward":
            copied = copy.deepcopy(function)
            copied.body[:0] = ast.parse("\n".join(f"{a.arg} = {a.arg}.clone()" for a in function.args.args[1:])).body
            yield function, ast.unparse(copied)
    for statement in nodes_in(tree, ast.Return):
        if statement.value is not None and not isinstance(statement.value, ast.Tuple):
            yield statement.value, f"({ast.unparse(statement.value)}).clone()"
    for node in nodes_in(tree, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("setdefault", "get") and len(node.args) == 2:
            yield node, ast.unparse(node.args[1])
    for node in nodes_in(tree, ast.Expr):
        if re.search(r"\w_\(", ast.unparse(node.value)):
            yield node, ""
    for node in nodes_in(tree, ast.If):
        if "self." in ast.unparse(node.test):
            yield node, "\n".join(ast.unparse(s) for s in node.body)


def fresh(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Nothing that is kept: what a condition leaves out is computed in every call."""
    for node in nodes_in(tree, ast.If):
        body = "\n".join(ast.unparse(s) for s in node.body)
        if any(isinstance(s, ast.Return) for s in node.body):
            yield node, ""
        yield node, body
        yield node, ""
    for function in functions_of(tree):
        for node in function.body:
            if isinstance(node, ast.Assign) and "self." in ast.unparse(node.targets[0]):
                yield node, ""
    yield from read_again(tree, finding)


def read_again(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Parameters that were copied in the constructor are read where they are used."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("self."):
            found = re.match(r"(self\.[\w.]+?)(?:\.(?:detach|clone|data)(?:\(\))?)+$", ast.unparse(node.value))
            if found:
                kept = ast.unparse(node.targets[0])
                for user in nodes_in(tree, ast.Attribute, ast.Subscript):
                    if ast.unparse(user) == kept:
                        yield user, found.group(1)


def deterministic(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Without draws and seeds."""
    for node in nodes_in(tree, ast.Expr):
        if re.match(r"torch\.(?:rand|manual_seed|seed|bernoulli|randn|randint)", ast.unparse(node.value)):
            yield node, ""
    for node in nodes_in(tree, ast.BinOp):
        if re.search(r"torch\.rand", ast.unparse(node.right)):
            yield node, ast.unparse(node.left)
    for node in nodes_in(tree, ast.If):
        yield node, ""
        yield node, "\n".join(ast.unparse(s) for s in node.body)


def not_swallowed(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """NaN and infinities pass."""
    for node in [*values_of(tree), *nodes_in(tree, ast.Call)]:
        if isinstance(node, ast.Call) and re.search(r"nan_to_num|clamp|nansum|nanmean", ast.unparse(node.func)):
            inner = node.args[0] if ast.unparse(node.func).startswith("torch.") else node.func.value
            yield node, ast.unparse(inner)
    for node in nodes_in(tree, ast.Call):
        if ast.unparse(node.func) == "torch.where" and len(node.args) == 3:
            yield node, ast.unparse(node.args[2])
            yield node, ast.unparse(node.args[1])
    yield from shifted_exponents(tree, finding)


def conditions(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Conditions the other way."""
    for node in nodes_in(tree, ast.If, ast.IfExp):
        test = ast.unparse(node.test)
        yield node.test, test.removeprefix("not ") if test.startswith("not ") else f"not ({test})"


def updates(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """A buffer that is updated as another one of its module is, with what else there is."""
    named = re.search(r"update ([\w.]+)", finding["fix"])
    if not named:
        return
    owner, _, buffer = named.group(1).rpartition(".")
    for node in nodes_in(tree, ast.Expr):
        words = ast.unparse(node)
        found = re.match(rf"self\.{re.escape(owner)}\.(\w+)(.*?\()([\w.]+)(.*)$", words, re.DOTALL)
        if found and found.group(1) != buffer:
            function = next(f for f in functions_of(tree) if node in ast.walk(f))
            stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            for name in sorted(stored, key=lambda n: (n not in buffer, n)):
                yield node, f"self.{owner}.{buffer}{found.group(2)}{name}{found.group(4)}\n{words}"


def states(tree: ast.Module, finding: Mapping[str, Any]) -> Edits:
    """Buffers that move by the share, and to the value, that the finding names."""
    for node in nodes_in(tree, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_") and node.args:
            for name in unused_of(tree):
                yield node.args[0], name
    for node in nodes_in(tree, ast.BinOp):
        if isinstance(node.op, ast.Sub) and ast.unparse(node.left) == "1":
            yield node, ast.unparse(node.right)
    for node in nodes_in(tree, ast.Call):
        for argument in node.args:
            words = ast.unparse(argument)
            if "momentum" in words or re.fullmatch(r"0\.\d+", words):
                yield argument, f"1 - {words}"
    yield from variances(tree, finding)
    yield from constants(tree, finding)
