"""Reading the Python of a candidate: attributes that nothing sets, names that nothing defines, bodies without work."""

from __future__ import annotations

import ast
import builtins
import difflib
from collections.abc import Iterator

from torch import nn

from kernelwright.judge.reading.interface import set_in_model
from kernelwright.judge.reading.source import Source
from kernelwright.judge.records import Finding

_MODULE_ATTRIBUTES = frozenset(dir(nn.Module())) | {"forward"}
_REGISTER = {"register_buffer", "register_parameter", "add_module", "register_module"}
#: Functions to which ``self`` may be given without their setting anything on it.
_HARMLESS = {"super", "isinstance", "id", "type", "repr", "print", "hasattr", "getattr", "setattr", "delattr", "len",
             "str"}
_FILE_NAMES = {"__file__", "__name__", "__doc__", "__spec__", "__path__", "__loader__", "__package__", "__builtins__",
               "__annotations__", "__class__", "__debug__"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def read_python(source: Source) -> Iterator[Finding]:
    """Findings on the Python text."""
    yield from missing_attributes(source)
    yield from undefined_names(source)
    yield from empty_forward(source)
    yield from exponentials(source)


def candidate_class(source: Source) -> ast.ClassDef | None:
    """The class that ModelNew is bound to at module level, as far as the text says it plainly."""
    classes = {node.name: node for node in source.tree.body if isinstance(node, ast.ClassDef)}  # the last one counts
    alias = {t.id: node.value.id for node in source.tree.body if isinstance(node, ast.Assign)
             and isinstance(node.value, ast.Name) for t in node.targets if isinstance(t, ast.Name)}
    return classes.get("ModelNew") or classes.get(alias.get("ModelNew", ""))


# ---- attributes


def missing_attributes(source: Source) -> Iterator[Finding]:
    """``self.x`` that forward, or what it calls on self, reads and no method sets. Silent where the text
    leaves doubt."""
    kind = candidate_class(source)
    family = _family(source, kind) if kind else None
    if kind is None or family is None:
        return
    set_names: set[str] = set(_MODULE_ATTRIBUTES)
    methods: dict[str, _Function] = {}
    for owner in family:
        for statement in owner.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                methods.setdefault(statement.name, statement)
            set_names |= _bound_in_class(statement)
    if "__getattr__" in methods or "__getattribute__" in methods:
        return
    asked: set[str] = set()
    for owner in family:
        for statement in owner.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and _receiver(statement):
                found = _sets(statement, _receiver(statement))
                if found is None:
                    return
                set_names |= found[0]
                asked |= found[1]
    reported: set[str] = set()
    for method, reached in _reached(methods):
        for node in ast.walk(method):
            if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)):
                continue
            if isinstance(node.value, ast.Name) and node.value.id == _receiver(method) and \
                    node.attr not in set_names | asked | reported:
                reported.add(node.attr)
                yield _missing_attribute(source, node, reached, set_names - _MODULE_ATTRIBUTES)


def _missing_attribute(source: Source, node: ast.Attribute, reached: str, set_names: set[str]) -> Finding:
    original = set_in_model(source.problem, node.attr)
    meant = close_name(node.attr, set_names)
    fix = (f"Create it in __init__ as the model does: {original}." if original else
           f"Create it in __init__ (self.{node.attr} = ...), or do not read it" + (
               f" (is self.{meant} meant?)." if meant else "."))
    return source.hint("missing-attribute", f"{reached} reads self.{node.attr} on line {node.lineno}, and no method "
                       "ever sets it.", node.lineno, fix, attribute=node.attr)


def _family(source: Source, kind: ast.ClassDef) -> list[ast.ClassDef] | None:
    """A class with its bases of the same file, or None where a base is not known."""
    classes = {node.name: node for node in source.tree.body if isinstance(node, ast.ClassDef)}
    family: list[ast.ClassDef] = []
    waiting = [kind]
    while waiting:
        node = waiting.pop()
        if node in family:
            continue
        family.append(node)
        if node.keywords or node.decorator_list:
            return None
        for base in node.bases:
            name = ast.unparse(base)
            if name in classes:
                waiting.append(classes[name])
            elif name not in ("nn.Module", "torch.nn.Module", "Module", "object"):
                return None
    return family


def _bound_in_class(statement: ast.stmt) -> set[str]:
    names = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} if not \
        isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) else {statement.name}
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return set()
    return names


def _receiver(method: _Function) -> str:
    if any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in method.decorator_list):
        return ""
    arguments = [*method.args.posonlyargs, *method.args.args]
    return arguments[0].arg if arguments else ""


def _sets(method: _Function, me: str) -> tuple[set[str], set[str]] | None:
    """Names that a method sets on its object, and those it asks about; None where it may set what is not seen."""
    names: set[str] = set()
    asked: set[str] = set()
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == me:
            if isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            if node.attr == "__dict__":
                return None
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == me:
            return None
        if not isinstance(node, ast.Call):
            continue
        first = node.args[0] if node.args else None
        given = any(isinstance(a, ast.Name) and a.id == me for a in [*node.args, *(k.value for k in node.keywords)])
        name = _last(node)
        if name in _REGISTER:
            if not (isinstance(first, ast.Constant) and isinstance(first.value, str)):
                return None
            names.add(first.value)
        elif name in ("setattr", "hasattr", "getattr") and given:
            key = node.args[1] if len(node.args) > 1 else None
            if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
                if name == "setattr":
                    return None
                continue
            (names if name == "setattr" else asked).add(key.value)
        elif given and name not in _HARMLESS and name != "__init__":
            return None
    return names, asked


def _reached(methods: dict[str, _Function]) -> Iterator[tuple[_Function, str]]:
    """forward and the methods that it calls on self, each with how it is called in words."""
    waiting, seen = [("forward", "forward")], set()
    while waiting:
        name, words = waiting.pop(0)
        if name in seen or name not in methods:
            continue
        seen.add(name)
        method = methods[name]
        yield method, words
        for node in ast.walk(method):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and \
                    node.value.id == _receiver(method) and node.attr in methods:
                waiting.append((node.attr, f"{node.attr} (called by {words.split(' ')[0]})"))


# ---- names


def undefined_names(source: Source) -> Iterator[Finding]:
    """Names that are read somewhere and bound nowhere in the file, at whatever level."""
    bound = set(dir(builtins)) | _FILE_NAMES
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            if any(a.name == "*" for a in node.names):
                return
            bound |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, ast.Name):
            if node.id in ("exec", "globals", "locals", "vars"):
                return
            if not isinstance(node.ctx, ast.Load):
                bound.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            bound.add(node.name or "")
        elif isinstance(node, ast.MatchMapping):
            bound.add(node.rest or "")
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            bound |= set(node.names)
        elif isinstance(node, ast.Try) and any("NameError" in ast.dump(h.type) for h in node.handlers if h.type):
            return
    annotations = {id(n) for node in ast.walk(source.tree) for a in _annotations(node) for n in ast.walk(a)}
    reported: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name) and node.id not in bound | reported and id(node) not in annotations:
            reported.add(node.id)
            meant = close_name(node.id, bound - set(dir(builtins)))
            yield source.hint("undefined-name", f"Line {node.lineno} uses {node.id}, which the file never defines.",
                              node.lineno, f"Define or import {node.id}" + (f" (is {meant} meant?)." if meant else "."),
                              name=node.id)


def close_name(name: str, known: set[str]) -> str | None:
    """The known name that is likely meant, or None."""
    return next(iter(difflib.get_close_matches(name, sorted(known), 1, 0.75)), None)


def _annotations(node: ast.AST) -> list[ast.expr]:
    found = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    return [a for a in found if isinstance(a, ast.expr)]


# ---- bodies


def empty_forward(source: Source) -> Iterator[Finding]:
    """A forward that does nothing: pass, NotImplementedError, or its input as it came."""
    kind = candidate_class(source)
    body_of = kind.body if kind else []
    forward = next((s for s in body_of if isinstance(s, ast.FunctionDef) and s.name == "forward"), None)
    bound = {name for s in kind.body for name in _bound_in_class(s)} if kind else set()
    if kind is not None and "forward" not in bound and _family(source, kind) == [kind]:
        yield source.hint("no-forward", f"Class {kind.name} (line {kind.lineno}) has no method forward.", kind.lineno,
                          "Write forward with the model's arguments.")
    if forward is None:
        return
    body = [s for s in forward.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if all(isinstance(s, ast.Pass) for s in body) or (isinstance(body[0], ast.Raise)
                                                      and "NotImplemented" in ast.dump(body[0])):
        yield source.hint("placeholder", f"forward (line {forward.lineno}) has no body that computes anything.",
                          forward.lineno, "Write what the model's forward computes.")
    elif len(body) == 1 and isinstance(body[0], ast.Return) and isinstance(body[0].value, ast.Name):
        yield source.hint("placeholder", f"forward (line {forward.lineno}) returns its argument {body[0].value.id} as "
                                         "it is.",
                          body[0].lineno, "Write what the model's forward computes.")


# ---- arithmetic in Python


def exponentials(source: Source) -> Iterator[Finding]:
    """``sum(exp(x))`` written with torch calls and without a maximum subtracted."""
    for node in ast.walk(source.tree):
        if not (isinstance(node, ast.Call) and _last(node) == "sum"):
            continue
        inside = node.func.value if isinstance(node.func, ast.Attribute) else None
        if not isinstance(inside, ast.Call):
            inside = node.args[0] if node.args else None
        if isinstance(inside, ast.Call) and _last(inside) == "exp":
            argument = inside.args[0] if inside.args else getattr(inside.func, "value", None)
            if isinstance(argument, ast.Name) and argument.id not in _differences(source.tree):
                yield source.hint("exp-without-maximum", f"Line {node.lineno} adds exp({argument.id}) without "
                                                         "subtracting the "
                                  "maximum first; exp overflows float32 above 88.", node.lineno,
                                  "Subtract the maximum before exp, and add it back after log.")


def _last(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _differences(tree: ast.AST) -> set[str]:
    return {t.id for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp)
            and isinstance(node.value.op, ast.Sub) for t in node.targets if isinstance(t, ast.Name)}
