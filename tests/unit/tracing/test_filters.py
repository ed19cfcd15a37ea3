"""What is wanted of a trace, as people write it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_turns import Tape
from trace_files import TraceFile

from grue import messages
from grue.errors import MCPConfigError
from grue.hosts.zork import facts
from grue.runtime.trace.recorder import Envelope
from grue.tracing.filters import EVERYTHING, Filter
from grue.tracing.message_words import name_of
from grue.tracing.reading import known_kinds
from grue.tracing.turn_slices import turn_of


def envelope(body: Any, *, turn: int = 0, sender: str = "agent", receiver: str = "trace") -> Envelope[Any]:
    return Envelope(seq=1, t=0.0, at=0.0, turn=turn, sender=sender, receiver=receiver, cause=None, body=body)


def note(error: str = "no server") -> facts.McpInitFailed:
    return facts.McpInitFailed(error=error)


@pytest.mark.parametrize(
    ("written", "turns"),
    [("3", {3}), ("3-5", {3, 4, 5}), (" 3 - 4 ", {3, 4}), ("0", {0}), ("7-7", {7})],
)
def test_turns_are_a_number_or_a_range(written: str, turns: set[int]) -> None:
    wanted = Filter.of(turns=[written])
    assert {turn for turn in range(12) if wanted.wants(envelope(note(), turn=turn))} == turns


@pytest.mark.parametrize("written", ["", "x", "-3", "3-", "5-3", "3..5", "1,2", "٣", "9" * 30])
def test_what_is_no_turn_is_refused(written: str) -> None:
    with pytest.raises(MCPConfigError, match="is not a "):
        Filter.of(turns=[written])


def test_a_hosts_fact_belongs_to_the_turn_that_it_names() -> None:
    remembered = envelope(facts.Remembered(turn=4, location="Attic", text="dust"))
    assert turn_of(remembered) == 4
    assert Filter.of(turns=["4"]).wants(remembered)
    assert turn_of(envelope(note())) == 0


def test_an_actor_is_a_sender_or_a_receiver() -> None:
    wanted = Filter.of(actors=["LLM"])
    assert wanted.wants(envelope(note(), sender="llm"))
    assert wanted.wants(envelope(note(), receiver="llm"))
    assert not wanted.wants(envelope(note(), sender="llm-sampling"))
    assert Filter.of(actors=["mind"]).wants(envelope(note(), sender="mcp.mind"))
    assert not Filter.of(actors=["mcp.mind"]).wants(envelope(note(), sender="mind"))


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("RunTurn", "RunTurn"),
        ("runturn", "RunTurn"),
        ("turnfa", "TurnFailed"),
        ("timedout", "ToolTimedOut"),
        ("ToolCalle", "ToolCalled"),
        ("delta", "TextDelta"),
        ("opensession", "OpenSession"),
        (" ActorFailed ", "ActorFailed"),
    ],
)
def test_a_kind_is_a_name_in_any_case_or_a_part_that_only_one_has(written: str, kind: str) -> None:
    assert Filter.of(kinds=[written]).kinds == {kind}


def test_a_part_that_several_have_names_them_all() -> None:
    with pytest.raises(
        MCPConfigError, match="TurnCompleted, TurnFailed, TurnForked, TurnInterrupted"
    ) as refused:
        Filter.of(kinds=["turn"])
    assert "ToolReturned" not in str(refused.value), "a beginning goes before a part"


@pytest.mark.parametrize(
    ("written", "nearest"), [("Observd", "Observed"), ("tool_called", "ToolCalled"), ("", "")]
)
def test_a_kind_that_is_none_is_refused_with_the_nearest(written: str, nearest: str) -> None:
    with pytest.raises(MCPConfigError, match=f"There is no kind of message .*the nearest is {nearest}"):
        Filter.of(kinds=[written])


@given(st.text())
def test_any_text_is_a_kind_or_refused(written: str) -> None:
    try:
        (kind,) = Filter.of(kinds=[written]).kinds
    except MCPConfigError:
        return
    assert written.strip().lower() in kind.lower()


@pytest.mark.parametrize(
    "words", ["NO SERVER", 'say "no"', "line\nbreak", "C:\\dir", "straße", "GROSS", "漢", "McpInitF"]
)
def test_words_are_looked_for_in_the_whole_message_in_any_case(words: str) -> None:
    said = envelope(note("x" * 9_000 + ' no server, say "no" line\nbreak C:\\dir STRASSE groß 漢字'))
    assert Filter.of(texts=[words]).wants(said)
    assert not Filter.of(texts=[f"{words}?"]).wants(said)


def test_words_are_looked_for_in_values_and_not_in_the_names_of_fields() -> None:
    fine = messages.ToolReturned(
        batch=1,
        call_id=messages.CallId("c1"),
        result=messages.ToolCallResult(content="a lamp", is_error=False),
        duration_s=0.25,
    )
    assert not Filter.of(texts=["error"]).wants(envelope(fine))
    assert not Filter.of(texts=["false"]).wants(envelope(fine))
    assert Filter.of(texts=["0.25"]).wants(envelope(fine))
    call = messages.ToolCalled(
        batch=1, call_id=messages.CallId("c1"), server="files", tool="read", arguments={"path": "x"}
    )
    assert Filter.of(texts=["path"]).wants(envelope(call)), "the model has written these names"


def test_failures_are_what_the_table_judges_to_be_some() -> None:
    failures = Filter.of(failures=True)
    failed = messages.ToolReturned(
        batch=1, call_id=messages.CallId("c1"), result=messages.ToolCallResult(is_error=True), duration_s=0.1
    )
    assert failures.wants(envelope(failed))
    assert failures.wants(envelope(messages.AnswerRefused(reason="a")))
    assert not failures.wants(envelope(messages.CloseSession(server="ab")))


def test_words_that_are_no_unicode_are_just_not_found() -> None:
    assert not Filter.of(texts=["\udcff"]).wants(envelope(note()))


def test_filters_of_a_sort_are_alternatives_and_sorts_add_up() -> None:
    wanted = Filter.of(
        turns=["1", "3"], kinds=["closesession", "mcpinitf"], actors=["agent"], texts=["a", "b"]
    )
    close = messages.CloseSession(server="ab")
    assert wanted.wants(envelope(close, turn=1))
    assert wanted.wants(envelope(note("b"), turn=3))
    assert not wanted.wants(envelope(close, turn=2))
    assert not wanted.wants(envelope(close, turn=1, sender="host"))
    assert not wanted.wants(envelope(messages.AnswerRefused(reason="a"), turn=1))
    quiet = Filter.of(texts=["xyz", "zyx"])
    assert not quiet.wants(envelope(close, turn=1))


def test_nothing_asked_for_lets_every_message_through() -> None:
    assert EVERYTHING.wants(envelope(note()))
    assert Filter.of() == EVERYTHING
    names = [name_of(kind).lower() for kind in known_kinds().values()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "wanted",
    [
        EVERYTHING,
        Filter.of(turns=["4"]),
        Filter.of(turns=["0-1"], actors=["host"]),
        Filter.of(kinds=["McpInitFailed"]),
        Filter.of(kinds=["SessionPrewarmed"]),
        Filter.of(texts=["DUST"]),
        Filter.of(texts=["nowhere"], actors=["host"]),
    ],
)
def test_a_line_passes_as_its_envelope_does(tmp_path: Path, wanted: Filter) -> None:
    file = TraceFile(tmp_path / "trace.jsonl")
    tape = Tape(file)
    tape.say(facts.Remembered(turn=4, location="Attic", text="dust"), sender="host")
    tape.say(note(), sender="host")
    tape.say(messages.SessionPrewarmed(server="s", elapsed_s=0.1), turn=1)
    episode = file.read()
    assert [wanted.wants_line(line) for line in episode.lines()] == list(map(wanted.wants, episode))
