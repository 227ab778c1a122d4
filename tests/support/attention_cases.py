"""Attentions to try kernels on: sizes, what scores are made of, and what a float32 result may be off by."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from kernelwright.codegen.reference.attention import evaluate
from kernelwright.ir.node import Node, constant, make
from kernelwright.ir.ops.attention import Form
from kernelwright.ir.registry import torch_dtype
from kernelwright.plan.compile.attentions import compile_attention
from kernelwright.plan.kernels import Attention


@dataclass(frozen=True)
class Case:
    """An attention over (batch, heads), as a node and as its record, whose columns are shifted besides."""

    name: str
    node: Node
    kernel: Attention

    @property
    def leaves(self) -> tuple[Node, ...]:
        return self.node.inputs

    def tensors(self) -> list[torch.Tensor]:
        """What a kernel reads: of truth values most are true, whole numbers are few."""
        generator = torch.Generator().manual_seed(sum(self.kernel.domain))
        found = []
        for leaf in self.leaves:
            dtype, shape = torch_dtype(leaf.dtype), leaf.shape
            found.append(torch.randn(shape, generator=generator).to(dtype) if dtype.is_floating_point
                         else torch.rand(shape, generator=generator) < 0.7 if dtype is torch.bool
                         else torch.randint(0, 3, shape, generator=generator))
        return found

    def computed(self, inputs: Sequence[torch.Tensor], dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """The result as its record says, computed in ``dtype``."""
        given = [t.to(dtype) if t.is_floating_point() else t for t in inputs]
        (found,) = evaluate(self.kernel, given, [self.node.size], dtype)
        return found.reshape(self.node.shape)


@dataclass(frozen=True)
class NarrowCase(Case):
    """A case whose leaves are of another type than the node's."""

    narrow_leaves: tuple[Node, ...]

    @property
    def leaves(self) -> tuple[Node, ...]:
        return self.narrow_leaves


def scaled(product: Node) -> Node:
    return make("mul", product, constant(0.25))


def attention(name: str, rows: int, columns: int, depth: int, width: int, *, batch: int = 1, heads: int = 2,
              score: Callable[..., Node] = scaled, more: Sequence[tuple[str, tuple[int, ...]]] = (),
              softmax: bool = True, causal: bool = False, shift: int = 0, empty_rows: bool = False) -> Case:
    """An attention whose score is ``score`` of the product and of leaves of ``more``, as (dtype, shape)."""
    outer = (batch, heads)
    shapes = [("float32", (*outer, rows, depth)), ("float32", (*outer, columns, depth)),
              ("float32", (*outer, columns, width)), *more]
    leaves = [make("input", name=f"in{n}", shape=shape, dtype=dtype) for n, (dtype, shape) in enumerate(shapes)]
    product = make("matmul", leaves[0], make("permute", leaves[1], axes=(0, 1, 3, 2)))
    made = score(product, *leaves[3:])
    weights = make("input", name="weights", shape=made.shape, dtype="float32")
    result = make("matmul", weights, leaves[2])
    node = make("attention", *leaves, form=Form(tuple(leaves), product, made, weights, result, result,
                                                3 if softmax else None, causal, empty_rows))
    return Case(name, node, replace(compile_attention(node, range(len(leaves))), shift=shift))


def narrow(case: Case, dtype: str) -> Case:
    """The case in bfloat16 or float16: what was float32 is of that type, as are weights."""
    def typed(types: Sequence[str]) -> tuple[str, ...]:
        return tuple(dtype if t == "float32" else t for t in types)

    kernel = replace(case.kernel, input_dtypes=typed(case.kernel.input_dtypes),
                     output_dtypes=typed(case.kernel.output_dtypes), compute=dtype)
    leaves = [make("input", name=n["name"], shape=n.shape, dtype=typed([n.dtype])[0]) for n in case.node.inputs]
    return NarrowCase(f"{case.name} {dtype}", case.node, kernel, tuple(leaves))


def error(case: Case, inputs: Sequence[torch.Tensor], found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The greatest error, in units of what an element is a sum of: its weights times sizes of values."""
    sizes = list(inputs)
    if not case.kernel.softmax:
        sizes = [t.abs() if t.is_floating_point() else t for t in inputs]
    sizes[2] = inputs[2].abs()
    unit = case.computed(sizes).abs()
    off = (found.double() - wanted).abs() / unit.clamp(min=1e-30)
    return float(off[wanted.isfinite()].max()) if bool(wanted.isfinite().any()) else 0.0


def _hides(product: Node, mask: Node) -> Node:
    return make("where", mask, scaled(product), constant(-math.inf))


def _adds(product: Node, bias: Node) -> Node:
    return make("add", scaled(product), bias)


def _counts(product: Node, number: Node) -> Node:
    return make("where", make("eq", number, constant(0)), constant(-math.inf), make("div", product, constant(3.0)))


def _caps(product: Node) -> Node:
    return make("mul", make("tanh", make("mul", product, constant(0.1))), constant(5.0))


def rectifies(product: Node) -> Node:
    return make("relu", scaled(product))


def _decays(product: Node, decay: Node) -> Node:
    return make("mul", product, decay)


def _two(product: Node, scale: Node, mask: Node, bias: Node) -> Node:
    return make("where", mask, make("add", make("mul", product, scale), bias), constant(-1e9))


#: Sizes below, at and above those of tiles of rows, columns, elements of queries and of values.
SIZES = [attention("sizes", *sizes) for sizes in (
    (1, 1, 1, 1), (1, 200, 64, 8), (200, 1, 8, 16), (63, 65, 17, 7), (64, 64, 16, 8), (65, 63, 15, 9),
    (128, 128, 32, 128), (129, 127, 33, 129), (16, 17, 1, 200), (100, 150, 256, 20), (40, 33, 255, 136),
    (5, 200, 128, 128), (70, 96, 48, 1), (2, 16, 16, 24))]
SCORES = [
    attention("product", 70, 40, 24, 12, score=lambda product: product),
    attention("divided", 70, 40, 24, 12, score=lambda product: make("div", product, constant(5.0))),
    attention("negative", 70, 40, 24, 12, score=lambda product: make("mul", product, constant(-0.3))),
    attention("mask", 66, 90, 16, 40, batch=2, score=_hides, more=[("bool", (2, 1, 66, 90))], empty_rows=True),
    attention("mask of columns", 33, 70, 16, 8, batch=3, score=_hides, more=[("bool", (3, 1, 1, 70))]),
    attention("bias", 66, 90, 40, 72, score=_adds, more=[("float32", (2, 66, 90))]),
    attention("bias of a column", 30, 50, 40, 72, batch=2, score=_adds, more=[("float32", (2, 1, 1, 50))]),
    attention("bias of heads", 30, 50, 40, 24, batch=2, heads=3, score=_adds, more=[("float32", (3, 30, 50))]),
    attention("numbers", 30, 50, 8, 8, score=_counts, more=[("int64", (30, 50))]),
    attention("capped", 50, 66, 32, 16, score=_caps),
    attention("of everything", 50, 66, 32, 16, batch=2, score=_two, more=[
        ("float32", (2, 1, 1)), ("bool", (66,)), ("float32", (2, 1, 50, 66))]),
    attention("rectified", 70, 64, 16, 16, softmax=False, score=rectifies),
    attention("sigmoid", 33, 129, 24, 8, softmax=False, score=lambda product: make("sigmoid", product)),
    attention("decays", 70, 40, 16, 20, softmax=False, score=_decays, more=[("float32", (2, 70, 40))]),
    attention("squares", 20, 150, 8, 136, softmax=False, score=lambda product: make("square", product)),
]
CAUSAL = [attention("causal", rows, columns, 16, 24, causal=True, shift=shift, empty_rows=empty)
          for rows, columns, shift, empty in (
              (130, 130, 0, True), (65, 200, 0, False), (200, 70, 0, True), (70, 100, 30, True), (100, 70, -30, True),
              (100, 70, -30, False), (40, 40, 300, True), (40, 40, -300, True), (40, 40, -300, False))] + [
    attention("causal and rectified", 100, 66, 16, 24, causal=True, shift=-10, softmax=False, score=rectifies),
    attention("causal and biased", 70, 70, 8, 8, causal=True, score=_adds, more=[("float32", (2, 70, 70))])]
CASES = [*SIZES, *SCORES, *CAUSAL]
