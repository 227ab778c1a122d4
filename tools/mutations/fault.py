"""One kind of fault, and how it is put into a text: a change of one place in the syntax tree, or of the text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

#: Verdicts on wrong values, whatever inputs or parameters show them.
VALUES = frozenset({"WRONG-NUMERIC", "WRONG-DISTRIBUTION", "WRONG-PARAMETERS", "WRONG-NONFINITE"})

#: Asked for each node of ``forward``: the source that replaces it, or None where there is no such fault.
Change = Callable[[ast.AST], str | None]


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault. ``apply`` yields each text that has it in one place, for a correct text.

    ``verdicts`` and ``kinds`` are what names it rightly: the verdict's code, and the kind of the finding that is the
    verdict's reason; or, for effects of which no finding is made, ``says``: a pattern that the reason contains.
    ``language`` is "python" or "cpp".
    """

    name: str
    words: str
    apply: Callable[[str], Iterator[str]]
    kinds: frozenset[str] = frozenset()
    verdicts: frozenset[str] = VALUES
    language: str = "python"
    says: str = ""


def everywhere(*changes: Change) -> Callable[[str], Iterator[str]]:
    """Texts with one node of ``forward`` replaced, one text for each node and change that fit."""

    def apply(text: str) -> Iterator[str]:
        for change in changes:
            for place, node in enumerate(ast.walk(forward_of(ast.parse(text)))):
                source = change(node)
                if source is not None:
                    yield _replaced(text, place, source)

    return apply


def forward_of(tree: ast.Module) -> ast.FunctionDef:
    """The definition of ``ModelNew.forward``."""
    return _method(tree, "forward")


def _method(tree: ast.Module, name: str) -> ast.FunctionDef:
    model = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "ModelNew")
    return next(n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == name)


def _replaced(text: str, place: int, source: str) -> str:
    tree = ast.parse(text)
    target = list(ast.walk(forward_of(tree)))[place]
    body = ast.parse(source).body
    if isinstance(target, ast.expr):
        assert len(body) == 1 and isinstance(body[0], ast.Expr), f"{source!r} is no expression"
        new: ast.AST | list[ast.stmt] = body[0].value
    else:
        new = body or [ast.Pass()]

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST):
            return new if node is target else self.generic_visit(node)

    return ast.unparse(ast.fix_missing_locations(Replace().visit(tree))) + "\n"


def in_forward(change: Callable[[ast.FunctionDef], bool]) -> Callable[[str], Iterator[str]]:
    """The text with ``forward`` changed in place as a whole, if ``change`` says that it did."""

    def apply(text: str) -> Iterator[str]:
        tree = ast.parse(text)
        if change(forward_of(tree)):
            yield ast.unparse(ast.fix_missing_locations(tree)) + "\n"

    return apply


def constructor_of(tree: ast.Module) -> ast.FunctionDef | None:
    """The definition of ``ModelNew.__init__``, if it has one."""
    try:
        return _method(tree, "__init__")
    except StopIteration:
        return None


def called(node: ast.AST) -> str:
    """The name of the function that a call calls, without what stands before its last dot; else ""."""
    if not isinstance(node, ast.Call):
        return ""
    return ast.unparse(node.func).rpartition(".")[2]


def binary(node: ast.AST, *operators: type[ast.operator]) -> tuple[str, str] | None:
    """The sources of both operands where the node is one of these operators."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, operators):
        return ast.unparse(node.left), ast.unparse(node.right)
    return None


def keyword(node: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument, if it is given."""
    return next((k.value for k in node.keywords if k.arg == name), None)


def with_keyword(node: ast.Call, name: str, source: str) -> str:
    """The call's source with another value of a keyword argument."""
    parts = [ast.unparse(a) for a in node.args]
    parts += [f"{k.arg}={source if k.arg == name else ast.unparse(k.value)}" for k in node.keywords]
    return f"{ast.unparse(node.func)}({', '.join(parts)})"
