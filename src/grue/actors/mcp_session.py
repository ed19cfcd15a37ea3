"""The session actor: opens and closes the sessions of one tool server, and makes its calls one at a time.

`_attempt` opens the connection, serves the session and closes the connection in one call, because anyio's
cancel scopes must be nested, and be left by the task that entered them.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import Any, assert_never

import anyio
from anyio import current_time
from msgspec.structs import replace

from grue import messages as m
from grue.policies import AfterFailedConnect
from grue.protocol.tools import calls
from grue.protocol.tools import results as tool_results
from grue.protocol.turn import connection as conn
from grue.runtime.actor import Actor, Mailbox, MailboxClosed, Note
from grue.runtime.trace.recorder import Envelope
from grue.tool_sessions import connection as connections
from grue.tool_sessions.connection import Connect, ConnectionStatus, ToolConnection
from grue.tool_sessions.failures import ServerFailed, ToolRefusedError, ToolTimedOutError

_CLOSE_REPORT_S = 1.0


class SessionActor(Actor[m.SessionCommand]):
    """Opens, uses and closes one tool server's sessions, one after the other."""

    def __init__(
        self,
        mailbox: Mailbox[m.SessionCommand],
        *,
        agent: Mailbox[m.TurnEvent],
        connect: Connect,
        note: Note,
        connection: conn.ConnectionState | None = None,
        deadline: float = float("inf"),
        around_call: Callable[[int], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        super().__init__(mailbox)
        self._around_call = around_call  # as in `Recorder`
        self.connection: conn.ConnectionState = connection or conn.Untried()
        self._server = m.ServerName(mailbox.name)
        self._agent = agent
        self._connect = connect
        self._note = note
        self._deadline = deadline  # of everything except closing, on the event loop's clock
        self._connected: ToolConnection | None = None
        self._closed_reported = False
        # The tools that the last session listed when it opened, and those that it listed last. `None`: no
        # session has opened, or the server also serves tools that it does not list.
        self.listed: tuple[m.ToolDefinition, ...] | None = None
        self.listed_last: tuple[m.ToolDefinition, ...] | None = None
        self._tools: tuple[m.ToolDefinition, ...] = ()
        self._serves_unlisted = False
        # Set if a fork begins while the recorded session is open: open it without a report to the agent.
        self.reopens: m.OpenSession | None = None

    @contextlib.asynccontextmanager
    async def around(self) -> AsyncIterator[None]:
        """First run the session of `reopens`, if set. If cancelled, make sure that the close is reported."""
        try:
            if self.reopens is not None:
                await self._open(self.reopens, None)
            yield
        except anyio.get_cancelled_exc_class():
            # The agent waits for `SessionClosed` before it ends the turn. Report it now, because nobody will
            # read a `CloseSession` from this mailbox any more.
            if not self._closed_reported:
                await self._report_closed(None)
            raise

    async def receive(self, envelope: Envelope[m.SessionCommand]) -> None:
        """Carry out a command. After `OpenSession`, return when the session has closed or failed to open."""
        match envelope.body:
            case m.OpenSession():
                await self._open(envelope.body, envelope.seq)
            case m.CloseSession():
                await self._report_closed(envelope.seq)
            case m.CallTools():
                await self._call_all(None, envelope.body, envelope.seq)
            case _:
                assert_never(envelope.body)

    async def _open(self, command: m.OpenSession, cause: int | None) -> None:
        self._closed_reported = False
        before = self.connection
        requested = conn.ConnectRequested(self._server, command.policy, current_time())
        order: conn.ConnectionCommand | None = self._connection_step(requested)
        while isinstance(order, conn.Attempt):
            order = await self._attempt(order, command, cause)
        match order:
            case m.McpDisabled() | m.StartupFailed():
                await self._report(order, cause)
            case conn.ReportOpened():
                pass  # `_attempt` has sent `SessionOpened` already
            case None:
                # The turn's deadline has ended the attempt, so it does not count as a failure of the server.
                # The agent gets no report, because it has the same deadline.
                self.connection = before

    async def _attempt(
        self, attempt: conn.Attempt, command: m.OpenSession, cause: int | None
    ) -> conn.ConnectionCommand | None:
        """Connect, make calls until the close, and return what to do next; `None`: the deadline passed."""
        started = current_time()
        self._connected = connection = self._connect(self._note)
        closing: float | None = None
        # Compute the limit before `__aenter__`, because `open` subtracts the time that `__aenter__` took.
        # Otherwise that time would count twice: the limit would pass before the turn's deadline, and the
        # agent would be told that the server has failed.
        limit_s = self._within(command.timeout_s)
        try:
            async with connection:
                listing = await connection.open(limit_s)
                order = self._connection_step(conn.ConnectSucceeded())
                opened = m.SessionOpened(
                    server=self._server,
                    tools=self._named(listing.tools),
                    attempt=attempt.number,
                    protocol_version=listing.protocol_version,
                    pid=connection.status.pid,
                    elapsed_s=current_time() - started,
                    serves_unlisted=listing.serves_unlisted,
                    address=connection.status.address,
                    box=connection.status.box,
                )
                self._tools, self._serves_unlisted = opened.tools, opened.serves_unlisted
                self.listed = self.listed_last = None if opened.serves_unlisted else opened.tools
                if command is self.reopens:
                    self.reopens = None
                else:
                    await self._report(opened, cause)
                cause = await self._serve(connection) or cause
                closing = current_time()
        except ServerFailed as failed:
            self._connected = None
            if current_time() >= self._deadline:
                return None
            return self._connect_failed(failed, attempt, cause)
        finally:
            if closing is not None:
                await self._report_closed(cause, elapsed_s=current_time() - closing)
        return order

    def _connect_failed(
        self, failed: ServerFailed, attempt: conn.Attempt, cause: int | None
    ) -> conn.ConnectionCommand:
        order = self._connection_step(conn.AttemptFailed(failed.failure, current_time()))
        then: AfterFailedConnect = "disable"
        if isinstance(order, conn.Attempt):
            then = "retry"
        elif isinstance(order, m.StartupFailed):
            then = "raise"
        note = m.ConnectFailed(server=self._server, attempt=attempt.number, failure=failed.failure, then=then)
        self._note(note, sender=self.name, cause=cause)
        return order

    async def _report_closed(self, cause: int | None, *, elapsed_s: float = 0.0) -> None:
        """Send `SessionClosed`, even while this task is being cancelled."""
        connection, self._connected = self._connected, None
        status = ConnectionStatus() if connection is None else connection.status
        closed = m.SessionClosed(
            server=self._server,
            ending=status.ending,
            exit_status=status.exit_status,
            stderr_tail=status.stderr_tail,
            elapsed_s=elapsed_s,
        )
        self._closed_reported = True
        bound = current_time() + _CLOSE_REPORT_S
        with anyio.CancelScope(shield=True, deadline=bound), contextlib.suppress(MailboxClosed):
            await self._report(closed, cause)

    async def _serve(self, connection: ToolConnection) -> int | None:
        """Make calls until a `CloseSession`; return its number, or `None` if the mailbox was closed first."""
        async for envelope in self.mailbox:
            match envelope.body:
                case m.CallTools():
                    await self._call_all(connection, envelope.body, envelope.seq)
                case m.CloseSession():
                    return envelope.seq
                case m.OpenSession():
                    raise RuntimeError(f"{self._server} was asked to open a session that is open")
                case _:
                    assert_never(envelope.body)
        return None

    async def _call_all(self, connection: ToolConnection | None, batch: m.CallTools, cause: int) -> None:
        # A program may make calls outside turns through the same session (`keep="sessions"`). With
        # `exclusive`, the program's calls wait until the batch is done.
        async with connections.exclusive(connection):
            for step in calls.steps_of(batch, connected=connection is not None):
                if not isinstance(step, calls.MakeCall):
                    await self._report(step, cause)
                    continue
                assert connection is not None, "without a server, no call is made"
                await self._report_changed_tools(connection, batch, cause)
                step.settlement = await self._made(connection, batch, step, cause)
                if step.last:
                    await self._report_changed_tools(connection, batch, cause)

    async def _made(
        self, connection: ToolConnection, batch: m.CallTools, make: calls.MakeCall, cause: int
    ) -> m.Settlement:
        call, unlisted = make.called, self._serves_unlisted
        reason: str | None = None
        if not calls.is_as_decided(make.call, self._server, self._tools, serves_unlisted=unlisted):
            reason = tool_results.NOT_AS_DECIDED
        elif call.task is None:
            reason = await connections.refusal(connection, call.tool, call.arguments)
        if reason is not None:
            return m.ToolSkipped(batch=call.batch, call_id=call.call_id, reason=reason, refused=True)
        noted = self._note(call, sender=self.name, cause=cause)
        return await self._call(connection, batch, call, noted.seq)

    async def _report_changed_tools(self, connection: ToolConnection, batch: m.CallTools, cause: int) -> None:
        tools = await connection.refresh_tools(self._within(batch.timeout_s))
        if tools is not None:
            tools = self._named(tools)
            self._tools = tools
            self.listed_last = None if self.listed is None else tools
            await self._report(m.ToolsChanged(server=self._server, tools=tools), cause)

    def _named(self, tools: tuple[m.ToolDefinition, ...]) -> tuple[m.ToolDefinition, ...]:
        return tuple(
            tool if tool.server == self._server else replace(tool, server=self._server) for tool in tools
        )

    async def _call(
        self, connection: ToolConnection, batch: m.CallTools, call: m.ToolCalled, message: int
    ) -> m.Settlement:
        started = current_time()
        earlier_id = connection.status.last_request_id

        def settled(kind: Callable[..., m.Settlement], **fields: Any) -> m.Settlement:
            last = connection.status.last_request_id
            if last == earlier_id:  # this call was not sent, so an error code did not come from the server
                last, fields = "", {name: each for name, each in fields.items() if name != "error_code"}
            took_s = current_time() - started
            return kind(batch=batch.batch, call_id=call.call_id, duration_s=took_s, request_id=last, **fields)

        error_code = None
        try:
            with self._around_call(message):
                limit_s = self._within(batch.timeout_s)
                if call.task is None:
                    result = await connection.call(call.tool, call.arguments, limit_s)
                else:
                    result = await connections.finish_task(connection, call.tool, call.task, limit_s)
        except ToolTimedOutError as error:
            # The time limit that the server's configuration sets may be smaller than the batch's.
            return settled(m.ToolTimedOut, timeout_s=min(batch.timeout_s, error.timeout_s))
        except ToolRefusedError as refused:
            result, error_code = tool_results.call_failed(str(refused)), refused.code
        except ServerFailed as failed:
            return settled(m.ServerDied, server=self._server, failure=failed.failure)
        return settled(m.ToolReturned, result=result, error_code=error_code)

    async def _report(self, event: m.SessionEvent, cause: int | None) -> None:
        await self._agent.send(event, sender=self.name, cause=cause)

    def _connection_step(
        self, event: conn.ConnectRequested | conn.ConnectSucceeded | conn.AttemptFailed
    ) -> conn.ConnectionCommand:
        self.connection, order = conn.connection_step(self.connection, event)
        return order

    def _within(self, timeout_s: float) -> float:
        return max(0.0, min(timeout_s, self._deadline - current_time()))
