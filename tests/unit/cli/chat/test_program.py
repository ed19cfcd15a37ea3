"""The loop of a chat: inputs, commands, questions, stops and failures."""

import io
import shutil
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from chats import ASKING, KeptScreen, ScriptedReader, cave, run_program

from grue import FunctionTools, ServerOptions, StdioServer
from grue.cli.chat import lines, program
from grue.cli.chat.person import NOBODY, LineReader
from grue.cli.chat.talk import ChatOptions
from grue.errors import ConversationError
from grue.policies import ToolPolicy, ToolRule, TurnLimits
from grue.testing.fake_tools import FakeToolServer

CALL = "call mcp.cave.look {}"


def asked(
    tmp_path: Path, *answers: Any, said: tuple[Any, ...] = (CALL,)
) -> tuple[FakeToolServer, KeptScreen]:
    """A chat whose policy asks about every call."""
    server = cave()
    _, screen = run_program(tmp_path / "run", ScriptedReader(said, answers), server=server, policy=ASKING)
    return server, screen


def test_what_is_said_is_answered_until_the_input_ends(tmp_path: Path) -> None:
    program, screen = run_program(tmp_path / "run", ScriptedReader([CALL, "  ", "what did I say?"]))
    assert screen.lines[0].startswith("  mcp.cave.look")
    assert screen.lines[1].endswith(': {"room": "a dark cave"}')
    assert screen.lines[2] == 'The tool says: {"room":"a dark cave"} (scripted)'
    assert screen.lines[3] == f"You have said (scripted):\n- {CALL}"
    assert not program.failed


@pytest.mark.parametrize("answer", ["y", "Yes"])
def test_an_approved_call_is_made(tmp_path: Path, answer: str) -> None:
    server, screen = asked(tmp_path, answer)
    assert server.calls == [("look", {})]
    assert screen.lines[:3] == [
        "The model wants to call mcp.cave.look",
        "  {}",
        "  you wanted to be asked",
    ]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [("n", "the user does not want this call"), ("", "the user does not want"), ("too dark", "too dark")],
)
def test_a_denied_call_is_not_made_and_the_model_reads_why(tmp_path: Path, answer: str, reason: str) -> None:
    server, screen = asked(tmp_path, answer)
    assert server.calls == []
    assert "! mcp.cave.look was not called: Tool call denied" in screen.text
    assert reason in screen.lines[-1]


def test_always_asks_no_more_about_that_tool(tmp_path: Path) -> None:
    server, screen = asked(tmp_path, "a", "n", said=(CALL, CALL, "call mcp.cave.dig"))
    assert server.calls == [("look", {}), ("look", {})]
    assert screen.text.count("The model wants to call") == 2


def test_arguments_can_be_edited(tmp_path: Path) -> None:
    server, screen = asked(tmp_path, "e", "{no json", "e", "[]", "e", '{"at": "wall"}')
    assert server.calls == [("look", {"at": "wall"})]
    assert "! That is not JSON" in screen.text
    assert "! The arguments are a JSON object." in screen.text
    assert "changed the arguments" in screen.lines[-1]


def test_arguments_that_were_left_as_they_are_are_approved(tmp_path: Path) -> None:
    server, screen = asked(tmp_path, "e", "(default)")
    assert server.calls == [("look", {})]
    assert "changed" not in screen.lines[-1]


def test_all_questions_of_a_reply_are_asked(tmp_path: Path) -> None:
    server, _ = asked(tmp_path, "y", "n", said=("call mcp.cave.look\ncall mcp.cave.dig",))
    assert server.calls == [("look", {})]


def test_where_nobody_can_be_asked_a_call_is_denied(tmp_path: Path) -> None:
    server = cave()
    _, screen = run_program(
        tmp_path / "run", ScriptedReader([CALL], asks=False), server=server, policy=ASKING
    )
    assert server.calls == []
    assert NOBODY in screen.text


def test_a_policy_that_denies_is_told(tmp_path: Path) -> None:
    policy = ToolPolicy(rules=(ToolRule(verdict="deny", reason="not here"),))
    _, screen = run_program(tmp_path / "run", ScriptedReader([CALL]), policy=policy)
    assert "was not called: Tool call denied: not here" in screen.text


def test_ctrl_c_at_a_question_stops_the_turn_and_the_chat_goes_on(tmp_path: Path) -> None:
    said = (CALL, "what did I say?")
    server, screen = asked(tmp_path, KeyboardInterrupt, said=said)
    assert server.calls == []
    assert "Stopped. What was said is kept" in screen.text
    assert screen.lines[-1] == f"You have said (scripted):\n- {CALL}"


def test_ctrl_c_at_the_prompt_ends_nothing_and_in_a_pipe_everything(tmp_path: Path) -> None:
    _, screen = run_program(tmp_path / "a", ScriptedReader([KeyboardInterrupt, "hello"]))
    assert "Ctrl-D or /quit leaves" in screen.lines[0]
    assert "script" in screen.lines[1]
    with pytest.raises(KeyboardInterrupt):
        run_program(tmp_path / "b", ScriptedReader([KeyboardInterrupt], asks=False))


def test_a_server_that_dies_is_told_and_the_chat_goes_on(tmp_path: Path) -> None:
    server = cave()
    server.dies("look")
    program, screen = run_program(tmp_path / "run", ScriptedReader([CALL, "hello"]), server=server)
    assert "failed: " in screen.text
    assert "asked for the final answer after 1 iteration (server died)" in screen.text
    assert "script" in screen.lines[-1]
    assert not program.failed, "the model has answered"


def test_a_run_folder_that_goes_away_is_told_and_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    class Removing(LineReader):
        def read(self) -> str | None:
            shutil.rmtree("run", ignore_errors=True)
            raise ConversationError("the first error")

    monkeypatch.setattr(program, "LineReader", Removing)
    monkeypatch.setattr(program.ChatProgram, "run", lambda self: self.reader.read())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(ConversationError, match="the first error"):
        program.chat(ChatOptions(offline=True, mcp=False, run_dir=Path("run"), quiet=True))


def test_a_pattern_of_the_policy_that_matches_no_tool_is_told_of_once(tmp_path: Path) -> None:
    policy = ToolPolicy(rules=(ToolRule(tools=("mcp.cave.swim",), verdict="deny"),))
    _, screen = run_program(tmp_path / "run", ScriptedReader(["hello", "hello"]), policy=policy)
    assert screen.text.count("the tool policy has 'mcp.cave.swim', which matches no tool") == 1


@pytest.mark.parametrize("end", ["", "."])
def test_an_error_of_several_lines_is_one_line_of_sentences(end: str) -> None:
    told = lines.complaint(f"All attempts failed{end}\nIs the server running?\nStart it.")
    assert told.lead + told.text == "! All attempts failed. Is the server running? Start it."


def test_a_turn_that_takes_too_long_names_the_option(tmp_path: Path) -> None:
    async def wait() -> None:
        await anyio.sleep(60)

    reader, server = ScriptedReader(["call mcp.cave.wait {}"]), FunctionTools({"wait": wait})
    chat, screen = run_program(tmp_path / "run", reader, server=server, limits=TurnLimits(turn_timeout_s=0.2))
    assert chat.failed
    assert "If it needs longer, raise --turn-timeout, which can also be given with --resume;" in screen.text
    assert "TurnRequest" not in screen.text


def test_a_server_that_is_missing_is_told_once(tmp_path: Path) -> None:
    server = StdioServer(command="no-such-program-of-grue", options=ServerOptions(required=False))
    _, screen = run_program(tmp_path / "run", ScriptedReader(["hello", "hello"]), server=server)
    assert screen.text.count("mcp.cave is disabled until it is tried again after 30 s: ") == 1
