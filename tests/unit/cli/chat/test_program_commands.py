"""The commands of a chat."""

from pathlib import Path

import pytest
from chats import ScriptedReader, run_program

from grue.cli.chat.lines import COMMANDS

CALL = "call mcp.cave.look {}"


def output(tmp_path: Path, *said: str) -> list[str]:
    return run_program(tmp_path / "run", ScriptedReader(said))[1].lines


def test_help_names_every_command(tmp_path: Path) -> None:
    lines = output(tmp_path, "/help")
    assert [line.split()[0] for line in lines[:-1]] == list(COMMANDS)


def test_tools_are_listed_found_and_shown_whole(tmp_path: Path) -> None:
    assert output(tmp_path / "a", "/tools") == ["mcp.cave.look  Look around.", "mcp.cave.dig"]
    assert output(tmp_path / "b", "/tools LOO") == ["mcp.cave.look  Look around."]
    whole = output(tmp_path / "c", "/tools mcp.cave.look")
    assert whole == [
        "mcp.cave.look  Look around.\\nIt is dark.",
        '  {"type": "object", "properties": {}}',
    ]
    assert output(tmp_path / "e", "/tools cave.look") == whole
    assert output(tmp_path / "d", "/tools swim") == ["There are no tools with swim in their names."]


@pytest.mark.parametrize("name", ["a\0b", "a\0b.jsonl"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path, name: str) -> None:
    (told,) = output(tmp_path / "a", f"/save {name}")
    assert told.startswith("! /save wants a path, and no file can have this name: ")


def test_trace_shows_a_turn(tmp_path: Path) -> None:
    lines = output(tmp_path / "a", CALL, "hello", "/trace 1")
    assert any("ToolReturned" in line for line in lines)
    assert lines[-1].startswith("All of it: grue trace show ")
    assert any("chat.Said" in line for line in output(tmp_path / "b", "hello", "/trace"))
    assert len(output(tmp_path / "c", "/trace")) == 1, "there is no turn yet"
    for wrong in ("x", "1" * 5000):
        told = output(tmp_path / wrong[:2], f"/trace {wrong}")
        assert told == ["! Write /trace, or /trace and the number of a turn."]


def test_save_writes_a_new_file_and_says_where(tmp_path: Path) -> None:
    saved = tmp_path / "a chat.md"
    lines = output(tmp_path, CALL, f"/save {saved}", f"/save {saved}", "/save")
    assert lines[-3] == f"The conversation is in {saved}."
    assert lines[-2].startswith(f"! Cannot write {saved}: ")
    assert lines[-1].startswith("! Write /save and the name of a new file")
    assert "a dark cave" in saved.read_text()
    output(tmp_path / "again", CALL, "/save here.md")
    assert (tmp_path / "again" / "here.md").exists(), "it is relative to the user's folder"


def test_model_and_cost(tmp_path: Path) -> None:
    lines = output(tmp_path, "/model", "/model other", "hello", "/cost")
    assert lines[:2] == [
        "grue-offline-script at http://offline.invalid/v1",
        "other at http://offline.invalid/v1",
    ]
    assert lines[-1].startswith("1 request, ")
    assert lines[-1].endswith(" out, the endpoint reports no cost")


def test_undo_says_what_was_taken_back_and_what_remains(tmp_path: Path) -> None:
    lines = output(tmp_path, "hello", CALL, "/undo", "/undo", "/undo")
    assert lines[-4:] == [
        f"Taken back: {CALL}",
        "Its tool call was made (mcp.cave.look). What that has done remains.",
        "Taken back: hello",
        "! There is nothing to take back.",
    ]


def test_quit_leaves_and_an_unknown_command_says_so(tmp_path: Path) -> None:
    program, screen = run_program(tmp_path / "run", ScriptedReader(["/fly\x1b[31m", "/quit", "hello"]))
    assert screen.lines == ["! There is no command /fly\\u001b[31m. /help lists them."]
    assert not program.failed, "nothing was asked"


def test_a_space_before_the_slash_sends_it(tmp_path: Path) -> None:
    assert "script" in output(tmp_path, " /help")[0]
