"""Host programs that drive an agent, each built on the public API of grue.

To add one: its package beside the others, a row in `BUNDLED`, and its command in `cli/app.py`. Its work in
`grue.fleet` is needed only if fleets play it.
"""

from collections.abc import Mapping

from msgspec import Struct


class BundledHost(Struct, frozen=True, kw_only=True):
    """What other parts of grue load of a host.

    Attributes:
        facts: The module `facts.py` of its package, which registers the facts that it records; empty: none.
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
