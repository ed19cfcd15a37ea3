# ruff: noqa: D102 - `Fact` and `Past` say what their methods return
"""The facts that `grue chat` records in the trace between its turns, and `read_chat`, which reads them."""

from pathlib import Path
from typing import ClassVar

from msgspec import field

from grue import messages as m
from grue.engine.episode_past import Past
from grue.errors import TraceError
from grue.tracing import facts
from grue.tracing.facts import Fact, LogLine, Severity, register_facts
from grue.tracing.reading import EpisodeEnvelope


class EpisodeStarted(facts.EpisodeStarted, frozen=True, kw_only=True):
    """A chat begins; `instructions` is the system text."""

    instructions: str

    @property
    def title(self) -> str:
        return "a chat"


class UserSaid(Fact, frozen=True, kw_only=True, tag="chat.Said"):
    """The user says something, and the turn begins."""

    between_turns: ClassVar[bool] = True

    turn: int
    file: str  # name of the conversation's file in the run folder
    size: int  # size of `file` before the turn, in bytes; `/undo` copies only these bytes

    def summary(self) -> str:
        return f"turn {self.turn}, from byte {self.size} of {self.file}"

    def severity(self) -> Severity:
        return "quiet"

    def log_lines(self) -> tuple[LogLine, ...]:
        return ()


class TakenBack(Fact, frozen=True, kw_only=True, tag="chat.TakenBack"):
    """The user has taken back a turn. The effects of its tool calls remain."""

    between_turns: ClassVar[bool] = True

    turn: int
    file: str  # name of the file in which the conversation continues
    calls: tuple[str, ...] = ()  # the turn's tool calls, each as `server.tool`

    def summary(self) -> str:
        remains = f"; done all the same: {', '.join(self.calls)}" if self.calls else ""
        return f"turn {self.turn} is no longer part of the conversation{remains}"

    def severity(self) -> Severity:
        return "warn" if self.calls else ""


class ModelChanged(Fact, frozen=True, kw_only=True, tag="chat.ModelChanged"):
    """The user has chosen another model of the same endpoint."""

    between_turns: ClassVar[bool] = True

    before: str
    now: str

    def summary(self) -> str:
        return f"{self.before} -> {self.now}"


class ChatPast(Past[EpisodeStarted], kw_only=True):
    """The state of a chat, read from its trace, from which the chat can be resumed."""

    said: list[UserSaid] = field(default_factory=list)
    calls: dict[int, list[str]] = field(default_factory=dict)  # the names of called tools, by turn
    file: str = ""  # name of the conversation's file; empty if nothing was said
    model: str = ""  # the last model chosen by `/model`; empty: none
    turn: int = 0

    def take_fact(self, envelope: EpisodeEnvelope) -> None:
        self.turn = max(self.turn, envelope.turn)
        match envelope.body:
            case UserSaid() as said:
                self.said.append(said)
                self.file = said.file
            case TakenBack(turn=turn, file=file):
                self.said = [each for each in self.said if each.turn != turn]
                self.file = file
            case ModelChanged(now=now):
                self.model = now
            case m.ToolCalled(server=server, tool=tool) if envelope.turn:
                self.calls.setdefault(envelope.turn, []).append(f"{server}.{tool}")


def read_chat(path: Path) -> ChatPast:
    """Read the state of a chat from its trace; raise `TraceError` if it is not a trace of `grue chat`."""
    past = ChatPast.read(path, needed=(UserSaid, TakenBack))
    if not isinstance(past.started, EpisodeStarted):
        raise TraceError(f"{path} cannot be resumed here: another program has recorded it.")
    return past


register_facts("chat", EpisodeStarted, UserSaid, TakenBack, ModelChanged)
