"""What a trace tells of a batch that was run before."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from turns import run

from grue.engine.answers import AnswerSpec
from grue.engine.batch import CompletedTurns
from grue.engine.turn import TurnOutcome
from grue.errors import TraceError
from grue.messages import (
    AssistantReply,
    Attachment,
    CompletionReceived,
    ConversationId,
    DropCompletion,
    HistoryReference,
    OfferTools,
    ReplyDropped,
    RequestCompletion,
    RunTurn,
    TurnCompleted,
    UserText,
)
from grue.protocol.context.history import History, take_step
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Recorder

pytestmark = pytest.mark.made_up_trace

TEXT = AnswerSpec.text()
IMAGE = Attachment(kind="image", mime="image/png", data="aGk=", bytes=2)


def asked(turn: int, user: str = "u", **more: Any) -> RunTurn:
    return replace(run("a"), **{"turn": turn, "user": user, "answer": None, **more})


def completed(turn: int, raw: str = "north", kind: Any = "answered") -> TurnCompleted:
    return TurnCompleted(turn=turn, kind=kind, answer=raw, raw_response=raw, reason="")


def recorded(tmp_path: Path, *bodies: RunTurn | TurnCompleted, secret: str = "") -> CompletedTurns:
    recorder = Recorder()
    if secret:
        recorder.hide("KEY", secret)
    writer = TraceWriter(tmp_path / "trace.jsonl", episode="batch")
    recorder.add(writer)
    begun: dict[int, int] = {}
    for body in bodies:
        if isinstance(body, RunTurn):
            begun[body.turn] = recorder.record(body, sender="host", receiver="agent", turn=body.turn).seq
        else:
            recorder.record(body, sender="agent", receiver="host", turn=body.turn, cause=begun.get(body.turn))
    writer.close()
    return CompletedTurns(tmp_path / "trace.jsonl")


def found(completed: CompletedTurns, command: RunTurn, answer: AnswerSpec[Any]) -> TurnOutcome[Any] | None:
    recalled = completed.recall(command, answer)
    return None if recalled is None else recalled[0]


def test_the_same_question_has_its_outcome(tmp_path: Path) -> None:
    recall = recorded(tmp_path, asked(1), asked(2), completed(2), completed(1, "south", "forced"))
    outcome = found(recall, asked(1), TEXT)
    assert outcome is not None
    assert (outcome.response, outcome.kind, outcome.turn) == ("south", "forced", 1)
    assert outcome.duration_s >= 0


@pytest.mark.parametrize(
    "changed",
    [
        {"user": "other"},
        {"system": "other"},
        {"servers": ()},
        {"turn": 2},
        {"images": (IMAGE,)},
        {"tools": ("a.read",)},
        {"answer": run("a").answer},
        {"history": HistoryReference(conversation=ConversationId("c"), length=2, digest="d")},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_another_question_has_none(tmp_path: Path, changed: dict[str, Any]) -> None:
    recall = recorded(tmp_path, asked(1), completed(1))
    assert found(recall, asked(**{"turn": 1, **changed}), TEXT) is None


def test_the_same_words_about_another_image_have_none(tmp_path: Path) -> None:
    about = asked(1, images=(IMAGE,))
    recall = recorded(tmp_path, about, completed(1))
    assert found(recall, about, TEXT) is not None
    assert found(recall, replace(about, images=(replace(IMAGE, data="aG8="),)), TEXT) is None
    assert found(recall, asked(1), TEXT) is None


def test_a_question_asked_anew_forgets_what_it_came_to(tmp_path: Path) -> None:
    recall = recorded(tmp_path, asked(1), completed(1), asked(1))
    assert found(recall, asked(1), TEXT) is None


def test_turns_of_the_same_number_that_overlap_keep_their_answers_apart(tmp_path: Path) -> None:
    recorder, path = Recorder(), tmp_path / "trace.jsonl"
    writer = TraceWriter(path, episode="batch")
    recorder.add(writer)
    own, item = (recorder.record(asked(1, user), sender="host").seq for user in ("own", "item"))
    recorder.record(completed(1, "of own"), sender="agent", cause=own)
    writer.flush()
    assert found(CompletedTurns(path), asked(1, "item"), TEXT) is None
    recorder.record(completed(1, "of item"), sender="agent", cause=item)
    writer.close()
    recall = CompletedTurns(path)
    for user in ("own", "item"):
        outcome = found(recall, asked(1, user), TEXT)
        assert outcome is not None
        assert outcome.response == f"of {user}"


def test_a_reply_that_the_turn_has_dropped_is_not_said_in_the_recalled_turn(tmp_path: Path) -> None:
    talk = ConversationId("c")
    command = asked(1, history=HistoryReference(conversation=talk, length=0, digest=""))
    recorder, path = Recorder(), tmp_path / "trace.jsonl"
    writer = TraceWriter(path, episode="batch")
    recorder.add(writer)

    def record(body: Any, to: str, cause: int | None = None) -> int:
        return recorder.record(body, sender="agent", receiver=to, turn=1, cause=cause).seq

    began = record(command, "agent")
    ask = RequestCompletion(conversation=talk, request=1, mode=OfferTools(), new=(UserText("u"),))
    reply = CompletionReceived(request=1, content="of presumed tools")
    record(reply, "agent", record(ask, "llm"))
    drop = record(DropCompletion(conversation=talk, request=1, reason="the tools have changed"), "llm")
    record(ReplyDropped(request=1), "agent", drop)
    again = record(replace(ask, request=2, new=()), "llm")
    record(replace(reply, request=2, content="north"), "agent", again)
    record(completed(1), "host", began)
    writer.close()
    recalled = CompletedTurns(path).recall(command, TEXT)
    assert recalled is not None
    history = History()
    for step in recalled[1]:
        take_step(history, step)
    assert [entry.content for entry in history.entries if isinstance(entry, AssistantReply)] == ["north"]


def test_an_answer_is_read_by_the_check_as_it_is_now(tmp_path: Path) -> None:
    recall = recorded(tmp_path, asked(1), completed(1, "7"), asked(2), completed(2, "x", "fallback"))
    read = found(recall, asked(1), AnswerSpec(int))
    assert read is not None
    assert read.response == 7

    def bug(_: str) -> str:
        raise LookupError("a bug of the host's")

    def refuse(_: str) -> str:
        raise ValueError("no")

    assert found(recall, asked(1), AnswerSpec(bug)) is None
    assert found(recall, asked(1), AnswerSpec(refuse)) is None
    fallen = found(recall, asked(2), AnswerSpec(refuse, fallback="home"))
    assert fallen is not None
    assert fallen.response == "home"
    assert found(recall, asked(2), AnswerSpec(refuse)) is None


def test_what_a_secret_was_taken_out_of_is_asked_again(tmp_path: Path) -> None:
    secret = "made-up-secret-value"
    recall = recorded(tmp_path, asked(1), completed(1, f"it is {secret}"), secret=secret)
    assert found(recall, asked(1), TEXT) is None


def test_a_trace_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.jsonl"):
        CompletedTurns(tmp_path / "none.jsonl")
