"""Find out whether Node is too old for a server that has just failed to start.

It is called only after a failure: the server exited, did not answer in time, or gave an unusable answer.

A package states the Node versions that it needs in `engines.node` of its `package.json`. That file is
searched beside the script, in the `node_modules` folders of the working directory and above, and in npx's
cache. Nothing is downloaded.

Source: R14
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePath

import anyio

from grue.errors import MCPError
from grue.runtime.large_data import LineTooLongError
from grue.runtime.processes.child_process import ServerProcess
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry
from grue.tool_sessions.server_specs import StdioServer

Version = tuple[int, int, int]

_RUNNERS = frozenset(("npx", "npm", "pnpm", "yarn", "bun", "bunx"))
_WORDS = frozenset(("exec", "dlx", "x", "run"))
_NAMING = ("-p", "--package")
_KNOWN = {"@kastalien-research/thoughtbox": ">=22"}
"""Known requirements, for packages whose `package.json` cannot be read."""

_ASK_LIMITS = ProcessLimits(exit_grace_s=0.1, term_grace_s=0.1, max_line_bytes=4096)
ASK_S = 1.0
"""Time limit for `node --version`."""

ASK_AFTER_TIMEOUT_S = 0.3
"""The same after the server has used up its start-up limit. Node takes about 30 ms."""

_COMPARATOR = re.compile(r"(?P<sign>[<>=^~]*)\s*v?(?P<version>\d+(?:\.(?:\d+|[xX*])){0,2})")


async def node_too_old(
    server: StdioServer, registry: ProcessRegistry, *, limit_s: float = ASK_S
) -> str | None:
    """Return advice for the user if Node is older than the server's package needs, or else `None`.

    Runs `node --version`. Also returns `None` if the command does not run Node, or if either version cannot
    be determined.

    Args:
        server: The server.
        registry: Holds Node's process until it is reaped.
        limit_s: Time limit for Node's answer.
    """
    found = _wanted(server)
    if found is None:
        return None
    package, wanted = found
    minimum = oldest_allowed(wanted)
    have = await _installed(server, registry, limit_s)
    if minimum is None or have is None or have >= minimum:
        return None
    return (
        f"{package} needs Node.js {wanted}, and {'.'.join(map(str, have))} is installed."
        f" Install Node.js {minimum[0]} or later (https://nodejs.org/), or put it first on the PATH."
    )


def oldest_allowed(wanted: str) -> Version | None:
    """Return the oldest version that a range such as `>=18.17 <21 || ^22` allows; `None` for any version."""
    lowest = [_lower_bound(alternative) for alternative in wanted.split("||")]
    return min((bound for bound in lowest if bound), default=None) if all(lowest) else None


def _lower_bound(alternative: str) -> Version | None:
    found = [
        _version(match["version"]) for match in _COMPARATOR.finditer(alternative) if "<" not in match["sign"]
    ]
    return max(found, default=None)


def _version(text: str) -> Version:
    numbers = [int(part) if part.isdecimal() else 0 for part in text.split(".")]
    major, minor, patch = (*numbers, 0, 0)[:3]
    return major, minor, patch


def _wanted(server: StdioServer) -> tuple[str, str] | None:
    """Return the package that a command runs, and its `engines.node`."""
    program = PurePath(server.command).name
    folder = Path(server.cwd) if server.cwd else Path.cwd()
    if program in _RUNNERS:
        package = _package(server.args)
        places = _package_files(package, folder, server.environment()) if package else iter(())
        engines = next((wanted for wanted in map(_engines, places) if wanted), _KNOWN.get(package))
        return (package, engines) if engines else None
    if program == "node":
        script = next((arg for arg in server.args if not arg.startswith("-")), None)
        for above in (folder / script).resolve().parents if script else ():
            if (above / "package.json").is_file():
                engines = _engines(above / "package.json")
                return (f"The package in {above}", engines) if engines else None
    return None


def _package(args: tuple[str, ...]) -> str:
    """Return the package that npx or a similar runner starts, without its version; empty if there is none."""
    named, rest = "", iter(args)
    for arg in rest:
        flag, equals, value = arg.partition("=")
        if flag in _NAMING:
            named = value if equals else next(rest, "")
            break
        if not arg.startswith("-") and arg not in _WORDS:
            named = arg
            break
    scope = "@" if named.startswith("@") else ""
    return scope + named.removeprefix("@").partition("@")[0]


def _package_files(package: str, folder: Path, environment: dict[str, str]) -> Iterator[Path]:
    for above in (folder, *folder.parents):
        yield above / "node_modules" / package / "package.json"
    cache = environment.get("npm_config_cache") or Path(environment.get("HOME", "~")).expanduser() / ".npm"
    yield from (Path(cache) / "_npx").glob(f"*/node_modules/{package}/package.json")


def _engines(file: Path) -> str | None:
    try:
        wanted = json.loads(file.read_text(encoding="utf-8"))["engines"]["node"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return wanted if isinstance(wanted, str) else None


async def _installed(server: StdioServer, registry: ProcessRegistry, limit_s: float) -> Version | None:
    """Return the version of the Node that runs the server."""
    own = server.command if PurePath(server.command).name == "node" else "node"
    import shutil  # 3 ms, and most servers need no Node

    node = shutil.which(own, path=server.environment().get("PATH"))
    if node is None:
        return None
    asked = StdioServer(
        name="node", command=node, args=("--version",), env=server.env, inherit_env=server.inherit_env
    )
    try:
        with anyio.fail_after(limit_s):
            async with ServerProcess(asked, registry, _ASK_LIMITS) as process:
                line = (await process.receive_line()).decode("ascii", "replace")
    except (TimeoutError, MCPError, LineTooLongError, anyio.EndOfStream):
        return None
    match = re.fullmatch(r"v(\d+\.\d+\.\d+)\S*", line.strip())
    return _version(match[1]) if match else None
