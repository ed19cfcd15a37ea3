"""Servers that start when they are called, as real processes and over real HTTP: each row of the table in
`docs/guides/server-starts.md`, and what it costs.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest
from http_servers import real_http_server
from lifetimes import answering
from msgspec.structs import replace
from rows import first_of
from transport_servers import faulty

from grue import (
    Conversation,
    FailurePolicy,
    HttpServer,
    LlmSettings,
    Recorder,
    Runner,
    ServerOptions,
    StdioServer,
    ToolPolicy,
    ToolRule,
    ToolSearch,
    TurnOutcome,
    TurnRequest,
    parked_turns,
)
from grue.cli.doctor import saved_when_called
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import ApprovalPending, MCPConfigError, MCPServerStartupError, NothingToResume
from grue.messages import (
    CallTools,
    ConnectFailed,
    DropCompletion,
    McpDisabled,
    OpenSession,
    RunTurn,
    ServerName,
    SessionClosed,
    SessionOpened,
    SessionPrewarmed,
    ToolCalled,
    ToolDefinition,
    ToolsVerified,
)
from grue.policies import TurnLimits
from grue.protocol.tools.lock import ToolLock, lock_of
from grue.runtime.trace.recorder import Envelope
from grue.testing import assert_prefix_stable, replay
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tool_sessions.connection import SeenListing
from grue.transports.mcp.listing import ListingCache

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

LATER = ServerOptions(start="when_called")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRUE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def listed() -> tuple[ToolDefinition, ...]:
    with ToolClient({"faulty": faulty()}) as client:
        opened = client.connect("faulty")["faulty"]
    assert isinstance(opened, SessionOpened)
    return opened.tools


def waiting(name: str, *flags: str, **options: Any) -> StdioServer:
    return replace(faulty(*flags), name=name, options=replace(LATER, **options))


def seen_before(servers: dict[str, StdioServer], tools: tuple[ToolDefinition, ...]) -> None:
    """Put a listing of each server into the cache, as if it had been started before."""
    for server in servers.values():
        ListingCache().save(server, SeenListing(tools))


def echo(*servers: str) -> list[tuple[str, dict[str, Any]]]:
    return [(f"{server}.echo", {"text": "hello"}) for server in servers]


class Told:
    """A runner with a scripted model, and all that it recorded."""

    def __init__(self, servers: dict[str, Any], *steps: Any, **options: Any) -> None:
        self.envelopes: list[Envelope[Any]] = []
        recorder = Recorder()
        recorder.add(lambda envelope, _line: self.envelopes.append(envelope))
        script = steps[0] if steps and callable(steps[0]) else answering(*steps)
        self.llm = ScriptedLlmServer(script)
        self._servers, self._options = servers, {"recorder": recorder, **options}

    def __enter__(self) -> Self:
        self._left = assert_nothing_left()
        self._left.__enter__()
        self.llm.__enter__()
        settings = LlmSettings(base_url=self.llm.base_url, model="m")
        self.runner = Runner(llm=settings, servers=self._servers, **self._options)
        return self

    def __exit__(self, *raised: object) -> None:
        self.runner.close()
        self.llm.__exit__(*raised)
        self._left.__exit__(*raised)

    def turn(self, **request: Any) -> TurnOutcome[Any]:
        return self.runner.run_turn(TurnRequest(**{"system": "s", "user": "u", **request}))

    def said(self, *kinds: type) -> list[Any]:
        return [each.body for each in self.envelopes if isinstance(each.body, kinds)]

    @property
    def started(self) -> list[str]:
        return [body.server for body in self.said(SessionOpened)]

    def results(self, request: int = -1) -> list[str]:
        return [each["content"] for each in self.llm.requests[request].messages if each["role"] == "tool"]

    def offered(self, request: int) -> list[str]:
        return [each["function"]["name"] for each in self.llm.requests[request].body.get("tools", ())]


@pytest.mark.slow
def test_a_server_that_is_not_known_starts_once_and_then_only_when_it_is_called(tmp_path: Path) -> None:
    servers = {"a": waiting("a"), "b": waiting("b")}
    with Told(servers, "done", "done", echo("b"), "done") as told:
        told.turn()
        assert sorted(told.started) == ["a", "b"], "nobody knows their tools yet"
        told.turn()
        assert len(told.started) == 2, "a turn that calls nothing starts nothing"
        assert told.offered(0) == told.offered(1), "and the model is offered the same tools"
        outcome = told.turn()
        assert told.started[2:] == ["b"]
        assert [call.settlement for call in outcome.tool_calls] == ["returned"]
    with Told(servers, echo("a"), "done") as told:
        told.turn()
        assert told.started == ["a"], "another process of the user's has the list from the cache"
        assert {listing.source for listing in told.said(RunTurn)[0].when_called} == {"cache"}


@pytest.mark.slow
def test_the_listing_file_is_enough(listed: tuple[ToolDefinition, ...]) -> None:
    lock = ToolLock({"faulty": lock_of(listed)}, listings={"faulty": listed})
    with Told({"faulty": waiting("faulty")}, echo("faulty"), "done", tool_lock=lock) as told:
        told.turn()
        assert told.said(RunTurn)[0].when_called[0].source == "locked"
        assert told.started == ["faulty"]


@pytest.mark.slow
def test_a_tool_that_was_approved_after_it_had_changed_is_offered_also_if_others_are_refused(
    listed: tuple[ToolDefinition, ...],
) -> None:
    """The cache holds the tool as it was before. If it were not offered, nothing would start its server."""
    before = tuple(replace(tool, description=f"Formerly: {tool.description}") for tool in listed)
    servers = {"faulty": waiting("faulty")}
    seen_before(servers, before)
    lock = ToolLock({"faulty": lock_of(listed)}, listings={"faulty": listed})
    refusing = FailurePolicy(on_tool_drift="refuse")
    with Told(servers, echo("faulty"), "done", tool_lock=lock, policy=refusing) as told:
        told.turn()
        assert told.results() == ["hello"]
        assert told.said(RunTurn)[0].when_called[0].source == "locked"


@pytest.mark.slow
def test_the_call_waits_for_the_start_and_the_list_is_compared(listed: tuple[ToolDefinition, ...]) -> None:
    servers = {"a": waiting("a")}
    seen_before(servers, listed)
    with Told(servers, echo("a"), "done") as told:
        told.turn()
        kinds = (OpenSession, SessionOpened, ToolsVerified, CallTools, ToolCalled, SessionClosed)
        assert [type(body) for body in told.said(*kinds)] == list(kinds)
        assert told.said(ToolsVerified) == [ToolsVerified(request=1, server="a")]
        assert told.llm.requests[0].body["tools"] == told.llm.requests[1].body["tools"]


@pytest.mark.slow
def test_a_tool_that_has_changed_is_not_called_and_costs_one_request(
    listed: tuple[ToolDefinition, ...],
) -> None:
    servers = {"a": waiting("a")}
    old = tuple(replace(tool, description="Old.") if tool.tool == "echo" else tool for tool in listed)
    seen_before(servers, old)
    with Told(servers, echo("a"), echo("a"), "done") as told:
        outcome = told.turn()
        assert [call.settlement for call in outcome.tool_calls] == ["rejected", "returned"]
        assert [body.tool for body in told.said(ToolCalled)] == ["echo"], "the first one was not sent"
        assert told.said(ToolsVerified)[0].changed == ("a.echo",)
        assert "has changed since" in told.results(1)[0]
        assert "Old." in str(told.llm.requests[0].body["tools"])
        assert "Old." not in str(told.llm.requests[1].body["tools"])
        assert not told.said(DropCompletion)
        assert outcome.requests == 3


@pytest.mark.slow
def test_a_tool_that_disappears_is_not_called(listed: tuple[ToolDefinition, ...]) -> None:
    servers = {"a": waiting("a")}
    seen_before(servers, (*listed, replace(listed[0], tool="gone", full_name="")))
    with Told(servers, [("a.gone", {})], "done") as told:
        outcome = told.turn()
        assert [call.settlement for call in outcome.tool_calls] == ["rejected"]
        assert not told.said(ToolCalled)
        assert "a.gone" in told.offered(0)
        assert "a.gone" not in told.offered(1)


MOODY = """
import json, os, sys
path = sys.argv[1]
life = os.path.getsize(path) if os.path.exists(path) else 0
open(path, "a").write(".")
def tool(name):
    return {"name": name, "description": f"Of life {life}.", "inputSchema": {"type": "object"}}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "moody", "version": "1"}}
    elif asked["method"] == "tools/list":
        result = {"tools": [tool("same"), tool(f"only{life}")]}
    else:
        result = {"content": [{"type": "text", "text": "made"}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
"""A server that lists other tools in each of its lives."""


ERAS = """
import json, os, sys, time
asked_file, era_file = sys.argv[1:]
era = open(era_file).read()
VERSION = "2026-07-28"
for line in sys.stdin:
    asked = json.loads(line)
    with open(asked_file, "a") as file:
        print(asked["method"], file=file)
    if "id" not in asked:
        continue
    method = asked["method"]
    answer = None
    if method == "initialize" and era != "new":
        answer = {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                             "serverInfo": {"name": "s", "version": "1"}}}
    elif method == "server/discover" and era == "new":
        answer = {"result": {"resultType": "complete", "supportedVersions": [VERSION],
                             "capabilities": {"tools": {}}}}
    elif method == "server/discover" and era == "breaks":
        sys.exit(3)
    elif method == "server/discover" and era == "silent":
        continue
    elif method == "tools/list":
        tool = {"name": "make", "inputSchema": {"type": "object"}}
        ttl = int(os.environ.get("TTL", "0"))
        answer = {"result": {"resultType": "complete", "tools": [tool], "ttlMs": ttl, "cacheScope": "public"}}
    elif method == "tools/call":
        answer = {"result": {"resultType": "complete", "content": [{"type": "text", "text": "made"}]}}
    answer = answer or {"error": {"code": -32601, "message": "no such method"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""
"""A server of the revision in a file, or an old one that does not refuse a discovery properly."""


class Eras:
    """The server of `ERAS`, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        (folder / "eras.py").write_text(ERAS)
        self.asked, self.era = folder / "asked", folder / "era"
        args = (str(folder / "eras.py"), str(self.asked), str(self.era))
        self.server = StdioServer(name="s", command=sys.executable, args=args, options=LATER)

    def turn(self, era: str, settlement: str = "returned") -> list[str]:
        """Run a turn with one call in a runner of its own; return what the server was asked."""
        self.era.write_text(era)
        self.asked.write_text("")
        with Told({"s": self.server}, [("s.make", {})], "done") as told:
            (call,) = told.turn().tool_calls
        assert call.settlement == settlement, call.result
        asked = self.asked.read_text().split()
        return [method for method in asked if not method.startswith("notifications/")]


OLD = ["initialize", "tools/list", "tools/call"]
NEW = ["server/discover", "tools/list", "tools/call"]


@pytest.mark.parametrize(("ttl_ms", "asked"), [("0", 0), ("-5", 0), ("3600000", 0), ("1", 1)])
@pytest.mark.slow
def test_a_list_that_is_past_its_time_is_not_offered_unasked(tmp_path: Path, ttl_ms: str, asked: int) -> None:
    eras = Eras(tmp_path)
    eras.era.write_text("new")
    server = replace(eras.server, env={"TTL": ttl_ms})
    for starts in (1, asked):  # an own runner each: the list comes from the cache
        eras.asked.write_text("")
        with Told({"s": server}, "done", "done") as told:
            told.turn()
            assert "s.make" in told.offered(0)
            assert eras.asked.read_text().split().count("tools/list") == starts
            told.turn()
            assert eras.asked.read_text().split().count("tools/list") == starts + asked


@pytest.mark.slow
def test_the_revision_that_a_server_speaks_is_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grue.transports.mcp.sdk._DISCOVERY_S", 60)  # however slowly the process starts
    eras = Eras(tmp_path)
    assert eras.turn("new") == ["initialize", *NEW]
    assert eras.turn("new") == NEW
    assert eras.turn("old") == ["server/discover", *OLD], "a wrong memory costs one request"
    assert eras.turn("old") == OLD
    assert eras.turn("new") == ["initialize", *NEW]


@pytest.mark.slow
def test_a_server_that_does_not_answer_in_the_form_of_before_gets_a_handshake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grue.transports.mcp.sdk._DISCOVERY_S", 0.3)
    eras = Eras(tmp_path)
    eras.turn("new")
    assert eras.turn("silent") == ["server/discover", *OLD]
    assert eras.turn("silent") == OLD


@pytest.mark.slow
def test_a_server_that_ends_when_it_is_asked_so_is_started_as_usual_afterwards(tmp_path: Path) -> None:
    eras = Eras(tmp_path)
    eras.turn("new")
    assert eras.turn("breaks", "skipped") == ["server/discover"]
    assert eras.turn("breaks") == OLD


@pytest.mark.slow
def test_a_server_that_lists_other_tools_each_time_costs_one_request_a_turn(tmp_path: Path) -> None:
    script = tmp_path / "moody.py"
    script.write_text(MOODY)
    server = StdioServer(
        name="m", command=sys.executable, args=(str(script), str(tmp_path / "lives")), options=LATER
    )
    steps = ["done"]
    for _ in range(3):
        steps += [[("m.same", {})], [("m.same", {})], "done"]  # type: ignore[list-item]
    with Told({"m": server}, *steps) as told:
        told.turn()
        for life in (1, 2, 3):
            outcome = told.turn()
            assert [call.settlement for call in outcome.tool_calls] == ["rejected", "returned"]
            assert outcome.requests == 3
            assert f"m.only{life}" in told.offered(-1)


@pytest.mark.slow
def test_a_server_that_never_starts_is_a_failure_that_the_model_sees(
    listed: tuple[ToolDefinition, ...],
) -> None:
    servers = {"bad": waiting("bad", "--exit-at", "initialize"), "good": waiting("good")}
    seen_before(servers, listed)
    with Told(servers, echo("bad", "good"), "done", "done") as told:
        outcome = told.turn()
        assert [call.settlement for call in outcome.tool_calls] == ["skipped", "returned"]
        assert "the server 'bad' did not start" in told.results()[0]
        assert outcome.kind == "degraded"
        assert told.said(ConnectFailed)[0].then == "disable"
        assert {name.partition(".")[0] for name in told.offered(1)} == {"good"}
        told.turn()
        assert {name.partition(".")[0] for name in told.offered(2)} == {"good"}, "it was given up"
        assert not told.said(McpDisabled)[-1].newly
        assert len(told.said(ConnectFailed)) == 1, "and is not tried again before its time"


def test_a_required_server_that_never_starts_ends_the_turn(listed: tuple[ToolDefinition, ...]) -> None:
    servers = {"bad": waiting("bad", "--exit-at", "initialize", required=True)}
    seen_before(servers, listed)
    with Told(servers, echo("bad")) as told, pytest.raises(MCPServerStartupError, match="bad"):
        told.turn()


@pytest.mark.slow
def test_a_start_that_takes_too_long_is_such_a_failure(listed: tuple[ToolDefinition, ...]) -> None:
    servers = {"slow": waiting("slow", "--silent-at", "initialize", startup_timeout_s=0.3)}
    seen_before(servers, listed)
    with Told(servers, echo("slow"), "done") as told:
        outcome = told.turn()
        assert [call.settlement for call in outcome.tool_calls] == ["skipped"]
        assert "did not start" in told.results()[0]


@pytest.mark.parametrize("limit", first_of([1, 8]))
@pytest.mark.slow
def test_fifty_servers_called_in_one_reply_start_so_many_at_a_time(
    listed: tuple[ToolDefinition, ...], limit: int
) -> None:
    servers = {f"s{number}": waiting(f"s{number}") for number in range(50 if limit > 1 else 5)}
    seen_before(servers, listed[:1])
    with Told(servers, echo(*servers), "done", limits=TurnLimits(starts_at_once=limit)) as told:
        outcome = told.turn()
        assert {call.settlement for call in outcome.tool_calls} == {"returned"}
        assert [call.name for call in outcome.tool_calls] == [f"{name}.echo" for name in servers]
        starting = most = 0
        for body in told.said(OpenSession, SessionOpened):
            starting += 1 if isinstance(body, OpenSession) else -1
            most = max(most, starting)
        assert most == limit


@pytest.mark.slow
def test_a_url_server_gets_no_request_before_its_first_call(tmp_path: Path) -> None:
    record = tmp_path / "record"
    with real_http_server("--record", str(record)) as url:
        servers = {"web": HttpServer(name="web", url=url, options=LATER)}
        with Told(servers, "done", "done", echo("web"), "done") as told:
            told.turn()
            first = record.read_text()
            told.turn()
            assert record.read_text() == first, "nothing was sent to it"
            told.turn()
            assert record.read_text() != first
            assert len(told.started) == 2


@pytest.mark.slow
def test_a_url_server_of_both_kinds_is_asked_in_the_form_that_is_remembered() -> None:
    with real_http_server() as url:
        server = HttpServer(name="h", url=url, options=LATER)
        with ToolClient({"h": server}) as client:
            opened = client.connect("h")["h"]
        assert isinstance(opened, SessionOpened)
        assert opened.protocol_version == "2025-11-25"
        ListingCache().save(server, SeenListing(opened.tools, "2026-07-28"))
        with Told({"h": server}, echo("h"), "done") as told:
            (call,) = told.turn().tool_calls
            assert call.settlement == "returned", call.result
            assert told.said(SessionOpened)[-1].protocol_version == "2026-07-28", "it speaks both"


def test_a_person_is_asked_before_a_server_is_started(listed: tuple[ToolDefinition, ...]) -> None:
    servers = {"a": waiting("a")}
    seen_before(servers, listed)
    policy = ToolPolicy(rules=(ToolRule(tools=("a.*",), verdict="ask"),))
    started: list[list[str]] = []

    def approve(questions: Any) -> Any:
        started.append(told.started)
        return [question.deny("no") for question in questions]

    with Told(servers, echo("a"), "done", tool_policy=policy, approve=approve) as told:
        told.turn()
        assert (started, told.started) == ([[]], [])


@pytest.mark.slow
def test_a_parked_turn_has_started_nothing_and_starts_what_is_approved(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    servers = {"a": waiting("a"), "b": waiting("b")}
    seen_before(servers, listed)
    policy = ToolPolicy(rules=(ToolRule(tools=("*.echo",), verdict="ask"),), parking=True)
    trace = tmp_path / "parked.jsonl"
    with Told(servers, echo("a"), tool_policy=policy, trace=trace) as told:
        with pytest.raises(ApprovalPending) as pending:
            told.turn()
        assert not told.said(OpenSession)
        questions = pending.value.questions
    with Told(servers, "done", tool_policy=policy) as told:
        outcome = told.runner.resume(trace, [questions[0].approve()])
        assert told.started == ["a"]
        assert [call.settlement for call in outcome.tool_calls] == ["returned"]


@pytest.mark.slow
@pytest.mark.parametrize("verdict", ["approve", "deny"])
@pytest.mark.parametrize("in_conversation", [True, False])
def test_a_resumed_turn_is_over_if_a_required_server_does_not_start_for_a_later_reply(
    tmp_path: Path, listed: tuple[ToolDefinition, ...], verdict: str, in_conversation: bool
) -> None:
    servers = {"a": waiting("a"), "b": waiting("b", "--exit-at", "initialize", required=True)}
    seen_before(servers, listed)
    policy = ToolPolicy(rules=(ToolRule(tools=("a.echo",), verdict="ask"),), parking=True)
    trace, file = tmp_path / "parked.jsonl", tmp_path / "talk.jsonl"
    with Told(servers, echo("a"), tool_policy=policy, trace=trace) as told:
        talk = told.runner.conversation("s", path=file) if in_conversation else None
        with pytest.raises(ApprovalPending) as pending:
            told.turn() if talk is None else talk.ask("u")
        if talk is not None:
            talk.close()
        decisions = [getattr(question, verdict)() for question in pending.value.questions]
    with Told(servers, echo("b"), "done", tool_policy=policy) as told:
        with pytest.raises(MCPServerStartupError, match="b"):
            told.runner.resume(trace, decisions)
        assert parked_turns(trace) == []
        with pytest.raises(NothingToResume, match="it ended"):
            told.runner.resume(trace, decisions)
        if in_conversation:
            assert Conversation.from_trace(trace, told.runner).parked_turn is None
            with Conversation.load(file, told.runner) as talk:
                assert talk.parked_turn is None
                assert talk.ask("u").response == "done"


@pytest.mark.slow
def test_a_resumed_turn_stays_parked_if_the_approved_calls_server_does_not_start(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    servers = {"a": waiting("a"), "b": waiting("b", "--exit-at", "initialize", required=True)}
    seen_before(servers, listed)
    policy = ToolPolicy(rules=(ToolRule(tools=("*.echo",), verdict="ask"),), parking=True)
    trace, file = tmp_path / "parked.jsonl", tmp_path / "talk.jsonl"
    with (
        Told(servers, echo("a", "b"), tool_policy=policy, trace=trace) as told,
        told.runner.conversation("s", path=file) as talk,
        pytest.raises(ApprovalPending) as pending,
    ):
        talk.ask("u")
    first, second = pending.value.questions
    with Told(servers, "done", tool_policy=policy) as told, Conversation.load(file, told.runner) as talk:
        with pytest.raises(MCPServerStartupError, match="b"):
            talk.resume([first.deny(), second.approve()])
        assert (talk.parked_turn, len(talk.questions), len(parked_turns(trace))) == (1, 2, 1)
        assert talk.resume([first.deny(), second.deny()]).response == "done"


@pytest.mark.slow
def test_kept_sessions_are_started_by_their_first_call_and_used_by_later_turns(
    listed: tuple[ToolDefinition, ...],
) -> None:
    servers = {"a": waiting("a"), "b": waiting("b")}
    seen_before(servers, listed)
    steps = ["done", echo("a"), "done", echo("a"), "done"]
    with Told(servers, *steps, keep="sessions") as told:
        for _ in range(3):
            told.turn()
        assert told.started == ["a", "a"], "leased twice"
        assert len({body.pid for body in told.said(SessionOpened)}) == 1, "and started once"


@pytest.mark.parametrize("ahead", ["after_turn", "beside_turn"])
@pytest.mark.slow
def test_no_spare_is_started_of_a_server_that_waits_for_a_call(
    listed: tuple[ToolDefinition, ...], ahead: Any
) -> None:
    servers = {"a": waiting("a"), "eager": replace(faulty(), name="eager")}
    seen_before({"a": servers["a"]}, listed)
    steps = [echo("a"), "done", echo("a"), "done"]
    with Told(servers, *steps, keep="loop", start=ahead) as told:
        told.turn()
        told.turn()
        assert {body.server for body in told.said(SessionPrewarmed)} <= {"eager"}
        assert told.started.count("a") == 2


@pytest.mark.slow
def test_turns_of_a_batch_start_what_each_of_them_calls(listed: tuple[ToolDefinition, ...]) -> None:
    servers = {"a": waiting("a"), "b": waiting("b")}
    seen_before(servers, listed)

    def answer(request: LlmRequest) -> LlmReply:
        wanted = request.messages[1]["content"]
        if request.messages[-1]["role"] == "tool" or wanted not in servers:
            return text_reply("done")
        return tool_calls_reply(*echo(wanted))

    users = ["a", "none", "b", "a", "none", "none"]
    with Told(servers, answer) as told:
        batch = told.runner.map([TurnRequest(system="s", user=user) for user in users], concurrency=3)
        assert all(item.error is None for item in batch)
        assert sorted(told.started) == ["a", "a", "b"]


@pytest.mark.slow
def test_a_server_that_died_is_treated_as_any_other(listed: tuple[ToolDefinition, ...]) -> None:
    servers = {"a": waiting("a", "--kill-at", "call")}
    seen_before(servers, listed)
    with Told(servers, echo("a"), "done") as told:
        outcome = told.turn()
        assert [call.settlement for call in outcome.tool_calls] == ["died"]
        assert outcome.kind == "forced"


@pytest.mark.slow
def test_of_fifty_servers_whose_tools_are_searched_only_the_one_that_is_called_starts(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    servers = {f"s{number}": waiting(f"s{number}") for number in range(50)}
    seen_before(servers, listed)
    called = ("call_tool", {"name": "s7.echo", "arguments": {"text": "hello"}})
    steps = [[("find_tools", {"query": "echo text"})], [called], "done"]
    trace = tmp_path / "turn.jsonl"
    with Told(servers, *steps, tool_search=ToolSearch(above=40), trace=trace) as told:
        outcome = told.turn()
        assert told.started == ["s7"]
        assert told.offered(0) == ["find_tools", "call_tool"] == told.offered(-1)
    assert [call.name for call in outcome.tool_calls] == ["find_tools", "s7.echo"]
    assert outcome.tool_calls[1].settlement == "returned"
    assert replay(trace) == 1
    assert assert_prefix_stable(trace) == 3


@pytest.mark.slow
def test_the_trace_replays(tmp_path: Path, listed: tuple[ToolDefinition, ...]) -> None:
    servers = {"a": waiting("a"), "b": waiting("b", "--exit-at", "initialize")}
    seen_before(servers, listed)
    trace = tmp_path / "turn.jsonl"
    with Told(servers, echo("a", "b"), "done", trace=trace) as told:
        told.turn()
    replay(trace)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start": "later"}, 'is one of "before", "beside_if_locked", "beside", "when_called", not'),
        ({"start": "after_turn"}, 'write Runner\\(start="after_turn"\\)'),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Any, words: str) -> None:
    with pytest.raises(MCPConfigError, match=words):
        ServerOptions(**options)


def test_a_slow_start_is_what_doctor_proposes_it_for() -> None:
    opened = SessionOpened(server=ServerName("a"), tools=(), elapsed_s=1.234)
    eager = faulty()
    (told,) = saved_when_called(eager, opened)
    assert "1234 ms" in told
    assert '"start": "when_called"' in told
    assert not [*saved_when_called(eager, replace(opened, elapsed_s=0.02))]
    assert not [*saved_when_called(waiting("a"), opened)]


@pytest.mark.slow
def test_fifty_waiting_servers_start_nothing_and_one_call_starts_one() -> None:
    command = [sys.executable, "benchmarks/many_servers.py", "--pairs", "2"]
    root = Path(__file__).parents[2]
    told = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)
    assert told.stderr == ""
    assert "started in 2 turns that call none: 0.00" in told.stdout
    assert "beyond one a turn in 2 turns that call one: 0.00" in told.stdout


@pytest.mark.slow
def test_a_server_whose_tool_is_searched_and_called_starts_and_no_other(
    listed: tuple[ToolDefinition, ...],
) -> None:
    servers = {f"s{number}": waiting(f"s{number}") for number in range(20)}
    seen_before(servers, listed)
    found = [("find_tools", {"query": "echo"})]
    called = [("call_tool", {"name": "s7.echo", "arguments": {"text": "hi"}})]
    with Told(servers, found, called, "done", tool_search=ToolSearch(above=10)) as told:
        outcome = told.turn()
        assert told.started == ["s7"]
        assert [call.settlement for call in outcome.tool_calls] == ["returned", "returned"]
        assert told.offered(0) == told.offered(2)
        assert len(told.offered(0)) == 2
