"""The report as JSON."""

from __future__ import annotations

from typing import Any

from kernelwright.records import Mode, ResultRecord
from kernelwright.verify.plain import plain

#: Version of the document's form; it changes when a field changes its meaning or goes away.
SCHEMA = 1


def as_json(result: ResultRecord) -> dict[str, Any]:
    """The result as a dictionary that ``json.dumps`` takes with ``allow_nan=False``.

    Times are in seconds, memory in bytes. ``certificate`` and ``timing`` of a mode are null where nothing
    was checked or timed. The emitted source is left out: it stands in the file ``path``. ``kept_since`` is null unless
    an earlier run of the same command made the result: then that is when, and all times are of that run.
    """
    return {
        "schema": SCHEMA,
        "name": result.name,
        "path": str(result.path) if result.path is not None else None,
        "target": result.target,
        "device": result.device,
        "modes": [mode_json(mode) for mode in result.modes],
        "notes": list(result.notes),
        "stages": plain(result.stages),
        "figures": plain(result.figures),
        "spans": plain(result.spans),
        "trace": str(result.trace) if result.trace is not None else None,
        "kept_since": result.kept_since,
    }


def mode_json(mode: Mode) -> dict[str, Any]:
    """One mode as plain data."""
    return {
        "name": mode.name,
        "operators": mode.operators,
        "replaced": mode.replaced,
        "rules": plain(mode.rules),
        "kernels": plain(mode.kernels),
        "kept": plain(mode.kept),
        "before": plain(mode.before),
        "after": plain(mode.after),
        "floor_seconds": plain(mode.floor_seconds),
        "floor_words": mode.floor_words,
        "certificate": mode.certificate.to_json() if mode.certificate is not None else None,
        "timing": mode.timing.to_json() if mode.timing is not None else None,
        "graph": mode.graph,
        "rewritten": mode.rewritten,
        "simplification": mode.simplification,
        "layout": mode.layout,
        "launched": mode.launched,
        "captured_steps": plain(mode.captured_steps),
        "rewritten_operators": mode.rewritten_operators,
        "rewritten_seconds": plain(mode.rewritten_seconds),
        "steps": plain(mode.steps),
        "regions": plain(mode.regions),
        "backward": plain(mode.backward),
    }
