"""``torch/extension.h`` precompiled: half of what a compiler does for a candidate's C++ is reading PyTorch's headers.

One is made for each set of flags, in a process of its own in which no candidate's text stands, when enough has been
built with these flags to be worth it; only the processes that build for the judge may read it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

from kernelwright.judge.inside.builds import DESCRIBE, MADE, PRECOMPILED
from kernelwright.judge.sandbox.limits import Limits
from kernelwright.judge.worker.process import Worker
from kernelwright.settings import cache_folder

HEADER = "torch/extension.h"
#: Builds with the same flags before theirs is made: it takes as long as what it saves in some three of them.
WORTH = 4
#: Sets of flags that are kept (each is up to a GiB), unless they were used in the last hour.
MOST, RECENT_SECONDS = 4, 3600.0
#: Paths that need no quotes, neither for ninja nor for a shell.
_PLAIN = re.compile(r"[\w./+-]+")


def precompiled(request: dict[str, Any], candidate: Path, device: torch.device, limits: Limits, tools: Sequence[str],
                take: Callable[[Path, Path], None]) -> Path | None:
    """The folder with the precompiled header for a request's flags, of which this build is counted; None where there is
    none (yet), and while somebody else makes it. ``take`` copies a built file. Raises WorkerFailure and OSError."""
    of_host = [text for name, text in request["texts"].items() if not name.endswith(".cu")]
    if not hasattr(cpp_extension, DESCRIBE) or not any(HEADER in text for text in of_host):
        return None
    flags = {"header": HEADER, "extra_cflags": request["extra_cflags"], "cuda": request["cuda"]}
    name = hashlib.sha256(json.dumps([flags, list(tools)]).encode()).hexdigest()[:40]
    root = cache_folder() / "judge_headers"
    folder, refused, seen = root / name, root / f"{name}.refused", root / f"{name}.seen"
    root.mkdir(parents=True, exist_ok=True)
    if not _PLAIN.fullmatch(str(folder)) or refused.exists():
        return None
    if folder.exists():
        os.utime(folder)
        return folder
    with open(seen, "ab") as stream:
        stream.write(b".")
        if stream.tell() < WORTH:
            return None
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return None
        with Worker(candidate, device, limits, only_builds=True) as builder:
            if not builder.request("precompile", flags, seconds=limits.build_seconds, stage="build").get("ok"):
                refused.touch()
                return None
            _make_room(root)
            part = root / f"{name}.{os.getpid()}.part"
            try:
                (part / HEADER).parent.mkdir(parents=True)
                for suffix in ("", ".gch"):
                    take(builder.folder / MADE / f"{PRECOMPILED}{suffix}", part / f"{HEADER}{suffix}")
                os.replace(part, folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    return folder


def files_of(folder: Path) -> tuple[str, ...]:
    """The files that a process has to read to use it."""
    return tuple(str(folder / f"{HEADER}{suffix}") for suffix in ("", ".gch"))


def _make_room(root: Path) -> None:
    """Let go of those that were used longest ago, where there are too many."""
    with contextlib.suppress(OSError):
        kept = sorted((entry.stat().st_mtime, entry.path) for entry in os.scandir(root) if entry.is_dir())
        for used, path in kept[:max(0, len(kept) - MOST + 1)]:
            if time.time() - used > RECENT_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
