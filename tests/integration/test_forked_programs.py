"""A program that the tests' fork server runs is to its caller what a new interpreter would run."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

import psutil
import pytest
from commands import environment, forked, with_forked_children

TELLS = """
import json, os, sys
print("to stderr", file=sys.stderr)
leads = os.getsid(0) == os.getpid()
told = [sys.argv, os.getcwd(), os.environ["OWN"], sys.stdin.read(), leads, hasattr(json, "mark")]
json.mark = True
print(json.dumps(told))
sys.exit(7)
"""
Waiting: TypeAlias = "tuple[subprocess.Popen[str], psutil.Process]"
WAITS = """
import os, signal, sys
print(os.getpid(), flush=True)
signal.pause()
"""


@pytest.fixture
def waiting(tmp_path: Path) -> Waiting:
    """A client of the fork server, and the program that it had run, which waits for a signal."""
    program = tmp_path / "waits.py"
    program.write_text(WAITS, encoding="utf-8")
    client = subprocess.Popen(forked(str(program)), cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    with client.stdout:
        return client, psutil.Process(int(client.stdout.readline()))


@pytest.mark.slow
def test_it_has_what_it_was_given_and_nothing_of_the_program_before(tmp_path: Path) -> None:
    program = tmp_path / "tells.py"
    program.write_text(TELLS, encoding="utf-8")
    for word in ("one", "two"):
        ran = subprocess.run(
            forked(str(program), word, ""),
            cwd=tmp_path,
            env=environment(OWN=word),
            input=f"{word} sent",
            capture_output=True,
            text=True,
            check=False,
        )
        expected = [[str(program), word, ""], str(tmp_path), word, f"{word} sent", True, False]
        assert (ran.returncode, ran.stderr) == (7, "to stderr\n")
        assert json.loads(ran.stdout) == expected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_client_ends_both(number: signal.Signals, waiting: Waiting) -> None:
    client, program = waiting
    client.send_signal(number)
    assert client.wait(timeout=60) == -number
    program.wait(timeout=60)


def test_a_client_that_is_killed_takes_its_program_along(
    waiting: Waiting,
) -> None:
    client, program = waiting
    client.kill()
    client.wait(timeout=60)
    program.wait(timeout=60)


def test_a_program_that_is_killed_is_to_its_client_as_if_it_had_been_killed_itself(
    waiting: Waiting,
) -> None:
    client, program = waiting
    os.kill(program.pid, signal.SIGKILL)
    assert client.wait(timeout=60) == -signal.SIGKILL


@pytest.mark.slow
def test_an_exception_is_told_as_an_interpreter_tells_it(tmp_path: Path) -> None:
    program = tmp_path / "fails.py"
    program.write_text("1 / 0", encoding="utf-8")
    ran = subprocess.run(forked(str(program)), capture_output=True, text=True, check=False)
    alone = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert ran.returncode == alone.returncode == 1
    assert (
        ran.stderr.splitlines()[-1] == alone.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    )


STARTS = """
import subprocess, sys
for words in ([sys.executable, sys.argv[1]], [sys.executable, "-I", sys.argv[1]]):
    subprocess.run(words, check=True)
"""


@pytest.mark.slow
def test_a_program_has_files_of_python_forked_and_interpreters_with_options_started(tmp_path: Path) -> None:
    starts, started = tmp_path / "starts.py", tmp_path / "started.py"
    starts.write_text(STARTS, encoding="utf-8")
    started.write_text("import sys; print('grue.engine.runner' in sys.modules)", encoding="utf-8")
    command = forked(str(starts), str(started), before=with_forked_children())
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["True", "False"]


@pytest.mark.slow
def test_signals_that_come_as_it_ends_change_nothing(tmp_path: Path) -> None:
    program = tmp_path / "ends.py"
    program.write_text(
        f"import signal; signal.signal(signal.SIGINT, signal.SIG_DFL){WAITS}", encoding="utf-8"
    )
    for _ in range(20):
        client = subprocess.Popen(forked(str(program)), cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        assert client.stdout is not None
        with client.stdout:
            running = psutil.Process(int(client.stdout.readline()))
        client.send_signal(signal.SIGINT)
        while running.is_running() and client.poll() is None:
            pass
        for _ in range(10):
            client.send_signal(signal.SIGINT)
        assert client.wait(timeout=60) == -signal.SIGINT
