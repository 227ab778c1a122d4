"""How alike texts are, and what is told of it; the score that stands beside the share of the floor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from judge_tools import judged, right, timing

from kernelwright.judge.reading.alike import NEAR, alike, contained, program_of, with_alike
from kernelwright.judge.records import CandidateResult
from kernelwright.judge.report.sol_score import sol_score
from kernelwright.judge.report.text import render_text

ONE = '''
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
__global__ void scale(const float* in, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;  // one element
    if (i < n) out[i] = expf(in[i]) * 2.0f;
}
torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x);
    scale<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
"""
module = load_inline(name="one", cpp_sources="torch::Tensor run(torch::Tensor x);", cuda_sources=SOURCE,
                     functions=["run"])


class ModelNew(torch.nn.Module):
    """Doubles exponentials."""

    def __init__(self):
        super().__init__()
        self.kernels = module

    def forward(self, x):
        return self.kernels.run(x.contiguous()) + 1
'''
#: The same with other names, numbers, strings and comments.
RENAMED = ONE.replace("scale", "k0").replace("int i =", "int index =").replace("[i]", "[index]").replace(
    "if (i <", "if (index <").replace("// one element", "/* anything */").replace("2.0f", "3.5f").replace(
    "255) / 256, 256", "511) / 512, 512").replace("self.kernels", "self._m").replace("run", "go").replace(
    '"one"', '"another"').replace("Doubles exponentials.", "Something else.").replace("module", "ext").replace(
    "SOURCE", "TEXT").replace("+ 1", "+ 2")
OTHER = ONE.replace("expf(in[i]) * 2.0f", "fmaxf(in[i], 0.f) + tanhf(in[i]) / (1.f + expf(-in[i]))")
DIFFERENT = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        parts = [p.exp() for p in x.split(4)]
        return torch.cat(parts) * 2 + 1
"""


def near(one: str, other: str) -> float:
    programs = program_of(one), program_of(other)
    assert programs[0] is not None and programs[1] is not None
    assert alike(*programs) == alike(*reversed(programs))
    return alike(*programs)


def test_names_numbers_strings_and_comments_are_put_aside():
    assert RENAMED != ONE and near(ONE, RENAMED) == 1 and near(ONE, ONE) == 1


def test_what_is_computed_is_not():
    assert near(ONE, ONE.replace("expf", "logf")) < 1  # a name from elsewhere
    assert near(DIFFERENT, DIFFERENT.replace("p.exp()", "p.log()")) < 1
    assert near(DIFFERENT, DIFFERENT.replace("* 2 + 1", "* 2 - 1")) < 1
    assert near(ONE, OTHER) < 1 and near(ONE, DIFFERENT) < 0.5 < NEAR


def test_a_constructor_that_both_took_from_the_model_says_nothing():
    layers = "".join(f"        self.layer{n} = torch.nn.Linear({n}, {n} + 1, bias={n % 2 == 0})\n" for n in range(20))
    head = "import torch\n\nclass M(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n" + layers
    model = program_of(head + "    def forward(self, x):\n        return torch.relu(self.layer1(x)).sum()\n")
    texts = [head + f"    def forward(self, x):\n        return {end}\n" for end in (
        "torch.zeros_like(x)", "torch.stack([x.log(), x.exp(), x.tanh()]).amax(0)",
        "torch.stack([x.log(), x.exp(), x.tanh()]).amax(0).neg()")]
    zeros, stacked, near_stacked = map(program_of, texts)
    assert model is not None and zeros is not None and stacked is not None and near_stacked is not None
    assert alike(zeros, stacked, model) < 0.5 < alike(zeros, stacked)
    assert alike(stacked, near_stacked, model) > alike(stacked, zeros, model)
    assert alike(zeros, zeros, model) == 1


def test_a_part_stands_in_the_whole():
    part, whole = program_of(DIFFERENT), program_of(DIFFERENT + "\n\ndef get_inputs():\n    return [torch.rand(8)]\n")
    assert part is not None and whole is not None
    assert contained(part, whole) > 0.9 and alike(part, whole) < contained(part, whole)


@pytest.mark.parametrize("text", ["def", "\0", "(" * 5000 + ")" * 5000, "x = " + "-" * 100_000 + "1", "",
                                  "x = " + " + ".join("y" for _ in range(5000))])
def test_no_text_ends_the_judge(text):
    program_of(text)
    a_name = program_of("x = 1\n" * 3)
    assert a_name is not None and alike(a_name, a_name) == 1


@pytest.fixture
def results(tmp_path: Path) -> list[CandidateResult]:
    texts = {"a.py": ONE, "b.py": RENAMED, "c.py": DIFFERENT, "d.py": DIFFERENT, "e.py": "def"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return [right(str(tmp_path / name)) for name in texts]


def test_each_pair_is_told_with_words_that_say_what_was_compared(results, tmp_path):
    known = tmp_path / "known.py"
    known.write_text(ONE + "\n\nEXTRA = [1, 2, 3]\n")
    model = DIFFERENT.replace("ModelNew", "Model") + "\n\ndef get_inputs():\n    return [torch.rand(8)]\n"
    a, b, c, d, e = with_alike(results, model, "model.py", [known])
    assert [(Path(x.file).name, x.of) for x in a.alike] == [("b.py", "candidate"), ("known.py", "known")]
    assert b.alike[0].words == "but for comments, names and literals is" and b.alike[0].share == 1
    assert c.alike[0].words == "is the same text as" and {x.of for x in c.alike} == {"candidate", "problem"}
    assert not e.alike
    text = " ".join(render_text(judged(a, b, c, d, e), width=100).split())
    assert text.count("a.py but for comments, names and literals is b.py") == 1
    assert "b.py but for comments, names and literals is a.py" not in text and "c.py is the same text as d.py" in text
    assert "c.py but for comments, names and literals stands as a whole in model.py" in text
    Path(c.file).write_text("SIZES = [1]\n" + DIFFERENT)
    found = next(x for x in with_alike(results, model, "model.py")[2].alike if x.of == "problem")
    assert NEAR <= found.share < 1 and found.words.endswith("of 6 tokens, names and literals put aside, from")


def test_a_candidate_that_went_away_is_like_nobody(results):
    Path(results[0].file).unlink()
    assert not with_alike(results, "", "model.py")[0].alike


def test_the_score_has_a_half_at_the_baseline_and_one_at_the_limit():
    eager = timing(2e-3, speed=1.0)
    assert sol_score(replace(eager, floor_seconds=1e-3)) == 0.5
    assert sol_score(replace(eager, seconds=1e-3, speedup=timing(speed=2.0).speedup, floor_seconds=1e-3)) == 1
    faster = sol_score(timing(1e-3, speed=4.0))
    assert faster is not None and faster == pytest.approx(1 / (1 + (1e-3 - 0.5e-3) / (4e-3 - 0.5e-3)))
    assert sol_score(replace(eager, floor_seconds=None)) is None and sol_score(replace(eager, speedup=None)) is None
    assert sol_score(replace(eager, floor_seconds=3e-3)) is None  # eager is at the limit already
