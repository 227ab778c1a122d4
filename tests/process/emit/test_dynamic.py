"""One file serves calls of several sizes: as eager does, with kernels within the ranges and without beyond them."""

from __future__ import annotations

import copy
import json
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from random import Random

import pytest
import torch
import torch.nn.functional as F
from dynamic_tools import Several, of_shape, same_state, several
from emitted_tools import assert_like, assert_same_state, gradients, kernels_run, original_runs
from torch import nn

import kernelwright
from kernelwright.build.module import load_text
from kernelwright.codegen.generate import generate_kernel
from kernelwright.dynamic.conditions import lookup
from kernelwright.dynamic.programs import ModeOfSizes, kernel_names, with_workspace
from kernelwright.dynamic.records import Differs
from kernelwright.dynamic.replan import planned_at, template_of
from kernelwright.dynamic.sizes import MOST_DRAWS, inputs_like, of_sizes, sizes_of
from kernelwright.errors import DynamicSizesInvalid, InvalidOption
from kernelwright.programs import Stages, new_model
from kernelwright.progress import Progress
from kernelwright.settings import Settings
from kernelwright.verified import as_kernels


class Softmax(nn.Module):
    def forward(self, x):
        return torch.softmax(F.gelu(x) * 2, -1)


class Norms(nn.Module):
    """A norm over features, and a mean over the batch, whose factor depends on it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(24)

    def forward(self, x):
        y = self.norm(x).relu() + x
        return y, y.mean(0), x.flatten(1)


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x, gate):
        return torch.sigmoid(self.second(F.gelu(self.first(x)))) * gate[:, None]


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.pool, self.second = nn.MaxPool2d(2), nn.Conv2d(8, 4, 3)

    def forward(self, x):
        return F.relu(self.second(self.pool(F.relu(self.norm(self.first(x)))))).mean((2, 3))


class Decides(nn.Module):
    """A forward that decides by its batch."""

    def forward(self, x):
        return torch.softmax(x, 1) if x.shape[0] > 5 else torch.sigmoid(x) * x


class Standardised(nn.Module):
    """Deviations of samples, and the root of a size."""

    def forward(self, x):
        return (x - x.mean(0)) / (x.std(0) + 1e-3) / x.shape[0] ** 0.5


def _made(name: str) -> tuple[nn.Module, list[torch.Tensor], tuple[str, ...]]:
    torch.manual_seed(1)
    return {
        "softmax": lambda: (Softmax(), [torch.randn(8, 40)], ("x:0=1..17",)),
        "norms": lambda: (Norms(), [torch.randn(4, 5, 24)], ("x:0=batch:1..6", "x:1=1..9")),
        "products": lambda: (Products(), [torch.randn(8, 16), torch.randn(8)], ("x:0=1..17", "gate:0=1..17")),
        "convolutions": lambda: (Convolutions(), [torch.randn(8, 3, 12, 12)], ("x:0=1..17",)),
        "encoder": lambda: (nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True),
                            [torch.randn(3, 6, 16)], ("src:0=1..4", "src:1=2..9")),
        "decides": lambda: (Decides(), [torch.randn(8, 12)], ("x:0=1..17",)),
    }[name]()


@cache
def made(name: str) -> tuple[nn.Module, list[torch.Tensor], Several]:
    model, inputs, dynamic = _made(name)
    return model, inputs, several(model, inputs, *dynamic)


BATCHES = range(1, 18)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("name", "changes"), [
    ("softmax", [((0, 0, n),) for n in BATCHES]),
    ("norms", [((0, 0, n), (0, 1, m)) for n in range(1, 7) for m in range(1, 10)]),
    ("products", [((0, 0, n), (1, 0, n)) for n in BATCHES]),
    ("convolutions", [((0, 0, n),) for n in BATCHES]),
    ("encoder", [((0, 0, n), (0, 1, m)) for n in range(1, 5) for m in range(2, 10)]),
])
def test_one_file_serves_every_size_of_its_ranges(name, changes, training) -> None:
    model, inputs, found = made(name)
    new = same_state(model.train(training), found.model())
    for seed, change in enumerate(changes):
        given = of_shape(inputs, *change, seed=seed)
        old = copy.deepcopy(model)
        same_state(old, new)
        with torch.no_grad():
            expected = old(*given)
            with kernels_run(found.module, 1):
                result = new(*given)
        assert_like(result, expected)
        for one, other in zip(*((r,) if isinstance(r, torch.Tensor) else r for r in (result, expected)), strict=True):
            assert one.stride() == other.stride() and one.dtype == other.dtype
        assert_same_state(new, old)
    assert sum(p.numel() for p in new.parameters()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["softmax", "products", "convolutions"])
def test_gradients_are_those_of_each_size(name) -> None:
    model, inputs, found = made(name)
    new = as_kernels(same_state(model.train(), found.model()), found.module)
    for n in (1, 2, 8, 13, 17, 3):
        if name == "convolutions" and n == 1:
            continue
        given = of_shape(inputs, *((number, 0, n) for number in range(len(inputs))), seed=n)
        old = same_state(model, copy.deepcopy(model))
        same_state(old, new)

        def loss(y):
            return (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum()

        expected = gradients(old, given, loss)
        with kernels_run(found.module, 1):
            result = gradients(new, given, loss)
        assert_like(result, expected, 1e-4)


def test_calls_of_any_order_of_sizes_run_the_kernels_of_theirs() -> None:
    """What is known of a call's sizes is taken for the next one's only where its tensors are alike: in one model, in
    another beside it, in threads, and after a call beyond the range."""
    model, inputs, found = made("products")
    first, second = (same_state(model.eval(), found.model().eval()) for _ in range(2))
    given = {n: of_shape(inputs, (0, 0, n), (1, 0, n), seed=n) for n in (*BATCHES, 18)}
    expected = {n: model(*given[n]).detach() for n in given}

    def calls(new: nn.Module, order: list[int]) -> None:
        for n in order:
            with torch.no_grad():
                assert_like(new(*given[n]), expected[n])

    with kernels_run(found.module, 11):
        calls(first, [8, 8, 3, 3, 8, 1, 17])
        calls(second, [8, 17, 17])
        calls(first, [17])
    with original_runs(found.module, "has 18 elements"):
        calls(first, [18])
    with kernels_run(found.module, 2):
        calls(first, [17, 17])
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda seed: calls(first, Random(seed).choices(BATCHES, k=200)), range(2)))
    assert first.why() == {"axis 0 of x has 18 elements, not 1 to 17": 1} and second.why() == {}


@pytest.mark.parametrize("n", [0, 18, 40])
def test_sizes_beyond_the_range_run_the_original_with_a_warning(n) -> None:
    model, inputs, found = made("softmax")
    new = found.model()
    given = of_shape(inputs, (0, 0, n))
    with original_runs(found.module, f"axis 0 of x has {n} elements, not 1 to 17"):
        result = new(*given)
    assert_like(result, model(*given))
    with kernels_run(found.module, 1):
        new(*inputs)
    assert new.why() == {f"axis 0 of x has {n} elements, not 1 to 17": 1}


def test_inputs_of_one_size_that_disagree_run_the_original() -> None:
    model, inputs, found = made("products")
    new = same_state(model, found.model())
    one, other = of_shape(inputs, (0, 0, 5))[0], of_shape(inputs, (1, 0, 1))[1]
    with original_runs(found.module, "gate"):
        result = new(one, other)
    assert_like(result, model(one, other))
    with pytest.raises(RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        new(one, of_shape(inputs, (1, 0, 4))[1])


@pytest.mark.parametrize("given", [torch.randn(8, 41), torch.randn(8, 40).double(), torch.randn(40)])
def test_other_shapes_and_types_run_the_original(given) -> None:
    model, _, found = made("softmax")
    new = found.model()
    with original_runs(found.module):
        result = new(given)
    assert_like(result, model(given))


def test_no_kernels_serve_sizes_at_which_the_forward_does_something_else() -> None:
    model, inputs, found = made("decides")
    new = found.model()
    assert {p for p, in found.made.served["inference"]} == set(range(6, 18))
    assert any("other calls" in note for note in found.made.notes)
    for n in BATCHES:
        given = of_shape(inputs, (0, 0, n), seed=n)
        with kernels_run(found.module, 1) if n > 5 else warnings.catch_warnings():
            if n <= 5:
                warnings.simplefilter("ignore")
            assert_like(new.eval()(*given), model(*given))
    assert sum(new.why().values()) == 5


@pytest.mark.parametrize("name", ["softmax", "norms", "products", "convolutions", "encoder"])
def test_each_kernels_text_is_the_one_that_would_be_made_for_its_sizes(name) -> None:
    """At every point: the variant's text with the sizes put in is, token by token, the generator's for the plan of
    these sizes, and at some points for a plan that is made anew there, of a model that is captured anew."""
    found = made(name)[2]
    modes, _ = _modes_of_sizes(found)
    names = kernel_names(modes)
    checked = 0
    for mode in modes:
        for point in found.made.served[mode.name]:
            plan = mode.plan(point, names[mode.name])
            for step in plan.kernels:
                own, tree = found.made.kernels[step.name]
                number = lookup(tree, point)
                assert number is not None
                text = with_workspace(generate_kernel(step.kernel, step.name, "cpp"))
                assert own[number].gives(point, text), (step.name, point)
                checked += 1
    assert checked >= 17
    mode = next(m for m in found.modes if m.name == modes[0].name)
    points = [p for p in found.made.served[mode.name] if min(p) > 1]
    again = 0
    for point in points[::max(1, len(points) // 4)]:
        try:
            plan = planned_at(found.problem, mode, found.sizes, point, found.device, found.settings, Stages(Progress()))
        except Differs:
            continue
        own = modes[0].template.at(point)
        if [s.name for s in own.kernels] == [s.name for s in plan.kernels]:
            assert [s.kernel for s in own.kernels] == [s.kernel for s in plan.kernels], point
            again += 1
    assert again >= 2


def _modes_of_sizes(found: Several):
    """The modes as functions of sizes, made once more."""
    result = []
    mode = next(m for m in found.modes if m.runs)
    template, points = template_of(found.problem, mode, found.sizes, found.device, found.settings, Stages(Progress()))
    result.append(ModeOfSizes(mode.name, mode.name, mode.model, template, mode.graph, tuple(points)))
    return result, points


def test_large_ranges_are_served_where_nobody_has_looked() -> None:
    model, inputs = Softmax(), [torch.randn(8, 40)]
    found = several(model, inputs, "x:0=1..64", "x:1=16..1100")
    new = found.model()
    looked = set(found.made.served["inference"])
    generator = torch.Generator().manual_seed(5)
    drawn = [(int(torch.randint(1, 65, (), generator=generator)), int(torch.randint(16, 1101, (), generator=generator)))
             for _ in range(30)]
    points = [*drawn, (64, 1100), (1, 16), (1, 1100), (64, 16), (7, 1023), (7, 1024), (7, 1025)]
    assert sum(p not in looked for p in points) > 20
    for n, m in points:
        given = of_shape(inputs, (0, 0, n), (0, 1, m), seed=n)
        with kernels_run(found.module, 1):
            assert_like(new(*given), model(*given))


def test_a_file_for_one_size_says_how_to_get_one_for_several() -> None:
    """Of a tensor of another size, and of nothing else."""
    model, inputs, found = made("softmax")
    emitted = load_text(found.static, "one_size")
    hint = "kernelwright's option --dynamic writes a file for several sizes"
    with original_runs(emitted, hint):
        new_model(emitted, found.problem, 0)(*of_shape(inputs, (0, 0, 5)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        new_model(emitted, found.problem, 0)(inputs[0].double())
        new_model(emitted, found.problem, 0)(inputs[0][0])
    assert len(caught) == 2 and not any("--dynamic" in str(w.message) for w in caught)
    assert hint not in found.text
    assert_like(model(*inputs), new_model(emitted, found.problem, 0)(*inputs))


def test_a_file_without_sizes_is_as_it_was() -> None:
    _, _, found = made("softmax")
    for word in ("sized", "SIZES", "size_x0", "*sizes"):
        assert word in found.text
        assert re.search(rf"(?<!\.){re.escape(word)}", found.static.replace("self.sized", "").replace(
            "self.sizes", "")) is None, word


def test_optimize_certifies_a_file_at_several_sizes(tmp_path, capsys) -> None:
    result = kernelwright.optimize(Softmax(), inputs=(torch.randn(8, 40),), dynamic={"x": {0: ("batch", 1, 12)}},
                                   baselines="none", effort="quick", target="cpp", output=tmp_path / "several.py")
    said = "\n".join(result.notes)
    assert "serves sizes batch from 1 to 12, with one set of weights; certified at batch = 8; batch = 1; batch = 12" \
        in said
    assert result.certificate is not None and result.certificate.passed
    assert result.timing is not None and "Times are those of the file for the example's sizes alone" in said
    assert (tmp_path / "several.py").read_text(encoding="utf-8") == result.source
    assert "Serves calls of other sizes than the example's" in result.source
    x = torch.randn(11, 40)
    assert_like(result.module(x), Softmax()(x))
    assert result.why() == {}


def test_an_example_of_one_element_is_said_to_be_none_of_several() -> None:
    result = kernelwright.optimize(Softmax(), inputs=(torch.randn(1, 40),), dynamic=["x:0=1..6"], baselines="none",
                                   effort="quick", target="cpp")
    assert any("serves the example's sizes alone, not x:0=1..6" in note for note in result.notes)
    assert any(note.startswith("In the example x0 is 1, ") for note in result.notes)


def test_a_mode_that_fails_somewhere_serves_the_example_alone(monkeypatch) -> None:
    """What does not run, or is not right, at some of the sizes that are tried is said, and the file stays."""
    failing = {}

    def misfit(model, inputs):
        failing[model.training] = failing.get(model.training, 0) + 1
        return "nothing fits" if inputs[0].shape[0] == 12 and failing.get("training", model.training) else ""

    monkeypatch.setattr("kernelwright.dynamic.serve.misfit", misfit)
    result = kernelwright.optimize(Softmax(), inputs=(torch.randn(8, 40),), dynamic=["x:0=1..12"], baselines="none",
                                   effort="quick", target="cpp")
    assert any("serves the example's sizes alone, not x:0=1..12" in note or "for the example's sizes alone" in note
               for note in result.notes)
    assert any("at x0 = 12 nothing fits" in note for note in result.notes)
    assert result.certificate is not None and result.certificate.passed


def test_deviations_over_a_size_are_served() -> None:
    model, inputs = Standardised(), [torch.randn(8, 12)]
    found = several(model, inputs, "x:0=2..12")
    new = found.model()
    for n in range(2, 13):
        given = of_shape(inputs, (0, 0, n), seed=n)
        with kernels_run(found.module, 1):
            assert_like(new(*given), model(*given))


# What is asked -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "found"), [
    (["y:0=1..9"], "no argument y"), (["x:2=1..9"], "axes, from 0 on"), (["x:0=9..12"], "outside of the range"),
    (["gate:0=1..9", "x:1=batch:1..40", "x:0=batch:1..40"], "same name"), (["factor:0=1..9"], "is no tensor"),
    (["x:0=1..99999999999999"], "to check the highest sizes takes"),
])
def test_sizes_that_fit_no_argument_are_coded_errors(asked, found) -> None:
    class Scaled(nn.Module):
        def forward(self, x, gate, factor):
            return torch.softmax(x * gate[:, None] * factor, 1)

    with pytest.raises(DynamicSizesInvalid, match=re.escape(found)) as caught:
        kernelwright.optimize(Scaled(), inputs=(torch.randn(8, 16), torch.randn(8), 1.5), dynamic=asked)
    assert caught.value.code == "KW406"


def test_long_axes_repeat_few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inputs of a range of millions are made at once, and lie as the example's."""
    model, seeds = Softmax(), []

    def build(seed: int) -> list[torch.Tensor]:
        seeds.append(seed)
        return [torch.full((3, 2), float(len(seeds))).t()]

    problem = replace(kernelwright.load_problem(model, inputs=build(0)), build_inputs=build)
    (size,) = sizes_of(["x:0=1..4000000"], model, build(0))
    seeds.clear()
    (long,) = of_sizes(problem, (size,), (3_000_001,)).build_inputs(5)
    assert long.shape == (3_000_001, 3) and len(seeds) == MOST_DRAWS == len(set(seeds))
    assert long.stride() == (1, 3_000_001) and set(long[:, 0].tolist()) == {float(n + 1) for n in range(MOST_DRAWS)}
    (same,) = inputs_like(problem, build(0), (size,), (3_000_001,))
    assert same.shape == long.shape and len(set(same[:, 0].tolist())) == 1


@pytest.mark.parametrize("dynamic", ["x=1..4", ["x:0=4..1"], ["x:0=0..4"], {"x": {0: (1,)}}, {"x": (1, 4)}, 7,
                                     ["x:0=1..4", "x:0=1..5"]])
def test_sizes_that_are_none_are_coded_errors(dynamic) -> None:
    with pytest.raises(InvalidOption, match="--dynamic") as caught:
        Settings(dynamic=dynamic)
    assert "('" not in str(caught.value)  # as they were typed


def test_sizes_are_texts_however_they_are_given() -> None:
    wanted = ("x:0=1..64", "y:1=length:2..9")
    assert Settings(dynamic={"x": {0: (1, 64)}, "y": {1: ("length", 2, 9)}}).dynamic == wanted  # type: ignore[arg-type]
    assert Settings(dynamic=list(wanted)).dynamic == wanted  # type: ignore[arg-type]
    assert json.dumps(Settings(dynamic=wanted).as_json()["dynamic"]) == json.dumps(list(wanted))


def test_equal_axes_are_one_size_unless_they_have_names() -> None:
    model, inputs = Products(), [torch.randn(8, 16), torch.randn(8)]
    one = sizes_of(("x:0=1..9", "gate:0=1..9"), model, inputs)
    assert [(s.name, s.places) for s in one] == [("size_x0", ((0, 0), (1, 0)))]
    two = sizes_of(("x:0=1..9", "gate:0=1..8"), model, inputs)
    assert [s.name for s in two] == ["size_x0", "size_gate0"]
    named = sizes_of(("x:0=batch:1..9", "gate:0=batch:1..9"), model, inputs)
    assert [(s.name, len(s.places)) for s in named] == [("size_batch", 2)]
