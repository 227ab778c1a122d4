"""A plan in words: what each kernel does, what stays with PyTorch and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kernelwright.algebra.engine import Rewriting
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node, Origin
from kernelwright.plan.kernels import LoopKernel, RegionSum, SpectralEnergy
from kernelwright.plan.records import KernelStep, Plan, TorchStep
from kernelwright.records import Kept, KernelUse, Mode, RuleUse, Work
from kernelwright.roofline.cost import floor, graph_work
from kernelwright.roofline.devices import Device

_LIBRARY = "a contraction that PyTorch's library does well"
_UNKNOWN = "no kernel of ours for it"


def place(origin: Origin | None) -> str:
    """The user's line, or the module's path."""
    if origin is None:
        return ""
    if origin.line:
        return f"{origin.file.rsplit('/', 1)[-1]}:{origin.line}: {origin.text}"
    return origin.module


def title(node: Node) -> str:
    """An operator's name as a reader knows it."""
    if node.op == "opaque":
        return node["target"].removeprefix("aten.").rsplit(".", 1)[0]
    if node.op == "convolution":
        rank = len(node["stride"])
        return f"conv_transpose{rank}d" if node["transposed"] else f"conv{rank}d"
    return node.op


def meaning(step: KernelStep) -> str:
    """One sentence on what a kernel computes."""
    kernel = step.kernel
    if isinstance(kernel, RegionSum):
        return (f"sums of {list(kernel.shape)} over classes of positions, one pass, to {list(kernel.output_shape)}")
    if isinstance(kernel, SpectralEnergy):
        return (f"energy of {kernel.groups * kernel.out_channels} output channels through the input's spectrum on "
                f"{'x'.join(map(str, kernel.lengths))} points, without the output")
    words = [title(n) for n in step.covers]
    shown = ", ".join(list(dict.fromkeys(words))[:8])
    if not kernel.reductions:
        return f"pointwise over {list(kernel.outer)}: {shown}"
    kinds = ", ".join(dict.fromkeys(r.kind for r in kernel.reductions))
    return f"{kinds} over rows of {list(kernel.row)} for each of {list(kernel.outer)}: {shown}"


def rule_uses(rewriting: Rewriting) -> tuple[RuleUse, ...]:
    """The rules that were applied, one entry per rule and line."""
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], RuleUse] = {}
    for use in rewriting.applications:
        key = (use.rule.name, place(use.origin))
        counts[key] += 1
        first.setdefault(key, RuleUse(use.rule.name, use.rule.law, use.rule.condition, use.rule.exactness.value,
                                      key[1], use.before, use.after))
    return tuple(RuleUse(u.name, u.law, u.condition, u.exactness, u.where, u.before, u.after, counts[k])
                 for k, u in first.items())


def kept_uses(plan: Plan) -> tuple[Kept, ...]:
    """The operators that stay torch calls; views cost nothing and are not mentioned."""
    result = []
    for step in plan.steps:
        if not isinstance(step, TorchStep) or step.node.kind in ("view", "leaf") or step.node.op == "item":
            continue
        if any(update.value is step.node for update in plan.effects):
            continue  # a batch counter
        node = step.node
        same = (r for n, r in plan.kept.items() if n is node or (n.op == node.op and n.origin is node.origin))
        reason = next(same, _LIBRARY if node.kind == "linear" else _UNKNOWN)
        result.append(Kept(title(node), place(node.origin), reason))
    return tuple(result)


def kernel_uses(plan: Plan) -> tuple[KernelUse, ...]:
    """The kernels with their meaning."""
    kinds = {LoopKernel: "loop", RegionSum: "region sum", SpectralEnergy: "spectral energy"}
    return tuple(KernelUse(s.name, kinds[type(s.kernel)], meaning(s),
                           tuple(dict.fromkeys(f"{title(n)} ({place(n.origin)})" for n in s.covers)))
                 for s in plan.kernels)


def describe(name: str, captured: Graph, rewriting: Rewriting, plan: Plan, device: Device, *, texts: tuple[str, str]
             ) -> Mode:
    """Everything that is known of a mode before anything ran."""
    operators = [n for n in captured.operators() if n.kind != "view" and n.op != "item"]
    before, after = graph_work(captured.roots()), graph_work(rewriting.graph.roots())
    kept = kept_uses(plan)
    seconds, words = floor(rewriting.graph.roots(), device)
    stays = _count(kept, operators)
    return Mode(name, len(operators), len(operators) - stays if plan.kernels else 0,
                rule_uses(rewriting) if plan.kernels else (), kernel_uses(plan), kept,
                Work(before.operations, before.bytes), Work(after.operations, after.bytes), seconds, words,
                graph=texts[0], rewritten=texts[1])


def _count(kept: Iterable[Kept], operators: list[Node]) -> int:
    known = Counter((title(n), place(n.origin)) for n in operators)
    stays = Counter((k.operator, k.where) for k in kept)
    return sum(min(known[key], count) for key, count in stays.items())
