"""A tool session that one task owns from connect to disconnect, while any task may use it.

Other tasks send tool calls to the session's actor, and requests over the open connection. They never enter
or leave the connection: anyio's cancel scopes must be left in the task that entered them.
"""

import asyncio
import contextlib
from dataclasses import dataclass

import anyio
from msgspec.structs import replace

from grue import messages as m
from grue.actors.mcp_session import SessionActor
from grue.errors import MCPError, TraceError
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.calls import unlisted_tool
from grue.protocol.tools.policy import definition_digest
from grue.protocol.turn.connection import ConnectionState
from grue.runtime.actor import MailboxClosed, Note, Supervisor
from grue.runtime.loops.host_code import ends_the_task, in_words
from grue.runtime.trace.recorder import Recorder
from grue.tool_sessions import connection as connections
from grue.tool_sessions.connection import Connect, ToolConnection, WrappedConnection
from grue.tool_sessions.failures import ToolRefusedError

_ME = "host"
_CANCELLED = -32800  # the Language Server Protocol's error code for a request that the client cancelled


class NotAsDecided(MCPError):  # noqa: N818 - named as the fact it reports, like the messages
    """The tool's definition has changed since the call was allowed, or the tool is gone. Nothing was sent."""


class NotSent(MCPError):  # noqa: N818 - named as the fact it reports, like the messages
    """The session had ended before the call or request could be sent."""


class _CancellableConnection(WrappedConnection):
    """A connection that stays usable if another task cancels its current call by the scope `calling`."""

    def __init__(self, connection: ToolConnection) -> None:
        super().__init__(connection)
        self.calling: anyio.CancelScope | None = None
        self.blocks: tuple[m.JsonObject, ...] = ()  # content of the last call's result, as the server sent it

    async def call(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.ToolCallResult:
        """Call a tool. Raises `ToolRefusedError` if another task cancels the scope `calling`."""
        self.blocks = ()
        with self.calling or anyio.CancelScope():
            answer = connections.call_with_blocks(self._connection, tool, arguments, timeout_s)
            result, self.blocks = await answer
            return result
        raise ToolRefusedError("cancelled by its caller", code=_CANCELLED)

    async def request(self, method: str, params: m.JsonObject, timeout_s: float) -> m.JsonObject:
        async with self.exclusive():
            return await connections.request(self._connection, method, params, timeout_s)


@dataclass(eq=False, repr=False)
class OwnedSession:
    """One session, from `OpenSession` to `SessionClosed`. Create it in the event loop in which it runs."""

    _command: m.OpenSession
    _connect_to_server: Connect
    _recorder: Recorder
    connection: ConnectionState
    deadline: float = float("inf")  # in the loop's time; the session is then cancelled
    fault: BaseException | None = None  # the unexpected exception that ended the session
    _fault_raised: bool = False
    _closing: bool = False
    tools: tuple[m.ToolDefinition, ...] = ()
    serves_unlisted: bool = False
    closed: m.SessionClosed | None = None
    died: m.ServerFailure | None = None
    _client: _CancellableConnection | None = None
    _actor: SessionActor | None = None
    _group: Supervisor | None = None
    _calls: int = 0

    def __post_init__(self) -> None:
        self._one_call_at_a_time = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[m.ConnectOutcome | None] = self._loop.create_future()
        self._settled: asyncio.Future[m.Settlement | None] = self._loop.create_future()
        self._owner = self._loop.create_task(self._own(), name=f"grue-mcp-{self._command.server}")
        # A callback, because a task that is cancelled before it starts never runs any code of `_own`.
        self._owner.add_done_callback(self._ended)

    @property
    def alive(self) -> bool:
        """`True` if the session's task still runs, in the current event loop."""
        return self._loop is asyncio.get_running_loop() and not self._owner.done()

    @property
    def usable(self) -> bool:
        """`True` if the session is open and its process, if any, runs. The server is not asked."""
        opened = self.alive and self._opened.done() and self.died is None
        return opened and self._client is not None and self._client.status.alive

    @property
    def status(self) -> connections.ConnectionStatus:
        """The state of the connection and of the server's process, also after the session has ended."""
        return connections.ConnectionStatus() if self._client is None else self._client.status

    async def opened(self) -> m.ConnectOutcome | None:
        """Wait for the outcome of connecting, and return it. Cancelling this wait ends the session.

        `None`: the task that owns the session ended before there was an outcome.
        """
        try:
            await asyncio.wait({self._opened})
        except asyncio.CancelledError:
            self._owner.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({self._owner})
            raise
        outcome = self._opened.result()
        if not isinstance(outcome, m.SessionOpened):
            await asyncio.wait({self._owner})
        return outcome

    async def call(
        self,
        tool: str,
        arguments: m.JsonObject,
        timeout_s: float,
        *,
        turn: int = 0,
        definition: m.ToolDefinition | None = None,
    ) -> m.ToolCallResult:
        """Call a tool, after the session's current call. Cancellation cancels only this call.

        The decision to call was based on `definition`, by default the present one. `turn`: the turn that the
        call is recorded in; 0: that of the session. Raises `TimeoutError` if there is no answer within
        `timeout_s` of the sending, or within the server's own limit; `NotAsDecided` if the server lists the
        tool with another definition or not at all; `NotSent`, or another `MCPError`, if the session ends
        before the call or before the answer.
        """
        async with self._one_call_at_a_time:
            if self.died is not None:
                raise NotSent(self.died.cause)
            if self._closing or not self.alive:
                self.raise_fault()
                raise NotSent(f"the session has ended: {self._why_ended()}") from self.fault
            settlement = await self._settlement(tool, arguments, timeout_s, definition, turn)
            blocks = () if self._client is None else self._client.blocks
        match settlement:
            case m.ToolReturned(result=result):
                return replace(result, blocks=blocks) if blocks else result
            case m.ToolTimedOut(timeout_s=limit_s):
                raise TimeoutError(f"Tool call timed out after {limit_s:g}s")
            case m.ServerDied(failure=failure):
                self.died = failure
                raise MCPError(failure.cause)
            case m.ToolSkipped(reason=tool_results.NOT_AS_DECIDED as reason):
                raise NotAsDecided(reason)
            case m.ToolSkipped(reason=reason, refused=True):
                return tool_results.call_failed(reason)
            case m.ToolSkipped(reason=reason):
                raise MCPError(reason)
            case None:
                self.raise_fault()
                raise MCPError(f"the session has ended: {self._why_ended()}") from self.fault

    async def request(self, method: str, params: m.JsonObject, timeout_s: float) -> m.JsonObject:
        """Send a request other than a tool call, after the current call, and return the raw result.

        Cancellation cancels the request; the session stays open. Raises `ToolTimedOutError`,
        `ToolRefusedError` for an error of the server, `ServerFailed`, or `MCPError` if the session has ended
        or the server is no MCP server.
        """
        async with self._one_call_at_a_time:
            if self.died is not None:
                raise NotSent(self.died.cause)
            if not self.usable or self._client is None:
                self.raise_fault()
                raise NotSent(f"the session has ended: {self._why_ended()}") from self.fault
            return await self._client.request(method, params, timeout_s)

    def raise_fault(self) -> None:
        """Raise the session's `fault` if it is a `TraceError`, or, once, if it is not an `Exception`."""
        if isinstance(self.fault, TraceError):
            raise self.fault
        # The caller may have caught what is to end the program. Its next call must not raise it again.
        if self.fault is not None and not isinstance(self.fault, Exception) and not self._fault_raised:
            self._fault_raised = True
            raise self.fault

    def _why_ended(self) -> str:
        return "it was closed" if self.fault is None else in_words(self.fault)

    async def close(self, *, hurried: bool = False) -> None:
        """Close the session, in any state, and wait until it is closed.

        If `hurried`, the server gets as little time to exit as after a cancellation. Otherwise, if an error
        such as a `TraceError` ends the session meanwhile, raises this error.
        """
        if not self.alive:
            return
        self._closing = True
        if self.usable:  # otherwise the call fails by itself, and its caller has to learn why
            self._take_back_call()
        if hurried or self._actor is None or not self._opened.done():
            self.hurry()
        else:
            close = m.CloseSession(server=self._command.server)
            try:
                with contextlib.suppress(MailboxClosed):  # the session is ending already
                    await self._actor.mailbox.send(close, sender=_ME)
            except BaseException as error:
                if not ends_the_task(error):  # an observer's error: the command could not be recorded
                    self._owner.cancel()
                    await asyncio.wait({self._owner})
                raise
        await asyncio.wait({self._owner})
        if self.fault is not None and not hurried:
            raise self.fault  # such as a `TraceError`: the end of the session could not be recorded

    def hurry(self) -> None:
        """End the session, also if it is closing already. The server gets little time, as if cancelled."""
        if self.alive:
            self._owner.cancel()

    async def _settlement(
        self,
        tool: str,
        arguments: m.JsonObject,
        timeout_s: float,
        definition: m.ToolDefinition | None,
        turn: int,
    ) -> m.Settlement | None:
        if not self.alive or self._actor is None or self._client is None or self._group is None:
            return None
        self._calls += 1
        server = self._command.server
        unlisted = unlisted_tool(server, tool)
        decided = definition or next((each for each in self.tools if each.tool == tool), unlisted)
        call = m.ServerCall(
            call_id=m.CallId(f"call_{self._calls}"),
            tool=tool,
            arguments=arguments,
            definition=definition_digest(decided),
        )
        batch = m.CallTools(server=server, batch=m.BatchId(self._calls), calls=(call,), timeout_s=timeout_s)
        self._settled = self._loop.create_future()
        self._client.calling = anyio.CancelScope()
        before, self._group.turn = self._group.turn, turn or self._group.turn
        try:
            await self._actor.mailbox.send(batch, sender=_ME)
            await asyncio.wait({self._settled})
        except MailboxClosed:
            return None
        except asyncio.CancelledError:
            self._take_back_call()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({self._settled})
            raise
        finally:
            self._group.turn = before
        return self._settled.result()

    def _take_back_call(self) -> None:
        if self._client is not None and self._client.calling is not None:
            self._client.calling.cancel()

    async def _own(self) -> None:
        try:
            with anyio.CancelScope(deadline=self.deadline):
                await self._run()
        except BaseException as error:
            # Raise here only what has to end this task. Keep any other error for the tasks that use the
            # session: a KeyboardInterrupt raised here would stop the whole event loop.
            if ends_the_task(error):
                raise
            self.fault = error

    def _ended(self, owner: "asyncio.Task[None]") -> None:
        del owner
        for waited_for in (self._opened, self._settled):
            if not waited_for.done():
                waited_for.set_result(None)

    async def _run(self) -> None:
        server, recorder = self._command.server, self._recorder
        async with Supervisor(recorder, turn=self._command.turn) as supervisor:
            self._group = supervisor
            inbox = supervisor.mailbox(_ME)
            self._actor = SessionActor(
                supervisor.mailbox(server),
                agent=inbox,
                connect=self._connect,
                note=supervisor.note,
                connection=self.connection,
                around_call=recorder.around_call,
            )
            supervisor.start(self._actor)
            await self._actor.mailbox.send(self._command, sender=_ME)
            going_on = True
            while going_on:
                event = (await inbox.receive()).body
                # The trace gets the event first, so that it has every result that the host gets.
                await recorder.shown()
                going_on = self._take(event)

    def _connect(self, note: Note) -> _CancellableConnection:
        self._client = _CancellableConnection(self._connect_to_server(note))
        return self._client

    def _take(self, event: m.SessionEvent) -> bool:
        """Take an event, and wake the task that waits for it. Return whether the session is still open."""
        assert self._actor is not None, "events come from the actor"
        if isinstance(event, m.ConnectOutcome):
            self.connection = self._actor.connection
            if isinstance(event, m.SessionOpened):
                self.tools, self.serves_unlisted = event.tools, event.serves_unlisted
            self._opened.set_result(event)
            return isinstance(event, m.SessionOpened)
        if isinstance(event, m.Settlement):
            self._settled.set_result(event)
        elif isinstance(event, m.ToolsChanged):
            self.tools = event.tools
        elif isinstance(event, m.SessionClosed):
            self.closed = event
        return self.closed is None
