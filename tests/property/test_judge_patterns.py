"""Patterns: what tensors alone show about a wrong result, for faults of every kind, and the verdict that follows."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.judge.diagnose.evidence import Evidence, collect
from kernelwright.judge.diagnose.leaf import leaves_of, measure, take
from kernelwright.judge.diagnose.patterns import find_patterns
from kernelwright.judge.diagnose.places import find_places
from kernelwright.judge.diagnose.positions import with_silent
from kernelwright.judge.diagnose.shapes import shape_sign
from kernelwright.judge.diagnose.words import classify, diagnose, failing_trial, merge
from kernelwright.judge.records import Finding
from kernelwright.verify.certificate import Plan, certify
from kernelwright.verify.records import TrialPlan
from kernelwright.verify.state import State


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def evidence_of(model, fault, *shape, inputs=None, parameters=None):
    """Evidence of a function of one input and a fault of (input, right result)."""
    torch.manual_seed(0)
    inputs = inputs or [torch.randn(shape or (64, 100))]
    eager = model(*inputs)
    best = model(*(t.double() if t.dtype.is_floating_point else t for t in inputs))
    earlier = model(*(torch.randn_like(t) if t.dtype.is_floating_point else t for t in inputs))
    copied = eager.clone() if isinstance(eager, torch.Tensor) else eager
    return Evidence(TrialPlan(0), tuple(inputs), fault(*inputs, copied), eager, best, State(parameters or {}),
                    earlier=(earlier,))


def scaled(x):
    return x * 1.5 + 0.1


def put(index, value):
    """A fault that writes a value, or a function of the right one, at an index."""
    def fault(_, right):
        right[index] = value(right[index]) if callable(value) else value
        return right

    return fault


def where(condition, value=0.0):
    """A fault at the elements whose coordinates fulfil a condition."""
    def fault(_, right):
        at = torch.meshgrid(*(torch.arange(s) for s in right.shape), indexing="ij")
        return torch.where(condition(*at), value, right)

    return fault


EVERY = slice(None)
EXP = torch.exp
CASES = {
    "tail": ("tail", scaled, put((EVERY, slice(96, None)), 0.0), (64, 100)),
    "tail with a factor": ("tail", scaled, put((EVERY, slice(96, None)), lambda v: 2 * v), (64, 100)),
    "tail of rows and columns": ("tail", scaled, where(lambda i, j: (i >= 60) | (j >= 96)), (64, 100)),
    "tail in memory order": ("tail", scaled, where(lambda i, j: i * 77 + j >= 768), (13, 77)),
    "tail of each image": ("tail", scaled, where(lambda n, c, i, j: i * 13 + j >= 160), (2, 3, 13, 13)),
    "last entry": ("tail", scaled, put((63,), 0.0), (64, 100)),
    "edges": ("edges", scaled, lambda _, r: F.pad(r[..., 1:-1, 1:-1], (1, 1, 1, 1)), (2, 3, 12, 12)),
    "edges of one axis": ("edges", scaled, where(lambda n, c, i: (i < 2) | (i >= 38)), (3, 4, 40)),
    "every 4th column": ("every-kth", scaled, put((EVERY, slice(3, None, 4)), 7.0), (64, 100)),
    "two lanes of eight": ("every-kth", scaled, where(lambda i, j: j % 8 > 5), (16, 96)),
    "every 7th element": ("every-kth", scaled, where(lambda a, b, c: (a * 55 + b * 11 + c) % 7 == 3), (3, 5, 11)),
    "one row": ("one-slice", scaled, put((5,), 0.0), (64, 100)),
    "one channel": ("one-slice", scaled, put((EVERY, 3), 0.0), (4, 8, 10, 10)),
    "first entry only": ("all-but-one", scaled, where(lambda n, i: n > 0), (6, 30)),
    "tiles": ("blocks", scaled, where(lambda i, j: (j // 10 == 1) | (j // 10 == 5) | (j // 10 == 6)), (64, 100)),
    "head": ("head", scaled, put((EVERY, slice(0, 8)), 0.0), (64, 100)),
    "zeros": ("zeros", scaled, lambda _, r: r * 0, (64, 100)),
    "constant": ("constant", scaled, lambda _, r: torch.full_like(r, 3.0), (64, 100)),
    "sign": ("sign", scaled, lambda _, r: -r, (64, 100)),
    "sum for mean": ("factor", lambda x: x.mean(1), lambda x, r: x.sum(1), (64, 100)),
    "biased variance": ("factor", lambda x: x.var(1), lambda x, r: x.var(1, correction=0), (64, 100)),
    "offset": ("offset", scaled, lambda _, r: r + 3, (64, 100)),
    "scale and shift": ("affine", scaled, lambda _, r: r * 2 + 3, (64, 100)),
    "absolute values": ("absolute", scaled, lambda _, r: r.abs(), (64, 100)),
    "offset per channel": ("offset-per-slice", scaled, lambda _, r: r + torch.randn(8, 1, 1), (4, 8, 10, 10)),
    "factor per row": ("factor-per-slice", scaled, lambda _, r: r * (torch.rand(64, 1) + 2), (64, 100)),
    "no ReLU": ("missing-activation", torch.relu, lambda x, r: x.clone(), (64, 100)),
    "no upper clamp": ("missing-activation", lambda x: x.clamp(max=1), lambda x, r: x.clone(), (64, 100)),
    "ReLU too many": ("cut-off", scaled, lambda _, r: r.relu(), (64, 100)),
    "slope": ("negative-part", lambda x: F.leaky_relu(x, 0.01), lambda x, r: F.leaky_relu(x, 0.2), (64, 100)),
    "transposed": ("transposed", scaled, lambda _, r: r.t().contiguous(), (50, 50)),
    "written transposed": ("transposed", scaled, lambda _, r: r.t().contiguous().view(64, 100), (64, 100)),
    "channels last": ("transposed", scaled, lambda _, r: r.permute(0, 2, 3, 1).contiguous().view(r.shape),
                      (2, 3, 8, 8)),
    "reversed": ("reversed", scaled, lambda _, r: r.flip(1), (64, 100)),
    "rolled": ("rolled", scaled, lambda _, r: r.roll(3, 1), (64, 100)),
    "exclusive scan": ("shifted", lambda x: x.cumsum(1), lambda x, r: r - x, (64, 100)),
    "entry 0 for all": ("one-for-all", scaled, lambda _, r: r[:1].expand_as(r).contiguous(), (64, 100)),
    "rows modulo 8": ("wrong-index", scaled, lambda _, r: r[torch.arange(64) % 8], (64, 100)),
    "stale": ("stale", lambda x: torch.sin(x), None, (64, 100)),
    "the input itself": ("returns-input", scaled, lambda x, r: x.clone(), (64, 100)),
    "stored as bfloat16": ("precision-bfloat16", lambda x: x @ x.t(), lambda _, r: r.bfloat16().float(), (64, 100)),
    "bfloat16 operands": ("precision-bfloat16", lambda x: x @ x.t(),
                          lambda x, r: x.bfloat16().float() @ x.bfloat16().float().t(), (64, 100)),
    "float16 operands": ("precision-tf32", lambda x: x @ x.t(), lambda x, r: x.half().float() @ x.half().float().t(),
                         (64, 100)),
    "exp overflows": ("overflow", lambda x: torch.softmax(x * 60, 1).sqrt(),
                      lambda x, r: (EXP(x * 60) / EXP(x * 60).sum(1, keepdim=True)).sqrt(), (64, 100)),
    "places in everything": ("flat-index", lambda x: x.argmax(1), lambda _, r: r + torch.arange(64) * 100, (64, 100)),
    "places from 1": ("off-by-one", lambda x: x.argmax(1), lambda _, r: r + 1, (64, 100)),
    "argmin": ("other-extremum", lambda x: x.argmax(1), lambda x, r: x.argmin(1), (64, 100)),
    "a running count": ("wrong-divisor", lambda x: x.cumsum(1) / (torch.arange(100) + 1),
                        lambda x, r: x.cumsum(1) / (torch.arange(100) + 2), (64, 100)),
    "an extremum at its start": ("infinite", lambda x: x.amax(1), lambda x, r: torch.full_like(r, -torch.inf),
                                 (64, 100)),
    "unrelated": ("wrong-values", scaled, lambda _, r: torch.randn(64, 100), (64, 100)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_pattern_is_named_first(name):
    kind, model, fault, shape = CASES[name]
    if kind == "overflow":
        inputs = [torch.linspace(-30, 30, 6400).view(64, 100)]
        evidence = evidence_of(model, fault, inputs=inputs)
    elif fault is None:
        evidence = evidence_of(model, lambda _, right: right, *shape)
        evidence = Evidence(evidence.trial, evidence.inputs, evidence.earlier[0].clone(), evidence.eager,
                            evidence.reference, evidence.state, earlier=evidence.earlier)
    else:
        evidence = evidence_of(model, fault, *shape)
    found = find_patterns(evidence)
    assert found[0].kind == kind, [(f.kind, f.sentence) for f in found]
    assert found[0].fix and found[0].sentence.startswith("output")
    index = tuple(found[0].evidence["index"])
    assert found[0].evidence["expected"] == pytest.approx(float(evidence.eager[index]))


def test_an_extremum_that_starts_at_zero_and_a_guard_that_is_missing():
    below = [-torch.rand(16, 8) - 0.1]
    assert find_patterns(evidence_of(lambda x: x.amax(1), lambda x, r: r * 0, inputs=below))[0].kind == "extremum-start"
    zeros = [torch.zeros(16, 8)]
    found = find_patterns(evidence_of(lambda x: x / (x.norm() + 1e-6), lambda x, r: x / x.norm(), inputs=zeros))
    assert found[0].kind == "division-by-zero"


def test_results_of_earlier_calls():
    sine = evidence_of(torch.sin, lambda _, r: r, 8, 20)
    other = torch.sin(torch.randn(8, 20))
    assert find_patterns(replace(sine, candidate=other, own_earlier=other.clone()))[0].kind == "stale"
    assert find_patterns(replace(sine, candidate=other, own_earlier=-other))[0].kind == "wrong-values"
    again = find_patterns(replace(sine, repeated=sine.earlier[0].clone()))
    assert again[0].kind == "stale" and "when called again" in again[0].sentence
    assert find_patterns(replace(sine, repeated=other))[0].kind == "nondeterministic"
    poisoned = torch.where(torch.rand(8, 20) < 0.5, 2.8e26, sine.eager)
    assert find_patterns(replace(sine, repeated=poisoned))[0].kind == "unwritten"


def test_what_held_poison_in_both_calls_is_unwritten_too():
    """An output that nothing writes lay partly in poisoned memory in the first call already: all of it is unwritten."""
    sine = evidence_of(torch.sin, lambda _, r: r, 8, 21)
    first, again = torch.full((8, 21), -7e13), torch.full((8, 21), 2.8e26)
    first[:, :7] = 2.8e26

    def share(candidate, repeated):
        found = find_patterns(replace(sine, candidate=candidate, repeated=repeated))
        return next(f for f in found if "when called again" in f.sentence).evidence["share"]

    assert share(first, again) == 1.0
    written = torch.arange(21) >= 11
    assert share(*(torch.where(written, sine.eager, t) for t in (first, again))) == 11 / 21


def test_a_running_statistic_that_moves_otherwise():
    old, batch, momentum = torch.ones(6), torch.rand(6) + 0.5, 0.1
    wanted = old + momentum * (batch - old)
    evidence = evidence_of(scaled, lambda _, r: r, 4, 6)

    def first(got):
        own = ({"norm.running_var": wanted}, {"norm.running_var": got})
        return find_patterns(replace(evidence, changed=own, state=State(buffers={"norm.running_var": old})))[0]

    assert first(old).kind == "state-not-updated"
    moved = first(old + 0.9 * (batch - old))
    assert moved.kind == "state-momentum" and moved.evidence["factor"] == pytest.approx(9, rel=1e-4)
    biased = first(old + momentum * (batch * 99 / 100 - old))
    assert biased.kind == "state-factor" and biased.evidence["factor"] == pytest.approx(0.99, rel=1e-4)
    assert first(torch.rand(6)).kind.startswith("state-")


def test_the_tail_names_its_tile_and_what_stands_there():
    found = find_patterns(evidence_of(scaled, put((EVERY, slice(8160, None)), 0.0), 8, 8192))[0]
    assert "columns >= 8160 of 8192 (axis 1): the tail after full tiles of 96; the values there are zero" in \
        found.sentence
    assert found.evidence["tile"] == 96 and found.evidence["holds"] == "zeros"


@pytest.mark.parametrize(("given", "bias"), [(torch.rand, 0.0), (torch.randn, -0.6)])
@pytest.mark.parametrize("seed", range(12))
def test_a_tail_is_one_where_the_model_is_zero_in_parts_of_it_too(seed, given, bias):
    """Which columns or elements a ReLU makes zero is chance; those that nobody computed there tell nothing."""
    torch.manual_seed(seed)
    layer = nn.Linear(24, 24)
    x = given(32, 24)
    evidence = evidence_of(lambda x: (F.linear(x, *(p.detach().to(x.dtype) for p in layer.parameters())) + bias).relu(),
                           put((EVERY, slice(16, None)), 0.0), inputs=[x])
    finding = find_patterns(evidence)[0]
    assert finding.kind == "tail" and "columns >= 16 of 24 (axis 1): the tail after full tiles of 16" in str(finding)


@pytest.mark.parametrize("name", ["tail in memory order", "tail of each image", "edges", "edges of one axis"])
def test_places_are_found_where_a_relu_leaves_few_elements(name):
    """One in five elements tells, all others are zero by themselves."""
    kind, _, fault, shape = CASES[name]
    found = find_patterns(evidence_of(lambda x: (x - 0.85).relu(), fault, *(4 * s if s < 4 else s for s in shape)))
    assert found[0].kind == kind, found[0]


@pytest.mark.parametrize(("wrong", "silent", "tail"), [
    ([20, 22], [16, 17, 18, 19, 21, 23], 16),  # of all that may be its beginning, the one with most powers of two
    ([19, 20, 23], [15, 17, 18, 21, 22], 18),  # 16 is right
    ([17, 18, 19, 21, 22, 23], [13, 14, 15, 16, 20], 16),
    ([20, 21], [22], None), ([19], [20, 21, 22, 23], None),  # 23 is right; one position alone is no tail
    ([5, 20], list(range(6, 20)), None),
    ([8, 20, 23], [*range(9, 20), 21, 22], None)])  # more than half
def test_which_silent_positions_belong_to_a_tail(wrong, silent, tail):
    masks = [torch.zeros(24, dtype=torch.bool).index_fill_(0, torch.tensor(at), True) for at in (wrong, silent)]
    expected = masks[0] if tail is None else torch.arange(24) >= tail
    assert torch.equal(with_silent(*masks), expected)


def test_a_right_network_of_zeros_makes_no_tail():
    """One column wrong where all others are zero by themselves: only what is seen is said."""
    evidence = evidence_of(lambda x: F.pad(x.abs() + 1, (3, 20)), put((EVERY, 3), 0.0), inputs=[torch.randn(64, 1)])
    kinds = [finding.kind for finding in find_patterns(evidence)]
    assert "tail" not in kinds and kinds


def test_a_factor_is_named_by_a_size_of_the_problem():
    mean = find_patterns(evidence_of(lambda x: x.mean(1), lambda x, r: x.sum(1), 8, 77))[0]
    assert mean.evidence["factor"] == pytest.approx(77) and "77, the size of axis 1 of input 0" in mean.sentence
    variance = find_patterns(evidence_of(lambda x: x.std(1), lambda x, r: x.std(1, correction=0), 8, 77))[0]
    assert "sqrt((N - 1)/N) with N = 77" in variance.sentence


def test_a_bias_is_found_among_the_parameters():
    bias, weight = torch.randn(8), torch.rand(8) + 1.0
    model = lambda x: x * weight.to(x)[:, None, None] + bias.to(x)[:, None, None]  # noqa: E731
    parameters = {"conv.bias": bias, "conv.weight": weight}

    def first(fault):
        return find_patterns(evidence_of(model, fault, 4, 8, 8, 10, parameters=parameters))[0]

    missing = first(lambda x, r: r - bias[:, None, None])
    assert missing.kind == "missing-bias" and "differ by exactly -conv.bias[channel]" in missing.sentence
    assert first(lambda x, r: r + bias[:, None, None]).kind == "bias-twice"
    assert first(lambda x, r: r - 2 * bias[:, None, None]).kind == "bias-subtracted"
    axis = first(lambda x, r: r - bias[:, None, None] + bias[None, :, None])
    assert axis.kind == "bias-wrong-axis" and "instead of the channel (axis 1)" in axis.sentence
    assert first(lambda x, r: x + bias[:, None, None]).kind in ("missing-weight", "affine-per-slice")


def test_ties_are_told_from_wrong_places():
    torch.manual_seed(0)
    x = torch.randint(-2, 3, (40, 60)).float()
    found = find_patterns(evidence_of(lambda v: v.argmax(1), lambda v, r: 59 - v.flip(1).argmax(1), inputs=[x]))[0]
    assert found.kind == "ties" and "a later place" in found.sentence


def test_outputs_of_a_tuple_exchanged():
    found = find_patterns(evidence_of(lambda x: (x.sin(), x.cos()), lambda x, r: (r[1], r[0])))
    assert [f.kind for f in found[:2]] == ["swapped-outputs"] * 2


def test_nan_that_is_swallowed_and_nan_that_is_made():
    x = torch.randn(16, 32)
    x[3, 4] = float("nan")
    swallowed = find_patterns(evidence_of(torch.relu, lambda v, r: torch.where(v > 0, v, torch.zeros_like(v)),
                                          inputs=[x]))
    assert swallowed[0].kind == "nan-swallowed"
    made = find_patterns(evidence_of(lambda v: v.abs().sqrt(), lambda v, r: v.sqrt(), 16, 32))
    assert made[0].kind == "nan"


@pytest.mark.parametrize(("got", "wanted", "words"), [
    ((4,), (4, 1), "an axis of size 1 is dropped"), ((4, 1), (4,), "an axis of size 1 is kept"),
    ((4, 3, 63, 63), (4, 3, 64, 64), "1 fewer"), ((8, 4), (4, 8), "another order"), ((4, 8), (4, 1), "is not reduced"),
    ((32,), (4, 8), "as many, in another shape"), ((4, 3, 30, 30), (4, 3, 15, 15), "another stride"),
    ((4, 5, 6), (4, 6), "axis 1 of size 5 is not reduced"), ((4,), (4, 6), "axis 1 of size 6 is missing")])
def test_what_a_shape_is_a_sign_of(got, wanted, words):
    sign, fix = shape_sign(got, wanted)
    assert words in sign and fix


def test_forms_come_before_values():
    structure = find_patterns(evidence_of(lambda x: (x, x + 1), lambda x, r: r[0]))
    assert structure[0].kind == "structure" and "a tuple of 2" in structure[0].sentence
    dtype = find_patterns(evidence_of(scaled, lambda x, r: r.double()))
    assert dtype[0].kind == "dtype" and find_patterns(evidence_of(scaled, lambda x,
                                                                  r: None))[0].kind == "returns-nothing"


def test_right_results_have_no_wrong_elements():
    evidence = evidence_of(lambda x: x @ x.t(), lambda x, r: (x.double() @ x.double().t()).float())
    assert leaves_of(evidence) == [] and find_patterns(evidence) == []


def test_positions_are_read_from_any_strides():
    tensor = torch.arange(60.0).view(3, 4, 5).permute(2, 0, 1)
    at = torch.tensor([0, 7, 33, 59])
    assert torch.equal(take(tensor, at), tensor.contiguous().flatten()[at].double())
    leaf = measure("output", tensor + (tensor == 31.0), tensor, tensor.double())
    assert leaf.count == 1 and leaf.example()["expected"] == 31.0 and find_places(leaf)


class Model(nn.Module):
    """A bias, a running mean, and a result that any fault can be put into."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(-1, 1, 24))
        self.register_buffer("seen", torch.zeros(24))

    def forward(self, x):
        self.seen.mul_(0.5).add_(x.mean(0), alpha=0.5)
        return torch.tanh(x + self.bias)


def _inputs(seed):
    return [torch.randn(10, 24, generator=torch.Generator().manual_seed(seed))]


def judged(forward, **options):
    """The diagnosis of `Model` with another forward, as the judge makes it."""
    kind = type("ModelNew", (Model,), {"forward": forward})
    certificate = certify(Model, kind, _inputs, plan=Plan(budget_seconds=20.0, trials=(
        TrialPlan(0), TrialPlan(1, "normal", True), TrialPlan(2, "shifted"), TrialPlan(3, "with NaN"))), **options)
    trial = failing_trial(certificate)
    evidence = collect(Model, kind(), _inputs, trial.plan) if trial is not None else None
    return diagnose(certificate, find_patterns(evidence) if evidence else [], evidence)


def _right(self, x):
    return Model.forward(self, x)


def _cached(self, x):
    if not hasattr(self, "_kept"):
        object.__setattr__(self, "_kept", Model.forward(self, x))
    return self._kept.clone()


def _unwritten(self, x):
    right = Model.forward(self, x)
    out = torch.empty_like(right)
    out[:8] = right[:8]
    return out


def _destroys(self, x):
    x.zero_()
    return Model.forward(self, x)


def _in_place(self, x):
    right = Model.forward(self, x)
    x.add_(1)
    return right


class Answering(torch.Tensor):
    """An object that could answer comparisons for itself."""


_calls = itertools.count()
FAULTS = {
    "OK": _right,
    "WRONG-NUMERIC": lambda self, x: Model.forward(self, x) * 2,
    "WRONG-STALE": _cached,
    "CHEAT-INPUT-MUTATION": _destroys,
    "WRONG-MUTATES-INPUT": _in_place,
    "WRONG-SHAPE": lambda self, x: Model.forward(self, x)[:, :23],
    "WRONG-DTYPE": lambda self, x: Model.forward(self, x).double(),
    "WRONG-STRUCTURE": lambda self, x: (Model.forward(self, x),) * 2,
    "WRONG-STATE": lambda self, x: torch.tanh(x + self.bias),
    "WRONG-PRECISION": lambda self, x: Model.forward(self, x).bfloat16().float(),
    "WRONG-NONFINITE": lambda self, x: Model.forward(self, x).nan_to_num(0.0),
    "WRONG-RANDOM": lambda self, x: Model.forward(self, x) + 0 * torch.rand(24),
    "CHEAT-OUTPUT-OBJECT": lambda self, x: Model.forward(self, x).as_subclass(Answering),
    "CRASH-RAISED": lambda self, x: self.missing(x),
    "WRONG-NONDETERMINISTIC": lambda self, x: Model.forward(self, x) + 1e-7 * (next(_calls) % 2),
    "WRONG-PARAMETERS": lambda self, x: torch.tanh(x + torch.linspace(-1, 1, 24)) + 0 * Model.forward(self,
                                                                                                      x).nan_to_num(),
}


@pytest.mark.parametrize("verdict", FAULTS)
def test_the_verdict_follows(verdict):
    found = judged(FAULTS[verdict])
    assert found.verdict == verdict, (found.reason, [f.kind for f in found.findings])
    assert found.reason or verdict == "OK"


def test_memory_that_is_never_written_is_named():
    found = judged(_unwritten)
    assert found.verdict in ("WRONG-NUMERIC", "CHEAT-STALE")
    # Where NaN lay in that memory before, poison shows nothing new, and the memory is one of the causes that are named.
    assert found.findings[0].kind in ("unwritten", "tail") and "never written" in found.reason + found.fix


def test_the_reason_says_which_inputs_show_it():
    found = judged(FAULTS["WRONG-NONFINITE"])
    assert found.reason.startswith("Right on inputs as given, wrong on inputs with NaN: ")


def test_merging_keeps_the_best_and_drops_the_vague():
    best = Finding("missing-bias", "b", evidence={"weight": 2.5})
    vague = Finding("wrong-values", "v", evidence={"weight": 0.1})
    assert merge([vague, best, best]) == [best] and merge([vague]) == [vague]


def test_a_certificate_alone_has_a_verdict():
    certificate = certify(Model, type("Half", (Model,), {"forward": lambda s, x: Model.forward(s, x) / 2}), _inputs,
                          plan=Plan(trials=(TrialPlan(0),)))
    assert classify(certificate, []) == "WRONG-NUMERIC"
    assert diagnose(certificate, []).reason.startswith("With seed 0")


@pytest.mark.parametrize("seed", range(8))
def test_a_large_error_of_a_few_is_no_rounding(seed):
    """One element in 200 is off by two percent: as large a mean error as TF32's, and nothing like it."""
    torch.manual_seed(seed)
    weight = torch.randn(48, 64)

    def one_in_200(_, right):
        right.view(-1)[seed::200] *= 1.02
        return right

    def dense(x):
        return torch.relu(x @ weight.to(x.dtype).t())

    found = find_patterns(evidence_of(dense, one_in_200, inputs=[torch.randn(160, 64)]))
    assert found and not any(seen.kind.startswith("precision-") for seen in found), found
    rounded = evidence_of(dense, lambda x, _: torch.relu(x.bfloat16().float() @ weight.bfloat16().float().t()),
                          inputs=[torch.randn(160, 64)])
    assert "precision-bfloat16" in {seen.kind for seen in find_patterns(rounded)}
