"""The description of a box, as a user writes it in Python or in JSON: `Sandbox` and its presets."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from os import PathLike
from typing import Any, Literal, Self, TypeAlias, get_args

import msgspec
from msgspec import Struct

from grue.errors import MCPConfigError
from grue.field_checks import ByName

Preset: TypeAlias = Literal["pure", "files", "web"]  # the presets of a box; see `Sandbox.preset`
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?"
_HOST = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*\.?")
UNITS = {
    "memory_mb": "MiB",
    "processes": "processes",
    "open_files": "open files",
    "file_mb": "MiB a file",
    "cpu_s": "s of processor time",
}
"""The keys of a box's resource limits, each with its unit as `in_words` writes it."""

_WEB_PORTS = (80, 443)
_VSCODE = {
    "filesystem": ("allowRead", "denyRead", "allowWrite", "denyWrite"),
    "network": ("allowedDomains", "deniedDomains"),
}


class HostPort(Struct, frozen=True):
    """A host, in lower case, and its allowed ports. `*.example.com` is any name below `example.com`."""

    host: str
    ports: tuple[int, ...]

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.ports[0]}" if len(self.ports) == 1 else host

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a host: `example.com`, `*.example.com` or an IP address, with or without a port.

        An IPv6 address with a port is in brackets, as in `[::1]:80`. Without a port, both 80 and 443 are
        meant. Other texts raise `ValueError`.
        """
        host, port, is_host = text, "", True
        if text.startswith("["):
            host, end, port = text[1:].partition("]")
            is_host = bool(end) and ":" in host
            port = port[1:] if port.startswith(":") else port and f"]{port}"
        elif text.count(":") == 1:
            host, _, port = text.partition(":")
        no_port = text.endswith(":") and _address(text) is None
        if no_port or (port and not (port.isdecimal() and 0 < int(port) < 65536)):
            raise ValueError(f"{text!r} has no valid port: write host:443")
        if not is_host or (_address(host) is None and (len(host) > 253 or not _HOST.fullmatch(host))):
            raise ValueError(f"{text!r} is not a host: write example.com, *.example.com, or 10.0.0.5:5432")
        return cls(host.lower().rstrip("."), (int(port),) if port else _WEB_PORTS)

    def covers(self, host: str, port: int) -> bool:
        """Return whether this entry allows `port` of `host`, a name or an address. A name is not resolved."""
        host = host.lower().rstrip(".")
        if port not in self.ports:
            return False
        if self.host.startswith("*."):
            # `getaddrinfo` looks up only the part of a name before a NUL character.
            return host.endswith(self.host[1:]) and _HOST.fullmatch(host) is not None
        mine, asked = _address(self.host), _address(host)
        return self.host == host if mine is None else mine == asked


class Sandbox(Struct, metaclass=ByName, frozen=True, kw_only=True):
    """The permissions of a sandboxed program. The kernel and grue's proxy enforce them.

    Paths are absolute, begin with `~`, or are relative to the program's working directory. A `Path` is
    converted to text. A folder stands for everything in it. The program may also use what `preset` says, and
    parts of the system, such as installed programs and libraries.

    Attributes:
        preset: `pure`: the program's own files and a scratch folder, no network. `files`: also the workspace,
            which is the program's working directory, to read and write. `web`: like `pure`, with the network.
        read: Files and folders that the program may read.
        write: Files that the program may read and write, and folders in which it may also make, rename and
            delete files. All have to exist.
        hide: Files and folders that the program may not access, although they are in a folder that the
            sandbox opens. A folder that contains a hidden file or folder, at any depth, cannot be listed, and
            nothing can be made, deleted or renamed in it.
        execute: Programs that the program may start, besides itself, `/bin/sh` and the dynamic loader; of
            scripts, also the interpreters. A name without `/` is looked up in the program's `PATH`. `None`:
            any program of the system and of the folders that the sandbox opens. All programs that it starts
            are in the same sandbox. A hostile program can get around the list: it can load the code of any
            file that it may read.
        network: `True`: any host. `False`: none. A list of hosts such as `example.com:443`: only TCP
            connections to these; grue runs a proxy through which the program reaches hosts by name. `None`:
            the preset decides.
        unix_sockets: `True`: the program may use Unix sockets. They give access to Docker or to an SSH agent,
            for example.
        memory_mb: Memory that each process of the program may allocate, in MiB; `None`: no limit.
        processes: How many processes and threads this user may have in addition to those that run when the
            program starts; `None`: no limit.
        open_files: How many files each process may have open; `None`: as many as grue's own process.
        file_mb: Size to which a file that the program writes may grow, in MiB; `None`: no limit.
        cpu_s: Seconds of processor time of each process; `None`: no limit.
        required: `True`: a program is not started if this machine cannot enforce all of its sandbox. `False`:
            grue enforces what the machine can, and warns of what is missing.

    Raises:
        MCPConfigError: A limit is not a whole number above zero, or another value is not as described.
    """

    preset: Preset = "pure"
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    execute: tuple[str, ...] | None = None
    network: bool | tuple[str, ...] | None = None
    unix_sockets: bool = False
    memory_mb: int | None = None
    processes: int | None = None
    open_files: int | None = None
    file_mb: int | None = None
    cpu_s: int | None = None
    required: bool = True

    def __post_init__(self) -> None:
        for key in ("read", "write", "hide", "execute", "network"):
            listed: Any = getattr(self, key)
            if isinstance(listed, list | tuple):
                texts = tuple(os.fspath(each) if isinstance(each, PathLike) else each for each in listed)
                msgspec.structs.force_setattr(self, key, texts)
        fault = _fault(self)
        if fault is not None:
            raise MCPConfigError(f"sandbox: {fault}.")

    @property
    def hosts(self) -> tuple[HostPort, ...]:
        """The hosts in `network`; empty if `network` is not a list."""
        return tuple(HostPort.read(text) for text in self.network) if isinstance(self.network, tuple) else ()

    @property
    def any_network(self) -> bool:
        """`True` if `network` (or the preset, if `network` is `None`) allows connections to all hosts."""
        return self.network is True or (self.network is None and self.preset == "web")


def sandbox_of(value: object) -> Sandbox | None:
    """Read a box from a configuration: a preset's name, a table of `Sandbox`'s keys, or VS Code's table.

    `None`, `False` and `"none"` mean no box; `True` means the preset `files`; a `Sandbox` is returned as it
    is. An example of VS Code's table: `{"filesystem": {"allowRead": ["/data"]}, "network":
    {"allowedDomains": ["example.com"]}}`. Anything else raises `ValueError`.
    """
    match value:
        case None | False | "none":
            return None
        case True:
            return Sandbox(preset="files")
        case Sandbox():
            return value
        case str():
            if value not in get_args(Preset):
                raise ValueError(f"should be {_presets()}, not {value!r}")
            return Sandbox(preset=value)  # type: ignore[arg-type]  # just compared
        case Mapping():
            return _of_table(value)
    raise ValueError(f"should be {_presets()}, or a table with keys such as 'read', 'write' and 'network'")


def _of_table(table: Mapping[Any, Any]) -> Sandbox:
    if any(isinstance(table.get(key), Mapping) for key in _VSCODE):
        return _of_vscode(table)
    known = Sandbox.__struct_fields__
    unknown = [str(key) for key in table if key not in known]
    if unknown:
        raise ValueError(f"has the unknown key {unknown[0]!r}. It knows {', '.join(known)}")
    try:
        return Sandbox(**table)
    except MCPConfigError as error:
        raise ValueError(str(error).removeprefix("sandbox: ").rstrip(".")) from None


def _of_vscode(table: Mapping[Any, Any]) -> Sandbox:
    """Read VS Code's table. Without `allowRead`, or with an empty one, `/` is opened to read."""
    parts: dict[str, dict[str, tuple[str, ...]]] = {}
    for part, keys in table.items():
        if part not in _VSCODE or not isinstance(keys, Mapping):
            raise ValueError(f"has the key {part!r} beside VS Code's keys, which grue does not enforce")
        for key, listed in keys.items():
            if key not in _VSCODE[part]:
                raise ValueError(f"has the key '{part}.{key}', which grue does not enforce")
            if not isinstance(listed, list | tuple) or not all(isinstance(each, str) for each in listed):
                raise ValueError(f"'{part}.{key}' should be a list of texts")
        parts[part] = {str(key): tuple(listed) for key, listed in keys.items()}
    files, network = parts.get("filesystem", {}), parts.get("network", {})
    for part, key in (("filesystem", "denyWrite"), ("network", "deniedDomains")):
        if parts.get(part, {}).get(key):
            raise ValueError(f"has '{part}.{key}', which grue cannot enforce: list what is allowed instead")
    return _of_table(
        {
            "read": files.get("allowRead") or ("/",),
            "write": files.get("allowWrite", ()),
            "hide": files.get("denyRead", ()),
            "network": network.get("allowedDomains", ()) or False,
        }
    )


def in_words(box: Sandbox) -> str:
    """Return in one line what a program in this box can reach, and its resource limits."""
    others = ", a scratch folder and the workspace" if box.preset == "files" else " and a scratch folder"
    said = [f"files: its own program{others}"]
    if box.read:
        said.append(f"reads {', '.join(box.read)}")
    if box.write:
        said.append(f"writes {', '.join(box.write)}")
    if box.hide:
        said.append(
            f"not {', '.join(box.hide)}, and no listing, making or deleting in a folder that contains it"
        )
    if box.execute is not None:
        said.append(f"starts only {', '.join(('itself', '/bin/sh', 'the dynamic loader', *box.execute))}")
    hosts = ", ".join(map(str, box.hosts))
    said.append(f"network: {'any' if box.any_network else hosts or 'none'}")
    if box.unix_sockets:
        said.append("Unix sockets")
    said += [f"{getattr(box, key)} {unit}" for key, unit in UNITS.items() if getattr(box, key) is not None]
    return "; ".join(said)


def _fault(box: Sandbox) -> str | None:
    given: dict[str, Any] = {name: getattr(box, name) for name in box.__struct_fields__}
    if given["preset"] not in get_args(Preset):
        return f"preset should be {_presets()}"
    for key in ("read", "write", "hide", "execute"):
        listed = given[key]
        if not (listed is None and key == "execute") and not _are_paths(listed):
            return f"{key} should be a list of paths"
    for key in UNITS:
        number = given[key]
        if number is not None and (type(number) is not int or not 0 < number < 2**40):
            return f"{key} should be a whole number above zero"
    for key in ("required", "unix_sockets"):
        if not isinstance(given[key], bool):
            return f"{key} should be true or false"
    return _network_fault(given["network"])


def _are_paths(listed: Any) -> bool:
    try:
        return isinstance(listed, list | tuple) and all(
            isinstance(path, str) and path.strip() and b"\0" not in os.fsencode(path) for path in listed
        )
    except UnicodeEncodeError:  # half of a surrogate pair, which no path can have
        return False


def _network_fault(network: Any) -> str | None:
    if network is None or isinstance(network, bool):
        return None
    if not isinstance(network, tuple | list) or not all(isinstance(text, str) for text in network):
        return 'network should be true, false, or a list of hosts such as "api.github.com:443"'
    for text in network:
        try:
            HostPort.read(text)
        except ValueError as error:
            return f"network: {error}"
    return None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _presets() -> str:
    return " or ".join(repr(each) for each in get_args(Preset))
