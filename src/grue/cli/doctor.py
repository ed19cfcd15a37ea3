"""`grue doctor`: check everything that an episode needs, and print what is wrong and how to fix it."""

import ast
import difflib
import importlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple, assert_never

import anyio
from msgspec import Struct, structs

from grue import __version__
from grue import messages as m
from grue.cli.login import stored_login
from grue.cli.project import (
    BUNDLED_SERVER,
    PROJECT_FILE,
    KnownServers,
    declines_mcp,
    known_servers,
    only_started,
    project_tables,
)
from grue.cli.saying import GRUE, say, shown_path
from grue.cli.tools import drifts, listing_notices
from grue.config.mcp_servers import DEFAULT_FILE_NAME
from grue.config.project_tables import ZORKGPT
from grue.config.settings import GameConfiguration
from grue.config.wiring import llm_settings, takes_servers, tool_lock, turn_limits
from grue.engine.answers import AnswerSpec
from grue.engine.outside_turns.tool_client import ToolClient
from grue.engine.runner import Runner, TurnRequest
from grue.errors import AnswerError, LLMError, MCPConfigError, MCPError, MissingDependencyError
from grue.hosts.zork.games.interpreters import choose_interpreter
from grue.policies import TurnLimits
from grue.protocol.answers import has_shape
from grue.protocol.chat_wire.failures import DOCTOR_CHECKS, Fault
from grue.protocol.chat_wire.profile import shown_endpoint
from grue.protocol.chat_wire.profiles import find_model, read_models, rule_for
from grue.protocol.retry import RetryPolicy
from grue.protocol.tools.lock import drift_text
from grue.runtime.files import expanded, open_regular
from grue.runtime.processes.process_group import ProcessRegistry
from grue.runtime.safe_text import printable
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.sandbox.box import Sandbox, in_words
from grue.sandbox.kernel import coverage
from grue.sandbox.launch import missing_for
from grue.tool_sessions.failures import INSTALL_NODE, failure_text
from grue.tool_sessions.function_tools import FunctionTools
from grue.tool_sessions.server_specs import HttpServer, McpServer, StdioServer, own_keys, visible_keys
from grue.tracing.facts import counted
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings, key_names, needs_key
from grue.transports.llm.exchange import Answered
from grue.transports.mcp.http_faults import AuthorizationRefused
from grue.transports.mcp.launchers import Direct, Launcher, direct_command, launcher_of, node_too_old
from grue.transports.mcp.listing import ListingCache
from grue.transports.mcp.sdk_version import require_mcp

Verdict = Literal["ok", "note", "open", "WRONG"]


class Finding(Struct, frozen=True):
    """The result of one check. Only `WRONG` makes the exit status 1. `open`: the check could not decide."""

    verdict: Verdict
    text: str  # the first line says what was found, the further lines give details and what to do
    lacking: str = ""  # what cannot be used because of the finding; empty: nothing


def boxes(servers: Mapping[str, McpServer], source: str) -> Iterator[Finding]:
    """Report which sandbox limits this machine can enforce, and what each server process can reach."""
    started = only_started(servers)
    have = coverage()
    missing = have.missing(hosts=True)
    about = f"Landlock {have.landlock or 'absent'}, seccomp {'present' if have.seccomp else 'absent'}"
    about += f", hosts by name {'possible' if have.listener else 'not possible'}"
    lines = [f"sandboxes on {have.system}: {about}", *(f"{each}." for each in (*missing, *have.notes()))]
    needed = any(server.sandbox for server in started.values())
    yield Finding("note" if missing and needed else "ok", "\n".join(lines))
    for name, server in started.items():
        if server.sandbox is None:
            yield Finding("note", f"{name} ({source}): no sandbox: it can reach all that you can")
            continue
        lacking = missing_for(server.sandbox)
        text = f"{name} ({source}), sandbox: {in_words(server.sandbox)}"
        lines = [text, *(f"Not enforced here: {each}." for each in lacking), *_absent(server, server.sandbox)]
        wrong = lacking and server.sandbox.required
        yield Finding("WRONG" if wrong else "note" if lines[1:] else "ok", "\n".join(lines))


def _absent(server: StdioServer, box: Sandbox) -> Iterator[str]:
    # A start ignores absent paths, since a file may be absent at times. But a name may also be misspelt.
    for key in ("read", "hide"):
        for path in getattr(box, key):
            if not os.path.lexists(Path(server.cwd or "", expanded(path))):
                yield f"{path} in '{key}' does not exist."


_DO_NOTHING = {"node": ("-e", "0"), "python": ("-c", "")}
_INTERPRETER_S = 10.0
_SHEBANG_BYTES = 256


def boot_lines(
    server: McpServer, opened: m.SessionOpened, limits: TurnLimits, *, installed: bool, alone: bool
) -> Iterator[str]:
    """Yield lines that say how long each part of a start by npx or uvx takes, and how to start faster.

    To compare, start the server again: directly if possible, and also by npx or uvx unless `opened` is the
    start of an `installed` server `alone`.
    """
    if not isinstance(server, StdioServer) or (launcher := launcher_of(server)) is None:
        return
    first_s = opened.elapsed_s
    again = None if installed and alone else _started(server, limits)
    warm_s = first_s if again is None else min(first_s, again.elapsed_s)
    waited = "download" if alone else "the other servers" if installed else "download and the other servers"
    parts = [f"{waited} {first_s - warm_s:.2f} s"]
    direct = direct_command(server)
    straight = None if direct is None else _started(direct.server, limits)
    if direct is None or straight is None or _names(straight) != _names(opened):
        yield f"its start: {', '.join(parts)}, {launcher} and the server {warm_s:.2f} s"
        return
    interpreter = _interpreter_s(direct.server)
    own_s = straight.elapsed_s
    parts.insert(0, f"{launcher} {max(0.0, warm_s - own_s):.2f} s")
    if interpreter is not None:
        name, took_s = interpreter
        parts.append(f"{name} {min(took_s, own_s):.2f} s")
        own_s = max(0.0, own_s - took_s)
    yield f"its start: {', '.join(parts)}, program and handshake {own_s:.2f} s"
    if straight.elapsed_s < warm_s:
        yield from _advice(launcher, direct, f"{straight.elapsed_s:.2f} s instead of {warm_s:.2f} s")


def _advice(launcher: Launcher, direct: Direct, times: str) -> Iterator[str]:
    server = direct.server
    hidden = dict(server.__rich_repr__())
    command = f'"command": {json.dumps(server.command, ensure_ascii=False)}'
    args = f'"args": {json.dumps(server.args, ensure_ascii=False)}'
    if hidden["args"] != server.args:
        # Do not print the arguments: one of them looks like an API key.
        args = "with the arguments that follow the package now"
    how = "from uv's cache" if "--offline" in server.args else f"without {launcher}"
    yield printable(f"faster {how}, {times}: {command}, {args}")
    yield printable(direct.note)


def _started(server: StdioServer, limits: TurnLimits) -> m.SessionOpened | None:
    with ToolClient({server.name: server}, limits=limits) as client:
        outcome = client.connect()[server.name]
    return outcome if isinstance(outcome, m.SessionOpened) else None


def _names(opened: m.SessionOpened) -> set[str]:
    return {tool.tool for tool in opened.tools}


def _interpreter_s(server: StdioServer) -> tuple[str, float] | None:
    """Return the interpreter in the program's `#!` line and its start time in seconds; `None`: unknown."""
    command = _shebang(Path(server.command))
    name = PurePath(command[-1]).name if command else ""
    words = next((words for known, words in _DO_NOTHING.items() if name.startswith(known)), None)
    # A server may have changed its own program: what that line names must not run outside of its sandbox.
    if words is None or server.sandbox is not None:
        return None
    begun = time.monotonic()
    try:
        env = server.environment()
        subprocess.run([*command, *words], env=env, capture_output=True, timeout=_INTERPRETER_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return name, time.monotonic() - begun


def _shebang(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            first = file.read(_SHEBANG_BYTES).partition(b"\n")[0]
    except OSError:
        return []
    return first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []


_PACKAGES = ("anyio", "httpx", "msgspec", "pydantic", "mcp")
_NODE = ("node", "npx", "npm", "pnpm", "yarn")
_ASK_S = 5.0
_MOST_PROGRAMS, _MOST_BYTES = 50, 200_000
_MOST_FAULTS = 5

_NOTICED_S = 0.1  # for a server that takes this long to start, "start": "when_called" is proposed


def examine(
    mcp_config: Path | None, *, network: bool, base_url: str | None = None, model: str | None = None
) -> bool:
    """Print each finding as soon as it is known, and return whether nothing is wrong."""
    counts: Counter[Verdict] = Counter()
    lacking = []
    for finding in _findings(mcp_config, network=network, base_url=base_url, model=model):
        counts[finding.verdict] += 1
        lacking += [finding.lacking] if finding.lacking else []
        first, *more = finding.text.splitlines()
        say(f"{finding.verdict:<6} {first}")
        for line in more:
            say(f"       {line}")
    notes = f"; {counted(counts['note'], 'note')} to read" if counts["note"] else ""
    wrong = counts["WRONG"]
    in_order = "Not all is known: see what is open above" if counts["open"] else "Everything is in order"
    if lacking and not wrong:
        in_order += f", except for {', '.join(lacking)}: see above"
    is_wrong = f"{counted(wrong, 'thing')} {'is' if wrong == 1 else 'are'} wrong: see what to do above"
    say(f"\n{is_wrong if wrong else in_order}{notes}.")
    return not wrong


def _findings(
    mcp_config: Path | None, *, network: bool, base_url: str | None, model: str | None
) -> Iterator[Finding]:
    yield Finding("ok", f"grue {__version__}, Python {platform.python_version()}, {platform.system()}")
    yield _packages()
    try:
        config = GameConfiguration.of_project()
        config.ask(base_url, model)
        yield _project(config)
        asked = base_url is not None or model is not None
        project = project_tables()
        other = config.client_base_url != GameConfiguration().client_base_url
        named = asked or other or bool(project and project.tables["llm"])
        if not asked:
            for finding in _named_llm(config, chosen=named):
                named = True
                yield finding
        known = known_servers(config, mcp_config)
    except MCPConfigError as error:
        yield Finding("WRONG", str(error))
        return
    yield from _server_file(known, mcp_config)
    yield from _lock(known, config, mcp_config)
    yield from _keys(known)
    yield from boxes(known.servers, known.source)
    yield from _logins(known)
    yield from _node(known)
    yield from _servers(known, config, network=network)
    yield from _listing_cache()
    yield from look_at_llm(config, network=network, named=named)
    if _plays_stories():
        yield from _interpreters()


def _packages() -> Finding:
    installed = []
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            installed.append(f"{package} {importlib.metadata.version(package)}")
    try:
        require_mcp()
        # Import this now, so that the time of the import does not count as a server's start time.
        importlib.import_module("mcp.client.session")
    except (MissingDependencyError, ImportError) as error:
        return Finding("WRONG", f"{', '.join(installed)}\n{error}")
    return Finding("ok", ", ".join(installed))


def _project(config: GameConfiguration) -> Finding:
    project = project_tables()
    if not project:
        return Finding("note", f"No [tool.grue] in {PROJECT_FILE} here; the defaults apply.")
    if takes_servers(config, project):
        return Finding("ok", f"{PROJECT_FILE}: MCP is on")
    off = "turned off" if declines_mcp() else f"off, because there is no {config.mcp_config_file}"
    return Finding("ok", f"{PROJECT_FILE}: MCP is {off}")


class _Named(NamedTuple):
    """A Python file with `LlmSettings(base_url="...", model="...")`, such as `grue init` writes."""

    path: Path
    base_url: str
    model: str


def _programs() -> Iterator[_Named]:
    programs = sorted(path for path in Path().glob("*.py") if not path.name.startswith("test_"))
    for path in programs[:_MOST_PROGRAMS]:
        unreadable = suppress(OSError, SyntaxError, ValueError, RecursionError, MemoryError)
        with unreadable, open_regular(path) as file:
            text = file.read(_MOST_BYTES).decode(errors="replace")
            if "LlmSettings(" in text:
                yield from _settings_in(path, text)


def _settings_in(path: Path, text: str) -> Iterator[_Named]:
    with warnings.catch_warnings(action="ignore"):  # Python warns of "\d", for example
        program = ast.parse(text)
    for node in ast.walk(program):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "LlmSettings":
            given = {each.arg: getattr(each.value, "value", None) for each in node.keywords}
            url, model = given.get("base_url"), given.get("model")
            if isinstance(url, str) and isinstance(model, str):
                yield _Named(path, url, model)


def _named_llm(config: GameConfiguration, *, chosen: bool) -> Iterator[Finding]:
    # Unless the project names an endpoint (`chosen`), the later checks use the first that a program names.
    for named in dict.fromkeys(_programs()):
        url = shown_endpoint(named.base_url)
        what = f"{shown_path(named.path)} names {printable(named.model)} at {url}"
        if chosen:
            how = f"{GRUE} doctor --base-url {shlex.quote(url)} --model {shlex.quote(named.model)}"
            yield Finding("note", f"{what}. To check that: {how}")
        else:
            try:
                config.ask(named.base_url, named.model)
            except MCPConfigError as error:
                (key, *_), why = error.problems[0]
                name = "model" if key == "agent_model" else "base_url"
                raise MCPConfigError(f"{shown_path(named.path)}: {name} {why}") from error
            yield Finding("ok", f"{what}: checked below")
            chosen = True


def _server_file(known: KnownServers, mcp_config: Path | None) -> Iterator[Finding]:
    count = len(known.servers) + len(known.unusable)
    if known.source != BUNDLED_SERVER and not count:
        yield Finding("WRONG", f"{known.source}: no MCP server is configured.\nName one under 'mcpServers'.")
    elif known.source != BUNDLED_SERVER:
        yield Finding("ok", f"{known.source}: {counted(count, 'server')}")
    elif mcp_config is None and Path(DEFAULT_FILE_NAME).is_file():
        why = f"{PROJECT_FILE} turns MCP off"
        yield Finding("note", f"{DEFAULT_FILE_NAME} is not used: {why}. Try it with --mcp-config.")
    for warning in known.warnings:
        yield Finding("note", warning)


def _lock(known: KnownServers, config: GameConfiguration, mcp_config: Path | None) -> Iterator[Finding]:
    # A tool lock that cannot be read is `WRONG`, because no turn can start then.
    try:
        list(drifts(known, {}, config))
        if mcp_config is None and known.source != BUNDLED_SERVER:
            tool_lock(config)
    except MCPConfigError as error:
        yield Finding("WRONG", str(error))


def _servers(known: KnownServers, config: GameConfiguration, *, network: bool) -> Iterator[Finding]:
    for why in known.unusable.values():
        yield Finding("WRONG", why)
    asked = dict(known.servers)
    for name, server in known.servers.items():
        if isinstance(server, HttpServer) and not network:
            del asked[name]
            yield Finding("note", f"{name} ({known.source}): not contacted, because of --no-network")
    if not asked:
        return
    limits = turn_limits(config)
    # For npx, a direct command exists only if the package is installed. grue cannot tell this for uvx.
    by_npx = {name: each for name, each in only_started(asked).items() if launcher_of(each) == "npx"}
    installed = {name for name, each in by_npx.items() if direct_command(each) is not None}
    try:
        with ToolClient(asked, limits=limits) as client:
            notices = listing_notices(client.recorder)
            outcomes = client.connect()
        client.recorder.settle()
    except MissingDependencyError:
        return  # `_packages` has reported the missing package
    for name, outcome in outcomes.items():
        if isinstance(outcome, m.ServerFailure):
            yield Finding("WRONG", failure_text(outcome))
        else:
            found = _server(outcome, client.closed.get(name), known.source)
            is_there, alone = name in installed, len(asked) == 1
            lines = boot_lines(asked[name], outcome, limits, installed=is_there, alone=alone)
            saved = () if known.source == BUNDLED_SERVER else saved_when_called(asked[name], outcome)
            yield Finding(found.verdict, "\n".join([found.text, *lines, *saved]))
            yield from _tools(known, config, outcome, notices[name])


def _tools(
    known: KnownServers, config: GameConfiguration, opened: m.SessionOpened, notices: list[str]
) -> Iterator[Finding]:
    # A changed tool that is not refused is a `note`. So is a malformed tool, which only its author can mend.
    name = opened.server
    drifted: list[m.ToolDrifted] = []
    with suppress(MCPConfigError):  # `_lock` has reported that the lock cannot be used
        drifted += drifts(known, {name: opened.tools}, config)
    said = [*map(drift_text, drifted), *notices]
    if not said:
        return
    shown = [printable(each) for each in said[:_MOST_FAULTS]]
    more = [f"... and {len(said) - len(shown)} more: {GRUE} tools"] if len(shown) < len(said) else []
    how = [f"If that is what you want: {GRUE} tools --lock"] if drifted else []
    verdict: Verdict = "WRONG" if any(each.refused for each in drifted) else "note"
    heading = f"{name} ({known.source}): not all of its tools can be used as they are"
    yield Finding(verdict, "\n".join([heading, *shown, *more, *how]), lacking=f"tools of {name}")


def saved_when_called(server: McpServer, opened: m.SessionOpened) -> Iterator[str]:
    """Say how much time "start": "when_called" would save, if it is much and turns wait for the server."""
    if opened.elapsed_s < _NOTICED_S or server.options.start in ("beside", "when_called"):
        return
    took = f"{opened.elapsed_s * 1000:.0f} ms"
    yield (f'a turn that does not call it need not wait {took} for it, nor start it: "start": "when_called"')


def _server(opened: m.SessionOpened, closed: m.SessionClosed | None, source: str) -> Finding:
    count = counted(len(opened.tools), "tool")
    version = opened.protocol_version
    text = f"{opened.server} ({source}): MCP {version}, {count}, up in {opened.elapsed_s:.2f} s"
    if closed is None:
        return Finding("ok", text)
    text += f", down in {closed.elapsed_s:.2f} s"
    match closed.ending:
        case "terminated" | "killed":
            why = f"It did not exit when its input ended; it was {closed.ending}."
            return Finding("note", f"{text}\n{why}")
        case "died":
            return Finding("note", f"{text}\nIt exited on its own before it was closed.")
        case "none" | "polite" | "handed_over":
            return Finding("ok", text)
    assert_never(closed.ending)


def _listing_cache() -> Iterator[Finding]:
    cache = ListingCache()
    faults = list(cache.faults())
    count = cache.count()
    if not (count or faults):
        return
    listings = counted(count, "cached tool listing")
    text = f'{shown_path(cache.folder)}: {listings}, for start = "beside" and "when_called"'
    shown = [printable(fault) for fault in faults[:_MOST_FAULTS]]
    how = f"To clear it: rm -r {shlex.quote(str(cache.folder))}"
    yield Finding("note" if faults else "ok", "\n".join([text, *shown, how]))


def _keys(known: KnownServers) -> Iterator[Finding]:
    for name, server in only_started(known.servers).items():
        seen = server.environment()
        given = visible_keys(server.env, os.environ)
        inherited = [key for key in visible_keys(seen, os.environ) if key not in server.env]
        text = f"{name} ({known.source}), inherit_env {server.inherit_env}: "
        keys = [f"configured for it: {', '.join(given)}"] if given else []
        keys += [f"inherited: {', '.join(inherited)}"] if inherited else []
        text += f"it can see keys {'; '.join(keys)}" if keys else "it can see no keys"
        ours = sorted(own_keys(seen, os.environ).intersection(inherited))
        if ours:
            text += f'\n"inherit_env": "no_keys" hides grue\'s own keys from it: {", ".join(ours)}'
        yield Finding("note" if ours else "ok", text)


def _logins(known: KnownServers) -> Iterator[Finding]:
    for name, server in known.servers.items():
        try:
            told = stored_login(server) if isinstance(server, HttpServer) else None
        except AuthorizationRefused as refused:
            fault = refused.fault
            text = f"{name} ({known.source}), login: {fault.cause}.\n{fault.remedy}"
            yield Finding("WRONG", text)
            continue
        if told is not None:
            yield Finding("ok", f"{name} ({known.source}), login: {told}")


def _node(known: KnownServers) -> Iterator[Finding]:
    started = only_started(known.servers).values()
    servers = [each for each in started if PurePath(each.command).name in _NODE]
    if not servers:
        return
    needed_by = ", ".join(server.name for server in servers)
    node = shutil.which("node")
    if node is None:
        yield Finding("WRONG", f"Node.js is not installed, and {needed_by} needs it: {INSTALL_NODE}")
        return
    try:
        asked = subprocess.run([node, "--version"], capture_output=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding("WRONG", f"{node} does not run: {error}.\nInstall Node.js: {INSTALL_NODE}")
        return
    yield Finding("ok", printable(f"Node.js {asked.stdout.decode(errors='replace').strip()} for {needed_by}"))
    for server in servers:
        advice = anyio.run(node_too_old, server, ProcessRegistry())
        if advice is not None:
            yield Finding("WRONG", advice)


def _plays_stories() -> bool:
    project = project_tables()
    of_game = project is not None and any(root == ZORKGPT for root in project.roots.values())
    return of_game or any(re.fullmatch(r"\.(z[1-8]|dat)", each.suffix.lower()) for each in Path().iterdir())


def _interpreters() -> Iterator[Finding]:
    try:
        plain, styled = choose_interpreter(3), choose_interpreter(5)
    except MissingDependencyError as error:
        yield Finding("note", f"{error}\nThe game 'house' does not need it.")
        return
    found, path = plain.interpreter, plain.interpreter.command[0]
    if styled == plain:
        only = f" of versions {', '.join(map(str, found.versions))}" if 1 not in found.versions else ""
        yield Finding("ok", f"{found.name} for story files{only}: {path}")
        return
    yield Finding("ok", f"{found.name} for story files of versions 1 to 3: {path}")
    verdict: Verdict = "note" if styled.interpreter == found else "ok"
    yield Finding(verdict, f"{styled.interpreter.name} for story files from version 4 on:\n{styled.reason}")


# Limits of a reply, in tokens. OpenAI refuses less than `_SHORT`; `_ROOM` suffices for a call or an object.
_SHORT, _ROOM = 16, 400
_PATIENCE_S = 30.0
_SYSTEM = "You are asked by a program that tries whether you can be reached. Be brief."
_TEXT = {"swatch": {"type": "string"}}
# The schema of an answer. Only a model that gets the schema will write the property `swatch`.
_SWATCH: m.JsonObject = {"type": "object", "properties": _TEXT, "required": ["swatch"]}
# `_SAY` and `_CALL` differ in length, so an endpoint that really counts tokens reports different counts.
_SAY, _CALL, _NAME = "Say: ok.", "Call the thermometer, and say what it shows.", "Name a colour."
_COUNTED = 5  # the least number of tokens that a tool's name and description add to a prompt
_TEMPLATE = """\
Use a chat template that has a place for tools: with llama.cpp's server --jinja, and --chat-template-file if
the model's own has none; with Ollama a model that is marked "tools"."""

_MOST_NAMED, _MOST_CHARS = 10, 1_000

_SHAPES = {"json_object": "JSON objects, but no schema", "none": "no shape at all"}


def look_at_llm(config: GameConfiguration, *, network: bool, named: bool) -> Iterator[Finding]:
    """Yield findings about the model and each fallback model. `named`: the user has chosen the endpoint."""
    try:
        settings = llm_settings(config)
        # Check each model without its fallback models (`then`), which could answer for a model that is down.
        chain = [LlmEndpoint(_patient(structs.replace(each, then=()))) for each in (settings, *settings.then)]
    except MCPConfigError as error:
        yield Finding("WRONG", str(error))
        return
    if not settings.api_key and not named:
        one = f"{GRUE} doctor --base-url URL --model NAME checks one"
        yield Finding("note", f"No LLM is configured: {one}. {GRUE} play --offline works without one.")
        return
    for endpoint in chain:
        asked = endpoint.settings
        url = shown_endpoint(asked.base_url)
        if not asked.api_key and needs_key(asked.base_url):
            names = " or ".join(key_names(asked.base_url))
            yield Finding("WRONG", f"There is no key for {url}.\nSet {names} in the environment.")
        elif not network:
            yield Finding("ok", f"{asked.model} at {url}; not contacted, because of --no-network")
        else:
            yield from _asked(endpoint)


def _patient(settings: LlmSettings) -> LlmSettings:
    # To end soon, a check does not retry. A time limit other than the default one is kept.
    written = settings.retry.timeout_s != RetryPolicy().timeout_s
    limit = settings.retry.timeout_s if written else _PATIENCE_S
    retry = structs.replace(settings.retry, max_retries=0, timeout_s=limit, length_retry_factor=1.0)
    room = min(settings.max_tokens or _ROOM, _ROOM)
    return structs.replace(settings, retry=retry, max_tokens=room)


def _asked(endpoint: LlmEndpoint) -> Iterator[Finding]:
    answer = anyio.run(_models, endpoint)
    known = _model_list(endpoint, answer)
    if known.verdict == "WRONG":
        yield known
        return
    spoken = _Tried(_brief(endpoint), _SAY)
    wire = endpoint.profile.wire.replace("_", " ")
    where = f"{endpoint.settings.model} at {shown_endpoint(endpoint.settings.base_url)} ({wire})"
    if spoken.failure is not None:
        yield Finding("WRONG", f"{where} does not answer.\n{spoken.failure}")
        if known.verdict == "note":
            yield known
        return
    yield Finding("ok", f"{where}; a short reply takes {spoken.replies[0].elapsed_s:.2f} s")
    yield known
    yield _tool_calls(endpoint, spoken)
    yield _shape(endpoint)


async def _models(endpoint: LlmEndpoint) -> Answered | Fault:
    async with endpoint:
        return await endpoint.models()


def _model_list(endpoint: LlmEndpoint, answer: Answered | Fault) -> Finding:
    model = endpoint.settings.model
    if isinstance(answer, Answered) and answer.status in (401, 403):
        answer = answer.fault
    if isinstance(answer, Fault) and answer.kind in ("unreachable", "refused"):
        failure = endpoint.describe(answer)
        what = "refuses the key" if answer.kind == "refused" else "cannot be reached"
        advice = f"{failure.remedy.removesuffix(DOCTOR_CHECKS)}\nUse --no-network to skip this check."
        return Finding("WRONG", f"{failure.endpoint} {what}: {failure.message}\n{advice}")
    models = read_models(answer.body) if isinstance(answer, Answered) else None
    if not models:
        return Finding("note", "It does not list its models.")
    if find_model(models, model):
        return Finding("ok", f"{model} is in its list of {counted(len(models), 'model')}")
    near = difflib.get_close_matches(model, models, n=3, cutoff=0.4)
    named = near or sorted(models)[:_MOST_NAMED]
    more = f" and {len(models) - len(named)} more" if not near and len(models) > len(named) else ""
    listed = printable(", ".join(named), _MOST_CHARS)
    advice = f"{'The nearest are' if near else 'It has'}: {listed}{more}"
    return Finding("note", f"{model} is not in its list of {counted(len(models), 'model')}.\n{advice}")


def _brief(endpoint: LlmEndpoint) -> LlmEndpoint:
    return LlmEndpoint(structs.replace(endpoint.settings, max_tokens=_SHORT))


def _tool_calls(endpoint: LlmEndpoint, spoken: "_Tried") -> Finding:
    tried = _Tried(endpoint, _CALL, tool=True)
    if tried.support is not None and not tried.support.supported:
        return Finding("note", f"Tools: no, {tried.support.reason}.\nA turn with tools ends with an error.")
    if tried.failure is not None:
        return _open_tools(endpoint, spoken, tried.failure)
    if not tried.replies[0].tool_calls and (counts := _left_out(endpoint, tried, spoken)):
        return _not_shown(counts)
    called = "it called one" if tried.replies[0].tool_calls else "they were accepted, but it did not call one"
    rule = rule_for(endpoint.settings.model)
    if rule is not None and not rule.supported:
        return Finding("note", f"Tools: {called}\nBy its name it would not support them: {rule.reason}.")
    return Finding("ok", f"Tools: {called}")


def _open_tools(endpoint: LlmEndpoint, spoken: "_Tried", failure: MCPError) -> Finding:
    # After a timeout try again: a short reply may come in time, and says how many tokens the prompt has.
    open_question = isinstance(failure, LLMError) and failure.kind == "timed_out"
    brief = _Tried(_brief(endpoint), _CALL, tool=True) if open_question else None
    counts = _left_out(endpoint, brief, spoken) if brief is not None and brief.replies else None
    if counts is not None:
        return _not_shown(counts)
    return Finding("open" if open_question else "note", f"Tools: {_in_a_word(failure)}.\n{failure}")


def _not_shown(counts: tuple[int, int]) -> Finding:
    said = f"The prompt has {counts[0]} tokens with a tool, and {counts[1]} without"
    text = f"Tools: the chat template leaves them out. {said}.\n{_TEMPLATE}"
    return Finding("note", text, lacking="tools, which the model does not see")


def _left_out(endpoint: LlmEndpoint, offered: "_Tried", spoken: "_Tried") -> tuple[int, int] | None:
    """If the model does not see an offered tool, return a prompt's tokens with the tool, and without it.

    `None`: the counts differ enough, so the model sees the tool; or the endpoint reports no count, or an
    equal count for two different prompts.
    """
    bare = _Tried(_brief(endpoint), _CALL)
    counts = [tried.replies[0].prompt_tokens if tried.replies else 0 for tried in (offered, bare, spoken)]
    with_tool, without, other = counts
    if not all(counts) or without == other or with_tool - without >= _COUNTED:
        return None
    return with_tool, without


def _shape(endpoint: LlmEndpoint) -> Finding:
    tried = _Tried(endpoint, _NAME, answer=AnswerSpec(_swatch, schema=_SWATCH))
    taken = _SHAPES.get(endpoint.profile.response_format)
    if tried.failure is not None and not tried.replies:
        return Finding("note", f"Structured output: {_in_a_word(tried.failure)}.\n{tried.failure}")
    if taken is not None:
        return Finding("note", f"Structured output: {taken}; the schema is put into the prompt instead.")
    if tried.replies[0].finish_reason == "length":
        cut = "unknown, since the reply was cut at its length limit"
        return Finding("note", f"Structured output: {cut}.\nRaise max_tokens, or have the model think less.")
    if not has_shape(_SWATCH, tried.replies[0].content or ""):
        told = has_shape(_SWATCH, tried.replies[-1].content or "")
        then = "told in the prompt, the model keeps to it" if told else "the model does not keep to it either"
        ignored = "the endpoint accepts a JSON schema and ignores it"
        return Finding("note", f"Structured output: {ignored}; {then}.")
    return Finding("ok", "Structured output: held to a JSON schema")


def _in_a_word(failure: MCPError) -> str:
    timed_out = isinstance(failure, LLMError) and failure.kind == "timed_out"
    return "unknown, since the reply took too long" if timed_out else "refused"


class _Tried:
    """Runs a small turn. Keeps the model's replies, and the turn's error unless it is an `AnswerError`."""

    def __init__(self, endpoint: LlmEndpoint, user: str, *, tool: bool = False, answer: Any = None) -> None:
        self.replies: list[m.CompletionReceived] = []
        self.support: m.ToolSupportChecked | None = None
        self.failure: MCPError | None = None
        recorder = Recorder()
        recorder.add(self._keep)
        servers = {"doctor": FunctionTools({"thermometer": _thermometer})} if tool else {}
        patience_s = max(_PATIENCE_S, endpoint.settings.retry.timeout_s)
        limits = TurnLimits(max_tool_iterations=1, turn_timeout_s=2 * patience_s)
        with Runner(llm=endpoint, servers=servers, limits=limits, recorder=recorder) as runner:
            try:
                runner.run_turn(TurnRequest(system=_SYSTEM, user=user, answer=answer))
            except AnswerError:
                pass  # an answer of the wrong form is no failure here: it shows that the model replies
            except MCPError as error:
                self.failure = error

    def _keep(self, envelope: Envelope[Any], _line: bytes) -> None:
        if isinstance(envelope.body, m.CompletionReceived):
            self.replies.append(envelope.body)
        elif isinstance(envelope.body, m.ToolSupportChecked):
            self.support = envelope.body


def _swatch(text: str) -> str:
    if not has_shape(_SWATCH, text):
        raise ValueError("it is not a JSON object of the form that was asked for")
    return text


def _thermometer() -> str:
    """A tool for the checks: return the temperature in the room."""
    return "21 degrees"
