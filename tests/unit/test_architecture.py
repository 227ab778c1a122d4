"""The shape of the source: imports point one way, modules stay small, and the documents name what is there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator
from types import ModuleType

import pytest
from places import ROOT

from kernelwright.settings import TARGET_NAMES

PACKAGE = ROOT / "kernelwright"
MODULES = sorted(PACKAGE.rglob("*.py"))
#: The controls are candidates: files that the judge copies and never imports.
MODULES_OF_THE_JUDGE = [m for m in sorted((PACKAGE / "judge").rglob("*.py")) if m.parent.name != "controls"]

#: Modules of the stage whose records every target reads.
BEFORE_TARGETS = sorted((PACKAGE / "plan").rglob("*.py"))
#: The names of targets and their languages, but for C, which is a letter, and endings of names of files.
_TARGET = re.compile(rf"(?<!\.)\b(?:{'|'.join(n for n in TARGET_NAMES if len(n) > 1)}|c\+\+|openmp)(?!\w)",
                     re.IGNORECASE)

#: Importable from everywhere.
COMMON = {"containers", "device_lock", "errors", "failures", "forked", "names", "processors", "progress", "records",
          "settings", "version"}
#: Each folder or module may import itself and what stands before it.
ORDER = ("ir", "problem", "roofline", "algebra", "capture", "plan", "adjoint", "codegen", "emit", "build", "verify",
         "timing", "tune", "report", "result", "way_back", "modes", "launching", "programs", "truths",
         "verified", "training", "tuned", "selection", "emulated", "deploy", "dynamic", "dtypes", "cache",
         "pipeline", "dynamo", "judge", "propose", "suite", "serve", "fuzz", "doctor", "__init__",
         "cli_options", "cli_frame", "cli", "__main__")
#: The same inside of judge/.
JUDGE_ORDER = ("__init__", "verdicts", "records", "rules", "inside", "sandbox", "settings", "efforts", "worker",
               "clock", "selftest", "reading", "diagnose", "check", "report", "run", "candidates", "command")
MOST_LINES, SHOULD_BE_LINES = 500, 300
#: Of one folder.
MOST_MODULES = 30
#: The catalogue of errors is one list of short classes.
LONG = {"errors.py"}


def part_of(name: str) -> str:
    """The folder or top module of a dotted name below ``kernelwright``."""
    return name.split(".")[0]


def imports(tree: ast.Module, *, types: bool = False) -> Iterator[str]:
    """Dotted names below ``kernelwright`` that a module imports, also inside functions.

    Imports under ``if TYPE_CHECKING`` are left out unless ``types``: they do not happen.
    """
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "kernelwright":
                yield from (a.name for a in node.names)
            elif node.module and node.module.startswith("kernelwright."):
                yield node.module.removeprefix("kernelwright.")
        elif isinstance(node, ast.Import):
            yield from ("__init__" if a.name == "kernelwright" else a.name.removeprefix("kernelwright.")
                        for a in node.names if a.name.split(".")[0] == "kernelwright")
        waiting += ast.iter_child_nodes(node)


def wrong_imports(own: str, names: Iterator[str]) -> list[str]:
    """The imports of a module in part ``own`` that point the wrong way."""
    allowed = set(ORDER[:ORDER.index(own) + 1]) | COMMON if own in ORDER else COMMON
    return [n for n in names if part_of(n) not in allowed]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(PACKAGE)))
def test_module(module):
    """One way of imports, a docstring, and not too long."""
    text = module.read_text()
    tree = ast.parse(text)
    path = module.relative_to(PACKAGE).as_posix()
    own = path.split("/")[0].removesuffix(".py")
    assert own in ORDER or own in COMMON, f"{own} has no place in the order of imports"
    assert wrong_imports(own, imports(tree)) == []
    assert not text.strip() or ast.get_docstring(tree), "a module begins with its docstring"
    assert text.count("\n") < MOST_LINES or path in LONG


@pytest.mark.parametrize("module", BEFORE_TARGETS, ids=lambda m: str(m.relative_to(PACKAGE)))
def test_what_is_before_targets_knows_none(module):
    """No import of codegen/, not for types either, and no name of a target, in comments either."""
    text = module.read_text()
    assert [n for n in imports(ast.parse(text), types=True) if part_of(n) == "codegen"] == []
    assert _TARGET.findall(text) == []


def test_no_folder_has_too_many_modules():
    """The package's own among them; a folder's docstring is no module."""
    counts = Counter(m.parent.relative_to(PACKAGE).as_posix() for m in MODULES if m.name != "__init__.py")
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_names_of_targets_are_found():
    assert _TARGET.findall("see codegen/cuda/gram; of CUDA and C++; ATen's Loss.cpp") == ["cuda", "CUDA", "C++"]


def test_long_modules_are_listed():
    """Not a failure: a list to shorten one day."""
    counts = {m.relative_to(PACKAGE).as_posix(): m.read_text().count("\n") for m in MODULES}
    long = sorted(f"{path} ({lines})" for path, lines in counts.items() if lines > SHOULD_BE_LINES)
    if long:
        warnings.warn(f"{len(long)} modules have more than {SHOULD_BE_LINES} lines: {', '.join(long)}", stacklevel=1)


@pytest.mark.parametrize("module", MODULES_OF_THE_JUDGE, ids=lambda m: str(m.relative_to(PACKAGE)))
def test_module_of_the_judge(module):
    """One way of imports between the judge's folders."""
    own = part_of(module.relative_to(PACKAGE / "judge").with_suffix("").as_posix().replace("/", "."))
    assert own in JUDGE_ORDER, f"{own} has no place in the order of imports of the judge"
    allowed = JUDGE_ORDER[:JUDGE_ORDER.index(own) + 1]
    wanted = {n.removeprefix("judge.") for n in imports(ast.parse(module.read_text())) if n.startswith("judge.")}
    assert {n for n in wanted if part_of(n) not in allowed} == set()


def test_the_check_finds_wrong_imports():
    tree = ast.parse("from kernelwright.cli import main\ndef f():\n    import kernelwright.report.text\n")
    assert sorted(wrong_imports("plan", imports(tree))) == ["cli", "report.text"]


def is_module(package: ModuleType, name: str) -> bool:
    """Whether a package has a module of that name, loaded or not."""
    return hasattr(package, "__path__") and importlib.util.find_spec(f"{package.__name__}.{name}") is not None


def test_scripts_import_what_there_is():
    """Scripts that run on a device alone are read by nobody else when a name changes."""
    missing = []
    for script in sorted(path for folder in ("benchmarks", "tools") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(script.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kernelwright"):
                found = importlib.import_module(node.module)
                missing += [f"{script.name}: {node.module}.{a.name}" for a in node.names
                            if not hasattr(found, a.name) and not is_module(found, a.name)]
    assert missing == []


def imported_modules() -> dict[str, set[str]]:
    """For each module the modules of ours that it imports: anywhere in its text, for types alone, too."""
    trees = {m.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"):
             ast.parse(m.read_text()) for m in MODULES}
    found: dict[str, set[str]] = {}
    for name, tree in trees.items():
        found[name] = {n for n in imports(tree, types=True) if n in trees}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kernelwright."):
                names = (f"{node.module.removeprefix('kernelwright.')}.{a.name}" for a in node.names)
                found[name] |= {n for n in names if n in trees}
        found[name] -= {name, *(".".join(name.split(".")[:k]) for k in range(1, name.count(".") + 1))}
    return found


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The sets of nodes of a graph that reach each other, by two walks (Kosaraju)."""
    def walk(start: str, edges: dict[str, set[str]], seen: set[str]) -> list[str]:
        done, waiting = [], [(start, iter(sorted(edges[start])))]
        seen.add(start)
        while waiting:
            following = next((n for n in waiting[-1][1] if n not in seen), None)
            if following is None:
                done.append(waiting.pop()[0])
            else:
                seen.add(following)
                waiting.append((following, iter(sorted(edges[following]))))
        return done

    seen: set[str] = set()
    order = [node for start in graph if start not in seen for node in walk(start, graph, seen)]
    back: dict[str, set[str]] = {node: set() for node in graph}
    for node, others in graph.items():
        for other in others:
            back[other].add(node)
    seen = set()
    found = (frozenset(walk(start, back, seen)) for start in reversed(order) if start not in seen)
    return {some for some in found if len(some) > 1}


def test_no_module_imports_itself_on_the_way():
    """Imports inside of functions count, and those for types: whoever reads one module needs the other, too."""
    assert circles(imported_modules()) == set()


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == {frozenset("bc")}


def test_texts_beside_modules():
    """A module of its folder names each, and all that is no module is in the package's data."""
    unread = [path for path in PACKAGE.rglob("*.cuh") if not any(
        f'"{name}"' in module.read_text() for module in path.parent.glob("*.py") for name in (path.name, path.stem))]
    assert unread == []
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["kernelwright"]
    packed = {path for pattern in data for path in PACKAGE.glob(pattern)}
    others = {p for p in PACKAGE.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}
    assert others - packed == set()


def test_the_document_names_every_folder():
    text = (ROOT / "docs" / "architecture.md").read_text()
    folders = {m.parent.relative_to(PACKAGE).as_posix() for m in MODULES} - {"."}
    assert {folder for folder in folders if f"`{folder}/`" not in text} == set()


@pytest.mark.parametrize("document", ["README.md", "docs/architecture.md"])
def test_documents_name_files_that_exist(document):
    """Paths in backticks are real, seen from the repository or from the package."""
    text = (ROOT / document).read_text()
    paths = set(re.findall(r"`([\w./-]+/[\w.-]*\.(?:py|md|txt|toml)|[\w-]+(?:/[\w-]+)*/)`", text))
    assert paths
    missing = {p for p in paths if not (ROOT / p).exists() and not (PACKAGE / p).exists()}
    assert {p for p in missing if not p.startswith(("benchmarks/results", "my_"))} == set()


def test_every_option_is_in_the_readme():
    from dataclasses import fields

    from kernelwright.settings import ENVIRONMENT, Settings

    text = (ROOT / "README.md").read_text()
    assert {f.name for f in fields(Settings) if f"--{f.name}" not in text} == set()
    assert {v.name for v in ENVIRONMENT if v.name not in text} == set()
