"""Ctrl-C, as a real signal, where a turn's handle is waited for: the waiting ends, and not the turn."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment
from patient_turns import PatientModel, patient_model

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "interrupted_handle.py"


def program(model: PatientModel, *how: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), model.server.base_url, *how],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("lifetime", "where"), [("nothing", "plain"), ("loop", "plain"), ("loop", "loop")])
@pytest.mark.slow
def test_the_turn_goes_on_and_its_outcome_is_there_for_who_asks_again(lifetime: str, where: str) -> None:
    with patient_model() as model:
        model.gate.clear()
        started = program(model, lifetime, where)
        assert started.stdout is not None
        assert started.stdout.readline() == "waiting\n"
        started.send_signal(signal.SIGINT)
        assert started.stdout.readline() == "goes on\n"
        model.gate.set()
        said, errors = started.communicate(timeout=150)
        assert (started.returncode, said, errors) == (0, "done: u\n", "")
        assert len(model.server.requests) == 1, "it was not begun anew"
