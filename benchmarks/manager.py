"""How much time `McpManager` adds to a call of `ToolClient`: it finds the server, and converts the result."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from measuring import Bar, Effort, Section, figure, interleave, ratio, seconds_each

from grue import StdioServer, ToolClient
from grue.hosts.skill_agent import McpManager

PLAIN = Path(__file__).parent / "servers" / "plain_server.py"
CALLS = 100


def manager_section(effort: Effort) -> Section:
    """Compare calls by the manager with calls by its `ToolClient`, alternately, with the same server."""
    count = min(CALLS, effort.calls)
    server = StdioServer(name="plain", command=sys.executable, args=(str(PLAIN),))
    with McpManager() as manager, ToolClient({"plain": server}) as client:
        (tool,) = (each.name for each in manager.connect_all({"plain": server}))
        sides: dict[str, Callable[[], object]] = {
            "client": partial(client.call, f"plain.{tool}", {"text": "x"}, 10),
            "manager": partial(manager.call_tool, tool, {"text": "x"}, 10),
        }
        for side in sides.values():
            side()
        samples = interleave(
            effort.within(effort.rounds),
            {name: partial(_each_us, side, count) for name, side in sides.items()},
        )
    return Section(
        name="manager",
        title="A call of McpManager",
        measured=f"A call from synchronous code over a session that stays open, out of {count}; the server"
        " answers at once.",
        figures=[
            figure("a call, McpManager", "us", samples["manager"]),
            figure("a call, ToolClient", "us", samples["client"]),
        ],
        bars=[
            Bar(
                "time of a call by `McpManager`, as a ratio to `ToolClient`'s",
                ratio(samples["manager"], samples["client"]),
                1.2,
                "x",
            )
        ],
    )


def _each_us(call: Callable[[], object], times: int) -> float:
    return seconds_each(call, times) * 1e6
