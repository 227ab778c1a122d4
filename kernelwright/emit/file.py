"""The emitted file: the original class, the kernels around it, and a header that says why."""

from __future__ import annotations

import ast
import hashlib
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from kernelwright.adjoint.backward import Backward, handed_over
from kernelwright.codegen.source import KernelSource
from kernelwright.codegen.target import Target
from kernelwright.emit.assembly import folded, names_in, used
from kernelwright.emit.embedded import PLACE, Library, libraries_text
from kernelwright.emit.facts import (
    Facts,
    conditions,
    frozen,
    has_objects,
    is_recordable,
    keeps_functions,
    literal,
    module_facts,
    plan_facts,
    plan_tensors,
    written_facts,
)
from kernelwright.emit.layout import broken_c, broken_python
from kernelwright.emit.lines import source_lines
from kernelwright.emit.model_source import ModelSource
from kernelwright.emit.program import Program, make_program
from kernelwright.emit.results import computed_results
from kernelwright.emit.runtime import (
    IMPORTS,
    KERNEL_MARK,
    METHOD,
    PIECE_CHARACTERS,
    PIECE_KERNELS,
    RUNTIME,
    RUNTIME_EMBEDDED,
    SIZED_RUNTIME,
    SIZED_RUNTIME_EMBEDDED,
    STRUCTURES,
    conditions_of,
)
from kernelwright.emit.support import used_support
from kernelwright.ir.node import Node
from kernelwright.plan.records import KernelStep, Plan
from kernelwright.plan.steps import replaced_nodes
from kernelwright.problem.names import bound_names
from kernelwright.records import words_of

_RUNTIME_NAMES = tuple(line.split()[-1] for line in IMPORTS.splitlines() if line and line != "import torch")
_WIDTH = 118
#: Facts that name functions of a program.
OF_PROGRAM = ("run", "given")
# Where a mode's facts are kept by sizes: each has its own, though all begin with none.
_BY_SIZES = ("by_sizes", "{}")
#: Ends the name of the program of a mode's gradients.
BACKWARD = "backward"
#: Ends the name of the program of a mode that hands its backward what it has computed.
SAVING = "saving"


@dataclass(frozen=True, slots=True)
class Variant:
    """One mode to emit: its plan, a model in that mode, example inputs, whether its calls record gradients, whether it
    runs as a CUDA graph where it can, in a file for several floating-point types which of them it serves, the kernels
    of its backward, and the plan of calls that hand these what they have computed."""

    mode: str
    plan: Plan
    model: nn.Module
    inputs: list[Any]
    recordings: tuple[bool, ...] = (False, True)
    graph: bool = False
    dtype: str = ""
    backward: tuple[Backward, ...] = ()
    saving: Plan | None = None

    def programs(self) -> Iterator[tuple[str, Plan]]:
        """The programs of the mode: their names and plans."""
        yield self.mode, self.plan
        if self.saving is not None:
            yield self.saving_name, self.saving
        for number, backward in enumerate(self.backward):
            yield self.backward_name(number), backward.plan

    @property
    def saving_name(self) -> str:
        """The name of the program that hands the backward what it has computed."""
        return f"{self.mode}_{SAVING}"

    def backward_name(self, number: int) -> str:
        """The name of a program of gradients."""
        alone = len(self.backward) > 1 and not self.backward[number].of_inputs
        return f"{self.mode}_{BACKWARD}" + "_of_parameters" * alone


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels' text and what runs it.

    text: the whole text for a target; launchers: their names, with those of the kernels that they run. programs: the
    texts of the run functions. served: for each mode the one whose run function it has: modes with the same program
    share one. pieces: whether the text may be long enough to be compiled in pieces.
    """

    text: str
    launchers: dict[str, list[str]]
    programs: list[str]
    served: dict[str, str]
    pieces: bool


@dataclass(frozen=True, slots=True)
class Sized:
    """What a file that serves calls of several sizes has in place of the text for the example's.

    kernels: of all sizes. tables: text of the functions that give the facts of each mode for some sizes, and of what is
    known of the sizes. functions: these functions' names by mode. header: a sentence for the file's header.
    """

    kernels: Kernels
    tables: str
    functions: Mapping[str, str]
    header: str


def put_together(variants: Sequence[Variant], sources: Mapping[KernelStep, KernelSource], support: str, *,
                 target: Target) -> Kernels:
    """The kernels of all modes, each once, their launchers and programs."""
    definitions: dict[str, str] = {}
    programs: dict[str, Program] = {}
    plans: dict[str, Plan] = {}
    served: dict[str, str] = {}
    covered: dict[str, list[Node]] = {}
    for name, plan in (pair for variant in variants for pair in variant.programs()):
        for step in plan.kernels:
            covered.setdefault(sources[step].name, []).extend(replaced_nodes(plan.graph, step.covers))
            definitions.setdefault(sources[step].name, sources[step].definition)
        for mode, program in programs.items():
            if len(plans[mode].steps) == len(plan.steps) \
                    and make_program(mode, plan, sources, target=target).is_like(program):
                served[name] = mode
                break
        else:
            programs[name] = make_program(name, plan, sources, target=target)
            plans[name], served[name] = plan, name
    launchers = [launcher for program in programs.values() for launcher in program.launchers]
    for name, number in sorted({pair for program in programs.values() for pair in program.in_place}):
        assert target.sharing is not None
        definitions[name] = target.sharing(definitions[name], (f"in{number}", "out0"))
    # Where the file is put together, as kernels of the same text are shared, whatever lines they came from.
    lined = {name: "\n".join([*source_lines(covered[name]), text.strip()]) for name, text in definitions.items()}
    texts = []
    for mode, program in programs.items():
        modes = " and ".join(words_of(m) for m, by in served.items() if by == mode)
        texts.append(broken_python(program.text.replace(f'"""The program of {mode} mode',
                                                        f'"""The program of {modes} mode')))
    joined = joined_kernels(lined, [x.text for x in launchers], support)
    return replace(joined, launchers={x.name: list(x.kernels) for x in launchers}, programs=texts, served=served)


def joined_kernels(definitions: Mapping[str, str], launchers: Sequence[str], support: str) -> Kernels:
    """The whole text of kernels, by name, and of their launchers."""
    marked = [f"{KERNEL_MARK.format(name)}\n{text}" for name, text in definitions.items()]
    characters = sum(map(len, marked))
    marked.append(f"{KERNEL_MARK.format('launchers')}\n" + "\n\n".join(launchers))
    text = broken_c("\n\n".join([used_support(support, "\n".join(marked)), *marked]) + "\n")
    return Kernels(text, {}, [], {}, len(definitions) >= 2 * PIECE_KERNELS and characters >= 2 * PIECE_CHARACTERS)


def kernel_source(variants: Sequence[Variant], sources: Mapping[KernelStep, KernelSource], support: str, *,
                  target: Target) -> str:
    """The whole text of the kernels and their launchers for a target."""
    return put_together(variants, sources, support, target=target).text


#: Of a file without kernels, so that who asks any module gets an answer.
_WHY_NOTHING = """\
def why(self):
    \"""Why calls ran the original computation in place of kernels: there are none here.\"""
    return {}"""


def emit_file(header: str, source: ModelSource, variants: Sequence[Variant], modes_left: Sequence[str],
              sources: Mapping[KernelStep, KernelSource], support: str, *, target: Target, name: str,
              libraries: Sequence[Library] = (), sized: Sized | None = None, dtypes: Sequence[str] = ()) -> str:
    """The emitted file's text. ``modes_left`` are modes whose forward stays the original; ``libraries`` those of its
    very kernels that it holds. sized: what serves calls of several sizes, where the file does. dtypes: the
    floating-point types that it serves, the model's own first, where these are several."""
    indent = source.body_indent
    docstring = '"""' + header.strip().replace("\\", "\\\\").replace('"""', "'''") + '\n"""'
    future, imports = _future(source.imports)
    if not variants:
        body = source.model_class + f"\n\n{indent}# Nothing pays here: the original computation is the result.\n" \
            f"{indent}forward = _original_forward"
        if "def why(" not in source.model_class:
            body += "\n\n" + textwrap.indent(_WHY_NOTHING, indent)
        own = "" if "import torch" in imports.splitlines() else "import torch\n"
        parts = [docstring + future, own + imports, source.support, body, source.trailing]
        return "\n\n\n".join(p.strip("\n") for p in parts if p.strip()) + "\n"
    kernels = sized.kernels if sized is not None else put_together(variants, sources, support, target=target)
    if ")kernels\"" in kernels.text or '"""' in kernels.text:
        raise AssertionError("the kernels' text ends its own literal")
    constants = f'_KERNELWRIGHT_DEVICE = "{target.device}"'
    if kernels.launchers:
        constants = broken_python("\n".join([
            f'_KERNELWRIGHT_NAME = "{name}"', constants, f"_KERNELWRIGHT_FLAGS = {literal(list(target.flags))}",
            *_table("_KERNELWRIGHT_LAUNCHERS", [(x, literal(own)) for x, own in kernels.launchers.items()]).split("\n"),
        ])) + f'\n\n_KERNELWRIGHT_SOURCE = r"""\n{kernels.text}"""'
    runs = "\n\n\n".join(kernels.programs)
    of_model, outside = module_facts(variants[0].model, [v.plan for v in variants])
    of_modes = [plan_facts(v.plan, v.model, v.inputs, kernels.served[v.mode], graph=v.graph and is_recordable(v.plan),
                           ahead=bool(target.stream) and sized is None)
                + [("backward", backward_text(v, kernels.served))] for v in variants]
    if sized is not None:
        of_modes = [[*((key, text if key != "compiled" else "None") for key, text in facts
                       if key not in OF_PROGRAM or text == "None"), ("sized", sized.functions[v.mode]), _BY_SIZES]
                    for v, facts in zip(variants, of_modes, strict=True)]
    if dtypes:
        of_modes = [[(key, text if key != "compiled" else "None") for key, text in facts] for facts in of_modes]
    holds = conditions([of_model, *of_modes])
    of_model, *of_modes = written_facts([of_model, *of_modes], holds)
    holds |= {
        **conditions_of(target), "KERNELS": bool(kernels.launchers), "UNITS": kernels.pieces,
        "SIZED": sized is not None, "TYPED": bool(dtypes),
        "EMBEDDED": bool(libraries),
        "SAVING": any(v.saving is not None for v in variants),
        "TOGETHER": "kw_launch_together(" in kernels.text, "REQUIRED": "_kernelwright_require(" in runs,
        "FUNCTIONS": keeps_functions(variants[0].model),
        "OBJECTS": bool(outside) or has_objects(variants[0].model),
        "VALUES": any(n is None for v in variants for n in v.plan.graph.inputs),
        "ORDERS": any(leaf.get("order") is not None for v in variants
                      for leaf in (*v.plan.graph.inputs, *plan_tensors(v.plan).values()) if leaf is not None),
    }
    tables = _tables(variants, of_model, of_modes, dtypes)
    tables = f"{sized.tables}\n\n\n{tables}" if sized is not None else tables
    forward = _forward(indent, modes_left, "kernels" if kernels.launchers else "graph",
                       why=not hasattr(variants[0].model, "why"))
    forward += "\n\n" + textwrap.indent(METHOD.rstrip(), indent)
    if holds["COMPILED"]:
        # One name for one content, by which other compilers keep what they made of it.
        digest = hashlib.sha256("\0".join((kernels.text, runs, tables)).encode()).hexdigest()[:12]
        constants = f'_KERNELWRIGHT_OPERATORS = "{name}_{digest}"\n{constants}'
    private = _private_imports(source)
    own = "" if "import torch" in imports.splitlines() else "import torch\n"
    names = names_in(ast.parse("\n".join([runs, tables, outside, METHOD]))) | {
        "_kernelwright_call", "_kernelwright_fell_back"}
    if kernels.launchers:
        names |= {"_kernelwright_library"}
    classes = used(STRUCTURES, names)
    plain, embedded = (RUNTIME, RUNTIME_EMBEDDED) if sized is None else (SIZED_RUNTIME, SIZED_RUNTIME_EMBEDDED)
    whole = embedded if libraries else plain
    runtime = used(folded(whole, holds), names | names_in(ast.parse(classes)))
    there = {"import torch", *set(imports.splitlines()).intersection(IMPORTS.splitlines())} - {""}
    runtime = "\n".join(line for line in private(runtime).split("\n") if line not in there)
    if libraries:
        runtime = runtime.replace(PLACE, f"{banner('The kernels, compiled')}\n{libraries_text(libraries)}\n")
    parts = [docstring + future, own + imports, source.support, source.model_class + "\n" + forward, source.trailing,
             banner("The kernels" if kernels.launchers else "What is launched as one CUDA graph"), constants, runs,
             banner(f"What {'the kernels were built' if kernels.launchers else 'it was recorded'} for; elsewhere the "
                    "original computation runs"),
             private(classes), tables, private(outside),
             banner("The runtime: build, check, launch, gradients"), runtime]
    return "\n\n\n".join(p.strip("\n") for p in parts if p.strip()) + "\n"


def backward_text(variant: Variant, served: Mapping[str, str]) -> str:
    """What a backward by kernels is told of its program.

    of: by their places those computed results whose gradients it reads. frozen: parameters of whose gradients nothing
    is known. saving: the program of calls that hand over what they have computed, and how many results of the model
    come first; left out where none does. programs: those of fewer gradients first. gives: by input's place or
    parameter's name the place of its gradient among the results. saved: places of what it reads among the results of
    the program of calls. tensors: of the model, which follow arguments, gradients and what was saved. orders: of the
    axes of all of these in memory, None of the usual one; () where no tensor has another.
    """
    if not variant.backward:
        return "None"
    computed = computed_results(variant.plan)
    of = tuple(computed.index(variant.plan.results[number]) for number in variant.backward[0].gradients.of)
    saving, saved = "", dict[Node, int]()
    if variant.saving is not None:
        made = computed_results(variant.saving)
        nodes = handed_over(variant.backward)
        saved = {node: made.index(result) for node, result in zip(nodes, variant.saving.results[-len(nodes):],
                                                                  strict=True)}
        saving = f'"saving": {{"run": _kernelwright_{served[variant.saving_name]}, "results": {len(computed)}}}, '
    programs = ", ".join(_program_text(backward, served[variant.backward_name(number)], saved)
                         for number, backward in enumerate(variant.backward))
    return f'{{"of": {literal(of)}, "frozen": {literal(frozen(variant.model))}, {saving}"programs": ({programs},)}}'


def _program_text(backward: Backward, name: str, saved: Mapping[Node, int]) -> str:
    """What is told of one program of gradients. saved: the places of what a call hands over."""
    plan, made = backward.plan, backward.gradients
    results = computed_results(plan)
    gives = {who: results.index(node) for who, node in zip(made.gives, plan.results, strict=True)}
    tensors = plan_tensors(plan)
    leaves = [*(leaf for leaf in plan.graph.inputs if leaf is not None), *tensors.values()]
    orders = tuple(leaf.get("order") for leaf in leaves)
    places = f'"saved": {literal(tuple(saved[node] for node in made.saved))}, ' if saved else ""
    return (f'{{"gives": {literal(gives)}, {places}"tensors": {literal(tuple(tensors))}, '
            f'"orders": {literal(orders if any(orders) else ())}, "run": _kernelwright_{name}}}')


def banner(title: str) -> str:
    """A line that begins a part of the file."""
    return f"# {title} " + "-" * (_WIDTH - len(title) - 3)


def _tables(variants: Sequence[Variant], of_model: Facts, of_modes: Sequence[Facts], dtypes: Sequence[str]) -> str:
    """The facts that a call must fulfil: what all modes have in common, what each has of its own, and which of them
    serves a call, by (training, whether gradients are recorded), behind the type where the file serves several."""
    common = [fact for fact in of_modes[0] if fact != _BY_SIZES and all(fact in facts for facts in of_modes)]
    name = "_KERNELWRIGHT_MODEL"
    result = [_table(name, [*of_model, *common])]
    result += [_table(f"_KERNELWRIGHT_{mode.upper()}", [fact for fact in facts if fact not in common], spread=name)
               for mode, facts in zip([v.mode for v in variants], of_modes, strict=True)]
    by_call: dict[str, list[str]] = {}
    for variant in variants:
        for recording in variant.recordings:
            call = f"({f'torch.{variant.dtype}, ' if dtypes else ''}{variant.model.training}, {recording})"
            by_call.setdefault(call, []).append(f"_KERNELWRIGHT_{variant.mode.upper()}")
    rows = [f"    {call}: {names[0] if len(names) == 1 else '(' + ', '.join(names) + ')'},"
            for call, names in by_call.items()]
    if dtypes:
        result.append(f"_KERNELWRIGHT_DTYPES = ({', '.join(f'torch.{dtype}' for dtype in dtypes)})")
    by = "the type, model.training" if dtypes else "model.training"
    result.append("\n".join([f"_KERNELWRIGHT_PLANS = {{  # by {by} and torch.is_grad_enabled()", *rows, "}"]))
    return "\n\n".join(result)


def _private_imports(source: ModelSource) -> Callable[[str], str]:
    """Renames the runtime's imports where the user's file means something else by their names."""
    bound: set[str] = set()
    for statement in ast.parse(source.joined()).body:
        if isinstance(statement, ast.Import) and all(a.asname is None and "." not in a.name for a in statement.names):
            continue  # the very module
        if isinstance(statement, ast.ImportFrom) and any(a.name == "*" for a in statement.names):
            bound.update(_RUNTIME_NAMES)
        bound |= bound_names([statement])
    clashing = [n for n in _RUNTIME_NAMES if n in bound and f"from pathlib import {n}" not in source.imports]

    def rename(text: str) -> str:
        for name in clashing:
            private = f"_kernelwright_module_{name}"
            text = re.sub(rf"^((?:from pathlib )?import {name})$", rf"\1 as {private}", text, flags=re.MULTILINE)
            text = re.sub(rf"(?<![\w.]){name}(?=\.\w|\()", private, text)
        return text

    return rename


def _future(imports: str) -> tuple[str, str]:
    lines = imports.splitlines()
    first = [line for line in lines if line.startswith("from __future__")]
    rest = [line for line in lines if not line.startswith("from __future__")]
    return ("\n\n" + "\n".join(first) if first else ""), "\n".join(rest)


def _forward(indent: str, modes_left: Sequence[str], what: str, *, why: bool) -> str:
    fits = "they fit" if what.endswith("s") else "it fits"
    lines = ["", "def forward(self, *inputs, **named):",
             f'    """The {what} where {fits} this call, the original computation elsewhere."""']
    if modes_left:
        test = "self.training" if modes_left == ["training"] else "not self.training"
        lines += [f"    if {test}:",
                  f'        _kernelwright_count(self, "nothing pays in {modes_left[0]} mode")',
                  "        return self._original_forward(*inputs, **named)"]
    lines.append("    return _kernelwright_call(self, inputs, named, _KERNELWRIGHT_PLANS)")
    if why:
        lines += ["", "def why(self):",
                  '    """Why calls ran the original computation so far: reasons, each with its number of calls."""',
                  "    return dict(_kernelwright_fell_back.get(self, {}))"]
    return "\n".join(indent + line if line else line for line in lines)


def _table(name: str, entries: list[tuple[str, str]], spread: str | None = None) -> str:
    lines = [f"{name} = {{"] + ([f"    **{spread},"] if spread else [])
    lines += [f'    "{key}": {text},' for key, text in entries]
    return broken_python("\n".join([*lines, "}"]))
