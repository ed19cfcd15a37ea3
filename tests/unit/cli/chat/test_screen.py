"""What a terminal and a pipe get: words as they come, lines, and a row that leaves no trace."""

import os
import threading

import pytest

from grue.cli.chat.screen import PipeScreen, TerminalScreen
from grue.cli.live_story import Line
from grue.cli.live_terminal import Terminal
from grue.hosts.agent_loop import ToolEnded, ToolStarted, Words
from grue.messages import ToolCallResult
from grue.runtime.secrets.redaction import Redaction

STARTED = ToolStarted(call_id="1", name="cave.look", arguments={})
ENDED = ToolEnded(call_id="1", name="cave.look", result=ToolCallResult("dark"), duration_s=0.5)
SECRET = "sk-1234567890abcdef"


class FakeOutput(Terminal):
    """A terminal that keeps what it gets; without `redraws` it has no row."""

    def __init__(self, *, redraws: bool = False) -> None:
        self.spinner, self.colour, self.redraws = "-", False, redraws
        self.text = ""
        self.row_shown = threading.Event()

    def size(self) -> os.terminal_size:
        return os.terminal_size((40, 24))

    def write(self, text: str) -> None:
        self.text += text
        if "- thinking 0 s" in text:
            self.row_shown.set()


def screen(output: FakeOutput) -> TerminalScreen:
    return TerminalScreen(output, Redaction({"KEY": SECRET}))


def test_words_are_shown_as_they_come_and_the_answer_not_again() -> None:
    output = FakeOutput()
    shown = screen(output)
    shown.begin()
    shown.on_event(Words(text="Two "))
    assert output.text == "Two "
    shown.on_event(Words(text="to be seen?", reasoning=True))
    shown.on_event(Words(text="words."))
    shown.end("Two words.")
    assert output.text == "Two words.\n"


def test_an_answer_that_was_not_streamed_is_shown_at_the_end() -> None:
    output = FakeOutput()
    shown = screen(output)
    shown.begin()
    shown.on_event(Words(text="I look."))
    shown.on_event(STARTED)
    shown.on_event(ENDED)
    shown.end("It is dark.\x1b[2J")
    assert output.text == "I look.\n  cave.look\n    500 ms: dark\nIt is dark.\\u001b[2J\n"


def test_a_request_that_is_sent_again_starts_its_words_anew() -> None:
    output = FakeOutput()
    shown = screen(output)
    shown.begin()
    shown.on_event(Words(text="Half a"))
    shown.on_event(Words(text="", restart=True))
    shown.on_event(Words(text="A whole one."))
    shown.end("A whole one.")
    assert output.text == "Half a\n  (the request is sent again)\nA whole one.\n"


def test_a_secret_in_pieces_does_not_reach_the_terminal() -> None:
    output = FakeOutput()
    shown = screen(output)
    shown.begin()
    for piece in ("The key is ", SECRET[:9], SECRET[9:], " indeed."):
        shown.on_event(Words(text=piece))
    shown.end(f"The key is {SECRET} indeed.")
    assert SECRET not in output.text
    assert SECRET[:9] not in output.text
    assert "indeed." in output.text


def test_the_row_says_what_is_waited_for_and_is_erased() -> None:
    output = FakeOutput(redraws=True)
    with screen(output) as shown:
        shown.begin()
        assert output.row_shown.wait(60)
        shown.on_event(STARTED)
        before = output.text
        assert before.rpartition("\r\x1b[J\r")[2].startswith("  cave.look")
        shown.end(None)
        shown.begin()
    assert output.text.endswith(("\r\x1b[J\r", "\n"))
    shown.begin()  # closed: it shows nothing more
    shown.close()


def test_a_stopped_turn_ends_its_line() -> None:
    output = FakeOutput()
    shown = screen(output)
    shown.begin()
    shown.on_event(Words(text="Half a"))
    shown.end(None)
    shown.tell(Line("Stopped."))
    assert output.text == "Half a\nStopped.\n"


@pytest.mark.parametrize("quiet", [False, True])
def test_a_pipe_gets_answers_and_everything_else_goes_to_stderr(
    capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    shown = PipeScreen(quiet=quiet)
    shown.begin()
    for event in (Words(text="no"), STARTED, ENDED):
        shown.on_event(event)
    shown.end("yes\x1b[31m")
    shown.end(None)
    shown.show([Line("listed")])
    shown.tell(Line("told"))
    out, err = capsys.readouterr()
    assert out == "yes\\u001b[31m\nlisted\n"
    assert ("cave.look" in err) is not quiet
    assert err.endswith("told\n")
