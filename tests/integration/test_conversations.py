"""A conversation over real HTTP: the same whichever format, saved and loaded, failed, branched, resumed."""

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from media import GIF, PNG
from msgspec.structs import replace
from rows import first_of
from talks import WIRES, broken_runner, changed_prefixes, chatty, runner_for

from grue import (
    AnswerSpec,
    Conversation,
    FunctionTools,
    LlmSettings,
    MCPError,
    Recorder,
    Runner,
    TraceWriter,
    TurnRequest,
    messages,
)
from grue.errors import ConversationBusy, ConversationError, LLMError, MCPConfigError, TurnCancelled
from grue.messages import (
    AssistantReply,
    CallId,
    RequestCompletion,
    RunTurn,
    TextDelta,
    ToolCall,
    ToolMessage,
    UserText,
)
from grue.protocol.chat_wire.formats import WireName
from grue.testing.llm_server import LlmRequest, ScriptedLlmServer
from grue.tracing.reading import read_episode

TURNS = 30


@pytest.fixture
def server() -> Iterator[ScriptedLlmServer]:
    with ScriptedLlmServer(chatty) as server:
        yield server


@pytest.mark.parametrize("wire", first_of(WIRES))
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.slow
def test_thirty_turns_are_the_same_in_every_format_saved_and_loaded_at_each_turn(
    tmp_path: Path, server: ScriptedLlmServer, wire: WireName, streamed: bool
) -> None:
    path, said = tmp_path / "talk.jsonl", []
    runner_for(server, wire).conversation("Answer briefly.", path=path).close()
    for number in range(1, TURNS + 1):
        runner = runner_for(server, wire)  # a new one: nothing is known but what is on file
        with Conversation.load(path, runner) as talk:
            how: Any = {"on_delta": lambda _: None} if streamed else {}
            outcome = talk.ask(f"Question {number}?", **how)
            said.append((outcome.response, [call.result.content for call in outcome.tool_calls]))
    expected = [(f"Answer {n}.", [f"seen {n}-a", f"seen {n}-b"] if n % 3 == 0 else []) for n in range(1, 31)]
    assert said == expected
    assert [request.refused for request in server.requests if request.refused] == []
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(server.requests) == 40
    assert len({json.dumps(request.chat["tools"]) for request in server.requests}) == 1
    assert changed_prefixes(server, wire) == 0


def test_a_conversation_costs_only_what_is_new_in_its_trace(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    recorder = Recorder()
    recorder.add(trace := TraceWriter(tmp_path / "trace.jsonl", episode="talk"))
    talk = runner_for(server, recorder=recorder).conversation("Answer briefly.", name="talk")
    for number in range(1, 6):
        talk.ask(f"Question {number}?")
    trace.close()
    bodies = [envelope.body for envelope in read_episode(tmp_path / "trace.jsonl").envelopes]
    references = [body.history for body in bodies if isinstance(body, RunTurn)]
    assert [(each.conversation, each.length) for each in references if each] == [
        ("talk", 0), ("talk", 2), ("talk", 4), ("talk", 8), ("talk", 10)
    ]  # fmt: skip
    new = [body.new for body in bodies if isinstance(body, RequestCompletion)]
    assert new[-1] == (UserText("Question 5?"),)


def test_images_of_the_user_reach_the_model_and_stay_in_the_conversation(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    picture = tmp_path / "map.png"
    picture.write_bytes(PNG)
    talk = runner_for(server).conversation()
    talk.ask("What is this?", images=[picture, GIF])
    talk.ask("And now?")
    for request in server.requests:
        urls = [part["image_url"]["url"] for part in request.messages[0]["content"] if "image_url" in part]
        assert [url.partition(";")[0] for url in urls] == ["data:image/png", "data:image/gif"]
        assert request.messages[0]["content"][-1] == {"type": "text", "text": "What is this?"}
    for image, why in (
        (b"no image", "Image 1 cannot be shown to the model: it is not a PNG, JPEG, GIF or WebP image."),
        (
            tmp_path / "none.png",
            f"The image {tmp_path / 'none.png'} cannot be read: No such file or directory.",
        ),
        (b"%PDF-1.7\n%%EOF", "Image 1 is not an image: its content is application/pdf."),
    ):
        with pytest.raises(MCPError, match=re.escape(why)):
            talk.ask("And this?", images=[image])
    assert len(server.requests) == 2


def test_what_was_said_before_can_be_given_as_plain_data(server: ScriptedLlmServer) -> None:
    call = ToolCall(call_id=CallId("c1"), name="house.look", arguments='{"at":"door"}')
    history = [
        UserText("What is at the door?"),
        AssistantReply(tool_calls=(call,)),
        ToolMessage(CallId("c1"), '"a mat"'),
        AssistantReply(content="A mat."),
    ]
    request = TurnRequest[str](system="Answer briefly.", user="And under it?", history=history)
    assert runner_for(server).run_turn(request).response == "Answer 2."
    roles = [message["role"] for message in server.requests[0].messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    with pytest.raises(ConversationError, match=r"cannot be used: no call of the last reply has the id c1\."):
        runner_for(server).run_turn(replace(request, history=history[2:]))


def test_a_conversation_goes_through_a_database_as_text(server: ScriptedLlmServer) -> None:
    """Each turn in a new runner: the requests are those of a conversation that stayed in memory."""
    stored = runner_for(server).conversation("Answer briefly.", name="talk").dumps()
    for number in range(1, 7):
        talk = Conversation.loads(stored.strip(), runner_for(server))
        assert (talk.id, talk.path) == ("talk", None)
        talk.ask(f"Question {number}?")
        stored = talk.dumps()
    assert changed_prefixes(server, "chat_completions") == 0
    assert [request.refused for request in server.requests if request.refused] == []
    texts = [item.text for item in talk.history if isinstance(item, UserText)]
    assert texts == [f"Question {number}?" for number in range(1, 7)]


def test_a_text_that_is_no_conversation_is_refused(server: ScriptedLlmServer) -> None:
    runner = runner_for(server)
    half = runner.conversation("Answer briefly.").dumps()[:-9]
    for text in ("", "{}", half, "\ud800"):
        with pytest.raises(ConversationError, match=r"the text, line 1 is damaged \(.*\)\.$"):
            Conversation.loads(text, runner)
    with pytest.raises(MCPError, match="wants the text that dumps"):
        Conversation.loads(b"{}", runner)  # type: ignore[arg-type]


def test_a_conversation_s_name_is_a_text_that_its_file_can_hold(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    runner, path = runner_for(server), tmp_path / "talk.jsonl"
    with pytest.raises(MCPConfigError, match="name='42', not name=42"):
        runner.conversation("Answer briefly.", name=42, path=path)  # type: ignore[arg-type]
    assert runner.conversation("Answer briefly.", name=None).id  # type: ignore[arg-type]  # as without
    runner.conversation("Answer briefly.", name="\ud800", path=path).close()
    with Conversation.load(path, runner) as talk:
        assert talk.id == "\ufffd"


def messages_of(request: LlmRequest) -> str:
    """The messages of a request; the ids of calls count up from test to test."""
    return re.sub(r"call_scripted_\d+", "call", json.dumps(request.body["messages"]))


@pytest.mark.slow
def test_an_outcome_has_what_is_new_and_the_next_turn_takes_it(server: ScriptedLlmServer) -> None:
    """A program that keeps what was said itself, as JSON, sends what a conversation would send."""
    runner = runner_for(server)
    kept: list[Any] = []
    for number in range(1, 4):
        request: TurnRequest[str] = TurnRequest(f"Question {number}?", system="Answer briefly.", history=kept)
        outcome = runner.run_turn(request)
        assert isinstance(outcome.said[0], UserText)
        kept = msgspec.json.decode(
            msgspec.json.encode([*kept, *outcome.said]), type=list[messages.HistoryItem]
        )
    alone = [messages_of(request) for request in server.requests]
    del server.requests[:]
    talk = runner.conversation("Answer briefly.")
    for number in range(1, 4):
        assert talk.ask(f"Question {number}?").said[-1] == talk.history[-1]
    assert [messages_of(request) for request in server.requests] == alone
    assert [type(item) for item in talk.history[1:]] == [type(item) for item in kept]
    follows: TurnRequest[str] = TurnRequest("Question 4?", history=talk.history)
    assert (follows.system, follows.history) == ("Answer briefly.", talk.history[1:])
    with pytest.raises(MCPError, match="leave system= out"):
        TurnRequest("Question 4?", system="Answer at length.", history=talk.history)


def test_a_turn_that_failed_keeps_what_was_said(server: ScriptedLlmServer) -> None:
    talk = runner_for(server).conversation("Answer briefly.")
    with pytest.raises(LLMError):
        Conversation(broken_runner(), talk._kept).ask("Are you there?")
    assert talk.ask("And now?").response == "Answer 2."
    assert [message["content"] for message in server.requests[0].messages] == [
        "Answer briefly.", "Are you there?", "And now?"
    ]  # fmt: skip


def test_a_call_under_way_when_the_turn_is_cancelled_is_answered(server: ScriptedLlmServer) -> None:
    begun = threading.Event()

    async def hang(at: str) -> str:
        begun.set()
        await anyio.sleep_forever()
        return at

    llm = LlmSettings(base_url=server.base_url, model="scripted")
    with Runner(llm=llm, servers={"house": FunctionTools({"look": hang})}, keep="loop") as runner:
        talk = runner.conversation()
        talk.ask("One?")
        talk.ask("Two?")
        handle = runner.start_turn(talk.request("Three?"))
        assert begun.wait(60)
        with pytest.raises(ConversationBusy):
            talk.branch()
        handle.cancel()
        with pytest.raises(TurnCancelled):
            handle.result(60)
        assert talk.ask("Five?").response == "Answer 4."
    results = [message["content"] for message in server.requests[-1].messages if message["role"] == "tool"]
    assert results == ["Error: interrupted; it may have taken effect"] * 2


def test_a_file_that_is_lost_in_the_middle_of_a_turn_ends_the_turn(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    path = tmp_path / "talk.jsonl"

    def lose(at: str) -> str:
        path.unlink(missing_ok=True)
        return at

    with runner_for(server, look=lose).conversation(path=path) as talk:
        talk.ask("One?")
        talk.ask("Two?")
        with pytest.raises(ConversationError, match=r"was deleted.* save the conversation to another file"):
            talk.ask("Three?")
        talk.save(tmp_path / "other.jsonl")
        assert talk.ask("Four?").response == "Answer 4."
    assert [message["role"] for message in server.requests[-1].messages[-5:]] == [
        "user", "assistant", "tool", "tool", "user"
    ]  # fmt: skip


def test_two_asks_at_once_are_refused_and_a_branch_is_not(server: ScriptedLlmServer) -> None:
    talk = runner_for(server).conversation()
    talk.ask("One?")
    seen: list[str] = []

    def interject(_: TextDelta) -> None:
        if not seen:
            seen.append("asked")
            with pytest.raises(ConversationBusy, match="is in the middle of a turn"):
                Conversation(runner_for(server), talk._kept).ask("Meanwhile?")

    talk.ask("Two?", on_delta=interject)
    assert seen == ["asked"]
    branch = talk.branch()
    assert branch.id != talk.id
    assert talk.ask("Red?").response == branch.ask("Blue?").response == "Answer 3."
    asked = [[m["content"] for m in request.messages if m["role"] == "user"] for request in server.requests]
    assert (asked[-3], asked[-1]) == (["One?", "Two?", "Red?"], ["One?", "Two?", "Blue?"])
    assert talk.history[:4] == branch.history[:4]


@pytest.mark.slow
def test_a_batch_continues_many_conversations(server: ScriptedLlmServer) -> None:
    runner = runner_for(server)
    talks = [runner.conversation(f"You are number {number}.") for number in range(4)]
    for _ in range(3):
        items = list(runner.map([talk.request("Next?") for talk in talks], concurrency=4))
    assert [item.outcome.response for item in items if item.outcome] == ["Answer 3."] * 4
    assert [len(talk.history) for talk in talks] == [10] * 4
    twice = list(runner.map([talks[0].request("A?"), talks[0].request("B?")], concurrency=2))
    errors = [item.error for item in twice if item.error]
    assert all(isinstance(error, ConversationBusy) for error in errors)
    assert len(errors) <= 1


@pytest.mark.anyio
async def test_a_conversation_in_the_caller_s_own_event_loop(server: ScriptedLlmServer) -> None:
    talk = runner_for(server).conversation()
    assert (await talk.ask_async("One?")).response == "Answer 1."
    assert (await talk.ask_async("Two?")).response == "Answer 2."


def test_a_turn_whose_conversation_cannot_be_written_at_its_end_is_paid_for(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    path = tmp_path / "talk.jsonl"

    def delete(text: str) -> str:
        path.unlink()
        return text

    with Runner(llm=server.settings) as runner, runner.conversation(path=path) as talk:
        with pytest.raises(ConversationError, match="was deleted"):
            talk.ask("Hello.", answer=AnswerSpec(delete))
        assert runner.spent.requests == 1


class Name(str):
    """A text of a class of its own, such as numpy's `str_`, which messages cannot hold."""


def test_names_may_be_texts_of_a_class_of_their_own(tmp_path: Path, server: ScriptedLlmServer) -> None:
    hall = {Name("hall"): FunctionTools({"look": lambda: "dark"})}
    with Runner(llm=server.settings, servers=hall, trace=tmp_path / "t.jsonl") as runner:
        talk = runner.conversation(Name("Answer briefly."), name=Name("talk"))
        assert talk.ask(Name("Hello."), tools=(Name("hall.*"),)).kind == "answered"
        assert runner.call(Name("hall.look")).content == "dark"
