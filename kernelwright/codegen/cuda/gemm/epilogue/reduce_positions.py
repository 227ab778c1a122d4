"""Reductions over all positions from an epilogue subtile: what each subtile adds to them.

A thread finishes its row as ever, and puts the values that are reduced over positions where its sums were. Then threads
take columns: they read four positions at a time and keep what they find in registers. One partial result of each column
goes to the workspace for each n of the subtile, of which there are at most two where an n has 64 rows or more. A last
kernel (`epilogue.finalize`) takes those of all subtiles together.

Rows of a subtile need not be positions, so masks behind the values say which are: of the first row's n, and of the
next. Moments are of what values differ from one of them, the first: the sum of the differences and of their squares. As
near the mean as a value is, no digits are lost where the mean is large and the variance small; the last kernel, in
double, moves both to the mean.

For each element and distinct expression that is a write to shared memory and a quarter of a read of 16 bytes, whose
addresses meet no bank twice; for 64 rows (of two phases: 128 positions) of a column one number, or
three of moments: 1/64 to 3/64 of the bytes of the sums. Values of several distinct expressions need as many subtiles.
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.epilogue.collective import all_reduce
from kernelwright.codegen.cuda.gemm.epilogue.store import StorePositions
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import (
    MEET,
    THREADS,
    UNROLL,
    stores_channels,
)
from kernelwright.codegen.cuda.gemm.points import STARTS, TAKES, as_float, device_function, entry_type, straight
from kernelwright.codegen.cuda.gemm.problem import COMPONENTS, SUBTILE_ROWS, Geometry, components
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.codegen.reference.contraction import uses_reductions
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Expression


def mma_warps(tiling: Tiling) -> int:
    """Warps of a block of the core on mma.sync: one or two consumer warpgroups of 128 threads."""
    return 8 if tiling.rows * tiling.columns > 128 * 128 else 4


def refused_positions(geometry: Geometry) -> str:
    """Why the kernel's reductions over positions cannot be taken in an epilogue; empty where they can, or there are
    none."""
    kernel = geometry.kernel
    if not kernel.position_reductions:
        return ""
    if kernel.reductions or kernel.pools:
        return "no reductions over positions beside other reductions"
    if any(t.kind not in COMPONENTS or uses_reductions(t.expression) for t in kernel.position_reductions):
        return f"no reductions over positions but {', '.join(COMPONENTS)} of what is known at each position"
    if geometry.pitches[0] < SUBTILE_ROWS:
        return f"no reductions over positions of fewer than {SUBTILE_ROWS} rows"
    if stores_channels(kernel):
        return "no reductions over positions where channels are neighbours in the output"
    return ""


def distinct_expressions(kernel: Contraction) -> tuple[Expression, ...]:
    """The distinct expressions that the kernel reduces over positions."""
    return tuple(dict.fromkeys(total.expression for total in kernel.position_reductions))


def mask_floats(kernel: Contraction, tiling: Tiling) -> int:
    """Floats of a subtile behind the values of reductions over positions: bits that say which places are positions, of
    two n."""
    return 2 * tiling.parities * SUBTILE_ROWS // 32 if kernel.position_reductions else 0


class ReducePositions(StorePositions):
    """A thread takes a row as for stores, then a column, or some positions of one.

    Raises ValueError where reductions over positions cannot be taken.
    """

    parameters = (("float* __restrict__", "position_partials"), ("int* __restrict__", "position_counts"))

    def __init__(self, geometry: Geometry, name: str) -> None:
        if reason := refused_positions(geometry):
            raise ValueError(f"{name}: {reason}")
        super().__init__(geometry, name)
        self.comment = "a thread takes a row, then a column for the reductions"
        self.positions = SUBTILE_ROWS * self.phases
        self.distinct = distinct_expressions(self.kernel)
        self.values = [as_float(self.emitter, self.table.without(value)) for value in self.distinct]
        # Subtiles of values one behind the other, then the masks.
        self.subtile, self.masks = self.floats, self.floats * len(self.distinct)
        self.floats = self.masks + mask_floats(self.kernel, geometry.tiling)
        self.support = frozenset() if self._alone else frozenset({"tensor_core"})

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        words = self.positions // 32
        kind = "unsigned" if self.kind == "int" else "(unsigned long long)"
        return [
            "const int g = group;", f"const {self.kind} row = first_row + {self.row_of};", *self.position(),
            f"const bool in_bounds = {self.in_bounds()};", "if (in_bounds) {", *indent(self._finished()), "}",
            "// Which places are positions: of the first row's n, and of the next one.",
            f"const {entry_type(self.kernel)} first_n = {kind}(first_row) / {self.geometry.pitches[0]}u;",
            "const unsigned own = __ballot_sync(0xffffffffu, in_bounds && n == first_n);",
            "const unsigned next = __ballot_sync(0xffffffffu, in_bounds && n != first_n);",
            f"unsigned* const masks = reinterpret_cast<unsigned*>(sums + {self.masks});",
            f"if (thread % 32 == 0{f' && thread < {self.positions}' * (self.positions < THREADS)}) {{",
            f"  masks[thread / 32] = own, masks[{words} + thread / 32] = next;", "}",
            f"{self._meet}  // All values are there.",
            f"{self.name}_partials(sums, position_partials, position_counts, thread, phase_class, group, first_row, "
            "first_column);"]

    @property
    def _alone(self) -> bool:
        """Whether a block has 128 threads: of the kernel that adds parts of the steps, or of few sums on mma.sync."""
        tiling = self.geometry.tiling
        return tiling.split_k > 1 or (tiling.core == "mma" and mma_warps(tiling) * 32 == THREADS)

    @property
    def _meet(self) -> str:
        """The barrier of 128 threads; where a block has no more, the block's own. For a barrier whose number is not a
        constant a block is given all 16, and a multiprocessor has 64 (some have 16): fewer blocks would run."""
        return "__syncthreads();" if self._alone else MEET

    def _finished(self) -> list[str]:
        """The statements for a thread's position: the stores, and values of reductions over positions in place of the
        sums."""
        element = f"sums[{self.place} + (o - first_column) * {self.strides[1]}]"
        lines = [*self.part(self.across), *self.table.begins("first"), *self.scale_lines()]
        step = [f"const float sum = {element};", *straight(self.emitter)]
        if self.geometry.scaled:
            lines += ["if (!fast) {  // Rescaled, in place.", "#pragma unroll 1",
                      f"  for (int o = first; o < last; ++o) {element} = {self.rescaled(element)};", "}"]
            step[0] = f"const float sum = {element} * (fast ? row_scale * column_scale[v] : 1.0f);"
        step += [element.replace("sums[", f"sums[{number * self.subtile} + " if number else "sums[", 1) + f" = {value};"
                 for number, value in enumerate(self.values)]
        return [*lines, *self.emitter.fixed_lines, *self.table.steps("first", "last", step, UNROLL)]

    def helpers(self) -> list[str]:
        """``NAME_partials``: partial results of each column and n of a subtile."""
        kernel, words = self.kernel, self.positions // 32
        subtiles, all_columns = self.geometry.subtiles, kernel.groups * kernel.out_channels
        share, used = self._sharing, self._sharing * self.columns
        column = f"thread / {share}" if share > 1 else "thread"
        writes = [*[f"thread < {used}"] * (used < THREADS), *["lane == 0"] * (share > 1),
                  f"first_column + column < {kernel.out_channels}"]
        lines = [
            f"const int column = {f'min({column}, {self.columns - 1})' if used < THREADS else column};",
            *[f"const int lane = thread % {share};  // of the threads of a column"] * (share > 1),
            f"const bool writes = {' && '.join(writes)};",
            f"const unsigned* masks = reinterpret_cast<const unsigned*>(sums + {self.masks});", "#pragma unroll 1",
            f"for (int which = 0; which < 2; ++which, masks += {words}) {{  // of the subtile's n", *indent([
                f"const long long slot = (phase_class * {subtiles}LL + first_row / {SUBTILE_ROWS}) * 2 + which;",
                f"const int count = {' + '.join(f'__popc(masks[{word}])' for word in range(words))};",
                "if (thread == 0 && group == 0 && first_column == 0) position_counts[slot] = count;",
                "if (count == 0) continue;",
                f"float* const to = position_partials + slot * {self.geometry.components * all_columns}LL "
                f"+ group * {kernel.out_channels}LL + first_column + column;"]),
        ]
        for at, total in components(kernel):
            region = self.distinct.index(total.expression) * self.subtile
            text = self._moments(at) if total.kind == "moments" else self._plain(total.kind, at)
            lines += ["  {", *indent([f"const float* const values = sums + {f'{region} + ' * (region > 0)}"
                                      f"column * {self.strides[1]};", *text], 4), "  }"]
        heads = ["const float* sums", *map(" ".join, self.parameters), "int thread", "int phase_class", "int group",
                 "long long first_row", "int first_column"]
        comment = "What a subtile adds to the reductions, by n and column: " \
            f"{'a thread takes' if share == 1 else f'{share} threads take'} a column."
        return [device_function(comment, "void", f"{self.name}_partials", heads, [*lines, "}"])]

    @property
    def _sharing(self) -> int:
        """Threads that share a column, a power of two."""
        return 1 << (THREADS // self.columns).bit_length() - 1

    def _plain(self, kind: str, at: int) -> list[str]:
        """A sum or an extremum."""
        return [*self._over_positions({"part": (kind, "value[v]")}), *self._write({at: "part"})]

    def _moments(self, at: int) -> list[str]:
        """The value of the first position, which stands in for a mean, then what values differ from it: the sum, and
        the sum of squares. Where that value is not finite, what differs from zero."""
        first = "".join(f"masks[{word}] ? {f'{32 * word} + ' * (word > 0)}__ffs(masks[{word}]) - 1 : "
                        for word in range(self.positions // 32 - 1))
        last = self.positions // 32 - 1
        return [f"const float some = values[{first}{f'{32 * last} + ' * (last > 0)}__ffs(masks[{last}]) - 1];",
                "const float near = fabsf(some) < INFINITY ? some : 0.0f;",
                *self._over_positions({"rest": ("sum", "from_near"), "squares": ("sum", "from_near * from_near")},
                            ["const float from_near = value[v] - near;"]),
                *self._write({at: "near", at + 1: "rest", at + 2: "squares"})]

    def _over_positions(self, found: dict[str, tuple[str, str]], before: list[str] | None = None) -> list[str]:
        """Define each name of ``found`` as a reduction, of a kind and a term, over this n's positions of the
        subtile."""
        share, result = self._sharing, []
        # Threads of a column begin in different banks: 8 threads of a warp read 32 of them at a time.
        run = max(4, 32 // share)
        steps, each = self.positions // (4 * share), run // 4
        # Of the kernel that adds parts of the steps many blocks run at a time, and wait for each other's reads.
        unroll = min(2 if self.geometry.tiling.split_k > 1 else 4, steps)
        at = "i * 4" if share == 1 else " + ".join([
            f"i{f' / {each}' * (each > 1)} * {run * share}", f"lane * {run}", *[f"i % {each} * 4"] * (each > 1)])
        takes = [f"some_{name}[v] = {TAKES[kind].format(f'some_{name}[v]', term)};"
                 for name, (kind, term) in found.items()]
        result += [f"float some_{name}[4] = {{{', '.join([STARTS[kind]] * 4)}}};" for name, (kind, _) in found.items()]
        result += [f"#pragma unroll {unroll}", f"for (int i = 0; i < {steps}; ++i) {{", *indent([
            f"const int at = {at};", "float value[4];", "kw_read4(value, values + at);",
            "const unsigned bits = masks[at / 32] >> at % 32;", "#pragma unroll", "for (int v = 0; v < 4; ++v) {",
            "  if (!(bits >> v & 1)) continue;", *indent([*(before or []), *takes]), "}"]), "}"]
        for name, (kind, _) in found.items():
            take = TAKES[kind].format
            halves = [take(f"some_{name}[{i}]", f"some_{name}[{i + 1}]") for i in (0, 2)]
            both = take(f"({halves[0]})", f"({halves[1]})") if kind == "sum" else take(*halves)
            result.append(f"float {name} = {both};")
            if share > 1:
                result += ["#pragma unroll", f"for (int apart = 1; apart < {share}; apart *= 2)",
                           f"  {all_reduce(kind, name, 'apart')}"]
        return result

    def _write(self, found: dict[int, str]) -> list[str]:
        """Write components of the slot."""
        all_columns = self.kernel.groups * self.kernel.out_channels
        places = {number * all_columns: value for number, value in found.items()}
        return [f"if (writes) {', '.join(f'to[{place}] = {value}' for place, value in places.items())};"]
