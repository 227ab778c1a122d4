"""Reading answers: thoughts, fences, classes in pieces, versions, ends that come too early."""

from __future__ import annotations

import ast
import string

import pytest
from graph_tools import examples
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.propose.answers import continued, read_answer, read_file
from kernelwright.propose.fences import take_apart
from kernelwright.propose.placeholders import placeholders

HEAD = "import torch\nfrom torch import nn\n"
WHOLE = HEAD + """

class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x):
        return torch.relu(self.linear(x))
"""


def fenced(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```\n"


def candidate(*parts: str, finish: str = "") -> str:
    return read_answer("\n".join(parts), finish).candidate


def same(found: str, wanted: str) -> bool:
    return ast.dump(ast.parse(found)) == ast.dump(ast.parse(wanted))


# ---- thoughts and fences ---------------------------------------------------------------------------------


@pytest.mark.parametrize("thought", [
    "<think>\n{}\n</think>\n", "<thinking>{}</thinking>\n", "{}\n</think>\n",
    "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>"], ids=str)
def test_thoughts_are_no_answer(thought: str) -> None:
    draft = fenced(HEAD + "class ModelNew(nn.Module):\n    def forward(self, x):\n        return x")
    found = read_answer(thought.format("Hmm.\n" + draft) + "Here:\n" + fenced(WHOLE))
    assert same(found.candidate, WHOLE) and found.form == "complete" and "Hmm." in found.thinking


def test_a_tag_inside_of_code_is_code() -> None:
    text = WHOLE + '\nNOTE = """\n<think>\nnot a thought\n</think>\n"""\n'
    found = read_answer("Here:\n" + fenced(text))
    assert same(found.candidate, text)


@pytest.mark.parametrize("text", [
    fenced(WHOLE), fenced(WHOLE, ""), fenced(WHOLE, "py"), "~~~python\n" + WHOLE + "~~~",
    "````python\n" + WHOLE + "````", "1. Do this:\n\n   ```python\n"
    + "".join(f"   {line}\n" if line else "\n" for line in WHOLE.split("\n")) + "   ```\n",
    "> ```python\n" + "".join(f"> {line}\n" for line in WHOLE.split("\n")) + "> ```\n",
    "```markdown\nHere:\n" + fenced(WHOLE) + "```\n", fenced(WHOLE).replace("\n", "\r\n"), "\ufeff" + fenced(WHOLE),
    "```python " + WHOLE.rstrip() + "```\nDone.", fenced(WHOLE, "python title=\"model_new.py\""), WHOLE,
    "Sure!\n\n" + WHOLE + "\nThis is fast.\nHope it helps (really)!\n"], ids=str)
def test_fences_of_all_kinds(text: str) -> None:
    found = read_answer(text)
    assert same(found.candidate, WHOLE) and found.form == "complete"


def test_a_forgotten_fence_ends_where_the_next_begins() -> None:
    kernel = '#include <torch/extension.h>\ntorch::Tensor f(torch::Tensor x) { return x; }'
    found = take_apart(f"```cpp\n{kernel}\n```python\n{WHOLE}```\n")
    assert [b.language for b in found.blocks] == ["cpp", "python"] and found.blocks[0].text == kernel


def test_lines_of_blocks_count_in_the_whole_answer() -> None:
    text = "<think>\na\nb\n</think>\nwords\n" + fenced("x = 1")
    (block,) = take_apart(text).blocks
    assert text.split("\n")[block.line - 1] == "x = 1"


# ---- from blocks to a file -------------------------------------------------------------------------------


def test_imports_helpers_and_class_in_blocks_of_their_own() -> None:
    found = candidate(fenced(HEAD), "The kernel:", fenced("def act(x):\n    return torch.relu(x)"),
                      "The module:", fenced(WHOLE.replace(HEAD, "").replace("torch.relu", "act")))
    names = {s.name for s in ast.parse(found).body if isinstance(s, (ast.FunctionDef, ast.ClassDef))}
    assert names == {"act", "ModelNew"} and "import torch\n" in found and "from torch import nn" in found


def test_the_last_definition_before_the_class_counts() -> None:
    found = candidate(fenced("FACTOR = 1"), fenced("FACTOR = 2"), fenced(WHOLE.replace("(x))", "(x)) * FACTOR")),
                      fenced("FACTOR = 3"))
    assert "FACTOR = 2" in found and "FACTOR = 1" not in found and "FACTOR = 3" not in found


@pytest.mark.parametrize("indent", ["    ", ""])
def test_a_class_over_blocks(indent: str) -> None:
    head, body = WHOLE.split("    def forward")
    forward = f"{indent}def forward" + body.replace("\n    ", f"\n{indent}")
    assert same(candidate(fenced(head), "then", fenced(forward)), WHOLE)


def test_a_later_version_without_constructor_gets_it() -> None:
    first = WHOLE.replace("torch.relu(self.linear(x))", "self.linear(x)")
    later = ("class ModelNew(nn.Module):\n    # __init__ as above\n"
             "    def forward(self, x):\n        return torch.relu(self.linear(x))\n")
    found = candidate(fenced(first), "Better:", fenced(HEAD + later.replace("    # __init__ as above\n", "")))
    tree = ast.parse(found)
    (kind,) = (s for s in tree.body if isinstance(s, ast.ClassDef))
    assert {s.name for s in kind.body if isinstance(s, ast.FunctionDef)} == {"__init__", "forward"}
    assert "relu" in found


def test_of_versions_the_last_whole_one_counts() -> None:
    gap = WHOLE.replace("return torch.relu(self.linear(x))", "pass")
    other = WHOLE.replace("relu", "tanh")
    assert "tanh" in candidate(fenced(WHOLE), fenced(other), "not done:", fenced(gap))
    assert "relu" in candidate(fenced(other), fenced(WHOLE))


def test_a_method_changes_the_class_only_where_the_words_say_so() -> None:
    method = "def forward(self, x):\n    return torch.tanh(self.linear(x))"
    assert "tanh" in candidate(fenced(WHOLE), "Replace forward with", fenced(method))
    assert "tanh" not in candidate(fenced(WHOLE), "The original had", fenced(method))


def test_a_source_that_stands_apart_gets_its_name() -> None:
    host = "torch::Tensor f(torch::Tensor x);"
    device = ("#include <torch/extension.h>\n__global__ void k(float* x) { }\n"
              "torch::Tensor f(torch::Tensor x) { return x; }")
    user = HEAD + ("from torch.utils.cpp_extension import load_inline\n"
                   "module = load_inline(name='m', cpp_sources=cpp_source, cuda_sources=cuda_source)\n")
    found = candidate(fenced(host, "cpp"), fenced(device, "cuda"), fenced(user + WHOLE.replace(HEAD, "")))
    values = {s.targets[0].id: s.value.value.strip() for s in ast.parse(found).body
              if isinstance(s, ast.Assign) and isinstance(s.value, ast.Constant)}
    assert values == {"cpp_source": host, "cuda_source": device}


def test_another_name_for_the_class() -> None:
    found = read_answer(fenced(WHOLE.replace("ModelNew", "FastModel")))
    assert found.candidate.rstrip().endswith("ModelNew = FastModel") and "FastModel" in found.notes[0]
    two = fenced(WHOLE.replace("ModelNew", "A")) + fenced(WHOLE.replace("ModelNew", "Model"))
    assert "ModelNew = Model" in read_answer(two).candidate


# ---- whether it is whole ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "finish", "form"), [
    ("", "", "empty"), ("  \n", "stop", "empty"), ("", "length", "cut off"), ("I would rather not.", "stop", "no code"),
    ("<think>\nhm", "", "cut off"), ("words, and then", "length", "cut off"),
    (fenced(WHOLE), "stop", "complete"), (fenced(WHOLE), "length", "complete"),
    ("```python\n" + WHOLE, "", "complete"), ("```python\n" + WHOLE, "length", "cut off"),
    ("```python\n" + WHOLE[:-40], "", "cut off"),
    ("```python\n" + WHOLE.replace("return torch.relu(self.linear(x))", "y = 1"), "", "cut off"),
    (fenced(WHOLE.replace("return", "retrun torch")), "stop", "broken"),
    (fenced(WHOLE.replace("return torch.relu(self.linear(x))", "...")), "stop", "placeholder"),
    (fenced(WHOLE.replace("return", "# ... rest of the code\n        return")), "stop", "placeholder")], ids=str)
def test_forms(text: str, finish: str, form: str) -> None:
    assert read_answer(text, finish).form == form


@pytest.mark.parametrize("line", [
    "# ... same as before", "# TODO: implement the kernel", "# rest of the code unchanged", "# your code here"])
def test_comments_that_stand_for_code(line: str) -> None:
    assert [p.line for p in placeholders(f"x = 1\n{line}\n")] == [2]


@pytest.mark.parametrize("line", [
    "# TODO: tune the block size", "# the remainder of the division", "x = '...'", "y = x[..., 0]",
    "# a[...] is a view"])
def test_comments_that_do_not(line: str) -> None:
    assert placeholders(f"x = 1\n{line}\n") == []


def test_a_source_with_a_gap() -> None:
    text = 's = """\n#include <torch/extension.h>\nvoid f() {\n  // ... compute here\n}\n"""\n'
    assert [p.line for p in placeholders(text)] == [4]


def test_a_file_is_its_own_candidate() -> None:
    assert read_file(WHOLE).candidate == WHOLE and read_file(WHOLE[:-3]).form == "cut off"
    assert read_file("").form == "empty"


# ---- going on --------------------------------------------------------------------------------------------


CUT = ("Here:\n```python\n" + WHOLE).split("self.linear(x)")[0]
REST = "self.linear(x))\n```\nDone."


@pytest.mark.parametrize("second", [
    REST, "```python\n" + "        return torch.relu(" + REST, "        return torch.relu(" + REST,
    CUT[-60:] + REST, "Continuing:\n```python\n" + CUT[-60:] + REST, "Sorry.\n" + fenced(WHOLE),
    "<think>where was I</think>\n" + REST], ids=str)
def test_going_on(second: str) -> None:
    found = read_answer(continued(CUT, second))
    assert same(found.candidate, WHOLE) and found.form == "complete", found.candidate


@given(st.integers(40, len(CUT) + 40), st.integers(0, 80))
@examples(60)
def test_wherever_it_is_cut(place: int, repeated: int) -> None:
    """A text in two, the second of which may repeat the end of the first, is that text."""
    text = "Here:\n```python\n" + WHOLE + "```\n"
    place = min(place, len(text) - 20)
    first, rest = text[:place], text[place:]
    again = first[max(0, place - repeated):] if repeated >= 12 else ""
    assert same(read_answer(continued(first, again + rest)).candidate, WHOLE)


@given(st.text(string.printable, max_size=400), st.sampled_from(["", "length", "stop"]))
@examples(150)
def test_whatever_the_text_says_it_is_read(text: str, finish: str) -> None:
    found = read_answer(text, finish)
    assert found.form in ("complete", "placeholder", "cut off", "broken", "no code", "empty")
    assert bool(found.candidate) or found.form in ("cut off", "no code", "empty")
