"""Run `grue` commands in forks of one process, which has imported what they need.

A command that talks to an MCP server imports the MCP SDK, which takes a second of processor time, and the
tests run hundreds of commands. Each one is still a process of its own, with its own arguments, environment,
folder, standard streams and exit status. A test of how a command starts must run a new interpreter instead.

    python fork_server.py serve SOCKET OWNER        the server; it ends with the process OWNER
    python -I -S fork_server.py run SOCKET ARGS     one command, in place of `grue ARGS`
"""

import json
import os
import signal
import socket
import sys

_NOT_IMPORTED = ("grue.__main__", "grue.observers.", "grue.servers", "grue.testing")
_LONGEST_COMMAND_S = 90
_LOOK_FOR_OWNER_S = 1.0


def serve(path: str, owner: int) -> None:
    """Import everything, listen, go on in the background, and fork for each client."""
    _import_everything()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    if os.fork():
        os._exit(0)  # whoever waits for this process knows that the socket is there
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
            return  # in the command's process, at its end
        connection.close()
    os.unlink(path)  # noqa: PTH108
    os.rmdir(os.path.dirname(path))  # noqa: PTH106, PTH120


def _import_everything() -> None:
    import gc
    import importlib
    import pkgutil

    import grue

    importlib.import_module("mcp")
    for module in pkgutil.walk_packages(grue.__path__, "grue."):
        if not module.name.startswith(_NOT_IMPORTED):
            importlib.import_module(module.name)
    gc.freeze()  # the forks share these pages


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _monitor(connection: socket.socket) -> None:
    """Fork the command, wait for its end, and report it. Returns in the command's process only."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.settimeout(None)
    text, streams, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    while not text.endswith(b"\n"):
        text += connection.recv(1 << 16)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _run(json.loads(text), streams)
        return
    for stream in streams:
        os.close(stream)
    _, status = os.waitpid(pid, 0)
    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _run(request: dict[str, object], streams: list[int]) -> None:
    import random

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.setpgid(0, 0)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["environ"])  # type: ignore[call-overload]
    sys.argv = ["grue", *request["args"]]  # type: ignore[misc]
    sys.path[0] = ""  # as `python -c` has it
    random.seed()
    signal.alarm(_LONGEST_COMMAND_S)  # nobody waits any longer
    from grue.cli.main import main

    main()


def run(path: str, args: list[str]) -> int:
    """Have the server run a command with this process's folder, environment and streams."""
    request = {"cwd": os.getcwd(), "environ": dict(os.environ), "args": args}  # noqa: PTH109
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        text = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(connection, [text], [0, 1, 2])
        connection.sendall(text[sent:])
        for stream in (0, 1, 2):
            os.close(stream)
        return int(connection.recv(100))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", path, owner]:
            serve(path, int(owner))
        case ["run", path, *args]:
            status = run(path, args)
            if status < 0:  # die of the same signal
                signal.signal(-status, signal.SIG_DFL)
                os.kill(os.getpid(), -status)
            os._exit(status)
