"""From the blocks of an answer to one file: which class counts, and what the other blocks give to it.

People and models write a class over several blocks, kernels apart from the class that uses them, versions that they
take back, and changes of one method. What is put together here is told in notes; nothing is invented: each line of the
result stands in the answer, but for a name that is given to a source or a class where the answer leaves it out.
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.problem.names import names_of
from kernelwright.propose.fences import NATIVE, PYTHON, Block
from kernelwright.propose.placeholders import placeholders

WANTED = "ModelNew"
_LOOKS = re.compile(r"^\s*(?:import |from \w[\w.]* import|class \w+|def \w+\(|@\w)", re.MULTILINE)
_NATIVE_LOOKS = re.compile(r"^\s*(?:#include|#pragma|extern \"C\"|__global__|template\s*<)", re.MULTILINE)
_CHANGES = re.compile(r"\b(?:replace|changes?|updated?|instead|fix|fixed|correct|corrected|swap|modify|mend)\b",
                      re.IGNORECASE)
_KNOWN = frozenset(dir(builtins)) | {"__file__", "__name__", "__doc__", "__spec__", "__builtins__"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Assembled:
    """The file's text ("" where the answer has no code), and what was done to get it."""

    text: str
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Part:
    """A block, or several that are one text. ``tree`` is None where it is no Python."""

    text: str
    line: int
    before: str
    tree: ast.Module | None
    joined: int = 1

    @property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {s.name: s for s in self.tree.body if isinstance(s, ast.ClassDef)} if self.tree else {}


def assemble(blocks: Sequence[Block]) -> Assembled:
    """The file that an answer's blocks are meant to be."""
    notes: list[str] = []
    parts = _joined([b for b in blocks if _is_python(b)], notes)
    native = [b for b in blocks if b.language in NATIVE or (b.language not in PYTHON and _NATIVE_LOOKS.search(b.text))]
    main = _main(parts, notes)
    if main is None:
        return Assembled(max((p.text for p in parts), key=len, default="").strip("\n"), tuple(notes))
    text = main.text
    if main.tree is not None:
        text = _with_methods(text, main, parts, notes)
        text = _with_names(text, main, parts, native, notes)
    return Assembled(text.strip("\n") + "\n", tuple(notes))


def parsed(text: str) -> ast.Module | None:
    """The text's tree, or None where it is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_python(block: Block) -> bool:
    if block.language in PYTHON:
        return True
    return not block.language and bool(_LOOKS.search(block.text)) and not (
        _NATIVE_LOOKS.search(block.text) and parsed(block.text) is None)


def _joined(blocks: Sequence[Block], notes: list[str]) -> list[_Part]:
    """Blocks as parts; those that are Python only together are one."""
    parts: list[_Part] = []
    for block in blocks:
        tree = parsed(block.text)
        last = parts[-1] if parts else None
        indented = re.match(r"(?:[ \t]*(?:#.*)?\n)*[ \t]+\S", block.text) is not None
        if last is not None and ((tree is None and indented) or last.tree is None):
            both = last.text + "\n" + block.text
            if (together := parsed(both)) is not None:
                parts[-1] = _Part(both, last.line, last.before, together, last.joined + 1)
                continue
        if tree is None and (dedented := parsed(textwrap.dedent(block.text))) is not None:
            parts.append(_Part(textwrap.dedent(block.text), block.line, block.before, dedented))
            continue
        parts.append(_Part(block.text, block.line, block.before, tree))
    notes += [f"{p.joined} blocks from line {p.line} on are one text." for p in parts if p.joined > 1]
    return parts


def _main(parts: Sequence[_Part], notes: list[str]) -> _Part | None:
    """The part whose class counts: the last whole one; a text without that name gets it where only one class may have
    it."""
    named = [p for p in parts if WANTED in p.classes or (p.tree is None and re.search(
        rf"^\s*class {WANTED}\b", p.text, re.MULTILINE)) or re.search(rf"^{WANTED}\s*=", p.text, re.MULTILINE)]
    if named:
        best = max(enumerate(named), key=lambda entry: (_wholeness(entry[1]), entry[0]))[1]
        if len(named) > 1:
            notes.append(f"{len(named)} versions of {WANTED}; that from line {best.line} on is taken.")
        return best
    for part in reversed(parts):
        modules = [c for c in part.classes.values() if _method(c, "forward")]
        used = {n for c in modules for s in c.body for n in names_of(s).used}
        free = [c for c in modules if c.name not in used]
        if len(free) == 1:
            notes.append(f"The class that the answer calls {free[0].name} is taken as {WANTED}.")
            text = part.text.rstrip("\n") + f"\n\n\n{WANTED} = {free[0].name}\n"
            return _Part(text, part.line, part.before, parsed(text))
    return None


def _wholeness(part: _Part) -> int:
    """4: whole; less for what cannot be parsed, has no forward, or stands for something else."""
    if part.tree is None:
        return 0
    kind = part.classes.get(WANTED)
    if kind is not None and not _method(kind, "forward") and not _inherits(kind, part):
        return 1
    gaps = placeholders(part.text)
    return 2 if any(p.certain for p in gaps) else 3 if gaps else 4


def _inherits(kind: ast.ClassDef, part: _Part) -> bool:
    """Whether the forward may be that of a class of the same file."""
    return any(isinstance(base, ast.Name) and base.id in part.classes for base in kind.bases)


def _method(kind: ast.ClassDef, name: str) -> _Function | None:
    return next((s for s in kind.body if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)) and s.name == name),
                None)


# ---- methods that stand elsewhere


def _with_methods(text: str, main: _Part, parts: Sequence[_Part], notes: list[str]) -> str:
    """The text with methods of ModelNew that stand in other blocks: those it lacks, and those that a later block says
    to change."""
    kind = main.classes.get(WANTED)
    if kind is None or _inherits(kind, main):
        return text
    own = {s.name for s in kind.body if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef))}
    added: dict[str, tuple[str, int]] = {}
    for part in parts:
        if part is main or part.tree is None or part.line == main.line:
            continue
        later = part.line > main.line
        for method in _loose_methods(part):
            if method.name not in own or (later and _CHANGES.search(part.before)):
                added[method.name] = (_segment(part.text, method), part.line)
    lacking = _lacking(text, kind, own | added.keys())
    if lacking:
        for part in reversed([p for p in parts if p is not main and p.tree is not None and WANTED in p.classes]):
            method = _method(part.classes[WANTED], lacking)
            if method is not None and not _is_gap(method):
                added[lacking] = (_segment(part.text, method), part.line)
                break
    for name, (body, line) in added.items():
        kind = next(s for s in ast.parse(text).body if isinstance(s, ast.ClassDef) and s.name == WANTED)
        changed = _with_method(text, kind, name, body)
        if parsed(changed) is not None:
            text = changed
            notes.append(f"{WANTED}.{name} is that of the block at line {line}.")
    return text


def _loose_methods(part: _Part) -> list[_Function]:
    """Functions at the top of a block that begin with self, where that block has no other use for them."""
    assert part.tree is not None
    found = [s for s in part.tree.body if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef))
             and s.args.args and s.args.args[0].arg == "self"]
    return [] if WANTED in part.classes else found


def _lacking(text: str, kind: ast.ClassDef, own: set[str]) -> str:
    """The method that a later version leaves out: __init__, where forward reads what nothing sets; forward."""
    if "forward" not in own:
        return "forward"
    if "__init__" in own:
        method = _method(kind, "__init__")
        return "__init__" if method is not None and _is_gap(method) else ""
    read = {n.attr for n in ast.walk(kind) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)
            and n.value.id == "self"}
    return "__init__" if read - own else ""


def _is_gap(method: _Function) -> bool:
    body = [s for s in method.body if not (isinstance(s, ast.Expr) and (isinstance(s.value, ast.Constant)
            or "super().__init__" in ast.unparse(s)))]
    return all(isinstance(s, ast.Pass) for s in body)


def _with_method(text: str, kind: ast.ClassDef, name: str, body: str) -> str:
    lines = text.split("\n")
    indent = " " * kind.body[0].col_offset
    method = textwrap.indent(textwrap.dedent(body), indent).split("\n")
    old = _method(kind, name)
    if old is not None:
        begin = min([old.lineno, *(d.lineno for d in old.decorator_list)])
        return "\n".join([*lines[:begin - 1], *method, *lines[old.end_lineno or old.lineno:]])
    end = kind.end_lineno or kind.lineno
    return "\n".join([*lines[:end], "", *method, *lines[end:]])


def _segment(text: str, node: ast.stmt) -> str:
    lines = text.split("\n")
    begin = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    return "\n".join(lines[begin - 1:node.end_lineno])


# ---- names that stand elsewhere


def _with_names(text: str, main: _Part, parts: Sequence[_Part], native: Sequence[Block], notes: list[str]) -> str:
    """The text with the statements of other blocks, and the sources, that it needs and does not have."""
    others = [(part, statement) for part in parts if part is not main and part.tree is not None
              and part.line != main.line for statement in part.tree.body]
    order = sorted(others, key=lambda e: (e[0].line > main.line, e[0].line, e[1].lineno))
    taken: list[tuple[_Part, ast.stmt]] = []
    sources: dict[str, Block] = {}
    while True:
        tree = parsed("\n".join([*(_segment(p.text, s) for p, s in taken), text]))
        if tree is None:
            return text
        missing = _undefined(tree) - sources.keys()
        found = False
        for name in sorted(missing):
            # The last definition before the class counts, as in a file; else the first one behind it.
            binding = [e for e in order if e not in taken and name in names_of(e[1]).bound
                       and WANTED not in names_of(e[1]).bound]
            front = [e for e in binding if e[0].line < main.line]
            if binding:
                taken.append(front[-1] if front else binding[0])
                found = True
            elif (block := _source_named(name, native)) is not None:
                sources[name] = block
                found = True
        if not found:
            break
    if not taken and not sources:
        return text
    taken.sort(key=order.index)
    brought = [f"{name} = r'''\n{block.text}\n'''" for name, block in sources.items()]
    brought += [_segment(part.text, statement) for part, statement in taken]
    names = [*sources, *(n for _, s in taken for n in sorted(names_of(s).bound))]
    notes.append(f"{', '.join(dict.fromkeys(names))} stand{'s' * (len(names) == 1)} in other blocks.")
    lines, line = text.split("\n"), _behind_imports(text)
    return "\n".join([*lines[:line], "", *brought, "", *lines[line:]])


def _undefined(tree: ast.Module) -> set[str]:
    every = [names_of(statement) for statement in tree.body]
    if any(isinstance(n, ast.ImportFrom) and any(a.name == "*" for a in n.names) for n in ast.walk(tree)):
        return set()
    return {n for names in every for n in names.used} - {n for names in every for n in names.bound} - _KNOWN


def _source_named(name: str, native: Sequence[Block]) -> Block | None:
    """The block that a name of a source stands for: the only one, or the only one of its kind."""
    lower = name.lower()
    if not re.search(r"source|src|code|kernel|cuda|cpp", lower):
        return None
    device = [b for b in native if "__global__" in b.text]
    host = [b for b in native if "__global__" not in b.text]
    wanted = native
    if re.search(r"cuda|kernel|device", lower):
        wanted = device
    elif re.search(r"cpp|host|decl", lower):
        wanted = host
    wanted = [b for b in (wanted or (native if len(native) == 1 else ())) if "'''" not in b.text]
    return wanted[-1] if wanted else None


def _behind_imports(text: str) -> int:
    """The line behind the imports at the top, from 0."""
    line = 0
    for statement in ast.parse(text).body:
        words = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not isinstance(statement, (ast.Import, ast.ImportFrom)) and not words:
            break
        line = statement.end_lineno or line
    return line
