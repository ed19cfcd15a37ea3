"""How long `grue trace stats` and `grue trace show` read a long trace."""

import tempfile
from pathlib import Path

from measuring import Bar, Effort, Section, figure, ratio, rotated
from trace_tools import COMMANDS, READ_ALL, TRACE, Cost, Writer, cost

LIMITS = {"stats": 2.7, "show": 6.0}
"""How many times as long as decoding every message the two took before they decoded only what they need."""

SIDES = (*LIMITS, READ_ALL)
LABELS = {name: f"grue trace {name}" for name in LIMITS} | {READ_ALL: "every message decoded, no more"}
ROUNDS = 3


def traces_section(effort: Effort) -> Section:
    """Measure commands on a long trace, compared with decoding every message (limits: `LIMITS`)."""
    took: dict[str, list[Cost]] = {name: [] for name in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        messages = Writer(trace).episode(effort.traced_turns)
        size_mb = trace.stat().st_size / 2**20
        for number in effort.within(1 if effort.rounds <= 2 else ROUNDS):
            for name in rotated(SIDES, number):
                took[name].append(cost([word.replace(TRACE, str(trace)) for word in COMMANDS[name]]))
    cpu_s = {name: [one.cpu_s for one in took[name]] for name in SIDES}
    return Section(
        "traces",
        f"Reading a trace of {size_mb:.0f} MB",
        f"Measured: processor time of the command, interpreter and imports included; {effort.traced_turns} "
        f"turns, {messages} messages. Beside them, in the same program, a loop that decodes every message "
        "and does nothing with it.",
        [figure(LABELS[name], "s", cpu_s[name]) for name in SIDES],
        [
            Bar(
                f"CPU of `{LABELS[name]}` on {size_mb:.0f} MB, as a ratio to decoding every message",
                ratio(cpu_s[name], cpu_s[READ_ALL]),
                limit,
                "x",
            )
            for name, limit in LIMITS.items()
        ],
        {
            f"{LABELS[name]}, peak memory": f"{max(one.peak_mb for one in took[name]):.0f} MB"
            for name in SIDES
        },
    )
