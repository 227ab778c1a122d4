"""The pages of docs/ that are made from the code: rules, errors, options, the Python interface; and code within pages.

    python tools/regenerate.py      # writes them

A page shows a file of the repository, whole, behind a line ``<!-- code: PATH -->``: the block that follows is replaced.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

import kernelwright
from kernelwright.algebra.engine import RULES
from kernelwright.algebra.rule import Exactness, Rule
from kernelwright.cli import app
from kernelwright.errors import catalogue_markdown
from kernelwright.ir.registry import OPERATORS
from kernelwright.settings import ENVIRONMENT

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
MADE = "<!-- Made by tools/regenerate.py from the code; what it says is mended there. -->"
_MOST_ROOTS, _WIDEST = 12, 100


def cell(text: str) -> str:
    """Text within a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


# ---- rules -----------------------------------------------------------------------------------------


def _roots(rule: Rule) -> str:
    pointwise = [name for name, operator in OPERATORS.items() if operator.kind == "pointwise"]
    others = [root for root in rule.roots if root not in pointwise]
    if len(rule.roots) > _MOST_ROOTS and set(pointwise) <= set(rule.roots):
        return ", ".join(["every pointwise operator", *(f"`{root}`" for root in others)])
    return ", ".join(f"`{root}`" for root in dict.fromkeys(rule.roots))


def rules_page() -> str:
    """The catalogue of rules, by the files of algebra/ in which they stand."""
    parts = ["# Rules of algebra", MADE, textwrap.dedent(f"""\
        {len(RULES)} rules. Each is declared with its law, its condition and how exact it is; a report names every rule
        that was applied, with the line of the model. Those that remove a linear operator apply only where the roofline
        says that they pay. The rules of a graph are applied until none applies; of those at one operator the first in
        the order of this page that fits is taken.

        | exactness | what it may change |
        | --- | --- |
        """).rstrip() + "\n" + "\n".join(
            f"| {e.name.lower()} | {'nothing' if e == Exactness.BITWISE else cell(e.value)} |" for e in Exactness)]
    home = ""
    for rule in RULES:
        module = rule.rewrite.__module__
        if module != home:
            home = module
            first = (inspect.getdoc(sys.modules[module]) or "").split("\n\n")[0]
            parts.append(f"## {module.removeprefix('kernelwright.').replace('.', '/')}.py\n\n{' '.join(first.split())}")
        parts.append(f"### {rule.name}\n\n    " + rule.law.replace(";  ", "\n    ").replace("; ", "\n    ") + "\n\n"
                     + f"- **at**: {_roots(rule)}\n- **condition**: {rule.condition}\n"
                     + f"- **exactness**: {rule.exactness.name.lower()}")
    return "\n\n".join(parts) + "\n"


# ---- the command line ------------------------------------------------------------------------------


def _default(parameter: Any) -> str:
    value = parameter.default() if callable(parameter.default) else parameter.default
    if parameter.param_type_name == "argument":
        return "required" if parameter.required else ""
    if parameter.is_flag:
        return "off"
    return "" if value is None or value == "" or value == () else f"`{value}`"


def _named(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar}`"
    longest = max(parameter.opts, key=len)
    others = "".join(f", `{name}`" for name in parameter.opts if name != longest)
    metavar = f" {parameter.metavar}" if parameter.metavar and not parameter.is_flag else ""
    return f"`{longest}{metavar}`".replace("|", "\\|") + others


def options_page() -> str:
    """Every command with its arguments and options, and the environment variables."""
    parts = ["# Commands and options", MADE,
             "`kernelwright COMMAND --help` prints the same. The result goes to stdout, progress to stderr."]
    commands = typer.main.get_command(app).commands  # pyrefly: ignore[missing-attribute]
    for name, command in commands.items():
        if command.hidden:
            continue
        rows = [(_named(p), _default(p), cell(p.help or "")) for p in command.params if p.name != "help"]
        examples = textwrap.dedent((command.epilog or "").replace("\b", "").partition("Examples:")[2]).strip("\n")
        usage = " ".join(["kernelwright", name, "[OPTIONS]", *(p.metavar for p in command.params
                                                               if p.param_type_name == "argument")])
        parts += [f"## kernelwright {name}", f"    {usage}", inspect.cleandoc(command.help or ""),
                  table(("", "default", "effect"), rows)]
        if examples:
            parts.append(textwrap.indent(examples, "    "))
    parts += ["## Environment variables", table(
        ("variable", "default", "effect"),
        [(f"`{v.name}`", cell(v.default), cell(v.effect)) for v in ENVIRONMENT])]
    return "\n\n".join(parts) + "\n"


# ---- the Python interface --------------------------------------------------------------------------


def prose(text: str) -> str:
    """A docstring as Markdown: what it cites in code, its examples in blocks."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", inspect.cleandoc(text)).replace("``", "`")
    parts = []
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.lstrip().startswith(">>>"):
            parts.append(f"```pycon\n{textwrap.dedent(paragraph)}\n```")
        else:
            parts.append(paragraph)
    return "\n\n".join(parts)


def _field_words(kind: type) -> dict[str, str]:
    """What stands below the fields of a class, in its text."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    pairs = zip(tree.body, tree.body[1:], strict=False)
    return {a.target.id: b.value.value for a, b in pairs
            if isinstance(a, ast.AnnAssign) and isinstance(a.target, ast.Name) and isinstance(b, ast.Expr)
            and isinstance(b.value, ast.Constant) and isinstance(b.value.value, str)}


def _public(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that a class of ours defines itself."""
    for name, value in vars(kind).items():
        function = value.fget if isinstance(value, property) else value
        if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield name, value


def _signature(name: str, function: Callable[..., Any]) -> str:
    """The head of a function as Python, a parameter on each line where it is long."""
    signature = inspect.signature(function)
    given = [str(p) for p in signature.parameters.values() if p.name != "self"]
    kinds = [p.kind for p in signature.parameters.values() if p.name != "self"]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        given.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    # Annotations are texts, as all modules have them.
    given = [re.sub(r"(: |-> )'(.*?)'(?= =|$)", r"\1\2", text) for text in given]
    returned = f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(given)}){returned}"
    if len(line) > _WIDEST:
        line = f"{name}(\n" + "".join(f"    {text},\n" for text in given) + f"){returned}"
    return f"```python\n{line}\n```"


def _of_class(name: str, kind: type) -> list[str]:
    parts = [f"## {name}", prose(kind.__doc__ or "")]
    if dataclasses.is_dataclass(kind) and (words := _field_words(kind)):
        rows = []
        for field in dataclasses.fields(kind):
            default = "" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
            effect = field.metadata.get("effect") or words.get(field.name, "")
            rows.append((f"`{field.name}`", f"`{cell(str(field.type))}`", default, cell(effect).replace("``", "`")))
        parts.append(table(("field", "type", "default", "meaning"), rows))
    for member, value in _public(kind):
        if isinstance(value, property):
            parts.append(f"### {name}.{member}\n\n{prose(value.__doc__ or '')}")
        else:
            parts.append(f"### {name}.{member}()\n\n{_signature(member, value)}\n\n{prose(value.__doc__ or '')}")
    return parts


def api_page() -> str:
    """All that ``import kernelwright`` gives."""
    parts = ["# Python interface", MADE,
             "All that `import kernelwright` gives. Options by keyword are the fields of [Settings](#settings), with\n"
             "the names and values of the [command line](options.md)."]
    functions = [n for n in kernelwright.__all__ if not isinstance(getattr(kernelwright, n), type)]
    for name in functions:
        function = getattr(kernelwright, name)
        parts += [f"## {name}()", _signature(f"kernelwright.{name}", function), prose(function.__doc__ or "")]
    for name in kernelwright.__all__:
        if name not in functions:
            parts += _of_class(name, getattr(kernelwright, name))
    return "\n\n".join(parts) + "\n"


# ---- all of them -----------------------------------------------------------------------------------

_CODE = re.compile(r"(<!-- code: (\S+) -->\n)```\w*\n.*?\n```\n", re.DOTALL)
_LANGUAGES = {".py": "python", ".yml": "yaml", ".c": "c", "": "dockerfile"}


def with_code(text: str) -> str:
    """A page with the files that it shows."""

    def block(found: re.Match[str]) -> str:
        path = ROOT / found[2]
        return f"{found[1]}```{_LANGUAGES[path.suffix]}\n{path.read_text(encoding='utf-8').rstrip()}\n```\n"

    return _CODE.sub(block, text)


def pages() -> dict[Path, str]:
    """The text of each page that is made, wholly or in part, by its path."""
    made = {DOCS / "errors.md": catalogue_markdown(), DOCS / "reference" / "rules.md": rules_page(),
            DOCS / "reference" / "options.md": options_page(), DOCS / "reference" / "api.md": api_page()}
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if path not in made and _CODE.search(text):
            made[path] = with_code(text)
    return made
