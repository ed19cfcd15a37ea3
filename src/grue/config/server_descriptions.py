"""Make an entry for `mcp_config.json` from a published description of a server.

The description is the `server.json` of an MCP registry, or the `manifest.json` of an `.mcpb` bundle.
Everything in it is untrusted, and it chooses the program that will run. So `cli/add.py` shows the entry to
the user before it is written, and a description must not choose anything that the entry does not show:

- For a registry's package, the entry starts only the launcher of the package's kind (npx, uvx, docker or
  podman), with the package's name, version and arguments. A URL in place of the name is refused, because npx
  would install from that URL. Options of npx and uvx such as `--package` are refused, too (not `-y`). Only
  docker and podman get the description's options, such as mounts.
- A `${NAME}` in the entry is refused unless it stands for a folder, or for an environment variable that grue
  shows to the user. Any other would read the user's environment unseen when the server starts.
- An entry with characters that a terminal acts on is refused, and one with folders in `PYTHONPATH` or
  `NODE_PATH` that are not the bundle's own: the server's sandbox would open them.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, Literal, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Struct, field

from grue.errors import MCPConfigError
from grue.runtime.safe_text import printable
from grue.runtime.secrets.secret_forms import looks_secret

BUNDLES = "mcp_bundles"
"""The folder beside `mcp_config.json` into which bundles are unpacked, each in a folder of its own."""
PACKAGES = "mcp_packages"
"""The folder beside `mcp_config.json` for the package caches of launchers, with a folder for each server."""
BUNDLE = "mcpb"

_T = TypeVar("_T")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_EXPRESSION = re.compile(r"\$\{([^}]*)(\}?)")
_OPENED = ("PYTHONPATH", "NODE_PATH")  # a sandbox opens the folders that these variables name
_MOST_ARGUMENTS = 100
_MOST_CHARS = 4096


class Wanted(Struct, frozen=True, kw_only=True):
    """A value that a server's description asks for; `name` is that of `--set NAME=VALUE`."""

    name: str
    about: str = ""
    default: tuple[str, ...] | None = None  # used if the user gives none
    required: bool = False
    choices: tuple[str, ...] = ()  # empty: any value is allowed
    repeated: bool = False
    is_path: bool = False


Ask = Callable[[Wanted], tuple[str, ...]]
"""A function that returns the user's values, or the default values; an empty tuple: there are none. It raises
`MCPConfigError` if a required value is missing."""


_PACKAGE = "package/"
"""The prefix of the name in a `server.json` that grue makes itself, if the user has named only a package."""


class Described(Struct, frozen=True, kw_only=True):
    """The entry for a server, and what grue shows the user before it writes the entry."""

    name: str
    title: str
    entry: dict[str, Any]
    kind: str  # `npm`, `pypi`, `oci`, `mcpb`, `remote` for an address, or `own` for the user's own program
    variables: tuple[str, ...] = ()  # environment variables that have to be set
    optional: tuple[str, ...] = ()  # environment variables that are not set and not needed
    paths: tuple[str, ...] = ()  # files and folders that the entry gives to the server
    others: tuple[str, ...] = ()  # other kinds that the description offers and grue can use
    origin: tuple[str, ...] = ()  # lines about where the server's files come from


class OfferedBundle(Struct, frozen=True, kw_only=True):
    """A bundle that a description names; `sha256` is the digest of the file, in lower-case hexadecimal."""

    name: str
    url: str
    sha256: str
    others: tuple[str, ...]


class _Input(Struct, rename="camel"):
    description: str = ""
    is_required: bool = False
    is_secret: bool = False
    format: str = "string"
    value: str | None = None
    default: str | None = None
    placeholder: str | None = None
    choices: list[str] = []
    variables: dict[str, "_Input"] = {}


class _KeyValue(_Input, rename="camel"):
    name: str = ""


class _Argument(_Input, rename="camel"):
    type: Literal["positional", "named"] = "positional"
    name: str = ""
    value_hint: str = ""
    is_repeated: bool = False


class _Transport(Struct):
    type: str = "stdio"
    url: str = ""
    headers: list[_KeyValue] = []
    variables: dict[str, _Input] = {}


class _Package(Struct, rename="camel"):
    registry_type: str
    identifier: str
    version: str = ""
    file_sha256: str = field(name="fileSha256", default="")
    runtime_hint: str = ""
    transport: _Transport = field(default_factory=_Transport)
    runtime_arguments: list[_Argument] = []
    package_arguments: list[_Argument] = []
    environment_variables: list[_KeyValue] = []


class _Server(Struct):
    name: str
    version: str = ""
    description: str = ""
    packages: list[_Package] = []
    remotes: list[_Transport] = []


_NAME = re.compile(r"[A-Za-z0-9.-]+/[A-Za-z0-9._-]+")
_RELEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")
_IDENTIFIERS = {
    "npm": re.compile(r"(@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*"),
    "pypi": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._,-]+\])?"),
    "oci": re.compile(
        r"[a-z0-9][A-Za-z0-9._-]*(:\d+)?(/[A-Za-z0-9._-]+)*(:[A-Za-z0-9._-]+)?(@sha256:[0-9a-f]{64})?"
    ),
}
_VERSION_AFTER = {"npm": "@", "pypi": "==", "oci": ":"}
_LAUNCHERS = {"npm": ("npx",), "pypi": ("uvx",), "oci": ("docker", "podman")}
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")
KINDS = (*_LAUNCHERS, BUNDLE, "remote")


def read_server(
    description: object,
    ask: Ask,
    *,
    name: str | None = None,
    kind: str | None = None,
    env: Collection[str] = (),
) -> Described:
    """Return the entry for a `server.json`, or for a registry's response that contains one.

    `kind` is the kind of package to use, or `remote`; `None`: the first that grue can use. `env` has the
    names of the variables that are set: the entry refers to an optional secret only if its variable is set.
    """
    server, found, offer, others = _chosen(description, kind)
    entry = _Entry(name or default_name(server.name), ask, env)
    if isinstance(offer, _Transport):
        entry.by_url(offer)
    elif found == BUNDLE:
        raise MCPConfigError("The server is in a bundle: its own manifest says how it is started.")
    else:
        entry.by_launcher(offer)
    title = _title(server.name.removeprefix(_PACKAGE), server.version, server.description)
    return entry.described(title, found, others)


def _chosen(
    description: object, kind: str | None
) -> tuple[_Server, str, _Package | _Transport, tuple[str, ...]]:
    """Return the parsed description, the kind to use, its package or URL, and the other usable kinds."""
    if isinstance(description, Mapping) and isinstance(description.get("server"), Mapping):
        description = description["server"]
    server = _converted(description, _Server, "a server.json of the MCP registry")
    if not _NAME.fullmatch(server.name):
        raise MCPConfigError(
            f"The description's name {_quoted(server.name)} is not of the form namespace/name."
        )
    offers: list[tuple[str, _Package | _Transport]] = [(each.registry_type, each) for each in server.packages]
    offers += [("remote", each) for each in server.remotes]
    usable = [(each, offer) for each, offer in offers if each in KINDS]
    chosen = next(((each, offer) for each, offer in usable if kind in (None, each)), None)
    if chosen is None:
        has = ", ".join(_quoted(each) for each in dict.fromkeys(each for each, _ in offers)) or "nothing"
        raise MCPConfigError(
            f"{server.name.removeprefix(_PACKAGE)} has no {kind or 'package or address that grue can use'}."
            f" It has {has}."
        )
    others = dict.fromkeys(each for each, _ in usable if each != chosen[0])
    return server, *chosen, tuple(others)


def offered_bundle(description: object, *, kind: str | None = None) -> OfferedBundle | None:
    """Return the bundle that a description offers; `None`: grue would use another package, or a URL."""
    server, found, offer, others = _chosen(description, kind)
    if found != BUNDLE or not isinstance(offer, _Package):
        return None
    address = _address(offer.identifier)
    if address.scheme not in ("http", "https") or not address.hostname or "@" in address.netloc:
        raise MCPConfigError(f"The description has no address of its bundle: {_quoted(offer.identifier)}.")
    if not _SHA256.fullmatch(offer.file_sha256):
        raise MCPConfigError(
            "The description has no digest of its bundle (fileSha256), so nobody can say whether what arrives"
            " is what its authors published. If you trust the address, get the bundle yourself from"
            f" {printable(offer.identifier, 500)}, and then: grue add FILE.mcpb"
        )
    return OfferedBundle(
        name=default_name(server.name), url=offer.identifier, sha256=offer.file_sha256.lower(), others=others
    )


def _address(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # for example, the host in the URL has an unbalanced bracket
        return urlsplit("")


def package_description(kind: str, identifier: str, arguments: Iterable[str]) -> dict[str, Any]:
    """Return a `server.json` for a package; `identifier` is the package's name, with or without a version."""
    at = identifier.rfind("@") if kind == "npm" else -1
    version = ""
    if at > 0:
        identifier, version = identifier[:at], identifier[at + 1 :]
    elif kind == "pypi" and "==" in identifier:
        identifier, _, version = identifier.partition("==")
    given = [{"type": "positional", "value": each} for each in arguments]
    package = {"registryType": kind, "identifier": identifier, "version": version, "packageArguments": given}
    plain = default_name(re.split(r"[@:\[]", identifier.lstrip("@"))[0])
    return {"name": f"{_PACKAGE}{plain}", "version": version, "packages": [package]}


def _title(name: str, version: str, description: str) -> str:
    named = f"{name} {version}".strip()
    return f"{named}: {description}" if description else named


def default_name(name: str) -> str:
    """Make a server's name from the last part of a package's name, with only letters, digits, `_`, `-`."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name.rpartition("/")[2]).strip("-") or "server"
    return f"{plain}-server" if plain == "mcp" else plain


class _Entry:
    def __init__(self, name: str, ask: Ask, env: Collection[str]) -> None:
        self.name, self._ask, self._env = name, ask, env
        self.entry: dict[str, Any] = {}
        self.variables: list[str] = []
        self.optional: list[str] = []
        self.paths: list[str] = []

    def described(self, title: str, kind: str, others: tuple[str, ...] = ()) -> Described:
        """Return a `Described`. Refuse control characters, a `${...}` not in `allowed`, and too much text."""
        allowed = {"workspaceFolder", "userHome", *self.variables}
        # Check the finished texts, not each value that was filled in: two values that look harmless, such as
        # "$" and "{HOME}", may have become a `${...}`.
        for text in _texts(self.entry):
            if not text.isprintable():
                raise MCPConfigError(f"The description has a control character in {_quoted(text)}.")
            for inside, end in _EXPRESSION.findall(text):
                if not end or inside not in allowed:
                    raise MCPConfigError(
                        f"The description has {_quoted(text)}: a '${{...}}' would read your environment."
                    )
        own = f"${{workspaceFolder}}/{BUNDLES}/{self.name}/" if kind == BUNDLE else None
        for key in _OPENED if kind != "oci" else ():
            for each in filter(None, self.entry.get("env", {}).get(key, "").split(":")):
                inside = own is not None and (f"{each}/".startswith(own) or each[0] not in "/$")
                if each not in self.paths and (not inside or ".." in PurePosixPath(each).parts):
                    fault = f"The description sets {key} to {_quoted(each)}, which its sandbox would open."
                    raise MCPConfigError(fault)
        if len(self.entry.get("args", ())) > _MOST_ARGUMENTS or any(
            len(t) > _MOST_CHARS for t in _texts(self.entry)
        ):
            raise MCPConfigError("The description has too many or too long arguments.")
        return Described(
            name=self.name,
            title=title,
            entry=self.entry,
            kind=kind,
            variables=tuple(dict.fromkeys(self.variables)),
            optional=tuple(self.optional),
            paths=tuple(self.paths),
            others=others,
        )

    def by_url(self, remote: _Transport) -> None:
        if remote.type not in ("streamable-http", "sse"):
            raise MCPConfigError(f"The address has the unknown type {_quoted(remote.type)}.")
        url = self._filled(remote.url, remote.variables)
        parts = _address(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise MCPConfigError(f"The address {_quoted(url)} is not an http:// or https:// URL with a host.")
        self.entry = {"type": remote.type, "url": url}
        headers = self._named_values(remote.headers, _HEADER)
        if headers:
            self.entry["headers"] = headers

    def by_launcher(self, package: _Package) -> None:
        kind, identifier, version = package.registry_type, package.identifier, package.version
        if package.transport.type != "stdio":
            raise MCPConfigError(
                "The package is a program that is reached by its address. Start it, and add the address."
            )
        if not _IDENTIFIERS[kind].fullmatch(identifier) or (version and not _RELEASE.fullmatch(version)):
            what = f"{identifier} {version}".rstrip(" ")
            raise MCPConfigError(
                f"{_quoted(what)} is not a package of {kind}{version and ' and its version'}."
            )
        launcher = package.runtime_hint or _LAUNCHERS[kind][0]
        if launcher not in _LAUNCHERS[kind]:
            known = " or ".join(_LAUNCHERS[kind])
            raise MCPConfigError(
                f"The description wants {_quoted(launcher)} to start it. grue uses {known} for {kind}."
            )
        before = self._arguments(package.runtime_arguments)
        after = self._arguments(package.package_arguments)
        env = self._named_values(package.environment_variables, _VARIABLE)
        refused = [] if kind == "oci" else [each for each in before if each not in ("-y", "--yes")]
        if refused:
            raise MCPConfigError(
                f"The description has {_quoted(' '.join(refused))} for {launcher}. grue gives {launcher} the"
                " name of a package and its version, and no other argument of a description."
            )
        if kind == "oci":
            rest = before[1:] if before[:1] == ["run"] else before
            rest = [each for each in rest if each not in ("-i", "--interactive", "--rm")]
            passed = [part for name in env for part in ("-e", name)]
            before = ["run", "-i", "--rm", *passed, *rest]
            version = "" if ":" in identifier.rpartition("/")[2] else version
        else:
            before = ["-y"] if kind == "npm" else []
        what = f"{identifier}{_VERSION_AFTER[kind]}{version}" if version else identifier
        self.entry = {"command": launcher, "args": [*before, what, *after]}
        if env:
            self.entry["env"] = env

    def by_manifest(self, manifest: "_Manifest") -> None:
        program = manifest.server.mcp_config
        folder = f"${{workspaceFolder}}/{BUNDLES}/{self.name}"
        if program is None:
            if manifest.server.type != "uv":
                raise MCPConfigError("The bundle's manifest does not say how its server is started.")
            start = ["run", "--directory", "${__dirname}", manifest.server.entry_point]
            program = _Program(command="uv", args=start)
        over = program.platform_overrides.get(sys.platform, _Program())
        fill = _Fill(self, folder, manifest.user_config)
        command = fill.one(over.command or program.command)
        if "/" in command.removeprefix(folder) and not command.startswith(("/", "${")):
            if ".." in PurePosixPath(command).parts:
                raise MCPConfigError(f"The bundle's command {_quoted(command)} is outside of the bundle.")
            command = f"{folder}/{command.removeprefix('./')}"
        args = [part for each in (over.args or program.args) for part in fill.several(each)]
        env = {}
        for key, text in {**program.env, **over.env}.items():
            _named(key, _VARIABLE)
            if fill.several(text):
                env[key] = fill.one(text)
        if not command:
            raise MCPConfigError("The bundle's manifest names no command.")
        self.entry = {"command": command, "args": args, "cwd": f"{BUNDLES}/{self.name}"}
        if env:
            self.entry["env"] = env

    def secret(self, variable: str, *, required: bool) -> tuple[str, ...]:
        """Return `${VARIABLE}`; an empty tuple if the secret is optional and the variable is not set."""
        if required or variable in self._env:
            self.variables.append(variable)
            return (f"${{{variable}}}",)
        self.optional.append(variable)
        return ()

    def asked(self, wanted: Wanted) -> tuple[str, ...]:
        values = self._ask(wanted)
        if wanted.is_path:
            self.paths += values
        return values

    def _named_values(self, listed: Iterable[_KeyValue], form: re.Pattern[str]) -> dict[str, str]:
        found = {}
        for each in listed:
            _named(each.name, form)
            if (each.is_secret or looks_secret(each.name)) and not each.value:
                # A header's variable begins with the server's name. Otherwise a key that the user has set for
                # another purpose could be sent to this server.
                variable = each.name if form is _VARIABLE else _variable_for(f"{self.name}_{each.name}")
                values = self.secret(variable, required=each.is_required)
            else:
                values = self._values(each, each.name)
            if values:
                found[each.name] = values[0]
        return found

    def _arguments(self, listed: Iterable[_Argument]) -> list[str]:
        found: list[str] = []
        for each in listed:
            label = each.name.lstrip("-") or each.value_hint or "argument"
            if each.type == "named" and not each.name:
                raise MCPConfigError("The description has a named argument without a name.")
            described = each.value or each.default or each.placeholder or each.value_hint or each.choices
            wanted = described or each.variables or each.is_required or each.is_secret
            if each.type == "named" and not wanted:
                found.append(each.name)
                continue
            for value in self._values(each, label, repeated=each.is_repeated):
                found += [each.name, value] if each.type == "named" else [value]
        return found

    def _values(self, given: _Input, label: str, *, repeated: bool = False) -> tuple[str, ...]:
        if given.value is not None:
            return (self._filled(given.value, given.variables),)
        if given.is_secret or looks_secret(label):
            if not given.is_required:
                return ()
            return self.secret(_variable_for(f"{self.name}_{label}"), required=True)
        return self.asked(
            Wanted(
                name=label,
                about=given.description or given.placeholder or "",
                default=None if given.default is None else (given.default,),
                required=given.is_required,
                choices=tuple(given.choices),
                repeated=repeated,
                is_path=given.format == "filepath",
            )
        )

    def _filled(self, template: str, variables: Mapping[str, _Input]) -> str:
        values: dict[str, str] = {}
        for name, given in variables.items():
            if f"{{{name}}}" in template:
                needed = msgspec.structs.replace(given, is_required=True, variables={})
                values[name] = "".join(self._values(needed, name))
        # One pass: braces in a value are not replaced again.
        return re.sub(r"\{([^{}]*)\}", lambda found: values.get(found[1], found[0]), template)


class _Program(Struct):
    command: str = ""
    args: list[str] = []
    env: dict[str, str] = {}
    platform_overrides: dict[str, "_Program"] = {}


class _Entrance(Struct):
    type: str = ""
    entry_point: str = ""
    mcp_config: _Program | None = None


class _Option(Struct):
    type: str = "string"
    title: str = ""
    description: str = ""
    required: bool = False
    default: str | bool | float | list[str] | None = None
    multiple: bool = False
    sensitive: bool = False


class _Compatibility(Struct):
    platforms: list[str] = []


class _Manifest(Struct):
    name: str
    server: _Entrance
    version: str = ""
    description: str = ""
    user_config: dict[str, _Option] = {}
    compatibility: _Compatibility = field(default_factory=_Compatibility)


def read_manifest(
    manifest: object, ask: Ask, *, name: str | None = None, env: Collection[str] = ()
) -> Described:
    """Return the entry for a bundle with this `manifest.json`, to be unpacked into `mcp_bundles/NAME`."""
    read = _converted(manifest, _Manifest, "the manifest of a bundle")
    platforms = read.compatibility.platforms
    if platforms and sys.platform not in platforms:
        raise MCPConfigError(
            f"The bundle is for {', '.join(map(_quoted, platforms))}, and not for {sys.platform}."
        )
    entry = _Entry(name or default_name(read.name), ask, env)
    entry.by_manifest(read)
    return entry.described(_title(read.name, read.version, read.description), BUNDLE)


def entry_point(manifest: object) -> str:
    """Return the path of a bundle's own program; empty: an installed program, such as `node`, runs it."""
    read = _converted(manifest, _Manifest, "the manifest of a bundle")
    return read.server.entry_point if read.server.type == "binary" else ""


class _Fill:
    def __init__(self, entry: _Entry, folder: str, options: Mapping[str, _Option]) -> None:
        self._entry, self._options = entry, options
        self._values: dict[str, tuple[str, ...]] = {}
        home = "${userHome}"
        self._folders = {"__dirname": folder, "HOME": home, "pathSeparator": "/", "/": "/"}
        self._folders |= {each.upper(): f"{home}/{each}" for each in ("Desktop", "Documents", "Downloads")}

    def one(self, text: str) -> str:
        return _EXPRESSION.sub(lambda found: ",".join(self._value(found[1])), text)

    def several(self, text: str) -> tuple[str, ...]:
        """Return the values of a text: any number if the text is a single `${...}`, otherwise one."""
        whole = _EXPRESSION.fullmatch(text)
        return self._value(whole[1]) if whole else (self.one(text),)

    def _value(self, inside: str) -> tuple[str, ...]:
        if inside in self._folders:
            return (self._folders[inside],)
        key = inside.removeprefix("user_config.")
        option = self._options.get(key)
        if key == inside or option is None:
            raise MCPConfigError(f"The bundle's manifest has the unknown {_quoted('${' + inside + '}')}.")
        if key not in self._values:
            self._values[key] = self._option(key, option)
        return self._values[key]

    def _option(self, key: str, option: _Option) -> tuple[str, ...]:
        if option.sensitive or looks_secret(key):
            return self._entry.secret(_variable_for(f"{self._entry.name}_{key}"), required=option.required)
        return self._entry.asked(
            Wanted(
                name=key,
                about=option.description or option.title,
                default=self._default(option.default),
                required=option.required,
                choices=("true", "false") if option.type == "boolean" else (),
                repeated=option.multiple,
                is_path=option.type in ("directory", "file"),
            )
        )

    def _default(self, default: str | bool | float | list[str] | None) -> tuple[str, ...] | None:
        match default:
            case None:
                return None
            case bool():
                return ("true" if default else "false",)
            case list():
                return tuple(map(self._plain, default))
            case str():
                return (self._plain(default),) if default else None
        # The format "g" alone would write a million as 1e+06.
        return (f"{default:.15g}",)

    def _plain(self, text: str) -> str:
        folders = self._folders
        return _EXPRESSION.sub(lambda found: folders.get(found[1], found[0]), text)


def _converted(value: object, kind: type[_T], what: str) -> _T:
    try:
        return msgspec.convert(value, kind)
    # UnicodeError is raised for a key with half of a surrogate pair.
    except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
        raise MCPConfigError(f"This is not {what}: {printable(str(error), 300)}.") from error


def _variable_for(name: str) -> str:
    # The variable is `FILES_API_KEY` for the key `api-key` of the server `files`.
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").upper()
    return plain if _VARIABLE.fullmatch(plain) else f"MCP_{plain}"


def _named(name: str, form: re.Pattern[str]) -> None:
    if not form.fullmatch(name):
        kind = "a variable" if form is _VARIABLE else "a header"
        raise MCPConfigError(f"{_quoted(name)} is not a name of {kind}.")


def _texts(value: object) -> Iterable[str]:
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from _texts(each)
        case dict():
            for key, each in value.items():
                yield key
                yield from _texts(each)


def _quoted(text: str) -> str:
    return f"'{printable(text, 200)}'"
