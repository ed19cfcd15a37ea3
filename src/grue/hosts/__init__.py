"""Each package is a host program that drives an agent, except `servers`, which has MCP servers.

To add a host, see the row "a bundled host" in the table "If you want to change" of docs/architecture.md.
"""

from collections.abc import Mapping

from msgspec import Struct


class BundledHost(Struct, frozen=True, kw_only=True):
    """The names of a module and a function that other rooms import for a bundled host."""

    facts: str = ""  # the module of the host's facts (its messages in a trace); empty: it has none
    work: str = ""  # the function that plays an episode in a fleet, as `module:name`


BUNDLED: Mapping[str, BundledHost] = {
    "zork": BundledHost(facts="grue.hosts.zork.facts", work="grue.fleet.zork_work:play"),
    "skill_agent": BundledHost(
        facts="grue.hosts.skill_agent.facts", work="grue.fleet.skill_agent_work:run_task"
    ),
    "agent_loop": BundledHost(work="grue.fleet.agent_loop_work:converse"),
}
