"""Trials for what a model does along an axis: which are drawn, what they show, and who is refused by them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.capture.export import capture
from kernelwright.verify import DISTRIBUTIONS, Plan, Tolerance, TrialPlan, certify, default_trials
from kernelwright.verify.along.carried import carried, rows, state_factors
from kernelwright.verify.along.gates import open_gates
from kernelwright.verify.along.origins import axis_origins
from kernelwright.verify.along.trials import along_trials, of_states, output_axes
from kernelwright.verify.drawn import inputs_of, set_parameters
from kernelwright.verify.records import Opened


@pytest.fixture(autouse=True)
def one_thread():
    """Layers of many short steps wait for threads more than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def graph_of(model, *example):
    return capture(model.eval(), list(example), name="Model", file=None)


def trials_of(model, *example, seed=0):
    return along_trials(graph_of(model, *example), model, example, seed)


# --- distributions --------------------------------------------------------------------------------


def drawn(name: str, shape=(4, 512), axis=1, seed=1) -> torch.Tensor:
    given = torch.rand(shape, generator=torch.Generator().manual_seed(3))
    return DISTRIBUTIONS[name].apply([given], seed, {"input[0]": axis})[0]


def test_a_loud_start_and_its_quiet_twin_differ_in_the_first_few_only():
    loud, quiet = drawn("loud start"), drawn("quiet")
    assert torch.equal(loud[:, 8:], quiet[:, 8:])
    assert torch.allclose(loud[:, :8], 1024 * quiet[:, :8]) and float(loud[:, 8:].max()) < 0.02
    few = drawn("loud start", (4, 16))
    assert int((few > 0.05).any(0).sum()) == 2  # an eighth of a short axis


def test_a_loud_end_overflows_what_takes_its_maximum_from_the_first_tile():
    x = drawn("loud end")
    assert float(x[:, :384].max()) < 1e-3 and bool((x[:, 384:].amax(1) - x[:, :64].amax(1) > 88).all())


@pytest.mark.parametrize("size", [32, 100, 200, 512, 1000])
def test_loud_tiles_stand_first_last_across_a_border_and_anywhere(size):
    x = drawn("loud tile", (8, size))
    loud = x.abs() > 1
    assert bool(loud.any(1).all())
    places = [row.nonzero().flatten() for row in loud]
    width = 128 if size >= 512 else 64 if size >= 128 else size // 4
    assert all(int(p[-1] - p[0]) < width for p in places), "the largest of a row are neighbours"
    assert any(int(p[0]) < width // 2 for p in places) and any(int(p[-1]) >= size - width // 2 for p in places)
    assert any(int(p[0]) // width != int(p[-1]) // width for p in places)
    along_first = DISTRIBUTIONS["loud tile"].apply([torch.rand(size, 3)], 1, {"input[0]": 0})[0].abs() > 1
    assert bool(along_first.any(1).sum() <= width)


def test_products_of_numbers_near_one_stay_near_one():
    for size in (16, 4096):
        x = drawn("near one", (8, size))
        assert bool(((x.double().prod(1) - 1).abs() < 1).all()) and not bool((x == 1).all())
        assert float((x - 1).abs().max()) <= 0.5 / size**0.5 + 1e-6


@pytest.mark.parametrize("name", [n for n, d in DISTRIBUTIONS.items() if d.place is not None])
def test_what_is_not_drawn_along_an_axis_keeps_its_values(name):
    given = [torch.randn(4, 64), torch.arange(64), torch.randn(8), torch.randn(2, 1, 3).expand(2, 64, 3),
             torch.zeros(2, 64)]
    before = [t.clone() for t in given]
    found = DISTRIBUTIONS[name].apply(given, 1, {"input[0]": 1, "input[1]": 0, "input[3]": 1, "input[4]": 1})
    assert torch.equal(found[1], given[1]) and torch.equal(found[2], given[2])
    assert not torch.equal(found[0], given[0]) and found[3].stride() == given[3].stride()
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))
    assert bool(torch.isfinite(found[4]).all())
    half = DISTRIBUTIONS[name].apply([torch.rand(4, 64).half()], 1, {"input[0]": 1})[0]
    assert half.dtype is torch.float16 and bool(torch.isfinite(half).all())


# --- where a model walks along an axis --------------------------------------------------------------


class Layer(nn.Module):
    """A recurrent layer."""

    def __init__(self, kind=nn.LSTM, **options):
        super().__init__()
        self.layer = kind(8, 16, batch_first=True, **options)

    def forward(self, x):
        return self.layer(x)[0]


class Cell(nn.Module):
    """An LSTM written out."""

    def __init__(self):
        super().__init__()
        self.both = nn.Linear(8 + 16, 64)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], 16)
        c, out = h, []
        for t in range(x.shape[1]):
            i, f, g, o = self.both(torch.cat([x[:, t], h], 1)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            out.append(h)
        return torch.stack(out, 1)


class Selective(nn.Module):
    """A selective state space: decays of exp(-step * rate), whose step is a softplus."""

    def __init__(self):
        super().__init__()
        self.rate, self.step = nn.Parameter(torch.rand(8)), nn.Linear(8, 8)

    def forward(self, x):
        h, out = torch.zeros(x.shape[0], 8), []
        for now in x.unbind(1):
            step = F.softplus(self.step(now))
            h = torch.exp(-step * torch.exp(self.rate)) * h + step * now
            out.append(h)
        return torch.stack(out, 1)


class Decays(nn.Module):
    """Decays that are given, as numbers in (0, 1)."""

    def forward(self, x, decay):
        h, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = decay[:, t] * h + x[:, t]
            out.append(h)
        return torch.stack(out, 1)


class Apart(nn.Module):
    """A loop over steps that hands nothing on."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        return torch.stack([self.layer(x[:, t]) for t in range(x.shape[1])], 1)


class Chunks(nn.Module):
    """A state space of two levels: sums within chunks, and a product of decays over chunks (Dao and Gu, 2024)."""

    def __init__(self, length=64, chunk=16):
        super().__init__()
        self.a, self.chunk = nn.Parameter(torch.randn(2, length, 2) - 1), chunk
        self.b, self.c = nn.Parameter(torch.randn(2, length, 2, 4)), nn.Parameter(torch.randn(2, length, 2, 4))

    def sums(self, x):
        total = x.cumsum(-1)
        away = ~torch.tril(torch.ones(x.size(-1), x.size(-1), dtype=torch.bool))
        return (total[..., :, None] - total[..., None, :]).masked_fill(away, -torch.inf)

    def across(self, b, decay, x, total):
        states = torch.einsum("bclhn,bhcl,bclhp->bchpn", b, decay, x)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
        between = torch.exp(self.sums(F.pad(total[..., -1], (1, 0))))
        return torch.einsum("bhzc,bchpn->bzhpn", between, states)[:, :-1]

    def forward(self, x):
        x, a, b, c = (t.reshape(2, -1, self.chunk, *t.shape[2:]) for t in (x, self.a, self.b, self.c))
        a = a.permute(0, 3, 1, 2)
        total = a.cumsum(-1)
        inside = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", c, b, torch.exp(self.sums(a)), x)
        states = self.across(b, torch.exp(total[..., -1:] - total), x, total)
        handed = torch.einsum("bclhn,bchpn,bhcl->bclhp", c, states, torch.exp(total))
        return (inside + handed).reshape(2, -1, *x.shape[3:])


class Attends(nn.Module):
    """Attention of queries to keys."""

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


class Heads(nn.Module):
    """Self-attention of several heads."""

    def __init__(self):
        super().__init__()
        self.heads = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        return self.heads(x, x, x)[0]


class Classes(nn.Module):
    """A softmax over what a layer makes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 64)

    def forward(self, x):
        return torch.softmax(self.layer(x), -1)


class Tokens(nn.Module):
    """A recurrent layer over tokens."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(20, 8), nn.GRU(8, 16, batch_first=True)

    def forward(self, tokens):
        return self.layer(self.table(tokens))[0]


def of(function: Callable) -> nn.Module:
    class Model(nn.Module):
        def forward(self, *inputs):
            return function(*inputs)
    return Model()


def test_axes_go_through_layers_views_and_attention():
    graph = graph_of(Heads(), torch.randn(3, 40, 16))
    origins = axis_origins(graph)
    (walked,) = rows(graph)
    assert {(leaf["name"], axis) for leaf, axis in origins[walked.value][walked.axis]} == {("x", 1)}
    reshaped = graph_of(of(lambda x: x.reshape(6, 4, 5).transpose(1, 2).sum(0, keepdim=True)), torch.randn(24, 5))
    (result,) = reshaped.outputs
    assert [{axis for _, axis in o} for o in axis_origins(reshaped)[result]] == [set(), {1}, {0}]


@pytest.mark.parametrize(("model", "example", "kinds"), [
    (Layer(), [torch.randn(2, 12, 8)], ["layer"]), (Cell(), [torch.randn(2, 12, 8)], ["loop"]),
    (Selective(), [torch.randn(2, 12, 8)], ["loop"]), (Apart(), [torch.randn(2, 12, 8)], []),
    (of(lambda x: torch.stack([x[:, t] + x[:, t - 1] for t in range(1, 12)], 1)), [torch.randn(2, 12, 8)], []),
    (of(lambda x: (x.cumsum(1), x.cumprod(0), torch.cummax(x, 1)[1])), [torch.randn(9, 12)], ["sum", "product", "sum"]),
    (of(lambda x: x.cumsum(1)), [torch.randn(9, 4)], []), (nn.Linear(8, 8), [torch.randn(2, 8)], []),
])
def test_a_state_is_handed_on(model, example, kinds):
    assert sorted(along.kind for along in carried(graph_of(model, *example))) == sorted(kinds)


def test_what_multiplies_the_state_of_a_loop_is_found():
    graph = graph_of(Cell(), torch.randn(2, 12, 8))
    (loop,) = carried(graph)
    assert {factor.op for factor in state_factors(graph, loop)} == {"sigmoid"}
    (opened,) = {change for plan in trials_of(Cell(), torch.randn(2, 12, 8)) for change in plan.opened}
    assert (opened.name, opened.start, opened.stop) == ("both.bias", 16, 32) and opened.shift >= 3  # the second gate


def test_gates_that_are_open_lose_little_in_all_steps_together():
    model = Selective()
    example = torch.randn(2, 48, 8)
    plan = trials_of(model, example)[0]
    assert {change.name for change in plan.opened} == {"rate", "step.bias"}
    set_parameters(model, plan)
    with torch.no_grad():
        decay = torch.exp(-F.softplus(model.step(example)) * torch.exp(model.rate))
    assert bool((decay < 1).all()) and float((1 - decay).mean()) <= 0.5 / 48
    other = nn.RNN(8, 16)
    identity = Opened("weight_hh_l0", 0, 256, scale=2.0**-10, identity=1.0)
    open_gates(other, [identity, Opened("nowhere", 0, 4, shift=1.0)])
    assert float((other.weight_hh_l0.detach() - torch.eye(16)).abs().max()) < 1e-3


@pytest.mark.parametrize(("model", "example", "states", "largest"), [
    (Layer(), [torch.randn(2, 40, 8)], [("input[0]", 1)], []),
    (Tokens(), [torch.randint(0, 20, (2, 40))], [("input[0]", 1)], []),
    (Decays(), [torch.randn(2, 10, 4), torch.rand(2, 10, 4)], [("input[0]", 1)], []),
    (Chunks(), [torch.randn(2, 64, 2, 3)], [("input[0]", 1)], []),
    (Attends(), [torch.randn(2, 2, 40, 8) for _ in range(3)], [], [("input[1]", 2)]),
    (Classes(), [torch.randn(2, 8)], [], [("layer.weight", 0)]),
    (of(lambda x: torch.logsumexp(x, 1)), [torch.randn(2, 64)], [], [("input[0]", 1)]),
    (of(lambda x: torch.softmax(x, 1)), [torch.randn(2, 16)], [], []),  # no tiles in a row of 16
    (nn.Linear(8, 64), [torch.randn(2, 8)], [], []),
])
def test_trials_are_drawn_where_a_model_asks_for_them(model, example, states, largest):
    plans = trials_of(model, *example, seed=5)
    remembered = of_states(plans)
    assert sorted({place for plan in remembered for place in plan.along}) == states
    others = [p for p in plans if p.distribution == "loud tile"]
    assert sorted({place for plan in others for place in plan.along}) == largest
    assert len(plans) <= 6 and len(set(plans)) == len(plans) and plans == trials_of(model, *example, seed=5)
    for plan in plans:
        assert hash(plan) == hash(TrialPlan(plan.seed, plan.distribution, False, plan.along, plan.opened))
        found = inputs_of(plan, lambda _: list(example))
        assert [t.shape for t in found] == [t.shape for t in example]
    graph = graph_of(model, *example)
    for plan in remembered:
        assert output_axes(graph, model, example, plan) == (1,)


def test_weights_of_classes_are_loud_in_a_tile():
    model = Classes()
    plan = next(p for p in trials_of(model, torch.randn(2, 8)) if p.distribution == "loud tile")
    assert plan.changes_parameters and "layer.weight" in plan.kind
    set_parameters(model, plan)
    loud = model.layer.weight.abs().amax(1) > 2
    assert 0 < int(loud.sum()) <= 16


# --- who is refused ---------------------------------------------------------------------------------


def forgetful(kind: Callable[[], nn.Module], tile: int, before: int):
    """Tiles on their own, each warmed up by the steps before it."""
    class Forgets(kind):
        def forward(self, *inputs):
            found = []
            for start in range(0, inputs[0].shape[1], tile):
                first = max(0, start - before)
                own = super().forward(*(x[:, first:start + tile] for x in inputs))
                found.append(own[:, start - first:])
            return torch.cat(found, 1)
    return Forgets


class Drops(Chunks):
    """Chunks on their own."""

    def across(self, b, decay, x, total):
        return torch.zeros_like(super().across(b, decay, x, total))


class Window(nn.Module):
    """The product of the last 64 numbers."""

    def forward(self, x):
        return F.pad(x, (63, 0), value=1.0).unfold(1, 64, 1).prod(-1)


class Products(nn.Module):
    """Of all numbers up to each."""

    def forward(self, x):
        return x.cumprod(1)


class Steps(Layer):
    """An honest twin: the same layer, one step a call."""

    def forward(self, x):
        state, out = None, []
        for t in range(x.shape[1]):
            now, state = self.layer(x[:, t:t + 1], state)
            out.append(now)
        return torch.cat(out, 1)


class Tanh(Layer):
    def __init__(self):
        super().__init__(nn.RNN, num_layers=2)


class Relu(Layer):
    def __init__(self):
        super().__init__(nn.RNN, nonlinearity="relu")


class Gates(Layer):
    def __init__(self):
        super().__init__(nn.GRU)


def judged(model, candidate, make_inputs, others=4):
    def made(kind):
        torch.manual_seed(3)
        return kind().eval()

    def drawn_from(seed):
        torch.manual_seed(seed)
        return make_inputs()

    usual = [t for t in default_trials() if not DISTRIBUTIONS[t.distribution].plants][:others]
    plans = trials_of(made(model), *drawn_from(0))
    plan = Plan(trials=(*usual, *plans), required=99, repeats=1, tolerance=Tolerance(nonfinite="sign"),
                lenient=frozenset({"strides"}))
    found = certify(lambda: made(model), lambda: made(candidate), drawn_from, plan=plan)
    assert not [s for s in found.skipped if "the model itself fails" not in s.why]
    return {t.plan.kind: t.passed for t in found.trials if t.plan in usual}, [
        t.passed for t in found.trials if t.plan in of_states(plans)]


SEQUENCE = lambda: [torch.randn(2, 256, 8)]  # noqa: E731
SHORT = lambda: [torch.randn(2, 32, 8)]  # noqa: E731


@pytest.mark.parametrize(("model", "candidate", "make_inputs"), [
    (Layer, forgetful(Layer, 64, 32), SEQUENCE), (Layer, forgetful(Layer, 128, 96), SEQUENCE),
    (Gates, forgetful(Gates, 64, 48), SEQUENCE), (Tanh, forgetful(Tanh, 64, 64), SEQUENCE),
    (Relu, forgetful(Relu, 64, 64), SEQUENCE), (Products, Window, lambda: [torch.rand(2, 256)]),
])
def test_who_forgets_is_right_until_much_is_to_be_remembered(model, candidate, make_inputs):
    usual, states = judged(model, candidate, make_inputs)
    assert all(usual.values()), usual
    assert not any(states)


@pytest.mark.parametrize(("model", "candidate", "make_inputs"), [
    (Cell, forgetful(Cell, 8, 8), SHORT), (Selective, forgetful(Selective, 16, 8), SHORT),
    (Chunks, Drops, lambda: [torch.randn(2, 64, 2, 3)]),
    (Decays, forgetful(Decays, 16, 8), lambda: [torch.randn(2, 32, 4), torch.rand(2, 32, 4)]),
    (lambda: of(lambda x: x.cumsum(1)), lambda: of(lambda x: x.view(2, 4, 64).cumsum(2).view(2, 256)),
     lambda: [torch.randn(2, 256)]),
])
def test_who_forgets_is_refused_where_much_is_to_be_remembered(model, candidate, make_inputs):
    states = judged(model, candidate, make_inputs, others=0)[1]
    assert states and not any(states)


@pytest.mark.parametrize(("model", "candidate", "make_inputs"), [
    (Layer, Steps, lambda: [torch.randn(2, 64, 8)]), (Cell, Cell, SHORT), (Selective, Selective, SHORT),
    (Chunks, Chunks, lambda: [torch.randn(2, 64, 2, 3)]), (Tokens, Tokens, lambda: [torch.randint(0, 20, (2, 64))]),
    (Tanh, Tanh, SEQUENCE), (Relu, Relu, SEQUENCE), (Gates, Gates, SEQUENCE),
])
def test_who_remembers_is_right(model, candidate, make_inputs):
    usual, states = judged(model, candidate, make_inputs)
    assert all(usual.values()) and states and all(states)
