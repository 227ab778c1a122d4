"""Rounding that a model amplifies: what eager's own errors would be under other rounding."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.verify import certify, choices, reference, sensitivity
from kernelwright.verify.certificate import Certificate, Plan
from kernelwright.verify.compare import compare
from kernelwright.verify.gradients import check_gradients
from kernelwright.verify.observe import identical
from kernelwright.verify.records import Reference, TrialPlan
from kernelwright.verify.sensitivity import WIDENED, may_be_rounding, move
from kernelwright.verify.state import State, float64_copy
from kernelwright.verify.tolerance import Tolerance


class Cancelling(nn.Module):
    """Sums of large terms that nearly cancel: a few units in the last place of a term are all that is left of them."""

    def __init__(self, chunk: int = 0, half: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.weight = nn.Parameter(torch.randn(4096))
        self.chunk, self.half = chunk, half

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.bfloat16().float() if self.half else self.weight
        terms = torch.cat((x, -x.roll(1, 0)), 1) * torch.cat((weight, weight)) * 16
        if not self.chunk:
            return terms.sum(1)
        total = torch.zeros(len(x))
        for part in terms.split(self.chunk, 1):  # another order, in which more is rounded
            total = total + part.sum(1)
        return total


class Amplifying(nn.Module):
    """Batch norms over two values each: where these are nearly equal, their difference is multiplied by 300."""

    def __init__(self, permuted: bool = False, half: bool = False) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(64) for _ in range(3))
        self.permuted, self.half = permuted, half

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            weight = layer.weight.half().float() if self.half else layer.weight
            if self.permuted:  # one term after the other, in which more is rounded than in any library's product
                total = layer.bias.expand(len(x), -1)
                for at in range(63, -1, -1):
                    total = total + x[:, at, None] * weight[:, at]
                x = total
            else:
                x = torch.nn.functional.linear(x, weight, layer.bias)
            y = norm(x)
            x = torch.sigmoid(y * 0.01)
        return y


class Shared(nn.Module):
    """One sum, and biases of which the last nearly cancels it: a slice whose elements share one rounding error."""

    def __init__(self, seed: int, chunk: int = 0, half: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.left, self.right = (nn.Parameter(torch.randn(4096, generator=generator)) for _ in range(2))
        total = (self.left.double() * self.right.double()).sum().item()
        self.bias = nn.Parameter(torch.tensor([1.0, -2.0, 3.0, 1e-4 - total]))
        self.chunk, self.half = chunk, half

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        terms = self.left * (self.right.half().float() if self.half else self.right)
        total = sum(part.sum() for part in terms.split(self.chunk)) if self.chunk else terms.sum()
        return total + self.bias + 0 * x


class Jumping(nn.Module):
    """Whole numbers of inputs that are whole: rounding moves each of them by one."""

    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.floor(x * self.scale)
        return torch.cat((found[:1] - 1, found[1:])) if self.wrong else found


class Offset(nn.Module):
    """Goes through numbers so large that a digit of x is left: eager's error is a seventh of the output."""

    def __init__(self, share: float | None = None) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 8e6) - 8e6 if self.share is None else self.share * x


class Chain(nn.Module):
    """Products of half precision that amplify nothing: errors grow with the square root of their number."""

    def __init__(self, off: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.weights = nn.ParameterList(nn.Parameter((torch.rand(256) + 0.5).half()) for _ in range(60))
        self.off = off

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = x * weight
        if not self.off:
            return x
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
        return (x.float() * (1 + self.off * noise)).half()


class Remembering(nn.Module):
    """Changes a buffer, an attribute and its input, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.last = torch.zeros(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.last + x.sum(0)
        x += 1
        return torch.nn.functional.dropout(self.norm(x), 0.5, True) * self.last


def nearly_equal(seed: int) -> list[torch.Tensor]:
    x = torch.randn(1, 64, generator=torch.Generator().manual_seed(seed))
    return [torch.cat((x, x + 1e-3 * torch.randn(1, 64, generator=torch.Generator().manual_seed(seed + 1))))]


def normal(seed: int) -> list[torch.Tensor]:
    return [torch.randn(64, 4096, generator=torch.Generator().manual_seed(seed))]


def rows(seed: int) -> list[torch.Tensor]:
    return [torch.randn(64, 4, generator=torch.Generator().manual_seed(seed))]


def whole(seed: int) -> list[torch.Tensor]:
    return [torch.arange(1.0, 65.0).reshape(8, 8)]


def certificate(make: Callable[[], nn.Module], make_candidate: Callable[[], nn.Module],
                inputs: Callable[[int], list[torch.Tensor]], seeds: int = 16) -> Certificate:
    trials = tuple(TrialPlan(seed) for seed in range(seeds))
    return certify(make, make_candidate, inputs, plan=Plan(trials=trials, repeats=0, poison=False))


@pytest.mark.parametrize(("make", "inputs", "right", "wrong"), [
    (Cancelling, normal, {"chunk": 16}, {"half": True}),
    (Amplifying, nearly_equal, {"permuted": True}, {"half": True}),
], ids=["cancelling", "amplifying"])
def test_rounding_that_is_amplified_is_no_fault(make, inputs, right, wrong, monkeypatch):
    found = certificate(make, lambda: make(**right), inputs, 64)  # how many are widened depends on the processor
    assert found.passed, found.why
    widened = [t for t in found.trials if WIDENED in t.notes]
    assert 0 < len(widened) < len(found.trials)
    assert not certificate(make, lambda: make(**wrong), inputs).passed
    monkeypatch.setattr(sensitivity, "DRAWS", 0)
    monkeypatch.setattr(choices, "CALLS", 0)
    assert not certificate(make, lambda: make(**right), inputs, 64).passed


class Amplified(Amplifying):
    """The same, a share larger."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 + self.share)


def test_rounding_of_float64_is_no_fault(monkeypatch):
    """Eager is its own reference there, and what it is off only shows under other rounding."""
    def passes(make: Callable[[], nn.Module]) -> bool:
        return certificate(lambda: Amplifying().double(), lambda: make().double(),
                           lambda seed: [x.double() for x in nearly_equal(seed)]).passed

    assert passes(lambda: Amplifying(permuted=True))
    assert not passes(lambda: Amplified(1e-7))
    monkeypatch.setattr(sensitivity, "DRAWS", 0)
    assert not passes(lambda: Amplifying(permuted=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_of_gradients_is_no_fault(dtype, monkeypatch):
    """Backward passes run under other rounding, too, and a share more is still one."""
    def passes(make: Callable[[], nn.Module]) -> bool:
        model, candidate, double = (m().to(t) for m, t in ((Amplifying, dtype), (make, dtype),
                                                           (Amplifying, torch.float64)))
        return all(check_gradients(model, candidate, double, [x.to(dtype) for x in nearly_equal(seed)], State.of(model),
                                   seed=seed).passed for seed in range(8))

    assert passes(lambda: Amplifying(permuted=True))
    assert not passes(lambda: Amplified(1e-2 if dtype is torch.float32 else 1e-7))
    monkeypatch.setattr(sensitivity, "DRAWS", 0)
    assert not passes(lambda: Amplifying(permuted=True))


def test_a_slice_may_share_one_rounding_error(monkeypatch):
    def passes(seed: int, **options: object) -> bool:
        return certificate(lambda: Shared(seed), lambda: Shared(seed, **options), rows, 1).passed

    assert all(passes(seed, chunk=128) for seed in range(24))
    assert not any(passes(seed, half=True) for seed in range(4))
    monkeypatch.setattr(sensitivity, "DRAWS", 0)
    assert not all(passes(seed, chunk=128) for seed in range(24))


def test_a_model_that_jumps_excuses_nothing():
    assert certificate(Jumping, Jumping, whole, 1).passed
    assert not certificate(Jumping, lambda: Jumping(wrong=True), whole, 1).passed


def test_a_digit_of_eager_is_not_widened_away():
    """What is no noise by eager's own error does not become noise, of which nothing can be wrong."""
    assert certificate(Offset, lambda: Offset(1.0), normal, 1).passed
    for share in (0.0, 0.4):
        assert not certificate(Offset, lambda share=share: Offset(share), normal, 1).passed


def test_half_precision_that_amplifies_nothing_excuses_little():
    def inputs(seed: int) -> list[torch.Tensor]:
        return [normal(seed)[0][:, :256].half()]

    found = certificate(Chain, Chain, inputs, 1)
    eager = found.trials[0].comparison.outputs[0].eager_relative
    assert found.passed
    assert not certificate(Chain, lambda: Chain(4.5 * eager), inputs, 1).passed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_elements_move_by_a_unit(dtype):
    x = torch.linspace(1.0, 1.9, 4800, dtype=torch.float64).to(dtype)
    moved = sensitivity.Rounding(1).one_unit_off(x)
    units = (moved.double() - x.double()) / torch.finfo(dtype).eps
    share = {8: 1.0, 4: 1.0, 2: 1 / sensitivity.SELDOM, 1: 0.0}[dtype.itemsize]
    assert moved.dtype is dtype and float(units.abs().max()) <= 2
    assert abs(float((units != 0).double().mean()) - share) < 0.02 * (share not in (0.0, 1.0)) + 1e-9
    if share:
        assert bool((units > 0).any()) and bool((units < 0).any())
        ends = torch.tensor([0.0, torch.inf, -torch.inf] * 40, dtype=dtype)
        assert torch.equal(sensitivity.Rounding(1).one_unit_off(ends), ends)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_moves_to_zero_keeps_its_sign(dtype, sign):
    """As what is rounded to zero does: below the smallest normal number a unit may be all of a number."""
    limits = torch.finfo(dtype)
    least = torch.full((4800,), sign * limits.smallest_normal * limits.eps, dtype=dtype)
    for given in (least, torch.zeros(4800, dtype=dtype).copysign(least)):
        moved = sensitivity.Rounding(1).one_unit_off(given)
        assert bool((moved == 0).any()) and bool((torch.signbit(moved) == (sign < 0)).all())


@pytest.mark.parametrize("mode", [sensitivity.Rounding(1), sensitivity.Rounding(2, operands=1e-3),
                                  reference._RoundingTo(torch.float32), reference._Watching()])
def test_zeros_without_memory_are_zeros(mode) -> None:
    """PyTorch has a derivative that is zero everywhere as a tensor without memory."""
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    with mode:
        zero, = torch.autograd.grad((torch.sgn(x) @ torch.ones(4, 2, dtype=torch.float64)).sum(), x)
    assert bool((zero == 0).all())


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError(),
                                   RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")])
def test_too_little_memory_for_a_draw_excuses_nothing(error):
    class Lacking(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise error

    x = torch.randn(3, 4)
    found = move(Lacking(4, 4), [x], State(), 1, x, Reference(x.double(), ""), Tolerance())
    assert not found.outputs and not found.state


def test_calls_under_other_rounding_leave_no_trace():
    model = Remembering()
    given = [torch.randn(16, 8)]
    before = State.of(model)
    torch.manual_seed(4)
    arguments = [given[0].clone()]
    outputs = model(*arguments)
    after = State.of(model)
    exact = Reference(outputs.double(), "", {k: v.double() for k, v in after.tracked().items()},
                      [arguments[0].double()])
    copied = given[0].clone()
    found = move(model, given, State(buffers=before.buffers, attributes=before.attributes), 4, outputs, exact,
                 Tolerance())
    assert torch.equal(given[0], copied)
    assert identical(State.of(model).tracked(), after.tracked())
    assert identical(State.of(model).parameters, before.parameters)
    assert found.outputs.keys() == {"output"}
    assert found.state.keys() >= {"state['norm.running_mean']", "state['last']", "state['input 0']"}
    for statistics in (*found.outputs["output"], *found.state["state['norm.running_mean']"]):
        assert 0 < statistics.square_error < 1e-10 * statistics.square_reference  # the same draws of the dropout


def test_what_rounding_cannot_be_the_reason_of():
    x = torch.randn(64, 64, dtype=torch.float64)
    eager = x.float() * (1 + 1e-7)
    tolerance = Tolerance()

    def asks(candidate: torch.Tensor) -> bool:
        return may_be_rounding(tolerance, compare(candidate, eager, x, tolerance=tolerance), None)

    assert not asks(eager)
    assert asks(eager + 1.5e-5 * (torch.arange(64) == 3))
    assert not asks(eager + 1e-3)
    assert not asks(torch.where(torch.eye(64) > 0, float("nan"), eager))
    assert not asks(eager[:32])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device")])])
def test_what_outputs_are_differentiated_by_is_drawn_where_they_lie(device: str) -> None:
    """A host takes minutes for the gigabytes that a device draws at once."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to(device)
    inputs = [torch.randn(4, 8, device=device)]
    drawn: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            if "randn" in str(func):
                drawn.append(made.device.type)
            return made

    with Watch():
        found = check_gradients(model, model, float64_copy(model), inputs, State.of(model))
    assert found is not None and found.passed
    assert drawn and set(drawn) == {device}


def test_sums_of_many_terms_move_by_what_their_order_may_lose() -> None:
    """Units by the square root of a reduction's number of terms, and by a product's; of a convolution's result what a
    library's transforms lose."""
    x, row, weight = torch.ones(64, 4096), torch.ones(4096), torch.ones(8, 4096)
    image, window = torch.ones(2, 3, 9, 9), torch.ones(4, 3, 3, 3)
    aten = torch.ops.aten
    for operator, operands, units in (
            (aten.sum.dim_IntList, (x, [1]), 64.0), (aten.mean.default, (x,), 512.0),
            (aten.var_mean.correction, (x, [1]), 64.0), (aten.mm.default, (x, weight.t()), 4096.0),
            (aten.addmm.default, (torch.ones(8), x[:, :100], weight.t()[:100]), 100.0),
            (aten.mv.default, (x, row), 4096.0),
            (aten.bmm.default, (x[None].expand(3, -1, -1), weight.t()[None].expand(3, -1, -1)), 4096.0),
            (aten.linear.default, (x, weight, torch.ones(8)), 4096.0), (aten.exp.default, (x,), 1.0),
            (aten.convolution.default, (image, window, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), 512.0)):
        results = operator(*operands)
        for result in results if isinstance(results, tuple) else (results,):
            assert sensitivity.summed_units(operator.overloadpacket.__name__, operands, result) == pytest.approx(units)
    with sensitivity.Rounding(3, sums=1 / 32):
        few, many, long = x[:, :1000].sum(1), x.sum(1), torch.ones(1 << 20).sum()
    eps = torch.finfo(torch.float32).eps
    assert torch.equal((few / 1000 - 1).abs() <= 1.1 * eps, torch.ones(64, dtype=torch.bool))
    assert ((many / 4096 - 1).abs() / eps).tolist() == pytest.approx([2.0] * 64)
    assert abs(float(long) / (1 << 20) - 1) / eps == pytest.approx(32.0)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device")])])
def test_what_a_library_loses_in_millions_of_terms_is_rounding(device: str) -> None:
    """A layer norm of four million elements is no other computation than the model because a device adds them in some
    order, nor is a convolution that a library transforms."""
    sizes = (64, 256, 256) if device == "cuda" else (16, 64, 64)
    for layer, shape in ((nn.LayerNorm(sizes), (2, *sizes)), (nn.Conv2d(3, 96, 11, 4, 2), (8, 3, 224, 224))):
        model = layer.to(device)
        found = certify(lambda model=model: model, lambda model=model: model,
                        lambda seed, shape=shape: [torch.rand(shape, device=device)],
                        plan=Plan(trials=(TrialPlan(0), TrialPlan(1, "signed zeros"), TrialPlan(2, "offset"))))
        assert found.passed and not found.separate, found.why


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_a_device_multiplies_in_tf32_moves_by_its_units() -> None:
    x, weight = torch.rand(2, 16, 24, 24, device="cuda"), torch.rand(8, 16, 3, 3, device="cuda")
    exact = nn.functional.conv2d(x.double(), weight.double())
    for allowed, least, most in ((True, 1e-5, 1e-2), (False, 1e-9, 1e-5)):
        with torch.backends.cudnn.flags(allow_tf32=allowed), sensitivity.Rounding(1):
            moved = nn.functional.conv2d(x, weight)
        assert least < float((moved - exact).abs().max() / exact.abs().max()) < most


def test_draws_that_lack_memory_are_no_other_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager is off by what rounding explains; where there is no memory to see that, it is not accused."""
    def lacking(*_: object, **__: object) -> object:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        yield

    model = Cancelling()
    trials = (TrialPlan(0),)
    monkeypatch.setattr("kernelwright.verify.reference.drawn", lacking)
    monkeypatch.setattr("kernelwright.verify.sensitivity.drawn", lacking)
    near = certify(lambda: model, lambda: model, lambda seed: [torch.rand(4, 4096)], plan=Plan(trials=trials))
    assert not near.separate, near.why

    class Other(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (1.5 if torch.get_default_dtype() is torch.float64 else 1.0)

    far = certify(Other, Other, lambda seed: [torch.rand(4, 64)], plan=Plan(trials=trials))
    assert far.trials[0].reference.startswith("eager with TF32 off: float64 failed")


class ByLabel(nn.Module):
    """A loss that asks whether a label is 1, and is nothing but rounding there."""

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cosine_embedding_loss(x, -3 * x, label)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_labels_are_not_rounded(sign: float) -> None:
    """Else no draw takes the path that eager takes, and what remains of 1 - cos there is another computation."""
    inputs = [sign * torch.rand(4, 1) - 40, torch.tensor([1.0, -1.0, 1.0, -1.0])]
    model = ByLabel()
    draws = list(sensitivity.drawn(model, inputs, State.of(model), 3, range(4)))
    assert all(torch.equal(draw.given[1], inputs[1]) and not torch.equal(draw.given[0], inputs[0]) for draw in draws)
    assert all(float(draw.outputs) > 0.9 for draw in draws)
    assert len({float(draw.outputs) for draw in draws}) > 1


@pytest.mark.parametrize(("values", "labels"), [
    ([0.0, 1.0, -1.0], True), ([3.0, 64.0], True), ([0.5, 1.0], False), ([2048.0, 4096.0], False), ([nan], False),
    ([inf, 1.0], False)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_labels_are(values: list[float], labels: bool, dtype: torch.dtype) -> None:
    assert sensitivity.are_labels(torch.tensor(values, dtype=dtype)) == labels
    assert not sensitivity.are_labels(torch.tensor([1, 0]))


def test_a_sum_that_vanishes_has_any_sign() -> None:
    """Of a number too small for the type the order of a sum may decide the sign; of a zero it does not."""
    exact = torch.tensor([[-1e-60, 0.0, 1.0]], dtype=torch.float64)
    eager, own = torch.tensor([[-0.0, 0.0, 1.0]]), torch.tensor([[0.0, 0.0, 1.0]])
    assert not compare(own, eager, exact, tolerance=Tolerance(zeros="sign")).passed
    assert compare(own, eager, exact, tolerance=Tolerance(zeros="sums")).passed
    exact[0, 0] = -0.0
    assert not compare(own, eager, exact, tolerance=Tolerance(zeros="sums")).passed


def test_a_softmax_of_large_scores_moves_as_its_scores_do() -> None:
    """Its largest score is one of them, not a unit above: the exponential of a unit of 1e12 is infinite."""
    scores = torch.tensor([[1e12, 2e12, 1.5e12, -torch.inf], [3.0, 2.0, 1.0, 0.0]])
    for sums in (0.0, 1 / 32):
        with sensitivity.Rounding(4, sums=sums):
            for moved in (torch.softmax(scores, 1), torch.log_softmax(scores, 1).exp()):
                assert torch.allclose(moved, torch.softmax(scores, 1), rtol=1e-5, atol=0.0)
        assert torch.isfinite(torch.logsumexp(scores, 1)).all()


def test_what_tf32_rounds_is_no_other_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a device multiplies in TF32, a library that loses as much without it computes the same; more is else."""
    class Loses(nn.Module):
        def __init__(self, share: float) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.linear, self.share = nn.Linear(64, 32, bias=False), share

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = self.linear(x)
            return result if torch.get_default_dtype() is torch.float64 else result * (1 + self.share)

    def separate(share: float) -> str:
        return certify(lambda: Loses(share), lambda: Loses(share), lambda seed: [torch.randn(16, 64)],
                       plan=Plan(trials=(TrialPlan(0),))).separate

    assert separate(2e-4)
    monkeypatch.setattr("kernelwright.verify.reference._uses_tf32", lambda inputs: True)
    monkeypatch.setattr(sensitivity, "_is_in_tf32",
                        lambda name, operands: torch.backends.cudnn.allow_tf32 and name in ("mm", "linear"))
    assert not separate(2e-4)
    assert separate(1e-2)


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_bounds_of_a_logit_are_rounded(share: float) -> None:
    """1 - 1e-6 has one digit above 1 - x in float32, by which a logit there is off by a thousandth; more is else."""
    class Logit(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = torch.logit(x, eps=1e-6)
            return result if torch.get_default_dtype() is torch.float64 else result * (1 + share)

    found = certify(Logit, Logit, lambda seed: [torch.randn(16, 64)], plan=Plan(trials=(TrialPlan(0),)))
    assert bool(found.separate) == bool(share)
