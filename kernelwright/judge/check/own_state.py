"""Candidates whose state is not the model's: buffers of their own beside it, or its parameters in a form of their own.

A transposed copy of a weight that the constructor makes under the model's seed is a right way to compute, and a
state_dict of the model does not load into it. What such a candidate does with other parameters is seen where it is
constructed under another seed, and where its own copies, which are known by their values, are written to. A parameter
that the model's constructor makes the same under every seed (a norm's ones) shows in the second way alone: without a
copy nobody can know that the candidate did not leave it out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from kernelwright.judge.diagnose.misfit import listed
from kernelwright.judge.records import Finding
from kernelwright.judge.worker.remote import RemoteCandidate
from kernelwright.verify.certificate import Certificate, Plan, certify
from kernelwright.verify.state import redraw

#: Elements by which most pairs of tensors are told apart.
_FEW = 64
#: Axes of which all orders are tried.
_MOST_AXES = 4
#: Between the seed of the check and that of another construction.
_OTHER = 6151
#: Trials with other parameters: those that come first of the check's own.
_TRIALS = 3
_RUNNING = ("running_mean", "running_var")


@dataclass(frozen=True, slots=True)
class Copy:
    """A tensor of the candidate's state that holds a parameter or buffer of the model's: its axes in ``order``, with
    the elements one after another in whatever shape. ``kind``: "p" a parameter, "b" a buffer, "a" an attribute."""

    kind: str
    path: str
    tensor: torch.Tensor
    order: tuple[int, ...]

    def write(self, value: torch.Tensor) -> None:
        """Have it hold another value of the model's tensor."""
        self.tensor.copy_(value.permute(self.order).reshape(self.tensor.shape))


@dataclass(frozen=True, slots=True)
class OwnState:
    """How the state of a candidate as it was constructed differs from the model's. ``lacked`` are names of the model's
    state that it lacks or has in another shape, ``extra`` those of its state_dict that the model does not have.
    ``copies`` are by name of the model's; ``unseen`` the names that are the same under every seed and have none."""

    lacked: tuple[str, ...]
    extra: tuple[str, ...]
    copies: Mapping[str, tuple[Copy, ...]] = field(repr=False)
    unseen: tuple[str, ...] = ()

    @property
    def loads(self) -> bool:
        """Whether the model's parameters can be written into it by name."""
        return not self.lacked

    @property
    def holds(self) -> bool:
        """Whether all that it lacks by name stands in tensors of its own, with the values that the seed gives."""
        return all(self.copies.get(name) for name in self.lacked if not name.endswith("num_batches_tracked"))

    def limit(self) -> str:
        """In words, what limits a candidate with it that is right."""
        if self.loads:
            return f"its state_dict has {listed(self.extra)} beside the model's, which loads with strict=False only"
        paths = list(dict.fromkeys(c.path for name in self.lacked for c in self.copies.get(name, ())))
        form = f" ({listed(paths)})" if paths else ""
        return (f"keeps {listed(self.lacked)} in a form of its own{form}: it follows the seed of its construction, and "
                "no state_dict of the model loads into it")


def own_state(model: nn.Module, candidate: RemoteCandidate, misfit: Finding | None, fixed: Mapping[str, torch.Tensor]
              ) -> OwnState | None:
    """How a ``candidate`` differs from the ``model``, both as they were constructed under one seed, where a ``misfit``
    was found (:func:`find_misfit`), else None. ``fixed``: see `fixed_state`."""
    if misfit is None:
        return None
    lacked = (*misfit.evidence["missing"], *misfit.evidence["shapes"])
    found = {name: tuple(copies_of(value, candidate)) for name, value in _values(model).items() if name in lacked}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    unseen = tuple(name for name in lacked if name in fixed and not found.get(name)
                   and (name in parameters or name.rpartition(".")[2] in _RUNNING))
    return OwnState(lacked, tuple(misfit.evidence["extra"]), found, unseen)


def buffers_by_other_names(model: nn.Module, candidate: RemoteCandidate, own: OwnState) -> dict[str, str]:
    """The model's names of the candidate's buffers, by their paths in it, where it has those that it lacks in the same
    order with the same values, as both were constructed: a layer under another name. Empty where it has not."""
    there = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    lacked = [(name, value) for name, value in model.named_buffers() if name in own.lacked]
    beside = [(path, tensor) for kind, path, tensor in candidate.link.mirror.tensors()
              if kind == "b" and path not in there]
    if len(lacked) != len(beside) or not all(
            value.dtype == tensor.dtype and torch.equal(value.cpu(), tensor.cpu())
            for (_, value), (_, tensor) in zip(lacked, beside, strict=True)):
        return {}
    return {path: name for (name, _), (path, _) in zip(lacked, beside, strict=True)}


def copies_of(value: torch.Tensor, candidate: RemoteCandidate) -> Iterator[Copy]:
    """Tensors of the candidate's state that hold ``value``, in any order of its axes and rounded to any type."""
    for kind, path, tensor in candidate.link.mirror.tensors():
        order = _order(value, tensor)
        if order is not None:
            yield Copy(kind, path, tensor, order)


def stale_copy(model: nn.Module, candidate: RemoteCandidate) -> Finding | None:
    """What the candidate keeps of the model's parameters beside them, as its constructor made it; ``model``: as it was
    constructed. To be asked where other parameters do not show in the candidate's results."""
    for name, value in _values(model).items():
        for copy in copies_of(value, candidate):
            if copy.path not in dict(model.named_parameters()) and copy.path not in dict(model.named_buffers()):
                how = "" if copy.order == tuple(range(value.dim())) else " with its axes in another order"
                return Finding("stale-copy", f"{copy.path} is a copy of {name}{how} that the constructor makes, and "
                               f"stays as it is where {name} changes.", fix=f"Read {name} in every forward, or make "
                               f"{copy.path} anew in forward where {name} has changed.",
                               evidence={"copy": copy.path, "of": name, "weight": 1.9})
    return None


def follow(make_model: Callable[[int], nn.Module], make_candidate: Callable[[int], RemoteCandidate],
           make_inputs: Callable[[int], Sequence[Any]], seed: int, plan: Plan, own: OwnState) -> Finding | None:
    """What is wrong with a candidate that ``own`` is known of and that is right under ``seed``, once it gets other
    parameters: by another seed, and in place of its copies. None where nothing is.

    ``make_candidate`` constructs it anew in its process, and ``plan`` is that of the check, of which the first trials
    that change no parameters are run. Raises what a RemoteCandidate raises.
    """
    if own.unseen:
        return Finding("unseen-parameters", f"{listed(own.unseen)} {'is' if len(own.unseen) == 1 else 'are'} made the "
                       "same under every seed, and nothing in the candidate's state holds "
                       f"{'it' if len(own.unseen) == 1 else 'them'}: other values can never reach the result.",
                       fix="Create it in __init__ as the model does, and compute with it.")
    some = replace(plan, trials=tuple(t for t in plan.trials if not t.changes_parameters)[:_TRIALS], required=_TRIALS,
                   repeats=0)
    found = _certified(lambda: make_model(seed + _OTHER), lambda: make_candidate(seed + _OTHER), make_inputs, some)
    if not found.passed:
        return Finding("seed-not-followed", f"Right for one seed of the constructor, wrong for another{_at(found)}.",
                       fix="Make what is kept of the parameters from those that the constructor draws.",
                       evidence=_where(found))
    model, candidate = make_model(seed), make_candidate(seed)
    held = {name: tuple(copies_of(value, candidate)) for name, value in _values(model).items() if name in own.lacked}
    written = _write(model, held, seed)
    if not written:
        return None
    found = _certified(lambda: model, lambda: candidate, make_inputs, some)
    if found.passed:
        return None
    name, copy = next(iter(written.items()))
    others = [c.path for c in held[name] if c.path != copy.path]
    instead = listed(others) if others else "what the constructor made of it"
    return Finding("stale-copy", f"{copy.path} holds the model's {name}, and other values in it are not followed: the "
                   f"candidate computes with {instead}{_at(found)}.",
                   fix=f"Read {copy.path} in every forward: what the constructor makes of it does not change with it.",
                   evidence={"copy": instead, "of": name, **_where(found)})


def _certified(make_model: Callable[[], nn.Module], make_candidate: Callable[[], nn.Module],
               make_inputs: Callable[[int], Sequence[Any]], plan: Plan) -> Certificate:
    return certify(make_model, make_candidate, make_inputs, plan=plan)


@torch.no_grad()
def _write(model: nn.Module, held: Mapping[str, Sequence[Copy]], seed: int) -> dict[str, Copy]:
    """Give ``model`` other parameters, those that have copies, and the candidate's copies the same; the first copy of
    each that was written, by the model's name.

    What is changed in the candidate is what a user would change: its parameters, else its buffers, and plain attributes
    for what is one number all over, which another seed does not show. That may stand for several parameters of equal
    values, so all of them become the same.
    """
    before = {name: value.clone() for name, value in _values(model).items()}
    redraw(model, seed)
    drawn = _values(model)
    written: dict[str, Copy] = {}
    generator = torch.Generator().manual_seed(seed)
    steps: dict[int, torch.Tensor] = {}
    for name, value in drawn.items():
        if name not in held:
            continue  # by name, as the check writes it
        was, copies = before[name], held[name]
        flat = bool(was.numel()) and bool((was == was.flatten()[0]).all())
        if flat and was.dtype.is_floating_point:
            step = steps.setdefault(was.numel() if was.dim() < 2 else 1, 0.25 + 0.5 * torch.rand(
                was.numel() if was.dim() < 2 else 1, generator=generator))
            value.copy_(was + step.to(was).reshape(was.shape if was.dim() < 2 else (1,) * was.dim()))
        chosen = [c for c in copies if c.kind == "p"] or [c for c in copies if c.kind == "b"] or \
            [c for c in copies if flat]
        if not chosen:
            value.copy_(was)
            continue
        for copy in chosen:
            copy.write(value)
        written[name] = chosen[0]
    return written


def _values(module: nn.Module) -> dict[str, torch.Tensor]:
    """Floating parameters and buffers by name, without their gradients."""
    return {name: value.detach() for name, value in (*module.named_parameters(remove_duplicate=False),
                                                     *module.named_buffers(remove_duplicate=False))
            if value.dtype.is_floating_point and value.numel() and value.layout == torch.strided}


def _order(value: torch.Tensor, tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The order of ``value``'s axes in which ``tensor`` has its elements, or None."""
    if tensor.numel() != value.numel() or not tensor.dtype.is_floating_point or tensor.layout != torch.strided \
            or tensor.device != value.device:
        return None
    places = torch.linspace(0, value.numel() - 1, min(_FEW, value.numel()), dtype=torch.float64).long()
    some = tensor.reshape(-1)[places.to(tensor.device)]
    axes = range(value.dim())
    for order in itertools.permutations(axes) if value.dim() <= _MOST_AXES else (tuple(axes),):
        turned = value.permute(order)
        at = tuple(i.to(value.device) for i in torch.unravel_index(places, turned.shape)) if value.dim() else ()
        if torch.equal(turned[at].reshape(-1).to(tensor.dtype), some) and \
                torch.equal(turned.reshape(-1).to(tensor.dtype), tensor.reshape(-1)):
            return tuple(order)
    return None


def _at(certificate: Certificate) -> str:
    found = _where(certificate)
    if found.get("expected") is None:
        return f": {certificate.why[0].rstrip('.')}"
    return f" (at {list(found['index'])} {found['got']:.6g} instead of {found['expected']:.6g})"


def _where(certificate: Certificate) -> dict[str, Any]:
    """The element that is wrong, of the first trial that fails."""
    outputs = [o for t in certificate.trials if t.gates and t.comparison is not None for o in t.comparison.outputs
               if not o.passed]
    return {"index": outputs[0].worst_index, "expected": outputs[0].expected, "got": outputs[0].got} if outputs else {}
