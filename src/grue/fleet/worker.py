"""A worker process of the local engine: does one task after another, on its main thread."""
# The work may leave its process in any state. If what `_marks` returns has changed (except for new open
# descriptors), the worker reports that it is not fit for another episode.

import contextlib
import itertools
import multiprocessing.connection
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

import msgspec
from msgspec import Struct

from grue.fleet.attempt import Task, text_of
from grue.fleet.broker import Limits
from grue.fleet.folder import AttemptEnd
from grue.runtime.loops.interrupts import ignore_interrupts
from grue.runtime.processes.descendants import live_members
from grue.runtime.processes.guard import guard

# How many episodes a worker plays at most before it is replaced, so that leaks of the work do not add up.
EPISODES_A_WORKER = 200

# Descriptors below this number are compared where the system does not list the open descriptors.
_FIRST_DESCRIPTORS = 256
READY = b"\n"  # The first line that a worker writes. Each later line is a `WorkerSaid` as JSON.
_LIMITS = sorted(value for name, value in vars(resource).items() if name.startswith("RLIMIT_"))


class WorkerSaid(Struct, frozen=True, omit_defaults=True):
    """A worker's report on a task."""

    ended: AttemptEnd | None = None
    error: str = ""  # why the task could not be done
    fit: bool = False  # the worker can do another task


class Place(Struct, frozen=True):
    """The broker's `address`, the limits, and the driver's `sys.path`, working directory and environment."""

    address: str
    limits: Limits
    path: list[str]
    folder: str
    environment: dict[str, str]


def work(channel: multiprocessing.connection.Connection, place: Place) -> None:
    """Do the tasks that come through a channel, until the channel is closed."""
    with contextlib.suppress(OSError):
        os.setsid()  # `local.py` kills this process group, with the processes that the work has forked
    _begin(place)
    descriptor = channel.fileno()
    ours = os.fstat(descriptor)
    _say(descriptor, READY)
    # Discard what the work writes to the file descriptors 1 and 2, such as the output of a C library.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for standard in (1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)
    for made in itertools.count(1):
        try:
            job: Task = channel.recv()
        except (EOFError, OSError):
            return
        said = msgspec.json.encode(_made(job, last=made >= EPISODES_A_WORKER)) + b"\n"
        if not os.path.samestat(os.fstat(descriptor), ours):
            # The work has closed the channel, and `descriptor` belongs to another file now: do not write.
            os._exit(1)
        _say(descriptor, said)


def _made(job: Task, *, last: bool) -> WorkerSaid:
    try:
        job.prepare()
        before, open_before = _marks()
        ended = job.make()
    except BaseException as error:  # noqa: BLE001 - a signal handler of the work may raise anything here
        return WorkerSaid(error=text_of(error))
    try:
        now, open_now = _marks()
        return WorkerSaid(ended, fit=not last and before == now and open_before <= open_now)
    except Exception:  # noqa: BLE001 - `_marks` fails if the working directory is gone, for example
        return WorkerSaid(ended)


def _marks() -> tuple[list[object], set[tuple[int, int, int]]]:
    """Return what the next episode would inherit: the process's state, and its open descriptors."""
    umask = os.umask(0o077)
    os.umask(umask)
    plain: list[object] = [
        Path.cwd(),
        umask,
        dict(os.environ),
        list(sys.path),
        sys.getrecursionlimit(),
        sys.gettrace(),
        os.nice(0),
        signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        signal.getitimer(signal.ITIMER_REAL),
        [resource.getrlimit(limit) for limit in _LIMITS],
        {thread.ident for thread in threading.enumerate()},
        {pid for pid in live_members(os.getpid()) if pid != guard.pid},
    ]
    found = set()
    try:
        numbers = [int(entry.name) for entry in Path("/dev/fd").iterdir()]
    except FileNotFoundError:  # /proc is not mounted
        numbers = list(range(_FIRST_DESCRIPTORS))
    for number in numbers:
        with contextlib.suppress(OSError):  # the descriptor with which `/dev/fd` was listed is closed by now
            status = os.fstat(number)
            found.add((number, status.st_dev, status.st_ino))
    return plain, found


def _begin(place: Place) -> None:
    """Take over the driver's environment and folder; connect to the broker, whose loss ends the process."""
    from grue.fleet.broker_server import BrokerLink
    from grue.runtime.processes.server_gate import set_server_gate
    from grue.transports.llm.exchange import set_request_gate

    sys.path[:] = place.path
    # Until now, this process has had the environment that the fork server started with.
    os.environ.clear()
    os.environ.update(place.environment)
    os.chdir(place.folder)
    # The driver decides whether the attempts go on after a Ctrl-C.
    ignore_interrupts()
    try:
        link = BrokerLink(place.address, on_loss=_leave)
    except (ConnectionRefusedError, FileNotFoundError):
        _leave()  # the driver was killed while this process was starting
    # Even if neither gate is set, the link's thread runs on, and ends this process when the driver ends.
    set_request_gate(link if place.limits.on_requests else None)
    set_server_gate(link if place.limits.servers.at_once is not None else None)


def _leave() -> NoReturn:
    # End this process at once. Another process, the guard, then ends the servers that this one has started.
    os._exit(1)


def _say(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]
