"""One candidate, from its text to a verdict: read, built, checked, and where it is wrong, explained."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import torch

from kernelwright.errors import KernelwrightError
from kernelwright.judge.check import problem_profile
from kernelwright.judge.check.builds import attach, prebuild
from kernelwright.judge.check.by_rules import disputed, judged_by, not_tried
from kernelwright.judge.check.constants import otherwise_made
from kernelwright.judge.check.emulated.run import Emulation, emulate, needs_device
from kernelwright.judge.check.forgotten import find_forgotten
from kernelwright.judge.check.narrower import on_triangular, told_apart
from kernelwright.judge.check.own_share import measure_own_share, unlaunched
from kernelwright.judge.check.own_state import OwnState, buffers_by_other_names, follow, own_state
from kernelwright.judge.check.precision import FLOAT32, any_precision, loses_range, precision_class
from kernelwright.judge.check.reasons import TELLING, find_folded, is_to_be_studied, knows_lacked, of_parameters
from kernelwright.judge.check.refusals import failed, ghost, never_launched, raised, refused, repeats_memory
from kernelwright.judge.check.sanitized import is_wanted, with_sanitizer
from kernelwright.judge.check.truth import INFORMATIVE, LENIENT, float64_is_right, limits_of, other_computation
from kernelwright.judge.check.variants import check_variants, variants
from kernelwright.judge.diagnose.evidence import collect, on_other_inputs, says_little
from kernelwright.judge.diagnose.hypotheses import find_hypotheses
from kernelwright.judge.diagnose.misfit import find_misfit
from kernelwright.judge.diagnose.patterns import find_patterns
from kernelwright.judge.diagnose.words import (
    OF_VALUES,
    classify,
    failing_trial,
    merge,
    not_repeatable,
    reason,
    says_parameters,
    weight,
)
from kernelwright.judge.efforts import BUDGETS, Budget, Deadline, Seconds
from kernelwright.judge.reading import certain, read_candidate
from kernelwright.judge.records import CandidateResult, Finding, TriedShape, plain_allclose
from kernelwright.judge.sandbox.limits import Limits
from kernelwright.judge.settings import JudgeSettings
from kernelwright.judge.verdicts import VERDICTS
from kernelwright.judge.worker.handover import NotHandedOver
from kernelwright.judge.worker.process import Worker, WorkerFailure
from kernelwright.judge.worker.remote import CandidateRaised, RemoteCandidate
from kernelwright.problem import Problem
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.problem.state import in_mode_of
from kernelwright.verify.certificate import Certificate, Plan, certify
from kernelwright.verify.distributions import AS_GIVEN
from kernelwright.verify.drawn import inputs_of, set_parameters
from kernelwright.verify.flatten import tensors_of
from kernelwright.verify.kept import Kept
from kernelwright.verify.observe import call, first_line
from kernelwright.verify.records import TrialPlan
from kernelwright.verify.state import float64_copy, to_float64
from kernelwright.verify.tolerance import Tolerance


@dataclass(frozen=True, slots=True)
class _Made:
    """What is known of a candidate once it is constructed: whether its constructor makes other fixed values (in words,
    see `otherwise_made`), and how its state differs from the model's. ``more``: another limit. ``names``: those of the
    model's buffers, by the paths of what it has in their place. ``folded``: see `find_folded`."""

    otherwise: str
    misfit: Finding | None
    own: OwnState | None
    more: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    folded: Finding | None = None

    @property
    def limits(self) -> tuple[str, ...]:
        """What limits a candidate that is right, in words."""
        return self.otherwise, self.own.limit() if self.own is not None else "", self.more


@dataclass(frozen=True, slots=True)
class Checker:
    """What is the same for all candidates of a run."""

    problem: Problem
    profile: problem_profile.ProblemProfile
    settings: JudgeSettings
    limits: Limits
    budget: Budget
    #: The model's side of all checks.
    kept: Kept = field(default_factory=Kept)
    #: What the model's constructor makes the same whatever the seed, see `fixed_state`.
    fixed: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.profile.stateful:  # results of a model whose calls change it are no one else's
            self.kept.most_bytes = 0
            self.kept.forget()

    def check(self, path: Path) -> tuple[CandidateResult, Worker | None]:
        """The verdict on one file, without times; and its process, if it passed and is to be timed, which the caller
        closes. Nothing that a candidate does is raised."""
        found, worker = self._check(path)
        if not found.by_rules:
            found = replace(found, by_rules=tuple(not_tried(r, found.verdict) for r in self.settings.other_rules))
        return found, worker

    def _check(self, path: Path) -> tuple[CandidateResult, Worker | None]:
        seconds = Seconds()
        result = CandidateResult(str(path), "JUDGE-ERROR", "")
        text = path.read_text(encoding="utf-8-sig", errors="replace")
        decided = certain(text)
        if decided is not None:
            verdict, finding = decided
            return replace(result, verdict=verdict, reason=finding.sentence, fix=finding.fix, findings=(finding,)), None
        result = replace(result, findings=tuple(read_candidate(text, self.problem.source)))
        emulation = None
        try:
            if self.problem.device.type == "cpu" and needs_device(text):
                emulation = seconds.during("build", lambda: emulate(path, text, self.limits))
                if emulation.verdict is not None and emulation.finding is not None:
                    found = refused(result, emulation.verdict, emulation.finding)
                    return replace(found, seconds=seconds.by_stage), None
            libraries = {} if emulation is not None else seconds.during(
                "build", lambda: prebuild(path, text, self.problem.device, self.limits))
            worker = seconds.during("build", lambda: self._started(path, libraries))
        except WorkerFailure as failure:
            return replace(failed(result, failure, text), seconds=seconds.by_stage), None
        keep = False
        try:
            found = self._run(replace(result, isolation=worker.isolation), worker, text, seconds, emulation)
            if emulation is not None and found.verdict == "CRASH-TIMEOUT":  # says nothing about a GPU
                found = replace(found, verdict="JUDGE-NO-DEVICE", reason="Its CUDA kernels take too long by emulation "
                                "on the CPU, and there is no GPU here.",
                                fix="Judge it where there is a GPU, or with --tiny.")
            if emulation is None and is_wanted(found, self.settings, self.problem.device):
                found = seconds.during("sanitize", lambda: with_sanitizer(
                    found, path, text, self.problem, self.profile.seed, self.profile.training, libraries, self.limits,
                    self.settings, self.budget.sanitize))
            if self.settings.other_rules and VERDICTS[found.verdict].family not in ("BUILD", "JUDGE"):
                found = seconds.during("rules", lambda: self._with_other_rules(
                    found, path, worker, emulation, libraries))
            keep = self.settings.time and VERDICTS[found.verdict].passed and emulation is None
        except KernelwrightError as error:  # the problem's own fault, or this machine's: nobody else's
            found = replace(result, reason=f"The judge could not go on: {error}")
        finally:
            if not keep or worker.failure is not None:
                worker.close()
        kept = worker if keep else None
        if kept is not None:
            with contextlib.suppress(WorkerFailure):
                kept.rest()
        if kept is not None and kept.failure is not None:  # a variant that only limits it has ended its process
            kept = seconds.during("build", lambda: self._again(path, libraries))
        return replace(found, seconds=seconds.by_stage), kept

    def _with_other_rules(self, found: CandidateResult, path: Path, worker: Worker, emulation: Emulation | None,
                          libraries: Mapping[str, Path]) -> CandidateResult:
        """``found`` with what the rules of others say; in the candidate's process, or in another where it has ended.
        The instance that was checked is constructed anew."""
        own, loaded = worker, worker.failure is None

        def construct(seed: int, dtype: torch.dtype | None) -> RemoteCandidate:
            nonlocal own, loaded
            if own.failure is not None:
                if own is not worker:
                    own.close()
                own, loaded = self._started(path, libraries), False
                if emulation is not None:
                    emulation.attach(own)
            load, loaded = not loaded, True
            return RemoteCandidate(own, self.problem, seed, self.profile.training, load=load, dtype=dtype)

        try:
            by_rules = tuple(judged_by(rules, self.problem, construct, self.profile.seed)
                             for rules in self.settings.other_rules)
        finally:
            if own is not worker:
                own.close()
        if worker.failure is None:
            with contextlib.suppress(CandidateRaised, WorkerFailure):
                self._instance(worker, self.profile.seed)
        return disputed(replace(found, by_rules=by_rules))

    def _started(self, path: Path, libraries: Mapping[str, Path]) -> Worker:
        """A process for the candidate, which has its libraries. Raises WorkerFailure."""
        worker = Worker(path, self.problem.device, self.limits)
        try:
            attach(libraries, worker)
        except BaseException:
            worker.close()
            raise
        return worker

    def _again(self, path: Path, libraries: Mapping[str, Path]) -> Worker | None:
        """A new process with the constructed candidate; None where that fails now."""
        try:
            worker = self._started(path, libraries)
        except WorkerFailure:
            return None
        try:
            RemoteCandidate(worker, self.problem, self.profile.seed, self.profile.training)
        except Exception as error:
            worker.close()
            if not isinstance(error, (CandidateRaised, WorkerFailure)) and not is_out_of_memory(error):
                raise
            return None
        return worker

    def _run(self, result: CandidateResult, worker: Worker, text: str, seconds: Seconds, emulation: Emulation | None
             ) -> CandidateResult:
        """Build and check in the candidate's process."""
        try:
            if emulation is not None:
                emulation.attach(worker)
            training = self.profile.training
            remote = seconds.during("build", lambda: RemoteCandidate(
                worker, self.problem, self.profile.seed, training))
            model = self._make_model()
            misfit = find_misfit(model, remote, self.problem.source)
            own = own_state(model, remote, misfit, self.fixed)
            # Then its results are not those of other parameters.
            if misfit is not None and ((own is not None and own.holds) or knows_lacked(misfit, self.fixed)):
                misfit = replace(misfit, evidence={**misfit.evidence, "held": True})
            made = _Made(otherwise_made(self.fixed, remote), misfit, own, folded=find_folded(model, remote),
                         names=buffers_by_other_names(model, remote, own) if own is not None else {})
            remote.link.mirror.show_buffers_as(made.names)  # what calls make of them is held against the model's
            del model
            certificate = seconds.during("check", lambda: told_apart(
                lambda plan, begun: self._certified(remote, plan, begun), self._plan(),
                self._certified(remote, self._plan())))
            if worker.failure is not None:
                return replace(failed(result, worker.failure, text), certificate=certificate)
            result = replace(result, certificate=certificate, allclose=plain_allclose(certificate),
                             precision=precision_class(certificate) if certificate.passed else None)
            if remote.raised is not None and not _ran(certificate):
                return raised(result, remote.raised, text, worker.printed())
            found = self._judged(result, remote, certificate, seconds, made)
            if emulation is None or not VERDICTS[found.verdict].passed:
                return found if self.settings.time else self._with_own_kernels(found, worker)
            limits = (f"not run on a GPU and not timed: {emulation.words}", *found.limits)
            return replace(found, verdict="OK-BUT", limits=limits, reason=_joined(limits))
        except CandidateRaised as error:
            return raised(result, error, text, worker.printed())
        except WorkerFailure as failure:
            return failed(result, failure, text)
        except NotHandedOver as error:
            return replace(result, reason=f"The judge could not go on: {error}.")
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            why = f"The device's memory does not suffice: {first_line(error)[:200]}"
            return replace(result, verdict="CRASH-MEMORY", reason=why,
                           fix="Allocate less, or free what is not needed between calls.")

    def _with_own_kernels(self, result: CandidateResult, worker: Worker) -> CandidateResult:
        """``result``, refused where own kernels are asked for and do nothing. With a clock, that is seen beside it."""
        if not self.settings.own_kernels or not VERDICTS[result.verdict].passed or worker.failure is not None:
            return result
        share = measure_own_share(worker, self.problem)
        return ghost(result, share.words) if share is not None and share.is_ghost else result

    def control(self, worker: Worker) -> str:
        """Check the model itself in a candidate's place: words where it does not pass.

        So a baseline has been through what candidates have been through: calls leave traces in a process's memory, by
        which later ones are faster. Raises what a RemoteCandidate raises.
        """
        remote = RemoteCandidate(worker, self.problem, self.profile.seed, self.profile.training)
        found = self._certified(remote, replace(
            self._plan(), budget_seconds=min(2.0, self.budget.check), stop_at_failure=True))
        return "" if found.passed else f"The model in a process of its own does not pass its own check: {found.why[0]}"

    def _plan(self) -> Plan:
        return Plan(trials=problem_profile.trials(self.profile), required=problem_profile.required(self.profile),
                    wanted=problem_profile.wanted(self.profile), budget_seconds=self.budget.check,
                    tolerance=Tolerance(nonfinite="sign"), lenient=LENIENT,
                    informative=INFORMATIVE, check_gradients=self.settings.backward,
                    stop_at_failure=not self.budget.diagnose, must_fit=True, require_state=False)

    def _make_model(self) -> torch.nn.Module:
        return self.problem.make_model(self.profile.seed)

    def _make_float64(self, model: torch.nn.Module) -> torch.nn.Module:
        if self.problem.is_instance:
            return float64_copy(model)
        return to_float64(in_mode_of(self.problem.make_model(self.profile.seed), model))

    def _certified(self, remote: RemoteCandidate, plan: Plan, begun: Certificate | None = None) -> Certificate:
        return certify(self._make_model, lambda: remote, self.problem.make_inputs, plan=plan,
                       make_float64=self._make_float64, kept=self.kept, begun=begun)

    def _judged(self, result: CandidateResult, remote: RemoteCandidate, certificate: Certificate, seconds: Seconds,
                made: _Made) -> CandidateResult:
        """What the check's outcome means."""
        certified = lambda plan, begun: self._certified(remote, plan, begun)  # noqa: E731
        if not certificate.passed and not remote.launch_errors and (narrower := seconds.during(
                "check", lambda: on_triangular(certified, self._plan(), self.problem, self.profile.seed, certificate))
                ) is not None:
            certificate, limit = narrower
            result = replace(result, certificate=certificate, allclose=plain_allclose(certificate),
                             precision=precision_class(certificate))
            made = replace(made, more=limit)
        if not certificate.passed:
            if remote.launch_errors:
                return never_launched(result, remote.launch_errors)
            deadline = Deadline(self.settings.diagnose_budget)
            findings = seconds.during("diagnose", lambda: self._findings(
                certificate, remote, made.misfit, deadline, self.budget.diagnose))
            result = replace(result, untried=_joined(tuple(deadline.untried)))
            never = self._never_ran(remote.link.worker, findings)
            if never is not None:
                return replace(refused(result, "CRASH-LAUNCH", never), findings=(never, *findings, *result.findings))
            verdict = classify(certificate, findings)
            if not self.budget.diagnose and self.settings.precision != "any" and is_to_be_studied(verdict, certificate):
                findings = seconds.during("diagnose", lambda: self._findings(
                    certificate, remote, made.misfit, deadline, BUDGETS[self.settings.effort].diagnose))
                verdict = classify(certificate, findings)
            studied = self.budget.diagnose > 0 and not deadline.untried
            if self.settings.precision == "any" and (
                    verdict == "WRONG-PRECISION" or (not studied and verdict in OF_VALUES)):
                fewer = seconds.during("check", lambda: self._in_fewer_digits(remote, precision_class(certificate)))
                if fewer is not None and not studied:  # a small fault is within what fewer digits may do, too
                    findings = seconds.during("diagnose", lambda: self._findings(
                        certificate, remote, made.misfit, Deadline(None), BUDGETS[self.settings.effort].diagnose))
                    verdict, result = classify(certificate, findings), replace(result, untried="")
                if fewer is not None and verdict == "WRONG-PRECISION":
                    again, limit = fewer
                    shown = precision_class(certificate) or precision_class(again)
                    return self._right(replace(result, certificate=again, precision=shown), remote, seconds,
                                       replace(made, more=limit))
            verdict = of_parameters(verdict, certificate, self._make_model(), remote, made.misfit, made.folded,
                                    findings)
            sentence, fix = reason(verdict, certificate, findings, result.findings)
            return replace(result, verdict=verdict, reason=sentence, fix=fix, findings=(*findings, *result.findings))
        if remote.ever_late:
            return refused(result, "CHEAT-ASYNC", Finding(
                "late-outputs", "Outputs still changed after forward had returned: work goes on where nobody waits for "
                "it.", fix="Launch on the current stream, or join every stream and thread before returning."))
        if remote.launch_errors:
            return never_launched(result, remote.launch_errors)
        if (repeated := repeats_memory(certificate)) is not None:
            return refused(result, "WRONG-ALIAS", repeated)
        if self.profile.is_trivial:
            why = " and ".join(self.profile.trivial)
            return replace(result, verdict="PROBLEM-TRIVIAL", reason=f"Nothing can be said of this candidate: {why} "
                           f"would pass as well, in all of {self.profile.rests_on}.",
                           fix="Judge it on a problem whose output depends on its input.")
        if self.settings.precision == "strict" and result.precision not in (FLOAT32, None):
            return refused(result, "WRONG-PRECISION", Finding(
                "precision", f"It computes in {result.precision}, and the policy is strict: float32.",
                fix="Compute in float32, or choose --precision match."))
        return self._right(result, remote, seconds, made)

    def _in_fewer_digits(self, remote: RemoteCandidate, shown: str | None) -> tuple[Certificate, str] | None:
        """The certificate of a candidate of the class ``shown`` by what is accepted where any precision is, and a limit
        in words ("": none); None where that is not enough."""
        plan = replace(self._plan(), tolerance=any_precision(shown))
        found = self._certified(remote, plan)
        if plan.stop_at_failure and loses_range(found):  # that may be all that is wrong: the other trials say
            found = self._certified(remote, replace(plan, stop_at_failure=False), found)
        beyond = [t.plan for t in found.trials if t.gates and not t.passed] if loses_range(found) else []
        if not found.passed and not (beyond and all(map(self._leaves_half, beyond))):
            return None
        kinds = ", ".join(dict.fromkeys(plan.kind for plan in beyond))
        return (replace(found, passed=True, why=()),
                f"its numbers of 16 bits leave their range on inputs {kinds}" if beyond else "")

    def _leaves_half(self, plan: TrialPlan) -> bool:
        """Whether numbers of a trial's inputs or of the model's results are beyond the range of float16."""
        model, inputs = self._make_model(), inputs_of(plan, self.problem.make_inputs)
        set_parameters(model, plan)
        called = call(model, inputs)
        return any(bool((t.detach().abs() > torch.finfo(torch.float16).max).any())
                   for t in tensors_of([inputs, called.outputs]) if t.dtype.is_floating_point)

    def _never_ran(self, worker: Worker, findings: Sequence[Finding]) -> Finding | None:
        """Whether nothing was written because launches failed, which only a profile shows where the error is hidden."""
        unwritten = any(f.kind in ("unwritten", "zeros") or f.evidence.get("holds") in ("unwritten", "zeros")
                        for f in findings)
        return unlaunched(worker, self.problem) if unwritten and worker.failure is None else None

    def _right(self, result: CandidateResult, remote: RemoteCandidate, seconds: Seconds, made: _Made
               ) -> CandidateResult:
        """Right on its trials: what other layouts, sizes and sequences of calls show."""
        tolerance = any_precision(result.precision) if result.precision != FLOAT32 and \
            self.settings.precision == "any" else self._plan().tolerance_for("normal")
        worker = remote.link.worker
        distribution = self.profile.varying[0] if self.profile.varying else AS_GIVEN
        loads = made.own is None or made.own.loads
        triangular = result.certificate is not None and any(t.plan.triangular for t in result.certificate.trials)
        tried = [v for v in variants(self.problem, self.profile.seed, distribution, triangular)
                 if loads or not v.changes_parameters]
        checked = seconds.during("check", lambda: check_variants(
            self._make_model, remote, self.problem, tried, tolerance, self.budget.variants, both_alive=False,
            let_go=self.kept.forget, make_second=lambda: self._instance(worker, self.profile.seed + 1)))
        for variant in checked:
            if variant.gates and variant.wrong:
                if worker.failure is not None:
                    raise worker.failure
                return replace(result, verdict=variant.verdict, reason=variant.sentence, fix=variant.fix,
                               findings=(variant.finding, *result.findings))
        result = replace(result, shapes=(
            TriedShape("the problem's own", True), *(TriedShape(v.name, v.outcome == "right") for v, tried_as in
                                                     zip(checked, tried, strict=True)
                                                     if tried_as.batch is not None and v.outcome != "skipped")))
        if made.own is not None and not loads:
            own, plan = made.own, replace(self._plan(), tolerance=tolerance)
            wrong = seconds.during("check", lambda: follow(
                self.problem.make_model, lambda seed: self._instance(worker, seed, made.names),
                self.problem.make_inputs, self.profile.seed, plan, own))
            if wrong is not None:
                findings = (wrong, *filter(None, (made.misfit,)))
                return replace(refused(result, "WRONG-PARAMETERS", wrong), findings=(*findings, *result.findings))
            seconds.during("build", lambda: self._instance(worker, self.profile.seed))  # the one that is timed
        limits = tuple(dict.fromkeys(filter(None, (self.profile.doubt, self.profile.forgets, *made.limits,
                                                   *limits_of(result.certificate), *(v.limit for v in checked)))))
        if self.settings.precision == "any" and result.precision not in (FLOAT32, None):
            limits = (f"computes in {result.precision}", *limits)
        told = result.certificate.sentence() if result.certificate is not None else ""
        return replace(result, verdict="OK-BUT" if limits else "OK", limits=limits, reason=_joined(limits) or told)

    def _instance(self, worker: Worker, seed: int, names: Mapping[str, str] = MappingProxyType({})) -> RemoteCandidate:
        """Another instance of ModelNew in the place of the one before. ``names``: of buffers, as in `_Made`."""
        remote = RemoteCandidate(worker, self.problem, seed, self.profile.training, load=False)
        remote.link.mirror.show_buffers_as(names)
        return remote

    def _findings(self, certificate: Certificate, remote: RemoteCandidate, misfit: Finding | None, deadline: Deadline,
                  budget_seconds: float) -> list[Finding]:
        """Why the plainest failing trial failed, the likeliest explanation first; nothing without time for it."""
        found = self._explanations(certificate, remote, deadline, budget_seconds)
        if misfit is None:
            return found
        # Values of other parameters say nothing, unless what is wrong with them reproduces the output.
        first = says_parameters(misfit) and not any(weight(f) >= TELLING for f in found if f.source == "run")
        return [misfit, *found] if first else [*found, misfit]

    def _explanations(self, certificate: Certificate, remote: RemoteCandidate, deadline: Deadline,
                      budget_seconds: float) -> list[Finding]:
        failing = failing_trial(certificate) if budget_seconds else None
        if failing is None:
            return []
        if (other := other_computation(certificate)) is not None:
            return [other]
        make_float64 = self._make_float64 if float64_is_right([failing.reference]) else _no_float64
        try:
            evidence = collect(self._make_model, remote, self.problem.make_inputs, failing.plan,
                               make_float64=make_float64, before=tuple(t.plan for t in certificate.trials))
            if says_little(evidence) and deadline.allows("what it gives for other inputs"):
                evidence = on_other_inputs(evidence, self._make_model, remote, self.problem.make_inputs,
                                           make_float64=make_float64,
                                           budget_seconds=min(budget_seconds, deadline.left()))
            wrong = [t.plan for t in certificate.trials if t.gates and not t.passed]
            forgets = (find_forgotten(self._make_model, remote, self.problem.make_inputs, wrong)
                       if deadline.allows("from which position on it forgets") else None)
            looked = deadline.allows("patterns of what is wrong")
            patterns = find_patterns(evidence) if looked else []
            hypotheses = (find_hypotheses(self.problem, evidence, budget_seconds, deadline)
                          if deadline.allows("changes of the model that give its values") else [])
            found = merge([*filter(None, (forgets,)), *patterns, *hypotheses])
            again_right = (looked and not found and failing.comparison is not None
                           and not failing.comparison.passed)
            return [not_repeatable(failing)] if again_right else found
        except (RuntimeError, MemoryError):  # too little memory, say: the certificate's own words stand
            return []


def _no_float64(model: torch.nn.Module) -> torch.nn.Module:
    raise RuntimeError("float64 is another computation")


def _joined(limits: tuple[str, ...]) -> str:
    words = "; ".join(limits)
    return f"{words[:1].upper()}{words[1:]}." if words else ""


def _ran(certificate: Certificate) -> bool:
    return any(trial.comparison is not None for trial in certificate.trials)
