"""Messages that a host records in the trace, in addition to the messages of its turns.

With them a trace describes a whole episode: the configuration, what the game showed, each decision and its
result. Logs, statistics and `--resume` read them. A host records them through its runner's recorder. They are
not sent to any actor.
"""

from typing import TypeAlias

import msgspec
from msgspec import Struct

from grue.messages import JsonObject, Message, OutcomeKind
from grue.vocabulary import EndReason


class ConditionChanged(Struct, frozen=True, kw_only=True):
    """What an episode is played with differs from what it was last played with.

    Attributes:
        what: `model`, `endpoint`, ...; in words, for people.
        before: In words, without secrets.
        now: The same.
    """

    what: str
    before: str
    now: str

    @property
    def text(self) -> str:
        """The same as a sentence, without its full stop; what is in it may be untrusted."""
        return f"The {self.what} has changed since the episode was last played: {self.before} -> {self.now}"


class EpisodeStarted(Message, frozen=True, kw_only=True):
    """The host begins an episode.

    Attributes:
        game: Title of the game.
        game_hash: SHA-256 of the story file, or the version of an embedded world.
        servers: Names of the tool servers in use; empty: MCP is off.
        scripted: The model is the offline script, not an LLM.
        max_turns: Turns after which the host stops.
        settings: Further settings of the host; those that it needs to resume the episode.
        conditions: What it is played with, by name, in words: model, endpoint, server, limits, tool lock.
    """

    episode_id: str
    game: str
    game_hash: str
    seed: int
    model: str
    servers: tuple[str, ...] = ()
    scripted: bool = False
    max_turns: int = 0
    version: str = ""
    settings: JsonObject = msgspec.field(default_factory=dict)
    conditions: dict[str, str] = msgspec.field(default_factory=dict)


class McpInitialized(Message, frozen=True, kw_only=True):
    """The MCP configuration was loaded and is valid.

    Attributes:
        ignored: Configured servers that are not used.
        warnings: Other settings that have no effect, one sentence each.

    Source: R2.6, R9.1
    """

    server: str
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class McpInitFailed(Message, frozen=True, kw_only=True):
    """The MCP configuration cannot be used.

    Source: R9.3
    """

    error: str


class Observed(Message, frozen=True, kw_only=True):
    """The state of the game before a turn; unknown values are `None`."""

    turn: int
    text: str
    location: str | None = None
    score: int | None = None
    max_score: int | None = None
    moves: int | None = None
    inventory: tuple[str, ...] | None = None
    died: bool = False
    won: bool = False
    done: bool = False


class Decided(Message, frozen=True, kw_only=True):
    """The command that will be played, and how it was decided. Recorded before it is played.

    Attributes:
        kind: As in `TurnCompleted`. A failed turn is a `fallback`, with the failure as its reason.
    """

    turn: int
    action: str
    reasoning: str
    new_objective: str | None
    kind: OutcomeKind
    reason: str = ""


class Remembered(Message, frozen=True, kw_only=True):
    """The host keeps a memory of a place."""

    turn: int
    location: str
    text: str


class EpisodeEnded(Message, frozen=True, kw_only=True):
    """The host ends an episode.

    Attributes:
        reason: Why it ends. `died`: the player died for good. `fallbacks`: too many fallback turns in a row.
        detail: The reason as a sentence, with the cause.
    """

    reason: EndReason
    detail: str
    turns: int
    score: int | None = None
    max_score: int | None = None


class EpisodeResumed(Message, frozen=True, kw_only=True):
    """The host resumes an interrupted episode. The messages before this one belong to the earlier run.

    Attributes:
        turns: Finished turns. None of them is played or paid for again.
        max_turns: Turns after which the host now stops; 0: as in `EpisodeStarted`.
        version: Version of the program that resumes.
        conditions: As in `EpisodeStarted`, as they are now.
        changes: What of them is not as it was when the episode was last played.
    """

    episode_id: str
    turns: int
    max_turns: int = 0
    version: str = ""
    conditions: dict[str, str] = msgspec.field(default_factory=dict)
    changes: tuple[ConditionChanged, ...] = ()


HostFact: TypeAlias = (
    EpisodeStarted
    | EpisodeResumed
    | McpInitialized
    | McpInitFailed
    | Observed
    | Decided
    | Remembered
    | EpisodeEnded
)
