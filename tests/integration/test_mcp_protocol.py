"""The protocol, item by item: the mock server over each wire, and npm's `everything` where it has the item.

The mock server does what the specification says. Where `everything` does something else, the test says what.
"""

import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Struct, field
from msgspec.structs import replace
from real_servers import npm_server

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

from grue import HttpServer, Recorder, ServerOptions, StdioServer, ToolClient, TurnLimits
from grue.errors import MCPRequestError, ToolServerDied
from grue.messages import ServerFailure, ServerNoted, SessionOpened
from grue.testing.leftovers import assert_nothing_left
from grue.testing.mock_features import reference_server

WIRES = ("stdio", "http", "sse", "everything")
DEADLINE_S = 60
LIMITS = TurnLimits(server_startup_timeout_s=60.0, tool_call_timeout_s=30.0)
AS_IT_IS = ServerOptions(check_arguments=False)
ECHO = {"mock": ("echo", {"text": "hello"}), "everything": ("echo", {"message": "hello"})}
SLOW = {
    "mock": ("test_tool_with_progress", {}),
    "everything": ("trigger-long-running-operation", {"duration": 0.1, "steps": 3}),
}
LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


class Peer(Struct):
    """A server, a client that is connected to it, and what the server has sent beside its answers."""

    kind: str
    server: StdioServer | HttpServer
    client: ToolClient
    notes: list[ServerNoted] = field(default_factory=list)

    def call(self, names: dict[str, tuple[str, dict[str, Any]]]) -> Any:
        tool, arguments = names[self.kind]
        return self.client.call(f"s.{tool}", arguments)

    def request(self, method: str, **params: Any) -> Any:
        return self.client.request("s", method, params)

    def texts(self, kind: str) -> list[str]:
        return [note.text for note in self.notes if note.kind == kind]

    def wait_for(self, kind: str, text: str) -> None:
        """Wait for a notification, which may come after the answer."""
        deadline = time.monotonic() + DEADLINE_S
        while not any(text in each for each in self.texts(kind)):
            assert time.monotonic() < deadline, f"no {kind} with {text!r} in {self.notes}"
            time.sleep(0.01)


@contextlib.contextmanager
def serving(wire: str) -> Iterator[StdioServer | HttpServer]:
    if wire == "everything":
        yield replace(npm_server("everything"), options=AS_IT_IS)
    elif wire == "stdio":
        args = ("-m", "grue", "mock-server", "--stdio", "--page-size", "2")
        yield StdioServer(name="s", command=sys.executable, args=args, options=AS_IT_IS)
    else:
        transport = "sse" if wire == "sse" else "http"
        with reference_server(page_size=2).serve_http(transport=transport) as url:
            yield HttpServer(name="s", url=url, transport=transport, options=AS_IT_IS)


@contextlib.contextmanager
def connected(wire: str) -> Iterator[Peer]:
    with serving(wire) as server:
        recorder, notes = Recorder(), list[ServerNoted]()
        recorder.add(lambda envelope, _: _note(envelope.body, notes))
        with ToolClient({"s": server}, recorder=recorder, limits=LIMITS) as client:
            yield Peer("everything" if wire == "everything" else "mock", server, client, notes)


def _note(body: object, notes: list[ServerNoted]) -> None:
    if isinstance(body, ServerNoted):
        notes.append(body)


@pytest.fixture(scope="module", params=WIRES)
def one_peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    with assert_nothing_left(), connected(request.param) as peer:
        yield peer


@pytest.fixture
def peer(one_peer: Peer) -> Peer:
    one_peer.notes.clear()
    return one_peer


@pytest.mark.slow
def test_listing_has_every_tool_once_with_its_schema(peer: Peer) -> None:
    tools = {tool.tool: tool for tool in peer.client.tools()}
    assert len(tools) > 10
    assert len(tools) == len(peer.client.tools())
    name, arguments = ECHO[peer.kind]
    assert tools[name].input_schema["required"] == [*arguments]
    assert tools[name].description


@pytest.mark.slow
def test_invocation_returns_the_result_and_an_error_as_an_error(peer: Peer) -> None:
    content = peer.call(ECHO).content
    # `everything` declares no output schema for it, and returns a text of its own.
    assert content == ("Echo: hello" if peer.kind == "everything" else {"result": "hello"})
    assert peer.client.call("s.no-such-tool", {}).is_error
    with pytest.raises(MCPRequestError, match="-32601"):
        peer.request("no/such/method")


def test_malformed_arguments_are_refused_by_the_server(peer: Peer) -> None:
    """The client does not check them here. Both servers name the argument, in an error result."""
    tool, arguments = ECHO[peer.kind]
    (argument,) = arguments
    for wrong in ({}, {argument: 5}):
        result = peer.client.call(f"s.{tool}", wrong)
        assert result.is_error
        assert argument in str(result.error_message)
        # `everything` has a JSON-RPC code in the text, although it answers with a result.
        assert ("-32602" in str(result.error_message)) == (peer.kind == "everything")


def test_prompts_are_listed_and_filled_in(peer: Peer) -> None:
    listed = [each["name"] for each in peer.client.request_all("s", "prompts/list")]
    name, arguments, text = {
        "mock": ("test_prompt_with_arguments", {"arg1": "a", "arg2": "b"}, "arg1='a', arg2='b'"),
        "everything": ("args-prompt", {"city": "Rome"}, "weather in Rome"),
    }[peer.kind]
    assert name in listed
    (message,) = peer.request("prompts/get", name=name, arguments=arguments)["messages"]
    assert text in message["content"]["text"]
    with pytest.raises(MCPRequestError, match="no such prompt"):
        peer.request("prompts/get", name="no such prompt")


def test_completions_complete_an_argument(peer: Peer) -> None:
    prompt, argument, value, expected = {
        "mock": ("test_prompt_with_arguments", "arg1", "Par", ["Paris", "Parma"]),
        "everything": ("completable-prompt", "department", "E", ["Engineering"]),
    }[peer.kind]
    answer = peer.request(
        "completion/complete",
        ref={"type": "ref/prompt", "name": prompt},
        argument={"name": argument, "value": value},
    )
    assert answer["completion"]["values"] == expected


def test_progress_arrives_during_the_call(peer: Peer) -> None:
    assert not peer.call(SLOW).is_error
    expected = ["1/3", "2/3", "3/3"] if peer.kind == "everything" else ["0/100", "50/100", "100/100"]
    assert peer.texts("progress") == expected


def test_streaming_messages_of_a_call_arrive_before_its_result(peer: Peer) -> None:
    """`everything` logs by a timer only, so the message is the one that it sends of a subscription."""
    peer.request("logging/setLevel", level="debug")
    if peer.kind == "everything":
        peer.request("resources/subscribe", uri="demo://resource/dynamic/text/2")
        peer.wait_for("log", "Received Subscribe Resource request")
        return
    assert not peer.client.call("s.test_tool_with_logging", {}).is_error
    assert [text.removeprefix("info: ") for text in peer.texts("log")] == [
        "Tool execution started",
        "Tool processing data",
        "Tool execution completed",
    ]


def test_subscriptions_tell_of_a_change_until_they_are_ended(peer: Peer) -> None:
    uri = "demo://resource/dynamic/text/1" if peer.kind == "everything" else "test://watched-resource"
    peer.request("resources/subscribe", uri=uri)
    if peer.kind == "everything":
        # It sends an update at once, and then by a timer of five seconds.
        peer.client.call("s.toggle-subscriber-updates", {})
        peer.wait_for("updated", uri)
        peer.client.call("s.toggle-subscriber-updates", {})
        return
    peer.client.call("s.touch", {"uri": uri})
    peer.wait_for("updated", uri)
    peer.request("resources/unsubscribe", uri=uri)
    peer.notes.clear()
    peer.client.call("s.touch", {"uri": uri})
    peer.client.call("s.test_tool_with_logging", {})
    assert peer.texts("updated") == []


@pytest.mark.parametrize("method", LISTS)
def test_pagination_has_every_item_once(peer: Peer, method: str) -> None:
    first = peer.request(method)
    items = peer.client.request_all("s", method)
    names = [item["name"] for item in items]
    assert len(set(names)) == len(names) >= len(first[LISTS[method]])
    if peer.kind == "everything":
        # It has one page of each list.
        assert "nextCursor" not in first
    elif method != "resources/templates/list":
        assert len(first[LISTS[method]]) == 2
        second = peer.request(method, cursor=first["nextCursor"])[LISTS[method]]
        assert [item["name"] for item in second] == names[2:4]


@pytest.mark.parametrize("cursor", ["999", "-1", "x"])
def test_pagination_refuses_a_cursor_out_of_bounds(peer: Peer, cursor: str) -> None:
    if peer.kind == "everything":
        # It ignores cursors: the specification asks for an error.
        assert peer.request("tools/list", cursor=cursor)["tools"] == peer.request("tools/list")["tools"]
        return
    for method in LISTS:
        with pytest.raises(MCPRequestError, match="-32602"):
            peer.request(method, cursor=cursor)


# A server over HTTP that ends while clients are connected leaves streams of the SDK to the garbage collector.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")
@pytest.mark.parametrize("wire", WIRES)
def test_a_disconnect_is_an_error_of_the_next_call_and_the_client_can_connect_again(wire: str) -> None:
    """A client that asks too early learns it from its call: no call waits for a server that has gone."""
    with assert_nothing_left(), contextlib.ExitStack() as running:
        server = running.enter_context(serving(wire))
        with ToolClient({"s": server}, limits=LIMITS) as client:
            opened = client.connect("s")["s"]
            assert isinstance(opened, SessionOpened)
            if opened.pid is None:
                running.close()
            else:
                os.kill(opened.pid, signal.SIGKILL)
            tool, arguments = ECHO["everything" if wire == "everything" else "mock"]
            with pytest.raises(ToolServerDied):
                client.call(f"s.{tool}", arguments, check=True)
            again = client.connect("s")["s"]
        if opened.pid is None:
            assert isinstance(again, ServerFailure)
        else:
            assert isinstance(again, SessionOpened)
            assert again.pid != opened.pid
    gc.collect()
