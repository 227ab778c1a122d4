"""Files whose calls launch before they ask whether the model is as it was: what the questions find decides."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from plan_tools import Of
from torch import nn

import kernelwright
from kernelwright.build.emulation import load_emulated
from kernelwright.codegen.generate import TARGETS
from kernelwright.emit.file import kernel_source
from kernelwright.problem import load_problem
from kernelwright.programs import Stages, emitted_text, new_model, understand
from kernelwright.progress import Progress
from kernelwright.roofline.devices import GENERIC_CPU
from kernelwright.settings import Settings


class Network(nn.Module):
    """Layers, a number, an argument that is no tensor, and a parameter that no result depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.factor, self.unused = 2.0, nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, x: torch.Tensor, power: int) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.first(x)) * self.factor
        result = self.norm(self.second(hidden) + x) ** power
        return result, result[:, 0]


class Told:
    """A model of an emitted file, and the order in which a call of it launches and asks."""

    def __init__(self, emitted: ModuleType, model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
        self.emitted, self.model, self.told = emitted, model, []
        for name, word in (("_kernelwright_run", "launched"), ("_kernelwright_fit", "asked")):
            monkeypatch.setattr(emitted, name, self._telling(getattr(emitted, name), word))
        holds = emitted._KernelwrightBinding.holds
        monkeypatch.setattr(emitted._KernelwrightBinding, "holds", self._telling(holds, "compared"))

    def _telling(self, function: Callable[..., Any], word: str) -> Callable[..., Any]:
        def told(*given: Any) -> Any:
            self.told.append(word)
            return function(*given)

        return told

    def __call__(self, *inputs: Any) -> list[str]:
        """What a call did; its results are eager's."""
        wanted = copy.deepcopy(self.model)._original_forward(*inputs)
        self.told.clear()
        found = self.model(*inputs)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
            assert one.requires_grad == other.requires_grad
        assert found[0].untyped_storage().data_ptr() == found[1].untyped_storage().data_ptr()
        return [*self.told]


@pytest.fixture(scope="module")
def emitted() -> tuple[ModuleType, Any]:
    torch.manual_seed(0)
    problem = load_problem(Network(), [torch.randn(4, 8), 2])
    example = problem.make_inputs(0)
    modes = understand(problem, example, GENERIC_CPU, Settings(), Stages(Progress()))[0]
    text, parts = emitted_text(problem, modes, example, "cuda", GENERIC_CPU)
    return load_emulated(text, kernel_source(*parts, target=TARGETS["cuda"]), "ahead"), problem


@pytest.fixture
def calls(emitted: tuple[ModuleType, Any], monkeypatch: pytest.MonkeyPatch) -> Told:
    """A model that was called twice without gradients."""
    module, problem = emitted
    model = Told(module, new_model(module, problem, 0).eval(), monkeypatch)
    with torch.no_grad():
        assert model(torch.randn(4, 8), 2) == ["asked", "launched"]
        assert model(torch.randn(4, 8), 2) == AHEAD
    return model


#: What a call does whose model, as far as it was known, was to be as it was; and one of which that was not known.
AHEAD, ASKED = ["launched", "compared"], ["asked", "compared", "launched"]


def test_what_changes_in_place_is_read(calls: Told) -> None:
    with torch.no_grad():
        calls.model.first.weight.mul_(2)
        calls.model.unused.add_(1)
        assert calls(torch.randn(4, 8), 2) == AHEAD
        calls.model.load_state_dict({name: t + 1 for name, t in calls.model.state_dict().items()})
        assert calls(torch.randn(4, 8), 2) == AHEAD
        calls.model.second.weight = nn.Parameter(torch.randn(8, 8), requires_grad=True)
        assert calls(torch.randn(4, 8), 2)[0] == "launched"  # it is the one that a program reads
        with torch.inference_mode():
            calls(torch.randn(4, 8), 2)  # inputs are of another kind there
            assert calls(torch.randn(4, 8), 2) == AHEAD


@pytest.mark.parametrize(("change", "back", "reason"), [
    (lambda m: setattr(m, "factor", 3.0), lambda m: setattr(m, "factor", 2.0), "attribute factor"),
    (lambda m: m.first.register_forward_hook(lambda module, x, y: 2 * y), lambda m: m.first._forward_hooks.clear(),
     "module first has a hook"),
    (lambda m: setattr(m, "norm", nn.Identity()), None, "a submodule is not what it was"),
    (lambda m: m.first.train(), lambda m: m.first.eval(), "has modules in training"),
    (lambda m: m.second.register_parameter("more", nn.Parameter(torch.zeros(1))),
     lambda m: m.second.__delattr__("more"), "has other parameters"),
])
def test_another_model_runs_its_original(calls: Told, change: Callable[[nn.Module], Any],
                                         back: Callable[[nn.Module], Any] | None, reason: str) -> None:
    """Its kernels are launched once in vain, and not again and again."""
    change(calls.model)
    with torch.no_grad():
        with pytest.warns(RuntimeWarning, match=reason):
            first = calls(torch.randn(4, 8), 2)
        assert first[:3] == ["launched", "compared", "asked"] and "launched" not in first[3:]
        for _ in range(2):
            assert calls(torch.randn(4, 8), 2)[0] == "asked" and "launched" not in calls.told
        if back is not None:
            back(calls.model)
            assert calls(torch.randn(4, 8), 2)[0] == "asked" and calls.told[-1] == "launched"
            assert calls(torch.randn(4, 8), 2) == AHEAD


def test_inputs_of_other_kinds_are_not_launched(calls: Told) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in (torch.randn(3, 8), torch.randn(4, 8).double(), torch.randn(8, 4).t(), torch.randn(4, 16)[:, ::2],
                  torch.randn(33)[1:].view(4, 8)):
            calls.told.clear()
            if x.dtype is torch.float64:
                with pytest.raises(RuntimeError):
                    calls.model(x, 2)
            else:
                calls(x, 2)
            assert calls.told[0] == "asked"
            calls(torch.randn(4, 8), 2)
        calls(torch.randn(4, 8), 2)
        assert calls(torch.randn(4, 8), 3)[:3] == ["launched", "compared", "asked"]  # another number
        assert calls(torch.randn(4, 8), 2) == ASKED
        assert calls(torch.randn(4, 8), 2) == AHEAD
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert calls(torch.randn(4, 8), 2) == ["asked"]
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            assert "asked" in calls(torch.randn(4, 8, dtype=torch.float32), 2)
        finally:
            torch.set_default_dtype(before)


def test_gradients_are_not_launched_ahead(calls: Told) -> None:
    x = torch.randn(4, 8)
    assert calls(x, 2)[0] == "asked" and calls(x, 2)[0] == "asked"
    found = torch.autograd.grad(calls.model(x.requires_grad_(), 2)[0].sum(), calls.model.first.weight)[0]
    wanted = torch.autograd.grad(calls.model._original_forward(x, 2)[0].sum(), calls.model.first.weight)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_parameter_that_asks_for_gradients_now(emitted: tuple[ModuleType, Any], monkeypatch: pytest.MonkeyPatch
                                                 ) -> None:
    """Also where no kernel reads it: then eager's results have gradients only where they depend on it."""
    module, problem = emitted
    model = new_model(module, problem, 0).eval().requires_grad_(False)
    calls = Told(module, model, monkeypatch)
    for _ in range(3):
        calls(torch.randn(4, 8), 2)
    assert calls.told == AHEAD
    model.unused.requires_grad_()
    assert "asked" in calls(torch.randn(4, 8), 2)
    model.first.weight.requires_grad_()
    assert calls(torch.randn(4, 8), 2)[0] == "asked"


def test_what_fails_fails_as_eager_does(calls: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while launching is one that the questions find, or the original computation."""
    def fails(*given: Any) -> None:
        raise RuntimeError("no memory")

    with torch.no_grad():
        del calls.model._modules["second"]
        with pytest.raises(AttributeError, match="second"), pytest.warns(RuntimeWarning, match="a submodule"):
            calls.model(torch.randn(4, 8), 2)
        calls.model.second = nn.Linear(8, 8).eval()
        monkeypatch.setattr(calls.emitted, "_kernelwright_run", fails)
        with pytest.warns(RuntimeWarning, match="no memory"):
            calls(torch.randn(4, 8), 2)


def plain(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(m.a(x)).sum(-1) * 2


def drawing(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (torch.tanh(m.a(x)) + torch.rand(4, 8, device=x.device)).sum(-1)


def counting(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    m.count.add_(1)
    return torch.tanh(m.a(x)).sum(-1) * m.count


class Counting(Of):
    def __init__(self) -> None:
        super().__init__(counting, a=nn.Linear(8, 8))
        self.register_buffer("count", torch.zeros(()))


def chosen(m: nn.Module, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.tanh(m.a(x))[rows] * 2


def test_only_what_may_run_in_vain_is_launched_ahead() -> None:
    """Neither what changes a buffer nor what draws random numbers, nor what a device refuses, as an index that a hook
    would have mended; and no call of a processor, which waits."""
    x = torch.randn(4, 8)

    def text(model: nn.Module, *more: torch.Tensor, **options: Any) -> str:
        return kernelwright.explain(model, [x, *more], **{"target": "cuda"} | options).source

    for launch in ("direct", "graph"):
        assert '"ahead": True' in text(Of(plain, a=nn.Linear(8, 8)), launch=launch)
    for other in (text(Of(plain, a=nn.Linear(8, 8)), target="cpp"), text(Of(drawing, a=nn.Linear(8, 8))),
                  text(Counting()), text(Of(chosen, a=nn.Linear(8, 8)), torch.tensor([1, 3]))):
        assert "_kernelwright_call" in other and "ahead" not in other.replace("test_ahead", "")
