"""Containers that go in and come out, and what is no tensor."""

from __future__ import annotations

from reported.case import Case, held

CASES = {
    "a named tuple": Case(
        158844, "x", "return Pair(x.tanh() * 2, x.sum(-1))", "torch.randn(3, 4)",
        before="from typing import NamedTuple\n\nclass Pair(NamedTuple):\n    first: torch.Tensor\n"
               "    second: torch.Tensor"),
    "a data class": Case(
        109152, "x", "return Result(x.relu() + 1, 'name', None)", "torch.randn(3, 4)",
        before="from dataclasses import dataclass\n\n@dataclass\nclass Result:\n    y: torch.Tensor\n    name: str\n"
               "    other: object"),
    "values and places": Case(28380, "x", "return torch.max(x.tanh(), 1)", "torch.randn(3, 4)"),
    "several of PyTorch's own tuples": Case(
        114226, "x", "y = x.exp()\nreturn y.sort(1), y.topk(2), y.median(1), y.min(0)", "torch.randn(3, 4)",
        kernels=False),
    "an ordered dictionary": Case(
        106323, "x", "return OrderedDict(b=x.tanh() + 1, a=x * 2, c=None)", "torch.randn(3, 4)",
        before="from collections import OrderedDict"),
    "a class of outputs": Case(
        106323, "x", "return Output(logits=x.tanh() + 1, hidden=x * 2)", "torch.randn(3, 4)",
        before="from collections import OrderedDict\n\nclass Output(OrderedDict):\n    def __getattr__(self, name):\n"
               "        try:\n            return self[name]\n        except KeyError:\n"
               "            raise AttributeError(name) from None"),
    "numbers and words": Case(
        106904, "x", "return x.exp() + 1, 3, 2.5, True, 'name', None, x.shape[0]", "torch.randn(3, 4)"),
    "nested and empty": Case(
        45792, "x", "return {'a': [x * 2 + 1, (x.tanh(), ())], 'b': {}, 'c': [[]]}", "torch.randn(3, 4)"),
    "a named tuple given": Case(
        160547, "p", "return (p.a + p.b * 2).tanh()", "Pair(torch.ones(3), torch.rand(3))",
        before="from typing import NamedTuple\n\nclass Pair(NamedTuple):\n    a: torch.Tensor\n    b: torch.Tensor"),
    "a nested argument": Case(
        116556, "xs, k", "return (xs[0] * k + xs[1][0]).relu(), xs[1][1]",
        "(torch.randn(3), [torch.randn(3), 2]), 1.5"),
    "nothing given": Case(
        45792, "x, m=None, scale=2.0", "return x.tanh() * scale if m is None else x * m", "torch.randn(3, 4), None"),
    "a shape": Case(106904, "x", "return x.sum(0) * 2 + 1, x.shape, x.dim(), x.dtype", "torch.randn(3, 4)"),
    "sizes as a tensor": Case(
        184002, "x", "return torch.tensor(x.shape) * 2, x.new_tensor([1.0, 2.0]) + 1, x.exp()", "torch.randn(3, 4)"),
    "an item": Case(
        166888, "x, k", "return x * k.item() + 1, x.tanh()", "torch.randn(3, 4), torch.tensor(2.5)", kernels=False),
    "a generator made a list": Case(
        116544, "x", "return list(part * 2 + 1 for part in x.split(2)), tuple(x.tanh().unbind(0))",
        "torch.randn(4, 3)"),
    "a single one in a list": Case(45792, "x", "return [x.sigmoid() * 2]", "torch.randn(3, 4)"),
}

test_reported = held("outputs", CASES)
