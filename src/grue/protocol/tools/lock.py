"""Compare the tools that a server lists with the definitions that the user has approved (the lock)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias, assert_never

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.policies import OnToolDrift, ToolChange
from grue.protocol.json_text import digest
from grue.protocol.tools.names import Tools
from grue.runtime.safe_text import printable, well_formed

_SUMMARY_CHARS = 100


class ToolPin(Struct, frozen=True, forbid_unknown_fields=True):
    """Digests of one approved definition; `summary` is for people. `annotations=None`: from an old lock."""

    summary: str
    description: str
    input_schema: str
    output_schema: str | None
    annotations: str | None = None


ServerPins: TypeAlias = Mapping[str, ToolPin]  # approved definitions of a server, by tools' bare names


class ToolLock(Struct, frozen=True):
    """The approved definitions of each locked server, as digests and, if known, as the server sent them."""

    servers: Mapping[str, ServerPins] = {}
    listings: Mapping[str, Tools] = {}

    def pins(self, server: str) -> ServerPins:
        """Return the approved definitions of one server; empty if it is not in the lock."""
        return self.servers.get(server, {})

    def listing(self, server: str) -> Tools | None:
        """Return a server's tools as approved; `None`: the lock has no listing that matches its digests."""
        tools = self.listings.get(server)
        return None if tools is None or drift(self.pins(server), tools) else tools


class ToolDrift(Struct, frozen=True):
    """A tool that was added, removed or changed since the approval; `parts`: its changed parts."""

    tool: str
    change: ToolChange
    parts: tuple[m.ToolPart, ...] = ()


def lock_of(
    tools: Iterable[m.ToolDefinition], shown: Iterable[m.ToolDefinition] | None = None
) -> dict[str, ToolPin]:
    """Return a server's pins, sorted by bare name. `shown`: the tools without secrets, for the summaries."""
    tools = tuple(tools)
    pins = {tool.tool: _pin(tool, each.description) for tool, each in zip(tools, shown or tools, strict=True)}
    return dict(sorted(pins.items()))


def drift(pins: ServerPins, tools: Iterable[m.ToolDefinition]) -> tuple[ToolDrift, ...]:
    """Return the tools of a server that were added, removed or changed since the approval, sorted by name."""
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
    pins: ServerPins, server: m.ServerName, tools: Tools, on_drift: OnToolDrift
) -> tuple[Tools, tuple[m.ToolDrifted, ...]]:
    """Return the tools that `on_drift` allows, and a note about each tool that differs from `pins`.

    With `ignore` there are no notes. Otherwise unchanged tools with approved annotations become `trusted`.
    """
    if on_drift == "ignore":
        return tools, ()
    found = drift(pins, tools)
    drifted = {each.tool for each in found}
    refused = {each.tool for each in found if on_drift == "refuse" and each.change != "removed"}
    notes = tuple(
        m.ToolDrifted(
            server=server,
            # A name in a lock may contain half a surrogate pair, which a trace cannot hold.
            tool=well_formed(each.tool),
            change=each.change,
            parts=each.parts,
            refused=each.tool in refused,
        )
        for each in found
    )
    trusted = {name for name, pin in pins.items() if pin.annotations is not None and name not in drifted}
    offered = (
        replace(tool, trusted=True) if tool.tool in trusted and tool.annotations is not None else tool
        for tool in tools
        if tool.tool not in refused
    )
    return tuple(offered), notes


def drift_text(note: m.ToolDrifted) -> str:
    """Describe a drifted tool in one sentence for people. The sentence contains the tool's untrusted name."""
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


def _pin(tool: m.ToolDefinition, description: str) -> ToolPin:
    first_line = description.strip().partition("\n")[0]
    return ToolPin(
        summary=printable(first_line, _SUMMARY_CHARS),
        description=digest(tool.description),
        input_schema=digest(tool.input_schema),
        output_schema=None if tool.output_schema is None else digest(tool.output_schema),
        annotations=digest(msgspec.to_builtins(tool.annotations)),
    )


_PARTS: tuple[m.ToolPart, ...] = ("description", "input_schema", "output_schema")


def _changed(approved: ToolPin, listed: ToolPin) -> tuple[m.ToolPart, ...]:
    parts = _PARTS if approved.annotations is None else (*_PARTS, "annotations")
    return tuple(part for part in parts if getattr(approved, part) != getattr(listed, part))
