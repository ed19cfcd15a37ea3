"""Host programs that drive an agent, each built on the public API of grue.

To add a host, put its package beside the others, and add a row to `BUNDLED` and a command to `cli/app.py`.
If fleets are to play the host, write a module in `grue.fleet` as well.
"""

from collections.abc import Mapping

from msgspec import Struct


class BundledHost(Struct, frozen=True, kw_only=True):
    """The modules and functions of a host that other parts of grue import.

    Attributes:
        facts: The module that registers the facts that the host records; empty if it records none.
        work: The function that plays an episode in a fleet, as `module:name`; empty: fleets cannot play it.
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
"""The hosts by name."""
