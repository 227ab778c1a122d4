"""Run every kernel of a problem's plan alone on the device and compare it with its meaning in float64.

    python tools/check_kernels.py examples/convt_global_mean.py [--target cuda]

Finds which kernel is wrong when a certificate fails.
"""

from __future__ import annotations

import argparse
import ctypes

import torch

from kernelwright.build.library import build_library
from kernelwright.codegen.generate import TARGETS, chosen, generate, support_text
from kernelwright.codegen.reference.loops import evaluate as evaluate_loop
from kernelwright.emit.launcher import make_launcher
from kernelwright.ir.registry import torch_dtype
from kernelwright.pipeline import _load
from kernelwright.plan.kernels import LoopKernel
from kernelwright.programs import Stages, understand, written
from kernelwright.progress import Progress
from kernelwright.roofline.peaks import current_device
from kernelwright.settings import Settings


def main() -> None:
    """Print a row for each kernel: name, worst relative error of each output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--target", choices=("auto", *TARGETS), default="auto")
    options = parser.parse_args()
    target = TARGETS[chosen(options.target)]
    device, row = torch.device(target.device), current_device(target.device)
    settings = Settings(target=target.name)
    problem, example = _load(options.path, None, target.name, settings)
    modes, _ = understand(problem, example, row, settings, Stages(Progress()))
    for mode in written(problem, modes, example, target.name, row)[0]:
        plans, sources = generate([mode.plan], target.name)
        for step in plans[0].kernels:
            names = {n: f"v{i}" for i, n in enumerate(dict.fromkeys((*step.inputs, *step.outputs)))}
            launcher = make_launcher("check", [step], sources, lambda n: True, names.__getitem__, target=target)
            library = build_library("\n\n".join([support_text([sources[step]], target.name),
                                                 sources[step].definition, launcher.text]), target.name, "check")
            memory = {n: torch.rand(n.shape, dtype=torch_dtype(n.dtype), device=device) for n in step.inputs}
            outputs = {n: torch.full(n.shape, float("nan"), dtype=torch_dtype(n.dtype), device=device)
                       for n in step.outputs}
            buffers = {name: outputs[step.outputs[i]] for i, name in step.buffers}
            tensors = [buffers[a] if isinstance(a, str) else {**memory, **outputs}[a] for a in launcher.arguments]
            if launcher.workspace_bytes:
                tensors.append(torch.full((launcher.workspace_bytes,), 255, dtype=torch.uint8, device=device))
            addresses = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
            failure = library.check(addresses, torch.cuda.current_stream().cuda_stream if target.stream else None)
            if target.stream:
                torch.cuda.synchronize()
            values = [memory[n].double() for n in step.inputs]
            if isinstance(step.kernel, LoopKernel):
                expected = evaluate_loop(step.kernel, [v.cpu() for v in values], [n.size for n in step.outputs])
            else:
                node = step.covers[0]
                attributes = {**dict(node.attributes), **({"dtype": "float64"} if node.get("dtype") else {})}
                shaped = [v.reshape(i.shape) for v, i in zip(values, node.inputs, strict=True)]
                expected = [node.operator.reference(*shaped, **attributes)]
            errors = []
            for node, wanted in zip(step.outputs, expected, strict=True):
                wanted = wanted.reshape(node.shape).cpu().double()
                errors.append(float((outputs[node].cpu().double() - wanted).abs().max() / wanted.abs().max()))
            print(f"{mode.name:10} {step.name:32} {failure or ''} " + " ".join(f"{e:9.1e}" for e in errors), flush=True)


if __name__ == "__main__":
    main()
