"""Calls of the Linux kernel that Python has no function for, through libc. Other systems: every call raises OSError."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys

NEW_NAMESPACE = {"mount": 0x00020000, "IPC": 0x08000000, "user": 0x10000000, "PID": 0x20000000, "network": 0x40000000}

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE, MS_BIND = 0x2, 0x4, 0x8, 0x4000, 0x40000, 0x1000

MACHINE = platform.machine()
#: Numbers of system calls: (x86_64, aarch64), None where the machine has none. Source: the kernel's unistd.h of each.
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "capset": (126, 91),
    "chroot": (161, 51), "clock_adjtime": (305, 266), "clock_settime": (227, 112), "clone": (56, 220),
    "clone3": (435, 435), "connect": (42, 203), "delete_module": (176, 106), "fanotify_init": (300, 262),
    "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430),
    "fspick": (433, 433), "init_module": (175, 105), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "ioperm": (173, None), "iopl": (172, None), "ioprio_set": (251, 30),
    "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219),
    "kill": (62, 129), "landlock_add_rule": (445, 445), "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446), "migrate_pages": (256, 238), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "move_pages": (279, 239), "mq_open": (240, 180), "msgget": (68, 186),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "perf_event_open": (298, 241), "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pivot_root": (155, 41), "prlimit64": (302, 261),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60), "reboot": (169, 142),
    "request_key": (249, 218), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "seccomp": (317, 277), "semget": (64, 190), "sendto": (44, 206),
    "setdomainname": (171, 162), "sethostname": (170, 161), "setns": (308, 268), "setpriority": (141, 140),
    "settimeofday": (164, 170), "shmget": (29, 194), "socket": (41, 198), "swapoff": (168, 225), "swapon": (167, 224),
    "syslog": (103, 116), "tgkill": (234, 131), "tkill": (200, 130), "umount2": (166, 39), "unshare": (272, 97),
    "userfaultfd": (323, 282),
}


def number(name: str) -> int | None:
    """The number of a system call on this machine; None where it has none, or the machine is another."""
    column = {"x86_64": 0, "aarch64": 1}.get(MACHINE)
    return None if column is None or sys.platform != "linux" else NUMBERS[name][column]


def call(name: str, *arguments: int) -> int:
    """Make a system call with whole numbers (addresses are numbers). Raises OSError with the kernel's error."""
    wanted = number(name)
    if wanted is None:
        raise OSError(errno.ENOSYS, f"no system call {name}")
    return _checked(_libc().syscall(ctypes.c_long(wanted), *map(ctypes.c_long, arguments)), name)


def prctl(option: int, *arguments: int) -> int:
    """prctl(2); OSError where it is refused."""
    filled = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    return _checked(_libc().prctl(option, *filled), "prctl")


def unshare(*kinds: str) -> None:
    """Enter new namespaces of these kinds (keys of ``NEW_NAMESPACE``), all or none. OSError where it is refused."""
    call("unshare", sum(NEW_NAMESPACE[kind] for kind in kinds))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2); OSError where it is refused."""
    texts = [ctypes.create_string_buffer(os.fsencode(text)) for text in (source, target, kind, options)]
    source_at, target_at, kind_at, options_at = map(ctypes.addressof, texts)
    call("mount", source_at, target_at, kind_at, flags, options_at)


def drop_capabilities() -> None:
    """Give up every capability for good: none is left, and none comes back by exec. OSError where that is refused.

    Needs PR_SET_NO_NEW_PRIVS before: it is what keeps a root user's exec from getting them back.
    """
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # beyond the last one; or the right to drop them is missing, and no_new_privs does it alone
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, the calling thread
    none = (ctypes.c_uint32 * 6)()
    call("capset", ctypes.addressof(header), ctypes.addressof(none))


def _libc() -> ctypes.CDLL:
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "not a Linux kernel")
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return library


def _checked(result: int, name: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result
