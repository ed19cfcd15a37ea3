"""Turns that presume what their servers list, with real servers: each way in which that is right or wrong.

Each turn leaves its trace in the test's folder, where it is replayed.
"""

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from http_servers import real_http_server
from msgspec.structs import replace
from transport_servers import faulty
from typer.testing import CliRunner

from grue import (
    Conversation,
    FailurePolicy,
    LlmSettings,
    Runner,
    ServerOptions,
    StdioServer,
    TurnOutcome,
    TurnRequest,
)
from grue.cli.app import app
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import ActorCrashed, MCPConfigError, MCPServerStartupError, TurnTimedOut
from grue.messages import (
    CallTools,
    CheckAnswer,
    DropCompletion,
    McpDisabled,
    ReplyDropped,
    RequestCompletion,
    SessionOpened,
    TextDelta,
    ToolDefinition,
    ToolsPresumed,
    ToolsVerified,
    TurnFailed,
)
from grue.policies import Budget, ToolAnnotations, ToolPolicy
from grue.protocol.tools.lock import ToolLock, lock_of
from grue.protocol.turn.connection import Disabled, Proven, Untried
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import (
    LlmReply,
    LlmRequest,
    Script,
    ScriptedLlmServer,
    silence,
    text_reply,
    tool_calls_reply,
)
from grue.tracing.counts import count_episode
from grue.tracing.reading import open_episode

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

ECHO = tool_calls_reply(("faulty.echo", {"text": "hello"}))
FAIL = tool_calls_reply(("faulty.fail", {}))
DONE = text_reply("done")


@pytest.fixture(scope="module")
def listed() -> tuple[ToolDefinition, ...]:
    with ToolClient({"faulty": faulty()}) as client:
        opened = client.connect("faulty")["faulty"]
    assert isinstance(opened, SessionOpened)
    return opened.tools


def locked(*tools: ToolDefinition) -> ToolLock:
    """A lock with a listing that fits it."""
    return ToolLock({"faulty": lock_of(tools)}, listings={"faulty": tools})


def reworded(tool: ToolDefinition) -> ToolDefinition:
    return type(tool)(server=tool.server, tool=tool.tool, description="Old.", input_schema=tool.input_schema)


class Presumed:
    """Turns that presume: the last one's outcome or error, what the trace holds, what the model was asked."""

    def __init__(
        self,
        path: Path,
        replies: Script,
        *,
        server: StdioServer | None = None,
        turns: int = 1,
        **options: Any,
    ) -> None:
        server = server or faulty()
        self.trace = path / "turn.jsonl"
        self.outcome: TurnOutcome[str] | None = None
        self.error: Exception | None = None
        with assert_nothing_left(), ScriptedLlmServer(replies) as llm:
            settings = LlmSettings(base_url=llm.base_url, model="m", max_tokens=100)
            with Runner(llm=settings, servers={"faulty": server}, trace=self.trace, **options) as runner:
                try:
                    for _ in range(turns):
                        self.outcome = runner.run_turn(TurnRequest(system="s", user="u"))
                except Exception as error:  # noqa: BLE001 - each test says which one it expects
                    self.error = error
                self.spent = runner.spent
            self.asked = list(llm.requests)
        self.said = [envelope.body for envelope in open_episode(self.trace)]

    def of(self, kind: type) -> list[Any]:
        return [body for body in self.said if isinstance(body, kind)]

    @property
    def order(self) -> list[str]:
        shown = (RequestCompletion, SessionOpened, ToolsVerified, DropCompletion, ReplyDropped, CallTools)
        return [type(body).__name__ for body in self.said if isinstance(body, (*shown, CheckAnswer))]

    def offered(self, request: int) -> list[str]:
        return [tool["function"]["name"] for tool in self.asked[request].body.get("tools", ())]

    @property
    def dropped(self) -> int:
        return count_episode(open_episode(self.trace)).model.dropped_replies


def test_a_locked_listing_that_holds(tmp_path: Path, listed: tuple[ToolDefinition, ...]) -> None:
    turn = Presumed(tmp_path, [ECHO, DONE], tool_lock=locked(*listed))
    assert turn.outcome is not None
    assert turn.order[0] == "RequestCompletion", "it was sent before the server had listed its tools"
    assert turn.order[-3:] == ["CallTools", "RequestCompletion", "CheckAnswer"]
    assert turn.order.index("ToolsVerified") < turn.order.index("CallTools")
    assert turn.of(ToolsVerified) == [ToolsVerified(request=1)]
    assert turn.of(ToolsPresumed)[0].listings[0].source == "locked"
    assert turn.outcome.tool_calls[0].settlement == "returned"
    assert (turn.outcome.requests, turn.dropped) == (2, 0)
    assert turn.asked[1].messages[: len(turn.asked[0].messages)] == turn.asked[0].messages


def test_a_turn_without_calls_still_waits_for_its_sessions(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    turn = Presumed(tmp_path, [DONE], tool_lock=locked(*listed))
    assert turn.outcome is not None
    assert turn.order.index("SessionOpened") < turn.order.index("CheckAnswer")
    assert turn.outcome.kind == "answered"


@pytest.mark.parametrize("options", [{}, {"start": "before"}])
@pytest.mark.slow
def test_nothing_is_presumed_without_a_listing_or_when_it_is_switched_off(
    tmp_path: Path, listed: tuple[ToolDefinition, ...], options: dict[str, Any]
) -> None:
    lock = locked(*listed) if options else ToolLock({"faulty": lock_of(listed)})
    turn = Presumed(tmp_path, [DONE], tool_lock=lock, **options)
    assert turn.order[0] == "SessionOpened"
    assert turn.of(ToolsPresumed) == []


@pytest.mark.slow
def test_a_listing_that_does_not_fit_its_lock_is_not_used(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    stale = ToolLock({"faulty": lock_of(listed)}, listings={"faulty": (reworded(listed[0]), *listed[1:])})
    assert Presumed(tmp_path, [DONE], tool_lock=stale).of(ToolsPresumed) == []


def test_a_tool_that_has_changed_drops_the_reply_that_calls_it(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    turn = Presumed(tmp_path, [ECHO, ECHO, DONE], tool_lock=locked(reworded(listed[0]), *listed[1:]))
    assert turn.outcome is not None
    assert [body.reason for body in turn.of(DropCompletion)] == ["not as presumed: faulty.echo"]
    assert turn.asked[1].messages == turn.asked[0].messages, "the conversation is a fresh one"
    assert [call.settlement for call in turn.outcome.tool_calls] == ["returned"]
    assert (turn.outcome.requests, turn.dropped, turn.outcome.usage.input_tokens) == (3, 1, 30)


@pytest.mark.slow
def test_a_tool_that_has_changed_and_is_not_called_is_offered_anew(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    turn = Presumed(tmp_path, [FAIL, DONE], tool_lock=locked(reworded(listed[0]), *listed[1:]))
    assert turn.of(ToolsVerified)[0].changed == ("faulty.echo",)
    words = [tool["function"]["description"] for tool in turn.asked[1].body["tools"]]
    assert "Old." not in words
    assert turn.dropped == 0


def test_a_tool_that_is_gone_drops_the_reply_that_calls_it(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    gone = ToolDefinition(server=listed[0].server, tool="gone", input_schema={"type": "object"})
    replies = [tool_calls_reply(("faulty.gone", {})), DONE]
    turn = Presumed(tmp_path, replies, tool_lock=locked(*listed, gone))
    assert "faulty.gone" in turn.offered(0)
    assert "faulty.gone" not in turn.offered(1)
    assert turn.dropped == 1


def test_a_tool_that_drifted_against_the_lock_and_is_refused_counts_as_gone(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    turn = Presumed(
        tmp_path,
        [ECHO, DONE],
        tool_lock=locked(reworded(listed[0]), *listed[1:]),
        policy=FailurePolicy(on_tool_drift="refuse"),
    )
    assert "faulty.echo" not in turn.offered(1)
    assert turn.dropped == 1


@pytest.mark.slow
def test_annotations_are_trusted_as_in_a_live_listing(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    marked = tuple(replace(tool, annotations=ToolAnnotations(read_only=True)) for tool in listed)
    turn = Presumed(tmp_path, [DONE], tool_lock=locked(*marked))
    assert all(tool.trusted for tool in turn.of(ToolsPresumed)[0].listings[0].tools)


def test_r6_1_a_server_that_fails_to_start_in_the_first_turn_raises_with_the_usage_counted(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    broken = faulty("--exit-at", "initialize")
    turn = Presumed(tmp_path, [silence()], server=broken, tool_lock=locked(*listed))
    assert isinstance(turn.error, MCPServerStartupError)
    (failed,) = turn.of(TurnFailed)
    assert failed.usage.output_tokens in (0, 100), "0: nothing had been sent when the server failed"
    assert turn.spent.usage == failed.usage
    assert turn.dropped == 1


def test_r6_7_a_retry_runs_behind_the_request(tmp_path: Path, listed: tuple[ToolDefinition, ...]) -> None:
    once = faulty("--exit-at", "initialize", "--only-in", "2", str(tmp_path / "starts"))
    turn = Presumed(tmp_path, [DONE, ECHO, DONE], server=once, turns=2, tool_lock=locked(*listed))
    assert turn.outcome is not None
    assert (turn.outcome.kind, turn.outcome.requests, turn.dropped) == ("answered", 2, 0)
    assert turn.of(SessionOpened)[1].attempt == 2
    assert turn.of(RequestCompletion)[1].presumed


@pytest.mark.slow
def test_a_server_that_is_disabled_in_a_later_turn_drops_the_reply_and_degrades_the_turn(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    broken = faulty("--exit-at", "initialize", "--only-in", "2,3", str(tmp_path / "starts"))
    numbers = itertools.count(1)

    def replies(asked: LlmRequest) -> LlmReply:
        # The second turn's first request may be cancelled before the endpoint has it.
        return ECHO if next(numbers) > 1 and asked.tool_names else DONE

    turn = Presumed(tmp_path, replies, server=broken, turns=2, tool_lock=locked(*listed))
    assert turn.outcome is not None
    assert turn.of(McpDisabled)[0].newly
    assert (turn.outcome.kind, turn.dropped, turn.offered(-1)) == ("degraded", 1, [])


@pytest.mark.parametrize("wrong", [("x", ()), ({"reason": "x"}, ()), (None, ("x",)), (Proven(), ["x"])])
def test_only_what_an_earlier_process_knew_can_be_remembered(wrong: Any) -> None:
    with (
        ScriptedLlmServer([DONE]) as llm,
        Runner(llm=LlmSettings(base_url=llm.base_url, model="m"), servers={}) as runner,
    ):
        with pytest.raises(MCPConfigError, match=r"remember\(\) wants .*'x'"):
            runner.remember("faulty", *wrong)
        assert runner.connection("faulty") == Untried()


def test_a_disabled_server_is_not_presumed(tmp_path: Path, listed: tuple[ToolDefinition, ...]) -> None:
    with ScriptedLlmServer([DONE]) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        trace = tmp_path / "turn.jsonl"
        with Runner(
            llm=settings, servers={"faulty": faulty()}, trace=trace, tool_lock=locked(*listed)
        ) as runner:
            runner.remember("faulty", Disabled("it was slow"))
            assert runner.run_turn(TurnRequest(system="s", user="u")).kind == "degraded"
    assert not [each for each in open_episode(trace) if isinstance(each.body, ToolsPresumed)]


@pytest.mark.parametrize(("retry_s", "presumed"), [(0.0, [1, 2, 3]), (3600.0, [1, 2])])
def test_a_disabled_server_is_presumed_when_it_is_tried_again(
    tmp_path: Path, listed: tuple[ToolDefinition, ...], retry_s: float, presumed: list[int]
) -> None:
    down = faulty("--exit-at", "initialize", "--only-in", "2,3", str(tmp_path / "starts"))
    policy = FailurePolicy(retry_disabled_s=retry_s)
    turn = Presumed(tmp_path, [DONE] * 3, server=down, turns=3, policy=policy, tool_lock=locked(*listed))
    sent = [each for each in open_episode(turn.trace) if isinstance(each.body, ToolsPresumed)]
    assert [each.turn for each in sent] == presumed
    assert turn.outcome is not None
    assert turn.outcome.kind == ("answered" if retry_s == 0 else "degraded")
    assert ("faulty.echo" in turn.offered(-1)) is (retry_s == 0)


def test_a_slow_server_ends_with_the_turn_and_so_does_the_request(listed: tuple[ToolDefinition, ...]) -> None:
    slow = replace(faulty("--silent-at", "initialize"), options=ServerOptions(startup_timeout_s=600))
    with assert_nothing_left(), ScriptedLlmServer(lambda _: ECHO) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with Runner(llm=settings, servers={"faulty": slow}, tool_lock=locked(*listed)) as runner:
            # On a busy machine the reply may take longer than the first of these.
            for limit_s in (3.0, 12.0, 48.0):
                with pytest.raises(TurnTimedOut) as caught:
                    runner.run_turn(TurnRequest(system="s", user="u", turn_timeout_s=limit_s))
                if "starting faulty" in str(caught.value):
                    break
            assert "starting faulty" in str(caught.value)


def test_a_server_that_died_after_its_listing_settles_the_call_as_ever(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    dying = faulty("--kill-at", "call")
    turn = Presumed(tmp_path, [ECHO, DONE], server=dying, tool_lock=locked(*listed))
    assert turn.outcome is not None
    assert [call.settlement for call in turn.outcome.tool_calls] == ["died"]
    assert (turn.outcome.kind, turn.dropped) == ("forced", 0)


def test_the_runners_last_listing_counts_more_than_the_file(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    lock = locked(reworded(listed[0]), *listed[1:])
    with ScriptedLlmServer([ECHO, DONE, ECHO, DONE]) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        trace = tmp_path / "turns.jsonl"
        with Runner(llm=settings, servers={"faulty": faulty()}, trace=trace, tool_lock=lock) as runner:
            first = runner.run_turn(TurnRequest(system="s", user="u"))
            second = runner.run_turn(TurnRequest(system="s", user="u"))
    assert (first.requests, second.requests) == (2, 2)
    assert len(llm.requests) == 4
    sources = [
        each.body.listings[0].source for each in open_episode(trace) if isinstance(each.body, ToolsPresumed)
    ]
    assert sources == ["locked", "runner"]


@pytest.mark.parametrize("keep", ["nothing", "sessions"])
@pytest.mark.slow
def test_tools_that_a_server_adds_during_a_session_are_presumed_only_if_the_session_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: Any
) -> None:
    monkeypatch.setenv("GRUE_CACHE", str(tmp_path))

    def reply(request: LlmRequest) -> LlmReply:
        """Call `added` if it is offered, otherwise `echo`, and answer when it has been called."""
        if request.messages[-1]["role"] == "tool" and "faulty.added" in request.tool_names:
            return DONE
        return tool_calls_reply(("faulty.added", {})) if "faulty.added" in request.tool_names else ECHO

    offered: list[list[bool]] = []
    for run in ("first", "second"):  # the second runner reads the first one's cache
        server, path = faulty("--change-tools"), tmp_path / run
        path.mkdir()
        turn = Presumed(path, reply, server=server, turns=2, start="beside", keep=keep)
        assert (turn.error, turn.dropped) == (None, 0)
        firsts = [body.request for body in turn.of(RequestCompletion)]
        places = [place for place, number in enumerate(firsts) if number == 1]
        offered.append(["faulty.added" in turn.offered(place) for place in places])
    assert offered == [[False, keep == "sessions"]] * 2


def test_a_budget_of_one_request_presumes_nothing(tmp_path: Path, listed: tuple[ToolDefinition, ...]) -> None:
    turn = Presumed(tmp_path, [DONE], tool_lock=locked(*listed), budget=Budget(requests=1))
    assert turn.outcome is not None
    assert turn.outcome.requests == 1
    assert not any(request.presumed for request in turn.of(RequestCompletion))


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(MCPConfigError, match='start= is one of "before", "beside_if_locked"'):
        Runner(llm=LlmSettings(base_url="http://localhost:1", model="m"), start="always")  # type: ignore[arg-type]


def test_the_host_sees_no_text_before_the_tools_are_verified(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    seen: list[str] = []
    texts: list[str] = []

    def on_delta(delta: TextDelta) -> None:
        assert "ToolsVerified" in seen
        texts.append(delta.text)

    with ScriptedLlmServer([DONE]) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        trace = tmp_path / "turn.jsonl"
        with Runner(
            llm=settings, servers={"faulty": faulty()}, trace=trace, tool_lock=locked(*listed)
        ) as runner:
            runner.recorder.add(lambda envelope, _: seen.append(type(envelope.body).__name__))
            runner.run_turn(TurnRequest(system="s", user="u", on_delta=on_delta))
    assert "".join(texts) == "done"
    assert "TextDelta" in seen


def test_a_turn_ends_as_ever_if_the_host_cannot_take_the_text_that_was_held(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    def on_delta(delta: TextDelta) -> None:
        raise KeyError(delta.text)

    trace = tmp_path / "turn.jsonl"
    with ScriptedLlmServer([DONE]) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with (
            Runner(
                llm=settings, servers={"faulty": faulty()}, trace=trace, tool_lock=locked(*listed)
            ) as runner,
            pytest.raises(ActorCrashed, match=r"(?s)'llm' crashed: KeyError.*in on_delta"),
        ):
            runner.run_turn(TurnRequest(system="s", user="u", on_delta=on_delta))
    names = [type(each.body).__name__ for each in open_episode(trace)]
    assert names.index("ToolsVerified") < names.index("ActorFailed")
    assert names[-1] == "TurnFailed"


def sources(trace: Path) -> list[str]:
    presumed = (each.body for each in open_episode(trace) if isinstance(each.body, ToolsPresumed))
    return [listing.source for body in presumed for listing in body.listings]


@pytest.mark.slow
def test_seen_in_another_process_the_listing_comes_from_the_cache_and_is_screened(
    tmp_path: Path, listed: tuple[ToolDefinition, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRUE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for number in ("first", "second"):
        (tmp_path / number).mkdir()
    first = Presumed(tmp_path / "first", [DONE], start="beside")
    assert first.of(ToolsPresumed) == []
    drifted = ToolLock({"faulty": lock_of((reworded(listed[0]), *listed[1:]))})
    second = Presumed(
        tmp_path / "second",
        [FAIL, DONE],
        start="beside",
        tool_lock=drifted,
        policy=FailurePolicy(on_tool_drift="refuse"),
    )
    assert sources(second.trace) == ["cache"]
    assert "faulty.echo" not in second.offered(0), "the cache holds it, and the lock refuses it"
    assert second.dropped == 0
    assert Presumed(tmp_path, [DONE], start="beside_if_locked").of(ToolsPresumed) == []
    told = CliRunner().invoke(app, ["doctor", "--no-network"]).output
    assert '1 cached tool listing, for start = "beside" and "when_called"' in told
    assert f"To clear it: rm -r {tmp_path / 'cache' / 'listings'}" in told


def test_a_listing_with_a_secret_in_it_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRUE_CACHE", str(tmp_path / "cache"))
    telling = replace(faulty(), env={"API_KEY": "The tool echo."})
    turn = Presumed(tmp_path, [DONE], server=telling, start="beside")
    assert turn.outcome is not None
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_a_turn_that_is_resumed_presumes_what_its_trace_has_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRUE_CACHE", str(tmp_path / "cache"))
    policy = ToolPolicy(parking=True)
    begun = Presumed(tmp_path, [DONE], tool_policy=policy)
    lines = begun.trace.read_bytes().splitlines(keepends=True)
    asked = next(n for n, line in enumerate(lines) if b'"type":"RequestCompletion"' in line)
    begun.trace.write_bytes(b"".join(lines[: asked + 1]))
    with assert_nothing_left(), ScriptedLlmServer([DONE]) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with Runner(llm=settings, servers={"faulty": faulty()}, tool_policy=policy, start="beside") as runner:
            assert runner.resume(begun.trace).response == "done"
    assert sources(begun.trace) == ["trace"]


def test_an_episode_that_is_resumed_presumes_what_its_trace_has_listed_where_the_lock_allows_it(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    reader = Presumed(tmp_path, [DONE])
    opened = reader.of(SessionOpened)[0]
    lock = locked(reworded(listed[0]), *listed[1:])
    for tool_lock, expected in ((lock, ["trace"]), (None, [])):
        with ScriptedLlmServer([ECHO, DONE]) as llm:
            settings = LlmSettings(base_url=llm.base_url, model="m")
            trace = tmp_path / f"{len(expected)}.jsonl"
            servers = {"faulty": faulty()}
            with Runner(llm=settings, servers=servers, trace=trace, tool_lock=tool_lock) as runner:
                runner.remember("faulty", Proven(), opened.tools)
                assert runner.run_turn(TurnRequest(system="s", user="u")).requests == 2
        assert sources(trace) == expected


@pytest.mark.slow
def test_a_conversation_that_goes_on_from_its_trace_presumes_what_that_has_listed(
    tmp_path: Path, listed: tuple[ToolDefinition, ...]
) -> None:
    before = Presumed(tmp_path, [DONE])
    lock = locked(reworded(listed[0]), *listed[1:])
    with ScriptedLlmServer([ECHO, DONE]) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        later, servers = tmp_path / "later.jsonl", {"faulty": faulty()}
        with Runner(llm=settings, servers=servers, trace=later, tool_lock=lock) as runner:
            talk = Conversation.from_trace(before.trace, runner)
            assert talk.ask("And then?").requests == 2
            assert runner.connection("other") == Untried()
    assert sources(later) == ["trace"]


_COLD = """
import sys, threading
from grue import HttpServer, LlmSettings, Runner, TurnRequest
from grue.engine.turn_actors import EarlyRequest
from grue.messages import ToolDefinition
from grue.protocol.tools.lock import ToolLock, lock_of
from grue.testing import faulty_server
from grue.testing.llm_server import ScriptedLlmServer, text_reply
from grue.tool_sessions.server_specs import StdioServer

SDK, HTTP = "grue.transports.mcp.sdk", "grue.transports.mcp.sdk_http"
names = ("faulty", "url")
tools = [ToolDefinition(server=name, tool="echo", input_schema={"type": "object"}) for name in names]
locks = {tool.server: (tool,) for tool in tools}
lock = ToolLock({name: lock_of(each) for name, each in locks.items()}, listings=locks)
command, *args = faulty_server.argv()
seen, importers = [], {}

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in (SDK, HTTP):
            importers[name] = threading.current_thread()

def sent(self, sent=EarlyRequest.sent):
    seen.append("mcp" in sys.modules)
    sent(self)

sys.meta_path.insert(0, Watch())
EarlyRequest.sent = sent
with ScriptedLlmServer([text_reply("done")]) as llm:
    server = StdioServer(name="faulty", command=command, args=tuple(args))
    url = HttpServer(name="url", url=sys.argv[1])
    llm = LlmSettings(base_url=llm.base_url, model="m")
    with Runner(llm=llm, servers={"faulty": server, "url": url}, tool_lock=lock) as runner:
        assert runner.run_turn(TurnRequest(system="s", user="u")).response == "done"
print(seen[0], [importers[name] is threading.main_thread() for name in (SDK, HTTP)])
"""


@pytest.mark.slow
def test_the_sdk_is_imported_after_the_request_is_written_and_in_a_thread(tmp_path: Path) -> None:
    with real_http_server() as url:
        done = subprocess.run(
            [sys.executable, "-c", _COLD, url],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.stdout == "False [False, False]\n", done.stderr
