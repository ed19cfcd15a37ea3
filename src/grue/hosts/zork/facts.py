# ruff: noqa: D102 - `Fact` says what its methods return
"""The facts that the Zork host records: the game, its output, and the commands that are played.

Their tags do not begin with `zork.`, because older traces have to stay readable.
"""

from typing import ClassVar, Literal, TypeAlias

from grue import hosting
from grue import messages as m
from grue.hosting import Fact, LogLine, Severity, register_facts
from grue.runtime.safe_text import clipped

EndReason: TypeAlias = Literal[
    "won", "died", "quit", "turn_limit", "budget", "fallbacks", "failed", "interrupted"
]
"""Why an episode ended. `died`: the player died for good. `quit`: the game ended without a win or a death.
`fallbacks`: too many fallback turns in a row."""

_SHORT = 80


class EpisodeStarted(hosting.EpisodeStarted, frozen=True, kw_only=True):
    """An episode of a game begins."""

    game: str
    game_hash: str  # SHA-256 of the story file, or the version of the embedded game "The House"
    seed: int

    @property
    def title(self) -> str:
        return self.game

    def labels(self) -> m.JsonObject:
        return {"game": self.game, "game_hash": self.game_hash, "seed": self.seed, **super().labels()}

    def summary(self) -> str:
        tools = f"tools from {', '.join(self.servers)}" if self.servers else "no tools"
        return f"{self.episode_id}: {self.game}, played by {self.played_by}, seed {self.seed}, {tools}"

    def log_lines(self) -> tuple[LogLine, ...]:
        message = f"Episode started: {self.game}, played by {self.played_by}"
        return (LogLine("info", "episode_started", message, self.log_fields()),)


class EpisodeEnded(hosting.EpisodeEnded, frozen=True, kw_only=True):
    """An episode of a game ends. The score and the highest possible score are `None` if they are unknown."""

    reason: EndReason
    score: int | None = None
    max_score: int | None = None

    @property
    def failed(self) -> bool:
        return self.reason in {"failed", "fallbacks"}

    @property
    def result(self) -> str:
        most = "" if self.max_score is None else f" of {self.max_score}"
        return "" if self.score is None else f"score {self.score}{most}"

    def labels(self) -> m.JsonObject:
        return {**super().labels(), "score": self.score, "max_score": self.max_score}


class McpInitialized(Fact, frozen=True, kw_only=True):
    """The MCP configuration was loaded and is valid. `warnings` are those of `MCPManager.config_warnings`."""

    between_turns: ClassVar[bool] = True

    server: str
    ignored: tuple[str, ...] = ()  # servers that are not used
    warnings: tuple[str, ...] = ()

    def problem(self) -> str:
        only = [f"only {self.server} is used; ignored: {', '.join(self.ignored)}"] if self.ignored else []
        return " ".join([*only, *self.warnings])

    def summary(self) -> str:
        return self.problem() or self.server

    def severity(self) -> Severity:
        return "warn" if self.problem() else ""

    def mark(self) -> str:
        return "config" if self.problem() else ""

    def log_lines(self) -> tuple[LogLine, ...]:
        lines = [LogLine("info", "mcp_manager_init", "MCP Manager initialized")]
        if self.ignored:
            message = (
                f"Only the first MCP server is used, '{self.server}'; ignored: {', '.join(self.ignored)}"
            )
            lines.append(LogLine("warning", "mcp_servers_ignored", message, {"servers": list(self.ignored)}))
        return (*lines, *(LogLine("warning", "mcp_config_warning", text) for text in self.warnings))


class McpInitFailed(Fact, frozen=True, kw_only=True):
    """The MCP configuration cannot be used."""

    between_turns: ClassVar[bool] = True

    error: str

    def summary(self) -> str:
        return self.error

    def severity(self) -> Severity:
        return "fail"

    def mark(self) -> str:
        return "bad config"

    def log_lines(self) -> tuple[LogLine, ...]:
        message = f"Failed to initialize MCP Manager: {self.error}"
        return (LogLine("error", "mcp_init_error", message, {"error": self.error}),)


class _TurnFact(Fact, frozen=True, kw_only=True):
    """Base of the facts about a turn. The log gets one line for each move, from the fact `Decided`."""

    between_turns: ClassVar[bool] = True

    turn: int

    def log_lines(self) -> tuple[LogLine, ...]:
        return ()


class Observed(_TurnFact, frozen=True, kw_only=True):
    """The state of the game before a turn, or at the end of the episode; unknown values are `None`."""

    step: ClassVar[Literal["", "begins", "ends"]] = "ends"

    text: str
    location: str | None = None
    score: int | None = None
    max_score: int | None = None
    moves: int | None = None
    inventory: tuple[str, ...] | None = None
    died: bool = False
    won: bool = False
    done: bool = False

    def summary(self) -> str:
        score = "unknown" if self.score is None else self.score
        return f"{self.location or 'somewhere'}, score {score}: {_quoted(self.text)}"


class Decided(_TurnFact, frozen=True, kw_only=True):
    """The command of a turn, and how it was decided. Recorded before the command is played."""

    step: ClassVar[Literal["", "begins", "ends"]] = "begins"

    action: str
    reasoning: str
    new_objective: str | None
    kind: m.OutcomeKind  # a failed turn is a `fallback`
    reason: str = ""  # as in `TurnOutcome`, or the error of a failed turn

    def summary(self) -> str:
        return f"{_quoted(self.action)} ({self.kind}{', ' + self.reason if self.reason else ''})"

    def severity(self) -> Severity:
        return "good"

    def headline(self) -> str:
        return self.action

    def log_lines(self) -> tuple[LogLine, ...]:
        return (LogLine("info", "agent_action", f"Agent action: {self.action}", self.log_fields()),)


class Remembered(_TurnFact, frozen=True, kw_only=True):
    """A note about a move at `location`. When the player is there, the prompt has the newest such notes."""

    location: str
    text: str

    def summary(self) -> str:
        return f"{self.location}: {_quoted(self.text)}"


def _quoted(text: str) -> str:
    return f'"{clipped(text.strip(), _SHORT)}"'


register_facts(
    "zork",
    EpisodeStarted,
    EpisodeEnded,
    unprefixed=(McpInitialized, McpInitFailed, Observed, Decided, Remembered),
)
