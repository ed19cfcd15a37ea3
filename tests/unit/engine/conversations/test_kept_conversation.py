"""A conversation between its turns: what it lends, what it keeps, and what its file gets of that."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from grue.engine.conversations.conversation_file import TurnRecorded
from grue.engine.conversations.kept_conversation import (
    EarlierResults,
    KeptConversation,
    TurnPast,
    given_conversation,
)
from grue.engine.wiring import EndpointActors, Wiring, wire
from grue.errors import ConversationBusy, ConversationError, MCPError, TraceError
from grue.messages import (
    AssistantReply,
    BatchId,
    CallId,
    Interrupted,
    OfferTools,
    RequestCompletion,
    RequireAnswer,
    RunTurn,
    ServerName,
    SystemText,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    ToolReturned,
    TurnCompleted,
    TurnFailed,
    UserText,
)
from grue.protocol.chat_wire.profiles import OPENROUTER
from grue.protocol.chat_wire.wire_format import Reply
from grue.protocol.tools.results import success
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Recorder
from grue.transports.llm.endpoint import LlmSettings

DONE = TurnCompleted(turn=1, kind="answered")
LLM = LlmSettings(base_url="http://127.0.0.1:9/v1", model="m", profile=OPENROUTER)


@pytest.fixture
def wiring() -> Wiring:
    return wire(LLM, {}, recorder=Recorder())


def report(past: TurnPast, end: Any = DONE, last_request: RequestCompletion | None = None) -> None:
    """Report the turn's end, as the turn does when its actors have ended."""
    past.ran, past.end, past.last_request = True, end, last_request


def request(text: str, number: int = 1, mode: Any = None) -> RequestCompletion:
    new = (SystemText("s"), UserText(text)) if number == 1 else (UserText(text),)
    return RequestCompletion(conversation="c", request=number, new=new, mode=mode or RequireAnswer())


def lent_by(past: TurnPast) -> Any:
    """Return what the LLM actor of the turn would get."""
    assert isinstance(past.llm, EndpointActors)
    return past.llm.lent


async def one_turn(kept: KeptConversation, wiring: Wiring, text: str = "u", answer: str = "a") -> None:
    with kept.turn(wiring.lender, wiring.endpoint) as past:
        lent = lent_by(past)
        lent.encoded.ask(
            request(text).new[-1:] if kept.history.entries else request(text).new, RequireAnswer()
        )
        await lent.save()
        lent.encoded.keep(Reply(content=answer))
        await lent.save()
        report(past)


async def unsaved_turn(kept: KeptConversation, wiring: Wiring) -> None:
    """Run a turn whose LLM actor cannot write the file, and crashes."""
    with kept.turn(wiring.lender, wiring.endpoint) as past:
        report(past)
        lent_by(past).encoded.ask(request("u").new, RequireAnswer())
        try:
            await lent_by(past).save()
        except ConversationError as error:
            raise MCPError("The actor crashed.") from error


def interrupted_turn(kept: KeptConversation, wiring: Wiring) -> None:
    with kept.turn(wiring.lender, wiring.endpoint) as past:
        report(past, None, request("u"))
        raise KeyboardInterrupt


def texts(kept: KeptConversation) -> list[str]:
    found: list[str] = []
    for entry in kept.history.entries:
        items = (entry,) if isinstance(entry, AssistantReply) else entry.items
        found += [str(getattr(item, "text", None) or item.content) for item in items]  # type: ignore[union-attr]  # one of them
    return found


@pytest.mark.anyio
async def test_a_turn_is_on_file_before_its_agent_can_act(tmp_path: Path, wiring: Wiring) -> None:
    kept, path = KeptConversation("s"), tmp_path / "talk.jsonl"
    kept.save(path)
    with kept.turn(wiring.lender, wiring.endpoint) as past:
        lent = lent_by(past)
        lent.encoded.ask(request("u").new, RequireAnswer())
        await lent.save()
        assert b'"u"' in path.read_bytes()
        lent.encoded.keep(Reply(content="a"))
        await lent.save()
        assert b'"a"' in path.read_bytes()
        report(past)
    kept.close()
    loaded = KeptConversation.load(path)
    assert (loaded.id, texts(loaded), loaded.ledger.digest) == (kept.id, ["s", "u", "a"], kept.ledger.digest)
    loaded.close()


def test_a_request_that_the_model_s_actor_never_took_is_kept(wiring: Wiring) -> None:
    kept = KeptConversation("s")
    with kept.turn(wiring.lender, wiring.endpoint) as past:
        report(past, TurnFailed(turn=1, failure=Interrupted(reason="cancelled")), request("u"))
    assert texts(kept) == ["s", "u"]


@pytest.mark.anyio
async def test_a_reply_that_came_too_late_is_not_kept(tmp_path: Path, wiring: Wiring) -> None:
    kept, path = KeptConversation("s"), tmp_path / "talk.jsonl"
    kept.save(path)
    await one_turn(kept, wiring)
    with kept.turn(wiring.lender, wiring.endpoint) as past:
        lent = lent_by(past)
        lent.encoded.ask((UserText("v"),), RequireAnswer())
        lent.told = request("v", 2)
        lent.encoded.keep(Reply(content="late"))
        await lent.save()
        report(
            past, TurnFailed(turn=2, failure=Interrupted(reason="cancelled"), unread=True), request("v", 2)
        )
    kept.close()
    loaded = KeptConversation.load(path)
    assert texts(loaded) == texts(kept) == ["s", "u", "a", "v"]
    loaded.close()


@pytest.mark.anyio
async def test_one_turn_at_a_time(wiring: Wiring, tmp_path: Path) -> None:
    kept = KeptConversation("s")
    with kept.turn(wiring.lender, wiring.endpoint) as past:
        for other in (
            lambda: kept.turn(wiring.lender, wiring.endpoint).__enter__(),
            kept.branch,
            lambda: kept.save(tmp_path / "talk.jsonl"),
        ):
            with pytest.raises(ConversationBusy, match=f"{kept.id} is in the middle of a turn"):
                other()
        report(past)
    with kept.asked(), pytest.raises(ConversationBusy), kept.asked():
        pass
    await one_turn(kept, wiring)


@pytest.mark.anyio
async def test_a_file_that_cannot_be_written_ends_the_turn_and_nothing_is_lost(
    tmp_path: Path, wiring: Wiring
) -> None:
    kept, path = KeptConversation("s"), tmp_path / "talk.jsonl"
    kept.save(path)
    path.unlink()
    with pytest.raises(ConversationError, match="was deleted"):
        await unsaved_turn(kept, wiring)
    with pytest.raises(ConversationError, match="was deleted"), kept.turn(wiring.lender, wiring.endpoint):
        pass
    kept.save(tmp_path / "other.jsonl")
    await one_turn(kept, wiring, "v")
    kept.close()
    loaded = KeptConversation.load(tmp_path / "other.jsonl")
    assert texts(loaded) == ["s", "u", "v", "a"]
    loaded.close()


def test_a_cancellation_stays_one_though_the_file_cannot_be_written(tmp_path: Path, wiring: Wiring) -> None:
    kept, path = KeptConversation("s"), tmp_path / "talk.jsonl"
    kept.save(path)
    path.unlink()
    with pytest.raises(KeyboardInterrupt):
        interrupted_turn(kept, wiring)
    assert texts(kept) == ["s", "u"]


TOOLS = (ToolDefinition(server=ServerName("a"), tool="t", input_schema={}),)


def offered(tools: tuple[ToolDefinition, ...]) -> RequestCompletion:
    return request("u", mode=OfferTools(tools=tools))


@pytest.mark.anyio
async def test_copies_know_the_tools_that_a_conversation_without_a_turn_has_offered(
    tmp_path: Path, wiring: Wiring
) -> None:
    """As after `Conversation.from_trace`."""
    kept = KeptConversation("s", tools=TOOLS)
    kept.save(tmp_path / "talk.jsonl")
    for copy in (kept.branch(), KeptConversation.loads(kept.dumps())):
        assert copy.tools == TOOLS
        await one_turn(copy, wiring)
        assert copy.tools == TOOLS
    kept.close()
    assert KeptConversation.load(tmp_path / "talk.jsonl").tools == TOOLS


@pytest.mark.anyio
@pytest.mark.parametrize("learned", [True, False])
async def test_copies_know_the_tools_of_a_recorded_turn(
    tmp_path: Path, wiring: Wiring, *, learned: bool
) -> None:
    other = (replace(TOOLS[0], tool="other"),)
    kept = KeptConversation("s", tools=TOOLS)
    kept.save(tmp_path / "talk.jsonl")
    if learned:
        await one_turn(kept, wiring)
    with kept.between_turns():
        kept.add([offered(other)])
    assert [each.tools for each in (kept, kept.branch(), KeptConversation.loads(kept.dumps()))] == [other] * 3
    kept.close()
    assert KeptConversation.load(tmp_path / "talk.jsonl").tools == other


def test_names_that_clash_are_encoded_as_before_after_a_load(tmp_path: Path, wiring: Wiring) -> None:
    def tool(name: str) -> ToolDefinition:
        server, bare = name.split(".")
        return ToolDefinition(server=ServerName(server), tool=bare, input_schema={"type": "object"})

    kept, path = KeptConversation("s"), tmp_path / "talk.jsonl"
    kept.save(path)
    with kept.turn(wiring.lender, wiring.endpoint) as past:
        encoded = lent_by(past).encoded
        # The first to come keeps the readable name, and the order in which they came is not on file.
        encoded.ask(request("u").new, OfferTools((tool("h.b_c"),)))
        encoded.ask((), OfferTools((tool("h.b_c"), tool("h.b c"))))
        assert encoded.names.to_wire("h.b_c") == "h__b_c"
        report(past)
    kept.close()
    loaded = KeptConversation.load(path)
    with loaded.turn(wiring.lender, wiring.endpoint) as past:
        again = lent_by(past).encoded
        assert again.names.known == encoded.names.known
        assert again.tools == encoded.tools
        report(past)
    loaded.close()


def test_a_host_s_own_actor_keeps_its_conversations_itself(wiring: Wiring) -> None:
    own = replace(wiring, llm=lambda *_: None, endpoint=None)
    with pytest.raises(ConversationError, match="needs an endpoint"):
        _ = own.lender


def test_a_history_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(ConversationError, match="no call of the last reply has the id x"):
        given_conversation("turn-1", "s", [ToolMessage(CallId("x"), "1")])
    call = ToolCall(call_id=CallId("x"), name="a.b", arguments="{}")
    given = [AssistantReply(tool_calls=(call,)), ToolMessage(CallId("x"), "1")]
    assert given_conversation("turn-1", "s", given).history.call_ids == {"x"}


class CountedText(str):
    """Counts how often such texts are compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedText.compared += 1
        return super().__eq__(other)


def test_a_result_is_looked_for_in_many_traces_without_comparing_each_with_each(tmp_path: Path) -> None:
    traces = [CountedText(tmp_path / f"{turn}") for turn in range(100)]
    results = EarlierResults(TurnRecorded(turn, trace) for turn, trace in enumerate(traces))
    assert results.find(CallId("c")) is None
    assert CountedText.compared < len(traces)


def test_a_trace_that_the_system_refuses_to_look_for_is_an_error_of_the_trace(tmp_path: Path) -> None:
    # A name that is too long stands for a folder that is closed to this user: it is refused as any user.
    results = EarlierResults([TurnRecorded(1, str(tmp_path / ("x" * 300)))])
    with pytest.raises(TraceError, match=r"Cannot read the trace .*: File name too long"):
        results.find(CallId("c"))


def test_a_result_is_found_though_the_beginning_of_another_turn_cannot_be_read(tmp_path: Path) -> None:
    path, recorder = tmp_path / "trace.jsonl", Recorder()
    with TraceWriter(path, episode="e") as writer:
        recorder.add(writer)
        begun = [RunTurn(turn=turn, system="s", user=f"turn {turn}") for turn in (1, 2)]
        causes = [recorder.record(run, sender="host", receiver="agent", turn=run.turn).seq for run in begun]
        returned = ToolReturned(batch=BatchId(1), call_id=CallId("c"), result=success("found"))
        recorder.record(returned, sender="a", receiver="agent", cause=causes[1], turn=2)
    path.write_text(path.read_text().replace('"turn 1"', "5"))
    found = EarlierResults([TurnRecorded(2, str(path))]).find(CallId("c"))
    assert found is not None
    assert found.content == "found"
