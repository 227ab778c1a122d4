"""Fail if a model became slower or less accurate: compare two documents of ``kernelwright optimize --json``.

    kernelwright optimize before/model.py --json > before.json
    kernelwright optimize after/model.py --json > after.json
    python compare.py before.json after.json

Both must come from one machine, one after the other. Exit status: 0 if nothing is shown to be worse, 1 if something is,
2 if a document has no result. A time of a busy machine shows nothing, and is said to.
"""

import argparse
import json
import sys
from pathlib import Path

#: Errors of float32 results that differ by less than this are one.
ROUNDING = 2.0**-23


def modes(path):
    """The modes (training, inference) of a document, by name. Exits where it holds an error, or no document."""
    text = Path(path).read_text(encoding="utf-8")
    document = json.loads(text) if text.strip() else {"error": {"what": "the file is empty"}}
    if "error" in document:
        print(f"{path}: {document['error']['what']}", file=sys.stderr)
        sys.exit(2)
    return {mode["name"]: mode for mode in document["modes"]}


def time_of(mode):
    """What a call of the emitted file takes: the kernels' time, or eager's where the file is the original."""
    entries = (mode["timing"] or {}).get("entries", {})
    return entries.get("candidate") or entries.get("eager")


def error_of(mode):
    """The file's relative error against float64: eager's where the file is the original."""
    certificate = mode["certificate"]
    return None if certificate is None else float(certificate["candidate_error"])  # NaN is a string in JSON


def compare(before, after, slower, error):
    """Sentences on one mode, those that are failures first."""
    failures, remarks = [], []
    old, new = time_of(before), time_of(after)
    if old is None or new is None or old["busy"] or new["busy"]:
        remarks.append("the times show nothing: the machine was busy, or there are none")
    else:
        words = f"{old['median'] * 1e3:.3g} ms before, {new['median'] * 1e3:.3g} ms after"
        # The whole intervals must be apart: what could be noise is no failure.
        (failures if new["interval"][0] > old["interval"][1] * slower else remarks).append(words)
    old, new = error_of(before), error_of(after)
    if old is not None and new is not None:
        words = f"relative error {old:.1e} before, {new:.1e} after"
        (failures if new > max(old * error, ROUNDING) else remarks).append(words)
    return failures, remarks


def main():
    parser = argparse.ArgumentParser(description="Fail if a model became slower or less accurate.")
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--slower", type=float, default=1.1, help="times as slow that is still accepted")
    parser.add_argument("--error", type=float, default=2.0, help="times the error that is still accepted")
    given = parser.parse_args()
    before, after = modes(given.before), modes(given.after)
    status = 0
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            print(f"note: {name} is in one document only")
            continue
        failures, remarks = compare(before[name], after[name], given.slower, given.error)
        for kind, sentences in (("FAIL", failures), ("ok", remarks)):
            for sentence in sentences:
                print(f"{kind}: {name}: {sentence}")
        status |= bool(failures)
    return status


if __name__ == "__main__":
    sys.exit(main())
