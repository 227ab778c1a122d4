"""Which rules and which kernels are at fault, where a program is not what the model computes.

Rules are found on the graph, without a kernel: the rewritten graph is evaluated by PyTorch and held against the
captured one, and where it fails, uses of rules are dropped by halves (:func:`at_fault`) until what is left passes.
Kernels are found each by itself: one gets the inputs that PyTorch computed for it, and its results are held against the
operators that it replaces, in float64 and as PyTorch computes them.

What a search costs: for rules one evaluation in float64, and one rewriting and one evaluation for each halving (the
logarithm of the number of uses, for each that is at fault); for kernels one more build of their texts and two
evaluations of the graph, however many kernels there are. It ends at a given time with what is known then.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from kernelwright.algebra.engine import Rewriting, rewrite
from kernelwright.algebra.rule import Use
from kernelwright.codegen.generate import TARGETS, generate, support_text
from kernelwright.codegen.reference.plan import exact_reference, in_float64, widest
from kernelwright.device_lock import clock
from kernelwright.emit.launcher import Launcher, make_launcher
from kernelwright.failures import is_ours
from kernelwright.ir.evaluate import as_stored
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node
from kernelwright.ir.ops.leaves import literal_tensor
from kernelwright.ir.registry import torch_dtype
from kernelwright.plan.records import KernelStep, Plan, Step, TorchStep
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.problem.seeds import seeded
from kernelwright.roofline.devices import Device
from kernelwright.tune.regions import kernel_calls
from kernelwright.verify.compare import compare
from kernelwright.verify.memory import poisoned_empty
from kernelwright.verify.observe import identical
from kernelwright.verify.tolerance import Tolerance

Item = TypeVar("Item")
#: More culprits than these are not looked for one by one: what is left goes with them.
_MOST = 4


@dataclass(frozen=True, slots=True)
class Culprits:
    """What is at fault: uses of rules, or kernels. ``found``: what was wrong with the kernels, each time once."""

    rules: tuple[Use, ...] = ()
    kernels: tuple[KernelStep, ...] = ()
    found: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules or self.kernels)

    def like(self, plan: Plan) -> Culprits:
        """The same of another plan: rules at their lines, and the kernels for operators of the same lines."""
        covered = {(n.op, n.origin) for step in self.kernels for n in step.covers}
        kernels = [s for s in plan.kernels if any((n.op, n.origin) in covered for n in s.covers)]
        return Culprits(self.rules, tuple(kernels))


def at_fault(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool], until: float) -> list[Item]:
    """The items that must go for the others not to fail, found by halves; all, where even none of them fails.

    fails: whether a program with these items, in their order, fails; it is asked the logarithm of their number of times
    for each culprit. After the time ``until`` whole halves are given up.
    """
    left, culprits = list(items), []
    if not left or not fails(left):
        return []
    if fails([]):
        return left
    while True:
        passing, failing = 0, len(left)  # lengths of beginnings
        while failing - passing > 1 and clock() < until:
            middle = (passing + failing) // 2
            if fails(left[:middle]):
                failing = middle
            else:
                passing = middle
        culprits += left[passing:failing]
        del left[passing:failing]
        if clock() >= until or not left or not fails(left):
            return culprits
        if len(culprits) >= _MOST:
            return list(items)


def rules_at_fault(captured: Graph, rewriting: Rewriting, device: Device, values: Mapping[str, torch.Tensor],
                   place: torch.device, tolerance: Tolerance, until: float) -> list[Use]:
    """The uses of rules without which the rewritten graph gives what the captured one gives, evaluated by PyTorch.

    values: the leaves' by name, on the device ``place``. [] where the rewritten graph is right, or the captured one
    draws random numbers.
    """
    uses = list(dict.fromkeys(a.use for a in rewriting.applications))
    if not uses or any(n.get("serial", -1) >= 0 for n in captured.nodes()):
        return []

    def results(graph: Graph, *, wide: bool = False) -> list[Any]:
        with torch.no_grad(), place:
            return _evaluated([*graph.outputs, *(e.value for e in graph.effects)], values, {}, wide=wide)

    eager, exact = results(captured), results(captured, wide=True)

    def fails(kept: Sequence[Use]) -> bool:
        graph = rewriting.graph
        try:
            if len(kept) < len(uses):
                graph = rewrite(captured, device, rewriting.dropped | (set(uses) - set(kept))).graph
            return not compare(results(graph), eager, exact, tolerance=tolerance).passed
        except Exception as error:  # rules whose company is missing may fail otherwise
            if not is_ours(error) or is_out_of_memory(error):
                raise
            return True

    return at_fault(uses, fails, until)


def kernels_at_fault(plan: Plan, values: Mapping[str, torch.Tensor], target: str, device: torch.device,
                     build: Callable[[str], ctypes.CDLL], tolerance: Tolerance, until: float) -> Culprits:
    """The kernels that do not give what the operators give that they replace, on the inputs that these have there.

    values: the leaves' by name, on the device. build: makes the library of a text. A kernel whose text stands in
    several places is at fault in all of them.
    """
    _, sources = generate([plan], target)
    by_kernel = {(s.kernel, s.inputs, s.outputs): source for s, source in sources.items()}
    texts = {s: by_kernel[s.kernel, s.inputs, s.outputs] for s in plan.kernels}
    launchers: dict[KernelStep, Launcher] = {}
    for number, step in enumerate(texts):
        names = {n: f"v{i}" for i, n in enumerate(dict.fromkeys((*step.inputs, *step.outputs)))}
        launchers[step] = make_launcher(f"alone_{number}", [step], texts, lambda n: True, names.__getitem__,
                                        target=TARGETS[target])
    definitions = {t.name: t.definition for t in texts.values()}
    library = build("\n\n".join([support_text(texts.values(), target), *definitions.values(),
                                 *(x.text for x in launchers.values())]))
    wrong: dict[KernelStep, str] = {}
    with torch.no_grad(), seeded(0), device:
        for step, known in _walked(plan, values):
            if clock() >= until:
                break
            if isinstance(step, TorchStep):
                continue
            own = {n: known[n] for n in step.inputs}
            eager = [known[n] for n in step.outputs]
            exact = _evaluated(step.outputs, values, own, wide=True)
            calls = _calls(step, own, launchers, library, device)
            if sentence := _fault(calls, eager, exact, tolerance, texts[step].name):
                wrong[step] = sentence
    kernels = {s.kernel: sentence for s, sentence in wrong.items()}
    alike = [replace(s, name=texts[s].name) for s in plan.kernels if s.kernel in kernels]
    return Culprits(kernels=tuple(alike), found=tuple(kernels.values()))


def _calls(step: KernelStep, own: Mapping[Node, Any], launchers: dict[KernelStep, Launcher], library: ctypes.CDLL,
           device: torch.device) -> list[list[torch.Tensor]] | str:
    """A kernel's results for the inputs ``own``, of calls on memory that held something else; what it raises."""
    results = []
    for finite in (False, True):
        memory: dict[Node, torch.Tensor] = {n: v.contiguous().clone() for n, v in own.items()}
        with poisoned_empty(finite=finite):
            memory |= {n: torch.empty(n.shape, dtype=torch_dtype(n.dtype), device=device) for n in step.outputs}
            call = kernel_calls([step], launchers, library, device, memory)
        try:
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
        except RuntimeError as failure:
            return f"it raises {failure}"
        results.append([memory[n] for n in step.outputs])
    return results


def _fault(calls: list[list[torch.Tensor]] | str, eager: Sequence[Any], exact: Sequence[Any], tolerance: Tolerance,
           name: str) -> str:
    """What is wrong with a kernel's calls, or ""."""
    if isinstance(calls, str):
        return f"{name}: {calls}."
    if not identical(*calls):
        return f"{name}: it gives other bits on other memory."
    comparison = compare(calls[0], list(eager), list(exact), tolerance=tolerance, root=name)
    return "" if comparison.passed else comparison.sentence()


def _walked(plan: Plan, values: Mapping[str, torch.Tensor]) -> Iterator[tuple[Step, dict[Node, Any]]]:
    """The steps of a plan in order, each with the values of what it reads and gives, as PyTorch computes them."""
    reads = [s.inputs if isinstance(s, KernelStep) else s.node.inputs for s in plan.steps]
    last = {n: place for place, nodes in enumerate(reads) for n in nodes}
    known: dict[Node, Any] = {}
    for place, step in enumerate(plan.steps):
        wanted = [*reads[place], *(step.outputs if isinstance(step, KernelStep) else (step.node,))]
        known.update(zip(wanted, _evaluated(wanted, values, known), strict=True))
        yield step, known
        for node in wanted:
            if last.get(node, -1) <= place:
                known.pop(node, None)


def _evaluated(roots: Sequence[Node], values: Mapping[str, torch.Tensor], known: Mapping[Node, Any], *,
               wide: bool = False) -> list[Any]:
    """The values of nodes as PyTorch computes them from the ``known`` ones and the leaves. wide: in float64."""
    results: dict[Node, Any] = {}
    with in_float64() if wide else nullcontext():
        stack = list(roots)[::-1]
        while stack:
            node = stack[-1]
            if node in results:
                stack.pop()
            elif node in known:
                results[stack.pop()] = _widened(known[node]) if wide else known[node]
            elif missing := [i for i in node.inputs if i not in results]:
                stack += missing[::-1]
            else:
                results[stack.pop()] = _computed(node, [results[i] for i in node.inputs], values, wide)
    return [results[root] for root in roots]


def _computed(node: Node, inputs: list[Any], values: Mapping[str, torch.Tensor], wide: bool) -> Any:
    if node.op == "constant":
        return node["value"]
    if node.op == "literal":
        return literal_tensor(node, widest=wide)
    if node.kind == "leaf":
        value = as_stored(node, values[node["name"]])
        return _widened(value) if wide else value
    return exact_reference(node, inputs) if wide else node.operator.reference(*inputs, **dict(node.attributes))


def _widened(value: Any) -> Any:
    return widest(value) if isinstance(value, torch.Tensor) else value
