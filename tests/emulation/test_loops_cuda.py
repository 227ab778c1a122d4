"""The CUDA loop kernels, under the CPU emulation, against PyTorch in float64."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from math import inf, nan

import pytest
import torch
from exact_functions import erfcx
from loop_cases import LoopCase, call, cases, kernel_of, load, softmax_parts, store

from kernelwright.codegen.cuda.emulation.compile import compile_emulated
from kernelwright.codegen.cuda.expressions import apply_text, literal
from kernelwright.codegen.cuda.loops.generate import chosen_schedule, generate
from kernelwright.codegen.cuda.loops.schedule import Schedule, fits
from kernelwright.codegen.cuda.math import SCALAR_SNIPPETS, scalar_snippets
from kernelwright.codegen.cuda.support.snippets import snippets
from kernelwright.codegen.source import KernelSource
from kernelwright.ir.scalar import FUNCTIONS
from kernelwright.plan.expressions import Apply, Constant, Guard, Index, Load, Reduced


def source_text(sources: list[KernelSource]) -> str:
    """One translation unit; every kernel is also exported as ``run_NAME``."""
    names = {snippet for source in sources for snippet in source.support}
    text = snippets(names - SCALAR_SNIPPETS.keys()) + scalar_snippets(names & SCALAR_SNIPPETS.keys())
    for source in sources:
        text += "\n" + source.definition
        signature = source.definition.split("static const char* ")[-1].split("{")[0].strip()
        arguments = signature[signature.index("(") :]
        passed = ", ".join(part.split()[-1].lstrip("*") for part in arguments.strip("()").split(","))
        text += f'extern "C" const char* run_{source.name}{arguments} {{ return {source.name}({passed}); }}\n'
    return text


def aligned(size: int, dtype: torch.dtype, fill: float = 0) -> torch.Tensor:
    """A tensor aligned to 256 bytes."""
    room = torch.empty(size * dtype.itemsize + 256, dtype=torch.uint8)
    start = -room.data_ptr() % 256
    return room[start : start + size * dtype.itemsize].view(dtype).fill_(fill)


def launch(library: ctypes.CDLL, source: KernelSource, tensors: list[torch.Tensor]) -> str | None:
    """Run a kernel on inputs then outputs; its message."""
    workspace = aligned(source.workspace_bytes, torch.uint8, 255)
    function = getattr(library, f"run_{source.name}")
    function.restype = ctypes.c_char_p
    message = function(
        *(ctypes.c_void_p(t.data_ptr()) for t in tensors), ctypes.c_void_p(workspace.data_ptr()), None
    )
    return None if message is None else message.decode()


CASES = cases()


@pytest.fixture(scope="module")
def libraries():
    """Case name to its library and source."""
    sources = [generate(case.kernel, case.name) for case in CASES]
    library = compile_emulated(source_text(sources))
    return {source.name: (library, source) for source in sources}


def run_case(case: LoopCase, libraries) -> list[torch.Tensor]:
    library, source = libraries[case.name]
    inputs = []
    for tensor in case.inputs():
        own = aligned(tensor.numel(), tensor.dtype)
        own.copy_(tensor)
        inputs.append(own)
    outputs = [
        aligned(size, getattr(torch, dtype))
        for size, dtype in zip(case.output_sizes, case.kernel.output_dtypes, strict=True)
    ]
    message = launch(library, source, [*inputs, *outputs])
    assert message is None, message
    return outputs


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_evaluator(case: LoopCase, libraries) -> None:
    problem = case.mismatch(run_case(case, libraries))
    assert problem is None, problem


@pytest.mark.parametrize("order", ["reverse", "12345"])
def test_thread_order_changes_nothing(order: str, libraries, monkeypatch) -> None:
    """A race, or a result that depends on which thread comes first, differs between orders."""
    chosen = [case for case in CASES if case.name.startswith(("row_", "column_", "special_softmax"))]
    before = {case.name: run_case(case, libraries) for case in chosen}
    monkeypatch.setenv("KERNELWRIGHT_EMULATION_ORDER", order)
    for case in chosen:
        for first, second in zip(before[case.name], run_case(case, libraries), strict=True):
            assert torch.equal(first.nan_to_num(nan=7.0), second.nan_to_num(nan=7.0)), case.name


def softmax_of(rows: int, length: int, columns: bool = False) -> LoopCase:
    strides = (1, rows) if columns else (length, 1)
    reductions, value = softmax_parts(load(0, *strides))
    made = kernel_of((rows,), (length,), reductions=reductions, row_stores=[store(0, strides, value)])
    return LoopCase(f"softmax_{rows}_{length}_{'columns' if columns else 'rows'}", made, (rows * length,))


def moments_of(rows: int, length: int, columns: bool = False) -> LoopCase:
    """Moments, then a sum that needs them, then both kinds of store."""
    strides = (1, rows) if columns else (length, 1)
    x = load(0, *strides)
    centred = call("sub", x, Reduced(0))
    made = kernel_of(
        (rows,),
        (length,),
        reductions=[("moments", x), ("sum", call("abs", centred)), ("max", call("neg", x))],
        row_stores=[store(0, strides, call("div", centred, Reduced(1)))],
        outer_stores=[store(1, (1, 0), call("add", Reduced(2), Reduced(0, 1)))],
        outputs=("float32",) * 2,
    )
    return LoopCase(
        f"moments_{rows}_{length}_{'columns' if columns else 'rows'}", made, (rows * length,), 1e-5
    )


def kept_values(rows: int, length: int, count: int) -> LoopCase:
    """Sums of several inputs in float64, then what their means leave of each."""
    values = [load(n, length, 1) for n in range(count)]
    made = kernel_of((rows,), (length,), reductions=[("sum", value) for value in values],
                     row_stores=[store(n, (length, 1), call("sub", value, call("div", Reduced(n), length)))
                                 for n, value in enumerate(values)],
                     inputs=("float64",) * count, outputs=("float64",) * count, compute="float64")
    return LoopCase(f"kept_values_{rows}_{length}_{count}", made, (rows * length,) * count)


def pool(kind: str, size: int, width: int, padding: int = 0, stride: int = 2) -> LoopCase:
    """A pool over (4, 12, width) with square windows."""
    height, out_h = 12, (12 + 2 * padding - size) // stride + 1
    out_w = (width + 2 * padding - size) // stride + 1
    guards = [
        Guard(Index((0, stride, 0, 1, 0), -padding), height),
        Guard(Index((0, 0, stride, 0, 1), -padding), width),
    ]
    x = Load(
        0,
        Index((height * width, stride * width, stride, width, 1), -padding * (width + 1)),
        tuple(guards) if padding else (),
        -inf if kind == "max" else 0.0,
    )
    made = kernel_of(
        (4, out_h, out_w),
        (size, size),
        reductions=[(kind, call("mul", x, load(1, 0, 0, 0, size, 1)))],
        inputs=("float32",) * 2,
        outer_stores=[store(0, (out_h * out_w, out_w, 1, 0, 0), Reduced(0))],
    )
    return LoopCase(f"pool_{kind}_{size}_{width}_{padding}_{stride}", made, (4 * height * width, size * size))


def group_norm_of(entries: int, groups: int, positions: int, padding: int = 0) -> LoopCase:
    """What a norm of groups does to values, from its statistics; ``padding``: read around each row, as ones."""
    sizes, given = (entries, groups, 2, positions), positions - 2 * padding
    strides = (groups * 2 * given, 2 * given, given, 1)
    guards = (Guard(Index((0, 0, 0, 1), -padding), given),) if padding else ()
    x = Load(0, Index(strides, -padding), guards, 1.0)
    mean, deviation, weight = load(1, groups, 1, 0, 0), load(2, groups, 1, 0, 0), load(3, 0, 2, 1, 0)
    value = call("mul", call("mul", call("sub", x, mean), call("exp", deviation)), weight)
    made = kernel_of(sizes, (), inputs=("float32",) * 4, outer_stores=[
        store(0, (groups * 2 * positions, 2 * positions, positions, 1), value)])
    statistics = entries * groups
    inputs = statistics * 2 * given, statistics, statistics, groups * 2
    return LoopCase(f"group_norm_{positions}_{padding}", made, inputs)


def forced() -> list[tuple[LoopCase, Schedule]]:
    """Schedules that the small cases would not choose by themselves."""
    rows, columns = Schedule("rows"), Schedule("columns")
    result = []
    for make in (softmax_of, moments_of):
        wide, odd, tall = make(5, 640), make(7, 203), make(12, 150, columns=True)
        short = make(300, 16, columns=True)
        result += [
            (wide, replace(rows, lanes=4, group=32, unroll=2)),
            (wide, replace(rows, lanes=4, group=32, unroll=5, keep="registers")),
            (wide, replace(rows, lanes=4, group=256, unroll=1, keep="registers")),
            (wide, replace(rows, lanes=4, group=64, unroll=2, keep="shared")),
            (wide, replace(rows, lanes=4, group=256, unroll=2, keep="shared")),
            (wide, replace(rows, lanes=4, group=32, unroll=2, keep="shared", kept_steps=2)),
            (wide, replace(rows, lanes=4, group=16, unroll=5, keep="shared", kept_steps=4)),
            (wide, replace(rows, lanes=4, group=32, unroll=2, splits=3)),
            (odd, replace(rows, group=64, unroll=2, keep="shared", kept_steps=2)),
            (odd, replace(rows, group=32, unroll=3, keep="shared", kept_steps=4)),
            (make(1, 20000), replace(rows, group=32, threads=32, splits=5000)),
            (odd, replace(rows, group=8, unroll=4)),
            (odd, replace(rows, group=1, unroll=3)),
            (odd, replace(rows, group=512, threads=512, keep="registers")),
            (odd, replace(rows, group=64, unroll=2, splits=130)),
            (tall, replace(columns, lanes=4, group=8, unroll=4)),
            (tall, replace(columns, lanes=4, group=16, unroll=10, keep="registers")),
            (tall, replace(columns, lanes=1, group=16, threads=512, unroll=3, keep="shared")),
            (tall, replace(columns, lanes=4, group=8, threads=256, unroll=2, splits=4)),
            (tall, replace(columns, group=1, unroll=5)),
            (tall, replace(columns, lanes=4, group=2, unroll=3)),
            (short, replace(columns, unroll=16, keep="registers")),
        ]
    for case in (group_norm_of(3, 5, 203), group_norm_of(3, 5, 203, padding=2), group_norm_of(2, 3, 256)):
        result += [(case, replace(rows, group=group, unroll=unroll, splits=splits))
                   for group, unroll, splits in ((256, 1, 1), (64, 2, 1), (8, 4, 3), (1, 8, 5), (32, 8, 7))]
    for kind in ("max", "sum"):
        for case in (
            pool(kind, 2, 16),
            pool(kind, 3, 25),
            pool(kind, 3, 16, padding=1),
            pool(kind, 3, 18, stride=1),
            pool(kind, 2, 56, stride=7),
        ):
            out = case.kernel.outer[-1]
            for lanes in (1, 4) if out % 4 == 0 else (1,):
                result += [
                    (case, replace(columns, lanes=lanes, window=True, unroll=unroll)) for unroll in (1, 2, 3)
                ]
    return result


FORCED = forced()


@pytest.fixture(scope="module")
def forced_libraries():
    sources = [
        generate(case.kernel, f"{case.name}_{number}", schedule)
        for number, (case, schedule) in enumerate(FORCED)
    ]
    library = compile_emulated(source_text(sources), sanitize=True)
    return [(library, source) for source in sources]


@pytest.mark.parametrize("number", range(len(FORCED)), ids=lambda n: f"{n}_{FORCED[n][0].name}")
def test_forced_schedules(number: int, forced_libraries) -> None:
    case = FORCED[number][0]
    library, source = forced_libraries[number]
    named = replace(case, name=source.name)
    problem = named.mismatch(run_case(replace(case, name=source.name), {source.name: (library, source)}))
    assert problem is None, problem


def test_offsets_beyond_31_bits() -> None:
    """Elements 2**30 and more apart; the memory between is never touched."""
    far, count = 2**30 + 3, 5
    x = load(0, far, 1)
    total = kernel_of(
        (3,), (count,), reductions=[("sum", x)], inputs=("bool",), outer_stores=[store(0, (1, 0), Reduced(0))]
    )
    points = kernel_of((3, count), (), inputs=("bool",), outer_stores=[store(0, (count, 1), x)])
    try:
        given = torch.empty(2 * far + count, dtype=torch.bool)
    except RuntimeError:
        pytest.skip("the address space is limited")
    for row in range(3):
        given[row * far : row * far + count] = torch.arange(count) < row + 2
    sources = [generate(total, "far_total"), generate(points, "far_points")]
    library = compile_emulated(source_text(sources))
    for source, expected in zip(
        sources, ([2.0, 3.0, 4.0], [float(c < r + 2) for r in range(3) for c in range(count)]), strict=True
    ):
        output = aligned(len(expected), torch.float32)
        assert launch(library, source, [given, output]) is None
        assert output.tolist() == expected


def test_positions_beyond_32_bits_are_64_bits_wide() -> None:
    count = 5 * 2**30
    text = generate(kernel_of((count,), (), outer_stores=[store(0, (1,), load(0, 1))]), "many").definition
    assert "unsigned long long p = " in text and "const long long i0 = p" in text
    text = generate(
        kernel_of((), (count,), reductions=[("sum", load(0, 1))], outer_stores=[store(0, (0,), Reduced(0))]),
        "all",
    ).definition
    assert "unsigned long long p = " in text and "unsigned long long first" in text


def test_chosen_schedules() -> None:
    """Values stay on chip where they fit, and long rows are cut into parts of one size."""
    kept = chosen_schedule(softmax_of(1000, 65535).kernel)
    assert kept.keep == "shared" and kept.kept_steps % kept.unroll == 0
    assert 0 < kept.kept_steps * kept.group * kept.lanes * 4 <= 200 * 1024
    for length, weight in ((17001, 4), (16004, 4), (5004, 16)):  # of several values in float64
        wide = chosen_schedule(kept_values(1000, length, weight // 2).kernel)
        assert wide.keep == ("" if weight == 16 else "shared") and (wide.kept_steps > 0) == (wide.keep == "shared")
        assert wide.kept_steps * wide.group * wide.lanes * weight * 4 <= 200 * 1024
    assert chosen_schedule(softmax_of(1000, 4 * 65536).kernel).keep == ""
    assert chosen_schedule(softmax_of(10, 65535).kernel).keep == "", "too few rows for a block each"
    many, few = (chosen_schedule(softmax_of(n, 5000).kernel) for n in (30000, 100))
    assert many.keep == few.keep == "registers" and few.group == 512 > many.group == 128
    for length in (512, 1536, 4096, 10000, 16384, 20000, 25600, 32768):
        chosen = chosen_schedule(softmax_of(30000, length).kernel)
        if chosen.keep == "registers":
            values = -(-length // (chosen.group * chosen.lanes)) * chosen.lanes
            assert values <= 48 and chosen.group * values <= 32768
        else:
            assert 2 * length * 4 <= 200 * 1024 and chosen.threads == 512, "two blocks of a multiprocessor"
    columns = softmax_of(2**18, 128, columns=True).kernel
    schedule = chosen_schedule(columns)
    assert schedule.family == "columns" and schedule.keep == "registers" and fits(schedule, columns)
    short = chosen_schedule(softmax_of(2**20, 16, columns=True).kernel)
    assert (short.lanes, short.group, short.unroll, short.keep) == (1, 1, 16, "registers"), "a thread has all"
    parts = [
        chosen_schedule(
            kernel_of((), (n,), reductions=[("sum", load(0, 1))], outer_stores=[store(0, (0,), Reduced(0))])
        ).splits
        for n in (2**26, 2**28)
    ]
    assert parts[1] == 4 * parts[0] == 2**28 // 32768


def test_points_stay_in_long_rows_of_no_multiple_of_four() -> None:
    """Where something is the same all along a row: it is read and computed once for many elements."""
    case = group_norm_of(64, 16, 2047).kernel
    schedule = chosen_schedule(case)
    assert schedule.family == "rows" and schedule.group * schedule.unroll * schedule.splits >= 1024
    text = generate(case, "name").definition
    assert text.index("kw_exp(b") < text.index("for (int u"), "before the elements"
    others = group_norm_of(64, 16, 2048), group_norm_of(64, 64, 127), group_norm_of(2, 2, 2047)
    for other in others:  # fours of neighbours, short rows, little work
        assert chosen_schedule(other.kernel).family == "points"
    strides = (2047 * 2, 2047, 1)
    plain = kernel_of((999, 2, 2047), (), outer_stores=[store(0, strides, call("exp", load(0, *strides)))])
    assert chosen_schedule(plain).family == "points", "nothing to keep"


def test_offsets_are_64_bits_wide_only_where_they_must_be() -> None:
    def text(rows: int, length: int, window: int = 1) -> str:
        x = load(0, length, 1, 1)
        made = kernel_of((rows, length - window + 1), (window,), reductions=[("sum", x)],
                         outer_stores=[store(0, (length, 1, 0), Reduced(0))])
        return generate(made, "name").definition

    assert "long" not in text(8192, 65536, window=8), "2^32 terms, but 2^29 elements"
    assert "long" not in text(32768, 65535, window=2)
    assert "long" in text(32768, 65536, window=2)


def test_windows_inside_need_no_guards() -> None:
    schedule = Schedule("columns", window=True)
    text = generate(pool("max", 3, 16, padding=1).kernel, "name", schedule).definition
    assert "if ((unsigned)(i1 * 2 - 1) < 10u && (unsigned)(i2 * 2 - 1) < 14u) {" in text
    # A window as wide as the axis with its padding is never inside.
    wide = pool("max", 14, 12, padding=1).kernel
    assert "} else {" not in generate(wide, "name", schedule).definition


def test_misaligned_pointer_is_refused(libraries) -> None:
    case = next(case for case in CASES if case.name == "row_softmax_300_256")
    library, source = libraries[case.name]
    tensors = [aligned(300 * 256 + 4, torch.float32) for _ in range(2)]
    message = launch(library, source, [tensors[0][1:], tensors[1]])
    assert message is not None and case.name in message and "aligned" in message


def test_empty_rows_and_empty_outer() -> None:
    x = load(0, 3, 1)
    stores = [store(n, (1, 0), Reduced(n)) for n in range(2)]
    none = kernel_of(
        (4,), (0,), reductions=[("sum", x), ("logsumexp", x)], outer_stores=stores, outputs=("float32",) * 2
    )
    nothing = kernel_of((0,), (3,), reductions=[("sum", x)], outer_stores=[store(0, (1, 0), Reduced(0))])
    sources = [generate(none, "none"), generate(nothing, "nothing")]
    library = compile_emulated(source_text(sources))
    given, first, second = (aligned(16, torch.float32, 9.0) for _ in range(3))
    assert launch(library, sources[0], [given, first, second]) is None
    assert first[:5].tolist() == [0, 0, 0, 0, 9] and second[:5].tolist() == [-inf] * 4 + [9]
    assert launch(library, sources[1], [given, first]) is None


@pytest.mark.parametrize(("divisor", "real", "text"), [
    (6.0, "float", "x * 0.16666667f"), (-0.5, "float", "x * (-2.0f)"), (3, "float", "x / 3.0f"),
    (6.0, "double", "x / 6.0"), (0.0, "float", "x / 0.0f"), (1e36, "float", "x / 1e+36f"),
    (float("inf"), "float", "x / float(INFINITY)"), (float("nan"), "float", "x / float(NAN)")])
def test_divisions_by_usual_constants_are_products(divisor: float, real: str, text: str) -> None:
    """As PyTorch computes them on a GPU, in float32. Of others the reciprocal may be no usual number."""
    node = Apply("div", (Load(0, Index((1,), 0)), Constant(divisor)))
    assert apply_text(node, ["x", literal(float(divisor), real)], real) == text


@pytest.mark.parametrize(("function", "bound", "real", "text"), [
    ("relu", None, "float", "kw_greatest(x, 0.0f)"), ("relu", None, "double", "x < double(0) ? double(0) : x"),
    ("clamp_min", -0.5, "float", "kw_greatest(x, (-0.5f))"),
    ("clamp_max", inf, "float", "kw_least(x, float(INFINITY))"),
    ("clamp_max", nan, "float", "x > float(NAN) ? float(NAN) : x"),
    ("leaky_relu", 0.25, "float", "kw_greatest(x, x * 0.25f)"),
    ("leaky_relu", 1.0, "float", "kw_greatest(x, x * 1.0f)"),
    *(("leaky_relu", slope, "float", f"x > float(0) ? x : x * {literal(slope, 'float')}")
      for slope in (0.0, -0.25, 1.5, 1e-39, nan))])
def test_bounds_take_one_instruction(function: str, bound: float | None, real: str, text: str) -> None:
    """In float32, where it is the same: of a leaky ReLU for slopes whose product with infinity is infinite."""
    node = Apply(function, (Load(0, Index((1,), 0)), *([] if bound is None else [Constant(bound)])))
    assert apply_text(node, ["x", *([] if bound is None else [literal(bound, real)])], real) == text


@pytest.mark.parametrize("slope", [2.0**-126, 0.01, 0.5, 1.0, 0.0, -0.5, 2.0])
def test_leaky_slopes(slope: float) -> None:
    """Infinities, zeros and NaN included."""
    made = kernel_of((32,), (), inputs=("float32",), outputs=("float32",), compute="float32",
                     outer_stores=[store(0, (1,), Apply("leaky_relu", (load(0, 1), Constant(slope))))])
    source = generate(made, "leaky")
    given, output = aligned(32, torch.float32), aligned(32, torch.float32)
    given.copy_(torch.tensor([0.0, -0.0, inf, -inf, nan, 1.5, -1.5, 1e-45, -1e-45, 3e38, -3e38, 1e-30, -1e-30, 2.0,
                              -2.0, 7.0] * 2))
    assert launch(compile_emulated(source_text([source])), source, [given, output]) is None
    expected = torch.nn.functional.leaky_relu(given, slope)
    assert torch.equal(output.nan_to_num(nan=9.0), expected.nan_to_num(nan=9.0)), (output, expected)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="median"):
        generate(kernel_of((4,), (3,), reductions=[("median", load(0, 3, 1))]), "name")
    with pytest.raises(ValueError, match="complex64"):
        generate(kernel_of((4,), (), inputs=("complex64",), outer_stores=[store(0, (1,), load(0, 1))]), "name")
    with pytest.raises(ValueError, match="kw_gamma"):
        scalar_snippets(["kw_gamma"])


PARAMETERS = {
    "leaky_relu": (0.01,),
    "elu": (1.3,),
    "celu": (1.7,),
    "softplus": (1.5, 20.0),
    "threshold": (0.5, 2.0),
    "softshrink": (0.5,),
    "hardshrink": (0.5,),
    "clamp_min": (-0.5,),
    "clamp_max": (0.5,),
    "nan_to_num": (0.5, 9.0, -9.0),
}


@pytest.fixture(scope="module")
def function_library():
    """Every scalar function in both types, in one library."""
    sources = {}
    for name, row in FUNCTIONS.items():
        for dtype in ("float32", "float64"):
            extra = [Constant(value) for value in PARAMETERS.get(name, ())]
            arguments = (*(load(n, 1) for n in range(row.arity - len(extra))), *extra)
            made = kernel_of(
                (4096,),
                (),
                inputs=(dtype,) * (row.arity - len(extra)),
                outputs=(dtype,),
                compute=dtype,
                outer_stores=[store(0, (1,), Apply(name, arguments))],
            )
            sources[name, dtype] = generate(made, f"{name}_{dtype}")
    return compile_emulated(source_text(list(sources.values()))), sources


@pytest.mark.parametrize("name", FUNCTIONS)
def test_scalar_function(name: str, function_library) -> None:
    """Against PyTorch in float64; special values agree with PyTorch in the same type, or in float64: with AVX-512 its
    gelu of an infinite float32 is NaN."""
    library, sources = function_library
    special = torch.tensor(
        [0.0, -0.0, inf, -inf, nan, 1.0, -1.0, 0.5, -0.5, 2.5, 3.0, -3.0, 90.0, -90.0, 1e-20, 1e30]
    )
    generator = torch.Generator().manual_seed(3)
    for dtype, bound in ((torch.float32, 2e-6), (torch.float64, 1e-14)):
        source = sources[name, str(dtype).removeprefix("torch.")]
        count = FUNCTIONS[name].arity - len(PARAMETERS.get(name, ()))
        given = [aligned(4096, dtype) for _ in range(count)]
        for number, tensor in enumerate(given):
            tensor.copy_(torch.randn(4096, generator=generator, dtype=torch.float64) * 4)
            tensor[:256] = (special.repeat(16) if number == 0 else special.repeat_interleave(16)).to(dtype)
        output = aligned(4096, dtype)
        assert launch(library, source, [*given, output]) is None
        extra = [torch.full((4096,), value, dtype=torch.float64) for value in PARAMETERS.get(name, ())]
        expected = FUNCTIONS[name].reference(*(t.double() for t in given), *extra).double()
        if name == "erfcx":
            expected = erfcx(given[0].double())
        same = FUNCTIONS[name].reference(*given, *(e.to(dtype) for e in extra)).double()
        finite = expected.isfinite() & same.isfinite()
        # PyTorch's gelu cancels in 1 + erf and 1 + tanh, and a logarithm of a sum where that is about 1.
        cancels = "gelu" in name or "logaddexp" in name
        error = (output.double() - expected).abs() / (expected.abs() + (0.1 if cancels else 0.01))
        assert error[finite].max() <= bound, (name, dtype, error[finite].max())
        odd = ~finite & (same.isnan() | same.isinf())
        agree = (output.double() == same) | (output.isnan() & same.isnan()) | (output.double() == expected)
        assert agree[odd].all(), (
            name,
            dtype,
            given[0][odd][~agree[odd]][:4],
            output[odd][~agree[odd]][:4],
            same[odd][~agree[odd]][:4],
        )
