"""Forwards that decide by the values of the model's own buffers, or of inputs of whole numbers: served as long as these
are what they were."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from reported.case import Case

from kernelwright import truths
from kernelwright.capture.export import capture
from kernelwright.capture.values import NotCapturable
from kernelwright.errors import DataDependentControlFlow
from kernelwright.fuzz.product import Made, make
from kernelwright.problem import load_problem
from kernelwright.programs import Stages, new_model, understand
from kernelwright.progress import Progress
from kernelwright.roofline.devices import GENERIC_CPU
from kernelwright.settings import Settings
from kernelwright.truths import inputs_of

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


_LENGTHS = "torch.randn(3, 9, 4), torch.tensor([5, 7, 2])"
_MASKED = "return x[:, :mask.shape[1]].tanh().masked_fill(~mask[..., None], 0) * 2"
#: Forwards of x and whole numbers or truth values, and other ones of the same form.
BY_INPUTS = {
    "the longest": (Case(0, "x, lengths", "n = int(lengths.max())\nmask = torch.arange(n)[None] < lengths[:, None]\n"
                         + _MASKED, _LENGTHS), "torch.tensor([5, 4, 2])"),
    "an item": (Case(0, "x, lengths", "return x[:, :torch.max(lengths + 1).item()].tanh() * 2", _LENGTHS),
                "torch.tensor([1, 4, 2])"),
    "a range of a tensor": (
        Case(0, "x, lengths", "mask = torch.arange(lengths.max())[None] < lengths[:, None]\n" + _MASKED, _LENGTHS),
        "torch.tensor([8, 4, 2])"),
    "the end of a slice": (Case(0, "x, lengths", "return x[:, :lengths.max()].tanh() * 2", _LENGTHS),
                           "torch.tensor([8, 4, 2])"),
    "a list": (Case(0, "x, lengths", "return torch.cat([p.softmax(0) for p in x.split(lengths.tolist())]).exp()",
                    "torch.randn(9, 4), torch.tensor([5, 2, 2])"), "torch.tensor([4, 3, 2])"),
    "a mask": (Case(0, "x, mask", "if mask.all():\n    return x.tanh() * 2\nreturn (x * mask).exp() + 1",
                    "torch.randn(3, 4), torch.ones(3, 4, dtype=torch.bool)"), "torch.eye(3, 4) > 0"),
    "a mean": (Case(0, "x, n", "return x.tanh() * n.float().mean().item() + n.sum()",
                    "torch.randn(3, 4), torch.tensor([3, 4])"), "torch.tensor([3, 3])"),
    "how often": (Case(0, "x, n", "for i in range(n):\n    x = x.tanh() + i\nreturn x",
                       "torch.randn(3, 4), torch.tensor(3)"), "torch.tensor(2)"),
}


@pytest.mark.parametrize("name", BY_INPUTS)
def test_kernels_run_as_long_as_inputs_of_whole_numbers_decide_alike(name: str, tmp_path: Path):
    case, other = BY_INPUTS[name]
    path = tmp_path / "by_inputs.py"
    path.write_text(case.text())
    made = make(path)
    assert not made.differences() and made.runs_kernels(), made.notes
    model, new = made.problem.make_model(0), new_model(made.emitted, made.problem, 0)
    x, numbers = made.problem.make_inputs(0)
    with pytest.warns(RuntimeWarning, match="is not .*, by which the forward decides"):
        assert torch.equal(new(x, eval(other)), model(x, eval(other)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new(x, numbers)


@pytest.mark.parametrize("forward", [
    "n[0] = 5\nif n.max() > 4:\n    x = x + 1\nreturn x.tanh() * 2",
    "n.view(-1).fill_(3)\nreturn x.tanh() * int(n.sum())",
    "if x.sum() > 0:\n    x = x + 1\nreturn x.tanh() * n.sum()",
    "if (x * n.sum()).max() > 0:\n    x = x + 1\nreturn x.tanh()",
    "return x.tanh() * sum(n.repeat(40).tolist())"])
def test_other_values_are_not_known(forward: str, tmp_path: Path):
    """Of inputs that the forward changes, of others than whole numbers, and many of them."""
    path = tmp_path / "others.py"
    path.write_text(Case(0, "x, n", forward, "torch.randn(3, 4), torch.tensor([3, 4])").text())
    problem = load_problem(path, device="cpu")
    with pytest.raises((DataDependentControlFlow, NotCapturable)):
        capture(problem.make_model(0), problem.make_inputs(0))


def test_both_gradient_modes_and_what_other_kinds_of_tensors_tell(tmp_path: Path):
    """Gradients are eager's, and each of several questions is asked at each call."""
    forward = "if mask.any():\n    x = x[:, :lengths.max()]\nreturn self.l(x[:int(lengths.min())]).tanh() * mask.sum()"
    path = tmp_path / "both.py"
    path.write_text(Case(0, "x, lengths, mask", forward, "torch.randn(4, 5, 6, requires_grad=True), "
                         "torch.tensor([3, 2], dtype=torch.int32), torch.tensor([True, False])",
                         members="self.l = nn.Linear(6, 6)").text())
    made = make(path)
    assert not made.differences() and made.runs_kernels(), made.notes
    assert len(made.emitted._KERNELWRIGHT_MODEL.get("of_inputs", made.emitted._KERNELWRIGHT_PLANS[False, False]
                                                    ["of_inputs"])) == 3


def test_numbers_that_decide_are_the_examples_in_every_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With others the original computation would run: kernels are tried on other values, and these numbers. So entries
    of a batch do not stand for all of it, where float64 is dear."""
    path = tmp_path / "trials.py"
    path.write_text(Case(0, "x, d", "return x[:, :d['lengths'].max()].tanh() * d['more'][:, None, None]",
                         "torch.randn(3, 9, 4), {'more': torch.randint(0, 9, (3,)), "
                         "'lengths': torch.randint(1, 9, (3,))}").text())
    problem = load_problem(path, device="cpu")
    example = problem.make_inputs(0)
    (mode, *_), notes = understand(problem, example, GENERIC_CPU, Settings(), Stages(Progress()))
    seen = [inputs_of(problem, mode, Settings())(seed) for seed in range(4)]
    assert all(torch.equal(d["lengths"], example[1]["lengths"]) for _, d in seen)
    longest = int(example[1]["lengths"].max())
    assert any(note.endswith(f"kernels run in calls in which max(d_lengths) is {longest}.") for note in notes), notes
    assert len({float(x.sum()) for x, _ in seen}) == 4 and len({tuple(d["more"].tolist()) for _, d in seen}) > 1
    monkeypatch.setattr(truths, "_float64_is_dear", lambda *_: True)
    for asked, sampled in ((mode.captured.asked_of_inputs, False), ((), True)):
        captured = replace(mode.captured, asked_of_inputs=asked)
        assert truths.trials_of(problem, replace(mode, captured=captured), Settings(), 1.0).sample_axis0 is sampled


@pytest.mark.parametrize("asks", [
    "x = x * int(n.max())", "x = x[:, :n.min()]", "for k in n.tolist():\n    x = x + k",
    "if self.started:\n    x = x + 1", "assert x.max() < 100",
    "if x.max().item() > 100:\n    raise ValueError('large')"])
def test_how_far_gradients_reach_is_known_beside_values_that_are_asked_for(asks: str, tmp_path: Path):
    """The run that shows it is told what the trace was told: results with gradients and without stay apart."""
    path = tmp_path / "mixed.py"
    path.write_text(Case(0, "x, n, y", f"{asks}\nreturn x.tanh() * 2, self.l(y).exp() + 1",
                         "torch.randn(3, 4), torch.tensor([2, 3]), torch.randn(3, 4)",
                         members="self.l = nn.Linear(4, 4)\n"
                         "self.register_buffer('started', torch.tensor(True))").text())
    made = make(path)
    assert not made.differences() and made.runs_kernels() and not made.given_up, made.given_up


def test_a_long_question_has_short_lines_and_few_words(tmp_path: Path):
    path = tmp_path / "long.py"
    path.write_text(Case(0, "x, lengths", "n = (((lengths + 1).clamp(0, 7).float() * 1.5).floor().to(torch.int64) // 2"
                         " + lengths % 3).sum().clamp(1, 4)\nreturn x[:, :int(n)].tanh() * 2 + x[:, :int(n)].exp()",
                         "torch.randn(3, 9), torch.tensor([5, 7, 2])").text())
    made = make(path)
    assert not made.differences() and made.runs_kernels()
    assert any(note.endswith("in which what is made of lengths is 4.") for note in made.notes), made.notes
    assert max(map(len, made.text.splitlines())) <= 120
