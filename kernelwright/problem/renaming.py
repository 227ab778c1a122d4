"""Renaming a class inside its source text by position, everything else left as it was written."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable

from kernelwright.problem.names import bound_names, statements_of
from kernelwright.problem.statements import Unit, expressions

ORIGINAL_FORWARD = "_original_forward"
_EXACT_FSTRINGS = sys.version_info >= (3, 12)  # older parsers give wrong columns inside f-strings

Line = tuple[int, str]
"""A line's number in the original file (0 if generated), and its text."""


class ClassRenaming:
    """Replacements in the text of the file that defines the class ``node``, to be called ``new_name``."""

    def __init__(self, lines: list[str], node: ast.ClassDef, new_name: str) -> None:
        self.lines, self.node, self.old_name, self.new_name = lines, node, node.name, new_name
        self.edits: dict[int, list[tuple[int, int, str]]] = {}

    def replace(self, line: int, column: int, length: int, text: str) -> None:
        """Replaces ``length`` bytes of a line at a byte column."""
        edit = (column, column + length, text)
        if edit not in self.edits.setdefault(line, []):
            self.edits[line].append(edit)

    def replace_word(self, node: ast.AST, word: str, text: str, column: int | None = None) -> None:
        """Replaces ``word`` at the node's start, or where it first stands after it on that line."""
        # pyrefly: ignore[missing-attribute]  # of many classes, which have a name, and so a place
        line, start = node.lineno, node.col_offset if column is None else column
        raw = self.lines[line - 1].encode()
        found = re.compile(rb"\b" + re.escape(word.encode()) + rb"\b").search(raw, start)
        if found:
            self.replace(line, found.start(), len(word.encode()), text)

    def replace_in_fstring(self, joined: ast.JoinedStr, word: str, text: str) -> None:
        """Replaces ``word`` inside the braces of an f-string whose inner columns the parser got wrong."""
        depth = 0
        # An attribute may be called like the class; a private name is renamed as an attribute, too.
        before = rb"(?<!\w)" if word.startswith("__") else rb"(?<![\w.])"
        pattern = re.compile(rb"\{\{|\}\}|[{}]|" + before + re.escape(word.encode()) + rb"\b")
        for number in range(joined.lineno, (joined.end_lineno or joined.lineno) + 1):
            raw = self.lines[number - 1].encode()
            start = joined.col_offset if number == joined.lineno else 0
            end = joined.end_col_offset if number == joined.end_lineno else None
            for found in pattern.finditer(raw, start, len(raw) if end is None else end):
                token = found.group()
                if token == b"{" or (token == b"{{" and depth):
                    depth += len(token)
                elif token == b"}" or (token == b"}}" and depth):
                    depth -= len(token)
                elif depth > 0 and token == word.encode():
                    self.replace(number, found.start(), len(token), text)

    def rename_class(self, kept: Iterable[Unit]) -> None:
        """Renames the class and every reference to it in ``kept``; strings and comments stay."""
        self.replace_word(self.node, self.old_name, self.new_name, self.node.col_offset + len("class"))
        for unit in kept:
            for node, joined in unit.names.nodes:
                if isinstance(node, ast.Global):
                    if self.old_name in node.names:
                        self.replace_word(node, self.old_name, self.new_name, node.col_offset + len("global"))
                elif node.id == self.old_name:
                    if joined is not None and not _EXACT_FSTRINGS:
                        self.replace_in_fstring(joined, self.old_name, self.new_name)
                    else:
                        self.replace(node.lineno, node.col_offset, len(self.old_name.encode()), self.new_name)
            for node in (x for top in unit.nodes for x in ast.walk(top)):
                # `Model.forward = ...` after the class replaces the original forward, not ours.
                if (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                        and node.attr == "forward" and isinstance(node.value, ast.Name)
                        and node.value.id == self.old_name):
                    self.replace(node.end_lineno or 0, (node.end_col_offset or 0) - len("forward"),
                                 len("forward"), ORIGINAL_FORWARD)

    def rename_forward(self) -> bool:
        """Renames forward within the class body; whether the body binds it."""
        if "forward" not in bound_names(self.node.body):
            return False
        for node in statements_of(self.node.body):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if node.name == "forward":
                    self.replace_word(node, "forward", ORIGINAL_FORWARD, node.col_offset + len("def"))
                continue
            if not isinstance(node, ast.ClassDef):
                for inner in expressions(node):
                    if isinstance(inner, ast.Name) and inner.id == "forward":
                        self.replace(inner.lineno, inner.col_offset, len("forward"), ORIGINAL_FORWARD)
        return True

    def unmangle(self) -> None:
        """Writes ``__name`` as ``_Model__name``: the new class name would mangle it differently.

        A submodule held as ``self.__layer`` has the mangled name in its state_dict keys.
        """
        prefix = "_" + self.old_name.lstrip("_")
        if prefix == "_":
            return

        def private(name: str) -> bool:
            return name.startswith("__") and not name.endswith("__")

        def walk(node: ast.AST, joined: ast.JoinedStr | None) -> None:
            joined = joined or (node if isinstance(node, ast.JoinedStr) else None)
            name = next((value for key in ("attr", "id", "name", "arg")
                         if isinstance(value := getattr(node, key, None), str)), "")
            if private(name) and not isinstance(node, (ast.keyword, ast.alias)):
                length = len(name.encode())
                if joined is not None and not _EXACT_FSTRINGS:
                    self.replace_in_fstring(joined, name, prefix + name)
                elif isinstance(node, ast.Attribute):
                    self.replace(node.end_lineno or 0, (node.end_col_offset or 0) - length, length,
                                 prefix + name)
                else:
                    self.replace_word(node, name, prefix + name)
            if isinstance(node, ast.ClassDef):
                return  # mangled with its own name, which stays
            for child in ast.iter_child_nodes(node):
                walk(child, joined)

        for statement in self.node.body:
            walk(statement, None)

    def split_header(self) -> str:
        """Puts a body that follows the colon on the header's line below it; the body's indentation."""
        first = self.node.body[0]
        number = min([first.lineno, *(x.lineno for x in getattr(first, "decorator_list", []))])
        before = self.lines[number - 1].encode()[:first.col_offset].decode()
        if before.strip() and not before.strip().startswith("@"):
            self.replace(first.lineno, first.col_offset, 0, "\n    ")
            return "    "
        line = self.lines[number - 1]
        return line[:len(line) - len(line.lstrip())]

    def text(self, first: int, last: int) -> list[Line]:
        """Lines ``first`` to ``last`` with all replacements made, each with its original number."""
        found: list[Line] = []
        for number in range(first, last + 1):
            line = self.lines[number - 1]
            if number in self.edits:
                raw = line.encode()
                for start, end, text in sorted(self.edits[number], reverse=True):
                    raw = raw[:start] + text.encode() + raw[end:]
                line = raw.decode()
            found += [(number, part.rstrip() if "\n" in line else part) for part in line.split("\n")]
        return found
