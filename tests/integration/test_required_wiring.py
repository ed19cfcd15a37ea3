"""The requirements' own wiring, with real servers: an agent that is given a manager with logger and Langfuse.

Whatever a program does with the manager that it has made, a subclass or a replaced method included, the turn
goes through it, and its logger and Langfuse client hear of everything once.
"""

import asyncio
import json
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import langfuse as _langfuse  # noqa: F401 - or the first turn waits for its import
import pytest
from langfuse_stand_in import StandIn

from grue.config.settings import GameConfiguration
from grue.errors import MCPServerStartupError
from grue.hosts.zork.agent import ZorkAgent
from grue.hosts.zork.manager import MCPManager
from grue.hosts.zork.manager_connection import OverriddenManagerConnection
from grue.messages import SessionClosed, SessionOpened, ToolCallResult
from grue.runtime.trace.recorder import Recorder
from grue.testing import faulty_server
from grue.testing.doubles import MockLLMClient
from grue.testing.leftovers import assert_nothing_left
from grue.tracing.observers.langfuse import LangfuseObserver

ECHO = {"name": "box.echo", "arguments": {"text": "hm"}}
EVENTS_OF_A_TURN = {
    "mcp_session_started": 1,
    "mcp_iteration_start": 2,
    "mcp_tool_call": 1,
    "mcp_tool_result": 1,
    "mcp_session_complete": 1,
}


def configuration(
    folder: Path, *flags: str, env: dict[str, str] | None = None, **entry: float
) -> GameConfiguration:
    command, *args = faulty_server.argv(*flags)
    server = {"command": command, "args": args, "env": env or {}, **entry}
    (folder / "mcp_config.json").write_text(json.dumps({"mcpServers": {"box": server}}))
    return GameConfiguration(
        project_dir=folder,
        mcp_enabled=True,
        mcp_server_startup_timeout_seconds=60,
        mcp_tool_call_timeout_seconds=60,
    )


def thinking(turns: int = 1) -> MockLLMClient:
    """A client that calls the tool once in every turn, and then decides."""
    client = MockLLMClient()
    for _ in range(turns):
        client.add_response(tool_calls=[ECHO])
        client.add_response(content='{"thinking": "...", "action": "examine door"}')
    return client


def turns(agent: ZorkAgent, count: int = 1) -> list[str]:
    """Play so many turns; nothing may be left of any; return the kind of each."""
    kinds = []
    with assert_nothing_left():
        for _ in range(count):
            assert agent.get_action_with_reasoning("West of House")["action"] == "examine door"
            assert agent.last_outcome is not None
            kinds.append(agent.last_outcome.kind)
    return kinds


class Log(logging.Handler):
    """Keeps what a logger was given."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self.records: list[Any] = []
        self.logger = logger
        logger.setLevel(logging.INFO)
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def events(self) -> dict[str, int]:
        return dict(Counter(record.event_type for record in self.records))

    def of(self, event: str) -> list[Any]:
        return [record for record in self.records if record.event_type == event]


@pytest.fixture
def log() -> Iterator[Log]:
    kept = Log(logging.getLogger("seed-wiring"))
    yield kept
    kept.logger.removeHandler(kept)


class SlowStandIn(StandIn):
    """A client that hangs until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def start_observation(self, **given: Any) -> StandIn:
        self.go.wait(60)
        return super().start_observation(**given)


# --- The manager as it is ---


@pytest.mark.slow
def test_r7_the_managers_logger_and_langfuse_client_hear_of_every_turn(tmp_path: Path, log: Log) -> None:
    config, langfuse = configuration(tmp_path), StandIn()
    manager = MCPManager(config, log.logger, langfuse)
    with assert_nothing_left():
        agent = ZorkAgent(config, client=thinking(2), mcp_manager=manager, episode_id="ep-1")
        agent.get_action_with_reasoning("West of House")
        assert log.events == EVENTS_OF_A_TURN
        assert "mcp-tool-box.echo" in langfuse.ended(), (
            "told before the turn returns, so that a flush sends it"
        )
        agent.get_action_with_reasoning("West of House")
        agent.close()
    assert log.events == {event: 2 * count for event, count in EVENTS_OF_A_TURN.items()}
    (called, _), (result, _) = log.of("mcp_tool_call"), log.of("mcp_tool_result")
    assert (called.tool_name, called.arguments, called.iteration) == ("box.echo", {"text": "hm"}, 1)
    assert (result.result_type, result.result_length, result.is_error) == ("str", 2, False)
    assert [(done.iterations, done.tools_used) for done in log.of("mcp_session_complete")] == [
        (1, ["box.echo"])
    ] * 2
    assert {record.episode_id for record in log.records} == {"ep-1"}
    assert Counter(name for _, name in langfuse.tree()) == {
        "episode": 1,
        "turn 1": 1,
        "turn 2": 1,
        "agent-tool-calling-session": 2,
        "Agent": 4,
        "mcp-tool-box.echo": 2,
    }
    assert sorted(langfuse.ended()) == sorted(name for _, name in langfuse.tree())
    assert langfuse.flushed.is_set()


@pytest.mark.slow
def test_p32_a_langfuse_client_that_hangs_holds_up_one_turn_and_only_for_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, langfuse = configuration(tmp_path), SlowStandIn()
    waited: list[bool] = []
    wait_idle = LangfuseObserver.wait_idle

    def counted(observer: LangfuseObserver, timeout_s: float) -> bool:
        assert timeout_s <= 2
        waited.append(wait_idle(observer, 0.05))
        return waited[-1]

    monkeypatch.setattr(LangfuseObserver, "wait_idle", counted)
    agent = ZorkAgent(config, client=thinking(3), mcp_manager=MCPManager(config, None, langfuse))
    for _ in range(3):
        agent.get_action_with_reasoning("West of House")
    langfuse.go.set()
    agent.close()
    assert waited == [False]
    assert [name for _, name in langfuse.tree()].count("mcp-tool-box.echo") == 3


@pytest.mark.parametrize("agents", ["seed-wiring", "seed-wiring.agent", None])
@pytest.mark.slow
def test_r7_a_logger_that_agent_and_manager_share_hears_of_everything_once(
    tmp_path: Path, log: Log, agents: str | None
) -> None:
    config = configuration(tmp_path)
    manager = MCPManager(config, log.logger)
    logger = None if agents is None else logging.getLogger(agents)
    turns(ZorkAgent(config, client=thinking(), mcp_manager=manager, logger=logger))
    assert log.events == EVENTS_OF_A_TURN


@pytest.mark.slow
def test_r7_a_logger_above_the_managers_hears_of_everything_once(tmp_path: Path, log: Log) -> None:
    config, below = configuration(tmp_path), Log(logging.getLogger("seed-wiring.mcp"))
    manager = MCPManager(config, below.logger)
    turns(ZorkAgent(config, client=thinking(), mcp_manager=manager, logger=log.logger))
    assert log.events == below.events == EVENTS_OF_A_TURN


@pytest.mark.slow
def test_r7_two_loggers_hear_of_everything_once_each(tmp_path: Path, log: Log) -> None:
    config, other = configuration(tmp_path), Log(logging.getLogger("seed-wiring-other"))
    manager = MCPManager(config, log.logger)
    turns(ZorkAgent(config, client=thinking(), mcp_manager=manager, logger=other.logger))
    assert log.events == other.events == EVENTS_OF_A_TURN


@pytest.mark.slow
def test_agents_that_share_a_recorder_tell_the_managers_client_once(tmp_path: Path, log: Log) -> None:
    config, langfuse, recorder = configuration(tmp_path), StandIn(), Recorder()
    manager = MCPManager(config, log.logger, langfuse)
    for count in (1, 2):
        with assert_nothing_left():
            agent = ZorkAgent(config, client=thinking(), mcp_manager=manager, recorder=recorder)
            agent.get_action_with_reasoning("West of House")
            agent.close()
        assert log.events["mcp_tool_call"] == count
        assert [name for _, name in langfuse.tree()].count("mcp-tool-box.echo") == count


@pytest.mark.slow
def test_used_by_itself_after_a_turn_the_manager_tells_again(tmp_path: Path, log: Log) -> None:
    config = configuration(tmp_path)
    manager = Noting(config, log.logger)
    turns(ZorkAgent(config, client=thinking(), mcp_manager=manager))

    async def use() -> None:
        await manager.connect_session()
        await manager.call_tool("box.echo", {"text": "by itself"})
        await manager.disconnect_session()

    asyncio.run(use())
    assert [call.arguments["text"] for call in log.of("mcp_tool_call")] == ["hm", "by itself"]


# --- A manager with methods of the program's own ---


class Noting(MCPManager):
    """Overrides all four coroutines, and notes each call and its task."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.noted: list[str] = []
        self.tasks: dict[str, object] = {}

    def _note(self, name: str) -> None:
        self.noted.append(name)
        self.tasks[name] = asyncio.current_task()

    async def connect_session(self) -> None:
        self._note("connect_session")
        await super().connect_session()

    async def disconnect_session(self) -> None:
        self._note("disconnect_session")
        await super().disconnect_session()

    async def get_tool_schemas(self) -> list[dict[str, Any]]:
        self._note("get_tool_schemas")
        return await super().get_tool_schemas()

    async def call_tool(self, tool_name: str, arguments: Any, timeout_seconds: Any = 30) -> ToolCallResult:
        self._note(f"call_tool {tool_name} {timeout_seconds}")
        return await super().call_tool(tool_name, arguments, timeout_seconds)


A_SESSION = ["connect_session", "get_tool_schemas", "call_tool box.echo 60", "disconnect_session"]


def test_r3_1_r3_5_r5_1_turns_go_through_a_subclass(tmp_path: Path, log: Log) -> None:
    config, langfuse = configuration(tmp_path), StandIn()
    manager = Noting(config, log.logger, langfuse)
    agent = ZorkAgent(config, client=thinking(2), mcp_manager=manager, logger=log.logger)
    with assert_nothing_left():
        for _ in range(2):
            agent.get_action_with_reasoning("West of House")
        agent.close()
    assert manager.noted == A_SESSION * 2
    assert manager.tasks["connect_session"] is manager.tasks["disconnect_session"], (
        "one task owns the session"
    )
    assert log.events == {event: 2 * count for event, count in EVENTS_OF_A_TURN.items()}
    assert [name for _, name in langfuse.tree()].count("mcp-tool-box.echo") == 2
    assert not manager.is_disabled


@pytest.mark.parametrize("where", ["subclass", "class", "object", "object of a living agent"])
def test_p16_call_tool_is_the_programs_wherever_it_was_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    called = []

    async def call_tool(tool_name: str, arguments: Any, timeout_seconds: float = 30) -> ToolCallResult:
        called.append((tool_name, arguments))
        return ToolCallResult("mine")

    mine = type("Mine", (MCPManager,), {"call_tool": staticmethod(call_tool)})
    config, client = configuration(tmp_path), thinking(2)
    manager = (mine if where == "subclass" else MCPManager)(config)
    if where == "object":
        monkeypatch.setattr(manager, "call_tool", call_tool)
    agent = ZorkAgent(config, client=client, mcp_manager=manager)
    if where == "object of a living agent":
        assert turns(agent) == ["answered"]
        assert called == []
        monkeypatch.setattr(manager, "call_tool", call_tool)
    elif where == "class":
        monkeypatch.setattr(MCPManager, "call_tool", staticmethod(call_tool))
    assert turns(agent) == ["answered"]
    assert called == [("box.echo", {"text": "hm"})]
    assert client.requests[-1]["messages"][-1]["content"] == '{"content":"mine"}'


def test_r8_what_the_model_is_offered_is_what_the_overrides_list(tmp_path: Path) -> None:
    class Curating(MCPManager):
        def _translate_schema(self, mcp_tool: object, server_name: str) -> dict[str, Any]:
            schema = super()._translate_schema(mcp_tool, server_name)
            schema["function"]["description"] = "Mine."
            return schema

        async def get_tool_schemas(self) -> list[dict[str, Any]]:
            return (await super().get_tool_schemas())[:1]

    config, client = configuration(tmp_path), thinking()
    turns(ZorkAgent(config, client=client, mcp_manager=Curating(config)))
    (tool,) = client.requests[0]["tools"]
    assert (tool["function"]["name"], tool["function"]["description"]) == ("box.echo", "Mine.")


@pytest.mark.parametrize(
    ("flags", "phase", "says"),
    [
        (("--exit-at", "start", "--exit-status", "7"), "initialize", "exit status 7"),
        (("--silent-at", "initialize"), "initialize", "no answer to initialize within 1 s"),
        (("--silent-at", "list"), "list", "no answer to tools/list within 1 s"),
    ],
)
def test_r6_1_a_first_start_that_fails_says_why(
    tmp_path: Path, log: Log, flags: tuple[str, ...], phase: str, says: str
) -> None:
    config = configuration(tmp_path, *flags)
    config.mcp_server_startup_timeout_seconds = 1
    manager = Noting(config, log.logger)
    agent = ZorkAgent(config, client=thinking(), mcp_manager=manager)
    with assert_nothing_left(), pytest.raises(MCPServerStartupError, match=says) as caught:
        agent.get_action_with_reasoning("West of House")
    assert (caught.value.phase, manager.noted) == (phase, ["connect_session"])
    assert sys_executable() in caught.value.command, "the server's command, not the manager's name"
    assert not manager.is_disabled


def sys_executable() -> str:
    return faulty_server.argv()[0]


@pytest.mark.slow
def test_r6_7_r6_9_a_later_start_is_tried_once_more_and_then_given_up(tmp_path: Path, log: Log) -> None:
    config = configuration(tmp_path)
    manager, client = Noting(config, log.logger), thinking()
    for _ in range(2):
        client.add_response(content='{"thinking": "...", "action": "examine door"}')
    agent = ZorkAgent(config, client=client, mcp_manager=manager)
    assert turns(agent) == ["answered"]
    manager.tool_server = configuration_that_fails(tmp_path, manager)
    assert turns(agent, 2) == ["degraded", "degraded"]
    assert manager.is_disabled
    assert manager.noted.count("connect_session") == 3, "one, then two, then none"
    assert log.events["mcp_connect_retry"] == log.events["mcp_disabled_fallback"] == 1


def configuration_that_fails(folder: Path, manager: MCPManager) -> Any:
    return MCPManager(configuration(folder, "--exit-at", "start")).tool_server


@pytest.mark.parametrize(
    ("flags", "kind", "event"),
    [
        (("--exit-at", "call", "--exit-status", "7"), "forced", "mcp_tool_error"),
        (("--silent-at", "call"), "answered", "mcp_tool_timeout"),
    ],
)
@pytest.mark.slow
def test_r6_a_call_that_goes_wrong_in_an_override_means_what_it_always_means(
    tmp_path: Path, log: Log, flags: tuple[str, ...], kind: str, event: str
) -> None:
    config = configuration(tmp_path, *flags)
    config.mcp_tool_call_timeout_seconds = 1
    agent = ZorkAgent(config, client=thinking(), mcp_manager=Noting(config, log.logger))
    assert turns(agent) == [kind]
    assert log.events[event] == 1


@pytest.mark.slow
def test_a_session_of_an_override_is_in_the_trace_as_any_other(tmp_path: Path) -> None:
    seen: dict[str, list[Any]] = {}
    for kind in (MCPManager, Noting):
        recorder, bodies = Recorder(), []
        recorder.add(lambda envelope, _, keep=bodies: keep.append(envelope.body))
        config = configuration(tmp_path, env={"BOX_API_KEY": "a-very-secret-value"})
        manager = kind(config)
        turns(ZorkAgent(config, client=thinking(), mcp_manager=manager, recorder=recorder))
        seen[kind.__name__] = bodies
        (opened,) = [body for body in bodies if isinstance(body, SessionOpened)]
        (closed,) = [body for body in bodies if isinstance(body, SessionClosed)]
        assert opened.pid is not None
        assert (closed.ending, closed.exit_status) == ("polite", 0)
        assert recorder.redacted(b'"a-very-secret-value"') == b'"[redacted:BOX_API_KEY]"'
    kinds = {name: [type(body).__name__ for body in bodies] for name, bodies in seen.items()}
    assert kinds["Noting"] == kinds["MCPManager"]


@pytest.mark.parametrize("cancelled", ["before the end", "at the end", "by a deadline"])
def test_a_server_behind_overrides_gets_little_time_to_exit_if_the_turn_is_cancelled(
    tmp_path: Path, cancelled: str
) -> None:
    """Half a second, or half of what a deadline leaves, although its entry says a minute."""
    manager = Noting(configuration(tmp_path, "--ignore-eof", exit_grace_seconds=60))
    notes: list[object] = []

    async def turn() -> float:
        with anyio.CancelScope() as scope:
            if cancelled == "by a deadline":
                scope.deadline = anyio.current_time() + 2
            async with OverriddenManagerConnection(manager, lambda body, **_: notes.append(body)) as session:
                await session.open(60)
                if cancelled == "before the end":
                    scope.cancel()
                elif cancelled == "at the end":
                    asyncio.get_running_loop().call_later(0.1, scope.cancel)
                began = anyio.current_time()
        assert (session.status.ending, scope.cancelled_caught) == ("terminated", cancelled != "by a deadline")
        return anyio.current_time() - began

    with assert_nothing_left():
        assert asyncio.run(turn()) < 10
    assert (manager.noted[-1], notes) == ("disconnect_session", [])


@pytest.mark.slow
def test_an_override_that_leaves_its_session_open_leaves_no_process(tmp_path: Path) -> None:
    class Forgetful(MCPManager):
        async def disconnect_session(self) -> None:
            pass

    config = configuration(tmp_path)
    assert turns(ZorkAgent(config, client=thinking(2), mcp_manager=Forgetful(config)), 2) == ["answered"] * 2
