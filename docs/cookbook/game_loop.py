"""A game asks an agent for each move, and goes on drawing frames while the model thinks.

The answer is one of four words. A tool tells the model where the treasure is. If a turn fails, the player
stands still.
"""

import os
import time
from typing import Literal

from grue import AnswerSpec, FunctionTools, LlmSettings, MCPError, Runner, TurnRequest

Move = Literal["north", "south", "east", "west"]
STEPS: dict[str, tuple[int, int]] = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
here, treasure = [0, 0], (1, 0)


def look() -> str:
    """Say where the treasure is from here."""
    return f"The treasure is {treasure[0] - here[0]} to the east and {treasure[1] - here[1]} to the north."


llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
with Runner(llm=llm, servers={"eyes": FunctionTools([look])}, keep="loop") as runner:
    runner.warm_up()  # or the first turn would stop the frames while it imports modules
    for turn in range(1, 4):
        thinking = runner.start_turn(
            TurnRequest(system="Find the treasure.", user="Your move?", answer=AnswerSpec.of(Move))
        )
        while not thinking.done():
            time.sleep(1 / 60)  # draw a frame here
        try:
            move = thinking.result().response
        except MCPError as error:
            print(f"turn {turn}: stands still, {error}")
            continue
        here = [place + step for place, step in zip(here, STEPS[move], strict=True)]
        print(f"turn {turn}: {move}")
        if tuple(here) == treasure:
            print("found")
            break
