"""Teach kernelwright an identity: the absolute value and the square of -x are those of x.

In the package the function stands in a file of algebra/, and in the tuple at that file's end.
"""

import torch

from kernelwright.algebra.engine import register, rewrite
from kernelwright.algebra.rule import Context, Exactness, rule
from kernelwright.capture.export import capture
from kernelwright.ir.evaluate import evaluate
from kernelwright.ir.graph import Graph, render
from kernelwright.ir.node import Node, make, walk
from kernelwright.roofline.devices import GENERIC_CPU


@rule("even function of a negation", "abs", "square", law="|-x| = |x|, (-x)^2 = x^2", condition="always",
      exactness=Exactness.BITWISE)
def even(node: Node, context: Context) -> Node | None:
    (x,) = node.inputs
    return make(node.op, x.inputs[0]) if x.op == "neg" else None


class Distance(torch.nn.Module):
    def forward(self, x, y):
        difference = -(x - y)
        return torch.abs(difference), torch.square(difference).mean(-1)


def values(graph: Graph, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """What a graph gives in float64."""
    names = [node["name"] for node in graph.inputs]
    return evaluate(graph.outputs, dict(zip(names, inputs, strict=True)), torch.float64)


def main() -> list[str]:
    x, y = torch.randn(8, 100), torch.randn(8, 100)
    graph = capture(Distance(), (x, y))
    print("captured\n" + render(graph), end="\n\n")

    register(even)
    rewriting = rewrite(graph, GENERIC_CPU)
    print("rewritten\n" + render(rewriting.graph))
    for use in rewriting.applications:
        print(f"  by {use.rule.name}: {use.rule.law} ({use.rule.exactness})")

    # The value stays, to the last bit, at numbers that are special, too; and the rule leaves nothing for itself to do.
    for special in (0.0, float("inf"), float("nan")):
        x[0, 0] = special
        for before, after in zip(values(graph, x, y), values(rewriting.graph, x, y), strict=True):
            torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)
    assert not any(node.op == "neg" for node in walk(rewriting.graph.outputs))
    assert rewrite(rewriting.graph, GENERIC_CPU).graph.outputs == rewriting.graph.outputs

    # Where its condition fails it does not apply.
    other = make("abs", make("exp", graph.inputs[0]))
    assert even.rewrite(other, Context()) is None
    return [use.rule.name for use in rewriting.applications]


if __name__ == "__main__":
    main()
