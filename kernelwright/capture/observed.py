"""What an eager call gives beside values: which tensors its results are, and how far gradients of them reach.

A graph has values alone. Here the model runs once on tensors without data, with autograd recording as in the user's
call, and its results are looked at.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from kernelwright.capture.tracing import traceable
from kernelwright.capture.values_asked import answered_as_before
from kernelwright.ir.graph import Given

OTHERS: Given = "another tensor"
#: Reached where a function of the model's own, an ``autograd.Function``, says what gradients are.
OWN_DERIVATIVE: Given = "a derivative of the model's own"


@dataclass(frozen=True, slots=True)
class Observed:
    """One result of an eager call, a leaf of what the forward returns.

    same: the number of the first result that is the same object; its own where it is the first.
    given: the tensor that it is itself, not merely a view of (a kept one by its text); None for one that the forward
    made.
    reaches: the tensors at which gradients of it would arrive if all of them required gradients; OTHERS among them
    where a tensor that is neither an input nor a parameter would get some, OWN_DERIVATIVE where the model finds some.
    strides: of a tensor, as far as tensors without data tell; None of what is no tensor.
    """

    same: int
    given: Given | None
    reaches: frozenset[Given]
    strides: tuple[int, ...] | None


def observe(model: torch.nn.Module, inputs: Sequence[Any], named: dict[str, Any], kept: Mapping[str, torch.Tensor], *,
            recording: bool, as_they_are: bool, traced: Sequence[tuple[int, ...]] | None = None,
            answers: Sequence[Any] = (), carried: Sequence[str] = ()
            ) -> tuple[tuple[Observed, ...] | None, frozenset[Given]]:
    """The results of ``model(*inputs, **named)`` in order, tensors or not, and the inputs and parameters of which it
    matters whether they require gradients. None in place of results where the forward runs on real tensors only.

    kept: tensors that are neither inputs nor parameters nor buffers, by the texts that give them.
    recording: whether gradients are recorded during the call; without them nothing is reached.
    as_they_are: let only those tensors require gradients that do, for a forward that asks which; otherwise all inputs
    and parameters do, but those of which PyTorch refuses it (the target of a loss without a gradient for it, a leaf
    that is written into). The model is the caller's to spend: the forward may leave buffers and attributes changed.
    traced: the strides of all tensors among the results in a trace; what is cheaper is believed where it has them, too.
    answers: what Python was told in that trace that asked for values.
    carried: the names of the plain attributes whose tensors are the last leaves of the arguments.
    """
    leaves = pytree.tree_leaves((tuple(inputs), named))
    everything: frozenset[Given] = frozenset((
        *(place for place, leaf in enumerate(leaves[:len(leaves) - len(carried)])
          if isinstance(leaf, torch.Tensor) and _differentiable(leaf)), *(n for n, _ in model.named_parameters())))

    def observed(forced: frozenset[Given]) -> tuple[Observed, ...] | None:
        frozen = [p for n, p in model.named_parameters() if n in forced and not p.requires_grad and _differentiable(p)]
        try:
            for parameter in frozen:
                parameter.requires_grad_(True)
            return _observed(model, inputs, named, kept, recording, forced, traced, answers, carried)
        except Exception:  # a tensor that may not require gradients, or an operator without a shape rule
            return None
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)

    if as_they_are or not recording:
        return observed(frozenset()), everything if as_they_are else frozenset()
    if (found := observed(everything)) is not None:
        return found, frozenset()
    if (as_given := observed(frozenset())) is None:
        return None, frozenset()
    parameters = frozenset(name for name in everything if isinstance(name, str))
    alone = (parameters, *(frozenset({place}) for place in everything - parameters))
    refused = frozenset[Given]().union(*(some for some in alone if observed(some) is None))
    found = observed(everything - refused)
    return (as_given, everything) if found is None else (found, refused)


def _differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _observed(model: torch.nn.Module, inputs: Sequence[Any], named: dict[str, Any], kept: Mapping[str, torch.Tensor],
              recording: bool, forced: frozenset[Given], traced: Sequence[tuple[int, ...]] | None,
              answers: Sequence[Any], carried: Sequence[str]) -> tuple[Observed, ...]:
    """The results of one run: with all tensors on PyTorch's meta device, whose operators know shapes and gradients and
    cost next to nothing, else on fake tensors, which stand for those of any device.

    Libraries choose by the device how they store results, so fake tensors decide where those of the meta device lie
    otherwise than traced. What the forward reads from elsewhere has values, which a run on fake tensors leaves alone.
    """
    if not kept and traced is not None:
        with suppress(Exception), on_meta(model):  # a device that nobody knows, or values that the forward asks for
            found = _run(model, inputs, named, kept, recording, forced, without_data, nullcontext(), answers, carried)
            if [r.strides for r in found if r.strides is not None] == list(traced):
                return found
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return _run(model, inputs, named, kept, recording, forced, mode.from_tensor, mode, answers, carried)


def without_data(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(type(tensor))
    strided = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return strided.requires_grad_(tensor.requires_grad)


@contextmanager
def on_meta(model: torch.nn.Module) -> Iterator[None]:
    """While active, the parameters and buffers of ``model`` are tensors of the meta device: one for each."""
    tables: list[dict[str, Any]] = [table for module in model.modules()
                                    for table in (module._parameters, module._buffers)]
    homes = [(home, name, tensor) for home in tables for name, tensor in home.items() if tensor is not None]
    others: dict[int, torch.Tensor] = {}
    for _, _, tensor in homes:
        if id(tensor) not in others:
            meta = without_data(tensor)
            others[id(tensor)] = torch.nn.Parameter(meta, tensor.requires_grad) \
                if isinstance(tensor, torch.nn.Parameter) else meta
    try:
        for home, name, tensor in homes:
            home[name] = others[id(tensor)]
        yield
    finally:
        for home, name, tensor in homes:
            home[name] = tensor


def _run(model: torch.nn.Module, inputs: Sequence[Any], named: dict[str, Any], kept: Mapping[str, torch.Tensor],
         recording: bool, forced: frozenset[Given], stand_in: Callable[[torch.Tensor], torch.Tensor],
         mode: AbstractContextManager[Any], answers: Sequence[Any], carried: Sequence[str]) -> tuple[Observed, ...]:
    leaves, structure = pytree.tree_flatten((tuple(inputs), named))
    given = [stand_in(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    # Autograd stands above the mode: it sees the model's own tensors.
    names: dict[int, Given] = {id(t): text for text, t in kept.items() if not t.requires_grad}
    names |= {id(t): name for name, t in (*model.named_parameters(), *model.named_buffers())}
    for place, leaf in enumerate(given):
        if isinstance(leaf, torch.Tensor):
            own = place - len(given) + len(carried)
            names[id(leaf)] = place if own < 0 else carried[own]
            if place in forced:
                leaf.requires_grad_(True)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.set_grad_enabled(recording), \
            traceable(), answered_as_before(answers), mode:
        warnings.simplefilter("ignore")
        positional, keywords = pytree.tree_unflatten(given, structure)
        returned = model(*positional, **keywords)
    results = pytree.tree_leaves(returned)
    first: dict[int, int] = {}
    return tuple(Observed(first.setdefault(id(r), place), names.get(id(r)),
                          _reached(r, names) if recording and isinstance(r, torch.Tensor) else frozenset(),
                          tuple(r.stride()) if isinstance(r, torch.Tensor) else None)
                 for place, r in enumerate(results))


def _reached(result: torch.Tensor, names: dict[int, Given]) -> frozenset[Given]:
    """The leaves of the recorded graph below a result."""
    if not result.requires_grad:
        return frozenset()
    if result.grad_fn is None:
        return frozenset({names.get(id(result), OTHERS)})
    reached, seen, waiting = set(), {result.grad_fn}, [result.grad_fn]
    while waiting:
        function = waiting.pop()
        if isinstance(function, torch.autograd.function.BackwardCFunction):
            reached.add(OWN_DERIVATIVE)
        variable = getattr(function, "variable", None)
        if variable is not None:
            reached.add(names.get(id(variable), OTHERS))
        for below, _ in function.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)
    return frozenset(reached)
