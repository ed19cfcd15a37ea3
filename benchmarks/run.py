"""Measure what grue costs, compare it with hand-written code, and print which limits (bars) it keeps.

    make bench                                 all sections, at most twenty minutes
    python benchmarks/run.py --only turn,ask   some sections
    python benchmarks/run.py --resume          the sections that were not measured within the last day
    python benchmarks/run.py --quick           all sections, with so few samples that the results mean nothing

The limits are those of docs/performance.md. A section measures its sides (grue and what it is compared with)
alternately, so that other load on the machine affects all of them. Its results are written as soon as it has
ended; Ctrl-C loses only the running section. An exceeded limit does not fail the run, because it can be the
fault of a busy machine.
"""

import argparse
import datetime as dt
import importlib
import os
import platform
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from measuring import QUICK, WIDTH, Effort, Section, bar_line, printed, stored
from plan import LONGER, SECONDS, WHOLE
from results import Results

SECTIONS = {
    "turn": "turns.turn_section",
    "cold": "turns.cold_section",
    "agents": "scaling.agents_section",
    "boots": "boots.boots_section",
    "one_shot": "one_shot.one_shot_section",
    "map": "batches.map_section",
    "episode": "episodes.episode_section",
    "import": "start_up.import_section",
    "version": "start_up.version_section",
    "ask": "messaging.ask_section",
    "record": "messaging.record_section",
    "boxes": "boxes.boxes_section",
    "sessions": "sessions.sessions_section",
    "manager": "manager.manager_section",
    "long": "scaling.long_turn_section",
    "talk": "conversations.conversation_section",
    "window": "windows.window_section",
    "many": "scaling.many_turns_section",
    "frames": "frames.frames_section",
    "traces": "trace_reading.traces_section",
    "fleet": "fleet_speed.fleet_section",
    "fleet_rate": "fleet_rate.rate_section",
    "large": "large.large_section",
    "results": "long_results.long_results_section",
}
"""Where each section is. Processes that import this module, as those of a fleet do, load none of them."""
STOPPED = 130
"""Status after Ctrl-C, as shells have it."""


def main() -> None:
    """Measure the chosen sections, and print and store the results."""
    options = _parser().parse_args()
    default = "results-quick.json" if options.quick else "results.json"
    results = Results(options.out or Path(__file__).with_name(default))
    names = options.only or ([*SECONDS] if options.quick else WHOLE)
    names = results.lacks(names) if options.resume else names
    print(f"grue benchmarks: Python {platform.python_version()}, {os.cpu_count()} cores")
    print("Each figure: median, and the quartiles of its samples.")
    print("A quick run: these figures mean nothing.\n" if options.quick else announced(names), flush=True)
    done: list[Section] = []
    try:
        for name in names:
            done.append(measured(name, results, quick=options.quick))
    except KeyboardInterrupt:
        print(f"Stopped in {name}. `--resume` measures the rest.", flush=True)
    print(verdicts(done))
    sys.exit(0 if len(done) == len(names) else STOPPED)


def announced(names: Sequence[str]) -> str:
    """Return a text that says how long each section takes, and all of them together."""
    parts = [
        f"{name} {SECONDS[name]} s{f' x {times}' if times > 1 else ''}"
        for name, times in Counter(names).items()
    ]
    total = sum(SECONDS[name] for name in names)
    return textwrap.fill(f"About {total / 60:.0f} minutes: {', '.join(parts)}.", WIDTH) + "\n"


def measured(name: str, results: Results, *, quick: bool) -> Section:
    """Measure a section, print the results, and write them into the file."""
    measure = _section_function(name)
    at, begun, before = dt.datetime.now(dt.UTC), time.monotonic(), os.getloadavg()[0]
    section = measure(QUICK if quick else Effort(ends_at=begun + LONGER * SECONDS[name]))
    took_s, load = time.monotonic() - begun, [round(each, 1) for each in (before, os.getloadavg()[0])]
    results.add(stored(section), at=at, took_s=took_s, load=load)
    print(
        f"{printed(section)}\n    {took_s:.0f} s, load average {load[0]} before, {load[1]} after\n",
        flush=True,
    )
    return section


def verdicts(sections: Sequence[Section]) -> str:
    """Return all limits, one a line, and how many are kept. A limit has to be kept in each measurement."""
    bars = [bar for section in sections for bar in section.bars]
    met = {label: all(bar.met for bar in bars if bar.label == label) for label in (bar.label for bar in bars)}
    return "\n".join(["-" * WIDTH, *map(bar_line, bars), f"{sum(met.values())} of {len(met)} bars met"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure what grue costs.")
    parser.add_argument("--quick", action="store_true", help="once or twice each; the figures mean nothing")
    parser.add_argument(
        "--resume", action="store_true", help="leave out what was measured within the last day"
    )
    parser.add_argument("--only", type=_names, help=f"comma-separated, of: {', '.join(SECTIONS)}")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    return parser


def _section_function(name: str) -> Callable[[Effort], Section]:
    module, _, function = SECTIONS[name].partition(".")
    found: Callable[[Effort], Section] = getattr(importlib.import_module(module), function)
    return found


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(unknown)}")
    return names


if __name__ == "__main__":
    main()
