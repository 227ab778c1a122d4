"""Index text has no terms that add nothing: how terms are joined, and a spread of kernels' texts of every target."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from contraction_cases import cases as contractions
from contraction_cases import few_channel_cases, two_phase_cases
from loop_cases import cases
from places import ROOT

from kernelwright.codegen.cuda.gemm.generate import tilings
from kernelwright.codegen.generate import TARGETS, generate_kernel
from kernelwright.codegen.region_sum.text import Dialect, table
from kernelwright.codegen.template import fill
from kernelwright.codegen.terms import grouped, modulo, over, plus, times

# What a reader would cross out. Numbers with LL beside a name give a product its width and stay (``1LL * processors``).
NOISE = {
    "a zero that is added": r"[+-] 0(?:LL|u)?(?![\w.])|(?<![\w.)\]] )(?<![\w.)\]])\b0(?:LL|u)? [+] ",
    "a factor of one": r"[*/] 1u?(?![\w.])|(?<![\w.)\]/%*] )(?<![\w.)\]])\b1u? [*] |> ?\([^()]*\) \* 1LL",
    "a product with zero": r"[*] 0(?:LL|u)?(?![\w.])|(?<![\w.)\]])\b0(?:LL|u)? [*] ",
    "a rest of one": r"% 1u?(?![\w.])",
    "a number that is cast": r"static_cast<(?:int|long long)>\(-?\d+(?:LL)?\)",
    "a name in parentheses": r"[+*-] \([a-z]\w*\)(?! ?[\w(])",  # a cast has an operand
}


def noise(text: str) -> list[str]:
    """What stands in a text that adds nothing, by its lines."""
    found = []
    for line in text.splitlines():
        code = "" if "asm" in line or '"' in line else line.split("//")[0]
        found += [f"{what}: {line.strip()}" for what, pattern in NOISE.items() if re.search(pattern, code)]
    return found


def test_noise_is_found():
    for line in ("x[a + 0]", "base + 0LL;", "0 + i * 3", "i * 1;", "(1 * b)", "c / 1]", "c % 1u", "f(0 * b)", "a * 0;",
                 "static_cast<int>(128)", "to + (r0)", "static_cast<long long>(x) * 1LL"):
        assert len(noise(line)) >= 1, line
    for line in ("1LL * processors", "a + 0.5f", "x * 1.5", "10 + b", "b * 10", "f(0)", "0.0f + x", "x / 16 * 8"):
        assert not noise(line), line


def test_terms():
    assert plus("a", 0, "b", "-3", "0") == "a + b - 3" and plus(0, "0") == "0" and plus(0, "b") == "b"
    assert times("i", 1) == "i" and times("i", 0) == "0" and times("i", -1) == "-i" and times("i", 4) == "i * 4"
    assert times("0", 4) == "0" and times("i", 1, "LL") == "i * 1LL"
    assert over("a", 1) == "a" and over("a", 2, "u") == "a / 2u" and modulo("a", 1) == "0" and modulo("a", 3) == "a % 3"
    assert grouped("a") == "a" and grouped("a + b") == "(a + b)"


@pytest.mark.parametrize(("template", "expected"), [
    ("x[a + @ZERO@]", "x[a]"), ("x[@ZERO@ + a]", "x[a]"), ("a - @ZERO@;", "a;"), ("f(@ZERO@)", "f(0)"),
    ("a + @ZERO@ * b;", "a;"), ("c * @ZERO@ + b", "b"), ("(a + b) * @ONE@ + c", "(a + b) + c"),
    ("a / @ONE@ / 2", "a / 2"), ("a * @ONE@;", "a;"), ("= @ONE@ * a;", "= a;"),
    ("a + b % @ONE@ * @EIGHT@);", "a);"), ("f(a % @ONE@);", "f(0);"),
    ("static_cast<int>(a % @ONE@)", "0"), ("f((a * @ONE@))", "f(a)"),
    # What has to stay.
    ("a * @ONE@LL", "a * 1LL"), ("a / @ONE@.5f", "a / 1.5f"), ("a - @ONE@ + b", "a - 1 + b"), ("x@ZERO@ + b", "x0 + b"),
    ("a / (@ONE@ + b)", "a / (1 + b)"), ("a - @ZERO@u", "a - 0u"), ("a % (b * @ONE@)", "a % b"),
    ("<@ONE@, @ZERO@>", "<1, 0>"),
    ("a[i] % @ONE@", "a[i] % 1"), ("c / @ONE@ * b", "c * b"), ("if (a * @ONE@)", "if (a)"), ("a << @ZERO@;", "a << 0;"),
])
def test_a_number_that_adds_nothing_is_not_filled_in(template, expected):
    assert fill(template, {"ZERO": 0, "ONE": 1, "EIGHT": 8}, spare=("ZERO", "ONE", "EIGHT")) == expected


@pytest.mark.parametrize("values", [(0, 128, 256), (5, 4, 3), (0, 1, 2), (7, 7), (1, 1 << 40), (0, 1 << 31), (3, 0, 9)])
def test_tables(values):
    text = table("t", values, Dialect("static int", "static"))
    assert not noise(text)
    if found := re.search(r"return ([^;?]*); }", text):
        python = found[1].replace("LL", "")
        assert [eval(python, {"i": i}) for i in range(len(values))] == list(values)


@pytest.mark.parametrize("target", TARGETS)
def test_loops_say_nothing_that_adds_nothing(target):
    for case in cases():
        try:
            text = generate_kernel(case.kernel, "kernel", target).definition
        except ValueError:
            continue
        assert noise(text) == [], case.name


@pytest.mark.parametrize("scheme", ["fp16x3", "fp16"])
@pytest.mark.parametrize("core", ["wgmma", "mma"])
def test_contractions_say_nothing_that_adds_nothing(core, scheme):
    texts = 0
    for case in (*contractions(scheme), *two_phase_cases(scheme), *few_channel_cases(scheme)):
        for tiling in tilings(case.kernel, core)[::5]:
            try:
                text = generate_kernel(replace(case.kernel, tiling=tiling), "kernel", "cuda").definition
            except ValueError:
                continue
            assert noise(text) == [], (case.name, tiling)
            texts += 1
    assert texts > 10


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "generated").glob("*.py")), ids=lambda path: path.stem)
def test_kernels_of_the_examples_say_nothing_that_adds_nothing(path):
    kernels = path.read_text(encoding="utf-8").partition("_SOURCE = r\"\"\"")[2].partition("\"\"\"")[0]
    assert noise(kernels) == []
