"""Products by letters, as an einsum names axes: which operands have an axis, and which the result has."""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.ir.node import Node
from kernelwright.plan.compile.recurrences import NoForm


@dataclass(frozen=True, slots=True)
class Letters:
    """A product by letters, as an einsum: those of its operands and of its result, and the size of each. An operand has
    no letter for an axis along which it is repeated."""

    operands: tuple[tuple[str, ...], tuple[str, ...]]
    result: tuple[str, ...]
    sizes: dict[str, int]

    def axes_of(self, side: int) -> set[str]:
        return {letter for letter in self.operands[side] if letter}


def letters_of(node: Node) -> Letters:
    """The letters of a matmul or a contract node. Raises NoForm where there are none."""
    left, right = (i.shape for i in node.inputs)
    if node.op == "contract":
        terms, result = node["equation"].replace(" ", "").split("->")
        if "." in terms or terms.count(",") != 1:
            raise NoForm("a product of other than two operands")
        names = terms.split(",")
        if any(len(set(term)) != len(term) for term in (*names, result)):
            raise NoForm("a diagonal")
    else:
        if len(left) < 2 or len(right) < 2:
            raise NoForm("a product with a vector")
        lead = [chr(ord("A") + n) for n in range(node.rank - 2)]
        names = ["".join(lead[len(lead) - (len(shape) - 2):]) + own for shape, own in ((left, "mk"), (right, "kn"))]
        result = "".join(lead) + "mn"
    sizes: dict[str, int] = {}
    for term, shape in zip(names, (left, right), strict=True):
        for letter, size in zip(term, shape, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), size)
    operands = tuple(tuple(letter if size == sizes[letter] else "" for letter, size in zip(term, shape, strict=True))
                     for term, shape in zip(names, (left, right), strict=True))
    return Letters((operands[0], operands[1]), tuple(result), sizes)
