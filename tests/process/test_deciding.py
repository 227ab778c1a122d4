"""Forwards that decide by the values of the model's own buffers: served as long as these are what they were."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from reported.case import Case

from kernelwright.capture.export import capture
from kernelwright.capture.values import NotCapturable
from kernelwright.errors import DataDependentControlFlow
from kernelwright.fuzz.product import Made, make
from kernelwright.problem import load_problem
from kernelwright.programs import new_model

#: A convolution that keeps its sizes in buffers, as those of audio codecs do.
_PADDED = """\
frames = torch.ceil((x.shape[-1] - self.size + self.margin) / self.stride + 1).to(torch.int64) - 1
extra = frames * self.stride + self.size - self.margin - x.shape[-1]
if extra > 5:
    x = x + 1
x = x * self.plain
return self.c(F.pad(F.pad(x, (self.margin, extra)), (self.size - 5, self.stride // 3))).relu() * 2"""

CASES = {
    "sizes": Case(0, "x", _PADDED, "torch.randn(2, 3, 22)", members="self.c = nn.Conv1d(3, 4, 5, stride=2)\n"
                  "self.register_buffer('size', torch.tensor(5), persistent=False)\n"
                  "self.register_buffer('stride', torch.tensor(2))\nself.margin = 3\n"
                  "self.plain = torch.full((3, 1), 0.5)"),
    "whether it has started": Case(
        0, "x", "if self.started:\n    return x.tanh() * 2 + 1\nreturn x.exp() - 1", "torch.randn(3, 4)",
        members="self.register_buffer('started', torch.tensor(True))"),
    "a factor": Case(0, "x", "x.tanh() * self.scale.item() + 1", "torch.randn(3, 4)",
                     members="self.register_buffer('scale', torch.tensor([0.3]))"),
    "how often": Case(0, "x", "for i in range(int(self.rounds + 1)):\n    x = x.tanh() + i\nreturn x",
                      "torch.randn(3, 4)", members="self.register_buffer('rounds', torch.tensor(3))"),
}
#: What a buffer has later.
LATER = {"sizes": ("stride", 3), "whether it has started": ("started", False), "a factor": ("scale", 0.25),
         "how often": ("rounds", 1)}


def made_of(name: str, folder: Path) -> Made:
    path = folder / "deciding.py"
    path.write_text(CASES[name].text())
    return make(path)


@pytest.mark.parametrize("name", CASES)
def test_kernels_run_as_long_as_buffers_are_what_they_were(name: str, tmp_path: Path):
    made = made_of(name, tmp_path)
    assert not made.differences() and made.runs_kernels(), made.notes
    model, new = made.problem.make_model(0).eval(), new_model(made.emitted, made.problem, 0).eval()
    buffer, value = LATER[name]
    for each in (model, new):
        getattr(each, buffer).data.fill_(value)  # which leaves no mark on the tensor
    x, = made.problem.make_inputs(0)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match=f"buffer {buffer} is not"):
        assert torch.equal(new(x), model(x))
    new.load_state_dict(made.problem.make_model(0).state_dict())
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        new(x)


@pytest.mark.parametrize("change", [
    "self.n.view(-1).add_(5)", "self.n.data.fill_(5)", "t = self.n + 0\nt.view(-1).fill_(5)\nx = x * t",
    "self.n.detach()[...] = 5"])
def test_what_was_changed_through_a_view_is_not_what_it_was(change: str, tmp_path: Path):
    """Of a buffer, and of what was made of it."""
    asked = "t * 1" if "t =" in change else "self.n"
    case = Case(0, "x", f"{change}\nif {asked} > 2:\n    x = x + 1\nreturn self.l(x).relu()", "torch.randn(3, 4)",
                members="self.l = nn.Linear(4, 4)\nself.register_buffer('n', torch.tensor(0))")
    path = tmp_path / "changing.py"
    path.write_text(case.text())
    problem = load_problem(path, device="cpu")
    with pytest.raises((DataDependentControlFlow, NotCapturable)):
        capture(problem.make_model(0), problem.make_inputs(0))


def test_what_a_forward_counts_stays_with_pytorch(tmp_path: Path):
    """Nothing is known of a buffer that the forward itself changes."""
    counts = Case(0, "x", "self.n.add_(1)\nif self.n > 2:\n    x = x + 1\nreturn self.l(x).relu()", "torch.randn(3, 4)",
                  members="self.l = nn.Linear(4, 4)\nself.register_buffer('n', torch.tensor(0))")
    inner = counts.text().replace("class Model", "class Inner").split("def get_inputs")[0]
    path = tmp_path / "counting.py"
    outer = Case(0, "x", "self.inner(x.tanh() * 2) + 1", "torch.randn(3, 4)", members="self.inner = Inner()",
                 before=inner.split("as F\n\n")[1])
    path.write_text(outer.text())
    made = make(path)
    assert not made.differences() and made.runs_kernels()
    assert any("inner stays with PyTorch" in note for note in made.notes), made.notes
