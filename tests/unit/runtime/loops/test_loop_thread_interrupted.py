"""Ctrl-C, as a real signal, while a call is waited for, between calls, and at the end of the loop."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from promises import GUARD_S

PROGRAM = Path(__file__).resolve().parents[3] / "support" / "interrupted_episode.py"


def interrupted(where: str, *after: str) -> tuple[int, list[str], str]:
    """Send the program a SIGINT after each of these lines; return its status, last lines, and errors."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(PROGRAM), where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in after:
            assert process.stdout.readline() == f"{line}\n"
            process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=GUARD_S)
    return process.returncode, rest.splitlines(), errors


@pytest.mark.parametrize("where", ["plain", "loop", "bare loop"])
@pytest.mark.slow
def test_ctrl_c_ends_the_call_within_seconds_wherever_it_is_waited_for(where: str) -> None:
    status, said, errors = interrupted(where, "working")
    assert (status, errors) == (130, "")
    assert said == ["cleaned up", "last word", "KeyboardInterrupt"]


@pytest.mark.slow
def test_a_ctrl_c_before_the_call_is_waited_for_is_not_missed() -> None:
    status, said, errors = interrupted("early")
    assert (status, errors) == (130, "")
    assert said == ["working", "cleaned up", "last word", "KeyboardInterrupt"]


@pytest.mark.slow
def test_after_a_ctrl_c_that_is_caught_the_loop_goes_on() -> None:
    status, said, errors = interrupted("caught", "working")
    assert (status, errors) == (0, "")
    assert said == ["cleaned up", "next: 42", "last word"]


@pytest.mark.slow
def test_ctrl_c_between_calls_closes_the_loop() -> None:
    status, said, errors = interrupted("between", "working")
    assert (status, errors) == (130, "")
    assert said == ["last word", "KeyboardInterrupt"]


@pytest.mark.slow
def test_a_second_ctrl_c_hurries_the_clean_up_and_waits_for_it() -> None:
    status, said, errors = interrupted("resisting", "working", "resisting")
    assert (status, errors) == (130, "")
    assert said == ["cleaned up", "last word", "KeyboardInterrupt"]


@pytest.mark.slow
def test_ctrl_c_during_close_hurries_it() -> None:
    status, said, errors = interrupted("closing", "leaving")
    assert (status, errors) == (130, "")
    assert said == ["last word", "KeyboardInterrupt"]


@pytest.mark.slow
def test_ctrl_c_while_the_interpreter_exits_hurries_that() -> None:
    status, said, errors = interrupted("exiting", "leaving")
    assert (status, errors) == (0, "")
    assert said == ["last word"]
