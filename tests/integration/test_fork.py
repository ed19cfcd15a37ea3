"""What a fork changes, what it refuses, and that it calls no tool unless it is told to."""

import asyncio
import contextlib
import itertools
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Literal
from urllib.parse import urlsplit

import anyio.lowlevel
import pytest
from commands import faulty as configured
from commands import grue, write_servers
from forked_turns import ASKS, PARKS, Box, model, runner
from msgspec import Struct
from msgspec.structs import replace
from transport_servers import faulty

from grue import (
    AnswerSpec,
    Budget,
    Conversation,
    FailurePolicy,
    FunctionTools,
    LlmSettings,
    MCPError,
    RetryPolicy,
    Runner,
    ToolAnnotations,
    ToolContext,
    ToolPolicy,
    ToolRule,
    ToolSearch,
    TurnRequest,
    parked_turns,
    tool,
)
from grue.engine.recorded_tools import NOT_AS_RECORDED
from grue.errors import (
    AnswerError,
    ApprovalPending,
    BudgetSpent,
    ForkMissed,
    LLMError,
    MCPConfigError,
    NothingToResume,
    TraceError,
)
from grue.fleet.fork_work import fork_again
from grue.hosts.agent_loop import AgentLoop
from grue.messages import (
    CheckAnswer,
    CompletionReceived,
    ConnectFailed,
    McpDisabled,
    ModelAsked,
    RunTurn,
    ServerNoted,
    SessionOpened,
    ToolCallResult,
    ToolDefinition,
    ToolReturned,
    TurnCompleted,
    TurnForked,
    TurnParked,
)
from grue.policies import Keep, Misses
from grue.protocol.turn.prices import Spent
from grue.runtime.loops import sync_edge
from grue.runtime.loops.sync_edge import BlockingInsideEventLoopWarning
from grue.testing.fake_tools import FakeToolServer
from grue.testing.llm_server import (
    LlmReply,
    LlmRequest,
    ScriptedLlmServer,
    error_reply,
    text_reply,
    tool_calls_reply,
)
from grue.tool_sessions.connection import Listing
from grue.tracing.diff import diff
from grue.tracing.reading import open_episode, read_episode
from grue.tracing.replay import replay

WIRE = "chat_completions"


@pytest.fixture
def server() -> Iterator[ScriptedLlmServer]:
    with ScriptedLlmServer(model) as server:
        yield server


@pytest.fixture
def recorded(tmp_path: Path, server: ScriptedLlmServer) -> Path:
    with runner(server, WIRE, tmp_path / "a.jsonl", servers=Box().servers()) as each:
        each.run_turn(TurnRequest(user="Tidy up.", system="Be brief."))
    server.requests.clear()
    return tmp_path / "a.jsonl"


def other(request: LlmRequest) -> LlmReply:
    """Call something that the record does not have."""
    if any(message["role"] == "tool" for message in request.messages):
        return text_reply(f"It said: {request.messages[-1]['content']}")
    return tool_calls_reply(("box.delete", {"name": "everything"}), ids=("x1",))


def seq_of(trace: Path, kind: str, number: int = 1) -> int:
    return seqs_of(trace, kind)[number - 1]


def seqs_of(trace: Path, kind: str) -> list[int]:
    return [each.seq for each in read_episode(trace).envelopes if type(each.body).__name__ == kind]


def bodies(trace: Path, kind: Any) -> list[Any]:
    return [each.body for each in read_episode(trace).envelopes if isinstance(each.body, kind)]


def sound(trace: Path) -> None:
    assert all(each.divergence is None for each in replay(open_episode(trace)))


@pytest.mark.slow
def test_a_message_chooses_one_of_several_turns_of_a_number(
    tmp_path: Path, server: ScriptedLlmServer, recorded: Path
) -> None:
    with runner(server, WIRE, tmp_path / "b.jsonl", servers=Box().servers()) as each:
        for user in ("Tidy up.", "Tidy up again."):
            [_] = each.map([TurnRequest(user=user, system="Be brief.")])
    trace = tmp_path / "b.jsonl"
    for at, user in ((None, "Tidy up again."), (seq_of(trace, "RequestCompletion", 2), "Tidy up.")):
        name = tmp_path / f"fork-{at}.jsonl"
        with runner(server, WIRE, name) as each:
            assert each.fork(trace, turn=1, at=at).kind == "answered"
        assert [run.user for run in bodies(name, RunTurn)] == [user]
        sound(name)


def test_a_fork_of_a_turn_that_tried_a_disabled_server_again_replays(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    how: dict[str, Any] = {
        "servers": {"faulty": faulty("--exit-at", "start")},
        "policy": FailurePolicy(first_connect="disable", retry_disabled_s=0),
    }
    trace, forked = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    with runner(server, WIRE, trace, **how) as each:
        assert [each.run_turn("Tidy up.").kind for _ in range(2)] == ["degraded", "degraded"]
    with runner(server, WIRE, forked, **how) as each:
        assert each.fork(trace, turn=2, at=seqs_of(trace, "RequestCompletion")[-1]).kind == "degraded"
    sound(forked)


def test_a_fork_of_a_turn_in_which_a_server_did_not_start_again_replays(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    box, policy = FakeToolServer("box"), FailurePolicy(connect_retries=0)
    trace, forked = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    with runner(server, WIRE, trace, servers={"box": box}, policy=policy) as each:
        each.run_turn("Tidy up.")
        box.fails_to_start(times=1)
        assert each.run_turn("Tidy up.").kind == "degraded"
    with runner(server, WIRE, forked, servers={"box": box}, policy=policy) as each:
        assert each.fork(trace, turn=2, at=seqs_of(trace, "RequestCompletion")[-1]).kind == "degraded"
    sound(forked)


@pytest.mark.parametrize(
    "given",
    [
        {"tool_results": {"a0": ToolCallResult("x", is_error="no")}},  # type: ignore[arg-type]
        {"tools": {"box": [ToolDefinition(server="box", tool=5, input_schema={})]}},  # type: ignore[arg-type]
    ],
)
def test_a_result_or_tool_with_a_field_of_a_wrong_type_is_refused(
    tmp_path: Path, server: ScriptedLlmServer, recorded: Path, given: dict[str, Any]
) -> None:
    """The fork's trace could not be read."""
    wanted = r"^tool(s|_results)=Tool\w+\(\.\.\.\): .*Expected `"
    each = runner(server, WIRE, tmp_path / "b.jsonl", servers=Box().servers())
    with each, pytest.raises(MCPConfigError, match=wanted):
        each.fork(recorded, **given)
    assert server.requests == []


def test_a_fork_of_a_resumed_turn_in_which_a_server_started_late_replays(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    """Its first part, before the turn was parked, is in the fork's trace without `TurnForked`."""
    yard = FakeToolServer("yard")
    how: dict[str, Any] = {"servers": {**Box().servers(), "yard": yard}, "tool_policy": PARKS}
    trace, forked = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    with runner(server, WIRE, trace, **how) as each:
        for turn in (1, 2):
            with pytest.raises(ApprovalPending) as pending:
                each.run_turn("Tidy up.")
            each.resume(trace, [question.approve() for question in pending.value.questions], turn=turn)
            yard.fails_to_start(times=1)
    with runner(server, WIRE, forked, **how) as each:
        each.fork(trace, turn=2, at=seqs_of(trace, "RequestCompletion")[-1])
    assert [body.then for body in bodies(forked, ConnectFailed)] == ["retry"]
    sound(forked)


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("first", [None, 1, 2, 3])
def test_the_runners_budget_holds_for_what_a_fork_asks(
    tmp_path: Path, server: ScriptedLlmServer, recorded: Path, first: int | None, most: int
) -> None:
    at = None if first is None else seq_of(recorded, "RequestCompletion", first)
    with runner(server, WIRE, tmp_path / "b.jsonl") as each:
        each.budget = Budget(requests=most)
        with contextlib.suppress(AnswerError):  # the scripted model may call a tool where it has to answer
            each.fork(recorded, at=at)
        assert each.spent.requests == len(server.requests) <= most
    sound(tmp_path / "b.jsonl")


def test_a_fork_is_refused_if_the_budget_is_spent(
    tmp_path: Path, server: ScriptedLlmServer, recorded: Path
) -> None:
    with runner(server, WIRE, tmp_path / "b.jsonl") as each:
        each.budget = Budget(requests=2)
        each.spent = Spent(requests=2)
        with pytest.raises(BudgetSpent, match=r"Turn 1 cannot be forked: .* 2 of 2 requests"):
            each.fork(recorded)
    assert server.requests == []


@pytest.mark.parametrize("keep", ["nothing", "loop"])
def test_inside_an_event_loop_a_fork_recommends_a_thread(
    server: ScriptedLlmServer, recorded: Path, keep: Keep
) -> None:
    async def web_view() -> int:
        with Runner(llm=server.settings, keep=keep) as each:
            return each.fork(recorded).requests

    sync_edge._warned.clear()
    with pytest.warns(BlockingInsideEventLoopWarning, match=r"Use asyncio\.to_thread instead"):
        assert asyncio.run(web_view())


@pytest.mark.slow
def test_another_model_another_system_text_and_other_limits(
    tmp_path: Path, server: ScriptedLlmServer, recorded: Path
) -> None:
    llm = LlmSettings(base_url=server.base_url, model="other", api_key="key", temperature=0.0)
    with Runner(llm=llm, trace=tmp_path / "b.jsonl") as each:
        outcome = each.fork(
            recorded,
            at=seq_of(recorded, "RequestCompletion", 2),
            system="Be long.",
            changes={"max_tool_iterations": 1},
            after_timeout="force",
        )
    assert (outcome.kind, outcome.requests) == ("forced", 2)
    (request,) = server.requests
    assert (request.body["model"], request.body["temperature"]) == ("other", 0.0)
    assert request.messages[0] == {"role": "system", "content": "Be long."}
    assert [message["role"] for message in request.messages].count("tool") == 2
    assert "tools" not in request.body, "one iteration is over"
    (forked,) = bodies(tmp_path / "b.jsonl", TurnForked)
    changed = ("system", "max_tool_iterations", "after_timeout", "model other", "temperature")
    assert forked.changed == changed
    assert isinstance(forked.asks, ModelAsked)
    assert forked.asks.model == "other"
    sound(tmp_path / "b.jsonl")
    first = next(iter(diff(open_episode(recorded), open_episode(tmp_path / "b.jsonl"))))
    assert first.right is not None
    assert first.right.seq > seq_of(tmp_path / "b.jsonl", "TurnForked"), "they are equal up to the fork"


def test_a_fork_begins_with_the_model_of_a_chain_that_the_turn_had_come_to(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    def first(request: LlmRequest) -> LlmReply:
        return model(request) if len(request.messages) < 3 else LlmReply(status=503)

    with ScriptedLlmServer(first) as down:
        chain = [
            LlmSettings(base_url=each.base_url, model="m", retry=RetryPolicy(max_retries=0))
            for each in (down, server)
        ]
        for name in ("a", "b"):
            with Runner(llm=chain, trace=tmp_path / f"{name}.jsonl", servers=Box().servers()) as each:
                if name == "a":
                    each.run_turn(TurnRequest(user="Tidy up."))
                    down.requests.clear()
                else:
                    each.fork(tmp_path / "a.jsonl", at=seq_of(tmp_path / "a.jsonl", "RequestCompletion", 3))
    assert down.requests == []
    (forked,) = bodies(tmp_path / "b.jsonl", TurnForked)
    assert (forked.changed, forked.asks.address) == ((), server.base_url)
    sound(tmp_path / "b.jsonl")


@pytest.mark.slow
def test_an_unchanged_fork_of_calls_that_say_more_than_their_result_does_not_differ(tmp_path: Path) -> None:
    def look(context: ToolContext) -> str:
        context.log("I look around.")
        return "dust"

    trace = tmp_path / "a.jsonl"
    script = [tool_calls_reply(("box.look", {}), ("faulty.echo", {"text": "a"}), ids=("c1", "c2")), "Dust."]
    with ScriptedLlmServer(script) as server:
        servers = {"box": FunctionTools([look]), "faulty": faulty("--error-at", "call")}
        with runner(server, WIRE, trace, servers=servers) as each:
            each.run_turn(TurnRequest(user="Is there dust?"))
    with ScriptedLlmServer(script) as server, runner(server, WIRE, tmp_path / "b.jsonl") as each:
        each.fork(trace)
    assert len(bodies(trace, ServerNoted)) == 1
    assert [each.error_code for each in bodies(trace, ToolReturned)] == [None, -32050]
    assert [*diff(open_episode(trace), open_episode(tmp_path / "b.jsonl"))] == []


def choosy(request: LlmRequest) -> LlmReply:
    """Refuse a temperature and dots in the names of tools, and call a tool twice."""
    if "temperature" in request.body:
        return error_reply(400, "Unsupported parameter: 'temperature' is not supported with this model.")
    if "." in request.tool_names[0]:
        return error_reply(400, "Invalid 'tools[0].function.name': it must match '^[a-zA-Z0-9_-]+$'.")
    told = sum(message["role"] == "tool" for message in request.messages)
    if told == 2:
        return text_reply("Dust.")
    return tool_calls_reply((request.tool_names[0], {"name": str(told)}), ids=(f"c{told}",))


def careless(request: LlmRequest) -> LlmReply:
    """Keep to the schema only if the prompt states it."""
    return text_reply('{"dust": 3}' if "JSON Schema" in json.dumps(request.body) else "A lot.")


@pytest.mark.parametrize(
    ("script", "servers", "answer"), [(choosy, Box().servers(), None), (careless, {}, dict[str, int])]
)
@pytest.mark.slow
def test_a_fork_keeps_the_form_of_requests_that_was_learned_before_it(
    tmp_path: Path, script: Any, servers: Any, answer: Any
) -> None:
    trace, number = tmp_path / "a.jsonl", itertools.count()
    asked: list[list[bytes]] = []
    with ScriptedLlmServer(script) as server:
        llm = LlmSettings(base_url=server.base_url, model="m", api_key="key", temperature=0.5)
        with Runner(llm=llm, servers=servers, trace=trace) as each:
            for _ in range(2):
                each.run_turn(TurnRequest(user="Is there dust?", answer=answer))
                asked.append([request.raw for request in server.requests])
                server.requests.clear()
        kinds = RunTurn | CompletionReceived | CheckAnswer
        found = [each for each in read_episode(trace).envelopes if isinstance(each.body, kinds)]
        places = [(each.turn, each.seq) for each in found]
        for turn, at in places:
            fork, again = (tmp_path / f"{next(number)}.jsonl" for _ in range(2))
            for source, new, place in ((trace, fork, at), (fork, again, None)):
                server.requests.clear()
                with Runner(llm=llm, trace=new) as each:
                    each.fork(source, turn=turn, at=place)
                sent = [request.raw for request in server.requests]
                assert sent == asked[turn - 1][len(asked[turn - 1]) - len(sent) :]
                assert [*diff(open_episode(trace), open_episode(new))] == []
                assert bodies(new, TurnForked)[-1].changed == ()
            assert sent == asked[turn - 1], "the fork of a fork runs the whole turn"


@pytest.mark.slow
def test_another_result_of_a_call_is_told_the_model(
    tmp_path: Path, server: ScriptedLlmServer, recorded: Path
) -> None:
    with runner(server, WIRE, tmp_path / "b.jsonl") as each:
        outcome = each.fork(recorded, tool_results={"b1": "door: a troll"})
    assert [call.result.content for call in outcome.tool_calls][:2] == ["lamp: dust", "door: a troll"]
    assert len(server.requests) == 2, "the reply with the call is from the record"
    assert server.requests[0].messages[-1]["content"] == "door: a troll"
    with runner(server, WIRE, tmp_path / "c.jsonl") as each:
        failed = ToolCallResult(is_error=True, error_message="it is locked")
        each.fork(recorded, tool_results={"b1": failed})
    assert server.requests[2].messages[-1]["content"] == "Error: it is locked"
    sound(tmp_path / "b.jsonl")


def test_a_call_whose_result_held_a_secret_can_get_another_one(tmp_path: Path) -> None:
    replies = [tool_calls_reply(("box.look", {}), ids=("c1",)), "x", "y"]
    servers = {"box": FunctionTools({"look": lambda: "It says xyzzy-plugh-42."})}
    with ScriptedLlmServer(replies) as server:
        with runner(server, WIRE, tmp_path / "a.jsonl", servers=servers) as each:
            each.recorder.hide("word", "xyzzy-plugh-42")
            each.run_turn("Look.")
        with runner(server, WIRE, tmp_path / "b.jsonl") as each:
            each.fork(tmp_path / "a.jsonl", tool_results={"c1": "a lamp"})
        assert server.requests[-1].messages[-1]["content"] == "a lamp"
    sound(tmp_path / "b.jsonl")


def test_a_call_of_grues_own_tool_cannot_get_another_result(tmp_path: Path) -> None:
    replies = [tool_calls_reply(("find_tools", {"query": "look"}), ids=("c1",)), "x"]
    servers = {"box": FunctionTools({"look": lambda: "a lamp", "take": lambda: "it"})}
    how: dict[str, Any] = {"servers": servers, "tool_search": ToolSearch(above=1)}
    with ScriptedLlmServer(replies) as server:
        with runner(server, WIRE, tmp_path / "a.jsonl", **how) as each:
            each.run_turn("Look.")
        with (
            runner(server, WIRE, tmp_path / "b.jsonl") as each,
            pytest.raises(MCPError, match="c1 is a call of grue's own tool find_tools"),
        ):
            each.fork(tmp_path / "a.jsonl", tool_results={"c1": {"tools": []}})


def test_a_call_that_was_refused_can_get_a_result(tmp_path: Path) -> None:
    replies = [tool_calls_reply(("box.look", {"at": "lamp"}), ids=("c1",)), "x", "y"]

    def look(at: int) -> int:
        return at

    with ScriptedLlmServer(replies) as server:
        with runner(server, WIRE, tmp_path / "a.jsonl", servers={"box": FunctionTools([look])}) as each:
            assert [call.settlement for call in each.run_turn("Look.").tool_calls] == ["rejected"]
        server.requests.clear()
        with runner(server, WIRE, tmp_path / "b.jsonl") as each:
            each.fork(tmp_path / "a.jsonl", tool_results={"c1": "dust"})
        assert server.requests[0].messages[-1]["content"] == "dust"
    sound(tmp_path / "b.jsonl")


@pytest.mark.parametrize("number", [None, 2])
def test_other_tools_are_offered(
    tmp_path: Path, server: ScriptedLlmServer, recorded: Path, number: int | None
) -> None:
    (opened,) = [each for each in bodies(recorded, SessionOpened) if each.server == "box"]
    tools = [each for each in opened.tools if each.tool != "page"]
    tools[0] = ToolDefinition(
        server=tools[0].server, tool=tools[0].tool, description="Look.", input_schema=tools[0].input_schema
    )
    at = None if number is None else seq_of(recorded, "RequestCompletion", number)
    with runner(server, WIRE, tmp_path / "b.jsonl") as each:
        each.fork(recorded, at=at, tools={"box": tools})
    offered = {each["function"]["name"]: each["function"] for each in server.requests[0].body["tools"]}
    assert sorted(offered) == ["box.delete", "box.look", "shed.look"]
    assert offered["box.look"]["description"] == "Look."
    sound(tmp_path / "b.jsonl")


class _Growing(FakeToolServer):
    """Lists another tool after each call of `grow`."""

    async def call(self, tool: str, arguments: dict[str, object], timeout_s: float) -> ToolCallResult:
        result = await super().call(tool, arguments, timeout_s)
        if tool == "grow":
            self.answers(f"new{len(self.calls)}")
        return result


@pytest.mark.slow
def test_changed_tools_are_offered_where_the_recorded_turn_got_them(tmp_path: Path) -> None:
    """With the result of a call, between two calls of a reply, and at a reply's first call."""
    box = _Growing("box")
    box.answers("grow", 1, 2, 3)
    box.answers("look", "dust")
    replies = [["look"], ["grow"], ["grow", "look"], ["look"], ["look"]]

    def thinking(request: LlmRequest) -> LlmReply:
        told = sum(message["role"] == "assistant" for message in request.messages)
        if told in (0, 3):
            box.answers(f"thought{told}")  # the model thinks, and the server changes its list meanwhile
        if told == len(replies):
            return text_reply("done")
        calls = [(f"box.{name}", {}) for name in replies[told]]
        return tool_calls_reply(*calls, ids=[f"c{told}.{number}" for number in range(len(calls))])

    with ScriptedLlmServer(thinking) as server:
        with runner(server, WIRE, tmp_path / "a.jsonl", servers={"box": box}) as each:
            each.run_turn(TurnRequest(user="Go."))
        offered = [request.tool_names for request in server.requests]
        assert [len(names) for names in offered] == [2, 3, 4, 5, 6, 6]
        for number, place in enumerate((None, *seqs_of(tmp_path / "a.jsonl", "RequestCompletion"))):
            server.requests.clear()
            with runner(server, WIRE, tmp_path / f"{number}.jsonl") as each:
                each.fork(tmp_path / "a.jsonl", at=place)
            sent = [request.tool_names for request in server.requests]
            assert sent == offered[len(offered) - len(sent) :], place
            assert [
                *diff(open_episode(tmp_path / "a.jsonl"), open_episode(tmp_path / f"{number}.jsonl"))
            ] == []


def test_a_call_that_the_record_lacks_fails_the_fork_and_is_not_made(tmp_path: Path, recorded: Path) -> None:
    box = Box()
    with (
        ScriptedLlmServer(other) as server,
        runner(server, WIRE, tmp_path / "b.jsonl", servers=box.servers()) as each,
        pytest.raises(ForkMissed, match=r'calls box\.delete with \{"name":"everything"\}.*misses="call"'),
    ):
        each.fork(recorded)
    assert box.effects == []
    sound(tmp_path / "b.jsonl")


@pytest.mark.parametrize(("agreed", "effects"), [(True, ["everything"]), (False, [])])
@pytest.mark.slow
def test_a_person_is_asked_about_a_call_that_the_record_lacks(
    tmp_path: Path, recorded: Path, agreed: bool, effects: list[str]
) -> None:
    box, asked = Box(), []

    def approve(questions: Any) -> bool:
        asked.extend(questions)
        return agreed

    with (
        ScriptedLlmServer(other) as server,
        runner(server, WIRE, tmp_path / "b.jsonl", servers=box.servers(), approve=approve) as each,
    ):
        response = each.fork(recorded, misses="ask").response
    assert [(each.name, each.arguments) for each in asked] == [("box.delete", {"name": "everything"})]
    assert asked[0].reason == "it was not made when the turn was recorded"
    assert box.effects == effects
    assert ("everything is gone" in response) is agreed
    with (
        ScriptedLlmServer(other) as server,
        runner(server, WIRE, tmp_path / "c.jsonl", servers=box.servers()) as each,
        pytest.raises(ForkMissed),
    ):
        each.fork(recorded, misses="ask")  # nobody can be asked
    assert box.effects == effects


def test_a_call_that_the_record_lacks_is_made_if_that_is_wanted(tmp_path: Path, recorded: Path) -> None:
    box = Box()
    with (
        ScriptedLlmServer(other) as server,
        runner(server, WIRE, tmp_path / "b.jsonl", servers=box.servers()) as each,
    ):
        assert each.fork(recorded, misses="call").response == "It said: everything is gone"
    assert box.effects == ["everything"]
    with (
        ScriptedLlmServer(other) as server,
        runner(server, WIRE, tmp_path / "c.jsonl") as each,
        pytest.raises(MCPError, match="uses servers that this runner lacks: box, shed"),
    ):
        each.fork(recorded, misses="call")


@pytest.mark.parametrize("misses", ["ask", "call"])
@pytest.mark.parametrize("now", ["changed", "gone"])
def test_a_tool_that_has_changed_since_the_record_is_not_called(
    tmp_path: Path, recorded: Path, now: str, misses: Misses
) -> None:
    box = Box()

    def delete(name: str, everywhere: bool = True) -> str:
        return box.effects.append(name) or f"{everywhere}"

    servers = box.servers() | {"box": FunctionTools([delete] if now == "changed" else {"look": delete})}
    with (
        ScriptedLlmServer(other) as server,
        runner(server, WIRE, tmp_path / "b.jsonl", servers=servers, approve=lambda _: True) as each,
    ):
        outcome = each.fork(recorded, misses=misses)
        assert (outcome.tool_calls[0].settlement, box.effects) == ("rejected", [])
        assert NOT_AS_RECORDED in outcome.response
        if now == "changed":  # other definitions for the model are what this fork tries
            definition = ToolDefinition(server="box", tool="delete", input_schema={"type": "object"})
            each.fork(recorded, misses=misses, tools={"box": [definition]})
            assert box.effects == ["everything"]


def test_a_fork_of_a_fork_with_other_tools_calls_them(tmp_path: Path, recorded: Path) -> None:
    box = Box()
    definition = ToolDefinition(server="box", tool="delete", input_schema={"type": "object"})
    calls = [tool_calls_reply(("box.delete", {"name": name}), ids=("x1",)) for name in ("all", "more")]
    with (
        ScriptedLlmServer([calls[0], "x", calls[1], "y"]) as server,
        runner(server, WIRE, tmp_path / "b.jsonl", servers=box.servers()) as each,
        runner(server, WIRE, tmp_path / "c.jsonl", servers=box.servers()) as again,
    ):
        each.fork(recorded, misses="call", tools={"box": [definition]})
        place = seq_of(tmp_path / "b.jsonl", "RequestCompletion")
        again.fork(tmp_path / "b.jsonl", at=place, misses="call")
    assert box.effects == ["all", "more"]


@pytest.mark.made_up_trace  # its calls name the digests of the whole definitions, so it does not replay
def test_a_tool_whose_recorded_definition_lacks_a_secret_can_be_called(tmp_path: Path) -> None:
    def look(at: str) -> str:
        """Look in xyzzy-plugh-42."""
        return f"{at}: dust"

    servers = {"box": FunctionTools([look])}
    first, other = (tool_calls_reply(("box.look", {"at": at}), ids=("c1",)) for at in ("lamp", "door"))
    with ScriptedLlmServer([first, "x", other, "y"]) as server:
        with runner(server, WIRE, tmp_path / "a.jsonl", servers=servers) as each:
            each.recorder.hide("word", "xyzzy-plugh-42")
            each.run_turn("Look.")
        with runner(server, WIRE, tmp_path / "b.jsonl", servers=servers) as each:
            each.fork(tmp_path / "a.jsonl", misses="call")
        assert server.requests[-1].messages[-1]["content"] == "door: dust"


def here() -> str:
    return "a lamp"


@tool(annotations=ToolAnnotations(read_only=True))
def read_only() -> str:
    return "a lamp"


def _results(each: Runner, trace: Path) -> list[Any]:
    """Return the results of a fork's calls; none if it no longer follows the record."""
    try:
        return [call.result.content for call in each.fork(trace).tool_calls]
    except ForkMissed:
        return []


@pytest.mark.parametrize("function", [here, read_only])
def test_a_call_is_answered_again_only_if_its_tool_is_read_only(tmp_path: Path, function: Any) -> None:
    wanted = [1]

    def counting(request: LlmRequest) -> LlmReply:
        told = [message for message in request.messages if message["role"] == "tool"]
        if len(told) == wanted[0]:
            return text_reply("done")
        return tool_calls_reply((request.tool_names[0], {}), ids=(f"n{len(told)}",))

    trace = tmp_path / "a.jsonl"
    with ScriptedLlmServer(counting) as server:
        with runner(server, WIRE, trace, servers={"box": FunctionTools([function])}) as each:
            each.run_turn(TurnRequest(user="Go."))
        wanted[0] = 2
        with runner(server, WIRE, tmp_path / "b.jsonl") as each:
            results = _results(each, trace)
    assert results == (["a lamp"] * 2 if function is read_only else [])


@pytest.mark.slow
def test_answers_of_a_person_are_taken_from_the_record(tmp_path: Path, server: ScriptedLlmServer) -> None:
    for name, agreed in (("yes", True), ("no", False)):
        trace, asked = tmp_path / f"{name}.jsonl", []
        with runner(
            server, WIRE, trace, servers=Box().servers(), tool_policy=ASKS, approve=lambda _, a=agreed: a
        ) as each:
            recorded = each.run_turn(TurnRequest(user="Tidy up."))
        with runner(server, WIRE, tmp_path / f"{name}-fork.jsonl", approve=asked.append) as each:
            forked = each.fork(trace)
        assert (asked, forked.response) == ([], recorded.response)
        assert [call.settlement for call in forked.tool_calls] == [
            call.settlement for call in recorded.tool_calls
        ]


@pytest.mark.parametrize(
    ("answer", "reply", "forked"),
    [
        (Literal["urgent", "spam"], "urgent", "urgent"),
        (int, '{"value": 7}', 7),
        (list[int], "[1, 2]", [1, 2]),
        (dict[str, int], 'Here:\n```json\n{"a": 1}\n```', {"a": 1}),
    ],
)
def test_an_answer_of_any_type_is_read_as_it_was(
    tmp_path: Path, answer: Any, reply: str, forked: object
) -> None:
    """Also one that is no JSON object, or stands in a code fence."""
    with ScriptedLlmServer([reply] * 2) as server:
        with Runner(llm=server.settings, trace=tmp_path / "a.jsonl") as each:
            assert each.run_turn(TurnRequest(user="Sort it.", answer=answer)).response == forked
        with Runner(llm=server.settings, trace=tmp_path / "b.jsonl") as each:
            assert each.fork(tmp_path / "a.jsonl").response == forked


@pytest.mark.slow
def test_a_turn_that_nobody_has_answered_is_parked_again_and_its_fork_cannot_be_resumed(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    parks = ToolPolicy(rules=(ToolRule(tools=("box.delete",), verdict="ask"),), parking=True)
    trace, forked = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    with (
        runner(server, WIRE, trace, servers=Box().servers(), tool_policy=parks) as each,
        pytest.raises(ApprovalPending),
    ):
        each.run_turn(TurnRequest(user="Tidy up."))
    with runner(server, WIRE, forked) as each, pytest.raises(ApprovalPending) as pending:
        each.fork(trace)
    assert [question.name for question in pending.value.questions] == ["box.delete"]
    assert "A fork cannot be resumed: resume the recorded turn" in str(pending.value)
    assert len(bodies(forked, TurnParked)) == 1
    box = Box()
    llm = LlmSettings(base_url=server.base_url, model="m")
    with (
        Runner(llm=llm, servers=box.servers(), tool_policy=parks) as each,
        pytest.raises(NothingToResume, match="is a fork"),
    ):
        each.resume(forked, [question.approve() for question in pending.value.questions])
    assert box.effects == []


@pytest.mark.slow
def test_forks_in_a_conversations_own_trace_are_no_turns_of_it(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    trace = tmp_path / "talk.jsonl"
    with runner(server, WIRE, trace, servers=Box().servers()) as each:
        talk = each.conversation("Be brief.", name="talk")
        for number in range(3):
            talk.ask(f"Tidy up room {number}.")
            for system in ("Be long.", None):
                each.fork(trace, turn=number + 1, system=system)
            assert Conversation.from_trace(trace, each).history == talk.history
    assert Conversation.from_trace(trace, each, name="talk").history == talk.history


def test_a_parked_turn_can_be_resumed_after_it_was_forked_in_its_own_trace(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    trace = tmp_path / "parked.jsonl"
    with runner(server, WIRE, trace, servers=Box().servers(), tool_policy=PARKS) as each:
        for run in (lambda: each.run_turn(TurnRequest(user="Tidy up.")), lambda: each.fork(trace, turn=1)):
            with pytest.raises(ApprovalPending):
                run()
        (parked,) = parked_turns(trace)
        assert each.resume(trace, [question.approve() for question in parked.questions]).response == (
            "After 3: old is gone"
        )


class _LateServer(FakeToolServer):
    """A server that starts, or fails to, after the other servers."""

    async def open(self, timeout_s: float) -> Listing:
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        return await super().open(timeout_s)


@pytest.mark.parametrize("misses", ["fail", "call"])
@pytest.mark.parametrize("proven", [False, True])
@pytest.mark.slow
def test_a_fork_of_a_degraded_turn_is_degraded_as_the_turn_was(
    tmp_path: Path, server: ScriptedLlmServer, misses: Misses, proven: bool
) -> None:
    trace, late = tmp_path / "degraded.jsonl", _LateServer("attic")
    servers = {"attic": late, **Box().servers()}
    with runner(server, WIRE, trace, servers=servers, policy=FailurePolicy(first_connect="disable")) as each:
        for number in (1, 2, 3):
            if number == 1 + proven:
                late.fails_to_start(1 + proven)
            each.run_turn(TurnRequest(user="Tidy up."))
    late.fails_to_start(0)
    for number in (1, 2, 3):
        name = tmp_path / f"fork-{number}.jsonl"
        with runner(server, WIRE, name, servers=servers) as each:
            each.fork(trace, turn=number, misses=misses)
        kinds = McpDisabled if misses == "call" else McpDisabled | ConnectFailed | SessionOpened
        turn, fork = (
            [
                replace(each.body, elapsed_s=0.0) if isinstance(each.body, SessionOpened) else each.body
                for each in read_episode(path).envelopes
                if each.turn == number and isinstance(each.body, kinds)
            ]
            for path in (trace, name)
        )
        assert turn == fork


@pytest.mark.slow
def test_forks_of_several_threads_can_be_told_apart_in_their_trace(
    tmp_path: Path, server: ScriptedLlmServer, recorded: Path
) -> None:
    together, trace = threading.Barrier(3), tmp_path / "b.jsonl"

    def fork(_: int) -> str:
        together.wait()
        return each.fork(recorded).response

    with runner(server, WIRE, trace) as each, ThreadPoolExecutor(3) as threads:
        assert [*threads.map(fork, range(3))] == ["After 3: old is gone"] * 3
    sound(trace)
    assert [type(body) for body in bodies(trace, RunTurn | TurnCompleted)] == [RunTurn, TurnCompleted] * 3


def test_a_fork_that_a_fork_makes_does_not_wait_for_its_end(recorded: Path) -> None:
    inner: list[str] = []

    def approve(_: object) -> bool:
        with contextlib.suppress(ForkMissed):
            each.fork(recorded)
        inner.append("ended")
        return True

    with ScriptedLlmServer(other) as server:
        each = Runner(
            llm=LlmSettings(base_url=server.base_url, model="m"), servers=Box().servers(), approve=approve
        )
        assert each.fork(recorded, misses="ask").response == "It said: everything is gone"
    assert inner == ["ended"]


@pytest.mark.slow
def test_a_fork_can_be_forked(tmp_path: Path, server: ScriptedLlmServer, recorded: Path) -> None:
    at = seq_of(recorded, "RequestCompletion", 2)
    with runner(server, WIRE, tmp_path / "b.jsonl") as each:
        first = each.fork(recorded, at=at, system="Be long.").response
    server.requests.clear()
    with runner(server, WIRE, tmp_path / "c.jsonl") as each:
        again = each.fork(tmp_path / "b.jsonl", at=seq_of(tmp_path / "b.jsonl", "RequestCompletion", 3))
    assert again.response == first
    assert server.requests[0].messages[0]["content"] == "Be long."
    sound(tmp_path / "c.jsonl")


@pytest.mark.parametrize("number", [None, 2])
def test_a_fork_of_a_fork_keeps_what_the_first_one_has_changed(
    tmp_path: Path, server: ScriptedLlmServer, recorded: Path, number: int | None
) -> None:
    (opened,) = [each for each in bodies(recorded, SessionOpened) if each.server == "box"]
    tools = [replace(each, description=f"Other: {each.tool}") for each in opened.tools]
    with runner(server, WIRE, tmp_path / "b.jsonl") as each:
        first = each.fork(
            recorded,
            at=seq_of(recorded, "RequestCompletion", 2),
            system="Be long.",
            tools={"box": tools},
            max_tool_iterations=2,
            after_timeout="force",
        )
    assert (first.kind, first.reason) == ("forced", "max_iterations")
    server.requests.clear()
    at = None if number is None else seq_of(tmp_path / "b.jsonl", "RequestCompletion", number)
    with runner(server, WIRE, tmp_path / "c.jsonl") as each:
        again = each.fork(tmp_path / "b.jsonl", at=at, max_result_chars=5000)
    assert (again.kind, again.reason) == (first.kind, first.reason)
    assert [each.result for each in again.tool_calls] == [each.result for each in first.tool_calls]
    assert server.requests[0].messages[0]["content"] == "Be long."
    (forked,) = bodies(tmp_path / "c.jsonl", TurnForked)[-1:]
    assert (forked.limits.max_tool_iterations, forked.limits.max_result_chars) == (2, 5000)
    assert forked.policy.after_timeout == "force"
    sound(tmp_path / "c.jsonl")
    server.requests.clear()
    with runner(server, WIRE, tmp_path / "d.jsonl") as each:
        back = each.fork(tmp_path / "b.jsonl", at=at, system="Be brief.", max_tool_iterations=20)
    assert server.requests[0].messages[0]["content"] == "Be brief."
    assert back.kind == "answered"
    sound(tmp_path / "d.jsonl")


def test_what_cannot_be_forked_is_refused_before_anything_starts(
    tmp_path: Path, server: ScriptedLlmServer, recorded: Path
) -> None:
    last = read_episode(recorded).envelopes[-1].seq
    end = seq_of(recorded, "ToolReturned", 3) + 1
    rows: list[tuple[dict[str, Any], str]] = [
        ({"turn": 9}, r"holds no turn 9\. Its turns: 1\."),
        ({"at": last + 1}, f"has the messages 1 to {last}, and no message {last + 1}"),
        ({"at": 0}, f"has the messages 1 to {last}, and no message 0"),
        ({"at": "3"}, "at= wants a number, not '3'"),
        ({"turn": "1"}, "turn= wants a number, not '1'"),
        ({"tool_results": ["a1"]}, "tool_results= wants a dictionary, not \\['a1'\\]"),
        ({"tools": {"box": ["look"]}}, "tools= wants a list of ToolDefinition for box, not \\['look'\\]"),
        ({"tool_results": {"zz": 1}}, "has no result of a call 'zz'. It has: a1, b1, c1"),
        ({"tool_results": {"a1": 1}, "at": end}, "was settled by message .*, before the fork"),
        ({"tools": {"attic": []}}, "has no server 'attic'"),
        ({"changes": {"speed": 1}}, "no field speed; the fields are, of FailurePolicy: .*; of TurnLimits: "),
        ({"changes": {"temperature": 1}}, r"a setting of the model: --set llm\.temperature=\.\.\."),
        ({"misses": "maybe"}, "misses= wants one of 'fail', 'call', 'ask'"),
        ({"answer": int}, "another form of answer"),
    ]
    with runner(server, WIRE, tmp_path / "b.jsonl") as each:
        for how, text in rows:
            with pytest.raises(MCPError, match=text):
                each.fork(recorded, **how)
    assert server.requests == []


def test_a_turn_of_which_a_secret_was_removed_cannot_be_forked(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    trace = tmp_path / "a.jsonl"
    with runner(server, WIRE, trace, servers=Box().servers()) as each:
        each.recorder.hide("word", "xyzzy-plugh-42")
        each.run_turn(TurnRequest(user="Say xyzzy-plugh-42."))
    with runner(server, WIRE, tmp_path / "b.jsonl") as each, pytest.raises(TraceError, match="a secret was"):
        each.fork(trace, at=seq_of(trace, "RequestCompletion", 2))


@pytest.mark.slow
def test_the_command(tmp_path: Path, server: ScriptedLlmServer, recorded: Path) -> None:
    (tmp_path / "system.txt").write_text("Be long.")
    (tmp_path / "door.json").write_text(json.dumps({"seen": "a troll"}))
    done = grue(
        "fork", str(recorded), "--model", "other", "--system", "system.txt", "--set", "llm.temperature=0.5",
        "--set", "max_tool_iterations=5", "--tool-result", "b1=door.json", "--run-dir", "my fork",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "After 3" in done.stdout
    assert f"trace diff {recorded} 'my fork'\n" in done.stderr
    assert f"trace html {recorded} 'my fork' --open" in done.stderr
    request = server.requests[0]
    assert (request.body["model"], request.body["temperature"]) == ("other", 0.5)
    assert "troll" in request.messages[-1]["content"]
    compared = grue("trace", "diff", str(recorded), "my fork", cwd=tmp_path)
    assert "differ from turn 1 on" in compared.stdout
    assert "another system text" in compared.stdout
    shown = grue("trace", "show", "my fork", cwd=tmp_path)
    assert "a fork of turn 1 of a" in shown.stdout
    page = grue("trace", "html", str(recorded), "my fork", "--out", "page.html", cwd=tmp_path)
    assert "differ from turn 1 on" in page.stdout
    nowhere = grue("fork", str(recorded), "--run-dir", f"{recorded}/x", cwd=tmp_path)
    assert f"grue: Cannot create the run folder {recorded}/x: Not a directory." in nowhere.stderr
    same = grue("fork", str(recorded), "--run-dir", "same", cwd=tmp_path)
    assert same.returncode == 0, same.stderr
    compared = grue("trace", "diff", str(recorded), "same", cwd=tmp_path)
    assert (compared.returncode, compared.stdout.partition(",")[0]) == (0, "The traces are identical")
    called = grue("fork", str(recorded), "--misses", "call", cwd=tmp_path)
    assert "servers that are not configured here: box, shed. --misses call wants them in mcp" in called.stderr
    assert "--mcp-config FILE" in called.stderr
    assert "--misses fail needs none" in called.stderr
    (tmp_path / "mcp_config.json").write_text('{"mcpServers": {"shed": {"command": "${GRUE_UNSET}"}}}')
    invalid = grue("fork", str(recorded), "--misses", "call", cwd=tmp_path)
    assert "MCP server 'shed': command needs the environment variable GRUE_UNSET" in invalid.stderr
    refused = grue("fork", str(recorded), "--set", "llm.speed=1", cwd=tmp_path)
    assert refused.returncode != 0
    assert "no setting llm.speed" in refused.stderr


@pytest.mark.slow
def test_the_servers_of_an_agent_loop_s_turn_are_those_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop has put `mcp.` before their names; the configuration has one server more than the turn."""
    pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
    write_servers(tmp_path / "mcp_config.json", mind=configured(), other=configured())
    trace, forks = tmp_path / "a.jsonl", itertools.count()

    def echo(request: LlmRequest) -> LlmReply:
        if request.messages[-1]["role"] == "tool":
            return text_reply(request.messages[-1]["content"])
        return tool_calls_reply(("mcp.mind.echo", {"text": request.messages[0]["content"]}))

    with ScriptedLlmServer(echo) as server:
        llm = LlmSettings(base_url=server.base_url, model="m")
        with AgentLoop(llm, system="old", servers={"mind": faulty()}, trace=trace) as loop:
            loop.run("Say it.")

        (tmp_path / "new.txt").write_text("new")

        def forked(*options: str) -> subprocess.CompletedProcess[str]:
            folder = f"fork-{next(forks)}"
            return grue(
                "fork", str(trace), "--system", "new.txt", "--run-dir", folder, *options, cwd=tmp_path
            )

        assert "Nothing was called." in forked().stderr
        called = forked("--misses", "call")
        assert (called.returncode, "new" in called.stdout) == (0, True), called.stderr
        assert grue("tools", "--lock", cwd=tmp_path).returncode == 0
        locked = forked("--misses", "call", "--tools", "lock")
        assert (locked.returncode, "new" in locked.stdout) == (0, True), locked.stderr
        monkeypatch.chdir(tmp_path)
        case = {"trace": str(trace), "turn": 1, "system": "new", "misses": "call"}
        episode: Any = SimpleNamespace(trace=tmp_path / "fleet.jsonl")
        assert fork_again(case, episode)["score"] == 1
    learned = grue("sandbox", "learn", "mcp_config.json", "mind", "--trace", str(trace), cwd=tmp_path)
    assert "1 call, 0 failed. The proposed sandbox:" in learned.stderr
    learned = grue("sandbox", "learn", "mcp_config.json", "other", "--trace", str(trace), cwd=tmp_path)
    assert "0 calls, 0 failed. The proposed sandbox, for the server's start alone:" in learned.stderr


@pytest.mark.slow
def test_the_latest_episode_is_forked_and_a_fork_that_failed_is_not_the_latest(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    place = tmp_path / "runs" / "tidy"
    place.mkdir(parents=True)
    with runner(server, WIRE, place / "trace.jsonl", servers=Box().servers()) as each:
        for _ in range(2):
            each.run_turn(TurnRequest(user="Tidy up."))
    several = grue("fork", cwd=tmp_path)
    assert "holds several turns: 1, 2. Name one: --turn N" in several.stderr
    lost = grue("fork", "--turn", "2", "--at", "999", cwd=tmp_path)
    assert lost.returncode == 1
    assert [each.name for each in (tmp_path / "runs").iterdir()] == ["tidy"], (
        "a fork that never began is gone"
    )
    failed = grue("fork", "--turn", "2", "--base-url", "http://127.0.0.1:9/v1", cwd=tmp_path)
    assert "To read the fork that failed: grue trace show runs/" in failed.stderr
    done = grue("fork", "--turn", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "The latest: runs/tidy" in done.stderr
    listed = grue("runs", cwd=tmp_path).stdout.splitlines()
    assert "answered: a fork of turn 2 of tidy, " in listed[0]
    assert "failed: a fork of turn 2 of tidy: base_url http://127.0.0.1:9/v1, " in listed[1]
    assert "answered: 2 turns, " in listed[2]
    newest = Path(listed[0].split()[0])
    header = open_episode(tmp_path / newest).header
    assert header.episode == newest.name, "its files and tests have a name of their own"
    assert newest.name.endswith("-fork")


@pytest.mark.slow
def test_the_script_of_offline_cannot_be_forked_without_a_model(tmp_path: Path) -> None:
    from grue.testing.offline import offline_endpoint, reply_in_chat

    llm = offline_endpoint(reply_in_chat)
    with Runner(llm=llm, trace=tmp_path / "a.jsonl") as each:
        each.run_turn(TurnRequest(user="Hello."))
    refused = grue("fork", "a.jsonl", cwd=tmp_path)
    assert refused.returncode == 2
    assert "answered by the script of --offline" in refused.stderr
    assert "--model MODEL --base-url URL" in refused.stderr
    for command, key in itertools.product((["fork"], ["fleet", "fork"]), ("x", "llm.x")):
        names = grue(
            *command, "a.jsonl", "--set", f"{key}=0", cwd=tmp_path
        )  # lists them without a model, too
        assert names.returncode == 2
        assert "The settings are: " in names.stderr or "the fields are" in names.stderr, names.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_fork_whose_recorded_endpoint_is_gone_says_how_to_name_another(tmp_path: Path) -> None:
    with (
        ScriptedLlmServer([text_reply("Hello.")]) as gone,
        Runner(llm=LlmSettings(base_url=gone.base_url, model="m"), trace=tmp_path / "a.jsonl") as each,
    ):
        each.run_turn(TurnRequest(user="Hello."))
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", urlsplit(gone.base_url).port))  # so that nobody else listens there
        failed = grue("fork", "a.jsonl", cwd=tmp_path)
        assert failed.returncode == 1
        assert "A fork asks the recorded endpoint." in failed.stderr
        assert "name another with --base-url URL" in failed.stderr
        with (
            Runner(
                llm=LlmSettings(base_url=gone.base_url, model="m", retry=RetryPolicy(max_retries=0))
            ) as other,
            pytest.raises(LLMError) as unreachable,
        ):
            other.fork(tmp_path / "a.jsonl")
        assert "call fork inside `with ScriptedLlmServer(replies) as model`" in unreachable.value.__notes__[0]
        named = grue("fork", "a.jsonl", "--base-url", gone.base_url, cwd=tmp_path)
        assert "the recorded endpoint" not in named.stderr
        url = f"llm.base_url={gone.base_url}"
        named = grue("fork", "a.jsonl", "--set", url, cwd=tmp_path)
        assert "the recorded endpoint" not in named.stderr


def test_a_url_given_as_a_setting_is_the_one_of_the_option() -> None:
    from grue.cli.fork import change_of, model_for

    change = change_of(base_url="http://one/v1", settings=("llm.base_url=http://two/v1", "llm.seed=1"))
    assert (change.base_url, change.llm) == ("http://two/v1", {"seed": 1})
    asked = ModelAsked(model="m", address="http://a/v1")
    with pytest.raises(MCPConfigError, match=r"--set llm\.base_url"):
        model_for(asked, change_of(settings=("llm.base_url=5",)).llm, None, None)


def test_a_setting_of_the_wrong_type_is_refused(recorded: Path) -> None:
    from grue.cli.fork import change_of, model_for

    change = change_of(settings=("llm.temperature=hot",))
    asked = ModelAsked(model="m", address="http://127.0.0.1:9/v1")
    with pytest.raises(MCPConfigError, match="temperature"):
        model_for(asked, change.llm, None, None)
    with pytest.raises(MCPConfigError, match="--set wants KEY=VALUE, not 'x'"):
        change_of(settings=("x",))


def test_a_call_that_the_record_answers_has_no_request_id_of_the_call_before_it(tmp_path: Path) -> None:
    server = faulty()
    echo = f"{server.name}.echo"
    first = [tool_calls_reply((echo, {"text": "recorded"}), ids=("r1",)), text_reply("done")]
    new = tool_calls_reply((echo, {"text": "new"}), (echo, {"text": "recorded"}), ids=("n1", "n2"))
    with ScriptedLlmServer([*first, new, text_reply("done")]) as endpoint:
        llm = LlmSettings(base_url=endpoint.base_url, model="m")
        with Runner(llm=llm, servers={server.name: server}, trace=tmp_path / "a.jsonl") as recorded:
            recorded.run_turn("Tidy up.")
        with Runner(llm=llm, servers={server.name: server}, trace=tmp_path / "b.jsonl") as forked:
            forked.fork(tmp_path / "a.jsonl", misses="call")
    ids = {each.call_id: each.request_id for each in bodies(tmp_path / "b.jsonl", ToolReturned)}
    assert ids["n1"]
    assert not ids["n2"]


@pytest.mark.parametrize("fallbacks", [("old", "new"), ("old", None), (None, "new")])
@pytest.mark.parametrize("resumes", [True, False])
def test_the_given_answer_decides_about_the_fallback(
    resumes: bool, fallbacks: tuple[Any, Any], tmp_path: Path
) -> None:
    first, then = (AnswerSpec.of(Literal["old", "new"], fallback=each) for each in fallbacks)
    trace, fork = tmp_path / "t.jsonl", None if resumes else tmp_path / "f.jsonl"
    box, policy = {"box": FunctionTools({"delete": lambda: "gone"})}, PARKS if resumes else None
    replies = [tool_calls_reply(("box.delete", {}), ids=["c"]), *("neither", "nor") * 2]
    with ScriptedLlmServer(replies) as server:
        llm = server.settings
        with (
            Runner(llm=llm, servers=box, tool_policy=policy, trace=trace) as one,
            contextlib.suppress(ApprovalPending, AnswerError),
        ):
            one.run_turn(TurnRequest(user="Which?", answer=first))
        with Runner(llm=llm, servers=box, tool_policy=policy, trace=fork) as other:
            yes = [question.approve() for each in parked_turns(trace) for question in each.questions]
            if fork is not None:
                with pytest.raises(MCPError, match=r"another fallback\. Fork it with the same"):
                    other.fork(trace, answer=then, tool_results={"c": "done"})
            with contextlib.nullcontext() if then.fallback else pytest.raises(AnswerError):
                ended = other.resume(trace, yes, answer=then) if resumes else other.fork(trace, answer=then)
                assert (ended.kind, ended.response) == ("fallback", "new")


SCHEMA: Any = MappingProxyType({"type": "object", "required": ("at",)})


class Place(Struct):
    at: tuple[int, int] = (0, 0)
    height: float = float("nan")


@pytest.mark.parametrize(
    "answer",
    [Place, AnswerSpec(str, schema=SCHEMA)],
    ids=["type", "schema"],
)
def test_a_schema_with_what_json_writes_otherwise_is_that_of_the_record(answer: Any, tmp_path: Path) -> None:
    """Tuples and a NaN in the schema were taken for another form of answer."""
    trace, box = tmp_path / "t.jsonl", {"box": FunctionTools({"delete": lambda: "gone"})}
    replies = [tool_calls_reply(("box.delete", {})), text_reply('{"at": [1, 2]}')] * 2
    with ScriptedLlmServer(replies) as server:
        how: dict[str, Any] = {"llm": server.settings, "servers": box, "tool_policy": PARKS}
        with Runner(**how, trace=trace) as one, pytest.raises(ApprovalPending) as pending:
            one.run_turn(TurnRequest(user="Where?", answer=answer))
        yes = [question.approve() for question in pending.value.questions]
        with Runner(**how) as other:
            found = other.resume(trace, yes, answer=answer).response
        with Runner(**how) as other:
            assert str(other.fork(trace, answer=answer).response) == str(found)


def test_a_resumed_turn_is_streamed_also_if_its_request_was_not(tmp_path: Path) -> None:
    trace, box = tmp_path / "t.jsonl", {"box": FunctionTools({"delete": lambda: "gone"})}
    pieces: list[str] = []
    with ScriptedLlmServer([tool_calls_reply(("box.delete", {})), "It is gone."]) as server:
        how: dict[str, Any] = {"llm": server.settings, "servers": box, "tool_policy": PARKS}
        with Runner(**how, trace=trace) as each:
            with pytest.raises(ApprovalPending) as pending:
                each.run_turn("Tidy up.")
            yes = [question.approve() for question in pending.value.questions]
            each.resume(trace, yes, on_delta=lambda delta: pieces.append(delta.text))
    assert "".join(pieces) == "It is gone."
    sound(trace)


def test_a_text_of_a_resumed_turn_has_the_recorded_fallback(tmp_path: Path) -> None:
    trace, answer = tmp_path / "t.jsonl", AnswerSpec(str, fallback="nothing")
    box = {"box": FunctionTools({"delete": lambda: "gone"})}
    with ScriptedLlmServer([tool_calls_reply(("box.delete", {})), *[text_reply(None)] * 4]) as server:
        with (
            Runner(llm=server.settings, servers=box, tool_policy=PARKS, trace=trace) as one,
            pytest.raises(ApprovalPending) as pending,
        ):
            one.run_turn(TurnRequest(user="Which?", answer=answer))
        with Runner(llm=server.settings, servers=box, tool_policy=PARKS) as other:
            yes = [question.approve() for question in pending.value.questions]
            assert other.resume(trace, yes).response == "nothing"
