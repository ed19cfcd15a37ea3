"""What it costs to read parts of a long tool result of which the model was sent only a reference."""

import json
import time

from measuring import Bar, Effort, Figure, Section, figure

from grue import messages as m
from grue.protocol.tools.results import success
from grue.tool_sessions.result_reading import read_part, wanted

MAX_MS = 50.0
LIMIT = 20_000

LOG: tuple[tuple[str, m.JsonObject], ...] = (
    ("a rare pattern", {"pattern": "disk full"}),
    ("a pattern without a match", {"pattern": "(?i)no such words"}),
)
JSON: tuple[tuple[str, m.JsonObject], ...] = (
    ("a value near the end", {"json_path": "$[-5].name"}),
    ("a member of each value", {"json_path": "$[*].id"}),
    ("its first lines", {"last_line": 50}),
)


def long_results_section(effort: Effort) -> Section:
    """Read parts of a log and of a JSON text of 10 MB, each time from a result that was not read before."""
    rows = 2_000 if effort.rounds <= 2 else 180_000
    log = "\n".join(
        f"{row:06} 2026-11-23 12:00:00 {'ERROR disk full' if row % 40_000 == 0 else 'INFO served'} in"
        f" {row % 977} ms, 200 OK"
        for row in range(rows)
    )
    values = [
        {"id": row, "name": f"thing {row}", "tags": ["a", "b"], "note": "x" * 20}
        for row in range(rows * 11 // 18)
    ]
    middle: m.JsonObject = {"first_line": rows // 2, "last_line": rows // 2 + 49}
    of_log = (("50 lines in the middle", middle), *LOG)
    figures: list[Figure] = []
    bars: list[Bar] = []
    for kind, content, reads in (("log", log, of_log), ("JSON text", json.dumps(values), JSON)):
        for label, arguments in reads:
            samples = [_timed_ms(content, arguments) for _ in range(effort.rounds)]
            read = figure(f"{label}, {kind} of {len(content) / 1e6:.1f} MB", "ms", samples)
            figures.append(read)
            bars.append(
                Bar(f"time of a call of `read_result` on a long {kind}: {label}", read.median, MAX_MS, "ms")
            )
    return Section(
        "results",
        "Reading on in a result of 10 MB",
        "The answer of one call of `read_result`, from the whole result in memory: laying it out and finding"
        " the part, which each call does anew. Not measured: finding a result of"
        " an earlier turn in its trace, and the messages of the call.",
        figures,
        bars,
    )


def _timed_ms(content: str, arguments: m.JsonObject) -> float:
    result, asked = success(content), wanted({"handle": "call", **arguments})
    begun = time.perf_counter()
    assert read_part(result, asked, LIMIT)
    return (time.perf_counter() - begun) * 1000
