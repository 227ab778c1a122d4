"""Lines of emitted files: none is too long, and no token of them changes."""

from __future__ import annotations

import ast

import pytest
from places import ROOT

import kernelwright
from kernelwright.emit.layout import WIDTH, broken_c, broken_python
from kernelwright.roofline.devices import GENERIC_CPU, H200

DEVICES = {"c": GENERIC_CPU, "cpp": GENERIC_CPU, "cuda": H200}

ARGUMENTS = ", ".join(f"const float* __restrict__ in{n}" for n in range(9))
SUM = " + ".join(f"(value[{n}][v].x * weight[{n}])" for n in range(12))
CODE = [
    f"static const char* k0_sum({ARGUMENTS}, void* workspace) {{",
    f"      sums[v * 4 + 0] += {SUM};  // of a row",
    f"    if (const char* failure = k0_sum({', '.join(f'input_{n}_ptr' for n in range(14))})) return failure;",
    f'  KW_CHECK("a text, with a comma ( and {"x" * 60}", function(first_argument, second_argument, third_argument));',
    "  const int x = " + "".join(f"i == {n} ? {n * 7} : " for n in range(20)) + "0;",
]


@pytest.mark.parametrize("line", CODE)
def test_long_lines_are_broken_between_tokens(line):
    code, _, comment = line.partition("  // ")
    text = broken_c(line)
    assert all(len(part) <= WIDTH for part in text.split("\n")) and "\n" in text
    rest = [part for part in text.split("\n") if not part.lstrip().startswith("//")]
    assert "".join("".join(rest).split()) == "".join(code.split())
    assert comment in text and "float*\n" not in text.replace(" \n", "\n")


def test_comments_and_directives_go_on_as_they_begin():
    words = " ".join(f"word{n}" for n in range(30))
    assert all(line.startswith("  // ") for line in broken_c(f"  // {words}").split("\n"))
    lines = broken_c(f"#pragma omp parallel for schedule(static) {words}\nx").split("\n")
    assert len(lines) > 2 and all(line.endswith(" \\") for line in lines[:-2])
    assert not lines[-2].endswith("\\") and lines[-1] == "x"
    macro = f"#define A(x) \\\n  {SUM}; \\\n  last"
    assert all(line.endswith("\\") for line in broken_c(macro).split("\n")[:-1]) and broken_c(macro).count("\n") > 2


def test_python_is_broken_in_brackets_alone():
    table = {"a" * 30: tuple(range(60)), "b's \"c\"": ["d, e"] * 20}
    text = broken_python(f"TABLE = {table!r}")
    assert all(len(line) <= WIDTH for line in text.split("\n"))
    assert ast.literal_eval(text.removeprefix("TABLE = ")) == table
    assert broken_python(f"x = {' + '.join(['y'] * 60)}").count("\n") == 0
    assert broken_python(f"# {'x, ' * 60}") == f"# {'x, ' * 60}"


def test_comments_of_python_stay_comments():
    comment = "# words (and more, of them)" + " words (and more, of them)" * 6
    text = f"    x = first(a, b)  {comment}\n    y = first({', '.join(f'a{n}' for n in range(40))})  {comment}"
    assert ast.dump(ast.parse("if 1:\n" + broken_python(text))) == ast.dump(ast.parse("if 1:\n" + text))


def test_short_lines_stay():
    text = "int x = 0;  // " + "y" * 90 + "\n#if A\n"
    assert broken_c(text) == text and broken_python(text) == text


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "generated").glob("*.py")), ids=lambda p: p.stem)
def test_no_line_of_an_example_is_too_long(path):
    assert not [line for line in path.read_text(encoding="utf-8").split("\n") if len(line) > WIDTH]


@pytest.mark.parametrize("name", ["convolution/atrous", "blocks/encoder_layer", "pooling/stem_max_pool"])
@pytest.mark.parametrize("target", DEVICES)
def test_no_line_of_a_file_is_too_long(name, target):
    """With contractions as kernels, where the target has them: their texts have the longest lines."""
    text = kernelwright.explain(ROOT / "problems" / f"{name}.py", target=target, device=DEVICES[target],
                                contractions="measured").source
    assert "_KERNELWRIGHT_SOURCE" in text and max(map(len, text.splitlines())) <= WIDTH
