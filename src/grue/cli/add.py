"""`grue add` and `grue remove`: write a server into `mcp_config.json`, or remove it.

Descriptions and bundles of servers are untrusted. So the user sees the command or the URL, and agrees (or has
given --yes), before anything is written or started. A bundle's download has a question of its own.
"""

import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import SplitResult, quote, urlsplit

import anyio
import msgspec
import typer
from msgspec import Struct

from grue import messages as m
from grue.cli.project import known_servers, own_python
from grue.cli.saying import GRUE, shown, shown_path
from grue.cli.saying import say_if_read as say
from grue.cli.tools import approve, described
from grue.config import bundles, tool_lock_file
from grue.config import server_descriptions as descriptions
from grue.config.documents import parse_json, read_config_text
from grue.config.mcp_servers import MCPConfig, edit_servers, one_at_a_time, tool_servers
from grue.config.settings import GameConfiguration
from grue.config.wiring import turn_limits
from grue.engine.approval import forget_typed
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import MCPConfigError
from grue.runtime.files import os_cause, os_errors_as
from grue.runtime.safe_text import printable
from grue.sandbox.box import Sandbox, in_words, sandbox_of
from grue.sandbox.launch import missing_for, remove_folder
from grue.sandbox.places import home, own_folders
from grue.tool_sessions.failures import failure_text
from grue.tool_sessions.oauth_settings import LOOPBACK
from grue.tool_sessions.redaction import Redactor
from grue.transports.mcp.http_faults import environment_fault

if TYPE_CHECKING:
    import httpx

_MOST_FETCHED = 1 << 20
_READ_S = 20.0
_DESCRIPTION_S = 60.0
_BUNDLE_S = 1800.0
_MOST_REDIRECTS = 5
_PACKAGES = ("npm", "pypi", "oci")
# The environment variables that name a launcher's folders for downloads, by launcher.
_CACHES = {"npx": ("npm_config_cache",), "uvx": ("UV_CACHE_DIR", "UV_TOOL_DIR", "UV_PYTHON_INSTALL_DIR")}
_CACHES["uv"] = _CACHES["uvx"]
_FOLDER_NAME = re.compile(r"[A-Za-z0-9_-]+")  # a server's name, after which folders are named
_OWN = "own"
_SCRIPTS = dict.fromkeys((".js", ".mjs", ".cjs"), "node")
# The argument of `grue add` to use in place of each of these commands.
_INSTEAD = {"npx": "npm:PACKAGE", "uvx": "pypi:PACKAGE", "docker": "oci:IMAGE"}
_INSTEAD |= dict.fromkeys(("python", "python3", "node"), "the program's file")


class Adding(Struct, frozen=True, kw_only=True):
    """The options of `grue add`; see its help."""

    source: str
    arguments: list[str] | None
    name: str | None
    values: tuple[str, ...]
    kind: str | None
    sha256: str | None
    registry: str | None
    mcp_config: Path | None
    yes: bool


def add_server(adding: Adding) -> bool:
    """Add a server, and start it if its variables are set; return `False` if the start failed."""
    config = GameConfiguration.of_project()
    path = adding.mcp_config or config.mcp_config_path
    answers = _Answers(adding.values, ask=_at_a_terminal() and not adding.yes)
    source = Path(adding.source)
    is_program = "://" not in adding.source and (source.suffix == ".py" or source.suffix in _SCRIPTS)
    if adding.arguments and not is_program and adding.source.partition(":")[0] not in (*_PACKAGES, *_INSTEAD):
        program = next((each for each in adding.arguments if Path(each).suffix in (".py", *_SCRIPTS)), None)
        if program is not None and not source.exists():
            meant = f"{GRUE} add {shlex.join([program, '--name', adding.source])}"
            raise MCPConfigError(f"There is no file {shown(adding.source)}. Did you mean: {meant}")
        raise MCPConfigError(
            "Arguments are for npm:, pypi:, oci: and programs of yours. A description says which it takes:"
            " --set NAME=VALUE."
        )
    if source.suffix == f".{descriptions.BUNDLE}":
        if "://" in adding.source:
            fault = "Download the bundle yourself, and name its file. --sha256 checks its digest."
            raise MCPConfigError(fault)
        return _add_bundle(adding, source, adding.sha256, path, answers)
    own = _own(adding, path.parent)
    if own is not None:
        _refuse_digest(adding)
        if own.kind == _OWN and (adding.kind or adding.registry):
            fault = "is a program of yours: --use and --registry are for servers that others have published."
            raise MCPConfigError(f"{shown(adding.source)} {fault}")
        return _add(adding, own, path, answers)
    try:
        description = _description(adding, config)
        offered = descriptions.offered_bundle(description, kind=adding.kind)
    except MCPConfigError as error:
        if "://" not in adding.source:
            raise
        address = f"{GRUE} add {shlex.quote(adding.source)} --use remote --name NAME"
        raise MCPConfigError(f"{error}\nIf this is the address of a server itself: {address}") from error
    if offered is not None:
        with _downloaded(offered, adding) as file:
            return _add_bundle(adding, file, adding.sha256 or offered.sha256, path, answers, offered)
    _refuse_digest(adding)
    env = os.environ.keys()
    server = descriptions.read_server(description, answers, name=adding.name, kind=adding.kind, env=env)
    if adding.source.partition(":")[0] in _PACKAGES:
        given = [each for each in server.entry["args"] if each.startswith("/") and _exists(each)]
        server = msgspec.structs.replace(server, paths=tuple(given))
    return _add(adding, server, path, answers)


def _refuse_digest(adding: Adding) -> None:
    if adding.sha256 is not None:
        raise MCPConfigError(f"--sha256 is the digest of a bundle, and {shown(adding.source)} is not one.")


def _own(adding: Adding, folder: Path) -> descriptions.Described | None:
    source = Path(adding.source)
    if adding.kind == "remote" and "://" in adding.source:
        name = adding.name or descriptions.default_name(_address(adding.source).hostname or "")
        entry = {"url": adding.source}
        return descriptions.Described(name=name, title="A server by URL", entry=entry, kind="remote")
    command = own_python() if source.suffix == ".py" else _SCRIPTS.get(source.suffix)
    if command is None or not source.is_file():
        return None
    file, base = source.absolute().resolve(), folder.absolute().resolve()
    place = f"${{workspaceFolder}}/{file.relative_to(base)}" if file.is_relative_to(base) else str(file)
    arguments = (_absolute(each) if _exists(each) else each for each in adding.arguments or ())
    return descriptions.Described(
        name=adding.name or descriptions.default_name(source.stem),
        title=f"{source.name}, a program of yours",
        entry={"command": command, "args": [place, *arguments]},
        kind=_OWN,
    )


def _add_bundle(
    adding: Adding,
    file: Path,
    sha256: str | None,
    path: Path,
    answers: "_Answers",
    offered: descriptions.OfferedBundle | None = None,
) -> bool:
    with bundles.opened(file, sha256) as bundle:
        name = adding.name or (offered.name if offered else None)
        server = descriptions.read_manifest(bundle.manifest, answers, name=name, env=os.environ.keys())
        checked = "" if sha256 is None else ", as promised"
        signed = "yes, which grue does not check" if bundle.is_signed else "no"
        server = msgspec.structs.replace(
            server,
            others=offered.others if offered else (),
            origin=(f"sha256   {bundle.sha256}{checked}", f"signed   {signed}"),
        )
        folder = path.parent / descriptions.BUNDLES / server.name
        start = descriptions.entry_point(bundle.manifest)
        return _add(adding, server, path, answers, lambda: bundle.unpack(folder, executable=start))


@contextmanager
def _downloaded(offered: descriptions.OfferedBundle, adding: Adding) -> Iterator[Path]:
    where = printable(_address(offered.url).hostname or "")
    say(f"download {printable(offered.url, 500)}")
    question = f"Download it from {where}? Nothing of it is started yet."
    _require_consent(adding, question, "Nothing was downloaded.")
    with tempfile.TemporaryDirectory(prefix="grue-") as folder:
        file = Path(folder) / f"bundle.{descriptions.BUNDLE}"
        try:
            with file.open("xb") as packed:
                _fetch(offered.url, packed, bundles.MOST_PACKED, _BUNDLE_S, redirects=_MOST_REDIRECTS)
        except OSError as error:
            raise MCPConfigError(f"The bundle cannot be kept in {folder}: {os_cause(error)}.") from error
        yield file


def _add(
    adding: Adding,
    server: descriptions.Described,
    path: Path,
    answers: "_Answers",
    unpack: Callable[[], None] = lambda: None,
) -> bool:
    answers.refuse_unused()
    name, entry = server.name, _in_a_box(server)
    if not _FOLDER_NAME.fullmatch(name):
        fault = f"A server's name has letters, digits, '-' and '_'; '{printable(name)}' has others."
        raise MCPConfigError(fault)
    missing = [each for each in server.variables if not os.environ.get(each)]
    config = MCPConfig.from_mapping({name: entry}, source=path)
    if not missing:
        tool_servers(config)  # raises if a value cannot be used, such as a URL with a space
    if path.exists() and name in MCPConfig.from_file(path).mcpServers:
        raise MCPConfigError(_taken(name, path))
    tool_lock_file.read_tool_lock(tool_lock_file.lock_path(path))  # raises if the lock is damaged
    _show(server, entry, path.parent.absolute())
    texts = [*entry.get("args", ()), entry.get("url", "")]
    hidden = Redactor().words("", texts)[1:]
    if any(text != safe and "${" not in text for text, safe in zip(texts, hidden, strict=True)):
        say("key      something above looks like a key, which the file would hold as it is: write")
        say("         '${API_KEY}' in its place, and set API_KEY in the environment")
    question = f"Write it to {shown(str(path))}, start it and approve its tools?"
    _require_consent(adding, question, "Nothing was written.")

    def put(servers: dict[str, Any]) -> None:
        if name in servers:
            raise MCPConfigError(_taken(name, path))
        MCPConfig.from_mapping(servers, source=path, place=lambda _: f"{path}: ")
        unpack()
        if server.kind == descriptions.BUNDLE:
            undo.callback(shutil.rmtree, path.parent / descriptions.BUNDLES / name, ignore_errors=True)
        if descriptions.PACKAGES in str(entry.get("sandbox")):
            (path.parent / descriptions.PACKAGES / name).mkdir(parents=True, exist_ok=True)
        servers[name] = entry

    with ExitStack() as undo:  # if the file cannot be written, remove the bundle's folder again
        edit_servers(path, put)
        undo.pop_all()
    say(f"written  {printable(name)} to {shown_path(path)}")
    if not adding.name:
        say(f"         its tools are called {printable(name)}.TOOL; --name gives it another name")
    file = adding.mcp_config
    with_file = "" if file is None else f" --mcp-config {shlex.quote(str(file))}"
    if missing:
        say(f"set      {', '.join(missing)} in the environment; then approve its tools:")
        say(f"         {GRUE} tools {shlex.quote(name)} --lock{with_file}")
        return True
    return _approved(name, path, with_file)


def _approved(name: str, path: Path, with_file: str) -> bool:
    config = GameConfiguration.of_project()
    known = known_servers(config, path)
    with ToolClient({name: known.usable(name)}, limits=turn_limits(config)) as client:
        found = client.connect(name)[name]
    if isinstance(found, m.ServerFailure):
        why = failure_text(client.recorder.redacted_body(found))
        say(f"grue: The entry is written, but the server did not start: {why}", err=True)
        say(f"To take it out again: {GRUE} remove {shlex.quote(name)}{with_file}", err=True)
        return False
    without_secrets = client.recorder.redacted_body(found)
    for line in described(without_secrets, known.source, 80):
        say(line)
    others = [each for each in (*known.servers, *known.unusable) if each != name]
    if others and tool_lock_file.read_tool_lock(tool_lock_file.lock_path(path)) is None:
        # A lock with this server's tools alone would leave the tools of all other servers unapproved.
        command = f"{GRUE} tools --lock{with_file}"
        say(f"The file's servers have no tool lock. To approve the tools of all: {command}")
    else:
        say("\n".join(approve(known, {name: found.tools}, {name: without_secrets.tools})))
    return True


def remove_server(name: str, mcp_config: Path | None) -> None:
    """Remove a server, its tools in the tool lock, and the folders that `grue add` made for it."""
    path = mcp_config or GameConfiguration.of_project().mcp_config_path

    def take(servers: dict[str, Any]) -> None:
        if name not in servers:
            names = printable(", ".join(servers)) or "none"
            raise MCPConfigError(f"There is no MCP server '{printable(name)}' in {path}. Known: {names}.")
        del servers[name]

    if not path.exists():
        none = f"There is no file of MCP servers {path}"
        raise MCPConfigError(f"{none}. Name another with --mcp-config; {GRUE} init writes one.")
    lock = tool_lock_file.lock_path(path)
    tool_lock_file.read_tool_lock(lock)  # if the lock is damaged, this raises before anything is changed
    edit_servers(path, take)
    say(f"removed  {printable(name)} from {shown_path(path)}")
    if lock.exists():
        with one_at_a_time(lock.parent):
            locked = tool_lock_file.read_tool_lock(lock)
            left = [each for each in (locked.servers if locked else ()) if each != name]
            tool_lock_file.write(lock, {}, keep=left)
            tool_lock_file.write_listings(tool_lock_file.listing_path(lock), {}, keep=left)
        say(f"removed  its approved tools from {shown_path(lock)}")
    for kind in (descriptions.BUNDLES, descriptions.PACKAGES):
        folder = path.parent / kind / name
        # Remove only what `grue add` makes: a folder directly in `mcp_bundles` or `mcp_packages`, no link.
        is_link = folder.is_symlink() or folder.parent.is_symlink()
        if _FOLDER_NAME.fullmatch(name) and folder.is_dir() and not is_link:
            with os_errors_as(MCPConfigError, f"remove {folder}"):
                remove_folder(str(folder))
            say(f"removed  {shown_path(folder)}")


def _description(adding: Adding, config: GameConfiguration) -> object:
    source, path = adding.source, Path(adding.source)
    kind, _, rest = source.partition(":")
    if kind in _PACKAGES and rest:
        arguments = adding.arguments
        if arguments is None and _at_a_terminal() and not adding.yes:
            question = "Its arguments, as in a shell (none: press Enter)"
            arguments = _words(typer.prompt(question, default="", show_default=False))
        # The server may be started in another folder later, and only absolute paths get into its sandbox.
        absolute = [_absolute(each) if "/" in each and _exists(each) else each for each in arguments or ()]
        return descriptions.package_description(kind, rest, absolute)
    if path.is_file() or (path.suffix == ".json" and "://" not in source):
        return parse_json(read_config_text(path, if_missing=f"There is no file {path}."), path).value
    name, _, version = source.partition("@")
    if "://" in source:
        return _fetched(source)
    if source in _INSTEAD:
        fault = f"'{source}' is a command. Write {_INSTEAD[source]} in its place, and the arguments after --."
        raise MCPConfigError(fault)
    if "/" not in name or name.startswith((".", "/", "~")):
        raise MCPConfigError(
            f"There is no file '{printable(source)}'. Name a program of yours (server.py), a server.json or"
            " an .mcpb bundle; a package is npm:NAME, pypi:NAME or oci:IMAGE; a server of a registry is"
            " NAMESPACE/NAME; a server by URL is its address with --use remote."
        )
    registry = adding.registry or config.mcp_registry
    if registry is None:
        raise MCPConfigError(
            f"Which registry knows '{printable(source)}'? Name one: --registry URL, or registry = \"URL\""
            " under [tool.grue.mcp] in pyproject.toml."
        )
    at = f"/v0.1/servers/{quote(name, safe='')}/versions/{quote(version or 'latest', safe='')}"
    found = _fetched(registry.rstrip("/") + at)
    _check_answer(found, name, version)
    return found


def _check_answer(answer: object, name: str, version: str) -> None:
    server = answer.get("server", answer) if isinstance(answer, dict) else {}
    if not isinstance(server, dict) or server.get("name") != name:
        raise MCPConfigError(f"The registry has answered with another server than '{printable(name)}'.")
    meta = answer.get("_meta") if isinstance(answer, dict) else None
    official = meta.get("io.modelcontextprotocol.registry/official") if isinstance(meta, dict) else None
    status = official.get("status") if isinstance(official, dict) else None
    if status == "deleted":
        raise MCPConfigError("The registry has deleted this server.")
    if status == "deprecated":
        say("grue: The registry calls this server deprecated.", err=True)
    if version not in ("", "latest", server.get("version")):
        raise MCPConfigError(f"The registry has answered with another version than '{printable(version)}'.")


def _fetched(url: str) -> object:
    """Fetch and parse a description of at most 1 MiB, without redirects and without an API key."""
    content = io.BytesIO()
    _fetch(url, content, _MOST_FETCHED, _DESCRIPTION_S)
    where = printable(_address(url).hostname or "")
    try:
        return parse_json(content.getvalue().decode(), Path(where)).value
    except UnicodeDecodeError as error:
        raise MCPConfigError(f"The answer of {where} is not JSON.") from error


def _fetch(url: str, into: BinaryIO, most: int, within_s: float, *, redirects: int = 0) -> None:
    """Write the body at `url`, of at most `most` bytes, into a file. Sends no API key."""
    import httpx

    # No proxy can reach this machine's own addresses, so ask these directly, also after a redirect.
    direct = {f"all://[{host}]" if ":" in host else f"all://{host}": None for host in LOOPBACK}

    async def fetch() -> None:
        following: str | None = url
        left = redirects
        with anyio.fail_after(within_s):
            try:
                new = httpx.AsyncClient(timeout=_READ_S, mounts=direct)
            except (OSError, ValueError, ImportError, httpx.InvalidURL) as error:
                fault = environment_fault(error)
                raise MCPConfigError(f"{fault.cause}. {fault.remedy}") from error
            async with new as client:
                while following is not None:
                    following = await _asked(client, following, into, most, may_redirect=left > 0)
                    left -= 1

    try:
        anyio.run(fetch)
    except TimeoutError as error:
        where = printable(_address(url).hostname or "")
        raise MCPConfigError(f"{where} has not answered completely within {within_s:g} s.") from error


async def _asked(
    client: "httpx.AsyncClient", url: str, into: BinaryIO, most: int, *, may_redirect: bool
) -> str | None:
    """Write the body at `url` into a file, or return the URL that the answer redirects to."""
    import httpx

    parts = _address(url)
    where = printable(parts.hostname or "")
    if parts.scheme not in ("http", "https") or not where:
        raise MCPConfigError("An address begins with http:// or https:// and has a host.")
    headers = {"Accept": "application/json, */*", "Accept-Encoding": "identity"}
    try:
        async with client.stream("GET", url, headers=headers) as answer:
            status, further = answer.status_code, answer.next_request
            if status == httpx.codes.OK:
                # Bytes that were compressed several times may become gigabytes before `most` is checked.
                if answer.headers.get("content-encoding", "identity") != "identity":
                    raise MCPConfigError(f"{where} has sent a compressed answer, and grue asked for none.")
                await _write(answer.aiter_bytes(), into, most, where)
                return None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise MCPConfigError(f"{where} cannot be asked: {printable(str(error), 200)}.") from error
    if status == httpx.codes.NOT_FOUND:
        raise MCPConfigError(f"{where} knows no such server (404).")
    if further is None or not may_redirect or (parts.scheme, further.url.scheme) == ("https", "http"):
        raise MCPConfigError(f"{where} has answered with status {status}.")
    return str(further.url)


async def _write(pieces: AsyncIterator[bytes], into: BinaryIO, most: int, where: str) -> None:
    async for piece in pieces:
        if into.tell() + len(piece) > most:
            raise MCPConfigError(f"The answer of {where} is longer than {most >> 20} MiB.")
        into.write(piece)


def _address(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise MCPConfigError(f"'{printable(url, 200)}' is not a URL: {error}.") from error


class _Answers:
    def __init__(self, given: tuple[str, ...], *, ask: bool) -> None:
        self._ask = ask
        self._given: dict[str, list[str]] = {}
        self._used: set[str] = set()
        for each in given:
            name, separator, value = each.partition("=")
            if not separator:
                raise MCPConfigError(f"--set '{printable(each)}' is not of the form NAME=VALUE.")
            self._given.setdefault(name, []).append(value)

    def __call__(self, wanted: descriptions.Wanted) -> tuple[str, ...]:
        self._used.add(wanted.name)
        name, values = printable(wanted.name, 100), self._values(wanted)
        if wanted.required and not values:
            about = f" ({printable(wanted.about, 200)})" if wanted.about else ""
            raise MCPConfigError(f"The server needs a value for '{name}'{about}: --set {name}=VALUE.")
        if wanted.choices and not {*values} <= {*wanted.choices}:
            raise MCPConfigError(f"'{name}' should be one of: {printable(', '.join(wanted.choices), 500)}.")
        if len(values) > 1 and not wanted.repeated:
            raise MCPConfigError(f"'{name}' takes one value only.")
        return tuple(map(_absolute, values)) if wanted.is_path else values

    def _values(self, wanted: descriptions.Wanted) -> tuple[str, ...]:
        if wanted.name in self._given:
            return tuple(self._given[wanted.name])
        default = wanted.default or ()
        if not self._ask:
            return default
        about = f": {wanted.about}" if wanted.about else ""
        several = " (several: as in a shell)" if wanted.repeated else ""
        needed = "" if wanted.required else " (optional)"
        shown_default = default[0] if len(default) == 1 and not wanted.repeated else shlex.join(default)
        text = printable(f"{wanted.name}{about}{several}{needed}", 500)
        if shown_default:
            text += f" [{printable(shown_default, 200)}]"
        typed = str(typer.prompt(text, default=shown_default, show_default=False))
        return tuple(_words(typed)) if wanted.repeated else (typed,) if typed else ()

    def refuse_unused(self) -> None:
        for name in self._given.keys() - self._used:
            known = ", ".join(sorted(self._used)) or "nothing"
            raise MCPConfigError(
                f"The server asks for no value '{printable(name)}'. It asks for {printable(known)};"
                " keys are set in the environment."
            )


def _words(typed: str) -> list[str]:
    try:
        return shlex.split(typed)
    except ValueError as error:
        raise MCPConfigError(f"{shown(typed)} cannot be split as in a shell: {error}.") from error


def _exists(argument: str) -> bool:
    try:
        return Path(argument).exists()
    except OSError:  # for example, the argument is too long for a path
        return False


def _absolute(path: str) -> str:
    if path.startswith("${"):
        return path
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError as error:
        raise MCPConfigError(f"There is no home folder for '{printable(path, 200)}'.") from error


def _in_a_box(server: descriptions.Described) -> dict[str, Any]:
    entry = dict(server.entry)
    if server.kind in ("remote", _OWN):
        return entry
    entry["inherit_env"] = "safe"
    if server.kind == "oci" or missing_for(Sandbox()):
        return entry
    box: dict[str, Any] = {"preset": "pure"}
    read = list(server.paths)
    if server.kind == descriptions.BUNDLE:
        read.insert(0, f"${{workspaceFolder}}/{descriptions.BUNDLES}/{server.name}")
    caches = _CACHES.get(entry["command"])
    if caches is not None:
        # In a shared package cache, the server could change packages that other programs run.
        folder = f"${{workspaceFolder}}/{descriptions.PACKAGES}/{server.name}"
        entry["env"] = {**entry.get("env", {}), **{each: f"{folder}/{each.lower()}" for each in caches}}
        box |= {"preset": "web", "write": [folder]}
    if read:
        box["read"] = read
    return {**entry, "sandbox": box if len(box) > 1 else box["preset"]}


def _show(server: descriptions.Described, entry: dict[str, Any], folder: Path) -> None:
    say(f"{printable(server.title, 500)}\n")
    if "url" in entry:
        say(f"connects {printable(entry['url'])}")
        for key, value in entry.get("headers", {}).items():
            say(f"sends    {printable(f'{key}: {value}')}")
        if entry["url"].startswith("http://"):
            say("         This address is not encrypted.")
    else:
        say(f"runs     {printable(shlex.join([entry['command'], *entry['args']]))}")
        for key, value in entry.get("env", {}).items():
            say(f"with     {printable(f'{key}={value}')}")
        say(f"sandbox  {printable(_box_in_words(server, entry, folder))}")
    for line in server.origin:
        say(line)
    for each in server.variables:
        say(f"gets     your variable {printable(each)}")
    if server.optional:
        optional = printable(", ".join(server.optional))
        say(f"left out {optional}: optional keys, and not set. To use one, set it before you add the server.")
    if server.others:
        say(f"or       --use {', '.join(server.others)}")
    say(f"\n{json.dumps({server.name: entry}, indent=2, ensure_ascii=True)}\n")


def _box_in_words(server: descriptions.Described, entry: dict[str, Any], folder: Path) -> str:
    if server.kind == _OWN:
        return 'none: it is your own program. "sandbox": "files" in the file gives it one.'
    if server.kind == "oci":
        return "none: the container limits it, with the options above, and not grue."
    box = sandbox_of(entry.get("sandbox"))
    if box is None:
        return "none: this machine cannot enforce one. It can reach all that you can."
    # A box also opens the folders of code that an argument names, and the description may have chosen that.
    args = [each.replace("${workspaceFolder}", str(folder)) for each in entry["args"]]
    args = [each.replace("${userHome}", home()) for each in args]
    cwd = str(folder / entry["cwd"]) if "cwd" in entry else str(Path.cwd())
    opened = ", ".join(own_folders((), args, cwd))
    return f"{in_words(box)}; reads {opened}, as an argument names it" if opened else in_words(box)


def _taken(name: str, path: Path) -> str:
    return f"{path} has a server '{name}' already. Use --name, or: {GRUE} remove {shlex.quote(name)}"


def _require_consent(adding: Adding, question: str, otherwise: str) -> None:
    if adding.yes:
        return
    if not _at_a_terminal():
        raise MCPConfigError(f"{otherwise} To go on without being asked, add --yes.")
    # What was typed before now is no answer: the person had not seen the question.
    forget_typed(sys.stdin)
    if not typer.confirm(question, default=False):
        raise MCPConfigError(otherwise)


def _at_a_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
