"""Host programs that drive an agent, each in a package of its own; `servers` has MCP servers instead.

To add a host, see the row "a bundled host" in the table "If you want to change" of docs/architecture.md.
"""

from collections.abc import Mapping

from msgspec import Struct


class BundledHost(Struct, frozen=True, kw_only=True):
    """A host's module of facts (its messages in a trace), and its work in a fleet as `module:name`."""

    facts: str = ""  # empty: the host has no facts of its own
    work: str = ""


BUNDLED: Mapping[str, BundledHost] = {
    "zork": BundledHost(facts="grue.hosts.zork.facts", work="grue.fleet.zork_work:play"),
    "skill_agent": BundledHost(
        facts="grue.hosts.skill_agent.facts", work="grue.fleet.skill_agent_work:run_task"
    ),
    "agent_loop": BundledHost(work="grue.fleet.agent_loop_work:converse"),
}
