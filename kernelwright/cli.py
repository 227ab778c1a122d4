"""The command line: ``kernelwright optimize``, ``explain`` and ``doctor``.

The result goes to stdout and everything else to stderr. Exit status: 0 for a result, 2 for what the user
can mend (a coded error, or a wrong command line), 70 for a bug of ours, 130 after Ctrl-C. PyTorch is
imported only when a command needs it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from kernelwright.errors import InternalError, KernelwrightError
from kernelwright.progress import Progress, make_progress
from kernelwright.settings import Settings, cache_folder, colour_allowed

USAGE, INTERRUPTED = 2, 130
MOST_COLUMNS = 110

# Newer typers carry their own click, so the class is found by its place above a public one.
UsageError: type[Exception] = next(k for k in typer.BadParameter.__mro__ if k.__name__ == "ClickException")

app = typer.Typer(name="kernelwright", add_completion=False, no_args_is_help=True, rich_markup_mode=None,
                  pretty_exceptions_enable=False)

Problem = Annotated[Path, typer.Argument(
    metavar="PATH", help="A Python file that defines Model and get_inputs (and get_init_inputs).")]
Target = Annotated[str, typer.Option(
    metavar="auto|cpp|cuda", help="Language of the kernels; auto is cuda where PyTorch sees a CUDA device.")]
Precision = Annotated[str, typer.Option(
    metavar="match|strict", help="match: never less accurate than the model as PyTorch runs it; strict: float32 "
    "accuracy everywhere.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the first parameters and inputs.")]
Threads = Annotated[int | None, typer.Option(metavar="N", help="CPU threads; by default, PyTorch's number.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr; errors are still printed.")]


def _version(value: bool) -> None:
    if value:
        from kernelwright import __version__

        typer.echo(f"kernelwright {__version__}")
        raise typer.Exit


@app.callback()
def _kernelwright(version: Annotated[bool, typer.Option(
        "--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    """Compile a PyTorch model to one file of verified custom kernels."""


@app.command()
def optimize(
    path: Problem,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE", help="The emitted file; by default NAME_new.py beside PATH.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    target: Target = "auto",
    precision: Precision = "match",
    effort: Annotated[str, typer.Option(
        metavar="quick|normal|thorough", help="How much time checking, timing and tuning may take.")] = "normal",
    seed: Seed = 0,
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Write a file with ModelNew, checked against float64 and timed, and report on it."""

    def work(progress: Progress) -> tuple[Callable[[], str], Callable[[], dict[str, Any]]]:
        from kernelwright.pipeline import optimize as run

        _silence_torch()
        settings = Settings(target=target, precision=precision, effort=effort, force=force, quiet=quiet, json=json,
                            output=output, seed=seed, threads=threads)
        result = run(path, settings=settings, progress=progress)
        from kernelwright.report import as_json, render_text

        return lambda: render_text(result, **_page()), lambda: as_json(result)

    return _perform(work, json, quiet)


@app.command()
def explain(
    path: Problem,
    target: Target = "auto",
    precision: Precision = "match",
    seed: Seed = 0,
    threads: Threads = None,
    verbose: Annotated[bool, typer.Option(
        "--verbose", "-v", help="Print the captured and the rewritten graph, too.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Show what would be replaced, by which mathematics; builds, checks and times nothing."""

    def work(progress: Progress) -> tuple[Callable[[], str], Callable[[], dict[str, Any]]]:
        from kernelwright.pipeline import explain as run

        _silence_torch()
        settings = Settings(target=target, precision=precision, quiet=quiet, json=json, seed=seed, threads=threads)
        result = run(path, settings=settings, progress=progress)
        from kernelwright.report import as_json, render_explanation

        return lambda: render_explanation(result, verbose=verbose, **_page()), lambda: as_json(result)

    return _perform(work, json, quiet)


@app.command()
def doctor(
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure the peaks again.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Examine this machine: versions, compilers, measured peaks, and what is missing."""

    def work(progress: Progress) -> tuple[Callable[[], str], Callable[[], dict[str, Any]]]:
        with progress.stage("analyse"):
            progress.say("measuring this machine's peaks, unless they are known")
            from kernelwright.roofline.doctor import doctor as examine

            machine = examine(refresh=refresh)
        return machine.text, lambda: {"schema": 1, **machine.to_json()}

    return _perform(work, json, quiet)


def _perform(work: Callable[[Progress], tuple[Callable[[], str], Callable[[], dict[str, Any]]]], as_json: bool,
             quiet: bool) -> int:
    """Run a command's work, print its result, and turn exceptions into messages and exit statuses."""
    progress = make_progress(quiet)
    try:
        try:
            with _nothing_on_stdout():
                text, document = work(progress)
        finally:
            progress.close()
        print(_dumped(document()) if as_json else text(), flush=True)
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except KernelwrightError as error:
        return _failed(error, as_json)
    except BrokenPipeError:
        # The reader has gone (`| head`). Python must not complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except InternalError as error:
        return _failed(error, as_json)
    except Exception as exception:
        command = ["kernelwright", *_arguments]
        return _failed(InternalError.wrap(exception, command, cache_folder() / "tracebacks"), as_json)


def _failed(error: KernelwrightError | InternalError, as_json: bool) -> int:
    """Show an error in both its forms: four parts on stderr and, if asked for, JSON on stdout."""
    print(error.render(), file=sys.stderr, flush=True)
    if as_json:
        print(_dumped({"schema": 1, "error": error.as_json()}), flush=True)
    return error.exit_status


def _dumped(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, allow_nan=False)


def _page() -> dict[str, Any]:
    """Colour and width of the text on stdout."""
    columns = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100
    return {"colour": colour_allowed(sys.stdout), "width": min(columns, MOST_COLUMNS)}


@contextmanager
def _nothing_on_stdout() -> Iterator[None]:
    """What the user's model, or a compiler started for it, prints goes to stderr: stdout is the result's."""
    try:
        out, err = sys.stdout.fileno(), sys.stderr.fileno()
    except (OSError, ValueError):  # replaced by something that is no file: nothing to redirect
        yield
        return
    sys.stdout.flush()
    kept = os.dup(out)
    os.dup2(err, out)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, out)
        os.close(kept)


def _silence_torch() -> None:
    """Keep PyTorch's own logs of a failing capture away: the coded error says it. TORCH_LOGS asks for them."""
    if not os.environ.get("TORCH_LOGS"):
        import torch

        torch._logging.set_logs(all=logging.CRITICAL)


_arguments: list[str] = []


def run(arguments: Sequence[str]) -> int:
    """Run one command line (without the program's name) and return its exit status."""
    _arguments[:] = arguments
    try:
        status = typer.main.get_command(app).main(args=list(arguments), prog_name="kernelwright",
                                                  standalone_mode=False)
        return status if isinstance(status, int) else 0
    except UsageError as error:
        error.show(file=sys.stderr)  # type: ignore[attr-defined]
        if "--json" in arguments:
            what = error.format_message()  # type: ignore[attr-defined]
            print(_dumped({"schema": 1, "error": {"code": "usage", "error": type(error).__name__, "what": what,
                                                  "exit_status": USAGE}}))
        return USAGE
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def main() -> NoReturn:
    """The console command. Raises SystemExit."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal without UTF-8 must not turn a result into an error
            stream.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
