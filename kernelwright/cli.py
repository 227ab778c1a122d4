"""The command line: ``kernelwright optimize``, ``bench``, ``explain``, ``judge``, ``propose``, ``serve``, ``package``,
``cache`` and ``doctor``; and ``fuzz``, for those who work on the package, which no help lists.

The result goes to stdout and everything else to stderr. Exit status: 0 for a result, 1 for a suite of which not
every problem is verified, for random models that go wrong and for candidates that are not right, 2 for what the user
can mend (a coded error, or a wrong command line), 3 for a judge that could not judge, 70 for a bug of ours, 130 after
Ctrl-C. PyTorch is imported only when a command needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from kernelwright import cli_frame
from kernelwright import cli_options as options
from kernelwright.cli_frame import INTERRUPTED, check_exists, dumped, examples, importing, page, perform, silence_torch
from kernelwright.emit.write import checked_path
from kernelwright.processors import end_children
from kernelwright.progress import Progress
from kernelwright.settings import HOST_TARGET, settings_of
from kernelwright.version import VERSION

USAGE = 2

# Newer typers carry their own click, so the class is found by its place above a public one.
UsageError: type[Exception] = next(k for k in typer.BadParameter.__mro__ if k.__name__ == "ClickException")

app = typer.Typer(cls=options.Commands, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
                  name="kernelwright", context_settings={"help_option_names": ["-h", "--help"]})


def _version(value: bool) -> None:
    if value:
        typer.echo(f"kernelwright {VERSION}")
        raise typer.Exit


@app.callback(epilog=examples("optimize model.py", "optimize -h", "doctor"))
def _kernelwright(version: Annotated[bool, typer.Option(
        "--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    """Compile a PyTorch model to one file of verified custom kernels."""


@app.command(epilog=examples("optimize model.py", "optimize model.py -o fast.py --effort quick",
                              "optimize model.py --report report.html",
                              "optimize model.py --embed-for x86-64-v4,x86-64-v2",
                              "optimize model.py --target cpp --threads 8 --json > result.json"))
def optimize(
    path: options.Problem,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE", help="The emitted file; by default NAME_new.py beside PATH.")] = None,
    report: options.Report = None,
    trace: options.Trace = None,
    force: Annotated[bool, typer.Option("--force", help="Replace these files if they exist.")] = False,
    refresh: options.Refresh = False,
    target: options.Target = "auto",
    precision: options.Precision = "match",
    contractions: options.Contractions = "auto",
    effort: options.Effort = "normal",
    budget: options.Budget = None,
    baselines: options.Baselines = "compile",
    launch: options.Launch = "auto",
    seed: options.Seed = 0,
    threads: options.Threads = None,
    tiny: options.Tiny = False,
    model: options.Model = None,
    dynamic: options.Dynamic = None,
    dtypes: options.Dtypes = None,
    embed: options.Embed = False,
    embed_for: options.EmbedFor = None,
    verbose: options.Verbose = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Write a file with ModelNew, checked against float64 and timed, and report on it."""

    def work(progress: Progress) -> tuple[Callable[[], str], Callable[[], dict[str, Any]]]:
        settings = settings_of(target=target, precision=precision, contractions=contractions, effort=effort,
                            budget=budget, baselines=baselines, launch=launch, force=force, quiet=quiet, json=json,
                            output=output, report=report, trace=trace, seed=seed, threads=threads,
                            tiny=tiny, model=model, embed=embed if embed_for is None else embed_for,
                            refresh=refresh, dynamic=tuple(dynamic or ()), dtypes=dtypes or ())
        check_exists(path)  # what is wrong with a command line is said before PyTorch is imported
        checked_path(path, settings)
        with importing():
            from kernelwright.pipeline import optimize as run
        silence_torch()
        result = run(path, settings=settings, progress=progress)
        from kernelwright.report import as_json, render_text

        return lambda: render_text(result, verbose=verbose, **page()), lambda: as_json(result)

    return perform(work, json, quiet)


@app.command(epilog=examples("explain model.py", "explain model.py --target cuda --verbose"))
def explain(
    path: options.Problem,
    target: options.Target = "auto",
    precision: options.Precision = "match",
    contractions: options.Contractions = "auto",
    seed: options.Seed = 0,
    threads: options.Threads = None,
    model: options.Model = None,
    verbose: options.Verbose = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Show what would be replaced, by which mathematics; builds, checks and times nothing."""

    def work(progress: Progress) -> tuple[Callable[[], str], Callable[[], dict[str, Any]]]:
        settings = settings_of(target=target, precision=precision, contractions=contractions, quiet=quiet, json=json,
                            seed=seed, threads=threads, model=model)
        check_exists(path)
        with importing():
            from kernelwright.pipeline import explain as run

        silence_torch()
        result = run(path, settings=settings, progress=progress)
        from kernelwright.report import as_json, render_explanation

        return lambda: render_explanation(result, verbose=verbose, **page()), lambda: as_json(result)

    return perform(work, json, quiet)


@app.command(epilog=examples("doctor", "doctor --refresh"))
def doctor(
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure the peaks again.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Examine this machine: versions, compilers, measured peaks, and what is missing."""

    def work(progress: Progress) -> tuple[Callable[[], str], Callable[[], dict[str, Any]]]:
        with progress.stage("analyse"):
            progress.say("measuring this machine's peaks, unless they are known")
            from kernelwright.doctor import doctor as examine

            machine = examine(refresh=refresh)
        return lambda: machine.render(page()["width"]), machine.to_json

    return perform(work, json, quiet)


@app.command(hidden=True, epilog=examples("fuzz --seconds 600", "fuzz --level graph --count 50 --seed 7"))
def fuzz(
    path: options.FuzzedFile = None,
    seed: options.FirstSeed = 0,
    count: options.Count = None,
    seconds: options.Seconds = None,
    level: options.Level = "kernels",
    target: options.FuzzedTarget = HOST_TARGET,
    output: options.FailuresFolder = None,
    model: options.Model = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Check random models, stage by stage, and print a minimal file for each that goes wrong.

    Exit status: 0 if none goes wrong, else 1.
    """

    def work(progress: Progress) -> tuple[Callable[[], str], Callable[[], dict[str, Any]], int]:
        from kernelwright.fuzz.command import fuzz as run

        text, document, well = run(path=path, seed=seed, count=count, seconds=seconds, level=level, target=target,
                                   output=output, model=model, progress=progress)
        return lambda: text, lambda: document, 0 if well else 1

    return perform(work, json, quiet)


@app.command(epilog=examples("bench problems --tiny --effort quick", "bench KernelBench/level2 -o results --resume",
                              "bench KernelBench --filter 'level1/*' --devices 0,1"))
def bench(
    folder: options.Folder,
    output: options.ResultsFolder = Path("bench_results"),
    resume: options.Resume = False,
    force: options.ReplaceResults = False,
    filters: options.Filters = None,
    devices: options.Devices = "",
    workers: options.Workers = None,
    limit: options.Limit = 300.0,
    memory: options.Memory = None,
    runner: options.Runner = "local",
    address: options.Address = "",
    propose: options.ProposeFile = None,
    target: options.Target = "auto",
    precision: options.Precision = "match",
    contractions: options.Contractions = "auto",
    effort: options.Effort = "normal",
    budget: options.Budget = None,
    baselines: options.Baselines = "compile",
    launch: options.Launch = "auto",
    seed: options.Seed = 0,
    threads: options.Threads = None,
    tiny: options.Tiny = False,
    model: options.Model = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Optimize every problem of a folder, each in its own process, and score them.

    Exit status: 0 if every problem is verified, else 1.
    """

    def work(progress: Progress) -> tuple[Callable[[], str], Callable[[], Mapping[str, Any]], int]:
        from kernelwright.suite import proposals
        from kernelwright.suite.options import SuiteOptions
        from kernelwright.suite.runner import render_text, run_suite

        settings = settings_of(target=target, precision=precision, contractions=contractions, effort=effort,
                            budget=budget, baselines=baselines, launch=launch, seed=seed, threads=threads, tiny=tiny,
                            model=model)
        candidates: dict[str, Any] = {} if propose is None else {
            "propose": proposals.read_options(propose), "work": proposals.WORK}
        asked = SuiteOptions(settings=settings, output=output, resume=resume, force=force, workers=workers,
                             filters=tuple(filters or ()), devices=tuple(filter(None, devices.split(","))),
                             limit=limit, memory=memory, runner=runner, address=address, **candidates)
        result = run_suite(folder, asked, progress)
        return lambda: render_text(result, **page()), result.as_json, result.exit_status

    return perform(work, json, quiet)


@app.command(epilog=examples("judge model.py model_new.py", "judge model.py candidates --effort quick --json",
                              "judge model.py candidate.py --precision strict --backward",
                              "judge --set folder_of_problems -o results --verdict-only"))
def judge(
    path: options.Judged,
    candidates: options.Candidates = None,
    whole_set: options.WholeSet = False,
    output: options.Document = None,
    report: options.JudgeReport = None,
    force: options.ReplaceDocument = False,
    seed: options.SecretSeed = None,
    effort: options.JudgeEffort = "normal",
    precision: options.Policy = "match",
    backward: options.Backward = False,
    own_kernels: options.OwnKernels = False,
    rules: options.Rules = "kernelwright",
    target: options.Place = "auto",
    device: options.Device = None,
    threads: options.Threads = None,
    no_time: options.NoTime = False,
    verdict_only: options.VerdictOnly = False,
    diagnose_budget: options.DiagnoseBudget = None,
    sanitize: options.Sanitize = "off",
    tiny: options.Tiny = False,
    model: options.Model = None,
    limit: options.StageLimit = None,
    memory: options.CandidateMemory = None,
    filters: options.SetFilters = None,
    devices: options.Devices = "",
    workers: options.Workers = None,
    runner: options.Runner = "local",
    address: options.Address = "",
    prompt: options.Prompt = False,
    known: options.Known = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Judge files that claim to be PATH's ModelNew: verdict, reason, time and rank of each.

    With --set, judge all candidates of many problems; what has a result is not judged again. Exit status: 0 if every
    candidate is right, 1 if one is not, 3 if the judge failed its own self-test or could not judge one.
    """

    def work(progress: Progress) -> tuple[Callable[[], str], Callable[[], Mapping[str, Any]], int]:
        from kernelwright.judge.command import judge_files
        from kernelwright.judge.report.text import render_text
        from kernelwright.judge.settings import JudgeSettings

        silence_torch()
        given: dict[str, Any] = {
            "target": target, "device": device, "precision": precision, "effort": effort, "backward": backward,
            "own_kernels": own_kernels, "rules": rules, "seed": seed, "threads": threads, "time": not no_time,
            "verdict_only": verdict_only, "diagnose_budget": diagnose_budget, "sanitize": sanitize, "tiny": tiny,
            "model": model, "limit": limit, "memory": memory, "prompt": prompt, "output": output, "report": report,
            "known": tuple(known or ()), "force": force, "json": json, "quiet": quiet}
        if not whole_set:
            settings = JudgeSettings(**given)
            if prompt:
                from kernelwright.propose.repair import render_prompts, with_prompts

                result = judge_files(path, candidates or (), settings, progress,
                                     lambda r: with_prompts(r, path, settings))
                return lambda: render_prompts(result), result.to_json, result.exit_status
            result = judge_files(path, candidates or (), settings, progress)
            return lambda: render_text(result, **page()), result.to_json, result.exit_status
        given |= {"output": None, "force": False}
        from kernelwright.codegen.device_kind import HOST
        from kernelwright.suite import judge_runner
        from kernelwright.suite.options import SuiteOptions

        where = tuple(filter(None, devices.split(",")))
        asked = SuiteOptions(output=output or Path("judge_results"), force=force, filters=tuple(filters or ()),
                             devices=where, workers=workers, runner=runner, address=address)
        if where == (HOST,) and target == "auto":
            given["target"] = HOST_TARGET
        judged = judge_runner.judge_set(path, JudgeSettings(**given), asked, progress, lines)
        return lambda: judge_runner.render_text(judged, **page()), judged.as_json, judged.exit_status

    only = {"--filter": filters, "--devices": devices, "--workers": workers, "--address": address}
    if wrong := next((name for name, value in only.items() if value and not whole_set), ""):
        raise typer.BadParameter(f"{wrong} belongs to --set")
    if bool(candidates) is whole_set:
        raise typer.BadParameter("PATH is the whole set with --set" if whole_set else "CANDIDATE is missing")
    of_one = {"--device": device is not None, "--report": report, "--prompt": prompt, "--known": known}
    if whole_set and (wrong := next((name for name, value in of_one.items() if value), "")):
        raise typer.BadParameter(f"{wrong} is of one problem's candidates, and --set has many problems")
    lines = cli_frame.line_writer() if whole_set and json else lambda record: None
    return perform(work, json, quiet, one_line=whole_set)


@app.command(epilog=examples("propose model.py --from answers",
                              "propose model.py --endpoint http://localhost:8000/v1 --model NAME --rounds 4"))
def propose(
    path: options.Problem,
    endpoint: options.Endpoint = None,
    model: options.LanguageModel = None,
    answers: options.Answers = None,
    replay: options.Replay = None,
    output: options.ProposedFile = None,
    record: options.RunFolder = None,
    resume: options.GoOn = False,
    force: options.ReplaceRun = False,
    candidates: options.Answered = 8,
    rounds: options.Rounds = 4,
    search: options.Search = "islands",
    blind: options.Blind = False,
    temperature: options.Temperature = None,
    answer_tokens: options.AnswerTokens = 16384,
    budget_tokens: options.TokenBudget = None,
    budget_seconds: options.TimeBudget = None,
    budget_money: options.MoneyBudget = None,
    prices: options.Prices = None,
    seed: options.ProposeSeed = 0,
    effort: options.JudgeEffort = "normal",
    precision: options.Precision = "match",
    backward: options.Backward = False,
    own_kernels: options.OwnKernels = False,
    target: options.Target = "auto",
    threads: options.Threads = None,
    no_time: options.NoTime = False,
    tiny: options.Tiny = False,
    class_name: options.ClassName = None,
    limit: options.StageLimit = None,
    memory: options.CandidateMemory = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Judge candidates from a language model, or from texts, and write the best file that is verified: ours, unless a
    candidate is shown to be better.

    Exit status: 0 if a file is written, 1 if there is none to write, 3 if the judge could not judge.
    """

    def work(progress: Progress) -> tuple[Callable[[], str], Callable[[], dict[str, Any]], int]:
        from kernelwright.propose.settings import ProposeSettings

        chosen: dict[str, Any] = {"effort": effort, "precision": precision, "target": target}
        settings = ProposeSettings(
            endpoint=endpoint, model=model, answers=tuple(answers or ()), replay=replay, output=output, record=record,
            resume=resume, force=force, candidates=candidates, rounds=rounds, search=search, blind=blind,
            temperature=temperature, answer_tokens=answer_tokens, budget_tokens=budget_tokens,
            budget_seconds=budget_seconds, budget_money=budget_money, prices=prices, seed=seed,
            backward=backward, own_kernels=own_kernels, threads=threads, time=not no_time, tiny=tiny,
            class_name=class_name, limit=limit, memory=memory, json=json, quiet=quiet, **chosen)
        with importing():
            from kernelwright.propose.report import render_text
            from kernelwright.propose.run import propose as run_propose

        silence_torch()
        result = run_propose(path, settings, progress)
        return lambda: render_text(result, **page()), result.to_json, result.exit_status

    return perform(work, json, quiet)


@app.command(epilog=examples("serve", "serve --port 0 --folder queue --json",
                              "serve --host 0.0.0.0 --tokens tokens.txt --problems problems --workers 2"))
def serve(
    host: options.Host = "127.0.0.1",
    port: options.Port = 8750,
    folder: options.ServiceFolder = Path("judge_service"),
    tokens: options.TokensFile = None,
    problems: options.KnownProblems = None,
    workers: options.Workers = None,
    queue: options.QueueLimit = 1000,
    limit: options.SubmissionLimit = 900.0,
    stage_limit: options.LimitOfStages = None,
    memory: options.CandidateMemory = None,
    devices: options.Devices = "",
    runner: options.Runner = "local",
    address: options.Address = "",
    target: options.Place = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Judge what is submitted over HTTP, until Ctrl-C; what waits then is judged when the same command runs again."""

    def work(progress: Progress) -> tuple[Callable[[], str], Callable[[], dict[str, Any]]]:
        from kernelwright.serve.command import serve as run

        left = run(progress, line, json, host=host, port=port, folder=folder, tokens=tokens, problems=problems,
                   workers=workers, queue=queue, limit=limit, stage_limit=stage_limit, memory=memory, target=target,
                   devices=tuple(filter(None, devices.split(","))), threads=threads, runner=runner, address=address)
        return lambda: f"{left} submissions wait", lambda: {"schema": 1, "waiting": left}

    line = cli_frame.line_writer()
    return perform(work, json, quiet, one_line=True)


@app.command(epilog=examples("package model_new.py --name fast-model", "package a_new.py b_new.py --name models "
                              "--version 1.2 -o wheels"))
def package(
    path: options.EmittedFiles,
    name: options.PackageName,
    version: options.PackageVersion = "0.1.0",
    output: options.WheelFolder = Path("dist"),
    force: options.ReplaceWheel = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Make a wheel of emitted files, each a module of one package, for pip."""

    def work(progress: Progress) -> tuple[Callable[[], str], Callable[[], dict[str, Any]]]:
        from kernelwright.deploy.wheel import make_wheel

        made = make_wheel(path, name=name, version=version, output=output, force=force)
        return made.render, made.to_json

    return perform(work, json, quiet)


@app.command(epilog=examples("cache", "cache clear --only times --only contractions", "cache export kept.zip",
                              "cache import kept.zip"))
def cache(
    action: options.CacheAction = "show",
    path: options.CacheFile = None,
    only: options.CacheKinds = None,
    force: options.ReplaceCacheFile = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Show what is kept for later runs, remove it, or take it to another machine.

    Compiled kernels are code: import what you would run.
    """

    def work(progress: Progress) -> tuple[Callable[[], str], Callable[[], dict[str, Any]]]:
        from kernelwright.cache.folder import kept

        found = kept(action, path, only=tuple(only or ()), force=force)
        return lambda: found.render(page()["width"]), found.to_json

    return perform(work, json, quiet)


def run(arguments: Sequence[str]) -> int:
    """Run one command line (without the program's name) and return its exit status."""
    cli_frame.arguments[:] = arguments
    try:
        status = typer.main.get_command(app).main(args=list(arguments), prog_name="kernelwright",
                                                  standalone_mode=False)
        return status if isinstance(status, int) else 0
    except UsageError as error:
        error.show(file=sys.stderr)  # pyrefly: ignore[missing-attribute]  # click's, as above
        if "--json" in arguments:
            what = error.format_message()  # pyrefly: ignore[missing-attribute]  # click's, as above
            print(dumped({"schema": 1, "error": {"code": "usage", "error": type(error).__name__, "what": what,
                                                  "exit_status": USAGE}}))
        return USAGE
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def main() -> NoReturn:
    """The console command, which waits at its end for no process that it has started (a compiler of torch.compile, say,
    whose time was over). Raises SystemExit."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal without UTF-8 must not turn a result into an error
            stream.reconfigure(errors="replace")
    status = run(sys.argv[1:])
    end_children()
    sys.exit(status)


if __name__ == "__main__":
    main()
