"""The session: it alone owns a tool server, from spawn to the last reaped process, and serialises its calls.

The actor keeps the connection open between two messages, in the task that opened it, which is the task that
closes it. What to do when a connect fails is decided by `protocol/connection.py`; what a settlement means for
the rest of a batch is in the `CallTools` command.

The server behind it is anything that is a `Connect`: an MCP client, a dictionary of functions, an object with
the seeds' four coroutines. The agent cannot tell.
"""

import contextlib
from typing import Literal

import anyio

from grue.messages import (
    CallTools,
    CloseSession,
    ConnectFailed,
    McpDisabled,
    OpenSession,
    ServerCall,
    ServerDied,
    ServerName,
    SessionClosed,
    SessionCommand,
    SessionOpened,
    Settlement,
    StartupFailed,
    ToolCalled,
    ToolReturned,
    ToolsChanged,
    ToolSkipped,
    ToolTimedOut,
    TurnEvent,
)
from grue.protocol import tool_results
from grue.protocol.connection import (
    Attempt,
    AttemptFailed,
    ConnectionCommand,
    ConnectionState,
    ConnectRequested,
    ConnectSucceeded,
    ReportDisabled,
    ReportOpened,
    ReportStartupFailure,
    Untried,
    connection_step,
)
from grue.runtime.actor import Actor, Note
from grue.runtime.channel import Mailbox, MailboxClosed
from grue.runtime.trace import Envelope
from grue.tool_sessions.connection import Connect, ToolConnection
from grue.tool_sessions.failures import ServerFailed, ToolRefusedError, ToolTimedOutError

_CLOSE_REPORT_S = 1.0


class SessionActor(Actor[SessionCommand]):
    """Serve one tool server's sessions, one after the other.

    Args:
        mailbox: Takes the commands; its name is the server's in the configuration.
        agent: Takes the events.
        connect: Makes the connection for each attempt.
        note: Records what nobody has to act upon.
        connection: What the episode remembers of this server.
        deadline: When everything but closing has to end, on the event loop's clock.

    Attributes:
        connection: The same after the last command; settled between turns.
    """

    def __init__(
        self,
        mailbox: Mailbox[SessionCommand],
        *,
        agent: Mailbox[TurnEvent],
        connect: Connect,
        note: Note,
        connection: ConnectionState | None = None,
        deadline: float = float("inf"),
    ) -> None:
        super().__init__(mailbox)
        self.connection: ConnectionState = connection or Untried()
        self._server = ServerName(mailbox.name)
        self._agent = agent
        self._connect = connect
        self._note = note
        self._deadline = deadline
        self._connected: ToolConnection | None = None
        self._said_closed = False

    async def run(self) -> None:
        """Serve until the mailbox is closed. Cancelled, end the process, and say so before it goes on."""
        try:
            await super().run()
        except anyio.get_cancelled_exc_class():
            # The agent waits for this word, and its own request for it may lie unread in the mailbox.
            if not self._said_closed:
                await self._report_closed(None)
            raise

    async def receive(self, envelope: Envelope[SessionCommand]) -> None:
        """Serve a session from its `OpenSession` to its `CloseSession`."""
        match envelope.body:
            case OpenSession():
                await self._open(envelope.body, envelope.seq)
            case CloseSession():
                await self._report_closed(envelope.seq)
            case CallTools():
                await self._skip(envelope.body, 0, tool_results.SKIPPED_AFTER_DEATH, envelope.seq)

    async def _open(self, command: OpenSession, cause: int) -> None:
        self._said_closed = False
        before = self.connection
        order: ConnectionCommand | None = self._connection_step(ConnectRequested(command.policy))
        while isinstance(order, Attempt):
            order = await self._attempt(order, command, cause)
        match order:
            case ReportDisabled(reason, newly):
                await self._tell(McpDisabled(server=self._server, reason=reason, newly=newly), cause)
            case ReportStartupFailure(failure):
                await self._tell(StartupFailed(server=self._server, failure=failure), cause)
            case ReportOpened():
                pass  # said already, while the session was open
            case None:
                # The turn's time was up: that says nothing about the server, and the agent knows.
                self.connection = before

    async def _attempt(self, attempt: Attempt, command: OpenSession, cause: int) -> ConnectionCommand | None:
        """Connect, and if that succeeds, serve the whole session; return what follows."""
        started = anyio.current_time()
        self._connected = connection = self._connect(self._note)
        closing: float | None = None
        try:
            async with connection:
                listing = await connection.open(self._within(command.timeout_s))
                order = self._connection_step(ConnectSucceeded())
                opened = SessionOpened(
                    server=self._server,
                    tools=listing.tools,
                    attempt=attempt.number,
                    protocol_version=listing.protocol_version,
                    pid=connection.pid,
                    elapsed_s=anyio.current_time() - started,
                )
                await self._tell(opened, cause)
                cause = await self._serve(connection) or cause
                closing = anyio.current_time()
        except ServerFailed as failed:
            self._connected = None
            if anyio.current_time() >= self._deadline:
                return None
            return self._connect_failed(failed, attempt, cause)
        finally:
            if closing is not None:
                await self._report_closed(cause, elapsed_s=anyio.current_time() - closing)
        return order

    def _connect_failed(self, failed: ServerFailed, attempt: Attempt, cause: int) -> ConnectionCommand:
        order = self._connection_step(AttemptFailed(failed.failure))
        then: Literal["retry", "disable", "raise"] = "disable"
        if isinstance(order, Attempt):
            then = "retry"
        elif isinstance(order, ReportStartupFailure):
            then = "raise"
        note = ConnectFailed(server=self._server, attempt=attempt.number, failure=failed.failure, then=then)
        self._note(note, sender=self.name, cause=cause)
        return order

    async def _report_closed(self, cause: int | None, *, elapsed_s: float = 0.0) -> None:
        """Say that the session is closed, also while being cancelled."""
        connection, self._connected = self._connected, None
        closed = SessionClosed(
            server=self._server,
            ending=(connection.ending if connection else None) or "none",
            exit_status=connection.exit.status if connection and connection.exit else None,
            stderr_tail=connection.stderr_tail if connection else "",
            elapsed_s=elapsed_s,
        )
        self._said_closed = True
        bound = anyio.current_time() + _CLOSE_REPORT_S
        with anyio.CancelScope(shield=True, deadline=bound), contextlib.suppress(MailboxClosed):
            await self._tell(closed, cause)

    async def _serve(self, connection: ToolConnection) -> int | None:
        """Serve batches until the session is to be closed; return the number of the word that said so."""
        async for envelope in self.mailbox:
            match envelope.body:
                case CallTools():
                    await self._call_all(connection, envelope.body, envelope.seq)
                case CloseSession():
                    return envelope.seq
                case OpenSession():
                    raise RuntimeError(f"{self._server} was asked to open a session that is open")
        return None

    async def _call_all(self, connection: ToolConnection, batch: CallTools, cause: int) -> None:
        await self._tell_of_new_tools(connection, batch, cause)
        for position, call in enumerate(batch.calls):
            called = ToolCalled(
                server=self._server,
                batch=batch.batch,
                call_id=call.call_id,
                tool=call.tool,
                arguments=call.arguments,
            )
            self._note(called, sender=self.name, cause=cause)
            settlement = await self._call(connection, batch, call)
            if call is batch.calls[-1]:
                await self._tell_of_new_tools(connection, batch, cause)
            await self._tell(settlement, cause)
            if isinstance(settlement, ServerDied):
                return await self._skip(batch, position + 1, tool_results.SKIPPED_AFTER_DEATH, cause)
            if isinstance(settlement, ToolTimedOut) and batch.after_timeout == "skip":
                return await self._skip(batch, position + 1, tool_results.SKIPPED_AFTER_TIMEOUT, cause)
        return None

    async def _tell_of_new_tools(self, connection: ToolConnection, batch: CallTools, cause: int) -> None:
        """Say so before the last settlement, with which the agent goes on and asks the model.

        What a server says after its answer is learned when the next batch begins.
        """
        tools = await connection.refresh_tools(self._within(batch.timeout_s))
        if tools is not None:
            await self._tell(ToolsChanged(server=self._server, tools=tools), cause)

    async def _call(self, connection: ToolConnection, batch: CallTools, call: ServerCall) -> Settlement:
        started = anyio.current_time()

        def lasted() -> float:
            return anyio.current_time() - started

        number, call_id = batch.batch, call.call_id
        try:
            result = await connection.call(call.tool, call.arguments, self._within(batch.timeout_s))
        except ToolTimedOutError as error:
            # The server's own limit may be the smaller one.
            timeout_s = min(batch.timeout_s, error.timeout_s)
            return ToolTimedOut(batch=number, call_id=call_id, timeout_s=timeout_s, duration_s=lasted())
        except ToolRefusedError as refusal:
            result = tool_results.call_failed(str(refusal))
        except ServerFailed as failed:
            return ServerDied(
                server=self._server,
                batch=number,
                call_id=call_id,
                failure=failed.failure,
                duration_s=lasted(),
            )
        return ToolReturned(batch=number, call_id=call_id, result=result, duration_s=lasted())

    async def _skip(self, batch: CallTools, start: int, reason: str, cause: int) -> None:
        for call in batch.calls[start:]:
            await self._tell(ToolSkipped(batch=batch.batch, call_id=call.call_id, reason=reason), cause)

    async def _tell(self, event: TurnEvent, cause: int | None) -> None:
        await self._agent.send(event, sender=self.name, cause=cause)

    def _connection_step(
        self, event: ConnectRequested | ConnectSucceeded | AttemptFailed
    ) -> ConnectionCommand:
        self.connection, order = connection_step(self.connection, event)
        return order

    def _within(self, timeout_s: float) -> float:
        return max(0.0, min(timeout_s, self._deadline - anyio.current_time()))
