"""`grue trace` as users run it: into a pipe, at a terminal, beside an episode that is still being played."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import DEADLINE_S, command, environment, grue, start
from recorded_turns import Called, Play, Tape
from rows import first_of
from trace_files import TraceFile

from grue.hosts.zork.facts import EpisodeEnded, McpInitFailed
from grue.messages import RunTurn

EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e\u2066\r\x7f<script>alert(1)</script>"
ROW_DEADLINE_S = 60.0


class Episode:
    """An episode that this process plays while another one reads its trace."""

    def __init__(self, folder: Path) -> None:
        self.file = TraceFile(folder / "trace.jsonl")
        self.tape = Tape(self.file)
        self._turn = 0

    def play(self) -> None:
        self._turn += 1
        run = RunTurn(turn=self._turn, system="s", user="u", servers=("thoughtbox",))
        Play(self.tape, run, [[Called("thoughtbox.think")], "look"])

    def end(self) -> None:
        self.tape.say(EpisodeEnded(reason="won", detail="lamp on", turns=self._turn), sender="host")


@pytest.fixture
def episode(tmp_path: Path) -> Episode:
    return Episode(tmp_path)


@contextlib.contextmanager
def running(*args: str, cwd: Path) -> "Iterator[subprocess.Popen[str]]":
    """Run `grue ARGS` with its pipe buffered, which the environment of a test often says it is not."""
    with start(*args, cwd=cwd, PYTHONUNBUFFERED="") as process:
        try:
            yield process
        finally:
            process.kill()  # one that still follows would do so for ever


def read_until(process: "subprocess.Popen[str]", words: str) -> str:
    """Read what the process prints until these words come."""
    assert process.stdout is not None
    read, deadline = b"", time.monotonic() + ROW_DEADLINE_S
    while words.encode() not in read:
        assert select.select([process.stdout], [], [], deadline - time.monotonic())[0], read.decode()
        chunk = os.read(process.stdout.fileno(), 65536)
        assert chunk, f"it ended after {read.decode()}"
        read += chunk
    return read.decode()


def at_terminal(*args: str, cwd: Path, **extra: str) -> str:
    """Run `grue ARGS` with a terminal as its output."""
    terminal, theirs = pty.openpty()
    with subprocess.Popen(command(*args), cwd=cwd, env=environment(**extra), stdout=theirs) as process:
        os.close(theirs)
        printed = b""
        try:
            while chunk := os.read(terminal, 65536):
                printed += chunk
        except OSError:
            pass  # what Linux says of a terminal that nobody has open any more
        assert process.wait(DEADLINE_S) == 0
    os.close(terminal)
    return printed.decode()


@pytest.mark.slow
def test_a_live_trace_is_followed_until_the_episode_ends(tmp_path: Path, episode: Episode) -> None:
    with running("trace", "show", "-f", ".", cwd=tmp_path) as process:
        read_until(process, "from → to")
        for turn in (1, 2, 3):
            episode.play()
            shown = read_until(process, "TurnCompleted")
            assert f"── Turn {turn} ──" in shown
        episode.end()
        rest, complaint = process.communicate(timeout=DEADLINE_S)
    assert "EpisodeEnded" in rest
    assert (process.returncode, complaint) == (0, "")


@pytest.mark.slow
def test_a_live_trace_is_followed_as_json_and_filtered(tmp_path: Path, episode: Episode) -> None:
    episode.play()
    args = ("trace", "show", "-f", "--json", "--kind", "TurnC", "--kind", "EpisodeE", ".")
    with running(*args, cwd=tmp_path) as process:
        first = read_until(process, "\n")
        episode.play()
        second = read_until(process, "\n")
        episode.end()
        third, _ = process.communicate(timeout=DEADLINE_S)
    envelopes = [json.loads(line) for line in (first, second, third)]
    assert [envelope["body"]["type"] for envelope in envelopes] == [
        "TurnCompleted",
        "TurnCompleted",
        "EpisodeEnded",
    ]
    assert second.removesuffix("\n") == episode.file.lines[envelopes[1]["seq"] - 1]


@pytest.mark.slow
def test_ctrl_c_ends_following_with_130_and_no_traceback(tmp_path: Path, episode: Episode) -> None:
    episode.play()
    with running("trace", "show", "-f", ".", cwd=tmp_path) as process:
        read_until(process, "TurnCompleted")
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, complaint) == (130, "")


@pytest.mark.slow
@pytest.mark.parametrize("options", first_of([((),), (("--json",),), (("--follow",),)]))
def test_a_reader_that_goes_away_is_no_traceback(
    tmp_path: Path, episode: Episode, options: tuple[str, ...]
) -> None:
    episode.tape.say(*[McpInitFailed(error="x" * 400)] * 2_000)
    with running("trace", "show", ".", *options, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(DEADLINE_S) == 1


@pytest.mark.slow
def test_a_pipe_gets_whole_lines_without_colours(tmp_path: Path, episode: Episode) -> None:
    episode.tape.say(McpInitFailed(error="word " * 80))
    for args in (("show", "."), ("stats", ".")):
        piped = grue("trace", *args, cwd=tmp_path)
        assert (piped.returncode, piped.stderr) == (0, "")
        assert "\x1b" not in piped.stdout
        assert "…" not in piped.stdout
    assert "word " * 79 in grue("trace", "show", ".", cwd=tmp_path).stdout


@pytest.mark.slow
def test_a_terminal_gets_colours_unless_they_are_declined_and_lines_that_fit(
    tmp_path: Path, episode: Episode
) -> None:
    episode.play()
    for sub_command in ("show", "stats"):
        coloured = at_terminal("trace", sub_command, ".", cwd=tmp_path, COLUMNS="45", NO_COLOR="")
        plain = at_terminal("trace", sub_command, ".", cwd=tmp_path, COLUMNS="45", NO_COLOR="1")
        dumb = at_terminal("trace", sub_command, ".", cwd=tmp_path, COLUMNS="45", NO_COLOR="", TERM="dumb")
        assert "\x1b[1m" in coloured
        assert "\x1b" not in plain + dumb
        assert max(map(len, plain.splitlines())) <= 45


@pytest.mark.slow
def test_untrusted_text_does_nothing_to_a_terminal(tmp_path: Path, episode: Episode) -> None:
    episode.tape.say(McpInitFailed(error=EVIL), sender=EVIL)
    run = RunTurn(turn=1, system="s", user=EVIL, servers=("thoughtbox",))
    Play(episode.tape, run, [[Called(EVIL)], EVIL])
    for args in (("show", ".", "--width", "400"), ("show", ".", "--json"), ("stats", ".")):
        printed = at_terminal("trace", *args, cwd=tmp_path, NO_COLOR="1").replace("\r\n", "")
        assert printed.isprintable()
        assert "<script>" in printed or args[0] == "stats"
