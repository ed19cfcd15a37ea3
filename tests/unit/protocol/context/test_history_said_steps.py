"""What each recorded message adds to a conversation."""

import pytest

from grue.messages import (
    AnswerSchema,
    AssistantReply,
    Cleared,
    CompletionReceived,
    HistoryRewritten,
    OfferTools,
    ReplyDropped,
    RequestCompletion,
    RequireAnswer,
    RewriteHistory,
    Rewritten,
    RunTurn,
    Said,
    ToolCall,
    ToolMessage,
    TurnCompleted,
    UserText,
)
from grue.protocol.context.history import History, take_step

SCHEMA = AnswerSchema(name="move", schema={})
CALL = ToolCall(call_id="c1", name="a.t", arguments="{}")


def asked(*new: UserText | ToolMessage, mode: OfferTools | RequireAnswer | None = None) -> RequestCompletion:
    return RequestCompletion(conversation="t", request=1, new=new, mode=mode or OfferTools())


def test_requests_replies_and_ends_are_what_was_said() -> None:
    history = History()
    take_step(history, asked(UserText("Hi.")))
    take_step(history, CompletionReceived(request=1, content="Hm.", tool_calls=(CALL,)))
    take_step(history, asked(ToolMessage("c1", "1"), mode=RequireAnswer(SCHEMA)))
    take_step(history, CompletionReceived(request=2, content="Done."))
    take_step(history, TurnCompleted(turn=1, kind="answered"))
    assert history.entries == [
        Said((UserText("Hi."),)),
        AssistantReply(content="Hm.", tool_calls=(CALL,)),
        Said((ToolMessage("c1", "1"),), SCHEMA),
        AssistantReply(content="Done."),
    ]


def test_the_schema_that_a_request_states_beside_tools_was_said_too() -> None:
    history = History()
    take_step(history, asked(UserText("Hi."), mode=OfferTools(answer=SCHEMA)))
    assert history.entries == [Said((UserText("Hi."),), SCHEMA, beside_tools=True)]


@pytest.mark.parametrize("restates", [True, False])
def test_a_schema_that_was_asked_for_without_tools_is_stated_beside_tools_once(restates: bool) -> None:
    """An old trace lacks the schema there, as the process that recorded the trace did."""
    history = History()
    take_step(history, RunTurn(turn=1, system="s", user="u", restates_answer=restates))
    for mode in (RequireAnswer(SCHEMA), *[OfferTools(answer=SCHEMA)] * 2, RequireAnswer(SCHEMA)):
        take_step(history, asked(UserText("Hi."), mode=mode))
        history = history.branch()
    told = Said((UserText("Hi."),), SCHEMA, beside_tools=True) if restates else Said((UserText("Hi."),))
    plain = Said((UserText("Hi."),))
    assert history.entries == [Said((UserText("Hi."),), SCHEMA), told, plain, plain]


def test_a_history_is_changed_as_the_messages_say() -> None:
    history = History()
    take_step(history, asked(UserText("Hi.")))
    take_step(history, asked(UserText("A long text.", stub="cut")))
    take_step(history, RewriteHistory(conversation="t", change=Cleared(texts=1), reason="window"))
    assert history.entries[1] == Said((UserText("cut", stub="cut"),))
    rewrite = Rewritten(0, 1, (Said((UserText("Ho."),)),))
    take_step(history, HistoryRewritten(conversation="t", rewrite=rewrite, reason="refused"))
    assert history.entries[0] == Said((UserText("Ho."),))


def test_a_reply_that_was_dropped_was_not_said() -> None:
    history = History()
    take_step(history, asked(UserText("Hi.")))
    take_step(history, CompletionReceived(request=1, content="Hm."))
    take_step(history, ReplyDropped(request=1))
    take_step(history, asked(UserText("Ho.")))
    assert history.entries == [Said((UserText("Hi."),)), Said((UserText("Ho."),))]


def test_a_message_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="no call of the last reply has the id c9"):
        take_step(History(), asked(ToolMessage("c9", "1")))
