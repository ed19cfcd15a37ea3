"""Compare the tools that a server lists with the definitions that the user has approved; pure.

A definition is pinned by three digests, one for each part that a server can change behind a user's back: the
description, which the model reads as instructions, and the schemas of arguments and result. A digest is the
SHA-256 of the part's canonical JSON: keys sorted, no white space, everything beyond ASCII escaped. Order does
not matter, neither that of tools nor that of keys.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import TypeAlias, assert_never

from msgspec import Struct

from grue.messages import OnToolDrift, ServerName, ToolDefinition, ToolDrifted, ToolPart
from grue.protocol.safe_text import printable, well_formed
from grue.vocabulary import ToolChange

_SUMMARY_CHARS = 100


class ToolPin(Struct, frozen=True, forbid_unknown_fields=True):
    """One approved definition.

    Attributes:
        summary: First line of the description, for people; it is compared with nothing.
        description: Digest, as are the others.
        output_schema: `None`: the tool declares none.
    """

    summary: str
    description: str
    input_schema: str
    output_schema: str | None


ServerPins: TypeAlias = Mapping[str, ToolPin]
"""The approved definitions of one server, by the tools' bare names."""


class ToolLock(Struct, frozen=True):
    """The approved definitions of every server, by the servers' names."""

    servers: Mapping[str, ServerPins] = {}

    def pins(self, server: str) -> ServerPins:
        """Return those of one server; of a server that the lock does not know, nothing is approved."""
        return self.servers.get(server, {})


class ToolDrift(Struct, frozen=True):
    """One tool that is not as it was approved; `parts` says what of it has changed."""

    tool: str
    change: ToolChange
    parts: tuple[ToolPart, ...] = ()


def lock_of(tools: Iterable[ToolDefinition]) -> dict[str, ToolPin]:
    """Return the pins of one server's tools, by bare name, sorted."""
    pins = {tool.tool: _pin(tool) for tool in tools}
    return dict(sorted(pins.items()))


def drift(pins: ServerPins, tools: Iterable[ToolDefinition]) -> tuple[ToolDrift, ...]:
    """Return the tools of a server that differ from their approved definitions, by bare name."""
    listed = lock_of(tools)
    found = [ToolDrift(name, "removed") for name in pins if name not in listed]
    for name, pin in listed.items():
        approved = pins.get(name)
        if approved is None:
            found.append(ToolDrift(name, "added"))
        elif parts := _changed(approved, pin):
            found.append(ToolDrift(name, "changed", parts))
    return tuple(sorted(found, key=lambda drift: drift.tool))


def screen(
    pins: ServerPins, server: ServerName, tools: tuple[ToolDefinition, ...], on_drift: OnToolDrift
) -> tuple[tuple[ToolDefinition, ...], tuple[ToolDrifted, ...]]:
    """Return the tools that the policy allows, in order, and a note for each that has drifted."""
    if on_drift == "ignore":
        return tools, ()
    found = drift(pins, tools)
    refused = {each.tool for each in found if on_drift == "refuse" and each.change != "removed"}
    notes = tuple(
        ToolDrifted(
            server=server,
            # A note goes into the trace, which cannot hold half a surrogate pair; a lock can.
            tool=well_formed(each.tool),
            change=each.change,
            parts=each.parts,
            refused=each.tool in refused,
        )
        for each in found
    )
    return tuple(tool for tool in tools if tool.tool not in refused), notes


def drift_text(note: ToolDrifted) -> str:
    """Return one sentence for people; the tool's name in it is untrusted."""
    name = f"{note.server}.{note.tool}"
    consequence = ", so it is not offered" if note.refused else ""
    match note.change:
        case "added":
            return f"{name} is not among the approved tools{consequence}"
        case "removed":
            return f"{name} was approved and is no longer listed"
        case "changed":
            parts = " and ".join(part.replace("_", " ") for part in note.parts)
            return f"{name} has another {parts} than was approved{consequence}"
        case never:
            assert_never(never)


def _pin(tool: ToolDefinition) -> ToolPin:
    first_line = tool.description.strip().partition("\n")[0]
    return ToolPin(
        summary=printable(first_line, _SUMMARY_CHARS),
        description=_digest(tool.description),
        input_schema=_digest(tool.input_schema),
        output_schema=None if tool.output_schema is None else _digest(tool.output_schema),
    )


def _digest(value: object) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode('ascii')).hexdigest()}"


_PARTS: tuple[ToolPart, ...] = ("description", "input_schema", "output_schema")


def _changed(approved: ToolPin, listed: ToolPin) -> tuple[ToolPart, ...]:
    return tuple(part for part in _PARTS if getattr(approved, part) != getattr(listed, part))
