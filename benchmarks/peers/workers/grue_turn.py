"""A turn by grue, with default settings but for the limit of a call. Its trace goes into a file."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from turn_loop import API_KEY, SYSTEM, USER, Place, serve

from grue import LlmSettings, Runner, StdioServer, TurnLimits, TurnRequest


def prepare(place: Place) -> Callable[[], str]:
    limits = TurnLimits()
    if place.limit_s is not None:
        limits = TurnLimits(tool_call_timeout_s=place.limit_s, server_startup_timeout_s=place.limit_s)
    llm = LlmSettings(base_url=place.base_url, model=place.model, api_key=API_KEY)
    server = StdioServer(name="tools", command=place.command, args=tuple(place.args))
    folder = Path(os.environ.get("BENCH_FOLDER") or tempfile.mkdtemp())
    runner = Runner(llm=llm, servers={"tools": server}, limits=limits, trace=folder / "trace.jsonl")
    runner.warm_up()  # the others have imported what they need, too
    return lambda: str(runner.run_turn(TurnRequest(system=SYSTEM, user=USER)).response)


if __name__ == "__main__":
    serve(prepare)
