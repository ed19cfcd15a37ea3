"""Turns that park and are resumed, each in a process of its own, which a test can kill.

`Stage` starts this module as a program. It imports everything once and forks a child for each job.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from msgspec import Struct
from msgspec.structs import asdict

DELETE = ("box.delete", {"name": "old.txt"})
TALK = "talk.jsonl"
ASK_BEFORE_DELETING: dict[str, Any] = {"tools": ("box.delete*",), "verdict": "ask", "reason": "it deletes"}


class Job(Struct, frozen=True, kw_only=True):
    """What a process does, and when it is killed.

    Attributes:
        action: `run` the turn, `resume` it, `talk` (a conversation whose second turn is parked, approved and
            followed by a third one), or `talk on` (load that conversation and finish its unfinished turns).
        folder: The folder of the trace, and of the file `deleted`: the tool appends a line to it at each
            call.
        decide: The decision about each question of the parked turn: `approve`, `deny`, `change`, or nothing.
        kill_after_s: Kill the process so many seconds after its start; `None`: never.
        kill_at: Count `kill_after_s` from the message of this number instead; not for `run`. For `talk`,
            count the messages from the second turn on.
        park_for_s: The tool policy's `park_for_s`.
        description: The tool's description. To change it changes the tool's definition.
    """

    action: str
    folder: str
    base_url: str
    decide: str = "approve"
    kill_after_s: float | None = None
    kill_at: int = 0
    park_for_s: float | None = None
    description: str = "Delete a file."


class Stage:
    """Runs this module as a program that does jobs; a context manager."""

    def __enter__(self) -> Self:
        self._program = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self._program.communicate(timeout=150)

    def do(self, *jobs: Job) -> list[str]:
        """Do these jobs at the same time, each in a process of its own; return the output of each."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps([asdict(job) for job in jobs]) + "\n")
        self._program.stdin.flush()
        said: list[str] = json.loads(self._program.stdout.readline())
        return said


def runner(job: Job, trace: bool) -> Any:
    from grue import FunctionTools, LlmSettings, Recorder, Runner, ToolPolicy, ToolRule, TraceWriter

    folder = Path(job.folder)

    def delete(name: str) -> str:
        with (folder / "deleted").open("a") as file:
            file.write(f"{name}\n")
        return "deleted"

    delete.__doc__ = job.description
    recorder = Recorder()
    if trace:
        recorder.add(TraceWriter(folder / "trace.jsonl", episode="e"))
    policy = ToolPolicy(rules=(ToolRule(**ASK_BEFORE_DELETING),), parking=True, park_for_s=job.park_for_s)
    return Runner(
        llm=LlmSettings(base_url=job.base_url, model="m"),
        servers={"box": FunctionTools({"delete": delete, "look": lambda: "dust"})},
        recorder=recorder,
        tool_policy=policy,
    )


def act(job: Job, beat: Callable[..., None]) -> str:
    from grue import MCPError, TurnRequest

    if job.action.startswith("talk"):
        return (converse if job.action == "talk" else converse_on)(job, beat)
    with contextlib.closing(runner(job, trace=job.action == "run")) as made:
        try:
            if job.action == "run":
                return str(made.run_turn(TurnRequest(system="s", user="Tidy up.")).response)
            made.recorder.add(beat)
            return str(made.resume(job.folder, decided(job)).response)
        except MCPError as error:
            return f"{type(error).__name__}: {error}"


def converse(job: Job, beat: Callable[..., None]) -> str:
    """Ask until a turn is parked, approve its call, and ask once more."""
    from grue.errors import ApprovalPending

    with contextlib.closing(runner(job, trace=True)) as made:
        talk = made.conversation("Be brief.", path=Path(job.folder, TALK), name="talk")
        talk.ask("Hello?")
        made.recorder.add(beat)
        try:
            talk.ask("Tidy up.")
        except ApprovalPending:
            talk.resume([question.approve() for question in talk.questions])
        return str(talk.ask("And now?").response)


def converse_on(job: Job, beat: Callable[..., None]) -> str:
    """Resume the conversation's unfinished turns; return what was unfinished, and the last response."""
    from grue import Conversation
    from grue.errors import ApprovalPending, NothingToResume

    said = []
    with contextlib.closing(runner(job, trace=False)) as made:
        made.recorder.add(beat)
        with Conversation.load(Path(job.folder, TALK), made) as talk:
            while not said:
                said.append("approved" if talk.questions else "went on")
                try:
                    # If the process was killed before the turn was parked, there is no question yet.
                    said.append(talk.resume([question.approve() for question in talk.questions]).response)
                except ApprovalPending:
                    said.clear()
                except NothingToResume:
                    said = ["nothing was open"]
    return ": ".join(said)


def decided(job: Job) -> list[Any]:
    from grue import parked_turns

    questions = [question for parked in parked_turns(job.folder) for question in parked.questions]
    match job.decide:
        case "approve":
            return [question.approve() for question in questions]
        case "deny":
            return [question.deny("keep it") for question in questions]
        case "change":
            return [question.change({"name": "new.txt"}) for question in questions]
        case _:
            return []


def main() -> None:
    _load()
    for line in sys.stdin:
        jobs = [Job(**each) for each in json.loads(line)]
        sys.stdout.write(json.dumps([*_done([_begun(job) for job in jobs], jobs)]) + "\n")
        sys.stdout.flush()


def _load() -> None:
    """Import what a job needs, so that the forked processes need not import it and share its memory."""
    import gc
    import importlib

    import httpx

    for module in ("engine.conversations.resume", "engine.runner", "tool_sessions.function_tools"):
        importlib.import_module(f"grue.{module}")
    importlib.import_module("anyio._backends._asyncio")
    httpx.AsyncHTTPTransport()  # the first one imports `httpcore`
    gc.collect()
    gc.freeze()


class _Begun(NamedTuple):
    """A job's process, with two pipes: `says` has its output, `beats` a byte for each message."""

    pid: int
    says: int
    beats: int


def _begun(job: Job) -> _Begun:
    says, saying = os.pipe()
    beats, beating = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(saying, act(job, lambda *_: os.write(beating, b".")).encode())
            status = 0
        except BaseException:  # noqa: BLE001 - shown, and the process ends
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(saying)
    os.close(beating)
    return _Begun(pid, says, beats)


def _done(begun: list[_Begun], jobs: list[Job]) -> list[str]:
    said = []
    for (pid, says, beats), job in zip(begun, jobs, strict=True):
        if job.kill_after_s is not None:
            wait_for_beats(beats, job.kill_at)
            # If the process ends before this time, it is not killed.
            ended, _, _ = select.select([says], [], [], job.kill_after_s)
            if not ended:
                os.kill(pid, signal.SIGKILL)
        words = b""
        while piece := os.read(says, 65536):
            words += piece
        os.close(says)
        os.close(beats)
        os.waitpid(pid, 0)
        said.append(words.decode() or "killed")
    return said


def wait_for_beats(beats: int, count: int) -> None:
    """Wait until `count` bytes have come, or the process has ended."""
    while count > 0 and (piece := os.read(beats, count)):
        count -= len(piece)


def wait_until_past(moment: float) -> None:
    """Wait until the wall clock is later than `moment`."""
    while time.time() <= moment:
        time.sleep(0.01)


if __name__ == "__main__":
    main()
