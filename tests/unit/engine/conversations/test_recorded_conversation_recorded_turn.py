"""Where a turn goes on whose process was killed: its trace is cut off behind each message, and resumed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grue import ContextPolicy, FunctionTools, LlmSettings, Recorder, Runner, ToolPolicy, TurnRequest
from grue import messages as m
from grue.engine.conversations.recorded_conversation import RecordedTurn
from grue.errors import NothingToResume, TraceError
from grue.messages import RequestCompletion, RunTurn
from grue.protocol.context.history import items_of
from grue.testing.llm_server import (
    ContextWindow,
    LlmReply,
    LlmRequest,
    ScriptedLlmServer,
    text_reply,
    tool_calls_reply,
)
from grue.tracing.reading import read_episode

UNSETTLED = "interrupted; it may have taken effect"


def model(request: LlmRequest) -> LlmReply:
    """Look once, then twice, then answer."""
    match sum(message["role"] == "tool" for message in request.messages):
        case 0:
            return tool_calls_reply(("box.look", {}), ids=["a"])
        case 1:
            return tool_calls_reply(("box.look", {}), ("box.look", {}), ids=["b", "c"])
        case _:
            return text_reply("done")


@pytest.fixture
def llm() -> Iterator[ScriptedLlmServer]:
    with ScriptedLlmServer(model) as server:
        yield server


def runner(llm: ScriptedLlmServer, **more: Any) -> Runner:
    settings = LlmSettings(base_url=llm.base_url, model="m")
    tools = {"box": FunctionTools({"look": lambda: "dust"})}
    return Runner(llm=settings, servers=tools, tool_policy=ToolPolicy(parking=True), **more)


def settled(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages as if every call had been settled."""
    return [
        {**message, "content": "dust"} if UNSETTLED in str(message["content"]) else message
        for message in messages
    ]


@pytest.mark.slow
@pytest.mark.parametrize("talks", [False, True])
def test_wherever_it_was_killed_the_model_is_told_everything_once(
    llm: ScriptedLlmServer, tmp_path: Path, talks: bool
) -> None:
    with runner(llm, trace=tmp_path / "whole.jsonl") as whole:
        if talks:
            whole.conversation("s").ask("Look around.")
        else:
            whole.run_turn(TurnRequest(system="s", user="Look around."))
    told = llm.requests[-1].messages
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    envelopes = read_episode(tmp_path / "whole.jsonl").envelopes
    begun = next(number for number, each in enumerate(envelopes) if isinstance(each.body, RunTurn))
    resumed = 0
    for length in range(begun + 1, len(envelopes)):
        path = tmp_path / f"{length}.jsonl"
        path.write_bytes(b"".join(lines[: length + 1]))  # the first line is the header
        with runner(llm) as another:
            try:
                outcome = another.resume(path)
            except NothingToResume:
                assert any(isinstance(each.body, RequestCompletion) for each in envelopes[:length])
                continue
        resumed += 1
        assert outcome.response == "done"
        assert settled(llm.requests[-1].messages) == told, f"cut off behind {envelopes[length - 1].body}"
    assert resumed >= 10


def test_what_the_model_has_told_a_server_is_not_part_of_the_turn() -> None:
    recorder, turn = Recorder(), m.ConversationId("turn-1")
    call = m.ToolCall(call_id=m.CallId("a"), name="s.echo", arguments="{}")
    answer = m.ToolMessage(call.call_id, "hello")
    run = RunTurn(turn=1, system="", user="u", servers=(m.ServerName("s"),))
    first = RequestCompletion(conversation=turn, request=1, new=(m.UserText("u"),), mode=m.OfferTools())
    second = RequestCompletion(conversation=turn, request=2, new=(answer,), mode=m.OfferTools())
    part = RecordedTurn(recorder.record(run, sender="host", receiver="agent", turn=1), run, None)
    for body, receiver in (
        (first, "llm"),
        (m.CompletionReceived(request=1, tool_calls=(call,)), "agent"),
        (m.CompletionReceived(request=1, content="the answer to a sampling request"), "s"),
        (second, "llm"),
        (m.CompletionReceived(request=2, content="done"), "agent"),
    ):
        part.add(recorder.record(body, sender="any", receiver=receiver, turn=1))
    said = items_of([*part.said_alone().entries])
    assert said == (m.UserText("u"), m.AssistantReply(tool_calls=(call,)), answer)


OPENED = m.SessionOpened(server=m.ServerName("s"), tools=())
CLOSED = m.SessionClosed(server=m.ServerName("s"))
INTERRUPTED = m.TurnInterrupted(reason="cancelled")


@pytest.mark.parametrize(
    ("handled", "unhandled"),
    [
        ((), (CLOSED,)),  # the agent was cancelled before it read its first message
        ((), (CLOSED, INTERRUPTED)),
        ((OPENED,), (INTERRUPTED,)),  # the process was killed before the cancelled turn had ended
        ((OPENED,), (INTERRUPTED, CLOSED, m.TurnFailed(turn=1, failure=m.Interrupted(reason="cancelled")))),
    ],
)
def test_a_cancelled_turn_of_a_batch_goes_on_where_its_agent_had_come(
    handled: tuple[m.Message, ...], unhandled: tuple[m.Message, ...]
) -> None:
    run = RunTurn(turn=1, system="", user="u", servers=(m.ServerName("s"),), waits=True)

    def cut_behind(bodies: tuple[m.Message, ...]) -> RecordedTurn:
        recorder = Recorder()
        part = RecordedTurn(recorder.record(run, sender="host", receiver="agent", turn=1), run, None)
        for body in bodies:
            receiver = "host" if isinstance(body, m.TurnFailed) else "agent"
            part.add(recorder.record(body, sender="any", receiver=receiver, turn=1))
        return part

    cancelled = cut_behind((*handled, *unhandled))
    assert cancelled.is_open
    assert cancelled.waiting("t") is None
    assert cancelled.resumption("t") == cut_behind(handled).resumption("t")


@pytest.mark.parametrize("unread", [(INTERRUPTED,), (INTERRUPTED, CLOSED), (CLOSED, INTERRUPTED)])
def test_a_parked_turn_whose_resumption_was_cancelled_before_the_agent_read_of_it_can_be_resumed(
    unread: tuple[m.Message, ...],
) -> None:
    parked = m.TurnParked(turn=1, requests=1)
    server, resumed = m.ServerName("s"), m.Resumption(parked=parked)
    run = RunTurn(turn=1, system="", user="u", servers=(server,), resumed=resumed)
    recorder = Recorder()
    part = RecordedTurn(recorder.record(run, sender="host", receiver="agent", turn=1), run, None)
    for body in unread:
        part.add(recorder.record(body, sender="supervisor", receiver="agent", turn=1))
    assert part.resumption("t").parked == parked


def test_a_trace_without_a_turn_is_refused(llm: ScriptedLlmServer, tmp_path: Path) -> None:
    with runner(llm, trace=tmp_path / "empty.jsonl"):
        pass
    with runner(llm) as another, pytest.raises((NothingToResume, TraceError)):
        another.resume(tmp_path / "empty.jsonl")


def test_a_killed_turn_keeps_its_task_and_the_results_that_the_model_has_not_read(tmp_path: Path) -> None:
    def answer(request: LlmRequest) -> LlmReply:
        if "Look" in str(request.messages[-1]["content"]):
            return tool_calls_reply(("box.look", {}), ids=["a"])
        return text_reply("done")

    def talking(path: Path | None = None) -> Runner:
        context = ContextPolicy(window_tokens=20_000, reply_tokens=0)
        settings = LlmSettings(base_url=server.base_url, model="m", force_tool_support=True)
        tools = {"box": FunctionTools({"look": lambda: "dust " * 4_000})}
        policy = ToolPolicy(parking=True)
        return Runner(llm=settings, servers=tools, tool_policy=policy, context=context, trace=path)

    with ScriptedLlmServer(answer, window=ContextWindow(20_000)) as server:
        with talking(tmp_path / "whole.jsonl") as whole:
            talk = whole.conversation("s", name="t")
            for number in range(5):
                talk.ask("Старое. " * 50, user_stub="[old]" if number == 1 else "")
            talk.ask("Look around. " * 1_000, user_stub="[old]")
        told = server.requests[-1].messages
        envelopes = read_episode(tmp_path / "whole.jsonl").envelopes
        sent = max(at for at, each in enumerate(envelopes) if isinstance(each.body, RequestCompletion))
        lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
        (tmp_path / "cut.jsonl").write_bytes(b"".join(lines[: sent + 2]))  # the first line is the header
        with talking() as another:
            assert another.resume(tmp_path / "cut.jsonl").response == "done"
    assert told[3]["content"].startswith("Старое.")
    told[3]["content"] = "[old]"
    assert server.requests[-1].messages == told, "no summary, and only the older task with a stub is cleared"
