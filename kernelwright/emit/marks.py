"""The text of each kernel in an emitted file, by the marks above them."""

from __future__ import annotations

import re

from kernelwright.emit.runtime_build import KERNEL_MARK

#: The kernels' text in the file, and the marks in it.
SOURCE = re.compile(r'^_KERNELWRIGHT_SOURCE = r"""\n(.*?)^"""$', re.MULTILINE | re.DOTALL)
MARK = re.compile("^" + re.escape(KERNEL_MARK.format("")) + r"(\w+)$", re.MULTILINE)


def kernel_texts(file: str) -> dict[str, str]:
    """The texts below the marks of an emitted file by name, in its order, the launchers' among them; none of a file
    without kernels."""
    found = SOURCE.search(file)
    if found is None:
        return {}
    marks = list(MARK.finditer(found[1]))
    ends = [*(mark.start() for mark in marks[1:]), len(found[1])]
    return {mark[1]: found[1][mark.end() + 1:end].strip("\n") for mark, end in zip(marks, ends)}
