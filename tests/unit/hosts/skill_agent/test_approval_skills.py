"""Skills in a run: what the model sees of them, and what `allowed-tools` mean."""

from pathlib import Path
from typing import Any

import pytest
from skill_runs import Ran, act, call, finish, run

from grue import LlmSettings, ToolPolicy, ToolRule
from grue.errors import MCPConfigError
from grue.hosts.skill_agent import AgentConfig
from grue.testing.fake_tools import FakeToolServer

ASK = ToolPolicy(rules=(ToolRule(tools=("agent.write_file", "cave.*"), verdict="ask"),))
DENY = ToolPolicy(rules=(ToolRule(tools=("agent.write_file",), verdict="deny", reason="never"),))
USE = ("use_skill", {"name": "notes"})
WRITE = ("write_file", {"path": "a.txt", "content": "x"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "skills"


def skill(folder: Path, allowed: str = "", text: str = "Do it so.") -> Path:
    (folder / "notes").mkdir(parents=True)
    front = f"allowed-tools: {allowed}\n" if allowed else ""
    (folder / "notes" / "SKILL.md").write_text(f"---\ndescription: How notes are kept.\n{front}---\n{text}")
    (folder / "notes" / "columns.md").write_text("day, hours")
    return folder


def use(folder: Path, *actions: tuple[str, dict[str, Any]], **config: object) -> Ran:
    cave = FakeToolServer("cave")
    cave.answers("dig", "a hole")
    settings = {"skills": folder, "workspace": folder.parent, "servers": {"cave": cave}, **config}
    return run([act(USE), act(*actions), act(finish())], config=settings)


def test_the_model_sees_names_and_descriptions_and_reads_text_and_files_on_demand(folder: Path) -> None:
    ran = use(skill(folder), ("use_skill", {"name": "notes", "file": "columns.md"}))
    system = str(ran.requests[0][0]["content"])
    assert '"name": "notes",\n    "description": "How notes are kept."' in system
    assert "Do it so." not in system
    assert ran.results(1)[0]["output"] == "Do it so.\n\nFiles of this skill: columns.md (10 bytes)"
    assert ran.results(2)[0]["output"] == "day, hours"


def test_an_unknown_skill_and_a_path_that_leaves_it_are_failed_steps(folder: Path) -> None:
    ran = use(
        skill(folder),
        ("use_skill", {"name": "other"}),
        ("use_skill", {"name": "notes", "file": "../../x"}),
    )
    errors = [each["error"] for each in ran.results(2)]
    assert errors[0] == "There is no skill 'other'; there are notes."
    assert "may leave" in errors[1]


def test_allowed_tools_are_approved_in_advance_once_the_skill_is_in_use(folder: Path) -> None:
    before = run([act(WRITE), act(finish())], config={"policy": ASK, "workspace": folder.parent})
    assert before.statuses == ["denied", "completed"], "nobody can be asked"
    ran = use(skill(folder, "Write mcp__cave__dig"), WRITE, call("dig"), policy=ASK)
    assert ran.statuses == ["completed"] * 4


def test_allowed_tools_never_widen_a_denial(folder: Path) -> None:
    ran = use(skill(folder, "Write"), WRITE, policy=DENY)
    assert ran.results(2)[0]["error"] == "denied: never"


def test_an_entry_with_a_pattern_for_arguments_approves_nothing(folder: Path) -> None:
    ran = use(skill(folder, "Write(docs/*)"), WRITE, policy=ASK)
    assert ran.statuses[1] == "denied"


@pytest.mark.slow
def test_they_restrict_only_where_that_is_configured(folder: Path) -> None:
    skill(folder, "Read Write(docs/*)")
    assert use(folder, WRITE, call("dig")).statuses == ["completed"] * 4
    ran = use(folder, WRITE, call("dig"), ("note", {"text": "x"}), restrict_tools=True)
    assert ran.statuses == ["completed", "completed", "denied", "completed", "completed"]
    assert ran.results(2)[1]["error"] == "denied: the skill notes does not allow this tool"


@pytest.mark.parametrize("name", ["Read", "Bash", "dig", "search"])
def test_a_bare_name_never_allows_the_tool_of_a_server(folder: Path, name: str) -> None:
    evil = FakeToolServer("evil")
    evil.answers(name, "harm")
    policy = ToolPolicy(rules=(ToolRule(tools=("evil.*",), verdict="ask"),))
    settings = {"servers": {"evil": evil}, "policy": policy}
    asked = use(skill(folder, name), call(name), call(f"evil.{name}"), **settings)
    assert asked.statuses == ["completed", "denied", "denied", "completed"]
    assert evil.calls == []
    restricted = use(folder, call(name), restrict_tools=True, servers={"evil": evil})
    assert restricted.statuses == ["completed", "denied", "completed"]
    problems = [fields["problem"] for event, fields in asked.events if event == "skill_problem"]
    assert name == "Read" or "by its full name, server.tool" in problems[0]


def test_no_server_passes_for_the_agent_itself() -> None:
    with pytest.raises(MCPConfigError, match=r"servers\.agent: the name is taken"):
        AgentConfig(llm=LlmSettings(model="m"), servers={"agent": FakeToolServer("agent")})


def test_unknown_names_are_said_once(folder: Path) -> None:
    ran = use(skill(folder, "Read Bash(git:*) WebFetch"), ("note", {"text": "x"}))
    problems = [fields["problem"] for name, fields in ran.events if name == "skill_problem"]
    assert problems == ["The skill notes allows tools that do not exist here: Bash, WebFetch."]


def test_a_malformed_skill_is_reported_and_left_out(folder: Path) -> None:
    skill(folder)
    (folder / "bad").mkdir()
    (folder / "bad" / "SKILL.md").write_text("# no front matter")
    ran = use(folder, ("note", {"text": "x"}))
    (problem,) = (fields["problem"] for name, fields in ran.events if name == "skill_problem")
    assert problem.startswith(f"{folder / 'bad' / 'SKILL.md'}, line 1: ")
    assert '"name": "bad"' not in str(ran.requests[0][0]["content"])
