"""Runs the kernels of functions as compiled code, on either target, without an emitted file around them."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from graph_tools import filled, values_of
from plan_tools import Of

from kernelwright.algebra.engine import rewrite_with
from kernelwright.algebra.rule import Context
from kernelwright.capture.export import capture
from kernelwright.codegen.cuda.emulation.compile import compile_emulated
from kernelwright.codegen.generate import TARGETS, Target, generate, support_text
from kernelwright.codegen.source import KernelSource
from kernelwright.ir.evaluate import as_stored
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node
from kernelwright.ir.ops.leaves import literal_tensor
from kernelwright.ir.registry import torch_dtype
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelStep, Plan


def compiled(sources: Sequence[KernelSource], target: str, folder: Path) -> ctypes.CDLL:
    """The kernels as a library that exports each as ``run_NAME``; of the target cuda, for the emulation."""
    text = support_text(sources, target)
    for source in sources:
        signature = re.search(rf"static const char\* {source.name}(\([^)]*\))", source.definition)[1]
        passed = ", ".join(part.split()[-1].lstrip("*") for part in signature.strip("()").split(","))
        text += f'\n{source.definition}\n{TARGETS[target].syntax.external}const char* run_{source.name}{signature} ' \
                f"{{ return {source.name}({passed}); }}\n"
    if target == "cuda":
        return compile_emulated(text)
    path = folder / f"kernels.{TARGETS[target].suffix}"
    path.write_text(text)
    library = path.with_suffix(".so")
    command = [TARGETS[target].compiler[1], *TARGETS[target].flags, "-shared", "-fPIC", str(path), "-o", str(library),
               "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))


def aligned(size: int, dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor aligned to 256 bytes."""
    room = torch.empty(size * dtype.itemsize + 512, dtype=torch.uint8)
    start = -room.data_ptr() % 256
    return room[start:start + size * dtype.itemsize].view(dtype)


def launch(library: ctypes.CDLL, source: KernelSource, target: str, inputs: Sequence[torch.Tensor],
           outputs: Sequence[torch.Tensor]) -> None:
    """Run a kernel from :func:`compiled`; flat tensors."""
    workspace = aligned(source.workspace_bytes, torch.uint8).fill_(255)
    kept = []
    for tensor in inputs:
        kept.append(aligned(tensor.numel(), tensor.dtype))
        kept[-1].copy_(tensor.reshape(-1))
    function = getattr(library, f"run_{source.name}")
    function.restype = ctypes.c_char_p
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*kept, *outputs, workspace)]
    message = function(*pointers, *([None] if target == "cuda" else []))
    assert message is None, message


def planned(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[Graph, Plan]:
    """A function's graph and the plan of it rewritten."""
    graph = capture(Of(lambda m, *given: function(*given)), tuple(inputs))
    return graph, make_plan(rewrite_with(graph, Context())[0], graph)


class Natively:
    """Functions of tensors, compiled together for a target; each is called with the inputs that it was planned for.

    functions: by name, each with its inputs.
    """

    def __init__(self, functions: Mapping[str, tuple[Callable[..., Any], Sequence[torch.Tensor]]], target: str,
                 folder: Path) -> None:
        self.functions, self.target = dict(functions), target
        planned_ = {name: planned(*given) for name, given in self.functions.items()}
        plans, self.sources = generate([plan for _, plan in planned_.values()], target)
        self.plans = {name: (graph, plan) for (name, (graph, _)), plan in zip(planned_.items(), plans, strict=True)}
        distinct = {source.name: source for source in self.sources.values()}
        self.library = compiled(list(distinct.values()), target, folder)

    def __call__(self, name: str) -> list[torch.Tensor]:
        """The results of a function, flattened. At least one kernel runs, or the test would show nothing."""
        function, inputs = self.functions[name]
        graph, plan = self.plans[name]
        given = values_of(Of(lambda m, *given: function(*given)), graph, tuple(inputs))
        results: dict[Node, Any] = {}

        def value(node: Node) -> Any:
            if node in results:
                return results[node]
            if node.op == "constant":
                return node["value"]
            return literal_tensor(node) if node.op == "literal" else as_stored(node, given[node["name"]])

        assert any(isinstance(step, KernelStep) for step in plan.steps), name
        for step in plan.steps:
            if not isinstance(step, KernelStep):
                operands = [value(i) for i in step.node.inputs]
                results[step.node] = step.node.operator.reference(*operands, **dict(step.node.attributes))
                continue
            outputs = [aligned(n.size, torch_dtype(n.dtype)) for n in step.outputs]
            launch(self.library, self.sources[step], self.target, [value(i).contiguous() for i in step.inputs], outputs)
            results |= {n: t.reshape(n.shape) for n, t in zip(step.outputs, outputs, strict=True)}
        found = filled(graph.structure, [value(n) for n in plan.results])
        return list(torch.utils._pytree.tree_leaves(found))


def other_skeletons(change: Callable[[Callable[..., Any]], Callable[..., Any]], *kinds: type) -> dict[str, Target]:
    """The table of targets, with what ``change`` makes of the skeletons of some kinds of kernels (of all)."""
    return {name: replace(target, skeletons={kind: change(made) if kind in (kinds or target.skeletons) else made
                                             for kind, made in target.skeletons.items()})
            for name, target in TARGETS.items()}
