"""What a candidate's process may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one worker with all that it starts.

    ``build_seconds`` and ``run_seconds`` are wall time per stage. ``memory_bytes`` is resident memory that the worker
    holds for itself (None: a share of what is free). ``processes`` counts processes, not threads. Of what the worker
    prints, the last ``output_bytes`` are kept; a flood beyond ``flood_bytes`` ends it. No file may grow beyond
    ``file_bytes``.
    """

    build_seconds: float = 240.0
    run_seconds: float = 60.0
    memory_bytes: int | None = None
    processes: int = 256
    output_bytes: int = 1 << 20
    flood_bytes: int = 64 << 20
    file_bytes: int = 1 << 30
