"""Learn a box: run a program without limits, record the files and hosts that it uses, and propose a box.

The path in a system call is read from the program's memory, and the program could change it before the kernel
reads it too. So the record is right for an honest program only.
"""

import contextlib
import functools
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import TypeVar, Unpack

from grue.errors import SandboxError
from grue.sandbox.box import Sandbox
from grue.sandbox.gate import Asked, Gate, is_loopback, memory_of
from grue.sandbox.kernel import EXECUTE, READ_FILE, WRITE_FILE, Rule, coverage, watch
from grue.sandbox.launch import Boxed, Start, Watching, in_confined_thread
from grue.sandbox.places import is_too_wide, packages_of, within
from grue.sandbox.seccomp import known_machine

Started = TypeVar("Started")

_CONTINUE = 1
_AT_FDCWD = -100
_MOST_PATH = 4096
_MOST_PATHS = 100_000
_MANY_FILES = 6
_DNS_PORT = 53
_OPENS = {"open": (0,), "openat": (1,), "openat2": (1,), "creat": (0,)}
_CHANGES = {
    "mkdir": (0,), "mkdirat": (1,), "unlink": (0,), "unlinkat": (1,), "rmdir": (0,), "rename": (0, 1),
    "renameat": (1, 3), "renameat2": (1, 3), "link": (0, 1), "linkat": (1, 3), "symlink": (1,),
    "symlinkat": (2,), "truncate": (0,),
}  # fmt: skip
"""System calls that change a folder or a file, each with the positions (from 0) of the paths to record."""
_STARTS = {"execve": (0,), "execveat": (1,)}
_PATHS = {**_OPENS, **_CHANGES, **_STARTS}


class Watch:
    """What a watched program has done, over all its starts."""

    def __init__(self) -> None:
        self.read: dict[str, None] = {}  # files and folders that existed and were opened to read
        self.written: dict[str, None] = {}  # files that were opened to write, and folders that were changed
        self.changed: dict[str, str] = {}  # for changed folders: the first path that was changed in each
        self.started: dict[str, None] = {}
        # `host:port`: the name if the program used the proxy (and its address, if private), else the address
        self.hosts: dict[str, None] = {}
        self.unlisted: set[str] = set()  # what went past the proxy: `asks` (DNS) and `connects` (TCP)
        self.unix = False
        self.opened: tuple[Rule, ...] = ()  # what any box opens for this program, so it is not proposed
        self.homes: dict[str, None] = {}  # values of `HOME`, never proposed as a whole

    def proposal(self, *, cwd: str) -> Sandbox:
        """Return a narrow box for what was recorded, without the folders of `left_out`; `cwd` becomes `.`."""
        written = self._reduced([path for path in self.written if not self._is_open(path, WRITE_FILE)])
        read = [
            path
            for paths, access in ((self.read, READ_FILE), (self.started, EXECUTE))
            for path in paths
            if not self._is_open(path, access) and not any(within(path, each) for each in written)
        ]
        return Sandbox(
            read=tuple(_shown(path, cwd) for path in self._reduced(self._gathered(read))),
            write=tuple(_shown(path, cwd) for path in written),
            network=True if len(self.unlisted) > 1 else tuple(self.hosts) or None,
            unix_sockets=self.unix,
        )

    def left_out(self) -> tuple[str, ...]:
        """Return the folders that the program opened or changed, but that are too wide for the proposal."""
        folders = {path for path in (*self.written, *self.read) if os.path.isdir(path)}  # noqa: PTH112
        closed = {path for path in folders if not self._is_open(path, WRITE_FILE | READ_FILE)}
        return tuple(sorted(path for path in closed if self._is_too_wide(path)))

    def reasons(self, *, cwd: str) -> dict[str, str]:
        """Return, for each changed folder in the proposal's `write`, the first path changed in it."""
        opened = self.proposal(cwd=cwd).write
        shown = {_shown(folder, cwd): _shown(path, cwd) for folder, path in self.changed.items()}
        return {folder: shown[folder] for folder in opened if folder in shown}

    def _is_open(self, path: str, access: int) -> bool:
        return any(rule.access & access and within(path, os.path.realpath(rule.path)) for rule in self.opened)

    def _is_too_wide(self, folder: str) -> bool:
        return is_too_wide(folder) or any(within(home, folder) for home in self.homes)

    def _gathered(self, paths: list[str]) -> list[str]:
        """Replace the paths in a folder by the folder, if it has six or more of them, or holds packages.

        The paths in a folder that is too wide stay.
        """
        by_folder: dict[str, list[str]] = {}
        for path in paths:
            folder = path if os.path.isdir(path) else os.path.dirname(path)  # noqa: PTH112, PTH120
            by_folder.setdefault(packages_of(folder) or folder, []).append(path)
        found: list[str] = []
        for folder, inside in by_folder.items():
            whole = len(inside) >= _MANY_FILES or packages_of(folder) is not None
            found += [folder] if whole and not self._is_too_wide(folder) else inside
        return found

    def _reduced(self, paths: list[str]) -> list[str]:
        wanted = sorted({path for path in paths if not (os.path.isdir(path) and self._is_too_wide(path))})  # noqa: PTH112
        return [path for path in wanted if not any(path != each and within(path, each) for each in wanted)]


def watching(watch: Watch) -> Sandbox:
    """Return a box that limits nothing, and records in `watch` what the program does."""
    return Watching(start=functools.partial(Watched, watch))


class Watched(Boxed):
    """One start of a program that is watched. The program keeps its `HOME`."""

    def __init__(self, watch: Watch, *, cwd: str, scratch: str | None = None, **start: Unpack[Start]) -> None:
        if not coverage().listener:
            raise SandboxError("Watching needs seccomp's listener.", remedy="Linux 5.9 and later have it.")
        self._watch = watch
        super().__init__(Sandbox(), cwd=cwd, scratch=scratch, **start)
        watch.opened = (*watch.opened, *self._places.rules)
        if (home := start["env"].get("HOME")) is not None:
            self.env["HOME"] = home
            watch.homes[os.path.realpath(home)] = None

    def _gate(self) -> Gate:
        self._watching = _WatchingGate(self._watch)
        return self._watching

    def run(self, start: Callable[[], Started]) -> Started:
        """Call `start` in a thread; record what that thread and its children open, change, run and reach."""
        known = known_machine().calls
        names = tuple(name for name in (*_PATHS, "connect") if name in known)
        if sys.version_info < (3, 11, 4):
            # In these versions `vfork` holds the GIL until `execve`, so that the gate's thread could not
            # answer calls before `execve`. Python's documentation names this attribute.
            subprocess._USE_VFORK = False  # type: ignore[misc]  # noqa: SLF001
        return in_confined_thread(lambda: watch(names), start, self._watching.serve)

    def limit(self, pid: int) -> None:
        """Set no limits."""

    def refusals(self, text: str, *, died: bool = False) -> tuple[str, ...]:  # noqa: ARG002 - as `Boxed` has it
        """Return an empty tuple."""
        return ()


class _WatchingGate(Gate):
    def __init__(self, watch: Watch) -> None:
        super().__init__((), record=True)
        self._watch = watch
        self.seen = watch.hosts
        self._names = {number: name for name, number in known_machine().calls.items()}

    def _decide(
        self, listener: int, key: int, pid: int, call: int, arguments: list[int]
    ) -> tuple[int, int] | None:
        name = self._names.get(call, "")
        with contextlib.suppress(OSError, ValueError, OverflowError):
            if name == "connect":
                asked = self._asked(listener, key, pid, *arguments[:3])
                self._note(asked)
                if self._hands_over(key, asked):
                    return None
                with asked.socket:
                    if asked.place is not None or asked.family == socket.AF_UNSPEC:
                        return self._connect(asked), 0
                    # Do not record a missing socket: the C library tries nscd's, which is mostly absent.
                    if asked.family == socket.AF_UNIX and asked.path and os.path.exists(asked.path):  # noqa: PTH110
                        self._watch.unix = True
            else:
                self._remember(name, pid, arguments)
        return 0, _CONTINUE

    def _note(self, asked: Asked) -> None:
        if asked.place is None:
            return
        host, port = asked.place
        if asked.socket.type == socket.SOCK_DGRAM and port == _DNS_PORT:
            self._watch.unlisted.add("asks")
        elif asked.socket.type == socket.SOCK_STREAM and not is_loopback(host):
            self._watch.unlisted.add("connects")

    def _remember(self, name: str, pid: int, arguments: list[int]) -> None:
        for at in _PATHS[name]:
            path = _path(pid, arguments, at, is_at=at > 0 and name.endswith(("at", "at2")))
            if name in _OPENS:
                flags = os.O_WRONLY | os.O_CREAT if name == "creat" else _flags(name, pid, arguments, at)
                self._opened(path, flags)
            elif name in _STARTS:
                if os.path.isfile(path):  # noqa: PTH113 - a shell tries every folder of `PATH`
                    _keep(self._watch.started, path)
            # Do not record `mkdir` of a folder that exists: it fails, and needs no permission.
            elif not (name.startswith("mkdir") and os.path.lexists(path)):
                self._changed_in(path)

    def _opened(self, path: str, flags: int) -> None:
        exists = os.path.lexists(path)
        writes = flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC
        if exists:
            _keep(self._watch.written if writes else self._watch.read, path)
        elif writes or flags & os.O_CREAT:
            self._changed_in(path)

    def _changed_in(self, path: str) -> None:
        folder = os.path.dirname(path)  # noqa: PTH120
        # Do not record `__pycache__`: Python also runs if it cannot store compiled modules.
        if os.path.isdir(folder) and "__pycache__" not in path.split("/"):  # noqa: PTH112
            _keep(self._watch.written, folder)
            if folder in self._watch.written:
                self._watch.changed.setdefault(folder, path)


def _path(pid: int, arguments: list[int], at: int, *, is_at: bool) -> str:
    raw = b""
    while b"\0" not in raw and len(raw) < _MOST_PATH:
        begin = arguments[at] + len(raw)
        # Read up to the end of a memory page at most, because the next page may not be mapped.
        chunk = memory_of(pid, begin, 4096 - begin % 4096)
        if not chunk:
            break
        raw += chunk
    text = os.fsdecode(raw.partition(b"\0")[0])
    if not text:
        raise FileNotFoundError  # an empty path names no file
    folder = (arguments[at - 1] & 0xFFFFFFFF) if is_at else _AT_FDCWD & 0xFFFFFFFF
    if text.startswith("/"):
        return os.path.realpath(text.replace("/proc/self/", f"/proc/{pid}/", 1))
    base = "cwd" if folder == _AT_FDCWD & 0xFFFFFFFF else f"fd/{folder}"
    return os.path.realpath(os.path.join(os.readlink(f"/proc/{pid}/{base}"), text))  # noqa: PTH115, PTH118


def _flags(name: str, pid: int, arguments: list[int], at: int) -> int:
    if name != "openat2":
        return arguments[at + 1]
    return int.from_bytes(memory_of(pid, arguments[2], 8), "little")


def _keep(found: dict[str, None], path: str) -> None:
    if len(found) < _MOST_PATHS and not path.startswith(("/proc/", "/dev/pts/", "/dev/tty")):
        found[path] = None


def _shown(path: str, cwd: str) -> str:
    home = os.path.expanduser("~")  # noqa: PTH111
    if path == os.path.realpath(cwd):
        return "."
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path
