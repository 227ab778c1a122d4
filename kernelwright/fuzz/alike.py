"""Whether a candidate does what a model does when a user calls it: every fact of a call that PyTorch lets one see.

A model is called in evaluation and training mode, under ``no_grad`` and with gradients recorded. What a call shows (an
:class:`Observed`) are its outputs with their types, memory and gradients, what it changed, and what it raised. Values
may differ by rounding alone, which is measured where a difference is larger than usual: by eager's own distance from
float64, and by how far eager's results move when the result of every operator that computes is rounded one unit up or
down (casts round as the model says, in every kernel that is right). What an operator rounds within itself is moved,
too: activations, norms and the like run as the operators that PyTorch says they are.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from kernelwright.fuzz.rounding import OtherRounding
from kernelwright.verify.flatten import map_tensors
from kernelwright.verify.observe import equal_states, first_line, random_state, seed_all
from kernelwright.verify.state import OwnTypes, State, call_in_float64, float64_copy, own_types, redraw
from kernelwright.verify.ties import CALLS, _Ties

#: Relative differences that are always accepted, and what a result of a type may be away from float64 by rounding.
_CLOSE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
_ROUNDED = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 0.2}
#: How many times eager's own error, and the distance by which other rounding moves eager, may be exceeded: a result of
#: 32 bits has the roundings of all additions of its sums, one of 16 bits is rounded once.
_MULTIPLE, _SLACK, _SLACK_NARROW = 4.0, 30.0, 4.0
#: How often eager is called under other rounding: a result that jumps is to do so in one of them but for odds of 1e-6.
_DRAWS = 16


class Setting(NamedTuple):
    """How a model is called: its mode, whether gradients are recorded, whether inputs ask for them, whether arguments
    are given by name, and whether inputs lie with their axes turned round in memory."""

    training: bool
    recording: bool
    leaves: bool
    named: bool = False
    turned: bool = False

    def __str__(self) -> str:
        return ("training" if self.training else "inference") + (
            " under no_grad" if not self.recording else " with gradients of inputs" if self.leaves else
            " with gradients of parameters") + ", arguments by name" * self.named + ", inputs turned" * self.turned


SETTINGS = (Setting(False, False, False), Setting(False, True, True), Setting(False, True, False),
            Setting(True, False, False), Setting(True, True, True), Setting(False, False, False, named=True),
            Setting(False, False, False, turned=True))


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    return torch.where(tensor.abs() < 0.7, torch.zeros_like(tensor).copysign(tensor), tensor)


#: Values that hide nothing, as functions of a floating tensor: scales whose squares leave the type, means that leave no
#: digits to a square, angles without a digit after the point, zeros of both signs.
CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "times 1e-25": lambda x: x * 1e-25, "times 1e25": lambda x: x * 1e25, "plus 1e6": lambda x: x + 1e6,
    "times 1e16": lambda x: x * 1e16, "zeros of both signs": _zeros,
}


class Difference(NamedTuple):
    """Something in which two modules differ. ``kind``: a word for it; ``where``: the call and the place."""

    kind: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}: {self.what}"


@dataclass
class Observed:
    """What one call showed. ``error``: the class of what it raised; tensors of ``values`` by path are outputs,
    gradients, changed inputs and state; ``facts`` are everything else by (kind, path)."""

    error: str = ""
    message: str = ""
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    facts: dict[tuple[str, str], Any] = field(default_factory=dict)


def differences(make_model: Callable[[], nn.Module], make_candidate: Callable[[], nn.Module],
                make_inputs: Callable[[], Sequence[Any]], *, seed: int = 0, settings: Sequence[Setting] = SETTINGS,
                exact: bool = True, extreme: bool = False) -> list[Difference]:
    """What a user could see a candidate do otherwise than the model; [] where nothing is.

    Both makers give modules of equal parameters in the mode as constructed; inputs are made anew for each call. exact:
    whether signs of zeros, and places and signs of infinities and NaN are compared, which an exchange of products
    moves. extreme: numbers may leave the range of their type on the way, and who keeps them where eager does not is
    right, too. Raises what the makers raise.
    """
    rules = _Rules(exact, extreme)
    found: list[Difference] = []
    keys = [list(make().state_dict()) for make in (make_model, make_candidate)]
    if keys[0] != keys[1]:
        found.append(Difference("state", "state_dict", f"{keys[1]} instead of {keys[0]}"))
    for setting in settings:
        model, candidate = (make().train(setting.training) for make in (make_model, make_candidate))
        if setting.training:
            redraw(model, seed)
            State.of(model).apply(candidate)
        names = tuple(inspect.signature(model.forward).parameters)
        if setting.turned:  # a first call of its kind is eager's
            observe(model, make_inputs(), setting, seed)
            observe(candidate, make_inputs(), setting, seed, names=names)
        before = State.of(model)
        wanted = observe(model, make_inputs(), setting, seed)
        actual = observe(candidate, make_inputs(), setting, seed, names=names)
        truth = _Truth(make_model, make_inputs, setting, seed, before, rules.extreme)
        found += _compared(wanted, actual, truth, str(setting), rules)
    return found


def _turned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its axes in the opposite order in memory."""
    axes = tuple(reversed(range(tensor.ndim)))
    return tensor.permute(axes).contiguous().permute(axes)


def observe(module: nn.Module, inputs: Sequence[Any], setting: Setting, seed: int, *, double: bool = False,
            rounding: Any = None, names: Sequence[str] = (), own: OwnTypes = OwnTypes()) -> Observed:
    """Call ``module`` on ``inputs`` (which the call may change) and note everything; nothing is raised.

    double: both are in float64 already. rounding: a context in which the call runs. names: those of the arguments,
    where they are not the module's own. own: what is known of the types of what is in float64 (`own_types`).
    """
    seen = Observed()
    inputs = list(map_tensors(inputs, _turned) if setting.turned else inputs)
    leaves: dict[str, torch.Tensor] = {}
    if setting.recording:
        if setting.leaves:
            inputs = _asking(inputs, leaves)
        leaves |= {name: p for name, p in module.named_parameters() if p.requires_grad}
    state = seed_all(seed)
    with torch.set_grad_enabled(setting.recording), warnings.catch_warnings(), rounding or _Nothing():
        warnings.simplefilter("ignore")
        try:
            if double:
                outputs = call_in_float64(module, inputs, own=own)
            elif setting.named:
                names = names or tuple(inspect.signature(module.forward).parameters)
                outputs = module(**dict(zip(names, inputs, strict=False)))
            else:
                outputs = module(*inputs)
        except Exception as error:
            seen.error, seen.message = type(error).__name__, first_line(error)
            return seen
    seen.facts["random-state", "after the call"] = None if equal_states(state, random_state()) else tuple(
        s.sum().item() for s in random_state())
    made = dict(_leaves(outputs, "output"))
    tensors = {path: leaf for path, leaf in made.items() if isinstance(leaf, torch.Tensor)}
    for path, leaf in made.items():
        if not isinstance(leaf, torch.Tensor):
            seen.facts["value", path] = leaf
    others = [*((f"input {i}{path}", t) for i, given in enumerate(inputs) for path, t in _leaves(given, "")),
              *module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    others = [(path, t) for path, t in others if isinstance(t, torch.Tensor)]
    for path, tensor in tensors.items():
        _note(seen, path, tensor)
        for name, other in others:
            seen.facts["alias", f"{path} and {name}"] = _shared(tensor, other)
        others.append((path, tensor))
    seen.values |= {path: _plain(t) for path, t in tensors.items()}
    if leaves:
        _gradients(seen, tensors, leaves, seed, rounding)
    seen.values |= {f"input {i}{path} after the call": _plain(t) for i, given in enumerate(inputs)
                    for path, t in _leaves(given, "") if isinstance(t, torch.Tensor)}
    seen.values |= {f"{path} after the call": _plain(t) for path, value in State.of(module).tracked().items()
                    for path, t in _leaves(value, path) if isinstance(t, torch.Tensor)}
    return seen


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _asking(inputs: list[Any], leaves: dict[str, torch.Tensor]) -> list[Any]:
    """The inputs with tensors that gradients reach and that a model may change in place, as in the middle of a network;
    the leaves behind them are added to ``leaves``."""
    known: dict[int, torch.Tensor] = {}

    def ask(path: str, tensor: torch.Tensor) -> torch.Tensor:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor
        if id(tensor) not in known:
            leaf = leaves[f"input {path}"] = tensor.detach().requires_grad_()
            overlaps = 0 in [stride for size, stride in zip(leaf.shape, leaf.stride(), strict=True) if size > 1]
            known[id(tensor)] = leaf.view_as(leaf) if overlaps else torch.empty_strided(
                leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device).copy_(leaf)
        return known[id(tensor)]

    def walk(path: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return ask(path, value)
        if type(value) in (list, tuple):
            return type(value)(walk(f"{path}[{i}]", item) for i, item in enumerate(value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(walk(f"{path}[{i}]", item) for i, item in enumerate(value)))
        if type(value) is dict:
            return {key: walk(f"{path}[{key!r}]", item) for key, item in value.items()}
        return value

    return [walk(str(i), value) for i, value in enumerate(inputs)]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The leaves of nested containers by path; every container is a leaf, too, by the name of its type."""
    if isinstance(value, Mapping):
        parts = [(f"[{key!r}]", item) for key, item in value.items()]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [(f".{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value)]
    elif isinstance(value, (list, tuple)):
        parts = [(f"[{i}]", item) for i, item in enumerate(value)]
    else:
        yield path, value
        return
    yield f"type of {path}", type(value).__qualname__
    for name, item in parts:
        yield from _leaves(item, path + name)


def _note(seen: Observed, path: str, tensor: torch.Tensor) -> None:
    strided = tensor.layout is torch.strided
    seen.facts |= {
        ("type", path): type(tensor).__name__, ("dtype", path): tensor.dtype, ("shape", path): tuple(tensor.shape),
        ("device", path): tensor.device, ("layout", path): tensor.layout,
        ("strides", path): tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
        if strided and tensor.numel() > 1 else (),
        ("requires-grad", path): tensor.requires_grad, ("grad-fn", path): tensor.grad_fn is not None}


def _shared(tensor: torch.Tensor, other: torch.Tensor) -> str:
    if tensor is other:
        return "one tensor"
    if torch.strided not in (tensor.layout, other.layout) or not tensor.numel() or not other.numel() or \
            tensor.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return "memory of their own"
    return f"the same memory, {tensor.data_ptr() - other.data_ptr()} bytes apart"


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A copy without history; complex numbers as pairs."""
    tensor = tensor.detach()
    tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    tensor = tensor.resolve_conj().resolve_neg().clone()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _gradients(seen: Observed, tensors: Mapping[str, torch.Tensor], leaves: Mapping[str, torch.Tensor], seed: int,
               rounding: Any) -> None:
    """Gradients of random linear functions: of all outputs together, and of each alone."""
    asked = {path: t for path, t in tensors.items() if t.requires_grad}
    groups = {"of all": asked, **({f"of {path}": {path: t} for path, t in asked.items()} if 1 < len(asked) < 5 else {})}
    for words, group in groups.items():
        if not group:
            continue
        weights = []
        for path, tensor in group.items():  # each has numbers of its own, whichever others have gradients
            generator = torch.Generator().manual_seed(seed + zlib.crc32(path.encode()))
            drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.complex64 if tensor.is_complex() else
                                torch.float32)
            weights.append(drawn.to(tensor.dtype))
        with rounding or _Nothing(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = torch.autograd.grad(list(group.values()), list(leaves.values()), weights, allow_unused=True,
                                            retain_graph=True)
            except Exception as error:
                seen.facts["gradient", words] = f"raises {type(error).__name__}: {first_line(error)}"
                continue
        for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
            path = f"gradient {words} for {name}"
            seen.facts["gradient", path] = "none" if gradient is None else "there"
            if gradient is not None:
                seen.facts["dtype", path], seen.facts["shape", path] = gradient.dtype, tuple(leaf.shape)
                seen.values[path] = _plain(gradient)


# What may differ ---------------------------------------------------------------------------------

class _Rules(NamedTuple):
    """What is compared: as :func:`differences` says."""

    exact: bool
    extreme: bool


class _Truth:
    """What is known of a call beside eager's result, found out when it is asked for: the float64 results, as they are
    and rounded as a narrower type would be, those of eager under other rounding, and those with ties of zeros decided
    otherwise."""

    def __init__(self, make_model: Callable[[], nn.Module], make_inputs: Callable[[], Sequence[Any]],
                 setting: Setting, seed: int, before: State, extreme: bool = False) -> None:
        self._extreme = extreme
        self._make = lambda: make_model().train(setting.training)
        self._inputs, self._setting, self._seed, self._before = make_inputs, setting, seed, before
        self._double: Observed | None = None
        self._rounded: dict[torch.dtype, list[Observed]] = {}
        self._moved: list[Observed] | None = None
        self._tied: list[Observed] | None = None

    def _model(self) -> nn.Module:
        model = self._make()
        self._before.apply(model)
        return model

    def double(self, path: str) -> torch.Tensor | None:
        """The value in float64, or None where float64 does not run."""
        if self._double is None:
            self._double = self._in_float64()
        return self._double.values.get(path)

    def rounded(self, path: str, kind: torch.dtype) -> list[torch.Tensor]:
        """The values in float64, in whose range nothing is lost, with the roundings of the type ``kind``."""
        if kind not in self._rounded:
            self._rounded[kind] = [self._in_float64(OtherRounding(number, torch.finfo(kind).eps))
                                   for number in range(_DRAWS)]
        return [o.values[path] for o in self._rounded[kind] if path in o.values]

    def _in_float64(self, rounding: Any = None) -> Observed:
        try:
            _, own = own_types(lambda: observe(self._model(), self._inputs(), self._setting, self._seed))
            return observe(float64_copy(self._model()), _wide(list(self._inputs())), self._setting, self._seed,
                           double=True, rounding=rounding, own=own)
        except Exception:  # a model that cannot be copied
            return Observed("no float64")

    def moved(self, path: str) -> list[torch.Tensor]:
        """The values under other rounding: by one unit of the last place, and by one or two in every second call."""
        if self._moved is None:
            self._moved = [observe(self._model(), self._inputs(), self._setting, self._seed,
                                   rounding=OtherRounding(number, share=1.0 - number % 2 / 2, overflows=self._extreme))
                           for number in range(_DRAWS)]
        return [o.values[path] for o in self._moved if path in o.values]

    def tied(self, path: str) -> list[torch.Tensor]:
        """The values with the signs of zeros that eager chooses by place chosen otherwise."""
        if self._tied is None:
            self._tied = [observe(self._model(), self._inputs(), self._setting, self._seed, rounding=_Ties(
                self._seed + number, all_of_them=number == 0)) for number in range(CALLS)]
        return [o.values[path] for o in self._tied if path in o.values]


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(torch.complex128 if value.is_complex() else torch.float64) if value.is_floating_point() \
            or value.is_complex() else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_wide, value))
    if type(value) in (list, tuple):
        return type(value)(map(_wide, value))
    return {key: _wide(item) for key, item in value.items()} if type(value) is dict else copy.deepcopy(value)


def _compared(wanted: Observed, actual: Observed, truth: _Truth, words: str, rules: _Rules) -> Iterator[Difference]:
    if wanted.error != actual.error:
        yield Difference("raises", words, f"{actual.error or 'nothing'} ({actual.message[:200]}) instead of "
                         f"{wanted.error or 'nothing'} ({wanted.message[:200]})")
        return
    for key in dict.fromkeys((*wanted.facts, *actual.facts)):
        kind, path = key
        mine, theirs = actual.facts.get(key, "missing"), wanted.facts.get(key, "missing")
        if type(mine) is not type(theirs) or not _equal(mine, theirs):
            yield Difference(kind, f"{words}: {path}", f"{mine!r:.200} instead of {theirs!r:.200}")
    for path, expected in wanted.values.items():
        found = actual.values.get(path)
        if found is None or found.shape != expected.shape or found.dtype is not expected.dtype:
            if found is None or path.startswith("input") or path.endswith("after the call"):  # else a fact says so
                kinds = [f"{tuple(t.shape)} {t.dtype}" for t in (found, expected) if t is not None]
                what = "missing" if found is None else " instead of ".join(kinds)
                yield Difference("state", f"{words}: {path}", what)
            continue
        if message := _value(path, found, expected, truth, rules):
            yield Difference(*message[:1], f"{words}: {path}", message[1])


def _equal(mine: Any, theirs: Any) -> bool:
    return bool(mine == theirs) or (isinstance(mine, float) and mine != mine and theirs != theirs)


def _value(path: str, found: torch.Tensor, expected: torch.Tensor, truth: _Truth, rules: _Rules
           ) -> tuple[str, str] | None:
    """The kind of difference between two values of a path, and words for it, if there is one."""
    if not expected.is_floating_point():
        wrong = found != expected
        if wrong.any() and rules.extreme:  # eager may compare values that its type has lost
            exact = truth.double(path)
            wrong &= found != exact if exact is not None and exact.shape == expected.shape else True
        if wrong.any():  # a comparison of rounded values may go either way
            for moved in truth.moved(path):
                wrong &= (moved == expected) if moved.shape == expected.shape else False
        return ("value", _words(wrong, found, expected)) if wrong.any() else None
    dtype, found, expected = expected.dtype, found.double(), expected.double()
    finite = expected.isfinite()
    special = (found.isfinite() != finite) | (found.isnan() != expected.isnan()) | (
        expected.isinf() & (found != expected))
    zero = (expected == 0) & (found == 0) & (found.signbit() != expected.signbit())
    close, slack = _CLOSE.get(dtype, 1e-5), _SLACK if dtype.itemsize > 2 else _SLACK_NARROW
    scale = float(expected[finite].abs().max()) if finite.any() else 0.0
    error = torch.where(finite & found.isfinite(), (found - expected).abs(), 0.0).nan_to_num(0.0)
    allowed = close * (expected.abs().nan_to_num(0.0, 0.0, 0.0) + 0.1 * scale)
    far = error > allowed
    if not (far.any() or (rules.exact and (special | zero).any())):
        return None
    exact = truth.double(path)
    exact = exact if exact is not None and exact.shape == expected.shape else None
    if exact is not None and rules.extreme:
        # What the type of eager's result has lost is nobody's (see `kernelwright.verify.computation.settled`), and
        # float64's rounded to the type is right in any case.
        held = torch.finfo(dtype)
        lost = (exact.abs() <= held.max) & (~finite | (
            (expected.abs() < held.smallest_normal) & (exact.abs() >= held.smallest_normal)))
        lost |= found == exact.to(dtype).double()
        special &= ~lost
        far &= ~lost
        if far.any():  # what eager has lost shows no rounding of those who lose nothing
            spread = torch.zeros_like(expected)
            for other in truth.rounded(path, dtype):
                if other.shape == exact.shape:
                    spread = torch.maximum(spread, (other - exact).abs().nan_to_num(0.0, 0.0, 0.0))
            far &= (found - exact).abs() > slack * spread
    never = special & found.isfinite()  # a finite value where no rounding leaves one
    for moved in truth.moved(path):
        if moved.shape == expected.shape:
            moved = moved.double()
            never &= ~moved.isfinite()
            stable = (moved.isfinite() == finite) & (moved.isnan() == expected.isnan())
            special &= stable & ~(expected.isinf() & (moved != expected))
            zero &= (moved == 0) & (moved.signbit() == expected.signbit())
            far &= stable
            allowed = torch.maximum(allowed, slack * torch.where(stable & finite, (moved - expected).abs(), 0.0
                                                                  ).nan_to_num(0.0))
    special |= never
    for other in truth.tied(path) if rules.exact and zero.any() else []:
        if other.shape == expected.shape:
            zero &= (other == 0) & (other.signbit() == expected.signbit())
    if exact is not None:
        own = torch.where(finite & exact.isfinite(), (exact - expected).abs(), 0.0).nan_to_num(0.0)
        # Where float64 is farther away than rounding explains, it is another computation, or nobody has a digit.
        if rules.extreme or float(own.max()) <= _ROUNDED.get(dtype, 1e-3) * scale:
            far &= (found - exact).abs() > torch.maximum(allowed, _MULTIPLE * own.max())
        # What is no zero in float64 has no sign that rounding could not take from it.
        zero &= (exact == 0) & (exact.signbit() == expected.signbit())
    far &= error > allowed
    for kind, wrong, asked in (("nonfinite", special, rules.exact), ("value", far, True),
                               ("sign-of-zero", zero, rules.exact)):
        if asked and wrong.any():
            return kind, _words(wrong, found, expected)
    return None


def _words(wrong: torch.Tensor, found: torch.Tensor, expected: torch.Tensor) -> str:
    place = tuple(wrong.nonzero()[0].tolist())
    return f"{found[place].item()!r} instead of {expected[place].item()!r} at {place} ({int(wrong.sum())} of " \
           f"{wrong.numel()})"
