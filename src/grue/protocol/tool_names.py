"""Tool names: canonical inside, and what each endpoint takes on the wire.

Canonical is `{server}.{tool}` (R8.2). MCP allows dots and up to 128 characters in a tool's name; most LLM
endpoints allow letters, digits, `_` and `-`, and 64 characters. Where they do, a name is encoded, and a table
brings it back. The same table serves the tools on offer, the calls in the history and the choice of a tool.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Literal

NameStyle = Literal["canonical", "encoded"]

MAX_WIRE_NAME = 64
_WIRE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_REFUSED = re.compile(r"[^A-Za-z0-9_-]")


def split_name(name: str) -> tuple[str, str]:
    """Split a canonical name at its first dot into server and tool (R8.3, P35).

    Raises:
        ValueError: There is no dot.
    """
    server, dot, tool = name.partition(".")
    if not dot:
        raise ValueError(f"Invalid tool name format: {name}. Expected format: {{server_name}}.{{tool_name}}")
    return server, tool


def is_wire_name(name: str) -> bool:
    """Return whether every endpoint takes `name` as it is."""
    return _WIRE_NAME.fullmatch(name) is not None


class WireNames:
    """The table between canonical and wire names; it grows, and never changes an entry.

    Names given together get the same wire names in whatever order they come. Names that need no encoding keep
    their own; the others become readable where that is free, and carry a hash where it is not.

    Args:
        style: `canonical` names go out as they are; `encoded` ones match `[A-Za-z][A-Za-z0-9_-]{0,63}`.
        names: Canonical names known from the start.
    """

    def __init__(self, style: NameStyle, names: Iterable[str] = ()) -> None:
        self.style: NameStyle = style
        self._wire: dict[str, str] = {}
        self._canonical: dict[str, str] = {}
        self.add(names)

    def add(self, names: Iterable[str]) -> None:
        """Enter canonical names; those entered before keep their wire names."""
        for name in sorted(names, key=lambda name: (not is_wire_name(name), name)):
            self.to_wire(name)

    def to_wire(self, name: str) -> str:
        """Return the wire name, entering the name if it is new.

        A name that the model invented is entered too: in the history it must match the endpoint's pattern,
        and must not look like a call to a tool that exists.
        """
        if self.style == "canonical":
            return name
        if name not in self._wire:
            wire = self._free_name(name)
            self._wire[name] = wire
            self._canonical[wire] = name
        return self._wire[name]

    def to_canonical(self, wire: str) -> str:
        """Return the canonical name; a name that the model invented comes back as it is."""
        return self._canonical.get(wire, wire)

    def _free_name(self, name: str) -> str:
        readable = name if is_wire_name(name) else _readable(name)
        wire, attempt = readable[:MAX_WIRE_NAME], 0
        while wire in self._canonical or (attempt == 0 and len(readable) > MAX_WIRE_NAME):
            # The attempt is part of what is hashed, so that even equal digests part ways.
            digest = hashlib.sha256(f"{attempt}:{name}".encode("utf-8", "surrogatepass")).hexdigest()[:10]
            wire = f"{readable[: MAX_WIRE_NAME - len(digest) - 1]}_{digest}"
            attempt += 1
        return wire


def _readable(name: str) -> str:
    text = _REFUSED.sub("_", name.replace(".", "__", 1))
    return text if text[:1].isalpha() else f"t_{text}"
