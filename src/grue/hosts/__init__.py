"""Host programs that drive an agent, each in a package of its own; `servers` has MCP servers instead.

To add a host, put its package beside the others, and add a row to `BUNDLED` and a command to `cli/app.py`.
For `grue fleet` to run many episodes of the host, write a module in `grue.fleet` as well.
"""

from collections.abc import Mapping

from msgspec import Struct


class BundledHost(Struct, frozen=True, kw_only=True):
    """The names by which other parts of grue import a host's modules and functions.

    Attributes:
        facts: The module that registers the host's facts (the host's own messages in a trace); empty: the
            host has none.
        work: The function that runs one episode of a fleet, as `module:name`; empty: a fleet cannot use this
            host.
    """

    facts: str = ""
    work: str = ""


BUNDLED: Mapping[str, BundledHost] = {
    "zork": BundledHost(facts="grue.hosts.zork.facts", work="grue.fleet.zork_work:play"),
    "skill_agent": BundledHost(
        facts="grue.hosts.skill_agent.facts", work="grue.fleet.skill_agent_work:run_task"
    ),
    "agent_loop": BundledHost(work="grue.fleet.agent_loop_work:converse"),
}
