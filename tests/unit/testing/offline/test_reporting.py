"""The scripted model of the skill agent's example: what it does next depends on the results alone."""

import json
from typing import Any

import pytest

from grue.testing.offline.chat_request import ChatMessage, ChatRequest
from grue.testing.offline.reporting import reply_to_task

SKILLS = 'SKILLS:\n[{"name": "weekly-report", "description": "x"}]'
TOOLS = (
    'MCP_TOOLS:\n[{"name": "think"}, {"name": "read_multiple_files"}, {"name": "list_allowed_directories"}]'
)
CSV = "day,project,hours,what\nMon,roof,2.5,Tiles\nTue,garden,1,Hedge\nWed,roof,many,\n"


def done(action: str, target: str = "", output: str = "", status: str = "completed") -> dict[str, Any]:
    return {"action": action, "target": target, "status": status, "output": output}


READY = (
    done("use_skill", "weekly-report", "text"),
    done("list_files", "notes", "a.csv (3 bytes)\nx.md (1 bytes)"),
)


def actions(system: str, *results: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What it does after these results."""
    texts = ["TASK:\nx", f"RESULTS:\n{json.dumps(results)}"]
    messages = (ChatMessage("system", system), *(ChatMessage("user", text) for text in texts))
    reply = json.loads(reply_to_task(ChatRequest(model="m", messages=messages)).content or "")
    assert reply["thought"].endswith("(scripted)")
    return [(each["type"], each["params"]) for each in reply["actions"]]


def test_it_reads_the_skill_and_the_notes_writes_the_report_and_finishes() -> None:
    assert [kind for kind, _ in actions(SKILLS)] == ["use_skill", "list_files"]
    assert actions(SKILLS, *READY) == [("read_file", {"path": "notes/a.csv"})]
    read = (*READY, done("read_file", "notes/a.csv", CSV))
    respond, (kind, write) = actions(SKILLS, *read)
    assert (respond[0], kind, write["path"]) == ("respond", "write_file", "report.md")
    assert "| roof | 2.5 |\n| garden | 1 |\n| **sum** | 3.5 |" in write["content"]
    ((kind, params),) = actions(SKILLS, *read, done("write_file", "report.md"))
    assert (kind, params) == ("finish", {"answer": "report.md: 3.5 hours in 2 projects."})


def test_with_tools_it_reads_all_notes_at_once_and_thinks_once() -> None:
    system = f"{SKILLS}\n\n{TOOLS}"
    ((_, first),) = actions(system, *READY)
    assert first["tool_name"] == "list_allowed_directories"
    where = (*READY, done("mcp_call", "list_allowed_directories", "Allowed directories:\n/work"))
    ((_, second),) = actions(system, *where)
    assert second["arguments"] == {"paths": ["/work/notes/a.csv"]}
    read = (*where, done("mcp_call", "read_multiple_files", CSV))
    ((_, third),) = actions(system, *read)
    assert third["tool_name"] == "think"
    tried = (*read, done("mcp_call", "think", status="interrupted"))
    assert [kind for kind, _ in actions(system, *tried)] == ["respond", "write_file"]


@pytest.mark.parametrize("odd", [CSV.replace("\n", "\r"), f"{CSV}Mon,roof,1,{'x' * 2**18}\n"])
def test_a_file_with_old_line_ends_or_a_huge_field_is_read_as_far_as_possible(odd: str) -> None:
    listed = done("list_files", "notes", "my a.csv (3 bytes)")
    assert actions(SKILLS, READY[0], listed) == [("read_file", {"path": "notes/my a.csv"})]
    _, (_, write) = actions(SKILLS, READY[0], listed, done("read_file", "notes/my a.csv", odd))
    assert "| **sum** | 3.5 |" in write["content"]


def test_a_server_that_names_no_folder_does_not_stop_it() -> None:
    system = f"{SKILLS}\n\n{TOOLS}"
    ((_, params),) = actions(system, *READY, done("mcp_call", "list_allowed_directories"))
    assert params["arguments"] == {"paths": ["./notes/a.csv"]}


def test_a_result_with_an_odd_action_or_target_does_not_stop_it() -> None:
    odd: list[dict[str, Any]] = [{"action": ["x"], "status": "completed"}, {"action": "x", "target": {}}]
    assert actions(SKILLS, *READY, *odd) == actions(SKILLS, *READY)


def test_a_step_that_failed_is_done_again() -> None:
    failed = (*READY, done("read_file", "notes/a.csv", status="failed"))
    assert actions(SKILLS, *failed) == [("read_file", {"path": "notes/a.csv"})]


@pytest.mark.parametrize(
    "system", ["", "SKILLS:\nnot JSON", "SKILLS:\n{}", 'SKILLS:\n[3, {"name": "other"}]']
)
def test_other_tasks_are_given_up(system: str) -> None:
    ((kind, params),) = actions(system)
    assert (kind, params["success"]) == ("finish", False)
