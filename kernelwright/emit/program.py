"""The Python side of a plan: the function that runs its steps, and its launchers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kernelwright.codegen.source import KernelSource
from kernelwright.emit.launcher import Launcher, make_launcher
from kernelwright.ir.graph import BufferUpdate
from kernelwright.ir.node import Node
from kernelwright.plan.records import KernelStep, Plan, Step, TorchStep


@dataclass(frozen=True, slots=True)
class Program:
    """The text of a run function and the launchers that it calls."""

    text: str
    launchers: tuple[Launcher, ...]


def in_runs(steps: tuple[Step, ...]) -> list[Step]:
    """The steps reordered so that kernels stand in long runs; dependencies and random draws keep their order."""
    remaining, done, result = list(steps), set(), []
    made = {n for s in steps for n in _outputs(s)}

    def ready(step: Step) -> bool:
        if isinstance(step, TorchStep) and step.node.get("serial", -1) >= 0:
            earlier = remaining[:remaining.index(step)]
            if any(isinstance(s, TorchStep) and s.node.get("serial", -1) >= 0 for s in earlier):
                return False
        return all(n in done or n not in made for n in _inputs(step))

    while remaining:
        kernels_first = bool(result) and isinstance(result[-1], KernelStep)
        candidates = [s for s in remaining if ready(s)]
        step = next((s for s in candidates if isinstance(s, KernelStep) == kernels_first), candidates[0])
        remaining.remove(step)
        done.update(_outputs(step))
        result.append(step)
    return result


def _inputs(step: Step) -> tuple[Node, ...]:
    return step.inputs if isinstance(step, KernelStep) else step.node.inputs


def _outputs(step: Step) -> tuple[Node, ...]:
    return step.outputs if isinstance(step, KernelStep) else (step.node,)


def counts_up(update: BufferUpdate) -> object | None:
    """The constant that an update adds to its buffer (the batch counter), or None."""
    value = update.value
    if value.op == "opaque" and value["target"] == "aten.add.Tensor" and len(value.inputs) == 1:
        leaf, template = value.inputs[0], value["template"]
        if leaf.op == "buffer" and leaf["name"] == update.name and template[0] == ("input", 0) \
                and isinstance(template[1], (int, float)) and value["keywords"] in ((), (("alpha", 1),)):
            return template[1]
    return None


def make_program(mode: str, plan: Plan, sources: Mapping[KernelStep, KernelSource], *, cuda: bool) -> Program:
    """The run function ``_kernelwright_<mode>`` of a plan."""
    counters = {u.value: u for u in plan.effects if counts_up(u) is not None}
    needed = {n for s in plan.steps for n in _inputs(s)} | set(plan.results)
    steps = in_runs(tuple(s for s in plan.steps if not (
        isinstance(s, TorchStep) and s.node in counters and s.node not in needed)))
    names = _names(steps)
    kernel_reads = {n for s in steps if isinstance(s, KernelStep) for n in s.inputs}
    lines: list[str] = []
    launchers: list[Launcher] = []
    place = 0
    while place < len(steps):
        step = steps[place]
        if isinstance(step, TorchStep):
            lines += _torch_lines(step.node, names, contiguous=step.node in kernel_reads)
            place += 1
            continue
        run = []
        while place < len(steps) and isinstance(steps[place], KernelStep):
            run.append(steps[place])
            place += 1
        inside = {n for s in run for n in s.outputs}
        others = {n for s in steps if s not in run for n in _inputs(s)}
        others |= set(plan.results) | {u.value for u in plan.effects}
        launcher = make_launcher(f"kernelwright_{mode}_{len(launchers)}", run, sources,
                                 (others & inside).__contains__, lambda n: names[n], cuda=cuda)
        launchers.append(launcher)
        lines += _launch_lines(launcher, names)
    for update in plan.effects:
        amount = counts_up(update)
        if amount is not None:
            lines.append(f'_tensor["{update.name}"].add_({amount!r})')
        else:
            lines.append(f'_tensor["{update.name}"].copy_({names[update.value]}.reshape(_tensor["{update.name}"].shape))')
    results = ", ".join(names[n] for n in plan.results)
    lines.append(f"return ({results},)")
    head = [f"def _kernelwright_{mode}(model, _tensor, *inputs):",
            f'    """The program of {mode} mode: {_summary(steps)}."""',
            "    _device = next(iter(_tensor.values())).device"]
    used = [n for n in names if n.kind == "leaf" and n.op != "literal"]
    head += [f'    {names[n]} = _tensor["{n["name"]}"]' for n in used]
    return Program("\n".join(head + [f"    {line}" for line in lines]), tuple(launchers))


def _summary(steps: list[Step]) -> str:
    kernels = sum(isinstance(s, KernelStep) for s in steps)
    calls = sum(isinstance(s, TorchStep) and s.node.kind != "view" for s in steps)
    return f"{kernels} kernel{'s' * (kernels != 1)}, {calls} torch call{'s' * (calls != 1)}"


def _names(steps: list[Step]) -> dict[Node, str]:
    """A Python (and C) name for every value of the program."""
    names: dict[Node, str] = {}
    taken = {"model", "inputs", "_tensor", "_device", "torch", "workspace", "stream", "tensors", "failure"}

    def name(node: Node, wanted: str) -> None:
        wanted = re.sub(r"\W", "_", wanted)
        unique, number = wanted, 2
        while unique in taken:
            unique, number = f"{wanted}_{number}", number + 1
        taken.add(unique)
        names[node] = unique

    for step in steps:
        for node in _inputs(step):
            if node not in names and node.kind == "leaf" and node.op not in ("constant", "literal"):
                name(node, node["name"])
    for step in steps:
        for number, node in enumerate(_outputs(step)):
            if isinstance(step, KernelStep):
                suffix = "" if len(step.outputs) == 1 else f"_{number}"
                name(node, f"{node.op}_{step.name.split('_')[0]}{suffix}")
            else:
                name(node, f"t{len(names)}_{node.op if node.op != 'opaque' else node['target'].split('.')[1]}")
    return names


def _text(node: Node, names: Mapping[Node, str]) -> str:
    if node in names:
        return names[node]
    return node.operator.code([], node)  # constants


def _torch_lines(node: Node, names: Mapping[Node, str], *, contiguous: bool) -> list[str]:
    code = node.operator.code([_text(i, names) for i in node.inputs], node)
    if code.startswith("F."):
        code = "torch.nn.functional." + code[2:]
    lines = []
    if node.origin is not None and node.origin.text and node.kind != "view":
        lines.append(f"# {node.origin.text}")
    needs_copy = contiguous and node.dtype != "tuple"
    lines.append(f"{names[node]} = {code}" + (".contiguous()" if needs_copy else ""))
    return lines


def _launch_lines(launcher: Launcher, names: Mapping[Node, str]) -> list[str]:
    lines = []
    for node in launcher.allocated:
        shape = ", ".join(map(str, node.shape)) + ("," if node.rank == 1 else "")
        lines.append(f"{names[node]} = torch.empty(({shape}), dtype=torch.{node.dtype}, device=_device)")
    passed = [f'_tensor["{a}"]' if isinstance(a, str) else names[a] for a in launcher.arguments]
    if launcher.workspace_bytes:
        lines.append(f"workspace = torch.empty({launcher.workspace_bytes}, dtype=torch.uint8, device=_device)")
        passed.append("workspace")
    lines.append(f'_kernelwright_launch("{launcher.name}", _device, {", ".join(passed)})')
    updated = [a for a in launcher.arguments if isinstance(a, str)]
    lines += [f'torch.autograd.graph.increment_version(_tensor["{name}"])' for name in updated]
    return lines
