"""Try one MCP server: list its tools, call one, use it in turns of each lifetime, and see what it leaves."""

import importlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from installing import install, program_of, version_of
from parts import Server

import grue.transports.mcp.client
from grue import LlmSettings, Runner, TurnLimits, TurnRequest
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import MCPError
from grue.messages import ServerFailure
from grue.runtime.processes.descendants import Descendants
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tool_sessions.failures import failure_text
from grue.tool_sessions.server_specs import HttpServer, McpServer, StdioServer

LIMITS = TurnLimits(server_startup_timeout_s=60.0, tool_call_timeout_s=30.0, turn_timeout_s=150.0)
TURNS = 2
_END_S = 10.0
LIFETIMES: dict[str, dict[str, Any]] = {
    "turn": {},
    "episode": {"keep": "sessions"},
    "ahead": {"keep": "loop", "start": "after_turn"},
}
Row = dict[str, Any]


def try_server(part: Server, folder: Path, work: Path) -> Row:
    """Try a server, and return its row. A step that fails is in the row with its reason."""
    row: Row = {"name": part.name, "registry": part.registry, "package": part.package}
    install(folder, part)
    grue.transports.mcp.client.require_mcp()
    importlib.import_module("mcp.client.session")  # so that no server's boot includes this import
    importlib.import_module("mcp.client.streamable_http")
    row["version"] = version_of(folder, part)
    places = {name: work / name for name in ("work", "home", "temp")}
    for place in places.values():
        place.mkdir(parents=True)
    for name in part.folders:
        (places["work"] / name).mkdir()
    values = {"work": str(places["work"]), "port": str(free_port())}
    with _running(part, folder, places, values) as server:
        row["listed"] = _noted(row, "left", lambda: _list_and_call(part, server, values, row))
        for name, options in LIFETIMES.items():
            row[name] = _noted(row, "left", lambda options=options: _turns(part, server, values, options))
    row["files"] = {name: _count(place) for name, place in places.items() if _count(place)}
    return row


def _noted(row: Row, where: str, step: Callable[[], str]) -> str:
    """Run a step; put what it leaves behind into the row, and return what it says or why it failed."""
    said = "failed"
    try:
        with assert_nothing_left(within_s=10.0):
            try:
                said = step()
            except MCPError as error:
                said = f"failed: {_reason(str(error))}"
    except AssertionError as left:
        row.setdefault(where, []).append(_line(left))
    return said


def _list_and_call(part: Server, server: McpServer, values: Mapping[str, str], row: Row) -> str:
    with ToolClient({"it": server}, limits=LIMITS) as client:
        opened = client.connect()["it"]
        if isinstance(opened, ServerFailure):
            row["call"] = "-"
            return f"failed: {_reason(failure_text(opened))}"
        row["boot_s"], row["protocol"] = round(opened.elapsed_s, 2), opened.protocol_version
        row["tools"] = len(opened.tools)
        row["call"] = _call(part, client, values)
    closed = client.closed.get("it")
    row["down"] = closed.ending if closed is not None else "none"
    return "ok"


def _call(part: Server, client: ToolClient, values: Mapping[str, str]) -> str:
    if not part.tool:
        return f"none: {part.no_call}"
    started = time.monotonic()
    try:
        result = client.call(f"it.{part.tool}", _filled(part.arguments, values))
    except MCPError as error:
        return f"{part.tool}: failed: {_line(error)}"
    took = f"{time.monotonic() - started:.2f} s"
    return f"{part.tool}: {took}" + (f", an error: {_line(result.error_message)}" if result.is_error else "")


def _turns(part: Server, server: McpServer, values: Mapping[str, str], options: Mapping[str, Any]) -> str:
    def script(request: LlmRequest) -> LlmReply:
        heard = any(message["role"] == "tool" for message in request.messages)
        named = [name for name in request.tool_names if name.endswith(part.tool)] if part.tool else []
        if heard or not named:
            return text_reply("Done.")
        return tool_calls_reply((named[0], _filled(part.arguments, values)))

    with ScriptedLlmServer(script) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="scripted", api_key="sk-made-up")
        with Runner(llm=settings, servers={"it": server}, limits=LIMITS, **options) as runner:
            started = time.monotonic()
            outcomes = [runner.run_turn(TurnRequest(system="s", user="u")) for _ in range(TURNS)]
            took = (time.monotonic() - started) / TURNS
    calls = [call.settlement for outcome in outcomes for call in outcome.tool_calls]
    wanted = TURNS if part.tool else 0
    if calls != ["returned"] * wanted or any(outcome.kind != "answered" for outcome in outcomes):
        return f"failed: {[outcome.kind for outcome in outcomes]}, calls {calls}"
    return f"{took:.2f} s"


@contextmanager
def _running(
    part: Server, folder: Path, places: Mapping[str, Path], values: Mapping[str, str]
) -> Iterator[McpServer]:
    program = program_of(folder, part)
    command = ["node", str(program)] if part.registry == "npm" else [str(program)]
    command += [arg.format(**values) for arg in part.args]
    # As users have it: without bytecode on disk, a server in Python takes three times as long to start.
    home = {"HOME": str(places["home"]), "TMPDIR": str(places["temp"]), "PYTHONDONTWRITEBYTECODE": ""}
    env = {**home, **{name: value.format(**values) for name, value in part.env.items()}}
    if not part.url:
        yield StdioServer(
            name="it", command=command[0], args=tuple(command[1:]), env=env, cwd=str(places["work"])
        )
        return
    with started(command, env, places["work"], int(values["port"])):
        yield HttpServer(name="it", url=part.url.format(**values), transport=part.transport)


@contextmanager
def started(command: list[str], env: Mapping[str, str], cwd: Path, port: int) -> Iterator[float]:
    """Run a program that listens on a port; yield the seconds until it listened.

    When the block is left, the program is killed with all its descendants, also those that have left its
    process group. So what is counted as left behind afterwards is not the program's own.
    """
    with (cwd / ".log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        descendants = Descendants(process.pid)
        begun = time.monotonic()
        try:
            while not _listens(port):
                if _has_ended(process.pid) or time.monotonic() - begun > 120:
                    said = (cwd / ".log").read_text(errors="replace").strip().splitlines() or [""]
                    raise MCPError(f"it does not listen: {said[-1]}")
                time.sleep(0.05)
            yield round(time.monotonic() - begun, 2)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            descendants.kill(_END_S)
            process.wait()


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended, without reaping it: until then nobody else gets its id."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _listens(port: int) -> bool:
    """Return whether something answers at a port, and not that it is still starting (503)."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False, timeout=10).status_code != 503
    except httpx.ConnectError:
        return False
    except httpx.HTTPError:
        return True


def free_port() -> int:
    """Return a port of the loopback interface that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _filled(given: Any, values: Mapping[str, str]) -> Any:
    if isinstance(given, str):
        return given.replace("{work}", values["work"])
    if isinstance(given, dict):
        return {name: _filled(value, values) for name, value in given.items()}
    return [_filled(value, values) for value in given] if isinstance(given, list) else given


def _count(place: Path) -> int:
    return sum(path.is_file() for path in place.rglob("*") if path.name != ".log")


def _reason(text: str) -> str:
    """Return a failure's first line, and the error that the server printed last."""
    first, *more = text.removeprefix("Failed to start MCP server 'it': ").splitlines()
    errors = [line.strip() for line in more if "Error" in line and not line.startswith("Command:")]
    return _line(f"{first}: {errors[-1]}" if errors else first)


def _line(said: object) -> str:
    return " ".join(str(said).split())[:160]
