"""Enforce a box with Linux's Landlock, seccomp and capabilities, and say what this machine lacks for that.

`confine` applies a box to the calling thread, for good. The processes that the thread starts inherit it. So
for each program, `launch.py` makes a thread, which calls `confine`, starts the program, and ends.
"""

import ctypes
import errno
import functools
import os
import platform
import struct
import sys
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from grue.errors import SandboxError
from grue.sandbox.seccomp import Wanted, calls_program, known_machine, machine, program

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_OPENAT2, _RESOLVE_NO_SYMLINKS, _AT_FDCWD = 437, 4, -100
_NO_LINKS = struct.pack("=3Q", getattr(os, "O_PATH", 0) | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS)
_HOW_BYTES = ctypes.c_size_t(len(_NO_LINKS))
_PIDFD_GETFD = 438
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _GET_ACTION_AVAIL, _GET_NOTIF_SIZES = 1, 2, 3
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
_USER_NOTIF = 0x7FC00000
_NO_NEW_PRIVS, _PATH_BENEATH, _VERSION_FLAG = 38, 1, 1
_PR_CAP_AMBIENT, _CLEAR_ALL = 47, 4
_CAPABILITY_VERSION = 0x20080522
_KEPT_CAPABILITIES = (1 << 0) | (1 << 1) | (1 << 3) | (1 << 4)
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID: with these, root keeps its rights over other users' files."""

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
READ = READ_FILE | READ_DIR
WRITE = ((1 << 16) - 1) & ~(EXECUTE | _MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEV
_BIND_TCP, _CONNECT_TCP = 1, 2
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2
_SET_NAME, _LOG_NEW_EXEC_ON, _LOGS_SINCE = 15, 2, 7

LEAST_ABI = 3
"""Landlock's version in Linux 6.2, the lowest that suffices: lower versions cannot forbid `truncate`."""


class Coverage(Struct, frozen=True, kw_only=True):
    """The parts of a box that this machine can enforce."""

    system: str
    supported: bool = True  # whether grue can make any box on this kind of system
    landlock: int  # the version of Landlock; 0: the kernel has none
    seccomp: bool
    listener: bool  # whether a filter can ask a thread to decide about a call; a list of hosts needs this

    def missing(self, *, hosts: bool) -> tuple[str, ...]:
        """Return a sentence for each thing that this machine lacks. `hosts`: the box has a list of hosts."""
        if not self.supported:
            return (f"sandboxes are enforced on Linux with x86-64 or ARM64 only, and this is {self.system}",)
        found = []
        if self.landlock == 0:
            found.append("Landlock is not in this kernel, or it is switched off: files cannot be limited")
        elif self.landlock < LEAST_ABI:
            found.append(
                f"Landlock has version {self.landlock}: files could be emptied. Linux 6.2 has version 3"
            )
        if not self.seccomp:
            found.append("seccomp filters cannot be installed: sockets and tracing cannot be limited")
        elif hosts and not self.listener:
            found.append("seccomp cannot ask about a connection (Linux 5.9): hosts cannot be limited by name")
        return tuple(found)

    def notes(self) -> tuple[str, ...]:
        """Return a sentence if this kernel has Landlock, but cannot stop signals to other programs."""
        if self.landlock == 0 or self.landlock >= 6:
            return ()
        return ("Signals to other programs of this user are not stopped; Linux 6.12 stops them",)


@functools.cache
def coverage() -> Coverage:
    """Find out what this machine can enforce. The result is cached."""
    about = os.uname()
    system = f"{about.sysname} {about.release} on {about.machine}"
    if sys.platform != "linux" or machine() is None:
        return Coverage(system=system, supported=False, landlock=0, seccomp=False, listener=False)
    version = _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    action = ctypes.c_uint32(0x00050000)
    filters = _seccomp(_GET_ACTION_AVAIL, 0, ctypes.byref(action)) == 0
    action = ctypes.c_uint32(_USER_NOTIF)
    asks = filters and _seccomp(_GET_ACTION_AVAIL, 0, ctypes.byref(action)) == 0
    sizes = (ctypes.c_uint16 * 3)()
    asks = asks and _seccomp(_GET_NOTIF_SIZES, 0, sizes) == 0 and tuple(sizes[:2]) == (80, 24)
    asks = asks and _libc().syscall(_PIDFD_GETFD, -1, -1, 0) == -1 and ctypes.get_errno() == errno.EBADF
    return Coverage(system=system, landlock=max(0, version), seccomp=filters, listener=bool(asks))


class Rule(Struct, frozen=True):
    """The allowed access to a file, or to all of a folder. A path with a symbolic link allows nothing."""

    path: str
    access: int


def confine(rules: Iterable[Rule], wanted: Wanted, mark: str = "", ruleset: int = -1) -> int | None:
    """Put the calling thread into a box, for good. What this kernel cannot enforce is left out silently.

    `rules` are added to `ruleset`, which `ruleset_of` has made for the same kind of network, and which is
    closed; with -1, to a new one. `mark` names the thread, in at most 15 characters, for the kernel's audit
    log; empty: the program's refusals are not logged. Return the descriptor of the filter's listener, or
    `None` if `wanted.ask` is empty or the kernel has no seccomp.
    """
    have = coverage()
    libc = _libc()
    _must(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if have.landlock:
        ruleset = ruleset_of((), any_network=wanted.network == "any") if ruleset < 0 else ruleset
        try:
            for rule in rules:
                _add(ruleset, rule, _handled(have.landlock))
            flags = 0
            if mark and have.landlock >= _LOGS_SINCE:
                libc.prctl(_SET_NAME, os.fsencode(mark), 0, 0, 0)
                flags = _LOG_NEW_EXEC_ON
            _must(libc.syscall(_RESTRICT_SELF, ruleset, flags), "landlock_restrict_self")
        finally:
            os.close(ruleset)
    _drop_capabilities()
    return _install_code(program(known_machine(), wanted), listens=bool(wanted.ask)) if have.seccomp else None


def ruleset_of(rules: Iterable[Rule], *, any_network: bool) -> int:
    """Return the descriptor (close-on-exec) of a new Landlock ruleset; with `any_network`, TCP is free."""
    version = coverage().landlock
    net = (_BIND_TCP | _CONNECT_TCP) if version >= 4 and not any_network else 0
    scoped = (_ABSTRACT_SOCKETS | _SIGNALS) if version >= 6 else 0
    attributes = struct.pack("=QQQ", _handled(version), net, scoped)
    size = 8 if version < 4 else 16 if version < 6 else 24
    made = _libc().syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    ruleset = _must(made, "landlock_create_ruleset")
    try:
        for rule in rules:
            _add(ruleset, rule, _handled(version))
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def _handled(version: int) -> int:
    files = (1 << 13) - 1
    files |= _REFER if version >= 2 else 0
    files |= _TRUNCATE if version >= 3 else 0
    files |= _IOCTL_DEV if version >= 5 else 0
    return files


def _add(ruleset: int, rule: Rule, handled: int) -> None:
    # Follow no link: since the path was resolved, another boxed program may have put a link in its place.
    syscall = _libc().syscall
    place = syscall(_OPENAT2, _AT_FDCWD, os.fsencode(rule.path), _NO_LINKS, _HOW_BYTES)
    if place < 0:
        return  # the path is gone or contains a link, or this user may not see it
    try:
        access = rule.access & handled
        while access:
            added = syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", access, place), 0)
            if added == 0:
                return
            if ctypes.get_errno() == errno.EINVAL and access & ~_OF_FILES:
                access &= _OF_FILES  # the rule is for a file, and some rights exist for folders only
                continue
            if ctypes.get_errno() != errno.EBADFD:  # EBADFD: a pipe or a socket, which needs no rule
                _must(added, "landlock_add_rule")
            return
    finally:
        os.close(place)


def _drop_capabilities() -> None:
    # With `no_new_privs`, no program can get the dropped capabilities back.
    libc = _libc()
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    now = ctypes.create_string_buffer(24)
    _must(libc.capget(header, now), "capget")
    effective, permitted, _, _, _, _ = struct.unpack("=6I", now.raw)
    kept = struct.pack("=6I", effective & _KEPT_CAPABILITIES, permitted & _KEPT_CAPABILITIES, 0, 0, 0, 0)
    _must(libc.capset(header, kept), "capset")
    libc.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)


def _install_code(code: bytes, *, listens: bool) -> int | None:
    buffer = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("=H6xQ", len(code) // 8, ctypes.addressof(buffer))
    if not listens:
        _must(_seccomp(_SET_MODE_FILTER, 0, described), "seccomp")
        return None
    # Without `_WAIT_KILLABLE`, a signal interrupts a call while the listener decides about it, and programs
    # in Go get signals all the time. Linux before 5.19 refuses the flag.
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):
        listener = _seccomp(_SET_MODE_FILTER, flags, described)
        if listener >= 0 or ctypes.get_errno() != errno.EINVAL:
            break
    return _must(listener, "seccomp")


def watch(calls: tuple[str, ...]) -> int | None:
    """Have the kernel report the system calls `calls` of this thread and its children to a listener.

    Return the listener's descriptor.
    """
    _must(_libc().prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    return _install_code(calls_program(known_machine(), calls), listens=True)


def connect(descriptor: int, address: bytes) -> int:
    """Connect a socket to the C `sockaddr` in `address`. Return 0, or the errno."""
    done = _libc().connect(descriptor, address, len(address))
    return 0 if done == 0 else ctypes.get_errno()


def descriptor_of(pidfd: int, number: int) -> int:
    """Return a copy of the file descriptor `number` of the process of `pidfd`, or raise `OSError`."""
    found = _libc().syscall(_PIDFD_GETFD, pidfd, number, 0)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(found)


def _must(result: int, what: str) -> int:
    if result < 0:
        said = os.strerror(ctypes.get_errno())
        raise SandboxError(f"The sandbox could not be made: {what}: {said}.")
    return result


def _seccomp(operation: int, flags: int, argument: Any) -> int:
    return int(_libc().syscall(_SECCOMP[platform.machine()], operation, flags, argument))


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
