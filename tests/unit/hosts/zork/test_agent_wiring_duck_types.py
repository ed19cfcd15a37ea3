"""Objects with nothing but the required methods, as the model and the tool server of a turn."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import anyio
import anyio.lowlevel
import pytest

from grue.config.settings import GameConfiguration
from grue.errors import LLMError, MCPError
from grue.hosts.zork.chat_messages import LLMResponse
from grue.hosts.zork.client_actor import client_actor
from grue.hosts.zork.look_alikes import completion_body, completion_failure
from grue.hosts.zork.manager import MCPManager
from grue.hosts.zork.manager_connection import ManagerConnection, OverriddenManagerConnection, connect_manager
from grue.messages import (
    AnswerSchema,
    CompletionFailed,
    CompletionReceived,
    OfferTools,
    RequestCompletion,
    RequireAnswer,
    SystemText,
    ToolCallResult,
    ToolDefinition,
    ToolMessage,
    UserText,
)
from grue.policies import ContextOverflow
from grue.runtime.actor import Supervisor
from grue.runtime.trace.recorder import Recorder
from grue.testing.doubles import MockLLMClient, MockMCPManager
from grue.tool_sessions.connection import Listing
from grue.tool_sessions.failures import ServerFailed, ToolTimedOutError

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

SCHEMA = {"type": "object", "properties": {"thought": {"type": "string"}}}
THINK = ToolDefinition(server="mind", tool="think", description="Think.", input_schema=SCHEMA)
OFFERED = {
    "type": "function",
    "function": {"name": "mind.think", "description": "Think.", "parameters": SCHEMA},
}
MARK = {"cache_control": {"type": "ephemeral"}}
OPENING = (SystemText("You play."), UserText("A dark room."))


def request(number: int, *new: Any, mode: OfferTools | RequireAnswer | None = None) -> RequestCompletion:
    return RequestCompletion(conversation="turn", request=number, new=new, mode=mode or OfferTools())


@asynccontextmanager
async def asking(client: Any, **sampling: Any) -> AsyncIterator[Callable[[RequestCompletion], Any]]:
    async with Supervisor(Recorder(), stop_grace_s=0.05) as supervisor:
        agent, mailbox = supervisor.mailbox("agent"), supervisor.mailbox("llm")
        supervisor.start(client_actor(client, "gpt-4o", **sampling)(mailbox, agent, supervisor.note))

        async def ask(command: RequestCompletion) -> Any:
            await mailbox.send(command, sender="agent")
            with anyio.fail_after(60):
                return (await agent.receive()).body

        yield ask


async def ask_once(client: Any) -> Any:
    async with asking(client) as ask:
        return await ask(request(1, *OPENING, mode=OfferTools((THINK,))))


# --- Clients: requests ---


async def test_a_client_gets_the_required_arguments() -> None:
    client = MockLLMClient()
    client.add_response(tool_calls=[{"id": "a", "name": "mind.think", "arguments": {"thought": "hm"}}])
    client.add_response(content="{}")
    answer = AnswerSchema("AgentResponse", {"type": "object", "properties": {"action": {"type": "string"}}})
    async with asking(client, temperature=0.5, max_tokens=9) as ask:
        await ask(request(1, *OPENING, mode=OfferTools((THINK,))))
        await ask(
            request(2, ToolMessage("a", '{"content": 1}'), UserText("Now."), mode=RequireAnswer(answer))
        )
    opening = [
        {"role": "system", "content": "You play.", **MARK},
        {"role": "user", "content": "A dark room.", **MARK},
    ]
    always = {
        "model": "gpt-4o",
        "stop": None,
        "temperature": 0.5,
        "top_p": None,
        "top_k": None,
        "min_p": None,
        "max_tokens": 9,
        "name": "Agent",
    }
    function = {"name": "mind.think", "arguments": '{"thought": "hm"}'}
    assert client.requests[0] == {
        **always,
        "messages": opening,
        "response_format": None,
        "tools": [OFFERED],
        "tool_choice": "auto",
    }
    shape = client.requests[1].pop("response_format")
    assert client.requests[1] == {
        **always,
        "messages": [
            *opening,
            {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "a", "content": '{"content": 1}'},
            {"role": "user", "content": "Now.", **MARK},
        ],
        "tools": None,
        "tool_choice": None,
    }
    assert (shape["type"], shape["json_schema"]["name"]) == ("json_schema", "AgentResponse")


async def test_every_request_has_messages_of_its_own() -> None:
    client = MockLLMClient()
    client.add_response(content="one")
    client.add_response(content="two")
    async with asking(client) as ask:
        await ask(request(1, *OPENING, mode=RequireAnswer()))
        client.requests[0]["messages"].clear()
        await ask(request(2, UserText("Again."), mode=RequireAnswer()))
    assert [message["role"] for message in client.requests[1]["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]


class Sdk:
    """A client like an SDK's: no `name`, no `top_k`, `None` is not the same as nothing."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.given: list[dict[str, Any]] = []
        self.chat = SimpleNamespace(completions=self)

    def create(
        self,
        *,
        model: str,
        messages: list[Any],
        temperature: Any = ...,
        tools: Any = ...,
        tool_choice: Any = ...,
    ) -> Any:
        given = {"model": model, "messages": messages, "temperature": temperature, "tools": tools}
        self.given.append({**given, "tool_choice": tool_choice})
        return self.answer


def sdk_answer(**message: Any) -> SimpleNamespace:
    said = SimpleNamespace(**{"content": None, "tool_calls": None, **message})
    choice = SimpleNamespace(message=said, finish_reason="stop")
    return SimpleNamespace(choices=[choice], model="gpt-4o-2024", usage={"prompt_tokens": 3})


async def test_an_sdk_gets_what_is_set_and_names_that_its_endpoint_takes() -> None:
    function = SimpleNamespace(name="mind__think", arguments="{}")
    client = Sdk(sdk_answer(tool_calls=[SimpleNamespace(id="a", type="function", function=function)]))
    async with asking(client, top_k=3) as ask:
        heard = await ask(request(1, *OPENING, mode=OfferTools((THINK,))))
        await ask(request(2, ToolMessage("a", "{}")))
    given = client.given[1]
    assert given["temperature"] is ...
    assert given["tools"][0]["function"]["name"] == "mind__think"
    assert given["messages"][0] == {"role": "system", "content": "You play."}
    assert given["messages"][2]["tool_calls"][0]["function"]["name"] == "mind__think"
    assert heard.tool_calls[0].name == "mind.think"
    assert (heard.model, heard.usage.input_tokens) == ("gpt-4o-2024", 3)


# --- Clients: replies ---


async def test_an_asynchronous_client_is_awaited() -> None:
    class Asynchronous:
        async def create(self, **kwargs: Any) -> LLMResponse:
            await anyio.lowlevel.checkpoint()
            return LLMResponse(content=f"for {kwargs['name']}", model="m")

    heard = await ask_once(SimpleNamespace(chat=SimpleNamespace(completions=Asynchronous())))
    assert heard.content == "for Agent"


async def test_a_mock_of_a_client_works() -> None:
    client = MagicMock()
    client.chat.completions.create.return_value = MagicMock(content="north", tool_calls=None)
    heard = await ask_once(client)
    assert isinstance(heard, CompletionReceived)
    assert (heard.content, heard.tool_calls) == ("north", ())


def test_a_model_dump_is_read_whole() -> None:
    body = {"choices": [{"message": {"content": "x", "reasoning_details": [1]}}]}
    assert completion_body(SimpleNamespace(model_dump=lambda: body)) == body
    assert completion_body(body) == body


async def test_a_blocking_client_is_left_behind_when_the_turn_is_cancelled() -> None:
    loop, asked, release = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    returned: list[bool] = []

    def create(**kwargs: Any) -> None:
        loop.call_soon_threadsafe(asked.set)
        release.wait(60)
        returned.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            ask_once, SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
        )
        with anyio.fail_after(60):
            await asked.wait()
        tasks.cancel_scope.cancel()
    assert not returned
    release.set()


# --- Clients: failures ---


class StatusError(Exception):
    def __init__(self, **attributes: Any) -> None:
        super().__init__("said no to sk-secret")
        self.__dict__.update(attributes)


class APITimeoutError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (StatusError(status_code=401), "refused", 401),
        (StatusError(status=429), "unavailable", 429),
        (StatusError(response=SimpleNamespace(status_code=503)), "unavailable", 503),
        (StatusError(status_code=MagicMock()), "unavailable", None),
        (LLMError("no", kind="invalid_reply", status=200), "invalid_reply", 200),
        (TimeoutError(), "timed_out", None),
        (APITimeoutError(), "timed_out", None),
        (ConnectionRefusedError("nobody there"), "unreachable", None),
        (RuntimeError(), "unavailable", None),
    ],
)
async def test_what_a_client_raises_is_a_failed_completion(error: Exception, kind: str, status: Any) -> None:
    client = MockLLMClient()
    client.add_error(error)
    heard = await ask_once(client)
    assert isinstance(heard, CompletionFailed)
    assert heard.failure.kind == kind
    assert heard.failure.status == status
    assert heard.failure.message


def test_the_failure_of_a_request_that_was_too_long_has_the_sizes_that_the_error_names() -> None:
    words = "This model's maximum context length is 8192 tokens. Your messages resulted in 9000 tokens."
    failure = completion_failure(LLMError(words, kind="refused", status=400), MockLLMClient(), "m")
    assert failure.reason == "too_long"
    assert failure.overflow == ContextOverflow(window_tokens=8192, prompt_tokens=9000)
    plain = completion_failure(StatusError(status_code=400), MockLLMClient(), "m")
    assert (plain.reason, plain.overflow) == ("request", None)


def test_a_failure_never_tells_the_clients_key() -> None:
    failure = completion_failure(StatusError(), SimpleNamespace(api_key="sk-secret"), "m")
    assert failure.message == "said no to [redacted:api_key]"


def test_an_object_that_is_no_client_is_refused() -> None:
    with pytest.raises(MCPError, match=r"object has no chat\.completions\.create"):
        client_actor(object(), "m")


# --- Managers ---


class TaskGroupManager(MockMCPManager):
    """A manager as the requirements sketch it: it enters in one coroutine what it leaves in another."""

    async def connect_session(self) -> None:
        self.task = asyncio.current_task()
        self.tasks = anyio.create_task_group()
        await self.tasks.__aenter__()
        self.tasks.start_soon(anyio.sleep_forever)
        await super().connect_session()

    async def disconnect_session(self) -> None:
        assert asyncio.current_task() is self.task
        self.tasks.cancel_scope.cancel()
        await self.tasks.__aexit__(None, None, None)
        await super().disconnect_session()


class Counting(MockMCPManager):
    """A manager that counts its disconnects and can hang anywhere."""

    def __init__(self, *, hangs_in: str = "", schemas: Any = None) -> None:
        super().__init__()
        self.disconnects = 0
        self._hangs_in = hangs_in
        self._given = schemas

    async def connect_session(self) -> None:
        if self._hangs_in == "connect":
            await asyncio.sleep(60)
        await super().connect_session()

    async def get_tool_schemas(self) -> Any:
        if isinstance(self._given, Exception):
            raise self._given
        return await super().get_tool_schemas() if self._given is None else self._given

    async def disconnect_session(self) -> None:
        self.disconnects += 1
        if self._hangs_in == "disconnect":
            await asyncio.sleep(60)
        await super().disconnect_session()


def connection(manager: Any, notes: list[Any] | None = None) -> ManagerConnection:
    def note(body: Any, **_: Any) -> Any:
        if notes is not None:
            notes.append(body)

    made = connect_manager(manager, "thoughtbox")(note)
    assert isinstance(made, ManagerConnection)
    return made


async def test_a_manager_may_leave_in_disconnect_what_it_entered_in_connect() -> None:
    manager = TaskGroupManager()
    async with connection(manager) as session:
        await session.open(60)
        result = await session.call("think", {}, 60)
        assert manager.connected
    assert not manager.connected
    assert result == ToolCallResult({"default": "result"})


async def test_it_disconnects_although_the_turn_is_cancelled() -> None:
    manager = TaskGroupManager()
    with anyio.CancelScope() as scope:
        async with connection(manager) as session:
            await session.open(60)
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert not manager.connected


async def test_a_connect_that_raises_is_told_and_not_disconnected() -> None:
    manager = Counting()
    manager.connect_error = OSError("no such program")
    async with connection(manager) as session:
        with pytest.raises(ServerFailed) as raised:
            await session.open(60)
    failure = raised.value.failure
    assert (failure.phase, failure.cause) == ("initialize", "no such program")
    assert (failure.command, manager.disconnects) == ("Counting.connect_session()", 0)


async def test_a_timeout_of_the_managers_own_is_not_told_as_the_start_up_limit() -> None:
    manager = Counting()
    manager.connect_error = TimeoutError()
    async with connection(manager) as session:
        with pytest.raises(ServerFailed) as raised:
            await session.open(60)
    assert raised.value.failure.cause == "TimeoutError"


async def test_a_connect_that_hangs_is_cancelled_and_disconnected() -> None:
    manager = Counting(hangs_in="connect")
    async with connection(manager) as session:
        with pytest.raises(ServerFailed, match=r"no answer to connect_session within 0\.05 s"):
            await session.open(0.05)
    assert manager.disconnects == 1


async def test_a_connect_that_cancels_itself_is_told_at_once_and_disconnected() -> None:
    manager = Counting()
    manager.connect_error = asyncio.CancelledError()  # type: ignore[assignment]
    async with connection(manager) as session:
        with pytest.raises(ServerFailed, match="the manager's own code cancelled it"):
            await session.open(60)
        assert anyio.current_time() == 0
    assert manager.disconnects == 1


async def test_a_call_that_cancels_itself_is_a_failed_call() -> None:
    class Cancels(Counting):
        async def call_tool(self, *_: Any, **__: Any) -> Any:
            raise asyncio.CancelledError

    async with connection(Cancels()) as session:
        await session.open(60)
        result = await session.call("think", {}, 60)
    assert result.error_message == "Tool call failed: CancelledError"


async def test_what_is_no_list_of_tools_is_told() -> None:
    async with connection(Counting(schemas=5)) as session:
        with pytest.raises(ServerFailed, match="get_tool_schemas has returned int, not a list of tools"):
            await session.open(60)


async def test_a_listing_that_raises_is_told_and_disconnected() -> None:
    manager = Counting(schemas=RuntimeError("no listing"))
    async with connection(manager) as session:
        with pytest.raises(ServerFailed, match="no listing"):
            await session.open(60)
    assert manager.disconnects == 1


@pytest.mark.parametrize(("deadline_s", "limit_s"), [(60, 5), (3, 3)])
async def test_a_disconnect_that_hangs_is_given_up(deadline_s: float, limit_s: float) -> None:
    notes: list[Any] = []
    with anyio.move_on_after(deadline_s):
        async with connection(Counting(hangs_in="disconnect"), notes) as session:
            await session.open(60)
    assert [note.text for note in notes] == [f"disconnect_session did not end within {limit_s} s"]
    assert anyio.current_time() == limit_s


@pytest.mark.parametrize(
    ("entry", "limit_s"), [({"exit_grace_seconds": 20}, 23), ({}, 5), ({"exit_grace_seconds": 0.5}, 3.5)]
)
@pytest.mark.parametrize("cancelled_s", [None, 0, 3])
async def test_overrides_may_disconnect_as_long_as_the_server_may_take_to_exit(
    tmp_path: Path, entry: dict[str, float], limit_s: float, cancelled_s: float | None
) -> None:
    class Slow(MCPManager):
        async def connect_session(self) -> None:
            pass

        async def get_tool_schemas(self) -> list[Any]:
            return []

        async def disconnect_session(self) -> None:
            await asyncio.sleep(takes_s)

    (tmp_path / "mcp_config.json").write_text(json.dumps({"mcpServers": {"box": {"command": "x", **entry}}}))
    notes: list[Any] = []
    said_s = limit_s
    if cancelled_s is not None:
        said_s, limit_s = 2, cancelled_s + 2
    for takes_s in (limit_s - 0.25, limit_s + 0.25):
        began = anyio.current_time()
        with anyio.CancelScope() as scope:
            manager = Slow(GameConfiguration(project_dir=tmp_path))
            async with OverriddenManagerConnection(manager, lambda body, **_: notes.append(body)) as session:
                await session.open(60)
                if cancelled_s is not None:
                    asyncio.get_running_loop().call_later(cancelled_s, scope.cancel)
        assert anyio.current_time() - began == min(takes_s, limit_s)
    assert [note.text for note in notes] == [f"disconnect_session did not end within {said_s:g} s"]


async def test_a_disabled_manager_has_no_tools_and_is_left_alone() -> None:
    manager = Counting()
    manager.is_disabled = True
    async with connection(manager) as session:
        assert await session.open(60) == Listing(tools=(), protocol_version="")
    assert (manager.connect_count, manager.disconnects) == (0, 0)


async def test_a_manager_that_gives_up_in_connect_has_no_tools() -> None:
    class GivesUp(Counting):
        async def connect_session(self) -> None:
            self.is_disabled = True
            raise MCPError("MCP retry failed")

    async with connection(GivesUp()) as session:
        assert (await session.open(60)).tools == ()


async def test_schemas_become_tools_with_their_own_names() -> None:
    function = {"name": "elsewhere.look", "description": None, "parameters": None}
    schemas = [{"function": {"name": "thoughtbox.a.b"}}, {"function": function}, {"function": {}}, None]
    manager, notes = Counting(schemas=schemas), list[Any]()
    manager.add_tool("elsewhere.look")
    async with connection(manager, notes) as session:
        tools = (await session.open(60)).tools
        result = await session.call(tools[1].tool, {}, 60)
    assert [tool.name for tool in tools] == ["thoughtbox.a.b", "elsewhere.look"]
    assert (tools[0].server, tools[0].tool) == ("thoughtbox", "a.b")
    assert tools[1].server == "thoughtbox"
    assert [note.kind for note in notes] == ["bad_tool", "bad_tool"]
    assert (manager.calls, result.is_error) == ([("elsewhere.look", {})], False)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"a": 1}, ToolCallResult({"a": 1})),
        ("text", ToolCallResult("text")),
        (SimpleNamespace(content=[1], is_error=False), ToolCallResult([1])),
        (
            SimpleNamespace(content=None, is_error=True, error_message="no"),
            ToolCallResult(None, is_error=True, error_message="no"),
        ),
        (
            SimpleNamespace(content="no", is_error=True),
            ToolCallResult("no", is_error=True, error_message="The tool reported an error"),
        ),
        (float("nan"), ToolCallResult(None)),
    ],
)
async def test_any_answer_is_a_result(answer: Any, expected: ToolCallResult) -> None:
    class Sketch(MockMCPManager):
        async def call_tool(self, tool_name: str, arguments: dict[str, Any]) -> Any:  # type: ignore[override]
            return answer

    async with connection(Sketch()) as session:
        await session.open(60)
        assert await session.call("think", {}, 60) == expected


class Failing(MockMCPManager):
    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self._error = error

    async def call_tool(self, tool_name: str, arguments: Any, timeout_seconds: float | None = None) -> Any:
        if self._error is None:
            await asyncio.sleep(60)
        raise self._error or AssertionError


@pytest.mark.parametrize("error", [TimeoutError(), None], ids=["raised", "hanging"])
async def test_a_timeout_is_told(error: Exception | None) -> None:
    async with connection(Failing(error)) as session:
        await session.open(60)
        with pytest.raises(ToolTimedOutError, match=r"timed out after 0\.05s"):
            await session.call("think", {}, 0.05)


async def test_any_other_exception_of_a_call_is_a_result() -> None:
    async with connection(Failing(ZeroDivisionError())) as session:
        await session.open(60)
        result = await session.call("think", {}, 60)
    assert result == ToolCallResult(None, is_error=True, error_message="Tool call failed: ZeroDivisionError")


def test_an_object_that_is_no_manager_is_refused() -> None:
    with pytest.raises(
        MCPError, match=r"object is not an MCP manager: it lacks connect_session, disconnect_session"
    ):
        connect_manager(object(), "thoughtbox")  # type: ignore[arg-type]  # what is tested
