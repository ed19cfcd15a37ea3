"""Tools and servers used outside turns, through a runner in each of its lifetimes and a `ToolClient`."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from commands import mock_server
from fault_turns import Mode
from lifetimes import PLAIN_MODES, modes
from transport_servers import QUICK, faulty
from worded_turns import WordedModel, ask, worded_model

from grue import (
    FailurePolicy,
    FunctionTools,
    Recorder,
    Runner,
    StdioServer,
    ToolPolicy,
    ToolRule,
    TraceWriter,
    TurnLimits,
)
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import (
    MCPError,
    MCPRequestError,
    MCPRequestTimedOut,
    MCPServerStartupError,
    MCPToolCallError,
    ToolCallDenied,
    ToolCallTimedOut,
    ToolNotFound,
    ToolServerDied,
)
from grue.messages import (
    CallTools,
    ServerNoted,
    ServerRequested,
    SessionOpened,
    SessionPrewarmed,
    ToolCalled,
    ToolReturned,
)
from grue.runtime.trace.recorder import Envelope
from grue.tracing.reading import open_episode
from grue.tracing.replay import replay

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

LIMITS = TurnLimits(server_startup_timeout_s=30.0, tool_call_timeout_s=20.0)


@pytest.fixture
def model() -> Iterator[WordedModel]:
    with worded_model() as one:
        yield one


class Heard:
    """What a recorder has shown, as one list."""

    def __init__(self, recorder: Recorder) -> None:
        self.envelopes: list[Envelope[Any]] = []
        recorder.add(lambda envelope, _line: self.envelopes.append(envelope))

    def of(self, *kinds: type) -> list[Any]:
        return [each.body for each in self.envelopes if isinstance(each.body, kinds)]

    def pids(self) -> list[int]:
        return [body.pid for body in self.of(SessionOpened)]


def runner(model: WordedModel, mode: Mode, *flags: str, **more: Any) -> Runner:
    servers = more.pop("servers", {"faulty": faulty(*flags)})
    return model.runner(mode, servers=servers, **{"limits": LIMITS, **more})


# --- Calls of tools ---


def test_the_trace_of_a_call_without_a_time_limit_can_be_read(tmp_path: Path) -> None:
    recorder, path = Recorder(), tmp_path / "trace.jsonl"
    with (
        TraceWriter(path, episode="e") as writer,
        ToolClient({"hall": FunctionTools({"look": lambda: "dark"})}, recorder=recorder) as client,
    ):
        recorder.add(writer)
        for limit_s in (float("inf"), True):
            assert client.call("hall.look", timeout_s=limit_s).content == "dark"
    calls = [each.body for each in open_episode(path) if isinstance(each.body, CallTools)]
    assert [each.timeout_s for each in calls] == [2.0**63, 1.0]


@pytest.mark.parametrize("mode", modes(*PLAIN_MODES))
@pytest.mark.slow
def test_tools_are_listed_and_called_before_between_and_after_turns(
    model: WordedModel, mode: Mode, tmp_path: Path
) -> None:
    recorder = Recorder()
    with contextlib.closing(TraceWriter(tmp_path / "trace.jsonl", episode="e")) as writer:
        recorder.add(writer)
        with runner(model, mode, recorder=recorder) as one:
            assert one.tools()[0].name == "faulty.echo"
            assert one.tool("faulty.echo") is not None
            assert one.tool("faulty.nope") is None
            assert one.call("faulty.echo", {"text": "before"}).content == "before"
            assert one.run_turn(ask("call faulty.echo")).tool_calls[0].result.content == "x"
            assert one.call("faulty.echo", {"text": "between"}).content == "between"
            assert one.run_turn(ask()).turn == 2, "a call is no turn"


@pytest.mark.slow
def test_with_lifetime_turn_and_without_kept_sessions_each_call_has_a_session_of_its_own(
    model: WordedModel,
) -> None:
    for mode in ("turn", "episode"):
        with runner(model, mode) as one:
            heard = Heard(one.recorder)
            for text in ("one", "two"):
                one.call("faulty.echo", {"text": text})
            pids = heard.pids()
            assert len(set(pids)) == 2, mode


@pytest.mark.slow
def test_a_kept_session_serves_turns_and_calls(model: WordedModel) -> None:
    with runner(model, "kept") as one:
        heard = Heard(one.recorder)
        one.call("faulty.echo", {"text": "opens it"})
        one.run_turn(ask("call faulty.echo"))
        one.call("faulty.echo", {"text": "uses it"})
        one.run_turn(ask("call faulty.echo"))
        assert len(set(heard.pids())) == 1
        assert len(heard.of(ToolReturned)) == 4


@pytest.mark.slow
def test_a_prewarmed_session_is_left_to_its_turn(model: WordedModel) -> None:
    with runner(model, "ahead") as one:
        heard = Heard(one.recorder)
        prepared = threading.Event()
        one.recorder.add(lambda sent, _: prepared.set() if isinstance(sent.body, SessionPrewarmed) else None)
        one.run_turn(ask("call faulty.echo"))
        assert prepared.wait(60)
        (prewarmed,) = heard.of(SessionPrewarmed)
        one.call("faulty.echo", {"text": "its own"})
        one.run_turn(ask("call faulty.echo"))
        first, own, second = heard.pids()
        assert second == prewarmed.pid
        assert own not in (first, prewarmed.pid)


@pytest.mark.slow
def test_a_call_to_a_kept_session_waits_for_the_batch_of_a_running_turn(
    model: WordedModel, tmp_path: Path
) -> None:
    """The turn's batch is held in its tool call; the call comes from another thread meanwhile."""
    started, release = threading.Event(), threading.Event()

    def hold() -> str:
        started.set()
        release.wait(60)
        return "held"

    servers = {"faulty": faulty(), "own": FunctionTools({"hold": hold})}
    with runner(model, "kept", servers=servers) as one:
        heard = Heard(one.recorder)
        one.call("faulty.echo", {"text": "opens it"})
        handle = one.start_turn(ask("call own.hold"))
        assert started.wait(60)
        assert one.call("faulty.echo", {"text": "beside"}).content == "beside", "the turn runs; no batch does"
        release.set()
        assert handle.result(60).response == "done"
        assert len(set(filter(None, heard.pids()))) == 1


@pytest.mark.parametrize("mode", modes(*PLAIN_MODES))
@pytest.mark.slow
def test_the_async_twins_do_the_same(model: WordedModel, mode: Mode) -> None:
    async def use(one: Runner) -> None:
        assert (await one.tools_async())[0].name == "faulty.echo"
        assert await one.tool_async("faulty.nope") is None
        assert (await one.call_async("faulty.echo", {"text": "hi"})).content == "hi"
        with pytest.raises(MCPRequestError):
            await one.request_async("faulty", "prompts/list")
        with pytest.raises(MCPRequestError):
            await one.request_all_async("faulty", "prompts/list")

    with runner(model, mode) as one:
        anyio.run(use, one)


# --- What goes wrong ---


def broken_calls() -> dict[str, tuple[tuple[str, ...], str, type[MCPToolCallError], str]]:
    return {
        "the tool fails": ((), "faulty.fail", MCPToolCallError, "faulty.fail: "),
        "no such tool": ((), "faulty.nope", ToolNotFound, "Available tools: faulty.echo"),
        "no answer": (("--silent-at", "call"), "faulty.echo", ToolCallTimedOut, "timed out after 0.5s"),
        "a death": (("--exit-at", "call", "--exit-status", "7"), "faulty.echo", ToolServerDied, "status 7"),
        "denied": ((), "faulty.environ", ToolCallDenied, "the house forbids it"),
    }


@pytest.mark.parametrize("case", broken_calls())
def test_a_failed_call_is_a_result_or_with_check_a_typed_error(model: WordedModel, case: str) -> None:
    flags, name, kind, words = broken_calls()[case]
    rule = ToolRule(tools=("faulty.environ",), verdict="deny", reason="the house forbids it")
    with runner(model, "turn", *flags, tool_policy=ToolPolicy(rules=(rule,))) as one:
        result = one.call(name, {"text": "x"}, timeout_s=0.5)
        assert result.is_error
        with pytest.raises(kind) as raised:
            one.call(name, {"text": "x"}, timeout_s=0.5, check=True)
    assert type(raised.value) is kind
    assert words in str(raised.value)
    assert raised.value.tool == name
    assert raised.value.result == result
    assert isinstance(raised.value, TimeoutError) == (case == "no answer")


def test_a_denied_call_is_not_sent_and_a_question_is_not_asked(model: WordedModel) -> None:
    rules = (
        ToolRule(tools=("faulty.fail",), verdict="deny"),
        ToolRule(tools=("*",), verdict="ask"),
    )
    with runner(model, "turn", tool_policy=ToolPolicy(rules=rules)) as one:
        heard = Heard(one.recorder)
        assert one.call("faulty.fail").is_error
        assert one.call("faulty.echo", {"text": "asked"}).content == "asked"
        assert [body.tool for body in heard.of(ToolCalled)] == ["echo"]


@pytest.mark.parametrize("turn", [0, 1])
def test_the_calls_of_a_program_are_not_counted_but_none_may_be_allowed(
    model: WordedModel, turn: int
) -> None:
    own = FunctionTools(catch_all=lambda name, arguments: name)
    rules = (ToolRule(tools=("own.drop",), max_calls=0), ToolRule(max_calls=1))
    with runner(model, "turn", servers={"own": own}, tool_policy=ToolPolicy(rules=rules)) as one:
        assert [one.call("own.sweep", turn=turn).content for _ in range(3)] == ["sweep"] * 3
        with pytest.raises(ToolCallDenied, match="at most 0 calls of this tool are allowed in a turn"):
            one.call("own.drop", turn=turn, check=True)


def test_a_function_that_serves_any_name_is_called_and_may_be_denied(model: WordedModel) -> None:
    own = FunctionTools(catch_all=lambda name, arguments: f"{name} {arguments}")
    rules = (ToolRule(tools=("own.drop_*",), verdict="deny"),)
    with runner(model, "turn", servers={"own": own}, tool_policy=ToolPolicy(rules=rules)) as one:
        assert one.call("own.sweep", {"room": 1}).content == "sweep {'room': 1}"
        with pytest.raises(ToolCallDenied):
            one.call("own.drop_all", check=True)


@pytest.mark.slow
def test_a_server_that_does_not_start_is_an_error_with_its_cause(model: WordedModel) -> None:
    with runner(model, "turn", "--exit-at", "start", "--stderr", "no disk") as one:
        for use in (one.tools, lambda: one.call("faulty.echo"), lambda: one.request("faulty", "ping")):
            with pytest.raises(MCPServerStartupError, match="no disk"):
                use()
        with pytest.raises(MCPError, match=r"There is no MCP server 'other'\. Configured: faulty"):
            one.call("other.tool")


def test_a_start_that_fails_after_a_turn_is_no_part_of_that_turn(model: WordedModel, tmp_path: Path) -> None:
    degraded = FailurePolicy(first_connect="disable")
    trace = tmp_path / "trace.jsonl"
    with runner(model, "turn", "--exit-at", "start", policy=degraded, trace=trace) as one:
        assert one.run_turn(ask()).kind == "degraded"
        with pytest.raises(MCPServerStartupError):
            one.tools()
    assert [turn.divergence for turn in replay(open_episode(trace))] == [None]


@pytest.mark.parametrize("mode", modes(*PLAIN_MODES))
def test_from_inside_a_turn_it_is_an_error_at_once(model: WordedModel, mode: Mode) -> None:
    uses: list[Callable[[], object]] = []
    refused: list[str] = []

    def meddle() -> str:
        for use in uses:
            try:
                use()
            except MCPError as error:
                refused.append(str(error))
        return "tried"

    servers = {"own": FunctionTools({"meddle": meddle})}
    with runner(model, mode, servers=servers) as one, runner(model, mode, servers=servers) as other:
        uses += [one.tools, lambda: one.call("own.meddle"), lambda: one.request("own", "ping")]
        one.run_turn(ask("call own.meddle"))
        assert len(refused) == 3
        assert all("from inside one of its turns" in text for text in refused)
        uses[:] = [other.tools]
        refused.clear()
        one.run_turn(ask("call own.meddle"))
        assert refused == [], "another runner's tools may be used"


@pytest.mark.slow
def test_a_kept_session_that_died_is_replaced(model: WordedModel) -> None:
    with runner(model, "kept", "--exit-at", "call") as one:
        heard = Heard(one.recorder)
        for _ in range(2):
            with pytest.raises(ToolServerDied):
                one.call("faulty.echo", {"text": "x"}, check=True)
        assert len(set(heard.pids())) == 2


@pytest.mark.parametrize("mode", modes(*PLAIN_MODES))
def test_ctrl_c_cancels_the_call_and_leaves_no_process(model: WordedModel, mode: Mode) -> None:
    def press(envelope: Envelope[Any], _line: bytes) -> None:
        if isinstance(envelope.body, ToolCalled):
            os.kill(os.getpid(), signal.SIGINT)

    with runner(model, mode, "--silent-at", "call") as one:
        one.recorder.add(press)
        with pytest.raises(KeyboardInterrupt):
            one.call("faulty.echo", {"text": "x"})


@pytest.mark.parametrize("mode", modes(*PLAIN_MODES))
@pytest.mark.slow
def test_each_thread_gets_its_own_answers(model: WordedModel, mode: Mode) -> None:
    answers: dict[str, object] = {}
    with runner(model, mode) as one:

        def call(text: str) -> None:
            answers[text] = one.call("faulty.echo", {"text": text}).content

        threads = [threading.Thread(target=call, args=(f"text {number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert answers == {text: text for text in (f"text {number}" for number in range(4))}


# --- Requests ---


@pytest.fixture
def mock() -> StdioServer:
    """The reference server, with two items in a page of each list."""
    return mock_server("--page-size", "2")


def reference(mode: Mode, model: WordedModel, mock: Any) -> Runner:
    return runner(model, mode, servers={"mock": mock})


@pytest.mark.parametrize("mode", ["turn", "kept"])
@pytest.mark.slow
def test_prompts_resources_templates_and_completions(model: WordedModel, mode: Mode, mock: Any) -> None:
    with reference(mode, model, mock) as one:
        heard = Heard(one.recorder)
        prompts = one.request_all("mock", "prompts/list")
        assert {prompt["name"] for prompt in prompts} >= {"test_simple_prompt", "test_prompt_with_image"}
        assert len(one.request("mock", "prompts/list")["prompts"]) == 2, "one page"  # type: ignore[arg-type]
        given = {"name": "test_prompt_with_arguments", "arguments": {"arg1": "a", "arg2": "b"}}
        assert "arg1='a'" in str(one.request("mock", "prompts/get", given)["messages"])
        assert len(one.request_all("mock", "resources/list")) == 3
        (template,) = one.request_all("mock", "resources/templates/list")
        assert template["uriTemplate"] == "test://template/{id}/data"
        read = one.request("mock", "resources/read", {"uri": "test://static-text"})
        assert "static text resource" in str(read["contents"])
        asked = {
            "ref": {"type": "ref/prompt", "name": "test_prompt_with_arguments"},
            "argument": {"name": "arg1", "value": "pa"},
        }
        assert "values" in one.request("mock", "completion/complete", asked)["completion"]  # type: ignore[operator]
        assert {body.method for body in heard.of(ServerRequested)} >= {"prompts/get", "completion/complete"}


@pytest.mark.slow
def test_results_keep_the_servers_own_content_blocks(model: WordedModel, mock: Any) -> None:
    with reference("turn", model, mock) as one:
        heard = Heard(one.recorder)
        added = one.call("mock.add", {"a": 1, "b": 2})
        assert added.content == {"result": 3}
        assert added.blocks == ({"type": "text", "text": "3"},)
        mixed = one.call("mock.test_multiple_content_types")
        assert [block["type"] for block in mixed.blocks] == ["text", "image", "resource"]
        assert [body.result.blocks for body in heard.of(ToolReturned)] == [(), ()], "recorded once only"


@pytest.mark.slow
def test_a_subscription_needs_a_session_that_stays_and_its_updates_are_recorded(
    model: WordedModel, mock: Any
) -> None:
    uri = {"uri": "test://watched-resource"}
    with (
        reference("turn", model, mock) as one,
        pytest.raises(MCPError, match="needs a session that stays open: use a ToolClient"),
    ):
        one.request("mock", "resources/subscribe", uri)
    with reference("kept", model, mock) as one:
        heard = Heard(one.recorder)
        one.request("mock", "resources/subscribe", uri)
        one.call("mock.touch", uri, check=True)
        one.call("mock.echo", {"text": "by now it has come"}, check=True)
        assert [note.text for note in heard.of(ServerNoted) if note.kind == "updated"] == [uri["uri"]]


@pytest.mark.slow
def test_a_refused_and_an_unanswered_request_are_typed_errors(model: WordedModel, mock: Any) -> None:
    with reference("turn", model, mock) as one:
        with pytest.raises(MCPRequestError, match="refused prompts/get") as refused:
            one.request("mock", "prompts/get", {"name": "nope"})
        assert (refused.value.server, refused.value.method) == ("mock", "prompts/get")
        assert refused.value.code is not None
        with pytest.raises(ValueError, match="has no pages"):
            one.request_all("mock", "prompts/get")
        for method, words in (("tools/call", "Use the method `call`"), ("initialize", "is opened")):
            with pytest.raises(MCPError, match=words):
                one.request("mock", method)
    with ToolClient({"mock": mock}, limits=LIMITS, process_limits=QUICK) as client:
        with pytest.raises(MCPRequestTimedOut, match=r"did not answer ping within 0 s"):
            client.request("mock", "ping", timeout_s=0.0)
        assert client.request("mock", "ping") == {}, "the session goes on"
    with (
        runner(model, "turn", servers={"own": FunctionTools({})}) as one,
        pytest.raises(MCPError, match="not an MCP server"),
    ):
        one.request("own", "ping")
