"""Regions: groups of loop kernels that together replace some operators, kept only where they win.

Collapses are not measured here: what they save is not a matter of percents. Fusions are: a region's
kernels run against the very torch calls that they would replace, on the device, and a region that
does not win stays with PyTorch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType

import torch

from kernelwright.build.library import build_library
from kernelwright.codegen.generate import generate, support_text
from kernelwright.emit.launcher import Launcher, make_launcher
from kernelwright.ir.node import Node, walk
from kernelwright.ir.ops.leaves import literal_tensor
from kernelwright.ir.registry import torch_dtype
from kernelwright.plan.kernels import Extremum, LoopKernel, Scan
from kernelwright.plan.records import KernelStep, Plan
from kernelwright.timing.clock import without_collector
from kernelwright.timing.rounds import measure
from kernelwright.timing.turns import exclusive, without_device
from kernelwright.tune.budget import Budget

SLOWER = "measured on this device: PyTorch is as fast"
# A region must take less than this share of PyTorch's time; one operator by itself must win clearly.
_WIN = 0.97
_WIN_ALONE = 0.9


def regions(plan: Plan) -> list[list[KernelStep]]:
    """Loop kernels that share a replaced operator, as groups; those with operators that only rules made are left."""
    groups: list[tuple[set[Node], list[KernelStep]]] = []
    for step in plan.kernels:
        covers, steps = set(step.covers), [step]
        for group in [g for g in groups if g[0] & covers]:
            groups.remove(group)
            covers |= group[0]
            steps = group[1] + steps
        groups.append((covers, steps))
    return [steps for covers, steps in groups
            if all(isinstance(s.kernel, (LoopKernel, Scan, Extremum)) and not s.copies for s in steps)
            and all(n.kind != "special" and n.op not in ("contract", "cast") for n in covers)]


def losing_regions(plan: Plan, device: torch.device, target: str, budget: Budget) -> dict[Node, str]:
    """The operators whose region does not win on the device, with the reason."""
    found = regions(plan)
    if not found:
        return {}
    _, sources = generate([plan], target)
    by_kernel = {(s.kernel, s.inputs, s.outputs): source for s, source in sources.items()}
    launchers: dict[KernelStep, Launcher] = {}
    texts = {s: by_kernel[s.kernel, s.inputs, s.outputs] for steps in found for s in steps}
    for number, step in enumerate(texts):
        names = {n: f"v{i}" for i, n in enumerate(dict.fromkeys((*step.inputs, *step.outputs)))}
        launchers[step] = make_launcher(f"region_{number}", [step], texts, lambda n: True, names.__getitem__,
                                        cuda=target == "cuda")
    definitions = {t.name: t.definition for t in texts.values()}
    with without_device():
        library = build_library("\n\n".join([support_text(texts.values(), target), *definitions.values(),
                                             *(x.text for x in launchers.values())]), target)
    lost: dict[Node, str] = {}
    wins: dict[Hashable, bool] = {}
    alike = {key: steps for steps in reversed(found) for key in [_form(steps)]}
    with exclusive(), without_collector():
        for form, steps in alike.items():
            calls = {"kernels": kernel_calls(steps, launchers, library, device), "torch": _torch(steps, device)}
            times = measure(calls, device=device, budget_seconds=budget.tune_seconds / len(alike))
            share = _WIN if len({n for s in steps for n in s.covers}) > 1 else _WIN_ALONE
            wins[form] = times["kernels"].median <= share * times["torch"].median
    for steps in found:
        if not wins[_form(steps)]:
            lost |= {n: SLOWER for s in steps for n in s.covers}
    return lost


def _form(steps: Sequence[KernelStep]) -> Hashable:
    """What two regions share that need the same time: a network repeats its blocks."""
    return tuple((s.kernel, tuple((n.op, n.attributes, n.shape, tuple((i.shape, i.dtype) for i in n.inputs))
                                  for n in s.covers)) for s in steps)


def tensor_for(node: Node, device: torch.device) -> torch.Tensor:
    """A value for a node of which only its type matters."""
    if node.op == "literal":
        return literal_tensor(node, device)
    if node.dtype.startswith(("int", "uint")):  # zero is an index into anything
        return torch.zeros(node.shape, dtype=torch_dtype(node.dtype), device=device)
    if node.dtype == "bool":
        return torch.rand(node.shape, device=device) > 0.5
    # Inside [0.5, 1]: no operator meets a special value, variances are positive, and it may be a probability (a loss
    # that refuses others would end the device's context).
    return 0.5 * torch.rand(node.shape, dtype=torch_dtype(node.dtype), device=device) + 0.5


def kernel_calls(steps: Sequence[KernelStep], launchers: dict[KernelStep, Launcher], library: ctypes.CDLL,
                 device: torch.device, given: Mapping[Node, torch.Tensor] = MappingProxyType({})) -> Callable[[], None]:
    """A call of kernel steps on the ``given`` tensors, and on some of their own for other nodes. It raises RuntimeError
    where a launch fails."""
    memory: dict[Node | str, torch.Tensor] = dict(given)
    for step in steps:
        for node in (*step.inputs, *step.outputs):
            if node not in memory:
                memory[node] = tensor_for(node, device)
        memory.update({name: memory[step.outputs[number]] for number, name in step.buffers})
    prepared = []
    for step in steps:
        launcher = launchers[step]
        tensors = [memory[a] for a in launcher.arguments]
        if launcher.workspace_bytes:
            tensors.append(torch.empty(launcher.workspace_bytes, dtype=torch.uint8, device=device))
        addresses = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
        prepared.append((getattr(library, launcher.name), addresses, tensors))

    def call() -> None:
        stream = torch.cuda.current_stream().cuda_stream if device.type == "cuda" else None
        for function, addresses, _ in prepared:
            failure = function(addresses, stream)
            if failure:
                raise RuntimeError(failure.decode(errors="replace"))

    return call


def _torch(steps: Sequence[KernelStep], device: torch.device) -> Callable[[], object]:
    """The torch calls of the operators that a region replaces."""
    covers = {n for s in steps for n in s.covers}
    order = [n for n in walk(covers) if n in covers or (n.kind == "view" and any(i in covers for i in walk([n])))]
    outer = {i for n in order for i in n.inputs if i not in order}
    given = {n: n["value"] if n.op == "constant" else tensor_for(n, device) for n in outer}

    # Of a convolution a region covers the bias alone.
    products = {n: tensor_for(n, device) for n in order if n.op == "convolution"}

    def call() -> object:
        values = dict(given)
        with torch.no_grad():
            for node in order:
                if node in products:
                    bias = values[node.inputs[2]]
                    values[node] = products[node] + bias.view(1, -1, *(1,) * (node.rank - 2))
                    continue
                values[node] = node.operator.reference(*(values[i] for i in node.inputs), **dict(node.attributes))
        return values

    return call
