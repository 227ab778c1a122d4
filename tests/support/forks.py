"""Programs in processes of their own that have PyTorch as they begin: importing it takes a second of a processor, and
most tests ask nothing of that."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from clocks import PATIENCE

# A process that has imported PyTorch and does nothing else starts them: what this one has loaded and changed, and its
# threads, are not in them.
_STARTER = multiprocessing.get_context("forkserver")
_STARTER.set_forkserver_preload(["torch"])


class Forked:
    """As ``subprocess.Popen([sys.executable, "-c", program, *arguments], env=..., text=True)`` with both outputs kept,
    but for what runs at an interpreter's end."""

    def __init__(self, program: str, *arguments: object, environment: Mapping[str, str], folder: Path | None = None
                 ) -> None:
        self._said = Path(tempfile.mkdtemp())
        given = (program, [str(argument) for argument in arguments], dict(environment), str(folder or Path.cwd()),
                 str(self._said))
        self._process = _STARTER.Process(target=_be, args=given)
        self._process.start()

    def communicate(self) -> tuple[str, str]:
        """What it wrote to its outputs, when it has ended."""
        self._process.join(PATIENCE)
        assert self._process.exitcode is not None, "it hangs"
        out, err = ((self._said / name).read_text() for name in ("out", "err"))
        return out, err

    @property
    def returncode(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.exitcode


def _be(program: str, arguments: list[str], environment: dict[str, str], folder: str, said: str) -> None:
    """Be such a process."""
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(f"{said}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = None
    sys.argv = ["-c", *arguments]
    found = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = ["", *found, *(path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix)))]
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(program, "<string>", "exec"), vars(main))


def ran(program: str, *arguments: object, folder: Path | None = None, **environment: str | None
        ) -> subprocess.CompletedProcess[str]:
    """Such a process that has ended. environment: further variables, or None for those that it has not."""
    whole = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    process = Forked(program, *arguments, environment=whole, folder=folder)
    said = process.communicate()
    assert process.returncode is not None
    return subprocess.CompletedProcess([program, *map(str, arguments)], process.returncode, *said)
