"""A loop of 60 frames a second, with or without turns under way. It reports how late its frames were.

    python benchmarks/frame_worker.py none|turn|episode|ahead BASE_URL MODEL COMMAND...

COMMAND starts the MCP server. Each line on standard input is a number of frames. The process runs so many
frames, with one turn after the other under way, and answers with a line of JSON: `late_ms`, one number for
each frame, and `turns`, the number of finished turns.
"""

import json
import sys
import time

from grue import LlmSettings, Runner, StdioServer, TurnHandle, TurnOutcome, TurnRequest

FRAME_S = 1 / 60
ASK = TurnRequest[str](system="You are the player of a text adventure.", user="What do you do?")


class Loop:
    """The loop of a game; without a `runner`, no turns run beside it."""

    def __init__(self, runner: Runner | None) -> None:
        self._runner = runner
        self._handle: TurnHandle[TurnOutcome[str]] | None = None
        self._turns = 0

    def frames(self, count: int) -> dict[str, object]:
        """Run `count` frames; return how late each was, and how many turns ended."""
        late_ms = []
        self._turns = 0
        due = time.perf_counter()
        for _ in range(count):
            due += FRAME_S
            time.sleep(max(0.0, due - time.perf_counter()))
            self._look()
            late_ms.append((time.perf_counter() - due) * 1e3)
            due = max(due, time.perf_counter() - FRAME_S)
        return {"late_ms": late_ms, "turns": self._turns}

    def _look(self) -> None:
        """Start a turn, or look at its progress or result. The time that this takes counts as lateness."""
        if self._runner is None:
            return
        if self._handle is None:
            self._handle = self._runner.start_turn(ASK)
        elif self._handle.done():
            self._handle.result()
            self._handle = None
            self._turns += 1
        else:
            self._handle.progress()


def main() -> None:
    """For each line of standard input, run as many frames as it says."""
    mode, base_url, model, *command = sys.argv[1:]
    runner = None
    if mode != "none":
        runner = Runner(
            llm=LlmSettings(base_url=base_url, model=model),
            servers={"plain": StdioServer(name="plain", command=command[0], args=tuple(command[1:]))},
            keep="nothing" if mode == "turn" else "loop",
            start="after_turn" if mode == "ahead" else "beside_if_locked",
        )
        runner.warm_up()
    loop = Loop(runner)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(loop.frames(int(line))) + "\n")
        sys.stdout.flush()
    if runner is not None:
        runner.close()


if __name__ == "__main__":
    main()
