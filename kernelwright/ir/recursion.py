"""Recursion without the interpreter's stack, whose depth would bound how long a model may be."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

Result = TypeVar("Result")
Task = Generator[Generator[Any, Any, Any], Any, Result]
"""A generator that yields tasks, is sent what each returns, and returns its own result."""


def run(task: Task[Result]) -> Result:
    """What a task returns. Exceptions pass from the tasks that raise them to those that yielded these, as in calls."""
    stack: list[Task] = [task]
    value: Any = None
    error: BaseException | None = None
    while stack:
        try:
            wanted = stack[-1].send(value) if error is None else stack[-1].throw(error)
        except StopIteration as done:
            stack.pop()
            value, error = done.value, None
        except BaseException as raised:
            stack.pop()
            value, error = None, raised
        else:
            stack.append(wanted)
            value = error = None
    if error is not None:
        raise error
    return value
