"""Answer a fork's tool calls and approval questions with the answers that the original turn got."""

import contextlib
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from types import TracebackType
from typing import Any, Self, TypeAlias

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.actors.approval import Answer
from grue.engine.approval import Approval
from grue.errors import ForkMissed
from grue.policies import ApprovalDecision, ApprovalQuestion, FailurePolicy, Misses, ToolPolicy, ToolRule
from grue.protocol.json_text import digest
from grue.protocol.tools.calls import is_as_decided, unlisted_tool
from grue.protocol.tools.policy import definition_digest, hints_of, question_about
from grue.protocol.turn.connection import Disabled, Proven, Settled, Untried
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.tool_sessions import connection as connections
from grue.tool_sessions.connection import Connect, ConnectionStatus, Listing, ToolConnection
from grue.tool_sessions.failures import ServerFailed, ToolRefusedError, ToolTimedOutError

NOT_RECORDED = "it was not made when the turn was recorded"
NOT_AS_RECORDED = (
    "the call was not sent, because the tool has changed since the turn was recorded, or the server has it no"
    " longer"
)
_DENIED = "the call was not made when the turn was recorded, and a person has denied it now"
_INVALID_REQUEST = -32600  # JSON-RPC's code for an invalid request

_Key: TypeAlias = tuple[m.ServerName, str, str]
_Question: TypeAlias = tuple[str, str]


class RecordedCall(Struct):
    """A tool call of the recorded turn. `seq`: the number of the message `settlement`, or 0 without one."""

    server: m.ServerName
    call: m.ServerCall
    seq: int = 0
    settlement: m.Settlement | None = None
    redacted: bool = False

    @property
    def key(self) -> _Key:
        """Server, tool and arguments: only a fork's call with the same key can get this call's result."""
        return self.server, self.call.tool, digest(self.call.arguments)


class _Relisting(Struct, frozen=True):
    """A changed list of a server's tools. `call` is the server's last call before it; `None`: no call."""

    seq: int
    tools: tuple[m.ToolDefinition, ...]
    call: RecordedCall | None
    again: bool  # the list came when the batch after `call` began


class TurnRecord(Struct, eq=False):
    """The recorded results and decisions that a fork of the turn gets.

    A call of the fork gets the first unused recorded result of the same tool with the same arguments. If none
    is left, the last result is used again, but only for a read-only tool: a call of any other tool may change
    what the next call returns. Results up to message `after` count as used. A call with a redacted result
    counts as not recorded, unless the fork replaces the result: `replaced` has the ids of such calls.
    """

    _envelopes: Iterable[Envelope[Any]]
    _after: int
    _listings: Mapping[m.ServerName, tuple[m.ToolDefinition, ...]]
    _replaced: Collection[str] = ()
    # The servers whose recorded tools were set by a fork, or had a secret redacted.
    inexact: set[m.ServerName] = set()
    settled: dict[str, RecordedCall] = {}  # the calls that have a result or a failure, by id
    _opened: dict[m.ServerName, list[tuple[int, Listing]]] = {}
    _calls: dict[tuple[m.BatchId, m.CallId], RecordedCall] = {}
    _sent: dict[m.ServerName, RecordedCall] = {}
    _begun: set[m.ServerName] = set()  # servers whose session has made no call of its last batch yet
    _relistings: dict[m.ServerName, list[_Relisting]] = {}
    _questions: dict[str, _Question] = {}
    _decisions: dict[_Question, dict[str, ApprovalDecision]] = {}
    _postponed: set[_Question] = set()
    _disabled: dict[m.ServerName, m.McpDisabled] = {}
    _failures: dict[m.ServerName, deque[m.ConnectFailed]] = {}
    _starting: set[m.ServerName] = set()
    _when_called: set[m.ServerName] = set()
    _started: dict[m.ServerName, anyio.Event] = {}  # in the order in which the servers started
    _left: dict[_Key, deque[RecordedCall]] = {}
    _last: dict[_Key, RecordedCall] = {}

    def __post_init__(self) -> None:
        self.inexact.update(self._listings)
        for envelope in self._envelopes:
            self._see(envelope)
        self._envelopes = ()  # they would take memory until the fork ends
        for call in self._calls.values():
            if call.seq:
                self.settled.setdefault(call.call.call_id, call)
        for call in sorted(self._calls.values(), key=lambda each: each.seq):
            if call.settlement is None or (call.redacted and call.call.call_id not in self._replaced):
                continue
            if call.seq > self._after:
                self._left.setdefault(call.key, deque()).append(call)
            else:
                self._last[call.key] = call

    def listing(self, server: m.ServerName) -> Listing | None:
        """Return the tools that a server lists at the fork; `None`: the trace and the fork have no list."""
        known = self._opened.get(server, [])
        before = [each for seq, each in known if seq <= self._after]
        listing = before[-1] if before else known[0][1] if known else None
        tools = self._listings.get(server)
        if tools is None:
            return listing
        return Listing(tools=tools, protocol_version=listing.protocol_version if listing else "")

    def connections(self, policy: FailurePolicy, retries: int) -> dict[m.ServerName, Settled]:
        """Return the servers that the recorded turn disabled after the fork, with their state at the fork.

        `retries`: how often the fork retries a start. It does not repeat further recorded failures.
        """
        states: dict[m.ServerName, Settled] = {}
        for server, disabled in self._disabled.items():
            failures = self._failures.get(server, deque())
            attempts = len(failures)
            while len(failures) > 1 + retries:
                failures.pop()
            if not attempts:
                states[server] = Disabled(disabled.reason, last_words=disabled.last_words)
            else:
                once = attempts == 1 and policy.on_first_connect(server) == "disable"
                states[server] = Untried() if once else Proven()
        return states

    def is_down(self, server: m.ServerName) -> bool:
        """Return whether the next start of a server has to fail, as in the recorded turn."""
        return server in self._disabled and bool(self._failures.get(server))

    async def start(self, server: m.ServerName, *, in_order: bool) -> None:
        """Repeat a server's recorded start: a recorded failure raises `ServerFailed`.

        `in_order`: first wait for the servers that started before this one.
        """
        if in_order and server in self._started:
            for started in takewhile(lambda each: each is not self._started[server], self._started.values()):
                await started.wait()
        failed = self._failures[server].popleft() if self.is_down(server) else None
        if server in self._started and not self.is_down(server):
            self._started[server].set()
        if failed is not None:
            raise ServerFailed(failed.failure)

    def relisted(
        self, server: m.ServerName, call: RecordedCall | None
    ) -> list[tuple[m.ToolDefinition, ...] | None]:
        """Return two lists of tools: one recorded with the result of `call`, one when the next batch began.

        If `call` is `None`, the first list is the one recorded after the fork's place and before a new call.
        `None` in place of a list: it has not changed, or the fork sets it. Each list is returned only once.
        """
        answers: list[tuple[m.ToolDefinition, ...] | None] = [None, None]
        for each in [] if server in self._listings else self._relistings.pop(server, []):
            at_fork = each.seq > self._after and (each.call is None or each.call.seq <= self._after)
            if call is None and at_fork:
                answers[0] = each.tools
            elif call is not None and each.call is call:
                answers[each.again] = each.tools
            else:
                self._relistings.setdefault(server, []).append(each)
        return answers

    def next(self, server: m.ServerName, tool: str, arguments: m.JsonObject) -> RecordedCall | None:
        """Return the recorded call that `take` would return, without taking it."""
        key = server, tool, digest(arguments)
        left = self._left.get(key)
        if left:
            return left[0]
        listing = self.listing(server)
        named = [each for each in listing.tools if each.tool == tool] if listing else []
        return self._last.get(key) if any(hints_of(each.annotations).read_only for each in named) else None

    def take(self, server: m.ServerName, tool: str, arguments: m.JsonObject) -> RecordedCall | None:
        """Return the recorded call whose result this call gets, and count it as used; `None`: none left."""
        found = self.next(server, tool, arguments)
        if found is not None and self._left.get(found.key):
            self._last[found.key] = self._left[found.key].popleft()
        return found

    def of_task(self, task: m.ToolTask) -> RecordedCall | None:
        """Return the recorded call that ran as this MCP task; `None`: no such call has a recorded end."""
        tasks = (each for each in self._calls.values() if each.seq and each.call.task == task)
        return next(tasks, None)

    def decision(self, question: ApprovalQuestion) -> ApprovalDecision | None:
        """Return a person's next recorded answer to this question; `None`: there is no further answer."""
        left = self._decisions.get(_asked(question))
        if not left:
            return None
        # The recorded decision becomes one about the fork's question.
        ids = {name: getattr(question, name) for name in ("call_id", "name", "definition_digest")}
        return replace(left.pop(next(iter(left))), **ids)

    def was_postponed(self, question: ApprovalQuestion) -> bool:
        """Return whether the recorded turn asked this question and got no answer."""
        return _asked(question) in self._postponed

    def _see(self, envelope: Envelope[Any]) -> None:
        if envelope.redacted and isinstance(envelope.body, m.SessionOpened | m.ToolsChanged):
            self.inexact.add(envelope.body.server)
        if isinstance(envelope.body, m.RunTurn):
            self._when_called = {each.server for each in envelope.body.when_called}
        match envelope.body:
            case m.RunTurn(resumed=m.Resumption(decisions=decisions)):
                self._decide(decisions)
            case m.SessionOpened() as opened:
                listing = Listing(
                    tools=opened.tools,
                    protocol_version=opened.protocol_version,
                    serves_unlisted=opened.serves_unlisted,
                )
                self._opened.setdefault(opened.server, []).append((envelope.seq, listing))
                if envelope.seq > self._after:
                    self._starts(opened.server)
            case m.TurnForked(listings=listings):
                for server, tools in listings.items():
                    self.inexact.add(server)
                    self._offer(server, tools, envelope.seq)
            case m.OpenSession(server=server) if not self._started and server not in self._when_called:
                self._starting.add(server)
            case m.ConnectFailed(server=server) if envelope.seq > self._after:
                self._failures.setdefault(server, deque()).append(envelope.body)
            case m.McpDisabled(server=server) if envelope.seq > self._after:
                self._disabled[server] = envelope.body
                if server in self._failures:
                    self._starts(server)
            case m.CallTools(server=server, batch=batch, calls=calls):
                self._calls |= {(batch, call.call_id): RecordedCall(server, call) for call in calls}
                self._begun.add(server)
            case m.ToolCalled(server=server, batch=batch, call_id=call_id):
                self._begun.discard(server)
                if (batch, call_id) in self._calls:
                    self._sent[server] = self._calls[batch, call_id]
            case m.ToolsChanged(server=server, tools=tools):
                self._offer(server, tools, envelope.seq)
                again = server in self._begun
                relisting = _Relisting(envelope.seq, tools, self._sent.get(server), again)
                self._relistings.setdefault(server, []).append(relisting)
            case m.AskApproval(questions=questions):
                self._questions |= {each.call_id: _asked(each) for each in questions}
                self._postponed |= {_asked(each) for each in questions}
            case m.CallsDecided(decisions=decisions):
                self._decide(decisions)
            case _:
                self._settle(envelope)

    def _starts(self, server: m.ServerName) -> None:
        # In a fork, servers wait only for the servers in `_starting`, which start with the turn. A server
        # that starts at its first call may never start in the fork.
        if server in self._starting:
            self._started.setdefault(server, anyio.Event())

    def _settle(self, envelope: Envelope[Any]) -> None:
        settlement = envelope.body
        if not isinstance(settlement, m.ToolReturned | m.ToolTimedOut | m.ToolSkipped | m.ServerDied):
            return
        call = self._calls.get((settlement.batch, settlement.call_id))
        # A call that was sent has a result, and so has a call that its server refused. A call that was
        # skipped for another reason, such as the timeout of another call, has none.
        if call is not None and (not isinstance(settlement, m.ToolSkipped) or settlement.refused):
            call.seq, call.settlement, call.redacted = envelope.seq, settlement, envelope.redacted

    def _offer(self, server: m.ServerName, tools: tuple[m.ToolDefinition, ...], seq: int) -> None:
        before = self._opened.get(server)
        if before:
            before.append((seq, replace(before[-1][1], tools=tools)))

    def _decide(self, decisions: Iterable[ApprovalDecision]) -> None:
        for decision in decisions:
            question = self._questions.get(decision.call_id)
            if question is not None:
                self._decisions.setdefault(question, {})[decision.call_id] = decision
                self._postponed.discard(question)


def _asked(question: ApprovalQuestion) -> _Question:
    return question.name, question.arguments_digest


class RecordedApproval(Approval, frozen=True, kw_only=True):
    """Answers the calls and the questions of a fork as recorded, and others as `misses` says."""

    record: TurnRecord
    misses: Misses
    results: Mapping[str, m.ToolCallResult]  # new results in place of recorded ones, by the ids of the calls
    where: str  # names the turn in errors

    def missed(self, what: str) -> ForkMissed:
        """Return the error for a call or a question that has no recorded answer; `what` describes it."""
        more = " Or have somebody at the terminal to ask." if self.misses == "ask" else ""
        return ForkMissed(
            f"The fork of {self.where} no longer follows the record: {what}, and the record has no answer "
            "to that. Nothing was called. If the effects of the call are wanted, fork it with --misses call"
            f' (in Python misses="call").{more}'
        )

    def answerer(self, command: m.RunTurn, recorder: Recorder) -> Answer | None:
        """Return the function that answers the turn's questions; `None`: the policy never asks."""
        ask = super().answerer(command, recorder)
        if ask is None:
            return None

        async def answer(questions: tuple[ApprovalQuestion, ...]) -> m.CallsDecided | m.ApprovalPostponed:
            known = [self.record.decision(question) for question in questions]
            decided = tuple(each for each in known if each is not None)
            rest = tuple(question for question, each in zip(questions, known, strict=True) if each is None)
            if rest and all(self.record.was_postponed(question) for question in rest):
                return m.ApprovalPostponed()
            if rest and (self.misses == "fail" or (self.misses == "ask" and self.approve is None)):
                raise self.missed(f"it asks whether to call {rest[0].name}")
            answered = await ask(rest) if rest else m.CallsDecided(decisions=())
            if isinstance(answered, m.ApprovalPostponed):
                return answered
            return m.CallsDecided(decisions=(*decided, *answered.decisions))

        return answer

    def connecting(self, connect: Connect, command: m.RunTurn, server: m.ServerName) -> Connect:
        """Return a factory of connections that answer calls with recorded results."""
        live = None if self.misses == "fail" or self.record.is_down(server) else connect
        ask: Answer | None = None
        if self.misses == "ask":
            policy = ToolPolicy(rules=(ToolRule(verdict="ask"),))
            ask = super().answerer(replace(command, tool_policy=policy), Recorder())
        return lambda note: _RecordedConnection(server, self, None if live is None else live(note), ask)


@dataclass(eq=False, repr=False)
class _RecordedConnection:
    """A `ToolConnection` that answers calls with recorded results."""

    _server: m.ServerName
    _fork: RecordedApproval
    _live: ToolConnection | None  # the real server; `None`: only recorded calls have results
    _ask: Answer | None  # asks a person about a call without a recorded result; `None`: nobody is asked
    _asked: int = 0
    _down: ServerFailed | None = None
    _entered: bool = False
    _tools: tuple[m.ToolDefinition, ...] = ()
    _live_listing: Listing = field(default_factory=lambda: Listing(tools=(), protocol_version=""))
    _relisted: list[tuple[m.ToolDefinition, ...] | None] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        if self._live is not None:
            try:
                await self._live.__aenter__()
                self._entered = True
            except ServerFailed as failed:
                # Do not raise the error yet: perhaps all calls have recorded results.
                self._down = failed
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._live is not None and self._entered:
            await self._live.__aexit__(exc_type, exc, tb)

    async def open(self, timeout_s: float) -> Listing:
        """Open the real server, if the fork has one. Return the recorded listing, or else the server's."""
        listing = self._fork.record.listing(self._server)
        await self._fork.record.start(self._server, in_order=self._fork.misses == "fail")
        if self._live is not None and self._entered:
            try:
                self._live_listing = await self._live.open(timeout_s)
                listing = listing or self._live_listing
            except ServerFailed as failed:
                self._down = failed
        if listing is None and self._down is not None:
            raise self._down
        if listing is None:
            raise self._fork.missed(f"it opens the server {self._server}, which had listed no tools yet")
        self._tools = listing.tools
        self._relisted = self._fork.record.relisted(self._server, None)
        return listing

    async def call(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.ToolCallResult:
        """Answer as recorded, or by `_fork.results`; without a record, do what `_fork.misses` says."""
        found = self._fork.record.take(self._server, tool, arguments)
        if found is not None:
            self._relisted = self._fork.record.relisted(self._server, found)
            return self._as_recorded(found, tool)
        return await self._miss(tool, arguments, timeout_s)

    async def refusal(self, tool: str, arguments: m.JsonObject) -> str | None:
        """Return why the call must not be sent, as recorded or as found now; `None`: it may be sent."""
        found = self._fork.record.next(self._server, tool, arguments)
        if found is not None and found.call.call_id in self._fork.results:
            return None
        if found is not None and isinstance(found.settlement, m.ToolSkipped):
            self._fork.record.take(self._server, tool, arguments)
            return found.settlement.reason
        if found is None and self._live is not None and self._down is None:
            if not self._is_as_told(tool):
                return NOT_AS_RECORDED
            return await connections.refusal(self._live, tool, arguments)
        return None

    async def finish_task(self, tool: str, task: m.ToolTask, timeout_s: float) -> m.ToolCallResult:
        found = self._fork.record.of_task(task)
        if found is not None:
            return self._as_recorded(found, tool)
        if self._live is None or self._down is not None:
            raise self._fork.missed(f"it asks {self._server} for the result of a task of {tool}")
        return await connections.finish_task(self._live, tool, task, timeout_s)

    async def refresh_tools(self, timeout_s: float) -> tuple[m.ToolDefinition, ...] | None:
        """Return the tools that the server listed at this place of the recorded turn; `None`: no new list."""
        del timeout_s
        tools = self._relisted.pop(0) if self._relisted else None
        self._tools = self._tools if tools is None else tools
        return tools

    def exclusive(self) -> contextlib.AbstractAsyncContextManager[object]:
        return connections.exclusive(None if self._down is not None else self._live)

    @property
    def status(self) -> ConnectionStatus:
        """The live server's state; without a live server, the state of an open connection."""
        live = self._live if self._entered and self._down is None else None
        return ConnectionStatus() if live is None else live.status

    def _as_recorded(self, found: RecordedCall, tool: str) -> m.ToolCallResult:
        other = self._fork.results.get(found.call.call_id)
        if other is not None:
            return other
        match found.settlement:
            case m.ToolReturned(result=result):
                return result
            case m.ToolTimedOut(timeout_s=timeout_s):
                raise ToolTimedOutError(tool, timeout_s)
            case m.ServerDied(failure=failure):
                raise ServerFailed(failure)
            case _:
                raise AssertionError("a refused call is not made, and other calls have a result")

    async def _miss(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.ToolCallResult:
        shown = f"it calls {self._server}.{tool} with {msgspec.json.encode(arguments).decode():.200}"
        if self._live is None or (self._fork.misses == "ask" and self._fork.approve is None):
            raise self._fork.missed(shown)
        if self._ask is not None:
            arguments = await self._agreed(self._ask, tool, arguments)
        if self._down is not None:
            raise self._down
        tools = await self._live.refresh_tools(timeout_s)
        if tools is not None:
            self._live_listing = replace(self._live_listing, tools=tools)
        if not self._is_as_told(tool):
            raise ToolRefusedError(NOT_AS_RECORDED, code=_INVALID_REQUEST)
        return await self._live.call(tool, arguments, timeout_s)

    async def _agreed(self, ask: Answer, tool: str, arguments: m.JsonObject) -> m.JsonObject:
        """Ask a person about a call and return the arguments for it, or raise `ToolRefusedError`."""
        self._asked += 1
        named = (each for each in self._tools if each.tool == tool)
        definition = next(named, m.ToolDefinition(server=self._server, tool=tool, input_schema={}))
        question = question_about(f"miss-{self._asked}", definition, arguments, NOT_RECORDED)
        answer = await ask((question,))
        decisions = answer.decisions if isinstance(answer, m.CallsDecided) else ()
        decision = next((each for each in decisions if each.call_id == question.call_id), None)
        if decision is None or decision.verdict == "deny":
            raise ToolRefusedError(_DENIED, code=_INVALID_REQUEST)
        return arguments if decision.arguments is None else decision.arguments

    def _is_as_told(self, tool: str) -> bool:
        """Return whether the server has the tool as the model was told; if the record is inexact, at all."""
        listed = self._live_listing
        live = tuple(replace(each, server=self._server) for each in listed.tools if each.tool == tool)
        if self._server in self._fork.record.inexact:  # the definitions cannot be compared
            return listed.serves_unlisted or bool(live)
        told = next((each for each in self._tools if each.tool == tool), unlisted_tool(self._server, tool))
        call = m.ServerCall(call_id=m.CallId(""), tool=tool, arguments={}, definition=definition_digest(told))
        return is_as_decided(call, self._server, live, serves_unlisted=listed.serves_unlisted)
