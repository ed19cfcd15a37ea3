"""`grue sandbox`: print what a sandbox permits, run a command in it, and find the sandbox for a server."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from grue import messages as m
from grue.cli.project import KnownServers, known_servers, named_server, only_started, watched_server
from grue.cli.saying import GRUE, say
from grue.config.mcp_servers import configured_names
from grue.config.settings import GameConfiguration
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import MCPConfigError, MCPServerStartupError, MCPToolCallError
from grue.runtime.files import os_cause
from grue.runtime.safe_text import printable
from grue.sandbox.box import UNITS, Preset, Sandbox, in_words
from grue.sandbox.launch import Start, boxed, missing_for
from grue.sandbox.places import places_of
from grue.sandbox.seatbelt import SCRATCH, profile
from grue.tool_sessions.failures import failure_text
from grue.tool_sessions.server_specs import StdioServer
from grue.tracing.facts import counted
from grue.tracing.reading import open_episode

_LEAVE_S = 3.0
# A shell that stops itself. After a SIGCONT, the shell executes the program in its own process.
_WAITING = ("/bin/sh", "-c", 'kill -s STOP "$$" && exec "$0" "$@"')
_EXAMPLE = 'read_file {"path": "notes.txt"}'


def show(name: str | None, mcp_config: Path | None) -> None:
    """Print what the sandbox of a preset, of a server, or of every server permits."""
    if name in get_args(Preset):
        _show(f"preset {name}", *_named(str(name), mcp_config))
        return
    known = _known(mcp_config)
    for why in () if name else known.unusable.values():
        say(printable(f"grue: {why}"), err=True)
    for each in [named_server(known, name)] if name else only_started(known.servers).values():
        if each.sandbox is None:
            say(f"{each.name}: no sandbox. It can reach all that you can.")
            continue
        _show(each.name, each.sandbox, *_start_of(each))


def show_seatbelt(name: str | None, mcp_config: Path | None) -> None:
    """Print the sandbox of a preset or a server as a profile for macOS' `sandbox-exec`."""
    if name is None:
        raise MCPConfigError(f"A profile is for one program: {GRUE} sandbox show SERVER --seatbelt.")
    box, cwd, start = _named(name, mcp_config)
    places = places_of(box, cwd=cwd, scratch=SCRATCH, **start)
    hidden = tuple(str(Path(cwd, Path(path).expanduser())) for path in box.hide)
    say(profile(box, places, words=printable(f"{name}: {in_words(box)}"), hidden=hidden).rstrip())


def try_command(name: str, command: list[str], mcp_config: Path | None) -> int:
    """Run a command in the sandbox of a preset or a server, at this terminal; return its exit status."""
    box, cwd, start = _named(name, mcp_config)
    if name not in get_args(Preset):  # open the folders of the server's own program, too
        box = replace(box, read=places_of(box, cwd=cwd, scratch=SCRATCH, **start).opened)
    program = shutil.which(command[0])
    if program is None:
        raise MCPConfigError(f"The command {printable(command[0])!r} was not found.")
    program, args = str(Path(program).absolute()), tuple(command[1:])
    started = boxed(box, program=program, args=args, env=dict(os.environ), cwd=cwd)
    # A limit such as `memory_mb` has to be set before the program runs. So start a shell that stops itself.
    waiting = _WAITING if any(getattr(box, key) is not None for key in UNITS) else ()
    try:
        process = started.run(lambda: subprocess.Popen((*waiting, program, *args), env=started.env, cwd=cwd))
        if waiting:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        started.limit(process.pid)
        if waiting:
            process.send_signal(signal.SIGCONT)
        status = _waited(process)
        for line in started.refusals("", died=status != 0):
            say(printable(line), err=True)
        return status if status >= 0 else 128 - status
    except OSError as error:
        raise MCPConfigError(f"{printable(program)} cannot be started: {os_cause(error)}.") from error
    finally:
        started.end()


def _waited(process: "subprocess.Popen[bytes]") -> int:
    try:
        return process.wait()
    except KeyboardInterrupt:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LEAVE_S)
        raise
    finally:  # also after a second Ctrl-C
        process.kill()
        process.wait()


def learn(path: Path, name: str, traces: list[Path]) -> bool:
    """Make the calls in `traces`, or on stdin, and print a sandbox for them; return whether all succeeded."""
    watched, learned = watched_server(_known(path), name)
    count = failed = 0
    unreadable: MCPConfigError | None = None
    with ToolClient({name: watched}) as client:
        outcome = client.connect(name)[name]
        if not isinstance(outcome, m.SessionOpened):
            raise MCPServerStartupError(failure_text(client.recorder.redacted_body(outcome)), server=name)
        try:
            for tool, arguments in _calls(name, traces):
                count += 1
                # People may write SERVER.TOOL, as for `grue call`. But a tool's own name may begin like that.
                listed = any(each.tool == tool for each in outcome.tools)
                called = f"{name}.{tool if listed else tool.removeprefix(f'{name}.')}"
                fault = _fault_of_call(client, called, arguments)
                failed += fault is not None
                say(printable(f"{tool}: {fault or 'answered'}"), err=True)
        except MCPConfigError as error:
            if not count:
                raise
            unreadable = error
    alone = "" if count else ", for the server's start alone"
    say(f"{counted(count, 'call')}, {failed} failed. The proposed sandbox{alone}:", err=True)
    box, left_out = learned()
    say(box)
    if left_out:
        say(left_out, err=True)
    if unreadable is not None:
        raise unreadable
    return failed == 0


def _fault_of_call(client: ToolClient, name: str, arguments: m.JsonObject) -> str | None:
    try:
        result = client.call(name, arguments)
    except MCPToolCallError as error:
        return str(error)
    return (result.error_message or "it failed") if result.is_error else None


def _calls(name: str, traces: list[Path]) -> Iterator[tuple[str, m.JsonObject]]:
    for trace in traces:
        for envelope in open_episode(trace):
            body = envelope.body
            if isinstance(body, m.ToolCalled) and configured_names((body.server,), {name}):
                yield body.tool, body.arguments
    if not traces and sys.stdin.isatty():
        say(f"Write a call a line, as {_EXAMPLE}; Ctrl-D ends them.", err=True)
    for number, line in enumerate(() if traces else sys.stdin.buffer, 1):
        try:
            tool, _, text = line.decode().strip().partition(" ")
            if not tool:
                continue
            arguments = msgspec.json.decode(text or "{}", type=dict[str, Any])
        except UnicodeDecodeError as error:
            raise MCPConfigError("The calls on standard input are not UTF-8 text.") from error
        except (msgspec.DecodeError, RecursionError) as error:
            fault = f"Line {number}: write TOOL and a JSON object, as {_EXAMPLE}: {error}."
            raise MCPConfigError(fault) from error
        yield tool, arguments


def _named(name: str, mcp_config: Path | None) -> tuple[Sandbox, str, Start]:
    """Return the sandbox, working directory and program of a server, or of a preset (with a shell)."""
    if name in get_args(Preset):
        start = Start(program="/bin/sh", args=(), env=dict(os.environ))
        return Sandbox(preset=name), os.getcwd(), start  # type: ignore[arg-type]  # noqa: PTH109
    server = named_server(_known(mcp_config), name)
    if server.sandbox is None:
        raise MCPConfigError(f"The server {name!r} has no sandbox.")
    return server.sandbox, *_start_of(server)


def _start_of(server: StdioServer) -> tuple[str, Start]:
    env = server.environment()
    program = shutil.which(server.command, path=env.get("PATH")) or server.command
    return str(Path(server.cwd or "").absolute()), Start(program=program, args=server.args, env=env)


def _show(name: str, box: Sandbox, cwd: str, start: Start) -> None:
    say(f"{name}: {in_words(box)}")
    found = places_of(box, cwd=cwd, scratch="/nonexistent", **start)
    for verb, paths in (("reads", found.opened), ("writes", found.written)):
        for path in paths:
            absent = "" if Path(path).exists() else " (does not exist)"
            say(printable(f"  {verb} {path}{absent}"))
    say("  and the system's programs, libraries and certificates; and a scratch folder")
    for each in missing_for(box):
        say(f"  Not enforced here: {each}.")


def _known(mcp_config: Path | None) -> KnownServers:
    return known_servers(GameConfiguration.of_project(), mcp_config)
