"""Write kernels for another target: each element by itself, in C11 without any instruction of one processor alone.

In the package a target is a folder of codegen/, and its object stands in codegen/generate.py.
"""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch
from torch.nn import functional as F

from kernelwright.algebra.engine import rewrite
from kernelwright.capture.export import capture
from kernelwright.codegen.c.expressions import TYPES, Scope
from kernelwright.codegen.c.support import snippets
from kernelwright.codegen.c.text import definition, over, sizes_text, store_lines
from kernelwright.codegen.generate import TARGETS, generate, support_text
from kernelwright.codegen.loops.normal_form import normalise
from kernelwright.codegen.reference.loops import evaluate
from kernelwright.codegen.source import KernelSource, Unsuitable
from kernelwright.codegen.target import PLAIN_C, Target
from kernelwright.plan.kernels import LoopKernel
from kernelwright.plan.planner import make_plan
from kernelwright.roofline.devices import GENERIC_CPU


class Gate(torch.nn.Module):
    def forward(self, x, y):
        return torch.sigmoid(x * 2 + y) * F.silu(x.transpose(0, 1)).transpose(0, 1)


def pointwise(kernel: LoopKernel, name: str) -> KernelSource:
    """The skeleton: from a kernel's record, which says what is computed, to a text that computes it."""
    if kernel.row or kernel.reductions:
        raise Unsuitable("this target computes each element by itself")
    kernel = normalise(kernel)  # axes in the order of memory, one where they lie in one piece
    axes = [f"i{n}" for n in range(len(kernel.outer))]
    scope = Scope("v", kernel.input_dtypes, kernel.compute, axes)
    lines = scope.define([store.expression for store in kernel.outer_stores])
    lines += store_lines(kernel.outer_stores, kernel, scope)
    return definition(kernel, name, f"Each of {sizes_text(kernel.outer)} elements.", over(kernel.outer, axes, lines))


PORTABLE = Target(
    name="portable", language="C", device="cpu", types=TYPES, skeletons={LoopKernel: pointwise}, support=snippets,
    flags=("-O2", "-std=c11"), suffix="c", built_by="command", compiler=("CC", "cc"), syntax=PLAIN_C)


def build(source: KernelSource, inputs: int, outputs: int):
    """The kernel as a function of pointers: to its inputs, to its outputs, to a workspace."""
    folder = Path(tempfile.mkdtemp())
    names = ", ".join(f"p{n}" for n in range(inputs + outputs + 1))
    entry = f"const char* run({', '.join(f'void* {name}' for name in names.split(', '))})"
    text = support_text([source], PORTABLE.name) + source.definition + f"{entry} {{ return {source.name}({names}); }}\n"
    (folder / "kernel.c").write_text(text)
    subprocess.run([PORTABLE.compiler[1], *PORTABLE.flags, "-shared", "-fPIC", folder / "kernel.c", "-o",
                    folder / "kernel.so", "-lm"], check=True)
    function = ctypes.CDLL(str(folder / "kernel.so")).run
    function.restype = ctypes.c_char_p
    return function


def main() -> float:
    TARGETS[PORTABLE.name] = PORTABLE
    x, y = torch.randn(6, 50), torch.randn(6, 50)
    graph = capture(Gate(), (x, y))
    (plan,), sources = generate([make_plan(rewrite(graph, GENERIC_CPU).graph, graph)], PORTABLE.name)
    (step,) = plan.kernels
    print(sources[step].definition)

    # Every target must agree with what the record means, which stands in codegen/reference/ in PyTorch.
    given = {node["name"]: value for node, value in zip(graph.inputs, (x, y), strict=True)}
    tensors = [given[node["name"]] for node in step.inputs]
    result = torch.empty(6, 50)
    run = build(sources[step], len(tensors), 1)
    failure = run(*(ctypes.c_void_p(t.data_ptr()) for t in (*tensors, result)), None)
    assert failure is None, failure
    (meant,) = evaluate(step.kernel, tensors)
    off = float((result.double().flatten() - meant).abs().max())
    print(f"off by {off:.1e} from its meaning, by {float((result - Gate()(x, y)).abs().max()):.1e} from eager")
    return off


if __name__ == "__main__":
    main()
