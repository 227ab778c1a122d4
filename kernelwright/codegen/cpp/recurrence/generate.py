"""A recurrence for C++/OpenMP: a :class:`kernelwright.plan.kernels.Recurrence` to the text of one host function.

Where there are products, a step takes ``2 * gates * hidden**2`` operations a row of the batch, on weights that stay in
a core's cache where they fit, and for each block of rows one pass over these. Sums are in the order of the state's
elements whatever threads there are, so that the results do not depend on their number. Without products every element
goes through all steps by itself (:mod:`kernelwright.codegen.cpp.recurrence.pointwise`).
"""

from __future__ import annotations

from math import ceil

from kernelwright.codegen.cpp.expressions import Scope, index_text
from kernelwright.codegen.cpp.loops.text import SERIAL_WORK, indented
from kernelwright.codegen.cpp.recurrence import pointwise
from kernelwright.codegen.cpp.support.snippets import used_snippets
from kernelwright.codegen.source import KernelSource, text_beside
from kernelwright.codegen.template import fill
from kernelwright.plan.expressions import Constant, Expression, Index, Load, Reduced, walk
from kernelwright.plan.kernels import Recurrence

_HEADERS = "#include <initializer_list>\n#include <omp.h>\n\n"
#: Elements of the state to which a panel is rounded up, at most: four vectors of 16.
_MOST_UNITS = 64
#: Elements of the shortest vectors.
_LEAST_LANES = 8


def generate(kernel: Recurrence, name: str) -> KernelSource:
    """The text of the kernel's host function, with its constants in ``namespace NAME_detail``::

        static const char* NAME(const float* in0, ..., float* out0, ..., void* workspace)
    """
    return _Products(kernel).source(name) if kernel.weights else pointwise.generate(kernel, name)


class _Products:
    """The text of a recurrence with products, and the memory that it has for its states."""

    def __init__(self, kernel: Recurrence) -> None:
        self.kernel = kernel
        self.batch, self.hidden = kernel.shape
        self.packed = kernel.gates * ceil(self.hidden / _MOST_UNITS) * _MOST_UNITS * self.hidden
        self.size = self.packed + ceil(self.hidden / _LEAST_LANES)  # of the workspace
        # The state that is multiplied lies in a result of all steps, or in two places by turns.
        size = self.batch * self.hidden
        each = next((s for s in kernel.stores if s.expression is kernel.updates[0]
                     and (self._has_rows(s.index, size) or self._has_rows(s.index, -size))), None)
        self.states, self.place = "", "(n & 1) * BATCH * HIDDEN"
        if each is not None:
            self.states, self.place = f"out{each.buffer}", index_text(Index(each.index.strides[:1],
                                                                            each.index.offset), ["n"])
        else:
            self.states = self._memory(2)
        # Others are kept where the last one is wanted.
        taken, self.kept = [each], dict[int, str]()
        for number, update in enumerate(kernel.updates[1:], 1):
            kept = next((s for s in kernel.stores
                         if s.expression is update and s not in taken and self._has_rows(s.index, 0)), None)
            self.kept[number] = f"out{kept.buffer}" if kept is not None else self._memory(1)
            taken.append(kept)
        self.stores = [s for s in kernel.stores if s not in taken]
        initial = kernel.initial[0]
        self.initial = f"in{initial.buffer}" if isinstance(initial, Load) \
            and self._has_rows(initial.index, 0) else ""
        self.begins = not self.initial
        self.initial = self.initial or self._memory(1)

    def _has_rows(self, index: Index, step: int) -> bool:
        """Whether an index passes through contiguous rows, and from step to step by ``step`` elements."""
        along, row, unit = index.strides
        rows = unit == 1 and (row == self.hidden or self.batch == 1)
        return rows and along == step and (step != 0 or index.offset == 0)

    def _memory(self, states: int) -> str:
        """The place of so many states in the workspace."""
        self.size += states * self.batch * self.hidden
        return f"packed + {self.size - states * self.batch * self.hidden}"

    def source(self, name: str) -> KernelSource:
        kernel, initial = self.kernel, self.kernel.initial[0]
        parameters = [*(f"const float* __restrict__ in{n}" for n in range(len(kernel.input_dtypes))),
                      *(f"float* __restrict__ out{n}" for n in range(len(kernel.output_dtypes)))]
        members = {f"in{n}": "const float* " for n in range(len(kernel.input_dtypes))}
        members |= {f"out{n}": "float* " for n in range(len(kernel.output_dtypes))}
        members |= {f"kept{s}": "float* " for s in self.kept}
        given, pointers, lines = self._update()
        steps, work = kernel.steps, kernel.steps * self.batch * kernel.gates * self.hidden ** 2
        text = fill(text_beside(__file__, "recurrence.hpp"), {
            "NAME": name, "STEPS": steps, "BATCH": self.batch, "HIDDEN": self.hidden, "GATES": kernel.gates,
            "COMMENT": f"{steps} steps, batch {self.batch}, a state of {self.hidden}.",
            "FROM_ZERO": "true" if isinstance(initial, Constant) and initial.value == 0 else "false",
            "PACKED": self.packed, "MEMBERS": "\n".join(f"  {kind}{name};" for name, kind in members.items()),
            "ROWS": self._rows(), "PLACE": self.place, "GIVEN": ", ".join(given),
            "UPDATE": "\n".join(indented(lines, 2)),
            "POINTERS": "\n".join(f"    {kind} = {text};" for kind, text in zip(given, pointers, strict=True)),
            "NAMES": ", ".join(kind.rpartition(" ")[2].lstrip("*") for kind in given),
            "PARAMETERS": ", ".join(parameters), "INITIAL": self.initial, "STATES": self.states,
            "VALUES": ", ".join([*list(members)[:len(parameters)], *self.kept.values()]),
            "BEGIN": "\n".join(indented(self._begin(), 2)), "IF": "" if work >= SERIAL_WORK else " if (false)",
        })
        return KernelSource(name, _HEADERS + text, 4 * self.size, used_snippets(text))

    def _rows(self) -> str:
        """Where the weights of a gate begin."""
        text, gate = "", self.kernel.gates
        for weight in reversed(self.kernel.weights):
            gate -= weight.gates
            own = f"call.in{weight.buffer} + {f'(gate - {gate})' if gate else 'gate'} * HIDDEN * HIDDEN"
            text = f"gate < {gate + weight.gates} ? {own} : {text}" if text else own
        return text

    def _update(self) -> tuple[list[str], list[str], list[str]]:
        """What the text's `update` is given, as it is declared and by its value, and its lines."""
        kernel = self.kernel
        names = ["n", "(row + r)", "first"]
        given = ["const float* product", "const float* before", "float* after"]
        pointers = ["products[r]", "state + r * HIDDEN + first", "call.states + place(n) + (row + r) * HIDDEN + first"]
        scope = Scope("v")
        roots = [*kernel.updates, *(s.expression for s in self.stores)]
        used = {e for e in walk(*roots) if isinstance(e, Reduced)}
        scope.bound |= {Reduced(1, gate): f"product[{f'{gate} * UNITS + u' if gate else 'u'}]"
                        for gate in range(kernel.gates)}
        scope.bound[Reduced(0, 0)] = "before[u]"
        lines = []
        for s in self.kept:
            given.append(f"float* kept{s}")
            pointers.append(f"call.kept{s} + (row + r) * HIDDEN + first")
            if Reduced(0, s) in used:
                scope.bound[Reduced(0, s)] = f"kept{s}_before"
                lines.append(f"const real kept{s}_before = kept{s}[u];")
        loads = [e for e in walk(*roots) if isinstance(e, Load)]
        first = {}  # offset of what lies together
        for load in loads:
            key = load.buffer, load.index.strides
            first[key] = min(first.get(key, load.index.offset), load.index.offset)
        arrays = {key: f"x{n}" for n, key in enumerate(first)}
        for (buffer, strides), array in arrays.items():
            given.append(f"const float* {array}")
            pointers.append(f"call.in{buffer} + {index_text(Index(strides, first[buffer, strides]), names)}")
        for store in self.stores:
            given.append(f"float* y{store.buffer}")
            pointers.append(f"call.out{store.buffer} + {index_text(store.index, names)}")

        def element(load: Load) -> str:
            key = load.buffer, load.index.strides
            return f"{arrays[key]}[{index_text(Index(key[1][2:], load.index.offset - first[key]), ['u'])}]"

        lines += scope.define(roots, element)
        lines += [f"y{s.buffer}[{index_text(Index(s.index.strides[2:]), ['u'])}] = {scope.text(s.expression)};"
                  for s in self.stores]
        lines += [f"{array}[u] = {scope.text(update)};" for array, update in
                  zip(["after", *(f"kept{s}" for s in self.kept)], kernel.updates, strict=True)]
        return given, pointers, lines

    def _begin(self) -> list[str]:
        """Lines that put the states before the first step where the loop keeps them."""
        targets: list[tuple[str, Expression]] = [("call.initial", self.kernel.initial[0])] if self.begins else []
        targets += [(f"call.kept{s}", self.kernel.initial[s]) for s in self.kept]
        if not targets:
            return []
        scope = Scope("v")
        lines = scope.define([e for _, e in targets],
                             lambda load: f"call.in{load.buffer}[{index_text(load.index, ['0', 'row', 'u'])}]")
        lines += [f"{memory}[row * HIDDEN + u] = {scope.text(e)};" for memory, e in targets]
        return ["#pragma omp for schedule(static) nowait", "for (int64_t row = 0; row < BATCH; ++row)",
                "  for (int64_t u = 0; u < HIDDEN; ++u) {", *indented(lines, 2), "  }"]
