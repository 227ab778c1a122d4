"""A plan in words: what each kernel does, what stays with PyTorch and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod

from kernelwright.algebra.engine import Rewriting
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node, Origin, walk
from kernelwright.ir.ops.lookups import TABLES
from kernelwright.ir.registry import torch_dtype
from kernelwright.plan.contraction.record import Contraction, TargetTiling
from kernelwright.plan.kernels import (
    Attention,
    BatchedProduct,
    Extremum,
    LoopKernel,
    Recurrence,
    RegionSum,
    Scan,
    SpectralEnergy,
)
from kernelwright.plan.reading.pieces import COPIES
from kernelwright.plan.records import KernelStep, Plan, TorchStep, Unrolled
from kernelwright.records import ContractionUse, Kept, KernelUse, Mode, RuleUse, Work
from kernelwright.roofline.cost import floor, graph_work
from kernelwright.roofline.devices import Device

_LIBRARY = "a contraction that PyTorch's library does well"
_UNKNOWN = "no kernel of ours for it"
_COPY = "a copy that PyTorch does well; no kernel reads through it"
# Why an operator without a form in kernels stays a torch call, by the names that titles have.
_REASONS = {
    **dict.fromkeys(("embedding", "gather", "index", "index_select", "one_hot", "take"),
                    "its elements are chosen by indices in memory: one pass that PyTorch does well"),
    "embedding_bag": "bags whose lengths are in memory, or largest ones: one pass that PyTorch does well",
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_put", "index_fill",
                     "masked_scatter", "bincount"),
                    "many indices may name one element: PyTorch goes through them once, where a kernel in a fixed "
                    "order would look at all of them for each element"),
    **dict.fromkeys(("topk", "sort", "argsort", "kthvalue", "median", "mode", "unique_consecutive"),
                    "it puts elements in order, which PyTorch's library does well"),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"),
                    "a recurrent layer, for which PyTorch's library has a kernel of its own"),
    **dict.fromkeys(("dropout", "feature_dropout", "bernoulli", "randn", "rand", "randn_like", "rand_like"),
                    "it draws from PyTorch's random stream"),
    **dict.fromkeys(("zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "arange", "eye", "linspace"),
                    "it makes a constant tensor"),
    "scaled_dot_product_attention": "PyTorch's own fused attention",
}


def place(origin: Origin | None) -> str:
    """The user's line, or the module's path."""
    if origin is None:
        return ""
    if origin.line:
        return f"{origin.file.rsplit('/', 1)[-1]}:{origin.line}: {origin.text}"
    return origin.module


_TITLES = {"border": "pad", "resampled": "interpolate", "sampled": "grid_sample", "scattered": "scatter"}


def title(node: Node) -> str:
    """An operator's name as a reader knows it."""
    if node.op == "opaque":
        return node["target"].removeprefix("aten.").rsplit(".", 1)[0]
    if node.op == "convolution":
        rank = len(node["stride"])
        return f"conv_transpose{rank}d" if node["transposed"] else f"conv{rank}d"
    if node.op == "taken":
        return "index" if node["wraps"] or node["axes"][0] else "embedding"
    return _TITLES.get(node.op, node.op)


def meaning(step: KernelStep) -> str:
    """One sentence on what a kernel computes."""
    kernel = step.kernel
    if isinstance(kernel, RegionSum):
        return (f"sums of {list(kernel.shape)} over classes of positions, one pass, to {list(kernel.output_shape)}")
    if isinstance(kernel, SpectralEnergy):
        return (f"energy of {kernel.groups * kernel.out_channels} output channels through the input's spectrum on "
                f"{'x'.join(map(str, kernel.lengths))} points, without the output")
    if isinstance(kernel, Recurrence):
        shape, count = "x".join(map(str, kernel.shape)), len(kernel.updates)
        gates = f"{kernel.gates} product{'s' * (kernel.gates > 1)} with the state and " if kernel.weights else ""
        return (f"{kernel.steps} steps of a recurrence of {'a state' if count == 1 else f'{count} states'} of {shape}: "
                f"{gates}all that follows")
    if isinstance(kernel, Attention):
        weights = "causal " * kernel.causal + "softmax of " * kernel.softmax
        narrow = f" in {kernel.compute}, sums in float32" if kernel.compute != "float32" else ""
        return (f"{kernel.batch} times {kernel.rows} rows: {weights}products of {kernel.depth} elements with "
                f"{kernel.columns} columns, times their {kernel.width} values{narrow}; no product is stored")
    if isinstance(kernel, BatchedProduct):
        rows, columns, depth = kernel.sizes
        return (f"{kernel.groups} products of {rows} x {depth} and {depth} x {columns} matrices, which are read where "
                "they lie, float32 multiply-adds: " + ", ".join(list(dict.fromkeys(title(n) for n in step.covers))[:8]))
    if step.copies:
        return f"copy in another order of axes: {list(step.inputs[0].shape)} to {list(step.outputs[0].shape)}"
    words = [title(n) for n in step.covers]
    if isinstance(kernel, Contraction):
        kinds = ", ".join(dict.fromkeys(r.kind for r in kernel.all_reductions))
        over = f", {kinds} over {_reduced(kernel)}" if kinds else ""
        shown = ", ".join(list(dict.fromkeys(words))[:8])
        return f"{products(kernel)}{_PASSES[step.pass_number]}, {SCHEMES[kernel.scheme]}{over}: {shown}"
    shown = ", ".join(list(dict.fromkeys(words))[:8])
    if isinstance(kernel, Extremum):
        return f"{kernel.kind} with its place along {kernel.length} positions for each of {list(kernel.outer)}: {shown}"
    if isinstance(kernel, Scan):
        return f"running {kernel.kind} along {kernel.length} positions for each of {list(kernel.outer)}: {shown}"
    if not kernel.reductions:
        return f"pointwise over {list(kernel.outer)}: {shown}"
    kinds = ", ".join(dict.fromkeys(r.kind for r in kernel.reductions))
    return f"{kinds} over rows of {list(kernel.row)} for each of {list(kernel.outer)}: {shown}"


SCHEMES = {
    "fp16x3": "fp16x3 on tensor cores (float32 operands split into two float16 terms, three products)",
    "fp16": "fp16 on tensor cores (float32 operands scaled and rounded to 11 bits, as TF32 has)",
    "native": "16-bit operands on tensor cores, sums in float32",
    "float32": "float32 multiply-adds",
    "correlation": "from products of x with itself in float64, so that no sum is formed",
}


# What a contraction is computed for that is recomputed, by the number of the pass.
_PASSES = {0: "", 1: ", for statistics alone, which take less to store",
           2: ", a second time, as their statistics are known now"}


def _reduced(kernel: Contraction) -> str:
    """What a contraction's kernel reduces, in words."""
    if kernel.position_reductions:
        return f"the {prod(kernel.domain[3:])} positions of each channel"
    if kernel.pools:
        lines = f" of each {kernel.pool_lines} lines" if kernel.pool_lines > 1 else ""
        planes = f" in each {kernel.pool_planes} planes" if kernel.pool_planes > 1 else ""
        return f"each {kernel.pool_size} positions along the last axis{lines}{planes}"
    return f"the {kernel.out_channels} channels of each position"


def products(kernel: Contraction) -> str:
    """The sizes of a contraction."""
    window = "x".join(str(a.kernel) for a in kernel.axes)
    rows = kernel.batch * prod(a.out_size for a in kernel.axes)
    if all(a.kernel == 1 for a in kernel.axes):
        times = f"{kernel.groups} products" if kernel.groups > 1 else "product"
        return f"{times} of {rows} x {kernel.in_channels} and {kernel.in_channels} x {kernel.out_channels}"
    groups = f" in each of {kernel.groups} groups" if kernel.groups > 1 else ""
    sizes = "x".join(str(a.out_size) for a in kernel.axes)
    return (f"sums over {kernel.in_channels} channels and a window of {window} for {kernel.out_channels} "
            f"channels{groups} at {kernel.batch} x {sizes} positions")


def tiling_words(tiling: TargetTiling | int | None) -> str:
    """What a contraction's kernel does, or ``schedule 2``; "" where the generator chose."""
    if tiling is None:
        return ""
    return f"schedule {tiling}" if isinstance(tiling, int) else tiling.words


def contraction_use(step: KernelStep, plan: Plan, device: Device) -> ContractionUse | None:
    """How a contraction's kernel works and what was measured of it; None for other kernels."""
    if not isinstance(step.kernel, Contraction):
        return None
    node = step.covers[0]
    operations = node.operator.operations(node)
    config = plan.contractions.get(node)
    if config is not None and step.pass_number == 2:
        config = config.recompute
    measurement = config.measurement if config is not None else None
    tiling = tiling_words(step.kernel.tiling)
    if measurement is None:
        return ContractionUse(step.kernel.scheme, tiling, operations)
    tf32 = node.op == "convolution" and not node.get("exact")
    moved = sum(n.bytes for n in (*step.inputs, *step.outputs)) / device.memory_peak
    least = max(moved, operations / device.best_arithmetic(torch_dtype(node.dtype), tf32=tf32))
    return ContractionUse(step.kernel.scheme, tiling, operations, measurement.seconds, measurement.torch_seconds,
                          measurement.error,
                          measurement.torch_error, least / measurement.seconds)


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
    """The operators that stay torch calls; views, and what says where kernels find elements, cost nothing and are not
    mentioned."""
    result = []
    for step in plan.steps:
        if not isinstance(step, TorchStep) or step.node.kind in ("view", "leaf") or step.node.op == "item":
            continue
        if step.node.op in TABLES or any(update.value is step.node for update in plan.effects):
            continue  # made once, or a batch counter
        node = step.node
        same = (r for n, r in plan.kept.items() if not isinstance(r, Unrolled)
                and (n is node or (n.op == node.op and n.origin == node.origin)))
        reason = next(same, _LIBRARY if node.kind == "linear" else _COPY if node.op in COPIES else
                      _REASONS.get(title(node), _UNKNOWN))
        result.append(Kept(title(node), place(node.origin), reason))
    return tuple(result)


def kernel_uses(plan: Plan, device: Device) -> tuple[KernelUse, ...]:
    """The kernels with their meaning."""
    kinds = {LoopKernel: "loop", RegionSum: "region sum", SpectralEnergy: "spectral energy",
             Scan: "scan", Extremum: "extremum", Recurrence: "recurrence", Attention: "attention",
             BatchedProduct: "batched product",
             Contraction: "contraction"}
    return tuple(KernelUse(s.name, kinds[type(s.kernel)], meaning(s),
                           tuple(dict.fromkeys(f"{title(n)} ({place(n.origin)})" for n in s.covers)),
                           contraction_use(s, plan, device))
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
                rule_uses(rewriting) if plan.kernels else (), kernel_uses(plan, device), kept,
                Work(before.operations, before.bytes), Work(after.operations, after.bytes), seconds, words,
                graph=texts[0], rewritten=texts[1], simplification=_simplification(captured, rewriting.graph, plan),
                layout=plan.layout)


def _simplification(captured: Graph, rewritten: Graph, plan: Plan) -> str:
    """See :attr:`kernelwright.records.Mode.simplification`."""
    if not plan.kernels and rewritten is captured:
        return ""
    if captured.outputs and not any(n.op == "input" for n in walk(rewritten.outputs)):
        return "constant"
    before = [n for n in captured.nodes() if n.kind == "linear"]
    after = [n for n in rewritten.nodes() if n.kind == "linear" or n.op == "channel_energy"]
    removed = sum(n.operator.operations(n) for n in before) - sum(n.operator.operations(n) for n in after)
    return "eliminated" if before and 2 * removed > graph_work(captured.roots()).operations else ""


def _count(kept: Iterable[Kept], operators: list[Node]) -> int:
    known = Counter((title(n), place(n.origin)) for n in operators)
    stays = Counter((k.operator, k.where) for k in kept)
    return sum(min(known[key], count) for key, count in stays.items())
