"""The prompt at a terminal: keys, completion, history."""

import os
import termios
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("prompt_toolkit", reason="the prompt needs the extra: pip install 'grue[chat]'")

from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from grue.cli.chat import prompting
from grue.cli.chat.prompting import ChatCompleter, PromptReader, typing_ahead_hidden
from grue.runtime.secrets.redaction import Redaction

TOOLS = ["mcp.cave.look", "mcp.cave.dig", "mcp.files.read"]
SECRET = "sk-1234567890abcdef"
ALT_ENTER = "\x1b\r"


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PipeInput]:
    """What is typed, at a terminal that shows nothing."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with create_pipe_input() as typed, create_app_session(input=typed, output=DummyOutput()):
        yield typed


def reader() -> PromptReader:
    return PromptReader(lambda: TOOLS, lambda: "a status", Redaction({"KEY": SECRET}))


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("hello\r", "hello"),
        (f"one{ALT_ENTER}two\r", "one\ntwo"),
        ("one\\\rtwo\r", "one\ntwo"),
        ("typed ahead\n", "typed ahead"),
        ("helo\x1b[Dl\r", "hello"),
        ("\x1b[200~pasted\nlines\x1b[201~\r", "pasted\nlines"),
        ("\x04", None),
    ],
)
def test_keys(keys: PipeInput, typed: str, read: str | None) -> None:
    keys.send_text(typed)
    assert reader().read() == read


def test_ctrl_c_is_raised(keys: PipeInput) -> None:
    keys.send_text("abc\x03")
    with pytest.raises(KeyboardInterrupt):
        reader().read()


def test_short_answers_have_a_default_and_no_history(keys: PipeInput, tmp_path: Path) -> None:
    prompt = reader()
    keys.send_text("\r")
    assert prompt.answer("Arguments: ", "{}") == "{}"
    keys.send_text("\x04")
    assert prompt.answer("Call it? ") is None
    assert (tmp_path / "grue" / "chat_history").read_text() == ""


@pytest.mark.slow
def test_what_was_typed_is_found_in_the_next_chat_without_secrets(keys: PipeInput, tmp_path: Path) -> None:
    keys.send_text(f"my key is {SECRET}\r")
    reader().read()
    file = tmp_path / "grue" / "chat_history"
    assert (file.stat().st_mode & 0o777) == 0o600
    assert SECRET not in file.read_text()
    prompt = reader()
    keys.send_text("second\r")
    prompt.read()
    keys.send_text("\x1b[A\x1b[A\r")
    assert (prompt.read() or "").startswith("my key is [redacted")


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("place", ["file", "", "taken"])
def test_without_a_place_for_it_the_history_is_in_memory(
    keys: PipeInput, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / "grue" / "chat_history").mkdir(parents=True)
    monkeypatch.setenv("XDG_STATE_HOME", place and str(tmp_path / place))
    monkeypatch.setattr(Path, "home", no_home)
    prompt = reader()
    keys.send_text("first\r")
    prompt.read()
    keys.send_text("\x1b[A\r")
    assert prompt.read() == "first"


def test_a_history_that_has_grown_long_is_halved(
    keys: PipeInput, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(prompting, "_MAX_HISTORY_BYTES", 1000)
    file = tmp_path / "grue" / "chat_history"
    file.parent.mkdir()
    file.write_text("".join(f"\n# then\n+input {number}\n" for number in range(100)))
    prompt = reader()
    assert file.stat().st_size <= 500
    keys.send_text("\x1b[A\r")
    assert prompt.read() == "input 99"


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("/u", ["/undo"]),
        ("/t", ["/tools", "/trace"]),
        ("/tools mcp.f", ["mcp.files.read"]),
        ("call mcp.c", ["mcp.cave.look", "mcp.cave.dig"]),
        ("call look", ["mcp.cave.look"]),
        ("call dig", ["mcp.cave.dig"]),
        ("call l", []),
        ("call  ", []),
        ("/cost mcp.c", []),
        ("hello\n/u", []),
    ],
)
def test_completion(before: str, found: list[str]) -> None:
    made = ChatCompleter(lambda: TOOLS).get_completions(Document(before), CompleteEvent())
    assert [each.text for each in made] == found


def test_paths_are_completed_after_save(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("")
    made = ChatCompleter(list).get_completions(Document(f"/save {tmp_path}/no"), CompleteEvent())
    assert [each.text for each in made] == ["tes.md"]


def test_a_terminal_that_a_killed_chat_has_left_is_put_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without echo, and in raw mode, if it was killed at its prompt."""
    main, terminal = os.openpty()
    try:
        tty.setraw(terminal)
        with open(terminal, closefd=False) as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            with typing_ahead_hidden():
                during = termios.tcgetattr(terminal)
            after = termios.tcgetattr(terminal)
        assert during[3] & (termios.ECHO | termios.ICANON) == termios.ICANON
        for wanted in (termios.ECHO, termios.ICANON, termios.ISIG):
            assert after[3] & wanted
        assert after[1] & termios.OPOST
    finally:
        os.close(main)
        os.close(terminal)
