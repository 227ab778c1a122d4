"""Random models from seeds: the same seed gives the same file everywhere."""

from __future__ import annotations

import random

import torch

from kernelwright.fuzz import catalogue, linear, numbers, pointwise, reductions, surroundings, views
from kernelwright.fuzz.draw import Draw, Refused, Value
from kernelwright.fuzz.productions import PRODUCTIONS, Production
from kernelwright.fuzz.sketch import Sketch

FAMILIES = (catalogue, linear, numbers, pointwise, reductions, surroundings, views)  # importing them fills the table

#: Sequences that the rules of algebra and the planner's fusion are made for; "*" stands for any pointwise step.
MOTIFS: tuple[tuple[str, ...], ...] = (
    ("transposed convolution", "sum or mean", "*"),
    ("transposed convolution", "*", "sum or mean", "logsumexp"),
    ("convolution", "affine by parameters", "sum or mean"),
    ("convolution", "scale", "sum or mean", "sum or mean"),
    ("convolution", "batch norm", "average pool"),
    ("transposed convolution", "batch norm", "average pool", "average pool"),
    ("convolution", "batch norm", "clamp", "adaptive pool"),
    ("convolution", "instance norm", "divide by a number"),
    ("convolution", "group norm", "clamp min", "sum or mean"),
    ("convolution", "sum or mean", "variance"),
    ("linear", "sum or mean", "logsumexp", "logsumexp"),
    ("linear", "*", "sum or mean", "*", "softmax"),
    ("linear", "group norm", "*", "extremum"),
    ("matmul", "divide by a number", "sum or mean", "scale"),
    ("matmul", "max pool", "sum or mean", "scale"),
    ("transposed convolution", "concatenate", "sum or mean"),
    ("convolution", "reshape", "sum or mean"),
    ("transposed convolution", "permute", "sum or mean", "layer norm"),
    ("convolution", "less its largest", "sum or mean"),
    ("linear", "extremum", "centred", "*"),
    ("convolution", "clamp", "clamp min", "clamp max", "softmax"),
    ("sigmoid", "clamp", "relu", "sqrt", "sum or mean"),
    ("linear", "variance", "*"),
    ("convolution", "batch norm", "variance"),
    ("transposed convolution", "instance norm", "sum or mean"),
    ("convolution", "expand", "sum or mean"),
    ("average pool", "sum or mean", "*"),
    ("convolution", "average pool", "*"),
    ("functional convolution", "average pool"),
    ("average pool", "convolution", "*"),
    ("average pool", "average pool", "*"),
    ("linear", "average pool", "*"),
    ("*", "max pool", "*", "sum or mean"),
    ("softmax", "sum or mean", "*"),
    ("log_softmax", "*", "sum or mean"),
    ("layer norm", "sum or mean", "variance"),
    ("*", "mean and deviation by hand", "*", "permute"),
    ("*", "reshape", "*", "softmax", "*"),
    ("einsum", "sum or mean", "scale"),
    ("pad", "convolution", "sum or mean"),
    ("in place", "*", "buffer", "in place"),
    ("loop over steps: beside", "*"),
    ("*", "loop over steps: apart", "sum or mean"),
    ("loop over steps: joined", "*"),
)
_POINTWISE = ("relu", "scale", "shift", "binary", "affine by parameters", "sigmoid", "tanh", "clamp", "square", "gelu",
              "leaky_relu", "hardtanh", "swish", "divide by a number", "silu", "softplus", "twice")
_TYPES = ((torch.float32, 0.8), (torch.float64, 0.08), (torch.float16, 0.06), (torch.bfloat16, 0.06))
_TRIES = 12


def generate(seed: int) -> Sketch:
    """The model of a seed. Every production begins one model in as many successive seeds as there are productions."""
    names = sorted(PRODUCTIONS)
    random.Random("order").shuffle(names)
    chooser = random.Random(f"type {seed}")
    dtype = chooser.choices([t for t, _ in _TYPES], [w for _, w in _TYPES])[0]
    draw = Draw(f"model {seed}", dtype, hostile=chooser.random() < 0.06)
    first = PRODUCTIONS[names[seed % len(names)]]
    begin(draw, first)
    for attempt in range(_TRIES):
        if _extend(draw, first):
            break
        if attempt >= 2:
            begin(draw, first)
    motif = draw.one_of(MOTIFS) if draw.chance(0.55) else ()
    for name in motif:
        if name == "*":
            name = draw.one_of(_POINTWISE)
        if name in PRODUCTIONS:
            _extend(draw, PRODUCTIONS[name], latest=True)
    everything = list(PRODUCTIONS.values())
    weights = [p.weight for p in everything]
    for _ in range(draw.number(0, 3) if motif else draw.number(1, 7)):
        for _ in range(_TRIES):
            chosen = draw.random.choices(everything, weights)[0]
            if _extend(draw, chosen, latest=draw.chance(0.7)):
                break
    sketch = draw.finished(f"Random model of seed {seed}.")
    return sketch if sketch.statements else generate(seed + (1 << 40))


def begin(draw: Draw, first: Production) -> None:
    """The first input, with axes that the first production takes."""
    least, most = first.ranks
    kind = draw.random.random()
    rank = min(max(draw.one_of([2, 3, 4, 4, 4, 5]), least), most) if kind < 0.93 else max(least, min(most, 1))
    if draw.chance(0.05):
        rank = min(max(draw.one_of([0, 0, 1, 6, 7]), least), most)
    shape = list(draw.shape(rank, 17 if rank < 4 else 9 if rank < 6 else 3))
    if rank and draw.chance(0.08):
        shape[0] = 1
    if rank in (1, 2) and draw.chance(0.08):  # rows that no block holds at once
        shape[-1] = draw.one_of([1000, 1500, 4099])
        shape[0] = shape[0] if rank == 1 else draw.number(1, 3)
    elif rank in (2, 3) and draw.chance(0.04):
        shape[0], shape[-1] = draw.one_of([300, 600]), draw.number(1, 5)
        shape[1:-1] = [2] * (rank - 2)
    elif rank and draw.chance(0.02):
        shape[draw.number(0, rank - 1)] = 0
    draw.input(shape)


def _extend(draw: Draw, production: Production, *, latest: bool = False) -> bool:
    """One production on a value that fits it; whether it did."""
    least, most = production.ranks

    def fits(value: Value) -> bool:
        return value.dtype == draw.dtype and least <= value.rank <= most

    try:
        newest = next((v for v in reversed(draw.values) if v.is_float), None)
        x = newest if latest and newest is not None and fits(newest) else draw.pick(
            fits, lambda: draw.input(draw.shape(draw.number(max(least, 1), max(1, min(most, 5))), 9)), fresh=0.03)
        production.add(draw, x)
    except (Refused, ValueError, IndexError):
        return False
    return True
