"""Tables and float64 reference of the spectral energy, shared by the targets.

With ``A[i, j, d] = sum over n, q of x[n, i, q] * x[n, j, q + d]`` (x is zero outside its domain)
the energy of ``SpectralEnergy`` is a quadratic form of the weights::

    energy[o] = sum over phases, channels i and j, taps k and l of one phase:
                    w[i, o, k] * w[j, o, l] * A[i, j, offset(k) - offset(l)]

Only the lags |d_a| <= D_a of axis a occur. Three facts make A cheap (frequencies and lags are
vectors over the axes; products over the axes are understood):

1. transform   X[n, c, f] = sum over q of x[n, c, q] * exp(-2 pi i f q / M) with M >= L + D, and
   S(f)[i, j] = sum over n of conj(X[n, i, f]) * X[n, j, f] = sum over d of A[i, j, d] *
   exp(-2 pi i f d / M): lags up to D do not wrap around. x is real, so S(-f) = conj(S(f)), and
   one axis may keep its half spectrum f = 0 .. M // 2.
2. fold        The weights' own correlation has the lags of A, so a transform of length
   G = 2 D + 1 is enough for the sum over lags. Its values are a real resampling of S::

       Ahat(g) = sum over |d| <= D of A[d] * exp(-2 pi i g d / G) = sum over f of B[g, f] * S(f)
       B[g, f] = 1 / M * sum over |d| <= D of cos(2 pi d (f / M - g / G))

3. quadratic form   What_r(g)[c] = sum over taps k of phase r: w[c, k] * exp(-2 pi i g offset(k) / G),

       energy = 1 / G * sum over r and g of What_r(g)^H Ahat(g) What_r(g)

   and g, -g contribute the same, because Ahat(-g) = conj(Ahat(g)).

A long axis is cut into sections of one transform length (``axis_sections``): A is then a signed sum
of the autocorrelations of the sections.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from kernelwright.plan.kernels import SpectralEnergy


def transform_matrix(points: int, length: int) -> np.ndarray:
    """``exp(-2 pi i f q / length)``: complex128 (length, points), angles reduced exactly first."""
    steps = np.outer(np.arange(length), np.arange(points)) % length
    return np.exp(-2j * np.pi * steps / length)


def half_spectrum(length: int) -> int:
    """Number of frequencies that determine the spectrum of real data."""
    return length // 2 + 1


def fold_matrix(length: int, lag: int) -> np.ndarray:
    """The resampling ``B[g, f]`` of one axis: float64 (2 * lag + 1, length)."""
    grid = 2 * lag + 1
    g, f = np.arange(grid)[:, None], np.arange(length)[None, :]
    # f / length - g / grid, reduced exactly to [0, 1) as an integer over length * grid.
    numerator = (f * grid - g * length) % (length * grid)
    result = np.ones((grid, length))
    for d in range(1, lag + 1):
        result += 2.0 * np.cos(2.0 * np.pi * ((d * numerator) % (length * grid)) / (length * grid))
    return result / length


def mirrored_fold(length: int, lag: int) -> tuple[np.ndarray, np.ndarray]:
    """The fold of a half-spectrum axis, for g = 0 .. lag: two float64 (lag + 1, length // 2 + 1).

    With T(f, g') folded along the other axes, Ahat(g, g') = sum over f of the first table times
    T(f, g') plus the second times conj(T(f, -g')). The second is zero where f is its own mirror.
    """
    full = fold_matrix(length, lag)[: lag + 1]
    own, mirror = full[:, : half_spectrum(length)].copy(), np.zeros((lag + 1, half_spectrum(length)))
    for f in range(half_spectrum(length)):
        if (2 * f) % length:
            mirror[:, f] = full[:, length - f]
    return own, mirror


def axis_phases(taps: tuple[tuple[int, int], ...]) -> list[list[tuple[int, int]]]:
    """The taps of one axis by phase (ascending): lists of ``(k, offset)``."""
    phases: dict[int, list[tuple[int, int]]] = {}
    for k, (phase, offset) in enumerate(taps):
        phases.setdefault(phase, []).append((k, offset))
    return [phases[phase] for phase in sorted(phases)]


def tap_matrix(taps: list[tuple[int, int]], lag: int) -> np.ndarray:
    """``exp(-2 pi i g offset / G)`` of one phase's taps: complex128 (G, len(taps))."""
    grid = 2 * lag + 1
    return transform_matrix(grid, grid)[:, [offset % grid for _, offset in taps]]


@dataclass(frozen=True, slots=True)
class AxisSections:
    """One axis cut into sections of equal transform length.

    ``positions[s]`` lists the position of x (or -1 for a zero) at each input point of section s,
    ``signs[s]`` is +1 or -1 (negative sections first). A is the sum over s of
    ``signs[s]`` times the autocorrelation of section s, cyclic of length ``length``, for all
    lags up to the axis's lag. ``positions`` have ``points <= length`` entries; the rest is zero.
    """

    length: int
    positions: tuple[tuple[int, ...], ...]
    signs: tuple[int, ...]

    @property
    def points(self) -> int:
        """Input points of the transform."""
        return len(self.positions[0])

    @property
    def single(self) -> bool:
        """Whether the axis is whole: one section that holds every position in order."""
        return len(self.positions) == 1


def axis_sections(size: int, lag: int, length: int) -> AxisSections:
    """Cut an axis of ``size`` positions into transforms of ``length`` points.

    With ``length >= size + lag`` the axis stays whole. Otherwise sections advance by
    P = length - 2 * lag positions and hold P + lag: every pair of positions at most ``lag``
    apart lies in one section, and the pairs inside the overlap of two neighbours (the first
    ``lag`` positions of the later one) lie in both. Negative sections take the second count
    back; several overlaps share one negative section, ``lag`` zeros apart.

    Raises ValueError where P < max(lag, 1).
    """
    if length >= size + lag:
        return AxisSections(length, (tuple(range(size)),), (1,))
    advance = length - 2 * lag
    if advance < max(lag, 1):
        raise ValueError(f"a transform of {length} points is too short for lags up to {lag}")
    starts = [start for start in range(0, size, advance) if start == 0 or start + lag < size]

    def padded(positions: list[int]) -> tuple[int, ...]:
        return tuple(positions + [-1] * (length - len(positions)))

    positive = [padded(list(range(s, min(s + advance + lag, size)))) for s in starts]
    negative: list[list[int]] = []
    for start in starts[1:] if lag else []:
        overlap = list(range(start, min(start + lag, size))) + [-1] * lag
        if negative and len(negative[-1]) + len(overlap) <= length:
            negative[-1] += overlap
        else:
            negative.append(overlap)
    sections = tuple(padded(part) for part in negative) + tuple(positive)
    return AxisSections(length, sections, (-1,) * len(negative) + (1,) * len(positive))


def choose_sections(
    kernel: SpectralEnergy, gram_cost: float, limit: float = 2.0**21
) -> tuple[AxisSections, ...]:
    """The sections of every axis with the least estimated work.

    A spectrum point of one channel and batch element costs ``sum(lengths)`` (dense transforms,
    two multiply-adds per term) plus ``gram_cost`` in the same unit (about the padded channel
    count of a group); ``limit`` bounds the points of one section's spectrum.
    """
    candidates = []
    for size, lag in zip(kernel.size, kernel.lags, strict=True):
        lengths = {size + lag} if size + lag <= 1280 else set()
        lengths |= {n for n in range(max(3 * lag, 2 * lag + 1, 16), min(size + lag, 257), 4)}
        options = {}
        for length in sorted(lengths) or [max(3 * lag, 1)]:
            cut = axis_sections(size, lag, length)
            options[length] = (cut, len(cut.signs) * length)
        # Longer transforms that do not need fewer points cannot win.
        kept, best = [], float("inf")
        for length in sorted(options):
            if options[length][1] < best:
                best = options[length][1]
                kept.append(options[length])
        candidates.append(kept)

    def work(choice: tuple) -> tuple[bool, float]:
        lengths = [cut.length for cut, _ in choice]
        points = float(np.prod([total for _, total in choice]))
        return float(np.prod(lengths)) / 2 > limit, points * (sum(lengths) + gram_cost)

    return tuple(cut for cut, _ in min(product(*candidates), key=work))


def reference_energy(kernel: SpectralEnergy, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The energy by the same steps in float64: (groups * out_channels,). For tests; it is slow."""
    dims, groups = len(kernel.size), kernel.groups
    x = x.astype(np.float64).reshape(kernel.batch, groups, kernel.in_channels, *kernel.size)
    weight = weight.astype(np.float64)
    kernel_shape = tuple(len(axis) for axis in kernel.taps)
    if kernel.transposed:
        w = weight.reshape(groups, kernel.in_channels, kernel.out_channels, *kernel_shape)
    else:
        w = weight.reshape(groups, kernel.out_channels, kernel.in_channels, *kernel_shape).swapaxes(1, 2)
    spectrum: np.ndarray = x
    for axis, (size, length) in enumerate(zip(kernel.size, kernel.lengths, strict=True)):
        matrix = transform_matrix(size, length)
        spectrum = np.moveaxis(np.tensordot(matrix, spectrum, (1, 3 + axis)), 0, 3 + axis)
    gram = np.einsum("ngi...,ngj...->gij...", spectrum.conj(), spectrum)
    for axis, (length, lag) in enumerate(zip(kernel.lengths, kernel.lags, strict=True)):
        gram = np.moveaxis(np.tensordot(fold_matrix(length, lag), gram, (1, 3 + axis)), 0, 3 + axis)
    energy = np.zeros((groups, kernel.out_channels))
    for phase in product(*(axis_phases(axis) for axis in kernel.taps)):
        what: np.ndarray = w[(slice(None),) * 3 + np.ix_(*([k for k, _ in taps] for taps in phase))]
        for axis in range(dims):
            matrix = tap_matrix(phase[axis], kernel.lags[axis])
            what = np.moveaxis(np.tensordot(matrix, what, (1, 3 + axis)), 0, 3 + axis)
        energy += np.einsum("gio...,gij...,gjo...->go", what.conj(), gram, what, optimize=True).real
    return energy.reshape(-1) / float(np.prod(kernel.grid))
