"""The part of `grue doctor` about boxes: what this machine can enforce, and what each server can reach."""

from collections.abc import Iterator, Mapping

from grue.cli.finding import Finding
from grue.sandbox.box import in_words
from grue.sandbox.kernel import coverage
from grue.sandbox.launch import missing_for
from grue.tool_sessions.server_specs import McpServer, StdioServer


def boxes(servers: Mapping[str, McpServer], source: str) -> Iterator[Finding]:
    """Yield what this machine can enforce, and for each server that is started what it can reach.

    Args:
        servers: The servers by name.
        source: Where they are configured, for the text.
    """
    started = {name: server for name, server in servers.items() if isinstance(server, StdioServer)}
    yield machine(needed=any(server.sandbox for server in started.values()))
    for name, server in started.items():
        if server.sandbox is None:
            yield Finding("note", f"{name} ({source}): no box: it can reach all that you can")
            continue
        missing = missing_for(server.sandbox)
        text = f"{name} ({source}), box: {in_words(server.sandbox)}"
        lines = "\n".join((text, *(f"Not enforced here: {each}." for each in missing)))
        yield Finding("WRONG" if missing and server.sandbox.required else "note" if missing else "ok", lines)


def machine(*, needed: bool) -> Finding:
    """Report which limits of a box this machine can enforce. It is no fault if no server has a box."""
    have = coverage()
    missing = have.missing(hosts=True)
    about = f"Landlock {have.landlock or 'absent'}, seccomp {'present' if have.seccomp else 'absent'}"
    about += f", hosts by name {'possible' if have.listener else 'not possible'}"
    text = f"boxes on {have.system}: {about}"
    lines = [text, *(f"{each}." for each in (*missing, *have.notes()))]
    return Finding("note" if missing and needed else "ok", "\n".join(lines))
