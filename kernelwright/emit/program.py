"""The Python side of a plan: the function that runs its steps, and its launchers."""

from __future__ import annotations

import builtins
import heapq
import keyword
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from kernelwright.codegen.source import KernelSource
from kernelwright.codegen.target import Target
from kernelwright.emit.facts import plan_parts, plan_tensors
from kernelwright.emit.launcher import Launcher, ascii_word, make_launcher
from kernelwright.emit.lines import comment
from kernelwright.emit.once import made_once
from kernelwright.emit.results import computed_results, given_results, known, other_strides, updated_buffer
from kernelwright.emit.reuse import Memory, in_place, written_over
from kernelwright.ir.graph import BufferUpdate, in_own_order
from kernelwright.ir.node import Node
from kernelwright.plan.records import KernelStep, Plan, Step, TorchStep

# What generated Python calls its own variables and modules, besides the language's own words.
_TAKEN = frozenset(("_device", "_stream", "_parts", "torch", "workspace", *keyword.kwlist, *dir(builtins)))
_OURS = re.compile(r"_kernelwright|t\d")  # how functions of the file and views of results begin


@dataclass(frozen=True, slots=True)
class Program:
    """The text of a run function and the launchers that it calls. ``in_place``: the kernels that write into an input's
    memory, by name, and the numbers of these inputs."""

    text: str
    launchers: tuple[Launcher, ...]
    in_place: frozenset[tuple[str, int]] = frozenset()

    def is_like(self, other: Program) -> bool:
        """Whether the two have the same texts."""
        return self.text == other.text and [x.text for x in self.launchers] == [x.text for x in other.launchers]


def in_runs(steps: tuple[Step, ...]) -> list[Step]:
    """The steps reordered so that kernels stand in long runs; dependencies and random draws keep their order."""
    made = {n: place for place, step in enumerate(steps) for n in _outputs(step)}
    waits: list[set[int]] = []  # for each step, the steps that must come before it and have not come yet
    draw: int | None = None
    for place, step in enumerate(steps):
        waits.append({made[n] for n in _inputs(step) if n in made})
        if isinstance(step, TorchStep) and step.node.get("serial", -1) >= 0:
            waits[place] |= set() if draw is None else {draw}
            draw = place
    readers: list[list[int]] = [[] for _ in steps]
    for place, needed in enumerate(waits):
        for before in needed:
            readers[before].append(place)
    ready: dict[bool, list[int]] = {True: [], False: []}  # first ones first, kernels apart

    def offer(place: int) -> None:
        heapq.heappush(ready[isinstance(steps[place], KernelStep)], place)

    for place, needed in enumerate(waits):
        if not needed:
            offer(place)
    result: list[Step] = []
    while ready[True] or ready[False]:
        kernels = bool(result) and isinstance(result[-1], KernelStep)
        place = heapq.heappop(ready[kernels] or ready[not kernels])
        result.append(steps[place])
        for reader in readers[place]:
            waits[reader].discard(place)
            if not waits[reader]:
                offer(reader)
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


def make_program(mode: str, plan: Plan, sources: Mapping[KernelStep, KernelSource], *, target: Target,
                 bytes_of: Callable[[Node], int] = attrgetter("bytes"), alike: bool = True) -> Program:
    """The run function ``_kernelwright_<mode>(_device, _stream, *tensors)`` of a plan.

    bytes_of: how much of a workspace a value has. alike: whether memory may be asked for by an argument of the same
    shape; what is alike at some sizes is not at others.

    The tensors are the graph's inputs and then those of :func:`kernelwright.emit.facts.plan_tensors`; where submodules
    stay with PyTorch, ``_parts`` follows: a list of them and how they are called.
    """
    counters = {u.value: u for u in plan.effects if counts_up(u) is not None}
    checked = [c.value for c in plan.checks]
    needed = {n for s in plan.steps for n in _inputs(s)} | {*plan.results, *checked}
    steps = in_runs(tuple(s for s in plan.steps if not (
        isinstance(s, TorchStep) and s.node in counters and s.node not in needed)))
    given = [n for n in plan.graph.inputs if n is not None]
    tensors = plan_tensors(plan)
    names = _names([*given, *tensors.values()], steps)
    places = {name: names[leaf] for name, leaf in tensors.items()}
    kernel_reads = {n for s in steps if isinstance(s, KernelStep) for n in s.inputs}
    read_after = {*computed_results(plan), *checked, *(u.value for u in plan.effects)}
    steps = _without_unread(steps, read_after)
    once = made_once(steps, (*plan.results, *checked))
    # What calls of each run write into is filled anew: a copy of what is kept would be read besides.
    over = written_over(steps, read_after).difference(s.node for s in once)
    filled = {node.inputs[0] for node in over}
    once = [s for s in once if s.node not in filled]
    steps = [s for s in steps if s not in once]
    # Memory for what the caller gets in another shape is asked for in that shape.
    returned = _returned_reshaped(steps, read_after)
    steps = [s for s in steps if not (isinstance(s, TorchStep) and s.node in returned.values())]
    names |= {shape: names[made] for made, shape in returned.items()}
    read_after.update(returned)
    # What is a view to the caller, and to a call that draws numbers in the order of memory, may be a copy to kernels.
    called = {s.node for s in steps if isinstance(s, TorchStep)}
    drawn_over = [n for s in steps if isinstance(s, TorchStep) and s.node.get("serial", -1) >= 0 for n in s.node.inputs]
    looked_at = {below: None for n in (*computed_results(plan), *drawn_over) for below in _views_below(n)}
    shown = {n: f"{names[n]}_shown" for n in looked_at if n in kernel_reads and n in called}
    seen = {**names, **shown}
    read = {n for s in steps for n in _inputs(s)} | {u.value for u in plan.effects}
    maker, lines = _once_lines(mode, once, read, names, kernel_reads, target=target)
    launchers: list[Launcher] = []
    readers = _readers(steps)
    memory = Memory(steps, (*read_after, *looked_at)) if target.sharing is not None else None
    inputs_taken: set[tuple[str, int]] = set()
    place = 0
    last = _last_reads(steps, read_after)
    while place < len(steps):
        step = steps[place]
        if isinstance(step, TorchStep):
            outside = step.node.get("serial", -1) >= 0 or (step.node.kind == "view" and step.node in looked_at)
            lines += _torch_lines(step.node, names, places, given=seen if outside else names,
                                  contiguous=step.node in kernel_reads, target=target,
                                  shown=shown.get(step.node, ""), over=step.node in over,
                                  read=step.node in read_after or readers[step.node] > 0)
            done = [names[n] for n in last[place]]
            place += 1
        else:
            run: list[KernelStep] = []
            begin = place
            while place < len(steps) and isinstance(step := steps[place], KernelStep):
                run.append(step)
                place += 1
            inside = {n for s in run for n in s.outputs}
            readers_inside = _readers(run)
            others = {n for n in inside if n in read_after or readers[n] > readers_inside[n]}
            launcher = make_launcher(f"kernelwright_{mode}_{len(launchers)}", run, sources,
                                     others.__contains__, lambda n: names[n], target=target, bytes_of=bytes_of)
            launchers.append(launcher)
            taken: dict[Node, Node] = {}
            for number, made in enumerate(run, begin):
                i = memory.taken(number) if memory is not None and made.outputs[0] in others else None
                if i is not None and made.inputs[i] not in inside:
                    taken[made.outputs[0]] = made.inputs[i]
                    inputs_taken.add((sources[made].name, i))
            lines += _launch_lines(launcher, names, places, taken, returned, alike=alike)
            done = [names[n] for some in last[begin:place] for n in some if n not in inside or n in others]
            done += ["workspace"] if launcher.workspace_bytes else []
        if done and place < len(steps):
            lines.append(f"del {', '.join(done)}")
    asserted = [c.value for c in plan.checks if target.asserts_late and not c.waited]
    lines += [f"torch._assert_async({_text(n, names)})" for n in asserted]
    if required := [_text(n, names) for n in checked if n not in asserted]:
        lines.append(f"_kernelwright_require({', '.join(required)})")
    for update in plan.effects:
        amount, buffer = counts_up(update), places[update.name]
        if amount is not None:
            lines.append(f"{buffer}.add_({amount!r})")
        else:
            lines.append(f"{buffer}.copy_({_text(update.value, names)}.reshape({buffer}.shape))")
    seen = {**names, **shown}
    strides = other_strides(plan)
    results = "".join(f"{_result_text(n, strides.get(n), seen)}, " for n in computed_results(plan))
    lines.append(f"return ({results.strip()})")
    numbers = [call.number for call in plan_parts(plan)]
    lines = [re.sub(r"\b_numbered\[(\d+)\]", lambda found: f"_parts[{numbers.index(int(found[1]))}]", line)
             for line in lines]
    arguments = ["_device", "_stream", *(names[n] for n in given), *places.values(), *(["_parts"] if numbers else [])]
    head = [f"def _kernelwright_{mode}({', '.join(arguments)}):",
            f'    """The program of {mode} mode: {_summary(steps)}."""']
    text = [*maker, *head, *(f"    {line}" for line in lines), *_given_lines(mode, plan, given)]
    return Program("\n".join(text), tuple(launchers), frozenset(inputs_taken))


def _result_text(node: Node, strides: tuple[int, ...] | None, names: Mapping[Node, str]) -> str:
    """A computed result as eager has it in memory, with these strides (None: as the program has it)."""
    text = _text(node, names)
    return text if strides is None else f"_kernelwright_laid({text}, {strides!r})"


def _given_lines(mode: str, plan: Plan, given: list[Node]) -> list[str]:
    """The function that gives the results for which nothing is computed: tensors of the call, and views of them."""
    numbers = given_results(plan)
    if not numbers:
        return []
    tensors = plan_tensors(plan)
    leaves = [*given, *tensors.values()]
    names = _names(leaves, [])
    # Tensors come as the caller has them, not as kernels read them.
    for leaf in leaves:
        if leaf.get("order") is not None:
            names[in_own_order(leaf)], names[leaf] = names[leaf], f"{names[leaf]}.permute({leaf['order']!r})"
    own = {in_own_order(leaf) for leaf in leaves}
    lines: list[str] = []
    texts: dict[int, str] = {}  # by number of the result
    returned: set[str] = set()
    for number in numbers:
        if buffer := updated_buffer(plan, number):
            texts[number] = names[in_own_order(tensors[buffer])]
            returned.add(texts[number])
            continue
        chain, node = [], plan.results[number]
        while node not in names:
            chain.append(node)
            node = node.inputs[0]
        for view in reversed(chain):
            names[view] = f"t{len(names)}_{view.op}"
            lines.append(f"{names[view]} = {view.operator.code([names[view.inputs[0]]], view)}")
        result = plan.results[number]
        is_new = known(plan, number).given is None and (result in own or names[result] in returned)
        texts[number] = f"{names[result]}.view_as({names[result]})" if is_new else names[result]
        returned.add(texts[number])
    head = f"def _kernelwright_{mode}_given({', '.join(names[in_own_order(leaf)] for leaf in leaves)}):"
    return ["", "", head, f'    """Results of {mode} mode that are tensors of the call, or views of them."""',
            *(f"    {line}" for line in (*lines, f"return ({', '.join(texts.values())},)"))]


def _views_below(node: Node) -> Iterator[Node]:
    """A node, and what it is a view of."""
    yield node
    while node.kind == "view":
        node = node.inputs[0]
        yield node


def _readers(steps: Iterable[Step]) -> Counter[Node]:
    """How many steps read each value."""
    return Counter(n for step in steps for n in set(_inputs(step)))


def _last_reads(steps: Sequence[Step], kept: Collection[Node]) -> list[list[Node]]:
    """For each step, what steps have made and none reads after it: its memory is for what comes next, which then finds
    it near."""
    made = {n for s in steps for n in _outputs(s)}.difference(kept)
    result: list[list[Node]] = []
    for step in reversed(steps):
        result.append([n for n in dict.fromkeys((*_inputs(step), *_outputs(step))) if n in made])
        made.difference_update(result[-1])
    return result[::-1]


def _returned_reshaped(steps: Sequence[Step], results: Collection[Node]) -> dict[Node, Node]:
    """The reshapes that the caller gets of kernels' results which nobody else reads, by these. No kernel reads them."""
    readers, kernels = _readers(steps), [s for s in steps if isinstance(s, KernelStep)]
    read = {n for s in kernels for n in s.inputs}
    made = {n for s in kernels for number, n in enumerate(s.outputs) if number not in dict(s.buffers)}
    return {s.node.inputs[0]: s.node for s in steps
            if isinstance(s, TorchStep) and s.node.op == "reshape" and s.node in results and s.node not in read
            and s.node.inputs[0] in made and readers[s.node.inputs[0]] == 1 and s.node.inputs[0] not in results}


def _without_unread(steps: list[Step], results: Collection[Node]) -> list[Step]:
    """The steps without views that no other step reads, nor the caller."""
    needed, kept = set(results), []
    for step in reversed(steps):
        if isinstance(step, KernelStep) or step.node.kind != "view" or step.node in needed:
            needed.update(_inputs(step))
            kept.append(step)
    return kept[::-1]


def _once_lines(mode: str, once: list[TorchStep], read: Collection[Node], names: Mapping[Node, str],
                kernel_reads: Collection[Node], *, target: Target) -> tuple[list[str], list[str]]:
    """The function that makes what depends on no input, and the program's lines that ask for what of it is read."""
    kept = [s for s in once if s.node in read]
    if not kept:
        return [], []
    name = f"_kernelwright_{mode}_once"
    maker = [f"def {name}(_device):", f'    """Tensors of {mode} mode that depend on no input."""']
    for step in once:
        lines = _torch_lines(step.node, names, {}, contiguous=step.node in kernel_reads, target=target)
        maker += [f"    {line}" for line in lines]
    wanted = ", ".join(names[s.node] for s in kept) + ","
    maker += [f"    return ({wanted})", "", ""]
    return maker, [f"({wanted}) = _kernelwright_once({name}, _device)"]


def _summary(steps: list[Step]) -> str:
    kernels = sum(isinstance(s, KernelStep) for s in steps)
    calls = sum(isinstance(s, TorchStep) and s.node.kind != "view" for s in steps)
    return f"{kernels} kernel{'s' * (kernels != 1)}, {calls} torch call{'s' * (calls != 1)}"


def _names(given: Iterable[Node], steps: list[Step]) -> dict[Node, str]:
    """A Python (and C) name for every value of the program."""
    names: dict[Node, str] = {}
    taken = dict.fromkeys(_TAKEN, 1)  # the last number given to each

    def name(node: Node, wanted: str) -> None:
        wanted = ascii_word(wanted)
        wanted = f"_{wanted}" if not wanted or wanted[0].isdigit() or _OURS.match(wanted) else wanted
        unique, number = wanted, taken.get(wanted, 1)
        while unique in taken:
            number += 1
            unique = f"{wanted}_{number}"
        taken[wanted] = number
        taken.setdefault(unique, 1)
        names[node] = unique

    for node in given:
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


def _torch_lines(node: Node, names: Mapping[Node, str], places: Mapping[str, str], *, contiguous: bool, target: Target,
                 shown: str = "", given: Mapping[Node, str] | None = None, read: bool = True, over: bool = False
                 ) -> list[str]:
    """The call of a node. given: names of its operands, where they are others. contiguous: whether kernels read it.
    shown: another name, for what others than kernels see of it. read: whether anybody reads it. over: whether it writes
    into its first operand."""
    code = node.operator.code([_text(i, names if given is None else given) for i in node.inputs], node)
    code = in_place(code, node) if over else code
    # Operators that update buffers name them in their text as _tensor["..."].
    code = re.sub(r"""_tensor\[(['"])(.*?)\1\]""", lambda found: places[found[2]], code)
    if code.startswith("F."):
        code = "torch.nn.functional." + code[2:]
    if node.get("apart") is not None and read:
        code += ".to(_device)"
    if target.rounds_products and node.get("exact"):
        code = f"_kernelwright_exact(lambda: {code})"
    lines = []
    if node.origin is not None and node.origin.text and node.kind != "view":
        lines.append(comment(node.origin.text, "#", 106))
    needs_copy = contiguous and node.dtype != "tuple" and node.op != "contiguous"
    if shown:
        lines.append(f"{shown} = {code}")
        code = shown
    lines.append(f"{names[node]} = {code}" + (".contiguous()" if needs_copy else ""))
    return lines


def _launch_lines(launcher: Launcher, names: Mapping[Node, str], places: Mapping[str, str],
                  taken: Mapping[Node, Node], returned: Mapping[Node, Node], *, alike: bool) -> list[str]:
    """The lines that run a launcher. taken: results by the values whose memory they take. returned: by results, what
    has another shape to the caller. alike: whether a tensor may stand for its shape, as the host is sooner done so."""
    lines = []
    there = {(a.shape, a.dtype): names[a] for a in reversed(launcher.arguments)
             if isinstance(a, Node) and a not in launcher.allocated} if alike else {}
    for node in launcher.allocated:
        extents = returned.get(node, node).shape
        shape = ", ".join(map(str, extents)) + ("," if len(extents) == 1 else "")
        if node in taken:
            view = "" if taken[node].shape == extents else f".view(({shape}))"
            lines.append(f"{names[node]} = {names[taken[node]]}{view}  # in place")
            continue
        like = there.get((extents, node.dtype))
        lines.append(f"{names[node]} = torch.empty_like({like})" if like is not None else
                     f"{names[node]} = torch.empty(({shape}), dtype=torch.{node.dtype}, device=_device)")
        if alike:
            there.setdefault((extents, node.dtype), names[node])
    passed = [places[a] if isinstance(a, str) else names[a] for a in launcher.arguments]
    if launcher.workspace_bytes:
        lines.append(f"workspace = torch.empty({launcher.workspace_bytes}, dtype=torch.uint8, device=_device)")
        passed.append("workspace")
    lines.append(f'_kernelwright_launch("{launcher.name}", _stream, {", ".join(passed)})')
    updated = [a for a in launcher.arguments if isinstance(a, str)]
    if updated:
        lines.append(f"torch.autograd.graph.increment_version(({', '.join(places[name] for name in updated)},))")
    return lines
