"""What of each prompt was a repetition, and which message ended it: misses that were planted one by one."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from recorded_turns import Tape
from trace_files import TraceFile

from grue import messages as m
from grue.cli.trace import cache
from grue.protocol.context.history import History, Ledger
from grue.testing import assert_prefix_stable
from grue.tracing import prompt_cache
from grue.tracing.page_feed import PageFeed
from grue.tracing.page_file import ImageTable
from grue.tracing.prompt_cache import CachedPrompt, CacheReport, cached_prompts, common_bytes, told

TALK = m.ConversationId("c")
SYSTEM = "Be brief. " * 30
ASKED = m.ModelAsked(model="some/model", address="https://models.example/v1", wire="chat_completions")
LOOK = m.ToolDefinition(
    server="house",
    tool="look",
    description="Look around.",
    input_schema={"type": "object", "properties": {"at": {"type": "string"}, "far": {"type": "boolean"}}},
)
TAKE = m.ToolDefinition(server="house", tool="take", description="Take it.", input_schema={"type": "object"})
DIG = m.ToolDefinition(server="garden", tool="dig", description="Dig.", input_schema={"type": "object"})
ANSWER = m.AnswerSchema("answer", {"type": "object", "properties": {"text": {"type": "string"}}})
USAGE = m.Usage(input_tokens=500, output_tokens=10, cached_tokens=400)


class Talk:
    """Records a conversation as the actors do, and keeps its digest as the runner does."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.tape = Tape(lambda _, line: self.lines.append(line))
        self.history = History(Ledger())
        self.turn = 0
        self.request = 0
        self.begun = 0
        self.run = m.RunTurn(turn=1, system=SYSTEM, user="?", servers=("house", "garden"), asks=ASKED)

    def note(self, body: Any, cause: int | None = None) -> int:
        return self.tape.recorder.record(
            body, sender="agent", receiver="trace", turn=self.turn, cause=cause
        ).seq

    def begin(self, **run: Any) -> int:
        self.turn, self.request = self.turn + 1, 0
        history = self.history.ledger.reference(TALK)
        self.run = replace(self.run, **{"turn": self.turn, "history": history, **run})
        self.begun = self.note(self.run)
        return self.begun

    def lists(self, *tools: m.ToolDefinition) -> int:
        for server in ("house", "garden"):
            theirs = tuple(tool for tool in tools if tool.server == server)
            seq = self.note(m.SessionOpened(server=m.ServerName(server), tools=theirs))
            if server == "house":
                house = seq
        return house

    def ask(self, *tools: m.ToolDefinition, mode: Any = None, aside: bool = False, text: str = "") -> int:
        self.request += 1
        items: tuple[m.ConversationItem, ...] = (m.UserText(text or f"Question {self.turn}.{self.request}"),)
        if not self.history.entries:
            items = (m.SystemText(self.run.system), *items)
        command = m.RequestCompletion(
            conversation=self.run.history.conversation if self.run.history else m.ConversationId("?"),
            request=self.request,
            new=items,
            mode=mode or m.OfferTools(tools or None),
            aside=aside,
        )
        seq = self.note(command)
        if not aside:
            self.history.say(items, command.mode.answer, beside_tools=isinstance(mode, m.OfferTools))
        return seq

    def reply(self, cause: int, **reply: Any) -> None:
        body = m.CompletionReceived(
            request=self.request, content=f"Answer {cause}", usage=USAGE, prompt_tokens=500, **reply
        )
        self.note(body, cause)
        self.history.keep(m.AssistantReply(content=body.content))

    def end(self) -> None:
        end = m.TurnCompleted(turn=self.turn, kind="answered")
        self.note(end, self.begun)
        self.history.close(end)

    def said(self, *tools: m.ToolDefinition, **run: Any) -> int:
        """Record a whole turn, and return the number of the message that listed the house's tools."""
        self.begin(**run)
        listed = self.lists(*tools)
        self.reply(self.ask(*tools))
        self.end()
        return listed

    @property
    def prompts(self) -> list[CachedPrompt]:
        return list(cached_prompts(self.tape.envelopes))


def begun() -> Talk:
    talk = Talk()
    talk.said(LOOK, TAKE, DIG)
    talk.said(LOOK, TAKE, DIG)
    return talk


Planted = tuple[int, str, str]
"""The number of the message that causes the miss, the part of the prompt, and words of what is said of it."""


def another_order(talk: Talk) -> Planted:
    return talk.said(TAKE, LOOK, DIG), "tools", "in another order"


def another_description(talk: Talk) -> Planted:
    return talk.said(replace(LOOK, description="Look!"), TAKE, DIG), "tools", "another description"


def other_arguments(talk: Talk) -> Planted:
    return talk.said(LOOK, replace(TAKE, input_schema={"type": "object", "a": 1}), DIG), "tools", "arguments"


def a_tool_more(talk: Talk) -> Planted:
    return talk.said(LOOK, TAKE, replace(TAKE, tool="use"), DIG), "tools", "house.use is offered, and was not"


def a_tool_less(talk: Talk) -> Planted:
    return talk.said(TAKE, DIG), "tools", "house.look is not offered any more"


def the_last_tool_less(talk: Talk) -> Planted:
    talk.said(LOOK, TAKE)
    garden = [each.seq for each in talk.tape.envelopes if getattr(each.body, "server", "") == "garden"]
    return garden[-1], "tools", "garden.dig is not offered any more"


def changed_in_the_turn(talk: Talk) -> Planted:
    talk.begin()
    talk.lists(LOOK, TAKE, DIG)
    talk.reply(talk.ask(LOOK, TAKE, DIG))
    changed = talk.note(m.ToolsChanged(server=m.ServerName("house"), tools=(LOOK,)))
    talk.reply(talk.ask(LOOK, DIG))
    return changed, "tools", "house.take is not offered any more"


def another_one_than_presumed(talk: Talk) -> Planted:
    talk.begin()
    presumed = m.PresumedListing(server=m.ServerName("house"), tools=(TAKE,), source="cache")
    wrong = talk.note(m.ToolsPresumed(listings=(presumed,)))
    asked = talk.ask(TAKE, DIG)
    talk.lists(LOOK, TAKE, DIG)
    talk.reply(asked)
    return wrong, "tools", "house.look is not offered any more"


def a_dropped_presumption(talk: Talk) -> Planted:
    talk.begin()
    presumed = m.PresumedListing(server=m.ServerName("house"), tools=(TAKE,), source="cache")
    wrong = talk.note(m.ToolsPresumed(listings=(presumed,)))
    talk.ask(TAKE, DIG)
    drop = talk.note(m.DropCompletion(conversation=TALK, request=1, reason="not as presumed"))
    talk.note(m.ReplyDropped(request=1), drop)
    return wrong, "tools", "house.look is not offered any more"


def a_server_that_was_given_up(talk: Talk) -> Planted:
    talk.begin()
    talk.note(m.SessionOpened(server=m.ServerName("house"), tools=(LOOK, TAKE)))
    lost = talk.note(m.McpDisabled(server=m.ServerName("garden"), reason="it does not start"))
    talk.reply(talk.ask(LOOK, TAKE))
    return lost, "tools", "garden.dig is not offered any more"


def a_subset_of_tools(talk: Talk) -> Planted:
    begun_at = len(talk.tape.envelopes) + 1
    talk.said(LOOK, tools=("house.look",))
    return begun_at, "tools", "the turn wants other tools"


def fewer_servers(talk: Talk) -> Planted:
    begun_at = len(talk.tape.envelopes) + 1
    talk.said(LOOK, TAKE, servers=("house",))
    return begun_at, "tools", "the turn wants other tools"


def no_servers(talk: Talk) -> Planted:
    begun_at = talk.begin(servers=())
    talk.reply(talk.ask(mode=m.RequireAnswer()))
    return begun_at, "tools", "the turn offers no tools"


def a_forced_answer(talk: Talk) -> Planted:
    talk.begin()
    talk.lists(LOOK, TAKE, DIG)
    talk.reply(talk.ask(LOOK, TAKE, DIG))
    forced = talk.note(m.FinalForced(reason="budget", iterations=1))
    talk.reply(talk.ask(mode=m.RequireAnswer()))
    return forced, "tools", "the final answer was asked for (budget)"


def a_repair(talk: Talk) -> Planted:
    talk.begin()
    talk.lists(LOOK, TAKE, DIG)
    talk.reply(talk.ask(LOOK, TAKE, DIG))
    repair = talk.note(m.RepairRequested(reason="it is no JSON"))
    talk.reply(talk.ask(mode=m.RequireAnswer()))
    return repair, "tools", "another answer was asked for"


def a_summary(talk: Talk) -> Planted:
    talk.begin()
    talk.lists(LOOK, TAKE, DIG)
    aside = talk.ask(mode=m.RequireAnswer(), aside=True, text="Sum up.")
    talk.reply(aside)
    return aside, "tools", "a summary is asked for"


def _rewritten(talk: Talk, body: Any, change: Callable[[], None]) -> Planted:
    talk.begin()
    talk.lists(LOOK, TAKE, DIG)
    seq = talk.note(body)
    change()
    talk.reply(talk.ask(LOOK, TAKE, DIG))
    return seq, "messages", "rewritten"


def a_summary_in_its_place(talk: Talk) -> Planted:
    change = m.Summarised((m.UserText("So far nothing."),))
    body = m.RewriteHistory(conversation=TALK, change=change, reason="window")
    return _rewritten(talk, body, lambda: talk.history.change(change))


def the_oldest_left_out(talk: Talk) -> Planted:
    change = m.Shortened(0.1)
    body = m.RewriteHistory(conversation=TALK, change=change, reason="overflow")
    return _rewritten(talk, body, lambda: talk.history.change(change))


def a_rewrite_of_the_endpoint(talk: Talk) -> Planted:
    rewrite = m.Rewritten(0, 1, (m.Said((m.SystemText(SYSTEM), m.UserText("No image."))),))
    body = m.HistoryRewritten(conversation=TALK, rewrite=rewrite, reason="images")
    return _rewritten(talk, body, lambda: talk.history.rewrite(rewrite))


def other_names_for_tools(talk: Talk) -> Planted:
    talk.begin()
    talk.lists(LOOK, TAKE, DIG)
    asked = talk.ask(LOOK, TAKE, DIG)
    adapted = talk.note(m.FormAdapted(request=1, changed={"names": "encoded"}, rewritten=True), asked)
    talk.reply(asked)
    return adapted, "tools", "written in another form"


def another_model(talk: Talk) -> Planted:
    begun_at = len(talk.tape.envelopes) + 1
    talk.said(LOOK, TAKE, DIG, asks=replace(ASKED, model="other/model"))
    return begun_at, "model", "other/model"


def the_next_model_of_a_chain(talk: Talk) -> Planted:
    """The model is passed over in the middle of a turn. The turn after that begins with the next one."""
    other = replace(ASKED, model="other/model")
    talk.begin()
    talk.lists(LOOK, TAKE, DIG)
    asked = talk.ask(LOOK, TAKE, DIG)
    over = m.ModelPassedOver(request=1, model=ASKED.model, address=ASKED.address, reason="down", asks=other)
    passed = talk.note(over, asked)
    talk.reply(asked)
    talk.end()
    talk.said(LOOK, TAKE, DIG, asks=other)
    return passed, "model", "other/model"


def another_conversation_with_a_clock(talk: Talk) -> Planted:
    talk.history = History(Ledger())
    begun_at = talk.begin(system=f"{SYSTEM} It is 12:01.", history=None)
    talk.lists(LOOK, TAKE, DIG)
    talk.run = replace(talk.run, history=m.HistoryReference(conversation="turn-3", length=0, digest=""))
    talk.reply(talk.ask(LOOK, TAKE, DIG))
    return begun_at, "system", "the system text is another one"


def another_branch(talk: Talk) -> Planted:
    """The host goes on with another past under the same name."""
    early = Talk()
    early.said(LOOK, TAKE, DIG)
    reference = early.history.ledger.reference(TALK)
    other = m.Rewritten(1, 1, (m.Said((m.UserText("Another past."),)),))
    talk.begin()
    talk.lists(LOOK, TAKE, DIG)
    seq = talk.note(m.HistoryRewritten(conversation=TALK, rewrite=other, reason=str(reference.length)))
    talk.history.rewrite(other)
    talk.reply(talk.ask(LOOK, TAKE, DIG))
    return seq, "messages", "rewritten"


PLANTED = [
    another_order,
    another_description,
    other_arguments,
    a_tool_more,
    a_tool_less,
    the_last_tool_less,
    changed_in_the_turn,
    another_one_than_presumed,
    a_dropped_presumption,
    a_server_that_was_given_up,
    a_subset_of_tools,
    fewer_servers,
    no_servers,
    a_forced_answer,
    a_repair,
    a_summary,
    a_summary_in_its_place,
    the_oldest_left_out,
    a_rewrite_of_the_endpoint,
    other_names_for_tools,
    another_model,
    the_next_model_of_a_chain,
    another_conversation_with_a_clock,
    another_branch,
]


def test_a_request_that_offers_no_tools_is_told_in_words() -> None:
    talk = begun()
    a_forced_answer(talk)
    words = "differs in having no tools: the final answer was asked for (budget)"
    assert any(words in told(each) for each in talk.prompts)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_each_planted_miss_is_named_with_the_message_that_caused_it(plant: Callable[[Talk], Planted]) -> None:
    talk = begun()
    assert [each.broken for each in talk.prompts] == [None, None]
    cause, part, words = plant(talk)
    broken = [each.broken for each in talk.prompts if each.broken is not None]
    assert [(each.part, each.cause) for each in broken] == [(part, cause)], broken
    assert words in broken[0].why
    assert broken[0].tokens > 0
    kind = next(type(each.body).__name__ for each in talk.tape.envelopes if each.seq == cause)
    assert broken[0].cause_kind == kind


def test_a_first_prompt_without_a_system_text_differs_in_the_system_text() -> None:
    talk = begun()
    talk.history = History(Ledger())
    begun_at = talk.begin(history=None)
    talk.lists(LOOK, TAKE, DIG)
    talk.run = replace(talk.run, history=m.HistoryReference(conversation="turn-3", length=0, digest=""))
    question = m.RequestCompletion(
        conversation=m.ConversationId("turn-3"),
        request=1,
        new=(m.UserText("Hello"),),
        mode=m.OfferTools((LOOK, TAKE, DIG)),
    )
    talk.reply(talk.note(question))
    (broken,) = (each.broken for each in talk.prompts if each.broken is not None)
    assert (broken.part, broken.place, broken.cause) == ("system", "the system text", begun_at)
    assert broken.why == "of this conversation and the one before, only one has a system text"


def test_a_schema_that_is_told_in_words_from_now_on_changes_what_was_asked_with_it() -> None:
    talk = begun()
    talk.begin()
    talk.lists(LOOK, TAKE, DIG)
    for _ in range(2):
        talk.reply(talk.ask(mode=m.RequireAnswer(ANSWER)))
    ignored = talk.note(m.SchemaIgnored(request=1, endpoint="generic", model="some/model"))
    talk.reply(talk.ask(mode=m.RequireAnswer(ANSWER)))
    _, broken = [each.broken for each in talk.prompts if each.broken is not None]
    assert (broken.part, broken.cause, broken.place) == ("messages", ignored, "message 7 (user)")
    assert "in words from now on" in broken.why


def test_a_conversation_that_only_grows_repeats_all_of_its_last_prompt() -> None:
    talk = begun()
    talk.said(LOOK, TAKE, DIG)
    first, *others = talk.prompts
    assert first.compared_with is None
    assert first.repeated_bytes == 0
    before = first
    for prompt in others:
        assert prompt.repeated_bytes == before.prompt_bytes < prompt.prompt_bytes
        assert prompt.compared_with == before.seq
        before = prompt
    assert before.repeated_tokens == round(500 * before.share)


def test_a_later_turn_repeats_the_prompt_in_the_form_that_was_learned() -> None:
    talk = begun()
    other_names_for_tools(talk)
    talk.end()
    talk.said(LOOK, TAKE, DIG, asks=replace(ASKED, form={"names": "encoded"}))
    assert [each.broken is None for each in talk.prompts] == [True, True, False, True]


def test_an_answer_without_tools_costs_the_prompt_once_and_the_next_turn_nothing() -> None:
    talk = begun()
    a_forced_answer(talk)
    talk.end()
    talk.said(LOOK, TAKE, DIG)
    assert [each.broken is not None for each in talk.prompts] == [False, False, False, True, False]
    last = talk.prompts[-1]
    assert last.compared_with == talk.prompts[2].seq, "the last prompt that offered tools"


def test_a_conversation_that_began_elsewhere_is_compared_from_here_on() -> None:
    talk = Talk()
    talk.history.say((m.SystemText(SYSTEM), m.UserText("Long ago")))
    talk.said(LOOK)
    talk.said(LOOK)
    assert [(each.whole, each.broken) for each in talk.prompts] == [(False, None), (False, None)]


def test_a_conversation_from_which_a_secret_was_removed_goes_on_in_the_next_turn() -> None:
    talk = Talk()
    talk.tape.recorder.hide("code", "open-sesame")
    talk.begin()
    talk.lists(LOOK)
    talk.reply(talk.ask(LOOK, text="Say open-sesame."))
    talk.end()
    talk.said(LOOK)
    assert any(envelope.redacted for envelope in talk.tape.envelopes)
    before, now = talk.prompts
    assert (now.whole, now.broken, now.repeated_bytes) == (True, None, before.prompt_bytes)


def test_the_conversation_that_was_continued_longest_ago_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prompt_cache, "_MOST_KEPT", 2)
    talk = Talk()
    histories = [History(Ledger()) for _ in range(3)]
    for place in (0, 1, 0, 2, 0, 1):
        talk.history = histories[place]
        talk.said(LOOK, history=talk.history.ledger.reference(m.ConversationId(f"c{place}")))
    assert [each.whole for each in talk.prompts] == [True] * 5 + [False]


def test_the_requests_of_a_server_do_not_continue_those_of_an_earlier_turn() -> None:
    talk = Talk()
    for _ in range(2):
        talk.begin()
        sampling = m.RequestCompletion(
            conversation=m.ConversationId("sampling-1"),
            request=1,
            new=(m.UserText("Which way?"),),
            mode=m.RequireAnswer(),
        )
        failure = m.LlmFailure(kind="server", endpoint="", model="m", message="")
        talk.note(m.CompletionFailed(request=1, failure=failure), talk.note(sampling))
        talk.reply(talk.note(sampling))
        talk.end()
    first, second = talk.prompts
    assert (second.prompt_bytes, second.repeated_bytes) == (first.prompt_bytes, 0)


def test_a_dropped_reply_is_in_no_later_prompt() -> None:
    talk = Talk()
    talk.begin()
    talk.reply(talk.ask(LOOK))
    drop = talk.note(m.DropCompletion(conversation=TALK, request=1, reason="not as presumed"))
    talk.note(m.ReplyDropped(request=1), drop)
    again = m.RequestCompletion(conversation=TALK, request=2, new=(), mode=m.OfferTools())
    talk.reply(talk.note(again))
    first, second = talk.prompts
    assert (second.prompt_bytes, second.repeated_bytes) == (first.prompt_bytes, first.prompt_bytes)


def test_a_trace_whose_steps_do_not_fit_is_read_all_the_same() -> None:
    talk = begun()
    talk.begin()
    orphan = m.RequestCompletion(
        conversation=TALK, request=1, new=(m.ToolMessage(m.CallId("gone"), "?"),), mode=m.OfferTools()
    )
    talk.note(orphan)
    talk.note(m.HistoryRewritten(conversation=TALK, rewrite=m.Rewritten(70, 80), reason=""))
    talk.note(m.HistoryRewritten(conversation=m.ConversationId("no"), rewrite=m.Rewritten(0, 0), reason=""))
    talk.note(m.FormAdapted(request=1, changed={"names": 7}))
    talk.note(m.ReplyDropped(request=9))
    untold = (m.ToolMessage(m.CallId("never"), ""),)
    talk.note(m.TurnCompleted(turn=3, kind="answered", untold=untold), talk.begun)
    assert len(talk.prompts) == 2


def _file(tmp_path: Path, talk: Talk) -> Path:
    file = TraceFile(tmp_path / "trace.jsonl")
    for envelope, line in zip(talk.tape.envelopes, talk.lines, strict=True):
        file(envelope, line)
    return file.path


def test_the_command_prints_each_request_the_break_and_the_sums(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = begun()
    cause, _, _ = another_description(talk)
    path = _file(tmp_path, talk)
    cache(path, as_json=False)
    out = capsys.readouterr().out
    assert f"house.look has another description (SessionOpened, message {cause})" in out
    assert "  now:    " in out
    assert "3 requests, 1,500 tokens in prompts" in out
    assert "1 request breaks off: about 4" in out
    cache(path, as_json=True)
    report = msgspec.json.decode(capsys.readouterr().out, type=CacheReport)
    assert (report.totals.breaks, report.totals.cached_tokens) == (1, 1200)
    assert report.prompts == tuple(talk.prompts)
    cache(path, as_json=False, width=20)
    assert "message" not in capsys.readouterr().out.splitlines()[1]
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    cache(path, as_json=False)
    assert len(capsys.readouterr().out.splitlines()[1]) <= 20


def test_the_assertion_names_the_cause_and_can_allow_a_part(tmp_path: Path) -> None:
    talk = begun()
    assert assert_prefix_stable(_file(tmp_path, talk)) == 2
    another_order(talk)
    path = _file(tmp_path, talk)
    with pytest.raises(AssertionError, match=r"house\.take is offered in another order"):
        assert_prefix_stable(path)
    assert assert_prefix_stable(path, allow=("tools",)) == 3


def test_what_a_server_wrote_is_shown_without_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = begun()
    talk.said(replace(LOOK, description="\x1b[2J\u202egone"), TAKE, DIG)
    cache(_file(tmp_path, talk), as_json=False)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_a_tool_that_a_damaged_trace_has_twice_is_a_break_like_others() -> None:
    talk = begun()
    talk.said(LOOK, TAKE, DIG, LOOK)
    talk.said(LOOK, TAKE, DIG)
    assert [bool(each.broken) for each in talk.prompts] == [False, False, True, True]


def test_the_viewer_has_the_share_and_the_break_at_each_reply() -> None:
    talk = begun()
    another_order(talk)
    with tempfile.TemporaryFile() as spool:
        feed = PageFeed(ImageTable(spool))
        for envelope in talk.tape.envelopes:
            feed.see(envelope)
        rows = [row for row in feed.take().messages if row.kind == "CompletionReceived"]
    assert [bool(row.repeats) for row in rows] == [False, True, True]
    assert [row.broken for row in rows[:2]] == ["", ""]
    assert "house.take is offered in another order" in rows[2].broken


@pytest.mark.parametrize(("one", "other", "same"), [(b"", b"", 0), (b"abc", b"abd", 2), (b"ab", b"abc", 2)])
def test_the_bytes_in_common_are_counted(one: bytes, other: bytes, same: int) -> None:
    assert common_bytes(one, other) == same == common_bytes(other, one)
