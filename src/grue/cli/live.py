"""The live view of `grue play` and `grue run`: lines about each turn, and status rows at a terminal.

The turn's thread only queues messages, and a thread of the view prints ten times a second. So a stopped
terminal (Ctrl-S) or a slow reader of a pipe delays only the end of the episode, and a closed one ends only
the view.

The first row shows a reply that is arriving, a call's arguments, or a server's progress:
```
    "thinking":"The cat is on the trapdoor, so the sardines
  ⠹ thinking 3 s · turn 13/60 · 15/100 points · 14.2k tokens · $0.031
```
"""

import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, Self, TextIO, TypeAlias

import msgspec
from msgspec import Struct, structs

from grue import messages as m
from grue.cli.live_story import CYAN, Story, call_text, painted, tool_name
from grue.cli.live_terminal import Terminal
from grue.hosts.zork.facts import Decided, EpisodeEnded, EpisodeStarted, Observed
from grue.runtime.loops.closing import Closing
from grue.runtime.safe_text import ELLIPSIS, printable
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.tool_sessions.failures import DOWNLOAD_TIMEOUT_S
from grue.tracing import facts
from grue.tracing.columns import cells, cut
from grue.tracing.facts import EpisodeResumed
from grue.tracing.message_words import DIM, YELLOW
from grue.tracing.steps import Step, StepBegan, StepTracker, usage_in

_LEFT_OUT = ("settings", "conditions")  # fields of `EpisodeStarted` and `EpisodeResumed` that are not printed


class JsonPrinter:
    """Prints objects as JSON, one a line."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, entry: dict[str, object]) -> None:
        """Print one object, and flush the output."""
        self._out.write(f"{json.dumps(msgspec.to_builtins(entry))}\n")
        self._out.flush()


class JsonLines(JsonPrinter):
    """Prints JSON objects: one of type `episode` (or `resumed`), a `turn` for each move, and an `end`."""

    def __init__(self, out: TextIO) -> None:
        super().__init__(out)
        self._turn: dict[str, object] = {}

    def __call__(self, envelope: Envelope[Any], _line: bytes) -> None:
        """Read the next message of the trace, and print the object that it completes, if any."""
        match envelope.body:
            case EpisodeStarted() | EpisodeResumed() as begun:
                fields = {k: v for k, v in structs.asdict(begun).items() if k not in _LEFT_OUT}
                self.write({"type": "episode" if isinstance(begun, EpisodeStarted) else "resumed", **fields})
            case Observed() as seen:
                self._finish_turn(seen)
                self._turn = {"type": "turn", "turn": seen.turn}
                self._turn |= {"location": seen.location, "score": seen.score}
            case m.TurnCompleted() as end:
                self._turn["tool_calls"] = [
                    {"name": call.name, "arguments": call.arguments, "settlement": call.settlement}
                    for call in end.tool_calls
                ]
            case Decided() as decided:
                names = ("action", "reasoning", "kind", "reason")
                self._turn |= {name: getattr(decided, name) for name in names}
            case EpisodeEnded() as ended:
                self._finish_turn(None)
                self.write({"type": "end", **structs.asdict(ended)})

    def _finish_turn(self, after: Observed | None) -> None:
        if "action" in self._turn:
            reply, score = (None, None) if after is None else (after.text, after.score)
            self.write({**self._turn, "reply": reply, "score_after": score})


_PREVIEW_CHARS = 400
_NAME_CHARS = 60

Activity = Literal[
    "starting", "checking", "thinking", "retrying", "calling", "closing", "stopping", "playing", "finishing"
]


class Doing(Struct, frozen=True, kw_only=True):
    """A step that is under way, as the status line shows it."""

    activity: Activity
    since: float  # when it began, or for a retry that still waits, when it will begin
    name: str = ""  # name of the server or tool, if the step has one
    limit_s: float | None = None  # counted from `since`; `None`: no limit of its own
    attempt: int = 1
    text: str = ""  # the last words of a reply that is arriving, a call's arguments, or a server's progress


class Progress:
    """The state of an episode, updated by each message of its trace."""

    def __init__(self, max_turns: int = 0) -> None:
        self.doing: dict[Hashable, Doing] = {}  # oldest first, by `Step.key`, `stop` or `end`
        self.turn = 0
        self.max_turns = max_turns  # 0: not known until `EpisodeStarted`
        self.score: int | None = None
        self.max_score: int | None = None
        self.usage = m.Usage()  # since the start or resumption, also of dropped replies and failed requests
        self._sampled: list[m.Usage] = []
        self.dropped = 0  # replies dropped because a server did not start or listed other tools than offered
        self.deadline: float | None = None  # when the turn's time limit ends the turn, if it has one
        self._call_timeout_s: float | None = None
        self._steps = StepTracker()

    def note(self, envelope: Envelope[Any], now: float) -> None:
        """Update the state with a message, recorded at `now`. A message that a fork has copied is ignored."""
        if envelope.copied:
            return
        self.usage += usage_in(envelope, self._sampled)
        for change in self._steps.take(envelope):
            if isinstance(change, StepBegan):
                self._begin(change.step, now, pause_s=change.step.start_s - envelope.t)
            elif not change.retried:
                self.doing.pop(change.step.key, None)
        self._follow(envelope.body, now)

    def _begin(self, step: Step, now: float, *, pause_s: float) -> None:
        doing = partial(Doing, since=now, attempt=step.attempt)
        match step.began.body:
            case m.OpenSession(server=server, timeout_s=timeout_s) if step.kind == "startup":
                late = " (may still be downloading)" if timeout_s == DOWNLOAD_TIMEOUT_S else ""
                name = f"{printable(server, _NAME_CHARS)}{late}"
                begun = doing(activity="starting", name=name, limit_s=timeout_s)
            case m.CloseSession(server=server):
                begun = doing(activity="closing", name=printable(server, _NAME_CHARS))
            case m.ToolCalled() as call:
                limit_s, text = self._call_timeout_s, call_text(call)
                begun = doing(activity="calling", name=tool_name(call), limit_s=limit_s, text=text)
            case m.RequestCompletion():
                activity: Activity = "thinking" if step.attempt == 1 else "retrying"
                begun = doing(activity=activity, since=now + pause_s)
            case m.CheckToolSupport():
                begun = doing(activity="checking")
            case Decided():
                begun = doing(activity="playing")
            case _:
                return
        self.doing[step.key] = begun

    def _follow(self, body: Struct, now: float) -> None:
        match body:
            case facts.EpisodeStarted(max_turns=max_turns):
                self.max_turns = max_turns
            case Observed(turn=turn, score=score, max_score=max_score):
                self.turn, self.score, self.max_score = turn, score, max_score
            case facts.EpisodeEnded():
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
            case m.ReplyDropped():
                self.dropped += 1
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
            self.doing[keys[-1]] = structs.replace(doing, text=text(doing.text))


Row: TypeAlias = tuple[tuple[str, str], ...]  # pieces of text, each with its ANSI attributes
_TICKS_PER_S = 10
_FEWEST_LINES = 6  # if the terminal has fewer lines, only the status line is shown
_FEWEST_COLUMNS = 16  # if the terminal has fewer columns, nothing is shown
_NEAR_S = 600  # the remaining time of a turn is shown when it is at most this many seconds
_URGENT_S = 10
_INDENT = "  "
_BETWEEN = " · "


def status_rows(progress: Progress, now: float, size: os.terminal_size, spinner: str) -> tuple[Row, ...]:
    """Return the status rows, two at most; none if there is nothing to show or no room."""
    width = size.columns - 1  # a terminal may wrap in the last column
    doing = [*progress.doing.values()]
    status = _status(progress, now, width, spinner)
    if not status or size.columns < _FEWEST_COLUMNS:
        return ()
    if not doing or not doing[-1].text or size.lines < _FEWEST_LINES:
        return (status,)
    indent = _INDENT * 2
    text = doing[-1].text
    shown = _tail if doing[-1].activity == "thinking" else cut
    return (((indent, ""), (shown(text, width - len(indent)), DIM)), status)


def _status(progress: Progress, now: float, width: int, spinner: str) -> Row:
    parts = _parts(progress, now)
    if not parts:
        return ()
    mark = spinner[int(now * _TICKS_PER_S) % len(spinner)] if progress.doing else " "
    head = f"{_INDENT}{mark} "
    room = width - cells(head)
    while len(parts) > 1 and cells(_BETWEEN.join(text for _, text, _ in parts)) > room:
        parts.remove(max(parts))
    pieces = [(cut(parts[0][1], room), parts[0][2])]
    for _, text, style in parts[1:]:
        pieces += [(_BETWEEN, DIM), (text, style)]
    return ((head, CYAN), *pieces)


def _parts(progress: Progress, now: float) -> list[tuple[int, str, str]]:
    # A part is (rank, text, style). In a narrow terminal, parts with the highest ranks are left out first.
    parts = []
    doing = [*progress.doing.values()]
    if doing:
        waits = doing[-1].activity == "retrying" and now < doing[-1].since
        parts.append((0, _activity(doing, now), YELLOW if waits else ""))
    if progress.deadline is not None:
        left_s = max(0, math.ceil(progress.deadline - now))
        if left_s <= _NEAR_S:
            parts.append((1, f"{_span(left_s)} left", YELLOW if left_s <= _URGENT_S else DIM))
    if progress.turn:
        last = f"/{progress.max_turns}" if progress.max_turns else ""
        parts.append((2, f"turn {progress.turn}{last}", DIM))
    if progress.score is not None:
        most = f"/{progress.max_score}" if progress.max_score is not None else ""
        parts.append((3, f"{progress.score}{most} points", DIM))
    tokens = progress.usage.input_tokens + progress.usage.output_tokens
    if tokens:
        parts.append((5, f"{_count(tokens)} tokens", DIM))
    if progress.dropped:
        parts.append((6, f"{progress.dropped} dropped", YELLOW))
    if progress.usage.cost_usd is not None:
        cost = progress.usage.cost_usd
        parts.append((4, f"${cost:.2f}" if cost >= 1 else f"${cost:.4f}", DIM))
    return parts


def _activity(doing: list[Doing], now: float) -> str:
    # For two tool calls under way, the text is for example `a.x, b.y 3 s of 10 s`.
    last = doing[-1]
    alike = [one for one in doing if one.activity == last.activity]
    lasts_s = now - alike[0].since
    if last.activity == "retrying" and lasts_s < 0:
        return f"asking again in {_span(math.ceil(-lasts_s))}"
    verb = {"calling": "", "retrying": "thinking", "checking": "asking about the model"}
    words = [verb.get(last.activity, last.activity), ", ".join(one.name for one in alike)]
    text = " ".join(word for word in words if word)
    if last.attempt > 1:
        text += f", attempt {last.attempt}"
    if lasts_s < 1:
        return text
    limit = f" of {_span(int(last.limit_s))}" if last.limit_s is not None and last.limit_s >= 1 else ""
    return f"{text} {_span(int(lasts_s))}{limit}"


def _span(seconds: int) -> str:
    return f"{seconds} s" if seconds < 100 else f"{seconds // 60}:{seconds % 60:02} min"


def _count(tokens: int) -> str:
    if tokens < 1000:
        return str(tokens)
    return f"{tokens / 1000:.1f}k" if tokens < 999_950 else f"{tokens / 1_000_000:.1f}M"


def _tail(text: str, width: int) -> str:
    text = text.lstrip()
    if cells(text) <= width:
        return text
    while text and cells(text) > width - 1:
        # A character takes two columns at most, so this never cuts too much.
        text = text[max(1, (cells(text) - width) // 2) :]
    return ELLIPSIS + text


_TICK_S = 0.1
_WIDEST = 96
_NARROWEST = 20


class LiveView(Closing):
    """Shows an episode while it is played: an observer of the trace. `max_turns` 0: no limit is known."""

    def __init__(self, output: Terminal, *, max_turns: int = 0, story: Story | None = None) -> None:
        self._output = output
        self._arrived: deque[tuple[float, Envelope[Any]]] = deque()
        self._story = story or Story(beside_status=output.redraws)
        self._progress = Progress(max_turns)
        self._shown: tuple[int, tuple[Row, ...]] = (0, ())
        self._closing = threading.Event()
        self._gone = False
        # A stopped terminal blocks the thread, and at exit Python waits for threads that are not daemons.
        self._thread = threading.Thread(target=self._run, name="live-view", daemon=True)

    def __call__(self, envelope: Envelope[Any], _line: bytes) -> None:
        """Queue a message for the view's thread. Never waits, never fails."""
        if not self._gone:
            self._arrived.append((time.monotonic(), envelope))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def close(self) -> None:
        """Print the rest and erase the status rows. If the terminal is stopped, Ctrl-C ends the wait."""
        if not self._closing.is_set():
            self._closing.set()
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.wait(_TICK_S):
                self._draw()
            self._draw(last=True)
        except OSError:
            pass  # nobody reads the output any more, and the episode continues
        finally:
            self._gone = True
            self._arrived.clear()

    def _draw(self, *, last: bool = False) -> None:
        size = self._output.size()
        width = max(_NARROWEST, min(size.columns, _WIDEST))
        text = "".join(f"{row}\n" for row in self._new_rows(width))
        if not self._output.redraws:
            if text:
                self._output.write(text)
            return
        rows = () if last else status_rows(self._progress, time.monotonic(), size, self._output.spinner)
        if text or (size.columns, rows) != self._shown:
            self._shown = (size.columns, rows)
            self._output.draw(text, [*map(self._painted, rows)])

    def _new_rows(self, width: int) -> list[str]:
        rows: list[str] = []
        while self._arrived:
            at, envelope = self._arrived.popleft()
            self._progress.note(envelope, at)
            for line in self._story.lines(envelope.body):
                rows += line.rows(width, colour=self._output.colour)
        return rows

    def _painted(self, row: Row) -> str:
        return "".join(painted(text, style if self._output.colour else "") for text, style in row)


def shown(
    recorder: Recorder, output: str, lines: Callable[[Envelope[Any], bytes], None], view: LiveView
) -> ExitStack:
    """Let `lines` print the episode if `output` is `json`, or `view` if it is `live`.

    Closing the returned stack prints the lines of `view` that are still queued.
    """
    stack = ExitStack()
    if output == "json":
        recorder.add(lines)
    elif output == "live":
        recorder.add(stack.enter_context(view))
    return stack
