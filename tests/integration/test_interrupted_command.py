"""Ctrl-C while the command `grue` starts or leaves: no traceback, and the status that says so."""

import subprocess
import sys
from pathlib import Path

import pytest

STRUCK = """
import os, signal, sys

where, *words = sys.argv[1:]

def strike():
    os.kill(os.getpid(), signal.SIGINT)

class Striking:
    def find_spec(self, name, *_):
        if name == where:
            strike()

if where == "exit":
    import atexit
    atexit.register(strike)
sys.meta_path.insert(0, Striking())
sys.argv = ["grue", *words]
from grue.cli.main import main
main()
"""


def run(where: str, *words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", STRUCK, where, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, cwd=cwd, check=False)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("typer", ["--help"]),
        ("grue.cli.app", ["play", "--offline"]),
        ("grue.cli.trace_app", ["doctor"]),
        ("msgspec", ["tools"]),
        ("grue.cli.play", ["play", "--offline"]),
        ("grue.cli.tools", ["tools"]),
        ("grue.cli.trace", ["trace", "stats", "."]),
    ],
)
@pytest.mark.slow
def test_ctrl_c_while_modules_are_imported_ends_it_at_once(
    where: str, words: list[str], tmp_path: Path
) -> None:
    done = run(where, *words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["trace", "schema"]])
@pytest.mark.slow
def test_ctrl_c_while_it_leaves_ends_it_at_once(words: list[str], tmp_path: Path) -> None:
    done = run("exit", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.slow
def test_a_handler_of_the_hosts_own_stays(tmp_path: Path) -> None:
    program = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + STRUCK
    done = subprocess.run(
        [sys.executable, "-c", program, "grue.cli.app", "--help"],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_little_is_imported_before_a_ctrl_c_is_taken_care_of() -> None:
    """What strikes before is Python's own start: each further module widens the gap."""
    seen = "import sys; before = set(sys.modules); import grue.cli.main; print(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-c", seen], capture_output=True, text=True, timeout=150, check=True
    )
    face = {"grue", "grue.runtime", "grue.runtime.lazy_names", "grue.runtime.version"}
    assert set(done.stdout.split()) == {*face, "grue.cli", "grue.cli.main"}
