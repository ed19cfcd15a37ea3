"""Episodes of `grue play` that are killed with SIGKILL. They run in forks of one process, to save time.

`Stage` starts this module as a program: it imports everything, plays a turn to warm up, and then forks a
child for each requested episode.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from msgspec import Struct
from msgspec.structs import asdict

MARK = "GRUE_TEST_EPISODE"
"""Names the episode in the environment of every process that belongs to it, its guard's excepted."""


class Kill(Struct, frozen=True, kw_only=True):
    """When an episode is killed: after a time, or by itself after a message of a kind.

    Attributes:
        after_s: Kill it so many seconds after its start, or after the message number `messages`; `None`:
            never.
        messages: Count `after_s` from when so many messages are recorded; 0: from the start.
        kind: Let the process kill itself right after the first message of this kind is recorded.
        turn: With `kind`: ignore messages of earlier turns.
    """

    after_s: float | None = None
    messages: int = 0
    kind: str = ""
    turn: int = 0


class Episode(Struct, frozen=True, kw_only=True):
    """An episode to play, as options of `grue play`."""

    folder: str
    base_url: str
    model: str
    turns: int
    seed: int = 7
    start: Literal["before", "when_called"] | None = None


class Ended(Struct, frozen=True, kw_only=True):
    """How an episode's process ended: it was killed, or raised an error (its text), or succeeded."""

    killed: bool
    error: str


class Stage:
    """Runs this module as a program that plays episodes one after the other; a context manager.

    Args:
        folder: The working directory of the program. It must not contain a project's settings.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Self:
        from commands import forked  # not needed in the forked program

        plain = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        self._program = subprocess.Popen(
            forked(__file__),
            cwd=self._folder,
            env=plain,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self._program.communicate(timeout=150)

    def play(self, episode: Episode, kill: Kill | None = None, *, resume: bool = False) -> Ended:
        """Play or resume an episode in a process of its own, and kill the process as `kill` says."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        told = {"episode": asdict(episode), "kill": asdict(kill or Kill()), "resume": resume}
        self._program.stdin.write(f"{json.dumps(told)}\n")
        self._program.stdin.flush()
        return Ended(**json.loads(self._program.stdout.readline()))


def turns_over(episode: Episode) -> set[int]:
    """Return the turns that had ended according to the host, which may differ from the trace."""
    file = _over_file(episode)
    return {int(line) for line in file.read_text().splitlines()} if file.exists() else set()


def _over_file(episode: Episode) -> Path:
    return Path(f"{episode.folder}.over")


def alive_of(model: str) -> list[int]:
    """Return the ids of the running processes of an episode, which is named by its model."""
    mark = f"{MARK}={model}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            if mark in environment.split(b"\0"):
                found.append(int(folder.name))
    return found


def _main() -> None:
    """Read episodes from stdin, one a line. Play each, and print how it ended."""
    _warm_up()
    for line in sys.stdin:
        told = json.loads(line)
        ended = _in_child(Episode(**told["episode"]), Kill(**told["kill"]), resume=told["resume"])
        print(json.dumps(asdict(ended)), flush=True)


def _warm_up() -> None:
    import gc

    import httpx

    from grue.cli.episode_options import PlayOptions
    from grue.cli.play import play_episode
    from grue.runtime.processes.guard import guard

    folder = Path(f"warm-{os.getpid()}")
    output = os.dup(1)
    _be_quiet()
    play_episode(PlayOptions(offline=True, turns=1, run_dir=folder, output="quiet"))
    play_episode(PlayOptions(turns=2, resume=folder, output="quiet"))
    os.dup2(output, 1)
    os.close(output)
    guard.end()
    httpx.AsyncHTTPTransport()  # imports modules that the offline turns did not need
    gc.collect()
    gc.freeze()  # the forks share these pages


def _in_child(episode: Episode, kill: Kill, *, resume: bool) -> Ended:
    told, to_tell = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(told)
        _be_quiet()
        try:
            _play(episode, kill, to_tell, resume=resume)
        except BaseException as error:  # noqa: BLE001 - whatever it is has to reach the test
            os.write(to_tell, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(to_tell)
    over = os.pidfd_open(pid)
    if kill.messages:
        # The child writes to the pipe when the messages are recorded; if it ends, the pipe closes.
        select.select([told], [], [])
    if not select.select([over], [], [], kill.after_s)[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(over)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(told, "rb") as file:
        return Ended(killed=os.WIFSIGNALED(status), error=file.read().decode().lstrip())


def _play(episode: Episode, kill: Kill, to_tell: int, *, resume: bool) -> None:
    from grue.cli import play
    from grue.cli.episode_options import PlayOptions

    os.environ[MARK] = episode.model
    over = os.open(_over_file(episode), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    play.Recorder = _mortal(kill, to_tell, over)  # type: ignore[attr-defined, assignment]
    options = PlayOptions(
        base_url=episode.base_url,
        model=episode.model,
        turns=episode.turns,
        seed=episode.seed,
        run_dir=Path(episode.folder),
        output="quiet",
        start=episode.start,
    )
    play.play_episode(PlayOptions(resume=Path(episode.folder), output="quiet") if resume else options)


def _mortal(kill: Kill, to_tell: int, over: int) -> Callable[[], Any]:
    """Return a class of recorder that kills its process, or asks the parent for it, after a certain message.

    The recorder also writes the numbers of ended turns into the file descriptor `over`, for `turns_over`.
    """
    from grue.runtime.trace.recorder import Recorder

    class MortalRecorder(Recorder):
        recorded = 0

        def record(self, body: Any, **place: Any) -> Any:
            envelope = super().record(body, **place)
            self.recorded += 1
            if type(body).__name__ == "TurnCompleted":
                os.write(over, f"{body.turn}\n".encode())
            if self.recorded == kill.messages:
                os.write(to_tell, b" ")
            turn = envelope.turn or getattr(body, "turn", 0)
            if type(body).__name__ == kill.kind and turn >= kill.turn:
                os.kill(os.getpid(), signal.SIGKILL)
            return envelope

    return MortalRecorder


def _be_quiet() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


if __name__ == "__main__":
    _main()
