"""Teach kernelwright an operator that it does not know: torch.xlogy(x, y) = x log(y), and 0 where x is 0.

In the package each of the three parts stands in the table of its stage; here they are together, for one process.
"""

import torch

import kernelwright
from kernelwright.capture.converters.table import Arguments, as_node, converts, float_only
from kernelwright.ir.node import Node, make
from kernelwright.ir.registry import declare
from kernelwright.ir.scalar import FUNCTIONS, KERNEL_FUNCTIONS, ScalarFunction


class Divergence(torch.nn.Module):
    """The Kullback-Leibler divergence of rows of probabilities."""

    def forward(self, p, q):
        return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1)


def get_inputs():
    return [torch.rand(64, 1000).softmax(-1), torch.rand(64, 1000).softmax(-1)]


def teach() -> None:
    # 1. The scalar function that kernels compute: its text for C-like targets, and its meaning in torch. A NaN of y
    #    has to come through, so that zero is chosen only where y is a number.
    row = ScalarFunction("xlogy", 2, "(({0} == real(0) && {1} == {1}) ? real(0) : {0} * kw_log({1}))", torch.xlogy,
                         cost=14)
    FUNCTIONS[row.name] = KERNEL_FUNCTIONS[row.name] = row

    # 2. The operator of the graph: of kind pointwise, with the text of its torch call and what it costs.
    declare(row.name, "pointwise", row.reference, "torch.xlogy({0}, {1})",
            operations=lambda node: row.cost * node.size)

    # 3. How a captured call becomes it. Arguments have the names of the operator's schema.
    @converts("xlogy.Tensor", "xlogy.Scalar_Other", "xlogy.Scalar_Self")
    def _xlogy(a: Arguments) -> Node:
        operands = map(as_node, (a["self"], a["other"]))
        return make("xlogy", *(n if n.op == "constant" else float_only(n) for n in operands))


def decisions() -> list[str]:
    """What becomes of the model's operators: the kernels, and what stays with PyTorch."""
    mode = kernelwright.explain(Divergence(), inputs=tuple(get_inputs()), target="cpp").modes[0]
    return [*(f"{k.name} computes {', '.join(k.covers)}" for k in mode.kernels),
            *(f"{k.operator} stays with PyTorch: {k.reason}" for k in mode.kept)]


def main() -> kernelwright.Result:
    print("before:", *decisions(), sep="\n  ")
    teach()
    print("after:", *decisions(), sep="\n  ")
    result = kernelwright.optimize(Divergence(), inputs=tuple(get_inputs()), effort="quick", baselines="none")
    print(result.certificate.sentence())
    zero, some = torch.zeros(4), torch.tensor([0.0, 1.0, float("inf"), float("nan")])
    print("0 log y:", torch.xlogy(zero, some).tolist())
    return result


if __name__ == "__main__":
    main()
