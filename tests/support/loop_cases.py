"""Small LoopKernels over every schedule, with inputs and float64 expected values.

``cases()`` lists them. The targets' tests generate, build and run each, and compare with
``case.expected()``. Outputs are allocated with ``case.output_sizes`` elements, zero filled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, nan, prod

import torch

from kernelwright.codegen.reference.loops import evaluate, required_output_sizes
from kernelwright.plan.expressions import Apply, Constant, Expression, Guard, Index, Load, Reduced, Whole
from kernelwright.plan.kernels import LoopKernel, Reduction, Store

_HALF_UNITS = {"float16": 1.02 * 2.0**-11, "bfloat16": 1.02 * 2.0**-8, "float32": 2.0**-24}


@dataclass(frozen=True)
class LoopCase:
    """A kernel, the element counts of its inputs and the tolerance of its float32 result.

    ``tolerance`` bounds |value - expected| / (|expected| + scale), with scale the root mean square of
    the finite expected values. ``edit`` may plant special values into the inputs.
    """

    name: str
    kernel: LoopKernel
    input_sizes: tuple[int, ...]
    tolerance: float = 2e-6
    edit: Callable[[list[torch.Tensor]], None] | None = field(default=None, compare=False)

    @property
    def output_sizes(self) -> list[int]:
        """Element counts of the outputs."""
        return required_output_sizes(self.kernel)

    def inputs(self) -> list[torch.Tensor]:
        """Flat input tensors of the kernel's dtypes, the same on every call."""
        generator = torch.Generator().manual_seed(sum(map(ord, self.name)))
        result = []
        for size, name in zip(self.input_sizes, self.kernel.input_dtypes, strict=True):
            dtype = getattr(torch, name)
            if dtype.is_floating_point:
                result.append(torch.randn(size, generator=generator, dtype=dtype))
            elif dtype == torch.bool:
                result.append(torch.rand(size, generator=generator) < 0.5)
            else:
                result.append(torch.randint(-5, 6, (size,), generator=generator).to(dtype))
        if self.edit is not None:
            self.edit(result)
        return result

    def expected(self) -> list[torch.Tensor]:
        """Flat outputs in float64 (integers and booleans in their own dtype)."""
        return evaluate(self.kernel, self.inputs())

    def mismatch(self, outputs: Sequence[torch.Tensor]) -> str | None:
        """None if ``outputs`` (flat, on the CPU) agree with ``expected()``, else what is wrong."""
        for number, (value, expected) in enumerate(zip(outputs, self.expected(), strict=True)):
            tolerance = 1e-13 if self.kernel.compute == "float64" else self.tolerance
            # A 16-bit result is the rounded one: half a unit of its last place, and what float32 adds.
            tolerance = max(tolerance, _HALF_UNITS.get(self.kernel.output_dtypes[number], 0.0))
            where = f"{self.name}, output {number}"
            if not expected.is_floating_point():
                if not torch.equal(value, expected):
                    return f"{where}: {(value != expected).sum()} of {value.numel()} differ"
                continue
            stored = getattr(torch, self.kernel.output_dtypes[number])
            value = value.double()
            # What rounds to infinity must be infinite.
            expected = torch.where(expected.to(stored).isinf(), expected.to(stored).double(), expected)
            finite = torch.isfinite(expected)
            same = (value == expected) | (torch.isnan(value) & torch.isnan(expected))
            if not same[~finite].all():
                bad = int((~finite & ~same).nonzero()[0])
                return f"{where}: element {bad} is {value[bad]}, expected {expected[bad]}"
            if not finite.any():
                continue
            scale = expected[finite].square().mean().sqrt() + 1e-30
            spacing = torch.finfo(stored).tiny * torch.finfo(stored).eps  # of the subnormal numbers
            error = ((value - expected).abs() - spacing / 2).clamp_min(0.0) / (expected.abs() + scale)
            error = torch.where(finite, error.nan_to_num(nan=inf), torch.zeros(()))
            if error.max() > tolerance:
                bad = int(error.argmax())
                return (
                    f"{where}: element {bad} is {value[bad]}, expected {expected[bad]}"
                    f" (error {error.max():.2e}, tolerance {tolerance:.1e})"
                )
        return None


def call(function: str, *arguments: Expression | float) -> Apply:
    """An Apply whose number arguments become constants."""
    return Apply(
        function, tuple(a if not isinstance(a, int | float) else Constant(float(a)) for a in arguments)
    )


def load(
    buffer: int, *strides: int, offset: int = 0, guards: Sequence[Guard] = (), otherwise: float = 0.0
) -> Load:
    """A Load at ``offset + sum(strides * axes)``."""
    return Load(buffer, Index(tuple(strides), offset), tuple(guards), otherwise)


def contiguous(sizes: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides."""
    return tuple(prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def kernel_of(
    outer: Sequence[int],
    row: Sequence[int],
    *,
    reductions: Sequence[tuple[str, Expression]] = (),
    row_stores: Sequence[Store] = (),
    outer_stores: Sequence[Store] = (),
    inputs: Sequence[str] = ("float32",),
    outputs: Sequence[str] = ("float32",),
    compute: str = "float32",
) -> LoopKernel:
    """A LoopKernel with its tuples made."""
    return LoopKernel(
        tuple(outer),
        tuple(row),
        tuple(Reduction(*r) for r in reductions),
        tuple(row_stores),
        tuple(outer_stores),
        tuple(inputs),
        tuple(outputs),
        compute,
    )


def store(buffer: int, strides: Sequence[int], expression: Expression, offset: int = 0) -> Store:
    """A Store at ``offset + sum(strides * axes)``."""
    return Store(buffer, Index(tuple(strides), offset), expression)


def cases() -> list[LoopCase]:
    """Every case; names are unique and valid identifiers."""
    return [
        *pointwise_cases(),
        *row_cases(),
        *column_cases(),
        *window_cases(),
        *matrix_cases(),
        *special_cases(),
        *narrow_cases(),
        *whole_cases(),
    ]


def channel_normed(values: Expression, *by_channel: int) -> Apply:
    """Values as batch norm of running statistics gives them: buffers 1 to 4, whose strides are ``by_channel``."""
    mean, variance, weight, bias = (load(n, *by_channel) for n in (1, 2, 3, 4))
    scale = call("mul", call("rsqrt", call("add", call("square", variance), 1e-3)), weight)
    return call("add", call("mul", call("sub", values, mean), scale), bias)


def pointwise_cases() -> list[LoopCase]:
    result = []

    def add(
        name,
        sizes,
        expression,
        inputs,
        strides=None,
        offset=0,
        dtypes=None,
        output="float32",
        compute="float32",
        tolerance=2e-6,
    ):
        strides = contiguous(sizes) if strides is None else strides
        dtypes = dtypes or (compute,) * len(inputs)
        made = kernel_of(
            sizes,
            (),
            outer_stores=[store(0, strides, expression, offset)],
            inputs=dtypes,
            outputs=(output,),
            compute=compute,
        )
        result.append(LoopCase(f"pointwise_{name}", made, tuple(inputs), tolerance))

    x3 = load(0, *contiguous((7, 11, 13)))
    add(
        "contiguous",
        (7, 11, 13),
        call("gelu_erf", call("add", x3, load(1, *contiguous((7, 11, 13))))),
        (1001, 1001),
    )
    add("double", (7, 11, 13), call("tanh", x3), (1001,), output="float64", compute="float64")
    add(
        "channel_bias",
        (3, 5, 6, 7),
        call("relu", call("add", load(0, 210, 42, 7, 1), load(1, 0, 1, 0, 0))),
        (630, 5),
    )
    add("row_vector", (70, 33), call("mul", load(0, 33, 1), call("sigmoid", load(1, 0, 1))), (70 * 33, 33))
    for name, width, dtype in (("", 250, "float32"), ("_long", 5000, "float32"), ("_half", 250, "float16")):
        # What is dear differs by channel alone, and is the same at all points.
        values = load(0, width, 1)
        add(f"normalised{name}", (40, width), call("relu", channel_normed(values, 0, 1)), (40 * width, *[width] * 4),
            dtypes=(dtype, *["float32"] * 4))
    add("three_scales", (9, 65), call("add", call("mul", load(0, 65, 1), call("exp", load(1, 0, 1))),
                                      call("mul", call("tanh", load(1, 0, 1)), call("exp", load(2, 1, 0)))),
        (9 * 65, 65, 9))
    add("transposed", (37, 41), call("exp", load(0, 1, 37)), (37 * 41,))
    add("scalar", (1000,), call("sub", load(0, 1), load(1, 0)), (1000, 1))
    add("one_point", (), call("square", load(0)), (1,))
    add("ones", (1, 5, 1, 1, 9, 1), call("neg", load(0, 45, 9, 9, 9, 1, 1)), (45,))
    add("empty", (3, 0, 5), call("neg", load(0, 0, 5, 1)), (1,))
    add("slice", (9, 10), call("abs", load(0, 40, 2, offset=3)), (9 * 40,), (30, 3), 5)
    add("flip", (6, 19), call("selu", load(0, 19, -1, offset=18)), (6 * 19,))
    add("large", (3, 300, 131), call("mish", load(0, 300 * 131, 131, 1)), (3 * 300 * 131,))
    add(
        "pad",
        (2, 9, 22),
        load(
            0,
            5 * 17,
            17,
            1,
            offset=-2 * 17 - 3,
            otherwise=-1.5,
            guards=[Guard(Index((0, 1, 0), -2), 5), Guard(Index((0, 0, 1), -3), 17)],
        ),
        (2 * 5 * 17,),
    )
    # Two guarded loads of different windows (a concatenation along the last axis).
    left = load(0, 9, 1, guards=[Guard(Index((0, 1), 0), 9)])
    right = load(1, 8, 1, offset=-9, guards=[Guard(Index((0, 1), -9), 8)])
    add("concatenate", (15, 17), call("add", left, right), (15 * 9, 15 * 8))
    # Parts of a lane that are computed otherwise, one of them backwards, and one that none of them has; long ones, too.
    first, last = [Guard(Index((0, 1), 0), 13)], [Guard(Index((0, -1), 32), 20)]
    angle = call("mul", load(0, 1, 0, guards=first), load(1, 0, 1, guards=first))
    add("parts_of_lane", (9, 40), call("add", call("sin", angle), load(2, 20, -1, offset=32, guards=last)),
        (9, 13, 180))
    low, high = [Guard(Index((0, 1), 0), 25000)], [Guard(Index((0, 1), -25000), 15000)]
    add("parts_of_long_lane", (2, 40000), call("add", load(0, 25000, 1, guards=low, otherwise=-0.0), call(
        "mul", load(1, 15000, 1, offset=-25000, guards=high, otherwise=-0.0), load(2, 1, 0, guards=high))),
        (50000, 30000, 2))
    # A guard on the merged position of two axes.
    add(
        "diagonal_guard",
        (12, 15),
        load(0, 1, 1, offset=-4, guards=[Guard(Index((1, 1), -4), 13)], otherwise=2.0),
        (13,),
    )
    add("strided_guard", (5, 16), load(0, 20, 2, offset=-5, guards=[Guard(Index((0, 2), -5), 20)]), (100,))
    add("downward_guard", (5, 16), load(0, 20, -3, offset=30, guards=[Guard(Index((0, -3), 30), 20)]), (100,))
    add(
        "always_outside",
        (4, 5),
        load(0, 0, 1, offset=-9, guards=[Guard(Index((0, 1), -9), 3)], otherwise=7.0),
        (3,),
    )
    mask = call("logical_and", load(1, 1), call("gt", load(0, 1), 0.25))
    add(
        "where",
        (515,),
        call("where", mask, load(0, 1), load(2, 1)),
        (515, 515, 515),
        dtypes=("float32", "bool", "int64"),
    )
    add("to_bool", (515,), call("le", load(0, 1), 0.0), (515,), output="bool")
    add("to_int64", (515,), call("round", call("mul", load(0, 1), 10.0)), (515,), output="int64")
    add("int32", (130,), call("add", load(0, 1), 1.0), (130,), dtypes=("int32",), output="int32")
    add("double_input", (130,), call("add", load(0, 1), 1.0), (130,), dtypes=("float64",))
    shared = call("tanh", x3)
    made = kernel_of(
        (7, 11, 13),
        (),
        outer_stores=[
            store(0, (143, 13, 1), shared),
            store(1, (1, 7, 77), call("sub", 1.0, call("square", shared))),
        ],
        outputs=("float32", "float32"),
    )
    result.append(LoopCase("pointwise_two_outputs", made, (1001,)))
    return result


def softmax_parts(x: Load) -> tuple[list[tuple[str, Expression]], Expression]:
    """Reductions and the row expression of softmax."""
    shifted = call("exp", call("sub", x, Reduced(0)))
    return [("max", x), ("sum", shifted)], call("div", shifted, Reduced(1))


def normalised(x: Load, number: int = 0, epsilon: float = 1e-5) -> Expression:
    """(x - mean) / sqrt(variance + epsilon)."""
    return call(
        "mul", call("sub", x, Reduced(number, 0)), call("rsqrt", call("add", Reduced(number, 1), epsilon))
    )


def row_cases() -> list[LoopCase]:
    result = []

    def add(name, kernel, inputs, tolerance=2e-6, edit=None):
        result.append(LoopCase(f"row_{name}", kernel, tuple(inputs), tolerance, edit))

    for rows, length in ((9, 67), (3, 1), (2, 40000), (3, 60000), (300, 256)):
        x = load(0, length, 1)
        reductions, value = softmax_parts(x)
        add(
            f"softmax_{rows}_{length}",
            kernel_of((rows,), (length,), reductions=reductions, row_stores=[store(0, (length, 1), value)]),
            (rows * length,),
        )
        affine = call("add", call("mul", normalised(x), load(1, 0, 1)), load(2, 0, 1))
        add(
            f"layer_norm_{rows}_{length}",
            kernel_of(
                (rows,),
                (length,),
                reductions=[("moments", x)],
                row_stores=[store(0, (length, 1), affine)],
                inputs=("float32",) * 3,
            ),
            (rows * length, length, length),
            1e-5,
        )
    x = load(0, 53, 1)
    everything = [
        ("sum", x),
        ("max", x),
        ("min", call("square", x)),
        ("moments", call("add", x, 1.0)),
        ("logsumexp", x),
        ("sum", call("square", call("sub", x, Reduced(1)))),
        ("sum", call("abs", x)),
    ]
    stores = [
        store(n, (1, 0), value)
        for n, value in enumerate(
            [
                Reduced(0),
                Reduced(1),
                Reduced(2),
                Reduced(3, 0),
                Reduced(3, 1),
                Reduced(4),
                call("sqrt", Reduced(5)),
                call("div", Reduced(6), Reduced(3, 1)),
            ]
        )
    ]
    for compute in ("float32", "float64"):
        add(
            f"everything_{compute}",
            kernel_of(
                (31,),
                (53,),
                reductions=everything,
                outer_stores=stores,
                inputs=(compute,),
                outputs=(compute,) * 8,
                compute=compute,
            ),
            (31 * 53,),
            1e-5,
        )
    for kind in ("sum", "max", "min", "logsumexp", "moments"):
        stores = [store(0, (0,), Reduced(0)), store(0, (0,), Reduced(0, 1 if kind == "moments" else 0), 1)]
        add(
            f"all_{kind}",
            kernel_of((), (100003,), reductions=[(kind, call("tanh", load(0, 1)))], outer_stores=stores),
            (100003,),
        )
    near_one = call("add", call("mul", load(0, 1), 1e-3), 1.0)
    add("all_product", kernel_of((), (100003,), reductions=[("product", near_one)],
                                 outer_stores=[store(0, (0,), Reduced(0))]), (100003,), 1e-4)
    for count in (1, 3, 40, 300):  # written out, and in one or several blocks
        scaled = call("mul", load(0, count, 1), 1.875)
        add(f"product_{count}", kernel_of((21,), (count,), reductions=[("product", scaled)], outer_stores=[
            store(0, (1, 0), call("sub", Reduced(0), 1.0))]), (21 * count,), 1e-5)
    # Group normalisation: rows of two axes that merge, the affine along the first of them.
    sizes = (2, 3, 4, 30)
    x = load(0, *contiguous(sizes))
    value = call("add", call("mul", normalised(x), load(1, 0, 4, 1, 0)), load(2, 0, 4, 1, 0))
    add(
        "group_norm",
        kernel_of(
            sizes[:2],
            sizes[2:],
            reductions=[("moments", x)],
            row_stores=[store(0, contiguous(sizes), value)],
            inputs=("float32",) * 3,
        ),
        (720, 12, 12),
        1e-5,
    )
    # Rows of which an axis, or all, shows one element expanded.
    for name, strides in (("last", (12, 4, 1, 0)), ("first", (90, 30, 0, 1)), ("all", (3, 1, 0, 0))):
        x = call("sigmoid", load(0, *strides))
        add(
            f"group_norm_{name}_expanded",
            kernel_of(
                sizes[:2],
                sizes[2:],
                reductions=[("moments", x)],
                row_stores=[store(0, contiguous(sizes), call("add", x, call("mul", Reduced(0), Reduced(0, 1))))],
            ),
            (1 + sum(stride * (size - 1) for stride, size in zip(strides, sizes, strict=True)),),
            1e-5,
        )
    # Batch normalisation: the outer axis lies between the row axes.
    x = load(0, 35, 5 * 35, 1)
    add(
        "batch_moments",
        kernel_of(
            (5,),
            (6, 35),
            reductions=[("moments", x)],
            outer_stores=[store(0, (1, 0, 0), Reduced(0)), store(1, (1, 0, 0), Reduced(0, 1))],
            outputs=("float32",) * 2,
        ),
        (6 * 5 * 35,),
        1e-5,
    )
    add(
        "batch_norm",
        kernel_of(
            (5,),
            (6, 35),
            reductions=[("moments", x)],
            row_stores=[store(0, (35, 175, 1), normalised(x))],
            outer_stores=[store(1, (1, 0, 0), Reduced(0))],
            outputs=("float32",) * 2,
        ),
        (6 * 5 * 35,),
        1e-5,
    )
    add(
        "far_mean",
        kernel_of(
            (3,),
            (5000,),
            reductions=[("moments", load(0, 5000, 1))],
            outer_stores=[store(0, (1, 0), Reduced(0, 1))],
        ),
        (15000,),
        2e-4,
        lambda inputs: inputs[0].add_(300.0),
    )
    add(
        "strided",
        kernel_of(
            (7, 3),
            (20,),
            reductions=[("sum", load(0, 180, 1, 9))],
            outer_stores=[store(0, (3, 1, 0), Reduced(0))],
        ),
        (7 * 180,),
    )
    add(
        "guarded",
        kernel_of(
            (6,),
            (25,),
            reductions=[("max", load(0, 20, 1, offset=-2, guards=[Guard(Index((0, 1), -2), 20)]))],
            outer_stores=[store(0, (1, 0), Reduced(0))],
        ),
        (120,),
    )
    add(
        "mean_of_gelu",
        kernel_of(
            (17,),
            (129,),
            reductions=[("sum", call("gelu_tanh", call("add", load(0, 129, 1), load(1, 0, 1))))],
            outer_stores=[store(0, (1, 0), call("mul", Reduced(0), 1 / 129))],
            inputs=("float32",) * 2,
        ),
        (17 * 129, 129),
    )
    add(
        "logsumexp_chain",
        kernel_of(
            (17,),
            (129,),
            reductions=[("logsumexp", load(0, 129, 1))],
            outer_stores=[store(0, (1, 0), call("mish", Reduced(0)))],
            row_stores=[store(1, (129, 1), call("sub", load(0, 129, 1), Reduced(0)))],
            outputs=("float32",) * 2,
        ),
        (17 * 129,),
    )
    add(
        "count_bool",
        kernel_of(
            (4,),
            (77,),
            reductions=[("sum", load(0, 77, 1))],
            outer_stores=[store(0, (1, 0), Reduced(0))],
            inputs=("bool",),
            outputs=("int64",),
        ),
        (4 * 77,),
    )
    add(
        "long_sum",
        kernel_of(
            (2,),
            (300001,),
            reductions=[("sum", load(0, 300001, 1))],
            outer_stores=[store(0, (1, 0), Reduced(0))],
        ),
        (600002,),
        2e-7,
        lambda inputs: inputs[0].abs_(),
    )
    return result


def column_cases() -> list[LoopCase]:
    result = []

    def add(name, kernel, inputs, tolerance=2e-6):
        result.append(LoopCase(f"column_{name}", kernel, tuple(inputs), tolerance))

    for rows, columns in ((33, 70), (1, 5), (257, 300), (4001, 3)):
        x = load(0, 1, columns)
        for kind in ("sum", "product", "max", "min", "logsumexp", "moments"):
            stores = [
                store(0, (1, 0), Reduced(0)),
                store(1, (1, 0), Reduced(0, 1 if kind == "moments" else 0)),
            ]
            add(
                f"{kind}_{rows}_{columns}",
                kernel_of(
                    (columns,),
                    (rows,),
                    reductions=[(kind, call("mul", x, 1.875 if kind == "product" else 1.5))],
                    outer_stores=stores,
                    outputs=("float32",) * 2,
                ),
                (rows * columns,),
                1e-5,
            )
    for rows in (33, 300):  # two walks, and before each of them what changes with neither rows nor columns
        shifted = call("add", load(0, 1, 70), load(1, 0, 0))
        centred = call("square", call("sub", shifted, call("mul", Reduced(0), 1.0 / rows)))
        add(
            f"two_walks_{rows}",
            kernel_of(
                (70,),
                (rows,),
                reductions=[("sum", shifted), ("sum", centred)],
                inputs=("float32",) * 2,
                outer_stores=[store(0, (1, 0), Reduced(1))],
            ),
            (rows * 70, 1),
            1e-5,
        )
    for rows in (20, 300, 3000):  # dear values by column, in reductions of one and of two walks, and in stores
        one = call("relu", channel_normed(load(0, 1, 90), 1, 0))
        add(
            f"normalised_{rows}",
            kernel_of(
                (90,),
                (rows,),
                reductions=[("sum", one), ("max", call("sub", one, call("mul", Reduced(0), 1.0 / rows)))],
                inputs=("float32",) * 5,
                outputs=("float32",) * 2,
                row_stores=[store(1, (1, 90), call("mul", one, call("exp", call("mul", Reduced(1), -1.0))))],
                outer_stores=[store(0, (1, 0), Reduced(1))],
            ),
            (rows * 90, *[90] * 4),
            1e-5,
        )
    sizes = (3, 10, 36)
    x = load(0, 360, 1, 36)
    reductions, value = softmax_parts(x)
    add(
        "softmax",
        kernel_of((3, 36), (10,), reductions=reductions, row_stores=[store(0, (360, 1, 36), value)]),
        (1080,),
    )
    add(
        "instance_affine",
        kernel_of(
            (3, 36),
            (10,),
            reductions=[("moments", x)],
            inputs=("float32",) * 2,
            row_stores=[store(0, (360, 1, 36), call("mul", normalised(x), load(1, 0, 0, 1)))],
        ),
        (1080, 10),
        1e-5,
    )
    add(
        "double",
        kernel_of(
            (3, 36),
            (10,),
            reductions=[("logsumexp", x), ("sum", call("exp", call("sub", x, Reduced(0))))],
            outer_stores=[store(0, (36, 1, 0), Reduced(0)), store(1, (36, 1, 0), Reduced(1))],
            inputs=("float64",),
            outputs=("float64",) * 2,
            compute="float64",
        ),
        (prod(sizes),),
    )
    add(
        "bias_gradient",
        kernel_of(
            (6, 8),
            (5, 7),
            reductions=[("sum", load(0, 8, 1, 7 * 48, 48))],
            outer_stores=[store(0, (8, 1, 0, 0), Reduced(0))],
        ),
        (5 * 7 * 48,),
    )
    return result


def window_cases() -> list[LoopCase]:
    result = []

    def add(name, kind, batch, size, kernel, stride, padding, prologue=None, dilation=1, inputs=()):
        rank = len(size)
        out = tuple(
            (n + 2 * padding - dilation * (k - 1) - 1) // stride + 1
            for n, k in zip(size, kernel, strict=True)
        )
        inner = contiguous(size)
        guards = []
        for axis in range(rank):
            strides = [0] * (1 + 2 * rank)
            strides[1 + axis], strides[1 + rank + axis] = stride, dilation
            guards.append(Guard(Index(tuple(strides), -padding), size[axis]))
        index = (prod(size), *(stride * s for s in inner), *(dilation * s for s in inner))
        x = Load(
            0,
            Index(index, -padding * sum(inner)),
            tuple(guards) if padding else (),
            -inf if kind == "max" else 0.0,
        )
        value = x if prologue is None else prologue(x, rank)
        outer = (batch, *out)
        scale = Reduced(0) if kind == "max" else call("mul", Reduced(0), 1 / prod(kernel))
        made = kernel_of(
            outer,
            kernel,
            reductions=[(kind, value)],
            inputs=("float32",) * (1 + len(inputs)),
            outer_stores=[store(0, (*contiguous(outer), *(0,) * rank), scale)],
        )
        result.append(LoopCase(f"window_{name}", made, (batch * prod(size), *inputs)))

    def affine(x, rank):
        place = (1,) + (0,) * (2 * rank)
        return call("relu", call("add", call("mul", x, load(1, *place)), load(2, *place)))

    # Rows of two elements between two of padding, and no point at which all guards hold.
    for width in (2, 3, 4):
        guards = Guard(Index((1, 0), -3), 31), Guard(Index((0, 1), -2), width)
        x = load(0, width, 1, offset=-2 - 3 * width, guards=guards)
        centred = call("sub", x, call("mul", Reduced(0), 1 / (width + 4)))
        made = kernel_of((37,), (width + 4,), reductions=[("sum", x)], row_stores=[store(0, (width + 4, 1), centred)])
        result.append(LoopCase(f"window_padded_rows_{width}", made, (31 * width,)))
    add("max_2x2", "max", 3, (10, 38), (2, 2), 2, 0)
    add("max_2x2_affine", "max", 3, (10, 38), (2, 2), 2, 0, affine, inputs=(3, 3))
    add("max_3x3", "max", 4, (11, 43), (3, 3), 2, 1)
    add("average_3x3", "sum", 4, (11, 43), (3, 3), 1, 1)
    add("max_1d", "max", 5, (101,), (4,), 3, 2)
    add("max_dilated", "max", 2, (90,), (3,), 1, 2, dilation=2)
    add("max_3d", "max", 3, (6, 7, 24), (2, 3, 2), 2, 0)
    add("average_3d", "sum", 3, (6, 7, 24), (3, 3, 3), 2, 1)
    add("average_wide", "sum", 2, (40, 40), (11, 11), 2, 5)
    return result


def matrix_cases() -> list[LoopCase]:
    result = []
    for m, n, k in ((5, 7, 130), (16, 128, 64), (1, 3, 5)):
        both = call("mul", load(0, k, 0, 1), load(1, 0, k, 1))
        outer = call("mul", load(0, k, 0, 1), load(1, 0, 1, n))
        for name, product in (("dot", both), ("outer", outer)):
            value = call("relu", call("add", Reduced(0), load(2, 0, 1, 0)))
            made = kernel_of(
                (m, n),
                (k,),
                reductions=[("sum", product)],
                inputs=("float32",) * 3,
                outer_stores=[store(0, (n, 1, 0), value)],
            )
            result.append(LoopCase(f"matrix_{name}_{m}_{n}_{k}", made, (m * k, n * k, n)))
    return result


def special_cases() -> list[LoopCase]:
    """NaN and infinities in every reduction, in rows, in columns and in split rows."""
    result = []
    plants = [[nan], [inf], [-inf], [inf, -inf], [inf, nan], [-inf, nan], []]
    for name, length, row_major in (("rows", 37, True), ("columns", 37, False), ("split", 40000, True)):
        count = len(plants) + 2

        def edit(inputs, length=length, row_major=row_major, count=count):
            x = inputs[0].view(count, length) if row_major else inputs[0].view(length, count).t()
            for row, values in enumerate(plants):
                for place, value in enumerate(values):
                    x[row, (length // 2 + 11 * place + 3 * row) % length] = value
            x[count - 2] = -inf
            x[count - 1] = nan

        strides = (length, 1) if row_major else (1, count)
        x = load(0, *strides)
        for kind in ("sum", "product", "max", "min", "logsumexp", "moments"):
            parts = (0, 1) if kind == "moments" else (0,)
            stores = [store(part, (1, 0), Reduced(0, part)) for part in parts]
            made = kernel_of(
                (count,),
                (length,),
                reductions=[(kind, x)],
                outer_stores=stores,
                outputs=("float32",) * len(parts),
            )
            result.append(LoopCase(f"special_{kind}_{name}", made, (count * length,), 1e-5, edit))
        reductions, value = softmax_parts(x)
        made = kernel_of((count,), (length,), reductions=reductions, row_stores=[store(0, strides, value)])
        result.append(LoopCase(f"special_softmax_{name}", made, (count * length,), edit=edit))
    return result


def narrow_cases() -> list[LoopCase]:
    """float16 and bfloat16 in every schedule, alone and mixed with float32 and float64."""
    result = []
    for dtype in ("float16", "bfloat16"):

        def add(name, kernel, inputs, edit=None, dtype=dtype):
            result.append(LoopCase(f"{dtype}_{name}", kernel, tuple(inputs), edit=edit))

        def typed(outer, row, inputs=(dtype,), outputs=(dtype,), **parts):
            return kernel_of(outer, row, inputs=inputs, outputs=outputs, **parts)

        x, y = load(0, 143, 13, 1), load(1, 143, 13, 1)
        chain = call("gelu_erf", call("add", call("mul", x, y), 0.5))
        sizes = (7, 11, 13)
        add(
            "chain", typed(sizes, (), (dtype, dtype), outer_stores=[store(0, (143, 13, 1), chain)]), (1001, 1001)
        )
        add(
            "mixed",
            typed(
                sizes,
                (),
                (dtype, "float32"),
                (dtype, "float32"),
                outer_stores=[store(0, (143, 13, 1), chain), store(1, (143, 13, 1), chain)],
            ),
            (1001, 1001),
        )
        wide = [store(0, (143, 13, 1), chain), store(1, (143, 13, 1), chain)]
        add(
            "in_float64",
            typed(sizes, (), (dtype, "float64"), (dtype, "float64"), outer_stores=wide, compute="float64"),
            (1001, 1001),
        )
        fours = call("relu", call("sub", load(0, 256, 1), load(1, 0, 1)))
        add("fours", typed((300, 256), (), (dtype,) * 2, outer_stores=[store(0, (256, 1), fours)]), (76800, 256))
        add("transposed", typed((37, 44), (), outer_stores=[store(0, (44, 1), load(0, 1, 37))]), (37 * 44,))
        # The conversion is exact: a comparison of rounded values sees what PyTorch's sees.
        rounded = call(f"round_{dtype}", call("mul", load(0, 1), load(1, 1)))
        equal = call("eq", rounded, call(f"round_{dtype}", call("mul", load(1, 1), load(0, 1))))
        below = call("lt", rounded, load(0, 1))
        add(
            "rounded",
            typed(
                (515,), (), (dtype,) * 2, ("bool", "bool"), outer_stores=[store(0, (1,), equal), store(1, (1,), below)]
            ),
            (515, 515),
        )
        for rows, length in ((9, 67), (2, 40000), (300, 256)):
            x = load(0, length, 1)
            reductions, value = softmax_parts(x)
            softmax = typed((rows,), (length,), reductions=reductions, row_stores=[store(0, (length, 1), value)])
            add(f"softmax_{rows}_{length}", softmax, (rows * length,))
            affine = call("add", call("mul", normalised(x), load(1, 0, 1)), load(2, 0, 1))
            norm = typed(
                (rows,),
                (length,),
                (dtype, "float32", dtype),
                reductions=[("moments", x)],
                row_stores=[store(0, (length, 1), affine)],
            )
            add(f"layer_norm_{rows}_{length}", norm, (rows * length, length, length))
        # A sum that no 16-bit number could hold on the way.
        mean = call("mul", Reduced(0), 1 / 5000)
        for name, strides in (("rows", (5000, 1)), ("columns", (1, 24))):
            parts = {
                "reductions": [("sum", load(0, *strides))],
                "outer_stores": [store(0, (1, 0), mean)],
            }
            add(
                f"large_sum_{name}",
                typed((24,), (5000,), **parts),
                (24 * 5000,),
                lambda inputs: inputs[0].abs_().add_(100.0),
            )
        for kind in ("max", "min", "logsumexp", "moments"):
            kernel = typed(
                (40,),
                (300,),
                outputs=("float32",),
                reductions=[(kind, load(0, 1, 40))],
                outer_stores=[store(0, (1, 0), Reduced(0))],
            )
            add(f"column_{kind}", kernel, (40 * 300,))
        guards = [Guard(Index((0, 2, 1), -1), 40)]
        window = load(0, 40, 2, 1, offset=-1, guards=guards, otherwise=-inf)
        pool = typed((30, 20), (3,), reductions=[("max", window)], outer_stores=[store(0, (20, 1, 0), Reduced(0))])
        add("window", pool, (30 * 40,))

        def special(inputs):
            values = torch.tensor([nan, inf, -inf, 0.0, -0.0, 65504.0, 65519.9, 65520.0, -65520.0, 3.3e38, 3.4e38])
            tiny = torch.tensor([2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 6.1e-5, -6.1e-5, 1e-30, 1e-40])
            inputs[0][: len(values) + len(tiny)] = torch.cat([values, tiny])

        add("special", typed((64,), (), ("float32",), outer_stores=[store(0, (1,), load(0, 1))]), (64,), special)
    return result


def whole_cases() -> list[LoopCase]:
    """Integers: every function on them, wrapping, conversions, guards, and sums of truth values."""
    result = []

    def whole(buffer, *strides, offset=0, guards=(), otherwise=0):
        return Load(buffer, Index(tuple(strides), offset), tuple(guards), otherwise, True)

    def spread(inputs):
        """Large numbers, whose arithmetic wraps and which no float holds."""
        for x in inputs:
            if not x.is_floating_point() and x.dtype != torch.bool:
                limits = torch.iinfo(x.dtype)
                x[::3] = torch.randint(limits.min, limits.max, x[::3].shape, generator=torch.Generator().manual_seed(3))
                x[:4] = torch.tensor([limits.min, limits.max, 0, 1], dtype=x.dtype)

    for dtype in ("int64", "int32", "int16", "int8", "uint8"):
        a, b = whole(0, 52, 1), whole(1, 52, 1)
        wrap = (lambda e: e) if dtype == "int64" else (lambda e, name=f"wrap_{dtype}": Apply(name, (e,)))
        values = [wrap(Apply(f"whole_{name}", (a, b))) for name in ("add", "sub", "mul")]
        values += [Apply(f"whole_{name}", (a, b)) for name in ("maximum", "minimum", "bitwise_and", "bitwise_xor")]
        values += [wrap(Apply(f"whole_{name}", (a,))) for name in ("neg", "abs", "square", "bitwise_not")]
        values += [Apply(f"whole_{name}", (a,)) for name in ("sign", "relu")]
        for by in (7, -3):
            values += [wrap(Apply(f"whole_{name}", (a, Whole(by)))) for name in ("floor_divide", "remainder")]
        values.append(Apply("whole_where", (Apply("whole_lt", (a, b)), a, Whole(5))))
        values.append(Apply("whole_bitwise_or", (a, Whole(-(2**63)))) if dtype == "int64" else a)
        stores = [store(n, (52, 1), value) for n, value in enumerate(values)]
        # Comparisons, and arithmetic that goes on in floating point.
        count = len(values)
        real = call("mul", Apply("to_real", (b,)), 0.5)
        stores += [
            store(count, (52, 1), Apply("whole_eq", (a, Whole(1)))),
            store(count + 1, (52, 1), Apply("whole_ge", (a, b))),
            store(count + 2, (52, 1), call("add", real, load(2, 52, 1))),
            store(count + 3, (52, 1), Apply("to_whole", (call("mul", load(2, 52, 1), 100.0),))),
        ]
        outputs = (dtype,) * count + ("bool", "bool", "float32", "int32")
        made = kernel_of((33, 52), (), outer_stores=stores, inputs=(dtype, dtype, "float32"), outputs=outputs)
        result.append(LoopCase(f"{dtype}_pointwise", made, (33 * 52,) * 3, edit=spread))
    guards = [Guard(Index((0, 1), -2), 9)]
    padded = whole(0, 9, 1, offset=-2, guards=guards, otherwise=-7)
    made = kernel_of((6, 13), (), outer_stores=[store(0, (13, 1), padded)], inputs=("int64",), outputs=("int64",))
    result.append(LoopCase("int64_guarded", made, (54,), edit=spread))
    turned = Apply("whole_add", (whole(0, 1, 300), whole(1, 200, 1)))
    made = kernel_of((300, 200), (), outer_stores=[store(0, (200, 1), turned)], inputs=("int64",) * 2,
                     outputs=("int64",))
    result.append(LoopCase("int64_transposed", made, (60000, 60000), edit=spread))
    # A row's values that several walks use, some of them integers; counts of truth values.
    for name, rows, length, strides in (("rows", 20, 300, (300, 1)), ("columns", 300, 20, (1, 300))):
        x, token = load(0, *strides), whole(1, *strides)
        mask = Apply("whole_gt", (token, Whole(0)))
        masked = call("where", mask, x, -1e4)
        parts = softmax_parts(masked)
        made = kernel_of(
            (rows,),
            (length,),
            reductions=[*parts[0], ("sum", mask), ("max", Apply("to_real", (token,)))],
            row_stores=[store(0, strides, parts[1]), store(1, strides, Apply("whole_mul", (token, token)))],
            outer_stores=[
                store(2, (1, 0), Apply("to_whole", (Reduced(2),))), store(3, (1, 0), Apply("to_whole", (Reduced(3),)))
            ],
            inputs=("float32", "int64"),
            outputs=("float32", "int64", "int64", "int32"),
        )
        result.append(LoopCase(f"int64_masked_softmax_{name}", made, (rows * length,) * 2))
    return result
