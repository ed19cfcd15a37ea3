"""`SKILL.md`: the format that other agents use, and malformed ones with their lines."""

from pathlib import Path

import pytest
from later_python import hide_errors_of_paths

from grue.errors import MCPConfigError, MissingDependencyError
from grue.hosts.skill_agent.skills import AllowedTool, read_skill, read_skills

PDF = """\
---
name: pdf-processing
description: Extract text from PDF files. Use when the user mentions PDFs.
license: Apache-2.0
compatibility: Requires pdfplumber
metadata:
  author: example-org
  version: "1.0"
allowed-tools: Bash(git:*) Bash(jq:*) Read, mcp__files__read_file
---

# PDF

Run the script.
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name / "SKILL.md"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    return path


def test_a_skill_of_another_agent_is_read_unchanged(tmp_path: Path) -> None:
    skill = read_skill(write(tmp_path, "pdf-processing", PDF))
    assert skill.name == "pdf-processing"
    assert skill.description.startswith("Extract text from PDF files.")
    assert skill.text == "# PDF\n\nRun the script."
    assert skill.allowed == (
        AllowedTool("Bash", limited=True),
        AllowedTool("Bash", limited=True),
        AllowedTool("Read", limited=False),
        AllowedTool("mcp__files__read_file", limited=False),
    )


def test_a_list_of_tools_a_missing_name_and_a_byte_order_mark_are_understood(tmp_path: Path) -> None:
    text = "\ufeff---\ndescription: >\n  Two\n  lines.\nallowed-tools:\n  - Read\n  - Grep\n---\nText"
    skill = read_skill(write(tmp_path, "csv-notes", text))
    assert (skill.name, skill.description, skill.text) == ("csv-notes", "Two lines.", "Text")
    assert [each.name for each in skill.allowed or ()] == ["Read", "Grep"]
    assert read_skill(write(tmp_path, "b", "---\ndescription: x\n---\n")).allowed is None


def test_only_a_line_of_three_hyphens_at_the_margin_ends_the_front_matter(tmp_path: Path) -> None:
    text = "---\r\ndescription: |\r\n  Rules:\r\n  ---\r\n  and more\r\n--- \r\npage\f1\u2028end\r\nlast"
    skill = read_skill(write(tmp_path, "rules", text))
    assert (skill.description, skill.text) == ("Rules: --- and more", "page\f1\u2028end\nlast")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("# No front matter", 1, "begins with '---'"),
        ("", 1, "begins with '---'"),
        ("---\nname: a\ndescription: b\n", 3, "not closed"),
        ("---\ndescription: a\fb\rc\r\nname: a", 3, "not closed"),
        ("---\nname: a\n---\n", 2, "description should be"),
        ("---\nname: a\ndescription: ''\n---\n", 3, "description should be"),
        (f"---\ndescription: {'x' * 1025}\n---\n", 2, "description should be"),
        ("---\ndescription: b\nname: My Skill\n---\n", 3, "name should be"),
        ("---\nname: -a\ndescription: b\n---\n", 2, "name should be"),
        ("---\nname: a\ndescription: Use when: x\n---\n", 3, "not valid YAML"),
        ("---\nname: a\ndescription: b\nallowed-tools: [1]\n---\n", 4, "allowed-tools should be"),
    ],
)
def test_a_malformed_skill_is_left_out_and_named_with_its_line(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    path = write(tmp_path, "a", text)
    write(tmp_path, "good", "---\ndescription: b\n---\n")
    skills, (problem,) = read_skills(tmp_path)
    assert list(skills) == ["good"]
    assert problem.startswith(f"{path}, line {line}: ")
    assert said in problem


def test_two_skills_of_one_name_and_files_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    write(tmp_path, "a", "---\nname: same\ndescription: first\n---\n")
    write(tmp_path, "b", "---\nname: same\ndescription: second\n---\n")
    write(tmp_path, "c", "").write_bytes(b"---\n\xff")
    (tmp_path / "d" / "SKILL.md").mkdir(parents=True)
    (tmp_path / "no-skill").mkdir()
    skills, problems = read_skills(tmp_path)
    assert skills["same"].description == "first"
    assert [problem.partition("line ")[2][:1] for problem in problems] == ["2", "2", "1"]


@pytest.mark.parametrize("quiet", [False, True])
def test_a_subfolder_that_cannot_be_looked_into_does_not_take_the_other_skills_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    if quiet:
        hide_errors_of_paths(monkeypatch)
    write(tmp_path, "a", "---\nname: a\ndescription: d\n---\n")
    # Stands for a folder of another user: the system refuses to look for a file there, as any user.
    (tmp_path / "b").symlink_to("x" * 300)
    skills, problems = read_skills(tmp_path)
    assert [*skills] == ["a"]
    assert problems == [f"{tmp_path / 'b' / 'SKILL.md'}, line 1: it cannot be read: File name too long."]


def test_a_folder_that_cannot_be_read_or_is_too_full_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MCPConfigError, match="cannot be read"):
        read_skills(tmp_path / "nowhere")
    for number in range(201):
        write(tmp_path, f"s{number}", "")
    with pytest.raises(MCPConfigError, match="more than 200"):
        read_skills(tmp_path)


def test_without_pyyaml_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a", "---\ndescription: b\n---\n")
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(MissingDependencyError, match="pyyaml"):
        read_skills(tmp_path)
