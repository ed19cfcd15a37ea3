"""Whole conversations, built from the messages of a trace."""

from typing import Any

from recorded_turns import Tape

from grue.messages import (
    AssistantReply,
    CompletionFailed,
    CompletionReceived,
    HistoryReference,
    LlmFailure,
    RequestCompletion,
    RequireAnswer,
    RunTurn,
    ToolMessage,
    TurnCompleted,
    UserText,
)
from grue.tracing.observers.spans import MOST_KEPT, AsSent, Conversations


class Talk:
    """Turns of conversations, with what `Conversations` says of each request."""

    def __init__(self) -> None:
        self.seen = Conversations()
        self.tape = Tape()
        self.sent: list[AsSent] = []

    def say(self, body: Any, cause: int | None = None) -> int:
        envelope = self.tape.recorder.record(body, sender="agent", cause=cause)
        sent = self.seen.see(envelope)
        if sent is not None:
            self.sent.append(sent)
        return envelope.seq

    def begin(self, turn: int, conversation: str = "", length: int = 0) -> int:
        past = HistoryReference(conversation=conversation, length=length, digest="")
        return self.say(RunTurn(turn=turn, system="", user="", history=past if conversation else None))

    def ask(self, conversation: str, *new: Any, aside: bool = False) -> int:
        request = RequestCompletion(
            conversation=conversation, request=1, new=new, mode=RequireAnswer(), aside=aside
        )
        return self.say(request)

    def turn(self, turn: int, user: str, conversation: str = "", length: int = 0) -> None:
        run = self.begin(turn, conversation, length)
        asked = self.ask(conversation or f"turn-{turn}", UserText(user))
        self.say(CompletionReceived(request=1, content=f"{user}!"), asked)
        self.say(TurnCompleted(turn=turn, kind="answered"), run)


def test_a_turn_has_what_earlier_turns_of_its_conversation_said() -> None:
    talk = Talk()
    talk.turn(1, "Hi", "c")
    talk.turn(2, "Ho", "c", length=2)
    assert talk.sent[1].said == (UserText("Hi"), AssistantReply(content="Hi!"), UserText("Ho"))
    assert (talk.sent[1].fresh, talk.sent[1].missing) == (1, 0)


def test_turns_without_a_conversation_share_nothing() -> None:
    talk = Talk()
    talk.turn(1, "Hi")
    talk.turn(1, "Ho")
    assert [sent.said for sent in talk.sent] == [(UserText("Hi"),), (UserText("Ho"),)]


def test_what_the_trace_does_not_hold_is_counted() -> None:
    talk = Talk()
    talk.turn(5, "Ho", "c", length=8)
    assert (talk.sent[0].said, talk.sent[0].missing) == ((UserText("Ho"),), 8)


def test_a_message_that_does_not_fit_begins_the_conversation_again() -> None:
    talk = Talk()
    talk.begin(1, "c")
    talk.ask("c", UserText("Hi"))
    talk.ask("c", ToolMessage("lost", "1"))
    assert (talk.sent[1].said, talk.sent[1].missing) == ((ToolMessage("lost", "1"),), 1)


def test_a_request_aside_leaves_the_conversation_as_it_was() -> None:
    talk = Talk()
    talk.begin(1, "c")
    talk.ask("c", UserText("Hi"))
    aside = talk.ask("c", UserText("Sum up."), aside=True)
    talk.say(CompletionReceived(request=1, content="A sum."), aside)
    talk.ask("c", UserText("Ho"))
    assert talk.sent[1].said == (UserText("Hi"), UserText("Sum up."))
    assert talk.sent[2].said == (UserText("Hi"), UserText("Ho"))


def test_a_failed_request_and_a_servers_sampling_are_not_remembered() -> None:
    talk = Talk()
    talk.begin(1, "c")
    asked = talk.ask("c", UserText("Hi"))
    failure = LlmFailure(kind="unavailable", endpoint="http://x", model="m", message="busy")
    talk.say(CompletionFailed(request=1, failure=failure), asked)
    talk.say(CompletionReceived(request=1, content="late"), asked)
    for _ in range(2):
        talk.ask("sampling-1", UserText("A server asks."))
    assert [sent.said for sent in talk.sent[1:]] == [(UserText("A server asks."),)] * 2


def test_the_conversation_that_was_continued_longest_ago_is_forgotten() -> None:
    talk = Talk()
    for turn in range(MOST_KEPT + 1):
        talk.turn(turn + 1, "Hi", f"c{turn}")
    talk.turn(200, "Ho", "c0", length=2)
    talk.turn(201, "Ho", "c1", length=2)
    assert [len(sent.said) for sent in talk.sent[-2:]] == [1, 1]
    talk.turn(202, "Ho", f"c{MOST_KEPT}", length=2)
    assert len(talk.sent[-1].said) == 3
