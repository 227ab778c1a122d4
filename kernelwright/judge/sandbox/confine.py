"""What a process applies to itself before a candidate's code runs in it: rights that it gives up for good."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
from dataclasses import asdict, dataclass, field
from typing import Any

from kernelwright.judge.sandbox import landlock, seccomp
from kernelwright.judge.sandbox.kernel_calls import (
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    drop_capabilities,
    prctl,
)

_OPEN_FILES = 4096
#: Threads count as processes in the kernel's own limit: room for pools on large machines.
_THREADS_PER_PROCESS = 16


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """What to use: kinds of namespaces, whether landlock and seccomp, and whether root's worker becomes a user that
    owns nothing else (where there is no landlock). ``isolation.available`` says what works."""

    namespaces: tuple[str, ...] = ()
    landlock: bool = False
    seccomp: bool = False
    other_user: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a worker's process is told about its confinement; plain data, goes through JSON."""

    folder: str
    readable: tuple[str, ...]
    devices: tuple[str, ...]
    file_bytes: int
    processes: int
    mechanisms: Mechanisms
    #: Processes that must get no signal: the judge and those above it. They cannot be seen in a PID namespace.
    protected: tuple[int, ...] = ()
    #: The number that ``other_user`` stands for: no two workers at a time should have the same.
    user: int = 65534

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @staticmethod
    def from_json(document: dict[str, Any]) -> Plan:
        """The plan that ``to_json`` wrote."""
        mechanisms: dict[str, Any] = document.pop("mechanisms")
        mechanisms = {**mechanisms, "namespaces": tuple(mechanisms["namespaces"])}
        fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value
                                  for name, value in document.items()}
        return Plan(**fields, mechanisms=Mechanisms(**mechanisms))


@dataclass(slots=True)
class InForce:
    """What is in force, as seen when it was applied; plain data, goes through JSON."""

    namespaces: list[str] = field(default_factory=list)
    own_memory_folder: bool = False
    """/dev/shm is the worker's own."""
    read_only_mounts: bool = False
    no_new_rights: bool = False
    no_capabilities: bool = False
    landlock: int = 0
    landlock_signals: bool = False
    seccomp: bool = False
    other_user: bool = False
    root: bool = False
    """The process has the user number of the system's administrator."""


def apply_in_child(plan: Plan, in_force: InForce | None = None, *, protected: tuple[int, ...] = (),
                   dies_with_parent: bool = True) -> InForce:
    """Confine this process for good, and say what is in force.

    To be called in a fresh child with one thread, before any code of a candidate runs; a process that is not the
    leader of a session gets one of its own. What the system lacks is left out; what the plan does not ask for, too.
    Raises RuntimeError when there are several threads: what is given up here holds for one thread and those it starts.
    """
    if threading.active_count() > 1:
        raise RuntimeError("a process with several threads cannot confine itself")
    facts = in_force or InForce()
    if os.getsid(0) != os.getpid():
        os.setsid()
    _limit(plan, own_count=plan.mechanisms.other_user or ("user" in facts.namespaces and os.geteuid() != 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    if plan.mechanisms.other_user:
        with contextlib.suppress(OSError):
            _become(plan.user)
            facts.other_user = True
    facts.root = os.geteuid() == 0
    with contextlib.suppress(OSError):
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        facts.no_new_rights = True
    if facts.no_new_rights:
        with contextlib.suppress(OSError):
            drop_capabilities()
            facts.no_capabilities = True
        if plan.mechanisms.landlock:
            with contextlib.suppress(OSError):
                restricted = landlock.restrict(_files(plan, facts))
                facts.landlock, facts.landlock_signals = restricted.version, restricted.signals
    if dies_with_parent:
        with contextlib.suppress(OSError):  # last of those that change rights: a change of rights clears it
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if plan.mechanisms.seccomp and facts.no_new_rights:
        # with a PID namespace of its own, only the first process there needs protection; -1 is "all that I may"
        others = (1,) if "PID" in facts.namespaces else (*protected, *plan.protected)
        with contextlib.suppress(OSError):
            seccomp.restrict((-1, *others))
            facts.seccomp = True
    return facts


def _files(plan: Plan, facts: InForce) -> landlock.Allowed:
    writable = (plan.folder, "/dev/shm") if facts.own_memory_folder else (plan.folder,)
    # CUDA's first call fails where it may not write the names of its threads. This process's alone: /proc as a whole
    # would open the system's settings to root.
    names = (f"/proc/{os.getpid()}/task",) if any("nvidia" in device for device in plan.devices) else ()
    return landlock.Allowed(plan.readable, writable, (*plan.devices, *names))


def _become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    prctl(PR_SET_DUMPABLE, 1)  # or its own /proc/self would be root's


def _limit(plan: Plan, own_count: bool) -> None:
    """Limits of the kernel. Neither address space (CUDA reserves terabytes) nor processor time are limited here."""
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: plan.file_bytes, resource.RLIMIT_NOFILE: _OPEN_FILES}
    if own_count:  # elsewhere it counts all that the user runs, and nothing for the administrator
        limits[resource.RLIMIT_NPROC] = plan.processes * _THREADS_PER_PROCESS
    for kind, wanted in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (value, value))
