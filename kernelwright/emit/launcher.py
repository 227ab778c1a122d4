"""The C++ side of a run of kernels: one extern "C" function that calls them in order.

Results that only kernels of the same run read live in one workspace, so that Python allocates and
passes little.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from kernelwright.codegen.source import KernelSource
from kernelwright.codegen.target import Target
from kernelwright.codegen.terms import plus
from kernelwright.ir.node import Node
from kernelwright.plan.records import KernelStep

_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher's text and what Python passes to it.

    arguments: the tensors in order: nodes whose memory Python owns, or names of model buffers that are
        updated in place; the workspace comes last where ``workspace_bytes`` is not 0.
    allocated: nodes for which Python makes memory. kernels: the names of those that it runs.
    """

    name: str
    text: str
    arguments: tuple[Node | str, ...]
    allocated: tuple[Node, ...]
    workspace_bytes: int
    kernels: tuple[str, ...] = ()


def ascii_word(text: str) -> str:
    """The text of any name with ASCII letters, digits and underscores alone, as identifiers of every language have."""
    return re.sub(r"\W", "_", text, flags=re.ASCII)


def c_name(identifier: str) -> str:
    """The C++ name of what an ASCII identifier names in Python: no macro, keyword, type or function ends like it, of
    those that C++, CUDA and their headers have and of ours."""
    return f"{identifier}_ptr"


def _round(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def make_launcher(name: str, steps: list[KernelStep], sources: Mapping[KernelStep, KernelSource],
                  outside: Callable[[Node], bool], identifier: Callable[[Node], str], *, target: Target,
                  bytes_of: Callable[[Node], int] = attrgetter("bytes")) -> Launcher:
    """The launcher of a run of kernel steps. ``outside`` tells whether a result is read beyond the run. bytes_of: how
    much of the workspace a value has."""
    produced: dict[Node, KernelStep] = {n: s for s in steps for n in s.outputs}
    types = target.types
    arguments: dict[Node | str, None] = {}
    updated: dict[str, str] = {}
    allocated: list[Node] = []
    inner: dict[Node, int] = {}
    size = 0
    for step in steps:
        for node in step.inputs:
            if node not in produced:
                arguments[node] = None
        buffers = dict(step.buffers)
        for number, node in enumerate(step.outputs):
            if number in buffers:
                arguments[buffers[number]] = None
                updated[buffers[number]] = types[node.dtype]
            elif outside(node):
                arguments[node] = None
                allocated.append(node)
            else:
                inner[node] = size
                size += _round(bytes_of(node))
    scratch = size
    size += max((_round(sources[s].workspace_bytes) for s in steps), default=0)
    names: dict[Node | str, str] = {}
    stream = "stream" if target.stream or not target.syntax.casts else ""  # C has no parameters without names
    lines = [f"{target.syntax.external}const char* {name}(void* const* tensors, void* {stream}) {{"]
    writable = set(allocated)
    for place, argument in enumerate(arguments):
        if isinstance(argument, str):
            word = ascii_word(argument)  # a module of a list is called by its number
            names[argument] = f"{'_' * word[:1].isdigit()}{word}_out{place}"
            lines.append("    " + target.syntax.pointer(names[argument], updated[argument], f"tensors[{place}]"))
            continue
        names[argument] = c_name(identifier(argument))
        constant = "" if argument in writable else "const "
        lines.append("    " + target.syntax.pointer(names[argument], f"{constant}{types[argument.dtype]}",
                                                   f"tensors[{place}]"))
    local = 0 < size <= target.stack_bytes
    if local:
        lines.append(f"    {target.syntax.aligned}({_ALIGNMENT}) char workspace[{size}];")
    elif size:
        lines.append("    " + target.syntax.pointer("workspace", "char", f"tensors[{len(arguments)}]"))
    for node, offset in inner.items():
        names[node] = c_name(identifier(node))
        place = plus("workspace", offset)
        lines.append("    " + target.syntax.pointer(names[node], types[node.dtype], place, raw=True))
    for step in steps:
        buffers = dict(step.buffers)
        results = [names[buffers[i]] if i in buffers else names[n] for i, n in enumerate(step.outputs)]
        space = plus("workspace", scratch) if sources[step].workspace_bytes else target.syntax.null
        passed = [names[n] for n in step.inputs] + results + [space]
        passed += [f"static_cast<{target.stream}>(stream)"] if target.stream else []
        lines.append("    " + target.syntax.returning_failure(f"{sources[step].name}({', '.join(passed)})"))
    lines += [f"    return {target.syntax.null};", "}"]
    return Launcher(name, "\n".join(lines), tuple(arguments), tuple(allocated), 0 if local else size,
                    tuple(sources[step].name for step in steps))
