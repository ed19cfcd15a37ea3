"""Questions at a terminal: what is shown, and what counts as a yes."""

import io
from typing import Any

import pytest

from grue import ApprovalQuestion, ask_at_terminal

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
    assert shown.getvalue().startswith("Allow box.delete ")
    assert "(it deletes)" in shown.getvalue()
    assert "\x1b" not in shown.getvalue()


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
