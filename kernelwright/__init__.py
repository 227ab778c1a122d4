"""kernelwright: a compiler from PyTorch models to verified custom kernels.

    result = kernelwright.optimize("model.py")          # or an nn.Module with inputs=(x,)
    result.module(x)                                    # the fast model
    print(result.source)                                # one self-contained file
    fast = kernelwright.compile(module)                 # torch.compile with kernelwright as its backend
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelwright.version import VERSION

__version__ = VERSION
__all__ = ["JudgeSettings", "KernelwrightError", "Result", "Settings", "compile", "explain", "judge_files",
           "load_problem", "optimize"]

if TYPE_CHECKING:
    from kernelwright.dynamo import compile
    from kernelwright.errors import KernelwrightError
    from kernelwright.judge.command import judge_files
    from kernelwright.judge.settings import JudgeSettings
    from kernelwright.pipeline import explain, optimize
    from kernelwright.problem import load_problem
    from kernelwright.result import Result
    from kernelwright.settings import Settings

_HOMES = {"JudgeSettings": "judge.settings", "judge_files": "judge.command", "KernelwrightError": "errors",
          "Result": "result", "Settings": "settings", "compile": "dynamo", "explain": "pipeline",
          "load_problem": "problem", "optimize": "pipeline"}


def __dir__() -> list[str]:
    return sorted([*__all__, "__all__", "__doc__", "__name__", "__version__"])


def __getattr__(name: str) -> Any:
    # PyTorch takes seconds to import: `kernelwright --version` must not wait for it.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"kernelwright.{_HOMES[name]}"), name)
