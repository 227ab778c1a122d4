"""Stage 2, CAPTURE: buffers, randomness, and names of the same memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graph_tools import check_capture
from test_capture import Of, X, normal, operators
from torch import nn

from kernelwright import errors
from kernelwright.capture.export import NotCapturable, capture
from kernelwright.ir.node import walk

# Buffers -----------------------------------------------------------------------------------------


def test_counters_and_running_values() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.buffer_count += 1
        m.buffer_mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        m.buffer_last.copy_(x[0])
        return x - m.buffer_mean

    model = Of(forward, buffer_count=torch.tensor(3), buffer_mean=normal(6), buffer_last=normal(6))
    graph = check_capture(model, (X,))
    assert {e.name for e in graph.effects} == {"buffer_count", "buffer_mean", "buffer_last"}


def test_an_old_value_is_read_before_the_update() -> None:
    def forward(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before, old = x + m.buffer_a, m.buffer_a.clone()
        m.buffer_a.add_(1.0)
        return before, old, x + m.buffer_a

    graph = check_capture(Of(forward, buffer_a=normal(6)), (X,))
    # The old value itself is returned: it must not be the buffer's memory, which changes.
    assert all(o.op != "buffer" for o in graph.outputs)


def test_two_buffers_change_places() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        old = m.buffer_a.clone()
        m.buffer_a.copy_(m.buffer_b)
        m.buffer_b.copy_(old)
        return x * m.buffer_a

    graph = check_capture(Of(forward, buffer_a=normal(6), buffer_b=normal(1, 6)[0]), (X,))
    # Updates are written one after the other: none may read a buffer that an earlier one wrote.
    assert all(e.value.op != "buffer" for e in graph.effects)


def test_the_new_value_is_returned() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.buffer_a.add_(x.sum(0))
        return m.buffer_a

    check_capture(Of(forward, buffer_a=normal(6)), (X,))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.1, 0.7, 1.0])
@pytest.mark.parametrize("tracks", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(affine: bool, momentum: float, tracks: bool, training: bool) -> None:
    model = nn.Sequential(nn.BatchNorm1d(6, affine=affine, momentum=momentum, track_running_stats=tracks), nn.ReLU())
    graph = check_capture(model.double().train(training), (X,))
    names = {e.name for e in graph.effects}
    assert names == ({"0.running_mean", "0.running_var", "0.num_batches_tracked"} if tracks and training else set())
    owners = [e.owner for e in graph.effects if "running" in e.name]
    assert all(o is not None and o.op == "batch_norm_training" for o in owners)


@pytest.mark.parametrize("shape", [(0, 6), (5, 6, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_nothing_leaves_its_statistics(shape: tuple[int, ...], training: bool) -> None:
    graph = check_capture(nn.BatchNorm1d(6).double().train(training), (normal(*shape),))
    assert {e.name for e in graph.effects} == ({"num_batches_tracked"} if training else set())


def test_batch_norm_of_16_bits_has_statistics_of_32() -> None:
    """A variance that float16 does not hold is finite again where a tenth of it is added."""
    x = (normal(20, 6) * 500).half()
    model = nn.BatchNorm1d(6).half()
    assert not x.var(0).isfinite().all()
    check_capture(model, (x,), tolerance=2e-3)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_with_cumulative_average(training: bool) -> None:
    """Momentum None divides by the number of batches: a value, hence no graph in training."""
    model = nn.BatchNorm1d(6, momentum=None).double().train(training)
    if not training:
        check_capture(model, (X,))
        return
    with contextlib.suppress(NotCapturable, errors.DataDependentControlFlow):
        check_capture(model, (X,))


@pytest.mark.parametrize("given", ["weight", "bias"])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_with_a_scale_or_a_shift_alone(given: str, training: bool) -> None:
    """So convolutions standardize their weights, with a gain."""
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, None if training else m.buffer_mean, None if training else m.buffer_mean.abs() + 1,
                            training=training, **{given: m.buffer_gain.view(-1)}) * 2

    check_capture(Of(forward, buffer_gain=normal(6, 1), buffer_mean=normal(6)), (X,))


def test_batch_norm_called_twice_is_not_captured_wrongly() -> None:
    model = Of(lambda m, x: m.norm(m.norm(x)), norm=nn.BatchNorm1d(6)).double()
    try:
        check_capture(model, (X,))
    except NotCapturable as reason:
        assert "plain buffers" in str(reason)


def test_batch_norm_for_its_statistics_only() -> None:
    """The norm's result is not used: nobody runs its torch call, so its updates are written out."""
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.second(m.first(x) * 2)
        return x + 1

    model = Of(forward, first=nn.BatchNorm1d(6), second=nn.BatchNorm1d(6)).double()
    graph = check_capture(model, (X,))
    alive = set(walk(graph.roots()))
    for effect in graph.effects:
        assert effect.value in alive or effect.owner in alive, f"{effect.name} is lost"


def test_statistics_that_others_read_are_written_out() -> None:
    """Where the old or new statistics are read elsewhere, the torch call must not update them unseen."""
    def forward(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = m.norm.running_mean * 2
        y = m.norm(x)
        return y, before, m.norm.running_mean + 1, m.norm.running_var

    graph = check_capture(Of(forward, norm=nn.BatchNorm1d(6)).double(), (X,))
    norm = next(n for n in graph.nodes() if n.op == "batch_norm_training")
    assert norm["running"] is None and all(e.owner is None for e in graph.effects)


# Randomness --------------------------------------------------------------------------------------


def test_dropout_that_does_nothing_disappears() -> None:
    for model in (nn.Dropout(0.0).train(), nn.Dropout(0.5).eval(), nn.Dropout2d(0.0).train()):
        graph = check_capture(Of(lambda m, x: m.drop(x) * 2, drop=model), (normal(2, 3, 4, 4),))
        assert operators(graph) == ["mul"]


def test_live_randomness_stays_in_order() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        a = F.dropout(x, 0.5)
        b = F.dropout(x, 0.5)
        return a - b + torch.rand_like(x) + F.rrelu(x, training=True) + F.rrelu(x, training=True)

    graph = check_capture(Of(forward), (X,))
    serials = [n["serial"] for n in graph.operators() if n.op == "opaque"]
    assert sorted(serials) == list(range(5)), "no draw is merged with another"


@pytest.mark.parametrize("forward", [
    lambda m, x: (torch.rand(3), torch.tanh(x))[1],
    lambda m, x: torch.tanh(x) * torch.zeros_like(F.dropout(x, 0.5)),
    lambda m, x: torch.tanh(x) - torch.ones_like(m.norm(x)),
    lambda m, x: (m.norm(x), torch.tanh(x))[1],
])
def test_a_call_that_lasts_is_not_dropped_with_its_result(forward: Any) -> None:
    """It stays among what must be computed, once."""
    model = Of(forward, norm=nn.InstanceNorm1d(4, track_running_stats=True)).train()
    graph = capture(model, (normal(3, 4, 5).float(),))
    assert [c.value["serial"] for c in graph.checks] == [0]
    assert not any(c.is_truth for c in graph.checks)
    assert all(n.get("serial", -1) < 0 for n in graph.operators())


@pytest.mark.parametrize("probability", [0.0, 1.0, 0.5])
def test_layers_that_are_dropped_never_or_always(probability: float) -> None:
    """No uniform number passes such a bound: the draw stays, and nothing is decided by its value."""
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            if torch.rand([]) < probability:
                continue
            x = torch.tanh(x) + 1
        return x * 2

    if probability == 0.5:
        with pytest.raises(errors.DataDependentControlFlow):
            capture(Of(forward), (normal(3, 4),))
        return
    graph = capture(Of(forward), (normal(3, 4),))
    assert len(graph.checks) == 2
    assert operators(graph).count("tanh") == (0 if probability else 2)


@pytest.mark.parametrize("write", [
    lambda x: x.pow_(-0.5), lambda x: x.pow_(torch.full_like(x, 2.0)), lambda x: x.ldexp_(torch.full_like(x, 2.0)),
    lambda x: x.float_power_(2.0), lambda x: x.float_power_(torch.full_like(x, 3.0)),
    lambda x: x.floor_divide_(torch.full_like(x, 0.3)),
])
def test_writes_whose_functional_form_has_another_overload(write: Any) -> None:
    """``pow_.Scalar`` has a scalar exponent, ``pow.Scalar`` a scalar base."""
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.abs() + 0.5
        write(y)
        return y * 2

    check_capture(Of(forward), (normal(3, 4),))


@torch.jit.script
def _scripted(x: torch.Tensor, factor: int) -> torch.Tensor:
    return x / torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * factor)


def test_scripted_functions_are_traced_as_python() -> None:
    graph = check_capture(Of(lambda m, x: _scripted(torch.tanh(x), 3)), (X,))
    assert {"div", "tanh"} <= set(operators(graph))
    assert type(_scripted(X, 2)) is torch.Tensor, "outside of a trace it is what it was"


def test_recurrent_layer_with_dropout_draws() -> None:
    model = Of(lambda m, x: m.cells(x)[0] + m.cells(x)[0], cells=nn.LSTM(6, 5, 2, dropout=0.5)).double().train()
    graph = check_capture(model, (normal(3, 4, 6),))
    assert operators(graph).count("aten.lstm.input") == 2


@pytest.mark.parametrize(("forward", "draws"), [
    (lambda m, x: F.scaled_dot_product_attention(x, x, x), False),
    (lambda m, x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), True),
    (lambda m, x: F.rrelu(x, training=False), False), (lambda m, x: F.rrelu(x, training=True), True),
    (lambda m, x: m.cells(x)[0], False), (lambda m, x: m.drops(x)[0], True)])
def test_what_drops_nothing_draws_nothing(forward: Any, draws: bool) -> None:
    """Otherwise gradients of every model with attention would be left to PyTorch."""
    model = Of(forward, cells=nn.LSTM(6, 6), drops=nn.LSTM(6, 6, 2, dropout=0.5)).double().train()
    graph = check_capture(model, (normal(3, 4, 6),))
    assert any(n.get("serial", -1) >= 0 for n in graph.nodes()) == draws


# Aliases -----------------------------------------------------------------------------------------


def test_identity_of_dropout_shares_memory() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = F.dropout(y, 0.5, training=False)
        z.add_(1)
        return y + z

    check_capture(Of(forward), (X,))


def test_a_copy_does_not_share_memory() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z, w = y.clone(), y.float()
        z.add_(1)
        w.mul_(2)
        return y + z + w

    check_capture(Of(forward), (X,), 1e-6)


def test_other_names_of_changed_memory() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = y.contiguous().detach()
        y.relu_()
        return z + y

    check_capture(Of(forward), (X,))


@pytest.mark.parametrize("function", [
    lambda m, x: x.add_(1), lambda m, x: x.view(-1).mul_(2).sum(), lambda m, x: F.relu(x, inplace=True),
    lambda m, x: F.dropout(x, 0.5, training=False).relu_(), lambda m, x: x[0].zero_() + 1,
    lambda m, x: m.norm(x.t_()),
], ids=range(6))
def test_a_changed_input_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(NotCapturable):
        capture(Of(function, norm=nn.LayerNorm(4)).double(), (normal(4, 6),))


def test_a_changed_part_is_refused_or_right() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[:, 1:3] = 0
        y[0].add_(1)
        return y

    with contextlib.suppress(NotCapturable):
        check_capture(Of(forward), (X,))


@pytest.mark.parametrize("change", [
    lambda y: y.unsqueeze_(1), lambda y: y.transpose_(0, 1), lambda y: y.t_(), lambda y: y.unsqueeze_(0).squeeze_(0),
    lambda y: y.swapaxes_(0, 1).add_(1), lambda y: y.unsqueeze_(1).mul_(2)])
def test_a_tensor_that_gets_another_shape_in_place(change: Any) -> None:
    def forward(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.tanh(x)
        row = y[0]
        change(y)
        return y * 2, row + 1

    check_capture(Of(forward), (normal(3, 4),))
    with pytest.raises(NotCapturable):
        capture(Of(lambda m, x: x.unsqueeze_(0) * 2), (normal(3, 4),))
    with pytest.raises(NotCapturable):
        capture(Of(lambda m, x: m.buffer_a.unsqueeze_(0) * x, buffer_a=normal(4)), (normal(3, 4),))
