"""A `ToolClient` in many threads, and one that nobody closes."""

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from transport_servers import QUICK, faulty

from grue import FunctionTools
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import MCPError, MCPServerStartupError, ToolServerDied
from grue.messages import JsonObject, OpenSession
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.testing.leftovers import assert_nothing_left

WITHIN_S = 150.0


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with assert_nothing_left():
        yield


def at_once(*work: Callable[[], Any]) -> list[Any]:
    """Run all of them in threads of their own, which begin together; what one raises is its result."""
    results: list[Any] = [None] * len(work)
    together = threading.Barrier(len(work))

    def run(number: int) -> None:
        together.wait(WITHIN_S)
        try:
            results[number] = work[number]()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    assert not any(thread.is_alive() for thread in threads)
    return results


def watched() -> tuple[Recorder, list[str]]:
    """Return a recorder, and the servers that a session was asked of."""
    opened: list[str] = []
    recorder = Recorder()

    def keep(envelope: Envelope[Any], _line: bytes) -> None:
        if isinstance(envelope.body, OpenSession):
            opened.append(envelope.body.server)

    recorder.add(keep)
    return recorder, opened


@pytest.mark.slow
def test_every_thread_gets_its_own_answers_from_one_session_a_server() -> None:
    recorder, opened = watched()
    servers = [f"s{number}" for number in range(3)]

    def work(thread: int) -> Callable[[], list[object]]:
        calls = [(servers[(thread + turn) % 3], f"{thread}-{turn}") for turn in range(20)]
        return lambda: [tools.call(f"{server}.echo", {"text": text}).content for server, text in calls]

    with ToolClient(dict.fromkeys(servers, faulty()), recorder=recorder, process_limits=QUICK) as tools:
        answers = at_once(*map(work, range(8)))
    assert answers == [[f"{thread}-{turn}" for turn in range(20)] for thread in range(8)]
    assert sorted(opened) == servers


def test_connecting_in_many_threads_is_one_connect() -> None:
    recorder, opened = watched()
    with ToolClient({"faulty": faulty()}, recorder=recorder, process_limits=QUICK) as tools:
        outcomes = at_once(*[tools.connect] * 4, *[tools.tools] * 4)
        assert len({outcome["faulty"].pid for outcome in outcomes[:4]}) == 1
        assert opened == ["faulty"]
        assert tools.connect()["faulty"] == outcomes[0]["faulty"], "an open session stays"
    assert opened == ["faulty"]


@pytest.mark.slow
def test_those_who_wait_for_a_connect_that_fails_all_learn_of_it() -> None:
    recorder, opened = watched()
    broken = faulty("--exit-at", "initialize", "--stderr", "no disk")
    with ToolClient({"faulty": broken}, recorder=recorder, process_limits=QUICK) as tools:
        errors = at_once(*[lambda: tools.call("faulty.echo", {"text": "x"})] * 6)
        assert all(isinstance(error, MCPServerStartupError) for error in errors)
        assert opened == ["faulty"], "one attempt for all who were waiting"
        with pytest.raises(MCPServerStartupError, match="no disk"):
            tools.call("faulty.echo", {"text": "x"})
        assert opened == ["faulty"] * 2, "a later call tries again"
        assert tools.tools() == ()


def test_servers_are_called_at_the_same_time_and_each_one_call_at_a_time() -> None:
    both = threading.Barrier(2)
    inside: list[int] = []

    def meet() -> str:
        inside.append(1)
        both.wait(WITHIN_S)
        inside.pop()
        return "met"

    def alone() -> int:
        inside.append(1)
        time.sleep(0.01)
        return len([inside.pop()]) + len(inside)

    functions = {name: FunctionTools({"meet": meet, "alone": alone}) for name in ("a", "b")}
    with ToolClient(functions) as tools:
        met = at_once(*[lambda name=name: tools.call(f"{name}.meet", {}).content for name in "ab"])
        assert met == ["met", "met"]
        assert [each.content for each in at_once(*[lambda: tools.call("a.alone", {})] * 5)] == [1] * 5


def test_listing_connects_by_itself() -> None:
    servers = {name: FunctionTools({"look": lambda: "dark"}) for name in ("a", "b")}
    with ToolClient(servers) as tools:
        assert [tool.name for tool in tools.tools()] == ["a.look", "b.look"]
    with ToolClient({"faulty": faulty("--exit-at", "start", "--stderr", "no disk")}) as tools:
        with pytest.raises(MCPServerStartupError, match="no disk"):
            tools.tools()
        assert tools.tools() == (), "it has been tried"


def test_a_call_in_another_thread_ends_when_the_client_is_closed() -> None:
    called, gate = threading.Event(), threading.Event()

    def wait() -> None:
        called.set()
        gate.wait(WITHIN_S)

    def close() -> None:
        assert called.wait(WITHIN_S)
        tools.close()

    with ToolClient({"f": FunctionTools({"wait": wait})}) as tools:
        result, _ = at_once(lambda: tools.call("f.wait", {}), close)
    gate.set()
    assert isinstance(result, MCPError) or result.is_error


def test_what_is_to_end_the_program_ends_the_call_and_nothing_else() -> None:
    def leave() -> None:
        raise KeyboardInterrupt("own")

    functions = FunctionTools({"leave": leave, "look": lambda: "dark"})
    with ToolClient({"f": functions, "g": functions}) as tools:
        with pytest.raises(KeyboardInterrupt, match="own"):
            tools.call("f.leave", {})
        with pytest.raises(ToolServerDied, match="the session has ended: KeyboardInterrupt: own"):
            tools.call("f.look", {}, check=True)
        assert tools.call("g.look", {}).content == "dark"
        tools.connect("f")
        assert tools.call("f.look", {}).content == "dark", "connecting again is a new session"


def test_its_own_loop_cannot_wait_for_it() -> None:
    said: list[str] = []

    async def elicit(_: object) -> JsonObject:
        try:
            tools.call("faulty.echo", {"text": "x"})
        except MCPError as error:
            said.append(str(error))
        return {}

    with ToolClient({"faulty": faulty("--ask", "elicitation")}, elicit=elicit, process_limits=QUICK) as tools:
        tools.call("faulty.echo", {"text": "hi"}, timeout_s=60)
    assert said == [
        "A ToolClient cannot be waited for in its own event loop, where what it asks the host runs."
    ]


@pytest.mark.slow
def test_one_that_is_lost_ends_by_itself() -> None:
    tools = ToolClient({"faulty": faulty()}, process_limits=QUICK).__enter__()
    assert tools.call("faulty.echo", {"text": "hi"}).content == "hi"
    thread = tools._loop.loop_thread.thread  # type: ignore[union-attr]
    del tools
    gc.collect()
    thread.join(WITHIN_S)
    assert not thread.is_alive()


NEVER_CLOSED = """
import sys
from grue import StdioServer, ToolClient

command, *args = sys.argv[1:]
client = ToolClient({"faulty": StdioServer(name="faulty", command=command, args=tuple(args))})
client.__enter__()
print(client.call("faulty.echo", {"text": "hi"}).content, client.connect()["faulty"].pid, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [pytest.param((), marks=pytest.mark.slow), ("--ignore-eof", "--ignore-term")]
)
def test_one_that_is_never_closed_ends_with_the_interpreter_and_its_server_too(
    flags: tuple[str, ...],
) -> None:
    server = faulty(*flags)
    command = [sys.executable, "-c", NEVER_CLOSED, server.command, *server.args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    answer, pid = done.stdout.split()
    assert answer == "hi"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
