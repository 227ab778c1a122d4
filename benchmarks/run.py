"""The benchmark of the main job: every example through `optimize`, its times side by side with the baselines.

    python benchmarks/run.py --device cpu -o benchmarks/results/cpu.json
    python benchmarks/run.py --device cuda -o benchmarks/results/h200.json

One JSON object: device, versions, date and command, and for each example and mode the error against float64
beside eager's, the times with their spread, the ratios with intervals, the share of the floor, the seconds of
each stage, and how long importing the emitted file takes with a cold and with a warm build cache.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLES = ("convt_mean_logsumexp", "convt_global_mean", "convt_batchnorm_pool", "transformer_block", "conv_network",
            "square_matmul")
FOLDER = Path(__file__).resolve().parent.parent / "examples"


def import_seconds(path: Path) -> dict[str, float]:
    """Seconds to import an emitted file in a new process beyond importing torch: cold (empty cache) and warm."""
    code = ("import importlib, sys, time, torch; sys.path.insert(0, sys.argv[1]); torch.cuda.is_available()\n"
            "t = time.perf_counter(); importlib.import_module(sys.argv[2]); print(time.perf_counter() - t)")
    result = {}
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "warm"):
            done = subprocess.run([sys.executable, "-c", code, str(path.parent), path.stem], capture_output=True,
                                  text=True, env={**os.environ, "KERNELWRIGHT_CACHE": cache}, check=True)
            result[name] = round(float(done.stdout.strip()), 3)
    return result


def one(name: str, device: str, effort: str, folder: Path) -> dict:
    """Optimize one example and gather what was measured."""
    import kernelwright
    from kernelwright.report import as_json

    started = time.perf_counter()
    output = folder / f"{name}_new.py"
    result = kernelwright.optimize(FOLDER / f"{name}.py", output=output, effort=effort,
                                   target="cuda" if device == "cuda" else "cpp")
    seconds = time.perf_counter() - started
    report = as_json(result)
    modes = {}
    for mode in result.modes:
        entry: dict = {"operators": mode.operators, "replaced": mode.replaced,
                       "kernels": [k.name for k in mode.kernels],
                       "operations_before": mode.before.operations, "operations_after": mode.after.operations,
                       "bytes_before": mode.before.bytes, "bytes_after": mode.after.bytes,
                       "floor_seconds": mode.floor_seconds}
        if mode.certificate is not None:
            entry["error"] = {"candidate": mode.certificate.candidate_error, "eager": mode.certificate.eager_error,
                              "trials": len(mode.certificate.trials), "passed": mode.certificate.passed}
        if mode.timing is not None:
            entry["times"] = {n: {"median": t.median, "low": t.interval[0], "high": t.interval[1], "minimum": t.minimum,
                                  "repetitions": t.repetitions, "back_to_back": t.back_to_back_seconds}
                              for n, t in mode.timing.entries.items()}
            entry["ratios"] = {n: {"value": r.value, "low": r.low, "high": r.high}
                               for n, r in mode.timing.ratios.items()}
            entry["share_of_floor"] = mode.timing.share_of_floor
            entry["failures"] = mode.timing.failures
        modes[mode.name] = entry
    return {"modes": modes, "optimize_seconds": round(seconds, 2), "stages": report["stages"],
            "import_seconds": import_seconds(output), "device": result.device, "notes": list(result.notes)}


def line(name: str, mode: str, entry: dict) -> str:
    """A row of the table on the terminal."""
    times = entry.get("times", {})
    cells = [f"{times[k]['median'] * 1e3:10.4f}" if k in times else " " * 10
             for k in ("eager", "torch.compile", "candidate")]
    ratios = entry.get("ratios", {})
    cells += [f"{ratios[k]['value']:8.2f}x" if k in ratios else " " * 9 for k in ("eager", "torch.compile")]
    error = entry.get("error")
    cells.append(f"{error['candidate']:9.1e} {error['eager']:9.1e}" if error else " " * 19)
    share = entry.get("share_of_floor", {}).get("candidate")
    cells.append(f"{share:6.1%}" if share else "      ")
    return f"{name:22} {mode:10} " + " ".join(cells)


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--effort", choices=("quick", "normal", "thorough"), default="normal")
    parser.add_argument("--only", nargs="*", default=EXAMPLES)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    import torch

    document: dict = {
        "command": f"python benchmarks/run.py --device {options.device} --effort {options.effort}",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": {"torch": torch.__version__, "python": platform.python_version(), "cuda": torch.version.cuda},
        "threads": torch.get_num_threads(), "examples": {},
    }
    print(f"{'milliseconds':33} {'eager':>10} {'compile':>10} {'ours':>10} {'eager/':>9} {'compile/':>9} "
          f"{'error':>9} {'eager error':>9} floor")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            try:
                found = one(name, options.device, options.effort, Path(folder))
            except Exception as error:  # one example must not cost the others their rows
                print(f"{name:22} failed: {type(error).__name__}: {error}", flush=True)
                if hasattr(error, "render"):
                    print(error.render(), flush=True)
                document["examples"][name] = {"failed": f"{type(error).__name__}: {error}"}
                continue
            document["examples"][name] = found
            document["device"] = found["device"]
            for mode, entry in found["modes"].items():
                print(line(name, mode, entry), flush=True)
            print(f"{'':22} optimize {found['optimize_seconds']} s, import cold {found['import_seconds']['cold']} s, "
                  f"warm {found['import_seconds']['warm']} s", flush=True)
            if options.output:
                options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
