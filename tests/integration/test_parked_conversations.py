"""Turns of a conversation that wait for a person: parked, resumed, given up, killed."""

import itertools
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from parked_turns import TALK, Job, Stage
from talks import WIRES, changed_prefixes

from grue import (
    ContextPolicy,
    Conversation,
    FunctionTools,
    LlmSettings,
    Recorder,
    Runner,
    StdioServer,
    ToolPolicy,
    ToolRule,
    TraceWriter,
    TurnOutcome,
    TurnRequest,
    parked_turns,
)
from grue.errors import (
    ApprovalPending,
    ChangeRefused,
    ConversationError,
    ConversationParked,
    MCPConfigError,
    MCPServerStartupError,
    NothingToResume,
)
from grue.messages import (
    AssistantReply,
    RewriteHistory,
    ToolCalled,
    ToolMessage,
    TurnParked,
    TurnResumed,
    UserText,
)
from grue.protocol.chat_wire.formats import WireName
from grue.testing.llm_server import (
    ContextWindow,
    LlmReply,
    LlmRequest,
    ScriptedLlmServer,
    text_reply,
    tool_calls_reply,
)
from grue.tracing.reading import read_episode

POLICY = ToolPolicy(rules=(ToolRule(tools=("box.delete*",), verdict="ask"),), parking=True)


def model(request: LlmRequest) -> LlmReply:
    """Look and delete when told to tidy up; otherwise answer."""
    last = request.messages[-1]
    number = sum(message["role"] == "user" for message in request.messages)
    since = list(itertools.takewhile(lambda message: message["role"] != "user", reversed(request.messages)))
    told = [message for message in since if message["role"] == "tool"]
    asked = next(message for message in reversed(request.messages) if message["role"] == "user")
    thought = {"reasoning_content": f"Thought {len(request.messages)}."}
    if "Tidy" not in str(asked["content"]):
        return text_reply(f"Answer {number}.", **thought)
    if not told:
        return tool_calls_reply((name(request, "look"), {}), **thought)
    if len(told) == 1:
        return tool_calls_reply(
            (name(request, "look"), {}), (name(request, "delete"), {"name": "old.txt"}), **thought
        )
    return text_reply(f"The tool said: {last['content']}", **thought)


def look() -> str:
    return "dust"


def name(request: LlmRequest, tool: str) -> str:
    return next(each for each in request.tool_names if each.endswith(tool))


@pytest.fixture
def server() -> Iterator[ScriptedLlmServer]:
    with ScriptedLlmServer(model) as server:
        yield server


class Place:
    """A folder with a trace, a conversation's file and what the tool has deleted."""

    def __init__(self, folder: Path, server: ScriptedLlmServer, wire: WireName = "chat_completions") -> None:
        self.folder, self.server, self.wire = folder, server, wire
        self.trace, self.talk = folder / "trace.jsonl", folder / "talk.jsonl"
        self.deleted: list[str] = []

    def delete(self, name: str) -> str:
        self.deleted.append(name)
        return "deleted"

    def runner(self, *, trace: bool = False, **how: Any) -> Runner:
        recorder = Recorder()
        if trace:
            recorder.add(TraceWriter(self.trace, episode="e"))
        servers = {"box": FunctionTools([self.delete, look])}
        return Runner(
            llm=LlmSettings(base_url=self.server.base_url, model="m", wire=self.wire, api_key="key"),
            recorder=recorder,
            **{"tool_policy": POLICY, "servers": servers} | how,
        )

    def park(self, runner: Runner, *, saved: bool = True) -> Conversation:
        """Ask twice; the second turn is parked."""
        talk = runner.conversation("Be brief.", path=self.talk if saved else None, name="talk")
        talk.ask("Hello?")
        with pytest.raises(ApprovalPending):
            talk.ask("Tidy up.")
        return talk

    def bodies(self, *kinds: type) -> list[Any]:
        return [item.body for item in read_episode(self.trace).envelopes if isinstance(item.body, kinds)]

    def agree(self) -> None:
        """Assert that the file and the trace hold the same conversation."""
        with Conversation.load(self.talk, self.runner()) as loaded:
            traced = Conversation.from_trace(self.trace, self.runner())
            assert traced.history == loaded.history
            assert traced._kept.ledger.digest == loaded._kept.ledger.digest
            answers = [item.call_id for item in loaded.history if isinstance(item, ToolMessage)]
            replies = [item for item in loaded.history if isinstance(item, AssistantReply)]
            assert answers == [call.call_id for reply in replies for call in reply.tool_calls]
            assert len({*answers}) == len(answers)


@pytest.fixture
def place(tmp_path: Path, server: ScriptedLlmServer) -> Place:
    return Place(tmp_path, server)


def close(runner: Runner) -> None:
    for each in runner.recorder.observers:
        if isinstance(each, TraceWriter):
            each.close()
    runner.close()


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.slow
def test_a_conversation_goes_on_after_a_park_as_if_nothing_had_happened(
    tmp_path: Path, server: ScriptedLlmServer, wire: WireName
) -> None:
    place = Place(tmp_path, server, wire)
    runner = place.runner(trace=True)
    talk = place.park(runner)
    assert (talk.parked_turn, [question.name for question in talk.questions]) == (2, ["box.delete"])
    outcome = talk.resume([question.approve() for question in talk.questions])
    assert (outcome.response, place.deleted) == ("The tool said: deleted", ["old.txt"])
    assert (talk.parked_turn, talk.questions) == (None, ())
    talk.ask("And now?")
    with pytest.raises(ApprovalPending):
        talk.ask("Tidy up.")
    talk.close()
    with Conversation.load(place.talk, runner) as talk:
        with pytest.raises(ChangeRefused, match='"name" is a required property'):
            talk.resume([question.change({}) for question in talk.questions])
        talk.resume([question.deny("keep it") for question in talk.questions])
        assert talk.ask("And now?").response == "Answer 5."
    assert runner.spent.requests == len(server.requests) == 9
    close(runner)
    assert [request.refused for request in server.requests if request.refused] == []
    assert changed_prefixes(server, wire) == 0
    place.agree()


@pytest.mark.parametrize("by", ["the conversation", "the runner"])
@pytest.mark.slow
def test_another_process_goes_on_with_the_saved_conversation(place: Place, by: str) -> None:
    first = place.runner(trace=True)
    place.park(first).close()
    close(first)
    (parked,) = parked_turns(place.trace)
    decisions = [question.approve() for question in parked.questions]
    with place.runner() as later:
        if by == "the runner":
            assert later.resume(place.trace, decisions).turn == 2
        else:
            with Conversation.load(place.talk, later) as talk:
                assert talk.questions == parked.questions
                assert talk.resume(decisions).turn == 2
        with Conversation.load(place.talk, later) as talk:
            assert talk.parked_turn is None
            assert talk.ask("And now?").response == "Answer 3."
    assert place.deleted == ["old.txt"]
    assert changed_prefixes(place.server) == 0
    place.agree()


def test_the_file_of_a_conversation_that_was_closed_gets_the_resumed_turn(place: Place) -> None:
    runner = place.runner(trace=True)
    talk = place.park(runner)
    talk.close()
    runner.resume(place.trace, [question.approve() for question in talk.questions])
    with Conversation.load(place.talk, runner) as loaded:
        assert loaded.parked_turn is None
        assert loaded.ask("And now?").response == "Answer 3."
    close(runner)
    place.agree()


@pytest.mark.slow
def test_a_conversation_without_a_file_goes_on_from_its_trace(place: Place) -> None:
    first = place.runner(trace=True)
    live = place.park(first, saved=False)
    close(first)
    with place.runner() as later:
        talk = Conversation.from_trace(place.trace, later)
        assert talk.history == live.history
        decisions = [question.change({"name": "new.txt"}) for question in talk.questions]
        assert anyio.run(lambda: talk.resume_async(decisions)).turn == 2
        assert place.deleted == ["new.txt"]
        after = Conversation.from_trace(place.trace, later)
        assert after.history == talk.history
        assert after.parked_turn is None


@pytest.mark.slow
def test_a_resumed_turn_has_all_that_was_said_in_it_whatever_was_cleared(
    tmp_path: Path,
) -> None:
    def cleaner(request: LlmRequest) -> LlmReply:
        last = request.messages[-1]
        if not request.tool_names:
            return text_reply("Much was read.")
        if last["role"] == "user":
            return tool_calls_reply(("box.read", {}))
        deletes = "data" in last["content"] and request.messages[-3]["content"] == "Tidy up."
        return tool_calls_reply(("box.delete", {"name": "old.txt"})) if deletes else text_reply("Done.")

    def read() -> str:
        return "data " * 300

    with ScriptedLlmServer(cleaner, window=ContextWindow(tokens=1600)) as server:
        place = Place(tmp_path, server)
        servers = {"box": FunctionTools([place.delete, read])}
        window = ContextPolicy(window_tokens=1600)
        runner = place.runner(trace=True, servers=servers, context=window)
        talk = runner.conversation("Be brief.")
        for _ in range(4):
            talk.ask("Read. " * 200)
        with pytest.raises(ApprovalPending):
            talk.ask("Tidy up.")
        outcome = talk.resume([question.approve() for question in talk.questions])
    close(runner)
    envelopes = read_episode(place.trace).envelopes
    assert 5 in [each.turn for each in envelopes if isinstance(each.body, RewriteHistory)]
    assert [type(item) for item in outcome.said] == [
        UserText,
        *[AssistantReply, ToolMessage] * 2,
        AssistantReply,
    ]


def test_while_a_turn_is_parked_nothing_else_is_asked(place: Place) -> None:
    runner = place.runner(trace=True)
    talk = place.park(runner)
    asked = len(place.server.requests)
    with pytest.raises(
        ConversationParked, match=r"Turn 2 of the conversation talk waits for an approval of"
    ) as no:
        talk.ask("And now?")
    assert (no.value.turn, no.value.questions) == (2, talk.questions)
    with pytest.raises(ConversationParked):
        runner.start_turn(talk.request("And now?")).result()
    (item,) = runner.map([talk.request("And now?")])
    assert isinstance(item.error, ConversationParked)
    assert len(place.server.requests) == asked
    assert isinstance(talk.history[-1], AssistantReply), "what the model wants to do is part of it"
    with pytest.raises(NothingToResume):
        runner.conversation().resume()
    close(runner)


@pytest.mark.slow
def test_a_parked_turn_can_be_given_up_or_left_to_a_branch(place: Place) -> None:
    runner = place.runner(trace=True)
    talk = place.park(runner)
    decisions = [question.approve() for question in talk.questions]
    branch = talk.branch()
    assert branch.ask("And now?").response == "Answer 3."
    assert talk.parked_turn == 2
    talk.abandon()
    talk.abandon()
    for said in (branch, talk):
        *_, result, _ = [item for item in said.history if isinstance(item, ToolMessage | AssistantReply)][:6]
        assert isinstance(result, ToolMessage)
        assert "not called: the turn ended before" in result.content
    with pytest.raises(NothingToResume, match="No turn of the conversation talk is parked"):
        talk.resume(decisions)
    with pytest.raises(ConversationError, match="the conversation talk has gone on without it"):
        runner.resume(place.trace, decisions, turn=2)
    talk.ask("And now?")
    talk.close()
    close(runner)
    with place.runner() as later, pytest.raises(ConversationError, match="has gone on without it"):
        later.resume(place.trace, decisions)
    assert place.deleted == []
    assert place.bodies(TurnResumed) == []
    with Conversation.load(place.talk, place.runner()) as loaded:
        assert Conversation.from_trace(place.trace, place.runner(), name="talk").history == loaded.history


def test_a_park_is_consumed_once(place: Place) -> None:
    runner = place.runner(trace=True)
    talk = place.park(runner)
    decisions = [question.approve() for question in talk.questions]
    talk.resume(decisions)
    with pytest.raises(NothingToResume):
        talk.resume(decisions)
    with pytest.raises(NothingToResume):
        runner.resume(place.trace, decisions)
    assert place.deleted == ["old.txt"]
    close(runner)


def test_a_question_without_a_decision_parks_the_turn_again(place: Place) -> None:
    runner = place.runner(trace=True)
    talk = place.park(runner)
    with pytest.raises(ApprovalPending):
        talk.resume()
    assert talk.parked_turn == 2
    talk.resume([question.approve() for question in talk.questions])
    assert place.deleted == ["old.txt"]
    talk.close()
    close(runner)
    place.agree()


@pytest.mark.slow
def test_a_file_that_does_not_fit_is_refused_and_consumes_nothing(place: Place) -> None:
    first = place.runner(trace=True)
    talk = first.conversation("Be brief.", path=place.talk, name="talk")
    older = place.folder / "older.jsonl"
    shutil.copy(place.talk, older)
    talk.ask("Hello?")
    with pytest.raises(ApprovalPending):
        talk.ask("Tidy up.")
    close(first)
    decisions = [question.approve() for question in talk.questions]
    with place.runner() as later:
        with pytest.raises(ConversationError, match=r"Turn 2 of .* cannot be resumed: .* is in use"):
            later.resume(place.trace, decisions)
        talk.close()
        place.talk.rename(place.folder / "moved.jsonl")
        with pytest.raises(ConversationError, match=r"No such file.* pass the conversation"):
            later.resume(place.trace, decisions)
        with (
            Conversation.load(older, later) as behind,
            pytest.raises(ConversationError, match="has gone on without it"),
        ):
            later.resume(place.trace, decisions, conversation=behind._kept)
        other = later.conversation(name="other")
        with pytest.raises(ConversationError, match="belongs to the conversation talk, not to other"):
            later.resume(place.trace, decisions, conversation=other._kept)
        assert place.bodies(TurnResumed) == []
        with Conversation.load(place.folder / "moved.jsonl", later) as moved:
            moved.resume(decisions)
    assert place.deleted == ["old.txt"]


@pytest.mark.slow
def test_servers_that_do_not_start_leave_the_turn_parked(place: Place) -> None:
    first = place.runner(trace=True)
    place.park(first).close()
    close(first)
    with place.runner() as later:
        later._wiring.servers["box"] = StdioServer(name="box", command="/nonexistent/box")  # type: ignore[index]  # as if its configuration had changed
        with Conversation.load(place.talk, later) as talk:
            decisions = [question.approve() for question in talk.questions]
            with pytest.raises(MCPServerStartupError):
                talk.resume(decisions)
            assert talk.parked_turn == 2
    with place.runner() as again, Conversation.load(place.talk, again) as talk:
        talk.resume(decisions)
    assert place.deleted == ["old.txt"]
    place.agree()


def test_a_history_given_as_data_cannot_be_parked(place: Place) -> None:
    with place.runner(trace=True) as runner:
        request = TurnRequest[str](system="s", user="Tidy up.", history=[UserText("Hello?")])
        with pytest.raises(MCPConfigError, match="its trace holds only a digest of the history"):
            runner.run_turn(request)
        close(runner)
    assert place.server.requests == []


class Watched:
    """Notes how large the file is at each message."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.sizes: list[int] = []

    def __call__(self, envelope: Any, line: bytes) -> None:
        self.sizes.append(self.file.stat().st_size if self.file.exists() else 0)


@pytest.mark.slow
def test_whenever_its_process_is_killed_file_and_trace_agree_again(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    (tmp_path / "whole").mkdir()
    whole = Place(tmp_path / "whole", server)
    runner = whole.runner(trace=True)
    watched = Watched(whole.talk)
    runner.recorder.add(watched)
    talk = whole.park(runner)
    talk.resume([question.approve() for question in talk.questions])
    talk.close()
    close(runner)
    header, *lines = whole.trace.read_bytes().splitlines(keepends=True)
    content, sizes = whole.talk.read_bytes(), watched.sizes
    assert len(lines) == len(sizes)
    begun = next(at for at, line in enumerate(lines) if b'"RunTurn"' in line and b"Tidy" in line)
    ended = len(lines) - 1
    for cut in range(begun + 1, ended):
        # The trace is written behind the turn, so the file may hold more than it.
        for ahead in (0, 4):
            folder = tmp_path / f"{cut}-{ahead}"
            folder.mkdir()
            killed = Place(folder, server)
            text = b"".join((header, *lines[:cut])).replace(bytes(whole.talk), bytes(killed.talk))
            killed.trace.write_bytes(text)
            killed.talk.write_bytes(content[: sizes[min(cut + ahead, ended - 1)]])
            assert_goes_on(killed)


def assert_goes_on(killed: Place) -> None:
    called = any(each.tool == "delete" for each in killed.bodies(ToolCalled))
    with killed.runner() as later:
        pending = [question for parked in parked_turns(killed.trace) for question in parked.questions]
        try:
            outcome: TurnOutcome[Any] = later.resume(
                killed.trace, [question.approve() for question in pending]
            )
        except ApprovalPending as again:
            decisions = [question.approve() for question in again.questions]
            with Conversation.load(killed.talk, later) as talk:
                outcome = talk.resume(decisions, trace=killed.trace)
        except NothingToResume:
            assert called
            return
    assert len(killed.deleted) == (0 if called else 1)
    said = "The tool said: deleted" if not called else "interrupted; it may have taken effect"
    assert said in outcome.response or called
    killed.agree()


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as made:
        yield made


MESSAGES = 48
"""More than a `talk` has from its second turn on."""


@pytest.mark.parametrize("kills", [4, pytest.param(24, marks=pytest.mark.slow)])
def test_a_conversation_whose_process_is_killed_goes_on_and_runs_nothing_twice(
    tmp_path: Path, server: ScriptedLlmServer, stage: Stage, kills: int
) -> None:
    chance = random.Random(f"{kills}")
    for number in range(kills):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        job = Job(action="talk", folder=str(folder), base_url=server.base_url)
        # The first process anywhere between its second turn and its last; half of the second ones, too.
        at = 1 + MESSAGES * number // kills + chance.randrange(MESSAGES // kills + 1)
        (first,) = stage.do(replace(job, kill_at=at, kill_after_s=chance.uniform(0.0, 0.003)))
        if chance.random() < 0.5:
            soon = {"kill_at": chance.randrange(MESSAGES // 2), "kill_after_s": chance.uniform(0.0, 0.003)}
            stage.do(replace(job, action="talk on", **soon))
        (last,) = stage.do(replace(job, action="talk on"))
        assert last != "killed"
        assert_nothing_ran_twice(Place(folder, server), f"killed at {at}: {first}, {last}")


def assert_nothing_ran_twice(place: Place, said: str) -> None:
    runs = place.folder / "deleted"
    ran = runs.read_text().splitlines() if runs.exists() else []
    called = [each for each in place.bodies(ToolCalled) if each.tool == "delete"]
    assert len(ran) <= len(called) <= 1, said
    with Conversation.load(place.folder / TALK, place.runner(tool_policy=ToolPolicy())) as talk:
        assert talk.parked_turn is None, said
        replies = [item for item in talk.history if isinstance(item, AssistantReply)]
        deletes = {
            call.call_id for reply in replies for call in reply.tool_calls if call.name.endswith("delete")
        }
        answers = [item for item in talk.history if isinstance(item, ToolMessage) and item.call_id in deletes]
        assert len(answers) == len(deletes) <= 1, said
        if called:
            (told,) = [item.content for item in answers]
            assert told == "deleted" or "it may have taken effect" in told, said
        answer = talk.ask("Are you there?").response
        assert answer.startswith("Answer "), said
    envelopes = read_episode(place.trace).envelopes
    parks = [each.seq for each in envelopes if isinstance(each.body, TurnParked)]
    resumed = [each.body.after for each in envelopes if isinstance(each.body, TurnResumed)]
    assert len(resumed) == len({*resumed}), said
    assert {*parks} <= {*resumed}, said
