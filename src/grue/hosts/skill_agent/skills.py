"""The skills of a run: what the model reads of them, and which tools they allow.

`allowed-tools` names tools that are approved in advance: while the skill is in use, a policy's `ask` does not
apply to them. It never overrides a `deny`. Names are those of other agents (`Read`, `mcp__server__tool`), of
MCP tools, or of the agent's own actions. An entry with a pattern for arguments, `Bash(git:*)`, approves
nothing.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from grue.connections import ConfinedFolder
from grue.settings import Skill, read_skills

_OTHER_AGENTS = {
    "Edit": "agent.write_file",
    "Glob": "agent.list_files",
    "LS": "agent.list_files",
    "MultiEdit": "agent.write_file",
    "Read": "agent.read_file",
    "Skill": "agent.use_skill",
    "Write": "agent.write_file",
}


class Grant(Struct, frozen=True):
    """The tools that a skill allows: those approved in advance, all that it names, and names of no tool."""

    approved: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()


class Skills:
    """The skills of a folder.

    Attributes:
        problems: A sentence for each skill that was left out, with file and line.
    """

    def __init__(self, folder: Path | None) -> None:
        self.by_name, self.problems = ({}, []) if folder is None else read_skills(folder)

    def text(self, name: str, file: str = "") -> str:
        """Return the Markdown of a skill, with the names of the files beside it; or the text of one of them.

        Raises:
            ValueError: There is no such skill or file.
        """
        skill = self.by_name.get(name)
        if skill is None:
            raise ValueError(f"There is no skill {name!r}; there are {', '.join(self.by_name) or 'none'}.")
        files = ConfinedFolder(skill.folder)
        if file:
            return files.read(file)
        beside = [entry for entry in files.entries() if not entry.startswith("SKILL.md ")]
        return skill.text + (f"\n\nFiles of this skill: {', '.join(beside)}" if beside else "")


def granted(skill: Skill, tools: Iterable[str], bare: Mapping[str, str]) -> Grant:
    """Return what a skill's `allowed-tools` mean for the tools that there are.

    Args:
        skill: The skill.
        tools: Canonical names (`server.tool`) of all tools.
        bare: The canonical name for each bare name.
    """
    known = frozenset(tools)
    approved: set[str] = set()
    named: set[str] = set()
    unknown = []
    for entry in skill.allowed or ():
        found = _meant(entry.name, known, bare)
        named |= found
        if not entry.limited:
            approved |= found
        if not found:
            unknown.append(entry.name)
    return Grant(frozenset(approved), frozenset(named), tuple(unknown))


def _meant(name: str, known: frozenset[str], bare: Mapping[str, str]) -> set[str]:
    if name.startswith("mcp__"):
        server, _, tool = name.removeprefix("mcp__").partition("__")
        if tool in ("", "*"):
            return {each for each in known if each.startswith(f"{server}.")}
        name = f"{server}.{tool}"
    meant = {_OTHER_AGENTS.get(name, name), bare.get(name, name), f"agent.{name}"}
    return meant & known
