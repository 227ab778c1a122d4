"""What an emitted file has of the runtime, and the user's lines as comments in it."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kernelwright.codegen.generate import TARGETS
from kernelwright.emit.assembly import folded, used
from kernelwright.emit.embedded import PLACE
from kernelwright.emit.lines import comment, source_lines
from kernelwright.emit.runtime import RUNTIME, RUNTIME_EMBEDDED, build_text, conditions_of
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Origin, make
from kernelwright.plan.steps import replaced_nodes

TEXT = '''\
import os
import re

LIMIT = 3  # of something


# What the first one does.
def first(x):
    """First."""
    if FAST and not SLOW:
        x = x + 1
    else:
        # The other way.
        if SLOW:
            x = os.path.join(x)
        x = x + LIMIT
    return second(x)


def second(x):
    return x


def third(x):
    return re.escape(x)
'''


@pytest.mark.parametrize(("values", "kept", "gone"), [
    ({"FAST": True, "SLOW": False}, ["x + 1"], ["LIMIT\n    return", "os.path", "if ", "else"]),
    ({"FAST": True, "SLOW": True}, ["os.path", "x + LIMIT", "# The other way."], ["x + 1", "if ", "else"]),
    ({"FAST": False, "SLOW": False}, ["x + LIMIT"], ["x + 1", "os.path", "if ", "else"])])
def test_the_branch_that_holds_stays(values, kept, gone):
    text = folded(TEXT, values)
    ast.parse(text)
    assert all(words in text for words in kept) and not any(words in text for words in gone)


def test_other_conditions_stay_as_they_are():
    assert folded(TEXT, {"ELSE": True}) == TEXT


def test_a_text_is_read_once(monkeypatch):
    """However many conditions stand beside and in each other: a file is written many times in a run."""
    read, parse = [], ast.parse
    monkeypatch.setattr(ast, "parse", lambda text, *more: read.append(text) or parse(text, *more))
    text = folded(TEXT + "\n\n".join(f"if FAST:\n    a{number} = {number}\nelse:\n    b = 0" for number in range(40)),
                  {"FAST": True, "SLOW": False})
    assert "a39 = 39" in text and "FAST" not in text and len(read) == 1


def test_what_is_used_stays_with_all_that_it_uses():
    text = used(TEXT, ["first"])
    assert "import os" in text and "LIMIT = 3" in text and "# What the first one does." in text and "second" in text
    assert "third" not in text and "import re" not in text
    assert used(TEXT, ["third"]).split("\n", 1)[0] == "import re" and used(TEXT, ["nothing"]) == ""


def test_a_piece_is_read_once_in_whatever_text_it_stands(monkeypatch):
    used(TEXT, ["first"])
    read, parse = [], ast.parse
    monkeypatch.setattr(ast, "parse", lambda text, *more: read.append(text) or parse(text, *more))
    assert "return x + x" in used(TEXT.replace("return x\n", "return x + x\n"), ["first"])
    assert read == ["def second(x):\n    return x + x"]


def test_blank_lines_within_a_statement():
    text = 'WORDS = """\n\n\nfirst = 1\n"""\n\n\n# Of the list.\nNAMES = [\n    1,\n\n\n    WORDS]\n'
    assert used(text, ["NAMES"]) == text.rstrip("\n").replace('"""\n\n\n#', '"""\n#')
    assert used(text, ["first"]) == ""


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_has_its_own_way_to_build(target):
    text = build_text(TARGETS[target])
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert not names & {"CUDA", "COMMAND", "UNITS", "EMBEDDED"}
    assert ("load_inline" in text) == (TARGETS[target].built_by != "command")
    assert ("get_device_capability" in text) == (TARGETS[target].built_by == "cuda extension")


@pytest.mark.parametrize("units", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_compiled_kernels_stand_behind_everything_else_and_in_no_other_file(target, units):
    holds = {**conditions_of(TARGETS[target]), "UNITS": units}
    text = used(folded(RUNTIME_EMBEDDED, {**holds, "EMBEDDED": True}), ["_kernelwright_library"])
    before, after = text.split(PLACE)
    ast.parse(text)
    assert "def _kernelwright_fitting" in before and "def " not in after and "_kernelwright_build()" in after
    other = used(folded(RUNTIME, {**holds, "EMBEDDED": False}), ["_kernelwright_library"])
    assert not re.search("LIBRARIES|unpacked|fitting|base64|zlib|EMBEDDED", other)


@pytest.mark.parametrize("line", ["x = y \\", 'x = """a"""', "x = '*/ int evil; /*'", "x = 1\r\n#error", "x" * 500,
                                  "x = 1 // \u2028 int evil;", "x = '\\\\\\"])
def test_a_comment_ends_nowhere_but_at_its_end(line):
    text = comment(line, "//")
    assert len(text) <= 118 and text.startswith("// ") and not text.endswith("\\")
    assert '"""' not in text and "*/" not in text and len(text.splitlines()) == 1


def test_lines_are_named_by_file_alone_and_each_once():
    nodes = [SimpleNamespace(origin=Origin(file=file, line=line, text=text)) for file, line, text in (
        ("/home/user/model.py", 12, "y = f(x)"), ("/home/user/model.py", 7, "x = g(x)"),
        ("C:\\work\\model.py", 12, "y = f(x)"))]
    nodes.append(SimpleNamespace(origin=None))
    assert source_lines(nodes) == ["// model.py:7: x = g(x)", "// model.py:12: y = f(x)"]
    many = [SimpleNamespace(origin=Origin(file="m.py", line=n, text="x")) for n in range(1, 12)]
    assert source_lines(many)[-1] == "// and 5 more lines" and len(source_lines(many)) == 7


def test_a_kernel_replaces_what_its_nodes_stand_for_and_the_views_that_it_reads_through():
    x = make("input", name="x", shape=(4, 6), dtype="float32")
    first = make("exp", x)
    view = make("permute", first, axes=(1, 0))
    last = make("tanh", view)
    graph = Graph((x,), (last,), 0, (), False)
    assert replaced_nodes(graph, (last,)) == [last, view]
    origins = [make("sin", x), make("cos", x)]
    assert replaced_nodes(replace(graph, replaces={last: tuple(origins)}), (last, first)) == [*origins, view, first]
