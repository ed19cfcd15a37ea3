"""Tools and their calls, as messages carry them."""

from typing import Literal

from msgspec import Struct

from grue.messages.message import CallId, JsonObject, ServerName
from grue.tool_rules import ToolAnnotations
from grue.vocabulary import SettlementKind


class ToolDefinition(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool as its server lists it.

    Attributes:
        server: Name of the server in the configuration.
        tool: Bare name, as the server knows it; may contain dots.
        description: The server's text for the model; untrusted.
        input_schema: JSON Schema of the arguments, an object schema.
        output_schema: JSON Schema of the structured result, if the server declares one.
        full_name: The canonical name, if it is not `{server}.{tool}`. Connections of the host's own may
            name their tools differently.
        annotations: What the server says about the tool's behaviour; untrusted. `None`: nothing.
        trusted: The annotations can be believed, because the tool lock holds this definition. Never set by a
            server.
    """

    server: ServerName
    tool: str
    description: str = ""
    input_schema: JsonObject
    output_schema: JsonObject | None = None
    full_name: str = ""
    annotations: ToolAnnotations | None = None
    trusted: bool = False

    @property
    def name(self) -> str:
        """The canonical name.

        Source: R8.2, P34
        """
        return self.full_name or f"{self.server}.{self.tool}"


class ToolCall(Struct, frozen=True, kw_only=True):
    """A tool call as the model asked for it.

    Attributes:
        call_id: Unique within the turn. Generated if the provider sent none, or sent one twice.
        name: Canonical name, if the model's text can be parsed as one.
        arguments: The model's text, not yet parsed. It may be invalid JSON.
    """

    call_id: CallId
    name: str
    arguments: str


class ToolTask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The handle of a call that its server works on as a task of its own, and answers later.

    Attributes:
        task_id: The server's name for it; untrusted.
        poll_s: How long the server wants to be left alone between two questions about it.
        ttl_s: How long the server keeps it, from its creation; `None`: not stated, or without a limit.
    """

    task_id: str
    poll_s: float = 1.0
    ttl_s: float | None = None


class ServerCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A validated tool call: its arguments are a JSON object, and the server lists its tool.

    Attributes:
        task: Where an earlier process sent the call already, and the server made a task of it: the call is
            not sent again, and the server is asked for the task's result.
    """

    call_id: CallId
    tool: str
    arguments: JsonObject
    task: ToolTask | None = None


class ToolCallResult(Struct, frozen=True):
    """The result of a tool call.

    Attributes:
        content: A JSON value: structured content, parsed JSON, text, or a list of blocks.
        is_error: The call failed, or the tool reported an error.
        error_message: The error, for the model. Set if `is_error` is set.
        blocks: Images, audio, links and resources that came together with structured content. Without
            structured content they are in `content`. The result of a call outside a turn has all the
            server's content blocks here, also the text.

    Source: R11
    """

    content: object = None
    is_error: bool = False
    error_message: str | None = None
    blocks: tuple[JsonObject, ...] = ()

    def to_dict(self) -> JsonObject:
        """Return `{"content": ...}`, or `{"error": ..., "content": ...}` for a failure.

        Source: R11.3, P43
        """
        if self.is_error:
            return {"error": self.error_message, "content": self.content}
        return {"content": self.content}


class ToolCallRecord(Struct, frozen=True, kw_only=True):
    """One tool call of a finished turn, with its result.

    Attributes:
        settlement: `returned` (by the server, error or not), `timed_out`, `died` (the server did), `skipped`
            (never sent), `rejected` (unknown tool, unreadable arguments), `denied` (by the policy or by a
            person), `interrupted` (sent by a process that was killed: it may have taken effect).
        iteration: One-based number of the reply that asked for it.
        duration_s: `None` if it was never sent.
        changed_arguments: What was sent instead of `arguments`, because a person changed them.
    """

    call_id: CallId
    name: str
    arguments: str
    iteration: int
    settlement: SettlementKind
    result: ToolCallResult
    duration_s: float | None = None
    changed_arguments: JsonObject | None = None


ToolPart = Literal["description", "input_schema", "output_schema", "annotations"]
"""A part of a tool's definition that its server can change."""
