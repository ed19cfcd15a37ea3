"""The agent's blocking call, with a real server process: one event loop an action, and none afterwards."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest

from grue import FunctionTools, LlmSettings, MCPError, Runner, StdioServer
from grue.config.settings import GameConfiguration
from grue.hosts.zork.agent import ZorkAgent
from grue.messages import SessionOpened
from grue.policies import Keep
from grue.runtime.trace.recorder import Recorder
from grue.testing import faulty_server
from grue.testing.doubles import MockLLMClient
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import ScriptedLlmServer, tool_calls_reply

ANSWER = json.dumps({"thinking": "It echoes.", "action": "shout", "new_objective": None})
TOLD_TO_LIST_ITS_ENVIRONMENT = """
import json, os, sys
from grue.testing import faulty_server
print(json.dumps(dict(os.environ)), file=open(sys.argv[1], "w"))
os.execv(sys.executable, faulty_server.argv())
"""


def thinking(actions: int, *, tools: bool) -> MockLLMClient:
    """A model that calls a tool in every action, where it has any, and then decides."""
    client = MockLLMClient()
    for _ in range(actions):
        if tools:
            client.add_response(tool_calls=[{"name": "faulty.echo", "arguments": {"text": "ho"}}])
        client.add_response(content=ANSWER)
    return client


def agent(client: MockLLMClient, server: StdioServer | None, recorder: Recorder | None = None) -> ZorkAgent:
    config = GameConfiguration(mcp_enabled=server is not None, agent_model="gpt-4")
    return ZorkAgent(config=config, client=client, mcp_manager=server, recorder=recorder)


def real_server() -> StdioServer:
    command, *arguments = faulty_server.argv()
    return StdioServer(name="faulty", command=command, args=tuple(arguments))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads in which `anyio.run` was called, each call once."""
    calls: list[threading.Thread] = []
    run = anyio.run

    def counted(function: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        calls.append(threading.current_thread())
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return run(function, *args, **options)

    monkeypatch.setattr(anyio, "run", counted)
    return calls


@pytest.mark.parametrize("tools", [True, False], ids=["MCP on", "MCP off"])
def test_p39_p40_one_anyio_run_an_action_and_no_loop_or_thread_afterwards(
    tools: bool, runs: list[threading.Thread]
) -> None:
    one = agent(thinking(3, tools=tools), real_server() if tools else None)
    with assert_nothing_left():
        for action in range(1, 4):
            assert one.get_action_with_reasoning("A cave.")["action"] == "shout"
            assert runs == [threading.current_thread()] * action
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            assert one.last_outcome is not None
            assert len(one.last_outcome.tool_calls) == tools


def test_p6_every_action_has_a_server_process_of_its_own() -> None:
    recorder, pids = Recorder(), []
    recorder.add(lambda sent, _: pids.append(sent.body.pid) if isinstance(sent.body, SessionOpened) else None)
    one = agent(thinking(2, tools=True), real_server(), recorder)
    with assert_nothing_left():
        for _ in range(2):
            one.get_action_with_reasoning("A cave.")
    assert len(set(pids)) == len(pids) == 2


def test_p7_a_server_gets_the_whole_environment_and_what_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRUE_TEST_BOTH", "host")
    seen = tmp_path / "environment.json"
    added = {"GRUE_TEST_BOTH": "server", "GRUE_TEST_SERVER": "server"}
    server = StdioServer(
        name="faulty",
        command=sys.executable,
        args=("-c", TOLD_TO_LIST_ITS_ENVIRONMENT, str(seen)),
        env=added,
    )
    with assert_nothing_left():
        agent(thinking(1, tools=True), server).get_action_with_reasoning("A cave.")
        expected = {**os.environ, **added}
    environment = json.loads(seen.read_text())
    for name in ("LC_CTYPE", "_", "PWD", "OLDPWD", "SHLVL"):  # Python's and the shell's own doing
        environment.pop(name, None)
        expected.pop(name, None)
    assert environment == expected


IN_A_THREAD_THAT_OUTLIVES_THE_MAIN_ONE = """
import threading
exiting = threading.Event()
threading._register_atexit(exiting.set)  # called after those of concurrent.futures, which is imported later
import sys
from grue import FunctionTools, LlmSettings, Runner, StdioServer, TurnLimits

def play():
    exiting.wait()
    url, trace, command, *args = sys.argv[1:]
    server = StdioServer(command=command, args=tuple(args))
    llm, limits = LlmSettings(base_url=url, model="m"), TurnLimits(max_result_chars=10**7)
    with Runner(llm=llm, servers={"faulty": server}, limits=limits, trace=trace) as runner:
        outcome = runner.run_turn("Hello?")
    print(outcome.response, len(outcome.tool_calls[0].result.content))

threading.Thread(target=play).start()
"""


@pytest.mark.parametrize(
    "start",
    [
        lambda runner: runner.run_turn_async("Who is there?"),
        lambda runner: runner.conversation().ask_async("Who is there?"),
        lambda runner: runner.tools_async(),
        lambda runner: runner.call_async("door.knock"),
    ],
)
@pytest.mark.parametrize("keep", ["nothing", "loop"])
def test_what_is_awaited_under_another_loop_than_asyncios_is_refused(
    keep: Keep, start: Callable[[Runner], Coroutine[Any, Any, object]]
) -> None:
    llm = LlmSettings(base_url="http://127.0.0.1:9/v1", model="m")
    servers = {"door": FunctionTools({"knock": lambda: "knock"})}
    with assert_nothing_left(), Runner(llm=llm, servers=servers, keep=keep) as runner:
        awaited = start(runner)
        with pytest.raises(MCPError, match="needs asyncio"):
            awaited.send(None)  # as trio would


@pytest.mark.slow
def test_a_thread_that_outlives_the_main_thread_can_run_turns(tmp_path: Path) -> None:
    with ScriptedLlmServer([tool_calls_reply(("faulty.echo", {"text": "ho"})), "done"]) as llm:
        url = llm.base_url.replace("127.0.0.1", "localhost")  # a name, which has to be looked up
        argv = (url, str(tmp_path), *faulty_server.argv("--huge-result", "300000"))
        command = [sys.executable, "-c", IN_A_THREAD_THAT_OUTLIVES_THE_MAIN_ONE, *argv]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout == "done 300002\n", done.stderr[-3000:]
