"""VERIFY finds what is wrong, accepts what is right, and says which is which."""

from __future__ import annotations

import gc
import json
import os
import sys
import weakref
from typing import Any

import pytest
import torch
from forks import ran
from torch import nn
from torch.nn import functional as F

from kernelwright.verify import DISTRIBUTIONS, Plan, TrialPlan, certificate, certify, default_trials, trial
from kernelwright.verify.draws import drawn_in_float32
from kernelwright.verify.flatten import flatten
from kernelwright.verify.memory import FINITE_POISON, INTEGER_POISON, differ_by_poison
from kernelwright.verify.state import call_in_float64


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def test_leaves_do_not_outlive_their_names():
    """Not until Python looks for cycles: on a device they may be all of its memory."""
    gc.disable()
    try:
        kept = weakref.ref(value := random(4))
        leaves = flatten({"a": [value], "b": (value, None)})
        assert list(leaves) == ["output['a'][0]", "output['b'][0]", "output['b'][1]"]
        del value, leaves
        assert kept() is None
    finally:
        gc.enable()


# --- certificates ---------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.convolution(x)))


def model_inputs(seed: int) -> list[torch.Tensor]:
    return [torch.rand(5, 3, 9, 9, generator=torch.Generator().manual_seed(seed))]


class Right(Model):
    """The same by another way: shifted channels-last convolution, own statistics, buffers updated."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.einsum("nchwij,ocij->nohw", x.unfold(2, 3, 1).unfold(3, 3, 1), self.convolution.weight)
        y = y + self.convolution.bias[:, None, None]
        mean, variance = y.mean((0, 2, 3)), y.var((0, 2, 3), unbiased=False)
        count = y.numel() / 8
        self.norm.running_mean.mul_(0.9).add_(0.1 * mean)
        self.norm.running_var.mul_(0.9).add_(0.1 * variance * count / (count - 1))
        self.norm.num_batches_tracked += 1
        scale = self.norm.weight / torch.sqrt(variance + self.norm.eps)
        y = (y - mean[:, None, None]) * scale[:, None, None] + self.norm.bias[:, None, None]
        return y.clamp_min(0).contiguous()


class NoRelu(Model):
    def forward(self, x):
        return self.norm(self.convolution(x))


class IgnoresAffine(Model):
    def forward(self, x):
        y = self.norm(self.convolution(x)) * 1
        y = (y - self.norm.bias[:, None, None]) / self.norm.weight[:, None, None]
        return torch.relu(y)


class StaleWeights(Model):
    """Folds its weights once and never looks again."""

    def forward(self, x):
        if not hasattr(self, "folded"):
            object.__setattr__(self, "folded", [self.convolution.weight.detach().clone()])
        return torch.relu(self.norm(torch.conv2d(x, self.folded[0], self.convolution.bias)))


class Unsteady(Model):
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x) * (1 + 1.2e-7 * (self.calls % 2))


class Mutating(Model):
    def forward(self, x):
        y = super().forward(x)
        x[0, 0, 0, 0] += 1
        return y


class ForgetsBuffers(Model):
    def forward(self, x):
        y = self.convolution(x)
        return torch.relu(
            torch.batch_norm(y, self.norm.weight, self.norm.bias, None, None, True, 0.1, 1e-5, False)
        )


class Uninitialised(Model):
    """Leaves the last channel of the last entry to what the memory holds."""

    def forward(self, x):
        y = super().forward(x)
        z = torch.empty(y.shape)
        z[:-1] = y[:-1]
        z[-1, :-1] = y[-1, :-1]
        return z


class UninitialisedFromTheStart(Model):
    """The same, where memory held in the first call what it is filled with in the second."""

    def forward(self, x):
        y = super().forward(x)
        z = torch.empty(y.shape)
        if not hasattr(self, "called"):
            object.__setattr__(self, "called", True)
            z.fill_(float("nan"))
        z[:-1] = y[:-1]
        z[-1, :-1] = y[-1, :-1]
        return z


class UnsteadyLater(Model):
    """Other finite bits from the third call on: no matter of what memory holds."""

    def forward(self, x):
        object.__setattr__(self, "calls", getattr(self, "calls", 0) + 1)
        return super().forward(x) * (1 + 1.2e-7 * (self.calls > 2))


class OwnBuffer(Model):
    def forward(self, x):
        y = super().forward(x)
        if not hasattr(self, "kept"):
            object.__setattr__(self, "kept", [torch.empty_like(y)])
        return self.kept[0].copy_(y)


class DrawsNumbers(Model):
    def forward(self, x):
        torch.rand(1)
        return super().forward(x)


class Raises(Model):
    def forward(self, x):
        raise RuntimeError("no kernel image is available\nmore")


class Lacks(Model):
    """Finds no memory in a library from its fifth call on, or from its first."""

    allowed = 4

    def forward(self, x):
        object.__setattr__(self, "calls", getattr(self, "calls", 0) + 1)
        if self.calls > self.allowed:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        return super().forward(x)


class LacksAtOnce(Lacks):
    allowed = 0


class FromTheSecondCall(Model):
    """Right once, then the first output for ever."""

    def forward(self, x):
        if not hasattr(self, "first"):
            object.__setattr__(self, "first", [super().forward(x)])
        else:
            super().forward(x)
        return self.first[0].clone()


class SwallowsNan(Model):
    def forward(self, x):
        return super().forward(x.nan_to_num())


class Narrow(Model):
    def forward(self, x):
        weight = self.convolution.weight.bfloat16().float()
        return torch.relu(self.norm(torch.conv2d(x.bfloat16().float(), weight, self.convolution.bias)))


def judged(candidate, model=Model, inputs=model_inputs, **options):
    return certify(model, candidate, inputs, plan=Plan(**{"budget_seconds": 20.0, **options}))


def test_a_right_candidate_passes_every_trial() -> None:
    random_state = torch.get_rng_state()
    found = judged(Right)
    assert found.passed, found.why
    assert torch.equal(random_state, torch.get_rng_state())
    assert not found.skipped and found.deterministic and found.state_copied and not found.uses_randomness
    assert {t.reference for t in found.trials if not DISTRIBUTIONS[t.plan.distribution].extreme} == {"float64"}
    # Ties and negative values are for candidates from elsewhere: judge/check/probes.py adds them. What is drawn along
    # an axis is for models that do something along it.
    usual = {name for name, distribution in DISTRIBUTIONS.items() if distribution.place is None}
    assert {t.plan.distribution for t in found.trials} == usual - {"tied", "negative"}
    assert found.trials[0].state is not None  # the running statistics were compared
    assert 0 < found.candidate_error < 1e-4
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["trials"][0]["comparison"]["outputs"][0]["eager_relative"] > 0
    assert f"Passed {len(default_trials())} trials" in found.sentence()


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (NoRelu, "outside atol"),
        (IgnoresAffine, "other parameters"),
        (StaleWeights, "other parameters"),
        (Unsteady, "other bits"),
        (Mutating, "changes input 0"),
        (ForgetsBuffers, "running_mean"),
        (Uninitialised, "poisoned memory"),
        (UninitialisedFromTheStart, "poisoned memory"),
        (OwnBuffer, "same memory"),
        (DrawsNumbers, "random state"),
        (Raises, "no kernel image"),
        (FromTheSecondCall, "seed 1"),
        (SwallowsNan, "with NaN"),
        (Narrow, "the relative error is "),
    ],
)
def test_each_fault_is_found_and_named(candidate, words: str) -> None:
    found = judged(candidate)
    assert not found.passed
    assert any(words in why for why in found.why), found.why
    json.dumps(found.to_json(), allow_nan=False)


def test_other_bits_of_a_later_call_are_not_laid_to_memory() -> None:
    trial = judged(UnsteadyLater).trials[0]
    assert trial.kinds == ("nondeterministic",) and "poisoned" not in trial.problems[0], trial.problems


def test_results_that_differ_by_poison_alone() -> None:
    nan = float("nan")
    pairs = {
        True: [([1.0, nan], [1.0, 2.0]), ([1.0, nan], [1.0, FINITE_POISON]), ([nan, 3.0, 1.0], [0.0, nan, 1.0])],
        False: [([1.0, nan], [1.0, nan]), ([2.0, nan], [1.0, 3.0]), ([1.0, nan], [1.5, 2.0]), ([1.0, 2.0], [1.0, 3.0])],
    }
    for wanted, cases in pairs.items():
        for left, right in cases:
            one, other = (torch.tensor(values) for values in (left, right))
            assert differ_by_poison([one], [other]) is wanted, (left, right)
            assert differ_by_poison({"a": (one, 3)}, {"a": (other, 3)}) is wanted
            assert not differ_by_poison([one, 3], [other, 4]) and not differ_by_poison([one], [other[:1]])
    assert differ_by_poison(torch.tensor([1, INTEGER_POISON]), torch.tensor([1, 5]))
    assert not differ_by_poison(torch.tensor([1, 6]), torch.tensor([1, 5]))
    assert not differ_by_poison(torch.tensor([True]), torch.tensor([False]))


def tensors_in_cycles(candidate) -> list[str]:
    """What a certification leaves to Python's collector, in a process where nothing else ran."""
    judged(candidate)  # first imports and caches are PyTorch's own
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        judged(candidate)
        gc.collect()
        found = [each for each in gc.garbage if issubclass(type(each), torch.Tensor)]
        return [f"{type(each).__name__}{tuple(each.shape)}" for each in found]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_no_tensor_waits_for_the_collector() -> None:
    """What a certification made is gone when it is over: on a device its tensors may be all of the memory.

    A process of its own: what other tests left behind (traced programs, caches) may become garbage at any time.
    """
    names = ["Right", "NoRelu", "Raises", "Mutating"]
    program = (
        "import json, test_verify as here\n"
        f"print(json.dumps({{name: here.tensors_in_cycles(getattr(here, name)) for name in {names}}}))"
    )
    done = ran(program, PYTHONPATH=os.pathsep.join(sys.path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {name: [] for name in names}


def test_state_that_does_not_fit() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Model()

        def forward(self, x):
            return self.inner(x)

    found = judged(Other)
    assert not found.passed and not found.state_copied and "does not fit" in found.why[0]
    lenient = judged(Other, require_state=False, trials=(TrialPlan(0), TrialPlan(1, "as given", True)))
    assert "cannot be copied by name" in lenient.skipped[0].why


def test_what_the_budget_drops_is_recorded() -> None:
    found = judged(Right, budget_seconds=0.0)
    assert len(found.trials) == 1 and len(found.skipped) == len(default_trials()) - 1
    assert "s are left" in found.skipped[0].why


def test_wanted_trials_run_until_three_times_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def clock() -> float:  # every look at it takes a while
        nonlocal now
        now += 0.25
        return now

    for module in (certificate, trial):
        monkeypatch.setattr(module, "clock", clock)
    few, more, all_of_them = (len(judged(Right, budget_seconds=seconds, wanted=wanted).trials)
                              for seconds, wanted in ((2.0, 0), (2.0, 99), (400.0, 0)))
    assert 1 <= few < more < all_of_them == len(default_trials())
    assert len(judged(Right, budget_seconds=2.0, wanted=few + 1).trials) == few + 1


def test_too_little_memory_is_no_fault_of_the_candidate() -> None:
    """Others may hold it: where nothing could be tried, the caller decides; later trials are left out."""
    with pytest.raises(RuntimeError, match="ALLOC_FAILED"):
        judged(LacksAtOnce)
    found = judged(Lacks)
    assert found.passed and found.trials
    assert any("not enough memory: CUDA error: CUBLAS_STATUS_ALLOC_FAILED" in s.why for s in found.skipped)


class SaysSo(Model):
    """Has the first weights in it, and says that it lacks memory where others are asked for."""

    def forward(self, x):
        weight = self.convolution.weight
        first = self.__dict__.setdefault("first", (weight.detach().clone(),))[0]
        if not torch.equal(first, weight):
            raise RuntimeError("CUDA error: out of memory")
        return super().forward(x)


class LacksOnce(Model):
    """Finds no memory in its fifth call, but again from then on."""

    def forward(self, x):
        object.__setattr__(self, "calls", getattr(self, "calls", 0) + 1)
        if self.calls == 5:
            raise RuntimeError("CUDA error: out of memory")
        return super().forward(x)


def test_who_only_says_that_memory_is_lacking_is_refused() -> None:
    """Else trials in which a candidate would be wrong are left out. One that runs when it is tried again is no such."""
    assert judged(SaysSo).passed
    with pytest.raises(RuntimeError, match="out of memory"):
        judged(SaysSo, must_fit=True)
    found = judged(LacksOnce, must_fit=True)
    assert found.passed and not found.skipped


def test_a_distribution_the_model_refuses_is_skipped_and_an_informative_one_does_not_decide() -> None:
    class Refuses(nn.Module):
        def forward(self, x):
            if bool((x < 0).any()):
                raise ValueError("negative")
            return x * 2

    class NaNsAway(Refuses):
        def forward(self, x):
            return super().forward(x).nan_to_num(posinf=float("inf"), neginf=float("-inf"))

    inputs = lambda seed: [torch.rand(4, 6, generator=torch.Generator().manual_seed(seed))]  # noqa: E731
    found = judged(Refuses, Refuses, inputs)
    assert found.passed and any("negative" in s.why for s in found.skipped)
    assert not judged(NaNsAway, Refuses, inputs).passed
    lenient = judged(NaNsAway, Refuses, inputs, informative=frozenset({"with NaN"}))
    assert lenient.passed and any(not t.passed and not t.gates for t in lenient.trials)


class Row(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x), 1)


class RowWrongSomewhere(Row):
    def forward(self, x):
        y = super().forward(x)
        y[17] *= 1.001
        return y


def row_inputs(seed: int) -> list[torch.Tensor]:
    return [torch.rand(40, 64, generator=torch.Generator().manual_seed(seed))]


def test_sampling_axis_0_covers_the_other_entries_through_eager() -> None:
    found = judged(Row, Row, row_inputs, sample_axis0=True)
    assert found.passed, found.why
    assert found.sampled and "two batch entries" in found.sentence()
    assert all(t.reference.startswith("float64 on entries") for t in found.trials)
    wrong = judged(RowWrongSomewhere, Row, row_inputs, sample_axis0=True, trials=(TrialPlan(3),))
    assert not wrong.passed and wrong.trials[0].comparison.passed and not wrong.trials[0].against_eager.passed


class Coarse(nn.Module):
    """A product whose factors lose digits, as in TF32, ``unit`` says how; its gradients are those of the whole ones."""

    def __init__(self, unit: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.linear, self.unit = nn.Linear(64, 24), unit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.get_default_dtype() is torch.float64:
            return self.linear(x)
        lost = nn.functional.linear((self.unit * 3e-4) * torch.sin(x * 1e7), self.linear.weight)
        return self.linear(x) + lost.detach()


def test_sampling_holds_outputs_with_gradients_against_what_eager_is_off_in_the_sample() -> None:
    """Two of the same accuracy differ everywhere; eager is no exact truth where float64 ran two entries."""
    def certified(unit: float) -> certificate.Certificate:
        return judged(lambda: Coarse(unit), Coarse, row_inputs, sample_axis0=True, recording=True,
                      trials=(TrialPlan(0), TrialPlan(1, "normal", True)))

    found = certified(-1.0)
    assert found.passed, found.why
    assert found.gradients is not None and any(o.relative > 1e-5 for o in found.gradients.outputs)
    wrong = certified(40.0)
    assert not wrong.passed


def test_sampling_where_entries_depend_on_each_other_is_found_out() -> None:
    class Mean(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    found = judged(Mean, Mean, row_inputs, sample_axis0=True, trials=(TrialPlan(0, "normal"),))
    assert not found.passed and "sampling proves nothing" in found.why[0]


def test_random_models_get_the_same_random_numbers() -> None:
    class Dropped(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x, 0.5, True) * 2

    class Other(nn.Module):
        def forward(self, x):
            torch.rand(3)
            return nn.functional.dropout(x, 0.5, True) * 2

    found = judged(Dropped, Dropped, row_inputs, trials=(TrialPlan(0), TrialPlan(1, "normal")))
    assert found.passed and found.uses_randomness
    assert {trial.reference for trial in found.trials} == {"float64"}
    assert not judged(Other, Dropped, row_inputs, trials=(TrialPlan(0),)).passed


def test_float64_takes_the_random_numbers_of_float32() -> None:
    """Sums that lose digits in float32, then what draws: float64 tells how many, and takes the better candidate."""
    class Draws(nn.Module):
        def forward(self, x):
            shape = x.shape
            total = (x + 1e4).sum(1, keepdim=True) - 1e4 * x.shape[1]
            noise = torch.rand(shape) + torch.rand_like(x) * torch.randn(shape) + torch.randn_like(x)
            noise = noise + torch.empty(shape).uniform_(1, 2) * x.new_empty(shape).bernoulli_(0.7)
            noise = noise * torch.empty(shape).exponential_() + torch.empty(shape).normal_(0, 2)
            left = nn.functional.dropout(noise, 0.1, True) + nn.functional.dropout(noise, 1.0, True)
            image = nn.functional.dropout2d(left[None, :, :, None], 0.3, True)[0, :, :, 0]
            own = nn.functional.dropout(left + 0, 0.5, True, True)
            return total + image + torch.dropout(own, 0.2, True) + nn.functional.dropout(own, 0.5, False)

    class Better(Draws):
        def forward(self, x):
            wrong, right = ((v + 1e4).sum(1, keepdim=True) - 1e4 * v.shape[1] for v in (x, x.double()))
            return super().forward(x) - wrong + right.float()

    found = judged(Draws, Draws, row_inputs, trials=(TrialPlan(0, "normal"),))
    assert found.passed and found.trials[0].reference == "float64"
    assert found.eager_error > 1e-6
    better = judged(Better, Draws, row_inputs, trials=(TrialPlan(0, "normal"),))
    assert better.passed and better.candidate_error < 0.5 * better.eager_error


@pytest.mark.parametrize(("factor", "passes"), [(1.0, True), (1.001, False)])
def test_rounding_passes_where_eager_itself_is_the_reference(factor: float, passes: bool) -> None:
    """Nothing but eager under other rounding says then how far rounding may carry in a deep model."""
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(nn.Parameter(0.3 * torch.randn(64, 64)) for _ in range(40))

        def forward(self, x):
            for weight in self.weights:
                x = F.layer_norm(x + torch.tanh(x @ weight), (64,))
            return x

    class Otherwise(Deep):
        def forward(self, x):
            for weight in self.weights:
                half = x[:, 32:] @ weight[32:] + x[:, :32] @ weight[:32]  # another order of the sum
                x = F.layer_norm(x + torch.tanh(half * factor), (64,))
            return x

    def no_copy(model):
        raise RuntimeError("CUDA out of memory. Tried to allocate 8.00 GiB.")

    def made(kind):
        torch.manual_seed(0)
        return kind()

    plan = Plan(budget_seconds=60.0, trials=(TrialPlan(0),))
    found = certify(lambda: made(Deep), lambda: made(Otherwise), lambda seed: [torch.randn(16, 64)], plan=plan,
                    make_float64=no_copy)
    assert found.trials[0].reference.startswith("eager with TF32 off") and found.passed is passes, found.why


def test_a_refusal_says_where_eager_itself_was_the_reference() -> None:
    class Row(nn.Module):
        def forward(self, x):
            return x * 2

    class Wrong(nn.Module):
        def forward(self, x):
            return x * 2.001

    def no_copy(model):
        raise RuntimeError("CUDA out of memory. Tried to allocate 8.00 GiB.")

    plan = Plan(budget_seconds=20.0, trials=(TrialPlan(0),))
    found = certify(Row, Wrong, row_inputs, plan=plan, make_float64=no_copy)
    assert not found.passed
    assert found.sentence().startswith("Failed: With seed 0, as given (against eager with TF32 off: the model cannot "
                                       "be copied to float64 (CUDA out of memory.")


def test_hidden_state_in_a_plain_attribute_is_state() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = torch.ones(40, 64)

        def forward(self, x):
            self.hidden = torch.tanh(self.hidden + x)
            return self.hidden * 2

    class Forgets(Recurrent):
        def forward(self, x):
            return torch.tanh(self.hidden + x) * 2

    assert judged(Recurrent, Recurrent, row_inputs).passed
    found = judged(Forgets, Recurrent, row_inputs, trials=(TrialPlan(0),))
    assert not found.passed and "hidden" in found.why[0]


def test_a_cache_need_not_be_made() -> None:
    class Caching(Row):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.by_length = None, {}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.table is None:
                self.table = torch.arange(x.shape[-1], dtype=x.dtype)
                self.by_length[x.shape[-1]] = self.table * 2
            return super().forward(x + self.table)

    class Without(Caching):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Row.forward(self, x + torch.arange(x.shape[-1], dtype=x.dtype))

    class Wrong(Caching):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Row.forward(self, x)

    assert judged(Without, Caching, row_inputs).passed
    assert not judged(Wrong, Caching, row_inputs).passed


def test_an_inplace_model_may_be_in_place() -> None:
    class Doubles(nn.Module):
        def forward(self, x):
            return x.mul_(2)

    class Copies(nn.Module):
        def forward(self, x):
            return x * 2

    assert judged(Doubles, Doubles, row_inputs, trials=(TrialPlan(0),)).passed
    found = judged(Copies, Doubles, row_inputs, trials=(TrialPlan(0),))
    assert not found.passed and "input 0" in found.why[0]


def test_gradients() -> None:
    class Detached(Row):
        def forward(self, x):
            return super().forward(x.detach())

    class Cut(Row):
        def forward(self, x):
            return super().forward(x).detach()

    one_trial = {
        "trials": (TrialPlan(0),),
        "check_gradients": True,
        "gradient_inputs": lambda seed: row_inputs(seed),
    }
    right = judged(Row, Row, row_inputs, **one_trial)
    assert right.passed and {o.path for o in right.gradients.outputs} >= {"gradient['input 0']"}
    assert "input 0" in judged(Detached, Row, row_inputs, **one_trial).why[0]
    assert "no output requires a gradient" in judged(Cut, Row, row_inputs, **one_trial).why[0]


class Split(Row):
    """Sums in sixteen parts, as a tiled kernel does, and divides once."""

    def forward(self, x):
        parts = [x[:, i : i + 4] @ self.linear.weight[:, i : i + 4].t() for i in range(0, 64, 4)]
        y = sum(parts) + self.linear.bias
        y = torch.exp(y - y.amax(1, keepdim=True))
        return y * (1 / y.sum(1, keepdim=True))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.linear, self.norm = nn.Linear(64, 32), nn.BatchNorm1d(32)

    def forward(self, x):
        return self.norm(self.linear(x))


class NormedByMoments(Normed):
    """Statistics from sums and sums of squares about an entry, one pass; buffers through the original module."""

    def forward(self, x):
        y = self.linear(x.flip(1).flip(1))
        self.norm(y)
        y = y - y[0]
        mean, squares = y.mean(0), y.square().mean(0)
        variance = torch.where(squares.isfinite(), squares - mean.square(), squares)
        scale = self.norm.weight * torch.rsqrt(variance.clamp_min(0) + self.norm.eps)
        return (y - mean) * scale + self.norm.bias


@pytest.mark.parametrize(("model", "candidate"), [(Row, Split), (Normed, NormedByMoments)])
def test_honest_reorderings_pass_every_distribution(model, candidate) -> None:
    """Softmax of huge values and norms of constants are badly conditioned: eager is no better there."""
    found = judged(candidate, model, row_inputs)
    assert found.passed, found.why
    assert len(found.trials) == len(default_trials())


@pytest.mark.parametrize("form", ["plain", "causal", "mask", "added", "heads", "scale"])
def test_attention_in_float64_drops_what_float32_drops(form: str) -> None:
    """On a GPU the two have kernels of their own, which draw in other ways."""
    torch.manual_seed(1)
    query, key, value = torch.randn(2, 4, 7, 8), torch.randn(2, 4, 11, 8), torch.randn(2, 4, 11, 5)
    more: dict[str, Any] = {"dropout_p": 0.4}
    if form == "heads":
        key, value, more["enable_gqa"] = key[:, :2], value[:, :2], True
    more |= {"causal": {"is_causal": True}, "mask": {"attn_mask": torch.rand(2, 1, 7, 11) < 0.7},
             "added": {"attn_mask": torch.randn(7, 11)}, "scale": {"scale": 0.3}}.get(form, {})
    torch.manual_seed(2)
    wanted = torch.nn.functional.scaled_dot_product_attention(query, key, value, **more)
    after = torch.get_rng_state()
    torch.manual_seed(2)
    wide = {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in more.items()}
    found = drawn_in_float32(torch.nn.functional.scaled_dot_product_attention,
                             (query.double(), key.double(), value.double()), wide)
    assert found.dtype is torch.float64
    torch.testing.assert_close(found.float(), wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(torch.get_rng_state(), after), "as much is drawn as in one call"
    assert drawn_in_float32(torch.nn.functional.scaled_dot_product_attention,
                            (query.double(), key.double(), value.double()), {}) is NotImplemented


@pytest.mark.parametrize("weights", [False, True])
def test_draws_within_attention_of_many_heads_are_seen(weights: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own call holds those of attention, or of dropout, which draw."""
    seen = []

    def noted(func: Any, args: Any, kwargs: Any) -> Any:
        seen.append(getattr(func, "__name__", ""))
        return drawn_in_float32(func, args, kwargs)

    monkeypatch.setattr("kernelwright.verify.state.drawn_in_float32", noted)
    layer = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True).double().train()
    x = torch.rand(2, 3, 8, dtype=torch.float64)
    torch.manual_seed(0)
    wanted = layer(x, x, x, need_weights=weights)[0]
    torch.manual_seed(0)
    found = call_in_float64(_Attending(layer, weights), [x])
    assert ("dropout" if weights else "scaled_dot_product_attention") in seen
    torch.testing.assert_close(found, wanted)


class _Attending(nn.Module):
    def __init__(self, layer: nn.Module, weights: bool) -> None:
        super().__init__()
        self.layer, self.weights = layer, weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, x, x, need_weights=self.weights)[0]
