"""Run the same turn in grue, by hand, and in other frameworks; and an ask in other actor libraries.

    make bench-peers                                        install what is missing, and all of it
    python benchmarks/peers/run.py --only grue,sdk-script   some sides; no peer is needed for these
    python benchmarks/peers/run.py --quick                  does everything still run?

A turn: a fresh MCP server process is started, its tools are listed, the model asks for one call and answers
after its result, the process is ended. Every side is a long-lived process of its own that runs a turn on
request; they take turns, each round starting with another one, after a warm-up turn whose work is checked.
`x grue`: the median, over the rounds, of the side's time by grue's. `left`: turns after whose return the
server process still ran. A peer that cannot be had, or fails, is named with its error; the rest goes on.
"""

import argparse
import datetime as dt
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from comparing import Table, compare_asks, compare_cold, compare_turns
from install import install
from sides import ASKS, BENCHMARKS, HERE, TURNS, Server, servers
from tables import bars, markdown, notes, printed, stored, versions

sys.path.append(str(BENCHMARKS))

from measuring import bar_line
from results import machine, minute, write

NAMES = list(dict.fromkeys(side.name for side in (*TURNS, *ASKS)))
PARTS = ["plain", "slow", "node", "cold", "ask"]


class Effort(NamedTuple):
    """How often each side does each thing."""

    turns: dict[str, int]
    cold_starts: int
    rounds: int
    asks: int


FULL = Effort({"plain": 40, "slow": 12, "node": 20}, cold_starts=5, rounds=25, asks=1000)
QUICK = Effort({"plain": 2, "slow": 1, "node": 1}, cold_starts=1, rounds=2, asks=20)


def main() -> None:
    """Install what is asked for, measure, print, store."""
    options = _parser().parse_args()
    print(f"grue and its peers: Python {platform.python_version()}, {os.cpu_count()} cores")
    print("A quick run: these figures mean nothing.\n" if options.quick else "")
    if options.install:
        peers = [side.venv for side in (*TURNS, *ASKS) if side.venv and side.name in options.only]
        for peer, why in install(peers).items():
            print(f"{peer}: not installed: {why}")
    tables = []
    for table in measured(options.only, options.parts, QUICK if options.quick else FULL):
        tables.append(table)
        print(printed(table), end="\n\n", flush=True)
    print(notes(tables))
    for bar in bars(tables):
        print(bar_line(bar))
    write(options.out, results(tables))
    if options.markdown:
        options.markdown.write_text(markdown(tables, versions()), encoding="utf-8")


def measured(names: Sequence[str], parts: Sequence[str], effort: Effort) -> Iterator[Table]:
    """Yield a table for each part."""
    sides = [side for side in TURNS if side.name in names]
    for server in servers() if sides else ():
        if server.absent and server.name in parts:
            yield Table(server.name, f"A turn, {server.title}", skipped=server.absent)
        elif server.name in parts:
            yield compare_turns(sides, server, effort.turns[server.name])
    if sides and "cold" in parts:
        yield compare_cold(sides, _plain(), effort.cold_starts)
    asking = [side for side in ASKS if side.name.partition(",")[0] in names]
    if asking and "ask" in parts:
        yield compare_asks(asking, effort.rounds, effort.asks)


def results(tables: Sequence[Table]) -> dict[str, object]:
    """Return the run as JSON values; nothing in it names the machine."""
    return {
        **machine(),
        "at": minute(dt.datetime.now(dt.UTC)),
        "versions": versions(),
        "tables": [stored(table) for table in tables],
    }


def _plain() -> Server:
    return servers()[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure grue beside other frameworks.")
    parser.add_argument("--install", action="store_true", help="first make the peers' virtual environments")
    parser.add_argument("--quick", action="store_true", help="once or twice each; the figures mean nothing")
    parser.add_argument("--only", type=_names, default=NAMES, help=f"comma-separated, of: {', '.join(NAMES)}")
    parser.add_argument(
        "--parts", type=_parts, default=PARTS, help=f"comma-separated, of: {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--out", type=Path, default=HERE / "results.json", help="where the figures go as JSON"
    )
    parser.add_argument("--markdown", type=Path, help="where to write them as a page's section too")
    return parser


def _names(text: str) -> list[str]:
    return _known(text, NAMES)


def _parts(text: str) -> list[str]:
    return _known(text, PARTS)


def _known(text: str, known: Sequence[str]) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such name: {', '.join(unknown)}")
    return names


if __name__ == "__main__":
    main()
