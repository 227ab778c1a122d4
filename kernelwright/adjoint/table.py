"""The table of adjoints: for each operator that has one, what the gradient of its result adds to those of its inputs.

The gradients are those that PyTorch defines, at kinks and special points, too (a relu at 0, a tie of maxima, the root
of 0), in the operations of its backward formulas.

Sources: tools/autograd/derivatives.yaml and torch/csrc/autograd/FunctionsManual.cpp of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelwright.algebra.build import reduce, reshape
from kernelwright.ir.node import Node, constant, make


class NoAdjoint(Exception):
    """A graph cannot be differentiated here; the reason, in words for a note."""


def named(node: Node) -> str:
    """An operator without an adjoint, in words."""
    name = str(node["target"]) if node.op == "opaque" else node.op
    line = f" (line {node.origin.line})" if node.origin is not None and node.origin.line else ""
    return f"{name}{line} has no backward of kernels"


#: From a node, the gradient of its result and which inputs' gradients are wanted, those of the inputs, in their shapes
#: and types; None of an input that gets none, or is not wanted.
Adjoint = Callable[[Node, Node, Sequence[bool]], Sequence[Node | None]]
ADJOINTS: dict[str, Adjoint] = {}
#: Of calls of PyTorch's own operators, by their targets.
OPAQUE: dict[str, Adjoint] = {}
FLOATS = ("float64", "float32", "float16", "bfloat16")


def adjoint(*operators: str) -> Callable[[Adjoint], Adjoint]:
    """Register the adjoint of operators."""

    def register(function: Adjoint) -> Adjoint:
        for name in operators:
            ADJOINTS[name] = function
        return function

    return register


Operand = Node | float


def apply(function: str, *operands: Operand) -> Node:
    """A pointwise function of nodes and numbers."""
    return make(function, *(o if isinstance(o, Node) else constant(o) for o in operands))


def add(a: Operand, b: Operand) -> Node:
    return apply("add", a, b)


def sub(a: Operand, b: Operand) -> Node:
    return apply("sub", a, b)


def mul(a: Operand, b: Operand) -> Node:
    return apply("mul", a, b)


def div(a: Operand, b: Operand) -> Node:
    return apply("div", a, b)


def neg(a: Node) -> Node:
    return apply("neg", a)


def where(condition: Node, a: Operand, b: Operand) -> Node:
    return apply("where", condition, a, b)


def summed_to(x: Node, shape: tuple[int, ...]) -> Node:
    """The sums of x over what was broadcast from ``shape``, in that shape: the adjoint of broadcasting."""
    if x.shape == shape:
        return x
    first = x.rank - len(shape)
    axes = tuple(a for a in range(x.rank) if a < first or (shape[a - first] == 1 and x.shape[a] != 1))
    return reshape(reduce("sum", x, axes), shape)


def broadcast(x: Node, shape: tuple[int, ...]) -> Node:
    """x expanded to a shape: the adjoint of sums over what was of size one."""
    return x if x.shape == shape else make("expand", x, shape=shape)


def kept(g: Node, node: Node) -> Node:
    """The gradient of a reduction, with the reduced axes at size one."""
    x = node.inputs[0]
    return reshape(g, tuple(1 if a in node["axes"] else s for a, s in enumerate(x.shape)))


def zeros(like: Node) -> Node:
    """Zeros in a node's shape and type."""
    return make("literal", value=0.0, shape=like.shape, dtype=like.dtype)


def call(target: str, inputs: Sequence[Node], template: tuple, shape: tuple[int, ...], dtype: str) -> Node:
    """A call of one of PyTorch's own operators. template: its arguments, as in
    :func:`kernelwright.ir.ops.leaves.fill`."""
    return make("opaque", *inputs, target=target, template=template, keywords=(), shape=shape, dtype=dtype, types=None,
                serial=-1)


def calls(target: str, inputs: Sequence[Node], template: tuple, like: Sequence[tuple[tuple[int, ...], str] | None]
          ) -> list[Node | None]:
    """The results of a call that gives several, of these shapes and types; None of those that it leaves out."""
    made = make("opaque", *inputs, target=target, template=template, keywords=(), shape=(), dtype="tuple",
                types=tuple(like), serial=-1)
    return [None if kind is None else make("item", made, index=index, shape=kind[0], dtype=kind[1])
            for index, kind in enumerate(like)]


def listed(values: Sequence[int | bool | tuple | None]) -> tuple:
    """A list in a template."""
    return ("list", *values)
