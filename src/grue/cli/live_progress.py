"""What an episode is doing at this moment, learned from its messages.

Pure: times come in as arguments, in seconds of any one clock. What is kept of servers, tools and the model is
untrusted and is made printable here. `live_status` shows it.
"""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from grue.cli.live_story import said, tool_name
from grue.facts import Decided, EpisodeEnded, EpisodeStarted, Observed
from grue.messages import (
    CallTools,
    CheckToolSupport,
    CloseSession,
    CompletionFailed,
    CompletionReceived,
    CompletionRetried,
    ConnectFailed,
    DeadlinePassed,
    McpDisabled,
    OpenSession,
    ReplyCut,
    RequestCompletion,
    RunTurn,
    ServerDied,
    ServerNoted,
    SessionClosed,
    SessionOpened,
    StartupFailed,
    TextDelta,
    ToolCalled,
    ToolReturned,
    ToolSkipped,
    ToolSupportChecked,
    ToolTimedOut,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    Usage,
)
from grue.protocol.safe_text import ELLIPSIS, printable

_PREVIEW_CHARS = 400
_NAME_CHARS = 60

Activity = Literal[
    "starting", "checking", "thinking", "retrying", "calling", "closing", "stopping", "playing", "finishing"
]


class Doing(Struct, frozen=True, kw_only=True):
    """Something that is under way.

    Attributes:
        name: The server or tool that it is about, printable; empty: none.
        since: When it began; of a retry, when the wait ends.
        limit_s: When it is given up, counted from `since`; `None`: not by itself.
        attempt: One-based.
        text: What is being said: a reply as it comes, a call's arguments, a server's progress; printable.
    """

    activity: Activity
    since: float
    name: str = ""
    limit_s: float | None = None
    attempt: int = 1
    text: str = ""


class Progress:
    """Follow an episode from message to message.

    Args:
        max_turns: Until the episode's beginning says it; 0: unknown.

    Attributes:
        doing: What is under way, oldest first, by what ends it.
        usage: Of every completion so far.
        deadline: When the turn is ended; `None`: it has no limit.
    """

    def __init__(self, max_turns: int = 0) -> None:
        self.doing: dict[str, Doing] = {}
        self.turn = 0
        self.max_turns = max_turns
        self.score: int | None = None
        self.max_score: int | None = None
        self.usage = Usage()
        self.deadline: float | None = None
        self._call_timeout_s: float | None = None

    def note(self, body: Struct, now: float) -> None:
        """Learn from a message that was recorded at `now`."""
        match body:
            case EpisodeStarted() | Observed() | Decided() | EpisodeEnded():
                self._host(body, now)
            case RunTurn() | TurnCompleted() | TurnFailed() | TurnInterrupted() | DeadlinePassed():
                self._turn_edge(body, now)
            case OpenSession() | ConnectFailed() | CloseSession():
                self._session_begins(body, now)
            case SessionOpened() | McpDisabled() | StartupFailed() | SessionClosed():
                self.doing.pop(f"session {body.server}", None)
            case CallTools() | ToolCalled() | ServerNoted():
                self._call_begins(body, now)
            case ToolReturned() | ToolTimedOut() | ToolSkipped() | ServerDied():
                self.doing.pop(f"call {body.call_id}", None)
            case CheckToolSupport():
                self.doing["check"] = Doing(activity="checking", since=now)
            case ToolSupportChecked():
                self.doing.pop("check", None)
            case _:
                self._completion(body, now)

    def _host(self, body: EpisodeStarted | Observed | Decided | EpisodeEnded, now: float) -> None:
        match body:
            case EpisodeStarted(max_turns=max_turns):
                self.max_turns = max_turns
            case Observed(turn=turn, score=score, max_score=max_score):
                self.turn, self.score, self.max_score = turn, score, max_score
                self.doing.pop("game", None)
            case Decided():
                self.doing["game"] = Doing(activity="playing", since=now)
            case EpisodeEnded():
                self.doing = {"end": Doing(activity="finishing", since=now)}

    def _turn_edge(
        self, body: RunTurn | TurnCompleted | TurnFailed | TurnInterrupted | DeadlinePassed, now: float
    ) -> None:
        self.doing.clear()
        match body:
            case RunTurn(limits=limits):
                self.deadline = None if limits.turn_timeout_s is None else now + limits.turn_timeout_s
            case TurnCompleted() | TurnFailed():
                self.deadline = None
            case TurnInterrupted() | DeadlinePassed():
                # What was under way is not waited for any more; closing the sessions is.
                self.doing["stop"] = Doing(activity="stopping", since=now)

    def _session_begins(self, body: OpenSession | ConnectFailed | CloseSession, now: float) -> None:
        key, name = f"session {body.server}", printable(body.server, _NAME_CHARS)
        match body:
            case OpenSession(timeout_s=timeout_s):
                self.doing[key] = Doing(activity="starting", name=name, since=now, limit_s=timeout_s)
            case ConnectFailed(attempt=attempt, then="retry") if key in self.doing:
                self.doing[key] = replace(self.doing[key], since=now, attempt=attempt + 1)
            case CloseSession():
                self.doing[key] = Doing(activity="closing", name=name, since=now)

    def _call_begins(self, body: CallTools | ToolCalled | ServerNoted, now: float) -> None:
        match body:
            case CallTools(timeout_s=timeout_s):
                self._call_timeout_s = timeout_s
            case ToolCalled():
                self.doing[f"call {body.call_id}"] = Doing(
                    activity="calling",
                    name=tool_name(body),
                    since=now,
                    limit_s=self._call_timeout_s,
                    text=said(body),
                )
            case ServerNoted(kind="progress", server=server, text=text):
                calls = [
                    key for key, one in self.doing.items() if one.name.startswith(f"{printable(server)}.")
                ]
                if calls:
                    text = f"{ELLIPSIS} {printable(text, _PREVIEW_CHARS)}"
                    self.doing[calls[-1]] = replace(self.doing[calls[-1]], text=text)

    def _completion(self, body: Struct, now: float) -> None:
        asked = self.doing.get("ask")
        match body:
            case RequestCompletion():
                self.doing["ask"] = Doing(activity="thinking", since=now)
            case CompletionRetried(attempt=attempt, delay_s=delay_s):
                self.doing["ask"] = Doing(activity="retrying", since=now + delay_s, attempt=attempt + 1)
            case ReplyCut() | TextDelta(restart=True) if asked:
                self.doing["ask"] = replace(asked, text="")
            case TextDelta(text=text) if asked:
                so_far = asked.text + printable(text.replace("\n", " "))
                self.doing["ask"] = replace(asked, text=so_far[-_PREVIEW_CHARS:])
            case CompletionReceived(usage=usage):
                self.usage += usage
                self.doing.pop("ask", None)
            case CompletionFailed():
                self.doing.pop("ask", None)
