"""Between agent and session: a tool server opened, called and closed; and the notes of the session."""

from typing import Literal

from msgspec import field

from grue.messages.failures import ServerFailure
from grue.messages.limits import FailurePolicy
from grue.messages.message import BatchId, CallId, JsonObject, Message, ServerName
from grue.messages.tools import ServerCall, ToolCallResult, ToolDefinition, ToolPart, ToolTask
from grue.vocabulary import AfterFailedConnect, Ending, NoticeKind, ProcessEnding, ToolChange


class OpenSession(Message, frozen=True, kw_only=True):
    """agent -> session: connect, with `timeout_s` per attempt. A stdio server gets a new process."""

    server: ServerName
    turn: int
    timeout_s: float
    policy: FailurePolicy = FailurePolicy()


class SessionOpened(Message, frozen=True, kw_only=True):
    """session -> agent: connected, initialised, listed.

    Attributes:
        attempt: 1, or 2 after a retry.
        protocol_version: The negotiated MCP revision; empty if this is not an MCP server.
        pid: The server's process, if it has one.
        serves_unlisted: Whether tools that are not in the list can be called too.
        address: The URL of an MCP server over HTTP, without secrets; empty for others.

    Source: R6.8, P8
    """

    server: ServerName
    tools: tuple[ToolDefinition, ...]
    attempt: int = 1
    protocol_version: str = ""
    pid: int | None = None
    elapsed_s: float = 0.0
    serves_unlisted: bool = False
    address: str = ""


class McpDisabled(Message, frozen=True, kw_only=True):
    """session -> agent: no tools from this server for the rest of the episode.

    Attributes:
        newly: This turn disabled it. Otherwise an earlier turn did, and no connect was tried.

    Source: R6.9, R6.10, P27
    """

    server: ServerName
    reason: str
    newly: bool = False


class StartupFailed(Message, frozen=True, kw_only=True):
    """session -> agent: the first connect of the episode failed, and the policy is to raise.

    Source: R6.1
    """

    server: ServerName
    failure: ServerFailure


class CallTools(Message, frozen=True, kw_only=True):
    """agent -> session: run these calls one after the other and report the result of each.

    Attributes:
        after_timeout: What to do with the rest of the batch after a call that timed out.

    Source: R5.2, P17
    """

    server: ServerName
    batch: BatchId
    calls: tuple[ServerCall, ...]
    timeout_s: float
    after_timeout: Literal["skip", "continue"] = "skip"


class ToolsChanged(Message, frozen=True, kw_only=True):
    """session -> agent: the server's tool list has changed. Sent between two batches only."""

    server: ServerName
    tools: tuple[ToolDefinition, ...]


class ToolReturned(Message, frozen=True, kw_only=True):
    """session -> agent: the call was answered, with a result or an error.

    Attributes:
        request_id: The id of the JSON-RPC request, for an MCP server; empty for others.
        error_code: The code of the JSON-RPC error that the server answered with; `None`: it did not.
    """

    batch: BatchId
    call_id: CallId
    result: ToolCallResult
    duration_s: float = 0.0
    request_id: str = ""
    error_code: int | None = None


class ToolTimedOut(Message, frozen=True, kw_only=True):
    """session -> agent: no result in time. The session has sent the server a cancellation.

    Attributes:
        request_id: The id of the JSON-RPC request, for an MCP server; empty for others.

    Source: R6.5, P24
    """

    batch: BatchId
    call_id: CallId
    timeout_s: float
    duration_s: float = 0.0
    request_id: str = ""


class ToolSkipped(Message, frozen=True, kw_only=True):
    """session -> agent, or a note of the agent: the call was not sent to its server."""

    batch: BatchId
    call_id: CallId
    reason: str


class ServerDied(Message, frozen=True, kw_only=True):
    """session -> agent: the server ended, or the connection broke, during this call.

    Attributes:
        request_id: The id of the JSON-RPC request, for an MCP server; empty for others.
    """

    server: ServerName
    batch: BatchId
    call_id: CallId
    failure: ServerFailure
    duration_s: float = 0.0
    request_id: str = ""


class CloseSession(Message, frozen=True, kw_only=True):
    """agent -> session: close the connection and end all its processes.

    Source: R3.5, R3.7
    """

    server: ServerName


class SessionClosed(Message, frozen=True, kw_only=True):
    """session -> agent: closed; no process of the server's group is alive.

    Attributes:
        ending: How the process ended. `polite`: by itself after end of input. `terminated`: by SIGTERM.
            `killed`: by SIGKILL. `died`: before it was asked to. `none`: there was no process. `handed_over`:
            it is ended in the background, and is gone before the next turn's first tool call
            (`ServerEnded`).
        stderr_tail: The last lines that it wrote to stderr; untrusted, control characters removed.

    Source: P9
    """

    server: ServerName
    ending: Ending = "none"
    exit_status: int | None = None
    stderr_tail: str = ""
    elapsed_s: float = 0.0


class ConnectFailed(Message, frozen=True, kw_only=True):
    """session: an attempt to connect failed; `then` is the next step."""

    server: ServerName
    attempt: int
    failure: ServerFailure
    then: AfterFailedConnect


class ToolCalled(Message, frozen=True, kw_only=True, omit_defaults=True):
    """session: this call is being sent to its server.

    Attributes:
        task: The call was sent by an earlier process. Its server is now asked for the result of this task.

    Source: P28
    """

    server: ServerName
    batch: BatchId
    call_id: CallId
    tool: str
    arguments: JsonObject
    task: ToolTask | None = None


class TaskCreated(Message, frozen=True, kw_only=True):
    """session: the server has made a task of the call under way, and is asked for its result from now on.

    The call's own end follows as for any other call: `ToolReturned`, `ToolTimedOut` or `ServerDied`.
    """

    server: ServerName
    tool: str
    task: ToolTask


class ServerNoted(Message, frozen=True, kw_only=True):
    """session, agent: a notice about a server: noise on stdout, a malformed tool, a log line.

    Attributes:
        kind: `bad_tool`: a tool is malformed, and may be left out. `bad_schema`: an output schema cannot be
            used, so results are not validated. `too_large`: a message was dropped, its values were kept as
            text, or further notices were dropped. `updated`: a resource, or a list of prompts or resources,
            has changed; the text is its URI or the name of the list. `updates_ended`: a stream of such
            updates has ended; the text has its `subscriptionId` and the reason.
    """

    server: ServerName
    kind: NoticeKind
    text: str


class ServerRequested(Message, frozen=True, kw_only=True):
    """host: a request to a server outside turns has ended. Its answer is not recorded.

    Attributes:
        method: Such as `prompts/get` or `resources/read`.
        error: Why it failed; empty: it was answered, or cancelled.
        duration_s: From when it was sent to its end.
    """

    server: ServerName
    method: str
    params: JsonObject = field(default_factory=dict)
    error: str = ""
    duration_s: float = 0.0


class ToolDrifted(Message, frozen=True, kw_only=True):
    """session: a tool differs from the definition that the user approved in the tool lock.

    Attributes:
        tool: Bare name.
        change: `added`: it is not in the lock. `removed`: the server no longer lists it.
        parts: The changed parts, for `changed`.
        refused: It is not offered to the model.
    """

    server: ServerName
    tool: str
    change: ToolChange
    parts: tuple[ToolPart, ...] = ()
    refused: bool = False


class SessionPrewarmed(Message, frozen=True, kw_only=True, tag="SpareReady"):
    """session: a prewarmed connection is open, for a turn that has not started yet."""

    server: ServerName
    pid: int | None = None
    elapsed_s: float = 0.0


class PrewarmLost(Message, frozen=True, kw_only=True, tag="SpareLost"):
    """session: a prewarmed connection cannot be used. The turn opens a new one."""

    server: ServerName
    cause: str


class ServerEnded(Message, frozen=True, kw_only=True):
    """session: a server that was ended in the background is gone, with all processes of its group.

    Source: P9
    """

    server: ServerName
    pid: int | None = None
    ending: ProcessEnding = "none"
    exit_status: int | None = None
    stderr_tail: str = ""
    elapsed_s: float = 0.0
