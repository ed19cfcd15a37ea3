"""Translate between canonical tool names and the names that an LLM endpoint accepts.

The canonical name, used everywhere inside grue, is `{server}.{tool}`. MCP allows dots and up to 128
characters in a tool's name. Most LLM endpoints allow only letters, digits, `_` and `-`, and at most 64
characters. For them a name is encoded, and `WireNames` remembers how to decode it. One table is used for the
offered tools, the calls in the history and the choice of a tool.

Source: R8.2
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

NameStyle = Literal["canonical", "encoded"]

MAX_WIRE_NAME = 64
_WIRE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_REFUSED = re.compile(r"[^A-Za-z0-9_-]")


def split_name(name: str) -> tuple[str, str]:
    """Split a canonical name at its first dot into server and tool.

    Raises:
        ValueError: The name has no dot.

    Source: R8.3, P35
    """
    server, dot, tool = name.partition(".")
    if not dot:
        raise ValueError(f"Invalid tool name format: {name}. Expected format: {{server_name}}.{{tool_name}}")
    return server, tool


def split_known(name: str, servers: Iterable[str]) -> tuple[str, str] | None:
    """Split a canonical name into one of `servers` and a tool; `None` if it begins with none of them.

    A server's own name may have a dot, as `mcp.files` in an agent loop, so the longest one counts.
    """
    server = max((each for each in servers if name.startswith(f"{each}.")), key=len, default=None)
    return None if server is None else (server, name[len(server) + 1 :])


def split_unlisted(name: str, servers: Collection[str]) -> tuple[str, str] | None:
    """Return server and tool of a name that no server lists; `None` if no server of `servers` can be meant.

    Args:
        name: What the model wrote: `server.tool`, or the readable form of a wire name, `server__tool`.
        servers: The servers that serve tools which they do not list.
    """
    for server in servers:
        for separator in (".", "__"):
            tool = name.removeprefix(f"{server}{separator}")
            if tool and tool != name:
                # What `_readable` has made of `mcp.files.read`.
                in_mcp = server == "mcp" and separator == "__"
                return server, tool.replace("__", ".", 1) if in_mcp else tool
    return None


def is_wire_name(name: str) -> bool:
    """Return whether every endpoint accepts `name` unchanged."""
    return _WIRE_NAME.fullmatch(name) is not None


class WireNames:
    """A two-way table of canonical names and wire names; entries are added, and never changed.

    A name that needs no encoding is its own wire name. Other names get a readable wire name, with a hash at
    its end if the readable one is taken or too long. The order of the names in one call of `add` does not
    matter.

    Args:
        style: `canonical` leaves names unchanged; `encoded` makes them match `[A-Za-z][A-Za-z0-9_-]{0,63}`.
        names: Canonical names to add at once.
    """

    def __init__(self, style: NameStyle, names: Iterable[str] = ()) -> None:
        self.style: NameStyle = style
        self._wire: dict[str, str] = {}
        self._canonical: dict[str, str] = {}
        self.add(names)

    def add(self, names: Iterable[str]) -> None:
        """Add canonical names; names that are already in the table keep their wire names."""
        for name in sorted(names, key=lambda name: (not is_wire_name(name), name)):
            self.to_wire(name)

    def to_wire(self, name: str) -> str:
        """Return the wire name, and add the name if it is new.

        A name that the model invented is added too. In the history it has to match the endpoint's pattern,
        and it must not look like a call to an existing tool.
        """
        if self.style == "canonical":
            return name
        if name not in self._wire:
            wire = self._free_name(name)
            self._wire[name] = wire
            self._canonical[wire] = name
        return self._wire[name]

    def to_canonical(self, wire: str) -> str:
        """Return the canonical name; an unknown name, which the model invented, is returned unchanged."""
        return self._canonical.get(wire, wire)

    @property
    def known(self) -> dict[str, str]:
        """The wire names so far, by canonical name; empty if names are left unchanged."""
        return {**self._wire}

    def copy(self) -> "WireNames":
        """Return a table with the same entries."""
        return WireNames.restored(self.style, self._wire)

    @classmethod
    def restored(cls, style: NameStyle, known: Mapping[str, str]) -> "WireNames":
        """Return a table with these wire names, by canonical name."""
        names = cls(style)
        names._wire = {**known}
        names._canonical = {wire: name for name, wire in known.items()}
        return names

    def _free_name(self, name: str) -> str:
        readable = name if is_wire_name(name) else _readable(name)
        wire, attempt = readable[:MAX_WIRE_NAME], 0
        while wire in self._canonical or (attempt == 0 and len(readable) > MAX_WIRE_NAME):
            # The attempt is hashed too, so that names with the same digest get different ones the next time.
            digest = hashlib.sha256(f"{attempt}:{name}".encode("utf-8", "surrogatepass")).hexdigest()[:10]
            wire = f"{readable[: MAX_WIRE_NAME - len(digest) - 1]}_{digest}"
            attempt += 1
        return wire


def _readable(name: str) -> str:
    # `mcp.files.read` becomes `mcp__files__read`, as other MCP hosts write it.
    text = _REFUSED.sub("_", name.replace(".", "__", 2 if name.startswith("mcp.") else 1))
    return text if text[:1].isalpha() else f"t_{text}"
