"""TextWorld's generated games, each played by its own solution: turns an hour, beside a bare loop.

    benchmarks/agents/.venvs/textworld/bin/python benchmarks/agents/games.py [FOLDER] [GAMES]

A turn is a turn of grue: the model is asked, calls the tool `act` with the next command of the game's own
walkthrough, and says what it has seen. The bare loop gives the same commands to the same game in this
process. The difference is what grue, its endpoint on loopback and its trace take. Both have to win as many.
"""

import sys
import time
from pathlib import Path
from typing import Any

import textworld

from grue import FunctionTools, LlmSettings, Runner, TurnRequest
from grue.fleet import Episode, Fleet
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply


def made(folder: Path, seed: int) -> tuple[Path, list[str]]:
    """Make a game of five rooms and ten objects, the same for each seed; return its solution too."""
    options = textworld.GameOptions()
    options.path, options.seeds, options.force_recompile = str(folder / f"game-{seed}.z8"), seed, False
    options.nb_rooms, options.nb_objects, options.quest_length = 5, 10, 15
    file, game = textworld.make(options)
    return Path(file), [str(command) for command in game.walkthrough]


def started(file: Path) -> Any:
    """Return the game, at its beginning."""
    world = textworld.start(str(file), textworld.EnvInfos(won=True, feedback=True))
    world.reset()
    return world


def play(case: dict[str, Any], episode: Episode) -> dict[str, float]:
    """Play a game by its solution; returns whether it was won, its turns, and the seconds that they took."""
    world, state, solution = started(Path(case["game_file"])), {}, iter(case["solution"])

    def act(command: str) -> str:
        """Give the game a command."""
        state["last"], _, state["done"] = world.step(command)
        return str(state["last"].feedback)

    def model(request: LlmRequest) -> LlmReply:
        if request.messages[-1]["role"] == "tool":
            return text_reply("I have seen it.")
        return tool_calls_reply(("game.act", {"command": next(solution)}))

    turns, began = 0, 0.0
    with ScriptedLlmServer(model) as endpoint:
        llm = LlmSettings(base_url=endpoint.base_url, model="walkthrough", api_key="")
        with Runner(llm=llm, servers={"game": FunctionTools([act])}, trace=episode.trace) as runner:
            runner.warm_up()
            began = time.perf_counter()
            while turns < len(case["solution"]) and not state.get("done"):
                runner.run_turn(TurnRequest(system="You play.", user="What do you do?"))
                turns += 1
    took = time.perf_counter() - began
    world.close()
    return {"score": float(state["last"].won), "turns": float(turns), "seconds": took}


def bare(file: Path, solution: list[str]) -> tuple[bool, float]:
    """Play a game without an agent; return whether it was won, and the seconds."""
    world, won, began = started(file), False, time.perf_counter()
    for command in solution:
        won = world.step(command)[0].won
    took = time.perf_counter() - began
    world.close()
    return won, took


def main(folder: Path, games: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    built = [made(folder, seed) for seed in range(1, games + 1)]
    alone = [bare(*each) for each in built]
    steps = sum(len(solution) for _, solution in built)
    cases = [{"game_file": str(file), "solution": solution} for file, solution in built]
    began = time.perf_counter()
    finished = Fleet(folder / "fleet", workers=2).map(play, cases)
    took = time.perf_counter() - began
    scores = finished.tally.scores
    won, turns, seconds = (scores[name][1] for name in ("score", "turns", "seconds"))
    print(f"{games} games, {steps} turns in their solutions")
    print(
        f"won: {sum(won for won, _ in alone)} in the bare loop, {won:.0f} through grue, in {turns:.0f} turns"
    )
    print(f"bare loop, one process: {steps / sum(each for _, each in alone) * 3600:,.0f} turns an hour")
    print(
        f"grue, two workers: {turns / took * 3600:,.0f} turns an hour, {seconds / turns * 1e3:.0f} ms a turn"
    )


if __name__ == "__main__":
    main(
        Path(sys.argv[1] if len(sys.argv) > 1 else "runs/textworld").absolute(),
        int(sys.argv[2]) if len(sys.argv) > 2 else 20,
    )
