"""`subscriptions/listen`: the server's acknowledgement, its updates, and every way in which a stream ends."""

import queue
import sys
from collections.abc import Callable, Iterator
from typing import Any

import listening_server
import pytest

from grue import StdioServer, ToolClient
from grue.errors import MCPError, MCPRequestError, MCPRequestTimedOut
from grue.messages import ServerNoted
from grue.runtime.trace.recorder import Envelope
from grue.testing.actor_harness import TraceWatch
from grue.testing.leftovers import assert_nothing_left

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

LISTEN, CANCEL = "subscriptions/listen", "notifications/cancelled"
WANTED = {"notifications": {"resourceSubscriptions": ["test://notes"]}}


class Session:
    """A client with one session to a server that does `way`."""

    def __init__(self, way: str) -> None:
        command = StdioServer(name="notes", command=sys.executable, args=(listening_server.__file__, way))
        self.watch = TraceWatch()
        self.client = ToolClient({"notes": command}, recorder=self.watch.recorder)
        self._noted: queue.Queue[ServerNoted] = queue.Queue()
        self.watch.recorder.add(self._hear)

    def listen(self, **params: Any) -> Any:
        return self.client.request("notes", LISTEN, params or WANTED)

    def cancelled(self) -> list[str]:
        """The streams that the server was told to end."""
        return str(self.client.call("notes.streams", check=True).content).split(",")

    def next_note(self) -> ServerNoted:
        """The next update, or the end of a stream; waits for it."""
        return self._noted.get(timeout=60)

    def nothing_noted(self) -> bool:
        return self._noted.empty()

    def _hear(self, envelope: Envelope[Any], line: bytes) -> None:
        if isinstance(envelope.body, ServerNoted) and envelope.body.kind.startswith("update"):
            self._noted.put(envelope.body)


@pytest.fixture
def session() -> Iterator[Callable[[str], Session]]:
    made: list[Session] = []

    def make(way: str) -> Session:
        made.append(Session(way))
        made[-1].client.__enter__()
        return made[-1]

    with assert_nothing_left():
        yield make
        for each in made:
            each.client.close()


@pytest.mark.slow
def test_updates_are_noted_until_the_stream_is_cancelled(session: Any) -> None:
    one = session("update")
    agreed = one.listen()
    assert agreed["notifications"] == WANTED["notifications"]
    other = one.listen()["subscriptionId"]
    assert one.cancelled() == [""]
    notes = [one.next_note(), one.next_note()]
    assert {(note.kind, note.text) for note in notes} == {("updated", "test://notes")}
    assert one.client.request("notes", CANCEL, {"requestId": agreed["subscriptionId"]}) == {}
    assert one.cancelled() == [agreed["subscriptionId"]]
    with pytest.raises(MCPRequestError, match=r"no stream 'listen-\d+' is open"):
        one.client.request("notes", CANCEL, {"requestId": agreed["subscriptionId"]})
    assert one.nothing_noted(), "the end that the host asked for is no news"
    assert other != agreed["subscriptionId"]


@pytest.mark.parametrize(("way", "reason"), [("end", "the server has ended it"), ("cancel", "it broke off")])
@pytest.mark.slow
def test_a_stream_that_the_server_ends_is_noted_and_the_session_goes_on(
    session: Any, way: str, reason: str
) -> None:
    one = session(way)
    name = one.listen()["subscriptionId"]
    notes = {note.kind: note.text for note in (one.next_note(), one.next_note())}
    assert notes["updated"] == "test://notes"
    assert notes["updates_ended"].startswith(f"{name}: {reason}")
    assert one.listen()["subscriptionId"] != name


@pytest.mark.slow
def test_a_server_that_dies_ends_its_streams_and_its_session(session: Any) -> None:
    one = session("die")
    one.listen()
    with pytest.raises(MCPError, match=r"exit status 3"):
        one.client.call("notes.streams", check=True)
    notes = {note.kind: note.text for note in (one.next_note(), one.next_note())}
    assert "it broke off" in notes["updates_ended"]


@pytest.mark.slow
def test_a_refusal_and_a_server_that_does_not_answer_are_typed_errors(session: Any) -> None:
    refusing, silent = session("refuse"), session("ignore")
    with pytest.raises(MCPRequestError, match="too many listeners"):
        refusing.listen()
    with pytest.raises(MCPRequestError, match="notifications"):
        refusing.listen(notifications={"resourceSubscriptions": 7})
    silent.client.connect()
    with pytest.raises(MCPRequestTimedOut):
        silent.client.request("notes", LISTEN, WANTED, timeout_s=0.1)
    assert silent.cancelled()[0].startswith("listen-"), "the server is told that nobody waits any more"


def test_a_session_has_only_so_many_streams(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from grue.transports.mcp import sdk

    monkeypatch.setattr(sdk, "MAX_STREAMS", 1)
    one = session("update")
    one.listen()
    with pytest.raises(MCPRequestError, match="1 streams are open, which is the most"):
        one.listen()


@pytest.mark.slow
def test_over_http_a_changed_list_of_tools_is_read_again(mock_mcp_server: Any, nothing_left: None) -> None:
    watch = TraceWatch()
    with ToolClient({"mock": mock_mcp_server(era="stateless")}, recorder=watch.recorder) as client:
        client.request("mock", LISTEN, {"notifications": {"toolsListChanged": True}})
        client.call("mock.add_tool", {"name": "lamp"}, check=True)
        client.call("mock.echo", {"text": "by now it has come"}, check=True)
        assert "mock.lamp" in [tool.name for tool in client.tools()]


@pytest.mark.slow
def test_older_servers_are_asked_with_the_other_request(mock_mcp_server: Any, nothing_left: None) -> None:
    with (
        ToolClient({"mock": mock_mcp_server(era="initialize")}) as client,
        pytest.raises(MCPRequestError, match=r"needs the revision 2026-07-28.*use resources/subscribe"),
    ):
        client.request("mock", LISTEN, WANTED)
