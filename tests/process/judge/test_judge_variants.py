"""Variants: what a candidate must do in any sequence of calls gates, what it may say that it does not do limits it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernelwright.judge.check import lacking, layouts, variant_calls
from kernelwright.judge.check.variants import VariantResult, check_variants, variants
from kernelwright.problem import load_problem
from kernelwright.verify import Plan

SEED = 9


class Model(nn.Module):
    """A linear layer over the last axis, by way of axis 1 of four axes; its own mode counts."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return torch.tanh(self.drop(x) * self.weight.view(1, 6, 1, 1))


class Fixed(nn.Module):
    """A parameter with the batch's size."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4, 1))

    def forward(self, x):
        return x * self.scale


def problem_of(model=Model, shape=(4, 6, 5, 7)):
    return load_problem(model, [torch.rand(shape)], device="cpu")


def results(candidate_class, *, budget=60.0, model=Model, second=True, alive=True, shape=(4, 6, 5, 7)
            ) -> dict[str, VariantResult]:
    problem = problem_of(model, shape)
    candidate = candidate_class()
    candidate.load_state_dict(problem.make_model(SEED).state_dict())
    found = check_variants(lambda: problem.make_model(SEED), candidate, problem, variants(problem, SEED),
                           Plan().tolerance_for("normal"), budget, make_second=candidate_class if second else None,
                           both_alive=alive)
    return {r.name: r for r in found}


def wrong(found):
    return {name: (r.verdict or r.limit) for name, r in found.items() if r.wrong}


def test_inputs_of_the_problem_may_require_gradients():
    problem = load_problem(Model, [torch.rand(4, 6, 5, 7, requires_grad=True)], device="cpu")
    assert problem.make_inputs(SEED)[0].requires_grad
    model = problem.make_model(SEED)
    found = check_variants(lambda: problem.make_model(SEED), model, problem, variants(problem, SEED),
                           Plan().tolerance_for("normal"), 60.0)
    assert wrong({r.name: r for r in found}) == {}
    assert {r.name: r.outcome for r in found}["same memory"] == "right"


def test_the_model_itself_is_right_in_all_variants_and_keeps_its_state():
    found = results(Model)
    assert wrong(found) == {}
    assert {n for n, r in found.items() if r.outcome == "skipped"} == set()
    assert {"other parameters", "other inputs", "same memory", "two instances", "second instance", "other mode",
            "gradients", "batch of 1", "batch of 5", "transposed", "sliced", "channels-last", "expanded",
            "misaligned"} <= set(found)
    problem, candidate = problem_of(), Model()
    candidate.load_state_dict(problem.make_model(SEED).state_dict())
    torch.manual_seed(4)
    before, weight = torch.get_rng_state(), candidate.weight.detach().clone()
    check_variants(lambda: problem.make_model(SEED), candidate, problem, variants(problem, SEED),
                   Plan().tolerance_for("normal"), 60.0)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(weight, candidate.weight) and candidate.training


class Hoisted(Model):
    """Takes the weight of its first call."""

    def forward(self, x):
        if "kept" not in vars(self):
            vars(self)["kept"] = (self.weight.detach().clone(),)
        return torch.tanh(self.drop(x) * self.kept[0].view(1, 6, 1, 1))


class Stale(Model):
    """The result of the call before."""

    def forward(self, x):
        now = super().forward(x)
        last = vars(self).get("last", [now])
        vars(self)["last"] = [now]
        return last[0].clone()


class ByAddress(Model):
    """Keeps results by the address of the input."""

    def forward(self, x):
        kept = vars(self).setdefault("by_address", {})
        if x.data_ptr() not in kept:
            kept[x.data_ptr()] = (x, super().forward(x))
        return kept[x.data_ptr()][1].clone()


class Shared(Model):
    """A weight kept for all instances, of whichever was called first, until its own parameters change in place."""

    kept: list = []

    def forward(self, x):
        weight = self.weight.detach()
        if not Shared.kept or (Shared.kept[0] is self and not torch.equal(Shared.kept[1], weight)):
            Shared.kept[:] = [self, weight.clone()]
        return torch.tanh(self.drop(x) * Shared.kept[1].view(1, 6, 1, 1))


@pytest.mark.parametrize("kind, variant, verdict", [
    (Hoisted, "other parameters", "WRONG-PARAMETERS"), (Stale, "other inputs", "WRONG-STALE"),
    (ByAddress, "same memory", "WRONG-STALE"), (Shared, "two instances", "WRONG-PARAMETERS"),
    (Shared, "second instance", "WRONG-PARAMETERS")])
def test_what_depends_on_earlier_calls_gates(kind, variant, verdict):
    Shared.kept = []
    found = results(kind)[variant]
    assert found.gates and found.outcome == "wrong" and found.verdict == verdict and not found.limit
    assert found.call in ((1, 3) if kind is Stale else (2,))  # the stale one still has a result of another variant
    assert f"call {found.call} of" in found.sentence
    assert found.finding.kind.startswith("variant-") and found.finding.fix
    assert found.finding.evidence["expected"] is not None


def test_a_hoisted_weight_is_wrong_in_no_other_variant_of_one_instance():
    assert set(wrong(results(Hoisted, second=False))) == {"other parameters"}


class Flat(Model):
    """Reads memory as if it were contiguous."""

    def forward(self, x):
        flat = torch.as_strided(x, x.shape, torch.empty(x.shape).stride(), x.storage_offset()) \
            if x.untyped_storage().nbytes() // 4 >= x.numel() + x.storage_offset() else x * 0
        return super().forward(flat)


class Refusing(Model):
    def forward(self, x):
        if not x.is_contiguous():
            raise ValueError("x must be contiguous")
        if x.shape[0] != 4:
            raise RuntimeError("the batch must be 4")
        if x.data_ptr() % 16:
            raise RuntimeError("misaligned address")
        if x.requires_grad:
            raise RuntimeError("no gradients")
        return super().forward(x)


class Macro(Model):
    """Four entries, whatever there are."""

    def forward(self, x):
        result = super().forward(x)
        return torch.cat([result] * 4)[:4].contiguous()


class TrainingOnly(Model):
    def forward(self, x):
        return torch.tanh(torch.dropout(x, 0.5, True) * self.weight.view(1, 6, 1, 1))


def test_layouts_limit():
    found = results(Flat)
    assert {"transposed", "sliced", "channels-last"} <= set(wrong(found)) <= {
        "transposed", "sliced", "channels-last", "expanded"}
    assert found["transposed"].limit == "silently wrong for transposed (non-contiguous) inputs"
    assert not any(found[n].gates or found[n].verdict for n in ("transposed", "sliced", "misaligned"))
    assert found["misaligned"].outcome == "right"


def test_exceptions_limit_and_say_what():
    found = results(Refusing)
    assert set(wrong(found)) == {"transposed", "sliced", "channels-last", "expanded", "batch of 1", "batch of 5",
                                 "misaligned", "gradients"}
    assert all(r.outcome == "raised" and not r.verdict for r in found.values() if r.wrong)
    assert found["sliced"].limit == "contiguous inputs only" and "x must be" in found["sliced"].sentence
    assert found["batch of 1"].limit == "the problem's own shapes only"
    assert "multiples of 16 bytes" in found["misaligned"].limit


def test_sizes_as_constants_and_modes_limit():
    assert set(wrong(results(Macro))) == {"batch of 1", "batch of 5"}
    assert "silently wrong for a batch of 1" in results(Macro)["batch of 1"].limit
    found = results(TrainingOnly)
    assert set(wrong(found)) == {"other mode"} and "eval()" in found["other mode"].limit
    assert not found["other mode"].gates and found["other mode"].call == 2


def test_what_the_model_does_not_take_is_skipped():
    class Viewing(nn.Module):
        def forward(self, x):
            return x.view(4, -1) * 2

    found = results(Viewing, model=Viewing)
    assert wrong(found) == {}
    assert found["transposed"].outcome == "skipped" and "the model itself" in found["transposed"].sentence
    fixed = results(Fixed, model=Fixed, shape=(4, 3))
    assert fixed["batch of 1"].outcome == "skipped" and "fix the batch" in fixed["batch of 1"].sentence
    assert fixed["batch of 5"].outcome == "skipped" and wrong(fixed) == {}


def test_layouts_that_the_problem_itself_has_gate():
    class Rows(nn.Module):
        def forward(self, x):
            return x * 2

    class FlatRows(nn.Module):
        def forward(self, x):
            return torch.as_strided(x, x.shape, torch.empty(x.shape).stride()) * 2

    problem = load_problem(Rows, [torch.rand(6, 4).t()], device="cpu")
    found = check_variants(lambda: problem.make_model(SEED), FlatRows(), problem, variants(problem, SEED),
                           Plan().tolerance, 30.0)
    by_name = {r.name: r for r in found}
    assert by_name["sliced"].gates and by_name["sliced"].verdict == "WRONG-NUMERIC"


class Ranged(nn.Module):
    """Takes a number that must lie near its own value, and one in Python, which stays as it is."""

    def forward(self, x, scale, offset):
        if not 0.6 < float(scale) < 1.2:
            raise ValueError("the scale must be above 0.6 and below 1.2")
        return x * scale + offset


class Frozen(nn.Module):
    def forward(self, x, scale, offset):
        return x * 0.75 + offset


@pytest.mark.parametrize(("scale", "tried"), [(0.7, {1.25}), (1.0, {0.8}), (0.9, {1.25, 0.8}), (0.625, {1.25})])
def test_single_numbers_are_varied_as_far_as_the_model_takes_them(scale, tried):
    """They are the same in every draw, and no distribution of the trials may give what the model takes."""
    problem = load_problem(Ranged, [torch.rand(4, 3), torch.tensor(scale), 2.0], device="cpu")
    for candidate, outcome in ((Ranged, "right"), (Frozen, "wrong")):
        found = check_variants(lambda: problem.make_model(SEED), candidate(), problem, variants(problem, SEED),
                               Plan().tolerance_for("normal"), 60.0)
        varied = {factor: next(r for r in found if r.name == f"numbers times {factor}") for factor in (1.25, 0.8)}
        assert {factor for factor, r in varied.items() if r.outcome == outcome} == tried
        for factor, result in varied.items():
            assert result.verdict == ("WRONG-DISTRIBUTION" if factor in tried and outcome == "wrong" else "")
            assert factor in tried or "the model itself fails" in result.sentence


def test_inputs_without_single_numbers_have_none_to_vary():
    problem = load_problem(Ranged, [torch.rand(4, 3), torch.tensor(3), 2.0], device="cpu")
    assert not [v for v in variants(problem, SEED) if v.name.startswith("numbers")]


def test_skipped_for_time_instances_and_ended_processes():
    found = results(Model, budget=0.0)
    assert {r.outcome for r in found.values()} == {"skipped"} and "left" in found["gradients"].sentence
    assert wrong(results(Model, alive=False)) == {}
    found = results(Model, second=False)
    assert {n for n, r in found.items() if r.outcome == "skipped"} == {"two instances", "second instance"}
    Shared.kept = []
    found = results(Shared, alive=False)
    assert found["two instances"].outcome == "skipped" and found["second instance"].verdict == "WRONG-PARAMETERS"
    assert found["second instance"].call == 2

    from kernelwright.judge.worker.process import WorkerFailure

    class Dying(Model):
        def forward(self, x):
            if x.data_ptr() % 16 or not x.is_contiguous():
                raise WorkerFailure("CRASH-DEVICE", "The candidate broke the device's context.", "", "run")
            return super().forward(x)

    found = results(Dying)
    ended = [r for r in found.values() if r.wrong]
    assert [r.name for r in ended] == ["transposed"] and "broke the device's context" in ended[0].sentence
    assert found["misaligned"].outcome == "skipped" and "ended" in found["misaligned"].sentence


class Saying(Model):
    """Says that memory is lacking, ``often`` times, where a second instance is made or called, or for five entries."""

    first: list = []
    often, where, said = 99, "made", 0

    def __init__(self):
        if self.first:
            self.say("made")
        super().__init__()
        self.first.append(id(self))

    def forward(self, x):
        if id(self) != self.first[0]:
            self.say("called")
        if x.shape[0] == 5:
            self.say("five")
        return super().forward(x)

    @classmethod
    def say(cls, where):
        if where == cls.where and cls.said < cls.often:
            cls.said += 1
            raise RuntimeError("CUDA error: out of memory")


def saying(monkeypatch, where, often=99, free=1 << 30):
    """The results of a candidate that says so where a GiB is free, and ``free`` bytes from then on."""
    kind = type("Saying", (Saying,), {"where": where, "often": often, "first": []})
    monkeypatch.setattr(lacking, "free_on", lambda device: free if kind.said else 1 << 30)
    return results(kind, alive=False)


@pytest.mark.parametrize("where", ["made", "called"])
def test_a_second_instance_that_only_says_that_memory_is_lacking_is_refused(monkeypatch, where):
    """Else nothing is known of it. One that runs when it is tried again is right."""
    second = saying(monkeypatch, where)["second instance"]
    assert second.gates and second.wrong and second.verdict == "CRASH-MEMORY"
    assert "out of memory" in second.sentence and second.fix
    assert saying(monkeypatch, where, often=1)["second instance"].outcome == "right"


def test_memory_that_a_second_instance_does_lack_is_a_limit(monkeypatch):
    """Others have taken half of it; or as much is free as for the first one's calls, which is too little beside it."""
    for where, free in (("made", 1 << 29), ("called", 1 << 29), ("made", (7 << 27) + 10)):
        second = saying(monkeypatch, where, free=free)["second instance"]
        assert not second.wrong and not second.verdict and second.sentence.startswith("Not tried: the candidate says")
        assert second.limit == "not tried for want of memory: another instance with other parameters, made after the " \
            "first was called"
    assert saying(monkeypatch, "called", free=(7 << 27) + 10)["second instance"].verdict == "CRASH-MEMORY"


def test_memory_lacking_at_another_size_is_a_limit(monkeypatch):
    found = saying(monkeypatch, "five")
    assert wrong(found) == {} and found["batch of 1"].outcome == "right"
    assert found["batch of 5"].limit == "not tried for want of memory: a batch of 5 instead of 4"


def test_what_the_judge_keeps_is_let_go_before_memory_is_lacking():
    problem, candidate, gone = problem_of(), Model(), []

    class Full(Model):
        def __init__(self):
            if not gone:
                raise MemoryError
            super().__init__()

    candidate.load_state_dict(problem.make_model(SEED).state_dict())
    second = [v for v in variants(problem, SEED) if v.name == "second instance"]
    found = check_variants(lambda: problem.make_model(SEED), candidate, problem, second,
                           Plan().tolerance_for("normal"), 60.0, make_second=Full, let_go=lambda: gone.append(1))
    assert gone == [1] and found[0].outcome == "right"


def test_a_second_instance_that_cannot_be_made_is_a_limit_and_one_that_ends_the_process_is_not():
    from kernelwright.judge.worker.process import WorkerFailure

    for error in (ValueError("once is enough"), WorkerFailure("CRASH-SIGNAL", "The candidate ended.", "", "build")):
        made = []

        class Once(Model):
            def __init__(self, made=made, error=error):
                made.append(1)
                if len(made) > 1:
                    raise error
                super().__init__()

        second = results(Once, alive=False)["second instance"]
        if isinstance(error, ValueError):
            assert second.limit == "only one instance in a process" and "once is enough" in second.sentence
            assert not second.wrong
        else:
            assert second.wrong and second.verdict == "CRASH-SIGNAL" and second.call == 2


def test_a_stateful_model_keeps_step_with_the_candidate():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6, momentum=0.5)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return self.norm(x) * self.count

    found = results(Counting, model=Counting, shape=(8, 6))
    assert wrong(found) == {} and found["other inputs"].outcome == "right"
    assert found["batch of 1"].outcome == "skipped"


def test_layouts_keep_values_and_differ():
    x = torch.rand(4, 3, 5, 6)
    for layout in (layouts.transposed, layouts.sliced, layouts.channels_last, layouts.misaligned):
        assert torch.equal(layout(x), x) and layouts.has_layout([x], layout)
    assert layouts.misaligned(x).data_ptr() % 16 == 4 and layouts.misaligned(x).is_contiguous()
    assert layouts.expanded(x).stride(0) == 0 and torch.equal(layouts.expanded(x)[2], x[0])
    assert layouts.channels_last(x[0]) is None and layouts.transposed(torch.rand(3)) is None
    whole = torch.arange(12).view(3, 4)
    assert not layouts.has_layout([whole], layouts.sliced)
    assert layouts.with_layout([whole, 2, [x]], layouts.sliced)[0] is whole
    grown = layouts.with_batch([x, whole, 3], [x + 1, whole, 3], 9)
    assert grown[0].shape[0] == 9 and torch.equal(grown[0][4], x[0] + 1) and grown[1] is whole


class Cancels(nn.Module):
    """Sums of large terms of which little is left: eager has three digits of it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(512, 8)
        with torch.no_grad():
            self.linear.bias.copy_(1e-6 - self.linear.weight.sum(1))

    def forward(self, x):
        return self.linear(1 + 1e-6 * x)


class CancelsInHalves(Cancels):
    def forward(self, x):
        x, weight = 1 + 1e-6 * x, self.linear.weight.t()
        return (x[:, :256] @ weight[:256] + x[:, 256:] @ weight[256:]) + self.linear.bias


@pytest.mark.parametrize("kind, is_wrong", [(CancelsInHalves, False), (Stale, True)])
def test_a_slow_machine_accuses_nobody(kind, is_wrong, monkeypatch):
    """Where a model's call takes long nothing runs in float64 to save time; what fails beside eager does all the same,
    as eager's own sums have an error, too. A stale candidate stays wrong."""
    monkeypatch.setattr(variant_calls, "_FLOAT64_SHARE", 0.0)
    found = results(kind) if kind is Stale else results(kind, model=Cancels, shape=(32, 512))
    assert {"other inputs"} <= set(wrong(found)) if is_wrong else not wrong(found)
