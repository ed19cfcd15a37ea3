"""Strict type checkers accept the programs of the documents, and know the types of grue.

Each checker runs once, over all of them: most of its time goes into reading grue and what it imports.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import DOCS, blocks
from recipes import COOKBOOK, RUN

import grue

pytestmark = pytest.mark.slow

LIMIT_S = 280.0
"""Catches a hang only."""

MYPY = """
[mypy]
strict = True
scripts_are_modules = True
# Django and Celery come without types, and so do their decorators.
[mypy-django_view,celery_task]
disable_error_code = import-untyped, untyped-decorator
"""

RESPONSES = """
from dataclasses import dataclass
from typing import Any, Literal, assert_type
from grue import AnswerSpec, LlmSettings, Runner, TurnOutcome, TurnRequest
from grue.errors import AnswerError, LLMError, TurnTimedOut

@dataclass
class Ticket:
    title: str

runner = Runner(llm=LlmSettings(base_url="http://127.0.0.1:1/v1", model="m"))
outcome = runner.run_turn(TurnRequest(system="s", user="u"))
text: str = outcome.response
ticket: Ticket = runner.run_turn(TurnRequest(system="s", user="u", answer=Ticket)).response
numbers: list[int] = runner.run_turn(TurnRequest(system="s", user="u", answer=list[int])).response

def titled(ticket: Ticket) -> Ticket:
    return ticket

checked = AnswerSpec.of(Ticket, check=titled, fallback=Ticket("none"))
assert_type(runner.run_turn(TurnRequest(user="u", answer=checked)).response, Ticket)
assert_type(runner.run_turn("u").response, str)
assert_type(runner.start_turn("u").result().response, str)
assert_type(runner.start_turn(TurnRequest(user="u", answer=int)).result().response, int)
assert_type([item.outcome for item in runner.map(["u", "v"])], list[TurnOutcome[str] | None])
numbered = [TurnRequest(user="u", answer=int)]
assert_type([item.outcome for item in runner.map(numbered, concurrency=2)], list[TurnOutcome[int] | None])
talk = runner.conversation()
assert_type(talk.ask("u").response, str)
assert_type(talk.ask("u", answer=Ticket).response, Ticket)
assert_type(talk.ask("u", answer=checked).response, Ticket)
assert_type(AnswerSpec.of(list[int], fallback=[], told=True), AnswerSpec[list[int]])
assert_type(AnswerSpec.of(Literal["yes", "no"]), AnswerSpec[Any])

def calls(error: AnswerError | LLMError | TurnTimedOut) -> list[str]:
    return [call.name for call in error.tool_calls]
"""


@pytest.fixture
def programs(tmp_path: Path) -> list[str]:
    """The recipes, the example of README.md, and one that says which types responses have."""
    # A pytest file takes fixtures, whose types are pytest's own affair.
    recipes = [str((COOKBOOK / each).resolve()) for each in RUN if each.endswith(".py")]
    *_, example = (each.code for each in blocks("python") if each.page == DOCS.parent / "README.md")
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    (tmp_path / "responses.py").write_text(RESPONSES, encoding="utf-8")
    return ["example.py", "responses.py", *recipes]


def checked(folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**os.environ, "MYPYPATH": ""},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_mypy_accepts_the_programs(programs: list[str], tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="it checks types: pip install mypy")
    (tmp_path / "mypy.ini").write_text(MYPY)
    done = checked(tmp_path, "mypy", "--no-incremental", *programs)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_accepts_the_programs_and_knows_the_type_of_every_public_name(
    programs: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("pyright", reason="pip install pyright checks types as editors do; it needs npm once")
    names = [name for name in grue.__all__ if name != "__version__"]
    shown = "".join(f"reveal_type(grue.{name})\n" for name in names)
    (tmp_path / "names.py").write_text(f"import grue\n{shown}grue.no_such_name\n")
    done = checked(tmp_path, "pyright", "--outputjson", "--pythonpath", sys.executable, "names.py", *programs)
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright could not be loaded from npm: {done.stderr[-200:]}")
    told = json.loads(done.stdout)
    assert told["summary"]["filesAnalyzed"] == 1 + len(programs)
    diagnostics = told["generalDiagnostics"]
    errors = [f"{each['file']}: {each['message']}" for each in diagnostics if each["severity"] == "error"]
    assert [each for each in errors if "no_such_name" not in each] == []
    assert len(errors) == 1
    types = [each["message"] for each in diagnostics if each["severity"] == "information"]
    assert len(types) == len(names)
    assert not [message for message in types if "Unknown" in message.replace("[Unknown]", "")]
