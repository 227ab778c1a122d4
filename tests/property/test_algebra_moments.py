"""Stage 4, REWRITE: norms and variances."""

from __future__ import annotations

from math import prod

import pytest
import torch
from graph_tools import (
    anchor,
    assert_close,
    check_capture,
    check_rewrite,
    eager,
    exact,
    examples,
    filled,
    graph_of,
    has_positions,
    leaf,
    random_values,
    rewritten,
    values_of,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from test_algebra import ENERGY, axes_of, chains, convolutions, count, pointwise_step, tensors, view_step

from kernelwright.ir.evaluate import evaluate
from kernelwright.ir.node import constant, make

# Batch norm --------------------------------------------------------------------------------------


@examples(150)
@given(st.data())
def test_batch_norm_under_sums(data: st.DataObject) -> None:
    above_anchor = data.draw(st.booleans())
    y = data.draw(convolutions()) if above_anchor else leaf("x", 3, 4, 2, 3)
    assume(y.size // y.shape[1] > 1)
    if data.draw(st.booleans()):
        y = data.draw(pointwise_step(y, 7))
    channels = y.shape[1]
    rest = [leaf("gain", channels, op="parameter"), leaf("offset", channels, op="parameter")] \
        if data.draw(st.booleans()) else []
    if data.draw(st.booleans()):
        y = make("batch_norm_training", y, *rest, eps=1e-3, affine=bool(rest), momentum=0.1, running=None)
    else:
        running = leaf("mean", channels, op="buffer"), leaf("positive", channels, op="buffer")
        y = make("batch_norm_inference", y, *running, *rest, eps=1e-3, affine=bool(rest))
    if data.draw(st.booleans()):
        size = y.rank - 2
        y = make("adaptive_average_pool", y, size=(1,) * size)
        names = check_rewrite(graph_of(y), tolerance=1e-8)
        if prod(y.inputs[0].shape[2:]) > 1:
            # Above anything else the norm stays whole: its own kernel gains nothing.
            assert ("sum of a batch norm" in names) == above_anchor
    else:
        check_rewrite(graph_of(data.draw(chains(y))), tolerance=1e-7)


def test_batch_norm_over_channels_stays() -> None:
    y = make("batch_norm_training", leaf("x", 3, 4, 5), eps=1e-5, affine=False, momentum=0.1, running=None)
    for axes in ((1,), (0, 1), (0, 1, 2)):
        names = check_rewrite(graph_of(make("mean", y, axes=axes, keepdim=True)))
        assert "sum of a batch norm" not in names


class ConvolutionNormPool(torch.nn.Module):
    """A convolution, a scale, a batch norm in training, and a pool to one."""

    def __init__(self, transposed: bool, affine: bool, momentum: float) -> None:
        super().__init__()
        kind = torch.nn.ConvTranspose2d if transposed else torch.nn.Conv2d
        self.convolution = kind(3, 4, 3, stride=2)
        self.norm = torch.nn.BatchNorm2d(4, momentum=momentum, affine=affine)
        self.pool = torch.nn.AdaptiveAvgPool2d(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.norm(self.convolution(x) * 2.0))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("affine", "momentum"), [(True, 0.1), (False, 0.3)])
def test_buffer_updates_are_rewritten_with_the_norm(transposed: bool, affine: bool, momentum: float) -> None:
    model = ConvolutionNormPool(transposed, affine, momentum).double().train()
    inputs = (torch.randn(3, 3, 7, 6, dtype=torch.float64),)
    graph = check_capture(model, inputs)
    result, applications = rewritten(graph)
    assert "sum of a batch norm" in [a.rule.name for a in applications]
    assert all(e.owner is None for e in result.effects), "the norm is gone: nobody else updates its statistics"
    expected, buffers = eager(model, inputs)
    values = values_of(model, graph, inputs)
    found = exact((*result.outputs, *(e.value for e in result.effects)), values)
    assert_close(filled(result.structure, found), expected, 1e-8)
    for effect, value in zip(result.effects, found[len(result.outputs):], strict=True):
        assert_close(value, buffers[effect.name], 1e-9, effect.name)
    assert {e.name for e in result.effects} == set(buffers)


def test_norm_that_stays_updates_its_own_statistics() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).double().train()
    graph = check_capture(model, (torch.randn(2, 3, 6, 6, dtype=torch.float64),))
    result, _ = rewritten(graph)
    owners = {e.name: e.owner for e in result.effects}
    assert owners["1.running_mean"] is owners["1.running_var"] is result.outputs[0]


# Variances ---------------------------------------------------------------------------------------


@examples(200)
@given(st.data())
def test_variance_of_affine_maps(data: st.DataObject) -> None:
    y = data.draw(tensors())
    for number in range(data.draw(st.integers(0, 3))):
        y = data.draw(pointwise_step(y, number)) if data.draw(st.booleans()) else data.draw(view_step(y))
    axes = data.draw(axes_of(y.rank))
    node = make("var", y, axes=axes, keepdim=data.draw(st.booleans()), correction=data.draw(st.integers(0, 2)))
    check_rewrite(graph_of(node))


@pytest.mark.parametrize("op", ["add", "sub"])
def test_variances_keep_the_nan_of_an_input(op: str) -> None:
    """What is added to all elements alike leaves their variance as it is, unless it is not finite."""
    x, shift, offset = leaf("x", 2, 3, 4), leaf("y", 1, 3, 1), leaf("offset", 3, 1, op="parameter")
    of_input, of_parameter = (graph_of(make("var", make(op, x, other), axes=(0, 2), keepdim=True, correction=0))
                              for other in (shift, offset))
    assert not check_rewrite(of_input) and check_rewrite(of_parameter) == ["variance of an affine map"]
    values = random_values(of_input.outputs)
    values["y"][0, 1] = torch.nan
    (result,) = evaluate(rewritten(of_input)[0].outputs, values)
    assert result.isnan().flatten().tolist() == [False, True, False]


@examples(250)
@given(st.data())
def test_variance_of_an_unclipped_convolution(data: st.DataObject) -> None:
    y = data.draw(convolutions(unclipped=True).filter(has_positions))
    scaled = make("mul", y, constant(2.0)) if data.draw(st.booleans()) else y
    axes = (0, *range(2, y.rank))
    node = make("var", scaled, axes=axes, keepdim=data.draw(st.booleans()), correction=data.draw(st.integers(0, 1)))
    graph = graph_of(node)
    names = check_rewrite(graph)
    if prod(y.shape[a] for a in axes) > 1:
        assert count(names, ENERGY) == 1
        assert any(n.op == "channel_energy" for n in rewritten(graph)[0].nodes())


@examples(200)
@given(st.data())
def test_variance_of_a_clipped_convolution_stays(data: st.DataObject) -> None:
    y = data.draw(convolutions().filter(has_positions))
    kernel = y.inputs[1].shape[2:]
    full = tuple(d * (k - 1) for d, k in zip(y["dilation"], kernel, strict=True))
    unclipped = y["padding"] == (0,) * len(kernel) if y["transposed"] else \
        y["padding"] == full and y["stride"] == (1,) * len(kernel)
    axes = (0, *range(2, y.rank))
    names = check_rewrite(graph_of(make("var", y, axes=axes, keepdim=True, correction=0)))
    assert count(names, ENERGY) == int(unclipped)


@pytest.mark.parametrize("axes", [(2, 3), (0,), (0, 1, 2, 3), (0, 2)])
def test_energy_needs_batch_and_space(axes: tuple[int, ...]) -> None:
    y = anchor("convolution", leaf("x", 2, 3, 4, 4), leaf("w", 3, 2, 3, 3), stride=(2, 2), padding=(0, 0),
               dilation=(1, 1), groups=1, transposed=True, output_padding=(0, 0))
    names = check_rewrite(graph_of(make("var", y, axes=axes, keepdim=True, correction=0)))
    assert ENERGY not in names


def test_energy_is_for_float32() -> None:
    y = anchor("convolution", leaf("x", 2, 3, 4, dtype="float64"), leaf("w", 3, 2, 3, dtype="float64"), stride=(1,),
               padding=(0,), dilation=(1,), groups=1, transposed=True, output_padding=(0,))
    assert ENERGY not in check_rewrite(graph_of(make("var", y, axes=(0, 2), keepdim=True, correction=0)))


@pytest.mark.parametrize("tail", ["mean", "batch norm", "variance"])
def test_float32_stays_within_float32(tail: str) -> None:
    """At realistic sizes the rewritten graph in float32 is as near to float64 as the original, or nearly so."""
    x, w = leaf("x", 4, 16, 12, 12), leaf("w", 16, 8, 3, 3, op="parameter")
    y = anchor("convolution", x, w, leaf("b", 8, op="parameter"), stride=(2, 2), padding=(0, 0), dilation=(1, 1),
               groups=1, transposed=True, output_padding=(0, 0))
    if tail == "mean":
        y = make("mean", y, axes=(2, 3), keepdim=False)
    elif tail == "variance":
        y = make("var", y, axes=(0, 2, 3), keepdim=True, correction=0)
    else:
        y = make("batch_norm_training", y, eps=1e-5, affine=False, momentum=0.1, running=None)
        y = make("adaptive_average_pool", y, size=(1, 1))
    graph = graph_of(y)
    values = random_values(graph.outputs)
    truth, = exact(graph.outputs, values)
    result, _ = rewritten(graph)
    actual, = evaluate(result.outputs, values, torch.float32)
    assert actual.dtype == torch.float32
    assert_close(actual, truth, 2e-6)
