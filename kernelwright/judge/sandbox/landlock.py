"""Landlock: a process gives up, for itself and all that it starts, every file but those that it names.

Source: the kernel's Documentation/userspace-api/landlock.rst. Needs no privilege; Linux 5.13 and later, where the
kernel was built and started with it.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kernelwright.judge.sandbox.kernel_calls import call

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _DEVICE_CONTROL = 1 << 14, 1 << 15
#: What makes sense for a file; the other rights are a folder's.
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE_CONTROL
#: No character or block devices are ever made.
_MAKE_DEVICES = 1 << 6 | 1 << 11
#: By version of the interface: how many rights on files it knows.
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_NETWORK_SINCE, _SCOPE_SINCE = 4, 6
_VERSION_ONLY, _PATH_BENEATH = 1, 1


@dataclass(frozen=True, slots=True)
class Allowed:
    """Folders (with all below) and files: to read and run, to write as well, and devices to open for both."""

    readable: tuple[str, ...]
    writable: tuple[str, ...]
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Restricted:
    """What landlock keeps from the process: files always; TCP, and signals to others, by the kernel's version."""

    version: int
    tcp: bool
    signals: bool


class _RulesetAttributes(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def version() -> int:
    """The version of the kernel's interface; 0: there is none."""
    try:
        return call("landlock_create_ruleset", 0, 0, _VERSION_ONLY)
    except OSError:
        return 0


def restrict(allowed: Allowed) -> Restricted:
    """Restrict this thread, and all that it starts, to ``allowed``. What is named and does not exist is left out.

    Raises OSError where the kernel refuses; nothing is restricted then. Needs PR_SET_NO_NEW_PRIVS.
    """
    known = version()
    if known < 1:
        raise OSError("no landlock")
    rights = (1 << _RIGHTS.get(known, 16)) - 1
    network = 0b11 if known >= _NETWORK_SINCE else 0  # to bind and to connect TCP
    scope = 0b11 if known >= _SCOPE_SINCE else 0  # abstract sockets and signals stay within what is restricted
    attributes = _RulesetAttributes(rights, network, scope)
    size = 24 if known >= _SCOPE_SINCE else 16 if known >= _NETWORK_SINCE else 8
    rules = call("landlock_create_ruleset", ctypes.addressof(attributes), size, 0)
    try:
        read = _EXECUTE | _READ_FILE | _READ_FOLDER
        _allow(rules, allowed.readable, read & rights)
        _allow(rules, allowed.writable, rights & ~_MAKE_DEVICES)
        _allow(rules, allowed.devices, (read | _WRITE_FILE | _TRUNCATE | _DEVICE_CONTROL) & rights)
        call("landlock_restrict_self", rules, 0)
    finally:
        os.close(rules)
    return Restricted(known, tcp=known >= _NETWORK_SINCE, signals=known >= _SCOPE_SINCE)


def _allow(rules: int, paths: Iterable[str], rights: int) -> None:
    for path in paths:
        try:
            # the path alone: no right to read it is needed, and a device is not woken
            descriptor = os.open(Path(path), os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            rule = _PathRule(rights if folder else rights & _OF_FILES, descriptor)
            call("landlock_add_rule", rules, _PATH_BENEATH, ctypes.addressof(rule), 0)
        finally:
            os.close(descriptor)
