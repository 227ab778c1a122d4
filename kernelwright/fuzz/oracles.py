"""The checks of one model: its graph against the model, each stage's graph against the one before, its kernels
against the certificate, and its ModelNew against eager."""

from __future__ import annotations

import copy
import hashlib
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelwright.algebra.engine import rewrite, rewrite_with
from kernelwright.algebra.filled import of_numbers
from kernelwright.algebra.rule import Context, Exactness
from kernelwright.build.module import load_text
from kernelwright.capture.export import NotCapturable, capture
from kernelwright.codegen.generate import TARGETS, has_skeleton
from kernelwright.codegen.reference.plan import filled, run_plan, values_of
from kernelwright.errors import KernelwrightError, VerificationFailed
from kernelwright.fuzz.alike import SETTINGS, observe
from kernelwright.fuzz.gradients import wrong_gradients
from kernelwright.fuzz.judge import ROUNDING, Disagreement, disagreement, evaluated, narrowest, roots_of
from kernelwright.fuzz.product import Made, make, row_of
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import walk
from kernelwright.modes import RECORDED
from kernelwright.pipeline import explain
from kernelwright.plan.contraction.products import NARROW_TYPES, can_contract
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.kernels import Attention
from kernelwright.plan.layouts.channels_last import can_be_channels_last
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelConfig, Plan
from kernelwright.problem import load_problem
from kernelwright.problem.seeds import seed_generators
from kernelwright.programs import new_model
from kernelwright.records import Mode
from kernelwright.result import Result
from kernelwright.roofline.devices import Device
from kernelwright.settings import HOST_TARGET, settings_of
from kernelwright.verify.certificate import Plan as Trials
from kernelwright.verify.certificate import certify, default_trials
from kernelwright.verify.distributions import DISTRIBUTIONS
from kernelwright.verify.drawn import inputs_of, set_parameters
from kernelwright.verify.flatten import flatten
from kernelwright.verify.records import TrialPlan
from kernelwright.verify.state import OwnTypes, State, call_in_float64, float64_copy, own_types, redraw, widened
from kernelwright.verify.tolerance import Tolerance

LEVELS = ("graph", "kernels", "text", "eager")
#: Kinds of a trial's problems that say of eager that it is not the model in float64: whatever the reason, the product
#: leaves such a mode to PyTorch. What the kernels are without that measure, their own graph says.
_OF_EAGER = frozenset(("separate", "other-computation"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one model.

    status: "clean"; "refused" (the model itself does not run, or a coded error says what we do not take);
        "unclear" (a difference that rounding may explain); "wrong".
    stage: where it came to light. kind: what it was: a class of exception, or a word such as "value". Failures with
        equal stage and kind count as the same. text: a digest of the emitted file, where one was made.
    """

    status: str
    stage: str = ""
    kind: str = ""
    message: str = ""
    notes: tuple[str, ...] = ()
    text: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class _Wrong(Exception):
    def __init__(self, stage: str, message: str, *, status: str = "wrong", kind: str = "value") -> None:
        super().__init__(message)
        self.outcome = Outcome(status, stage, kind, message)


class _Stage:
    """Turns an exception of a stage into an outcome that names it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, (_Wrong, NotCapturable)):
            refused = isinstance(error, KernelwrightError) and not isinstance(error, VerificationFailed)
            where = traceback.extract_tb(error.__traceback__)[-1]
            code = getattr(error, "code", "")
            message = f"{type(error).__name__}: {str(error)[:600]} ({Path(where.filename).name}:{where.lineno})"
            raise _Wrong(self.name, message, status="refused" if refused else "wrong",
                         kind=code or type(error).__name__) from error


def check(text: str, level: str = "graph", target: str = HOST_TARGET, seed: int = 0) -> Outcome:
    """Judge the model of a problem file's text. ``level``: one of :data:`LEVELS`; "text" only emits the file, "eager"
    only calls the model as it is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if level == "eager":
                call_eager(text, seed)
                return Outcome("clean")
            if level == "graph":
                return Outcome("clean", notes=tuple(check_graph(text, target, seed)))
            return check_kernels(text, target, seed, run=level == "kernels")
    except _Wrong as found:
        return found.outcome
    finally:
        seed_generators(0)


# Graph -------------------------------------------------------------------------------------------


def check_graph(text: str, target: str, seed: int) -> Iterator[str]:
    """Capture, rewrite and plan both modes and evaluate each in float64; yields notes. Raises _Wrong."""
    with _Stage("model"), tempfile.TemporaryDirectory(prefix="kernelwright_fuzz_") as folder:
        path = Path(folder) / "random_model.py"
        path.write_text(text, encoding="utf-8")
        problem = load_problem(path, device="cpu")
    for training in (True, False):
        try:
            inputs = problem.make_inputs(seed)
            model = problem.make_model(seed).train(training)
            redraw(model, seed)
            seed_generators(0)
            with torch.no_grad():
                copy.deepcopy(model)(*copy.deepcopy(inputs))
        except Exception as error:
            raise _Wrong("model", f"{type(error).__name__}: {error}", status="refused",
                         kind=type(error).__name__) from error
        name = "training" if training else "inference"
        try:
            with _Stage("capture"):
                graph = capture(model, inputs)
        except NotCapturable as reason:
            yield f"{name} mode is not captured: {reason}"
            continue
        narrow = "float16" in text or "bfloat16" in text or ".float()" in text
        # A library pads 16-bit operands with zeros, by which neighbours are multiplied that have no part in a sum.
        padded = any(n.kind == "linear" and n.dtype in NARROW_TYPES for n in graph.nodes())
        with _Stage("capture"):
            try:
                _captured_is_the_model(model, graph, inputs, narrow)
            except _Wrong as found:
                # It stores some 16-bit results in another order than it says, and others nowhere.
                if padded and _is_the_model_in_float64(model, graph, inputs):
                    raise _Wrong("capture", found.outcome.message, status="unclear",
                                 kind=found.outcome.kind) from found
                raise
        if not padded:
            with suppress(RuntimeError):  # a loss may refuse NaN
                _captured_is_the_model(model, graph, DISTRIBUTIONS["with NaN"].apply(inputs, seed), narrow)
        _stages_agree(model, graph, inputs, target, seed)
        if training:
            with _Stage("backward"):
                wrong = wrong_gradients(model, inputs, _places(graph), row_of(target))
            if wrong:
                raise _Wrong("backward", wrong)


def _is_the_model_in_float64(model: nn.Module, graph: Graph, inputs: list[Any]) -> bool:
    """Whether a graph that gives something else than eager in the model's own types is right nevertheless: the product
    leaves such a mode to PyTorch."""
    try:
        _captured_is_the_model(model, graph, inputs, narrow=False)
    except _Wrong:
        return False
    return True


def _captured_is_the_model(model: nn.Module, graph: Graph, inputs: list[Any], narrow: bool) -> None:
    """The captured graph's results and buffers are the model's: in float64, or in the model's own narrow types."""
    double = float64_copy(model) if not narrow else copy.deepcopy(model)
    arguments = widened(inputs) if not narrow else copy.deepcopy(inputs)
    with torch.no_grad():
        own = OwnTypes() if narrow else own_types(lambda: copy.deepcopy(model)(*copy.deepcopy(inputs)))[1]
        seed_generators(0)
        wanted = double(*arguments) if narrow else call_in_float64(double, arguments, own=own)
    values = values_of(model, graph, inputs)
    noise = narrowest(graph) if narrow else 1e-7  # some constants are rounded to float32 in a model
    expected = evaluated(graph, values)
    given = _places(graph)
    results = {path: leaf for path, leaf in flatten(wanted, "output").items() if isinstance(leaf, torch.Tensor)}
    if list(given) != list(results):
        raise _Wrong("capture", f"the model returns {list(results)}, its graph {list(given)}", kind="structure")
    found = list(expected)
    for path, index in given.items():
        found[index] = results[path]
        dtype = str(results[path].dtype).removeprefix("torch.")
        if narrow and dtype != graph.outputs[index].dtype:
            raise _Wrong("capture", f"{path} is {dtype}, in the graph {graph.outputs[index].dtype}", kind="type")
    after = dict(double.named_buffers(remove_duplicate=False))
    for number, effect in enumerate(graph.effects, len(graph.outputs)):
        found[number] = after[effect.name]
    if wrong := disagreement(found, graph, values, expected, noise):
        raise _Wrong("capture", str(wrong), kind=wrong.kind)
    changed = {n for n, b in double.named_buffers() if b.is_floating_point()
               and not torch.equal(b, dict(model.named_buffers())[n].to(b.dtype))}
    calls = any(n.op == "opaque" and "instance_norm" in n["target"] for n in graph.nodes())  # it updates its own
    if not calls and (missed := changed - {e.name for e in graph.effects} - _tied(model)):
        raise _Wrong("capture", f"the model updates {sorted(missed)}, its graph does not", kind="state")


def _places(graph: Graph) -> dict[str, int]:
    """The numbers of a graph's results by path; what is no tensor is left out."""
    numbers = [torch.tensor(number) for number in range(len(graph.outputs))]
    return {path: int(leaf) for path, leaf in flatten(filled(graph.structure, numbers), "output").items()
            if isinstance(leaf, torch.Tensor)}


def _tied(model: nn.Module) -> set[str]:
    once = {n for n, _ in model.named_buffers()}
    return {n for n, _ in model.named_buffers(remove_duplicate=False)} - once


def _stages_agree(model: nn.Module, graph: Graph, inputs: list[Any], target: str, seed: int) -> None:
    device = row_of(target)
    with _Stage("rewrite"):
        chosen = rewrite(graph, device)
        variants = [("", chosen.graph, chosen.applications)]
        anchors = Context(frozenset(id(n.origin) for n in walk(roots_of(graph))))
        everything, applications = rewrite_with(graph, anchors)
        if roots_of(everything) != roots_of(chosen.graph):
            variants.append((" (every rule allowed)", everything, applications))
    for trial, given in (("", inputs), (" with NaN in the inputs", DISTRIBUTIONS["with NaN"].apply(inputs, seed))):
        values = values_of(model, graph, given)
        try:
            expected = evaluated(graph, values)
        except RuntimeError:
            if trial:  # a loss may refuse NaN
                continue
            raise
        for words, rewritten, applied in variants:
            trade = any(a.rule.exactness is Exactness.FINITE for a in applied)
            rules = ", ".join(dict.fromkeys(a.rule.name for a in applied)) or "none"
            # Arithmetic of numbers alone is done in the model's types, everything else of a rewriting in float64.
            folded = any(a.rule is of_numbers for a in applied)
            with _Stage("rewrite"):
                wrong = disagreement(evaluated(rewritten, values), graph, values, expected,
                                     narrowest(graph) if folded else ROUNDING["float64"], trade=trade)
            if wrong:
                raise _Wrong("rewrite", f"{wrong}{words}{trial}; rules: {rules}", kind=wrong.kind)
            # Plans round constants and casts to the types of their kernels.
            for plan, which in _plans(rewritten, graph, target, device):
                if trial and any(isinstance(s.kernel, Attention) and s.kernel.causal for s in plan.kernels):
                    continue  # what is hidden reaches nothing: no zero is multiplied by NaN
                with _Stage("plan"):
                    seed_generators(0)
                    with torch.no_grad():
                        results, buffers = run_plan(plan, values)
                    wrong = disagreement([*results, *(buffers[e.name] for e in graph.effects)], graph, values,
                                         expected, narrowest(graph), trade=trade)
                if wrong:
                    raise _Wrong("plan", f"{wrong}{words}{which}{trial}; rules: {rules}", kind=wrong.kind)


def _plans(graph: Graph, captured: Graph, target: str, device: Device) -> Iterator[tuple[Plan, str]]:
    """The plan of a graph, and one as tuning makes them, with operators left to PyTorch and convolutions channels-last;
    where the target has such kernels the one with every contraction as a kernel, too."""
    with _Stage("plan"):
        plan = make_plan(graph, captured, move_bias=device.adds_bias_apart, fused_products=device.fused_products)
    yield plan, ""
    operators = [n for n in graph.nodes() if n.kind not in ("leaf", "view") and n.op not in ("constant", "literal")]
    last = frozenset(n for n in operators if can_be_channels_last(n))
    with _Stage("plan"):
        plan = make_plan(graph, captured, dict.fromkeys(operators[::3], "asked"), move_bias=True, channels_last=last)
    yield plan, " (every third operator kept)"
    chosen = {n: KernelConfig("fp16x3" if n.dtype == "float32" else "native") for n in graph.nodes() if can_contract(n)}
    if has_skeleton(Contraction, target) and chosen:
        with _Stage("plan"):
            plan = make_plan(graph, captured, move_bias=True, contractions=chosen)
        yield plan, " (every contraction as a kernel)"
        chosen = {n: replace(c, recompute=c) for n, c in chosen.items()}
        with _Stage("plan"):
            plan = make_plan(graph, captured, move_bias=True, contractions=chosen)
        if any(s.pass_number for s in plan.kernels):
            yield plan, " (contractions recomputed)"


# Kernels -----------------------------------------------------------------------------------------


def check_kernels(text: str, target: str, seed: int, *, run: bool) -> Outcome:
    """Emit the file and, with ``run``, take the model through the product and hold its ModelNew against eager. Raises
    _Wrong."""
    with tempfile.TemporaryDirectory(prefix="kernelwright_fuzz_") as folder:
        path = Path(folder) / "random_model.py"
        path.write_text(text)
        with _Stage("emit"):
            result = explain(path, settings=settings_of(target=target), device=row_of(target))
        digest = hashlib.sha256(result.source.encode()).hexdigest()
        notes = tuple(n for n in result.notes if "mode stays" in n)
        if not run:
            return Outcome("clean", notes=notes, text=digest)
        with _Stage("product"):
            made = make(path, target)
        with _Stage("compare"):
            # In which order a GPU's libraries store, nobody knows here.
            found = [d for d in made.all_differences(seed) if TARGETS[target].on_host or d.kind != "strides"]
        if found:
            raise _Wrong("compare", f"{found[0]} ({len(found)} differences)", kind=found[0].kind)
        if made.given_up or TARGETS[target].emulated:
            notes += _all_certified(path, result, target, seed, made)
        if made.given_up:
            raise _Wrong("verify", made.given_up[0], status="unclear")
    return Outcome("clean", notes=notes, text=digest)


def call_eager(text: str, seed: int) -> None:
    """Make the calls of eager that :func:`check_kernels` compares with. Raises nothing that the model does."""
    with tempfile.TemporaryDirectory(prefix="kernelwright_fuzz_") as folder:
        path = Path(folder) / "random_model.py"
        path.write_text(text)
        with _Stage("load"):
            problem = load_problem(path, device="cpu")
            for setting in SETTINGS:
                observe(problem.make_model(seed).train(setting.training), problem.make_inputs(seed), setting, seed)


def _all_certified(path: Path, result: Result, target: str, seed: int, made: Made) -> tuple[str, ...]:
    """Certify each mode of calls without gradients that has kernels, as it was first planned; notes. Raises _Wrong,
    which tells rounding from faults."""
    with _Stage("build"):
        emitted = made.emitted if TARGETS[target].emulated else load_text(result.source, "random_model")
    problem = load_problem(path, device="cpu")
    notes: tuple[str, ...] = ()
    for mode in result.modes:
        if mode.kernels and RECORDED not in mode.name:
            with _Stage("verify"):
                notes += _certified(problem, emitted, mode, result, seed)
    return notes


def _certified(problem: Any, emitted: Any, mode: Mode, result: Result, seed: int) -> tuple[str, ...]:
    training = mode.name.startswith("training")

    def make_model() -> nn.Module:
        return problem.make_model(seed).train(training)

    def make_candidate() -> nn.Module:
        return new_model(emitted, problem, seed).train(training)

    finite = any(use.exactness == str(Exactness.FINITE) for use in mode.rules)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # As first planned results lie in memory as a trace has them, and not yet as a call of eager.
        certificate = certify(make_model, make_candidate, problem.make_inputs, plan=Trials(
            trials=_trials(seed), budget_seconds=20.0, repeats=1, tolerance=Tolerance(nonfinite="position"),
            lenient=frozenset({"strides", "alias-missing"}), informative=frozenset(
                {"with Inf", "with NaN"} if any("causal" in k.meaning for k in mode.kernels) else
                {"with Inf"} if finite else ())))
    unused = tuple({str(w.message)[:160] for w in caught if "runs the original" in str(w.message)})
    if certificate.passed:
        return unused
    failing = [t for t in certificate.trials if t.gates and not t.passed]
    for trial in failing:
        if set(trial.kinds) - _OF_EAGER or trial.comparison is None:
            raise _Wrong("verify", certificate.sentence(), kind="behaviour")
        inputs = inputs_of(trial.plan, problem.make_inputs)
        model, candidate = make_model(), make_candidate()
        set_parameters(model, trial.plan)
        State.of(model).apply(candidate)
        if wrong := _unexplained(model, candidate, inputs, finite):
            raise _Wrong("verify", f"{wrong}. {certificate.sentence()}", kind=wrong.kind)
    if not failing:
        nothing = bool(certificate.skipped) and not certificate.trials
        raise _Wrong("verify", certificate.sentence(), kind="behaviour", status="refused" if nothing else "wrong")
    raise _Wrong("verify", certificate.sentence(), status="unclear")


def _trials(seed: int) -> tuple[TrialPlan, ...]:
    """The trials that tell most, and two of the others in turn."""
    first, rest = default_trials(seed)[:6], default_trials(seed)[6:]
    return (*first, rest[seed % len(rest)], rest[seed // len(rest) % len(rest)])


def _unexplained(model: nn.Module, candidate: nn.Module, inputs: list[Any], finite: bool) -> Disagreement | None:
    """What rounding does not explain of the difference between a candidate and its model."""
    graph = capture(model, inputs)
    noise = narrowest(graph)
    values = values_of(model, graph, inputs)
    expected = evaluated(graph, values)
    results = []
    for module in (candidate, copy.deepcopy(model)):
        seed_generators(0)
        with torch.no_grad():
            results.append(flatten(module(*copy.deepcopy(inputs)), "output"))
    outputs, eager = results
    found = list(expected)
    for path, index in _places(graph).items():
        shapes = [tuple(tensor.shape) for tensor in (outputs[path], eager[path], expected[index])]
        if len(set(shapes)) > 1:
            own, theirs, captured = shapes
            return Disagreement("shape", f"{path} has shape {own}, in eager {theirs}, in its graph {captured}")
        # Where the model itself overflows, any order of its operations may overflow elsewhere; and what eager gives is
        # right, also where it is what its type made of a value on the way.
        overflows = bool((eager[path].isfinite() != expected[index].isfinite()).any())
        own, theirs, right = (t.detach().double() for t in (outputs[path], eager[path], expected[index]))
        alike = torch.isclose(own, theirs, rtol=10 * noise, atol=0.0, equal_nan=True)
        found[index] = expected[index] if overflows else torch.where(alike, right, own)
    after = dict(candidate.named_buffers(remove_duplicate=False))
    for number, effect in enumerate(graph.effects, len(graph.outputs)):
        found[number] = after[effect.name]
    return disagreement(found, graph, values, expected, noise, trade=finite)
