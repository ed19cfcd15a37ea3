"""What reading a long trace costs: time and peak memory of the commands of `grue trace`.

    python benchmarks/trace_tools.py                  10,000 turns, about a minute
    python benchmarks/trace_tools.py --turns 100      a quick check that all commands run
    python benchmarks/trace_tools.py --only stats

In each turn of the trace an agent makes two tool calls. The real turn machine and recorder write the trace,
with made-up replies. Each command runs in a process of its own, and its output is discarded. The command
`nothing` reads a trace without turns: it shows the cost of the interpreter and the imports.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from memory import peak_mb

from grue.hosts.zork.facts import Decided, EpisodeEnded, EpisodeStarted, Observed
from grue.messages import (
    AnswerAccepted,
    CallId,
    CallTools,
    CheckAnswer,
    CloseSession,
    CompletionReceived,
    OpenSession,
    RequestCompletion,
    RunTurn,
    ServerName,
    SessionClosed,
    SessionOpened,
    ToolCall,
    ToolCalled,
    ToolCallResult,
    ToolDefinition,
    ToolReturned,
    TurnCompleted,
    TurnFailed,
    Usage,
)
from grue.protocol.tool_loop import step
from grue.protocol.turn.states import Finished, Idle, TurnState
from grue.runtime.trace.format import FORMAT, TraceHeader
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.tracing.reading import open_episode

TRACE, OTHER, EMPTY = "{trace}", "{other}", "{empty}"
"""Stand in a command for the trace, one that differs from it in a turn half-way, and one without turns."""

READ_ALL = "read-all"
"""Not a command: every message is decoded, and nothing else is done."""

COMMANDS: dict[str, Sequence[str]] = {
    "nothing": ("stats", EMPTY),
    "show": ("show", TRACE),
    "show-json": ("show", "--json", TRACE),
    "show-text": ("show", "--text", "a word that is nowhere", TRACE),
    "stats": ("stats", TRACE),
    "diff-itself": ("diff", TRACE, TRACE),
    "diff": ("diff", TRACE, OTHER),
    "html": ("html", TRACE),
    READ_ALL: (READ_ALL, TRACE),
}
"""What is measured, by its name for `--only`; a further command is a further line."""

DIFFERS = 1
"""Status of a diff that found something."""

MIND = ServerName("mind")
PROMPT = "You stand in a kitchen. A table seems to have been used recently for the preparation of food. " * 15
THOUGHT = "The sack is closed, and what is in it may be food; open it before the lamp burns down. " * 3
MARK = "took="


class Cost(NamedTuple):
    """The cost of a command."""

    seconds: float
    cpu_s: float
    peak_mb: float


class Writer:
    """Writes a trace of turns of the real turn machine with made-up replies, as fast as possible."""

    def __init__(self, path: Path, *, odd_turn: int = 0) -> None:
        self._odd_turn = odd_turn
        self._now = 0.0
        self._recorder = Recorder(clock=lambda: self._now)
        self._file = path.open("wb")
        self._file.write(
            msgspec.json.encode(TraceHeader(format=FORMAT, episode="bench", started_at=0.0)) + b"\n"
        )
        self._recorder.add(self._write)
        self._events: deque[tuple[Any, int]] = deque()

    def episode(self, turns: int) -> int:
        """Write a whole episode with `turns` turns; return the number of messages."""
        start = EpisodeStarted(
            episode_id="bench", game="g", game_hash="h", seed=1, model="m", servers=(MIND,)
        )
        self._say(start, 0, sender="host")
        for turn in range(1, turns + 1):
            self._say(Observed(turn=turn, text=PROMPT, location="Kitchen", score=turn), turn, sender="host")
            self._turn(turn)
            decided = Decided(
                turn=turn, action="open sack", reasoning="", new_objective=None, kind="answered"
            )
            self._say(decided, turn, sender="host")
        ended = EpisodeEnded(reason="turn_limit", detail="enough", turns=turns)
        messages = self._say(ended, turns, sender="host")
        self._file.close()
        return messages

    def _turn(self, turn: int) -> None:
        run = RunTurn(turn=turn, system="You play a text adventure.", user=PROMPT, servers=(MIND,))
        began = self._receive(run, turn, None, sender="host")
        state: TurnState = Idle()
        while not isinstance(state, Finished):
            event, cause = self._events.popleft()
            state, commands = step(state, event)
            for command in commands:
                ends = isinstance(command, TurnCompleted | TurnFailed)
                seq = self._say(command, turn, began if ends else cause, sender="agent")
                self._answer(command, turn, seq)

    def _answer(self, command: Any, turn: int, seq: int) -> None:
        match command:
            case OpenSession():
                tool = ToolDefinition(server=MIND, tool="think", input_schema={"type": "object"})
                self._receive(SessionOpened(server=MIND, tools=(tool,)), turn, seq, sender=MIND)
            case RequestCompletion(request=request):
                self._receive(self._reply(request, turn), turn, seq, sender="llm")
            case CallTools(batch=batch, calls=calls):
                for call in calls:
                    called = ToolCalled(
                        server=MIND,
                        batch=batch,
                        call_id=call.call_id,
                        tool=call.tool,
                        arguments=call.arguments,
                    )
                    self._say(called, turn, seq, sender=MIND)
                    result = ToolCallResult({"thoughtNumber": 1, "totalThoughts": 2})
                    returned = ToolReturned(batch=batch, call_id=call.call_id, result=result, duration_s=0.01)
                    self._receive(returned, turn, seq, sender=MIND)
            case CheckAnswer(content=content):
                self._receive(AnswerAccepted(answer={"action": content}), turn, seq, sender="agent")
            case CloseSession():
                self._receive(SessionClosed(server=MIND, ending="polite"), turn, seq, sender=MIND)

    def _reply(self, request: int, turn: int) -> CompletionReceived:
        usage = Usage(input_tokens=900, output_tokens=60)
        if request > 1:
            action = "close sack" if turn == self._odd_turn else "open sack"
            return CompletionReceived(request=request, content=action, usage=usage)
        arguments = msgspec.json.encode({"thought": THOUGHT}).decode()
        calls = tuple(
            ToolCall(call_id=CallId(f"c{number}"), name="mind.think", arguments=arguments)
            for number in (1, 2)
        )
        return CompletionReceived(request=request, tool_calls=calls, usage=usage)

    def _receive(self, event: Any, turn: int, cause: int | None, *, sender: str) -> int:
        seq = self._say(event, turn, cause, sender=sender)
        self._events.append((event, seq))
        return seq

    def _write(self, envelope: Envelope[Any], line: bytes) -> None:
        del envelope
        self._file.write(line + b"\n")

    def _say(self, body: Any, turn: int, cause: int | None = None, *, sender: str) -> int:
        self._now += 0.01
        return self._recorder.record(body, sender=sender, turn=turn, cause=cause).seq


def cost(arguments: Sequence[str]) -> Cost:
    """Run `grue trace ARGUMENTS` in a process of its own; return what it cost."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--run", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begun
    said, mark, took = done.stderr.rpartition(MARK)
    if done.returncode not in (0, DIFFERS) or not mark:
        raise SystemExit(f"grue trace {' '.join(arguments)} ended with {done.returncode}: {said or took}")
    return Cost(seconds, *map(float, took.split()))


def run_command(arguments: Sequence[str]) -> None:
    """Run a command and report its cost on standard error. `cost` runs this in a new process."""
    from grue.cli.app import app

    try:
        if arguments[0] == READ_ALL:
            for _ in open_episode(Path(arguments[1])):
                pass
        else:
            app(["trace", *arguments], standalone_mode=True)
    finally:
        sys.stderr.write(f"{MARK}{time.process_time():.4f} {peak_mb():.1f}")


def main(arguments: Sequence[str]) -> None:
    """Write a trace and print what each command takes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--only", choices=COMMANDS, action="append", help="may be repeated")
    options = parser.parse_args(arguments)
    chosen = {name: COMMANDS[name] for name in options.only or COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        files = {word: Path(folder) / f"{word[1:-1]}.jsonl" for word in (TRACE, OTHER, EMPTY)}
        begun = time.perf_counter()
        messages = Writer(files[TRACE]).episode(options.turns)
        written_s = time.perf_counter() - begun
        Writer(files[EMPTY]).episode(0)
        if any(OTHER in command for command in chosen.values()):
            Writer(files[OTHER], odd_turn=options.turns // 2).episode(options.turns)
        size_mb = files[TRACE].stat().st_size / 2**20
        print(f"{options.turns} turns, {messages} messages, {size_mb:.1f} MB, written in {written_s:.1f} s")
        for name, command in chosen.items():
            took = cost([str(files.get(argument, argument)) for argument in command])
            print(
                f"  {name:<12}{took.seconds:8.2f} s{took.cpu_s:8.2f} s of CPU{took.peak_mb:10.1f} MB",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run_command(sys.argv[2:])
    else:
        main(sys.argv[1:])
