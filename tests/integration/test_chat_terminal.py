"""`grue chat` in a real terminal, as a user meets it: type, edit, approve, interrupt, leave, resume."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import bodies, command, faulty, write_servers
from tmux import Tmux

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
pytest.importorskip("prompt_toolkit", reason="the prompt needs the extra: pip install 'grue[chat]'")

PROMPT = r"^>\s*$"
"""The prompt with nothing typed. Before it is shown, the terminal takes the keys, not the prompt."""


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Tmux]:
    with Tmux(tmp_path, XDG_STATE_HOME=str(tmp_path / "state")) as tmux:
        yield tmux


@pytest.mark.slow
def test_a_chat_is_typed_edited_approved_interrupted_and_resumed(terminal: Tmux, tmp_path: Path) -> None:
    write_servers(tmp_path / "mcp.json", files=faulty(), stuck=faulty("--silent-at", "call"))
    terminal.run(command("chat", "--offline", "--ask", "--mcp-config", "mcp.json", "--run-dir", "run"))
    terminal.until_shown("/help has more")
    terminal.until_shown(PROMPT)

    # Completed by Tab, and edited in the middle of the line.
    terminal.type("call mcp.files.ec")
    terminal.press("Tab")
    terminal.until_shown("mcp.files.echo")
    terminal.type(' {"text": "helo"}')
    terminal.press("Left", "Left", "Left")
    terminal.type("l")
    terminal.press("Enter")
    rows = terminal.until_shown(r"Call it\? \[y\]es")
    assert "The model wants to call mcp.files.echo" in rows
    assert '  {"text": "hello"}' in rows
    terminal.press("y", "Enter")
    terminal.until_shown("^The tool says:.*hello")
    terminal.until_shown(PROMPT)

    # A call that never ends is stopped, and the program goes on.
    terminal.type('call mcp.stuck.echo {"text": "x"}')
    terminal.press("M-Enter")
    terminal.type("on two lines")
    terminal.press("Enter")
    terminal.until_shown("The model wants to call mcp.stuck.echo")
    terminal.press("a", "Enter")
    terminal.until_shown(r" mcp\.stuck\.echo \d+ s")
    terminal.press("C-c")
    terminal.until_shown("Stopped. What was said is kept")
    terminal.until_shown(PROMPT)
    terminal.type("what did I say?")
    terminal.press("Enter")
    terminal.until_shown('^- call mcp.stuck.echo {"text": "x"}')
    terminal.until_shown(PROMPT)
    terminal.press("C-d")
    terminal.until_shown("status 0")
    assert "To go on: grue chat --resume run" in terminal.rows

    _resume_and_take_back(terminal)
    assert [body["turn"] for body in bodies(tmp_path / "run", "chat.TakenBack")] == [3, 2]
    assert [body["calls"] for body in bodies(tmp_path / "run", "chat.TakenBack")] == [[], ["mcp.stuck.echo"]]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["reason"] == "ended"


# A terminal on a slow machine may tell too late where its cursor is. Then the row below the prompt is not
# shown, so no test waits for it.
def _resume_and_take_back(terminal: Tmux) -> None:
    terminal.run(command("chat", "--resume", "run"))
    terminal.until_shown("Resuming run after 3 turns.")
    terminal.until_shown(PROMPT)
    terminal.press("Up")
    terminal.until_shown(r"> what did I say\?")
    terminal.press("C-c")
    terminal.type("/un")
    terminal.press("Tab")
    terminal.until_shown("/undo")
    terminal.press("Enter")
    terminal.until_shown(r"Taken back: what did I say\?")
    terminal.type("/undo")
    terminal.press("Enter")
    terminal.until_shown(r"Its tool call was made \(mcp\.stuck\.echo\)\. What that has done remains\.")
    terminal.type("what did I say?")
    terminal.press("Enter")
    rows = terminal.until_shown("^You have said")
    assert not any(row.startswith("- call mcp.stuck") for row in rows)
    terminal.type("/quit")
    terminal.press("Enter")
    terminal.until_shown("status 0")


@pytest.mark.slow
def test_what_is_typed_while_a_turn_runs_is_shown_at_the_next_prompt_only(
    terminal: Tmux, tmp_path: Path
) -> None:
    write_servers(tmp_path / "mcp.json", slow=faulty("--slow-call", "2"))
    terminal.run(command("chat", "--offline", "--mcp-config", "mcp.json", "--run-dir", "run"))
    terminal.until_shown(PROMPT)
    terminal.type('call mcp.slow.echo {"text": "x"}')
    terminal.press("Enter")
    terminal.until_shown(r" mcp\.slow\.echo \d+ s")
    terminal.type("/undo")
    terminal.press("Enter")
    rows = terminal.until_shown("Taken back: call mcp.slow.echo")
    assert [row for row in rows if "/undo" in row] == ["> /undo"]
    terminal.type("/quit")
    terminal.press("Enter")
    terminal.until_shown("status 0")
    # Afterwards the terminal shows again what is typed.
    terminal.type("typed behind")
    terminal.until_shown("^typed behind")
