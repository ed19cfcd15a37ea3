"""How messages are presented: severity, mark and words, of known kinds and unknown ones."""

from typing import Any

from case_tables import each_case
from msgspec import Struct

from grue import messages as m
from grue.hosts.zork.facts import EpisodeEnded, Observed
from grue.messages import (
    ConnectFailed,
    FinalForced,
    LlmFailure,
    PrewarmLost,
    RunTurn,
    ServerEnded,
    ServerFailure,
    ServerNoted,
    SessionClosed,
    SessionOpened,
    SessionPrewarmed,
    ToolCallResult,
    ToolReturned,
    ToolSkipped,
    ToolSupportChecked,
    ToolTimedOut,
    TurnCompleted,
    TurnFailed,
)
from grue.runtime.actor import ActorFailed
from grue.tracing.message_words import mark_of, problem_in, severity_of, summarize

SERVER = ServerFailure(server="s", phase="spawn", command="c", cause="none")
LLM = LlmFailure(kind="refused", endpoint="e", model="m", message="no")
OF: dict[str, Any] = {"batch": 1, "call_id": "c"}


@each_case(
    "body, marked",
    [
        (RunTurn(turn=1, system="", user=""), None),
        (Observed(turn=1, text=""), None),
        (SessionOpened(server="s", tools=()), None),
        (TurnCompleted(turn=1, kind="answered"), None),
        (TurnCompleted(turn=1, kind="forced"), ("forced", "warn")),
        (TurnCompleted(turn=1, kind="fallback"), ("fallback", "warn")),
        (TurnFailed(turn=1, failure=LLM), ("failed", "fail")),
        (ToolReturned(**OF, result=ToolCallResult("x")), None),
        (ToolReturned(**OF, result=ToolCallResult("x", is_error=True)), ("error", "warn")),
        (ToolTimedOut(**OF, timeout_s=1.0), ("timeout", "fail")),
        (ToolSkipped(**OF, reason="r"), ("skipped", "warn")),
        (ConnectFailed(server="s", attempt=1, failure=SERVER, then="retry"), ("retry", "warn")),
        (ConnectFailed(server="s", attempt=2, failure=SERVER, then="disable"), ("no start", "fail")),
        (SessionClosed(server="s", ending="polite"), None),
        (SessionClosed(server="s", ending="killed"), ("killed", "warn")),
        (SessionClosed(server="s", ending="died"), ("died", "fail")),
        (SessionClosed(server="s", ending="handed_over"), None),
        (ServerEnded(server="s", ending="polite"), None),
        (ServerEnded(server="s", ending="killed"), ("killed", "warn")),
        (ServerEnded(server="s", ending="died"), ("died", "fail")),
        (SessionPrewarmed(server="s"), None),
        (PrewarmLost(server="s", cause="c"), ("spare lost", "warn")),
        (ServerNoted(server="s", kind="log", text=""), None),
        (ServerNoted(server="s", kind="bad_tool", text=""), ("bad tool", "warn")),
        (ToolSupportChecked(model="m", endpoint="e", supported=True, by="name"), None),
        (ToolSupportChecked(model="m", endpoint="e", supported=False, by="name"), ("no tools", "warn")),
        (FinalForced(reason="budget", iterations=1), ("forced", "warn")),
        (ActorFailed(actor="a", error="e", where=()), ("crashed", "fail")),
        (EpisodeEnded(reason="won", detail="", turns=1), None),
        (EpisodeEnded(reason="failed", detail="", turns=1), ("failed", "fail")),
    ],
)
def test_a_message_is_marked_by_what_it_tells(body: Any, marked: tuple[str, str] | None) -> None:
    assert (mark_of(body), severity_of(body)) == marked or (marked is None and not mark_of(body))


class NobodyKnowsThis(Struct):
    what: str
    count: int = 2


def test_an_unknown_kind_is_presented_by_its_fields() -> None:
    body = NobodyKnowsThis(what="new")
    assert summarize(body) == 'what "new", count 2'
    assert (mark_of(body), severity_of(body), problem_in(body)) == ("", "", "")


def test_show_and_the_live_view_use_the_same_words() -> None:
    body = ToolTimedOut(**OF, timeout_s=2.5)
    assert problem_in(body) == "no answer within 2.5 s"
    assert summarize(body) == f"c: {problem_in(body)}"


def test_a_server_that_died_has_the_last_word() -> None:
    failure = m.ServerFailure(
        server="a", phase="call", command="a", cause="it ended", stderr_tail="starting\nlocked\n"
    )
    assert summarize(m.ServerDied(**OF, server="a", failure=failure)) == (
        "c: a died: it ended. Its last line on stderr: locked"
    )


def test_what_concerns_a_conversation_is_told_in_a_line() -> None:
    history = m.HistoryReference(conversation="c1", length=1, digest="")
    images = (m.Attachment(kind="image", mime="image/png", data="", bytes=0),)
    told = [
        summarize(m.ThoughtsDropped(conversation="c1", replies=1, wire="responses", model="m")),
        summarize(m.ThoughtsDropped(conversation="c1", replies=2, wire="messages", model="m")),
        summarize(m.SettingsLeftOut(request=1, settings=("top_k", "top_p"), endpoint="anthropic", model="m")),
        summarize(m.SchemaIgnored(request=1, endpoint="generic", model="m")),
        summarize(m.OfferChanged(conversation="c1", request=1, added=("a.x", "a.y"), changed=("b.z",))),
        summarize(m.FormAdapted(request=1, changed={"names": "encoded"}, rewritten=True)),
        summarize(m.FormAdapted(request=1, changed={})),
        summarize(m.ToolsUnseen(request=1, tools=14, prompt_tokens=16, endpoint="generic", model="m")),
        summarize(m.CostUncounted(model="m", endpoint="groq", limit_usd=2.5)),
        summarize(m.HistoryRewritten(conversation="c1", rewrite=m.Rewritten(3, 5), reason="too long")),
        summarize(m.RunTurn(turn=2, system="", user="And this?", history=history, images=images)),
    ]
    assert told == [
        "m (responses) is not sent the thoughts of 1 reply: it cannot read them",
        "m (messages) is not sent the thoughts of 2 replies: it cannot read them",
        "m (anthropic) does not take top_k and top_p: not sent",
        "m (generic) replied in another shape: prompts state the schema now",
        "c1, other tools are offered than before: added: a.x, a.y; changed: b.z",
        'the endpoint refused the form of request 1: names "encoded"; what was said before is sent in another'
        " form",
        "the endpoint refused the form of request 1: nothing new",
        "m (generic) has counted 16 tokens for a prompt with 14 tools and called none: its chat template"
        " seems to leave them out; grue doctor tries it",
        "m: the cost limit of 2.5 USD has no effect, because groq does not report the cost; set the model's"
        " price under budget.prices",
        "c1, 2 entries replaced: too long",
        'no tools; "And this?" with 1 image, in conversation c1 after 1 entry',
    ]
