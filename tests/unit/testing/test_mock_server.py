"""The mock server, with the official SDK's client, in this process and in both protocol eras."""

import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("mcp", reason="the mock server needs the extra: pip install 'grue[mcp]'")

from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError as ProtocolError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    PromptReference,
    ResourceTemplateReference,
    Root,
    TextContent,
)
from promises import GUARD_S

from grue.testing import mock_server
from grue.testing.mock_features import CITIES, reference_server
from grue.testing.mock_server import FEATURES, MemoryEventStore, MockServer

ERAS = ("legacy", "auto")
pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the server as long as it takes. With `auto`, the SDK waits for ten seconds at most."""
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", GUARD_S)


@pytest.fixture(params=ERAS)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def _sampled(*_: Any) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent(type="text", text="42"), model="m")


async def _elicited(_: Any, params: Any) -> ElicitResult:
    if getattr(params, "mode", "form") == "url":
        return ElicitResult(action="accept")
    return ElicitResult(action="accept", content={"username": "ada", "email": "a@b.c"})


async def _roots(*_: Any) -> ListRootsResult:
    return ListRootsResult(roots=[Root(uri="file:///work")])


@asynccontextmanager
async def connected(server: MockServer, mode: str, **options: Any) -> AsyncIterator[Client]:
    callbacks = {
        "sampling_callback": _sampled,
        "elicitation_callback": _elicited,
        "list_roots_callback": _roots,
    }
    async with Client(server, mode=mode, **callbacks, **options) as client:
        yield client


async def _all(list_page: Callable[..., Any], member: str) -> list[str]:
    names: list[str] = []
    cursor = None
    while True:
        page = await list_page(cursor=cursor)
        names += [item.name for item in getattr(page, member)]
        cursor = page.next_cursor
        if cursor is None:
            return names


@pytest.mark.parametrize("page_size", [None, 1, 2, 100])
async def test_pages_hold_every_item_once(mode: str, page_size: int | None) -> None:
    async with connected(reference_server(page_size=page_size), mode) as client:
        tools = await _all(client.list_tools, "tools")
        prompts = await _all(client.list_prompts, "prompts")
        resources = await _all(client.list_resources, "resources")
        templates = await _all(client.list_resource_templates, "resource_templates")
    assert len(tools) == len(set(tools)) > 15
    assert (len(prompts), len(resources), len(templates)) == (4, 3, 1)


@pytest.mark.parametrize("cursor", ["999", "-1", "1", "x", "", "\u0663", "2.0", "9" * 5000])
async def test_a_cursor_that_it_has_not_given_is_an_error(mode: str, cursor: str) -> None:
    async with connected(reference_server(page_size=2), mode) as client:
        for list_page in (client.list_tools, client.list_prompts, client.list_resources):
            with pytest.raises(ProtocolError) as caught:
                await list_page(cursor=cursor)
            assert caught.value.error.code == INVALID_PARAMS


CALLS: dict[str, Callable[[Client], Any]] = {
    "tools": lambda client: client.list_tools(),
    "resources": lambda client: client.list_resources(),
    "templates": lambda client: client.list_resource_templates(),
    "prompts": lambda client: client.get_prompt("test_simple_prompt", {}),
    "completions": lambda client: client.complete(
        PromptReference(type="ref/prompt", name="test_simple_prompt"), {"name": "city", "value": "P"}
    ),
}
OF_SESSIONS: dict[str, Callable[[Client], Any]] = {
    "subscriptions": lambda client: client.subscribe_resource("test://watched-resource"),
    "logging": lambda client: client.set_logging_level("error"),
}


@pytest.mark.parametrize("feature", CALLS)
async def test_a_feature_that_is_left_out_is_not_found_and_not_announced(mode: str, feature: Any) -> None:
    async with connected(reference_server(without=[feature]), mode) as client:
        with pytest.raises(ProtocolError) as caught:
            await CALLS[feature](client)
        announced = client.server_capabilities.model_dump(exclude_none=True)
        others = [name for name in CALLS if name != feature and name != "templates"]
        for other in others:
            await CALLS[other](client)
    assert caught.value.error.code == METHOD_NOT_FOUND
    assert feature not in announced


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
@pytest.mark.parametrize("feature", OF_SESSIONS)
async def test_so_is_a_feature_of_a_session(feature: Any) -> None:
    async with connected(reference_server(without=[feature]), "legacy") as client:
        with pytest.raises(ProtocolError) as caught:
            await OF_SESSIONS[feature](client)
    assert caught.value.error.code == METHOD_NOT_FOUND


@pytest.mark.parametrize(("era", "spoken"), [("initialize", "2025-11-25"), ("stateless", "2026-07-28")])
@pytest.mark.slow
async def test_each_era_can_be_switched_off(era: Any, spoken: str) -> None:
    with reference_server(era=era).serve_http() as url:
        async with Client(url) as client:
            assert client.protocol_version == spoken
            assert (await client.call_tool("echo", {"text": "hello"})).content[0].text == "hello"


def test_a_served_server_that_is_never_left_keeps_no_program_alive() -> None:
    with reference_server().serve_http():
        assert [each.daemon for each in threading.enumerate() if each.name.startswith("mock server")] == [
            True
        ]


async def test_a_server_without_initialize_names_the_versions_that_it_speaks() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with connected(reference_server(era="stateless"), "legacy"):
            pass
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, ProtocolError)
    assert error.error.message == "Unsupported protocol version"
    assert error.error.data["supported"] == ["2026-07-28"]


async def test_arguments_are_validated_and_unknown_tools_are_errors(mode: str) -> None:
    async with connected(reference_server(), mode) as client:
        good = await client.call_tool("add", {"a": 2, "b": 3})
        wrong = await client.call_tool("add", {"a": "two", "b": 3})
        missing = await client.call_tool("add", {})
        failed = await client.call_tool("test_error_handling", {})
        with pytest.raises(ProtocolError) as caught:
            await client.call_tool("no_such_tool", {})
    assert good.structured_content == {"result": 5}
    assert [result.is_error for result in (good, wrong, missing, failed)] == [False, True, True, True]
    assert caught.value.error.code == INVALID_PARAMS


async def test_names_that_it_does_not_have_are_invalid_parameters(mode: str) -> None:
    prompt = PromptReference(type="ref/prompt", name="no_such_prompt")
    template = ResourceTemplateReference(type="ref/resource", uri="test://nothing/{id}")
    async with connected(reference_server(), mode) as client:
        for ask in (
            lambda: client.get_prompt("no_such_prompt", {}),
            lambda: client.get_prompt("test_prompt_with_arguments", {"arg1": "a"}),
            lambda: client.complete(prompt, {"name": "arg1", "value": "p"}),
            lambda: client.complete(template, {"name": "id", "value": "p"}),
            lambda: client.read_resource("test://nothing"),
        ):
            with pytest.raises(ProtocolError) as caught:
                await ask()
            assert caught.value.error.code == INVALID_PARAMS
        known = ResourceTemplateReference(type="ref/resource", uri="test://template/{id}/data")
        assert (await client.complete(known, {"name": "id", "value": "Par"})).completion.total == 2


async def test_a_prompt_that_raises_is_an_internal_error(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    server = MockServer("mine")

    @server.prompt()
    def broken() -> str:
        raise OSError("no disk")

    async with connected(server, mode) as client:
        with pytest.raises(ProtocolError, match="Error rendering prompt broken") as caught:
            await client.get_prompt("broken", {})
    assert caught.value.error.code == INTERNAL_ERROR
    assert "OSError: no disk" in caplog.text


async def test_arguments_are_not_converted_to_what_the_schema_says(mode: str) -> None:
    async with connected(reference_server(), mode) as client:
        wrong = await client.call_tool("add", {"a": "2", "b": 3})
        more = await client.call_tool("json_schema_2020_12_tool", {"name": "a", "size": 3})
    assert wrong.is_error
    assert '"2" is not of type "integer"' in wrong.content[0].text
    assert more.is_error


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
@pytest.mark.parametrize("transport", ["http", "sse"])
@pytest.mark.slow
async def test_each_client_has_its_own_subscriptions_and_log_level(transport: Any) -> None:
    heard: dict[str, list[str]] = {"ada": [], "bob": []}

    def hearing(name: str) -> Callable[[Any], Any]:
        async def hear(message: Any) -> None:
            heard[name].append(getattr(message, "method", ""))

        return hear

    with reference_server().serve_http(transport=transport) as url:
        connect = sse_client if transport == "sse" else streamable_http_client
        async with (
            Client(connect(url), mode="legacy", message_handler=hearing("ada")) as ada,
            Client(connect(url), mode="legacy", message_handler=hearing("bob")) as bob,
        ):
            assert ada.server_capabilities.tools.list_changed is True
            await ada.subscribe_resource("test://watched-resource")
            await ada.set_logging_level("error")
            await bob.unsubscribe_resource("test://watched-resource")
            await bob.call_tool("touch", {"uri": "test://watched-resource"})
            await bob.call_tool("add_tool", {"name": "dig"})
            await bob.call_tool("test_tool_with_logging", {})
            with anyio.fail_after(GUARD_S):
                while len(heard["ada"]) < 2 or len(heard["bob"]) < 4:  # noqa: ASYNC110 - a callback appends
                    await anyio.sleep(0.01)
    assert heard["ada"] == ["notifications/resources/updated", "notifications/tools/list_changed"]
    assert sorted(heard["bob"]) == [*["notifications/message"] * 3, "notifications/tools/list_changed"]


async def test_a_tool_can_ask_for_a_sample_an_answer_and_roots(mode: str) -> None:
    async with connected(reference_server(), mode) as client:
        sampled = await client.call_tool("test_sampling", {"prompt": "6 x 7?"})
        answered = await client.call_tool("test_elicitation", {"message": "Who are you?"})
        roots = await client.call_tool("list_roots", {})
        opened = await client.call_tool("open_page", {})
        chosen = await client.call_tool("test_elicitation_sep1330_enums", {})
    assert opened.content[0].text == "action=accept"
    assert "action=accept" in chosen.content[0].text
    assert "42" in sampled.content[0].text
    assert "ada" in answered.content[0].text
    assert "file:///work" in roots.content[0].text


@pytest.mark.parametrize("tool", ["open_page", "test_elicitation_sep1330_enums"])
async def test_a_client_that_cannot_ask_its_user_is_refused(mode: str, tool: str) -> None:
    async with Client(reference_server(), mode=mode) as client:
        with pytest.raises(ProtocolError):
            await client.call_tool(tool, {})
        assert not (await client.call_tool("echo", {"text": "still here"})).is_error


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_progress_and_log_messages_arrive_during_the_call() -> None:
    progress: list[float] = []
    logged: list[str] = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    async def on_log(params: Any) -> None:
        logged.append(params.data)

    async with connected(reference_server(), "legacy", logging_callback=on_log) as client:
        await client.call_tool("test_tool_with_progress", {}, progress_callback=on_progress)
        await client.call_tool("test_tool_with_logging", {})
        assert progress == [0, 50, 100]
        assert len(logged) == 3
        await client.set_logging_level("error")
        await client.call_tool("test_tool_with_logging", {})
        assert len(logged) == 3


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_subscriptions_are_kept_and_ended() -> None:
    server = reference_server()
    async with connected(server, "legacy") as client:
        await client.subscribe_resource("test://watched-resource")
        assert server.subscribed == {"test://watched-resource"}
        await client.unsubscribe_resource("test://watched-resource")
        assert server.subscribed == set()


async def test_completions_prompts_and_resources(mode: str) -> None:
    async with connected(reference_server(), mode) as client:
        reference = PromptReference(type="ref/prompt", name="test_prompt_with_arguments")
        completed = await client.complete(reference, {"name": "arg1", "value": "par"})
        prompt = await client.get_prompt("test_prompt_with_arguments", {"arg1": "a", "arg2": "b"})
        text = await client.read_resource("test://template/7/data")
        with pytest.raises(ProtocolError):
            await client.read_resource("test://nothing")
    assert completed.completion.values == [city for city in CITIES if city.startswith("Par")]
    assert "arg1='a'" in prompt.messages[0].content.text
    assert '"id": "7"' in text.contents[0].text


async def test_a_cancelled_call_stops(mode: str) -> None:
    async with connected(reference_server(), mode) as client:
        with anyio.move_on_after(0.05) as scope:
            await client.call_tool("wait", {"seconds": 600})
        assert scope.cancelled_caught
        assert not (await client.call_tool("echo", {"text": "still here"})).is_error


def test_it_leaves_the_programs_logging_alone(tmp_path: Path) -> None:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    file = logging.FileHandler(tmp_path / "program.log", mode="w")
    with MockServer().serve_http():
        file.handle(logging.makeLogRecord({"msg": "while it serves"}))
    file.close()
    assert (root.handlers, root.level) == before
    assert (tmp_path / "program.log").read_text() == "while it serves\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"page_size": 0}, "page_size is at least 1"),
        ({"page_size": 2.5}, "page_size is at least 1, not 2.5"),
        ({"without": ["toys"]}, f"the features are {', '.join(FEATURES)}"),
        ({"era": "old"}, "era is one of"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MockServer(**options)


async def test_the_event_store_replays_one_stream_and_forgets_old_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("grue.testing.mock_server._MOST_EVENTS", 3)
    store, sent = MemoryEventStore(), []

    async def send(event: Any) -> None:
        sent.append(event.event_id)

    message: Any = object()
    ids = [await store.store_event(stream, message) for stream in ("a", "b", "a", "a")]
    assert await store.replay_events_after(ids[0], send) is None
    assert await store.replay_events_after("x", send) is None
    assert await store.replay_events_after("9" * 5000, send) is None
    assert await store.replay_events_after(ids[2], send) == "a"
    assert sent == [ids[3]]


@pytest.mark.parametrize("module", ["mock_server", "mock_features"])
@pytest.mark.slow
def test_without_mcp_the_import_says_how_to_install_it(module: str) -> None:
    program = f"""
import sys
sys.modules["mcp"] = sys.modules["mcp_types"] = None
from grue.errors import MissingDependencyError
try:
    import grue.testing.{module}
except MissingDependencyError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "pip install 'mcp>=2.3,<3'" in done.stdout


async def test_a_tool_that_blocks_does_not_block_the_end_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mock_server, "_STOP_S", 0.1)
    begun, release = threading.Event(), threading.Event()
    server = MockServer("shop")

    @server.tool()
    def stuck() -> None:
        begun.set()
        release.wait(GUARD_S)

    try:
        with server.serve_http() as url:
            async with Client(url) as client, anyio.create_task_group() as calls:
                calls.start_soon(client.call_tool, "stuck")
                await anyio.to_thread.run_sync(begun.wait)
                calls.cancel_scope.cancel()
        assert not release.is_set()
        assert any(each.name == "mock server shop" for each in threading.enumerate())
    finally:
        release.set()
