"""A host's own facts: how they are declared, recorded, read and presented."""

from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import msgspec
import pytest
from msgspec import Struct

from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.tracing import facts
from grue.tracing.counts import EpisodeTally
from grue.tracing.facts import (
    EpisodeEnded,
    EpisodeStarted,
    Fact,
    LogLine,
    Severity,
    register_facts,
    registered_facts,
    said_by,
)
from grue.tracing.filters import Filter
from grue.tracing.message_words import kind_of, mark_of, severity_of, summarize
from grue.tracing.observers.events import EventFeed
from grue.tracing.overview import Overview
from grue.tracing.page_feed import SpanFinder
from grue.tracing.reading import open_episode, read_episode
from grue.tracing.stats_table import summary

pytestmark = pytest.mark.made_up_trace


class Assigned(Fact, frozen=True, kw_only=True, tag="maildesk.Assigned"):
    """A mail was given to a team."""

    turn: int
    mail: str
    to: str = "sales"


class Escalated(Fact, frozen=True, kw_only=True, tag="maildesk.Escalated"):
    """A mail needs a person; the host begins to wait for one."""

    step: ClassVar[Literal["", "begins", "ends"]] = "begins"

    why: str

    def summary(self) -> str:
        """Return the reason."""
        return self.why

    def severity(self) -> Severity:
        """Return `warn`."""
        return "warn"

    def mark(self) -> str:
        """Return a word."""
        return "escalated"

    def log_lines(self) -> tuple[LogLine, ...]:
        """Return one warning."""
        return (LogLine("warning", "mail_escalated", f"Mail escalated: {self.why}", {"why": self.why}),)


class Settled(Fact, frozen=True, kw_only=True, tag="maildesk.Settled"):
    """A person has dealt with it."""

    step: ClassVar[Literal["", "begins", "ends"]] = "ends"


@pytest.fixture(autouse=True)
def registered() -> None:
    register_facts("maildesk", Assigned, Escalated, Settled)


def recorded(tmp_path: Path, *facts: Fact) -> list[Envelope]:
    recorder = Recorder()
    writer = TraceWriter(tmp_path / "trace.jsonl", episode="e")
    recorder.add(writer)
    for fact in facts:
        recorder.record(fact, sender="host", turn=0)
    writer.close()
    return list(read_episode(tmp_path / "trace.jsonl").envelopes)


def test_a_hosts_facts_are_read_as_its_classes(tmp_path: Path) -> None:
    facts = (Assigned(turn=3, mail="m1"), Escalated(why="angry"))
    assert [envelope.body for envelope in recorded(tmp_path, *facts)] == list(facts)


def test_a_fact_presents_itself_or_by_its_fields() -> None:
    plain, own = Assigned(turn=3, mail="m1"), Escalated(why="angry")
    assert (kind_of(plain), summarize(plain)) == ("maildesk.Assigned", 'mail "m1", to "sales"')
    assert (severity_of(plain), mark_of(plain)) == ("", "")
    assert (summarize(own), severity_of(own), mark_of(own)) == ("angry", "warn", "escalated")


def test_the_logs_get_a_facts_lines() -> None:
    feed = EventFeed("e")
    events = []
    for body in (Assigned(turn=3, mail="m1"), Escalated(why="angry")):
        envelope = Envelope(
            seq=1, t=0, at=5.0, turn=0, sender="host", receiver="trace", cause=None, body=body
        )
        events += feed.feed(envelope)
    assert [(event.level, event.event_type, event.turn, event.fields) for event in events] == [
        ("info", "maildesk_assigned", 3, {"mail": "m1", "to": "sales"}),
        ("warning", "mail_escalated", 0, {"why": "angry"}),
    ]


def test_a_filter_finds_a_fact_by_its_name() -> None:
    assert Filter.of(kinds=["escal"]).kinds == {"maildesk.Escalated"}
    assert Filter.of(kinds=["other.thing"], facts=["other.Thing"]).kinds == {"other.Thing"}


def test_the_viewer_draws_the_time_between_two_facts(tmp_path: Path) -> None:
    finder = SpanFinder()
    envelopes = recorded(tmp_path, Escalated(why="angry"), Settled())
    spans = [span for envelope in envelopes for span in finder.see(envelope, envelope.turn)]
    assert [(span.phase, span.lane) for span in spans] == [("host", "host")]


def test_a_tag_needs_the_hosts_prefix_and_is_taken_once() -> None:
    class NoPrefix(Fact, frozen=True, kw_only=True):
        pass

    class Twice(Fact, frozen=True, kw_only=True, tag="maildesk.Assigned"):
        pass

    with pytest.raises(ValueError, match=r"has to begin with 'maildesk\.'"):
        register_facts("maildesk", NoPrefix)
    with pytest.raises(ValueError, match="taken by"):
        register_facts("maildesk", Twice)
    assert registered_facts()["maildesk.Assigned"] is Assigned


def test_a_class_replaces_that_of_the_same_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A module with facts can be reloaded, and a cell of a notebook can be run again."""
    monkeypatch.setattr(facts, "_registered", dict(facts._registered))
    monkeypatch.setattr(facts, "_subclasses", dict(facts._subclasses))

    def cell(fields: str) -> type[Fact]:
        names: dict[str, Any] = {"__name__": "notebook", "Fact": Fact, "EpisodeEnded": EpisodeEnded}
        exec(
            "class Seen(Fact, frozen=True, kw_only=True, tag='notes.Seen'):\n"
            f"    {fields}\n"
            "class Ended(EpisodeEnded, frozen=True, kw_only=True, tag='EpisodeEnded'):\n"
            f"    {fields}\n",
            names,
        )
        register_facts("notes", names["Seen"], names["Ended"])
        return cast("type[Fact]", names["Seen"])

    cell("a: int = 0")
    seen = cell("b: int = 0")
    assert [each.body for each in recorded(tmp_path, seen(b=7))] == [seen(b=7)]
    assert [each.__name__ for each in facts.subclasses_of(EpisodeEnded)].count("Ended") == 1


def test_a_host_that_is_registered_again_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_subclasses", dict(facts._subclasses))
    hosts: list[type[Fact]] = []
    for host in ("first", "second"):
        names: dict[str, Any] = {"__name__": host, "EpisodeEnded": EpisodeEnded}
        exec(
            "class Ended(EpisodeEnded, frozen=True, kw_only=True, tag='EpisodeEnded'):\n    pay: int = 0\n",
            names,
        )
        hosts.append(names["Ended"])
        register_facts(host, names["Ended"])
    register_facts("first", hosts[0])
    assert list(facts.subclasses_of(EpisodeEnded)[-2:]) == hosts


def test_a_class_that_would_make_all_traces_unreadable_is_refused() -> None:
    class Odd(Fact, frozen=True, kw_only=True, tag="maildesk.Odd"):
        both: list[int] | set[int] = msgspec.field(default_factory=list)

    with pytest.raises(ValueError, match="Odd cannot be read from a trace"):
        register_facts("maildesk", Odd)


def test_the_facts_of_an_episodes_course_know_no_games() -> None:
    started = EpisodeStarted(episode_id="e", model="m", scripted=True)
    assert summarize(started) == "e, model m (scripted), no tools"
    assert (started.title, isinstance(started, Struct)) == ("e", True)


class Untold(Fact, frozen=True, kw_only=True, tag="maildesk.Untold"):
    """A fact whose methods fail, or return what they should not."""

    why: str

    def summary(self) -> str:
        """Fail."""
        raise ValueError(f"{self.why}\x1b[2J")

    def severity(self) -> Severity:
        """Return a word that is no severity."""
        return "error"  # type: ignore[return-value]

    def mark(self) -> str:
        """Return no text."""
        return 5  # type: ignore[return-value]

    def headline(self) -> str:
        """Fail."""
        return self.why[99]


def test_a_fact_whose_methods_fail_is_shown_by_its_fields() -> None:
    fact = Untold(why="odd")
    assert (summarize(fact), severity_of(fact), mark_of(fact)) == ('why "odd"', "", "")
    assert said_by(fact, Fact.headline) == ""


class Untitled(EpisodeStarted, frozen=True, kw_only=True, tag="EpisodeStarted"):
    """A fact with a title that fails for an old level."""

    level: int

    @property
    def title(self) -> str:
        """Fail."""
        return ("easy", "hard")[self.level]


class Unscored(EpisodeEnded, frozen=True, kw_only=True, tag="EpisodeEnded"):
    """A fact whose result is no text."""

    @property
    def result(self) -> str:
        """Return no text."""
        return 5  # type: ignore[return-value]


def test_an_episode_whose_title_or_result_fails_is_listed_without_it(tmp_path: Path) -> None:
    started = Untitled(episode_id="e", level=9)
    ended = Unscored(reason="done", detail="It is over.", turns=0)
    overview, tally, recorder = Overview(), EpisodeTally(), Recorder()
    with TraceWriter(tmp_path / "trace.jsonl", episode="e") as writer:
        for body in (started, ended):
            envelope = recorder.record(body, sender="host")
            overview.see(envelope)
            tally.take(envelope)
    assert (overview.title, overview.result, overview.ending) == ("", "", "done")
    told = summary(tally.stats(open_episode(writer.path)))
    assert told[-1].startswith("ended       done, after")
