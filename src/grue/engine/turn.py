"""Run one turn, from the host's `TurnRequest` to the `TurnOutcome`, and keep the state between turns."""

from __future__ import annotations

import base64
import contextlib
import contextvars
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from shlex import quote
from typing import Any, Generic, Literal, TypeAlias, TypeVar, assert_never

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from grue import errors, policies
from grue import messages as m
from grue.engine.answers import AnswerCheck, AnswerSpec, T, recorded_fallback, spec_of, unusable_answer
from grue.engine.conversations import kept_conversation
from grue.engine.conversations.kept_conversation import EarlierResults, KeptConversation, TurnPast
from grue.engine.tool_servers import check_fields, first_connects, servers_for, startup_limits
from grue.engine.turn_actors import TurnActors, TurnResources, TurnsPast
from grue.engine.wiring import Wiring
from grue.errors import ApprovalPending, ConversationError, MCPConfigError, MCPError, TurnCancelled
from grue.field_checks import OwnKeywords, is_usable, shown
from grue.policies import Budget, ContextPolicy, FailurePolicy, ToolPolicy, ToolSearch, TurnLimits
from grue.protocol.answers import SCHEMA_IN_WORDS
from grue.protocol.chat_wire.profiles import tool_support_error
from grue.protocol.context.history import History, items_said
from grue.protocol.tools.results import MAX_ATTACHMENTS, MediaRoom
from grue.protocol.turn.connection import Disabled, Settled
from grue.protocol.turn.prices import Spent
from grue.protocol.turn.states import TurnProgress
from grue.protocol.turn.tools import CUT
from grue.runtime.actor import raise_crash
from grue.runtime.files import os_cause, read_regular
from grue.runtime.forks import here_and_in_children
from grue.runtime.loops.interrupts import WorkInterrupted, refuse_reentry
from grue.runtime.loops.loop_thread import Call
from grue.runtime.safe_text import beginning, well_formed
from grue.runtime.trace.file import writers_of
from grue.tool_sessions.failures import failure_text

R = TypeVar("R")

_SHOWN_CHARS = 4000  # of each value that a notebook shows

Image: TypeAlias = str | PathLike[str] | bytes
"""An image for the model: the path of a file, or its content."""

_TEXTS = ("user", "system", "user_stub", "final_request", "repair_request")


class _UserText(Struct, frozen=True):
    """Makes `user` the only field of `TurnRequest` that may be given by position."""

    user: str


class TurnRequest(_UserText, Generic[T], metaclass=OwnKeywords, frozen=True, kw_only=True):
    """The input of one turn.

    Attributes:
        user: The situation or question that the model is to answer.
        system: Instructions; empty: none.
        answer: The type of the answer: a pydantic model, msgspec Struct, dataclass, TypedDict, `list[int]`,
            `int`, an enum. Or an `AnswerSpec`, with a check or a fallback; `AnswerSpec.of(...)` takes any
            type, also a `Literal`. `None`: any text.
        turn_timeout_s: Limit for the whole turn, teardown included; `None`: the runner's.
        turn: The turn's number in the episode; `None`: one more than the highest so far.
        tools: `True`: offer all of the runner's tools; `False`: offer none. Or the names of the tools to
            offer, which may be patterns: `("files.read", "web.*")`.
        context: How to stay within the model's context window; `None`: the runner's `context`.
        tool_search: When to offer `find_tools` and `call_tool` in place of the tools; `None`: the runner's.
        user_stub: A shorter text that may take the place of `user` in the history, if a later turn of the
            conversation has no room for `user`; empty: `user` is not replaced.
        on_delta: Called with each piece of a streamed reply, in the thread of the turn's event loop. An
            exception ends the turn. A delta with `restart` means: discard the earlier pieces of that reply,
            for example because the request is retried. `None`: no pieces are reported.
        final_request: The text that asks for the final answer when no more tools may be called.
        repair_request: The text that asks for another answer. `{reason}` stands for why the last was refused.
        images: Images that belong to the user's text: paths of files, or their bytes. PNG, JPEG, GIF, WebP.
        history: What was said before, oldest first: `UserText`, `AssistantReply`, `ToolMessage`, as in
            `TurnOutcome.said` and `Conversation.history`. A `SystemText` at its beginning becomes `system`,
            and must not differ from a `system` that is given. The trace has only a digest of the history.
        json_results: `True`: the model gets every tool result as the JSON of `ToolCallResult.to_dict()`.
            `False`: it gets a text as plain text, other content as JSON, and an error as `Error: ...`.
        conversation: Set by `Conversation.request`: the turn continues that conversation.
    """

    system: str = ""
    answer: AnswerSpec[T] | type[T] | None = None
    turn_timeout_s: float | None = None
    turn: int | None = None
    tools: bool | tuple[str, ...] = True
    context: ContextPolicy | None = None
    tool_search: ToolSearch | None = None
    user_stub: str = ""
    on_delta: Callable[[m.TextDelta], None] | None = None
    final_request: str = m.FINAL_REQUEST.replace("action", "answer")  # `FINAL_REQUEST` is worded for games
    repair_request: str = m.REPAIR_REQUEST
    images: Sequence[Image] = ()
    history: Sequence[m.HistoryItem | m.SystemText] = ()
    json_results: bool = False
    conversation: KeptConversation | None = None

    def __post_init__(self) -> None:
        for name in _TEXTS:
            text = getattr(self, name)
            if isinstance(text, str) and type(text) is not str:  # such as numpy's str_
                force_setattr(self, name, str.__str__(text))
        first = self.history[0] if isinstance(self.history, list | tuple) and self.history else None
        if isinstance(first, m.SystemText) and self.system in ("", first.text):
            force_setattr(self, "system", first.text)
            force_setattr(self, "history", self.history[1:])
        form = _right_form(self)
        if form:
            raise MCPConfigError(f"TurnRequest: {form}.")

    @property
    def answer_spec(self) -> AnswerSpec[T]:
        """The request's `answer` as an `AnswerSpec`."""
        return spec_of(self.answer)


class TurnOutcome(Struct, Generic[T], frozen=True, kw_only=True):
    """The result of a turn that has an answer.

    Attributes:
        kind: `answered`; `forced` (the model was told to finish); `degraded` (configured tools were not
            available); `fallback` (the host's own value, because the model gave no acceptable answer).
        reason: Why the kind is not `answered`. Empty otherwise, unless a server died and was started again.
        raw_response: The text that the answer was parsed from, or the last text that was refused, if any.
        tool_calls: All tool calls, in order, with their results.
        iterations: How many replies to requests with tools had tool calls.
        requests: Number of requests to the model, those of servers (sampling) included.
        said: What was said in the turn, oldest first: the user texts, the replies, the tool results. Pass
            `history=(*earlier, *outcome.said)` to the next turn. Empty in a `BatchItem` that is `recalled`.
    """

    turn: int
    kind: m.OutcomeKind
    response: T
    reason: str
    raw_response: str | None
    tool_calls: tuple[m.ToolCallRecord, ...]
    iterations: int
    requests: int
    usage: m.Usage
    duration_s: float
    said: tuple[m.HistoryItem, ...] = ()

    def _repr_html_(self) -> str:
        from html import escape

        kind = f"{self.kind}: {self.reason}" if self.reason else self.kind
        calls = ", ".join(
            f"{call.name} ({call.result.error_message or 'error'})" if call.result.is_error else call.name
            for call in self.tool_calls
        )
        rows = {
            "answer": str(self.response),
            "kind": kind,
            "tools": calls or "none",
            "tokens": f"{self.usage.input_tokens} + {self.usage.output_tokens}",
            "time": f"{self.duration_s:.2f} s",
        }
        style = "style='text-align:left;white-space:pre-wrap'"
        cells = (
            f"<tr><th {style}>{name}</th><td {style}>{escape(beginning(text, _SHOWN_CHARS))}</td></tr>"
            for name, text in rows.items()
        )
        return f"<table>{''.join(cells)}</table>"


class BatchItem(Struct, Generic[T], frozen=True, kw_only=True):
    """The result of one request of a batch.

    Attributes:
        index: Position of the request, from 0.
        outcome: The turn's outcome; `None` if the turn failed.
        error: Why the turn failed: what `run_turn` would have raised. An exception that is not an `MCPError`
            is the `__cause__` of an `MCPError`.
        recalled: The outcome or error is from the trace of an earlier run; the turn was not run again.
    """

    index: int
    outcome: T | None = None
    error: MCPError | None = None
    recalled: bool = False


def as_request(request: TurnRequest[T] | str) -> TurnRequest[T]:
    """Return `request`, or a request with this text as `user`. Raises `MCPConfigError` for other values."""
    if isinstance(request, str):
        request = TurnRequest(user=request)
    if not isinstance(request, TurnRequest):
        raise MCPConfigError(
            f"A turn wants a text or TurnRequest(user=...), not {type(request).__name__} {request!r:.60}."
        )
    return request


def _right_form(request: TurnRequest[Any]) -> str:
    """Return advice about the first field with a wrong value; empty: every value has the right form."""
    given: dict[str, Any] = {name: getattr(request, name) for name in request.__struct_fields__}
    for name in _TEXTS:
        if not isinstance(given[name], str):
            return f"{name}= wants a text, {name}='...', not a {type(given[name]).__name__}"
    images, tools, history = given["images"], given["tools"], given["history"]
    if not _is_list(images) or not all(isinstance(each, str | bytes | PathLike) for each in images):
        return "images= wants a list, images=['picture.png']"
    are_names = isinstance(tools, list | tuple) and all(isinstance(each, str) for each in tools)
    if not are_names and not isinstance(tools, bool):
        if _is_list(tools) and any(map(callable, tools)):
            form = "Runner(servers={'mine': FunctionTools([...])})"
            return f"tools= wants the tools' names; the functions go into {form}"
        return f"tools= wants True, False or the tools' names, tools=({shown(tools)},)"
    if not _is_list(history):
        return "history= wants a list, such as history=outcome.said"
    if any(isinstance(item, m.SystemText) for item in history):
        return "system= and the system text of history= differ: leave system= out, or take that text away"
    if not all(isinstance(item, m.HistoryItem) for item in history):
        return "history= wants what grue.messages has: UserText('...'), AssistantReply(...), ToolMessage(...)"
    for place, item in enumerate(history):
        check_fields(f"TurnRequest: history[{place}]", item)
    for name, kind, least in (("turn", int, "0 or more"), ("turn_timeout_s", int | float, "above 0")):
        value = given[name]
        if not isinstance(value, kind | None) or isinstance(value, bool):
            return f"{name}= wants a number, not {shown(value)}"
        if value is not None and not is_usable(value, above_0=name != "turn"):
            return f"{name}= wants a number, {least}, or None, not {shown(value)}"
    for name, struct in (("context", ContextPolicy), ("tool_search", ToolSearch)):
        if not isinstance(given[name], struct | None):
            return f"{name}= wants {struct.__name__}(...), not {type(given[name]).__name__}"
    if not isinstance(given["json_results"], bool):
        return "json_results= wants True or False"
    if not isinstance(given["conversation"], KeptConversation | None):
        return "conversation= is set by Conversation.request: write talk.ask('...')"
    if given["on_delta"] is not None and not callable(given["on_delta"]):
        return "on_delta= wants a function, on_delta=lambda delta: print(delta.text, end='')"
    return unusable_answer(given["answer"])


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def outcome_of(
    end: m.TurnCompleted, response: Any, duration_s: float, said: tuple[m.HistoryItem, ...] = ()
) -> TurnOutcome[Any]:
    """Return the host's outcome of a completed turn."""
    died = ", ".join(dict.fromkeys(call.name for call in end.tool_calls if call.settlement == "died"))
    restarted = f"the server died during {died}, and was started again" if died else ""
    return TurnOutcome(
        turn=end.turn,
        kind=end.kind,
        response=response,
        reason=end.reason or restarted,
        raw_response=end.raw_response,
        tool_calls=end.tool_calls,
        iterations=end.iterations,
        requests=end.requests,
        usage=end.usage,
        duration_s=duration_s,
        said=said,
    )


def read_images(images: Any, limits: TurnLimits) -> tuple[m.Attachment, ...]:
    """Return images in the form in which they are sent; raises `MCPError` for one that cannot be sent."""
    room = MediaRoom(limits)
    for number, image in enumerate(images):
        if number == MAX_ATTACHMENTS:
            raise MCPError(f"At most {MAX_ATTACHMENTS} images can be sent with one turn: leave some out.")
        what, content = f"Image {number + 1}", image
        if not isinstance(image, bytes):
            what = f"The image {os.fsdecode(image)}"
            try:
                content = read_regular(Path(os.fsdecode(image)), max_bytes=limits.max_image_bytes)
            except OSError as error:
                raise MCPError(f"{what} cannot be read: {os_cause(error)}.") from error
        refused = room.attach("image", base64.b64encode(content).decode())
        if refused:
            raise MCPError(f"{what} cannot be shown to the model: {refused}.")
        if room.attachments[-1].kind != "image":
            raise MCPError(f"{what} is not an image: its content is {room.attachments[-1].mime}.")
    return tuple(room.attachments)


class ProgressSource(Struct):
    """The progress of a turn, for its handle. If the handle held the turn, it would keep the runner alive."""

    last: TurnProgress = TurnProgress(doing="waiting for its turn")
    actors: TurnActors | None = None  # while they run; else `last` counts, and nothing keeps them alive


class TurnHandle(Generic[R]):
    """A turn that `Runner.start_turn` has started. Only `result` can block.

    Thread-safe. The turn goes on if its handle is dropped.
    """

    def __init__(self, call: Call[R], progress: ProgressSource) -> None:
        self._call = call
        self._progress = progress
        self._started = call.submitted_at  # not the present time: the turn may already run, or be over

    def done(self) -> bool:
        """Return whether the turn is over. `result` then returns or raises at once."""
        return self._call.done()

    def result(self, timeout_s: float | None = None) -> R:
        """Return the turn's outcome, or raise its error, as `run_turn` does.

        Ctrl-C ends the wait; the turn goes on.

        Args:
            timeout_s: Longest wait in seconds; `None`: no limit; 0: do not wait.

        Raises:
            TimeoutError: The turn is not over yet; the turn goes on.
            TurnCancelled: `cancel` was called, or the runner was closed.
            MCPError: The wait would never end: the caller is a turn of the same runner, or a forked process.
        """
        if not self._call.join(timeout_s):
            waited = f" after {timeout_s:g} s" if timeout_s else ""
            raise TimeoutError(f"The turn is not over{waited}: it goes on.")
        if isinstance(self._call.exception(), WorkInterrupted):
            raise TurnCancelled("The turn was cancelled.")
        return self._call.result()

    def when_done(self, function: Callable[[], object]) -> None:
        """Call `function` in the event loop's thread when the turn is over.

        If the turn is over already, `function` is called at once, in the caller's thread. Use this to wake
        your own loop, not to do work: `function` must not block or raise.
        """
        self._call.add_done_callback(lambda _: function())

    def cancel(self) -> None:
        """Cancel the turn and return at once. The turn ends within seconds, when its sessions are closed."""
        self._call.interrupt()

    def progress(self) -> TurnProgress:
        """Return the turn's progress. After the turn's end, `doing` is `done` and the counts are final."""
        # Read `done` first, so that the progress of an ended turn is final.
        over = self._call.done()
        actors = self._progress.actors  # read once: the turn may end meanwhile
        seen = self._progress.last if actors is None else actors.progress
        until = time.monotonic() if self._call.ended_at is None else self._call.ended_at
        return replace(seen, doing="done" if over else seen.doing, elapsed_s=until - self._started)


class EpisodeMemory:
    """An episode's turn numbers so far, and its servers' states. Thread-safe: turns may run in parallel."""

    def __init__(self) -> None:
        self.turn = self._highest = 0
        self.connections: Mapping[m.ServerName, Settled] = {}  # replaced, never changed: any thread may read
        here_and_in_children(self._make_lock)

    def _make_lock(self) -> None:
        self._lock = threading.Lock()

    def start(self, number: int | None, above: int = 0) -> int:
        """Begin a turn. Return `number`; for `None`, the first number above `above` and above all so far."""
        with self._lock:
            self.turn = max(self._highest, above) + 1 if number is None else number
            self._highest = max(self._highest, self.turn)
            return self.turn

    def skip(self, number: int) -> None:
        """Let later turns have numbers above `number`."""
        with self._lock:
            self._highest = max(self._highest, number)

    def learn(self, connections: Mapping[m.ServerName, Settled]) -> None:
        """Store the new connection states of these servers."""
        with self._lock:
            self.connections = {**self.connections, **connections}


class Spending:
    """The requests, tokens and cost of all ended turns of a runner. Thread-safe."""

    def __init__(self) -> None:
        self.spent = Spent()
        self.said_uncounted = False
        here_and_in_children(self._make_lock)

    def _make_lock(self) -> None:
        self._lock = threading.Lock()

    def add(self, requests: int, usage: m.Usage) -> None:
        """Add what an ended turn has spent."""
        with self._lock:
            self.spent = self.spent.plus(requests, usage)


class RestOfTurn(Spending):
    """The spending for a resumed turn or a fork. Its `add` adds to `whole`, the spending of the runner."""

    def __init__(self, whole: Spending, before: Spent, *, counted: Spent) -> None:
        super().__init__()
        self._whole = whole
        self._before = before  # what the recorded part of the turn has spent
        # How much of `before` is not added: it is in `whole` already, or a fork does not pay it again.
        self._counted = counted
        self.spent = whole.spent.less(counted)

    def left_for(self, turn: m.RunTurn, episode: Budget, what: str) -> Budget:
        """Return the budget of the whole turn, at most what `episode` leaves to it.

        Raises `BudgetSpent` if the recorded part has left nothing of that; `what` begins the error's text.
        """
        self.spent.plus(self._before.requests, self._before.usage).check(episode, what)
        return self.spent.left(episode, turn.limits.budget)

    def add(self, requests: int, usage: m.Usage) -> None:
        """Add what the ended turn has spent, less `counted`, to `whole`."""
        rest = Spent(requests=requests, usage=usage).less(self._counted)
        self._whole.add(rest.requests, rest.usage)


class TurnPostponed(Exception):  # noqa: N818 - named as the event it reports
    """The turn waits for a provider's batch, or for more room in the budget."""

    def __init__(self, waits: m.TurnWaits) -> None:
        super().__init__(f"turn {waits.turn} waits for a batch")
        self.waits = waits


_inside: contextvars.ContextVar[tuple[Wiring, ...]] = contextvars.ContextVar("inside_turns", default=())
"""The wirings of the runners in whose turns the current code runs; tasks and worker threads inherit it."""


def refuse_inside_turn(wiring: Wiring) -> None:
    """Raise `MCPError` if the caller is part of a turn of this runner, for example a function tool."""
    if any(each.runner is wiring.runner for each in _inside.get()):
        raise MCPError(
            "Tools cannot be called through a runner from inside one of its turns. Call them before or after "
            "the turn, or use a ToolClient."
        )


@contextlib.contextmanager
def one_fork_at_a_time(wiring: Wiring) -> Iterator[None]:
    """Enter the block when no other fork of the runner runs; inside a turn of the runner, at once."""
    refuse_reentry()
    inside = any(each.runner is wiring.runner for each in _inside.get())
    with contextlib.nullcontext() if inside else wiring.under_way.forking:
        yield


class TurnSettings(Struct, frozen=True, kw_only=True):
    """The settings that a runner gives to each of its turns."""

    wiring: Wiring
    limits: TurnLimits
    policy: FailurePolicy
    tool_policy: ToolPolicy
    context: ContextPolicy | None
    tool_search: ToolSearch | None
    budget: Budget
    spending: Spending


class HostTurn(Generic[T]):
    """One turn of an episode; `memory` holds the episode's state. Call `run` once."""

    is_resumed = False
    waits = False
    place: int | None = None  # the request's position in `Runner.map`, from 1
    record = TurnsPast()  # the recorded beginning of a fork, or of a turn that has waited
    earlier: EarlierResults | None = None  # in a fork: finds the tool results of earlier turns
    begun: History | None = None  # the entries that a resumed turn added before it was resumed
    started_by: m.RunTurn | None = None  # the `RunTurn`, made from a recorded one; `None`: `command` makes it

    def __init__(self, request: TurnRequest[T] | str, settings: TurnSettings, memory: EpisodeMemory) -> None:
        self._request = as_request(request)
        self.conversation = self._request.conversation  # which the turn continues; `None`: no conversation
        self.answer: AnswerSpec[Any] = self._request.answer_spec
        self.progress = ProgressSource()
        self._settings = settings
        self._memory = memory

    async def run(self, resources: TurnResources) -> TurnOutcome[T]:
        """Run the turn. Raises `TurnPostponed`, or as `Runner.run_turn` does; cancellation ends the turn."""
        wiring, start = self._settings.wiring, partial(self._memory.start, self._request.turn)
        token = _inside.set((*_inside.get(), wiring))
        try:
            with wiring.under_way.beginning(start, self.place) as number:
                return await self._run(number, resources)
        finally:
            _inside.reset(token)

    async def _run(self, number: int, resources: TurnResources) -> TurnOutcome[T]:
        settings, memory, request = self._settings, self._memory, self._request
        budget = settings.spending.spent.left(settings.budget, settings.limits.budget)
        self._report_uncounted(number, budget)
        started = anyio.current_time()
        check = AnswerCheck(self.answer)
        images: tuple[m.Attachment, ...] = ()
        if request.images:
            images = await anyio.to_thread.run_sync(read_images, request.images, settings.limits)
        with self._past(number) as past:
            command = self.started_by or self.command(number, budget, past.history, images)
            command = kept_conversation.with_sizes(command, past.entries, past.bytes_per_token)
            if settings.wiring.endpoint is not None:
                first = settings.wiring.endpoint.first(anyio.current_time(), tools=bool(command.servers))
                command = replace(command, asks=first.asked())
            parking = settings.wiring.approval.parking
            if parking is not None:
                parking.require(command, given_history=bool(request.history))
            wiring = settings.wiring if past.llm is None else replace(settings.wiring, llm=past.llm)
            earlier = past.results or self.earlier
            actors = TurnActors(wiring, resources, command, check, request.on_delta, earlier, self.record)
            self.progress.actors = actors
            try:
                end = await actors.run(memory.connections)
            except BaseException:
                # The requests of a turn that was cancelled or has crashed have to be paid for, too.
                if (spent := actors.progress).requests:
                    settings.spending.add(spent.requests, spent.usage + actors.unreported)
                raise
            finally:
                self.progress.last, self.progress.actors = actors.progress, None
                past.ran = True
                if (agent := actors.agent) is not None:
                    past.end = agent.end if isinstance(agent.end, m.TurnEnd) else None
                    past.last_request = agent.last_request
                # Also after a failure or a cancellation: the next turn has to know the servers' states.
                memory.learn(actors.connections)
            if not isinstance(end, m.TurnWaits):  # here, because `_past` may raise at its end
                failed = isinstance(end, m.TurnFailed)
                usage = end.usage + actors.unreported if failed else end.usage
                settings.spending.add(end.requests, usage)
        if isinstance(end, m.TurnWaits):
            raise TurnPostponed(end)
        self._report_uncounted(number, budget, unpriced=end.requests > 0 and end.usage.cost_usd is None)
        match end:
            case m.TurnCompleted():
                # A resumed turn or a fork may have the fallback only in its trace.
                fallback: Any = end.answer if self.answer.fallback is None else self.answer.fallback
                response = fallback if end.kind == "fallback" else check.accepted
                told = () if actors.agent is None else actors.agent.said
                said = items_said(told, end, plain=command.plain_results, begun=self.begun)
                return outcome_of(end, response, anyio.current_time() - started, said)
            case m.TurnParked():
                raise pending_error(settings.wiring.recorder.redacted_body(end))
            case m.TurnFailed():
                error = error_for(settings.wiring.recorder.redacted_body(end))
                for writer in writers_of(settings.wiring.recorder)[:1]:
                    shown = f"grue trace show {quote(str(writer.path))}"
                    error.add_note(f"The turn's messages are in its trace: {shown}")
                raise error
            case _:
                assert_never(end)

    def _report_uncounted(self, number: int, budget: Budget, *, unpriced: bool = False) -> None:
        """If a cost limit has no effect, record that once. `unpriced`: the cost of the replies is unknown."""
        wiring, spending = self._settings.wiring, self._settings.spending
        if budget.cost_usd is None or wiring.endpoint is None or spending.said_uncounted:
            return
        endpoint = wiring.endpoint.uncounted(anyio.current_time())
        if endpoint is not None and (unpriced or endpoint.reports_cost is False):
            spending.said_uncounted = True
            note = m.CostUncounted(
                model=endpoint.settings.model, endpoint=endpoint.profile.name, limit_usd=budget.cost_usd
            )
            try:
                wiring.recorder.record(note, sender="host", turn=number)
            except Exception as error:  # noqa: BLE001 - `raise_crash` raises it
                raise_crash("host", error)

    def command(
        self,
        number: int,
        budget: Budget,
        history: m.HistoryReference | None = None,
        images: tuple[m.Attachment, ...] = (),
    ) -> m.RunTurn:
        """Return the message that starts the turn. `history` refers to the entries before the turn."""
        request, settings = self._request, self._settings
        search = request.tool_search or settings.tool_search
        limits = startup_limits(replace(settings.limits, budget=budget), settings.wiring.servers)
        required, policy = first_connects(settings.wiring.servers), settings.policy
        if required:
            policy = replace(policy, first_connects={**required, **policy.first_connects})
        if request.turn_timeout_s is not None:
            limits = replace(limits, turn_timeout_s=request.turn_timeout_s)
        repair_request = well_formed(request.repair_request)
        if self.answer.schema is not None:  # some endpoints ignore the schema in its own field of the request
            schema = msgspec.json.encode(self.answer.schema.schema).decode()
            repair_request += "\n" + SCHEMA_IN_WORDS.format(schema=schema)
        return m.RunTurn(
            turn=number,
            place=None if self.place == number else self.place,
            system=well_formed(request.system),
            user=well_formed(request.user),
            servers=servers_for(request.tools, settings.wiring.servers),
            tools=None if isinstance(request.tools, bool) else tuple(map(well_formed, request.tools)),
            answer=self.answer.schema,
            fallback=None if self.answer.fallback is None else recorded_fallback(self.answer),
            limits=limits,
            policy=policy,
            support_check=self._support_check(),
            stream=request.on_delta is not None,
            attach_media=True,
            history=history,
            images=images,
            tool_policy=settings.tool_policy,
            final_request=well_formed(request.final_request),
            repair_request=repair_request,
            context=request.context or settings.context,
            user_stub=well_formed(request.user_stub),
            show_schemas=True,
            binds_calls=True,
            binds_parked=True,
            plain_results=not request.json_results,
            unwraps_texts=True,
            states_answer=not self.answer.told,
            restates_answer=True,
            sorts_tools=True,
            references=self._references(),
            waits=self.waits,
            tool_search=search,
            binds_arguments=search is not None,
        )

    def _references(self) -> Literal["never", "later", "now"]:
        kept = self.conversation
        if self._request.json_results or self._settings.limits.long_results == "cut":
            return "never"
        return "now" if kept is not None and kept.refers else "later"

    def recalled_command(self, number: int) -> m.RunTurn:
        """Return the `RunTurn` that would start this turn now, to find the turn in an earlier run's trace."""
        images = read_images(self._request.images, self._settings.limits)
        kept = self._continued(number)
        history = None if kept is None else kept.ledger.reference(kept.id)
        return self.command(number, Budget(), history, images)

    @contextlib.contextmanager
    def _past(self, number: int) -> Iterator[TurnPast]:
        if self.conversation is not None and self._request.history:
            raise ConversationError("A turn continues either a conversation or a history, not both.")
        wiring, kept = self._settings.wiring, self._continued(number)
        if kept is None:
            yield TurnPast()
            return
        writers = writers_of(wiring.recorder)
        recorded = writers[0].place if writers else None
        with kept.turn(
            wiring.lender,
            wiring.endpoint,
            number,
            trace=None if wiring.approval.parking is None else recorded,
            recorded=recorded,
            resumed=self.is_resumed,
            plain=not self._request.json_results,
        ) as past:
            wiring.under_way.conversations[kept.id] = kept
            yield past

    def _continued(self, number: int) -> KeptConversation | None:
        request = self._request
        if self.conversation is None and request.history:
            return kept_conversation.given_conversation(f"turn-{number}", request.system, request.history)
        return self.conversation

    def _support_check(self) -> policies.SupportCheck:
        states = self._memory.connections
        if all(isinstance(states.get(name), Disabled) for name in self._settings.wiring.servers):
            return "skip"  # the runner has no servers, or all were disabled before this turn
        check = getattr(self._settings.wiring.llm, "support_check", None)
        return "skip" if check is None else check()


def error_for(end: m.TurnFailed) -> MCPError:
    """Return the exception for a failed turn."""
    failure: m.TurnFailure = end.failure
    match failure:
        case m.ServerFailure():
            kind = errors.NeedsLogin if failure.needs_login else errors.MCPServerStartupError
            return kind(
                failure_text(failure),
                server=failure.server,
                phase=failure.phase,
                command=failure.command,
                exit_status=failure.exit_status,
                stderr_tail=failure.stderr_tail,
            )
        case m.LlmFailure():
            status = f" with status {failure.status}" if failure.status is not None else ""
            tries = f" after {failure.attempts} attempts" if failure.attempts > 1 else ""
            text = (
                f"The model '{failure.model}' at {failure.endpoint} failed{status}{tries}: {failure.message}"
            )
            return errors.LLMError(
                f"{text}\n{failure.remedy}" if failure.remedy else text,
                kind=failure.kind,
                reason=failure.reason or "",
                status=failure.status,
                retry_after_s=failure.retry_after_s,
                model=failure.model,
                endpoint=failure.endpoint,
                tool_calls=end.tool_calls,
            )
        case m.ToolsUnsupported(model=model, reason=reason):
            return tool_support_error(model, reason)
        case m.DeadlineMissed(limit_s=limit_s, doing=doing, kept_s=kept_s):
            text = f"Turn {end.turn} did not end within {limit_s:g} s: it was {doing}."
            if kept_s:
                text += f" The work was stopped after {limit_s - kept_s:g} s: {kept_s:g} s of the limit are"
                text += " kept for closing the servers."
            text += (
                "\nIf it needs longer, raise turn_timeout_s of the TurnRequest, or of the runner's TurnLimits"
                f" ({policies.TURN_TIMEOUT_S:g} s by default); in pyproject.toml it is turn_timeout_seconds"
                " under [tool.grue.llm]."
            )
            return errors.TurnTimedOut(text, limit_s=limit_s, doing=doing, tool_calls=end.tool_calls)
        case m.NoAnswer(reason=reason, raw=raw, stopped=stopped) if stopped:
            text = f"The model gave no whole answer in turn {end.turn}: {reason}"
            text += "\nWhat there was of it is in `raw`. Say it otherwise, or choose another model."
            return errors.AnswerStopped(text, raw=raw, tool_calls=end.tool_calls, finish_reason=stopped)
        case m.NoAnswer(reason=reason, raw=raw):
            text = f"The model gave no acceptable answer in turn {end.turn}: {reason}"
            text += "\nRaise max_tokens, or ask for less." if reason.startswith(CUT.partition("{")[0]) else ""
            text += "\nIts last reply is in `raw`. " if raw else "\n"
            text += "AnswerSpec.of(..., fallback=...) gives a value instead."
            return errors.AnswerError(text, raw=raw, tool_calls=end.tool_calls)
        case m.Interrupted(reason=reason):
            return MCPError(f"Turn {end.turn} was interrupted: {reason}.")


def pending_error(end: m.TurnParked) -> ApprovalPending:
    """Return the error that tells the host about a parked turn."""
    names = ", ".join(dict.fromkeys(question.name for question in end.questions))
    text = (
        f"Turn {end.turn} waits for an approval of {names}. Its sessions are closed, and their state is lost."
        " To go on: decide on the questions, and call Runner.resume with the trace file and the decisions."
    )
    return ApprovalPending(text, turn=end.turn, questions=end.questions, expires_at=end.expires_at)
