"""A filter of system calls (seccomp): what a candidate has no business with answers "not permitted", the rest passes.

Source: the kernel's Documentation/userspace-api/seccomp_filter.rst; instructions as of linux/filter.h (classic BPF).
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable

from kernelwright.judge.sandbox.kernel_calls import MACHINE, NEW_NAMESPACE, call, number

#: Always refused: other processes' memory, the kernel's own settings, mounts, namespaces, and what is shared by name
#: and outlives a process (System V memory, message queues, keys), in which results could be left for a later process.
REFUSED = (
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "kcmp", "pidfd_getfd",
    "pidfd_send_signal", "tkill", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module",
    "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick",
    "mount_setattr", "unshare", "setns", "swapon", "swapoff", "reboot", "settimeofday", "clock_settime",
    "clock_adjtime", "adjtimex", "sethostname", "setdomainname", "bpf", "perf_event_open", "keyctl", "add_key",
    "request_key", "io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "acct", "quotactl",
    "open_by_handle_at", "iopl", "ioperm", "ioprio_set", "shmget", "semget", "msgget", "mq_open", "syslog",
    "fanotify_init", "connect")
#: Calls aimed at the process whose number is their first argument: refused for protected processes.
AIMED = ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "sched_setaffinity",
         "sched_setscheduler", "sched_setparam", "sched_setattr", "migrate_pages", "move_pages")
#: A program has at most 4096 instructions; two are spent on each protected process.
_MOST_PROTECTED = 1800
#: Domains of sockets that may be made: within the machine (AF_UNIX), whose connect(2) is refused as well.
_LOCAL_SOCKETS = 1

_AUDIT_MACHINE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_OTHER_NUMBERS = 0x40000000  # the x32 numbers of an x86_64 kernel
_LOAD, _JUMP, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16
_MODE_FILTER, _NO_SPECULATION_COST = 1, 1 << 2
#: Words that an address fills.
_LOW, _HIGH = 0, 4


def supported() -> bool:
    """Whether filters are written for this kind of machine."""
    return number("seccomp") is not None


def restrict(protected: Iterable[int] = ()) -> None:
    """Filter the calls of this thread and of all that it starts, for good. ``protected``: ids of processes (negative:
    of groups) that must get no signals and no changes of priority or placement.

    Raises OSError where the kernel refuses. Needs PR_SET_NO_NEW_PRIVS.
    """
    if not supported():
        raise OSError(errno.ENOSYS, "no filter for this machine")
    text = ctypes.create_string_buffer(program(protected))

    class Program(ctypes.Structure):
        _fields_ = [("count", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]

    filled = Program(len(text.raw) // 8, ctypes.addressof(text))
    try:
        # Older kernels slow a filtered process down against speculation, which would be seen in its times.
        call("seccomp", _MODE_FILTER, _NO_SPECULATION_COST, ctypes.addressof(filled))
    except OSError:
        call("seccomp", _MODE_FILTER, 0, ctypes.addressof(filled))


def program(protected: Iterable[int] = ()) -> bytes:
    """The filter's instructions for this machine, eight bytes each."""
    lines = [_at(_LOAD, _MACHINE_AT), _at(_EQUAL, _AUDIT_MACHINE[MACHINE], 1, 0), _at(_RETURN, _KILL),
             _at(_LOAD, _NUMBER_AT)]
    if MACHINE == "x86_64":
        lines += [_at(_AT_LEAST, _OTHER_NUMBERS, 0, 1), _refuse(errno.ENOSYS)]
    for name in REFUSED:
        if (wanted := number(name)) is not None:
            lines += [_at(_EQUAL, wanted, 0, 1), _refuse()]
    # clone3 passes its flags in memory, which a filter cannot read; libc falls back to clone where there is none
    lines += [_at(_EQUAL, _number("clone3"), 0, 1), _refuse(errno.ENOSYS)]
    namespaces = sum(NEW_NAMESPACE.values()) | 0x02000000 | 0x04000000  # control groups, host names
    lines += _when("clone", [_at(_LOAD, _word(0)), _at(_ANY_BIT, namespaces, 0, 1), _refuse()])
    lines += _when("socket", [_at(_LOAD, _word(0)), _at(_EQUAL, _LOCAL_SOCKETS, 1, 0), _refuse()])
    lines += _when("sendto", [_at(_LOAD, _word(4)), _at(_EQUAL, 0, 0, 2), _at(_LOAD, _word(4, _HIGH)),
                              _at(_EQUAL, 0, 1, 0), _refuse()])  # an address: a message without connect
    lines += _when("prlimit64", [_at(_LOAD, _word(0)), _at(_EQUAL, 0, 1, 0), _refuse()])  # limits of another process
    # priorities: its own alone, never those of a group or of all that a user runs
    lines += _when("setpriority", [_at(_LOAD, _word(0)), _at(_EQUAL, 0, 0, 2), _at(_LOAD, _word(1)),
                                   _at(_EQUAL, 0, 1, 0), _refuse()])
    targets = list(dict.fromkeys(protected))[:_MOST_PROTECTED]
    checks = [line for target in targets for line in (_at(_EQUAL, target & 0xFFFFFFFF, 0, 1), _refuse())]
    lines += _when(AIMED, [_at(_LOAD, _word(0)), *checks])
    return b"".join([*lines, _at(_RETURN, _ALLOW)])


def _when(names: str | tuple[str, ...], lines: list[bytes]) -> list[bytes]:
    """Instructions for these calls alone, after which they are allowed: the number stays loaded for those behind."""
    wanted = [_number(name) for name in ((names,) if isinstance(names, str) else names)]
    body = [*lines, _at(_RETURN, _ALLOW)]
    over = _at(_JUMP, len(body))  # of any length; a condition's is at most 255
    return [*(_at(_EQUAL, value, len(wanted) - index, 0) for index, value in enumerate(wanted)), over, *body]


def _number(name: str) -> int:
    """The number of a call that every machine with a filter has."""
    wanted = number(name)
    assert wanted is not None, name
    return wanted


def _word(argument: int, half: int = _LOW) -> int:
    return _ARGUMENTS_AT + 8 * argument + half


def _refuse(code: int = errno.EPERM) -> bytes:
    return _at(_RETURN, _ERROR | code)


def _at(code: int, value: int, when: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", code, when, otherwise, value)
