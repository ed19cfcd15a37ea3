"""`grue fork`: repeat a recorded turn up to a message, and go on with a change, such as another model."""

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import Runner, TurnOutcome
from grue import messages as m
from grue.cli.project import known_servers
from grue.cli.runs import FORK, RUNS
from grue.cli.saying import GRUE, say, say_json, shown_argument, shown_path
from grue.cli.trace import text_of, value_of
from grue.config import tool_lock_file
from grue.config.mcp_servers import configured_names
from grue.config.settings import GameConfiguration
from grue.config.wiring import model_for
from grue.engine.approval import ask_at_terminal
from grue.engine.fork import RecordedRun, changed_turn, read_run
from grue.errors import LLMError, MCPConfigError, MCPError, TraceError
from grue.policies import Misses
from grue.runtime.files import os_cause
from grue.runtime.safe_text import printable
from grue.runtime.trace.format import TRACE_FILE
from grue.testing.offline import OFFLINE_URL
from grue.tool_sessions.host_tools import ToolServer
from grue.tracing.facts import counted
from grue.tracing.observers.run_folder import new_run_path
from grue.tracing.reading import open_episode
from grue.transports.llm.endpoint import LlmSettings

_LLM = "llm."
LOCK = "lock"


class Change(Struct, frozen=True, kw_only=True):
    """The changes of a fork: the endpoint, its `LlmSettings` (`llm`), and arguments of `Runner.fork`."""

    model: str | None = None
    base_url: str | None = None
    system: str | None = None
    llm: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    tool_results: dict[str, Any] = {}  # results, by the ids of calls
    tools: dict[str, tuple[m.ToolDefinition, ...]] = {}  # definitions, by the names of servers


def fork_turn(
    trace: Path,
    change: Change,
    *,
    turn: int | None,
    at: int | None,
    misses: Misses,
    mcp_config: Path | None,
    run_dir: Path | None,
) -> None:
    """Fork the turn, print the answer, and print commands that compare the fork with the recorded turn."""
    recorded, llm = read_turn(trace, turn, at, change)
    servers = {} if misses == "fail" else _servers(mcp_config, recorded.begun.servers)
    listed = configured_names(recorded.begun.servers, change.tools)
    if listed:  # leave out servers that the turn lacks; if it lacks all, `Runner.fork` raises an error
        change = replace(change, tools={name: change.tools[own] for name, own in listed.items()})
    lacking = [name for name in recorded.begun.servers if name not in servers]
    if lacking and misses != "fail":
        raise MCPConfigError(
            f"Turn {recorded.begun.turn} uses servers that are not configured here: {', '.join(lacking)}."
            f" --misses {misses} wants them in mcp_config.json, or in the file that --mcp-config FILE"
            " names. --misses fail needs none: it takes the results from the record."
        )
    folder = run_dir or new_run_path(RUNS, FORK)
    _make(folder)
    try:
        approve = ask_at_terminal if sys.stdin.isatty() and sys.stderr.isatty() else None
        with Runner(
            llm=llm, servers=servers, trace=folder.absolute() / TRACE_FILE, approve=approve
        ) as runner:
            outcome: TurnOutcome[Any] = runner.fork(
                trace,
                turn=turn,
                at=at,
                system=change.system,
                changes=change.changes,
                tool_results=change.tool_results,
                tools=change.tools,
                misses=misses,
            )
    except MCPError as error:
        if isinstance(error, LLMError) and error.kind == "unreachable" and change.base_url is None:
            say(
                "A fork asks the recorded endpoint. If that was in a test or another process, it is gone:"
                " name another with --base-url URL; for a script that of ScriptedLlmServer(replies, port=…).",
                err=True,
            )
        if _has_begun(folder):
            say(f"To read the fork that failed: {GRUE} trace show {shown_argument(folder)}", err=True)
        elif run_dir is None:
            shutil.rmtree(folder)
        raise
    _print(outcome, llm.model, trace, folder)


def _make(folder: Path) -> None:
    if (folder / TRACE_FILE).exists():
        raise MCPConfigError(f"{shown_path(folder)} has a trace already: choose another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else os_cause(error)
        raise MCPConfigError(f"Cannot create the run folder {folder}: {why}.") from error


def _print(outcome: TurnOutcome[Any], model: str, trace: Path, folder: Path) -> None:
    if isinstance(outcome.response, str):
        say(outcome.response)
    else:
        say_json(outcome.response)
    calls = counted(len(outcome.tool_calls), "tool call")
    mine, yours = shown_argument(trace), shown_argument(folder)
    kind = f"{outcome.kind} ({printable(outcome.reason)})" if outcome.reason else outcome.kind
    say(f"\n{kind}; {counted(outcome.requests, 'request')}, {calls}, {model}", err=True)
    say(f"To compare: {GRUE} trace diff {mine} {yours}", err=True)
    say(f"In a browser: {GRUE} trace html {mine} {yours} --open", err=True)


def _has_begun(folder: Path) -> bool:
    with suppress(TraceError):
        return any(line.tag == m.TurnForked.__name__ for line in open_episode(folder).lines())
    return False


def read_turn(
    trace: Path, turn: int | None, at: int | None, change: Change
) -> tuple[RecordedRun, LlmSettings]:
    """Return a recorded turn and the model's settings for its fork; raise if `change` cannot be made."""
    recorded = read_run(trace, turn, at)
    llm = model_for(recorded.asks(recorded.place(at)), change.llm, change.model, change.base_url)
    changed_turn(recorded.begun, change.changes)
    asked = recorded.asks(recorded.place(None))
    if asked is not None and asked.address == OFFLINE_URL and change.base_url is None:
        raise MCPConfigError(
            f"Turn {recorded.begun.turn} of {shown_path(trace)} was answered by the script of"
            " --offline, which a fork cannot ask. Name a model and its endpoint: --model MODEL --base-url"
            " URL, such as http://127.0.0.1:11434/v1."
        )
    return recorded, llm


def change_of(
    *,
    model: str | None = None,
    base_url: str | None = None,
    system: Path | None = None,
    settings: Sequence[str] = (),
    tool_results: Sequence[str] = (),
    tools: Path | None = None,
) -> Change:
    """Return the change that the options of `grue fork` ask for."""
    values = {key: value_of(text) for key, text in _pairs("--set", "KEY=VALUE", settings)}
    files = _pairs("--tool-result", "CALL=FILE", tool_results)
    llm = {key.removeprefix(_LLM): value for key, value in values.items() if key.startswith(_LLM)}
    if isinstance(url := llm.get("base_url"), str):
        del llm["base_url"]
        base_url = url
    return Change(
        model=model,
        base_url=base_url,
        system=None if system is None else text_of(system),
        llm=llm,
        changes={key: value for key, value in values.items() if not key.startswith(_LLM)},
        tool_results={call: _content(Path(file)) for call, file in files},
        tools={} if tools is None else _tools(tools),
    )


def _servers(mcp_config: Path | None, needed: Iterable[str]) -> dict[str, ToolServer]:
    known = known_servers(GameConfiguration.of_project(), mcp_config)
    names = configured_names(needed, {*known.servers, *known.unusable})
    return {name: known.usable(configured) for name, configured in names.items()}


def _pairs(option: str, form: str, given: Sequence[str]) -> Iterator[tuple[str, str]]:
    for each in given:
        key, sign, value = each.partition("=")
        if not (key and sign):
            raise MCPConfigError(f"{option} wants {form}, not {each!r:.60}.")
        yield key.strip(), value


def _content(file: Path) -> object:
    text = text_of(file)
    if file.suffix != ".json":
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MCPConfigError(f"{file} is not JSON: {error}.", path=str(file)) from error


def _tools(file: Path) -> dict[str, tuple[m.ToolDefinition, ...]]:
    # `file` is a listing, or a tool lock with a listing beside it. The word `lock`, unless there is a file of
    # this name, means the project's tool lock.
    if str(file) == LOCK and not file.exists():
        file = tool_lock_file.lock_path(GameConfiguration.of_project().mcp_config_path)
    listing = tool_lock_file.listing_path(file) if file.name == tool_lock_file.FILE_NAME else file
    tools = tool_lock_file.read_listings(listing)
    if not tools:
        raise MCPConfigError(f"There is no listing of tools {listing}. Write one with: {GRUE} tools --lock")
    return tools
