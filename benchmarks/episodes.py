"""Turns of an episode with one event loop and prewarmed sessions, compared with the hand-written script.

Every side is a long-lived process of its own. After each turn comes a pause, in which a host would play its
move. So no turn of one side, and no server that starts for its next turn, overlaps with another side's turn.
"""

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from children import MCP_SERVER, ChatServer, Worker, chat_server
from measuring import Bar, Effort, Figure, Section, figure, interleave, ratio
from turns import boot_ms, warm_up

SIDES = {
    "ahead": 'start="after_turn"',
    "functions": "function tools, no server",
    "script": "hand-written script",
    "fresh": "a session each turn",
    "kept": 'keep="sessions"',
}
MODEL = "calls-1"
PAUSE_S = 0.12
"""Of the host, between turns: three times what the server needs to boot."""

SCRIPT_TURNS = 5
"""Of the script with the slow server; nothing is paired with them."""


def episode_section(effort: Effort) -> Section:
    """Compare turns of an episode (limits: 0.2 times the script's time; with a slow server 5 ms)."""
    boot_s = effort.slow_boot_s
    slow_server, slow_pause_s = (*MCP_SERVER, "--boot-s", str(boot_s)), 2 * boot_s
    with chat_server() as chat, tempfile.TemporaryDirectory() as folder:
        turns = partial(_turns, chat, Path(folder))
        slow_turns = partial(turns, slow_server, slow_pause_s)
        fast = turns(MCP_SERVER, PAUSE_S, effort.part(0.4).within(max(2, effort.turns // 5)))
        rounds = effort.part(0.7).within(max(1, effort.turns // 10))
        slow = slow_turns(rounds, sides=("ahead", "functions"))
        few = min(SCRIPT_TURNS, len(slow["ahead"]))
        slow |= slow_turns(effort.within(few), sides=("script",))
        boots = [boot_ms(slow_server) for _ in range(few)]
        lost = sum(trace.read_text().count('"SpareLost"') for trace in Path(folder).glob("ahead-*"))
    share = _share(slow)
    return Section(
        "episode",
        'keep="loop": turns with a tool call, the host pausing between them',
        "Measured: wall time from the call to its return, after a warm-up turn, trace in a file. The host "
        f"pauses {PAUSE_S * 1e3:.0f} ms after each turn ({slow_pause_s:.1f} s with the slow server, which "
        f"uses {boot_s} s of processor time before it answers), for all sides alike. MCP's visible "
        "share is the turn less the same turn with a function for a tool, by pairs. Not measured: what the "
        "spare costs the host while it boots in the pause, a process's worth of CPU and memory.",
        [
            *_figures("", fast),
            figure("MCP's visible share", "ms", _share(fast)),
            *_figures("slow server: ", slow),
            figure("slow server: MCP's visible share", "ms", share),
            figure("slow server: spawn to first answer", "ms", boots),
        ],
        [
            Bar(
                'time of a turn with start="after_turn", as a ratio to the script\'s',
                ratio(fast["ahead"], fast["script"]),
                0.2,
                "x",
            ),
            Bar(
                'slow server: time that it adds to a turn with start="after_turn"',
                figure("", "ms", share).median,
                5,
                "ms",
            ),
        ],
        {"spares lost, and replaced by a spawn": str(lost)},
    )


def _turns(
    chat: ChatServer,
    folder: Path,
    command: Sequence[str],
    pause_s: float,
    rounds: Iterable[int],
    *,
    sides: Sequence[str] = tuple(SIDES),
) -> dict[str, list[float]]:
    """Return the milliseconds of each turn, by side."""
    with ExitStack() as stack:
        workers = {}
        for side in sides:
            trace = folder / f"{side}-{len(command)}.jsonl"
            worker = Worker("turn_worker.py", side, chat.base_url, MODEL, str(trace), *command)
            workers[side] = stack.enter_context(worker)
            warm_up(side, worker, chat)
        time.sleep(pause_s)
        return interleave(rounds, {side: partial(_turn_ms, workers[side], pause_s) for side in sides})


def _turn_ms(worker: Worker, pause_s: float) -> float:
    took = worker.ask()["wall_s"] * 1e3
    time.sleep(pause_s)
    return float(took)


def _share(samples: Mapping[str, Sequence[float]]) -> list[float]:
    return [one - other for one, other in zip(samples["ahead"], samples["functions"], strict=True)]


def _figures(prefix: str, samples: Mapping[str, Sequence[float]]) -> list[Figure]:
    return [figure(prefix + SIDES[side], "ms", took) for side, took in samples.items()]
