"""Write the emitted file: whole or not at all, and never over another one unasked."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from kernelwright.errors import OutputExists, OutputFolderUnusable


def default_path(model_or_path: Any) -> Path | None:
    """``NAME_new.py`` beside a problem file; None for a module given from Python."""
    if not isinstance(model_or_path, (str, os.PathLike)):
        return None
    path = Path(model_or_path)
    return path.with_name(f"{path.stem}_new.py")


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
