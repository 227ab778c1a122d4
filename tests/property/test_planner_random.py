"""Stage 5, PLAN: plans of random graphs compute what the graphs mean."""

from __future__ import annotations

import random
from math import prod

import pytest
from graph_tools import MORE, all_anchors, anchor, graph_of, leaf
from test_planner import check_graph

from kernelwright.algebra.engine import rewrite_with
from kernelwright.ir.node import Node, constant, make


class Maker:
    """Draws small graphs over pointwise operators, reductions, views, norms, pools and products."""

    unary = ("relu", "tanh", "sigmoid", "neg", "abs", "square", "gelu_erf", "silu", "sin", "exp")
    binary = ("add", "sub", "mul", "maximum", "minimum")

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        shape = tuple(self.random.choice((1, 2, 3, 4, 4, 4)) for _ in range(self.random.randint(1, 4)))
        self.nodes: list[Node] = [leaf("x", *shape)]
        self.leaves = 1

    def new_leaf(self, *shape: int) -> Node:
        self.leaves += 1
        return leaf(f"leaf{self.leaves}", *shape, op=self.random.choice(("input", "parameter", "buffer")))

    def pick(self) -> Node:
        return self.random.choice(self.nodes[-6:])

    def step(self) -> None:
        node = getattr(self, self.random.choice((
            "one", "one", "two", "two", "two", "reduced", "reduced", "centred", "moved", "reshaped", "sliced",
            "expanded", "softmax", "layer_norm", "rms_norm", "group_norm", "instance_norm", "pooled", "product", "cat",
            "choice", "opaque",
            "batch_norm", "variance")))(self.pick())
        if node is not None and node.size <= 4096 and node.rank <= 5:
            self.nodes.append(node)

    def one(self, x: Node) -> Node:
        # exp and square of what is large already would leave the range that a comparison can resolve.
        return make(self.random.choice(self.unary), make("tanh", x) if self.random.random() < 0.5 else make("sin", x))

    def two(self, x: Node) -> Node:
        others = []
        for y in self.nodes:
            pairs = zip(reversed(x.shape), reversed(y.shape), strict=False)
            if all(a == b or 1 in (a, b) for a, b in pairs):
                others.append(y)
        shape = tuple(s if self.random.random() < 0.6 else 1 for s in x.shape)
        others += [constant(0.5), constant(2), self.new_leaf(*shape)]
        pair = [x, self.random.choice(others)]
        self.random.shuffle(pair)
        scalar = any(n.op == "constant" for n in pair)
        return make(self.random.choice(self.binary[:3] if scalar else self.binary), *pair)

    def axes(self, x: Node) -> tuple[int, ...]:
        return tuple(sorted(self.random.sample(range(x.rank), self.random.randint(1, x.rank))))

    def reduced(self, x: Node) -> Node | None:
        if not x.rank:
            return None
        return make(self.random.choice(("sum", "mean", "amax", "amin", "prod", "logsumexp")), x, axes=self.axes(x),
                    keepdim=self.random.random() < 0.5)

    def centred(self, x: Node) -> Node | None:
        if not x.rank:
            return None
        return make(self.random.choice(("sub", "add")), x, make("mean", x, axes=self.axes(x), keepdim=True))

    def variance(self, x: Node) -> Node | None:
        return make("var", x, axes=self.axes(x), keepdim=self.random.random() < 0.5, correction=0) if x.rank else None

    def moved(self, x: Node) -> Node | None:
        axes = self.random.sample(range(x.rank), x.rank)
        return make("permute", x, axes=tuple(axes)) if axes != sorted(axes) else None

    def reshaped(self, x: Node) -> Node | None:
        sizes, left = [], x.size
        while left > 1:
            part = self.random.choice([p for p in range(2, left + 1) if left % p == 0])
            sizes.append(part)
            left //= part
        if self.random.random() < 0.3:
            sizes.insert(self.random.randint(0, len(sizes)), 1)
        return make("reshape", x, shape=tuple(sizes)) if tuple(sizes) != x.shape and len(sizes) <= 5 else None

    def sliced(self, x: Node) -> Node | None:
        axis = self.random.randrange(x.rank) if x.rank else 0
        if not x.rank or x.shape[axis] < 2:
            return None
        start = self.random.randrange(x.shape[axis] - 1)
        return make("slice", x, axis=axis, start=start, stop=self.random.randint(start + 1, x.shape[axis]),
                    step=self.random.choice((1, 1, 2)))

    def expanded(self, x: Node) -> Node | None:
        shape = (*((2,) if self.random.random() < 0.3 else ()), *(self.random.choice((1, 3)) if s == 1 else s
                                                                  for s in x.shape))
        return make("expand", x, shape=shape) if shape != x.shape else None

    def softmax(self, x: Node) -> Node | None:
        name = self.random.choice(("softmax", "log_softmax"))
        return make(name, x, axis=self.random.randrange(x.rank)) if x.rank else None

    def layer_norm(self, x: Node) -> Node | None:
        if not x.rank:
            return None
        axes = self.random.randint(1, x.rank)
        rest = [self.new_leaf(*x.shape[x.rank - axes:]) for _ in range(self.random.choice((0, 1, 2)))]
        return make("layer_norm", x, *rest, axes=axes, eps=0.1, affine=bool(rest))

    def rms_norm(self, x: Node) -> Node | None:
        if not x.rank:
            return None
        axes = self.random.randint(1, x.rank)
        rest = [self.new_leaf(*x.shape[x.rank - axes:]) for _ in range(self.random.choice((0, 1)))]
        return make("rms_norm", x, *rest, axes=axes, eps=0.1, affine=bool(rest))

    def channel_pair(self, x: Node) -> list[Node]:
        return [self.new_leaf(x.shape[1]), self.new_leaf(x.shape[1])] if self.random.random() < 0.5 else []

    def group_norm(self, x: Node) -> Node | None:
        if x.rank < 2 or x.size // x.shape[0] < 2:
            return None
        groups = self.random.choice([g for g in range(1, x.shape[1] + 1) if x.shape[1] % g == 0])
        if x.size // x.shape[0] // groups < 2:
            return None
        rest = self.channel_pair(x)
        return make("group_norm", x, *rest, groups=groups, eps=0.1, affine=bool(rest))

    def instance_norm(self, x: Node) -> Node | None:
        if x.rank < 3 or prod(x.shape[2:]) < 2:
            return None
        rest = self.channel_pair(x)
        return make("instance_norm", x, *rest, eps=0.1, affine=bool(rest))

    def batch_norm(self, x: Node) -> Node | None:
        if x.rank < 2 or x.size // x.shape[1] < 2:
            return None
        rest = self.channel_pair(x)
        return make("batch_norm_training", x, *rest, eps=0.1, affine=bool(rest), momentum=0.1, running=None)

    def pooled(self, x: Node) -> Node | None:
        rank = x.rank - 2
        if rank < 1 or rank > 3:
            return None
        kernel = tuple(self.random.randint(1, min(3, s)) for s in x.shape[2:])
        stride = tuple(self.random.randint(1, 2) for _ in kernel)
        padding = tuple(self.random.randint(0, k // 2) for k in kernel)
        ceil = self.random.random() < 0.3
        if self.random.random() < 0.5:
            return make("max_pool", x, kernel=kernel, stride=stride, padding=padding, dilation=(1,) * rank, ceil=ceil)
        return make("average_pool", x, kernel=kernel, stride=stride, padding=padding, ceil=ceil, include_padding=True,
                    divisor=None)

    def product(self, x: Node) -> Node | None:
        return anchor("linear", x, self.new_leaf(3, x.shape[-1]), self.new_leaf(3)) if x.rank else None

    def cat(self, x: Node) -> Node | None:
        if not x.rank:
            return None
        axis = self.random.randrange(x.rank)
        other = next((y for y in self.nodes if y.shape == x.shape), x)
        shape = tuple(2 * s if a == axis else s for a, s in enumerate(x.shape))
        return make("concatenate", x, other, axis=axis, shape=shape, dtype=x.dtype)

    def choice(self, x: Node) -> Node:
        test = make(self.random.choice(("gt", "le")), x, constant(0.1))
        return make("where", test, x, make("mul", x, constant(0.25)))

    def opaque(self, x: Node) -> Node | None:
        if not x.rank:
            return None
        return make("opaque", x, target="aten.cumsum.default", template=(("input", 0), x.rank - 1), keywords=(),
                    shape=x.shape, dtype=x.dtype, types=None, serial=-1)


@pytest.mark.parametrize("block", range(10 * MORE))
def test_random_graphs(block: int, on_chip: None) -> None:
    for number in range(24):
        maker = Maker(block * 1000 + number)
        for _ in range(maker.random.randint(2, 12)):
            maker.step()
        outputs = [maker.nodes[-1], *(n for n in maker.nodes[1:-1] if maker.random.random() < 0.25)]
        graph = graph_of(*dict.fromkeys(outputs))
        try:
            check_graph(graph, 1e-8, captured=graph if maker.random.random() < 0.5 else None)
            check_graph(rewrite_with(graph, all_anchors(graph))[0], 1e-6)
        except Exception as error:
            raise AssertionError(f"graph {block}/{number}: " + "; ".join(map(repr, graph.nodes()))) from error
