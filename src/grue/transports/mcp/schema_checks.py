"""Check the arguments and the results of calls against the schemas that a session's tools declare.

Some servers hang, crash or misbehave on arguments that their schema refuses, which costs the whole time limit
of a call. The model gets the fault at once instead, and can correct the call.

Schemas and results come from the server and are untrusted; `protocol/tools/json_schema.py` has the limits.
What cannot be checked passes, with a notice.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from grue import messages as m
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.json_schema import MAX_VALUE_BYTES, Check, NotCheckedError, check_of, reason
from grue.tool_sessions.notices import Notify


class _Schemas:
    """One schema for each of a session's tools, compiled when it is used for the first time.

    A schema that cannot be compiled or used is ignored for the rest of the session.

    Args:
        notify: Receives a `bad_schema` notice for a schema or a value that cannot be checked.
        schema: What the schemas are called in notices, such as "output schema".
        value: What the checked values are called, such as "result".
    """

    def __init__(self, notify: Notify, *, schema: str, value: str) -> None:
        self._notify = notify
        self._schema = schema
        self._value = value
        self._schemas: Mapping[str, m.JsonObject] = {}
        self._checks: dict[str, Check | None] = {}

    def declare(self, schemas: Mapping[str, m.JsonObject]) -> None:
        """Replace the schemas by those of a new listing, by bare tool name."""
        before, self._schemas = self._schemas, schemas
        for name in [name for name in self._checks if schemas.get(name) != before[name]]:
            del self._checks[name]

    def check(self, tool: str) -> Check | None:
        """Return the check of a tool's values; `None` if the tool has no schema that can be used."""
        if tool in self._schemas and tool not in self._checks:
            try:
                self._checks[tool] = check_of(self._schemas[tool])
            except Exception as error:  # noqa: BLE001 - an untrusted schema may make the compiler raise anything
                self._stop_checking(tool, error)
        return self._checks.get(tool)

    def fault(self, tool: str, value: object) -> str | None:
        """Return the first fault of a value; `None` if it has none or cannot be checked."""
        check = self.check(tool)
        try:
            return None if check is None else check(value)
        except NotCheckedError as error:
            self.too_large(tool, str(error))
        except Exception as error:  # noqa: BLE001 - some faults of a schema show only when it is used
            self._stop_checking(tool, error)
        return None

    def too_large(self, tool: str, size: str = f"of more than {MAX_VALUE_BYTES} bytes") -> None:
        """Record that a value is not checked because of its size."""
        self._notify("bad_schema", f"{tool}: {self._value} {size}: not checked")

    def _stop_checking(self, tool: str, error: Exception) -> None:
        self._checks[tool] = None
        self._notify("bad_schema", f"{tool}: its {self._schema} is not used: {reason(error)}")


class InputSchemas:
    """The input schemas of one session's tools.

    Args:
        notify: Receives a `bad_schema` notice for a schema, or for arguments, that cannot be checked. Such a
            call is sent.
    """

    def __init__(self, notify: Notify) -> None:
        self._schemas = _Schemas(notify, schema="input schema", value="arguments")

    def declare(self, tools: Iterable[m.ToolDefinition]) -> None:
        """Replace the tools by those of a new listing."""
        self._schemas.declare({tool.tool: tool.input_schema for tool in tools})

    def fault(self, tool: str, arguments: m.JsonObject) -> str | None:
        """Return why the tool's schema refuses the arguments; `None` if it takes them or cannot be used.

        Args:
            tool: Bare name. Any arguments are taken for a tool that is not listed.
            arguments: A JSON object.
        """
        return self._schemas.fault(tool, arguments)


class OutputSchemas:
    """The output schemas of one session's tools.

    Args:
        notify: Receives a `bad_schema` notice for a schema or a result that cannot be checked.
    """

    def __init__(self, notify: Notify) -> None:
        self._schemas = _Schemas(notify, schema="output schema", value="a result")

    def declare(self, tools: Iterable[m.ToolDefinition]) -> None:
        """Replace the tools by those of a new listing."""
        self._schemas.declare(
            {tool.tool: tool.output_schema for tool in tools if tool.output_schema is not None}
        )

    def checked(self, tool: str, answer: m.JsonObject, result: m.ToolCallResult) -> m.ToolCallResult:
        """Return the result of a call, or an error with the same content if it does not match the schema.

        Args:
            tool: Bare name.
            answer: The result object of `tools/call`.
            result: The same result, decoded.
        """
        if result.is_error or self._schemas.check(tool) is None:
            return result
        fault: str | None = None
        if answer.get("structuredContent") is None:
            fault = "it has no structured content"
        elif tool_results.is_kept_as_text(answer):
            self._schemas.too_large(tool)
        else:
            fault = self._schemas.fault(tool, result.content)
        if fault is None:
            return result
        message = f"The tool's result is not what its output schema says: {fault}"
        return replace(tool_results.failure(message, result.content), blocks=result.blocks)
