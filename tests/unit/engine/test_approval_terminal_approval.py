"""Questions at a terminal: what is shown, and what counts as a yes."""

import io
import os
import pty
import termios
from typing import Any

import pytest
from msgspec.structs import replace

from grue import ApprovalQuestion, ask_at_terminal
from grue.engine.approval import NOT_SHOWN

QUESTION = ApprovalQuestion(
    call_id="c1",
    name="box.delete",
    arguments={"name": "a\x1b[31m"},
    arguments_digest="1",
    definition_digest="2",
    reason="it deletes",
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stdin", [None, closed(), object()])
def test_without_a_usable_standard_input_the_call_is_denied(
    monkeypatch: pytest.MonkeyPatch, stdin: object
) -> None:
    """In a daemon, `sys.stdin` is `None`."""
    monkeypatch.setattr("sys.stdin", stdin)
    (decision,) = ask_at_terminal((QUESTION,))
    assert (decision.verdict, "no terminal to ask at" in decision.reason) == ("deny", True)


@pytest.mark.parametrize(
    ("typed", "verdict"),
    [("y\n", "approve"), (" YES \n", "approve"), ("n\n", "deny"), ("\n", "deny"), ("", "deny")],
)
def test_only_a_yes_approves(monkeypatch: pytest.MonkeyPatch, typed: str, verdict: str) -> None:
    shown = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    monkeypatch.setattr("sys.stderr", shown)
    (decision,) = ask_at_terminal((QUESTION,))
    assert decision.verdict == verdict
    assert shown.getvalue().startswith("Allow box.delete\n")
    assert "(it deletes)" in shown.getvalue()
    assert "\x1b" not in shown.getvalue()


def test_a_line_that_cannot_be_decoded_denies_only_its_own_call(monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard, terminal = pty.openpty()
    with os.fdopen(terminal, encoding="utf-8") as stdin, os.fdopen(keyboard, "wb", buffering=0) as keys:
        typed = iter((b"\xe9\n", b"y\n"))
        monkeypatch.setattr("grue.engine.approval.forget_typed", lambda _: keys.write(next(typed)))
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stderr", Terminal())
        assert [each.verdict for each in ask_at_terminal((QUESTION, QUESTION))] == ["deny", "approve"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"cmd": "ls -la" + " " * 3000 + "; rm -rf ~"},
        {"cmd": "ls -la" + "\n" * 3000 + "; rm -rf ~"},
        {"cmd": "ls -la " + "a b" * 400 + "; rm -rf ~"},
        {"a": "x" * 600, "cmd": "; rm -rf ~"},
    ],
)
def test_all_of_what_will_run_is_shown(monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]) -> None:
    shown = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    monkeypatch.setattr("sys.stderr", shown)
    ask_at_terminal((replace(QUESTION, arguments=arguments),))
    assert "; rm -rf ~" in shown.getvalue().replace("\\\n  ", "")
    assert len(shown.getvalue()) < 2000


def test_what_cannot_be_shown_whole_cannot_be_approved(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    monkeypatch.setattr("sys.stderr", shown)
    (decision,) = ask_at_terminal((replace(QUESTION, arguments={"text": "word " * 20_000}),))
    assert (decision.verdict, decision.reason) == ("deny", NOT_SHOWN)
    assert shown.getvalue() == ""


def test_a_yes_that_was_typed_before_the_question_approves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard, terminal = pty.openpty()
    os.write(keyboard, b"yes\ny\n")
    forget = termios.tcflush

    def forget_and_type(descriptor: int, queue: int) -> None:
        forget(descriptor, queue)
        os.write(keyboard, b"\n")

    monkeypatch.setattr("termios.tcflush", forget_and_type)
    shown = Terminal()
    with os.fdopen(terminal, encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stderr", shown)
        decisions = ask_at_terminal((QUESTION, QUESTION))
    os.close(keyboard)
    assert [decision.verdict for decision in decisions] == ["deny", "deny"]


@pytest.mark.parametrize("stream", ["stdin", "stderr"])
def test_without_a_terminal_nothing_is_shown_and_all_is_denied(
    monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    streams: dict[str, Any] = {"stdin": Terminal("y\n"), "stderr": Terminal(), stream: io.StringIO("y\n")}
    for name, value in streams.items():
        monkeypatch.setattr(f"sys.{name}", value)
    (decision,) = ask_at_terminal((QUESTION,))
    assert decision.verdict == "deny"
    assert streams["stderr"].getvalue() in ("", "y\n")
