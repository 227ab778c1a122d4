"""Which module-level names a statement binds and uses, by Python's scoping rules."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(slots=True)
class Names:
    """The module-level names of one statement."""

    bound: set[str] = field(default_factory=set)
    """Names it binds at module level."""
    used: set[str] = field(default_factory=set)
    """Names it uses that no inner scope binds; builtins among them. Names in string annotations count."""
    eager: set[str] = field(default_factory=set)
    """Those used as soon as the statement runs, not only when a function in it is called."""
    nodes: list[tuple[ast.Name | ast.Global, ast.JoinedStr | None]] = field(default_factory=list)
    """Every occurrence of such a name, with the outermost f-string around it."""


@dataclass(slots=True)
class _Scope:
    bound: set[str]
    is_class: bool = False
    declared_global: set[str] = field(default_factory=set)


def names_of(statement: ast.stmt) -> Names:
    """The names of one top-level statement of a module."""
    visitor = _Visitor()
    visitor.names.bound = bound_names([statement])
    visitor.visit(statement)
    return visitor.names


def statements_of(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a scope, those in its ifs, loops, withs and tries included, inner scopes not."""
    for statement in body:
        yield statement
        if not isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
            for child in ast.iter_child_nodes(statement):
                if isinstance(child, ast.stmt):
                    yield from statements_of([child])
                elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
                    yield from statements_of(child.body)


def bound_names(body: Iterable[ast.stmt]) -> set[str]:
    """Names bound in the scope whose body this is: assigned, defined, imported, caught or matched."""
    found: set[str] = set()
    for statement in body:
        _collect_bound(statement, found)
    return found


def _collect_bound(node: ast.AST, found: set[str]) -> None:
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        found.add(node.name)
        return
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, _COMPREHENSIONS):
        # Only a walrus inside a comprehension binds outside of it.
        found.update(x.target.id for x in ast.walk(node) if isinstance(x, ast.NamedExpr))
        return
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        found.add(node.id)
    elif isinstance(node, ast.alias):
        found.add(node.asname or node.name.split(".")[0])
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        found.add(node.name)
    elif isinstance(node, ast.MatchMapping) and node.rest:
        found.add(node.rest)
    for child in ast.iter_child_nodes(node):
        _collect_bound(child, found)


class _Visitor(ast.NodeVisitor):
    def __init__(self) -> None:
        self.names = Names()
        self.scopes: list[_Scope] = []
        self.lazy = 0
        self.joined: ast.JoinedStr | None = None

    def _is_global(self, name: str) -> bool:
        for distance, scope in enumerate(reversed(self.scopes)):
            if scope.is_class and distance:
                continue  # a class body's names are not seen by the functions in it
            if name in scope.declared_global:
                return True
            if name in scope.bound:
                return False
        return True

    def visit_Name(self, node: ast.Name) -> None:
        if not self._is_global(node.id):
            # A class body reads the module's name before it binds its own: `scale = scale`.
            if self.scopes[-1].is_class and isinstance(node.ctx, ast.Load):
                self._use(node.id)
            return
        self.names.nodes.append((node, self.joined))
        if self.scopes or isinstance(node.ctx, ast.Load):
            self._use(node.id)

    def _use(self, name: str) -> None:
        self.names.used.add(name)
        if not self.lazy:
            self.names.eager.add(name)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.generic_visit(node)
        if isinstance(node.target, ast.Name) and self._is_global(node.target.id):
            self._use(node.target.id)

    def visit_Global(self, node: ast.Global) -> None:
        self.names.nodes.append((node, None))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        outer, self.joined = self.joined, self.joined or node
        self.generic_visit(node)
        self.joined = outer

    def visit_Constant(self, node: ast.Constant) -> None:
        return

    def _annotation(self, node: ast.expr | None) -> None:
        if node is None:
            return
        self.visit(node)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                try:
                    tree = ast.parse(inner.value, mode="eval")
                except SyntaxError:
                    continue
                self.names.used.update(x.id for x in ast.walk(tree) if isinstance(x, ast.Name))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        self._annotation(node.annotation)
        if node.value is not None:
            self.visit(node.value)

    def _type_parameters(self, node: ast.AST) -> int:
        """Opens a scope for ``def f[T]`` and ``class C[T]``; how many scopes were opened."""
        parameters = getattr(node, "type_params", [])
        if not parameters:
            return 0
        self.scopes.append(_Scope({parameter.name for parameter in parameters}))
        for parameter in parameters:
            self.generic_visit(parameter)
        return 1

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
                  body: list[ast.AST]) -> None:
        opened = self._type_parameters(node)
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [x for x in (arguments.vararg, arguments.kwarg) if x]
        for default in [*arguments.defaults, *(x for x in arguments.kw_defaults if x)]:
            self.visit(default)
        for argument in every:
            self._annotation(argument.annotation)
        self._annotation(getattr(node, "returns", None))
        bound = {argument.arg for argument in every}
        declared: set[str] = set()
        statements = [x for x in body if isinstance(x, ast.stmt)]
        bound |= bound_names(statements)
        for inner in statements_of(statements):
            if isinstance(inner, ast.Global):
                declared.update(inner.names)
            elif isinstance(inner, ast.Nonlocal):
                bound -= set(inner.names)
        self.scopes.append(_Scope(bound - declared, declared_global=declared))
        self.lazy += 1
        for inner in body:
            self.visit(inner)
        self.lazy -= 1
        del self.scopes[len(self.scopes) - 1 - opened:]

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._function(node, list(node.body))

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node, [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        opened = self._type_parameters(node)
        for base in [*node.bases, *node.keywords]:
            self.visit(base)
        self.scopes.append(_Scope(bound_names(node.body), is_class=True))
        for inner in node.body:
            self.visit(inner)
        del self.scopes[len(self.scopes) - 1 - opened:]

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        first = node.generators[0]
        self.visit(first.iter)  # evaluated in the enclosing scope
        targets: set[str] = set()
        for generator in node.generators:
            _collect_bound(generator.target, targets)
        self.scopes.append(_Scope(targets))
        for generator in node.generators:
            if generator is not first:
                self.visit(generator.iter)
            for inner in [generator.target, *generator.ifs]:
                self.visit(inner)
        for inner in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self.visit(inner)
        self.scopes.pop()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension
