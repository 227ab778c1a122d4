"""The original class's source, cut out of the user's file for the emitted file.

The emitted file keeps the original constructor, so that seeds and state_dicts agree, and the original
forward under another name, for the calls that its kernels were not built for.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from torch import nn

from kernelwright.errors import SourceUnavailable, place
from kernelwright.problem.cells import cells_of
from kernelwright.problem.importing import parse_source, read_source
from kernelwright.problem.names import bound_names, statements_of
from kernelwright.problem.outside import is_installed
from kernelwright.problem.record import Problem
from kernelwright.problem.renaming import ORIGINAL_FORWARD, ClassRenaming, Line
from kernelwright.problem.statements import Unit, cut, effects, expressions, is_main_guard

_RESERVED = "_kernelwright"
#: A tensor that is computed from others at each access, as torch.nn.utils.parametrize has it.
_PARAMETRIZED = '''\
@property
def {name}(self):
    return self.parametrizations.{name}()
'''


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The parts of the original that stand in the emitted file, in this order.

    Each text ends without a newline and may be empty, but for ``model_class``. Line lists have one
    entry for each line of their text: its line number in the original file, 0 for a generated line.
    """

    imports: str
    """``from __future__`` imports first, then imports, and statements that had to precede one of them."""
    support: str
    """Constants, functions and classes that the class needs, in original order."""
    model_class: str
    """The class under its new name, forward renamed ``_original_forward``; ends inside the class body."""
    class_name: str
    """The new name."""
    trailing: str
    """Statements that need the class to be there, such as ``Model.scale = 2``; usually empty."""
    body_indent: str
    """Indentation of the class body: methods may be appended to ``model_class`` with it."""
    original_file: str
    """The file that the line numbers are of."""
    import_lines: tuple[int, ...]
    support_lines: tuple[int, ...]
    class_lines: tuple[int, ...]
    trailing_lines: tuple[int, ...]
    clashes: tuple[str, ...]
    """Names of the original that the emitted file uses itself (``_kernelwright...``, ``ModelNew``)."""
    notes: tuple[str, ...]
    """What keeps the text from standing alone: imports from the user's own folders, uses of __file__."""

    def joined(self) -> str:
        """The parts as one importable module (its class has no forward of its own yet)."""
        parts = (self.imports, self.support, self.model_class, self.trailing)
        return "\n\n\n".join(part for part in parts if part) + "\n"


def extract_model_source(problem: Problem, new_name: str = "ModelNew", names: Iterable[str] = ()) -> ModelSource:
    """The source of ``problem.model_class`` for the emitted file, under the name ``new_name``.

    A class of an installed package is imported and derived from; any other is copied with everything of
    its file that it needs, and what else of it has one of ``names``. The file of a class that was typed into a notebook
    is its cells. References to the class are renamed, strings and comments are not. A class that
    ``torch.nn.utils.parametrize`` made of another one is that one, with its properties.
    Raises SourceUnavailable (KW118).
    """
    kind = problem.model_class
    parametrized = parametrized_names(kind)
    if not parametrized:
        return _source_of(kind, problem, new_name, names)
    found = _source_of(kind.__bases__[0], problem, new_name, names)
    added = "\n".join(f"\n{found.body_indent}{line}" if line.startswith("@property") else f"{found.body_indent}{line}"
                      for name in parametrized for line in _PARAMETRIZED.format(name=name).splitlines())
    return replace(found, model_class=f"{found.model_class}\n{added}",
                   class_lines=(*found.class_lines, *(0,) * (added.count("\n") + 1)))


def parametrized_names(kind: type) -> tuple[str, ...]:
    """The tensors that a class gives as properties, where ``torch.nn.utils.parametrize`` made it of its base."""
    if kind.__module__ != "torch.nn.utils.parametrize" or not issubclass(kind, nn.Module) or len(kind.__bases__) != 1 \
            or hasattr(sys.modules[kind.__module__], kind.__name__):
        return ()
    return tuple(name for name, value in vars(kind).items() if isinstance(value, property))


def _source_of(kind: type[nn.Module], problem: Problem, new_name: str, names: Iterable[str]) -> ModelSource:
    if "<locals>" in kind.__qualname__:
        raise SourceUnavailable(model=kind.__name__, found="it is defined inside a function")
    module = sys.modules.get(kind.__module__)
    if module is not None and (typed := cells_of(kind)) is not None:
        return _Extraction(kind, module, typed.text, typed.name, new_name, names, ()).result()
    file = getattr(module, "__file__", None)
    if module is None or not file or not file.endswith(".py"):
        raise SourceUnavailable(model=kind.__name__, found=f"its module {kind.__module__} has no source file")
    if is_installed(file):
        if kind.__module__ == "__main__" or not hasattr(module, kind.__qualname__.split(".")[0]):
            raise SourceUnavailable(model=kind.__name__, found="nobody can import it: its module is "
                                    f"{kind.__module__}, of the file {file}")
        return _derived(kind, file, new_name)
    own = problem.path is not None and file == str(problem.path) and problem.source is not None
    text = problem.source if own else read_source(Path(file))
    return _Extraction(kind, module, text or "", file, new_name, names, problem.draws if own else ()).result()


def is_library_class(kind: type) -> bool:
    """Whether a class belongs to an installed package or to Python itself."""
    return is_installed(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")


def _derived(kind: type[nn.Module], file: str, new_name: str) -> ModelSource:
    outer = kind.__qualname__.split(".")[0]
    home = kind.__module__
    # Prefer the public name: torch.nn.Linear, not torch.nn.modules.linear.Linear.
    for length in range(1, home.count(".") + 1):
        candidate = ".".join(home.split(".")[:length])
        if getattr(sys.modules.get(candidate), outer, None) is getattr(sys.modules[home], outer):
            home = candidate
            break
    alias = f"{_RESERVED}_base" if outer == new_name else outer
    base = ".".join([alias, *kind.__qualname__.split(".")[1:]])
    imports = f"from {home} import {outer}" + (f" as {alias}" if alias != outer else "")
    lines = [f"class {new_name}({base}):", *_inherited_forward("    ")]
    return ModelSource(imports, "", "\n".join(lines), new_name, "", "    ", file,
                       (0,), (), (0,) * len(lines), (), (), ())


def _inherited_forward(indent: str) -> list[str]:
    return [f"{indent}def {ORIGINAL_FORWARD}(self, *args, **kwargs):",
            f"{indent * 2}return super().forward(*args, **kwargs)"]


def _is_own(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
    """Whether an import is one of this package."""
    module = statement.module or "" if isinstance(statement, ast.ImportFrom) else alias.name
    return module.split(".")[0] == __name__.split(".")[0]


def _looks_for_modules(unit: Unit) -> bool:
    """Whether ``sys.modules`` stands in a statement."""
    return any(isinstance(x, ast.Attribute) and x.attr == "modules" and isinstance(x.value, ast.Name)
               and x.value.id == "sys" for top in unit.nodes for x in ast.walk(top))


class _Extraction:
    def __init__(self, kind: type[nn.Module], module: ModuleType, text: str, file: str,
                 new_name: str, names: Iterable[str], draws: Collection[int]) -> None:
        self.kind, self.module, self.file, self.new_name = kind, module, file, new_name
        self.old_name = kind.__name__
        self.lines = text.split("\n")
        self.units = cut(parse_source(text, file).body, self.lines)
        owners = [unit for unit in self.units for node in unit.nodes
                  if isinstance(node, ast.ClassDef) and node.name == self.old_name]
        if not owners or "." in kind.__qualname__:
            line = next((i for i, x in enumerate(self.lines, 1)
                         if re.match(rf"\s+class\s+{re.escape(self.old_name)}\b", x)), 0)
            raise SourceUnavailable(where=place(file, line), model=self.old_name,
                                    found="it is not defined at the top level of its file")
        self.model = owners[-1]
        node = self.model.nodes[-1]
        assert isinstance(node, ast.ClassDef)  # nothing can stand on a class's lines before or behind it
        self.model_node = node
        self.left_out: set[Unit] = set()
        self.draws = {unit for unit in self.units if any(node.lineno in draws for node in unit.nodes)}
        self.binders: dict[str, list[Unit]] = {}
        for unit in self.units:
            # An earlier class of the same name is gone by the time that anything uses it.
            if unit not in owners[:-1]:
                for name in unit.names.bound:
                    self.binders.setdefault(name, []).append(unit)
        self.asked = [unit for name in sorted(names) for unit in self.binders.get(name, ())]
        self.renaming = ClassRenaming(self.lines, self.model_node, new_name)

    # -- which statements stay --------------------------------------------------------------------

    def _closure(self, start: Iterable[Unit]) -> set[Unit]:
        kept: set[Unit] = set()
        waiting = list(start)
        while waiting:
            unit = waiting.pop()
            if unit not in kept:
                kept.add(unit)
                waiting += [x for name in unit.names.used for x in self.binders.get(name, ())]
        return kept

    def _kept(self) -> set[Unit]:
        kept = self._closure([self.model, *self.asked])
        kept |= {unit for unit in self.units if unit.is_import and any(
            alias.name == "*" for node in unit.imports for alias in node.names)}
        # What draws random numbers moves the generator on for all that is drawn later, in constructors, too. A script
        # that runs the model is left out for all that: it would run before there are kernels.
        self.left_out = {unit for unit in self.draws if self.model in self._closure([unit])}
        kept |= self._closure(self.draws - self.left_out)
        candidates = [unit for unit in self.units if not unit.is_import and not is_main_guard(unit.nodes[0])]
        if any({"globals", "eval", "exec"} & unit.names.used or _looks_for_modules(unit) for unit in kept):
            # Names may be looked up by text: everything but the inputs stays.
            return self._closure(kept | {x for x in candidates
                                         if not x.names.bound & {"get_inputs", "get_init_inputs"}})
        avoided = {unit for name in ("get_inputs", "get_init_inputs") for unit in self.binders.get(name, ())}
        avoided.add(self.model)
        grown = True
        while grown:
            grown = False
            for unit in candidates:
                if unit not in kept and self._has_effect(unit, kept, avoided):
                    kept |= self._closure([unit])
                    grown = True
        return kept

    def _has_effect(self, unit: Unit, kept: set[Unit], avoided: set[Unit]) -> bool:
        """Whether the statement changes something that kept code could see, besides what it binds."""
        if self._runs_the_model(unit):
            return False
        for effect in effects(unit.nodes):
            owners = self.binders.get(effect.root, [])
            if not effect.is_direct_call and any(owner in kept and not owner.is_import for owner in owners):
                return True
            changes = (effect.sets and any(owner.is_import for owner in owners)) or (effect.is_direct_call and owners)
            # A script that runs the model or makes its inputs is no part of the model.
            if changes and not self._closure([unit]) & avoided:
                return True
        return False

    def _runs_the_model(self, unit: Unit) -> bool:
        """Whether the statement makes a model, or asks this package for something, itself or by what it uses, when the
        module is run: a script does, beside the model that it defines."""
        if any(_is_own(node, alias) for x in self._closure([unit]) if x.is_import for node in x.imports
               for alias in node.names):
            return True
        own = {alias.asname or alias.name.split(".")[0] for x in self.units if x.is_import for node in x.nodes
               for alias in node.names if _is_own(node, alias)}  # type: ignore[attr-defined]
        for node in statements_of(unit.nodes):
            for part in expressions(node):
                if isinstance(part, ast.Call):
                    root: ast.AST = part.func
                    while isinstance(root, ast.Attribute):
                        root = root.value
                    if isinstance(root, ast.Name) and (root.id in own or (root is part.func
                                                       and root.id == self.old_name)):
                        return True
        return False

    # -- the text ---------------------------------------------------------------------------------

    def _import_text(self, unit: Unit, used: set[str], keep_all: bool) -> list[Line]:
        """The unit's imports that are used; its own text if that is all of them."""
        statements: list[Line] = []
        trimmed = False
        for node in unit.imports:
            aliases = [x for x in node.names
                       if keep_all or x.name == "*" or (x.asname or x.name.split(".")[0]) in used]
            trimmed |= len(aliases) < len(node.names)
            trimmed |= getattr(node, "level", 0) > 0
            if not aliases:
                continue
            shown = ", ".join(f"{x.name} as {x.asname}" if x.asname else x.name for x in aliases)
            if isinstance(node, ast.ImportFrom):
                target = node.module or ""
                if node.level:
                    package = self.module.__package__ or ""
                    target = importlib.util.resolve_name("." * node.level + target, package)
                statements.append((node.lineno, f"from {target} import {shown}"))
            else:
                statements.append((node.lineno, f"import {shown}"))
        return statements if trimmed else self.renaming.text(unit.first, unit.last)

    def _separated(self, units: list[Unit]) -> list[Line]:
        """The texts of ``units`` one below the other, blank lines between them as in the original."""
        found: list[Line] = []
        for unit in units:
            if found:
                start, blank = unit.first - 2, 0
                while start >= 0 and not self.lines[start].strip() and blank < 2:
                    start, blank = start - 1, blank + 1
                found += [(0, "")] * blank
            found += self.renaming.text(unit.first, unit.last)
        return found

    def result(self) -> ModelSource:
        """Cuts, renames and orders."""
        kept = self._kept()
        used = {name for unit in kept for name in unit.names.used}
        # Operators registered by an import are reached through torch.ops, not through the import's name.
        through_ops = any(isinstance(x, ast.Attribute) and x.attr == "ops"
                          for unit in kept for top in unit.nodes for x in ast.walk(top))
        self.renaming.rename_class(kept)
        own_forward = self.renaming.rename_forward()
        self.renaming.unmangle()
        indent = self.renaming.split_header()

        rebound = {name for unit in kept if not unit.is_import for name in unit.names.bound}
        hoisted = [unit for unit in self.units if unit.is_import and (
            unit.is_future or ((unit in kept or through_ops) and not unit.names.bound & rebound
                               and not self._follows_a_draw(unit, kept)))]
        position = {unit: index for index, unit in enumerate(self.units)}
        others = [unit for unit in self.units
                  if unit in kept and unit not in hoisted and unit is not self.model]
        early = self._before_imports(hoisted, others, position)
        trailing = self._after_class(others, position)
        support = [unit for unit in others if unit not in early and unit not in trailing]

        imports: list[Line] = []
        notes: list[str] = []
        for unit in sorted([*hoisted, *early], key=lambda x: (not x.is_future, position[x])):
            if unit in early:
                imports += self.renaming.text(unit.first, unit.last)
            else:
                imports += self._import_text(unit, used, unit.is_future or through_ops)
        notes += self._local_imports([*hoisted, *support], used)
        if "__file__" in used:
            notes.append("the original uses __file__, which differs in the emitted file")
        notes += [f"the original draws random numbers in line {unit.first} by running the model while it is imported, "
                  "which the emitted file does not" for unit in self.units if unit in self.left_out]
        model = self.renaming.text(self.model.first, self.model.last)
        if not own_forward:
            model += [(0, "")] + [(0, line) for line in _inherited_forward(indent)]
        support_lines, trailing_lines = self._separated(support), self._separated(trailing)

        def text(lines: list[Line]) -> str:
            return "\n".join(line for _, line in lines)

        def numbers(lines: list[Line]) -> tuple[int, ...]:
            return tuple(number for number, _ in lines)

        return ModelSource(
            text(imports), text(support_lines), text(model), self.new_name, text(trailing_lines), indent,
            self.file, numbers(imports), numbers(support_lines), numbers(model), numbers(trailing_lines),
            self._clashes(kept), tuple(notes))

    def _follows_a_draw(self, unit: Unit, kept: set[Unit]) -> bool:
        """Whether an import draws random numbers (in a file of the user's) after other statements that do."""
        return unit in self.draws and any(x.first < unit.first and not x.is_import for x in self.draws & kept)

    def _before_imports(self, hoisted: list[Unit], others: list[Unit],
                        position: dict[Unit, int]) -> list[Unit]:
        """Statements that change something before a kept import (sys.path), and what they need."""
        last = max((position[unit] for unit in hoisted), default=-1)
        start = [unit for unit in others if position[unit] < last and any(
            owner.is_import for effect in effects(unit.nodes) for owner in self.binders.get(effect.root, ()))]
        wanted: set[Unit] = set()
        for unit in start:
            needs = self._closure([unit])
            # Something that stands after the last import, or the model itself, cannot be moved up.
            if self.model not in needs and all(position[x] < last or x in hoisted for x in needs):
                wanted |= needs
        return [unit for unit in others if unit in wanted]

    def _after_class(self, others: list[Unit], position: dict[Unit, int]) -> list[Unit]:
        """Kept statements that stand after the class and must stay there."""
        found: list[Unit] = []
        names = {self.old_name}
        earlier = {name for unit in others if position[unit] < position[self.model]
                   for name in unit.names.bound}
        for unit in others:
            if position[unit] > position[self.model] and (unit in self.draws or
                    unit.names.eager & names or unit.names.bound & earlier or any(effects(unit.nodes))):
                found.append(unit)
                names |= unit.names.bound
        return found

    def _local_imports(self, units: list[Unit], used: set[str]) -> list[str]:
        """A note for each import of a module that is neither installed nor part of Python."""
        notes = []
        for node in (x for unit in units for top in unit.nodes for x in ast.walk(top)):
            if isinstance(node, ast.ImportFrom) and node.module:
                is_used = any(x.name == "*" or (x.asname or x.name) in used for x in node.names)
                wanted = [node.module] if is_used else []
            elif isinstance(node, ast.Import):
                wanted = [x.name for x in node.names if (x.asname or x.name.split(".")[0]) in used]
            else:
                continue
            for name in wanted:
                file = getattr(sys.modules.get(name), "__file__", None)
                if file and not is_installed(file):
                    notes.append(f"the original imports {name} from {file}, "
                                 "which the emitted file needs on its path")
        return notes

    def _clashes(self, kept: set[Unit]) -> tuple[str, ...]:
        bound = {name for unit in kept for name in unit.names.bound} | bound_names(self.model_node.body)
        bound |= {x.attr for x in ast.walk(self.model_node) if isinstance(x, ast.Attribute)}
        taken = {self.new_name, ORIGINAL_FORWARD} - {self.old_name}
        return tuple(sorted(x for x in bound if x.startswith(_RESERVED) or x in taken))
