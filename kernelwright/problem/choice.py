"""Which class of a problem file is the model."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from kernelwright.errors import ModelNotModule, NoModelClass, place
from kernelwright.problem.names import names_of

MODEL = "Model"


def model_class(module: ModuleType, text: str, path: Path, wanted: str | None = None) -> type[nn.Module]:
    """The class named ``wanted``; by default ``Model``, else the only module class of the file that no other one uses.

    Raises NoModelClass (KW106), naming the classes that there are, and ModelNotModule (KW107).
    """
    name = wanted or MODEL
    if hasattr(module, name):
        found = getattr(module, name)
        if not isinstance(found, type) or not issubclass(found, nn.Module):
            raise ModelNotModule(where=place(path, line_of(text, name)), subject=name, found=_label(found),
                                 expected="a class derived from torch.nn.Module")
        return found
    own = {name: kind for name, kind in vars(module).items() if isinstance(kind, type)
           and issubclass(kind, nn.Module) and kind.__module__ == module.__name__ and kind.__name__ == name}
    unused = [] if wanted else [name for name in own if name not in _used_by_others(text, set(own))]
    if len(unused) == 1:
        return own[unused[0]]
    classes = [node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    words = "it defines no class at all" if not classes else \
        "it defines " + ", ".join(classes) + (", none of them a module" if not own else "")
    if len(unused) > 1:
        words += f"; each of {', '.join(unused)} could be meant"
    raise NoModelClass(where=place(path), path=path, name=name, classes=words, example=(unused or [*own, "NAME"])[0])


def _used_by_others(text: str, classes: set[str]) -> set[str]:
    """Those of ``classes`` that another one names, itself or through what it names."""
    uses: dict[str, set[str]] = {}
    for statement in ast.parse(text).body:
        names = names_of(statement)
        for bound in names.bound:
            uses.setdefault(bound, set()).update(names.used)
    found: set[str] = set()
    for name in classes:
        reached, waiting = {name}, [name]
        while waiting:
            more = uses.get(waiting.pop(), set()) - reached
            reached |= more
            waiting += more
        found |= (reached - {name}) & classes
    return found


def line_of(text: str, name: str) -> int:
    """Line of the last top-level statement that binds ``name``, or 0."""
    line = 0
    for node in ast.parse(text).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            bound = {node.name}
        else:
            bound = {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
            bound |= {x.asname or x.name for x in ast.walk(node) if isinstance(x, ast.alias)}
        line = node.lineno if name in bound else line
    return line


def _label(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"an object of type {type(value).__name__}"
