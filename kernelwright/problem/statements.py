"""A module's text as top-level statements that can be kept or left out one by one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kernelwright.problem.names import Names, names_of, statements_of

# Calls whose result is often thrown away into a name: what they set matters, not what they return.
_SETS_STATE = re.compile(r"^(set_|enable|disable|use_|manual_)|seed$")
# Calls for their own sake that set something in a library.
_SETS = re.compile(
    r"^_*(set|enable|disable|use|manual|register|load|init|setup|config|basic|filter|simple|ignore|append|insert|extend|"
    r"update|add|define|impl|patch|install|allow|put|push|chdir)|seed$", re.IGNORECASE)


@dataclass(eq=False, slots=True)
class Unit:
    """Top-level statements that share a line, with the comments above them: the smallest piece kept."""

    first: int
    last: int
    nodes: list[ast.stmt]
    names: Names

    @property
    def imports(self) -> list[ast.Import | ast.ImportFrom]:
        """The import statements among them."""
        return [node for node in self.nodes if isinstance(node, (ast.Import, ast.ImportFrom))]

    @property
    def is_import(self) -> bool:
        """Whether nothing but import statements stands here."""
        return all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in self.nodes)

    @property
    def is_future(self) -> bool:
        """Whether this is a ``from __future__`` import."""
        return self.is_import and getattr(self.nodes[0], "module", None) == "__future__"


def cut(body: list[ast.stmt], lines: list[str]) -> list[Unit]:
    """The units of a module whose text has these ``lines``, in order; its docstring is left out."""
    units: list[Unit] = []
    for position, node in enumerate(body):
        if position == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # the module's docstring
        first = min([node.lineno, *(x.lineno for x in getattr(node, "decorator_list", []))])
        names = names_of(node)
        if units and first <= units[-1].last:
            before = units[-1]
            before.last = node.end_lineno or first
            before.nodes.append(node)
            for own, new in ((before.names.bound, names.bound), (before.names.used, names.used),
                             (before.names.eager, names.eager)):
                own |= new
            before.names.nodes += names.nodes
        else:
            units.append(Unit(first, node.end_lineno or first, [node], names))
    end = 0
    for unit in units:
        while unit.first - 1 > end and re.match(r"#(?!!|.*coding[:=])", lines[unit.first - 2]):
            unit.first -= 1
        while unit.last < len(lines) and re.match(r"[ \t]+#", lines[unit.last]):
            unit.last += 1
        end = unit.last
    return units


def is_main_guard(node: ast.stmt) -> bool:
    """Whether the statement is ``if __name__ == "__main__":``."""
    return isinstance(node, ast.If) and any(
        isinstance(x, ast.Name) and x.id == "__name__" for x in ast.walk(node.test))


def expressions(statement: ast.stmt) -> Iterable[ast.AST]:
    """The nodes of a statement's own expressions, those of the statements inside it left out."""
    waiting = [x for x in ast.iter_child_nodes(statement) if isinstance(x, (ast.expr, ast.withitem))]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.Lambda):
            waiting += list(ast.iter_child_nodes(node))


class Effect(NamedTuple):
    """That a statement may change an object besides binding names.

    root: the name that it reaches the object by. is_direct_call: whether that is called itself (``setup()``), rather
    than reached into (``torch.backends.cudnn.benchmark = True``, ``SIZES.append(3)``). sets: whether it assigns, or
    calls what by its name sets something (``warnings.simplefilter("ignore")``): what else libraries are called for
    (``json.dump``, ``shutil.rmtree``) is no part of a model, and may do harm when it is done again.
    """

    root: str
    is_direct_call: bool
    sets: bool


def effects(nodes: list[ast.stmt]) -> Iterable[Effect]:
    """What the statements may change."""
    for node in statements_of(nodes):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            touched = [node.value.func]
        elif isinstance(node, (ast.Assign, ast.Delete)):
            touched = [x for x in node.targets if isinstance(x, (ast.Attribute, ast.Subscript))]
            value = node.value if isinstance(node, ast.Assign) else None
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and _SETS_STATE.search(
                    value.func.attr):
                touched.append(value.func)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            touched = [node.target] if not isinstance(node.target, ast.Name) else []
        else:
            continue
        for expression in touched:
            is_direct_call = isinstance(expression, ast.Name)
            root: ast.AST = expression
            while isinstance(root, (ast.Attribute, ast.Subscript, ast.Call)):
                is_direct_call |= isinstance(root, ast.Call) and isinstance(root.func, ast.Name)
                root = root.func if isinstance(root, ast.Call) else root.value
            if isinstance(root, ast.Name):
                called = isinstance(node, ast.Expr) and isinstance(expression, ast.Attribute)
                yield Effect(root.id, is_direct_call, not called or bool(_SETS.search(expression.attr)))
