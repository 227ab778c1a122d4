"""Write the emitted file: whole or not at all, and unasked over none but what an earlier run wrote and nobody changed.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernelwright.errors import InvalidOption, OutputExists, OutputFolderUnusable
from kernelwright.settings import Settings, cache_folder, check_output

#: The folder of the cache whose files are named by the hashes of what was written.
WRITTEN = "written"


def default_path(model_or_path: Any) -> Path | None:
    """``NAME_new.py`` beside a problem file; None for a module given from Python."""
    if not isinstance(model_or_path, (str, os.PathLike)):
        return None
    path = Path(model_or_path)
    return path.with_name(f"{path.stem}_new.py")


def check_not_read(path: Path | None, read: Any) -> None:
    """See that what is to be written is not the file that is read: a model would be lost, however much ``--force`` is
    given. Raises InvalidOption (KW403)."""
    if path is None or not isinstance(read, (str, os.PathLike)):
        return
    with suppress(OSError):
        if os.path.samefile(path, read):
            raise InvalidOption(option="--output", value=repr(str(path)), choices="another file than the model's own",
                                default="NAME_new.py")


def checked_path(model_or_path: Any, settings: Settings) -> Path | None:
    """Where the emitted file goes, None where that is nowhere, after it is seen that it, the page and the trace may be
    written there. Raises InvalidOption (KW403), OutputFolderUnusable (KW401) or OutputExists (KW402)."""
    path = settings.output or default_path(model_or_path)
    check_not_read(path, model_or_path)
    for written_to in filter(None, (path, settings.report, settings.trace)):
        check_output(written_to, settings.force or is_as_written(written_to, model_or_path))
    return path


def is_as_written(path: Path, of: Any) -> bool:
    """Whether a file is what an earlier run wrote of this model (a file's path, or a module), on this machine, to the
    last byte: another run of the model may replace it unasked."""
    with suppress(OSError):
        return path.is_file() and (cache_folder() / WRITTEN / _digest(path, of)).exists()
    return False


def remember_written(path: Path, of: Any) -> None:
    """Remember a file as it is now for :func:`is_as_written`. Where the cache folder can't be written to, it is a file
    like any other."""
    with suppress(OSError):
        folder = cache_folder() / WRITTEN
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _digest(path, of)).touch()


def _digest(path: Path, of: Any) -> str:
    kind = type(of)
    name = Path(of).resolve() if isinstance(of, (str, os.PathLike)) else f"{kind.__module__}.{kind.__qualname__}"
    return hashlib.sha256(f"{name}\0".encode(errors="replace") + path.read_bytes()).hexdigest()


def write_file(path: Path, text: str | bytes, *, force: bool) -> None:
    """Put ``text`` (as UTF-8), or bytes, at ``path`` in one step.

    Raises OutputExists (KW402) where another file came to stand there and ``force`` is not set, and
    OutputFolderUnusable (KW401) where the folder can't be written to.
    """
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}_", suffix=".part")
    except OSError as error:
        raise OutputFolderUnusable(folder=path.parent, problem=f"may not be written to ({error.strerror})",
                                   file=path.name) from error
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text.encode("utf-8") if isinstance(text, str) else text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        if force:
            os.replace(temporary, path)
        else:
            try:
                os.link(temporary, path)  # unlike a rename, a link never replaces
            except FileExistsError as error:
                raise OutputExists(file=path) from error
            except OSError:  # a file system without links: the look and the rename are two steps there
                if path.exists():
                    raise OutputExists(file=path) from None
                os.replace(temporary, path)
    except OSError as error:
        raise OutputFolderUnusable(folder=path.parent, problem=f"can't take the file ({error.strerror})",
                                   file=path.name) from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
