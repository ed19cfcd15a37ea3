"""`grue trace serve` as a user runs it: it says where the page is, and Ctrl-C ends it."""

import signal
import urllib.request
from pathlib import Path

import pytest
from commands import DEADLINE_S, start
from viewer_traces import small_episode

from grue.cli import trace

pytestmark = pytest.mark.made_up_trace


@pytest.mark.slow
def test_the_command_serves_until_ctrl_c(tmp_path: Path) -> None:
    small_episode(tmp_path / "trace.jsonl")
    process = start("trace", "serve", "trace.jsonl", cwd=tmp_path)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("trace.jsonl is at http://127.0.0.1:")
        with urllib.request.urlopen(line.split()[-1], timeout=DEADLINE_S) as answer:
            assert answer.read(15) == b"<!doctype html>"
        assert process.stderr.readline() == "Only this machine can reach it. Ctrl-C ends it.\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == 0
    assert out == ""
    assert err == "Ended.\n"


def test_a_ctrl_c_right_after_the_address_is_printed_ends_it_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_episode(tmp_path / "trace.jsonl")
    said: list[str] = []

    def say(text: str, **_: bool) -> None:
        said.append(text)
        if " is at http://127.0.0.1:" in text:
            raise KeyboardInterrupt

    monkeypatch.setattr(trace, "say", say)
    trace.serve(tmp_path / "trace.jsonl", 0, open_browser=False)
    assert said[1:] == ["Ended."]
