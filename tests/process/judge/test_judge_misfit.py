"""Parameters that do not fit the model's: what is said of them, and the verdict."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from kernelwright.judge.diagnose.misfit import find_misfit
from kernelwright.judge.diagnose.words import classify, reason

PROBLEM = "class Model(nn.Module):\n    def __init__(self):\n        self.norm = nn.LayerNorm(8)\n"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)


def candidate(**parts: nn.Module | torch.Tensor) -> nn.Module:
    """A module with these layers, parameters and buffers."""
    found = nn.Module()
    for name, part in parts.items():
        if isinstance(part, nn.Module | nn.Parameter):
            setattr(found, name, part)
        else:
            found.register_buffer(name, part)
    return found


@pytest.mark.parametrize(("parts", "words", "fix", "loads"), [
    ({"gamma": nn.Parameter(torch.ones(8)), "beta": nn.Parameter(torch.zeros(8))},
     "lacks norm.weight and norm.bias; it has gamma and beta", "self.norm = nn.LayerNorm(8)", False),
    ({"norm": nn.LayerNorm(8, bias=False)}, "lacks norm.bias", "self.norm = nn.LayerNorm(8)", False),
    ({"norm": nn.LayerNorm(4)}, "norm.weight has shape (4,) instead of (8,)", "in its shapes", False),
    ({"norm": nn.LayerNorm(8), "ones": torch.ones(3)}, "it has ones, which the model does not have",
     "persistent=False", True),
])
def test_what_keeps_a_state_from_loading_is_said(parts, words, fix, loads):
    found = find_misfit(Model(), candidate(**parts), PROBLEM)
    assert words in found.sentence and fix in found.fix and found.evidence["loads"] is loads


def test_one_name_for_another_is_said():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(5))

    found = find_misfit(Scaled(), candidate(factor=nn.Parameter(torch.ones(5))), None)
    assert "scale to factor was renamed" in found.fix


def test_what_fits_has_no_misfit():
    assert find_misfit(Model(), candidate(norm=nn.LayerNorm(8)), PROBLEM) is None


def test_parameters_that_do_not_load_are_the_reason():
    """Whatever values come of other parameters."""
    found = find_misfit(Model(), candidate(gamma=nn.Parameter(torch.ones(8))), PROBLEM)
    certificate = SimpleNamespace(passed=False, trials=(), state_problems=("norm.weight does not exist",),
                                  gradients=None, why=("",))
    assert classify(certificate, [found]) == "WRONG-PARAMETERS"
    assert reason("WRONG-PARAMETERS", certificate, [found]) == (found.sentence, found.fix)


def test_what_is_beside_the_models_parameters_is_no_reason_for_wrong_values():
    """A buffer of the candidate's own says nothing of its results, which the trial's words do."""
    found = find_misfit(Model(), candidate(norm=nn.LayerNorm(8), scaled=nn.Parameter(torch.ones(8))), PROBLEM)
    certificate = SimpleNamespace(passed=False, trials=(), state_problems=(), gradients=None, why=("output is wrong.",))
    assert found.kind == "state-dict"
    assert reason("WRONG-NUMERIC", certificate, [found]) == ("output is wrong.", "")
