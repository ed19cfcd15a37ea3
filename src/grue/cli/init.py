"""`grue init`: write a small program, its test and `mcp_config.json`. A file that exists is never changed."""

import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

import httpx
import typer

from grue.cli.project import own_python
from grue.cli.saying import GRUE, grue_from, shown_argument, shown_path
from grue.cli.saying import say_if_read as say
from grue.config.mcp_servers import DEFAULT_FILE_NAME
from grue.config.other_hosts import CopiedEntry, FoundServers, find_hosts, read_host
from grue.errors import MCPConfigError
from grue.runtime.files import os_cause, write_whole
from grue.runtime.safe_text import printable
from grue.sandbox.box import Sandbox
from grue.sandbox.launch import missing_for
from grue.transports.llm.endpoint import key_names

_PROJECT = Path(__file__).with_name("new_project")
AGENT, TEST = ((_PROJECT / name).read_text(encoding="utf-8") for name in ("agent.txt", "test_agent.txt"))
_DEFAULT = ("https://openrouter.ai/api/v1", "anthropic/claude-haiku-5.5")
_LOCAL = "http://127.0.0.1:11434/v1"
_LOCAL_S = 0.5


def _found_model() -> tuple[str, str]:
    # If Ollama runs on this machine, and no API key for the default endpoint is set, return Ollama's model.
    if any(os.environ.get(name) for name in key_names(_DEFAULT[0])):
        return _DEFAULT
    with suppress(httpx.HTTPError, ValueError, KeyError, IndexError, TypeError):
        listed = httpx.get(f"{_LOCAL}/models", timeout=_LOCAL_S, trust_env=False).json()
        model = listed["data"][0]["id"]
        if isinstance(model, str) and re.fullmatch(r"[\w.:/@-]{1,100}", model):
            return _LOCAL, model
    return _DEFAULT


def start_project(folder: Path, sources: Sequence[Path]) -> None:
    """Write a project's files. Copy servers from `sources`, or else from files that the user chooses."""
    replaced: dict[str, str] = {}
    chosen = [read_host(path, replaced=replaced) for path in sources] if sources else _offered(folder)
    own: dict[str, Any] = {"command": own_python(), "args": ["-m", "grue.hosts.servers.think"]}
    if not missing_for(Sandbox()):
        own["sandbox"] = "pure"
    servers = {"mind": CopiedEntry("mind", own, ()), **_gathered(chosen)}
    configuration = {"mcpServers": {name: copy.entry for name, copy in servers.items()}}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        url, model = _found_model()
        agent = AGENT.replace(_DEFAULT[0], url).replace(_DEFAULT[1], model)
        if _write(folder / "agent.py", agent):
            say(f"         with {model} at {url}")
        _write(folder / "test_agent.py", TEST)
        added = _write(folder / DEFAULT_FILE_NAME, json.dumps(configuration, indent=2) + "\n")
    except (FileExistsError, NotADirectoryError) as error:
        raise MCPConfigError(f"Cannot write into {folder}: it is not a folder.") from error
    except OSError as error:
        raise MCPConfigError(f"Cannot write into {folder}: {os_cause(error)}.") from error
    if not added and len(servers) > 1:
        del configuration["mcpServers"]["mind"]
        say("To use the copied servers, add them to it yourself:\n" + json.dumps(configuration, indent=2))
    for name, copy in servers.items():
        if copy.variables:
            say(f"set      {', '.join(copy.variables)} in the environment, for the server {printable(name)}")
    _say_what_is_next(folder)


def _write(path: Path, text: str) -> bool:
    if os.path.lexists(path):
        say(f"kept     {shown_path(path)}, which was there already")
        return False
    write_whole(path, text.encode(), mode=0o666)
    say(f"written  {shown_path(path)}")
    return True


def _offered(folder: Path) -> list[FoundServers]:
    found: list[FoundServers] = []
    with suppress(RuntimeError):  # this user has no home folder
        found += [each for each in find_hosts(Path.home(), folder.absolute()) if each.servers]
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    chosen = []
    for each in found:
        names = printable(", ".join(each.servers))
        if asks:
            question = f"{each.host} has the servers {names}. Copy them, without secrets?"
            chosen += [each] if typer.confirm(question, default=False) else []
        else:
            copy = f"{GRUE} init {shown_argument(folder)} --from {quote(str(each.path))}"
            say(f"found    servers of {each.host}: {names}. What to add for them: {copy}")
    return chosen


def _gathered(chosen: Sequence[FoundServers]) -> dict[str, CopiedEntry]:
    servers: dict[str, CopiedEntry] = {}
    for found in chosen:
        for name, reason in found.unusable.items():
            say(f"left out {printable(name)} of {printable(found.host)}: {reason}", err=True)
        for name, copy in found.servers.items():
            if name in servers or name == "mind":
                say(f"left out {printable(name)} of {printable(found.host)}: the name is taken.", err=True)
            else:
                servers[name] = copy
    return servers


def _say_what_is_next(folder: Path) -> None:
    python, grue = quote(own_python()), grue_from(folder.resolve())
    steps = (
        *[("pip install 'mcp>=2.3,<3'", "MCP servers need it")] * (find_spec("mcp") is None),
        *[(f"cd {shown_argument(folder)}", "")] * (folder.resolve() != Path.cwd()),
        *[("pip install pytest", "the test needs it")] * (find_spec("pytest") is None),
        (f"{python} -m pytest", "passes without a network and without a key"),
        (f"{grue} doctor", "checks the model, its key and the servers"),
        (f"{grue} tools", "what the configured servers offer"),
        (f'{python} agent.py "A question"', "with the endpoint and the model that agent.py names"),
    )
    width = max(30, *(len(command) for command, does in steps if does))
    say("\nNext:")
    for command, does in steps:
        say(f"  {command:{width}} # {does}" if does else f"  {command}")
