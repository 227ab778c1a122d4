"""Arguments and options of the commands in ``cli.py``, with their help."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from kernelwright.settings import DTYPES, TARGET_NAMES


class Commands(typer.core.TyperGroup):
    """Lists each command with the whole first sentence of its help, where typer would cut it off."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of the help page."""
        shown = [command for name in self.list_commands(ctx)
                 if (command := self.get_command(ctx, name)) is not None and not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(command.name, " ".join((command.help or "").split("\n\n")[0].split()))
                                for command in shown])


def _begun(words: Iterable[str], incomplete: str) -> list[str]:
    """Those of the words that begin with what was typed, with its last part where it is several with commas between."""
    before, comma, begun = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in words if word.startswith(begun)]


def _one_of(words: str, *names: str, help: str) -> Any:
    """An option for one of these words (``one|other``), which its help shows and shells complete. What is no such word
    is refused later, as from Python."""
    return typer.Option(*names, metavar=words, help=help,
                        autocompletion=lambda incomplete: _begun(words.split("|"), incomplete))


def _kinds(incomplete: str) -> list[str]:
    """What `cache --only` takes."""
    from kernelwright.cache import KINDS

    return _begun([kind.folder for kind in KINDS], incomplete)


Problem = Annotated[Path, typer.Argument(
    metavar="PATH", help="A Python file that defines a model's class and get_inputs (and get_init_inputs).")]
Model = Annotated[str | None, typer.Option(
    "--model", metavar="NAME", help="The model's class; by default Model, else the only module class of the file that "
    "no other one uses.")]
Target = Annotated[str, _one_of(
    "|".join(("auto", *TARGET_NAMES)), help="Language of the kernels; auto is cuda where PyTorch sees a "
    "CUDA device.")]
Precision = Annotated[str, _one_of(
    "match|strict", help="match: never less accurate than the model as PyTorch runs it; strict: float32 "
    "accuracy everywhere.")]
Contractions = Annotated[str, _one_of(
    "auto|library|measured", help="Matrix products and convolutions: measured makes CUDA kernels of those that "
    "win; auto is measured where PyTorch sees a CUDA device, else library.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the first parameters and inputs.")]
Threads = Annotated[int | None, typer.Option(metavar="N", help="CPU threads; by default, PyTorch's number.")]
Report = Annotated[Path | None, typer.Option(
    "--report", metavar="FILE.html", help="Write the whole report as a page, too: charts, graphs, errors and "
    "times with their spread, each kernel's text.")]
Trace = Annotated[Path | None, typer.Option(
    "--trace", metavar="FILE.json", help="Write a trace, too, which ui.perfetto.dev opens: the run's stages, eager's "
    "operators, and the kernels of a forward in order.")]
Refresh = Annotated[bool, typer.Option(
    "--refresh", help="Plan, check and time again, though the result of the same command is kept.")]
Effort = Annotated[str, _one_of(
    "quick|normal|thorough", help="How long a run may take: 60 (without baselines 30), 120 or 900 "
    "seconds, unless --budget says otherwise.")]
Budget = Annotated[float | None, typer.Option(
    "--budget", metavar="SECONDS", help="How long a run may take, from its start to the written file, baselines "
    "included; by default, what the effort says.")]
Baselines = Annotated[str, _one_of(
    "compile|all|graph|none", help="What is timed besides eager: a CUDA graph of it and torch.compile; "
    "these, with its graphs (reduce-overhead) and max-autotune, too, which takes minutes to compile; the graph alone; "
    "or nothing.")]
Launch = Annotated[str, _one_of(
    "auto|graph|direct", help="How a file starts its kernels: as one CUDA graph, one after another, or as "
    "measured.")]
Dynamic = Annotated[list[str] | None, typer.Option(
    "--dynamic", metavar="X:AXIS=LOW..HIGH", help="A size that may differ from call to call, such as x:0=1..64 "
    "or, with a name that makes it one with others, x:0=batch:1..64; may be given several times.")]
Dtypes = Annotated[str | None, typer.Option(
    "--dtypes", metavar="NAME,NAME", autocompletion=lambda incomplete: _begun(DTYPES, incomplete),
    help="Further floating-point types that the file serves: kernels for the model after .bfloat16() (bfloat16), "
    ".half() (float16), .float() or .double().")]
Tiny = Annotated[bool, typer.Option("--tiny", help="Give the file's globals the small values of its dictionary "
                                                   "TINY.")]
Embed = Annotated[bool, typer.Option(
    "--embed", help="Put the compiled kernels into the file, too, so that machines like this one need no compiler.")]
EmbedFor = Annotated[str | None, typer.Option(
    "--embed-for", metavar="NAME,NAME", help="The same, for these machines: levels of processors (x86-64-v4, "
    "x86-64-v3, x86-64-v2, x86-64), or GPUs (sm_80, sm_90a, ...) and ptx.")]
Verbose = Annotated[bool, typer.Option(
    "--verbose", "-v", help="Print the graphs, too: as captured, as rewritten, and at each step.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr; errors are still printed.")]

# ---- of bench ----------------------------------------------------------------------------------------

Folder = Annotated[Path, typer.Argument(
    metavar="DIR", help="A folder of problem files, looked through with its subfolders, or one file.")]
ResultsFolder = Annotated[Path, typer.Option(
    "--output", "-o", metavar="FOLDER", help="Where records, emitted files and page.html go.")]
Resume = Annotated[bool, typer.Option("--resume", help="Keep FOLDER's results, run what is missing.")]
ReplaceResults = Annotated[bool, typer.Option("--force", help="Replace FOLDER's results.")]
Filters = Annotated[list[str] | None, typer.Option(
    "--filter", metavar="PATTERN", help="Run problems whose name has this part or fits this shell pattern; may be "
    "given several times.")]
Devices = Annotated[str, typer.Option(metavar="N,N|cpu", help="GPUs to use, or cpu; by default all GPUs.")]
Workers = Annotated[int | None, typer.Option(
    metavar="N", help="Processes per device; by default up to 4 on a GPU, 1 on the CPU.")]
Limit = Annotated[float, typer.Option(
    metavar="SECONDS", help="Time that a problem may take, not counting time stopped for others.")]
Memory = Annotated[float | None, typer.Option(
    metavar="GIB", help="Host memory that a problem may use; by default until the machine runs short.")]
ProposeFile = Annotated[Path | None, typer.Option(
    "--propose", metavar="FILE", help="Judge candidates of language models; FILE is TOML and has options of "
    "`propose`.")]
Runner = Annotated[str, _one_of("local|ray", help="This machine, or a Ray cluster.")]
Address = Annotated[str, typer.Option(
    metavar="ADDRESS", help="The Ray cluster; by default this machine's, else a new one.")]

# ---- of fuzz -----------------------------------------------------------------------------------------

FuzzedFile = Annotated[Path | None, typer.Argument(
    metavar="PATH", help="A problem file to check in place of random models, such as an earlier failure's.")]
FirstSeed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the first model; the others follow it.")]
Count = Annotated[int | None, typer.Option(
    metavar="N", help="How many models; by default 200, or as many as SECONDS allow.")]
Seconds = Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop after this time.")]
Level = Annotated[str, _one_of(
    "graph|kernels", help="graph: every stage up to the plan, without a compiler; kernels: the emitted file, "
    "built and verified.")]
FuzzedTarget = Annotated[str, _one_of(
    "|".join(TARGET_NAMES), "--target", help="Language of the kernels; CUDA runs under the emulation.")]
FailuresFolder = Annotated[Path | None, typer.Option(
    "--output", "-o", metavar="FOLDER", help="Where the minimal files go.")]

# ---- of judge ----------------------------------------------------------------------------------------

Judged = Annotated[Path, typer.Argument(
    metavar="PATH", help="A Python file that defines a model's class and get_inputs (and get_init_inputs); with --set "
    "a folder of folders with problem.py and candidates, or a file of JSON lines.")]
Candidates = Annotated[list[Path] | None, typer.Argument(
    metavar="CANDIDATE", help="Python files that define ModelNew, or folders of them.", show_default=False)]
WholeSet = Annotated[bool, typer.Option("--set", help="PATH is a set: many problems, each with candidates.")]
Document = Annotated[Path | None, typer.Option(
    "--output", "-o", metavar="FILE", help="A .json file that gets the document of --json; with --set the folder of "
    "the results, by default judge_results.")]
JudgeReport = Annotated[Path | None, typer.Option(
    "--report", metavar="FILE.html", help="Write a page of all candidates, too: verdicts, times, findings and texts.")]
ReplaceDocument = Annotated[bool, typer.Option("--force", help="Replace these files, or a set's results, if there are "
                                               "any.")]
SetFilters = Annotated[list[str] | None, typer.Option(
    "--filter", metavar="PATTERN", help="Of a set, candidates whose id has this part or fits this shell pattern; may "
    "be given several times.")]
SecretSeed = Annotated[int | None, typer.Option(
    "--seed", metavar="N", help="Seed of everything drawn; by default drawn, and told after the verdicts.")]
JudgeEffort = Annotated[str, _one_of(
    "quick|normal|thorough", "--effort", help="How much time checks, diagnosis and clock may take.")]
Policy = Annotated[str, _one_of(
    "match|strict|any", "--precision", help="match: never less accurate than the model as PyTorch runs it; "
    "strict: float32; any: TF32 and 16-bit arithmetic too, ranked in classes of their own.")]
Rules = Annotated[str, _one_of(
    "kernelwright|kernelbench|kernelbench-2025|flashinfer|all", "--rules", help="State beside the verdict what the "
    "rules of others say; several with commas between them.")]
Backward = Annotated[bool, typer.Option("--backward", help="Compare gradients, too.")]
OwnKernels = Annotated[bool, typer.Option(
    "--own-kernels", help="Refuse candidates whose result does not come from their own kernels.")]
Place = Annotated[str, _one_of(
    "|".join(("auto", *TARGET_NAMES)), "--target", help="cuda runs model and candidates on a GPU, others on "
    "the CPU; auto is cuda where PyTorch sees a CUDA device.")]
Device = Annotated[int | None, typer.Option(metavar="N", help="The GPU, as PyTorch counts them; by default the first.")]
NoTime = Annotated[bool, typer.Option("--no-time", help="No times and no ranks; what is wrong is diagnosed.")]
VerdictOnly = Annotated[bool, typer.Option(
    "--verdict-only", help="Verdicts in seconds beyond the build: no times, no diagnosis, a short check.")]
Sanitize = Annotated[str, typer.Option(
    "--sanitize", metavar="auto|off|on", help="Run kernels of candidates that pass under compute-sanitizer, on a GPU; "
    "auto: where it is there, and not with --verdict-only.")]
DiagnoseBudget = Annotated[float | None, typer.Option(
    "--diagnose-budget", metavar="SECONDS", help="How long a wrong candidate's diagnosis may take; 0: none; by default "
    "by the effort.")]
Prompt = Annotated[bool, typer.Option(
    "--prompt", help="Print, in place of the report, a prompt for each candidate that is not right: it asks a language "
    "model to mend what was found.")]
Known = Annotated[list[Path] | None, typer.Option(
    "--known", metavar="PATH", help="A file or folder with which candidates' texts are compared; read, never run; may "
    "be given several times.")]
StageLimit = Annotated[str | None, typer.Option(
    "--limit", metavar="SECONDS[,SECONDS]", help="Time that a candidate may take to build, and for a call; one number "
    "is for both; by default 240,60.")]
CandidateMemory = Annotated[float | None, typer.Option(
    "--memory", metavar="GIB", help="Host memory that a candidate may use; by default a share of what is free.")]

# ---- of propose --------------------------------------------------------------------------------------

Endpoint = Annotated[str | None, typer.Option(
    "--endpoint", metavar="URL", help="Base address of an endpoint that speaks the OpenAI protocol.")]
LanguageModel = Annotated[str | None, typer.Option("--model", metavar="NAME", help="The language model there.")]
Answers = Annotated[list[Path] | None, typer.Option(
    "--from", metavar="PATH", help="Answers that exist, in place of an endpoint: texts, transcripts, files, or folders "
    "of them; may be given several times.")]
Replay = Annotated[Path | None, typer.Option(
    "--replay", metavar="FOLDER", help="Take the answers of the run in FOLDER; nobody is asked.")]
GoOn = Annotated[bool, typer.Option("--resume", help="Go on with the run in --record.")]
RunFolder = Annotated[Path | None, typer.Option(
    "--record", metavar="FOLDER", help="Where prompts, answers, candidates and verdicts go; by default NAME_propose "
    "beside PATH.")]
ProposedFile = Annotated[Path | None, typer.Option(
    "--output", "-o", metavar="FILE", help="The file that is written; by default NAME_new.py beside PATH.")]
ReplaceRun = Annotated[bool, typer.Option("--force", help="Replace FILE, and the run in --record.")]
Answered = Annotated[int, typer.Option("--candidates", metavar="N", help="Answers that are asked for in each round.")]
Rounds = Annotated[int, typer.Option("--rounds", metavar="N", help="Rounds at most.")]
Search = Annotated[str, _one_of(
    "islands|best", "--search", help="islands: answers build on the best, the most different and the almost "
    "right; best: each is asked for anew, and the best counts.")]
Blind = Annotated[bool, typer.Option("--blind", help="Do not show kernelwright's own kernels.")]
Temperature = Annotated[float | None, typer.Option(
    "--temperature", metavar="T", help="Of the language model; by default, the endpoint's.")]
AnswerTokens = Annotated[int, typer.Option("--answer-tokens", metavar="N", help="Tokens of one answer at most.")]
TokenBudget = Annotated[int | None, typer.Option(
    "--budget-tokens", metavar="N", help="Tokens of all prompts and answers at most.")]
TimeBudget = Annotated[float | None, typer.Option(
    "--budget-seconds", metavar="SECONDS", help="Time after which nothing more is asked.")]
MoneyBudget = Annotated[float | None, typer.Option(
    "--budget-money", metavar="AMOUNT", help="What all calls may cost, by the prices of --prices.")]
Prices = Annotated[Path | None, typer.Option(
    "--prices", metavar="FILE", help="TOML or JSON file with prices of models per million tokens.")]
ProposeSeed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the search and of the judge.")]
ClassName = Annotated[str | None, typer.Option(
    "--class", metavar="NAME", help="The model's class; by default Model, else the only module class of the file that "
    "no other one uses.")]

# ---- of package --------------------------------------------------------------------------------------

EmittedFiles = Annotated[list[Path], typer.Argument(metavar="FILE", help="Files that `optimize` has written.")]
PackageName = Annotated[str, typer.Option("--name", metavar="NAME", help="The package, for pip and import.")]
PackageVersion = Annotated[str, typer.Option("--version", metavar="V", help="Its version.")]
WheelFolder = Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the wheel goes.")]
ReplaceWheel = Annotated[bool, typer.Option("--force", help="Replace the wheel if it exists.")]

# ---- of cache ----------------------------------------------------------------------------------------

CacheAction = Annotated[str, typer.Argument(
    metavar="show|clear|export|import", help="What to do with what is kept.",
    autocompletion=lambda incomplete: _begun(("show", "clear", "export", "import"), incomplete))]
CacheFile = Annotated[Path | None, typer.Argument(
    metavar="FILE", help="The .zip file to write or to read.", show_default=False)]
CacheKinds = Annotated[list[str] | None, typer.Option(
    "--only", metavar="KIND", autocompletion=_kinds, help="One kind of what is kept, as `cache` names it; may be given "
    "several times.")]
ReplaceCacheFile = Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")]

# ---- of serve ----------------------------------------------------------------------------------------

Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen at; another than this "
                                   "machine's own needs tokens.")]
Port = Annotated[int, typer.Option("--port", metavar="N", help="Port to listen at; 0: any that is free.")]
ServiceFolder = Annotated[Path, typer.Option(
    "--folder", metavar="FOLDER", help="Where the queue is, with all texts and results.")]
TokensFile = Annotated[Path | None, typer.Option(
    "--tokens", metavar="FILE", help="A line NAME TOKEN for each client; by default the one token of "
    "KERNELWRIGHT_TOKEN, else none is needed.")]
KnownProblems = Annotated[Path | None, typer.Option(
    "--problems", metavar="FOLDER", help="Problem files that submissions name; problems of their own are refused.")]
QueueLimit = Annotated[int, typer.Option("--queue", metavar="N", help="Submissions that may wait.")]
SubmissionLimit = Annotated[float, typer.Option(
    "--limit", metavar="SECONDS", help="Time that a submission may take in all, not counting time stopped for others.")]
LimitOfStages = Annotated[str | None, typer.Option(
    "--stage-limit", metavar="SECONDS[,SECONDS]", help="Time that a candidate may take to build, and for a call; one "
    "number is for both; by default 240,60.")]
