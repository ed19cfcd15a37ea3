"""How much later the frames of a loop (60 a second) are if a turn is under way."""

from contextlib import ExitStack

from children import MCP_SERVER, Worker, chat_server
from measuring import Bar, Effort, Section, figure

MODES = ("none", "turn", "episode", "ahead")
FRAMES = 30
MOST_LATER_MS = 6.0


def frames_section(effort: Effort) -> Section:
    """Compare how late frames are in a loop with turns under way, and in the same loop without turns."""
    rounds = max(1, effort.rounds // 2)
    late: dict[str, list[float]] = {mode: [] for mode in MODES}
    turns = dict.fromkeys(MODES, 0)
    with ExitStack() as running:
        base_url = running.enter_context(chat_server()).base_url
        workers = {
            mode: running.enter_context(Worker("frame_worker.py", mode, base_url, "calls-1", *MCP_SERVER))
            for mode in MODES
        }
        for _ in effort.within(rounds):
            for mode, worker in workers.items():
                drawn = worker.ask(str(FRAMES))
                late[mode] += drawn["late_ms"]
                turns[mode] += drawn["turns"]
    alone = _p95(late["none"])
    return Section(
        "frames",
        "A loop of 60 frames a second",
        "How late a frame is, what it spends on its turn included: the loop by itself, and with one turn"
        " after the other under way, from the first one after warm_up on. Medians and quartiles; the bars are"
        " about the 95th percentile, against that of the loop by itself.",
        [figure(f"lateness of a frame, {_NAMES[mode]}", "ms", late[mode]) for mode in MODES],
        [
            Bar(
                f"60 Hz loop, {_NAMES[mode]}: lateness that turns add to a frame, 95th percentile",
                _p95(late[mode]) - alone,
                MOST_LATER_MS,
                "ms",
            )
            for mode in MODES[1:]
        ],
        {
            f"lateness of a frame, 95th percentile, {_NAMES[mode]}": f"{_p95(late[mode]):.2f} ms"
            for mode in MODES
        }
        | {f"turns played meanwhile, {_NAMES[mode]}": str(turns[mode]) for mode in MODES[1:]},
    )


_NAMES = {
    "none": "no turn",
    "turn": 'keep="nothing"',
    "episode": 'keep="loop"',
    "ahead": 'start="after_turn"',
}


def _p95(samples: list[float]) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
