"""The process between the judge and a worker: enters namespaces, starts the worker confined, reaps and ends all of it.

Runs as a small interpreter of its own (no PyTorch, one thread), since a process with threads can neither fork safely
nor enter a user namespace:

    judge -> launcher -> [first process of the PID namespace ->] worker

It ends with the worker's own exit status, or by the same signal, after everything that the worker started has ended;
it ends all of that as well when the judge closes the control pipe, or ends in whatever way.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from kernelwright.judge.sandbox import process_tree
from kernelwright.judge.sandbox.confine import InForce, Plan, apply_in_child
from kernelwright.judge.sandbox.kernel_calls import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    call,
    mount,
    prctl,
    unshare,
)

#: Exit status where the worker could not be started.
FAILED = 125
_MEMORY_FOLDER_BYTES = 256 << 20
_HERE, _RECURSIVE, _READ_ONLY = -100, 0x8000, 1


def main() -> None:
    """Start the command of the order in ``argv[1]`` and stay until it has ended."""
    launch(json.loads(sys.argv[1]))


def launch(order: dict[str, Any], become: Callable[[], None] | None = None) -> None:
    """Start the order's command, or ``become`` it in the confined process, and end as it ended.

    Where the order has a descriptor ``ended``, the exit status, or the negative number of a signal, is written there.
    """
    plan, status, control = Plan.from_json(order["plan"]), order["status"], order["control"]
    os.set_inheritable(status, False)
    with contextlib.suppress(OSError):
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # who leaves its parents stays below this process
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    if plan.mechanisms.other_user:
        _give_away(plan.folder, plan.user)
    facts = InForce(namespaces=_enter_namespaces(plan.mechanisms.namespaces))
    results, result = os.pipe()
    child = os.fork()
    if child == 0:
        _child(plan, become or (lambda: os.execv(order["command"][0], order["command"])), order["pass_fds"], facts,
               status, result,
               keep_out=(control, wake, waker, results, *([order["ended"]] if "ended" in order else [])))
    for descriptor in (status, result, *order["pass_fds"]):
        os.close(descriptor)
    ended = _wait_for(child, wake, control)
    reported = os.read(results, 32) if "PID" in facts.namespaces else b""
    process_tree.end_members(os.getpid())
    final = int(reported) if reported else ended
    if "ended" in order:
        os.write(order["ended"], str(os.waitstatus_to_exitcode(final)).encode())
    _end_like(final)


def _give_away(folder: str, user: int) -> None:
    """The worker's folder to the user that the worker will be."""
    for place, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.chown(os.path.join(place, name), user, user, follow_symlinks=False)


def _enter_namespaces(kinds: tuple[str, ...]) -> list[str]:
    """The namespaces entered: all of ``kinds``, or none where the kernel refuses."""
    if not kinds:
        return []
    user, group = os.geteuid(), os.getegid()
    try:
        unshare(*kinds)
    except OSError:
        return []
    if "user" in kinds:  # the same numbers inside as outside, and no others
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as opened:
                opened.write(text)
    return list(kinds)


def _child(plan: Plan, become: Callable[[], None], pass_fds: list[int], facts: InForce, status: int, result: int,
           keep_out: tuple[int, ...]) -> None:
    """In the forked child: be the worker, or the first process of the PID namespace above it. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in keep_out:
            os.close(descriptor)
        _set_mounts(plan, facts)
        if "PID" in facts.namespaces:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.setsid()
            worker = os.fork()
            if worker:
                _be_first_process(worker, result, (status, *pass_fds))
        os.close(result)
        apply_in_child(plan, facts, protected=(os.getppid(), -os.getpgid(0)))
        os.chdir(plan.folder)  # once more: what is mounted there may be another
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        for descriptor in pass_fds:
            os.set_inheritable(descriptor, True)
        os.write(status, json.dumps(asdict(facts)).encode() + b"\n")
        become()
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(status, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
    finally:
        os._exit(FAILED)


def _be_first_process(worker: int, result: int, close: tuple[int, ...]) -> None:
    """Reap until the worker has ended, and hand on its status. With this process the kernel ends all of its kind."""
    for descriptor in (*close, 0, 1, 2):
        os.close(descriptor)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)  # the kernel shields a first process from what it does not handle
    while True:
        number, status = os.wait()
        if number == worker:
            os.write(result, str(status).encode())
            os._exit(0)


def _set_mounts(plan: Plan, facts: InForce) -> None:
    """In a mount namespace: processes of this namespace in /proc, a /dev/shm of its own, and everything else read-only
    where landlock does not see to that. Raises OSError where /proc cannot be mounted in a PID namespace."""
    if "mount" not in facts.namespaces:
        return
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    if "PID" in facts.namespaces:
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    if not plan.mechanisms.landlock:
        with contextlib.suppress(OSError):
            _mount_read_only(plan.folder)
            facts.read_only_mounts = True
    with contextlib.suppress(OSError):
        mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, f"size={_MEMORY_FOLDER_BYTES},mode=1777")
        facts.own_memory_folder = True


def _mount_read_only(folder: str) -> None:
    """Everything but ``folder`` read-only, as far as files go: a device may still be written."""
    mount(folder, folder, "", MS_BIND)
    for path, flags, attributes in (("/", _RECURSIVE, (_READ_ONLY, 0, 0, 0)), (folder, 0, (0, _READ_ONLY, 0, 0))):
        text, filled = ctypes.create_string_buffer(os.fsencode(path)), (ctypes.c_uint64 * 4)(*attributes)
        call("mount_setattr", _HERE, ctypes.addressof(text), flags, ctypes.addressof(filled), ctypes.sizeof(filled))


def _wait_for(child: int, wake: int, control: int) -> int:
    """Reap until ``child`` has ended; its wait status. When the judge closes its end of ``control``, all is ended."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                if reaped[0] == child:
                    return reaped[1]
        ready = select.select([wake, control], [], [])[0]
        if control in ready:
            os.kill(child, signal.SIGKILL)
            process_tree.end_members(os.getpid())
            os._exit(128 + signal.SIGKILL)
        os.read(wake, 512)


def _end_like(status: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(OSError, ValueError):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(128 - code)  # a signal that ends nothing
