"""Measure how the cost of a turn grows with its size, and that of a process with its turns or agents.

    python benchmarks/scales.py                     all curves, about three minutes
    python benchmarks/scales.py --only iterations   some of them
    python benchmarks/scales.py --quick             only the first sizes; the results mean nothing

Writes `benchmarks/scales.json`, from which `performance_page.py` makes tables and plots for
docs/performance.md. Every curve is measured in processes of its own. Each round measures all sizes in rising
order. Times are medians of the rounds. The peak of memory is that of the first round, because later rounds
start with the memory of larger sizes.
"""

import argparse
import datetime as dt
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from children import ChatServer, Worker, chat_server
from results import machine, minute, write

Row: TypeAlias = Mapping[str, float]

BYTES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
FROM_SERVER = (*BYTES[:-1], 5_000_000)
"""A result of 10 MB is larger than what is read whole from a server: the model is told so instead."""

PEAK = "peak_mb"


class Curve(NamedTuple):
    """The sizes of one curve, and how often each is measured."""

    sizes: Sequence[int]
    rounds: int = 5


CURVES = {
    "iterations": Curve((1, 2, 5, 10, 20, 50, 100, 200)),
    "history": Curve(BYTES),
    "result": Curve(BYTES),
    "server_result": Curve(FROM_SERVER),
    "agents": Curve((1, 2, 5, 10, 20, 50, 100, 200)),
    "servers": Curve((1, 2, 4, 8, 16)),
    "turns": Curve((100, 200, 500, 1_000, 2_000, 5_000, 10_000), rounds=1),
}


def main() -> None:
    """Measure the chosen curves. The file keeps its results of the others."""
    options = _parser().parse_args()
    known = json.loads(options.out.read_text()) if options.only and options.out.exists() else {}
    curves = dict(known.get("curves", {}))
    with chat_server() as chat, tempfile.TemporaryDirectory() as folder:
        for name in options.only or CURVES:
            sizes, rounds = CURVES[name]
            shown = Curve(sizes[:2], 1) if options.quick else Curve(sizes, rounds)
            rows = measured(name, shown, chat, Path(folder))
            load, at = round(os.getloadavg()[0], 1), minute(dt.datetime.now(dt.UTC))
            curves[name] = {"sizes": shown.sizes, "rows": rows, "load": load, "at": at}
            print(f"{name}: {len(rows)} sizes, load average {curves[name]['load']}", flush=True)
            write(options.out, {**machine(), "curves": curves})


def measured(name: str, curve: Curve, chat: ChatServer, folder: Path) -> list[Row]:
    """Return a row of results for each size."""
    with ExitStack() as stack:
        if name == "agents":
            return _agents(curve, *(stack.enter_context(_agents_of(side, chat, folder)) for side in _SIDES))
        if name == "servers":
            return _medians(_rounds(stack.enter_context(_agents_of("servers", chat, folder)), curve))
        worker = stack.enter_context(Worker("scale_worker.py", name, chat.base_url, str(folder)))
        if name == "turns":
            steps = [after - before for before, after in pairwise((0, *curve.sizes))]
            return [worker.ask(str(step)) for step in steps]
        # Not counted: the first turn of a process imports modules.
        worker.ask(str(curve.sizes[0]))
        return _medians(_rounds(worker, curve))


_SIDES = ("grue", "bare")


def _agents_of(side: str, chat: ChatServer, folder: Path) -> Worker:
    return Worker("agents_worker.py", side, chat.base_url, "calls-1", str(folder / f"{side}.jsonl"))


def _agents(curve: Curve, grue: Worker, bare: Worker) -> list[Row]:
    samples: dict[str, list[list[Row]]] = {side: [[] for _ in curve.sizes] for side in _SIDES}
    for worker in (grue, bare):
        worker.ask("1")
    for _ in range(curve.rounds):
        for number, size in enumerate(curve.sizes):
            for side, worker in zip(_SIDES, (grue, bare), strict=True):
                samples[side][number].append(_sample(worker, size))
    sides = [_medians(samples[side]) for side in _SIDES]
    return [
        {f"{side}_{key}": value for side, row in zip(_SIDES, rows, strict=True) for key, value in row.items()}
        for rows in zip(*sides, strict=True)
    ]


def _rounds(worker: Worker, curve: Curve) -> list[list[Row]]:
    samples: list[list[Row]] = [[] for _ in curve.sizes]
    for _ in range(curve.rounds):
        for number, size in enumerate(curve.sizes):
            samples[number].append(_sample(worker, size))
    return samples


def _sample(worker: Worker, size: int) -> Row:
    reported = worker.ask(str(size))
    answers = reported.pop("answers", size)
    if answers != size:
        raise RuntimeError(f"{answers} of {size} agents came to an answer")
    return _in_ms(reported)


def _in_ms(reported: Mapping[str, Any]) -> Row:
    return {
        f"{name[:-2]}_ms" if name.endswith("_s") else name: value * 1e3 if name.endswith("_s") else value
        for name, value in reported.items()
    }


def _medians(samples: Sequence[Sequence[Row]]) -> list[Row]:
    return [
        {key: rows[0][key] if key == PEAK else statistics.median(row[key] for row in rows) for key in rows[0]}
        for rows in samples
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure how the cost of a turn grows.")
    parser.add_argument("--quick", action="store_true", help="two sizes, once; the figures mean nothing")
    parser.add_argument("--only", type=_names, help=f"comma-separated, of: {', '.join(CURVES)}")
    default = Path(__file__).parent / "scales.json"
    parser.add_argument("--out", type=Path, default=default, help="where to write the figures as JSON")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in CURVES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such curve: {', '.join(unknown)}")
    return names


if __name__ == "__main__":
    main()
