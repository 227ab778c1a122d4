"""The judge holds candidates against what PyTorch gives, also where that is not what the model gives in float64."""

from __future__ import annotations

import pytest

from kernelwright.judge.run import judge
from kernelwright.judge.settings import JudgeSettings
from kernelwright.progress import Progress

PROBLEMS = {
    # In inference PyTorch takes a path of its own that leaves padded places zero.
    "fast": """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.eval()

    def forward(self, x, lengths):
        padded = torch.arange(x.shape[1]) >= lengths[:, None]
        return self.encoder(x, src_key_padding_mask=padded).sum(1)


def get_inputs():
    return [torch.randn(4, 7, 16), torch.tensor([7, 3, 5, 1])]


def get_init_inputs():
    return []
""",
    # Masks of speech models are drawn so.
    "masks": """
import random

import numpy as np
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * torch.from_numpy(np.random.rand(*x.shape) < 0.5) + random.random()


def get_inputs():
    return [torch.randn(16, 32)]


def get_init_inputs():
    return []
""",
    # What it divides by is as small as its numbers are wide.
    "type": """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) / (x.sum(1, keepdim=True) * 0 + 2.0**-x.element_size())


def get_inputs():
    return [torch.randn(16, 32)]


def get_init_inputs():
    return []
""",
}
#: (problem, what is written otherwise, verdict, words of the reason).
CANDIDATES = {
    "fast, twin": ("fast", "", "", "OK", ""),
    "fast, honest": ("fast", "return self.encoder(x, src_key_padding_mask=padded).sum(1)",
                     "hidden = padded[..., None]\n        if self.training or torch.is_grad_enabled():\n"
                     "            return self.encoder(x, src_key_padding_mask=padded).sum(1)\n"
                     "        return self.slow(x.masked_fill(hidden, 0), padded).masked_fill(hidden, 0).sum(1)",
                     "OK", ""),
    "fast, slow": ("fast", "return self.encoder(x, src_key_padding_mask=padded).sum(1)",
                   "return self.slow(x, padded).sum(1)", "WRONG-NUMERIC", "not what PyTorch gives for the model"),
    "masks, twin": ("masks", "", "", "OK", ""),
    "masks, others": ("masks", "np.random.rand(*x.shape)", "np.random.rand(2, *x.shape)[1]", "WRONG-NUMERIC", ""),
    "type, twin": ("type", "", "", "OK", ""),
    "type, honest": ("type", "/ (x.sum(1, keepdim=True) * 0 + 2.0**-x.element_size())",
                     "* (x.sum(1, keepdim=True) * 0 + 2.0**4)", "OK", ""),
    "type, float64": ("type", "x.element_size()", "8", "WRONG-NUMERIC",
                      "not what PyTorch gives for the model"),
}
SLOW = """
    def slow(self, x, padded):
        with torch.enable_grad():
            return self.encoder(x, src_key_padding_mask=padded).detach()
"""


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    found = {}
    for problem, text in PROBLEMS.items():
        folder = tmp_path_factory.mktemp(problem)
        (folder / "problem.py").write_text(text)
        files = {}
        for name, (of, old, new, _, _) in CANDIDATES.items():
            if of == problem:
                assert not old or text.count(old) == 1, name
                candidate = text.replace(old, new) if old else text
                candidate = candidate.replace("class Model(", "class ModelNew(")
                if problem == "fast":
                    candidate = candidate.replace("\n\ndef get_inputs", SLOW + "\n\ndef get_inputs", 1)
                files[name] = folder / f"{name.replace(', ', '_')}.py"
                files[name].write_text(candidate)
        settings = JudgeSettings(target="cpp", effort="quick", time=False)
        result = judge(folder / "problem.py", list(files.values()), settings, Progress())
        found |= dict(zip(files, result.candidates, strict=True))
    return found


@pytest.mark.parametrize("name", CANDIDATES)
def test_what_pytorch_gives_is_right(verdicts, name):
    _, _, _, verdict, words = CANDIDATES[name]
    assert verdicts[name].verdict == verdict and words in verdicts[name].reason, verdicts[name].reason
