"""Compare listed tools with the tool lock (`grue tools`), and write the lock (`grue tools --lock`)."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from grue import messages as m
from grue.cli.project import BUNDLED, KnownServers
from grue.cli.saying import shown_path
from grue.config import tool_listing_file, tool_lock_file
from grue.config.settings import GameConfiguration
from grue.config.tool_listing_file import listing_path
from grue.config.wiring import on_tool_drift
from grue.errors import MCPConfigError
from grue.protocol.tools.lock import ToolPin, drift_text, lock_of, screen
from grue.runtime.safe_text import printable
from grue.tracing.facts import counted

Listings = Mapping[str, tuple[m.ToolDefinition, ...]]
"""The tools that each reachable server lists."""

_MARKS = {"added": "+", "removed": "-", "changed": "~"}


def drifts(known: KnownServers, listings: Listings, config: GameConfiguration) -> Iterator[str]:
    """Yield one sentence for each tool that differs from the lock.

    Raises:
        MCPConfigError: The lock cannot be used.
    """
    if known.source == BUNDLED or config.mcp_tool_lock == "off":
        return
    lock = tool_lock_file.read(tool_lock_file.lock_path(Path(known.source)))
    if lock is None:
        return
    for name, tools in listings.items():
        _, notes = screen(lock.pins(name), m.ServerName(name), tools, on_tool_drift(config))
        for note in notes:
            yield printable(drift_text(note))


def approve(known: KnownServers, listings: Listings, secret: Collection[str] = ()) -> Iterator[str]:
    """Write what the servers list into the lock of their file, and yield what has changed in it.

    The listing file beside it gets the definitions themselves.

    Args:
        known: All servers of the file; those that are not in `listings` keep their pins.
        listings: What is approved.
        secret: Servers whose definitions have a secret in them, so that they are not written down.

    Raises:
        MCPConfigError: There is no file of servers, or the lock cannot be written.
    """
    if known.source == BUNDLED:
        raise MCPConfigError(
            "There is nothing to lock: no file of MCP servers is configured. Name one with --mcp-config."
        )
    path = tool_lock_file.lock_path(Path(known.source))
    every = (*known.servers, *known.unusable)
    changes = tool_lock_file.write(path, listings, keep=every)
    shown = {name: tools for name, tools in listings.items() if name not in secret}
    tool_listing_file.write(listing_path(path), shown, keep=[name for name in every if name not in secret])
    approved = {name: lock_of(tools) for name, tools in listings.items()}
    for change in changes:
        yield _line(change, approved.get(change.server, {}).get(change.tool))
    count = sum(map(len, approved.values()))
    state = f"{len(changes)} changed" if changes else "nothing has changed"
    yield f"{shown_path(path)}: {counted(count, 'tool')} approved, {state}"


def _line(change: m.ToolDrifted, pin: ToolPin | None) -> str:
    what = pin.summary if pin is not None and change.change == "added" else ""
    if change.change == "changed":
        what = ", ".join(part.replace("_", " ") for part in change.parts)
    return printable(f"{_MARKS[change.change]} {change.server}.{change.tool}  {what}").rstrip()
