"""What every command does around its work: the result on stdout, all else on stderr, errors as exit statuses."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernelwright.errors import FileMissing, InternalError, KernelwrightError
from kernelwright.failures import unwritable
from kernelwright.progress import Progress, make_progress
from kernelwright.settings import cache_folder, colour_allowed
from kernelwright.version import VERSION

INTERRUPTED = 130
MOST_COLUMNS = 110
#: New objects after which Python looks for cycles among them: its own 700 are one layer of a trace.
_OBJECTS = 10_000

#: The command line that is being run, for the report of a bug.
arguments: list[str] = []


def perform(work: Callable[[Progress], tuple[Any, ...]], as_json: bool, quiet: bool, one_line: bool = False) -> int:
    """Run a command's work, print its result, and turn exceptions into messages and exit statuses.

    ``work`` returns what makes the text, what makes the JSON object and, if it is not 0, the exit status. ``one_line``:
    the object is one line, as it stands behind others.
    """
    progress = make_progress(quiet)
    progress.started = time.perf_counter()
    progress.say(f"kernelwright {VERSION} starts")  # before PyTorch is imported, which takes seconds
    try:
        try:
            with _nothing_on_stdout():
                text, document, *status = work(progress)
        finally:
            progress.close()
        print(text() if not as_json else json.dumps(document(), allow_nan=False) if one_line else dumped(document()),
              flush=True)
        return status[0] if status else 0
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
        if (full := unwritable(exception)) is not None:
            return _failed(full, as_json)
        command = ["kernelwright", *arguments]
        return _failed(InternalError.wrap(exception, command, cache_folder() / "tracebacks"), as_json)


def _failed(error: KernelwrightError | InternalError, as_json: bool) -> int:
    """Show an error in both its forms: four parts on stderr and, if asked for, JSON on stdout."""
    print(error.render(), file=sys.stderr, flush=True)
    if as_json:
        print(dumped({"schema": 1, "error": error.as_json()}), flush=True)
    return error.exit_status


def dumped(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, allow_nan=False)


def check_exists(path: Path) -> None:
    """See that there is a model's file. Raises FileMissing (KW101)."""
    if not path.exists():
        raise FileMissing(path=path, folder=Path.cwd())


def examples(*lines: str) -> str:
    """The end of a command's help: command lines, not wrapped."""
    return "\n".join(["\b", "Examples:", *(f"  kernelwright {line}" for line in lines)])


def line_writer() -> Callable[[Any], None]:
    """What writes objects, or texts, to stdout as they come, one a line, also from within `perform`."""
    stream = open(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")  # noqa: SIM115 (open for as long as the command)

    def write(record: Any) -> None:
        text = record if isinstance(record, str) else json.dumps(record, allow_nan=False, separators=(",", ":"))
        stream.write(text + "\n")
        stream.flush()

    return write


def page() -> dict[str, Any]:
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


@contextmanager
def importing() -> Iterator[None]:
    """While PyTorch is imported, nobody looks for cycles among what it makes; nor later: it lives as long as the
    process. What a run makes itself is looked at seldom enough that tracing a network does not wait for it.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])


def silence_torch() -> None:
    """Keep PyTorch's own logs of a failing capture away: the coded error says it. TORCH_LOGS asks for them."""
    if not os.environ.get("TORCH_LOGS"):
        import torch

        torch._logging.set_logs(all=logging.CRITICAL)
