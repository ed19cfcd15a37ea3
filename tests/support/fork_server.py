"""Run `grue` commands and test servers in forks of one process, which has imported what they need.

A program that speaks MCP imports the SDK, which takes a second of processor time, and the tests run hundreds
of programs. Each program is still a process of its own, with its own arguments, environment, folder, session,
standard streams, signals and exit status. Use a new interpreter instead for tests of how a program starts,
and of what Python frees at the end: here a program runs the `atexit` functions, flushes its streams, and ends
at once.

    python fork_server.py serve SOCKET OWNER                  the server; it ends with the process OWNER
    python -I -S fork_server.py run SOCKET BEFORE grue ARGS   one command, in place of `grue ARGS`
    python -I -S fork_server.py run SOCKET BEFORE FILE ARGS   one program, in place of `python FILE ARGS`

BEFORE is Python code that runs first in the new process. The process of `run` (the client) passes its signals
to the program, and ends as the program ends. If the client is killed, the program is killed soon after it.
SIGUSR1 sent to the client kills the program.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing `typing` would take as long as all the rest of `run`
    from socket import socket

_NOT_IMPORTED = ("grue.__main__", "grue.tracing.observers.", "grue.servers", "grue.testing")
_SIZE = 4  # size in bytes of the number in front of a request, the request's length
_LOOK_FOR_OWNER_S = 1.0


def serve(path: str, owner: int) -> None:
    """Import everything, listen, continue in the background, and fork for each client."""
    import signal
    import socket

    _import_everything()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    if os.fork():
        os._exit(0)  # the end of this process tells the caller that the socket exists
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the monitors
    listener.settimeout(_LOOK_FOR_OWNER_S)
    while _is_alive(owner):
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        if os.fork() == 0:
            listener.close()
            _monitor(connection)
            return  # only the program's process comes here, at its end
        connection.close()
    os.unlink(path)  # noqa: PTH108
    os.rmdir(os.path.dirname(path))  # noqa: PTH106, PTH120


def _import_everything() -> None:
    import gc
    import importlib
    import pkgutil
    import warnings

    import grue

    for module in pkgutil.walk_packages(grue.__path__, "grue."):
        if not module.name.startswith(_NOT_IMPORTED):
            importlib.import_module(module.name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("mcp", "mcp.server.mcpserver", "uvicorn"):
            importlib.import_module(name)
    os.fsync = lambda _: None  # as in tests/conftest.py
    gc.freeze()  # the forks share these pages


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _monitor(connection: "socket") -> None:
    """Fork the program, pass signals on, and report its end. Returns in the program's process only."""
    import marshal
    import signal
    import socket

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.settimeout(None)
    text, streams, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    while len(text) < _SIZE or len(text) < _SIZE + int.from_bytes(text[:_SIZE], "little"):
        more = connection.recv(1 << 16)
        if not more:
            os._exit(0)  # the client has been killed
        text += more
    pid = os.fork()
    if pid == 0:
        connection.close()
        _run(marshal.loads(text[_SIZE:]), streams)
        return
    for stream in streams:
        os.close(stream)
    status = _status_of(pid, connection)
    try:
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    finally:
        os._exit(0)  # also if the client has ended and does not read the status


def _status_of(pid: int, connection: "socket") -> int:
    """Wait for the program's end. Each byte from the client is a signal to send; its end means SIGKILL."""
    import select
    import signal

    sources: list[object] = [connection]
    if hasattr(os, "pidfd_open"):
        sources.append(os.pidfd_open(pid))
    while True:
        ready, _, _ = select.select(sources, [], [], None if len(sources) > 1 else 0.02)
        signals = (connection.recv(64) or bytes([signal.SIGKILL])) if connection in ready else b""
        for number in signals:
            os.kill(pid, number)  # no other process can have this id, because the program is not reaped yet
        ended, status = os.waitpid(pid, 0 if signal.SIGKILL in signals else os.WNOHANG)
        if ended:
            return status


def _run(request: dict[str, object], streams: list[int]) -> None:
    import random

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    _open_streams()
    random.seed()
    exec(request["before"], {})
    status = 0
    try:
        _run_program(*request["command"])
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        status = ended.code or 0
    _end(status)


def _run_program(target: str, *args: str) -> None:
    import runpy

    if target == "grue":
        sys.argv = ["grue", *args]
        sys.path[0] = ""  # as with `python -c`
        from grue.cli.main import main

        main()
    else:
        sys.argv = [target, *args]
        sys.path[0] = os.path.dirname(target)  # noqa: PTH120
        runpy.run_path(target, run_name="__main__")


def _end(status: int) -> None:
    """End as an interpreter does, but free no objects: that would copy the memory that all programs share.

    If other threads still run, or a stream cannot be flushed, let the interpreter end as usual.
    """
    import atexit
    import threading

    others = (each for each in threading.enumerate() if each is not threading.main_thread())
    if not all(each.daemon for each in others):
        sys.exit(status)
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(status)
    os._exit(status & 0xFF)


def _open_streams() -> None:
    """Open the standard streams as a new interpreter does."""
    encoding = os.environ.get("PYTHONIOENCODING") or sys.stdout.encoding
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
    through = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty(), write_through=through)
    sys.stderr.reconfigure(line_buffering=True, write_through=through)


def run(path: str, before: str, command: list[str]) -> int:
    """Let the server run a program with this process's folder, environment and streams; return its status.

    Uses `_socket` and `_signal`, because importing `socket` and `signal` would take longer than all the rest.
    """
    import _signal
    import _socket
    import marshal

    passed_on = {each: each for each in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT)}
    passed_on[_signal.SIGUSR1] = _signal.SIGKILL
    request = {"cwd": os.getcwd(), "environ": dict(os.environ), "before": before, "command": command}  # noqa: PTH109
    connection = _socket.socket(_socket.AF_UNIX)
    connection.connect(path)
    body = marshal.dumps(request)
    text = len(body).to_bytes(_SIZE, "little") + body
    streams = b"".join(stream.to_bytes(4, sys.byteorder) for stream in (0, 1, 2))
    sent = connection.sendmsg([text], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    if sent < len(text):  # not with an empty rest: `sendall` would fail if the program has already ended
        connection.sendall(text[sent:])

    def pass_on(caught: int, _frame: object) -> None:
        try:  # noqa: SIM105 - importing `contextlib` would take longer, too
            connection.sendall(bytes([passed_on[caught]]))
        except OSError:
            pass  # the program has just ended

    for number in passed_on:
        _signal.signal(number, pass_on)
    for stream in (0, 1, 2):
        os.close(stream)
    return int(connection.recv(100))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", path, owner]:
            serve(path, int(owner))
        case ["run", path, before, *command]:
            status = run(path, before, command)
            if status < 0:  # end by the same signal as the program
                import signal

                if status != -signal.SIGKILL:  # SIGKILL has no handler to reset
                    signal.signal(-status, signal.SIG_DFL)
                os.kill(os.getpid(), -status)
            os._exit(status)
