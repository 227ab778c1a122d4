"""Problem files that say how to become tiny."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import ROOT

from kernelwright import errors
from kernelwright.emit.model_source import extract_model_source
from kernelwright.problem import load_problem

PROBLEM = """
import torch
from torch import nn
width, scale = 10**9, 3.0
{tiny}
class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.features = features
    def forward(self, x):
        return x * scale + width
def get_inputs():
    return [torch.ones(2, width)]
def get_init_inputs():
    return [width]
"""


def load(folder: Path, line: str, **options: bool):
    """The problem with a line for TINY."""
    file = folder / "problem.py"
    file.write_text(PROBLEM.format(tiny=line))
    return load_problem(file, device="cpu", **options)


def test_inputs_constructor_forward_and_emitted_source_are_tiny(tmp_path):
    problem = load(tmp_path, 'TINY = {"width": 4, "scale": -0.5}', tiny=True)
    model, inputs = problem.make_model(0), problem.make_inputs(0)
    assert inputs[0].shape == (2, 4) and model.features == 4
    assert model(*inputs).unique().tolist() == [3.5]
    source = extract_model_source(problem)
    names: dict = {}
    exec("\n".join((source.imports, source.support)), names)
    # What stands behind the class overrides what stands before it.
    exec(source.trailing, names)
    assert (names["width"], names["scale"]) == (4, -0.5)
    lines = problem.source.splitlines()
    assert lines[:4] == PROBLEM.splitlines()[:4], "lines keep their numbers"


def test_without_the_option_nothing_changes(tmp_path):
    problem = load(tmp_path, 'TINY = {"width": 4}')
    assert problem.init_inputs == (10**9,) and problem.source == PROBLEM.format(tiny='TINY = {"width": 4}')


@pytest.mark.parametrize("tiny, found", [
    ("", "defines no dictionary TINY"), ("TINY = [4]", "it is list"), ("TINY = {}", "it is dict"),
    ('TINY = {"widht": 4}', "names 'widht'"), ('TINY = {"width": torch.ones(2)}', "no literal")])
def test_what_is_no_usable_dictionary_is_a_coded_error(tmp_path, tiny, found):
    with pytest.raises(errors.TinyUnusable, match=found) as caught:
        load(tmp_path, tiny, tiny=True)
    assert caught.value.code == "KW119"


EXAMPLES = sorted([*(ROOT / "examples").glob("*.py"), ROOT / "examples" / "tutorials" / "gated_pool.py"])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_all_examples_can_be_tiny(example: Path) -> None:
    problem = load_problem(example, device="cpu", tiny=True)
    inputs = problem.make_inputs(0)
    problem.make_model(0)(*inputs)
    assert sum(x.numel() for x in inputs) < 100_000
