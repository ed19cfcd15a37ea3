"""Start a program in its box: check what can be enforced, confine a thread, start the program from it.

Each start has its own thread, because a program inherits its box from the thread that starts it. Python code
that confines the child between `fork` and `exec` would not be safe while grue has other threads.
"""

import contextlib
import itertools
import os
import queue
import resource
import secrets
import shutil
import sys
import tempfile
import warnings
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, TypeVar, Unpack

from msgspec import Struct

from grue.errors import SandboxError
from grue.sandbox.box import Sandbox, in_words
from grue.sandbox.gate import Gate
from grue.sandbox.kernel import Rule, confine, coverage, ruleset_of
from grue.sandbox.places import home, places_of, real_once, real_path
from grue.sandbox.refusals import reads_audit, refusals
from grue.sandbox.seccomp import Wanted

Started = TypeVar("Started")

_MIB = 1 << 20
_END_S = 10.0  # an interrupted start may not have begun its thread
_REMEDY = (
    'Run the program without a sandbox ("sandbox": "none") or in a container, or let grue enforce what it can'
    ' ("required": false in the sandbox). `grue doctor` says what this machine can enforce.'
)


class Start(TypedDict):
    """A program to start in a box: its absolute path, its arguments, and its environment."""

    program: str
    args: Sequence[str]
    env: Mapping[str, str]


class SandboxWarning(RuntimeWarning):
    """A program runs in a box that this machine enforces only in part."""


class Boxed:
    """One start of a program in its box, made by `boxed`. `env` is the environment to start it with."""

    def __init__(self, box: Sandbox, *, cwd: str, scratch: str | None = None, **start: Unpack[Start]) -> None:
        self._box, self._cwd = box, cwd
        # Without a listener, connections cannot be checked. Then a box with a list of hosts allows any host.
        self._any_network = box.any_network or bool(box.hosts and not coverage().listener)
        self.gate: Gate | None = None
        self._released: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._made: queue.SimpleQueue[None] | None = None  # gets an item when the thread of the start ends
        self.scratch = scratch or scratch_path()
        self._mark = self.scratch[-15:] if reads_audit() else ""
        os.mkdir(self.scratch, 0o700)  # noqa: PTH102
        try:
            self._places = places_of(box, cwd=cwd, scratch=self.scratch, **start)
            self.gate = self._gate()
        except BaseException:
            self.end()
            raise
        self.env = dict(start["env"])
        if not coverage().supported:
            return
        self.env.update({"TMPDIR": self.scratch, "TMP": self.scratch, "TEMP": self.scratch})
        if self.gate is not None:
            self.env.update(self.gate.environment())
        if not opens_home(box, cwd):
            # Programs accept that a file in `HOME` is absent, but many fail if they may not read it.
            self.env["HOME"] = self.scratch

    def _gate(self) -> Gate | None:
        hosts = () if self._any_network else self._box.hosts
        return Gate(hosts, unix=self._box.unix_sockets) if hosts else None

    def run(self, start: Callable[[], Started]) -> Started:
        """Call `start` in a boxed thread (in this thread if boxes are unsupported), and return the result."""
        if not coverage().supported:
            return start()
        network = "any" if self._any_network else "tcp" if self._box.hosts else "none"
        unix, watches = self._box.unix_sockets, bool(self._places.written)
        asks = ("connect", "listen")[: 1 + unix] if self.gate is not None else ()
        wanted = Wanted(network=network, unix_sockets=unix, watches=watches, ask=asks)
        serve = None if self.gate is None else self.gate.serve
        system, own = self._places.system, self._places.own

        def confined() -> int | None:
            ruleset = _taken(system, any_network=self._any_network)
            return confine(own if ruleset >= 0 else self._places.rules, wanted, self._mark, ruleset)

        made: queue.SimpleQueue[None] = queue.SimpleQueue()

        def afterwards() -> None:
            self._released.get()
            try:
                _make_ahead(system, any_network=self._any_network)
            finally:
                made.put(None)

        result = in_confined_thread(confined, start, serve, afterwards)
        self._made = made
        return result

    def released(self) -> None:
        """Let the thread make rules for the next start, and end. Call this when the program is started."""
        self._released.put(None)

    def limit(self, pid: int) -> None:
        """On Linux, set the box's resource limits for a process, and forbid it core dumps."""
        box = self._box
        _lower(pid, resource.RLIMIT_CORE, 0)
        for which, limit, unit in (
            # `RLIMIT_AS` would stop Node, which reserves gigabytes of address space that it never uses.
            (resource.RLIMIT_DATA, box.memory_mb, _MIB),
            (resource.RLIMIT_NOFILE, box.open_files, 1),
            (resource.RLIMIT_FSIZE, box.file_mb, _MIB),
        ):
            if limit is not None:
                _lower(pid, which, limit * unit)
        if box.cpu_s is not None:
            # The kernel sends SIGXCPU, which says why the program ends, and SIGKILL a second later.
            _lower(pid, resource.RLIMIT_CPU, box.cpu_s, box.cpu_s + 1)
        if box.processes is not None and sys.platform == "linux":
            _lower(pid, resource.RLIMIT_NPROC, _tasks_of_user() + box.processes)

    def refusals(self, text: str, *, died: bool = False) -> tuple[str, ...]:
        """Say in up to 5 sentences what the box refused. `text`: the output; `died`: the program failed."""
        network = "any" if self._any_network else "hosts" if self.gate is not None else "none"
        refused = () if self.gate is None else tuple(self.gate.refused)
        places = self._places
        return refusals(
            text,
            places.rules,
            refused,
            network=network,
            folder=self._cwd,
            unix_sockets=self._box.unix_sockets,
            broken=places.broken,
            died=died,
            mark=self._mark,
        )

    def end(self) -> None:
        """Remove the scratch folder and close the gate. Call this when no process of the program lives."""
        self.released()
        if self.gate is not None:
            self.gate.end()
        if self._made is not None:
            with contextlib.suppress(queue.Empty):
                self._made.get(timeout=_END_S)
            self._made = None
        try:
            os.rmdir(self.scratch)  # noqa: PTH106 - usually it is empty
        except OSError:
            with contextlib.suppress(OSError):
                remove_folder(self.scratch)


def scratch_path() -> str:
    """Return a path for a new scratch folder, without making the folder."""
    return os.path.join(real_once(tempfile.gettempdir()), f"grue-box-{secrets.token_hex(8)}")  # noqa: PTH118


def remove_folder(folder: str) -> None:
    """Remove a folder; on Linux even if folders in it forbid all access, or have paths that are too long."""
    if sys.platform != "linux":
        shutil.rmtree(folder)
        return
    os.chmod(folder, 0o700)  # noqa: PTH101
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    free = map(f"{secrets.token_hex(8)}-{{}}".format, itertools.count())
    try:
        while names := os.listdir(top):  # noqa: PTH208 - `Path` cannot list an open folder
            for name in names:
                try:
                    os.unlink(name, dir_fd=top)
                except (IsADirectoryError, PermissionError):
                    _empty(name, top, free)
                    os.rmdir(name, dir_fd=top)
        os.rmdir(folder)  # noqa: PTH106
    finally:
        os.close(top)


def _empty(name: str, top: int, free: Iterator[str]) -> None:
    """Move all entries of the folder `name` in the open folder `top` into `top`, with names from `free`."""
    folder = _unlocked(name, top)
    try:
        for each in os.listdir(folder):  # noqa: PTH208
            with contextlib.suppress(NotADirectoryError):
                os.close(_unlocked(each, folder))  # moving a folder needs the permission to write in it
            os.rename(each, next(free), src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)


def _unlocked(name: str, folder: int) -> int:
    """Give the owner access to the folder `name` in `folder`, and open it. Do not follow symbolic links."""
    place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{place}", 0o700)  # noqa: PTH101
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(place)


class Watching(Sandbox, frozen=True, kw_only=True):
    """A box that limits nothing and records what the program does. For it, `boxed` returns `start(...)`."""

    start: Callable[..., Boxed]


def boxed(box: Sandbox, *, cwd: str | None, scratch: str | None = None, **start: Unpack[Start]) -> Boxed:
    """Prepare a start in a box. `cwd` is the working directory; `None`: grue's own.

    If this machine cannot enforce all of the box, raise `SandboxError`, or warn if the box is not `required`.
    """
    folder = str(Path(cwd or "").absolute())  # an absolute `cwd` works even if grue's own was deleted
    if isinstance(box, Watching):
        return box.start(cwd=folder, scratch=scratch, **start)
    missing = missing_for(box)
    if missing and box.required:
        raise SandboxError(f"The sandbox cannot be enforced: {'; '.join(missing)}.", remedy=_REMEDY)
    if missing:
        said = f"{start['program']} runs in a sandbox that is enforced in part: {'; '.join(missing)}."
        warnings.warn(said, SandboxWarning, stacklevel=2)
    return Boxed(box, cwd=folder, scratch=scratch, **start)


def missing_for(box: Sandbox) -> tuple[str, ...]:
    """Return a sentence for each part of a box that this machine cannot enforce."""
    found = list(coverage().missing(hosts=bool(box.hosts)))
    if box.processes is not None and hasattr(os, "getuid") and os.getuid() == 0:
        found.append("the kernel does not limit the number of root's processes")
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        found.append("threads are gevent's greenlets, and a sandbox is closed around a thread of the system")
    return tuple(found)


def is_enforced(box: Sandbox | None) -> bool:
    """Return whether this machine enforces all of `box`; `False` if it is `None` or a `Watching`."""
    return box is not None and not isinstance(box, Watching) and not missing_for(box)


def reach(box: Sandbox | None) -> str:
    """Return in one line what a program can reach, and what is not enforced; empty: nothing is limited."""
    if box is None or isinstance(box, Watching):
        return ""
    missing = missing_for(box)
    return "; not enforced: ".join((in_words(box), *(["; ".join(missing)] if missing else [])))


def opens_home(box: Sandbox, cwd: str) -> bool:
    """Return whether `read` or `write` of a box names the home folder, a path in it, or a folder above."""
    listed = [os.path.join(cwd, os.path.expanduser(path)) for path in (*box.read, *box.write)]  # noqa: PTH111, PTH118
    listed += [real_path(each) for each in listed]
    mine = f"{home()}/"
    return any(each.startswith(mine) or mine.startswith(each.rstrip("/") + "/") for each in listed)


def _no_thread(full: RuntimeError) -> SandboxError:
    return SandboxError(f"A sandbox needs a thread of its own: {full}.")


class _Ahead(Struct, frozen=True):
    """A ruleset made in advance, so that the next program starts sooner: adding a rule takes 5 us."""

    system: tuple[Rule, ...]
    ruleset: int
    process: int  # id of the process that made the ruleset: a forked child must not use it


_ahead: dict[bool, _Ahead] = {}  # by `any_network`


def _taken(system: tuple[Rule, ...], *, any_network: bool) -> int:
    """Return the ruleset in `_ahead` if it has the rules `system`; if not, close it and return -1."""
    found = _ahead.pop(any_network, None) if system else None
    if found is None:
        return -1
    if found.system is system and found.process == os.getpid():
        return found.ruleset
    os.close(found.ruleset)
    return -1


def _make_ahead(system: tuple[Rule, ...], *, any_network: bool) -> None:
    if system and any_network not in _ahead and coverage().landlock:
        made = _Ahead(system, ruleset_of(system, any_network=any_network), os.getpid())
        if _ahead.setdefault(any_network, made) is not made:
            os.close(made.ruleset)


def in_confined_thread(
    confined: Callable[[], int | None],
    start: Callable[[], Started],
    serve: Callable[[int], object] | None,
    afterwards: Callable[[], object] = lambda: None,
) -> Started:
    """Start a thread that enters a box (`confined`) and calls `start`; return what `start` returns.

    If that has succeeded, the thread then calls `afterwards`; this function does not wait for it.

    `serve` is called with the listener's descriptor, before `start`, if `confined` has returned one. What
    fails in the thread is raised here.
    """
    listeners: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    served: queue.SimpleQueue[SandboxError | None] = queue.SimpleQueue()
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    result: list[Started] = []
    asked_in, runs = _thread_of_the_system(), allocate_lock()

    def run() -> None:
        error: BaseException | None = None
        try:
            if _thread_of_the_system() == asked_in:
                # With gevent, this code runs in the caller's thread, which would stay confined.
                raise SandboxError("Threads are greenlets here, and a sandbox needs a thread of its own.")
            listener = confined()
            listeners.put(listener)
            refused = None if listener is None else served.get()
            if refused is not None:
                raise refused
            result.append(start())
        except BaseException as failed:  # noqa: BLE001 - raised in the caller's thread
            error = failed
        listeners.put(None)
        ended.put(error)
        runs.release()
        # If `_make_ahead` fails, the next start makes the rules itself.
        with contextlib.suppress(SandboxError):
            if error is None:
                afterwards()

    runs.acquire()
    try:
        start_new_thread(run, ())  # a `threading.Thread` waits for its start, which a Ctrl-C may interrupt
    except RuntimeError as full:  # no further thread can be started
        raise _no_thread(full) from full
    # A system call in `start` may wait for the listener's answer. Call `serve` in this thread: if `serve`
    # started its thread from the confined one, that thread would be confined, too.
    try:
        listener = None if serve is None else listeners.get()
        if serve is not None and listener is not None:
            try:
                serve(listener)
                served.put(None)
            except RuntimeError as full:
                served.put(_no_thread(full))
        error = ended.get()
    except BaseException:  # a KeyboardInterrupt, or another exception of a signal handler
        served.put(SandboxError("The start was interrupted."))
        runs.acquire(timeout=_END_S)
        with contextlib.suppress(queue.Empty):
            if (unserved := listeners.get_nowait()) is not None:
                os.close(unserved)
        raise
    if error is not None:
        raise error
    return result[0]


def _thread_of_the_system() -> str:
    try:
        return os.readlink("/proc/thread-self")  # noqa: PTH115
    except OSError as error:
        raise SandboxError("A sandbox needs /proc, which is not mounted here.") from error


def _lower(pid: int, which: int, soft: int, hard: int | None = None) -> None:
    if sys.platform != "linux":
        return
    wanted = (soft, soft if hard is None else hard)
    with contextlib.suppress(ProcessLookupError):  # the process has exited already
        most = resource.prlimit(pid, which)[1]
        if most != resource.RLIM_INFINITY:
            wanted = (min(wanted[0], most), min(wanted[1], most))
        resource.prlimit(pid, which, wanted)


def _tasks_of_user() -> int:
    # `RLIMIT_NPROC` limits the processes and threads of the user together.
    count = 0
    for name in os.listdir("/proc"):  # noqa: PTH208 - `Path` takes ten times as long
        with contextlib.suppress(OSError):
            if name.isdecimal() and os.stat(f"/proc/{name}").st_uid == os.getuid():  # noqa: PTH116
                count += os.stat(f"/proc/{name}/task").st_nlink - 2  # noqa: PTH116
    return count
