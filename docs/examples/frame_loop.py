"""A game loop that never waits: the player's next move is thought out while frames are drawn.

    .venv/bin/python docs/examples/frame_loop.py   against a scripted model, which needs no network and no key
    .venv/bin/python docs/examples/frame_loop.py BASE_URL MODEL

One frame lasts a sixtieth of a second. The loop starts a turn, looks at it once a frame, and takes its result
when it is there.
"""

import sys
import time
from contextlib import nullcontext

from grue import FunctionTools, LlmSettings, Runner, TurnHandle, TurnOutcome, TurnRequest
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

FRAME_S = 1 / 60
MOVES = 3


def look(direction: str) -> str:
    """Say what is to be seen in a direction."""
    return f"To the {direction} there is a door."


def play(runner: Runner) -> None:
    """Draw frames until all moves are made."""
    moves: list[str] = []
    handle: TurnHandle[TurnOutcome[str]] | None = None
    due = time.monotonic()
    while len(moves) < MOVES:
        if handle is None:
            handle = runner.start_turn(TurnRequest(system="You play.", user=f"Move {len(moves) + 1}?"))
        elif handle.done():
            moves.append(handle.result().response)
            print(f"\rmove {len(moves)}: {moves[-1]:<50}")
            handle = None
        else:
            draw(handle.progress().doing)
        due = max(due + FRAME_S, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


def draw(doing: str) -> None:
    """Draw a frame: here, one line."""
    if sys.stdout.isatty():
        print(f"\r{doing:<60}", end="", flush=True)


def scripted(request: LlmRequest) -> LlmReply:
    """Look once, think for a while, and go."""
    if request.messages[-1]["role"] != "tool":
        return tool_calls_reply(("eyes.look", {"direction": "north"}))
    time.sleep(0.2)
    return text_reply("go north")


def main(base_url: str = "", model: str = "scripted") -> None:
    """Play against an endpoint, or the script."""
    with nullcontext() if base_url else ScriptedLlmServer(scripted) as script:
        llm = LlmSettings(base_url=script.base_url if script else base_url, model=model)
        with Runner(llm=llm, servers={"eyes": FunctionTools({"look": look})}, keep="loop") as runner:
            runner.warm_up()  # imports take longer than a frame: now, not in the middle of the game
            play(runner)


if __name__ == "__main__":
    main(*sys.argv[1:3])
