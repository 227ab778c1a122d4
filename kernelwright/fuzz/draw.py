"""What the productions draw with: random choices, and a model that grows line by line on meta tensors.

Every line is run on meta tensors when it is added, so shapes and types are PyTorch's own and a line that
PyTorch refuses is never part of a model. All choices come from one ``random.Random``, so a seed gives the
same text everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log2, prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.fuzz.sketch import Sketch, Statement, names_in

_SIZES = (1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 8, 9, 12, 16, 17)
_MOST_ELEMENTS = 6144
#: Names that are something else in C++, CUDA or an emitted file.
_MACROS = ("INFINITY", "NAN", "M_PI", "RAND_MAX", "EOF", "errno", "stdin", "assert_", "near", "real", "auto", "new",
           "template", "register", "unix", "linux", "std", "main", "device", "stream", "workspace", "blockIdx",
           "threadIdx", "n", "i", "values", "inputs", "self_", "kw_x", "launcher")
_MOST_BITS = {torch.float16: 9.0, torch.bfloat16: 24.0, torch.float32: 24.0, torch.float64: 60.0}


class Refused(Exception):
    """The production does not fit here."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the model. ``bits``: the rough binary logarithm of its largest magnitude; ``owned``: it has
    memory of its own, so that it may be changed in place."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bits: float
    owned: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether it holds floating-point numbers."""
        return self.dtype.is_floating_point


class Draw:
    """A model under construction; ``dtype`` is its floating type."""

    def __init__(self, seed: str, dtype: torch.dtype, *, hostile: bool = False) -> None:
        self.random = random.Random(seed)
        self.dtype = dtype
        self.hostile = hostile
        self.values: list[Value] = []
        self.inputs: list[tuple[str, str]] = []
        self.members: list[tuple[str, str]] = []
        self.statements: list[Statement] = []
        self.definitions: list[str] = []
        self._module = nn.Module()
        self._space: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "self": self._module}

    # Choices -------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.random.random() < probability

    def one_of(self, choices: Sequence[Any]) -> Any:
        """One of these, evenly."""
        return self.random.choice(choices)

    def number(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self.random.randint(low, high)

    def real(self, low: float, high: float) -> float:
        """A number of two digits, so that it reads well."""
        return round(self.random.uniform(low, high), 2)

    def size(self, most: int = 17) -> int:
        """A length of an axis."""
        return self.one_of([s for s in _SIZES if s <= most])

    def shape(self, rank: int, most: int = 17) -> tuple[int, ...]:
        """A shape with at most some thousand elements."""
        while True:
            shape = tuple(self.size(most) for _ in range(rank))
            if prod(shape) <= _MOST_ELEMENTS // 4:
                return shape

    def axis(self, x: Value) -> int:
        """An axis of x, sometimes counted from the end."""
        axis = self.number(0, x.rank - 1)
        return axis - x.rank if self.chance(0.4) else axis

    def axes(self, x: Value) -> tuple[int, ...]:
        """Some axes of x, at least one; often the spatial ones, or all but the first."""
        if x.rank > 2 and self.chance(0.4):
            return tuple(range(2, x.rank))
        count = self.number(1, x.rank)
        axes = sorted(self.random.sample(range(x.rank), count))
        return tuple(a - x.rank if self.chance(0.3) else a for a in axes)

    @property
    def type_text(self) -> str:
        """``, dtype=...`` for a factory, or "" for float32."""
        return "" if self.dtype == torch.float32 else f", dtype={self.dtype}"

    # Tensors -------------------------------------------------------------------------------------

    def input(self, shape: Sequence[int], text: str | None = None, *, bits: float = 2.0) -> Value:
        """A new input; by default normal numbers in the model's type and a random memory layout."""
        name = f"x{len(self.inputs) + 1}"
        text = text or self._floats(tuple(shape))
        value = self._meta(text)
        self.inputs.append((name, text))
        self._space[name] = value
        return self._known(name, value, bits)

    def _floats(self, shape: tuple[int, ...]) -> str:
        """An expression that makes normal (or other) numbers, sometimes through a view."""
        sizes = list(shape)
        before, after = "", ""
        kind = self.random.random()
        if kind < 0.12 and len(shape) >= 2:
            first, second = sorted(self.random.sample(range(len(shape)), 2))
            sizes[first], sizes[second] = sizes[second], sizes[first]
            after = f".transpose({first}, {second})"
        elif kind < 0.2 and len(shape) in (4, 5):
            after = f".to(memory_format=torch.channels_last{'' if len(shape) == 4 else '_3d'})"
        elif kind < 0.27 and shape:
            axis = self.number(0, len(shape) - 1)
            step = self.number(1, 2)
            start = self.number(0, 2)
            sizes[axis] = start + shape[axis] * step
            after = "[" + ":, " * axis + f"{start or ''}::{step if step > 1 else ''}".replace("::]", ":]") + "]"
            if step == 1:
                after = "[" + ":, " * axis + f"{start or ''}:]"
            elif shape[axis] * step > 1 and self.chance(0.3):
                sizes[axis] -= step - 1
        elif kind < 0.33 and len(shape) >= 2:
            axis = self.number(0, len(shape) - 1)
            sizes[axis] = 1
            after = f".expand({', '.join(map(str, shape))})"
        maker = self.one_of(["torch.randn", "torch.randn", "torch.randn", "torch.rand"])
        factor = self.one_of(["", "", "", "", " * 4", " - 3", " + 20"]) if maker == "torch.randn" else ""
        if factor:
            before, after = "(", f"{factor})" + after
        return f"{before}{maker}({', '.join(map(str, sizes)) or '()'}{self.type_text}){after}"

    def indices(self, shape: Sequence[int], count: int) -> Value:
        """An input of whole numbers below ``count``."""
        return self.input(shape, f"torch.randint(0, {count}, ({', '.join(map(str, shape))}"
                                 f"{',' if len(shape) == 1 else ''}))", bits=log2(count + 1))

    def parameter(self, shape: Sequence[int]) -> str:
        """A parameter; its name."""
        return self.member(f"nn.Parameter(torch.randn({', '.join(map(str, shape)) or '()'}{self.type_text}))")

    def buffer(self, shape: Sequence[int]) -> str:
        """A buffer; its name."""
        return self.member(f"buffer torch.rand({', '.join(map(str, shape)) or '()'}{self.type_text})")

    def module(self, text: str) -> str:
        """A module in the model's type, from its constructor's call; the member's name."""
        return self.member(text if self.dtype == torch.float32 else f"{text}.to({self.dtype})")

    def member(self, text: str) -> str:
        """A member of the model; its name."""
        name = f"self.m{len(self.members) + 1}"
        value = self._meta(text.removeprefix("buffer "))
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            self._module.register_buffer(name.removeprefix("self."), value)
        else:
            setattr(self._module, name.removeprefix("self."), value)
        self.members.append((name, text))
        return name

    def above(self, text: str) -> str:
        """A definition above the class, once; its name, which is a new one where the text defines ``NAME``."""
        name = f"G{len(self.definitions) + 1}"
        text = text.replace("NAME", name)
        if text not in self.definitions:
            self.definitions.append(text)
            with torch.device("meta"):
                exec(text, self._space)
        return name

    def emit(self, text: str, *, results: int = 1, bits: float | None = None) -> list[Value]:
        """A line of the forward that makes ``results`` tensors. Raises Refused where PyTorch does."""
        names = tuple(f"v{sum(len(s.results) for s in self.statements) + i + 1}" for i in range(results))
        operands = [v for v in self.values if v.name in names_in(text)]
        made = self._meta(text)
        made = [made] if results == 1 else list(made)
        if len(made) != results or not all(isinstance(t, torch.Tensor) for t in made):
            raise Refused(f"{text} gives no {results} tensors")
        if any(t.numel() > _MOST_ELEMENTS or t.dim() > 7 for t in made):
            raise Refused(f"{text} is too large")
        size = max((o.bits for o in operands), default=2.0) + 0.5 if bits is None else bits
        if size > _MOST_BITS.get(self.dtype, 24.0) and not self.hostile:
            raise Refused(f"{text} may overflow")
        self.statements.append(Statement(names, text))
        for name, tensor in zip(names, made, strict=True):
            self._space[name] = tensor
            self._known(name, tensor, size, owned=not any(_same_memory(tensor, t) for t in self._tensors(name)))
        return self.values[-results:]

    def _tensors(self, name: str) -> list[torch.Tensor]:
        """All tensors so far but ``name``, with the model's own."""
        return [*(t for n, t in self._space.items() if n != name and isinstance(t, torch.Tensor)),
                *self._module.parameters(), *self._module.buffers()]

    def effect(self, text: str) -> None:
        """A line of the forward that makes nothing new: it changes a tensor in place."""
        try:
            exec(text, self._space)
        except Exception as error:
            raise Refused(f"{text}: {error}") from error
        self.statements.append(Statement((), text))

    def _meta(self, text: str) -> Any:
        try:
            with torch.device("meta"), torch.no_grad():
                return eval(text, self._space)
        except Exception as error:
            raise Refused(f"{text}: {error}") from error

    def _known(self, name: str, tensor: torch.Tensor, bits: float, *, owned: bool = False) -> Value:
        value = Value(name, tuple(tensor.shape), tensor.dtype, bits, owned)
        self.values.append(value)
        return value

    # Choosing operands ---------------------------------------------------------------------------

    def pick(self, accept: Callable[[Value], bool], make: Callable[[], Value] | None = None, *,
             fresh: float = 0.05) -> Value:
        """A value that fits, mostly a recent one; a new one where none does. Raises Refused without either."""
        fitting = [v for v in self.values if accept(v)]
        if make is not None and (not fitting or self.chance(fresh)):
            return make()
        if not fitting:
            raise Refused("nothing fits")
        back = min(int(self.random.expovariate(1.2)), len(fitting) - 1)
        return fitting[-1 - back]

    def floats(self, least: int = 0, most: int = 7, *, fresh: float = 0.03) -> Value:
        """A floating tensor of the model's type with ``least`` to ``most`` axes, none of them empty."""
        return self.pick(lambda v: v.dtype == self.dtype and least <= v.rank <= most and 0 not in v.shape,
                         lambda: self.input(self.shape(self.number(max(least, 1 if self.chance(0.95) else least),
                                                                   min(most, max(least, 4))))), fresh=fresh)

    def partner(self, x: Value) -> Value | str:
        """Something to combine x with: of its shape, or of one that is broadcast to it (or it to that)."""
        kind = self.random.random()
        if kind < 0.3:
            others = [v for v in self.values if v.dtype == x.dtype and v.shape == x.shape]
            if others:
                return self.one_of(others[-6:])
        if kind < 0.42:
            others = [v for v in self.values if v.is_float and v is not x and broadcastable(v.shape, x.shape)]
            if others:
                return self.one_of(others[-8:])
        shape = list(x.shape)
        for axis in range(len(shape)):
            if self.chance(0.45):
                shape[axis] = 1
        while shape and (shape[0] == 1 or self.chance(0.1)) and self.chance(0.6):
            shape.pop(0)
        if kind < 0.6 and x.rank > 1:  # one number per channel
            shape = [x.shape[1], *(1,) * (x.rank - 2)]
        if kind < 0.75:
            return self.parameter(shape)
        if kind < 0.8:
            return self.buffer(shape)
        if kind < 0.9:
            return str(self.one_of([2, 3.0, 0.5, -1, 1, 0.1, -0.25]))
        return self.input(shape)

    def partner_tensor(self, x: Value) -> Value:
        """As :meth:`partner`, always a value."""
        while not isinstance(other := self.partner(x), Value):
            pass
        return other

    def tamed(self, x: Value, most: float = 4.0) -> Value:
        """x, brought to small magnitudes first where it might be large."""
        if x.bits <= most or self.hostile:
            return x
        if self.chance(0.5):
            return self.emit(f"torch.tanh({x})", bits=0.0)[0]
        return self.emit(f"{x}.clamp(-3, 3)", bits=1.6)[0]

    # The end -------------------------------------------------------------------------------------

    def finished(self, title: str) -> Sketch:
        """The model: it returns what nothing reads, and sometimes more."""
        read: set[str] = set()
        for statement in self.statements:
            read |= names_in(statement.text)
        made = [n for s in self.statements for n in s.results]
        returns = [n for n in made if n not in read][-5:] or made[-1:] or [self.inputs[0][0]]
        if self.chance(0.2):
            more = self.one_of([v.name for v in self.values])
            returns += [more] if more not in returns else []
        if self.chance(0.05):
            returns.append(returns[0])
        beside = self._beside(returns) if self.chance(0.12) else ()
        if len(returns) + len(beside) == 1:
            form = "one" if self.chance(0.95) else self.one_of(["tuple", "list", "dict", "named"])
        else:
            form = self.one_of(["tuple", "tuple", "tuple", "list", "dict", "nested", "named", "data", "ordered"])
        if form in ("dict", "named", "data", "ordered") and len(set(returns)) < len(returns):
            form = "tuple"
        renamed = [n for n, _ in (*self.inputs, *self.members)] if self.chance(0.06) else []
        others = self.random.sample(_MACROS, min(len(renamed), len(_MACROS)))
        renames = tuple((n.removeprefix("self."), other) for n, other in zip(renamed, others, strict=False))
        unused = [n for n, _ in self.members if self.chance(0.3)] if self.chance(0.3) else []
        unused += [n for n, _ in self.inputs] if self.chance(0.1) else []
        return Sketch(title, tuple(self.inputs), tuple(self.members), tuple(self.statements), tuple(returns),
                      form, tuple(self.definitions), beside, renames).pruned(unused)

    def _beside(self, returns: Sequence[str]) -> tuple[str, ...]:
        """Texts of what else a model may return: parts that are no tensors, views, an input as it is."""
        value = self.one_of([v for v in self.values if v.name in returns])
        given = self.one_of(self.inputs)[0]
        choices = ["None", "3", "2.5", "True", "'name'", given, f"{given}[None]", f"{value}.reshape(-1)",
                   f"{value}.detach()", f"{value}.shape[0]" if value.rank else "()"]
        if value.rank and value.is_float and 0 not in value.shape:
            choices += [f"torch.max({value}, 0)", f"{value}.sort(-1)"]
        return tuple(self.random.sample(choices, self.number(1, 2)))


def _same_memory(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.untyped_storage()._cdata == second.untyped_storage()._cdata


def broadcastable(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether two shapes can be broadcast to one."""
    return all(1 in (a, b) or a == b for a, b in zip(reversed(first), reversed(second), strict=False))
