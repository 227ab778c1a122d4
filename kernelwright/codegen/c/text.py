"""Text that every skeleton shares: the host function, loops over axes, stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kernelwright.codegen.c.expressions import SIXTEEN_BITS, TYPES, Scope
from kernelwright.codegen.c.support import used_snippets
from kernelwright.codegen.loops.indices import index_text
from kernelwright.codegen.source import KernelSource
from kernelwright.plan.expressions import is_whole
from kernelwright.plan.kernels import Store


class Record(Protocol):
    """A kernel's record, as far as its operands' types: a loop's, a scan's, an extremum's."""

    @property
    def input_dtypes(self) -> tuple[str, ...]: ...

    @property
    def output_dtypes(self) -> tuple[str, ...]: ...

    @property
    def compute(self) -> str: ...


def braces(head: str, lines: Sequence[str]) -> list[str]:
    """``head { lines }``."""
    return [f"{head} {{".lstrip(), *(f"  {line}" for line in lines), "}"]


def definition(kernel: Record, name: str, comment: str, body: Sequence[str]) -> KernelSource:
    """The host function around ``body``, in which ``real`` is the type of the kernel's arithmetic."""
    arguments = [f"const {TYPES[d]}* restrict in{n}" for n, d in enumerate(kernel.input_dtypes)]
    arguments += [f"{TYPES[d]}* restrict out{n}" for n, d in enumerate(kernel.output_dtypes)]
    lines = [f"// {comment}",
             *braces(f"static const char* {name}({', '.join([*arguments, 'void* workspace'])})",
                     [f"typedef {TYPES[kernel.compute]} real;", "(void)workspace;", *body, "return NULL;"])]
    text = "\n".join(lines) + "\n"
    return KernelSource(name, text, 0, used_snippets(text))


def over(sizes: Sequence[int], names: Sequence[str], body: Sequence[str]) -> list[str]:
    """``body`` at every point of the axes, the last of which is the innermost loop."""
    lines = list(body)
    for size, name in reversed(list(zip(sizes, names, strict=True))):
        lines = braces(f"for (int64_t {name} = 0; {name} < {size}; ++{name})", lines)
    return lines if sizes else braces("", lines)


def store_lines(stores: Sequence[Store], kernel: Record, scope: Scope) -> list[str]:
    """Assignments of values that ``scope`` holds, rounded to the type in memory."""
    lines = []
    for store in stores:
        dtype, value = kernel.output_dtypes[store.buffer], scope.text(store.expression)
        if dtype == "bool":
            value = f"{value} != 0"
        elif dtype in SIXTEEN_BITS:
            value = f"kw_{dtype}_bits((float){value})"
        elif dtype != kernel.compute or is_whole(store.expression):
            value = f"({TYPES[dtype]}){value}"
        lines.append(f"out{store.buffer}[{index_text(store.index, scope.names)}] = {value};")
    return lines


def sizes_text(sizes: Sequence[int]) -> str:
    """``2 x 3``, or ``one point``."""
    return " x ".join(map(str, sizes)) or "one point"
