"""kernelwright: a compiler from PyTorch models to verified custom kernels.

    result = kernelwright.optimize("model.py")          # or an nn.Module with inputs=(x,)
    result.module(x)                                    # the fast model
    print(result.source)                                # one self-contained file
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelwright.version import VERSION

__version__ = VERSION
__all__ = ["JudgeSettings", "KernelwrightError", "Result", "Settings", "explain", "judge_files", "load_problem",
           "optimize"]

if TYPE_CHECKING:
    from kernelwright.errors import KernelwrightError
    from kernelwright.judge.command import judge_files
    from kernelwright.judge.settings import JudgeSettings
    from kernelwright.pipeline import explain, optimize
    from kernelwright.problem import load_problem
    from kernelwright.records import Result
    from kernelwright.settings import Settings

_HOMES = {"JudgeSettings": "judge.settings", "judge_files": "judge.command", "KernelwrightError": "errors",
          "Result": "records", "Settings": "settings", "explain": "pipeline",
          "load_problem": "problem", "optimize": "pipeline"}


def __getattr__(name: str) -> Any:
    # PyTorch takes seconds to import: `kernelwright --version` must not wait for it.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"kernelwright.{_HOMES[name]}"), name)
