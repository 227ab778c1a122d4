"""Stage 2, CAPTURE: what a plain trace loses or refuses (scopes, .data, results by name, drawn in place, state)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from forks import ran
from graph_tools import check_capture
from places import ROOT
from test_capture import Of, X, normal, operators
from torch import nn

from kernelwright import errors
from kernelwright.capture.export import NotCapturable, capture
from kernelwright.ir.evaluate import evaluate
from kernelwright.ir.node import walk

# Scopes ------------------------------------------------------------------------------------------


def _under_autocast(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = F.gelu(x @ m.weight)
        with torch.autocast("cpu", enabled=False):
            whole = (product.float() @ m.weight).softmax(-1)
    return product, whole


def test_autocast_becomes_casts() -> None:
    model = Of(_under_autocast, weight=normal(6, 6).float())
    graph = check_capture(model, (X.float(),), 1e-6)
    assert operators(graph).count("matmul") == 2 and graph.outputs[0].dtype == "bfloat16"


def test_autocast_and_buffers_that_change() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ m.weight
        m.buffer_mean.lerp_(y.float().mean(0), 0.1)
        return m.norm(F.dropout(y.float(), 0.25))

    model = Of(forward, weight=normal(6, 6).float(), buffer_mean=torch.zeros(6), norm=nn.BatchNorm1d(6)).train()
    graph = check_capture(model, (X.float(),), 1e-6)
    assert {e.name for e in graph.effects} == {"buffer_mean", "norm.running_mean", "norm.running_var",
                                               "norm.num_batches_tracked"}


def test_vmap_becomes_batches() -> None:
    def forward(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        several = torch.vmap(lambda w, b: torch.tanh(x @ w + b))(m.weight, m.bias)
        pairs = torch.vmap(torch.vmap(torch.dot, (None, 0)), (0, None))(x, x)
        return several.mean(0), pairs

    graph = check_capture(Of(forward, weight=normal(3, 6, 6), bias=normal(3, 6)), (X,))
    assert "matmul" in operators(graph)


def test_a_derivative_under_a_scope_is_a_graph() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            place = x.detach().requires_grad_(True)
            return torch.autograd.grad((place ** 3).sum(), place)[0]

    check_capture(Of(forward), (X,))


def test_a_loop_of_the_graph_is_refused_by_name() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))

    with pytest.raises(NotCapturable) as caught:
        capture(Of(forward), (X,))
    assert "0x" not in str(caught.value)


# Writes ------------------------------------------------------------------------------------------


def test_data_is_the_same_memory() -> None:
    def forward(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = x @ m.buffer_codes.t()
        m.buffer_codes.data.mul_(0.9).add_(x.mean(0), alpha=0.1)
        m.buffer_codes.data[1] = x[0]
        y = x * 2
        y.data.clamp_(min=0)
        return before, y + m.buffer_codes.sum(0)

    graph = check_capture(Of(forward, buffer_codes=normal(3, 6)), (X,))
    assert [e.name for e in graph.effects] == ["buffer_codes"]


def test_results_into_named_memory() -> None:
    def forward(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, z = torch.empty_like(x), torch.zeros(4, 4, dtype=x.dtype)
        rows = y[1:]
        torch.add(x, 1.5, alpha=2, out=y)
        torch.matmul(x, x.t(), out=z)
        F.normalize(torch.mv(x.t(), x[:, 0]), dim=0, out=m.buffer_direction)
        torch.clamp(rows, min=0.5, out=rows)
        return y, z, rows * 2

    graph = check_capture(Of(forward, buffer_direction=normal(6)), (X,))
    assert [e.name for e in graph.effects] == ["buffer_direction"]


def test_results_are_stored_in_the_type_of_the_target() -> None:
    def forward(m: Any, x: torch.Tensor) -> list[torch.Tensor]:
        narrow, counts, flags = x.to(torch.bfloat16), torch.arange(4), x > 0
        positive = (x * 2).gt_(0.5)
        return [narrow.add_(x.float()).mul_(2.5), counts.mul_(2), flags.logical_xor_(x > 1), positive]

    check_capture(Of(forward), (X,), 1e-6)


@pytest.mark.parametrize("draw", [
    lambda t: t.bernoulli_(0.75), lambda t: t.bernoulli_(torch.full_like(t, 0.25)), lambda t: t.normal_(1, 0.5),
    lambda t: t.uniform_(-1, 2), lambda t: t.exponential_(0.5), lambda t: F.dropout(t.fill_(1), 0.5, inplace=True),
], ids=["bernoulli", "bernoulli by tensor", "normal", "uniform", "exponential", "dropout"])
def test_drawn_in_place(draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        first = draw(x.new_empty(4, 1)).div_(0.75)
        return x * first + draw(torch.empty_like(x))

    serials = [n["serial"] for n in check_capture(Of(forward), (X,)).operators() if n.get("serial", -1) >= 0]
    assert len(serials) == len(set(serials)) == 2


def test_spectral_norm_of_a_training_layer() -> None:
    model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 5))).double().train()
    graph = capture(model, (X,), check_state=lambda changed: ())
    assert {e.name for e in graph.effects} == {"0.weight_u", "0.weight_v"}


# Types -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_do_not_decide_types(dtype: torch.dtype) -> None:
    def forward(m: Any, x: torch.Tensor) -> list[torch.Tensor]:
        y = x * 1.0
        return [torch.add(y, 1.0, alpha=0.5), torch.sub(y, 3, alpha=2), torch.rsub(y, 2.0, alpha=0.5), y.add(True)]

    for shape in ((), (3,)):
        graph = check_capture(Of(forward), (torch.full(shape, 1.25, dtype=dtype),), 1e-6)
        assert {n.dtype for n in graph.outputs} == {str(dtype).removeprefix("torch.")}
        assert "opaque" not in {n.op for n in graph.operators()}


def test_complex_numbers_as_operands() -> None:
    check_capture(Of(lambda m, x: torch.fft.ifft(1j * torch.fft.fft(x) * (0.5 - 2j)).real + 1), (X,))


def test_a_module_in_several_places_has_its_first_name() -> None:
    """Emitted files look tensors up by it."""
    class Repeated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
            self.blocks = nn.ModuleList([self.block] * 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = x + block(x)
            return x

    model = Repeated().double().eval()
    graph = check_capture(model, (X,))
    names = {n["name"] for n in graph.nodes() if n.op in ("parameter", "buffer")}
    assert names <= model.state_dict().keys() and all(n.startswith("block.") for n in names)


# Layers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_encoder_with_a_mask(training: bool) -> None:
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True).double()
    model = Of(lambda m, x: m.encoder(x, mask=nn.Transformer.generate_square_subsequent_mask(4, dtype=x.dtype)),
               encoder=nn.TransformerEncoder(layer, 2)).train(training)
    check_capture(model, (normal(2, 4, 6),))
    changed = Of(lambda m, x, mask: m.encoder(x, mask=mask), encoder=model.encoder).train(training)
    check_capture(changed, (normal(2, 4, 6), torch.ones(4, 4).tril(1).bool().logical_not()))


# What stays as it is -----------------------------------------------------------------------------


def test_shapes_that_depend_on_values_name_the_line(tmp_path: Any) -> None:
    path = tmp_path / "chosen.py"
    path.write_text("import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
                    "        y = x[x > 0]\n        return y * 2\n")
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    with pytest.raises(NotCapturable, match=r"index gives \(chosen\.py:6: y = x\[x > 0\]\) depends on values"):
        capture(space["Model"](), (X,), file=str(path))


def test_results_that_no_file_can_make_are_named() -> None:
    with pytest.raises((errors.OutputsUnsupported, NotCapturable), match="generator"):
        capture(Of(lambda m, x: (x * n for n in range(2))), (X,))


def test_derivatives_are_named() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.jacrev(lambda row: torch.tanh(m.weight @ row))(x[0])

    with pytest.raises(NotCapturable, match="takes derivatives"):
        capture(Of(forward, weight=normal(6, 6)), (X,))


@pytest.mark.parametrize("decide", [
    lambda x: torch.allclose(x, x.abs()), lambda x: torch.equal(x, x.abs()), lambda x: F.relu(x).sum() > 0,
    lambda x: x.max().item() > 0], ids=["allclose", "equal", "comparison", "item"])
def test_decisions_of_the_model_itself_are_refused(decide: Callable[[torch.Tensor], bool]) -> None:
    with pytest.raises(errors.DataDependentControlFlow):
        capture(Of(lambda m, x: x * 2 if decide(x) else -x), (X,))


@pytest.mark.parametrize(("forward", "count"), [
    (lambda m, x: F.gaussian_nll_loss(x, x, x.abs() + 1), 1),
    (lambda m, x: torch.distributions.Normal(x, x.abs() + 1, validate_args=True).log_prob(x), 2)],
    ids=["loss", "distribution"])
def test_code_that_only_refuses_values_leaves_checks(forward: Callable[..., Any], count: int) -> None:
    assert sum(check.is_truth and check.waited for check in capture(Of(forward), (X,)).checks) == count


def _packed(m: Any, x: torch.Tensor) -> torch.Tensor:
    packed = nn.utils.rnn.pack_padded_sequence(x[..., None], (x[:, 0] > 0).long() + 1, True, False)
    return m.plain_layer(packed)[1]


@pytest.mark.parametrize(("forward", "words"), [
    (lambda m, x: F.ctc_loss(x[:, None].log_softmax(2), torch.tensor([[1]]), torch.tensor([4]), torch.tensor([1])),
     "the shape of what .*ctc_loss.* depends on values"),
    (lambda m, x: torch.cov(x), "PyTorch's own cov decides"),
    (_packed, "size of a tensor depends on values")], ids=["shape", "operator", "packed sequence"])
def test_library_code_that_looks_at_values_is_no_fault_of_the_model(forward: Callable[..., Any], words: str) -> None:
    """The user cannot write it with torch.where, as KW201 would have it; the mode stays as it is."""
    with pytest.raises(NotCapturable, match=words):
        capture(Of(forward, plain_layer=nn.GRU(1, 2, batch_first=True).double()), (X,))


@pytest.mark.parametrize(("forward", "attribute"), [
    (lambda m, x: m.kept.update(h=x * 2) or x + 1, "kept"),
    (lambda m, x: setattr(m, "_hidden", x * 2) or x + 1, "_hidden"),
    (lambda m, x: m.seen.append(x) or x + 1, "seen")], ids=["dictionary", "underscore", "list"])
def test_changed_attributes_are_noticed(forward: Callable[..., Any], attribute: str) -> None:
    asked: list[str] = []

    def carried(changed: Sequence[str]) -> list[str]:
        assert attribute in changed
        asked.append(attribute)
        return [attribute]

    model = Of(forward, kept={}, seen=[])
    with pytest.raises(NotCapturable, match=attribute):
        capture(model, (X,), check_state=carried)
    assert asked == [attribute] and model.kept == {} and model.seen == []


def _asking(statement: str) -> Any:
    """A forward of a model in whose code a statement asks for the values of x."""
    space: dict[str, Any] = {"torch": torch}
    exec(f"def forward(m, x):\n    {statement}\n    return torch.tanh(x) * 2\n", space)
    return space["forward"]


@pytest.mark.parametrize("statement", [
    "assert x.max().item() < m.limits[0] + 1", "assert 0 != x.max().item()",
    "assert x.max().item() <= max(9, x.size(1))", "if x.max().item() >= len(m.limits) * 3: raise ValueError",
    "if x.isnan().any().item(): raise ValueError", "assert x.min().item() < x.max().item()",
    "assert (x.sum(0)[0] + 1).item() >= -x.shape[0]"])
def test_a_number_that_is_compared_to_raise_is_a_check(statement: str) -> None:
    graph = check_capture(Of(_asking(statement), limits=[7, 8]), (X,))
    assert len(graph.checks) == 1


@pytest.mark.parametrize("statement", [
    "if x.max().item() < 1: x = x + 1", "assert x.max().item() + 1 < 9", "assert int(x.max().item()) < 9",
    "n = x.max().item(); assert n < 9; x = x * n", "assert x.max().item().is_integer() or True",
    "assert x.max().item() <= x[0, 0]", "x = x * [1, 2][x.max().item() < 9]", "assert abs(x.max().item()) < 9"])
def test_a_number_of_which_something_else_is_made_is_not(statement: str) -> None:
    """Nothing but what Python makes of it says what it is compared with, or what comes of it."""
    with pytest.raises((NotCapturable, errors.DataDependentControlFlow)):
        capture(Of(_asking(statement), limits=[7, 8]), (X,))


@pytest.mark.parametrize(("value", "bound", "holds"), [(16777217, "16777216.5", False), (16777216, "16777216.5", True),
                                                       (0.1, "0.1", False), (7, "x.shape[0] + 3", True)])
def test_numbers_are_compared_as_python_compares_them(value: float, bound: str, holds: bool) -> None:
    """PyTorch compares in the tensor's type, or in float32 where that is an integer's."""
    x = torch.full((4, 6), value, dtype=torch.int64 if isinstance(value, int) else torch.float32)
    graph = capture(Of(_asking(f"assert x.max().item() <= {bound}")), (x,))
    (check,) = graph.checks
    assert (x.max().item() <= eval(bound)) is holds
    assert evaluate([check.value], {graph.inputs[0]["name"]: x})[0].item() is holds


AFTERWARDS = """
import torch
from kernelwright.capture.export import NotCapturable, capture

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))

try:
    capture(Model(), (torch.rand(2, 3),))
except NotCapturable:
    pass

@torch.compile(backend="eager", fullgraph=True)
def mode(x):
    return x + torch.is_grad_enabled()

print(float(mode(torch.zeros(()))))
"""


def test_torch_compile_knows_its_functions_after_a_trace() -> None:
    """Its tables are of the functions that PyTorch has when it is first used, as torch.cond does under a trace."""
    done = ran(AFTERWARDS, folder=ROOT)
    assert done.stdout == "1.0\n", done.stderr


# Lines -------------------------------------------------------------------------------------------


class _Inner(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _helped(x) * 2


def _helped(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(
        x.exp()) + 1


class _Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(_Inner(), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).softmax(-1)


def test_lines_are_those_of_pytorchs_own_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of this test, which calls the model, are among neither."""
    def origins() -> list[tuple[str, Any]]:
        return [(node.op, node.origin) for node in walk(capture(_Outer(), (X,), file=__file__).outputs)]

    found = origins()
    monkeypatch.setattr("kernelwright.capture.export.lines_noted", lambda file: nullcontext())
    assert found == origins()
    lines = {origin.text for _, origin in found if origin is not None and origin.line}
    assert "return self.inner(x).softmax(-1)" in lines and len(lines) > 1
