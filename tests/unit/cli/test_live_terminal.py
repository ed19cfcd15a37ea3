"""Where `grue play` prints, and the view's own thread."""

import errno
import io
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grue.cli.live import LiveView
from grue.cli.live_terminal import ASCII_SPINNER, SPINNER, Terminal
from grue.hosts.zork.facts import Decided, EpisodeStarted, Observed
from grue.runtime.trace.recorder import Recorder


class Tty(io.StringIO):
    """A terminal in a program, without a descriptor."""

    encoding = "utf-8"  # type: ignore[assignment]  # as a terminal has it

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "redraws", "colour"),
    [
        ({"TERM": "xterm"}, True, True),
        ({}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_what_a_terminal_gets(environ: dict[str, str], redraws: bool, colour: bool) -> None:
    terminal = Terminal(Tty(), environ)
    assert (terminal.redraws, terminal.colour) == (redraws, colour)
    pipe = Terminal(io.StringIO(), environ)
    assert (pipe.redraws, pipe.colour) == (False, False)


@pytest.mark.parametrize(
    ("encoding", "spinner", "text"),
    [("utf-8", SPINNER, "a · b …"), ("latin-1", ASCII_SPINNER, "a · b ?")],
)
def test_what_the_encoding_lacks_is_no_error(tmp_path: Path, encoding: str, spinner: str, text: str) -> None:
    with (tmp_path / "out").open("w", encoding=encoding) as out:
        terminal = Terminal(out, {})
        terminal.write("a · b …")
    assert terminal.spinner == spinner
    assert (tmp_path / "out").read_text(encoding=encoding) == text


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_a_descriptor_that_does_not_block_gets_everything_all_the_same(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.set_blocking(writer, False)
    text, got = "word " * 100_000, bytearray()

    def read() -> None:
        while len(got) < len(text):
            got.extend(os.read(reader, 65536))

    thread = threading.Thread(target=read)
    thread.start()
    with os.fdopen(writer, "w", closefd=False) as out:
        Terminal(out, {}).write(text)
    thread.join(60)
    assert got.decode() == text


class Gone:
    """An output whose reader has gone away."""

    colour = redraws = False
    spinner = ASCII_SPINNER

    def __init__(self) -> None:
        self.tried = threading.Event()

    def size(self) -> os.terminal_size:
        return os.terminal_size((80, 24))

    def write(self, text: str) -> None:
        self.tried.set()
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


STARTED = EpisodeStarted(episode_id="e", game="The House", game_hash="1", seed=7, model="m")
DECIDED = Decided(turn=1, action="north", reasoning="", new_objective=None, kind="answered")


@pytest.mark.slow
def test_a_view_without_a_reader_ends_and_recording_goes_on() -> None:
    output, recorder = Gone(), Recorder()
    with LiveView(output) as view:
        recorder.add(view)
        recorder.record(STARTED, sender="host")
        assert output.tried.wait(60)
        for _ in range(100):
            recorder.record(DECIDED, sender="host")
    assert recorder.record(DECIDED, sender="host").seq == 102
    view(recorder.record(DECIDED, sender="host"), b"")
    assert not view._arrived, "nothing is kept for nobody"


@pytest.mark.slow
def test_a_reader_that_reads_nothing_holds_no_recording_up(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    with os.fdopen(writer, "w", closefd=False) as out:
        recorder, view = Recorder(), LiveView(Terminal(out, {}))
        with view:
            recorder.add(view)
            for turn in range(1, 2001):
                recorder.record(Observed(turn=turn, text="word " * 30), sender="host")
            closing = threading.Thread(target=view.close)
            closing.start()
            got = b""
            while b"\nTurn 2000\n" not in got:
                got += os.read(reader, 65536)
            closing.join(60)
    assert not closing.is_alive()
    assert got.count(b"\nTurn ") == 2000


@pytest.mark.slow
def test_the_status_line_is_drawn_over_and_gone_in_the_end() -> None:
    out = Tty()
    with LiveView(Terminal(out, {"NO_COLOR": "1"})) as view:
        recorder = Recorder()
        recorder.add(view)
        recorder.record(STARTED, sender="host")
        recorder.record(Observed(turn=1, text="A hall."), sender="host")
        recorder.record(DECIDED, sender="host")
        deadline = time.monotonic() + 60
        while out.getvalue().count("playing") < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    drawn = out.getvalue().split("\r\x1b[J")
    assert drawn[1].startswith("The House\n")
    assert drawn[1].endswith("> north\n  " + drawn[1].rsplit("\n", 1)[1].lstrip(" "))
    assert all(part.endswith(" playing · turn 1\r") for part in drawn[1:-1])
    assert drawn[-1] == "\r", "the last drawing leaves nothing"
    view.close()
    assert not view._thread.is_alive()
