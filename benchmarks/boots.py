"""Turns back to back, with servers that start slowly: for how much of the start does a turn wait?

Each side (a way to run the turns) runs a few turns without a pause, then the next side does. A side may have
started a server for a turn that does not come. A pause lets this server finish its start before the next
side.
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from children import HERE, MCP_SERVER, ChatServer, chat_server
from measuring import Bar, Effort, Figure, Section, figure, ratio, rotated
from turns import boot_ms

sys.path.append(str(HERE / "peers"))

from sides import TURNS as PEERS
from worker_process import WorkerError, WorkerProcess

SIDES = {
    "functions": "function tools, no server",
    "beside": 'start="beside_turn"',
    "presumed": "presumed listings alone",
    "script": "hand-written script",
}
PEERS_SHOWN = ("pydantic-ai", "openai-agents", "langgraph")
"""Measured where `make bench-peers` has installed them."""

COMPARED = ("functions", "beside", "presumed", "script")
"""All that the bars need; a quick run starts only these."""

FEW = 2
"""Rounds of the other sides, and of all sides where the model answers at once: no bar is about these."""

HALF = ("script",)
"""Half as many turns a round: its turns are the longest, and the most alike."""

MODEL = "calls-1"
SHARES = (0.22, 0.34, 0.8, 1.0)
"""Of the time that is left, for each server."""

LEAD_IN = 2
"""Turns of `beside` in each row that do not count: the spare of the first one had the pause to start in."""


class Rows(NamedTuple):
    """The measurements with one server and one model.

    Attributes:
        took: Milliseconds of a turn, by side: a mean for each row of turns.
        boots: Milliseconds from a spawn of the server to its first answer, one for each round.
        failed: Why a peer (another framework) failed, by its name.
        dropped: Number of replies that grue dropped.
    """

    took: Mapping[str, Sequence[float]]
    boots: Sequence[float]
    failed: Mapping[str, str]
    dropped: int


def boots_section(effort: Effort) -> Section:
    """Compare the sides; `_bars` has the limits."""
    figures: list[Figure] = []
    bars: list[Bar] = []
    facts: dict[str, str] = {}
    dropped = 0
    loads = [(boot_s, effort.reply_ms) for boot_s in effort.boots_s]
    if len(effort.boots_s) > 1:
        # With a model that answers at once, no reply hides a start. One server is enough for this case.
        loads.append((effort.boots_s[1], 0.0))
    for number, (boot_s, reply_ms) in enumerate(loads):
        rows = _measured(boot_s, reply_ms, effort.part(SHARES[number]))
        head = f"server boots in {boot_s:g} s, model replies in {reply_ms:.0f} ms: "
        figures += [figure(head + _label(side), "ms", took) for side, took in rows.took.items()]
        figures.append(figure(f"{head}spawn to first answer", "ms", rows.boots))
        if reply_ms:
            bars += _bars(f"{boot_s:g} s, ", rows, reply_ms)
        facts |= {f"{name} failed": why for name, why in rows.failed.items()}
        dropped += rows.dropped
    return Section(
        "boots",
        "Back to back: turns with a tool call and a server that takes long to start",
        "Measured: wall time of a turn, the mean of a few in a row without a pause; sides in turn, after a "
        "turn that does not count; trace in a file. The server uses so many seconds of processor "
        "time before it answers, and each reply of the model takes so many milliseconds. The bounds are "
        "computed from each round's own figures. The script takes the sum of boot, first reply and the rest: "
        "its handshake, call, second reply and close. With presumed listings alone the bound is max(boot, "
        "first reply) and that rest; with a server started beside the turn it is max(turn without a server, "
        "boot).",
        figures,
        [*bars, Bar("turns back to back: replies of the model that grue dropped", dropped, 0)],
        facts,
    )


def _measured(boot_s: float, reply_ms: float, effort: Effort) -> Rows:
    command = (*MCP_SERVER, "--boot-s", str(boot_s))
    with (
        chat_server(delay_ms=reply_ms) as chat,
        tempfile.TemporaryDirectory() as folder,
        ExitStack() as stack,
    ):
        started = {
            side: stack.enter_context(WorkerProcess(words))
            for side, words in _commands(chat, Path(folder), command)
            if side in COMPARED or (effort.boot_rounds > 1 and (side in SIDES or reply_ms))
        }
        failed = _warm_up(started, chat)
        took: dict[str, list[float]] = {side: [] for side in started if side not in failed}
        boots = []
        for number in effort.within(effort.boot_rounds if reply_ms else FEW):
            boots.append(fmean(boot_ms(command) for _ in range(min(2, effort.boot_turns))))
            for side in rotated([*took], number):
                if side in COMPARED or number < FEW:
                    took[side].append(_row_ms(side, started[side], effort.boot_turns))
                if side == "beside":
                    time.sleep(2 * boot_s)
        dropped = sum(trace.read_text().count('"ReplyDropped"') for trace in Path(folder).glob("*.jsonl"))
    return Rows(took, boots, failed, dropped)


def _warm_up(started: Mapping[str, WorkerProcess], chat: ChatServer) -> dict[str, str]:
    """Let each side run a turn, and return the peers that cannot, each with the reason."""
    failed = {}
    for side, worker in started.items():
        chat.received()
        try:
            answer, requests = worker.ask()["answer"], chat.received()["requests"]
            if (answer, requests) != ("done", 2):
                raise WorkerError(f"{requests} requests, answer {answer!r}")
        except WorkerError as error:
            if side in SIDES:
                raise
            failed[side] = str(error)
    return failed


def _commands(chat: ChatServer, folder: Path, server: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each side with the command of its worker."""
    ours = [sys.executable, str(HERE / "turn_worker.py")]
    for side in SIDES:
        yield side, [*ours, side, chat.base_url, MODEL, str(folder / f"{side}.jsonl"), *server]
    for peer in PEERS:
        if peer.name in PEERS_SHOWN and peer.installed:
            yield peer.name, [*peer.command, chat.base_url, MODEL, *server]


def _row_ms(side: str, worker: WorkerProcess, turns: int) -> float:
    for _ in range(LEAD_IN if side == "beside" else 0):
        worker.ask()
    count = turns if side in COMPARED and side not in HALF else max(1, turns // 2)
    return fmean(worker.ask()["wall_s"] * 1e3 for _ in range(count))


def _bars(what: str, rows: Rows, reply_ms: float) -> list[Bar]:
    """Return how far two of grue's ways are above the least possible time: 10 ms and 3 % are allowed."""
    functions, script = rows.took["functions"], rows.took["script"]
    presumed = [
        max(boot, reply_ms) + (turn - boot - reply_ms) for boot, turn in zip(rows.boots, script, strict=True)
    ]
    beside = [max(boot, turn) for boot, turn in zip(rows.boots, functions, strict=True)]
    over = [took - bound for took, bound in zip(rows.took["presumed"], presumed, strict=True)]
    return [
        Bar(
            f"server that boots in {what}presumed listings: turn time above the least possible",
            median(over),
            10,
            "ms",
        ),
        Bar(
            f'server that boots in {what}start="beside_turn": turn time, as a ratio to the least possible',
            ratio(rows.took["beside"], beside),
            1.03,
            "x",
        ),
    ]


def _label(side: str) -> str:
    return SIDES.get(side, side)
