"""A process that checks models one after the other: requests and outcomes are lines of JSON.

Kernels run in this process, so one that crashes takes only it along, and the model at fault is the one that was
asked for last. Run as ``python -m kernelwright.fuzz.worker`` by :mod:`kernelwright.fuzz.runner`.
"""

from __future__ import annotations

import json
import logging
import os
import sys

import torch

from kernelwright.fuzz.oracles import Outcome, check
from kernelwright.processors import die_with_parent


def main() -> None:
    """Answer requests from stdin until it ends. What models and compilers print goes nowhere."""
    die_with_parent()  # a model that hangs would go on for ever
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    torch._logging.set_logs(all=logging.CRITICAL)
    torch.set_num_threads(int(os.environ.get("KERNELWRIGHT_FUZZ_THREADS", "2")))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            outcome = check(request["text"], request["level"], request["target"], request["seed"])
        except Exception as error:
            outcome = Outcome("wrong", "check", type(error).__name__, str(error)[:600])
        answers.write(json.dumps(outcome.as_json()) + "\n")


if __name__ == "__main__":
    main()
