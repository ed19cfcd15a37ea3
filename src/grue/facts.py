"""What a host records of its own, beside the messages of its turns.

A trace that holds these says everything about an episode: what was configured, what the game showed, what was
decided, what came of it. Logs, statistics and resuming read them. Hosts note them through the recorder of
their runner; they cross no channel.
"""

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from grue.messages import JsonObject, Message, OutcomeKind


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
        settings: What else it was started with, the host's own; what is needed to go on with it.
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
    """The MCP configuration was loaded and is valid (R9.1).

    Attributes:
        ignored: Configured servers that are not used (R2.6).
        warnings: What else of the configuration has no effect, one sentence each.
    """

    server: str
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class McpInitFailed(Message, frozen=True, kw_only=True):
    """The MCP configuration cannot be used (R9.3)."""

    error: str


class Observed(Message, frozen=True, kw_only=True):
    """What the game shows before a turn; unknown values are `None`."""

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
    """The command that will be played, and how it was come by; recorded before it is played.

    Attributes:
        kind: As in `TurnCompleted`; a turn that failed is a `fallback` with the failure as its reason.
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
        reason: Why it ends; `died` means for good, `fallbacks` too many of them in a row.
        detail: The same for people, with the cause.
    """

    reason: Literal["won", "died", "quit", "turn_limit", "budget", "fallbacks", "failed", "interrupted"]
    detail: str
    turns: int
    score: int | None = None
    max_score: int | None = None


class EpisodeResumed(Message, frozen=True, kw_only=True):
    """The host goes on with an episode that was cut off; everything above in the trace is behind it.

    Attributes:
        turns: Finished turns, none of which is played or paid for again.
        max_turns: Turns after which the host now stops; 0: as it was started.
        version: Of the program that goes on.
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
