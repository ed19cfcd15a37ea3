"""Skills: folders with a `SKILL.md`, in the Agent Skills format that many agents use.

The tools in the `allowed-tools` of the skill that the model read last are approved in advance: a policy's
`ask` does not apply to them, a policy's `deny` does. An entry with a pattern for arguments, `Bash(git:*)`,
approves nothing, because rules of a policy do not look at arguments. A bare name, such as `Read`, means only
an action of the host, because a server could name its tool `Read`, too.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeGuard

from msgspec import Struct

from grue.config import documents
from grue.errors import MCPConfigError, MissingDependencyError
from grue.hosting import ConfinedFolder
from grue.hosts.skill_agent.registry import AGENT, READS, ActionType
from grue.runtime.files import os_cause, read_regular

SKILL_FILE = "SKILL.md"
_MOST_SKILLS = 200
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_ENTRY = re.compile(r"([^\s,()]+)(\([^)]*\))?")


class AllowedTool(Struct, frozen=True):
    """An entry of `allowed-tools`, such as `Read`; `limited` if it has a pattern, as in `Bash(git:*)`."""

    name: str
    limited: bool


class Skill(Struct, frozen=True, kw_only=True):
    """A skill. `allowed` is `None` if it has no `allowed-tools`, or comes from a server."""

    name: str
    description: str
    folder: Path
    text: str
    allowed: tuple[AllowedTool, ...] | None = None


def read_skills(folder: Path) -> tuple[dict[str, Skill], list[str]]:
    """Return the skills in the subfolders of a folder by name, and a sentence for each that is left out."""
    skills: dict[str, Skill] = {}
    problems: list[str] = []
    for path in _files(folder):
        try:
            skill = read_skill(path)
        except MissingDependencyError:
            raise
        except MCPConfigError as error:
            problems.append(str(error))
            continue
        if skill.name in skills:
            other = skills[skill.name].folder
            problems.append(f"{path}, line 2: the skill {skill.name!r} is in {other} already.")
        skills.setdefault(skill.name, skill)
    return skills, problems


def read_skill(path: Path) -> Skill:
    """Read a `SKILL.md`; an error names the line."""
    front, text = front_matter(_text(path), path)
    table = front.value if isinstance(front.value, dict) else {}
    name, description = table.get("name", path.parent.name), table.get("description")
    if not is_skill_name(name):
        fault = "name should be of lower-case letters, digits and single hyphens, at most 64."
        raise front.error(("name",), fault)
    if not isinstance(description, str) or not 0 < len(description.strip()) <= 1024:
        raise front.error(("description",), "description should be a text of 1 to 1024 characters.")
    return Skill(
        name=name,
        description=" ".join(description.split()),
        folder=path.parent.absolute(),  # its files are read later, perhaps in another working directory
        text=text,
        allowed=_allowed(table.get("allowed-tools"), front),
    )


def is_skill_name(name: object) -> TypeGuard[str]:
    """Return whether a value is a valid name for a skill."""
    return isinstance(name, str) and len(name) <= 64 and _NAME.fullmatch(name) is not None


def front_matter(text: str, path: Path) -> tuple[documents.Document, str]:
    """Return the front matter of a `SKILL.md`, and the Markdown after it; an error names the line."""
    # `splitlines` would also split at form feeds and the like, which belong to the text.
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[0].strip() != "---":
        raise _malformed(path, 1, "a skill begins with '---', then its name and description")
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        last = len(lines) - (not lines[-1])  # nothing follows the last newline
        raise _malformed(path, last, "the front matter is not closed by a line '---'")
    front = documents.parse_yaml("\n".join(lines[1:end]), path, first_line=2)
    return front, "\n".join(lines[end + 1 :]).strip()


LOCK_FILE = "mcp_skills.lock"
"""The name of the file, beside `agent.yaml`, with the digests of the approved skills of MCP servers."""


class _SkillLock(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    servers: dict[str, dict[str, str]]


def read_skill_lock(path: Path) -> dict[str, dict[str, str]]:
    """Return the approved digests, by server and by the URI of the skill; empty if there is no file."""
    if not documents.is_there(Path(os.path.realpath(path))):
        return {}
    remedy = "approve the skills again with: grue skills --approve"
    return documents.converted(
        documents.read_own_json(path, remedy), _SkillLock, "a lock of skills", remedy
    ).servers


def write_skill_lock(path: Path, servers: Mapping[str, Mapping[str, str]]) -> None:
    """Write the digests of the approved skills, by server and by the URI of the skill."""
    document = {"version": 1, "servers": servers}
    documents.replace_file(path, json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def _files(folder: Path) -> list[Path]:
    try:
        files = (path / SKILL_FILE for path in folder.iterdir())
        found = sorted(path for path in files if documents.is_there(path))
    except OSError as error:
        raise MCPConfigError(f"The folder of skills {folder} cannot be read: {os_cause(error)}.") from error
    if len(found) > _MOST_SKILLS:
        raise MCPConfigError(f"The folder of skills {folder} has more than {_MOST_SKILLS} skills.")
    return found


def _text(path: Path) -> str:
    try:
        return read_regular(path, 2**20).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _malformed(
            path, error.object[: error.start].count(b"\n") + 1, "it is not UTF-8 text"
        ) from error
    except OSError as error:
        raise _malformed(path, 1, f"it cannot be read: {os_cause(error)}") from error


def _allowed(value: object, front: documents.Document) -> tuple[AllowedTool, ...] | None:
    if value is None:
        return None
    texts = value if isinstance(value, list) else [value]
    found = [match for text in texts if isinstance(text, str) for match in _ENTRY.finditer(text)]
    if not all(isinstance(text, str) for text in texts):
        fault = "allowed-tools should be names with spaces between them, or a list."
        raise front.error(("allowed-tools",), fault)
    return tuple(AllowedTool(match[1], match[2] is not None) for match in found)


def _malformed(path: Path, line: int, problem: str) -> MCPConfigError:
    return MCPConfigError(f"{path}, line {line}: {problem}.", path=str(path), line=line)


class Grant(Struct, frozen=True):
    """The tools that the entries of `allowed-tools` name."""

    approved: frozenset[str] = frozenset()  # the tools that an entry without a pattern names
    named: frozenset[str] = frozenset()  # the tools that any entry names
    unknown: tuple[str, ...] = ()  # the entries that name no tool


class Skills:
    """The skills of a folder, and those that `add` adds.

    Args:
        folder: Its subfolders with a `SKILL.md` are the skills; `None`: there is no folder.

    Attributes:
        problems: A sentence for each skill that was left out, with file and line.
    """

    def __init__(self, folder: Path | None) -> None:
        self.by_name, self.problems = ({}, []) if folder is None else read_skills(folder)
        self._texts: dict[str, Callable[[str, str], str]] = {}

    def add(self, skills: Mapping[str, Skill], text: Callable[[str, str], str]) -> None:
        """Add skills that are not in the folder, such as a server's. `text(name, file)` returns the text."""
        self.by_name |= skills
        self._texts |= dict.fromkeys(skills, text)

    def text(self, name: str, file: str = "") -> str:
        """Return the text of a skill's `file`, a path in its folder.

        Without `file`: the skill's own text, followed by the names of its other files.

        Raises:
            ValueError: There is no such skill, or the file cannot be read. The error's text is for the model.
        """
        skill = self.by_name.get(name)
        if skill is None:
            raise ValueError(f"There is no skill {name!r}; there are {', '.join(self.by_name) or 'none'}.")
        if name in self._texts:
            return self._texts[name](name, file)
        files = ConfinedFolder(skill.folder, called="the skill's folder")
        if file:
            return files.read(file)
        beside = [entry for entry in files.entries() if not entry.startswith("SKILL.md ")]
        return skill.text + (f"\n\nFiles of this skill: {', '.join(beside)}" if beside else "")


class UseSkill(Struct):  # noqa: D101 - a docstring would be a description in the schema
    name: str
    file: str = ""


USE_SKILL = ActionType(
    "use_skill",
    UseSkill,
    lambda params, context: str(context.skills.text(params.name, params.file)),
    "Read a skill of SKILLS before you do what it is about; or a file of it, by its path.",
    READS,
)
"""An action that reads a skill, for a context whose `skills` is a `Skills`."""


def granted(skill: Skill, tools: Iterable[str], others: Mapping[str, str]) -> Grant:
    """Return which of `tools` (full names such as `agent.read_file`) a skill's `allowed-tools` name.

    `others` maps names of other agents' tools to the host's actions: `{"Read": "agent.read_file"}`.
    """
    known = frozenset(tools)
    found = [(entry, _meant(entry.name, known, others)) for entry in skill.allowed or ()]
    return Grant(
        approved=frozenset[str]().union(*(names for entry, names in found if not entry.limited)),
        named=frozenset[str]().union(*(names for _, names in found)),
        unknown=tuple(entry.name for entry, names in found if not names),
    )


def _meant(name: str, known: frozenset[str], others: Mapping[str, str]) -> set[str]:
    own = others.get(name, f"{AGENT}.{name}")
    if own in known and own.startswith(f"{AGENT}."):
        return {own}
    if not name.startswith("mcp__"):
        return {name} & known if "." in name else set()
    parts = name.removeprefix("mcp__").split("__")
    if len(parts) == 1 or parts[1:] == ["*"]:
        return {each for each in known if each.startswith(f"{parts[0]}.")}
    # In `mcp__SERVER__TOOL`, both names may contain `__`. If more than one way to split the text names a
    # tool, allow none of these tools: a server could choose names so that its tool matches.
    readings = {f"{'__'.join(parts[:at])}.{'__'.join(parts[at:])}" for at in range(1, len(parts))} & known
    return readings if len(readings) == 1 else set()
