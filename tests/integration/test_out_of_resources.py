"""Where the system has no descriptors or threads left, each way into grue raises one of its own errors."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from transport_servers import faulty
from worded_turns import ask, worded_model

from grue import FunctionTools, MCPError, Runner, ToolClient, TraceWriter
from grue.errors import TraceError

WITHIN_S = 150.0

# Each case runs in a fork of its own. That of `COLD` imports in its turn, as a program's first turn does.
SCARCE = """
import gc, json, os, resource, sys
from grue import LlmSettings, MCPError, RetryPolicy, Runner, StdioServer, ToolClient, TurnRequest
from grue.runtime.loading import load

cold, warm, url, command, *args = sys.argv[1:]


def try_twice(way, left):
    server = StdioServer(name="faulty", command=command, args=tuple(args))
    llm = LlmSettings(base_url=url, model="m", retry=RetryPolicy(max_retries=0))
    runner = Runner(llm=llm, servers={"faulty": server}, keep="loop" if way == "episode" else "nothing")
    client = ToolClient({"faulty": server})
    request = TurnRequest(system="s", user="call faulty.echo", turn_timeout_s=60)

    def go():
        if way == "tool client":
            with client:
                return client.call("faulty.echo", {"text": "x"})
        if way == "handle":
            return runner.start_turn(request).result()
        if way == "map":
            (item,) = runner.map([request])
            if item.error is not None:
                raise item.error
            return item.outcome
        return runner.run_turn(request)

    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
    for descriptor in held[:left]:
        os.close(descriptor)
    try:
        go()
        said = "done"
    except MCPError as error:
        said = f"{type(error).__name__}: {error}"
    for descriptor in held[left:]:
        os.close(descriptor)
    go()
    print(json.dumps([[way, left], said.splitlines()[0]]), flush=True)


def fork(way, left):
    if os.fork() == 0:
        try_twice(way, left)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(f"{way}, {left} left: failed")


for case in json.loads(cold):
    fork(*case)
for module in ("transports.llm.exchange", "transports.mcp.sdk", "transports.mcp.client"):
    load(f"grue.{module}")
import httpcore
gc.freeze()
for case in json.loads(warm):
    fork(*case)
"""
COLD = [("map", 0)]
WARM = [("turn", 2), ("turn", 5), ("episode", 2), ("handle", 1), ("tool client", 2)]


@pytest.mark.slow
def test_without_descriptors_the_error_is_typed_and_the_next_try_succeeds() -> None:
    server = faulty()
    with worded_model() as model:
        url = model.server.base_url
        cases = json.dumps(COLD), json.dumps(WARM)
        command = [sys.executable, "-c", SCARCE, *cases, url, server.command, *server.args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr
    tried = [json.loads(line) for line in done.stdout.splitlines()]
    assert [tuple(case) for case, _ in tried] == COLD + WARM
    assert [said for _, said in tried if "Too many open files" not in said] == []
    assert "could not be imported" in tried[0][1]


# --- Threads ---


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if "process_request" not in thread.name:  # the scripted model's
            raise RuntimeError("can't start new thread")
        start(thread)

    return lambda: monkeypatch.setattr(threading.Thread, "start", refuse)


def in_a_loop(runner: Runner) -> object:
    async def block() -> object:
        return runner.run_turn(ask())

    return asyncio.run(block())


def in_an_episode_from_a_loop(runner: Runner) -> object:
    return asyncio.run(runner.run_turn_async(ask()))


WAYS: dict[str, tuple[str, Callable[[Runner], object]]] = {
    "episode": ("episode", lambda runner: runner.run_turn(ask())),
    "handle": ("turn", lambda runner: runner.start_turn(ask())),
    "map": ("turn", lambda runner: list(runner.map([ask()]))),
    "a call that blocks a loop": ("turn", in_a_loop),
    "from a loop": ("episode", in_an_episode_from_a_loop),
}


@pytest.mark.filterwarnings("ignore::grue.runtime.loops.sync_edge.BlockingInsideEventLoopWarning")
@pytest.mark.parametrize("way", WAYS)
def test_without_threads_the_error_is_typed(way: str, no_threads: Callable[[], None]) -> None:
    lifetime, go = WAYS[way]
    with worded_model() as model, model.runner(lifetime) as runner:  # type: ignore[arg-type]
        if way == "from a loop":
            runner.run_turn(ask())
        no_threads()
        with pytest.raises(MCPError, match="can't start new thread") as refused:
            go(runner)
        assert isinstance(refused.value.__cause__, RuntimeError)


def test_without_threads_a_tool_client_and_a_trace_say_so(
    tmp_path: Path, no_threads: Callable[[], None]
) -> None:
    no_threads()
    with pytest.raises(MCPError, match="No thread could be started"):
        ToolClient({"f": FunctionTools({"look": lambda: "dark"})}).__enter__()
    with pytest.raises(TraceError, match="no thread could be started"):
        TraceWriter(tmp_path / "t.jsonl", episode="e")


def test_without_threads_a_function_is_an_error_result(no_threads: Callable[[], None]) -> None:
    functions = FunctionTools({"look": lambda: "dark"})
    with worded_model() as model, model.runner("turn", servers={"f": functions}) as runner:
        no_threads()
        (call,) = runner.run_turn(ask("call f.look")).tool_calls
    assert "can't start new thread" in (call.result.error_message or "")
