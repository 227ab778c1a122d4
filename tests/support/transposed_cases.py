"""LoopKernels whose buffers are laid out in different orders: several named ones, and random ones."""

from __future__ import annotations

import random
from math import prod

from loop_cases import LoopCase, call, contiguous, kernel_of, load, normalised, softmax_parts, store

from kernelwright.plan.expressions import Constant, Guard, Index, Load, Reduced
from kernelwright.plan.kernels import LoopKernel


def laid_out(sizes: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of the axes of a contiguous tensor whose axes are ``order``, slowest first."""
    strides = [0] * len(sizes)
    for axis, stride in zip(order, contiguous([sizes[axis] for axis in order]), strict=True):
        strides[axis] = stride
    return tuple(strides)


def pointwise_case(name: str, kernel: LoopKernel, *inputs: int) -> LoopCase:
    return LoopCase(f"across_{name}", kernel, inputs)


def transposed_cases() -> list[LoopCase]:
    """Pointwise kernels that take tiles, and some near the border to those that do not."""
    result = []

    def add(name, sizes, expression, inputs, *orders, dtypes=None, outputs=("float32",), compute="float32"):
        stores = [store(n, laid_out(sizes, order), expression[n]) for n, order in enumerate(orders)]
        made = kernel_of(sizes, (), outer_stores=stores, inputs=dtypes or (compute,) * len(inputs),
                         outputs=outputs, compute=compute)
        result.append(pointwise_case(name, made, *inputs))

    last, first = (0, 2, 3, 1), (0, 1, 2, 3)
    for name, sizes in {"even": (2, 64, 8, 16), "odd": (3, 37, 7, 9), "few": (2, 3, 41, 33), "flat": (64, 20, 2, 2),
                        "small": (80, 6, 3, 5), "edge": (1, 70, 10, 12), "wide": (2, 48, 10, 10)}.items():
        n = prod(sizes)
        x = load(0, *laid_out(sizes, last))
        bias = load(1, 0, 1, 0, 0)
        add(f"read_{name}", sizes, [call("gelu_tanh", call("add", x, bias))], (n, sizes[1]), first)
        y = load(0, *laid_out(sizes, first))
        add(f"write_{name}", sizes, [call("relu", call("mul", y, bias))], (n, sizes[1]), last)
        other = load(2, *laid_out(sizes, first))
        add(f"mixed_{name}", sizes, [call("add", call("mul", x, bias), other)], (n, sizes[1], n), last)
        # Two operands across and one store: the walk is theirs, the store turns.
        add(f"turned_{name}", sizes, [call("add", x, load(1, *laid_out(sizes, last)))], (n, n), first)
        third, fourth = load(2, *laid_out(sizes, last)), load(3, *laid_out(sizes, first))
        add(f"several_{name}", sizes, [call("add", x, call("mul", third, fourth)), call("sub", fourth, third)],
            (n, sizes[1], n, n), first, first, outputs=("float32", "float32"))
    sizes = (2, 36, 8, 12)
    n = prod(sizes)
    x, y = load(0, *laid_out(sizes, last)), load(1, *laid_out(sizes, first))
    both = [call("add", x, y), call("sub", x, y), call("lt", x, y)]
    add("three_outputs", sizes, both, (n, n), first, last, first, outputs=("float32", "float32", "bool"))
    add("double", sizes, [call("exp", x)], (n,), first, compute="float64", outputs=("float64",))
    add("mask", sizes, [call("where", x, y, 0.5)], (n, n), first, dtypes=("bool", "float32"))
    add("to_bool", sizes, [call("gt", x, 0.0)], (n,), first, outputs=("bool",))
    add("integers", sizes, [call("add", x, y)], (n, n), first, dtypes=("int32", "int64"), outputs=("int64",))
    half = [call("mul", x, call("add", y, 1.0))]
    add("half", sizes, half, (n, n), first, dtypes=("float16", "bfloat16"), outputs=("float16",))
    add("half_turned", sizes, [call("relu", x)], (n,), first, dtypes=("float32",), outputs=("bfloat16",))
    # One image for all of a batch, and one plane for all channels, across.
    add("shared_image", sizes, [call("add", load(0, 0, *laid_out(sizes[1:], (1, 2, 0))), y)],
        (prod(sizes[1:]), n), first)
    add("shared_plane", sizes, [call("add", call("mul", x, 2.0), load(1, 0, 0, 1, 8))], (n, 96), first)
    # Attention heads: (batch, time, head, width) to (batch, head, time, width), and with time last.
    heads = (2, 3, 50, 20)
    n = prod(heads)
    add("heads", heads, [call("mul", load(0, *laid_out(heads, (0, 2, 1, 3))), 0.125)], (n,), first)
    add("heads_time_last", heads, [load(0, *laid_out(heads, (0, 2, 1, 3)))], (n,), (0, 1, 3, 2))
    thin = (2, 30, 50, 2)
    add("thin_heads", thin, [load(0, *laid_out(thin, (0, 2, 3, 1)))], (prod(thin),), (0, 1, 2, 3))
    pairs = (2, 30, 50, 2)  # as heads, but only two wide: what stays together is less than a sector
    add("pairs", pairs, [load(0, *laid_out(pairs, (0, 2, 1, 3)))], (prod(pairs),), first)
    # Three different innermost axes.
    cube = (20, 24, 28)
    n = prod(cube)
    add("three_orders", cube, [call("add", load(0, *laid_out(cube, (1, 2, 0))), load(1, *laid_out(cube, (0, 2, 1))))],
        (n, n), (0, 1, 2))
    # 3-D convolutions, channels last; patches of an image; pixel shuffle.
    volume = (1, 20, 5, 6, 11)
    add("volume", volume, [call("neg", load(0, *laid_out(volume, (0, 2, 3, 4, 1))))], (prod(volume),), range(5))
    patches = (2, 3, 4, 3, 8, 8)  # image, channel, patch row, patch column, row, column
    add("patches", patches, [load(0, *laid_out(patches, (0, 1, 2, 4, 3, 5)))], (prod(patches),), (0, 2, 3, 1, 4, 5))
    add("patches_last", patches, [load(0, *laid_out(patches, (0, 1, 2, 4, 3, 5)))], (prod(patches),),
        (0, 2, 3, 4, 5, 1))
    shuffle = (2, 5, 6, 3, 9, 3)  # image, channel, row, row within, column, column within
    add("pixel_shuffle", shuffle, [load(0, *laid_out(shuffle, (0, 1, 3, 5, 2, 4)))], (prod(shuffle),), range(6))
    # Padding of a channels-last image, written channels first; a flipped and a strided operand.
    guards = (Guard(Index((0, 0, 1, 0), -1), 12), Guard(Index((0, 0, 0, 1), -2), 10))
    x = Load(0, Index((12 * 10 * 24, 1, 10 * 24, 24), -12 * 24), guards, -1.5)
    made = kernel_of((2, 24, 14, 14), (), outer_stores=[store(0, contiguous((2, 24, 14, 14)), x)])
    result.append(pointwise_case("padded", made, 2 * 24 * 120))
    x = load(0, 64 * 80, -1, 128, offset=63)
    made = kernel_of((3, 64, 40), (), outer_stores=[store(0, contiguous((3, 64, 40)), call("abs", x), 3)])
    result.append(pointwise_case("flipped", made, 3 * 64 * 80))
    # A guard along an axis along which the element does not move: no detour, the result the same.
    fixed = Load(0, Index((48, 0, 1), 0), (Guard(Index((0, 1, 0), -3), 40),), 2.0)
    made = kernel_of((64, 60, 48), (), outer_stores=[
        store(0, (1, 64 * 48, 64), call("add", fixed, load(1, 1, 64, 0)))], inputs=("float32",) * 2)
    result.append(pointwise_case("fixed_guard", made, 64 * 48, 64 * 60))
    return result + [random_case(seed) for seed in range(24)]


def random_case(seed: int) -> LoopCase:
    """Up to four operands and two outputs of 2 to 4 axes in random orders, some of them broadcast."""
    draw = random.Random(seed)
    rank = draw.choice((2, 3, 3, 4, 4))
    sizes = [draw.choice((1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 32)) for _ in range(rank)]
    while prod(sizes) < 5000:
        sizes[draw.randrange(rank)] *= draw.choice((2, 3, 4))
    sizes = tuple(sizes)
    value, inputs, dtypes = Constant(0.25), [], []
    compute = draw.choice(("float32", "float32", "float64"))
    for number in range(draw.choice((1, 2, 3, 4))):
        kept = [axis for axis in range(rank) if number == 0 or draw.random() < 0.85]
        order = draw.sample(kept, len(kept))
        strides = [0] * rank
        for axis, stride in zip(order, contiguous([sizes[axis] for axis in order]), strict=True):
            strides[axis] = stride
        inputs.append(prod(sizes[axis] for axis in kept))
        dtypes.append(draw.choice((compute, compute, "float32", "bool", "int32")))
        value = call(draw.choice(("add", "mul", "sub", "maximum")), value, load(number, *strides))
    outputs = [draw.choice((compute, "float32")) for _ in range(draw.choice((1, 1, 2)))]
    stores = [store(n, laid_out(sizes, tuple(draw.sample(range(rank), rank))), call("tanh", value) if n else value)
              for n in range(len(outputs))]
    made = kernel_of(sizes, (), outer_stores=stores, inputs=dtypes, outputs=outputs, compute=compute)
    return LoopCase(f"across_random_{seed}", made, tuple(inputs), 1e-5)


def reduction_cases() -> list[LoopCase]:
    """Reductions over channels-last data, some with stores channels first."""
    result = []

    def add(name, kernel, *inputs):
        result.append(LoopCase(f"across_{name}", kernel, inputs, 1e-5))

    for n, c, h, w in ((2, 20, 17, 16), (1, 64, 9, 15), (3, 5, 41, 33)):
        x = load(0, c * h * w, w * c, c, 1)
        reductions, value = softmax_parts(x)
        first = (c * h * w, w, 1, h * w)
        softmax = kernel_of((n, h, w), (c,), reductions=reductions, row_stores=[store(0, first, value)])
        add(f"softmax_{c}", softmax, n * c * h * w)
        total = [store(0, first, call("sub", x, Reduced(0)))]
        both = kernel_of((n, h, w), (c,), reductions=[("logsumexp", x)], row_stores=total, outputs=("float32",) * 2,
                         outer_stores=[store(1, (h * w, w, 1, 0), Reduced(0))])
        add(f"log_softmax_{c}", both, n * c * h * w)
        residual = call("add", x, load(1, *first))
        reductions, value = softmax_parts(residual)
        mixed = kernel_of((n, h, w), (c,), reductions=reductions, inputs=("float32",) * 2,
                          row_stores=[store(0, (c * h * w, w * c, c, 1), value)])
        add(f"mixed_softmax_{c}", mixed, n * c * h * w, n * c * h * w)
    double = kernel_of((2, 300), (24,), inputs=("float64",), outputs=("float64",), compute="float64",
                       reductions=[("sum", load(0, 7200, 24, 1))],
                       row_stores=[store(0, (7200, 1, 300), call("div", load(0, 7200, 24, 1), Reduced(0)))])
    add("normalised_double", double, 14400)
    x = load(0, 7200, 24, 1)
    add("normalised_all", kernel_of((), (2, 300, 24), reductions=[("sum", call("square", x))],
                                    row_stores=[store(0, (7200, 1, 300), call("mul", x, call("rsqrt", Reduced(0))))]),
        14400)
    # Groups of channels, channels last: few, several and many channels each; statistics alone and normalised.
    for n, c, h, w, groups in ((2, 12, 47, 41, 4), (1, 64, 40, 33, 32), (3, 10, 30, 31, 1), (2, 48, 150, 10, 3)):
        own = c // groups
        last = (c * h * w, own, 1, w * c, c)
        x = load(0, *last)
        sizes = (n, groups), (own, h, w)
        everything = [("moments", x), ("sum", x), ("max", x), ("logsumexp", call("mul", x, 0.5)),
                      ("sum", call("abs", call("sub", x, Reduced(0))))]
        values = [Reduced(0), Reduced(0, 1), *(Reduced(k) for k in range(1, 5))]
        stores = [store(k, (groups, 1, 0, 0, 0), value) for k, value in enumerate(values)]
        add(f"group_statistics_{c}_{groups}",
            kernel_of(*sizes, reductions=everything, outer_stores=stores, outputs=("float32",) * 6), n * c * h * w)
        value = call("add", call("mul", normalised(x), load(1, 0, own, 1, 0, 0)), load(2, 0, own, 1, 0, 0))
        for name, out in (("last", last), ("first", (c * h * w, own * h * w, h * w, w, 1))):
            add(f"group_norm_{c}_{groups}_{name}",
                kernel_of(*sizes, reductions=[("moments", x)], row_stores=[store(0, out, value)],
                          inputs=("float32",) * 3), n * c * h * w, c, c)
    # Per channel of a batch, per channel of an image, and the mean of an image, channels last.
    n, c, h, w = 3, 37, 20, 21
    x = load(0, 1, c * h * w, w * c, c)
    add("batch_norm", kernel_of((c,), (n, h, w), reductions=[("moments", x)],
                                row_stores=[store(0, (h * w, c * h * w, w, 1), normalised(x))]), n * c * h * w)
    x = load(0, c * h * w, 1, w * c, c)
    add("instance_norm", kernel_of((n, c), (h, w), reductions=[("moments", x)],
                                   row_stores=[store(0, (c * h * w, h * w, w, 1), normalised(x))]), n * c * h * w)
    add("global_mean", kernel_of((n, c), (h, w), reductions=[("sum", x)],
                                 outer_stores=[store(0, (c, 1, 0, 0), call("mul", Reduced(0), 1 / (h * w)))]),
        n * c * h * w)
    # Windows, channels last.
    x = load(0, c * h * w, 1, 2 * w * c, 2 * c, w * c, c)
    add("max_pool", kernel_of((n, c, h // 2, w // 2), (2, 2), reductions=[("max", x)], outer_stores=[
        store(0, (c * (h // 2) * (w // 2), 1, (w // 2) * c, c, 0, 0), Reduced(0))]), n * c * h * w)
    return result
