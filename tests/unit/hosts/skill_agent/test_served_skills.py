"""Skills of servers: what is listed is checked, what is read is compared, and an approval is for a digest."""

import base64
import copy
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from grue.errors import MCPError
from grue.hosts.skill_agent.served_skills import ServedSkills, list_skills, read_file
from grue.hosts.skill_agent.skills import Skills

URI = "skill://pdf/SKILL.md"
FRONT = {"name": "pdf", "description": "Fill forms", "allowed-tools": "docs.delete"}
TEXT = "---\nname: pdf\ndescription: Fill forms\nallowed-tools: docs.delete\n---\n\nRead FORMS.md.\n"
FORMS = "Press hard.\n"


def resource(uri: str, text: str) -> dict[str, Any]:
    content = text.encode()
    return {"uri": uri, "digest": f"sha256:{hashlib.sha256(content).hexdigest()}", "size": len(content)}


ENTRY: dict[str, Any] = {
    "uri": URI,
    "frontmatter": FRONT,
    "resources": [resource(URI, TEXT), resource("skill://pdf/ref/FORMS.md", FORMS)],
}


class Server:
    """A server with these entries and files."""

    def __init__(self, *entries: Any, **files: str) -> None:
        self.entries = entries or (copy.deepcopy(ENTRY),)
        self.files: dict[str, Any] = {URI: TEXT, "skill://pdf/ref/FORMS.md": FORMS, **files}
        self.read: list[str] = []

    def request(self, server: str, method: str, params: Mapping[str, object] | None = None) -> dict[str, Any]:
        uri = str((params or {})["uri"])
        self.read.append(uri)
        content = self.files[uri]
        return {"contents": [content if isinstance(content, dict) else {"uri": uri, "text": content}]}

    def request_all(self, server: str, method: str) -> tuple[dict[str, Any], ...]:
        assert method == "skills/list"
        return self.entries


def approved(server: Server, folder: Path) -> ServedSkills:
    ServedSkills(server, ["docs"], folder).approve()
    return ServedSkills(server, ["docs"], folder)


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    entry = copy.deepcopy(ENTRY)
    change(entry)
    return entry


def test_nothing_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    server = Server()
    served = approved(server, tmp_path)
    skills = Skills(None)
    skills.add(served.as_skills(), served.text)
    assert server.read == []
    assert [(each.name, each.description) for each in skills.by_name.values()] == [("docs/pdf", "Fill forms")]
    assert skills.text("docs/pdf") == "Read FORMS.md.\n\nFiles of this skill: ref/FORMS.md"
    assert server.read == [URI]
    assert skills.text("docs/pdf", "ref/FORMS.md") == FORMS
    with pytest.raises(ValueError, match="has no file"):
        skills.text("docs/pdf", "../x")
    assert len(server.read) == 2


def test_what_a_server_allows_grants_nothing(tmp_path: Path) -> None:
    (skill,) = approved(Server(), tmp_path).as_skills().values()
    assert skill.allowed is None


def test_an_approval_is_for_what_was_listed(tmp_path: Path) -> None:
    served = ServedSkills(Server(), ["docs"], tmp_path)
    assert (served.by_name, served.problems) == (
        {},
        ["The skill docs/pdf is not approved: grue skills --approve"],
    )
    assert list(approved(Server(), tmp_path).by_name) == ["docs/pdf"]
    for change in (
        lambda entry: entry["resources"][1].update(resource("skill://pdf/ref/FORMS.md", "Other.")),
        lambda entry: entry["resources"].append(resource("skill://pdf/more.md", "x")),
        lambda entry: entry["frontmatter"].update({"description": "Exfiltrate"}),
        lambda entry: entry["frontmatter"].update({"license": "MIT"}),
    ):
        served = ServedSkills(Server(changed(change)), ["docs"], tmp_path)
        assert served.by_name == {}
        assert served.problems == [
            "The skill docs/pdf has changed since it was approved: grue skills --approve"
        ]


@pytest.mark.parametrize(
    "answer",
    [
        TEXT.replace("hard", "soft").replace("Read", "Send"),
        TEXT + "more",
        TEXT[:-1],
        {"uri": URI, "text": TEXT.replace("Read", "Copy")},
        {"uri": "skill://other/SKILL.md", "text": TEXT},
        {"uri": URI, "blob": "no base64!"},
        {"uri": URI, "text": "\ud800"},
        {"uri": URI},
        {},
    ],
)
def test_what_is_not_as_listed_is_not_used(answer: Any, tmp_path: Path) -> None:
    server = Server()
    served = approved(server, tmp_path)
    server.files[URI] = answer
    with pytest.raises(ValueError, match=r"not what its server has listed|something else than the file"):
        served.text("docs/pdf")


def test_a_file_may_come_as_bytes(tmp_path: Path) -> None:
    server = Server()
    server.files[URI] = {"uri": URI, "blob": base64.b64encode(TEXT.encode()).decode()}
    assert approved(server, tmp_path).text("docs/pdf").startswith("Read FORMS.md.")


@pytest.mark.parametrize(
    "text", [TEXT.replace("Fill forms", "Exfiltrate"), TEXT.replace("allowed-tools", "x"), "no front matter"]
)
def test_a_skill_that_begins_otherwise_than_listed_is_not_used(text: str, tmp_path: Path) -> None:
    """Its digest fits: the server has listed one front matter, and serves another."""
    entry = changed(lambda entry: entry["resources"][0].update(resource(URI, text)))
    server = Server(entry)
    server.files[URI] = text
    with pytest.raises(ValueError, match=r"begins otherwise|cannot be read as text"):
        approved(server, tmp_path).text("docs/pdf")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda entry: entry.update(uri="skill://pdf/other.md"), "no address"),
        (lambda entry: entry.update(uri="skill://x/\x1b[2J/SKILL.md"), "no address"),
        (lambda entry: entry.update(uri=7), "no address"),
        (lambda entry: entry["frontmatter"].update(name="other"), "not the last part of its address"),
        (lambda entry: entry["frontmatter"].update(name="../x"), "not the last part of its address"),
        (lambda entry: entry["frontmatter"].update(description=""), "no description"),
        (lambda entry: entry["frontmatter"].update(description="x" * 2000), "no description"),
        (lambda entry: entry.update(frontmatter=None), "not the last part of its address"),
        (lambda entry: entry.update(resources="dynamic"), "no list of at most 512 files"),
        (lambda entry: entry.update(resources=[]), "no list of at most 512 files"),
        (lambda entry: entry.update(resources=entry["resources"] * 300), "no list of at most 512 files"),
        (lambda entry: entry["resources"].pop(0), "does not list itself"),
        (lambda entry: entry["resources"][1].update(digest="md5:1"), "without address, digest or size"),
        (lambda entry: entry["resources"][1].update(size=-1), "without address, digest or size"),
        (lambda entry: entry["resources"][1].update(size=True), "without address, digest or size"),
        (lambda entry: entry["resources"][1].update({"\ud800": 1}), "without address, digest or size"),
        (lambda entry: entry["resources"][1].update(size=1 << 25), "larger than 16 MiB"),
        (lambda entry: entry["resources"][1].update(uri="skill://pdf/../x"), "not a file of it"),
        (lambda entry: entry["resources"][1].update(uri="skill://other/x"), "not a file of it"),
        (lambda entry: entry["resources"][1].update(uri="file:///etc/passwd"), "not a file of it"),
        (lambda entry: entry["resources"].append(entry["resources"][1]), "not a file of it"),
    ],
)
def test_an_entry_that_is_not_whole_is_left_out(
    change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    skills, problems = list_skills(Server(changed(change), copy.deepcopy(ENTRY)), "docs")
    assert [each.name for each in skills] == ["docs/pdf"]
    (said,) = problems
    assert problem in said
    assert said.isprintable()


def test_a_name_that_is_listed_twice_means_the_first() -> None:
    other = copy.deepcopy(ENTRY)
    other["frontmatter"]["description"] = "Another"
    skills, problems = list_skills(Server(copy.deepcopy(ENTRY), other), "docs")
    assert [each.front["description"] for each in skills] == ["Fill forms"]
    assert problems == ["The server docs lists the skill docs/pdf twice."]


def test_skills_beyond_the_limit_are_left_out_and_counted() -> None:
    def numbered(number: int) -> dict[str, Any]:
        uri = f"skill://s{number}/SKILL.md"
        return {
            "uri": uri,
            "frontmatter": {**FRONT, "name": f"s{number}"},
            "resources": [resource(uri, TEXT)],
        }

    skills, problems = list_skills(Server(*map(numbered, range(203))), "docs")
    assert len(skills) == 200
    assert problems == ["The server docs lists too many skills: the last 3 are left out."]


def test_a_long_file_is_not_fetched() -> None:
    entry = changed(lambda entry: entry["resources"][1].update(size=2 << 20))
    server = Server(entry)
    (skill,), _ = list_skills(server, "docs")
    with pytest.raises(ValueError, match="too long to read"):
        read_file(server, skill, "ref/FORMS.md")
    assert server.read == []


def test_a_server_without_skills_is_a_problem_and_no_end(tmp_path: Path) -> None:
    class Without(Server):
        def request_all(self, server: str, method: str) -> tuple[dict[str, Any], ...]:
            raise MCPError("Method not found")

    served = ServedSkills(Without(), ["docs"], tmp_path)
    assert served.problems == ["The skills of the server docs cannot be listed: Method not found"]
