"""Facts that a host records in the trace, besides the messages of its turns.

A host is a program that runs turns, such as a game or a mail desk. It can read its facts itself to resume an
episode. It records a fact with `runner.recorder.record(fact, sender="host", turn=runner.turn)`. Besides the
three facts of this module, it can declare its own with `register_facts` (docs/guides/hosts.md). A program
that has not imported the host shows such a fact by the names and values of its fields.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.runtime.safe_text import clipped

LogLevel: TypeAlias = Literal["info", "warning", "error"]
Severity: TypeAlias = Literal["fail", "warn", "good", "quiet", ""]
"""`fail`: something failed, such as a call, a server or a turn. `warn`: a lesser problem. `good`: a result.
`quiet`: a detail that is rarely of interest. Empty: anything else."""

_NOT_LOGGED = frozenset({"type", "turn", "episode_id", "settings", "conditions"})


class LogLine(Struct, frozen=True):
    """One event for the logs.

    Attributes:
        event: Name of the event, such as `mail_assigned`.
        message: A sentence for people; untrusted text in it is escaped later.
        fields: JSON values by name, for programs that read the log.
    """

    level: LogLevel
    event: str
    message: str
    fields: m.JsonObject = {}


class Fact(m.Message, frozen=True, kw_only=True):
    """Base of all facts. A host's own facts have tags with a prefix: `tag="maildesk.Assigned"`.

    Readers show a fact that is recorded outside turns at the turn in its field `turn`, if it has one.
    Override the methods to change a fact's words.

    Attributes:
        between_turns: `True`: the host records the fact only while none of its turns runs. So a turn that
            began before the fact, and whose end is not recorded before it, counts as cut off.
        step: `begins`: the fact says that the host starts some work of its own; `ends`: that this work is
            done. The viewer draws the time between the two facts.
    """

    between_turns: ClassVar[bool] = False
    step: ClassVar[Literal["", "begins", "ends"]] = ""

    def summary(self) -> str:
        """Return one line for `grue trace show` and the viewer; by default, all fields except `turn`."""
        return ", ".join(
            f"{name} {as_json(value)}" for name, value in _fields(self).items() if name != "turn"
        )

    def severity(self) -> Severity:
        """Return the severity with which readers show the fact, such as `warn`; by default empty."""
        return ""

    def mark(self) -> str:
        """Return the problem that the fact reports, such as `bad config`, or an empty text."""
        return ""

    def headline(self) -> str:
        """Return a few words that the viewer shows at the fact and at its turn, or an empty text."""
        return ""

    def log_lines(self) -> tuple[LogLine, ...]:
        """Return the events that the logs get; by default one at the level `info`."""
        kind = str(self.__struct_config__.tag)
        name = kind.replace(".", "_").lower()
        return (LogLine("info", name, f"{kind}: {self.summary()}", self.log_fields()),)

    def log_fields(self) -> m.JsonObject:
        """Return the fact's fields for a log line, without `settings`, `conditions`, turn and episode id."""
        return {name: value for name, value in _fields(self).items() if name not in _NOT_LOGGED}


def said_by(fact: Fact, words: Callable[[Any], str] | property) -> str:
    """Return the text of a fact's method `words`; if it raises or returns no text, that of the base class."""
    base: Any = words.fget if isinstance(words, property) else words
    try:
        said = getattr(fact, base.__name__)
        said = said() if callable(said) else said
    except Exception:  # noqa: BLE001 - the method is the host's own
        said = None
    return said if isinstance(said, str) else str(base(fact))


def severity_told(fact: Fact) -> Severity:
    """Return the severity of a fact; empty if the host's method returns a word that is no severity."""
    said = said_by(fact, Fact.severity)
    return next((each for each in get_args(Severity) if each == said), "")


def _fields(fact: Struct) -> m.JsonObject:
    fields: m.JsonObject = msgspec.to_builtins(fact)
    return {name: value for name, value in fields.items() if name != "type"}


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, for texts that people read: `1 turn`, `3 turns`, `1,200 replies`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def as_json(value: object, most: int = 200) -> str:
    """Return a value as JSON, cut to `most` characters."""
    return clipped(msgspec.json.encode(value).decode(), most)


class ConditionChanged(Struct, frozen=True, kw_only=True):
    """A part of the configuration, such as the model, that has changed since the last run."""

    # `before` and `now` are the part's values in words, without secrets.

    what: str
    before: str
    now: str

    @property
    def text(self) -> str:
        """The change as a sentence without a full stop; parts of it may be untrusted."""
        return f"The {self.what} has changed since the episode was last played: {self.before} -> {self.now}"


def changed_conditions(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[ConditionChanged, ...]:
    """Return the conditions that differ, in the order of `now`."""
    # A condition that one side lacks counts as unchanged: traces of older versions have fewer conditions.
    return tuple(
        ConditionChanged(what=what, before=before[what], now=value)
        for what, value in now.items()
        if before.get(what, value) != value
    )


class EpisodeStarted(Fact, frozen=True, kw_only=True):
    """The host begins an episode. A host that records more can declare a subclass with the same tag.

    Attributes:
        servers: Names of the tool servers in use.
        scripted: `True`: the model is a script, not an LLM.
        max_turns: Turns after which the host stops; 0: no limit.
        settings: The settings that the host needs to resume the episode.
        conditions: The parts of the configuration as texts, by name, such as `model` and `endpoint`.
    """

    between_turns: ClassVar[bool] = True
    # Whether the title quotes a text, such as the task, that spans have only with `capture_content`.
    title_is_content: ClassVar[bool] = False

    episode_id: str
    model: str = ""
    servers: tuple[str, ...] = ()
    scripted: bool = False
    max_turns: int = 0
    version: str = ""
    settings: m.JsonObject = msgspec.field(default_factory=dict)
    conditions: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def title(self) -> str:
        """The episode's subject, in a few words; by default its id."""
        return self.episode_id

    @property
    def played_by(self) -> str:
        """The model's name, followed by `(scripted)` if the model is a script."""
        return f"{self.model} (scripted)" if self.scripted else self.model

    def labels(self) -> m.JsonObject:
        """Return metadata of the episode for Langfuse and OpenTelemetry."""
        return {
            "model": self.model,
            "scripted": self.scripted,
            "max_turns": self.max_turns,
            "version": self.version,
        }

    def summary(self) -> str:
        """Return the episode's id, title, model and servers in one line."""
        tools = f"tools from {', '.join(self.servers)}" if self.servers else "no tools"
        about = "" if self.title == self.episode_id else f": {self.title}"
        return f"{self.episode_id}{about}, model {self.played_by}, {tools}"

    def log_lines(self) -> tuple[LogLine, ...]:
        """Return the event `episode_started` for the logs."""
        message = f"Episode started: {self.title}, model {self.played_by}"
        return (LogLine("info", "episode_started", message, self.log_fields()),)


class EpisodeEnded(Fact, frozen=True, kw_only=True):
    """The host ends an episode.

    Attributes:
        reason: Why the episode ends, in one word. Each host chooses its own words; only `failed` and
            `interrupted` mean the same for all hosts.
        detail: The reason as a sentence, with the cause.
    """

    between_turns: ClassVar[bool] = True

    reason: str
    detail: str
    turns: int

    @property
    def failed(self) -> bool:
        """`True` if the host gave up because of failures."""
        return self.reason == "failed"

    @property
    def result(self) -> str:
        """The result in a few words, such as a score; empty if there is none."""
        return ""

    def labels(self) -> m.JsonObject:
        """Return metadata of the episode for Langfuse and OpenTelemetry."""
        return {"reason": self.reason, "turns": self.turns}

    def summary(self) -> str:
        """Return the reason, the number of turns and the detail in one line."""
        return f"{self.reason} after {counted(self.turns, 'turn')}: {self.detail}"

    def severity(self) -> Severity:
        """Return `fail` if the episode failed or was interrupted, else an empty text."""
        return "fail" if self.mark() else ""

    def mark(self) -> str:
        """Return the reason if the episode failed or was interrupted, else an empty text."""
        return self.reason if self.failed or self.reason == "interrupted" else ""

    def log_lines(self) -> tuple[LogLine, ...]:
        """Return the event `episode_ended` for the logs."""
        result = f", {self.result}" if self.result else ""
        message = f"Episode ended ({self.reason}{result}): {self.detail}"
        return (LogLine("error" if self.failed else "info", "episode_ended", message, self.log_fields()),)


class EpisodeResumed(Fact, frozen=True, kw_only=True):
    """The host resumes an interrupted episode. Earlier messages were recorded by earlier runs of the host.

    Attributes:
        turns: Number of finished turns, which are neither run nor paid for again.
        max_turns: Turns after which the host now stops; 0: as in `EpisodeStarted`.
        version: Version of the program that resumes.
        conditions: The configuration now; see `EpisodeStarted`.
        changes: The conditions that have changed since the last run.
    """

    between_turns: ClassVar[bool] = True

    episode_id: str
    turns: int
    max_turns: int = 0
    version: str = ""
    conditions: dict[str, str] = msgspec.field(default_factory=dict)
    changes: tuple[ConditionChanged, ...] = ()

    def summary(self) -> str:
        """Return the episode's id, the number of finished turns and the changed conditions in one line."""
        changed = "".join(f"; {each.what}: {each.before} -> {each.now}" for each in self.changes)
        return f"{self.episode_id} goes on after {counted(self.turns, 'finished turn')}{changed}"

    def severity(self) -> Severity:
        """Return `warn` if the conditions of the episode have changed, else an empty text."""
        return "warn" if self.changes else ""

    def mark(self) -> str:
        """Return `changed` if the conditions of the episode have changed, else an empty text."""
        return "changed" if self.changes else ""

    def log_lines(self) -> tuple[LogLine, ...]:
        """Return the event `episode_resumed`, and an event `episode_changed` for each changed condition."""
        resumed = LogLine(
            "info", "episode_resumed", f"Episode resumed after turn {self.turns}", self.log_fields()
        )
        changed = (
            LogLine("warning", "episode_changed", each.text, msgspec.to_builtins(each))
            for each in self.changes
        )
        return (resumed, *changed)


EPISODE_FACTS: tuple[type[Fact], ...] = (EpisodeStarted, EpisodeResumed, EpisodeEnded)


# --- The facts of hosts ---

_registered: dict[str, type[Fact]] = {}
_subclasses: dict[type[Fact], list[type[Fact]]] = {kind: [] for kind in EPISODE_FACTS}


def register_facts(prefix: str, *kinds: type[Fact], unprefixed: Iterable[type[Fact]] = ()) -> None:
    """Declare a host's facts, so that traces are read into these classes from now on.

    Args:
        prefix: The host's name. Tags begin with the prefix and a dot. Only a subclass of `EpisodeStarted`,
            `EpisodeResumed` or `EpisodeEnded` may have the tag of its base class instead.
        kinds: The facts' classes. A class replaces an earlier one of the same module and name. A recorded
            `EpisodeStarted` with fields that the base class lacks is read into the first subclass that
            declares one of them and accepts them all; likewise `EpisodeResumed` and `EpisodeEnded`.
        unprefixed: Classes whose tags may lack the prefix, to read old traces.

    Raises:
        ValueError: A tag lacks the prefix or is taken, or a class's fields cannot be read from a trace.
    """
    old = tuple(unprefixed)
    for kind in (*kinds, *old):
        # Refuse a bad class now: all hosts' classes are decoded together, so no trace could be read later.
        try:
            msgspec.json.Decoder(kind)
        except Exception as error:
            raise ValueError(f"{kind.__name__} cannot be read from a trace: {error}") from error
        tag = str(kind.__struct_config__.tag)
        where = f"the tag {tag!r} of {kind.__name__}"
        base = next((base for base in EPISODE_FACTS if issubclass(kind, base)), None)
        if base is not None and tag == base.__struct_config__.tag:
            # Replace a class without moving it: a fact that fits several classes is read into the first.
            known_ones = [kind if _same_name(each, kind) else each for each in _subclasses[base]]
            _subclasses[base] = known_ones if kind in known_ones else [*known_ones, kind]
            continue
        if kind not in old and not tag.startswith(f"{prefix}."):
            raise ValueError(f"{where} has to begin with '{prefix}.'")
        known = _registered.get(tag, kind)
        if not _same_name(known, kind):
            raise ValueError(f"{where} is taken by {known.__module__}.{known.__name__}")
        _registered[tag] = kind


def _same_name(one: type[Fact], other: type[Fact]) -> bool:
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def registered_facts() -> dict[str, type[Fact]]:
    """Return the classes of facts by tag: grue's own, and those that hosts registered with other tags."""
    return {**{str(kind.__struct_config__.tag): kind for kind in EPISODE_FACTS}, **_registered}


def subclasses_of(kind: type[Fact]) -> tuple[type[Fact], ...]:
    """Return the registered subclasses that have the tag of `kind`, such as those of `EpisodeStarted`."""
    return tuple(_subclasses.get(kind, ()))
