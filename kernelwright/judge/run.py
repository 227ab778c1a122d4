"""The judge on one page: the problem's profile, each candidate's check, the clock for what passed, the ranking."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from kernelwright.device_lock import clock
from kernelwright.errors import StateNotPlain, place
from kernelwright.judge.check.candidate import Checker
from kernelwright.judge.check.constants import fixed_state
from kernelwright.judge.check.kept_profiles import kept_for, kept_profile, kept_self_test
from kernelwright.judge.check.own_share import measure_own_share
from kernelwright.judge.check.precision import timed_tolerance
from kernelwright.judge.check.problem_profile import ProblemProfile, make_profile
from kernelwright.judge.check.refusals import ghost
from kernelwright.judge.check.truth import float64_is_right
from kernelwright.judge.clock.timing import Clocked, baseline_text, time_candidates
from kernelwright.judge.efforts import budget_of
from kernelwright.judge.reading.alike import with_alike
from kernelwright.judge.records import CandidateResult, CandidateTiming, JudgeResult
from kernelwright.judge.report.rank import rank
from kernelwright.judge.report.sol_score import sol_score
from kernelwright.judge.selftest import SelfTest, self_test
from kernelwright.judge.settings import JudgeSettings
from kernelwright.judge.worker.handover import NotHandedOver
from kernelwright.judge.worker.process import Worker, WorkerFailure, free_bytes
from kernelwright.judge.worker.remote import CandidateRaised
from kernelwright.problem import Problem
from kernelwright.problem.load import load_problem
from kernelwright.problem.memory import is_out_of_memory, release
from kernelwright.problem.state import not_plain
from kernelwright.progress import Progress
from kernelwright.roofline.peaks import current_device
from kernelwright.verify.distributions import AS_GIVEN
from kernelwright.verify.observe import first_line
from kernelwright.version import VERSION

#: Candidates that are timed in the same rounds. More would keep as many processes, and as much memory, alive.
MOST_TOGETHER = 8


def judge(path: Path, candidates: Sequence[Path], settings: JudgeSettings, progress: Progress,
          begun: Callable[[int], None] = lambda number: None,
          told: Callable[[int, CandidateResult], None] = lambda number, result: None,
          profiles: Path | None = None) -> JudgeResult:
    """Judge candidates for the problem at ``path``, each in a process of its own; see `JudgeResult`.

    ``begun`` hears the place of each candidate in ``candidates`` when its turn comes, ``told`` its result, without a
    rank, as soon as that stands. In ``profiles``, a folder, problem profiles and self-tests are kept (`kept_profile`,
    `kept_self_test`).

    Raises the coded errors of loading the problem, ForwardRaised (KW114) where its model does not run, StateNotPlain
    (KW121) where its state cannot be handed over. Nothing that a candidate does is raised.
    """
    started = clock()
    device = settings.place()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    budget, limits = budget_of(settings), settings.limits()
    with progress.stage("load"):
        problem = load_problem(path, device=device, tiny=settings.tiny, model=settings.model)
    with progress.stage("self-test"):
        tried = lambda: self_test(device, limits)  # noqa: E731
        fitness = tried() if profiles is None else kept_self_test(profiles, device, settings.seed or 0, tried)
    with progress.stage("profile"):
        kept = kept_for(problem)
        make = lambda: make_profile(problem, settings.seed or 0, budget.profile, kept=kept)  # noqa: E731
        profile = make() if profiles is None else kept_profile(profiles, problem, settings, make)
    checker = Checker(problem, profile, settings, limits, budget, kept, _fixed(problem, profile.seed, settings))
    results: list[CandidateResult] = []
    waiting: dict[int, Worker] = {}
    clocked: list[Clocked] = []
    untimed: list[str] = []
    together = _together(problem, profile)

    def tell(numbers: Iterable[int]) -> None:
        for number in numbers:
            results[number] = _unless_unfit(results[number], fitness)
            told(number, results[number])

    try:
        for number, candidate in enumerate(candidates):
            with progress.stage("check"):
                progress.say(f"{candidate.name} ({number + 1} of {len(candidates)})")
                begun(number)
                result, worker = checker.check(candidate)
            results.append(result)
            if worker is not None:
                waiting[number] = worker
            else:
                tell([number])
            release()  # what the next one has no use for is another process's to use
            if waiting and (len(waiting) == together or number == len(candidates) - 1):
                with progress.stage("time"):
                    progress.say(f"{len(waiting)} candidates and eager")
                    try:
                        clocked.append(_time(checker, waiting, results, len(clocked)))
                    except Exception as error:
                        expected = isinstance(error, (WorkerFailure, CandidateRaised, NotHandedOver))
                        if not expected and not is_out_of_memory(error):
                            raise
                        untimed.append(f"Nothing was timed, as the model's own process failed: {first_line(error)}")
                tell(waiting)
                for worker in waiting.values():
                    worker.close()
                waiting = {}
    finally:
        for worker in waiting.values():
            worker.close()
    results = with_alike(results, problem.source or "", str(path), settings.known)
    return _result(problem, path, rank(results), profile, fitness, clocked, untimed, settings, clock() - started)


def _unless_unfit(result: CandidateResult, fitness: SelfTest) -> CandidateResult:
    if fitness.passed:
        return result
    why = f"The judge failed its self-test in this run: {' '.join(fitness.sentences)}"
    return replace(result, verdict="JUDGE-UNFIT", reason=why, timing=None, fix="")


def _fixed(problem: Problem, seed: int, settings: JudgeSettings) -> dict[str, torch.Tensor]:
    """What the constructor makes whatever the seed, see `fixed_state`. Raises StateNotPlain (KW121)."""
    model = problem.make_model(seed)
    if odd := not_plain(model):
        raise StateNotPlain(where=place(problem.path), model=type(model).__name__, name=odd[0], found=odd[1])
    return fixed_state(problem, model, seed, settings.tiny)


def _together(problem: Problem, profile: ProblemProfile) -> int:
    """How many candidates' processes may wait for their time with what the problem needs."""
    free = torch.cuda.mem_get_info(problem.device)[0] if problem.device.type == "cuda" else free_bytes()
    return max(1, min(MOST_TOGETHER, int(free / 8 / max(1, profile.roof.least_bytes))))


def _time(checker: Checker, waiting: dict[int, Worker], results: list[CandidateResult], group: int) -> Clocked:
    """Time candidates that passed against eager and each other; their results are replaced in ``results``."""
    problem, profile, settings, budget = checker.problem, checker.profile, checker.settings, checker.budget.time
    model = problem.make_model(profile.seed)
    distribution = profile.varying[0] if profile.varying else AS_GIVEN
    with tempfile.TemporaryDirectory(prefix="kernelwright_judge_") as folder:
        file = Path(folder) / "baseline.py"
        file.write_text(baseline_text(problem), encoding="utf-8")
        with Worker(file, problem.device, settings.limits()) as baseline:
            said = checker.control(baseline)
            found = time_candidates(problem, baseline, {str(n): w for n, w in waiting.items()}, profile.floor_seconds,
                                    budget * (1 + len(waiting)) / 2, model=model, uses_random=profile.random,
                                    cached=profile.roof.cached, tolerance=timed_tolerance(settings, distribution),
                                    distribution=distribution, eager_error=profile.error_on(distribution),
                                    exact=float64_is_right([p.reference for p in profile.probes]))
    found = replace(found, note=" ".join(filter(None, (said, found.note))))
    for number, worker in waiting.items():
        results[number] = _timed(results[number], found, str(number), worker, problem, settings, group)
    return found


def _timed(result: CandidateResult, found: Clocked, name: str, worker: Worker, problem: Problem,
           settings: JudgeSettings, group: int) -> CandidateResult:
    """A result with its time, or with the verdict by which it gets none."""
    timing = found.timings[name]
    findings = (*found.findings.get(name, ()), *result.findings)
    if not isinstance(timing, CandidateTiming):
        if timing.verdict == "JUDGE-ERROR":  # the judge's fault: the check stands, there is no time
            return replace(result, findings=(timing.finding, *findings))
        return replace(result, verdict=timing.verdict, reason=timing.finding.sentence, fix=timing.finding.fix,
                       limits=(), findings=(timing.finding, *findings))
    timing = replace(timing, sol_score=sol_score(timing))
    share = measure_own_share(worker, problem)
    # Rounds of groups that were timed one after the other are not the same rounds.
    timing = replace(timing, own_share=share.own_share if share else None,
                     graph=share is not None and share.graph,
                     rounds=tuple(1000 * group + n for n in timing.by_round))
    if share is not None and share.needed is False:
        timing = replace(timing, note="; ".join(filter(None, (timing.note, share.words))))
    if settings.own_kernels and share is not None and share.is_ghost:
        return replace(ghost(result, share.words), findings=findings)
    return replace(result, timing=timing, findings=findings)


def _result(problem: Problem, path: Path, results: list[CandidateResult], profile: ProblemProfile, fitness: SelfTest,
            clocked: list[Clocked], untimed: list[str], settings: JudgeSettings, seconds: float) -> JudgeResult:
    environment = {"words": [*(c.note for c in clocked if c.note), *untimed]}
    environment |= clocked[0].environment if clocked else {}
    eager = next((c.baseline for c in clocked if c.baseline is not None), None)
    isolation = next((r.isolation for r in results if r.isolation), "no candidate was run")
    versions = {"kernelwright": VERSION, "torch": torch.__version__,
                "python": platform.python_version(), "cuda": torch.version.cuda or "none"}
    return JudgeResult(
        problem=problem.name, path=str(path), candidates=tuple(results), problem_profile=profile.to_json(),
        selftest=fitness.to_json(), isolation=isolation, baseline=eager,
        device=current_device("cuda" if problem.device.type == "cuda" else "cpu").name, versions=versions,
        environment=environment, settings=settings.as_json(), seed=settings.seed or 0, seconds=seconds)
