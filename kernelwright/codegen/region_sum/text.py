"""Text that the region sums of all C-like targets share: tables, row walks, positions of units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.codegen.region_sum.axes import Axis
from kernelwright.codegen.region_sum.planning import Stream
from kernelwright.codegen.terms import modulo, plus, times

INLINE_TABLE = 6


@dataclass(frozen=True, slots=True)
class Dialect:
    """Qualifiers of functions and of constant data, and the text that the target puts before loops."""

    function: str
    data: str


def literal(value: int) -> str:
    """A C++ integer literal."""
    return f"{value}LL" if abs(value) >= 1 << 31 else str(value)


def _along(index: str, stride: int) -> str:
    """An index times a stride."""
    return times(index, stride, "LL" if abs(stride) >= 1 << 31 else "")


def table(name: str, values: Sequence[int], dialect: Dialect) -> str:
    """A function ``name(i)`` that returns ``values[i]``.

    A constant, a progression and a few values become arithmetic, so that short kernels do not wait for
    loads of tables. The result is ``int`` where all values fit, otherwise ``long long``.
    """
    values = tuple(values) or (0,)
    wide = max(map(abs, values)) >= 1 << 31
    kind = "long long" if wide else "int"
    head = f"{dialect.function} {kind} {name}(int i) {{"
    step = values[1] - values[0] if len(values) > 1 else 0
    if all(value == values[0] + i * step for i, value in enumerate(values)):
        suffix = "LL" if wide else ""
        body = plus(literal(values[0]), times("i", step, suffix))
        unused = " (void)i;" if step == 0 else ""
        return f"{head}{unused} return {body}; }}\n"
    if len(values) <= INLINE_TABLE:
        choice = "".join(f"i == {i} ? {literal(value)} : " for i, value in enumerate(values[:-1]))
        return f"{head} return {choice}{literal(values[-1])}; }}\n"
    element = "short" if max(values) < 1 << 15 and min(values) >= 0 else kind
    lines, line = [], ""
    for value in values:
        text = literal(value) + ","
        if len(line) + len(text) > 100:
            lines.append(line.rstrip())
            line = ""
        line += text + " "
    lines.append(line.rstrip(" ,"))
    return (
        f"{dialect.data} {element} {name}_data[{len(values)}] = {{\n  " + "\n  ".join(lines) + "};\n"
        f"{head} return {name}_data[i]; }}\n"
    )


def walk_text(stream: Stream, name: str, dialect: Dialect) -> str:
    """``NAME_Walk``: the offsets of an atom's rows in order (``start``, ``next``), and the atoms' tables."""
    atoms = stream.atoms
    axes = len(atoms[0].counts)
    first = [0]
    for atom in atoms:
        first.append(first[-1] + atom.rows)
    text = [
        "// Rows are numbered atom by atom; an atom's rows belong to the same classes.\n",
        table(f"{name}_first_row", first, dialect),
        table(f"{name}_offset", [atom.offset for atom in atoms], dialect),
        table(f"{name}_limit", [atom.limit for atom in atoms], dialect),
    ]
    for j in range(axes):
        text.append(table(f"{name}_stride{j}", [atom.strides[j] for atom in atoms], dialect))
        if j:
            text.append(table(f"{name}_count{j}", [atom.counts[j] for atom in atoms], dialect))
    member = dialect.function.removeprefix("static ")
    lines = [f"struct {name}_Walk {{", "  long long offset;  // of the current row in its unit, in elements"]
    for j in range(axes):
        lines.append(f"  long long jump{j};" + (f" long long index{j}, count{j};" if j else ""))
    lines.append(f"  {member} void start(int atom, long long row) {{")
    lines.append(f"    offset = {name}_offset(atom);")
    for j in range(axes - 1, -1, -1):
        if j:
            lines.append(f"    count{j} = {name}_count{j}(atom); index{j} = row % count{j}; row /= count{j};")
        here = f"index{j}" if j else "row"
        lines.append(f"    jump{j} = {name}_stride{j}(atom); offset += {here} * jump{j};")
    for j in range(axes - 1):
        lines.append(f"    jump{j} -= count{j + 1} * {name}_stride{j + 1}(atom);")
    lines += ["  }", f"  {member} void next() {{"]
    indent = "    "
    for j in range(axes - 1, -1, -1):
        lines.append(f"{indent}offset += jump{j};")
        if j:
            lines.append(f"{indent}if (++index{j} == count{j}) {{")
            indent += "  "
            lines.append(f"{indent}index{j} = 0;")
    lines += ["    " + "  " * j + "}" for j in range(axes - 2, -1, -1)]
    lines += ["  }", "};", ""]
    return "".join(text) + "\n".join(lines)


def place_text(stream: Stream, name: str, dialect: Dialect) -> str:
    """``NAME_place(unit, x_offset, out_offset)``: where a unit begins; returns its number of columns."""
    lines = [
        f"{dialect.function} int {name}_place(long long unit, long long& x_offset, long long& out_offset) {{"
    ]
    lines.append("  x_offset = 0; out_offset = 0;")
    result = str(stream.columns)
    if stream.tile_axis is not None and stream.tiles > 1:
        size, width = stream.tile_axis.size, stream.columns
        lines += [
            f"  const long long column = {times(modulo('unit', stream.tiles), width)};  // first column of the tile",
            f"  unit /= {stream.tiles};",
            "  x_offset += column; out_offset += column;",
        ]
        result = f"column + {width} <= {literal(size)} ? {width} : static_cast<int>({literal(size)} - column)"
    for number, axis in enumerate(reversed(stream.kept)):
        last = number == len(stream.kept) - 1
        index = "unit" if last else modulo("unit", axis.size)
        lines.append(
            f"  x_offset += {_along(index, axis.stride)}; out_offset += {_along(index, axis.output_stride)};"
        )
        if not last:
            lines.append(f"  unit /= {axis.size};")
    if not stream.kept:
        lines.append("  (void)unit;")
    lines += [f"  return {result};", "}", ""]
    return "\n".join(lines)


def outputs_text(stream: Stream, name: str, dialect: Dialect) -> str:
    """Tables of the outputs: ``NAME_output(u)`` (offset), and the tasks of ``u`` in ``NAME_part``."""
    first = [0]
    for _, parts in stream.outputs:
        first.append(first[-1] + len(parts))
    return (
        table(f"{name}_output", [offset for offset, _ in stream.outputs], dialect)
        + table(f"{name}_first_part", first, dialect)
        + table(f"{name}_part", [task for _, parts in stream.outputs for task in parts], dialect)
    )


def one_output_text(axes: tuple[Axis, ...], name: str, scalar: str, lanes: int, dialect: Dialect) -> str:
    """``NAME_one(x, output, lane)``: the lane's share of one output, summed from x directly."""
    text = []
    for number, axis in enumerate(axes):
        if axis.classes is not None:
            first = [0]
            for one in axis.classes:
                first.append(first[-1] + len(one))
            flat = [p for one in axis.classes for p in one]
            text.append(table(f"{name}_first{number}", first, dialect))
            for part, title in enumerate(("start", "stop", "step")):
                text.append(table(f"{name}_{title}{number}", [p[part] for p in flat], dialect))
    lines = [f"{dialect.function} double {name}_one(const {scalar}* x, long long output, int lane) {{"]
    for number in range(len(axes) - 1, -1, -1):
        axis = axes[number]
        index = "output" if number == 0 else modulo("output", axis.outputs)
        if axis.classes is None:
            lines.append(f"  x += {_along(index, axis.stride)};")
        else:
            lines.append(f"  const int class{number} = static_cast<int>({index});")
        if number:
            lines.append(f"  output /= {axis.outputs};")
    lines += ["  (void)output; (void)lane;", "  double sum = 0;"]
    reduced = [number for number, axis in enumerate(axes) if axis.classes is not None]
    indent = "  "
    position = []
    for number in reduced:
        inner = number == reduced[-1] and lanes > 1
        step = f"static_cast<long long>({name}_step{number}(p{number}))"
        begin = f" + lane * {step}" if inner else ""
        lines += [
            f"{indent}for (int p{number} = {name}_first{number}(class{number}); "
            f"p{number} < {name}_first{number}(class{number} + 1); ++p{number})",
            f"{indent}for (long long q{number} = {name}_start{number}(p{number}){begin}; "
            f"q{number} < {name}_stop{number}(p{number}); q{number} += {step}"
            + (f" * {lanes})" if inner else ")"),
        ]
        position.append(_along(f"q{number}", axes[number].stride))
        indent += "  "
    lines += [f"{indent}sum += x[{' + '.join(position) or '0'}];", "  return sum;", "}", ""]
    return "".join(text) + "\n".join(lines)
