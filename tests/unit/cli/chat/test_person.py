"""What the person at the terminal is asked by a server."""

import io
from pathlib import Path
from typing import Any

import pytest
from chats import KeptScreen, ScriptedReader, run_program
from msgspec.structs import replace

from grue import StdioServer
from grue.cli.chat.person import LineReader, Person
from grue.messages import ServerName, ToolDefinition
from grue.policies import ApprovalQuestion
from grue.protocol.tools.policy import question_about
from grue.runtime.secrets.redaction import Redaction
from grue.testing import faulty_server
from grue.tool_sessions.server_requests import Declined, ElicitationRequest

FORM = ElicitationRequest(
    "Who are you?\x1b[2J",
    {
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "default": 36},
            "mood": {"type": "string"},
        },
        "required": ["name", "age"],
    },
    ServerName("crm"),
)
VISIT = ElicitationRequest("Visit https://x.invalid", None, ServerName("crm"))
SECRET = "sk-1234567890abcdef"


def person(*answers: str | None, asks: bool = True) -> tuple[Person, KeptScreen, ScriptedReader]:
    screen, reader = KeptScreen(), ScriptedReader([], answers, asks=asks)
    return Person(lambda: reader, screen, Redaction({"KEY": SECRET})), screen, reader


def test_a_form_is_filled_in_field_by_field() -> None:
    asked, screen, reader = person("y", "Ada", "old", "(default)", "")
    assert asked.fill_in(FORM) == {"name": "Ada", "age": 36}
    assert screen.lines[:2] == ["The tool server crm asks you:", "  Who are you?\\u001b[2J"]
    assert screen.lines[2].startswith("! That cannot be used: write a whole number.")
    assert [question for question, _ in reader.questions[1:]] == [
        "name: ",
        "age, integer: ",
        "age, integer: ",
        "mood, may be empty: ",
    ]


@pytest.mark.parametrize(
    ("request_", "answer", "answered"),
    [
        (FORM, "n", Declined("the user does not want to answer")),
        (VISIT, "y", {}),
        (VISIT, "", Declined("the user has not done it")),
    ],
)
def test_a_request_can_be_declined(request_: ElicitationRequest, answer: str, answered: Any) -> None:
    assert person(answer)[0].fill_in(request_) == answered


def test_where_nobody_can_be_asked_a_server_is_declined() -> None:
    asked, screen, _ = person(asks=False)
    assert asked.fill_in(FORM) == Declined("there is no terminal to ask at")
    assert screen.lines == []


def test_arguments_with_a_secret_are_not_shown_for_editing() -> None:
    question = ApprovalQuestion(
        call_id="1",
        name="a.b",
        arguments={"key": SECRET},
        arguments_digest="x",
        definition_digest="y",
    )
    asked, screen, reader = person("e", "y")
    assert asked.decide(question) == question.approve()
    assert "cannot be edited here" in screen.text
    assert SECRET not in str(reader.questions)


def question(**arguments: object) -> ApprovalQuestion:
    tool = ToolDefinition(server="a", tool="b", input_schema={"type": "object"})
    return question_about("1", tool, arguments)


def test_an_edit_that_python_counts_as_equal_is_an_edit() -> None:
    decision = person("e", '{"x": true}')[0].decide(question(x=1))
    assert (decision.verdict, str(decision.arguments)) == ("change", "{'x': True}")


def test_what_was_typed_before_a_question_is_forgotten_once_it_is_on_the_screen() -> None:
    asked, screen, reader = person("n", "n")
    seen: list[tuple[int, int]] = []
    reader.forget = lambda: seen.append((len(screen.lines), len(reader.questions)))  # type: ignore[method-assign]
    asked.decide(question(x=1))
    assert seen == [(2, 0)]
    asked.fill_in(FORM)
    assert seen[1:] == [(4, 1)]


def lines_of(text: bytes) -> Person:
    """A person at a terminal without editing, whose input ends after `text`."""
    reader = LineReader(io.BytesIO(text), asks=True)
    reader.forget = lambda: None  # type: ignore[method-assign]  # a BytesIO is no terminal
    return Person(lambda: reader, KeptScreen(), Redaction({}))


def test_an_end_of_the_input_approves_no_call_wherever_it_comes() -> None:
    for text in (b"", b"e\n", b'e\n{"x": '):
        assert lines_of(text).decide(question(x=1)).verdict == "deny"
    assert lines_of(b"e\n\n").decide(question(x=1)).verdict == "approve"
    asked, _, reader = person("e", None, "n")
    assert asked.decide(question(x=1)).verdict == "deny"
    assert [each[:5] for each, _ in reader.questions] == ["Call ", "Argum", "Call "]


def test_an_end_of_the_input_ends_a_form_at_any_field() -> None:
    stopped = Declined("the user has stopped filling in the form")
    assert person("y", "Ada", "old", None)[0].fill_in(FORM) == stopped
    assert person("y", "Ada", "36", None)[0].fill_in(FORM) == stopped
    asked, _, reader = person(None, "y")
    assert asked.fill_in(FORM) == Declined("the user does not want to answer")
    assert len(reader.questions) == 1
    assert lines_of(b"y\nAda\nold\n").fill_in(FORM) == stopped


def test_always_means_the_tool_as_it_is() -> None:
    asked, _, reader = person("a", "n")
    assert asked.decide(question()).verdict == "approve"
    assert asked.decide(question(x=1)).verdict == "approve"
    assert len(reader.questions) == 1
    assert asked.decide(replace(question(), definition_digest="other")).verdict == "deny"


def test_all_arguments_are_shown_or_the_call_is_denied() -> None:
    asked, screen, _ = person("y", "y")
    hidden = question(cmd="ls" + " " * 5000 + "a\u200bb; rm -rf ~")
    assert asked.decide(hidden).verdict == "approve"
    assert '{"cmd": "ls\\(5000 spaces)a\\u200bb; rm -rf ~"}' in screen.text
    assert asked.decide(question(text="word " * 20_000)).verdict == "deny"
    assert "too long to be shown whole" in screen.text


@pytest.mark.slow
def test_a_servers_question_in_a_turn_reaches_the_person(tmp_path: Path) -> None:
    command, *args = faulty_server.argv("--ask", "elicitation")
    server = StdioServer(name="cave", command=command, args=tuple(args))
    reader = ScriptedReader(['call mcp.cave.echo {"text": "x"}'], ["y", "Ada"])
    _, screen = run_program(tmp_path / "run", reader, server=server)
    assert "The tool server mcp.cave asks you:" in screen.lines
    assert reader.questions
    assert screen.lines[-1].startswith("The tool says:")
