"""The interpreter's process, with programs in its place that misbehave as a real one might."""

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from promises import within

from grue.errors import GameError
from grue.hosts.zork.games.interpreters import Interpreter, InterpreterProcess
from grue.runtime.processes.guard import guard

Start = Callable[..., InterpreterProcess]


def dfrotz(program: Path, answer_within_s: float = 1.0) -> Interpreter:
    return Interpreter(name="dfrotz", command=(str(program),), answer_within_s=answer_within_s)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a shell script in the interpreter's place; its last argument is the story, its options before."""
    running: list[InterpreterProcess] = []

    def begin(script: str, *, answer_within_s: float = 60.0) -> InterpreterProcess:
        program = tmp_path / "dfrotz"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        story = tmp_path / "story.z3"
        running.append(InterpreterProcess(dfrotz(program, answer_within_s), story, seed=7))
        return running[-1]

    yield begin
    for interpreter in running:
        interpreter.close()


def outlives(group: int, within_s: float = 60.0) -> list[psutil.Process]:
    """List what of a killed group, orphans included, is then still more than an entry in a table."""
    deadline = time.monotonic() + within_s
    while True:
        alive = []
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
        if not alive or time.monotonic() > deadline:
            return alive


@pytest.fixture
def elders() -> set[psutil.Process]:
    """Processes that earlier tests in this worker have started, and that live as long as it does."""
    return set(psutil.Process().children(recursive=True))


def younger(elders: set[psutil.Process]) -> list[psutil.Process]:
    """List the processes that the test has started and that still run, but for the guard, which stays."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child not in elders and child.pid != guard.pid]


# Answers as dfrotz does: "Speed Factor" to the setting, and the prompt again after it.
ANSWERING = r"""
printf '> '
while read -r line; do
    case "$line" in
    \\sf*) printf 'Speed Factor %s\n> ' "${line#???}" ;;
    quit) exit 0 ;;
    fail) printf 'Fatal error: out of lamp oil' >&2; exit 3 ;;
    die) kill -9 $$ ;;
    odd) kill -35 $$ ;;
    linger) exec sleep 60 >&- 2>&- ;;
    *) printf 'You said > %s\n> ' "$line" ;;
    esac
done
"""


def test_an_answer_ends_at_the_prompt_and_the_prompt_comes_once(start: Start) -> None:
    interpreter = start(ANSWERING)
    assert interpreter.exchange(None) == ("> ", "> ")
    assert interpreter.exchange("hello") == ("You said > hello\n> ", "> ")
    assert interpreter.exchange("again") == ("You said > again\n> ", "> ")


def test_nothing_but_one_plain_line_reaches_it(start: Start) -> None:
    interpreter = start(ANSWERING)
    interpreter.exchange(None)
    assert interpreter.exchange("a\\X b\nc\x1b\u00e9")[0].startswith("You said > a X b c ?")
    assert len(interpreter.exchange("x" * 5000)[0]) < 220
    assert interpreter.exchange("Speed Factor -123456")[0].startswith("You said > Speed Factor -123456")


def test_an_end_is_no_failure(start: Start) -> None:
    interpreter = start(ANSWERING)
    interpreter.exchange(None)
    assert interpreter.exchange("quit") == ("", "")
    assert interpreter.ended
    interpreter.close()
    interpreter.close()


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("fail", "ended with exit status 3. Its last output: .*out of lamp oil"),
        ("die", "was killed by SIGKILL. Its last output: You said > hello"),
        ("odd", "was killed by signal 35. Its last output: You said > hello"),
        ("linger", "closed its output and did not end"),
    ],
)
def test_a_failure_is_named_with_the_last_words(
    start: Start, monkeypatch: pytest.MonkeyPatch, elders: set[psutil.Process], line: str, what: str
) -> None:
    if line == "linger":
        monkeypatch.setattr("grue.hosts.zork.games.interpreters._EXIT_S", 0.2)
    interpreter = start(ANSWERING)
    interpreter.exchange(None)
    interpreter.exchange("hello")
    with pytest.raises(GameError, match=rf"(?s){what}"):
        interpreter.exchange(line)
    assert not younger(elders)


@pytest.mark.parametrize("script", ["exec sleep 60", "sleep 60 & wait", "exec cat - >&2"])
def test_one_that_never_answers_costs_the_deadline_and_no_more(start: Start, script: str) -> None:
    interpreter = start(script, answer_within_s=0.3)
    with within(3), pytest.raises(GameError, match=r"did not answer within 0\.3 s"):
        interpreter.exchange("look")
    assert outlives(interpreter._process.pid) == []


def test_one_that_never_stops_printing_is_stopped(start: Start, elders: set[psutil.Process]) -> None:
    with pytest.raises(GameError, match="does not stop printing"):
        start("exec yes").exchange("look")
    assert not younger(elders)


def test_one_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(GameError, match=r"Cannot start the interpreter .*absent"):
        InterpreterProcess(dfrotz(tmp_path / "absent"), tmp_path / "story.z3", seed=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_it_goes_with_its_object(start: Start, tmp_path: Path) -> None:
    program = tmp_path / "lonely"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    interpreter = InterpreterProcess(dfrotz(program), tmp_path / "story.z3", seed=0)
    child = interpreter._process.pid
    assert psutil.pid_exists(child)
    del interpreter
    gc.collect()
    assert not psutil.pid_exists(child)


@pytest.mark.slow
def test_it_goes_with_the_program(tmp_path: Path) -> None:
    program = tmp_path / "lonely"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from grue.hosts.zork.games.interpreters import Interpreter, InterpreterProcess\n"
        "dfrotz = Interpreter(name='dfrotz', command=(sys.argv[1],))\n"
        "left = InterpreterProcess(dfrotz, Path('story.z3'), seed=0)\n"
        "print(left._process.pid)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, program], capture_output=True, text=True, check=True, timeout=30
    )
    assert not psutil.pid_exists(int(ran.stdout))


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_that_ends_leaves_the_interpreter_to_its_parent(start: Start) -> None:
    interpreter = start(ANSWERING)
    interpreter.exchange(None)
    child = os.fork()
    if not child:
        interpreter.close()  # as at the child's exit
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert interpreter.exchange("look") == ("You said > look\n> ", "> ")
