"""DIFFERENTIATE, whole models: what people train is made of operators that have adjoints, and its gradients are
autograd's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graph_tools import run_plan
from torch import nn

from kernelwright.adjoint.backward import Backward, make_backward
from kernelwright.adjoint.table import NoAdjoint
from kernelwright.algebra.engine import rewrite
from kernelwright.capture.export import capture
from kernelwright.ir.evaluate import evaluate
from kernelwright.ir.node import walk
from kernelwright.roofline.devices import GENERIC_CPU

ROW, IMAGE = (4, 16), (2, 8, 6, 6)


class Of(nn.Module):
    """Layers by name, and a function of them and the inputs."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleDict(layers), function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self.layers, *inputs)


def _language_model() -> nn.Module:
    """Its output layer has the table of its embedding."""
    def forward(m: Any, tokens: torch.Tensor) -> torch.Tensor:
        count = tokens.shape[1] - 1
        x = m["block"](m["table"](tokens[:, :-1]) + m["places"](torch.arange(count)), is_causal=True,
                       src_mask=nn.Transformer.generate_square_subsequent_mask(count).double())
        return F.cross_entropy(m["last"](x).flatten(0, 1), tokens[:, 1:].flatten(), label_smoothing=0.1)

    model = Of(forward, table=nn.Embedding(11, 16, padding_idx=0), places=nn.Embedding(8, 16),
               block=nn.TransformerEncoderLayer(16, 4, 32, 0.0, "gelu", batch_first=True, norm_first=True),
               last=nn.Linear(16, 11, bias=False))
    model.layers["last"].weight = model.layers["table"].weight
    return model


def _inverted(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = F.relu6(m["norm"](m["wide"](x)))
    y = F.relu6(m["deep"](y), inplace=True)
    gate = F.hardsigmoid(m["gate"](F.adaptive_avg_pool2d(y, 1)))
    return x + m["narrow"](F.hardswish(y) * gate)


def _attended(m: Any, x: torch.Tensor) -> torch.Tensor:
    found = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True).values], 1)
    return F.interpolate(x * m["conv"](found).sigmoid(), scale_factor=2, mode="bilinear")


def _quantised(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    table = m["table"].weight
    found = table[torch.cdist(x.detach(), table.detach()).argmin(1)]
    return x + (found - x).detach(), F.mse_loss(found, x.detach()) + 0.25 * F.mse_loss(found.detach(), x)


def _without_gradients(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values, and a scope in the scope, whose gradients are recorded."""
    y = m["norm"](torch.tanh(m["first"](x)))
    with torch.no_grad():
        centre, weights = torch.sigmoid(y).mean(0), y.softmax(1)
        with torch.enable_grad():
            grown = torch.exp(y)
        first, second = torch.chunk(weights * grown, 2)
    return (y - centre) * weights + grown, torch.cat([first, second]).sum(0) * y


def _experts(m: Any, x: torch.Tensor) -> torch.Tensor:
    values, places = m["gate"](x).topk(2, -1)
    weights = torch.zeros_like(m["gate"](x)).scatter(-1, places, values.softmax(-1))
    return weights[:, :1] * m["first"](x) + weights[:, 1:2] * m["second"](x).tanh()


def _windows(m: Any, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    parts = x.roll((-1, -1), (2, 3)).reshape(2, 8, 2, 3, 2, 3).permute(0, 2, 4, 3, 5, 1).reshape(8, 9, 8)
    q, k, v = m["qkv"](parts).reshape(8, 9, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    bias = m["bias"].weight[places.flatten()].reshape(9, 9, 2).permute(2, 0, 1)
    return ((q @ k.transpose(-2, -1) + bias).softmax(-1) @ v).transpose(1, 2).reshape(8, 9, 8)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], list[torch.Tensor]]]] = {
    "scopes without gradients": (
        lambda: Of(_without_gradients, first=nn.Linear(16, 16), norm=nn.BatchNorm1d(16)), lambda: [torch.randn(ROW)]),
    "language model": (_language_model, lambda: [torch.randint(0, 11, (2, 7))]),
    "encoder with padding": (
        lambda: Of(lambda m, x, mask: m["layer"](x, src_key_padding_mask=mask),
                   layer=nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)),
        lambda: [torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])]),
    "decoder": (lambda: Of(lambda m, x, y: m["layer"](x, y),
                           layer=nn.TransformerDecoderLayer(16, 4, 32, 0.0, batch_first=True)),
                lambda: [torch.randn(2, 5, 16), torch.randn(2, 3, 16)]),
    "inverted residual": (
        lambda: Of(_inverted, wide=nn.Conv2d(8, 16, 1, bias=False), norm=nn.BatchNorm2d(16), gate=nn.Conv2d(16, 16, 1),
                   deep=nn.Conv2d(16, 16, 3, 1, 1, groups=16), narrow=nn.Conv2d(16, 8, 1)),
        lambda: [torch.randn(IMAGE)]),
    "spatial attention": (lambda: Of(_attended, conv=nn.Conv2d(2, 1, 3, padding=1, padding_mode="reflect")),
                          lambda: [torch.randn(IMAGE)]),
    "shifted windows": (lambda: Of(_windows, qkv=nn.Linear(8, 24), bias=nn.Embedding(25, 2)),
                        lambda: [torch.randn(IMAGE), torch.randint(0, 25, (9, 9))]),
    "vector quantisation": (lambda: Of(_quantised, table=nn.Embedding(5, 16)), lambda: [torch.randn(ROW)]),
    "mixture of experts": (
        lambda: Of(_experts, gate=nn.Linear(16, 4), first=nn.Linear(16, 8), second=nn.Linear(16, 8)),
        lambda: [torch.randn(ROW)]),
    "autoencoder": (
        lambda: Of(lambda m, x, noise: F.binary_cross_entropy(
            m["back"](m["mean"](x) + noise * (0.5 * m["spread"](x)).exp()).sigmoid(), x.sigmoid()) - 0.5 * (
                1 + m["spread"](x) - m["mean"](x).pow(2) - m["spread"](x).exp()).sum(),
            mean=nn.Linear(16, 3), spread=nn.Linear(16, 3), back=nn.Linear(3, 16)),
        lambda: [torch.randn(ROW), torch.randn(4, 3)]),
    "contrasts": (
        lambda: Of(lambda m, x, y, z: F.triplet_margin_loss(m["last"](x), m["last"](y), m["last"](z))
                   + F.cosine_similarity(m["last"](x), m["last"](y)).sum()
                   + F.kl_div(m["last"](x).log_softmax(1), m["last"](z).softmax(1), reduction="batchmean"),
            last=nn.Linear(16, 8)),
        lambda: [torch.randn(ROW), torch.randn(ROW), torch.randn(ROW)]),
}


def _gradients(model: nn.Module, inputs: list[torch.Tensor], saving: bool, directions: list[torch.Tensor] | None = None
               ) -> tuple[Backward, list[torch.Tensor], Sequence[torch.Tensor]]:
    """The backward of a model, its gradients of inputs and parameters, and autograd's; in random directions, where none
    are given. saving: whether its forward hands over what it has computed."""
    captured = capture(model, inputs, recording=True)
    forward = rewrite(captured, GENERIC_CPU).graph if saving else None
    backward = make_backward(captured, GENERIC_CPU, forward=forward)[-1]
    given = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    results = model(*given)
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    found = backward.gradients
    directions = directions or [torch.randn(results[number].shape, dtype=torch.float64) for number in found.of]
    parameters = dict(model.named_parameters())
    expected = torch.autograd.grad([results[number] for number in found.of], [
        given[who] if isinstance(who, int) else parameters[who] for who in found.gives], directions)
    assert set(found.gives) == {n for n, x in enumerate(inputs) if x.is_floating_point()} | set(parameters)
    leaves = [leaf for leaf in found.graph.inputs if leaf is not None]
    state = {**parameters, **dict(model.named_buffers())}
    values = {leaf["name"]: state[leaf["name"]].detach() for leaf in walk((*found.graph.outputs, *found.saved))
              if leaf.op in ("parameter", "buffer")}
    values |= {leaf["name"]: value for leaf, value in zip(captured.inputs, inputs, strict=True) if leaf is not None}
    values |= {leaf["name"]: value for leaf, value in zip(
        leaves[-len(directions) - len(found.saved):],
        (*directions, *(evaluate(found.saved, values) if found.saved else ())), strict=True)}
    if saving:  # behind what is differentiated in another form, too
        again = {n for n in walk(found.graph.outputs) if n.op in ("linear", "convolution")}
        assert again.isdisjoint(captured.nodes())
    return backward, evaluate(found.graph.outputs, values), expected


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("saving", [False, True])
def test_what_people_train_has_gradients_by_kernels(name, saving):
    """Whether a forward hands over what it has computed, or the backward computes all of it again."""
    torch.manual_seed(0)
    make, make_inputs = MODELS[name]
    inputs = [x.double() if x.is_floating_point() else x for x in make_inputs()]
    backward, found, expected = _gradients(make().double().train(), inputs, saving)
    assert bool(backward.gradients.saved) == saving
    for own, right in zip(found, expected, strict=True):
        # A hardsigmoid's sixth is one of float32 in PyTorch.
        torch.testing.assert_close(own, right, rtol=1e-6, atol=1e-8 if name == "inverted residual" else 1e-12)


#: Of zeros and other values; what is called twice, and what is called once and read twice.
TWICE: dict[str, Callable[..., Any]] = {
    "two calls": lambda m, x: (x.sqrt() * 3, torch.sqrt(x)),
    "two calls, one of them in place": lambda m, x: (x.sqrt() * 3, (x * 1.0).sqrt_(), (x * 1.0).sqrt_() + 1),
    "one call": lambda m, x: (lambda y: (y * 3, y))(x.sqrt()),
    "by other names": lambda m, x: (x.sqrt() * 3, x ** 0.5, x.pow(0.25)),
    "of what was called twice": lambda m, x: (x.sqrt().log() * 3, x.sqrt().log()),
    "quotients": lambda m, x: ((1 / x) * 3, 1 / x, (x + 1) / x.abs(), (x + 1) / x.abs() * 2, x.reciprocal()),
    "a smooth power": lambda m, x: (x ** 2, x ** 2 * 3),
}


@pytest.mark.parametrize("name", TWICE)
@pytest.mark.parametrize("saving", [False, True])
def test_gradients_are_added_where_eager_adds_them(name, saving):
    """Infinite derivatives times the gradients of each call, or times their sum: NaN stands where eager's does."""
    x = torch.tensor([4.0, 0.0, -0.0, -2.0, 1.0], dtype=torch.float64)
    count = len(TWICE[name](None, x))
    for signs in ((1, 1, 1, 1, 1), (1, -1, 0, 2, 1), (0, 1, 1, -1, 1), (0, 0, 0, 0, 0)):
        directions = [torch.full((5,), float(sign), dtype=torch.float64) for sign in signs[:count]]
        _, (own,), (right,) = _gradients(Of(TWICE[name]), [x], saving, directions)
        torch.testing.assert_close(own, right, rtol=1e-9, atol=0.0, equal_nan=True)


def test_what_is_written_where_no_gradients_are_recorded_is_the_originals():
    def scaled(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x) * 2
        with torch.no_grad():
            y.mul_(3)
        return y * x

    with pytest.raises(NoAdjoint, match="set_grad_enabled"):
        make_backward(capture(Of(scaled), [torch.randn(ROW)], recording=True), GENERIC_CPU)


def test_what_is_called_once_is_differentiated_as_it_was():
    for name in ("one call", "a smooth power"):
        assert capture(Of(TWICE[name]), [torch.rand(3)], recording=True).differentiated is None


@pytest.mark.parametrize("rank", [2, 3])
def test_gradients_of_convolutions_of_each_channel_are_found_channels_last(rank):
    """On a CPU: what the call is given lies so in memory, and its results are what they were."""
    torch.manual_seed(0)
    convolution = (nn.Conv2d, nn.Conv3d)[rank - 2]
    model = Of(lambda m, x: F.gelu(m["deep"](x * 2)) * x, deep=convolution(6, 6, 3, padding=1, groups=6))
    inputs = [torch.randn(2, 6, *(5, 4, 3)[:rank])]
    captured = capture(model, inputs, recording=True)
    backward = make_backward(captured, GENERIC_CPU)[-1]
    assert len(backward.plan.channels_last) == 1
    call, = (n for n in walk(backward.plan.results) if n.op == "opaque")
    assert [operand.op for operand in call.inputs[:2]] == ["reordered"] * 2
    elsewhere = make_backward(captured, replace(GENERIC_CPU, kind="cuda"))[-1]
    assert not elsewhere.plan.channels_last
    exact = copy.deepcopy(model).double()
    x = inputs[0].double().requires_grad_()
    result = exact(x)
    direction = torch.randn_like(result)
    found = backward.gradients
    values = {name: tensor.detach() for name, tensor in exact.named_parameters()}
    values |= dict(zip((leaf["name"] for leaf in found.graph.inputs if leaf is not None), (x.detach(), direction),
                       strict=True))
    parameters = dict(exact.named_parameters())
    expected = torch.autograd.grad(result, [x if isinstance(who, int) else parameters[who] for who in found.gives],
                                   direction)
    for own, right in zip(run_plan(backward.plan, values)[0], expected, strict=True):
        torch.testing.assert_close(own, right)
        assert own.is_contiguous()
