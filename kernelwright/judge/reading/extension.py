"""Reading how a candidate builds its extension: functions that do not exist or are never used."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernelwright.judge.reading.ctokens import tokens_of
from kernelwright.judge.reading.source import Source, string_of
from kernelwright.judge.records import Finding


def missing_functions(source: Source) -> Iterator[Finding]:
    """Functions named to load_inline that no text defines or that main.cpp cannot see; kernels' modules never
    called."""
    for node in ast.walk(source.tree):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "load_inline"):
            continue
        given = {k.arg: k.value for k in node.keywords}
        named = _function_names(source, given.get("functions"))
        texts = {key: _texts(source, given.get(key)) for key in ("cpp_sources", "cuda_sources")}
        if named is None or any(text is None for text in texts.values()):
            continue
        defined = {f.name for k in source.kernels for f in k.functions}
        from_cpp, from_cuda = texts["cpp_sources"] or "", texts["cuda_sources"] or ""
        for name in named:
            if name not in defined and not _in_directive(from_cpp + from_cuda, name):
                yield source.hint("missing-function", f"load_inline is to export {name}, which the sources never "
                                                      "define.",
                                  node.lineno, f"Define {name} in the sources, or take it out of functions=[...].",
                                  function=name)
            elif from_cuda and not _mentions(from_cpp, name):
                yield source.hint("missing-declaration", f"load_inline exports {name} from cuda_sources, but "
                                                         "cpp_sources, "
                                  "which binds it, never declares it.", node.lineno,
                                  f"Put the declaration of {name}(...) into cpp_sources.", function=name)
        yield from _unused_module(source, node)


def _in_directive(text: str, name: str) -> bool:
    """Whether a macro may define a function."""
    return any(t.kind == "directive" and name in t.text for t in tokens_of(text))


def _mentions(text: str, name: str) -> bool:
    return any(t.text == name for t in tokens_of(text)) or _in_directive(text, name)


def _resolve(source: Source, node: ast.expr | None) -> ast.expr | None:
    """What a module-level name was given once, else the expression itself."""
    if isinstance(node, ast.Name):
        values = [s.value for s in ast.walk(source.tree) if isinstance(s, ast.Assign)
                  and any(isinstance(t, ast.Name) and t.id == node.id for t in s.targets)]
        return values[0] if len(values) == 1 else None
    return node


def _texts(source: Source, node: ast.expr | None) -> str | None:
    """The text of a source or a list of sources; None where it is not known from reading. "" for no argument."""
    if node is None:
        return ""
    value = _resolve(source, node)
    if isinstance(value, (ast.List, ast.Tuple)):
        parts = [_texts(source, item) for item in value.elts]
        return None if any(p is None for p in parts) else "\n".join(p for p in parts if p is not None)
    text = string_of(value) if value is not None else None
    return text[0] if text and text[1] else None


def _function_names(source: Source, node: ast.expr | None) -> list[str] | None:
    value = _resolve(source, node)
    items: list[ast.expr | None] = [value]
    if isinstance(value, (ast.List, ast.Tuple)):
        items = [*value.elts]
    elif isinstance(value, ast.Dict):
        items = value.keys
    names = [i.value for i in items if isinstance(i, ast.Constant) and isinstance(i.value, str)]
    return names if names and len(names) == len(items) else None


def _unused_module(source: Source, call: ast.Call) -> Iterator[Finding]:
    """The extension is bound to a name that nothing reads afterwards."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and node.value is call and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name):
                used = any(isinstance(n, ast.Name) and n.id == target.id and isinstance(n.ctx, ast.Load)
                           for n in ast.walk(source.tree))
            elif isinstance(target, ast.Attribute):
                used = any(isinstance(n, ast.Attribute) and n.attr == target.attr and isinstance(n.ctx, ast.Load)
                           for n in ast.walk(source.tree))
            else:
                continue
            if not used:
                yield source.hint("dead-kernel", f"The extension built on line {call.lineno} ({ast.unparse(target)}) "
                                                 "is never "
                                  "used: forward runs none of its kernels.", call.lineno,
                                  "Call its functions in forward, or remove it.")
