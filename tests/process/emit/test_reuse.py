"""Results in the memory of values that nothing reads any more: where a program has them, and where it must not."""

from __future__ import annotations

import re

import pytest
import torch
from emitted_tools import assert_like, emit, gradients, kernels_run, models
from graph_tools import leaf

from kernelwright.codegen.generate import TARGETS
from kernelwright.emit.program import _once_lines
from kernelwright.emit.reuse import Memory, writes_where_it_reads
from kernelwright.ir.node import make
from kernelwright.plan.expressions import Apply, Constant, Guard, Index, Load
from kernelwright.plan.kernels import LoopKernel, Reduction, Store
from kernelwright.plan.records import KernelStep, TorchStep

HEAD = """import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.linear = nn.BatchNorm2d(8), nn.Linear(8, 8)
        self.register_buffer("kept", torch.zeros(2, 8, 9, 9))
        self.eval()

"""
TAIL = """

def get_inputs():
    return [torch.randn(2, 3, 9, 9)]


def get_init_inputs():
    return []
"""
#: Forwards, and how many of their kernels write in place.
FORWARDS = {
    "a norm behind a convolution": ("return F.hardswish(self.norm(self.one(x)))", 1),
    "two, one behind the other": (
        "y = F.hardswish(self.norm(self.one(x)))\n        return torch.sigmoid(self.two(y)) * 2.0", 2),
    "a sum of two of which one is read again": (
        "y = torch.sigmoid(self.one(x))\n        return self.two(y).exp() + y, self.two(y * 3.0).tanh()", 2),
    "of a linear map": ("return torch.sigmoid(self.linear(self.one(x).mean((2, 3)))) + 1.0", 1),
    "the value is returned as well": ("y = self.one(x)\n        return y, torch.sigmoid(y) * 2.0", 0),
    "a view of it is": ("y = self.one(x)\n        return y[0], torch.sigmoid(y) * 2.0", 0),
    "a view of it is read later": (
        "y = self.one(x)\n        z = torch.sigmoid(y) * 2.0\n        return self.two(z) + 1.0, "
        "self.two(y.flip(0)).tanh()", 2),
    "it becomes a buffer": (
        "y = self.one(x)\n        self.kept.copy_(y)\n        return torch.sigmoid(y) * 2.0", 0),
    "other elements of it are read, too": ("y = self.one(x)\n        return torch.sigmoid(y) * y.roll(1, 3)", 0),
    "all of it is read at each point": ("y = self.one(x)\n        return torch.sigmoid(y - y.mean())", 0),
    "another order of memory": ("return torch.sigmoid(self.one(x).transpose(1, 3)).contiguous() + 1.0", 0),
    "the input is not the program's": ("return torch.sigmoid(x) * 2.0 + x", 0),
    "another type": ("return (self.one(x) > 0.1).logical_not()", 0),
    "what is written at indices": (
        "i = (x[0, 0, 0].abs() * 100).long() % 9\n        m = torch.sigmoid(self.one(x))[0]\n"
        "        made = torch.relu(m[1] * 2).scatter_add(0, i[:, None].expand(9, 9), m[2])\n"
        "        counts = torch.zeros(9).scatter_add_(0, i, m[3, 0]).scatter_add(0, i, m[3, 1])\n"
        "        return torch.zeros(9, 9).index_add_(0, i, m[0]), made, counts + 1", 1),
    "what is written at indices depends on no input": (
        "table = torch.zeros(9).index_add_(0, torch.arange(9).flip(0), torch.arange(9.0))\n"
        "        return torch.sigmoid(self.one(x)) * table", 1),
    "what is written at indices is read otherwise": (
        "i = (x[0, 0, 0].abs() * 100).long() % 9\n        m = torch.sigmoid(self.one(x))[0]\n"
        "        one, two = torch.relu(m[1] * 2 - 1), torch.tanh(m[2] * 2)\n        three = torch.exp(m[3]) * 2\n"
        "        return one, one.index_add(0, i, m[4]), two.t(), two.index_add(0, i, m[4]), x[0, 0].index_add(0, i, "
        "m[4]), three.index_add(0, i, three)", 1),
    "a dropout that drops nothing": (
        "y = self.one(x)\n        z = F.dropout(y, 0.5, False)\n        return z.sigmoid() * 2.0, self.two(z)", 1),
}
#: How many calls write at indices into what the program has made, where there are any.
AT_INDICES = {"what is written at indices": 4}


@pytest.mark.parametrize("name", FORWARDS)
def test_forward(name, tmp_path):
    """The same results with and without gradients, what the caller has stays as it was, and so often in place."""
    body, count = FORWARDS[name]
    text = HEAD + f"    def forward(self, x):\n        {body}\n" + TAIL
    original, emitted, source = emit(tmp_path, re.sub(r"\W+", "_", name), text)
    old, new, inputs = models(original, emitted)
    given = [x.clone() for x in inputs]
    with torch.no_grad():
        expected = old(*inputs)
        with kernels_run(emitted):
            first, second = new(*inputs), new(*inputs)
    assert_like(first, expected)
    assert_like(second, expected)
    assert all(torch.equal(x, y) for x, y in zip(inputs, given, strict=True))
    (program,) = [part for part in source.split("\ndef ") if re.search('"""The program of .*inference', part)]
    assert program.count("# in place") == count
    assert len(re.findall(r"torch\.ops\.aten\.\w+_\.", program)) == AT_INDICES.get(name, 0)
    loss = (lambda y: y.square().sum()) if isinstance(expected, torch.Tensor) else \
        (lambda y: sum(part.square().sum() for part in y if part.is_floating_point()))
    if isinstance(expected, tuple) or expected.is_floating_point():
        for mine, theirs in zip(gradients(new, inputs, loss), gradients(old, inputs, loss), strict=True):
            assert_like(mine, theirs, 1e-4)


def pointwise(*loads: Load, dtypes: tuple[str, ...] = ("float32",), **changes: object) -> LoopKernel:
    """A kernel over 4 x 6 that stores the product of its loads in order."""
    value = loads[0]
    for load in loads[1:]:
        value = Apply("mul", (value, load))
    store = Store(0, Index((6, 1)), Apply("add", (value, Constant(1.0))))
    return LoopKernel(**{"outer": (4, 6), "row": (), "reductions": (), "row_stores": (), "outer_stores": (store,),
                         "input_dtypes": dtypes, "output_dtypes": ("float32",), **changes})


OWN, OTHER = Load(0, Index((6, 1))), Load(0, Index((1, 4)))


def test_what_writes_where_it_reads():
    assert writes_where_it_reads(pointwise(OWN), 0) and writes_where_it_reads(pointwise(OWN, OWN), 0)
    both = pointwise(OWN, Load(1, Index((0, 1))), dtypes=("float32", "float32"))
    assert writes_where_it_reads(both, 0) and not writes_where_it_reads(both, 1)
    unread = pointwise(OWN, dtypes=("float32", "float32"))
    assert not writes_where_it_reads(unread, 1)
    store = pointwise(OWN).outer_stores[0]
    for other in (pointwise(OTHER), pointwise(OWN, OTHER), pointwise(Load(0, Index((6, 1), 3))),
                  pointwise(Load(0, Index((6, 1)), (Guard(Index((1, 0)), 2),))), pointwise(OWN, dtypes=("float64",)),
                  pointwise(OWN, outer_stores=(store, Store(1, Index((6, 1)), OWN)), output_dtypes=("float32",) * 2),
                  pointwise(OWN, reductions=(Reduction("sum", OWN),)),
                  pointwise(OWN, outer=(4,), row=(6,), row_stores=(store,), outer_stores=())):
        assert not writes_where_it_reads(other, 0)


X = leaf("x", 4, 6)
PRODUCT = make("matmul", leaf("a", 4, 3), leaf("b", 3, 6))
RELU, TANH = make("relu", PRODUCT), make("tanh", PRODUCT)


def step(source, result, kernel: LoopKernel | None = None, **changes: object) -> KernelStep:
    return KernelStep(f"k_{result.op}", kernel or pointwise(OWN), (source,), (result,), (result,), **changes)


def test_whose_memory_is_free():
    product, relu = TorchStep(PRODUCT), step(PRODUCT, RELU)
    assert Memory([product, relu], [RELU]).taken(1) == 0
    assert Memory([product, relu], [RELU]).taken(0) is None  # a torch call
    assert Memory([product, relu], [RELU, PRODUCT]).taken(1) is None  # returned
    assert Memory([product, relu, step(PRODUCT, TANH)], [RELU, TANH]).taken(1) is None  # read later
    assert Memory([product, relu, step(PRODUCT, TANH)], [RELU, TANH]).taken(2) == 0
    assert Memory([step(X, make("relu", X))], [make("relu", X)]).taken(0) is None  # the caller's
    view = make("reshape", PRODUCT, shape=(24,))
    assert Memory([product, TorchStep(view), relu], [RELU, view]).taken(2) is None  # a view is returned
    assert Memory([product, TorchStep(view), relu], [RELU]).taken(2) == 0
    assert Memory([product, TorchStep(view), relu, step(view, make("tanh", view))], [RELU]).taken(2) is None
    other = make("softmax", PRODUCT, axis=1)
    assert Memory([product, TorchStep(other), relu], [RELU, other]).taken(2) is None  # a call may keep what it is given
    assert Memory([product, step(PRODUCT, RELU, buffers=((0, "kept"),))], []).taken(1) is None
    assert Memory([product, step(PRODUCT, RELU, pointwise(OTHER))], [RELU]).taken(1) is None
    kernel = pointwise(OWN, Load(1, Index((0, 1))), dtypes=("float32",) * 2)
    both = KernelStep("k", kernel, (PRODUCT, view), (RELU,), (RELU,))
    assert Memory([product, TorchStep(view), both], [RELU]).taken(2) is None  # another input has the same memory


def test_what_is_made_once_and_read_by_nobody_is_not_made():
    node = make("literal", value=1.0, shape=(3,), dtype="float32")
    given = "mode", [TorchStep(node)]
    assert _once_lines(*given, (), {node: "ones"}, (), target=TARGETS["cpp"]) == ([], [])
    maker, lines = _once_lines(*given, {node}, {node: "ones"}, (), target=TARGETS["cpp"])
    assert "    return (ones,)" in maker and lines == ["(ones,) = _kernelwright_once(_kernelwright_mode_once, _device)"]
