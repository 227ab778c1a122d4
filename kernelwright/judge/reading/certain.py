"""What a file's text alone decides: that it is empty, that it is not Python, that it has no ModelNew."""

from __future__ import annotations

import ast
import re

from kernelwright.judge.records import Finding

_FENCE = re.compile(r"^\s*(?:```|~~~)")
_CODE = re.compile(r"^\s*(?:import |from \w[\w.]* import|class \w+|def \w+|@\w|return\b|\w[\w.]* = )", re.MULTILINE)
#: A line of words: at least four in a row, with no more between them than a sentence has.
_PROSE = re.compile(r"^[*#>\-]*\s*[\w'*`]+(?:[,:;]?\s+[\w'*`(\"-]+[)\"]?){3,}")
#: Ways to bind a name that reading does not follow.
_DYNAMIC = {"exec", "eval", "globals", "vars", "locals", "setattr", "__import__"}


def certain(text: str) -> tuple[str, Finding] | None:
    """The verdict that needs no run, with its finding, or None.

    It is BUILD-EMPTY, BUILD-SYNTAX or BUILD-NO-CLASS. The last only where nothing in the file could bind ModelNew.
    """
    text = text.removeprefix("\ufeff")
    lines = text.split("\n")
    if not text.strip():
        size = len(text.encode(errors="replace"))
        found = "is empty (0 bytes)" if not size else f"holds nothing but {size} bytes of white space"
        return "BUILD-EMPTY", Finding("empty-file", f"The file {found}.", "read", _WHOLE_FILE)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return "BUILD-SYNTAX", _not_python(text, lines, error)
    code = [s for s in tree.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
            and not isinstance(s, ast.Pass)]
    if not code:
        line = next(n for n, words in enumerate(lines, 1) if words.strip())
        what = "no statement, only text in quotes" if tree.body else "no statement, only comments"
        return "BUILD-EMPTY", _at("only-comments", f"The file has {what}.", lines, line, _WHOLE_FILE)
    if _may_bind(tree, "ModelNew"):
        return None
    return "BUILD-NO-CLASS", _no_class(tree, lines)


_WHOLE_FILE = ("Write the whole file: imports, the kernels, and class ModelNew(nn.Module) with __init__ and forward "
               "that "
               "take what the model's take.")


def _at(kind: str, sentence: str, lines: list[str], line: int, fix: str, **evidence: object) -> Finding:
    text = lines[line - 1].strip()[:200] if 0 < line <= len(lines) else ""
    return Finding(kind, sentence, "read", fix, line, text, dict(evidence))


# ---- not Python


def _not_python(text: str, lines: list[str], error: BaseException) -> Finding:
    if not isinstance(error, SyntaxError) or "\0" in text:
        words = ("holds NUL bytes, so it is no text" if "\0" in text else
                 f"is nested more deeply than Python can read ({type(error).__name__})")
        return Finding("not-text", f"The file {words}.", "read", _WHOLE_FILE)
    line = min(max(error.lineno or 1, 1), len(lines))
    last = max((n for n, words in enumerate(lines, 1) if words.strip()), default=1)
    fences = [n for n, words in enumerate(lines, 1) if _FENCE.match(words)]
    if fences and (line in fences or line <= fences[0] or not _CODE.search("\n".join(lines[:line - 1]))):
        return _fenced(lines, fences)
    if not _CODE.search(text) and "{" not in text:
        return _at("prose", f"The file is prose, not Python: its line {line} cannot be "
                            "parsed.", lines, line, _WHOLE_FILE)
    around = _text_around(lines, line)
    if around is not None:
        return around
    message = error.msg or "invalid syntax"
    missing = "" if re.search(r"^class ModelNew\b", text, re.MULTILINE) else " The text has no class ModelNew, either."
    evidence = {"message": message, "last_line": last, "last_text": lines[last - 1].strip()[:200]}
    if "unterminated triple-quoted" in message:
        name = re.match(r"\s*(\w+)\s*=", lines[line - 1])
        what = f" {name.group(1)}" if name else ""
        return _at("cut-off-string", f"The string{what} that begins on line {line} never ends: the text is cut off "
                                     "inside "
                   f"it, on line {last}, or its closing quotes are missing.{missing}", lines, line,
                   "End the string with the quotes it began with, and write what comes after it: the call that "
                   "builds the kernels and class ModelNew.", **evidence)
    if fences and line >= fences[0]:
        return _fenced(lines, fences)
    opened = re.match(r"'(.)' was never closed", message)
    if opened and _goes_on(lines, line):
        return _at("syntax", f"The bracket {opened.group(1)} that opens on line {line}, column "
                   f"{error.offset or 1}, is never closed.{missing}", lines, line,
                   f"Close the bracket before line {_next(lines, line)} begins.", **evidence)
    if _cut_off(message, line, last, error):
        return _at("cut-off", f"The text is cut off on line {last}, in the middle of "
                   f"{_what_is_open(text, last)} ({message}).{missing}", lines, last,
                   "Write the file to its end; nothing follows this line.", **evidence)
    if isinstance(error, IndentationError):
        return _at("indentation", f"Line {line} is indented wrongly: {message}.", lines, line,
                   "Indent the line as its block is, with spaces only.", **evidence)
    return _at("syntax", f"Line {line} is not Python: {message}.", lines, line, "Correct this line.", **evidence)


def _text_around(lines: list[str], line: int) -> Finding | None:
    """Words before or behind a text that is whole Python without them."""
    first = next((n for n, words in enumerate(lines, 1) if _CODE.match(words)), None)
    if first is None:
        return None
    begin, end = (first, len(lines)) if line < first else (1, line - 1)
    rest = _failing_line(lines[begin - 1:end])
    if rest is not None and begin > 1:  # words before the code, and others behind it
        end = begin + rest - 2
        rest = _failing_line(lines[begin - 1:end])
    words_behind = end == len(lines) or _PROSE.match(lines[end])
    whole = rest is None and any(re.match(r"class ModelNew\b", words) for words in lines[begin - 1:end])
    if not whole or not words_behind:
        return None
    where = " and ".join(part for part in (f"before line {begin}" if begin > 1 else "",
                                           f"from line {end + 1} on" if end < len(lines) else "") if part)
    return _at("text-around", f"The file has words that are not Python {where}: the code was stored with the text "
               "around it.", lines, line, f"Keep only lines {begin} to {end}, or make the words comments.",
               first=begin, last=end)


def _failing_line(lines: list[str]) -> int | None:
    """The line (from 1) at which a text is not Python; None where it is."""
    try:
        ast.parse("\n".join(lines))
    except SyntaxError as error:
        return max(error.lineno or 1, 1)
    except (ValueError, RecursionError, MemoryError):
        return 1
    return None


def _next(lines: list[str], line: int) -> int:
    """The line behind ``line`` that stands no further to the right, where a statement begins; 0 where there is none."""
    def indent(words: str) -> int:
        return len(words) - len(words.lstrip())

    return next((n for n, words in enumerate(lines[line:], line + 1)
                 if words.strip() and indent(words) <= indent(lines[line - 1])), 0)


def _goes_on(lines: list[str], line: int) -> bool:
    """Whether the text goes on with another statement behind a bracket that opens on ``line``: then it was not cut off
    inside."""
    return _next(lines, line) > 0


def _cut_off(message: str, line: int, last: int, error: SyntaxError) -> bool:
    """Whether the parser ran into the end of the text rather than into something wrong."""
    if "was never closed" in message:
        return last - line <= 2
    block = re.search(r"expected an indented block after .* on line (\d+)", message)
    if block:
        return int(block.group(1)) == last
    if line < last:
        return False
    return any(part in message for part in ("unterminated", "unexpected "
                                                            "EOF", "expected an indented block", "expected ':'",
                                            "invalid syntax", "expected 'except'", "EOF", "was never closed",
                                            "incomplete input"))


def _what_is_open(text: str, last: int) -> str:
    """The function or class in which the last line stands, in words."""
    names: list[tuple[int, str]] = []
    for words in text.split("\n")[:last]:
        match = re.match(r"(\s*)(?:async\s+)?(?:def|class)\s+(\w+)", words)
        if words.strip():
            indent = len(words) - len(words.lstrip())
            names = [entry for entry in names if entry[0] < indent]
        if match:
            names.append((len(match.group(1)), match.group(2)))
    return ".".join(name for _, name in names) or "a statement"


def _fenced(lines: list[str], fences: list[int]) -> Finding:
    first = last = fences[0]
    best = ""
    for start, end in zip(fences, [*fences[1:], len(lines) + 1], strict=True):
        inside = "\n".join(lines[start:end - 1])
        if _CODE.search(inside) and len(inside) > len(best):
            best, first, last = inside, start, end
    if not best:
        return _at("markdown-without-code", f"The file is prose with Markdown fences (the first on line {first}) and "
                                            "no "
                   "code in them.", lines, first, _WHOLE_FILE)
    try:
        ast.parse(best)
        rest = ""
    except (SyntaxError, ValueError):
        rest = " What stands between the fences is not whole Python, either."
    return _at("markdown-fence", f"Line {first} is a Markdown fence, not Python: the code was stored with the text "
                                 "around "
               f"it.{rest}", lines, first, f"Keep only what stands between the fences, lines {first + 1} to "
                                           f"{last - 1}.",
               first=first + 1, last=last - 1, parses=not rest)


# ---- no class


def _no_class(tree: ast.Module, lines: list[str]) -> Finding:
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    modules = [c for c in classes if any(isinstance(s, ast.FunctionDef) and s.name == "forward" for s in c.body)]
    if modules:
        names = " and ".join(f"{c.name} (line {c.lineno})" for c in modules[:3])
        return _at("no-class", f"No class ModelNew is defined; the file defines {names}.", lines, modules[-1].lineno,
                   f"Name the class that is to be judged ModelNew (now {modules[-1].name}).")
    line = tree.body[-1].end_lineno or 1
    only = all(isinstance(s, (ast.Import, ast.ImportFrom, ast.Expr)) for s in tree.body)
    what = "only imports" if only else "other statements only"
    return _at("no-class", f"No class ModelNew is defined: the file ends on line {line} and has {what}.", lines, line,
               "Add class ModelNew(nn.Module) with __init__ and forward that take what the model's take.")


def _may_bind(tree: ast.Module, name: str) -> bool:
    for node in ast.walk(tree):
        found = False
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found = any((a.asname or a.name) in (name, "*") for a in node.names)
        elif isinstance(node, ast.Name):
            found = node.id in _DYNAMIC or (node.id == name and isinstance(node.ctx, ast.Store))
        elif isinstance(node, ast.Attribute):
            found = node.attr in ("__dict__", "modules", name)
        elif isinstance(node, ast.Global):
            found = name in node.names
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)):
            found = node.name == name
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found = node.name in (name, "__getattr__") and _at_top(tree, node)
        if found:
            return True
    return False


def _at_top(tree: ast.Module, wanted: ast.AST) -> bool:
    """Whether a definition stands at module level, also below ``if``, ``try``, ``with`` and loops."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if node is wanted:
            return True
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
    return False
