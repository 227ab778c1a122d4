"""What modes are held against: the trials of a certification, and what float64 said of the model in them, which is
found while compilers run where processors are to spare."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from kernelwright.algebra.rule import Exactness
from kernelwright.capture.batch import batch_independent
from kernelwright.capture.forms import flat
from kernelwright.ir.graph import render
from kernelwright.modes import ModeProgram, distinct
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.kernels import (
    Attention,
    BatchedProduct,
    LoopKernel,
    Recurrence,
    RegionSum,
    Scan,
    SpectralEnergy,
)
from kernelwright.problem import Problem
from kernelwright.problem.arguments import received
from kernelwright.problem.memory import available_memory, release
from kernelwright.problem.state import in_mode_of, taken_into, told_modes
from kernelwright.programs import Stages, model_of, share_large
from kernelwright.roofline.cost import graph_work
from kernelwright.settings import Settings
from kernelwright.timing.baselines import import_compiler
from kernelwright.verify.along.trials import along_trials
from kernelwright.verify.certificate import Plan as Trials
from kernelwright.verify.certificate import default_trials, look_ahead
from kernelwright.verify.distributions import AS_GIVEN
from kernelwright.verify.flatten import flatten, map_paths
from kernelwright.verify.kept import Kept
from kernelwright.verify.modes import RECORDED
from kernelwright.verify.records import Reference, TrialPlan
from kernelwright.verify.state import float64_copy, to_float64
from kernelwright.verify.tolerance import Tolerance

_MANY_OPERATIONS = 10**10  # a second or so in float64 on a few cores
_SHARE_OF_MEMORY = 0.05  # that is free, for what is known of each mode
_EXTREMA = ("amax", "amin", "max_pool", "cummax", "cummin")
_VERIFY_COPIES = 11  # of inputs and outputs that a trial holds at once, float64 counted twice (measured: nearly 10)


class Truths:
    """What float64 said of the model in each mode, for the next program that is held against it."""

    def __init__(self, device: torch.device) -> None:
        free = available_memory(device)
        self.room = 0 if free is None else int(_SHARE_OF_MEMORY * free)
        self.kept: dict[nn.Module, Kept] = {}
        self._found: dict[tuple[str, str], dict[TrialPlan, tuple[Any, Reference]]] = {}  # by computation

    def forget(self) -> None:
        """Let go of all of it, for want of memory."""
        self.kept.clear()
        self._found.clear()

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been asked of it yet."""
        return not self.kept

    def of(self, mode: ModeProgram) -> Kept:
        """What is known of a mode. The model and its float64 copy are made once: they go from mode to mode, where their
        modules do nothing but note in which mode they are. Modes that compute the same have what was found in common.
        """
        kept = self.kept.get(mode.model)
        if kept is None:
            kept = self.kept[mode.model] = Kept(truth_bytes=self.room)
            computation = render(mode.captured), repr(mode.captured.structure)
            kept.truths = self._found.setdefault(computation, kept.truths)
        holder = next((k for k in self.kept.values() if k.model is not None), None)
        if kept.model is None and holder is not None and holder.model is not None:
            if taken_into(holder.model, mode.model):
                kept.take_model(holder)
                if kept.double is not None:
                    in_mode_of(kept.double, mode.model)
            else:  # it is in neither mode as it would be if it were made there
                holder.model = holder.double = None
        return kept


def meanwhile_of(problem: Problem, modes: list[ModeProgram], settings: Settings, stages: Stages, truths: Truths,
                 brief: bool) -> Callable[[Callable[[], bool]], None] | None:
    """What of the rest of a run is done while compilers have their processors: at first what modes are held against is
    found, later the compiler of others is imported."""
    if truths.is_empty:
        return partial(_look_ahead, problem, distinct(modes), settings, stages, truths, brief)
    return (lambda going_on: import_compiler() if going_on() else None) if settings.baselines != "none" else None


def _look_ahead(problem: Problem, modes: Sequence[ModeProgram], settings: Settings, stages: Stages, truths: Truths,
                brief: bool, going_on: Callable[[], bool]) -> None:
    """Find what modes will be held against, as long as ``going_on`` says so. What fails is left to the certificates,
    and so are further modes of a model that does something of its own in one."""
    for mode in modes[:1] if told_modes(modes[0].model) else modes:
        plan = replace(trials_of(problem, mode, settings, stages.budget.share("verify"), brief=brief),
                       recording=mode.recordings == (True,))
        kept = truths.of(mode)
        try:
            look_ahead(lambda mode=mode: share_large(model_of(problem, mode, settings), mode.model),
                       inputs_of(problem, mode, settings), plan, kept, going_on, float64_maker(problem, mode, settings))
        except Exception:
            kept.leave_model()
            release()


def inputs_of(problem: Problem, mode: ModeProgram, settings: Settings,
              make: Callable[[int], list[Any]] | None = None) -> Callable[[int], list[Any]]:
    """What makes a mode's inputs from a seed. Where its forward decides by values of inputs, these are the example's:
    with others the original computation would run, and nothing be tried. make: what makes inputs, where not the problem
    itself does."""
    make = make or problem.make_inputs
    places = {int(place) for text, _ in mode.captured.asked_of_inputs for place in re.findall(r"inputs\[(\d+)\]", text)}
    if not places:
        return make
    example = list(make(settings.seed))
    tensors = [value for value in flat(received(mode.model, example))[0] if isinstance(value, torch.Tensor)]
    chosen = {id(tensors[place]) for place in places}
    fixed = {path: leaf for path, leaf in flatten(example).items() if id(leaf) in chosen}

    def make_inputs(seed: int) -> list[Any]:
        return map_paths(list(make(seed)), lambda path, t: fixed[path].clone() if path in fixed else t)

    return make_inputs


def float64_maker(problem: Problem, mode: ModeProgram, settings: Settings) -> Callable[[nn.Module], nn.Module]:
    """What makes the float64 copy of a mode's model."""
    return float64_copy if problem.is_instance else lambda model: to_float64(model_of(problem, mode, settings))


def trials_of(problem: Problem, mode: ModeProgram, settings: Settings, seconds: float, *, brief: bool = False
              ) -> Trials:
    """What a mode is tried with, and what is asked of it."""
    # Which of Inf and NaN comes of infinite terms depends on the order of a sum, in PyTorch as well: they
    # must stand where eager's stand. Where products were exchanged even that may differ, and so may signs: it is
    # shown. Which of 0.0 and -0.0 is an extremum is the first that was met, and what is divided by it has its sign.
    finite = any(use.rule.exactness is Exactness.FINITE for use in mode.rewriting.applications)
    informative = {"with Inf"} if finite else set()
    signed = not finite and not any(n.op in _EXTREMA for n in mode.captured.nodes())
    adds = any(_adds(s.kernel) for s in mode.plan.kernels)
    if any(isinstance(s.kernel, Scan) and s.kernel.kind == "product" for s in mode.plan.kernels):
        # So it is where a running product leaves the range of its type: zero times infinity.
        informative |= {"with Inf", "large", "scaled", "heavy-tailed", "loud start", "loud end", "loud tile"}
    if any(isinstance(s.kernel, Attention) and s.kernel.causal for s in mode.plan.kernels):
        # What stands in columns that causality hides reaches nothing. PyTorch's kernels multiply some of them by zero,
        # and which these are is a matter of their blocks.
        informative |= {"with Inf", "with NaN"}
    planned = default_trials(settings.seed)[:1 if not mode.plan.kernels else RECORDED if brief else None]
    if mode.plan.kernels and not brief:
        planned = (*planned[:RECORDED], *_of_axes(problem, mode, settings), *planned[RECORDED:])
    if problem.device.type == "cuda" and any(c.is_truth and not c.waited for c in mode.captured.checks):
        # Values that the model refuses end in an assertion on the device, which nothing survives.
        planned = tuple(trial for trial in planned if trial.distribution == AS_GIVEN)
    return Trials(trials=planned, repeats=2 if mode.plan.kernels else 0, unchanged=not mode.plan.kernels,
                  parameters_alone=len(mode.backward) > 1,
                  # Other values and other parameters are tried whatever the budget: the model's own hide faults.
                  required=2, budget_seconds=seconds,
                  tolerance=Tolerance(nonfinite="sign" if signed else "position",
                                      zeros="any" if not signed else "sums" if adds else "sign"),
                  informative=frozenset(informative),
                  # Where float64 is slow or does not fit, a few batch entries stand for all, if they are independent:
                  # lengths of all of them may decide.
                  sample_axis0=_float64_is_dear(mode, problem.device) and batch_independent(mode.captured)
                  and not mode.captured.asked_of_inputs)


def _adds(kernel: Any) -> bool:
    """Whether a kernel sums in an order of its own: a sum whose terms vanish has the sign of whichever was added last,
    and one that its type rounds to zero (statistics of a norm in 16 bits) that of its rounding."""
    if isinstance(kernel, LoopKernel):
        return any(reduction.kind in ("sum", "moments") for reduction in kernel.reductions)
    return isinstance(kernel, (Contraction, Attention, BatchedProduct, RegionSum, SpectralEnergy)) or (
        isinstance(kernel, Recurrence) and bool(kernel.weights))


def _of_axes(problem: Problem, mode: ModeProgram, settings: Settings) -> tuple[TrialPlan, ...]:
    """Trials for what a mode does along an axis; none where these cannot be found, which costs nobody a file."""
    with suppress(Exception):
        return along_trials(mode.captured, mode.model, problem.make_inputs(settings.seed), settings.seed)
    return ()


def _float64_is_dear(mode: ModeProgram, device: torch.device) -> bool:
    """Whether float64 on whole inputs would take seconds (CPU) or more memory than the device has (CUDA)."""
    if device.type == "cpu":
        return graph_work(mode.captured.roots()).operations > _MANY_OPERATIONS
    held = sum(node.bytes for node in (*mode.captured.inputs, *mode.captured.outputs) if node is not None)
    return _VERIFY_COPIES * held > torch.cuda.get_device_properties(device).total_memory
