"""What a kernel means, for every target: the records that PLAN hands to GENERATE.

Each record states its meaning in the mathematics of its docstring; the skeletons in
``codegen/<target>/`` give it a text. Sizes are constants that the emitted file guards.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernelwright.ir import spectral
from kernelwright.ir.ops.special import Progression
from kernelwright.plan.expressions import Expression, Index


@dataclass(frozen=True, slots=True)
class Reduction:
    """One value per outer point: ``kind`` over the row axes of ``expression``.

    kind        components of the result
    sum         0: the sum
    product     0: the product, carried in float64
    max, min    0: the extremum (NaN if any element is NaN, as in PyTorch)
    logsumexp   0: log(sum(exp(e))), computed with the running maximum subtracted
    moments     0: mean, 1: biased variance (sum of squared deviations / count), 2: its square root, which is in
                range where the variance is not; sums are carried in float64

    An expression may use ``Reduced`` of an earlier reduction: the row is then walked again.
    """

    kind: str
    expression: Expression


@dataclass(frozen=True, slots=True)
class Store:
    """Write ``expression`` to element ``index`` of output number ``buffer``."""

    buffer: int
    index: Index
    expression: Expression


@dataclass(frozen=True, slots=True)
class LoopKernel:
    """For every outer point: walk the row axes, reduce, then store.

    ``reductions`` are evaluated in order over the row axes; ``row_stores`` happen at every
    (outer, row) point after all reductions, ``outer_stores`` once per outer point. ``row`` is
    empty for a pointwise kernel, whose stores are ``outer_stores``. Index strides have
    ``len(outer) + len(row)`` entries (the row entries of an outer store are zero).

    ``input_dtypes`` and ``output_dtypes`` are torch names without the prefix ("float32", "float16",
    "int64", "bool"); arithmetic is in ``compute`` ("float32" or "float64"). Stores round to nearest
    even; in between nothing is rounded but by the functions ``round_float32``, ``round_float16`` and
    ``round_bfloat16``.

    ``backwards``: the last outer points come first, as far as a target has an order of them
    (:mod:`kernelwright.plan.traversal`). It changes no value.
    """

    outer: tuple[int, ...]
    row: tuple[int, ...]
    reductions: tuple[Reduction, ...]
    row_stores: tuple[Store, ...]
    outer_stores: tuple[Store, ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    compute: str = "float32"
    backwards: bool = False


@dataclass(frozen=True, slots=True)
class RegionSum:
    """Sums of a contiguous tensor over classes of positions, in one pass over the tensor.

    ``shape`` is the input's shape. ``classes[a]`` is None where axis ``a`` is kept; otherwise it
    lists the classes of axis ``a``: each a tuple of disjoint progressions, and the output has
    ``len(classes[a])`` entries along that axis::

        out[..., u, ...] = sum over q in classes[a][u] of x[..., q, ...]   (for every reduced axis)

    Classes of one axis may overlap and need not cover it. ``scale`` multiplies the result, which is of
    type ``dtype``; x is of type ``input_dtype``.
    """

    shape: tuple[int, ...]
    classes: tuple[tuple[tuple[Progression, ...], ...] | None, ...]
    scale: float = 1.0
    dtype: str = "float32"
    input_dtype: str = "float32"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The input's shape with every reduced axis replaced by its number of classes."""
        pairs = zip(self.shape, self.classes, strict=True)
        return tuple(size if axis is None else len(axis) for size, axis in pairs)


@dataclass(frozen=True, slots=True)
class SpectralEnergy:
    """Energy of every output channel of an unclipped linear convolution, without the output.

    With x of shape (batch, groups * in_channels, *size) and taps[i][k] = (phase, offset) of tap k
    along spatial axis i::

        y_r[n, o, p] = sum over c in the group of o, taps k with phase r:
                           w[c, o, k] * x[n, c, p - offset(k)]
        energy[o]    = sum over phases r, n, and p in Z^d of y_r[n, o, p] ** 2

    ``transposed`` weights have shape (groups * in_channels, out_channels, *kernel); others
    (groups * out_channels, in_channels, *kernel). ``out_channels`` and ``in_channels`` are per
    group. x and w are contiguous float32; the output is float64 of shape
    (groups * out_channels,).
    """

    batch: int
    groups: int
    in_channels: int
    out_channels: int
    size: tuple[int, ...]
    taps: tuple[tuple[tuple[int, int], ...], ...]
    transposed: bool

    @property
    def lags(self) -> tuple[int, ...]:
        """Per axis, the largest difference of two offsets within one phase."""
        return spectral.lags(self.taps)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Per axis, the length of the transform of x: no lag in use wraps around."""
        return spectral.lengths(self.size, self.lags)

    @property
    def grid(self) -> tuple[int, ...]:
        """Per axis, the number of lags, which is the length of the transform of the weights."""
        return spectral.grid(self.lags)

    @property
    def positions(self) -> int:
        """Number of elements of one channel of x."""
        return prod(self.size)


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix by which a recurrence multiplies its state: input ``buffer``, contiguous (gates * hidden, hidden)."""

    buffer: int
    gates: int


@dataclass(frozen=True, slots=True)
class Recurrence:
    """States that a loop hands on from step to step, and what it stores of them.

    A state has ``shape``, whose last axis is ``hidden``; all states have the same. At step t, in the order of time, and
    at each point of ``shape``, ``Reduced(0, s)`` is state number s before the step, and ``Reduced(1, g)`` is gate
    number g. Gates are products of state number 0, those of all ``weights`` one after the other; of one of them::

        gate[g][..., u] = sum over k of weight[g * hidden + u, k] * state[0][..., k]      for g < gates

    Then each store writes its expression, and all states change at once::

        state[s] = updates[s]

    An expression is about one point: it has no sums but the gates. Before the first step states are ``initial``,
    expressions of loads that do not move along t. Index strides have ``1 + len(shape)`` entries: for t, then for the
    axes of ``shape``; what runs backwards has a negative one for t. A store whose index does not move along t leaves
    what it writes at the last step. Where there are weights, ``shape`` is (batch, hidden), and else it has any axes.
    All buffers are float32, as is the arithmetic. No load has guards.
    """

    steps: int
    shape: tuple[int, ...]
    weights: tuple[Weight, ...]
    initial: tuple[Expression, ...]
    updates: tuple[Expression, ...]
    stores: tuple[Store, ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    compute: str = "float32"

    @property
    def hidden(self) -> int:
        """Elements of the last axis."""
        return self.shape[-1]

    @property
    def gates(self) -> int:
        """Gates of all weights."""
        return sum(weight.gates for weight in self.weights)


@dataclass(frozen=True, slots=True)
class Attention:
    """Values, summed by weights that products of queries and keys make; neither products nor weights are stored.

    At each point of ``outer``, for rows i of queries, columns j of keys and values, and elements p of a value::

        product[i, j] = sum over k < depth of query[i, k] * key[j, k]
        weight[i, j]  = exp(score[i, j]) / sum over j of exp(score[i, j])       where ``softmax``, else score[i, j]
        result[i, p]  = sum over j of weight[i, j] * value[j, p]

    ``score`` is an expression in which ``Reduced(0)`` is the product. With ``causal`` columns j > i + ``shift`` are not
    there: they have no weight. Where all scores of a row are -inf the result is 0 if ``empty_rows``, else NaN.
    Index strides have ``len(outer) + 4`` entries, for the outer axes, i, j, k and p; what a query, a key, a value, a
    score and a result do not depend on they do not move along. With ``compute`` float32 all arithmetic is that of
    float32. With bfloat16 or float16 queries, keys, values and weights are rounded to that type, and sums are float32.
    """

    outer: tuple[int, ...]
    rows: int
    columns: int
    depth: int
    width: int
    query: Expression
    key: Expression
    value: Expression
    score: Expression
    softmax: bool
    causal: bool
    shift: int
    empty_rows: bool
    store: Store
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    compute: str = "float32"

    @property
    def domain(self) -> tuple[int, ...]:
        """Sizes of the axes of indices."""
        return (*self.outer, self.rows, self.columns, self.depth, self.width)

    @property
    def batch(self) -> int:
        """Points of the outer axes."""
        return prod(self.outer)

    @property
    def pairs(self) -> int:
        """Pairs of a row and a column that have a weight, at one outer point."""
        if not self.causal:
            return self.rows * self.columns
        return sum(min(max(i + self.shift + 1, 0), self.columns) for i in range(self.rows))


@dataclass(frozen=True, slots=True)
class BatchedProduct:
    """Products of small matrices, one at each point of ``outer``, with what is made of each sum.

    i are the points of ``rows``, j those of ``columns`` and k those of ``depth``, each of any number of axes::

        sum[i, j] = sum over k of left[i, k] * right[k, j]

    and ``store`` writes its expression, in which ``Reduced(0)`` is the sum, at every point but those of ``depth``.
    Index strides have an entry for each axis of ``domain``: of ``outer``, ``rows``, ``columns`` and ``depth``. ``left``
    does not move along columns, ``right`` not along rows, and the store not along depth. Operands may have any types
    that kernels load; all arithmetic is that of float32, and the order of a sum is the same in every call.
    """

    outer: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depth: tuple[int, ...]
    left: Expression
    right: Expression
    store: Store
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    compute: str = "float32"

    @property
    def domain(self) -> tuple[int, ...]:
        """Sizes of the axes of indices."""
        return (*self.outer, *self.rows, *self.columns, *self.depth)

    @property
    def groups(self) -> int:
        """Products: points of the outer axes."""
        return prod(self.outer)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Points of rows, columns and depth."""
        return prod(self.rows), prod(self.columns), prod(self.depth)

    @property
    def multiply_adds(self) -> int:
        """Of all sums."""
        return self.groups * prod(self.sizes)


@dataclass(frozen=True, slots=True)
class Scan:
    """Along an axis of ``length`` positions, at every outer point: combine, then store.

    With ``kind`` one of sum, product, max, min (NaN stays) and logsumexp::

        state[outer, p] = combination over q <= p of expression[outer, q]     (q < p where ``exclusive``)

    and each store writes its expression, in which ``Reduced(0)`` is the state, at every (outer, p). The
    combination of nothing is 0, 1, -inf, inf and -inf. Index strides have ``len(outer) + 1`` entries,
    the last for p; a scan from the end has negative ones there.
    """

    outer: tuple[int, ...]
    length: int
    kind: str
    expression: Expression
    exclusive: bool
    stores: tuple[Store, ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    compute: str = "float32"

    @property
    def as_loop(self) -> LoopKernel:
        """A loop over the same points with the same loads and stores (of another meaning: a whole reduction)."""
        kind = self.kind if self.kind != "product" else "sum"
        return LoopKernel(self.outer, (self.length,), (Reduction(kind, self.expression),), self.stores, (),
                          self.input_dtypes, self.output_dtypes, self.compute)


@dataclass(frozen=True, slots=True)
class Extremum:
    """The extremum along an axis of ``length`` positions and its place, at every outer point.

    ``kind`` is max or min. Of ``expression`` at (outer, p), ``Reduced(0, 0)`` is the extremum and
    ``Reduced(0, 1)`` the least p that has it; NaN counts as the extremum, as in PyTorch. Each store writes its
    expression once per outer point; a place is stored as an integer. Index strides have ``len(outer) + 1``
    entries, the last for p (0 in a store).
    """

    outer: tuple[int, ...]
    length: int
    kind: str
    expression: Expression
    stores: tuple[Store, ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    compute: str = "float32"

    @property
    def as_loop(self) -> LoopKernel:
        """A loop over the same points with the same loads and stores (without the places)."""
        return LoopKernel(self.outer, (self.length,), (Reduction(self.kind, self.expression),), (), self.stores,
                          self.input_dtypes, self.output_dtypes, self.compute)
