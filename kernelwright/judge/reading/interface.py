"""Reading how ModelNew is called: a second definition, and arguments that the problem does not give."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernelwright.judge.reading.source import Source
from kernelwright.judge.records import Finding


def read_interface(source: Source) -> Iterator[Finding]:
    """Findings on the class that is judged, beside the model's."""
    found = [node for node in source.tree.body if isinstance(node, ast.ClassDef) and node.name == "ModelNew"]
    if len(found) > 1:
        first, last = found[0].lineno, found[-1].lineno
        yield source.hint("second-class", f"ModelNew is defined on line {first} and again on line {last}: the last "
                          "definition counts.", last, "Keep the one that is meant.", first=first)
    model = [node for node in source.problem.body if isinstance(node, ast.ClassDef) and node.name == "Model"] \
        if source.problem else []
    if found and model:
        yield from _signatures(source, found[-1], model[-1])


def _signatures(source: Source, candidate: ast.ClassDef, model: ast.ClassDef) -> Iterator[Finding]:
    """Methods that cannot take as many arguments as the model's take."""
    for name in ("__init__", "forward"):
        own, wanted = _method(candidate, name), _method(model, name)
        if own is None or wanted is None:
            continue
        least, most = _counts(own)
        given_least, given_most = _counts(wanted)
        if most < given_least or least > given_most:
            yield source.hint("signature", f"{name} takes ({_arguments(own)}), the model's takes "
                              f"({_arguments(wanted)}).", own.lineno,
                              f"Take what the model takes: def {name}(self, {_arguments(wanted)}).", method=name)


def _method(kind: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((s for s in kind.body if isinstance(s, ast.FunctionDef) and s.name == name), None)


def _counts(method: ast.FunctionDef) -> tuple[float, float]:
    """The fewest and the most positional arguments beside self."""
    given = method.args
    names = len(given.posonlyargs) + len(given.args) - 1
    return names - len(given.defaults), float("inf") if given.vararg else names


def _arguments(method: ast.FunctionDef) -> str:
    return ast.unparse(method.args).partition(",")[2].strip()


def set_in_model(problem: ast.Module | None, name: str) -> str | None:
    """The statement by which the problem's file sets an attribute, if one does."""
    for node in ast.walk(problem) if problem else ():
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Attribute) and t.attr == name for t in node.targets):
            return ast.unparse(node)
    return None
