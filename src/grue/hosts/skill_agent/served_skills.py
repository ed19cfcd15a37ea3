"""Skills that MCP servers deliver: the extension `io.modelcontextprotocol/skills` (SEP-2640).

A server lists its skills with the digest and size of each file. A model follows the text of a skill, and
servers write these texts. So a person approves each skill, by a digest that covers all its files. The
`allowed-tools` of such a skill are ignored: they neither approve nor, with `restrict_tools`, deny a call.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from grue import ToolClient
from grue import messages as m
from grue.errors import MCPConfigError, MCPError
from grue.hosts.skill_agent import skills
from grue.hosts.skill_agent.mcp_manager import McpManager
from grue.runtime.safe_text import printable

LIST = "skills/list"
MOST_FILES, MOST_BYTES = 512, 16 << 20
"""The specification's limits for one skill: the number of its files, and their total size in bytes."""
_MOST_SKILLS = 200
_MOST_READ = 1 << 20


class SkillResource(Struct, frozen=True):
    """A file of a skill, as the server lists it."""

    uri: str
    digest: Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
    size: Annotated[int, Meta(ge=0)]


class ServedSkill(Struct, frozen=True, kw_only=True):
    """A skill that a server lists; `uri` is that of its `SKILL.md`, and `files` has all its files by path."""

    server: str
    uri: str
    front: m.JsonObject
    files: dict[str, SkillResource]

    @property
    def name(self) -> str:
        """The name that the model sees: `SERVER/SKILL`. Names of local skills have no slash."""
        return f"{self.server}/{self.front['name']}"

    @property
    def digest(self) -> str:
        """The digest that a person approves. It covers the digest of each file."""
        files = sorted((each.uri, each.digest, each.size) for each in self.files.values())
        entry = json.dumps([self.uri, self.front, files], sort_keys=True)
        return f"sha256:{hashlib.sha256(entry.encode('utf-8', 'surrogatepass')).hexdigest()}"


def list_skills(asks: ToolClient | McpManager, server: str) -> tuple[list[ServedSkill], list[str]]:
    """Return the usable skills that a server lists, and a sentence for each problem. No file is read."""
    found: dict[str, ServedSkill] = {}
    problems = []
    entries = asks.request_all(server, LIST)
    if len(entries) > _MOST_SKILLS:
        rest = len(entries) - _MOST_SKILLS
        problems.append(
            f"The server {printable(server)} lists too many skills: the last {rest} are left out."
        )
    for entry in entries[:_MOST_SKILLS]:
        try:
            skill = _skill_of(server, entry)
        except ValueError as error:
            problems.append(f"The server {printable(server)} lists a skill that cannot be used: {error}.")
            continue
        if skill.name in found:
            problems.append(f"The server {printable(server)} lists the skill {skill.name} twice.")
        found.setdefault(skill.name, skill)
    return list(found.values()), problems


def read_file(asks: ToolClient | McpManager, skill: ServedSkill, path: str = skills.SKILL_FILE) -> str:
    """Read a skill's file, check its digest and size, and return its text (of `SKILL.md`, the body)."""
    listed = skill.files.get(path)
    if listed is None:
        raise ValueError(f"The skill {skill.name} has no file {path!r}; it has {', '.join(skill.files)}.")
    if listed.size > _MOST_READ:
        raise ValueError(f"The file {path!r} of the skill {skill.name} is too long to read.")
    content = _content(asks.request(skill.server, "resources/read", {"uri": listed.uri}), listed.uri)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if len(content) != listed.size or digest != listed.digest:
        raise ValueError(f"The file {path!r} of the skill {skill.name} is not what its server has listed.")
    try:
        text = content.decode("utf-8")
        if path != skills.SKILL_FILE:
            return text
        front, body = skills.front_matter(text, Path(skills.SKILL_FILE))
    except (UnicodeDecodeError, MCPConfigError) as error:
        raise ValueError(f"The file {path!r} of the skill {skill.name} cannot be read as text.") from error
    if front.value != skill.front:
        raise ValueError(f"The skill {skill.name} begins otherwise than its server has listed.")
    return body


class ServedSkills:
    """The approved skills of some servers.

    Args:
        asks: Sends the requests to the servers.
        folder: The folder with `mcp_skills.lock`, which has the approved digests.

    Attributes:
        by_name: The approved skills.
        waiting: The listed skills that are not approved, or have changed since they were approved.
        problems: Sentences about skills that are not used, and servers whose skills cannot be listed.

    Raises:
        MCPConfigError: `mcp_skills.lock` cannot be used.
    """

    def __init__(self, asks: ToolClient | McpManager, servers: Collection[str], folder: Path) -> None:
        self._asks, self._lock = asks, folder / skills.LOCK_FILE
        approved = skills.read_skill_lock(self._lock)
        self.by_name: dict[str, ServedSkill] = {}
        self.waiting: list[ServedSkill] = []
        self.problems: list[str] = []
        for server in servers:
            try:
                listed, problems = list_skills(asks, server)
            except MCPError as error:
                self.problems.append(f"The skills of the server {server} cannot be listed: {error}")
                continue
            self.problems += problems
            for skill in listed:
                known = approved.get(server, {}).get(skill.uri)
                if known == skill.digest:
                    self.by_name[skill.name] = skill
                    continue
                self.waiting.append(skill)
                state = "is not approved" if known is None else "has changed since it was approved"
                self.problems.append(f"The skill {skill.name} {state}: grue skills --approve")

    def approve(self) -> None:
        """Write the listed digests of the `waiting` skills into `mcp_skills.lock`.

        Raises:
            MCPConfigError: `mcp_skills.lock` cannot be used or written.
        """
        approved = skills.read_skill_lock(self._lock)
        for skill in self.waiting:
            approved.setdefault(skill.server, {})[skill.uri] = skill.digest
        skills.write_skill_lock(self._lock, approved)

    def as_skills(self) -> dict[str, skills.Skill]:
        """Return the approved skills without their texts, which the method `text` reads later."""
        return {
            name: skills.Skill(
                name=name,
                description=" ".join(str(skill.front["description"]).split()),
                folder=Path(),
                text="",
            )
            for name, skill in self.by_name.items()
        }

    def text(self, name: str, file: str = "") -> str:
        """Read a file of an approved skill; without `file`: `SKILL.md`, and add the names of the other files.

        Raises:
            ValueError: There is no such file, it cannot be used (for example, its digest differs), or the
                request to the server failed. The error's text is for the model.
        """
        skill = self.by_name[name]
        try:
            text = read_file(self._asks, skill, file or skills.SKILL_FILE)
        except MCPError as error:
            raise ValueError(f"The skill {name} could not be read: {error}") from error
        beside = [path for path in skill.files if path != skills.SKILL_FILE]
        return text if file or not beside else f"{text}\n\nFiles of this skill: {', '.join(beside)}"


def _skill_of(server: str, entry: Mapping[str, Any]) -> ServedSkill:
    uri, front, resources = entry.get("uri"), entry.get("frontmatter"), entry.get("resources")
    if not isinstance(uri, str) or not uri.isprintable() or not uri.endswith(f"/{skills.SKILL_FILE}"):
        raise ValueError(f"it has no address that ends in /{skills.SKILL_FILE}")
    shown = printable(uri, 200)
    name = front.get("name") if isinstance(front, dict) else None
    description = front.get("description") if isinstance(front, dict) else None
    if not isinstance(front, dict) or not skills.is_skill_name(name) or uri.split("/")[-2] != name:
        raise ValueError(f"the name of {shown} is not the last part of its address")
    if not isinstance(description, str) or not 0 < len(description.strip()) <= 1024:
        raise ValueError(f"{shown} has no description of 1 to 1024 characters")
    if not isinstance(resources, list) or not 0 < len(resources) <= MOST_FILES:
        raise ValueError(f"{shown} has no list of at most {MOST_FILES} files with their digests")
    files = {}
    for each in resources:
        resource = _resource_of(each, shown)
        path = resource.uri.removeprefix(uri.removesuffix(skills.SKILL_FILE))
        inside = path != resource.uri and path.isprintable() and "\\" not in path
        if not inside or any(part in ("", ".", "..") for part in path.split("/")) or path in files:
            raise ValueError(f"{shown} lists {printable(resource.uri, 200)}, which is not a file of it")
        files[path] = resource
    if skills.SKILL_FILE not in files or files[skills.SKILL_FILE].uri != uri:
        raise ValueError(f"{shown} does not list itself")
    if sum(each.size for each in files.values()) > MOST_BYTES:
        raise ValueError(f"{shown} is larger than {MOST_BYTES >> 20} MiB")
    return ServedSkill(server=server, uri=uri, front=front, files=files)


def _resource_of(value: object, shown: str) -> SkillResource:
    try:
        return msgspec.convert(value, SkillResource)
    except (msgspec.ValidationError, UnicodeEncodeError):  # a field's name may have a lone surrogate
        raise ValueError(f"{shown} lists a file without address, digest or size") from None


def _content(answer: Mapping[str, Any], uri: str) -> bytes:
    contents = answer.get("contents")
    found = contents[0] if isinstance(contents, list) and len(contents) == 1 else None
    if isinstance(found, dict) and found.get("uri") == uri:
        try:
            if isinstance(text := found.get("text"), str):
                return text.encode()
            if isinstance(blob := found.get("blob"), str):
                return base64.b64decode(blob, validate=True)
        except (UnicodeEncodeError, binascii.Error):
            pass
    raise ValueError("The server has answered with something else than the file.")
