"""The current state of an episode: which steps are under way, the turn, the score and the cost.

No I/O and no clock: times are arguments, in monotonic seconds. Untrusted texts are made printable here.
"""

from collections.abc import Callable, Hashable
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.cli.live_story import call_text, tool_name
from grue.hosts.zork.facts import Decided, Observed
from grue.runtime.safe_text import ELLIPSIS, printable
from grue.runtime.trace.recorder import Envelope
from grue.tool_sessions.failures import DOWNLOAD_TIMEOUT_S
from grue.tracing.facts import EpisodeEnded, EpisodeStarted
from grue.tracing.steps import Step, StepBegan, StepTracker

_PREVIEW_CHARS = 400
_NAME_CHARS = 60

Activity = Literal[
    "starting", "checking", "thinking", "retrying", "calling", "closing", "stopping", "playing", "finishing"
]


class Doing(Struct, frozen=True, kw_only=True):
    """A step that is under way, as the status line shows it."""

    activity: Activity
    since: float  # when it began, or for a retry that still waits, when it will begin
    name: str = ""  # of the server or tool, if the step has one
    limit_s: float | None = None  # counted from `since`; `None`: no limit of its own
    attempt: int = 1
    text: str = ""  # the end of an arriving reply, a call's arguments, or a server's progress


class Progress:
    """The state of an episode, updated by each message of its trace."""

    def __init__(self, max_turns: int = 0) -> None:
        self.doing: dict[Hashable, Doing] = {}  # oldest first, by the key that `StepTracker` gives a step
        self.turn = 0
        self.max_turns = max_turns  # 0: not known until `EpisodeStarted`
        self.score: int | None = None
        self.max_score: int | None = None
        self.usage = m.Usage()  # of all replies so far, including dropped ones
        self.dropped = 0  # replies dropped since a server did not start or listed other tools than offered
        self.deadline: float | None = None  # when the turn's time limit ends the turn, if it has one
        self._call_timeout_s: float | None = None
        self._steps = StepTracker()

    def note(self, envelope: Envelope[Any], now: float) -> None:
        """Update the state with a message, recorded at `now`. One that a fork has copied changes nothing."""
        if envelope.copied:
            return
        for change in self._steps.take(envelope):
            if isinstance(change, StepBegan):
                self._begin(change.step, now, pause_s=change.step.start_s - envelope.t)
            elif not change.retried:
                self.doing.pop(change.step.key, None)
        self._follow(envelope.body, now)

    def _begin(self, step: Step, now: float, *, pause_s: float) -> None:
        match step.began.body:
            case m.OpenSession(server=server, timeout_s=timeout_s) if step.kind == "startup":
                name = printable(server, _NAME_CHARS)
                if timeout_s == DOWNLOAD_TIMEOUT_S:
                    name = f"{name} (may still be downloading)"
                doing = Doing(activity="starting", name=name, since=now, limit_s=timeout_s)
            case m.CloseSession(server=server):
                doing = Doing(activity="closing", name=printable(server, _NAME_CHARS), since=now)
            case m.ToolCalled() as call:
                doing = Doing(
                    activity="calling",
                    name=tool_name(call),
                    since=now,
                    limit_s=self._call_timeout_s,
                    text=call_text(call),
                )
            case m.RequestCompletion():
                activity: Activity = "thinking" if step.attempt == 1 else "retrying"
                doing = Doing(activity=activity, since=now + pause_s)
            case m.CheckToolSupport():
                doing = Doing(activity="checking", since=now)
            case Decided():
                doing = Doing(activity="playing", since=now)
            case _:
                return
        self.doing[step.key] = replace(doing, attempt=step.attempt)

    def _follow(self, body: Struct, now: float) -> None:
        match body:
            case EpisodeStarted(max_turns=max_turns):
                self.max_turns = max_turns
            case Observed(turn=turn, score=score, max_score=max_score):
                self.turn, self.score, self.max_score = turn, score, max_score
            case EpisodeEnded():
                self.doing = {"end": Doing(activity="finishing", since=now)}
            case m.RunTurn(turn=turn, limits=limits):
                self.doing.clear()
                self.turn = max(self.turn, turn)
                self.deadline = None if limits.turn_timeout_s is None else now + limits.turn_timeout_s
            case m.TurnCompleted() | m.TurnFailed():
                self.doing.clear()
                self.deadline = None
            case m.TurnInterrupted() | m.DeadlinePassed():
                # From now on the turn only closes its sessions.
                self.doing = {"stop": Doing(activity="stopping", since=now)}
            case m.CallTools(timeout_s=timeout_s):
                self._call_timeout_s = timeout_s
            case m.CompletionReceived(usage=usage):
                self.usage += usage
            case m.ReplyDropped(usage=usage):
                self.usage += usage
                self.dropped += 1
            case _:
                self._text_arrives(body)

    def _text_arrives(self, body: Struct) -> None:
        match body:
            case m.ServerNoted(kind="progress", server=server, text=text):
                prefix = f"{printable(server)}."
                calls = [key for key, doing in self.doing.items() if doing.name.startswith(prefix)]
                self._show_text(calls, lambda _: f"{ELLIPSIS} {printable(text, _PREVIEW_CHARS)}")
            case m.ReplyCut() | m.TextDelta(restart=True):
                self._show_text(self._requests(), lambda _: "")
            case m.TextDelta(text=text):
                added = printable(text.replace("\n", " "))
                self._show_text(self._requests(), lambda so_far: (so_far + added)[-_PREVIEW_CHARS:])

    def _requests(self) -> list[Hashable]:
        return [key for key, doing in self.doing.items() if doing.activity in ("thinking", "retrying")]

    def _show_text(self, keys: list[Hashable], text: Callable[[str], str]) -> None:
        if keys:
            doing = self.doing[keys[-1]]
            self.doing[keys[-1]] = replace(doing, text=text(doing.text))
