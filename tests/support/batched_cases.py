"""Batched products to try kernels on: sizes, layouts, operands, epilogues and types, as nodes and as their records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from graph_tools import leaf

from kernelwright.codegen.reference.batched import evaluate
from kernelwright.ir.node import Node, constant, make, walk
from kernelwright.ir.ops.batched import ProductForm
from kernelwright.ir.registry import torch_dtype
from kernelwright.plan.compile.batched import compile_batched
from kernelwright.plan.kernels import BatchedProduct


@dataclass(frozen=True)
class Case:
    """A batched product, as a node and as its record."""

    name: str
    node: Node
    kernel: BatchedProduct

    def tensors(self) -> list[torch.Tensor]:
        """What a kernel reads: of truth values some are true, whole numbers are few."""
        generator = torch.Generator().manual_seed(sum(self.kernel.domain))
        made = []
        for node in self.node.inputs:
            drawn = torch.randn(node.shape, generator=generator)
            made.append(drawn > -0.5 if node.dtype == "bool" else (4 * drawn).round().long() if node.dtype == "int64"
                        else drawn.to(torch_dtype(node.dtype)))
        return made

    def wanted(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The result in float64, as the node says."""
        doubles = [t.double() if t.is_floating_point() else t for t in inputs]
        return self.node.operator.reference(*doubles, **dict(self.node.attributes))

    def meant(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The result in float64, as the record says."""
        return evaluate(self.kernel, inputs, [self.node.size])[0].reshape(self.node.shape)


def case_of(name: str, product: Node, result: Node | None = None) -> Case:
    """A case of a graph: what lies below the product, and what is made of it."""
    result = product if result is None else result
    leaves = tuple(n for n in walk([result]) if n.kind == "leaf" and n.op == "input")
    node = make("batched_product", *leaves, form=ProductForm(leaves, product, result))
    return Case(name, node, compile_batched(node, range(len(leaves))))


def turned(node: Node, *axes: int) -> Node:
    return make("permute", node, axes=axes)


def shaped(node: Node, *shape: int) -> Node:
    return make("reshape", node, shape=shape)


def plain(groups: int, rows: int, columns: int, depth: int, *, left: bool = False, right: bool = False,
          result: bool = False, dtype: str = "float32") -> Case:
    """A product whose operands, or whose result, memory has transposed where these are true."""
    a = leaf("a", groups, depth, rows, dtype=dtype) if left else leaf("a", groups, rows, depth, dtype=dtype)
    b = leaf("b", groups, columns, depth, dtype=dtype) if right else leaf("b", groups, depth, columns, dtype=dtype)
    product = make("matmul", turned(a, 0, 2, 1) if left else a, turned(b, 0, 2, 1) if right else b)
    name = f"{groups}x{rows}x{columns}x{depth}{' ' + 'l' * left + 'r' * right + 's' * result} {dtype}"
    return case_of(name, product, turned(product, 0, 2, 1) if result else None)


def decayed(batch: int, chunks: int, length: int, heads: int, size: int, state: int) -> Case:
    """States of chunks: an operand times the decay up to the end of its chunk, which memory has in another order, and
    both with heads between positions and elements."""
    x, b = leaf("x", batch, chunks * length, heads, size), leaf("b", batch, chunks * length, heads, state)
    sums = leaf("sums", batch, heads, chunks, length)
    last = make("slice", sums, axis=3, start=length - 1, stop=length, step=1)
    decay = shaped(turned(make("exp", make("sub", last, sums)), 0, 2, 3, 1), batch, chunks, length, heads, 1)
    operand = make("mul", shaped(b, batch, chunks, length, heads, state), decay)
    product = make("matmul", turned(operand, 0, 1, 3, 4, 2),
                   turned(shaped(x, batch, chunks, length, heads, size), 0, 1, 3, 2, 4))
    return case_of(f"decayed {batch} {chunks} {length} {heads} {size} {state}", product, turned(product, 0, 1, 2, 4, 3))


def handed_on(batch: int, heads: int, chunks: int, size: int, state: int) -> Case:
    """States of chunks before each chunk: few rows and many columns, of an operand that is padded along depth, and
    whose columns are two axes that memory has the other way round."""
    states, weights = leaf("states", batch, chunks, heads, state, size), leaf("weights", batch, heads, chunks + 1)
    mask = leaf("mask", chunks, chunks + 1, dtype="bool")
    shown = make("pad", turned(states, 0, 1, 2, 4, 3), value=0.0, amounts=((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)))
    right = shaped(turned(shown, 0, 2, 1, 3, 4), batch, heads, chunks + 1, size * state)
    rows = make("slice", shaped(weights, batch, heads, chunks + 1, 1), axis=2, start=0, stop=chunks, step=1)
    difference = make("sub", rows, shaped(weights, batch, heads, 1, chunks + 1))
    left = make("exp", make("where", mask, constant(float("-inf")), difference))
    product = make("matmul", left, right)
    shown = turned(shaped(product, batch, heads, chunks, size, state), 0, 2, 1, 4, 3)
    return case_of(f"handed on {batch} {heads} {chunks} {size} {state}", product, shown)


def finished(batch: int, length: int, heads: int, size: int, state: int) -> Case:
    """Outputs of states: an epilogue with a factor of each row, what another kernel computed, and a bias of columns,
    and the result with heads between positions and elements."""
    c, states = leaf("c", batch, length, heads, state), leaf("states", batch, heads, size, state)
    factor, beside = leaf("factor", batch, heads, length), leaf("beside", batch, heads, length, size)
    bias = leaf("bias", size)
    product = make("matmul", turned(c, 0, 2, 1, 3), turned(states, 0, 1, 3, 2))
    factors = shaped(turned(make("exp", factor), 0, 2, 1), batch, length, heads, 1)
    scaled = make("mul", turned(product, 0, 2, 1, 3), factors)
    whole = make("relu", make("add", make("add", scaled, turned(beside, 0, 2, 1, 3)), bias))
    name = f"finished {batch} {length} {heads} {size} {state}"
    return case_of(name, product, shaped(whole, batch, length, heads * size))


def by_letters(equation: str, **sizes: int) -> Case:
    """An einsum of two operands."""
    terms, _ = equation.split("->")
    operands = [leaf(f"x{n}", *(sizes[c] for c in term)) for n, term in enumerate(terms.split(","))]
    return case_of(f"{equation} {sizes}", make("contract", *operands, equation=equation))


def ordered(sizes: dict[str, int], terms: Sequence[str], *, factor: bool, beside: bool, joined: bool) -> Case:
    """A product over letters (g and h of groups, i and m of rows, j and n of columns, k of depth) whose operands and
    result memory has in any order of these; with a factor of an operand, what is added, and axes of the result that are
    joined."""
    left, right, result = terms
    a, b = leaf("a", *(sizes[c] for c in left)), leaf("b", *(sizes[c] for c in right))
    one = make("mul", a, make("sigmoid", leaf("f", *(sizes[c] if c in "gk" else 1 for c in left)))) if factor else a

    def matrices(node: Node, term: str, *kinds: str) -> Node:
        order = [c for kind in kinds for c in kind]
        return shaped(turned(node, *(term.index(c) for c in order)),
                      *(prod(sizes[c] for c in kind) for kind in kinds))

    product = make("matmul", matrices(one, left, "gh", "im", "k"), matrices(b, right, "gh", "k", "jn"))
    letters = "ghimjn"
    shown = turned(shaped(product, *(sizes[c] for c in letters)), *(letters.index(c) for c in result))
    if beside:
        shown = make("add", make("mul", shown, constant(0.5)), leaf("z", *shown.shape[-3:]))
    if joined:
        shown = shaped(shown, shown.shape[0] * shown.shape[1], -(-shown.size // (shown.shape[0] * shown.shape[1])))
    return case_of(f"{terms} {sizes}", product, shown)


def counted(groups: int) -> Case:
    """Operands of whole numbers and truth values, and an epilogue in which the sum stands several times."""
    a, b = leaf("a", groups, 5, 12, dtype="int64"), leaf("b", groups, 12, 9, dtype="bool")
    x, y = leaf("x", groups, 12, 9), leaf("y", 5, 1)
    product = make("matmul", make("mul", a, y), make("where", b, x, constant(0.5)))
    return case_of("whole numbers", product, make("silu", make("mul", product, constant(0.25))))


def repeated(batch: int) -> Case:
    """A matrix of each batch for all heads: rows of all of them are one side."""
    a, b = leaf("a", batch, 3, 10, 8), leaf("b", batch, 1, 8, 6)
    return case_of("repeated", make("matmul", a, b))


def _with_transposes() -> list[Case]:
    return [plain(3, 20, 12, 8, left=a, right=b, result=c) for a in (False, True) for b in (False, True)
            for c in (False, True)]


CASES: list[Case] = [
    plain(5, 64, 64, 16), plain(3, 16, 64, 64), plain(2, 64, 64, 64), plain(7, 7, 5, 3), plain(2, 1, 1, 1),
    plain(300, 1, 1, 1), plain(9, 1, 33, 2), plain(9, 33, 1, 2), plain(3, 130, 37, 200), plain(3, 37, 130, 21),
    plain(40, 4, 4, 4), plain(2, 257, 3, 5), plain(2, 2, 700, 3), plain(33, 6, 10, 70), plain(1, 100, 100, 100),
    *_with_transposes(),
    plain(5, 24, 40, 16, dtype="float16"), plain(5, 24, 40, 16, left=True, right=True, dtype="bfloat16"),
    plain(5, 7, 9, 5, dtype="bfloat16", result=True),
    decayed(2, 3, 8, 2, 16, 4), decayed(1, 2, 7, 3, 5, 6), decayed(2, 1, 64, 2, 64, 16),
    handed_on(2, 3, 2, 16, 4), handed_on(3, 2, 3, 5, 7), handed_on(2, 1, 2, 64, 16),
    finished(2, 9, 3, 8, 4), finished(3, 5, 2, 6, 7), finished(2, 64, 2, 64, 16),
    by_letters("bhzc,bchpn->bzhpn", b=2, h=3, z=2, c=5, p=6, n=4),
    by_letters("abk,akc->cba", a=4, b=6, k=10, c=8), by_letters("kab,kac->abc", k=6, a=5, b=8, c=3),
    counted(4), repeated(3),
]
