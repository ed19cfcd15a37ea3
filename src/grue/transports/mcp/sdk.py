"""Run the official MCP SDK over a stream of messages. Import this in functions: `mcp` is slow to import."""

import asyncio
import inspect
import json
import logging
from collections.abc import Mapping
from typing import Any, Literal, Self

import anyio
import mcp_types as types
from mcp.client.extension import ClaimContext, ResultClaim
from mcp.client.session import ClientSession
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost, listen
from mcp.shared import inbound
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError as SdkError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Struct, field
from pydantic import BaseModel

from grue import messages as m
from grue.protocol.json_text import json_object, json_value
from grue.protocol.tools.server_tasks import TaskForm
from grue.runtime.loops.beside_loop import BackgroundTasks
from grue.runtime.loops.host_code import HostCodeFailed, ends_the_task
from grue.runtime.version import __version__
from grue.tool_sessions import server_requests
from grue.tool_sessions.failures import SESSION_LOST, WireFault, first_fault
from grue.transports.mcp.library_logs import library_logs_to
from grue.transports.mcp.message_stream import MessageStream, is_closed

__all__ = ["Link", "SdkError", "is_closed"]

# The error codes with which servers of revision 2026-07-28 refuse a handshake; some check the headers first.
_HANDSHAKE_UNKNOWN = (types.METHOD_NOT_FOUND, types.UNSUPPORTED_PROTOCOL_VERSION, types.HEADER_MISMATCH)
_NEWEST = "2026-07-28"
_DISCOVERY_S = 5.0  # limits `server/discover` as the first request: an older server may not answer
_CANCEL_TASK = "tasks/cancel"  # still sent after a Ctrl-C in a callback of the host
_MAX_INPUT_ROUNDS = 10  # most repetitions of a request with the input that the server asked for
_MAX_CONCURRENT = 8  # most requests for sampling or input that are worked on at a time; more are declined
_TOO_MANY_REQUESTS = f"{_MAX_CONCURRENT} requests are being worked on, which is the most at the same time"

TASKS = "io.modelcontextprotocol/tasks"
SKILLS = "io.modelcontextprotocol/skills"

_DECLINED = -1  # the specification's error code for a request that the user declines


class _CreatedTask(types.Result):
    result_type: Literal["task"]


async def _never_resolved(result: _CreatedTask, context: ClaimContext) -> types.CallToolResult:
    raise AssertionError(f"raw requests are not resolved by the SDK: {result} {context}")


# Because of this claim, the SDK announces the extension `TASKS` only to servers of revision 2026-07-28.
_TASK_CLAIM = ResultClaim(result_type="task", model=_CreatedTask, resolve=_never_resolved)


class Link:
    """The SDK's `ClientSession` and dispatcher over one stream. The same task must enter and leave it."""

    def __init__(
        self,
        stream: MessageStream,
        notify: server_requests.Notify,
        abilities: server_requests.Abilities,
        *,
        server: m.ServerName,
        spoken: str = "",
    ) -> None:
        self._server = server
        self._spoken = spoken
        self.stream = stream
        self._notify = notify
        self._abilities = abilities
        self._free_slots = anyio.Semaphore(_MAX_CONCURRENT)
        self._waiting: set[anyio.CancelScope] = set()
        self._interrupt: KeyboardInterrupt | None = None
        self._may_leave_session = True
        self._dispatcher: JSONRPCDispatcher[Any] = JSONRPCDispatcher(stream, stream)
        self._session = ClientSession(
            dispatcher=self._dispatcher,
            client_info=types.Implementation(name="grue", version=__version__),
            logging_callback=self._log,
            message_handler=self._receive_notification,
            extensions={TASKS: {}, SKILLS: {}},
            result_claims={TASKS: (_TASK_CLAIM,)},
            # The SDK declares a capability only if it gets the callback for it.
            sampling_callback=None if abilities.sample is None else self._sample,
            elicitation_callback=None if abilities.elicit is None else self._elicit_or_refuse,
            list_roots_callback=None if abilities.roots is None else self._list_roots,
        )
        self._subscriptions = Subscriptions(self._session, notify)
        self._param_headers = ParamHeaders(notify)

    async def __aenter__(self) -> Self:
        with library_logs_to(self._library_logged):  # also redirects logs of the tasks that start here
            await self._session.__aenter__()
            await self._subscriptions.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        # Pass `None`, not `exc_info`: the session's task group would wrap the exception in an ExceptionGroup.
        await self._subscriptions.__aexit__(None, None, None)
        if self._free_slots.value == _MAX_CONCURRENT:
            # grue owes the server no answer, so let its process exit while the session is closed here.
            self.stream.end_input()
        with library_logs_to(self._library_logged):
            await self._session.__aexit__(None, None, None)

    def _library_logged(self, record: logging.LogRecord) -> None:
        self._notify("noise", record.getMessage())

    async def _receive_notification(self, message: object) -> None:
        match message:
            case types.ResourceUpdatedNotification():
                self._notify("updated", str(message.params.uri))
            case types.ResourceListChangedNotification():
                self._notify("updated", "resources/list")
            case types.PromptListChangedNotification():
                self._notify("updated", "prompts/list")

    async def _sample(
        self, context: object, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        del context
        assert self._abilities.sample is not None, "otherwise this is not called"
        if self._free_slots.value == 0:
            return types.ErrorData(code=_DECLINED, message=_TOO_MANY_REQUESTS)
        said = tuple((message.role, _text_of(message.content)) for message in params.messages)
        async with self._free_slots:
            answer = await self._abilities.sample(
                server_requests.SamplingRequest(params.system_prompt or "", said)
            )
        if isinstance(answer, server_requests.Declined):
            return types.ErrorData(code=_DECLINED, message=answer.reason)
        text = types.TextContent(type="text", text=answer.text)
        return types.CreateMessageResult(role="assistant", content=text, model=answer.model)

    async def _elicit_or_refuse(
        self, context: object, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Ask the user. If the host's code fails, only the trace gets the error's text, not the server."""
        del context
        try:
            return await self._elicit(params)
        except Exception as error:  # noqa: BLE001 - of the host's code, or an answer that is not usable
            self._notify("bad_elicit", f"the host could not ask for the input: {first_fault(error)}")
            return types.ErrorData(code=types.INTERNAL_ERROR, message="the user could not be asked")

    async def _elicit(self, params: types.ElicitRequestParams) -> types.ElicitResult:
        if self._free_slots.value == 0:
            return types.ElicitResult(action="decline")
        wanted = _as_json(params)
        message = "\n".join(str(wanted[key]) for key in ("message", "url") if key in wanted)
        schema = json_object(wanted["requestedSchema"]) if "requestedSchema" in wanted else None
        async with self._free_slots:
            answer = await self._ask_user(server_requests.ElicitationRequest(message, schema, self._server))
        if isinstance(answer, server_requests.Declined):
            return types.ElicitResult(action="decline")
        return types.ElicitResult.model_validate({"action": "accept", "content": answer})

    async def _elicited(self, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Ask the user, in the task that waits for the call's result; raises `SdkError` if that fails."""
        try:
            return await self._elicit(params)
        except Exception as error:
            # The exception itself would end the session, and a `TimeoutError` would look like the call's own.
            why = f"the host could not ask for the input that it wants: {first_fault(error)}"
            raise SdkError(types.INTERNAL_ERROR, why) from error

    async def _ask_user(
        self, request: server_requests.ElicitationRequest
    ) -> m.JsonObject | server_requests.Declined:
        """Call the host's `elicit` and return its answer. A Ctrl-C during `elicit` ends the tool call.

        In a task of the SDK, a `KeyboardInterrupt` would stop the event loop before the session is closed. So
        `_send` raises it (`HostCodeFailed`) where the call waits.
        """
        assert self._abilities.elicit is not None, "otherwise this is not called"
        try:
            asked = self._abilities.elicit(request)
            if not inspect.isawaitable(asked):
                raise TypeError("elicit= wants a coroutine function: write async def")
            answer = await asked
            if not isinstance(answer, dict | server_requests.Declined):
                raise TypeError(f"elicit= returns a dict or Declined(reason), not {type(answer).__name__}")
            return answer
        except KeyboardInterrupt as error:
            self._interrupt = error
            for scope in self._waiting:
                scope.cancel()
        except (SystemExit, GeneratorExit, asyncio.CancelledError) as error:
            if ends_the_task(error):
                raise
        return server_requests.Declined("")

    async def _list_roots(self, context: object) -> types.ListRootsResult:
        del context
        roots = [{"uri": uri} for uri in self._abilities.roots or ()]
        return types.ListRootsResult.model_validate({"roots": roots})

    async def initialize(self) -> None:
        """Agree on a protocol revision: by the `initialize` handshake, or else by `server/discover`.

        From revision 2026-07-28 on there is no handshake, only `server/discover`. The handshake comes first,
        because a new server refuses it at once, but an old one may leave `server/discover` unanswered until
        the timeout. If an earlier session had no handshake, `server/discover` comes first. Raises `SdkError`,
        or `RuntimeError` or `ValueError` for an unusable answer.
        """
        with library_logs_to(self._library_logged):
            if self._spoken in MODERN_PROTOCOL_VERSIONS and await self._speaks_as_before():
                return
            try:
                await self._session.initialize()
            except SdkError as refusal:
                if refusal.code not in _HANDSHAKE_UNKNOWN or is_closed(refusal, self.stream):
                    raise
                await self._session.discover()
            except RuntimeError as unusable:
                # The SDK's text ends with the revision that the server chose. The newest has no handshake.
                if not str(unusable).endswith(_NEWEST):
                    raise
                await self._session.discover()

    async def _speaks_as_before(self) -> bool:
        left_s = anyio.current_effective_deadline() - anyio.current_time()
        try:
            with anyio.fail_after(min(_DISCOVERY_S, left_s / 2)):
                await self._session.discover()
        except (TimeoutError, RuntimeError, ValueError):
            return False
        except SdkError as refusal:
            if is_closed(refusal, self.stream):
                raise
            return False
        return True

    @property
    def server_version(self) -> str:
        """The server's name and version; untrusted. Empty: the server has not told them."""
        server = self._session.server_info
        return f"{server.name} {server.version}" if server else ""

    @property
    def instructions(self) -> str:
        """The server's text for the model; untrusted."""
        return self._session.instructions or ""

    @property
    def protocol_version(self) -> str:
        """The protocol revision that client and server have agreed on; empty: they have not agreed yet."""
        return self._session.protocol_version or ""

    @property
    def task_form(self) -> TaskForm | None:
        """The form of tasks: `extension` from MCP 2026-07-28 on, else `experimental`; `None`: no tasks."""
        if self._session.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return "extension"
        offered = self._session.server_capabilities
        requests = None if offered is None or offered.tasks is None else offered.tasks.requests
        calls = None if requests is None or requests.tools is None else requests.tools.call
        return None if calls is None else "experimental"

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the raw result, which the SDK's typed methods would change.

        With the newest MCP revision over HTTP, `tools/list` lacks the tools that have a wrong `x-mcp-header`.
        If the server asks for input that the host can give, the request is sent again with this input. The
        server gets a notice if the caller is cancelled. Raises `SdkError`, and `HostCodeFailed` after a
        Ctrl-C in `elicit`.
        """
        if method == LISTEN:
            return await self._subscriptions.listen(params)
        if method == CANCEL:
            return self._subscriptions.end(params)
        try:
            result = await self._send(method, params)
        except SdkError as error:
            if not await self._goes_on_without_session(error):
                raise
            result = await self._send(method, params)
        self._may_leave_session &= method != "tools/call"
        if method == "tools/list" and self._session.protocol_version == _NEWEST:
            return self._param_headers.listed(result, over_http=self.stream.over_http)
        for _ in range(_MAX_INPUT_ROUNDS):
            if result.get("resultType") != "input_required":
                return result
            more: dict[str, Any] = {}
            if result.get("inputRequests"):
                more["inputResponses"] = await self.respond(result["inputRequests"])
            if result.get("requestState") is not None:
                more["requestState"] = result["requestState"]
            result = await self._send(method, {**params, **more})
        raise SdkError(types.INTERNAL_ERROR, f"it wanted more input {_MAX_INPUT_ROUNDS} times in a row")

    async def _goes_on_without_session(self, error: SdkError) -> bool:
        """If the server has lost the session, try once to go on without one; return whether that works.

        A load balancer may have chosen another server. From revision 2026-07-28 on, no session is needed.
        After a tool call with a result, the loss is reported instead: the session may have held state.
        """
        fault = error.data
        lost = isinstance(fault, WireFault) and fault.cause == SESSION_LOST.cause
        if not lost or not self._may_leave_session:
            return False
        self._may_leave_session = False
        self.stream.sessionless = True
        try:
            await self._session.discover()
        except (SdkError, RuntimeError, ValueError):
            return False
        return True

    async def _send(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        sent: dict[str, Any] = {"method": method, "params": dict(params)}
        options: CallOptions = {"on_progress": self._progress} if method == "tools/call" else {}
        if method.startswith("tasks/") and self.task_form == "extension":
            # Load balancers need this header to find the server that has the task. The SDK does not set it.
            options["headers"] = {
                inbound.MCP_NAME_HEADER: inbound.encode_header_value(str(params.get("taskId")))
            }
        elif method == "tools/call" and (mirrored := self._param_headers.of_call(params)):
            options["headers"] = mirrored
        # Add the metadata and HTTP headers of the MCP revision in use. Only the SDK's session knows them.
        self._session._stamp(sent, options)  # noqa: SLF001 - there is no public way to a stamped raw request
        if self._interrupt is None or method == _CANCEL_TASK:
            with library_logs_to(self._library_logged), anyio.CancelScope() as scope:
                self._waiting.add(scope)
                try:
                    return await self._dispatcher.send_raw_request(method, sent["params"], options)
                finally:
                    self._waiting.remove(scope)
        assert self._interrupt is not None, "nothing else cancels the scope"
        raise HostCodeFailed(self._interrupt) from self._interrupt

    async def respond(self, questions: object) -> dict[str, Any]:
        """Return the answers to a server's requests for input, by the requests' names; raises `SdkError`."""
        try:
            wanted = types.InputRequiredResult.model_validate(
                {"resultType": "input_required", "inputRequests": questions}, by_name=False
            )
        except ValueError as error:
            why = f"it wants input that cannot be read: {first_fault(error)}"
            raise SdkError(types.INTERNAL_ERROR, why) from error
        return {key: await self._respond(request) for key, request in (wanted.input_requests or {}).items()}

    async def _respond(self, request: types.InputRequest) -> dict[str, Any]:
        answer: BaseModel
        match request:
            case types.CreateMessageRequest() if self._abilities.sample is not None:
                answer = await self._sample(None, request.params)
            case types.ElicitRequest() if self._abilities.elicit is not None:
                answer = await self._elicited(request.params)
            case types.ElicitRequest():
                answer = types.ElicitResult(action="decline")
            case types.ListRootsRequest() if self._abilities.roots is not None:
                answer = await self._list_roots(None)
            case _:
                raise SdkError(types.INVALID_REQUEST, f"it wants {request.method}, which is not offered")
        if isinstance(answer, types.ErrorData):
            raise SdkError(answer.code, answer.message)
        return _as_json(answer)

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        data = params.data
        text = data if isinstance(data, str) else json.dumps(json_value(data))
        self._notify("log", f"{params.level}: {text}")

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        # Many servers count bytes: show all digits, and not 1.23457e+06.
        share = f"{progress:.15g}" if total is None else f"{progress:.15g}/{total:.15g}"
        self._notify("progress", f"{share} {message}" if message else share)


def _as_json(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def _text_of(content: object) -> str:
    """Return the text of a sampling message. Other content is replaced by its type in brackets."""
    blocks = content if isinstance(content, list) else [content]
    return "\n".join(
        block.text if isinstance(block, types.TextContent) else f"[{getattr(block, 'type', 'content')}]"
        for block in blocks
    )


LISTEN = "subscriptions/listen"
CANCEL = "notifications/cancelled"
MAX_STREAMS = 32  # most streams of change notices that a session has at the same time


class Subscriptions(BackgroundTasks):
    """The open streams of change notices of one session. The task that enters this object must leave it.

    The server acknowledges `subscriptions/listen` at once. The host gets this acknowledgement as the result.
    The server answers the request only when the stream ends, and another task waits for that. A notice
    `updates_ended` reports a stream that the server has ended, or that broke off.
    """

    def __init__(self, session: ClientSession, notify: server_requests.Notify) -> None:
        super().__init__()
        self._session = session
        self._notify = notify
        self._open: dict[str, anyio.CancelScope] = {}
        self._starting = 0

    async def listen(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Open a stream, and return the server's acknowledgement; raises `SdkError`."""
        if len(self._open) + self._starting >= MAX_STREAMS:
            raise SdkError(types.INVALID_REQUEST, f"{MAX_STREAMS} streams are open, which is the most")
        try:
            wanted = types.SubscriptionFilter.model_validate(params.get("notifications") or {}, by_name=False)
        except ValueError as error:
            raise SdkError(types.INVALID_PARAMS, f"notifications: {first_fault(error)}") from error
        stream = _Stream()
        self._starting += 1
        try:
            self.start(lambda: self._follow(stream, wanted))
            await stream.settled.wait()
        except BaseException:
            stream.scope.cancel()
            raise
        finally:
            self._starting -= 1
        if stream.refused is not None:
            raise stream.refused
        return stream.agreed

    def end(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """End the stream whose `subscriptionId` is the `requestId` of `params`; raises `SdkError`."""
        scope = self._open.pop(str(params.get("requestId")), None)
        if scope is None:
            raise SdkError(types.INVALID_PARAMS, f"no stream {params.get('requestId')!r} is open")
        scope.cancel()
        return {}

    async def _follow(self, stream: "_Stream", wanted: types.SubscriptionFilter) -> None:
        name, why = "", ""
        try:
            with stream.scope:
                async with listen(
                    self._session,
                    tools_list_changed=bool(wanted.tools_list_changed),
                    prompts_list_changed=bool(wanted.prompts_list_changed),
                    resources_list_changed=bool(wanted.resources_list_changed),
                    resource_subscriptions=wanted.resource_subscriptions or (),
                ) as subscription:
                    name = str(subscription.subscription_id)
                    self._open[name] = stream.scope
                    stream.agreed = {"subscriptionId": name, "notifications": _as_json(subscription.honored)}
                    stream.settled.set()
                    async for _ in subscription:
                        pass  # nothing to do: the session has passed on the server's notification already
                    why = "the server has ended it"
        except ListenNotSupportedError as error:
            version = error.negotiated_version
            words = f"needs the revision {_NEWEST}, and this session has {version}: use resources/subscribe"
            stream.refused = SdkError(types.METHOD_NOT_FOUND, f"{LISTEN} {words}")
        except (SubscriptionLost, SdkError) as error:
            if not name:
                refusal = error if isinstance(error, SdkError) else SdkError(types.INTERNAL_ERROR, str(error))
                stream.refused = refusal
            why = f"it broke off: {error.__cause__ or error}"
        finally:
            self._open.pop(name, None)
            stream.settled.set()
        if name and why:
            self._notify("updates_ended", f"{name}: {why}; listen again, and read again what it covered")


class _Stream(Struct):
    """A stream of change notices. `settled` is set when the server accepts it, or when it ends."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    settled: anyio.Event = field(default_factory=anyio.Event)
    agreed: dict[str, Any] = field(default_factory=dict)
    refused: SdkError | None = None


_NAME_CHARS = 80


class ParamHeaders(Struct):
    """Makes HTTP headers, for load balancers, of the arguments that a schema marks by `x-mcp-header`."""

    notify: server_requests.Notify
    _marked: dict[str, dict[tuple[str, ...], str]] = field(default_factory=dict)

    def listed(self, page: dict[str, Any], *, over_http: bool) -> dict[str, Any]:
        """Return a page of `tools/list`; over HTTP, without the tools that have a wrong `x-mcp-header`."""
        tools = page.get("tools")
        if not over_http or not isinstance(tools, list):
            return page
        return {**page, "tools": [tool for tool in tools if self._accepts(tool)]}

    def of_call(self, params: dict[str, Any]) -> dict[str, str]:
        """Return the headers for the marked arguments of a `tools/call`."""
        marked = self._marked.get(params.get("name", ""))
        return inbound.mcp_param_headers(marked, params.get("arguments") or {}) if marked else {}

    def _accepts(self, tool: object) -> bool:
        name = tool.get("name") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or not isinstance(name, str):
            return True  # the tool is malformed: `read_tools` leaves it out and reports it
        schema = tool.get("inputSchema")
        fault = inbound.find_invalid_x_mcp_header(schema)
        if fault is not None:
            self.notify("bad_tool", f"{name[:_NAME_CHARS]}: {fault}")
            return False
        self._marked[name] = inbound.x_mcp_header_map(schema)
        return True
