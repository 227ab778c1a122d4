"""Values that PyTorch refuses are refused by ModelNew, too, in the same words; values at the border are not."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from emitted_tools import assert_like, emit, import_path, kernels_run, models, original_runs, write_problem

import kernelwright
from kernelwright.build.emulation import load_emulated
from kernelwright.capture.checks import checks
from kernelwright.errors import DataDependentControlFlow
from kernelwright.ir.node import constant, make
from kernelwright.roofline.devices import GENERIC_CPU, H200
from kernelwright.verified import as_kernels


@pytest.fixture(autouse=True)
def validating() -> None:
    """Distributions look at their parameters, as they do until torch.compile has run once in a process."""
    torch.distributions.Distribution.set_default_validate_args(True)


NAN, INFINITY = float("nan"), float("inf")


def put(number: int, value: float) -> Callable[[list[torch.Tensor]], None]:
    """A change of inputs: ``value`` at one place of input ``number``."""

    def change(inputs: list[torch.Tensor]) -> None:
        inputs[number].view(-1)[5] = value

    return change


@dataclass(frozen=True)
class Case:
    """A forward of x, y, ... and inputs; values that PyTorch refuses, and some that it takes."""

    forward: str
    inputs: str
    bad: dict[str, Callable[[list[torch.Tensor]], None]]
    good: dict[str, Callable[[list[torch.Tensor]], None]]


UNIT = "[torch.rand(64, 8), torch.rand(64, 8)]"
CLASSES = "[torch.randn(64, 8), torch.randint(0, 8, (64,))]"
CASES = {
    "binary_cross_entropy": Case(
        "return F.binary_cross_entropy(x, y)", UNIT,
        {"above": put(0, 1.0000001), "below": put(0, -1e-30), "NaN": put(0, NAN), "target above": put(1, 2.0),
         "target below": put(1, -1.0)},
        {"one": put(0, 1.0), "zero": put(0, 0.0), "-0.0": put(0, -0.0), "target one": put(1, 1.0)}),
    "binary_cross_entropy of each, with weights": Case(
        "return F.binary_cross_entropy(x, y, weight=(y + 1).detach(), reduction='none').sum(0)", UNIT,
        {"above": put(0, 1.5)}, {"one": put(0, 1.0)}),
    "binary_cross_entropy of a sigmoid": Case(
        "return F.binary_cross_entropy(torch.sigmoid(x), y)", UNIT,
        {"NaN": put(0, NAN)}, {"infinity": put(0, INFINITY), "-infinity": put(0, -INFINITY)}),
    "cross_entropy": Case(
        "return F.cross_entropy(x * 2, y)", CLASSES,
        {"above": put(1, 8), "below": put(1, -1)}, {"last": put(1, 7), "ignored": put(1, -100)}),
    "cross_entropy with weights": Case(
        "return F.cross_entropy(x * 2, y, weight=x[0].detach().abs(), label_smoothing=0.1)", CLASSES,
        {"above": put(1, 9), "below": put(1, -8)}, {"last": put(1, 7), "ignored": put(1, -100)}),
    "nll_loss": Case(
        "return F.nll_loss(torch.tanh(x), y, ignore_index=-1)", CLASSES,
        {"above": put(1, 8), "below": put(1, -2)}, {"last": put(1, 7), "ignored": put(1, -1)}),
    "a result that nobody reads": Case(
        "F.binary_cross_entropy(x, x); x.gather(1, y); F.embedding(z, x); return torch.tanh(x) * 2",
        "[torch.rand(64, 8), torch.randint(0, 8, (64, 3)), torch.randint(0, 64, (5, 7))]",
        {"loss": put(0, 2.0), "gather": put(1, 8), "embedding": put(2, -1)}, {"last": put(1, 7)}),
    "assert": Case(
        "assert x.min() >= 0 and not y.isnan().any(), 'wrong'; torch._assert(y.max() < 5, 'large')\n"
        "        return torch.tanh(x + y) * 2", UNIT,
        {"negative": put(0, -1.0), "NaN in the first": put(0, NAN), "NaN": put(1, NAN), "large": put(1, 5.0)},
        {"-0.0": put(0, -0.0), "infinity": put(0, INFINITY)}),
    "raise": Case(
        "if (x < 0).any():\n            raise ValueError(f'negative: {x.min()}')\n"
        "        if not torch.isfinite(y).all():\n            raise ArithmeticError('infinite')\n"
        "        return torch.tanh(x + y) * 2", UNIT,
        {"negative": put(0, -1.0), "infinite": put(1, INFINITY)}, {"NaN": put(0, NAN)}),
    "numbers that are compared": Case(
        "if x.max().item() > 0.1:\n            raise ValueError(f'large: {x.max().item()}')\n"
        "        assert -9 < x.min().item(), 'small'; assert not x.isnan().any().item()\n"
        "        assert y.max().item() <= y.shape[0] * 2 - 1; assert y.max().item() < y.sum().item(), y.tolist()\n"
        "        return torch.tanh(x + y) * 2", "[-torch.rand(64, 8), torch.randint(1, 9, (8,))]",
        {"a tenth, which is more in float32": put(0, 0.1), "small": put(0, -9.0), "NaN": put(0, NAN),
         "large": put(1, 16), "sum": put(1, -90)},
        {"just below": put(0, 0.0999999), "last": put(1, 15)}),
    "distributions": Case(
        "return torch.distributions.Normal(x, y).log_prob(x + 1).sum(-1)", UNIT,
        {"scale": put(1, 0.0), "NaN": put(0, NAN)}, {"small": put(1, 1e-20), "infinity": put(1, INFINITY)}),
    "gaussian_nll_loss": Case(
        "return F.gaussian_nll_loss(x, torch.tanh(x), y)", UNIT,
        {"variance": put(1, -1.0)}, {"zero": put(1, 0.0), "NaN": put(1, NAN)}),
    "_assert_async": Case(
        "torch._assert_async((x >= 0).all()); return torch.tanh(x + y) * 2", UNIT,
        {"negative": put(0, -1.0), "NaN": put(0, NAN)}, {"zero": put(0, 0.0)}),
    "elements that indices choose": Case(
        "a, b = (F.embedding(y, x) * 2).tanh(), x[w].exp() + 1\n"
        "        return a.sum() + b.sum() + (x.gather(1, z) * 3).sin().sum() + x.index_select(1, y % 9).tanh().sum()",
        "[torch.rand(64, 8), torch.randint(0, 8, (64,)), torch.randint(0, 8, (64, 64)),"
        " torch.randint(-64, 64, (64, 8))]",
        {"row": put(1, 64), "negative row": put(1, -1), "gather above": put(2, 8), "gather below": put(2, -1),
         "above": put(3, 64), "below": put(3, -65), "index_select": put(1, 8)},
        {"last": put(2, 7), "first from the end": put(3, -64), "last of all": put(3, 63)}),
    "elements that several indices choose": Case(
        "return (x[y, z] * 2).tanh().sum() + (torch.take(x, w) * 3).sin().sum() + x[y, :][:, z % 8].exp().mean()",
        "[torch.rand(64, 8), torch.randint(-64, 64, (64,)), torch.randint(-8, 8, (64,)),"
        " torch.randint(-512, 512, (7, 9))]",
        {"row": put(1, 64), "row from the end": put(1, -65), "column": put(2, 8), "column from the end": put(2, -9),
         "number": put(3, 512), "number from the end": put(3, -513)},
        {"last": put(1, 63), "first from the end": put(2, -8), "last of all": put(3, 511), "first": put(3, -512)}),
    "bags": Case(
        "return F.embedding_bag(y, x).tanh().sum() * 2", "[torch.rand(64, 8), torch.randint(0, 64, (9, 5))]",
        {"row": put(1, 64), "negative row": put(1, -1)}, {"last": put(1, 63)}),
    "elements that are put at places": Case(
        "a = x.index_add(0, y, z).tanh() * 2 + x.index_copy(0, y, z).exp()\n"
        "        return a + torch.scatter_add(x, 1, w, x).sin() * 3 + torch.scatter(x, 1, w, x).relu()",
        "[torch.rand(64, 8), torch.randint(0, 64, (7,)), torch.rand(7, 8), torch.randint(0, 8, (64, 8))]",
        {"row": put(1, 64), "row from the end": put(1, -1), "column": put(3, 8), "column from the end": put(3, -1)},
        {"last": put(1, 63), "last column": put(3, 7)}),
    "divisions by numbers in tensors": Case(
        "return (x // y + x % y * 2 - torch.fmod(x, y)) * z + torch.div(x, y, rounding_mode='trunc') * z.tanh()",
        "[torch.randint(-99, 99, (64, 8)), torch.randint(1, 9, (64, 8)), torch.rand(64, 8)]",
        {"zero": put(1, 0)}, {"negative": put(1, -3), "minus one": put(1, -1)}),
    "operators that stay with PyTorch": Case(
        "c = F.one_hot(y, 8).float().sum() + x[y].tanh().sum() + x.index_select(0, y).exp().sum()\n"
        "        return torch.linalg.cholesky(z).tanh() * c + torch.linalg.inv(z).sin() + (y // w).sum().cos()",
        "[torch.rand(64, 8), torch.randint(0, 8, (64,)), torch.eye(4) * 2, torch.ones(64, dtype=torch.int64)]",
        {"class": put(1, 8), "index": put(1, -70), "not positive": put(2, -1.0), "division": put(3, 0)},
        {"last": put(1, 7)}),
}
NAMES = ["x", "y", "z", "w"]


def text_of(case: Case) -> str:
    count = len(eval(case.inputs, {"torch": torch}))
    return (f"class Model(nn.Module):\n    def forward(self, {', '.join(NAMES[:count])}):\n        {case.forward}\n\n\n"
            f"def get_inputs():\n    return {case.inputs}\n")


def outcome(model: Any, inputs: list[torch.Tensor], *, gradients: bool) -> Any:
    """What a call gives: the result and the gradients, or the type and the words of the error."""
    given = [x.clone().requires_grad_(gradients and x.is_floating_point()) for x in inputs]
    try:
        with torch.set_grad_enabled(gradients):
            result = model(*given)
    except Exception as error:
        return type(error), str(error)
    if gradients:
        result.sum().backward()
    return [result.detach(), *(x.grad for x in given)]


def check(case: Case, original: ModuleType, emitted: ModuleType) -> None:
    torch.manual_seed(0)
    old, new, inputs = models(original, emitted)
    as_kernels(new, emitted)
    for gradients in (False, True):
        for label, change in (("as given", lambda inputs: None), *case.good.items()):
            given = [x.clone() for x in inputs]
            change(given)
            with kernels_run(emitted):
                found = outcome(new, given, gradients=gradients)
            expected = outcome(old, given, gradients=gradients)
            assert isinstance(expected, list), f"{label}: eager raises {expected}"
            assert_like(found, expected, 1e-4)
        for label, change in case.bad.items():
            given = [x.clone() for x in inputs]
            change(given)
            expected = outcome(old, given, gradients=gradients)
            assert isinstance(expected, tuple), f"{label}: eager takes it"
            assert outcome(new, given, gradients=gradients) == expected, label


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_cpp(case, tmp_path) -> None:
    original, emitted, _ = emit(tmp_path, "refuses", text_of(case))
    check(case, original, emitted)


#: What a GPU does not assert by itself.
WAITED = ("raise", "divisions by numbers in tensors")


@pytest.mark.skipif(torch.cuda.is_available(), reason="without a device kernels run under the emulation")
@pytest.mark.parametrize("name", ["binary_cross_entropy", "elements that indices choose", *WAITED, "_assert_async"])
def test_cuda(name, tmp_path) -> None:
    """What PyTorch's kernels assert on the device is asserted there; what Python waits for, it waits for."""
    path = write_problem(tmp_path, "refuses", text_of(CASES[name]))
    source = kernelwright.explain(path, target="cuda", device=H200).source
    kernels = re.search(r'_KERNELWRIGHT_SOURCE = r"""\n(.*?)"""', source, re.DOTALL)[1]
    check(CASES[name], import_path(path), load_emulated(source, kernels, "refuses"))
    assert ("torch._assert_async(" in source.split("# The kernels")[1]) == (name not in WAITED)
    assert ("_kernelwright_require(" in source) == (name in WAITED)


def test_a_device_that_divides_by_zero_is_not_asked() -> None:
    x, y = (make("input", name=name, shape=(3,), dtype="int64") for name in "xy")
    quotient = make("floor_divide", x, y)
    assert [check.waited for check in checks([quotient], "cpu")] == [True] and checks([quotient], "cuda") == []
    assert checks([make("floor_divide", x, constant(3))], "cpu") == []


def test_an_error_of_the_program_alone_is_no_error(tmp_path: Path) -> None:
    """A check that is stricter than the original only costs time, and that is said once."""
    case = Case("try:\n            if (x < 0).any():\n                raise ValueError('negative')\n"
                "        except ValueError:\n            return torch.exp(x) * 3\n        return torch.tanh(x) * 2",
                "[torch.rand(64, 8)]", {}, {})
    original, emitted, _ = emit(tmp_path, "caught", text_of(case))
    old, new, (x,) = models(original, emitted)
    with kernels_run(emitted, 1):
        assert_like(new(x), old(x), 1e-6)
    with pytest.warns(RuntimeWarning, match="this call is not for the kernels"):
        assert torch.equal(new(-x), old(-x))


CLAMPS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, y):
        z = self.dropout(torch.tanh(x)) * y
        if not torch.isfinite(z).all():
            z = torch.nan_to_num(z, nan=3.0, posinf=5.0) * 2
        z = z.exp() + 1
        if torch.isnan(z).any() or z.isinf().any().item():
            return z.isnan() * z.new_zeros(()) + x * 0
        return z * 3

def get_inputs():
    return [torch.rand(64, 8), torch.rand(64, 8)]
"""


def test_who_looks_for_what_is_not_finite_goes_on_as_for_finite_numbers(tmp_path: Path) -> None:
    """As layers do that clamp what left the range of float16. Where something is not finite, the original decides."""
    original, emitted, _ = emit(tmp_path, "clamps", CLAMPS)
    old, new, inputs = models(original, emitted)
    old.eval(), new.eval()
    for gradients in (False, True):
        with kernels_run(emitted):
            assert_like(outcome(new, inputs, gradients=gradients), outcome(old, inputs, gradients=gradients), 1e-6)
        for value in (NAN, INFINITY, -INFINITY, 1e4):  # the last one is infinite as an exponential alone
            given = [inputs[0], inputs[1].clone()]
            put(1, value)(given)
            expected = outcome(old, given, gradients=gradients)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert_like(outcome(new, given, gradients=gradients), expected, 0.0)
    assert expected[0].eq(0).all() and "decides otherwise" in str(new.why())


def test_who_draws_random_numbers_supposes_nothing(tmp_path: Path) -> None:
    """They would be drawn twice where it does not hold. Other questions are not known, either."""
    path = write_problem(tmp_path, "draws", CLAMPS)
    explained = kernelwright.explain(path, target="cpp", device=GENERIC_CPU)
    assert [mode.name for mode in explained.modes if mode.kernels] == ["inference"]
    assert any(note.startswith("Training mode stays as it is: it decides by the values") for note in explained.notes)
    path.write_text(path.read_text().replace("torch.isfinite(z).all()", "(z < 1).all()"))
    with pytest.raises(DataDependentControlFlow):
        kernelwright.explain(path, target="cpp", device=GENERIC_CPU)


def test_shapes_that_raise(tmp_path: Path) -> None:
    """Other shapes are the original's affair, and so are its errors about them."""
    case = Case("if x.shape[0] % 2:\n            raise ValueError('odd')\n        return torch.tanh(x).amax(0) * 2",
                "[torch.rand(64, 8)]", {}, {})
    original, emitted, _ = emit(tmp_path, "shapes", text_of(case))
    old, new, _ = models(original, emitted)
    for shape in ((3, 8), (0, 8), (64,)):
        x = torch.rand(shape)
        with original_runs(emitted, times=1 if shape == (3, 8) else 0):
            expected = outcome(old, [x], gradients=False)
            found = outcome(new, [x], gradients=False)
        assert type(found) is type(expected)
        assert found == expected if isinstance(found, tuple) else torch.equal(found[0], expected[0])
