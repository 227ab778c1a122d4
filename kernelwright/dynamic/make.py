"""The file of a model for several sizes: the plans of its modes become formulas, and their texts variants of one."""

from __future__ import annotations

import copy
import itertools
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from kernelwright.codegen.generate import TARGETS, support_text
from kernelwright.codegen.source import KernelSource
from kernelwright.dynamic.compose import facts_function, kernel_text, launcher_text, program_text
from kernelwright.dynamic.conditions import Tree, leaves, lookup, tree_of
from kernelwright.dynamic.formulas import Sizes
from kernelwright.dynamic.points import are_few, looked_at
from kernelwright.dynamic.programs import (
    ModeOfSizes,
    Texts,
    kernel_names,
    kernel_texts,
    texts_at,
    with_workspace,
    without_workspace,
)
from kernelwright.dynamic.records import Differs, Template
from kernelwright.dynamic.replan import in_words, template_of
from kernelwright.dynamic.sizes import Size, inputs_like
from kernelwright.dynamic.texts import Language, Variant, variants
from kernelwright.dynamic.traces import trace
from kernelwright.emit.file import OF_PROGRAM, Kernels, Sized, joined_kernels
from kernelwright.emit.layout import broken_python
from kernelwright.emit.lines import source_lines
from kernelwright.failures import is_ours, told
from kernelwright.ir.graph import Graph
from kernelwright.modes import ModeProgram, distinct
from kernelwright.plan.records import Plan
from kernelwright.plan.steps import replaced_nodes
from kernelwright.problem import Problem
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.programs import Stages
from kernelwright.records import words_of
from kernelwright.roofline.devices import Device
from kernelwright.settings import Settings

#: Variants of one text, and ends of what chooses among them.
MOST_VARIANTS, MOST_LEAVES = 12, 24
#: Where not all sizes are looked at: how often, and at how many that are drawn, texts are held against their variants.
_ROUNDS, _DRAWS = 12, 12
#: Of sizes that were not looked at, so many are certified.
_UNSEEN = 2
_FEWER = "{} mode serves {} of {} combinations of sizes that were looked at: at {}{} the forward makes other calls."


@dataclass(frozen=True, slots=True)
class Made:
    """What was made of the modes for several sizes. sized: for the file. served: the points that were looked at and are
    served, by mode; unseen: some that are served and were not looked at. kernels: the variants of each kernel.
    notes: sentences on what is not served, and why."""

    sized: Sized
    served: Mapping[str, tuple[Sizes, ...]]
    notes: tuple[str, ...]
    kernels: Mapping[str, tuple[Sequence[Variant], Tree]]
    unseen: tuple[Sizes, ...] = ()


def made_of_sizes(problem: Problem, modes: Sequence[ModeProgram], sizes: Sequence[Size], target: str, device: Device,
                  settings: Settings, stages: Stages, given_up: Mapping[str, str] = MappingProxyType({}),
                  problems: Mapping[str, Problem] = MappingProxyType({})) -> Made:
    """The texts of a file for several sizes. given_up: modes that serve the example's alone, and why. problems: the
    problem as converted to each floating-point type, where the modes are of several. Raises Differs where no mode
    serves others."""
    notes: list[str] = []
    own: list[ModeOfSizes] = []
    kept: list[ModeProgram] = []
    served: dict[str, set[Sizes]] = {}
    few, points, example = are_few(sizes), looked_at(sizes), tuple(size.example for size in sizes)
    programs = {m.program: m for m in distinct([m for m in modes if m.runs])}
    made: dict[str, ModeOfSizes] = {}
    calls: dict[str, Calls] = {}
    for mode in (m for m in modes if m.runs):
        like = programs[mode.program]
        same = {example}
        try:
            if mode.name in given_up:
                raise Differs(given_up[mode.name])
            if mode.plan.graph.carried or mode.plan.graph.left:
                raise Differs("it keeps tensors in plain attributes")
            if not mode.plan.kernels:
                raise Differs("it has no kernels, and its calls are one launch")
            if like.name not in made:
                template, found = template_of(problems.get(like.dtype, problem), like, sizes, device, settings, stages)
                made[like.name] = ModeOfSizes(like.name, like.name, like.model, template, like.graph, tuple(found))
            with stages.stage("capture", f"{words_of(mode.name)}, at several sizes"):
                calls[mode.name] = Calls(problems.get(mode.dtype, problem), mode, sizes, settings)
                same = calls[mode.name].alike(points)
            own.append(replace(made[like.name], name=mode.name, like=like.name, model=mode.model))
            if others := [p for p in points if p not in same]:
                notes.append(_FEWER.format(words_of(mode.name).capitalize(), len(same), len(points),
                                           in_words(sizes, others[0]), " and others" * (len(others) > 1)))
        except Differs as differs:
            notes.append(f"{words_of(mode.name).capitalize()} mode has kernels for the example's sizes alone: "
                         f"{differs}.")
            own.append(ModeOfSizes(mode.name, mode.name, mode.model, Template([example], [mode.plan]), mode.graph,
                                   (example,)))
        served[mode.name] = same
        kept.append(mode)
    if all(found == {example} for found in served.values()):
        raise Differs("; ".join(dict.fromkeys(notes)) or "there are no kernels")
    with stages.stage("generate", "texts for several sizes"):
        by_mode = {m.name: problems.get(m.dtype, problem) for m in kept}
        return _texts(by_mode, own, served, calls, sizes, points, few, target, settings, notes)


class Calls:
    """The calls of PyTorch that a mode's forward makes, at each of some sizes."""

    def __init__(self, problem: Problem, mode: ModeProgram, sizes: Sequence[Size], settings: Settings) -> None:
        self._problem, self._sizes, self._example = problem, sizes, problem.make_inputs(settings.seed)
        self._model, self._recording = copy.deepcopy(mode.model), False not in mode.recordings
        self._texts: dict[Sizes, str | None] = {}
        self._variant: Variant | None = None  # of the calls at the sizes that are alike

    def _at(self, point: Sizes) -> str | None:
        if point not in self._texts:
            inputs = inputs_like(self._problem, self._example, self._sizes, point)
            self._texts[point] = trace(self._model, inputs, recording=self._recording)
        return self._texts[point]

    def alike(self, points: Iterable[Sizes]) -> set[Sizes]:
        """The points at which the forward does what it does for the example. Raises Differs where that is nowhere
        else."""
        texts = {point: text for point in points if (text := self._at(point)) is not None}
        example = tuple(size.example for size in self._sizes)
        for variant in variants(texts, "python", most=len(texts), spare=1):
            if example in variant.points and len(variant.points) > 1:
                self._variant = variant
                return set(variant.points)
        raise Differs("the forward makes other calls at other sizes")

    def is_alike(self, point: Sizes) -> bool:
        """Whether the forward does the same at one more point."""
        text = self._at(point)
        return text is not None and self._variant is not None and self._variant.gives(point, text)


def _texts(problems: Mapping[str, Problem], modes: list[ModeOfSizes], served: Mapping[str, set[Sizes]],
           calls: Mapping[str, Calls], sizes: Sequence[Size], points: Sequence[Sizes], few: bool, target: str,
           settings: Settings, notes: list[str]) -> Made:
    """What is made of the modes, each with its problem by name."""
    names = [size.name for size in sizes]
    highest = tuple(size.high for size in sizes)
    looked = _Looked(modes, sizes, target, served, calls, notes)
    for point in points:
        looked.at(point)
    how: dict[str, Any] = {"most": MOST_VARIANTS, "spare": 0 if few else 2, "highest": None if few else highest}
    kernels = looked.kernels(how)
    generator = random.Random(settings.seed)
    for _ in range(0 if few else _ROUNDS):
        more = [p for p in [*looked.between(kernels), *_drawn(sizes, generator)] if p not in looked.sources]
        surprises = [p for p in dict.fromkeys(more) if looked.at(p) and not looked.is_known(p, kernels)]
        kernels = looked.kernels(how)
        if not surprises:
            break
    spaces = {name: max(_largest(variant, highest, few) for variant in own) for name, (own, _) in kernels.items()}
    largest = {m.name: m.plan(highest, looked.names[m.name]) for m in modes}
    plans, sources = looked.plans, looked.sources
    texts: dict[Sizes, Texts] = {}
    examples = {id(problem): (problem, problem.make_inputs(settings.seed)) for problem in problems.values()}
    for point, found in plans.items():
        here = [m for m in modes if m.name in found]
        made = {key: inputs_like(*own, sizes, point) for key, own in examples.items()}
        inputs = {m.name: made[id(problems[m.name])] for m in here}
        texts[point] = texts_at(here, found, sources[point], spaces, largest, inputs, target)
    return _joined(modes, sizes, names, texts, kernels, plans, target, how, notes)


def language_of(target: str) -> Language:
    """What numbers look like in the kernels of a target."""
    return "launched" if TARGETS[target].stream else "c"


class _Looked:
    """The kernels of the points that have been looked at."""

    def __init__(self, modes: Sequence[ModeOfSizes], sizes: Sequence[Size], target: str,
                 served: Mapping[str, set[Sizes]], calls: Mapping[str, Calls], notes: list[str]) -> None:
        self.modes, self.sizes, self.target, self.notes = modes, sizes, target, notes
        self.names = kernel_names(modes)
        self.plans: dict[Sizes, dict[str, Plan]] = {}
        self.sources: dict[Sizes, dict[str, KernelSource]] = {}
        self._served, self._calls = served, calls

    def at(self, point: Sizes) -> bool:
        """Look at a point; whether there are kernels for it."""
        if point in self.sources:
            return True
        for name, known in self._served.items():
            if point not in known and (calls := self._calls.get(name)) is not None and calls.is_alike(point):
                known.add(point)
        try:
            found = {m.name: m.plan(point, self.names[m.name]) for m in self.modes if point in self._served[m.name]}
            self.sources[point] = kernel_texts(found, self.target)
            self.plans[point] = found
        except Exception as error:
            if not is_ours(error) or is_out_of_memory(error) or point == tuple(size.example for size in self.sizes):
                raise
            self.notes.append(f"There are no kernels for sizes {in_words(self.sizes, point)}: {told(error)}.")
            return False
        return True

    def kernels(self, how: Mapping[str, Any]) -> dict[str, tuple[list[Variant], Tree]]:
        """The variants of each kernel, and which sizes each serves."""
        names = dict.fromkeys(name for own in self.sources.values() for name in own)
        return {name: _variants({p: with_workspace(own[name]) for p, own in self.sources.items() if name in own},
                                language_of(self.target), how) for name in names}

    def is_known(self, point: Sizes, kernels: Mapping[str, tuple[list[Variant], Tree]]) -> bool:
        """Whether the kernels of a point have the texts that their variants give."""
        for name, source in self.sources[point].items():
            own, tree = kernels[name]
            number = lookup(tree, point)
            if number is not None and not own[number].gives(point, with_workspace(source)):
                return False
        return True

    def between(self, kernels: Mapping[str, tuple[list[Variant], Tree]]) -> list[Sizes]:
        """Points halfway between neighbours along an axis that have other variants."""
        found: dict[Sizes, None] = {}
        for name, (_, tree) in kernels.items():
            known = sorted(p for p, own in self.sources.items() if name in own)
            for place in range(len(self.sizes)):
                lines: dict[Sizes, list[Sizes]] = {}
                for p in known:
                    lines.setdefault((*p[:place], *p[place + 1:]), []).append(p)
                for line in lines.values():
                    for one, other in itertools.pairwise(sorted(line, key=lambda p: p[place])):
                        if other[place] - one[place] > 1 and lookup(tree, one) != lookup(tree, other):
                            middle = (one[place] + other[place]) // 2
                            found[*one[:place], middle, *one[place + 1:]] = None
        return list(found)


def _drawn(sizes: Sequence[Size], generator: random.Random) -> list[Sizes]:
    """Points that nobody chose."""
    return [tuple(generator.randint(size.low, size.high) for size in sizes) for _ in range(_DRAWS)]


def _variants(texts: Mapping[Sizes, str], language: Any, how: Mapping[str, Any]) -> tuple[list[Variant], Tree]:
    """Variants, and which sizes each serves."""
    found = variants(texts, language, **how)
    while True:
        chosen: dict[Sizes, int | None] = dict.fromkeys(texts)
        chosen.update({point: number for number, variant in enumerate(found) for point in variant.points})
        tree = tree_of(chosen)
        if leaves(tree) <= MOST_LEAVES or len(found) < 2:
            return found, tree
        found.remove(min(found, key=lambda variant: len(variant.points)))


def _largest(variant: Variant, highest: Sizes, few: bool) -> int:
    """The most workspace that a variant of a kernel takes: the last number of its text."""
    formula = variant.formulas[-1]
    values = [int(formula.at(point)) for point in variant.points]
    if not few and not (formula.is_constant or getattr(formula, "grows", False)):
        raise Differs("the workspace of a kernel grows with no size")
    return max(values) if few else max(*values, int(formula.at(highest)))


def _joined(modes: list[ModeOfSizes], sizes: Sequence[Size], names: Sequence[str], texts: Mapping[Sizes, Texts],
            kernels: Mapping[str, tuple[list[Variant], Tree]], plans: Mapping[Sizes, Mapping[str, Plan]], target: str,
            how: Mapping[str, Any], notes: list[str]) -> Made:
    """The texts of all points as those of one file."""
    example = tuple(size.example for size in sizes)
    in_place = {pair for text in texts.values() for pair in text.in_place}
    definitions: dict[str, str] = {}
    takes: set[str] = set()
    covered: dict[str, list[Any]] = {}
    for mode in modes:
        for step in plans[example][mode.name].kernels:
            covered.setdefault(step.name, []).extend(replaced_nodes(plans[example][mode.name].graph, step.covers))
    for name, (own, tree) in kernels.items():
        shared = [f"in{number}" for kernel, number in in_place if kernel == name]

        def changed(text: str, shared: list[str] = shared) -> str:
            sharing = TARGETS[target].sharing
            text = without_workspace(text)
            return sharing(text, (*shared, "out0")) if shared and sharing is not None else text

        text, has = kernel_text(name, own, tree, names, language_of(target), changed)
        definitions[name] = "\n".join([*source_lines(covered[name]), text])
        takes |= {name} if has else set()
    launchers: dict[str, list[str]] = {}
    launcher_texts: list[str] = []
    program_texts: list[str] = []
    tables: list[str] = [_sizes_text(sizes)]
    functions: dict[str, str] = {}
    served: dict[str, tuple[Sizes, ...]] = {}
    trees: dict[str, Tree] = {}
    split: dict[str, tuple[dict[Sizes, int | None], list[str]]] = {}
    for mode in modes:
        if mode.like == mode.name:
            python, tree = _variants({p: t.programs[mode.name][0] for p, t in texts.items()
                                      if mode.name in t.programs}, "python", how)
            native, native_tree = _variants({p: t.programs[mode.name][1] for p, t in texts.items()
                                             if mode.name in t.programs}, "c", how)
            chosen = {p: _pair(tree, native_tree, p) for p, t in texts.items() if mode.name in t.programs}
            split[mode.name] = _emitted(mode, chosen, python, native, texts, takes, sizes, names, plans[example],
                                        launchers, launcher_texts, program_texts)
    for mode in modes:
        entries = _facts(mode, texts, split[mode.like], names, how)
        functions[mode.name] = f"_kernelwright_{mode.name}_sized"
        tree, rows = entries
        kept = {p: lookup(tree, p) for p in texts if mode.name in texts[p].facts}
        for name, (_, of_kernel) in kernels.items():
            if name in {s.name for s in plans[example][mode.name].kernels}:
                kept = {p: None if lookup(of_kernel, p) is None else leaf for p, leaf in kept.items()}
        kept |= {p: None for p in texts if p not in kept}
        tree = tree_of(kept)
        trees[mode.name] = tree
        served[mode.name] = tuple(p for p, leaf in kept.items() if leaf is not None)
        tables.append(facts_function(mode.name, words_of(mode.name), tree, rows, names))
        if lost := [p for p in texts if p not in served[mode.name] and mode.name in texts[p].facts]:
            notes.append(f"{words_of(mode.name).capitalize()} mode has no one text for "
                         f"{len(lost)} of {len(texts)} combinations of sizes, such as {in_words(sizes, lost[0])}.")
    support = support_text([KernelSource("", "", 0, tuple({n for t in texts.values() for n in t.support}))], target)
    joined = joined_kernels(definitions, launcher_texts, support)
    like = {mode.name: mode.like for mode in modes}
    kernels_record = Kernels(joined.text, launchers, program_texts, like, joined.pieces)
    header = _header(sizes, served)
    unseen = [p for p in _drawn(sizes, random.Random(len(texts))) if p not in texts
              and all(lookup(tree, p) is not None for tree in trees.values())]
    return Made(Sized(kernels_record, broken_python("\n\n\n".join(tables)), functions, header), served, tuple(notes),
                kernels, tuple(unseen[:_UNSEEN]))


# Between the facts of a mode, and between a key and its value, where they are taken as one text.
_ENTRY, _VALUE = "\2", "\3"


def _header(sizes: Sequence[Size], served: Mapping[str, Sequence[Sizes]]) -> str:
    """What the file says of its sizes at its top."""
    ranges = ", ".join(f"axis {axis} of {size.argument if n == 0 else f'argument {place}'}"
                       f"{f' (as {size.name})' if n else ''}: {size.low} to {size.high}"
                       for size in sizes for n, (place, axis) in enumerate(size.places))
    modes = [words_of(mode) for mode, points in served.items() if len(points) > 1]
    return f"Serves calls of other sizes than the example's, which are below, in {' and '.join(modes)} mode: {ranges}."


def _pair(one: Tree, other: Tree, point: Sizes) -> tuple[int, int] | None:
    first, second = lookup(one, point), lookup(other, point)
    return None if first is None or second is None else (first, second)


def _sizes_text(sizes: Sequence[Size]) -> str:
    rows = [f"    ({size.argument!r}, {size.places[0][0]}, {size.places[0][1]}, {size.low}, {size.high}),"
            for size in sizes]
    asked = "".join(f"given[{size.places[0][0]}].shape[{size.places[0][1]}], " for size in sizes)
    return "\n".join(["# The sizes that may differ from call to call: argument, its number, axis, lowest and highest.",
                      "_KERNELWRIGHT_SIZES = (", *rows, ")", "", "",
                      # Written out, as every call asks: to loop over the rows takes longer than to ask.
                      "def _kernelwright_sizes_of(given):",
                      '    """They, of the arguments of a call. Raises _KernelwrightMisfit."""',
                      "    try:", f"        return ({asked.rstrip()})",
                      "    except (AttributeError, IndexError, TypeError):",
                      '        problem = "has an argument that is no tensor of so many axes"',
                      '        raise _KernelwrightMisfit("this call", problem) from None'])


def _emitted(mode: ModeOfSizes, chosen: Mapping[Sizes, tuple[int, int] | None], python: Sequence[Variant],
             native: Sequence[Variant], texts: Mapping[Sizes, Texts], takes: set[str], sizes: Sequence[Size],
             names: Sequence[str], plans: Mapping[str, Plan], launchers: dict[str, list[str]],
             launcher_texts: list[str], program_texts: list[str]) -> tuple[dict[Sizes, int | None], list[str]]:
    """Adds the programs of a mode to the texts of the file. Gives the number of each point's, and the names of their
    functions."""
    pairs = sorted({pair for pair in chosen.values() if pair is not None})
    functions = []
    graph = plans[mode.name].graph
    for number, (first, second) in enumerate(pairs, 1):
        point = next(p for p, pair in chosen.items() if pair == (first, second))
        end = "" if len(pairs) == 1 else f"_s{number}"
        c_text, getting = launcher_text(native[second].text(names, "c"), takes, names)
        text = python[first].text(names, "python")
        run = f"_kernelwright_{mode.name}"
        text = program_text(text, run, getting, names, _sizes_of_leaves(sizes, graph))
        own = [run, f"{run}_once", f"{run}_given"]
        for launcher, kernels in texts[point].launchers[mode.name]:
            launchers[launcher + end] = list(kernels)
            own.append(launcher)
        if end:
            text, c_text = (_renamed(t, own, end) for t in (text, c_text))
        functions.append(run + end)
        program_texts.append(broken_python(text))
        launcher_texts.append(c_text)
    return {p: None if pair is None else pairs.index(pair) for p, pair in chosen.items()}, functions


def _renamed(text: str, words: Sequence[str], end: str) -> str:
    return re.sub(rf"\b({'|'.join(sorted(words, key=len, reverse=True))})\b", rf"\1{end}", text)


def _sizes_of_leaves(sizes: Sequence[Size], graph: Graph) -> Callable[[Sequence[str]], list[str]]:
    """From the names of a function's arguments, the call's tensors first, to the texts of sizes."""
    numbers = [n for n, leaf in enumerate(graph.inputs) if leaf is not None]
    return lambda arguments: [f"{arguments[numbers.index(place)]}.shape[{axis}]"
                              for place, axis in (size.places[0] for size in sizes)]


def _facts(mode: ModeOfSizes, texts: Mapping[Sizes, Texts], program: tuple[Mapping[Sizes, int | None], Sequence[str]],
           names: Sequence[str], how: Mapping[str, Any]) -> tuple[Tree, dict[int, list[tuple[str, str]]]]:
    """What of a mode's facts depends on sizes: which leaf serves some sizes, and the entries of each."""
    numbers, functions = program
    run = f"_kernelwright_{mode.like}"
    end = {number: function.removeprefix(run) for number, function in enumerate(functions)}
    rows: dict[Sizes, dict[str, str]] = {}
    for point, text in texts.items():
        number = numbers.get(point)
        if mode.name not in text.facts or number is None:
            continue
        facts = {key: value for key, value in text.facts[mode.name].items() if key != "compiled"}
        facts["run"] = run + end[number]
        if facts["given"] != "None":
            facts["given"] = f"{run}_given{end[number]}"
        rows[point] = facts
    always = [key for key in OF_PROGRAM if any(facts[key] != "None" for facts in rows.values())]
    moving = [key for key in next(iter(rows.values()), ()) if key in always
              or len({facts[key] for facts in rows.values()}) > 1]
    own = {point: _ENTRY.join(f"{key}{_VALUE}{facts[key]}" for key in moving) for point, facts in rows.items()}
    found, tree = _variants(own, "python", how)
    entries = {number: [(entry.split(_VALUE)[0], entry.split(_VALUE)[1])
                        for entry in variant.text(names, "python").split(_ENTRY)]
               for number, variant in enumerate(found)}
    return tree, entries
