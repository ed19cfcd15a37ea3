"""Skills: folders with a `SKILL.md`, in the Agent Skills format that many agents use.

It is for hosts that offer skills to a model. `Skills` reads a folder of them: show the model names and
descriptions, and give it the text of a skill, and the files beside it, when it asks for them.

`granted` says what the `allowed-tools` of a skill mean for the tools of your host. They are tools that are
approved in advance: pass `Grant.approved` to `grue.hosting.judge_calls`, so that a policy's `ask` does not
apply to them. A `deny` stays. An entry with a pattern for arguments, `Bash(git:*)`, approves nothing, since
the rules of a policy do not look at arguments. A bare name, such as `Read`, means an action of the host. A
tool of a server is allowed only by an entry that names the server: a server chooses the names of its tools.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from grue.config.skill_file import AllowedTool, Skill, read_skill, read_skills
from grue.engine.actions import AGENT, ActionType
from grue.engine.served_skills import ServedSkills
from grue.policies import ToolAnnotations
from grue.tool_sessions.confined_folder import ConfinedFolder

__all__ = [
    "USE_SKILL",
    "AllowedTool",
    "Grant",
    "HasSkills",
    "Skill",
    "Skills",
    "granted",
    "read_skill",
    "read_skills",
]

_NO_OTHERS: Mapping[str, str] = {}


class Grant(Struct, frozen=True):
    """The tools that a skill allows: those approved in advance, all that it names, and names of no tool."""

    approved: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()


class Skills:
    """The skills of a folder.

    Args:
        folder: Its subfolders with a `SKILL.md` are the skills; `None`: there are none.

    Attributes:
        by_name: The skills.
        problems: A sentence for each skill that was left out, with file and line.
    """

    def __init__(self, folder: Path | None) -> None:
        self.by_name, self.problems = ({}, []) if folder is None else read_skills(folder)
        self._served: ServedSkills | None = None

    def serve(self, served: ServedSkills) -> None:
        """Offer the approved skills of servers beside those of the folder."""
        self._served = served
        self.by_name |= served.as_skills()

    def text(self, name: str, file: str = "") -> str:
        """Return the Markdown of a skill, with the names of the files beside it; or the text of one of them.

        Args:
            name: The skill.
            file: A file of it, by its path in the folder of the skill; empty: the skill itself.

        Raises:
            ValueError: There is no such skill or file. The text is a sentence for the model.
        """
        skill = self.by_name.get(name)
        if skill is None:
            raise ValueError(f"There is no skill {name!r}; there are {', '.join(self.by_name) or 'none'}.")
        if self._served is not None and name in self._served.by_name:
            return self._served.text(name, file)
        files = ConfinedFolder(skill.folder)
        if file:
            return files.read(file)
        beside = [entry for entry in files.entries() if not entry.startswith("SKILL.md ")]
        return skill.text + (f"\n\nFiles of this skill: {', '.join(beside)}" if beside else "")


class HasSkills(Protocol):
    """The context of `USE_SKILL`."""

    @property
    def skills(self) -> Skills:
        """The skills."""
        ...


class UseSkill(Struct):
    name: str
    file: str = ""


def _use_skill(params: UseSkill, context: HasSkills) -> str:
    return context.skills.text(params.name, params.file)


USE_SKILL = ActionType(
    "use_skill",
    UseSkill,
    _use_skill,
    "Read a skill of SKILLS before you do what it is about; or a file of it, by its path.",
    ToolAnnotations(read_only=True, open_world=False),
)
"""An action that reads a skill, for a context that has `skills`. The prompt lists them as `SKILLS`."""


def granted(skill: Skill, tools: Iterable[str], others: Mapping[str, str] = _NO_OTHERS) -> Grant:
    """Return the tools that a skill's `allowed-tools` approve.

    Args:
        skill: The skill.
        tools: Canonical names (`server.tool`) of all tools; the host's own actions are `agent.action`.
        others: The host's own action for names of other agents' tools, such as `Read`.
    """
    known = frozenset(tools)
    approved: set[str] = set()
    named: set[str] = set()
    unknown = []
    for entry in skill.allowed or ():
        found = _meant(entry.name, known, others)
        named |= found
        if not entry.limited:
            approved |= found
        if not found:
            unknown.append(entry.name)
    return Grant(frozenset(approved), frozenset(named), tuple(unknown))


def _meant(name: str, known: frozenset[str], others: Mapping[str, str]) -> set[str]:
    own = others.get(name, f"{AGENT}.{name}")
    if own in known and own.startswith(f"{AGENT}."):
        return {own}
    if not name.startswith("mcp__"):
        return {name} & known if "." in name else set()
    parts = name.removeprefix("mcp__").split("__")
    if len(parts) == 1 or parts[1:] == ["*"]:
        return {each for each in known if each.startswith(f"{parts[0]}.")}
    # `__` may be a part of either name. Two readings that both fit would let a server choose between them.
    readings = {f"{'__'.join(parts[:at])}.{'__'.join(parts[at:])}" for at in range(1, len(parts))} & known
    return readings if len(readings) == 1 else set()
