"""The skills of a folder: their texts and files, and what their `allowed-tools` mean."""

from pathlib import Path

import pytest
from case_tables import each_case
from later_python import hide_errors_of_paths
from msgspec import Struct

from grue.errors import MCPConfigError
from grue.hosts.skill_agent.registry import ActionTypes
from grue.hosts.skill_agent.skills import LOCK_FILE, USE_SKILL, Grant, Skills, granted, read_skill_lock


def skill(folder: Path, allowed: str = "Read", text: str = "Do it so.") -> Path:
    (folder / "notes").mkdir(parents=True, exist_ok=True)
    front = f"---\ndescription: How notes are kept.\nallowed-tools: {allowed}\n---\n"
    (folder / "notes" / "SKILL.md").write_text(f"{front}{text}")
    (folder / "notes" / "columns.md").write_text("day, hours")
    return folder


def test_a_text_names_the_files_beside_it_and_they_are_read_by_their_paths(tmp_path: Path) -> None:
    skills = Skills(skill(tmp_path))
    assert skills.text("notes") == "Do it so.\n\nFiles of this skill: columns.md (10 bytes)"
    assert skills.text("notes", "columns.md") == "day, hours"
    with pytest.raises(ValueError, match="There is no skill 'other'; there are notes"):
        skills.text("other")
    with pytest.raises(ValueError, match="may leave the skill's folder"):
        skills.text("notes", "../../x")
    with pytest.raises(ValueError, match="is an absolute path; name one inside the skill's folder"):
        skills.text("notes", "/x")


class Desk(Struct):
    """The context of a host."""

    skills: Skills


def test_an_action_reads_a_skill(tmp_path: Path) -> None:
    actions, desk = ActionTypes([USE_SKILL]), Desk(Skills(skill(tmp_path)))
    given = {"name": "notes", "file": "columns.md"}
    assert actions.carry_out("use_skill", given, desk, timeout_s=60) == "day, hours"


def test_without_a_folder_there_are_no_skills(tmp_path: Path) -> None:
    assert Skills(None).by_name == {}
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "SKILL.md").write_text("# no front matter")
    skills = Skills(tmp_path)
    assert skills.by_name == {}
    (problem,) = skills.problems
    assert "line 1: " in problem


@pytest.mark.parametrize(
    ("target", "why"), [("SKILL.md", "Too many levels of symbolic links"), ("gone", "No such file")]
)
def test_a_skill_that_is_a_link_to_nothing_is_left_out_with_a_reason(
    tmp_path: Path, target: str, why: str
) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "SKILL.md").symlink_to(target)
    (problem,) = Skills(tmp_path).problems
    assert f"line 1: it cannot be read: {why}" in problem


def test_a_pattern_for_arguments_names_a_tool_and_approves_nothing(tmp_path: Path) -> None:
    found = Skills(skill(tmp_path, "Write(docs/*)")).by_name["notes"]
    grant = granted(found, ["agent.write_file"], {"Write": "agent.write_file"})
    assert grant == Grant(frozenset(), frozenset({"agent.write_file"}), ())


@each_case(
    "entry, names",
    [
        ("Read", {"agent.read_file"}),
        ("read_file", {"agent.read_file"}),
        ("mcp__cave__dig", {"cave.dig"}),
        ("mcp__cave", {"cave.dig", "cave.look"}),
        ("mcp__cave__*", {"cave.dig", "cave.look"}),
        ("cave.dig", {"cave.dig"}),
        # A server chooses the names of its tools: a bare name never means one of them.
        ("dig", set()),
        ("write_file", {"agent.write_file"}),
        ("Write", set()),
        ("mcp__a__b__c", set()),
        ("mcp__a__b__d", {"a.b__d"}),
        ("mcp__a__b", {"a.b"}),
        ("evil", set()),
        ("mcp__", set()),
        ("agent.read_file", {"agent.read_file"}),
        ("Bash", set()),
    ],
)
def test_names_of_other_agents_of_mcp_tools_and_of_our_own(
    tmp_path: Path, entry: str, names: set[str]
) -> None:
    skills = Skills(skill(tmp_path, entry))
    tools = ["agent.read_file", "agent.write_file", "cave.dig", "cave.look", "files.read_file"]
    tools += ["evil.Read", "evil.Bash", "evil.Write", "evil.evil", "evil.agent.read_file", "evil."]
    # Two readings of one entry: a server `a` with a tool `b__c`, and a server `a__b` with a tool `c`.
    tools += ["a.b__c", "a__b.c", "a.b__d", "a.b"]
    grant = granted(skills.by_name["notes"], tools, {"Read": "agent.read_file"})
    assert grant.approved == grant.named == names
    assert grant.unknown == (() if names else (entry,))


@pytest.mark.parametrize("quiet", [False, True])
def test_a_lock_of_skills_that_cannot_be_looked_at_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    if quiet:
        hide_errors_of_paths(monkeypatch)
    with pytest.raises(MCPConfigError, match=r"Cannot read .*: File name too long"):
        read_skill_lock(tmp_path / ("x" * 300) / LOCK_FILE)
    (tmp_path / LOCK_FILE).symlink_to("later")
    assert read_skill_lock(tmp_path / LOCK_FILE) == {}
