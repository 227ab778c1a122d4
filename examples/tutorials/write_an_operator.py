"""Teach kernelwright an operator that it does not know: torch.special.entr(x) = -x log(x).

In the package each of the three parts stands in the table of its stage; here they are together, for one process.
"""

import torch

import kernelwright
from kernelwright.build.module import load_text
from kernelwright.capture.converters.table import Arguments, converts, float_only
from kernelwright.ir.node import Node, make
from kernelwright.ir.registry import declare
from kernelwright.ir.scalar import FUNCTIONS, KERNEL_FUNCTIONS, ScalarFunction
from kernelwright.verify import Plan as Trials
from kernelwright.verify import certify


class Entropy(torch.nn.Module):
    """How much is left open by weights, which need not sum to one."""

    def forward(self, x):
        return torch.special.entr(x.abs() * 0.5).mean(-1)


INPUTS = (torch.randn(64, 1000),)


def explained() -> kernelwright.Result:
    return kernelwright.explain(Entropy(), inputs=INPUTS, target="cpp")


def teach() -> None:
    # 1. The scalar function that kernels compute: its text for C-like targets, and its meaning in torch. Each target
    #    supplies kw_ functions; the logarithm is there already. Zero has the limit, and NaN stays NaN.
    text = "({0} > real(0) ? -{0} * kw_log({0}) : {0} == real(0) ? real(0) : {0} != {0} ? {0} : -real(INFINITY))"
    row = ScalarFunction("entr", 1, text, torch.special.entr, cost=14)
    FUNCTIONS[row.name] = KERNEL_FUNCTIONS[row.name] = row

    # 2. The operator of the graph: of kind pointwise, with the text of its torch call and what it costs.
    declare(row.name, "pointwise", row.reference, "torch.special.entr({0})",
            operations=lambda node: row.cost * node.size)

    # 3. How a captured call becomes it. Arguments have the names of the operator's schema.
    @converts("special_entr.default")
    def _entropy(a: Arguments) -> Node:
        return make("entr", float_only(a["self"]))


def decisions() -> list[str]:
    """What becomes of the model's operators: the kernels, and what stays with PyTorch."""
    mode = explained().modes[0]
    return [*(f"{k.name} computes {', '.join(k.covers)}" for k in mode.kernels),
            *(f"{k.operator} stays with PyTorch: {k.reason}" for k in mode.kept)]


def main() -> torch.nn.Module:
    print("before:", *decisions(), sep="\n  ")
    teach()
    print("after:", *decisions(), sep="\n  ")

    # Right? The emitted file beside the model, in float64, on several distributions, NaN and infinities among them.
    emitted = load_text(explained().source, "entropy")
    problem = kernelwright.load_problem(Entropy(), inputs=INPUTS, device="cpu")
    certificate = certify(Entropy, emitted.ModelNew, problem.make_inputs, plan=Trials(budget_seconds=60))
    print(certificate.sentence())
    assert certificate.passed
    return emitted.ModelNew()


if __name__ == "__main__":
    main()
