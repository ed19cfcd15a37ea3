"""What the person at the terminal is asked by a server."""

from pathlib import Path
from typing import Any

import pytest
from chats import KeptScreen, ScriptedReader, run_program

from grue import StdioServer
from grue.approvals import ApprovalQuestion
from grue.cli.chat.person import Person
from grue.runtime.redaction import Redaction
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
)
SECRET = "sk-1234567890abcdef"


def person(*answers: str, asks: bool = True) -> tuple[Person, KeptScreen, ScriptedReader]:
    screen, reader = KeptScreen(), ScriptedReader([], answers, asks=asks)
    return Person(lambda: reader, screen, Redaction({"KEY": SECRET})), screen, reader


def test_a_form_is_filled_in_field_by_field() -> None:
    asked, screen, reader = person("y", "Ada", "old", "(default)", "")
    assert asked.fill_in(FORM) == {"name": "Ada", "age": 36}
    assert screen.lines[:2] == ["A tool server asks you:", "  Who are you?\\u001b[2J"]
    assert screen.lines[2].startswith("! That cannot be used: invalid literal for int()")
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
        (ElicitationRequest("Visit https://x.invalid", None), "y", {}),
        (ElicitationRequest("Visit https://x.invalid", None), "", Declined("the user has not done it")),
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


def test_a_servers_question_in_a_turn_reaches_the_person(tmp_path: Path) -> None:
    command, *args = faulty_server.argv("--ask", "elicitation")
    server = StdioServer(name="cave", command=command, args=tuple(args))
    reader = ScriptedReader(['call mcp.cave.echo {"text": "x"}'], ["y", "Ada"])
    _, screen = run_program(tmp_path / "run", reader, server=server)
    assert "A tool server asks you:" in screen.lines
    assert reader.questions
    assert screen.lines[-1].startswith("The tool says:")
