"""The emitted file: the original class, the kernels around it, and a header that says why."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from kernelwright.codegen.source import KernelSource
from kernelwright.codegen.target import Target
from kernelwright.emit.facts import literal, module_facts, plan_facts
from kernelwright.emit.model_source import ModelSource
from kernelwright.emit.program import make_program
from kernelwright.emit.runtime import BUILDS, IMPORTS, KERNEL_MARK, ONCE, PARTS, REQUIRE, RUNTIME, STRUCTURES
from kernelwright.plan.records import KernelStep, Plan
from kernelwright.problem.names import bound_names

_RUNTIME_NAMES = tuple(line.split()[-1] for line in IMPORTS.splitlines() if line and line != "import torch")


@dataclass(frozen=True, slots=True)
class Variant:
    """One mode to emit: its plan, a model in that mode, example inputs, and whether its calls record gradients."""

    mode: str
    plan: Plan
    model: nn.Module
    inputs: list[Any]
    recordings: tuple[bool, ...] = (False, True)


def kernel_source(variants: Sequence[Variant], sources: Mapping[KernelStep, KernelSource], support: str, *,
                  target: Target) -> tuple[str, list[str], dict[str, str]]:
    """The whole text for a target, its launchers' names, and the run function's text of each mode."""
    definitions: dict[str, str] = {}
    launchers, programs = [], {}
    for variant in variants:
        for step in variant.plan.kernels:
            definitions.setdefault(sources[step].name, sources[step].definition)
        program = make_program(variant.mode, variant.plan, sources, target=target)
        launchers += program.launchers
        programs[variant.mode] = program.text
    marked = [f"{KERNEL_MARK.format(name)}\n{text.strip()}" for name, text in definitions.items()]
    marked.append(f"{KERNEL_MARK.format('launchers')}\n" + "\n\n".join(x.text for x in launchers))
    return "\n\n".join([support.strip("\n"), *marked]) + "\n", [x.name for x in launchers], programs


def emit_file(header: str, source: ModelSource, variants: Sequence[Variant], modes_left: Sequence[str],
              sources: Mapping[KernelStep, KernelSource], support: str, *, target: Target, name: str) -> str:
    """The emitted file's text. ``modes_left`` are modes whose forward stays the original."""
    indent = source.body_indent
    docstring = '"""' + header.strip().replace("\\", "\\\\").replace('"""', "'''") + '\n"""'
    future, imports = _future(source.imports)
    if not variants:
        body = source.model_class + f"\n\n{indent}# Nothing pays here: the original computation is the result.\n" \
            f"{indent}forward = _original_forward"
        own = "" if "import torch" in imports.splitlines() else "import torch\n"
        parts = [docstring + future, own + imports, source.support, body, source.trailing]
        return "\n\n\n".join(p.strip("\n") for p in parts if p.strip()) + "\n"
    text, launchers, programs = kernel_source(variants, sources, support, target=target)
    if ")kernels\"" in text or '"""' in text:
        raise AssertionError("the kernels' text ends its own literal")
    constants = "\n".join([
        f'_KERNELWRIGHT_NAME = "{name}"', f'_KERNELWRIGHT_DEVICE = "{target.device}"',
        f"_KERNELWRIGHT_FLAGS = {literal(list(target.flags))}", f"_KERNELWRIGHT_LAUNCHERS = {literal(launchers)}",
    ])
    kernels = '_KERNELWRIGHT_SOURCE = r"""\n' + text + '"""'
    forward = _forward(indent, modes_left)
    runs = "\n\n\n".join(dict.fromkeys(programs.values()))
    facts, outside = module_facts(variants[0].model, [v.plan for v in variants])
    shared = _table("_KERNELWRIGHT_MODEL", facts)
    tables = [_table(f"_KERNELWRIGHT_{v.mode.upper()}", plan_facts(v.plan, v.model, v.inputs, v.mode),
                     spread="_KERNELWRIGHT_MODEL") for v in variants]
    by_call: dict[tuple[bool, bool], list[str]] = {}
    for variant in variants:
        for recording in variant.recordings:
            by_call.setdefault((variant.model.training, recording), []).append(f"_KERNELWRIGHT_{variant.mode.upper()}")
    rows = [f"    {call!r}: {names[0] if len(names) == 1 else '(' + ', '.join(names) + ')'},"
            for call, names in by_call.items()]
    plans = "\n".join(["_KERNELWRIGHT_PLANS = {  # by model.training and torch.is_grad_enabled()", *rows, "}"])
    classes = STRUCTURES + "\n\n" if re.search("_Kernelwright|_kernelwright_class\\(", "".join(tables)) else ""
    more = [text for text, call in ((ONCE, "_kernelwright_once("), (REQUIRE, "_kernelwright_require("),
                                    (PARTS, "_kernelwright_part(")) if call in runs]
    private = _private_imports(source)
    own = set(IMPORTS.splitlines())
    imports = "\n".join(line for line in imports.splitlines() if line not in own or not line)
    parts = [docstring + future, private(IMPORTS) + imports, source.support,
             source.model_class + "\n" + forward, source.trailing,
             "# The kernels " + "-" * 100, constants + "\n\n" + kernels, runs,
             "# What the kernels were built for; elsewhere the original computation runs " + "-" * 40,
             private(classes) + "\n\n".join([shared, *tables, plans]), private(outside),
             "# Build, check, launch, gradients " + "-" * 80, private(BUILDS[target.built_by]),
             private("\n\n".join([RUNTIME, *more]))]
    return "\n\n\n".join(p.strip("\n") for p in parts if p.strip()) + "\n"


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


def _forward(indent: str, modes_left: Sequence[str]) -> str:
    lines = ["", "def forward(self, *inputs, **named):",
             '    """The kernels where they fit this call, the original computation elsewhere."""']
    if modes_left:
        test = "self.training" if modes_left == ["training"] else "not self.training"
        lines += [f"    if {test}:  # nothing pays in this mode",
                  "        return self._original_forward(*inputs, **named)"]
    lines.append("    return _kernelwright_call(self, inputs, named, _KERNELWRIGHT_PLANS)")
    return "\n".join(indent + line if line else line for line in lines)


def _table(name: str, entries: list[tuple[str, str]], spread: str | None = None) -> str:
    lines = [f"{name} = {{"] + ([f"    **{spread},"] if spread else [])
    lines += [f'    "{key}": {text},' for key, text in entries]
    return "\n".join([*lines, "}"])
