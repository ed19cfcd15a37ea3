"""The bar of `Runner.map`: at a terminal, on standard error, and nowhere else."""

import contextlib
import json
import os
import select
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest
from commands import environment

from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, error_reply, text_reply

PROGRAM = """
    import sys
    from pathlib import Path
    from grue import LlmSettings, Recorder, RetryPolicy, Runner, TraceWriter, TurnRequest

    base_url, trace, count, sized, progress = sys.argv[1:]
    recorder, writer = Recorder(), None
    recalled = trace if Path(trace).exists() else None
    if recalled is None:
        writer = TraceWriter(Path(trace), episode="batch")
        recorder.add(writer)
    llm = LlmSettings(base_url=base_url, model="m", retry=RetryPolicy(max_retries=0))
    requests = [TurnRequest(system="s", user=f"u{n}") for n in range(int(count))]
    with Runner(llm=llm, recorder=recorder) as runner:
        given = requests if sized == "sized" else iter(requests)
        how = {"progress": True} if progress == "progress" else {}
        how |= {"total": int(count)} if sized == "total" else {}
        for item in runner.map(given, concurrency=1, resume_from=recalled, **how):
            print(item.index, flush=True)
    if writer is not None:
        writer.close()
"""
DEADLINE_S = 150.0
HOSTILE = "[red]\x1b]0;pwned\x07\x1b[2J is no model"


class Terminal:
    """What a program has written to a terminal that is its standard error."""

    def __init__(self) -> None:
        self.sent = b""
        self.slave: int
        self._master, self.slave = os.openpty()
        self._screen = pyte.Screen(100, 24)
        self._stream = pyte.ByteStream(self._screen)

    def read(self) -> bool:
        """Read on; `False`: the program has gone."""
        assert select.select([self._master], [], [], DEADLINE_S)[0], self.sent
        # Linux says EIO once nobody has the terminal open any more.
        with contextlib.suppress(OSError):
            piece = os.read(self._master, 65536)
            self.sent += piece
            self._stream.feed(piece)
            return bool(piece)
        os.close(self._master)
        return False

    @property
    def bar(self) -> str:
        """The last row with anything in it, without the bar itself."""
        rows = [row for row in self._screen.display if row.strip()]
        return " ".join(rows[-1].strip("━╸╺ ").split()) if rows else ""


def batch(llm: ScriptedLlmServer, trace: Path, *how: str, stderr: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), llm.base_url, str(trace), *how],
        env={**environment(), "TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def at_terminal(llm: ScriptedLlmServer, trace: Path, *how: str) -> Iterator[Terminal]:
    """Run it, yielding the terminal whenever more was written; standard output has the items alone."""
    terminal = Terminal()
    program = batch(llm, trace, *how, stderr=terminal.slave)
    os.close(terminal.slave)
    try:
        while terminal.read():
            yield terminal
    except BaseException:
        program.kill()
        raise
    finally:
        out, _ = program.communicate(timeout=DEADLINE_S)
    assert program.returncode == 0, terminal.sent
    assert out.split() == [str(number) for number in range(int(how[0]))]
    yield terminal


def words(request: LlmRequest) -> str:
    said: str = request.messages[1]["content"]
    return said


@pytest.mark.slow
def test_it_says_how_many_are_done_of_how_many_and_what_became_of_them(tmp_path: Path) -> None:
    gate = threading.Event()
    seen: list[str] = []

    def say(request: LlmRequest) -> LlmReply:
        if words(request) == "u2":
            gate.wait(60)
        return error_reply(401, HOSTILE) if words(request) == "u1" else text_reply(HOSTILE)

    with ScriptedLlmServer(say) as llm:
        for terminal in at_terminal(llm, tmp_path / "trace.jsonl", "4", "sized", "progress"):
            seen.append(terminal.bar)
            if terminal.bar.startswith("2/4 turns, 1 failed"):
                gate.set()
        assert gate.is_set(), seen
        assert seen[-1].startswith("4/4 turns, 1 failed")
        assert b"pwned" not in terminal.sent
        for terminal in at_terminal(llm, tmp_path / "trace.jsonl", "5", "unsized", "progress"):
            last = terminal.bar
        assert last.startswith("5/? turns, 1 failed, 3 recalled")
        for terminal in at_terminal(llm, tmp_path / "again.jsonl", "2", "total", "progress"):
            last = terminal.bar
        assert last.startswith("2/2 turns"), "a generator, whose length was given"


@pytest.mark.parametrize("progress", ["progress", ""])
@pytest.mark.slow
def test_in_a_pipe_there_is_none(tmp_path: Path, progress: str) -> None:
    with ScriptedLlmServer(lambda _: text_reply("hi")) as llm:
        piped = batch(llm, tmp_path / "t", "2", "sized", progress, stderr=subprocess.PIPE)
        assert piped.communicate(timeout=DEADLINE_S) == ("0\n1\n", "")


@pytest.mark.slow
def test_who_does_not_ask_for_one_gets_none_at_a_terminal(tmp_path: Path) -> None:
    with ScriptedLlmServer(lambda _: text_reply("hi")) as llm:
        for terminal in at_terminal(llm, tmp_path / "t", "2", "sized", ""):
            sent = terminal.sent
    assert json.dumps(sent.decode()) == '""'
