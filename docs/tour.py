"""A tour of kernelwright: one small model through every stage, on one page. Run it: ``python docs/tour.py``.

Each stage is one call that takes what the stage before it made. What it prints is what the text beside it speaks of.
`docs/architecture.md` says what each folder holds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from kernelwright.algebra.engine import rewrite
from kernelwright.build.module import load_text
from kernelwright.capture.export import capture
from kernelwright.codegen.generate import generate
from kernelwright.codegen.reference.plan import run_plan, values_of
from kernelwright.ir.graph import render
from kernelwright.pipeline import explain
from kernelwright.plan.describe import meaning
from kernelwright.plan.planner import make_plan
from kernelwright.problem import load_problem
from kernelwright.roofline.devices import GENERIC_CPU
from kernelwright.verify import Plan as Trials
from kernelwright.verify import certify

MODEL = '''
import torch


class Model(torch.nn.Module):
    """A transposed convolution, its mean over all positions, and a softmax over the channels."""

    def __init__(self, channels):
        super().__init__()
        self.up = torch.nn.ConvTranspose2d(channels, 2 * channels, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x):
        x = self.up(x).mean(dim=(2, 3))
        return torch.softmax(x * 2, dim=1)


def get_inputs():
    return [torch.rand(8, 16, 48, 48)]


def get_init_inputs():
    return [16]
'''


def main() -> float:
    """Take the model through the stages; returns the largest difference of the emitted module's result from eager's."""
    folder = Path(tempfile.mkdtemp())
    (folder / "model.py").write_text(MODEL)

    # LOAD. A problem is a file: a class, its example inputs, the arguments of its constructor.
    problem = load_problem(folder / "model.py")
    model, inputs = problem.make_model(0), problem.make_inputs(0)

    # CAPTURE. The forward becomes a graph of nodes that never change: equal nodes are the same object.
    graph = capture(model, inputs)
    print("captured\n" + render(graph), end="\n\n")

    # REWRITE. Rules of algebra, where the roofline says that they pay. A mean over all positions of a convolution needs
    # sums of its input and the sum of its weights: the convolution is never computed. Every use of a rule is told.
    rewriting = rewrite(graph, GENERIC_CPU)
    print("rewritten\n" + render(rewriting.graph))
    for use in rewriting.applications:
        print(f"  by {use.rule.name}: {use.rule.law}")

    # PLAN. Groups of operators become kernels; what PyTorch does well stays a call of PyTorch.
    plan = make_plan(rewriting.graph, graph)
    print("\nplanned")
    for step in plan.kernels:
        print(f"  {step.name}: {meaning(step)}")

    # What a plan means can be run without any kernel, in PyTorch: the reference that every target is held against.
    (meant,), _ = run_plan(plan, values_of(model, graph, inputs))
    print(f"  in PyTorch it is off by {float((meant - model(*inputs).detach()).abs().max()):.1e}")

    # GENERATE. The text of each kernel, for a target: here C++ with OpenMP; "cuda" would write CUDA.
    (plan,), sources = generate([plan], "cpp")
    for source in sources.values():
        print(f"\ngenerated {source.name}: {len(source.definition.splitlines())} lines")

    # EMIT. All of the above again, as the product does it, and the file around the kernels.
    text = explain(folder / "model.py", target="cpp", device=GENERIC_CPU).source
    print(f"\nemitted: {len(text.splitlines())} lines")

    # BUILD. The file is imported, which compiles its kernels, once.
    emitted = load_text(text, "tour")

    def new() -> torch.nn.Module:
        made = emitted.ModelNew(*problem.init_inputs)
        made.load_state_dict(model.state_dict())
        return made

    # VERIFY. Model, candidate, and the model in float64, on several seeds and distributions of inputs. Trials change
    # the parameters of what they are given.
    certificate = certify(lambda: problem.make_model(0), new, problem.make_inputs, plan=Trials(budget_seconds=5))
    print(certificate.sentence())
    assert certificate.passed, certificate.sentence()
    with torch.no_grad():
        return float((new()(*inputs) - model(*inputs)).abs().max())


if __name__ == "__main__":
    print(f"off by {main():.1e} from eager")
