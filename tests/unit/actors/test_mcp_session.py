"""The session: connects, serialises, reports every settlement, and closes whatever happens."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import json, structs
from scripted_server import LISTED, ScriptedConnection, ScriptedServer
from turns import failure, settlement, tool

from grue.actors.mcp_session import SessionActor
from grue.errors import ActorCrashed
from grue.messages import (
    CallTools,
    CloseSession,
    ConnectFailed,
    McpDisabled,
    OpenSession,
    ServerCall,
    ServerDied,
    ServerName,
    SessionClosed,
    SessionOpened,
    StartupFailed,
    ToolCalled,
    ToolCallResult,
    ToolReturned,
    ToolSkipped,
    ToolTimedOut,
)
from grue.policies import FailurePolicy
from grue.protocol.tools.results import SKIPPED_AFTER_DEATH, SKIPPED_AFTER_TIMEOUT
from grue.protocol.turn.connection import ConnectionState, Disabled, Proven, Untried
from grue.runtime.actor import Mailbox, Supervisor
from grue.runtime.loops.host_code import raised_by
from grue.runtime.trace.format import is_deeper
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.tool_sessions.connection import ConnectionStatus, HostsConnection, Listing, WrappedConnection
from grue.tool_sessions.failures import ToolTimedOutError

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

CLOSE = CloseSession(server="a")
CLOSED = SessionClosed(server="a", ending="polite", exit_status=3)


def open_session(timeout_s: float = 10.0, **policy: Any) -> OpenSession:
    return OpenSession(server="a", turn=2, timeout_s=timeout_s, policy=FailurePolicy(**policy))


def call_tools(
    *tools: str, batch: int = 1, timeout_s: float = 30.0, after_timeout: Any = "skip"
) -> CallTools:
    asked = tuple(
        ServerCall(call_id=f"c{number}", tool=tool, arguments={"n": number})
        for number, tool in enumerate(tools, start=1)
    )
    return CallTools(server="a", batch=batch, calls=asked, timeout_s=timeout_s, after_timeout=after_timeout)


class Bench:
    """A session actor; the test plays the agent."""

    def __init__(self, server: ScriptedServer, connection: ConnectionState | None = None) -> None:
        self.server = server
        self.envelopes: list[Envelope[Any]] = []
        self.recorder = Recorder()
        self.recorder.add(lambda envelope, _line: self.envelopes.append(envelope))
        self._connection = connection
        self.actor: SessionActor
        self.agent: Mailbox[Any]

    async def play(self, *commands: Any, work_s: float = float("inf")) -> list[Any]:
        """Send commands, each when the one before is done with; return the events that came of them."""
        with anyio.fail_after(60):
            async with Supervisor(self.recorder) as group:
                self.start(group, work_s)
                for command in commands:
                    await self.tell(command)
                    await self.settled(command)
        return self.events()

    def start(self, group: Supervisor, work_s: float = float("inf")) -> None:
        self.agent = group.mailbox("agent", bound=100)
        self.actor = SessionActor(
            group.mailbox("a"),
            agent=self.agent,
            connect=self.server.connect,
            note=group.note,
            connection=self._connection,
            deadline=anyio.current_time() + work_s,
        )
        group.start(self.actor)

    async def tell(self, command: Any) -> None:
        await self.actor.mailbox.send(command, sender="agent")

    async def settled(self, command: Any) -> None:
        for _ in command.calls if isinstance(command, CallTools) else (command,):
            await settlement(self.agent)

    def events(self) -> list[Any]:
        return [unmeasured(item.body) for item in self.envelopes if item.receiver == "agent"]

    def notes(self, kind: type) -> list[Any]:
        return [item.body for item in self.envelopes if isinstance(item.body, kind)]


def unmeasured(event: Any) -> Any:
    """The event without what a clock measured."""
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return type(event)(
        **{name: value for name, value in fields.items() if name not in ("elapsed_s", "duration_s")}
    )


def returned(number: int, content: object = "ok", batch: int = 1) -> ToolReturned:
    return ToolReturned(batch=batch, call_id=f"c{number}", result=ToolCallResult(content))


OPENED = SessionOpened(server="a", tools=LISTED, attempt=1, protocol_version="2025-11-25", pid=4711)


def nested(levels: int, nest: Callable[[Any], Any] = lambda inner: {"a": inner}) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = nest(value)
    return value


# --- Opening and closing ---


async def test_p8_p9_a_session_is_connected_listed_used_and_gone_before_it_is_said_to_be_closed() -> None:
    bench = Bench(ScriptedServer(tools={"look": {"room": "hall"}}))
    events = await bench.play(open_session(), call_tools("look"), CLOSE)
    assert events == [OPENED, returned(1, {"room": "hall"}), CLOSED]
    assert bench.server.log == ["enter", "open", "call look", "leave"]
    assert bench.actor.connection == Proven()


async def test_each_event_has_the_command_that_brought_it_about_as_its_cause() -> None:
    bench = Bench(ScriptedServer())
    await bench.play(open_session(), call_tools("look"), CLOSE)
    sent = [item.seq for item in bench.envelopes if item.receiver == "a"]
    assert [item.cause for item in bench.envelopes if item.receiver == "agent"] == sent
    called = [item.cause for item in bench.envelopes if isinstance(item.body, ToolCalled)]
    assert called == [sent[1]], "a call has its batch as its cause"
    assert bench.notes(SessionClosed)[0].elapsed_s > 0


async def test_a_new_session_gets_a_new_connection() -> None:
    bench = Bench(ScriptedServer("ok", "ok"))
    events = await bench.play(open_session(), CLOSE, open_session(), CLOSE)
    assert events == [OPENED, CLOSED, OPENED, CLOSED]
    assert bench.server.log == ["enter", "open", "leave"] * 2


async def test_what_comes_when_no_session_is_open_is_answered() -> None:
    bench = Bench(ScriptedServer())
    events = await bench.play(CLOSE, call_tools("look"))
    skipped = ToolSkipped(batch=1, call_id="c1", reason=SKIPPED_AFTER_DEATH)
    assert events == [SessionClosed(server="a"), skipped]
    assert bench.server.log == []


async def test_opening_twice_is_a_mistake() -> None:
    bench = Bench(ScriptedServer())
    with pytest.raises(ActorCrashed, match="asked to open a session that is open"):
        await bench.play(open_session(), open_session())
    assert bench.server.log == ["enter", "open", "leave"]


async def test_a_group_that_ends_closes_the_session() -> None:
    bench = Bench(ScriptedServer())
    await bench.play(open_session())
    assert bench.server.log == ["enter", "open", "leave"]


def of_host(server: ScriptedServer, *, wrapped: bool = False) -> "Bench":
    """A bench whose session uses the server's connections as those that a host has passed as a server."""
    made = server.connect
    own = (lambda note: WrappedConnection(made(note))) if wrapped else made
    server.connect = lambda note: HostsConnection(own, ServerName("a"), note)  # type: ignore[assignment, return-value, arg-type]
    return Bench(server)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("nest", [lambda inner: [inner], lambda inner: (inner,), lambda inner: {"a": inner}])
async def test_a_hosts_result_that_is_nested_too_deeply_is_cut_for_the_trace(
    nest: Any, wrapped: bool
) -> None:
    bench = of_host(ScriptedServer(tools={"look": nested(3000, nest)}), wrapped=wrapped)
    _, returned_deep, _ = await bench.play(open_session(), call_tools("look"), CLOSE)
    written = json.encode(returned_deep)
    assert b"[nested too deeply]" in written
    assert not is_deeper(written, 110)


def knotted(size: int = 0) -> Any:
    """A list that holds itself twice; with a size, one whose JSON has two to this power of lists."""
    knot: list[Any] = []
    if not size:
        knot += [knot, knot]
    for _ in range(size):
        knot = [knot, knot]
    return knot


@pytest.mark.parametrize("content", [knotted(), {"a": (knotted(60),)}])
async def test_a_hosts_result_that_holds_itself_again_and_again_is_an_error_at_once(content: Any) -> None:
    bench = of_host(ScriptedServer(tools={"look": content}))
    _, answered, _ = await bench.play(open_session(), call_tools("look"), CLOSE)
    assert answered.result.content is None
    assert answered.result.error_message.startswith("Tool call failed: the result holds itself, or the same")


@pytest.mark.parametrize("schema", [nested(150), {"enum": knotted()}])
async def test_a_hosts_tool_whose_schema_the_trace_could_not_hold_is_refused_by_name(schema: Any) -> None:
    listed = (*LISTED, structs.replace(tool("a.think"), tool="maze", output_schema=schema))

    class Listed(ScriptedConnection):
        async def open(self, timeout_s: float) -> Listing:
            return Listing(tools=listed, protocol_version="")

    server = ScriptedServer()
    server.connect = lambda _note: Listed(server, "ok")  # type: ignore[method-assign]
    bench = of_host(server)
    with pytest.raises(
        ActorCrashed, match=r"the schema of its tool 'maze' is nested .*\n.*own code raised it"
    ):
        await bench.play(open_session())
    server = ScriptedServer()
    server.relisted = listed
    bench = of_host(server)
    with pytest.raises(
        ActorCrashed, match=r"the schema of its tool 'maze' is nested .*\n.*own code raised it"
    ):
        await bench.play(open_session(), call_tools("look"))


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ({"\ud800": 1}, {"\ufffd": 1}),
        ({(1, 2): 3}, {"(1, 2)": 3}),
        ([Path("a")], ["a"]),
        ([10**5000], [hex(10**5000)]),
    ],
)
async def test_a_hosts_result_that_json_cannot_express_is_written_as_text(
    content: Any, shown: object
) -> None:
    bench = of_host(ScriptedServer(tools={"look": content}))
    _, answered, _ = await bench.play(open_session(), call_tools("look"), CLOSE)
    assert answered.result.content == shown


@pytest.mark.parametrize("fields", [{"is_error": 1}, {"error_message": 3}, {"blocks": ("a",)}])
async def test_a_hosts_result_with_a_field_of_a_wrong_type_is_an_error(fields: Any) -> None:
    class Wrong(ScriptedConnection):
        async def call(self, tool: str, arguments: dict[str, object], timeout_s: float) -> ToolCallResult:
            return ToolCallResult("fine", **fields)

    server = ScriptedServer()
    server.connect = lambda _note: Wrong(server, "ok")  # type: ignore[method-assign]
    _, answered, _ = await of_host(server).play(open_session(), call_tools("look"), CLOSE)
    assert answered.result.error_message.startswith(
        "Tool call failed: its result cannot be recorded: Expected `"
    )


class Mute:
    def __str__(self) -> str:
        raise RuntimeError("mute")


@pytest.mark.parametrize(
    ("fields", "why"), [({"content": Mute()}, "mute"), ({"content": "x", "blocks": None}, "NoneType")]
)
async def test_a_hosts_result_with_a_part_that_cannot_be_read_is_an_error(fields: Any, why: str) -> None:
    class Wrong(ScriptedConnection):
        async def call(self, tool: str, arguments: dict[str, object], timeout_s: float) -> ToolCallResult:
            return ToolCallResult(**fields)

    server = ScriptedServer()
    server.connect = lambda _note: Wrong(server, "ok")  # type: ignore[method-assign]
    _, answered, _ = await of_host(server).play(open_session(), call_tools("look"), CLOSE)
    assert answered.result.error_message.startswith("Tool call failed: its result cannot be recorded: ")
    assert why in answered.result.error_message


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"protocol_version": None}, r"at `\$.protocol_version`"),
        ({"tools": (each for each in LISTED)}, "type generator"),
        ({"tools": (structs.replace(LISTED[0], description=None),)}, r"at `\$.tools\[0\].description`"),
    ],
)
async def test_a_hosts_listing_that_the_trace_could_not_hold_is_refused(changes: Any, why: str) -> None:
    class Wrong(ScriptedConnection):
        async def open(self, timeout_s: float) -> Listing:
            return Listing(**{"tools": LISTED, "protocol_version": ""} | changes)

    server = ScriptedServer()
    server.connect = lambda _note: Wrong(server, "ok")  # type: ignore[method-assign]
    with pytest.raises(ActorCrashed, match=rf"{why}.*\n.*own code raised it"):
        await of_host(server).play(open_session())


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (ConnectionStatus(pid="4711"), r"at `\$.pid`"),  # type: ignore[arg-type]  # the case under test
        (ConnectionStatus(exit="killed"), r"at `\$.exit`"),  # type: ignore[arg-type]  # likewise
        (None, "returned NoneType, not ConnectionStatus"),
    ],
)
async def test_a_hosts_status_that_the_trace_could_not_hold_is_refused(told: Any, why: str) -> None:
    class Wrong(ScriptedConnection):
        status = told

    server = ScriptedServer()
    server.connect = lambda _note: Wrong(server, "ok")  # type: ignore[method-assign]
    with pytest.raises(ActorCrashed, match=rf"{why}.*\n.*own code raised it"):
        await of_host(server).play(open_session())


async def test_a_hosts_method_that_returns_a_wrong_type_is_named_as_the_hosts() -> None:
    async def wrong(*_: object) -> list[str]:
        return ["wrong"]

    server = ScriptedServer()
    own = server.connect(lambda *_: None)  # type: ignore[arg-type, return-value]
    for name in ("request", "still_there"):
        setattr(own, name, wrong)
    hosts = HostsConnection(lambda _note: own, ServerName("a"), Recorder().record)  # type: ignore[arg-type]

    for asked in (hosts.request("m", {}, 1), hosts.still_there(1)):
        with pytest.raises(TypeError, match="a method of the connection returned list, not") as raised:
            await asked
        assert raised_by(raised.value).startswith("the server ")


# --- Connects that fail ---


@pytest.mark.parametrize("way", ["fail", "fail on entering"])
async def test_r6_1_the_first_connect_failing_is_reported_without_a_retry(way: str) -> None:
    bench = Bench(ScriptedServer(way, "ok"))
    phase = "list" if way == "fail" else "spawn"
    assert await bench.play(open_session()) == [StartupFailed(server="a", failure=failure(phase=phase))]
    (note,) = bench.notes(ConnectFailed)
    assert (note.attempt, note.then) == (1, "raise")
    assert bench.actor.connection == Untried()
    assert len(bench.server.did("leave")) == (way == "fail")


async def test_the_first_connect_failing_may_disable_by_policy() -> None:
    bench = Bench(ScriptedServer("fail"))
    events = await bench.play(open_session(first_connect="disable"))
    assert events == [McpDisabled(server="a", reason="it ended", newly=True, retry_s=30.0)]
    known = bench.actor.connection
    assert isinstance(known, Disabled)
    assert known.reason == "it ended"
    assert known.until_s is not None, "it is tried again after a time"


async def test_p26_a_later_connect_that_fails_is_tried_once_more_with_a_new_connection() -> None:
    bench = Bench(ScriptedServer("fail", "ok"), Proven())
    first, *_ = await bench.play(open_session(), CLOSE)
    assert (type(first), first.attempt) == (SessionOpened, 2)
    assert [note.then for note in bench.notes(ConnectFailed)] == ["retry"]
    assert bench.server.log == ["enter", "open", "leave"] * 2


async def test_p27_a_second_failure_disables_and_nothing_is_tried_again() -> None:
    bench = Bench(ScriptedServer("fail", "fail"), Proven())
    events = await bench.play(open_session(), open_session(), open_session())
    again = McpDisabled(server="a", reason="it ended")
    assert events == [McpDisabled(server="a", reason="it ended", newly=True, retry_s=30.0), again, again]
    assert [note.then for note in bench.notes(ConnectFailed)] == ["retry", "disable"]
    assert len(bench.server.did("enter")) == 2


# --- Calls ---


async def test_p17_calls_are_made_one_at_a_time_in_order() -> None:
    bench = Bench(ScriptedServer())
    events = await bench.play(open_session(), call_tools("look", "think", "look"), CLOSE)
    assert events[1:4] == [returned(1), returned(2), returned(3)]
    assert bench.server.did("call") == ["call look", "call think", "call look"]
    assert bench.server.most_at_once == 1


async def test_p17_the_next_call_is_made_only_when_the_one_before_was_settled() -> None:
    bench = Bench(ScriptedServer(tools={"think": "time out"}))
    batch = call_tools("look", "think", "look", after_timeout="continue")
    await bench.play(open_session(), batch, CLOSE)
    said = [
        (type(item.body).__name__, item.body.call_id)
        for item in bench.envelopes
        if isinstance(item.body, ToolCalled | ToolReturned | ToolTimedOut)
    ]
    assert said == [
        ("ToolCalled", "c1"),
        ("ToolReturned", "c1"),
        ("ToolCalled", "c2"),
        ("ToolTimedOut", "c2"),
        ("ToolCalled", "c3"),
        ("ToolReturned", "c3"),
    ]


@pytest.mark.parametrize(("own_s", "told_s"), [(None, 30.0), (5.0, 5.0), (60.0, 30.0)])
async def test_p25_a_timeout_names_the_limit_that_struck(own_s: float | None, told_s: float) -> None:
    """A server's options may set a smaller one than the turn's."""
    server = ScriptedServer(tools={"look": "time out" if own_s is None else ToolTimedOutError("look", own_s)})
    events = await Bench(server).play(open_session(), call_tools("look"), CLOSE)
    assert [event.timeout_s for event in events if isinstance(event, ToolTimedOut)] == [told_s]


async def test_p28_there_is_one_note_for_each_call_that_is_sent() -> None:
    bench = Bench(ScriptedServer(tools={"think": "time out"}))
    await bench.play(open_session(), call_tools("look", "think", "look"), CLOSE)
    assert bench.notes(ToolCalled) == [
        ToolCalled(server="a", batch=1, call_id="c1", tool="look", arguments={"n": 1}),
        ToolCalled(server="a", batch=1, call_id="c2", tool="think", arguments={"n": 2}),
    ]


async def test_p28_a_call_that_is_refused_before_it_is_sent_is_no_call() -> None:
    bench = Bench(ScriptedServer(tools={"look": "unsent"}))
    events = await bench.play(open_session(), call_tools("look", "think"), CLOSE)
    unsent = ToolSkipped(batch=1, call_id="c1", reason="no such argument", refused=True)
    assert events[1:3] == [unsent, returned(2)]
    assert [note.call_id for note in bench.notes(ToolCalled)] == ["c2"]
    assert bench.server.did("call") == ["call think"]


async def test_r6_4_a_refused_call_is_an_error_result_and_the_batch_goes_on() -> None:
    bench = Bench(ScriptedServer(tools={"look": "refuse"}))
    events = await bench.play(open_session(), call_tools("look", "think"), CLOSE)
    refused = ToolCallResult(None, True, "Tool call failed: no such thing")
    assert events[1:3] == [ToolReturned(batch=1, call_id="c1", result=refused), returned(2)]


async def test_p24_after_a_timeout_no_later_call_of_the_batch_reaches_the_server() -> None:
    bench = Bench(ScriptedServer(tools={"look": "time out"}))
    events = await bench.play(
        open_session(), call_tools("look", "think", "think"), call_tools("think", batch=2), CLOSE
    )
    assert events[1:] == [
        ToolTimedOut(batch=1, call_id="c1", timeout_s=30.0),
        ToolSkipped(batch=1, call_id="c2", reason=SKIPPED_AFTER_TIMEOUT),
        ToolSkipped(batch=1, call_id="c3", reason=SKIPPED_AFTER_TIMEOUT),
        returned(1, batch=2),
        CLOSED,
    ]
    assert bench.server.did("call") == ["call look", "call think"]


async def test_after_a_timeout_the_batch_may_go_on_by_policy() -> None:
    bench = Bench(ScriptedServer(tools={"look": "time out"}))
    events = await bench.play(open_session(), call_tools("look", "think", after_timeout="continue"))
    assert events[1:3] == [ToolTimedOut(batch=1, call_id="c1", timeout_s=30.0), returned(2)]


async def test_after_a_death_the_rest_is_skipped_whatever_the_policy() -> None:
    bench = Bench(ScriptedServer(tools={"look": "die"}))
    events = await bench.play(open_session(), call_tools("look", "think", after_timeout="continue"), CLOSE)
    assert events[1:] == [
        ServerDied(server="a", batch=1, call_id="c1", failure=failure(phase="call")),
        ToolSkipped(batch=1, call_id="c2", reason=SKIPPED_AFTER_DEATH),
        CLOSED,
    ]


async def test_a_bug_in_a_connection_is_a_crash_and_the_server_is_gone_all_the_same() -> None:
    bench = Bench(ScriptedServer(tools={"look": "bug"}))
    with pytest.raises(ActorCrashed, match="a bug"):
        await bench.play(open_session(), call_tools("look"))
    assert bench.server.log[-1] == "leave"


async def test_a_bug_in_leaving_is_a_crash_and_the_agent_is_told_all_the_same() -> None:
    bench = Bench(ScriptedServer("fail on leaving"))
    with pytest.raises(ActorCrashed, match="while leaving"):
        await bench.play(open_session(), CLOSE, CLOSE)
    assert bench.events()[-1] == CLOSED


# --- Cancellation ---


async def cancelled(bench: Bench, *commands: Any, when: Callable[[], bool]) -> None:
    with anyio.fail_after(60), anyio.CancelScope() as scope:
        async with Supervisor(bench.recorder) as group:
            bench.start(group)
            for command in commands:
                await bench.tell(command)
            while not when():
                await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await anyio.sleep_forever()


CANCELLED: dict[str, tuple[ScriptedServer, tuple[Any, ...], str]] = {
    "in a call": (ScriptedServer(tools={"look": "hang"}), (open_session(), call_tools("look")), "call look"),
    "while it connects": (ScriptedServer("hang"), (open_session(),), "open"),
    "after it closed": (ScriptedServer(), (open_session(), CLOSE), "leave"),
    "between two commands": (ScriptedServer(), (open_session(),), "open"),
}


@pytest.mark.parametrize("moment", CANCELLED)
async def test_p6_a_cancelled_session_ends_its_server_and_says_once_that_it_is_closed(moment: str) -> None:
    server, commands, sign = CANCELLED[moment]
    bench = Bench(server)
    await cancelled(bench, *commands, when=lambda: sign in server.log)
    assert server.log[-1] == "leave"
    assert [event for event in bench.events() if isinstance(event, SessionClosed)] == [CLOSED]


async def test_a_session_cancelled_before_it_read_its_commands_says_that_it_is_closed() -> None:
    bench = Bench(ScriptedServer())
    await cancelled(bench, when=lambda: True)
    assert bench.events() == [SessionClosed(server="a")]


# --- Deadline ---


async def test_the_deadline_bounds_opening_and_calling() -> None:
    bench = Bench(ScriptedServer(tools={"look": "hang"}), Proven())
    started = anyio.current_time()
    events = await bench.play(open_session(), call_tools("look"), CLOSE, work_s=0.1)
    assert isinstance(events[1], ToolTimedOut)
    assert all(limit_s <= 0.1 for limit_s in bench.server.limits_s)
    assert anyio.current_time() - started < 5


@pytest.mark.parametrize("way", ["hang", "slow to enter, hang"])
async def test_a_connect_that_the_deadline_cut_short_says_nothing_about_the_server(way: str) -> None:
    bench = Bench(ScriptedServer(way, way), Proven())
    with anyio.fail_after(60):
        async with Supervisor(bench.recorder) as group:
            bench.start(group, work_s=0.5)
            await bench.tell(open_session())
            await bench.tell(CLOSE)
            await bench.agent.receive()
    assert bench.events() == [SessionClosed(server="a")]
    assert bench.actor.connection == Proven()
    assert len(bench.server.did("enter")) == 1


class SharedConnection(ScriptedConnection):
    """A connection with other users, too; `log` has when a batch has it alone."""

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        self._server.log.append("alone")
        yield
        self._server.log.append("shared")


async def test_a_batch_has_a_shared_session_alone() -> None:
    server = ScriptedServer()
    bench = Bench(server)
    server.connect = lambda _note: SharedConnection(server, "ok")  # type: ignore[method-assign]
    await bench.play(open_session(), call_tools("look", "think"), call_tools("look", batch=2), CLOSE)
    assert server.log == [
        *("enter", "open", "alone", "call look", "call think", "shared"),
        *("alone", "call look", "shared", "leave"),
    ]
