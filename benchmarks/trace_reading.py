"""How long `grue trace stats` and `grue trace show` read a long trace."""

import tempfile
from pathlib import Path

from measuring import Bar, Effort, Section, figure, rotated
from trace_tools import COMMANDS, READ_ALL, TRACE, Cost, Writer, cost

LIMITS_S = {"stats": 2.9, "show": 8.0}
"""What the two took before they decoded only the messages whose content they need."""

SIDES = (*LIMITS_S, READ_ALL)
LABELS = {name: f"grue trace {name}" for name in LIMITS_S} | {READ_ALL: "every message decoded, no more"}
ROUNDS = 3


def traces_section(effort: Effort) -> Section:
    """Measure the commands on a trace of 121 MB (at most what they took before)."""
    quick = effort.rounds <= 2
    sides = tuple(LIMITS_S) if quick else SIDES
    took: dict[str, list[Cost]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        messages = Writer(trace).episode(effort.traced_turns)
        size_mb = trace.stat().st_size / 2**20
        for number in effort.within(1 if quick else ROUNDS):
            for name in rotated(sides, number):
                took[name].append(cost([word.replace(TRACE, str(trace)) for word in COMMANDS[name]]))
    seconds = {name: figure(LABELS[name], "s", [one.cpu_s for one in took[name]]) for name in sides}
    return Section(
        "traces",
        f"Reading a trace of {size_mb:.0f} MB",
        f"Measured: processor time of the command, interpreter and imports included; {effort.traced_turns} "
        f"turns, {messages} messages. Beside them, in the same program, a loop that decodes every message "
        "and does nothing with it.",
        list(seconds.values()),
        [
            Bar(f"{LABELS[name]}, {size_mb:.0f} MB, CPU", seconds[name].median, limit, "s")
            for name, limit in LIMITS_S.items()
        ],
        {
            f"{LABELS[name]}, peak memory": f"{max(one.peak_mb for one in took[name]):.0f} MB"
            for name in sides
        },
    )
