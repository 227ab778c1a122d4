"""The epilogues of GEMM's tests: what makes of a case one that stores, reduces over channels or positions, or pools."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from contraction_cases import ContractionCase, with_epilogue

from kernelwright.codegen.cuda.gemm.epilogue.store_overlapped import least_overlap
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.contraction.record import in_groups
from kernelwright.plan.expressions import Apply, Constant, Expression, Guard, Index, Load, Reduced
from kernelwright.plan.kernels import Reduction, Store
from kernelwright.plan.reading.access import strides_of

DOUBLED = {"stride": 2, "padding": 1, "output_padding": 1, "transposed": True}
BIASED = Apply("add", (Reduced(0), Load(2, Index((0, 0, 1)))))
SUM = Reduced(0)
RELU = Apply("relu", (SUM,))


def overlapping(case: ContractionCase, tiling: Tiling) -> tuple[ContractionCase, Tiling]:
    """The tiling with the least overlap that the case needs."""
    return case, replace(tiling, overlap=least_overlap(Geometry(case.kernel, tiling)))


def with_two_stores(case: ContractionCase) -> ContractionCase:
    """Another store, behind a half sector: of sums times what each image, each image and channel, and each position of
    an image has."""
    kernel, first = case.kernel, case.kernel.stores[0]
    positions = first.index.strides[3:]
    image, place = Index((1, *[0] * (len(kernel.domain) - 1))), Index((0, 0, 0, *positions))
    channels = kernel.groups * kernel.out_channels
    own = Index((channels, kernel.out_channels, 1, *[0] * len(kernel.axes)))
    value = Apply("mul", (Reduced(0), Apply("add", (Load(2, image), Load(3, place)))))
    value = Apply("add", (value, Load(4, own)))
    changed = replace(kernel, stores=(first, Store(1, Index(first.index.strides, 4), value)),
                      input_dtypes=(*kernel.input_dtypes, *["float32"] * 3),
                      output_dtypes=(*kernel.output_dtypes, "float32"))
    size = 1 + sum(s * (d - 1) for s, d in zip(positions, kernel.domain[3:], strict=True))
    return ContractionCase(case.name + "_two", changed,
                           (*case.shapes, (kernel.batch,), (size,), (kernel.batch * channels,)))


def call(function: str, *arguments: Expression) -> Apply:
    return Apply(function, arguments)


def reducing(case: ContractionCase, reductions: tuple[Reduction, ...], stores: tuple[tuple[bool, Expression], ...]
             ) -> ContractionCase:
    """The case with a bias per channel, reductions, and stores that move along the channels or (False) do not."""
    kernel = case.kernel
    once = list(strides_of((*kernel.domain[:2], *kernel.domain[3:])))
    once.insert(2, 0)
    places = {True: kernel.stores[0].index, False: Index(tuple(once))}

    def widened(node: Expression) -> Expression:
        if isinstance(node, Load):
            return replace(node, index=Index((*node.index.strides, *[0] * len(kernel.axes))))
        return Apply(node.function, tuple(map(widened, node.arguments))) if isinstance(node, Apply) else node

    changed = replace(kernel, reductions=tuple(Reduction(r.kind, widened(r.expression)) for r in reductions),
                      stores=tuple(Store(n, places[along], widened(value)) for n, (along, value) in enumerate(stores)),
                      input_dtypes=(*kernel.input_dtypes, "float32"), output_dtypes=("float32",) * len(stores))
    return ContractionCase("_".join([case.name, *(r.kind for r in reductions)]), changed,
                           (*case.shapes, (kernel.out_channels,)))


def softmax(case: ContractionCase) -> ContractionCase:
    """Softmax of the biased sums, and the greatest of them."""
    power = call("exp", call("sub", BIASED, Reduced(1)))
    return reducing(case, (Reduction("max", BIASED), Reduction("sum", power)),
                    ((True, call("div", power, Reduced(2))), (False, Reduced(1))))


def normed(case: ContractionCase) -> ContractionCase:
    """Biased sums less their mean, times what is near the inverse of their deviation; log-sum-exp and minimum."""
    inverse = call("rsqrt", call("add", Reduced(1, 1), call("exp", Reduced(3))))
    value = call("mul", call("sub", BIASED, Reduced(1)), inverse)
    return reducing(case, (Reduction("moments", BIASED), Reduction("logsumexp", BIASED), Reduction("min", Reduced(0))),
                    ((True, value), (False, call("add", Reduced(2), Reduced(3)))))


def channels_last(case: ContractionCase) -> ContractionCase:
    """The case with channels as neighbours in the results that have them."""
    kernel = case.kernel
    order = [0, *range(3, 3 + len(kernel.axes)), 1, 2]
    strides = dict(zip(order, strides_of(tuple(kernel.domain[a] for a in order)), strict=True))
    index = Index(tuple(strides[a] for a in range(len(order))))
    stores = tuple(replace(s, index=index) if s.index.strides[2] else s for s in kernel.stores)
    return replace(case, name=case.name + "_last", kernel=replace(kernel, stores=stores))


def chained(case: ContractionCase, dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")) -> ContractionCase:
    """Chains before a minimum and a mean over channels, and behind them; sums and both stored besides, in three
    types."""
    value = call("add", call("mul", call("relu", BIASED), Constant(2.0)), Load(2, Index((0, 0, 1))))
    found = reducing(case, (Reduction("min", value), Reduction("sum", call("mul", value, Reduced(1)))),
                     ((True, call("sigmoid", call("sub", value, Reduced(1)))), (True, Reduced(0)),
                      (False, call("tanh", call("mul", Reduced(2), Constant(0.01))))))
    return replace(found, name=found.name + "_chained", kernel=replace(found.kernel, output_dtypes=dtypes))


def alone(case: ContractionCase, kind: str) -> ContractionCase:
    """One reduction of the sums, and nothing stored of each channel."""
    value = call("add", Reduced(1), Reduced(1, 1)) if kind == "moments" else Reduced(1)
    return reducing(case, (Reduction(kind, Reduced(0)),), ((False, call("mul", value, Constant(0.5))),))


def placed(case: ContractionCase) -> ContractionCase:
    """A softmax of sums to which a value of each position of the last axis is added, times one of each position."""
    plain, last = softmax(case), len(case.kernel.domain) - 1
    line = Load(3, Index((*[0] * last, 1)))
    whole = Load(4, plain.kernel.stores[0].index)

    def changed(node: Expression) -> Expression:
        if isinstance(node, Apply):
            arguments = tuple(changed(argument) for argument in node.arguments)
            return Apply(node.function, arguments)
        return call("mul", node, line) if node == Reduced(0) else node

    kernel = plain.kernel
    stores = tuple(replace(s, expression=changed(s.expression)) for s in kernel.stores)
    stores = (replace(stores[0], expression=call("add", stores[0].expression, whole)), *stores[1:])
    kernel = replace(kernel, stores=stores, input_dtypes=(*kernel.input_dtypes, "float32", "float32"),
                     reductions=tuple(Reduction(r.kind, changed(r.expression)) for r in kernel.reductions))
    size = 1 + sum(s * (d - 1) for s, d in zip(whole.index.strides, kernel.domain, strict=True))
    return ContractionCase(plain.name + "_placed", kernel, (*plain.shapes, (kernel.domain[last],), (size,)))


def totalled(case: ContractionCase, *totals: tuple[str, Expression], ordinary: bool = True) -> ContractionCase:
    """The case with totals, each of which is stored; the first one is multiplied by a tensor's values at (n, g, o)
    and added to those of another at (g, o). ``ordinary``: what the case stores stays."""
    kernel = case.kernel
    place = Index((*strides_of(kernel.domain[:3]), *[0] * len(kernel.axes)))
    channel = Index((0, kernel.out_channels, 1, *[0] * len(kernel.axes)))
    values = [Reduced(i, component) for i, (kind, _) in enumerate(totals, 1)
              for component in range(1 + (kind == "moments"))]
    first = len(kernel.input_dtypes)
    values[0] = Apply("add", (Apply("mul", (values[0], Load(first, place))), Load(first + 1, channel)))
    stores = list(kernel.stores) if ordinary else []
    stores += [Store(len(stores) + n, place, value) for n, value in enumerate(values)]
    changed = replace(kernel, position_reductions=tuple(Reduction(*total) for total in totals), stores=tuple(stores),
                      input_dtypes=(*kernel.input_dtypes, "float32", "float32"),
                      output_dtypes=kernel.output_dtypes[:1] * len(stores))
    shapes = (kernel.domain[:3], (kernel.groups, kernel.out_channels))
    return ContractionCase("_".join([case.name, *(kind for kind, _ in totals), *["alone"] * (not ordinary)]), changed,
                           (*case.shapes, *shapes))


def biased(case: ContractionCase) -> tuple[ContractionCase, Expression]:
    """The case with an epilogue, and what it stores."""
    made = with_epilogue(case)
    return made, made.kernel.stores[0].expression


def every(case: ContractionCase, ordinary: bool = True) -> ContractionCase:
    """All kinds of totals of two expressions, of which one is what is stored."""
    made, value = biased(case)
    return totalled(made, ("sum", SUM), ("max", value), ("moments", value), ("min", SUM), ordinary=ordinary)


def average(case: ContractionCase) -> ContractionCase:
    """A global average pool, and nothing else."""
    return totalled(case, ("sum", RELU), ordinary=False)


def moments(case: ContractionCase) -> ContractionCase:
    """The statistics of an instance norm, beside what it is to normalise."""
    return totalled(case, ("moments", SUM))


def pooled(case: ContractionCase, size: int, kind: str = "max", **changes) -> ContractionCase:
    """The case with a pool of its sums in place of them."""
    kernel = replace(case.kernel, pools=(Reduction(kind, Reduced(0)),), pool_size=size)
    kernel = replace(kernel, stores=(Store(0, Index(strides_of(kernel.pooled_domain)), Reduced(1)),), **changes)
    return ContractionCase(f"{case.name}_{kind}{size}", kernel, case.shapes)


def lined(case: ContractionCase) -> ContractionCase:
    """The case with the axis before the last one in pairs of lines, which are pooled together."""
    *before, axis, last = case.kernel.axes
    kernel = replace(case.kernel, axes=(*before, in_groups(axis), last), pool_lines=2)
    return ContractionCase(f"{case.name}_lines", kernel, case.shapes)


def of_lines(case: ContractionCase, planes: int = 1) -> ContractionCase:
    """The case with windows of two lines, and of so many planes, along axes that have two output phases."""
    kernel = replace(case.kernel, pool_lines=2, pool_planes=planes)
    return ContractionCase(f"{case.name}_{'planes' if planes > 1 else 'lines'}", kernel, case.shapes)


def with_much(case: ContractionCase, size: int) -> ContractionCase:
    """The case with three pools, which load a value of each column, position, place along the last axis, and the one
    behind that, where there is one; and three stores of several types and orders, which load values of each window and
    column."""
    kernel = replace(case.kernel, pool_size=size)
    domain, windows = kernel.domain, kernel.pooled_domain
    rest = [0] * len(kernel.axes)
    whole, place = Index(strides_of(domain)), Index(strides_of(windows))
    bias, own = (Load(number, Index((0, kernel.out_channels, 1, *rest))) for number in (2, 6))
    line = Load(4, Index((0, 0, 0, *rest[1:], 1)))
    behind = Load(3, Index(whole.strides, 1), (Guard(Index((0, 0, 0, *rest[1:], 1), 1), domain[-1]),), 1.0)
    value = call("relu", call("add", Reduced(0), bias))
    pools = (Reduction("max", call("add", call("mul", value, Constant(2.0)), Load(3, whole))),
             Reduction("sum", call("mul", Reduced(0), line)),
             Reduction("min", call("add", Reduced(0), behind)))
    turned = Index(tuple(reversed(strides_of(tuple(reversed(windows))))))
    stores = (Store(0, place, call("add", Reduced(1), Load(5, place))), Store(1, turned, call("mul", Reduced(2), own)),
              Store(2, place, call("maximum", Reduced(3), Reduced(1))))
    columns = (kernel.groups * kernel.out_channels,)
    return ContractionCase(f"{case.name}_much{size}", replace(
        kernel, pools=pools, stores=stores, input_dtypes=(*kernel.input_dtypes, *("float32",) * 5),
        output_dtypes=("float32", "bfloat16", "float16")),
        (*case.shapes, columns, (prod(domain) + 1,), (domain[-1],), (prod(windows),), columns))
