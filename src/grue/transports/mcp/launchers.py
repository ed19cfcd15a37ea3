"""Find the program that npx or uvx starts, without running npx or uvx, and find out why a start has failed.

Source: R14
"""

import functools
import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias, TypeVar

import anyio
from msgspec import Struct
from msgspec.structs import replace

from grue.errors import MCPError
from grue.runtime.files import expanded, read_regular
from grue.runtime.large_data import LineTooLongError
from grue.runtime.processes.child_process import ServerProcess
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry
from grue.tool_sessions.server_specs import StdioServer

_NAMING = ("-p", "--package")
_LAST_WRITTEN = ".package-lock.json"  # npm writes it into `node_modules` when all else is in place
T = TypeVar("T")


def _if_readable(look: Callable[[StdioServer], T | None]) -> Callable[[StdioServer], T | None]:
    """Make a function that looks for files return `None` if one of them cannot be read."""

    @functools.wraps(look)
    def found(server: StdioServer) -> T | None:
        try:
            return look(server)
        except (OSError, RuntimeError):  # RuntimeError: before Python 3.13, for a loop of links
            return None

    return found


@_if_readable
def npx_cache_broken(server: StdioServer) -> str | None:
    """Return advice if npx has left a broken cache folder, else `None`. Call this when npx has ended."""
    if PurePath(server.command).name != "npx":
        return None
    packages = _packages(server.args)
    folder = npx_folder(server, packages)
    if not packages or not folder.is_dir():
        return None
    if (folder / "node_modules" / _LAST_WRITTEN).is_file() and not (folder / "concurrency.lock").exists():
        return None
    return (
        f"npx's cache of {', '.join(packages)} is not complete, as after an installation that was killed:"
        f" {folder}. Remove the folder and try again: rm -r {shlex.quote(str(folder))}"
    )


def npx_folder(server: StdioServer, packages: Iterable[str]) -> Path:
    """Return the folder into which npx installs these packages for a server."""
    name = hashlib.sha512("\n".join(sorted(packages)).encode()).hexdigest()[:16]
    return _cache(server) / "_npx" / name


def _packages(args: Sequence[str]) -> list[str]:
    """Return each `--package`, or else the first argument that is no option."""
    named, _, rest = _split(args)
    return named or rest[:1]


def _split(args: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the values of `--package`, the other options, and all that follows the options."""
    named, options, rest = list[str](), list[str](), list(args)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        flag, equals, value = option.partition("=")
        if option == "--":
            break
        if flag in _NAMING:
            named.append(value if equals or not rest else rest.pop(0))
        else:
            options.append(option)
    return named, options, rest


def _cache(server: StdioServer) -> Path:
    environment = server.environment()
    named = environment.get("npm_config_cache")
    return Path(named) if named else expanded(environment.get("HOME", "~")) / ".npm"


Launcher: TypeAlias = Literal["npx", "uvx"]

_LARGEST_MANIFEST = 2**20
_NEVER_INSTALL = frozenset(("--no-install", "--no", "-n", "--no-yes", "--yes=false"))
_NPX_FLAGS = frozenset(("-y", "--yes", "-q", "--quiet"))
_UVX_FLAGS = frozenset(("-q", "--quiet", "--offline"))

_REGISTRY_NAME = re.compile(r"(@[\w.~-]+/)?[\w.~-]+(@[\w.^~<>=*-]+)?")


class Direct(Struct, frozen=True):
    """A faster command line for a server. `note` says what the user should know before using it."""

    server: StdioServer
    note: str


def launcher_of(server: StdioServer) -> Launcher | None:
    """Return `npx` or `uvx` (also for `uv tool run`) if a server's command runs it; else `None`."""
    name = PurePath(server.command).name
    if name == "npx":
        return "npx"
    return "uvx" if name == "uvx" or (name == "uv" and server.args[:2] == ("tool", "run")) else None


@_if_readable
def direct_command(server: StdioServer) -> Direct | None:
    """Return a faster command for a server that npx or uvx starts; `None`: no such command is known."""
    launcher = launcher_of(server)
    return _of_npx(server) if launcher == "npx" else _of_uvx(server) if launcher == "uvx" else None


@_if_readable
def missing_npx_package(server: StdioServer) -> str | None:
    """Return the server's npx package if it is missing and npx must not install it; else `None`."""
    if launcher_of(server) != "npx" or _NEVER_INSTALL.isdisjoint(_split(server.args)[1]):
        return None
    asked = _read_npx(server.args)
    if asked is None or not _REGISTRY_NAME.fullmatch(asked.package):
        return None
    name, command = _without_version(asked.package), asked.program or asked.package
    # npx also accepts an installed program with the name `command`, whatever package the program is from.
    for modules in itertools.chain(_project_folders(server), _npm_folders(server, asked), _global(server)):
        if (modules / name / "package.json").is_file():
            return None
        if _is_plain(command) and _is_program(modules / ".bin" / command):
            return None
    if _is_plain(command) and shutil.which(command, path=server.environment().get("PATH")):
        return None
    return name


class _Npx(Struct, frozen=True):
    """A parsed npx command line. `program` is one of the package's programs (`bin`); empty: npx chooses."""

    package: str
    program: str
    args: Sequence[str]


def _of_npx(server: StdioServer) -> Direct | None:
    asked = _read_npx(server.args)
    if asked is None:
        return None
    name = _without_version(asked.package)
    for modules in _npm_folders(server, asked):
        manifest = _manifest(modules / name / "package.json")
        program = asked.program or _only_program(manifest, name)
        path = modules / ".bin" / program
        if program and _is_program(path):
            gone = ", until npx's cache is cleared" if "_npx" in modules.parts else ""
            found = replace(server, command=str(path), args=asked.args)
            return Direct(found, f"It stays at version {manifest.get('version', 'unknown')}{gone}.")
    return None


def _read_npx(args: Sequence[str]) -> _Npx | None:
    """Parse npx's arguments; `None`: an unknown option, a second or empty `--package`, or only options."""
    named, options, rest = _split(args)
    known = all(each.partition("=")[0] in _NPX_FLAGS or each in _NEVER_INSTALL for each in options)
    if not rest or not known or len(named) > 1 or "" in named:
        return None
    first, *more = rest
    return _Npx(named[0], first, tuple(more)) if named else _Npx(first, "", tuple(more))


def _npm_folders(server: StdioServer, asked: _Npx) -> Iterator[Path]:
    """Yield the project's `node_modules` folders and npx's cache; for `NAME@VERSION`, only the cache."""
    if asked.package == _without_version(asked.package):
        yield from _project_folders(server)
    yield npx_folder(server, (asked.package,)) / "node_modules"


def _project_folders(server: StdioServer) -> Iterator[Path]:
    here = Path(server.cwd or "").absolute()
    yield from (folder / "node_modules" for folder in (here, *here.parents))


def _global(server: StdioServer) -> Iterator[Path]:
    """Yield the folders in which npm may keep global packages; they need not exist."""
    environment = server.environment()
    prefixes = [environment.get(name) for name in ("npm_config_prefix", "NPM_CONFIG_PREFIX", "PREFIX")]
    prefixes += [_npmrc_prefix(expanded(environment.get("HOME", "~")) / ".npmrc"), "/usr/local"]
    for program in ("node", "npx"):
        path = shutil.which(program, path=environment.get("PATH"))
        if path is not None:
            prefixes += [str(each.parent.parent) for each in (Path(path), Path(path).resolve())]
    for prefix in dict.fromkeys(filter(None, prefixes)):
        yield expanded(prefix) / "lib" / "node_modules"


def _npmrc_prefix(path: Path) -> str:
    """Return the `prefix` in `.npmrc`, with `~` for the home folder; empty: none is found."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    named = (line.partition("=") for line in lines)
    found = [value.strip().strip("\"'") for key, _, value in named if key.strip() == "prefix"]
    return found[-1].replace("${HOME}", "~") if found else ""


def _without_version(package: str) -> str:
    scope = "@" if package.startswith("@") else ""
    return scope + package.removeprefix("@").partition("@")[0]


def _only_program(manifest: dict[str, Any], package: str) -> str:
    """Return the name of the program that npx starts for a package; empty: npx could not choose one."""
    bins, own = manifest.get("bin"), package.rpartition("/")[2]
    if isinstance(bins, str):
        return own
    programs = {str(name): str(path) for name, path in bins.items()} if isinstance(bins, dict) else {}
    names = [name for name in programs if _is_plain(name)]
    if len({programs[name] for name in names}) == 1:
        return names[0]
    return own if own in names else ""


def _is_plain(name: str) -> bool:
    return bool(name) and PurePath(name).name == name


def _manifest(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_regular(path, _LARGEST_MANIFEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _of_uvx(server: StdioServer) -> Direct | None:
    args = server.args[2:] if PurePath(server.command).name == "uv" else server.args
    rest = list(args)
    flags = set()
    while rest and rest[0] in _UVX_FLAGS:
        flags.add(rest.pop(0))
    if not rest or not _is_plain(rest[0]) or rest[0].startswith("-") or "@" in rest[0]:
        # With a version, or an option not in `_UVX_FLAGS`, the installed program may not be the right one.
        return None
    tool, *more = rest
    own = _uv_tools(server) / tool / "bin" / tool
    if _is_program(own):
        found = replace(server, command=str(own), args=tuple(more))
        return Direct(found, f"It stays at its version until: uv tool upgrade {tool}")
    uv = shutil.which("uv", path=server.environment().get("PATH"))
    if uv is None or "--offline" in flags:
        return None
    found = replace(server, command=uv, args=("tool", "run", "--offline", *rest))
    return Direct(found, "It stays at the version in uv's cache, and needs that cache.")


def _uv_tools(server: StdioServer) -> Path:
    environment = server.environment()
    shared = environment.get("XDG_DATA_HOME") or expanded(environment.get("HOME", "~")) / ".local" / "share"
    return Path(environment.get("UV_TOOL_DIR") or Path(shared) / "uv" / "tools")


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


Version = tuple[int, int, int]

_RUNNERS = frozenset(("npx", "npm", "pnpm", "yarn", "bun", "bunx"))
_WORDS = frozenset(("exec", "dlx", "x", "run"))
# Node versions that packages need, for packages of which no `package.json` with `engines.node` is found.
_KNOWN = {"@kastalien-research/thoughtbox": ">=22"}
_ASK_LIMITS = ProcessLimits(cancelled_grace_s=0.1, max_line_bytes=4096).when_cancelled()
ASK_S = 1.0  # time limit for `node --version`
ASK_AFTER_TIMEOUT_S = 0.3  # its limit if the start-up limit is used up; Node takes about 30 ms
_COMPARATOR = re.compile(r"(?P<sign>[<>=^~]*)\s*v?(?P<version>\d+(?:\.(?:\d+|[xX*])){0,2})")


async def node_too_old(
    server: StdioServer, registry: ProcessRegistry, *, limit_s: float = ASK_S
) -> str | None:
    """Return advice for the user if Node, asked for its version, is older than the server's package needs."""
    package, wanted = _wanted(server) or ("", "")
    minimum = oldest_allowed(wanted)
    have = None if minimum is None else await _installed(server, registry, limit_s)
    if minimum is None or have is None or have >= minimum:
        return None
    return (
        f"{package} needs Node.js {wanted}, and {'.'.join(map(str, have))} is installed."
        f" Install Node.js {minimum[0]} or later (https://nodejs.org/), or put it first on the PATH."
    )


def oldest_allowed(wanted: str) -> Version | None:
    """Return the oldest version that a range like `>=18.17 <21 || ^22` allows; `None`: it sets no minimum."""
    lowest = []
    for alternative in wanted.replace(" - ", " <=").split("||"):
        found = [match for match in _COMPARATOR.finditer(alternative) if "<" not in match["sign"]]
        if not found:
            return None
        lowest.append(max(_version(match["version"]) for match in found))
    return min(lowest)


def _version(text: str) -> Version:
    # A package's author may have written anything, and `int` raises for a text of thousands of digits.
    numbers = [int(part) if part.isdecimal() and len(part) < 10 else 0 for part in text.split(".")]
    major, minor, patch = (*numbers, 0, 0)[:3]
    return major, minor, patch


@_if_readable
def _wanted(server: StdioServer) -> tuple[str, str] | None:
    """Name the package that a command runs, and the versions of Node that it needs; `None`: not known."""
    program = PurePath(server.command).name
    if program in _RUNNERS:
        args = [arg for arg in server.args if arg not in _WORDS]
        package = _without_version(next(iter(_packages(args)), ""))
        if not package:
            return None
        cached = (_cache(server) / "_npx").glob(f"*/node_modules/{package}/package.json")
        places = (modules / package / "package.json" for modules in _project_folders(server))
        stated = map(_engines, itertools.chain(places, cached))
        wanted = next(filter(None, stated), _KNOWN.get(package))
        return (package, wanted) if wanted else None
    if program == "node":
        script = next((arg for arg in server.args if not arg.startswith("-")), None)
        for above in Path(server.cwd or "", script).resolve().parents if script else ():
            if (above / "package.json").is_file():
                engines = _engines(above / "package.json")
                return (f"The package in {above}", engines) if engines else None
    return None


def _engines(file: Path) -> str | None:
    engines = _manifest(file).get("engines")
    wanted = engines.get("node") if isinstance(engines, dict) else None
    return wanted if isinstance(wanted, str) else None


async def _installed(server: StdioServer, registry: ProcessRegistry, limit_s: float) -> Version | None:
    """Return the version of the installed Node.js that runs the server; `None`: it cannot be determined."""
    own = server.command if PurePath(server.command).name == "node" else "node"
    node = shutil.which(own, path=server.environment().get("PATH"))
    if node is None:
        return None
    # In the server's sandbox, as a hostile bundle may have brought its own `node`.
    asked = replace(server, command=node, args=("--version",))
    try:
        with anyio.fail_after(limit_s):
            async with ServerProcess(asked, registry, _ASK_LIMITS) as process:
                line = (await process.receive_line()).decode("ascii", "replace")
    except (TimeoutError, MCPError, LineTooLongError, anyio.EndOfStream):
        return None
    match = re.fullmatch(r"v(\d+\.\d+\.\d+)\S*", line.strip())
    return _version(match[1]) if match else None
