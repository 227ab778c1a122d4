"""Teach kernelwright an operator that it does not know: torch.logaddexp(x, y) = log(exp(x) + exp(y)).

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


class Softer(torch.nn.Module):
    """The mean of a maximum without its corner."""

    def forward(self, x, y):
        return torch.logaddexp(x * 2, y).mean(-1)


INPUTS = (torch.randn(64, 1000), torch.randn(64, 1000))


def explained() -> kernelwright.Result:
    return kernelwright.explain(Softer(), inputs=INPUTS, target="cpp")


def teach() -> None:
    # 1. The scalar function that kernels compute: its text for C-like targets, and its meaning in torch. Each target
    #    supplies kw_ functions; this one is there already, as scans use it.
    row = ScalarFunction("logaddexp", 2, "kw_logaddexp({0}, {1})", torch.logaddexp, monotone=1, cost=30)
    FUNCTIONS[row.name] = KERNEL_FUNCTIONS[row.name] = row

    # 2. The operator of the graph: of kind pointwise, with the text of its torch call and what it costs.
    declare(row.name, "pointwise", row.reference, "torch.logaddexp({0}, {1})",
            operations=lambda node: row.cost * node.size)

    # 3. How a captured call becomes it. Arguments have the names of the operator's schema.
    @converts("logaddexp.default")
    def _logaddexp(a: Arguments) -> Node:
        return make("logaddexp", float_only(a["self"]), float_only(a["other"]))


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
    emitted = load_text(explained().source, "softer")
    problem = kernelwright.load_problem(Softer(), inputs=INPUTS, device="cpu")
    certificate = certify(Softer, emitted.ModelNew, problem.make_inputs, plan=Trials(budget_seconds=60))
    print(certificate.sentence())
    assert certificate.passed
    return emitted.ModelNew()


if __name__ == "__main__":
    main()
