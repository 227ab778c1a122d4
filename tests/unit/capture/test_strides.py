"""Strides of results in a trace: tensors without data have those that eager's have, whatever order operands lie in."""

import copy
import functools
import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from kernelwright.capture.export import capture
from kernelwright.capture.strides import strides_of_eager
from kernelwright.capture.tracing import traceable
from kernelwright.codegen.reference.plan import values_of
from kernelwright.fuzz.judge import evaluated

pytestmark = pytest.mark.filterwarnings("ignore")

#: Shapes with axes of one element, and of four axes for what has a channels_last form.
SHAPES = ((2, 3, 4), (1, 4, 1, 3), (2, 4, 4, 6))


@functools.cache
def layouts(shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Tensors of a shape: contiguous, permuted, with gaps, expanded."""
    order = range(len(shape))
    some = [tuple(reversed(order)), (0, *order[2:], 1)]
    return (*(torch.rand([shape[a] for a in axes]).permute([axes.index(a) for a in order])
              for axes in (tuple(order), *some)),
            torch.rand(*shape[:-1], 2 * shape[-1]).transpose(0, 1).contiguous().transpose(0, 1)[..., ::2],
            torch.rand(1, *shape[1:]).expand(shape))


def pairs(shape: tuple[int, ...]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Operands in orders of their own, of one shape or spread over each other."""
    lower = (shape[:-1] + (1,), (1, *shape[1:]), shape[1:])
    return [*itertools.product(layouts(shape), [*layouts(shape), *(layouts(small)[1] for small in lower)])]


@functools.cache
def without_data() -> FakeTensorMode:
    """One for all calls."""
    return FakeTensorMode(allow_non_fake_inputs=True)


@functools.cache
def lying_as(tensor: torch.Tensor) -> torch.Tensor:
    """One without data that lies as ``tensor`` does. Made once, as that takes longer than most calls."""
    return without_data().from_tensor(tensor)


def told(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1) \
        if tensor.numel() > 1 else ()


def disagreeing(function: Any, args: Any, kwargs: Any = None, *, mended: bool = True) -> str:
    """Where tensors without data give other strides than eager; "" where they give the same, or one of both raises."""
    kwargs = kwargs or {}
    mode = without_data()
    try:
        real = function(*args, **kwargs)
        given = pytree.tree_map(lambda t: lying_as(t) if isinstance(t, torch.Tensor) else t, (args, kwargs))
        with strides_of_eager() if mended else nullcontext(), mode:
            fake = function(*given[0], **given[1])
    except Exception:
        return ""
    for own, traced in zip(pytree.tree_leaves(real), pytree.tree_leaves(fake), strict=False):
        if isinstance(own, torch.Tensor) and isinstance(traced, torch.Tensor) and own.layout is torch.strided \
                and own.shape == traced.shape and told(own) != told(traced):
            layouts = [t.stride() for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
            return f"{tuple(own.shape)}: {traced.stride()} instead of {own.stride()} for {layouts}"
    return ""


#: Calls of one tensor, by names; most that a model has and that give a tensor of its own.
CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "batch norm": lambda x: F.batch_norm(x, x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])),
    "batch norm in training": lambda x: F.batch_norm(x, None, None, training=True),
    "batch norm that notes": lambda x: F.batch_norm(x, x.new_zeros(x.shape[1]), x.new_ones(x.shape[1]), training=True),
    "instance norm": F.instance_norm, "group norm": lambda x: F.group_norm(x, 1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]), "rms norm": lambda x: F.rms_norm(x, x.shape[1:]),
    "normalize": F.normalize, "local response norm": lambda x: F.local_response_norm(x, 2),
    "softmax": lambda x: x.softmax(1), "log softmax": lambda x: x.log_softmax(-1), "log sigmoid": F.logsigmoid,
    "gelu": F.gelu, "softplus": F.softplus, "glu": lambda x: F.glu(torch.cat((x, x), 1), 1),
    "prelu": lambda x: F.prelu(x, x.new_ones(x.shape[1])), "rrelu": lambda x: F.rrelu(x, training=True),
    "dropout": F.dropout, "alpha dropout": lambda x: F.alpha_dropout(x, 0.5, True),
    "randn_like": torch.randn_like, "bernoulli": torch.bernoulli, "poisson": torch.poisson,
    "normal of two": lambda x: torch.normal(x, x), "normal of a mean": lambda x: torch.normal(x, 1.0),
    "normal of a deviation": lambda x: torch.normal(0.0, x), "gumbel": F.gumbel_softmax,
    "cumsum": lambda x: x.cumsum(1), "cummax": lambda x: x.cummax(1), "logcumsumexp": lambda x: x.logcumsumexp(1),
    "sort": lambda x: x.sort(1), "topk": lambda x: x.topk(1, 1), "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 1), "repeat": lambda x: x.repeat(*x.shape), "cat": lambda x: torch.cat((x, x), 1),
    "stack": lambda x: torch.stack((x, x), 1), "diff": lambda x: x.diff(dim=1), "tril": torch.tril,
    "index": lambda x: x[:, [0, 1]], "index of two": lambda x: x[[0], [1]], "index_select": lambda x: x.index_select(
        1, torch.tensor([0, 1])), "gather": lambda x: x.gather(1, (x * 0).long()),
    "pad": lambda x: F.pad(x, (1, 1)), "reflect": lambda x: F.pad(x, (1, 1), "reflect"),
    "replicate": lambda x: F.pad(x, (1, 1), "replicate"), "circular": lambda x: F.pad(x, (1, 1), "circular"),
    "sum": lambda x: x.sum(1, keepdim=True), "mean": lambda x: x.mean(0), "max": lambda x: x.max(1),
    "var": lambda x: x.var(1), "norm": lambda x: x.norm(dim=1), "median": lambda x: x.median(1),
    "max pool": lambda x: (F.max_pool2d if x.ndim == 4 else F.max_pool1d)(x, 2, 1, return_indices=True),
    "average pool": lambda x: (F.avg_pool2d if x.ndim == 4 else F.avg_pool1d)(x, 2, 1),
    "adaptive pool": lambda x: (F.adaptive_avg_pool2d if x.ndim == 4 else F.adaptive_avg_pool1d)(x, 2),
    "unpool": lambda x: F.max_unpool2d(x, (x * 0).long(), 2), "reflect of three axes": lambda x: F.pad(
        x, (1, 1) * 3, "reflect"), "replicate of three axes": lambda x: F.pad(x, (1, 1) * 3, "replicate"),
    "nearest": lambda x: F.interpolate(x, scale_factor=2), "channel shuffle": lambda x: F.channel_shuffle(x, 2),
    "pixel unshuffle": lambda x: F.pixel_unshuffle(x, 2), "nll": lambda x: F.nll_loss(
        x, (x[:, 0] * 0).long(), reduction="none"), "cross entropy": lambda x: F.cross_entropy(x, x, reduction="none"),
    "convolution": lambda x: (F.conv2d if x.ndim == 4 else F.conv1d)(x, x.new_ones(3, x.shape[1], *(x.ndim - 2) * [1])),
    "linear": lambda x: F.linear(x, x.new_ones(3, x.shape[-1])), "matmul": lambda x: x @ x.mT,
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x), "power of a number": lambda x: torch.pow(0.5, x),
    "where": lambda x: torch.where(x > 0.5, x, 0.0), "masked_fill": lambda x: x.masked_fill(x > 0.5, 1.0),
}


def pointwise(operands: int) -> list[Any]:
    """All pointwise operators of so many tensors and nothing else that has no default."""
    FakeTensorMode()  # its first use imports tables that listing operators would spoil
    names = {schema.name for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")}
    packets = [getattr(torch.ops.aten, name.removeprefix("aten::")) for name in sorted(names)
               if not name.endswith("_backward")]
    overloads = [getattr(p, name) for p in packets for name in p.overloads()]
    return [o for o in overloads if torch.Tag.pointwise in o.tags and not o._schema.is_mutable and
            [str(a.type) for a in o._schema.arguments if not a.has_default_value()] == operands * ["Tensor"]]


def test_results_of_one_tensor():
    """Under every layout; PyTorch's rules alone have others for some."""
    def found(calls: dict[str, Any], mended: bool) -> dict[str, str]:
        return {name: words for name, call in calls.items() for shape in SHAPES for x in layouts(shape)
                if (words := disagreeing(call, (x,), mended=mended))}

    assert found(CALLS | {str(o): o for o in pointwise(1)}, mended=True) == {}
    others = {name: CALLS[name] for name in ("batch norm", "log sigmoid", "poisson", "power of a number")}
    assert found(others, mended=False).keys() == others.keys()


def test_results_of_two_tensors():
    found: dict[str, str] = {}
    wrong = set()
    for operator in pointwise(2):
        for given in itertools.chain.from_iterable(map(pairs, SHAPES)):
            if words := disagreeing(operator, given):
                found[str(operator)] = words
    for operator in (torch.copysign, torch.floor_divide, torch.xlogy):
        wrong |= {operator for given in pairs(SHAPES[1]) if disagreeing(operator, given, mended=False)}
    assert found == {}
    assert len(wrong) == 3


@pytest.mark.parametrize("rounding_mode", ["floor", "trunc"])
def test_quotients_that_are_rounded(rounding_mode):
    assert not [words for given in itertools.chain.from_iterable(map(pairs, SHAPES)) if (words := disagreeing(
        lambda x, y: torch.div(x, y, rounding_mode=rounding_mode), given))]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind):
    for batch_first, bidirectional in itertools.product((False, True), repeat=2):
        layer = kind(3, 4, batch_first=batch_first, bidirectional=bidirectional)
        real = layer(torch.randn(2, 5, 3))
        with traceable(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = layer(mode.from_tensor(torch.randn(2, 5, 3)))
        assert [t.stride() for t in pytree.tree_leaves(fake)] == [t.stride() for t in pytree.tree_leaves(real)]


class Drawn(nn.Module):
    """Noise in the order in which a copied sign, or a recurrent layer's result, lies in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand_like(torch.copysign(x, y)), torch.rand_like(self.layer(z)[0])


def test_numbers_are_drawn_in_eagers_order():
    model = Drawn()
    inputs = [torch.randn(1, 2, 2, 1), torch.randn(1, 2, 1, 2).to(memory_format=torch.channels_last),
              torch.randn(2, 5, 3)]
    graph = capture(model, inputs)
    torch.manual_seed(0)
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(*(x.double() for x in inputs))
    found = evaluated(graph, values_of(model, graph, inputs))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
