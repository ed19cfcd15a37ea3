"""Measure what grue costs, beside what it takes the place of, and say which bars it meets.

    make bench                                 all of it, about twenty minutes
    python benchmarks/run.py --only turn,ask   some of it
    python benchmarks/run.py --quick           every part once or twice; the figures mean nothing

The bars are those of docs/architecture.md. Everything is measured in this one run, sides in turn, so that
what else the machine does strikes all of them. A missed bar does not fail the run: a loaded machine misses
some.
"""

import argparse
import json
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

from batches import map_section
from boots import boots_section
from conversations import conversation_section
from episodes import episode_section
from fleet_rate import rate_section
from fleet_speed import fleet_section
from frames import frames_section
from large import large_section
from manager import manager_section
from measuring import QUICK, WIDTH, Effort, Section, bar_line, printed, stored
from messaging import ask_section, record_section
from one_shot import one_shot_section
from scaling import agents_section, long_turn_section, many_turns_section
from sessions import sessions_section
from start_up import import_section, version_section
from turns import cold_section, turn_section
from windows import window_section

SECTIONS: dict[str, Callable[[Effort], Section]] = {
    "turn": turn_section,
    "episode": episode_section,
    "boots": boots_section,
    "one_shot": one_shot_section,
    "map": map_section,
    "frames": frames_section,
    "sessions": sessions_section,
    "manager": manager_section,
    "cold": cold_section,
    "import": import_section,
    "version": version_section,
    "ask": ask_section,
    "record": record_section,
    "long": long_turn_section,
    "talk": conversation_section,
    "window": window_section,
    "agents": agents_section,
    "many": many_turns_section,
    "large": large_section,
    "fleet": fleet_section,
    "fleet_rate": rate_section,
}


def main() -> None:
    """Run what was asked for, print it, store it."""
    options = _parser().parse_args()
    effort = QUICK if options.quick else Effort()
    print(f"grue benchmarks: Python {platform.python_version()}, {os.cpu_count()} cores")
    print("Each figure: median, and the quartiles of its samples.")
    print("A quick run: these figures mean nothing.\n" if options.quick else "")
    sections, loads = [], []
    for name in options.only or SECTIONS:
        sections.append(SECTIONS[name](effort))
        loads.append(round(os.getloadavg()[0], 1))
        print(f"{printed(sections[-1])}\n    load average {loads[-1]}", end="\n\n", flush=True)
    print(verdicts(sections))
    run = results(sections, loads, whole=not options.only)
    options.out.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")


def verdicts(sections: Sequence[Section]) -> str:
    """Return all bars, one a line."""
    bars = [bar for section in sections for bar in section.bars]
    met = sum(bar.met for bar in bars)
    return "\n".join(["-" * WIDTH, *map(bar_line, bars), f"{met} of {len(bars)} bars met"])


def results(sections: Sequence[Section], loads: Sequence[float], *, whole: bool) -> dict[str, object]:
    """Return the run as JSON values, each section with the load; nothing in it names the machine."""
    return {
        "whole": whole,
        "python": platform.python_version(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "sections": [
            {**stored(section), "load": load} for section, load in zip(sections, loads, strict=True)
        ],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure what grue costs.")
    parser.add_argument("--quick", action="store_true", help="once or twice each; the figures mean nothing")
    parser.add_argument("--only", type=_names, help=f"comma-separated, of: {', '.join(SECTIONS)}")
    default = Path(__file__).parent / "results.json"
    parser.add_argument("--out", type=Path, default=default, help="where to write the figures as JSON")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(unknown)}")
    return names


if __name__ == "__main__":
    main()
