"""VERIFY holds candidates against what eager gives: in both gradient modes, in every respect that a caller can see."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.verify import Plan, Tolerance, TrialPlan, certify, ties
from kernelwright.verify.distributions import squares_leave_range
from kernelwright.verify.reference import FAST_PATH, FLOAT64, RANGE, SEPARATE


def normal(*shape: int, dtype: torch.dtype = torch.float32):
    return lambda seed: [torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)]


def judged(candidate, model, inputs=normal(6, 8), *, training: bool = True, **options):
    def made(kind):
        torch.manual_seed(0)
        return kind().train(training)

    usual = {"trials": (TrialPlan(0), TrialPlan(1, "normal", True)), "budget_seconds": 30.0, "poison": False,
             "repeats": 0}
    return certify(lambda: made(model), lambda: made(candidate), inputs, plan=Plan(**{**usual, **options}))


# --- one computation ------------------------------------------------------------------------------


class Encoder(nn.Module):
    """PyTorch has a fast path of its own for it in inference, which leaves padded places zero."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = torch.arange(5) >= torch.tensor([[5], [3], [1], [4]])
        return self.encoder(x, src_key_padding_mask=padded).mean(1)


class SlowEncoder(Encoder):
    def forward(self, x):
        with torch.enable_grad():
            return super().forward(x).detach()


class ByType(nn.Module):
    """Another formula in another type."""

    def forward(self, x):
        return x * 2 if x.dtype is torch.float32 else x * 3


class ByDefault(nn.Module):
    """Another formula where PyTorch makes other numbers of Python's."""

    def forward(self, x):
        return x * 2 if torch.get_default_dtype() is torch.float32 else x * 3


class ByEpsilon(nn.Module):
    """Divides by what is zero, but for the smallest step of the type."""

    def forward(self, x):
        x = x.clamp(min=0)
        return x / (x.mean(0) * 0 + torch.finfo(x.dtype).eps)


class WholeByType(nn.Module):
    """Bits of a number as a whole number."""

    def forward(self, x):
        return x.relu(), x.contiguous().view(torch.int32 if x.element_size() == 4 else torch.int64).long() >> 8


class Casting(nn.Module):
    """A step of it is to round float64 to float32."""

    def forward(self, x):
        wide = x.double() / 3
        return (wide.float().to(torch.float64) - wide) * 1e7, wide.type(torch.float32)


class WidelyCasting(Casting):
    def forward(self, x):
        wide = x.double() / 3
        return wide * 0, wide.float()


class Autocast(nn.Module):
    """Rounds what it multiplies to 8 bits: no other computation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.layers(x).float()


class Amplifies(nn.Module):
    """Badly conditioned and honest: no digit of the differences is right."""

    def forward(self, x):
        return ((x + 3e6) - 3e6) * 100, (x * 37.5).round(), (x * 1e5).sin(), x.argmax(1)


class AmplifiesDropped(nn.Module):
    """The same with random numbers, which float64 takes from float32."""

    def forward(self, x):
        return nn.functional.dropout((x + 3e6) - 3e6, 0.5, True) * 100


class Underflows(nn.Module):
    """Halves below the smallest normal one, and places among values that float32 rounds to zero."""

    def forward(self, x):
        places = (x * 40).softmax(1).topk(4)[1]
        return (x.half() * 2.0**-20 * 0.3).float() * 2.0**20, places


class VanishesInside(nn.Module):
    """What exp loses inside of silu is multiplied by x."""

    def forward(self, x):
        return nn.functional.silu(x * 0.1 - 89.7)


class NoFraction(nn.Module):
    """Float32 holds no fraction of such numbers, and none of their neighbours has any."""

    def forward(self, x):
        return (x.tanh() * 1e4 + 1e8) % 1.0


class LosesOnTheWay(nn.Module):
    """Signs of what float32 holds as zeros and float64 does not."""

    def forward(self, x):
        return (1 / (1 + torch.exp(x.tanh() * 2 + 89))).sign().sum(1)


class LosesByDefault(LosesOnTheWay):
    """The same, and another computation where nothing is lost."""

    def forward(self, x):
        return super().forward(x) + (1 if torch.get_default_dtype() is torch.float64 else 0)


@pytest.mark.parametrize(("model", "training", "reference"), [
    (Encoder, False, FAST_PATH), (Underflows, True, RANGE), (VanishesInside, True, FLOAT64),
    (NoFraction, True, FLOAT64), (LosesOnTheWay, True, RANGE), (LosesByDefault, True, SEPARATE),
    (Encoder, True, FLOAT64), (Casting, True, FLOAT64), (Autocast, True, FLOAT64),
    (Amplifies, True, FLOAT64), (AmplifiesDropped, True, FLOAT64),
    (ByType, True, FLOAT64), (ByDefault, True, SEPARATE), (ByEpsilon, True, FLOAT64), (WholeByType, True, SEPARATE)])
def test_what_is_taken_for_the_truth(model, training, reference):
    inputs = normal(4, 5, 8) if model is Encoder else normal(64, 8)
    found = judged(model, model, inputs, training=training)
    assert {t.reference for t in found.trials} == {reference}
    assert found.passed == (reference != SEPARATE) == (not found.separate)
    if found.separate:
        assert "something else than the model in float64" in found.sentence() and found.skipped
        lenient = judged(model, model, inputs, training=training, lenient=frozenset({"separate"}))
        assert lenient.passed and not lenient.separate


@pytest.mark.parametrize(("model", "candidate", "recording"), [
    (Encoder, SlowEncoder, False), (Casting, WidelyCasting, False)])
def test_what_float64_alone_would_accept(model, candidate, recording):
    found = judged(candidate, model, normal(4, 5, 8), training=False, recording=recording)
    assert not found.passed
    if model is Encoder:
        assert found.trials[0].kinds == ("other-computation",) and "not what PyTorch gives" in found.sentence()


def test_a_candidate_of_a_model_that_float64_does_not_compute_is_held_against_eager():
    class Twice(ByDefault):
        def forward(self, x):
            return x + x

    class ThreeTimes(ByDefault):
        def forward(self, x):
            return x * 3

    lenient = {"lenient": frozenset({"separate"})}
    assert judged(Twice, ByDefault, **lenient).passed
    found = judged(ThreeTimes, ByDefault, **lenient)
    assert not found.passed and found.trials[0].kinds == ("other-computation",)


class KeepsMeans(nn.Module):
    """A statistic in float16 of numbers whose mean it does not hold."""

    def __init__(self, sign: float = 1.0) -> None:
        super().__init__()
        self.sign = sign
        self.register_buffer("mean", torch.zeros(8, dtype=torch.float16))

    def forward(self, x):
        self.mean.copy_(self.sign * 1e-12 * x.mean(0))
        return x * 2


@pytest.mark.parametrize(("zeros", "passes"), [("sums", True), ("sign", False)])
def test_a_statistic_that_its_type_loses_has_any_sign_where_sums_have(zeros: str, passes: bool) -> None:
    """Where float64 runs some entries of a batch alone it has no such statistic, and nobody sees that it was lost."""
    for sampled in (True, False):
        found = judged(lambda: KeepsMeans(-1.0), KeepsMeans, normal(64, 8), tolerance=Tolerance(zeros=zeros),
                       sample_axis0=sampled)
        assert all(t.reference.startswith("float64 on entries") == sampled for t in found.trials)
        assert found.passed == passes, found.why


# --- with gradients recorded ----------------------------------------------------------------------


class Asks(nn.Module):
    """Looks at what a call records."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        y = torch.tanh(x * self.weight)
        return y + 0.5 * torch.is_grad_enabled() + 0.25 * x.requires_grad


class FrozenAsks(Asks):
    def forward(self, x):
        return torch.tanh(x * self.weight) + 0.5 * torch.is_grad_enabled()


class NeverAsks(Asks):
    def forward(self, x):
        return torch.tanh(x * self.weight)


class Several(nn.Module):
    """Outputs of every kind: real, complex, whole, detached, a parameter, and one that no input reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.other = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))

    def forward(self, x):
        y = x * self.weight
        return {"real": y, "complex": torch.fft.rfft(y), "whole": y.argmax(1), "detached": y.detach() + 1,
                "parameter": self.other, "apart": self.other * 2}


def without(name):
    """The gradients through one of the outputs are lost."""
    class Lost(Several):
        def forward(self, x):
            found = super().forward(x)
            return {**found, name: found[name].detach() + 0}

    return Lost


class Conjugated(Several):
    def forward(self, x):
        found = super().forward(x)
        z = found["complex"]
        return {**found, "complex": z.detach() + (z.conj() - z.conj().detach())}


class FullOfZeros(Several):
    """A gradient of zeros where the model's is None."""

    def forward(self, x):
        found = super().forward(x)
        return {**found, "apart": found["apart"] + 0 * self.weight}


class RequiresAll(Several):
    def forward(self, x):
        found = super().forward(x)
        return {**found, "detached": found["detached"] + 0 * self.weight}


class Copied(Several):
    def forward(self, x):
        return {**super().forward(x), "parameter": self.other * 1}


@pytest.mark.parametrize(("candidate", "model", "kind"), [
    (Asks, Asks, ""), (FrozenAsks, Asks, "gradients"), (NeverAsks, Asks, "elements"), (Several, Several, ""),
    (without("real"), Several, "requires-grad"), (without("complex"), Several, "requires-grad"),
    (Conjugated, Several, "gradients"), (FullOfZeros, Several, "gradients"), (RequiresAll, Several, "requires-grad"),
    (Copied, Several, "alias-missing")])
def test_with_gradients_recorded(candidate, model, kind):
    assert judged(candidate, model).passed == (kind != "alias-missing")
    found = judged(candidate, model, recording=True)
    assert found.passed == (not kind), found.why
    if not kind:
        assert "gradients recorded" in found.sentence() and "gradients are eager's, bit for bit" in found.sentence()
    elif kind == "gradients":
        assert all(t.passed for t in found.trials) and not found.gradients.passed
    elif kind == "elements":
        assert not found.trials[0].comparison.passed
    else:
        assert kind in found.trials[0].kinds


def test_each_output_alone_and_other_parameters():
    found = judged(Several, Several, recording=True).gradients
    paths = {o.path for o in found.outputs}
    assert {"gradient['input 0']", "gradient of output['complex']['weight']", "gradient of output['apart']['weight']",
            "gradient with other parameters['other']"} <= paths
    short = judged(Several, Several, recording=True, budget_seconds=0.0, required=2)
    assert short.gradients.passed and any("gradients would take" in s.why for s in short.skipped)
    assert not any("other parameters" in o.path for o in short.gradients.outputs)


def test_buffers_that_a_call_with_gradients_writes():
    class Largest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("largest", torch.ones(()))

        def forward(self, x):
            self.largest.copy_(x.abs().amax())
            return x / self.largest

    found = judged(Largest, Largest, recording=True)
    assert found.passed and found.trials[1].state is not None and found.gradients is not None


def test_models_without_gradients():
    class Whole(nn.Module):
        def forward(self, x):
            return x.argmax(1)

    class Unmade(nn.Module):  # nobody has written its derivative
        def forward(self, x):
            return torch.igamma(x.abs() + 1, x.abs() + 2)

    for model in (Whole, Unmade):
        found = judged(model, model, recording=True)
        assert found.passed and found.gradients is None


# --- forms ----------------------------------------------------------------------------------------


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8))
        self.register_buffer("table", torch.rand(6, 8))


def forward(function):
    return type(function.__name__, (Plain,), {"forward": lambda self, x: function(self, x)})


PAIRS = {
    "transposed": (lambda m, x: (x * 2).t(), lambda m, x: (x * 2).t().contiguous(), "strides"),
    "short axes": (lambda m, x: (x * 2)[None].transpose(0, 1), lambda m, x: (x * 2)[:, None].contiguous(), ""),
    "input": (lambda m, x: x.view(-1), lambda m, x: x.reshape(-1).clone(), "alias-missing"),
    "copied": (lambda m, x: x + 0, lambda m, x: x, "alias"),
    "another view": (lambda m, x: x[:3], lambda m, x: x[3:], "alias-missing"),
    "buffer": (lambda m, x: m.table, lambda m, x: m.table.clone(), "alias-missing"),
    "own buffer": (lambda m, x: m.table * 1, lambda m, x: m.table, "alias"),
    "one memory": (lambda m, x: (y := x * 2, y[0])[0:2], lambda m, x: (x * 2, x[0] * 2), "alias-missing"),
    "two memories": (lambda m, x: (x * 2, x[0] * 2), lambda m, x: (y := x * 2, y[0])[0:2], "alias"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_strides_and_memory(name):
    model, candidate, kind = PAIRS[name]
    for recording in (False, True):
        found = judged(forward(candidate), forward(model), recording=recording, trials=(TrialPlan(0),))
        assert found.passed == (not kind), found.why
        assert not kind or kind in found.trials[0].kinds, found.trials[0].problems
    found = judged(forward(candidate), forward(model), lenient=frozenset({kind}), trials=(TrialPlan(0),)).trials[0]
    assert not found.kinds and (not kind or found.lenient == (kind,))


def test_random_state_after_a_call():
    def drawing(more):
        class Draws(nn.Module):
            def forward(self, x):
                y = x * torch.rand(x.shape)
                torch.rand(more)
                return y
        return Draws

    assert judged(drawing(1), drawing(1)).passed
    assert judged(drawing(2), drawing(1)).trials[0].kinds == ("random-state-after",)


def test_exceptions_on_bad_values():
    def loss(check, error=ValueError):
        class Loss(nn.Module):
            def forward(self, x):
                if check and bool((x < 0).any()):
                    raise error("below zero")
                return x.sqrt()
        return Loss

    def inputs(seed):
        return [torch.rand(5, generator=torch.Generator().manual_seed(seed))]

    trials = (TrialPlan(0), TrialPlan(1, "normal"))
    found = judged(loss(True), loss(True), inputs, trials=trials)
    assert found.passed and "as does the candidate" in found.skipped[0].why
    for candidate in (loss(False), loss(True, TypeError)):
        found = judged(candidate, loss(True), inputs, trials=trials)
        assert not found.passed and found.trials[1].kinds == ("does-not-raise",)
        assert judged(candidate, loss(True), inputs, trials=trials, lenient=frozenset({"does-not-raise"})).passed


# --- ends of the range ----------------------------------------------------------------------------


class Norm(nn.Module):
    """Its squares leave the range of float32, and it says so."""

    def forward(self, x):
        return x / (x * x).sum(1, keepdim=True).sqrt()


class WideNorm(Norm):
    def forward(self, x):
        return super().forward(x.double()).to(x.dtype)


def where_lost(value):
    """Another value where eager overflows or vanishes."""
    class WrongWhereLost(Norm):
        def forward(self, x):
            y = super().forward(x)
            return torch.where(y.isfinite() & (y != 0), y, value)

    return WrongWhereLost


class WrongWhereRight(Norm):
    """Right where eager overflows or vanishes, and in no other place."""

    def forward(self, x):
        y = super().forward(x)
        right = x.double() / (x.double() ** 2).sum(1, True).sqrt()
        return torch.where(y.isfinite() & (y != 0), 7.0, right.to(x.dtype))


class DirectionAndHalf(Norm):
    """A type that cannot hold the first part holds the second."""

    def forward(self, x):
        return torch.cat((super().forward(x), x[:, :4] * 0.5), 1)


class ZeroAndHalf(Norm):
    def forward(self, x):
        return torch.cat((torch.zeros_like(x), x[:, :4] * 0.5), 1)


class DirectionAndWrong(Norm):
    def forward(self, x):
        return torch.cat((super().forward(x), x[:, :4] * 0.7), 1)


class Deviation(nn.Module):
    def forward(self, x):
        return x.var(1)


class OnePass(Deviation):
    def forward(self, x):
        return (x.square().mean(1) - x.mean(1).square()).clamp_min(0) * (x.shape[1] / (x.shape[1] - 1))


@pytest.mark.parametrize(("candidate", "model", "wrong"), [
    (Norm, Norm, ()), (WideNorm, Norm, ()), (WrongWhereRight, Norm, ("normal", "offset")), (Deviation, Deviation, ()),
    (where_lost(7.0), Norm, ()), (where_lost(torch.nan), Norm, ()), (DirectionAndHalf, DirectionAndHalf, ()),
    (ZeroAndHalf, DirectionAndHalf, ("normal", "offset")),
    (DirectionAndWrong, DirectionAndHalf, ("normal", "tiny", "huge", "offset")),
    (OnePass, Deviation, ("huge", "offset"))])
def test_ends_of_the_range(candidate, model, wrong):
    trials = tuple(TrialPlan(n, kind) for n, kind in enumerate(("normal", "tiny", "huge", "offset")))
    found = judged(candidate, model, normal(16, 32), trials=trials)
    failed = {t.plan.distribution for t in found.trials if not t.passed}
    assert failed == set(wrong), found.why
    if model is Norm:
        assert {t.plan.distribution for t in found.trials if t.reference == RANGE} == {"tiny", "huge"}
    assert found.candidate_error < 1e-5 or wrong


@pytest.mark.parametrize(("inputs", "leave"), [
    (torch.tensor([1e300], dtype=torch.float64), True), (torch.tensor([1e150, torch.inf], dtype=torch.float64), False),
    (torch.tensor([1e20, torch.nan]), True), (torch.tensor([-1e20]), True), (torch.tensor([1e-20, 0.0]), True),
    (torch.tensor([1.0, 1e-30]), False), (torch.zeros(3), False), (torch.zeros(0), False), (torch.arange(3), False),
    (torch.tensor([300.0], dtype=torch.float16), True), (torch.tensor([300.0], dtype=torch.bfloat16), False)])
def test_whose_squares_leave_the_range(inputs, leave):
    assert squares_leave_range([{"x": inputs}, 3]) == leave


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_inputs_that_are_extreme_themselves(dtype):
    """What their squares lose is nobody's; where they lose nothing, everything is as usual."""
    for scale in (torch.finfo(dtype).max / 16, torch.finfo(dtype).smallest_normal * 2):
        def inputs(seed, scale=scale):
            return [(torch.randn(16, 32, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)]

        for candidate in (Norm, WideNorm, where_lost(7.0)):
            found = judged(candidate, Norm, inputs, trials=(TrialPlan(0),))
            assert found.passed and found.trials[0].reference == RANGE, found.why
        # Of few bits eager has few digits of the smallest numbers.
        assert judged(DirectionAndWrong, DirectionAndHalf, inputs, trials=(TrialPlan(0),)).passed == (
            dtype is torch.float16 and scale < 1)


class Grows(Norm):
    """Inputs are ordinary, and their exponentials' squares overflow."""

    def forward(self, x):
        return torch.cat((super().forward((x * 25).exp()), x[:, :4] * 0.5), 1)


class GrowsWide(Grows):
    def forward(self, x):
        return super().forward(x.double()).to(x.dtype)


class GrowsWrong(Grows):
    def forward(self, x):
        y = super().forward(x)
        return torch.cat((y[:, :-4], y[:, -4:] * 1.1), 1)


class Places(Grows):
    """Whole numbers, of which some come of what is lost."""

    def forward(self, x):
        y = super().forward(x)
        return y, torch.stack((y.argmax(1), x.argmax(1)))


class PlacesWide(Places):
    def forward(self, x):
        y, places = super().forward(x.double())
        return y.to(x.dtype), places


class PlacesWrong(Places):
    def forward(self, x):
        y, places = super().forward(x)
        return y, places + torch.tensor([[0], [1]])


@pytest.mark.parametrize(("model", "candidate", "right"), [
    (Grows, Grows, True), (Grows, GrowsWide, True), (Grows, GrowsWrong, False),
    (Places, Places, True), (Places, PlacesWide, True), (Places, PlacesWrong, False)])
def test_what_leaves_the_range_on_the_way(model, candidate, right):
    found = judged(candidate, model, normal(16, 32), trials=(TrialPlan(0),))
    assert found.passed == right and not found.separate and found.trials[0].reference == RANGE, found.why


class LosesProducts(nn.Module):
    """One output leaves the range of 16 bits on its way, the other is what many roundings to 16 bits make of it."""

    def forward(self, x):
        y = x
        for _ in range(12):
            y = (y * 1.01).sin() * 1.1
        return (x * 1e5) * 1e-5, self.last(y)

    def last(self, y):
        return y


class LosesProductsWide(LosesProducts):
    """Rounds once."""

    def forward(self, x):
        return (x * 1e5) * 1e-5, super().forward(x.float())[1].to(x.dtype)


class LosesProductsWrong(LosesProductsWide):
    def last(self, y):
        return y * 1.1


class LosesProductsBackwards(LosesProductsWide):
    def last(self, y):
        return y * 0.9 + 0.1 * y.detach()


@pytest.mark.parametrize(("candidate", "right"), [
    (LosesProductsWide, True), (LosesProductsWrong, False), (LosesProductsBackwards, False)])
def test_gradients_are_held_against_float64_where_something_is_lost(candidate, right):
    """Eager is no measure of itself: what it rounds counts as its error, as in a call without gradients."""
    found = judged(candidate, LosesProducts, normal(6, 8, dtype=torch.float16), recording=True)
    assert {t.reference for t in found.trials} == {RANGE}
    assert found.passed == right == found.gradients.passed, found.why
    assert all(t.passed for t in found.trials) == (candidate is not LosesProductsWrong)


class BiasedEncoder(Encoder):
    """PyTorch's fast path takes any mask for a choice of places: nothing is left of a row, and it is NaN."""

    def forward(self, x):
        return self.encoder(x, mask=torch.arange(1.0, 26.0).view(5, 5).cos()) * 2


class SlowBiasedEncoder(BiasedEncoder):
    def forward(self, x):
        with torch.enable_grad():
            return super().forward(x).detach()


def test_what_a_path_of_eager_loses_is_not_lost_by_its_type():
    found = judged(BiasedEncoder, BiasedEncoder, normal(4, 5, 8), training=False)
    assert found.passed and {t.reference for t in found.trials} == {FAST_PATH}
    found = judged(SlowBiasedEncoder, BiasedEncoder, normal(4, 5, 8), training=False)
    assert not found.passed and found.trials[0].kinds == ("other-computation",)


def test_signs_of_zeros_and_infinities():
    signs = {"tolerance": Tolerance(nonfinite="sign", zeros="sign"), "trials": (TrialPlan(0, "signed zeros"),)}
    kinds = {
        "minus": (lambda m, x: x * -0.0, lambda m, x: x * 0.0, "zero-sign"),
        "infinite": (lambda m, x: 1 / (x * 0.0), lambda m, x: (1 / (x * 0.0)).abs(), "nonfinite"),
        "sum": (lambda m, x: x + 0.0, lambda m, x: x * 1.0, "zero-sign"),
        "either": (lambda m, x: 1 / (x * 0.0), lambda m, x: 1 / (x * 0.0) * (x.abs() + 1), ""),
    }
    for model, candidate, kind in kinds.values():
        assert judged(forward(model), forward(model), **signs).passed
        found = judged(forward(candidate), forward(model), **signs)
        assert found.passed == (not kind)
        if kind:
            assert {k for o in found.trials[0].comparison.outputs for k in o.kinds} == {kind}
            lenient = {**signs, "tolerance": Tolerance(nonfinite="position")}
            assert judged(forward(candidate), forward(model), **lenient).passed


SIGNS_BY_PLACE = {
    "maximum": lambda x: torch.maximum(x, x.flip(0)), "bound by a tensor": lambda x: x.clamp(min=x.flip(1)),
    "in place": lambda x: (x * 1).clamp_max_(x.flip(1)), "largest of a row": lambda x: x.amax(1),
    "least of all": lambda x: torch.stack((x.min(), x.max())), "largest by axis": lambda x: x.max(0, keepdim=True)[0],
    "both ends": lambda x: torch.cat(torch.aminmax(x, dim=0)), "difference": lambda x: x - x.amax(1, keepdim=True),
}


@pytest.mark.parametrize("name", SIGNS_BY_PLACE)
def test_signs_of_zeros_that_eager_chooses_by_place(name):
    """Of zeros of both signs either is the extremum; where all have one sign there is no choice."""
    function = SIGNS_BY_PLACE[name]

    def in_order(sign):
        """The same with zeros of one sign above those of the other."""
        def ordered(m, x):
            y = function(x)
            chosen = sign * function(torch.where(x == 0, torch.copysign(torch.full_like(x, 1e-30), sign * x), x))
            return torch.where(y == 0, torch.copysign(y, chosen), y)
        return forward(ordered)

    model = forward(lambda m, x: function(x))
    options = {"tolerance": Tolerance(nonfinite="sign", zeros="sign"),
               "trials": (TrialPlan(0), TrialPlan(1, "signed zeros"))}

    def mixed(seed):
        return [(torch.randint(0, 2, (5, 7), generator=torch.Generator().manual_seed(seed)) * 2 - 1) * 0.0]

    for candidate in (in_order(1.0), *([in_order(-1.0)] if name != "difference" else [])):
        found = judged(candidate, model, mixed, **options)
        assert found.passed, found.why
    for zero in (0.0, -0.0):
        found = judged(forward(lambda m, x: -function(x)), model, lambda seed, zero=zero: [torch.full((5, 7), zero)],
                       **{**options, "trials": (TrialPlan(0),)})
        assert "zero-sign" in {kind for o in found.trials[0].comparison.outputs for kind in o.kinds}


@pytest.mark.parametrize("recording", [False, True])
def test_zeros_of_a_soft_shrink_may_keep_the_sign_of_what_is_negative(recording):
    """As in PyTorch those do that fill no vector; of what is positive there is one zero."""
    def found(zero):
        def shrunk(m, x):
            y = F.softshrink(x * 1, 0.3)
            return torch.where(y == 0, zero(x), y)
        return judged(forward(shrunk), forward(lambda m, x: F.softshrink(x * 1, 0.3)),
                      lambda seed: [torch.rand(5, 7, generator=torch.Generator().manual_seed(seed)) - 0.5],
                      tolerance=Tolerance(nonfinite="sign", zeros="sign"), trials=(TrialPlan(0),), recording=recording)

    assert found(torch.zeros_like).passed and found(lambda x: x * 0.0).passed
    assert not found(lambda x: x.abs() * -0.0).passed


@pytest.mark.parametrize("recording", [False, True])
def test_signs_that_rounding_decides_are_free(recording, monkeypatch):
    """What is left of a difference of equal values has any sign, and so has the zero that it is truncated to."""
    def found(candidate):
        return judged(forward(candidate), forward(lambda m, x: (x * 0.1 + x * 0.2 - x * 0.3).trunc()),
                      lambda seed: [torch.rand(4, 3, generator=torch.Generator().manual_seed(seed)) + 1],
                      tolerance=Tolerance(nonfinite="sign", zeros="sign"), trials=(TrialPlan(0),), recording=recording)

    assert found(lambda m, x: (x * 0.3 - x * 0.2 - x * 0.1).trunc()).passed
    monkeypatch.setattr(ties, "ROUNDINGS", 0)
    assert not found(lambda m, x: (x * 0.3 - x * 0.2 - x * 0.1).trunc()).passed


@pytest.mark.parametrize("recording", [False, True])
def test_signs_of_what_is_a_zero_by_its_rounding_alone_are_free(recording):
    """Under other rounding of what is left of a difference the product is a small number of either sign, seldom 0."""
    def found(candidate, model=lambda x: x * 0.1 + x * 0.2 - x * 0.3, scale=1e-38):
        return judged(forward(lambda m, x: candidate(x) * scale), forward(lambda m, x: model(x) * scale),
                      lambda seed: [torch.rand(40, 30, generator=torch.Generator().manual_seed(seed)) + 1],
                      tolerance=Tolerance(nonfinite="sign", zeros="sign"), trials=(TrialPlan(0),), recording=recording)

    for scale in (1e-37, 1e-38, -1e-38):
        assert found(lambda x: x * 0.2 - x * 0.3 + x * 0.1, scale=scale).passed
        assert found(lambda x: x * 0.1 - x * 0.3 + x * 0.2, scale=scale).passed
    assert found(lambda x: x * 1e-20, lambda x: x * 1e-20).passed
    assert not found(lambda x: x * -1e-20, lambda x: x * 1e-20).passed
