"""Check the structured content of a tool's result against the tool's output schema.

Both come from the server and are untrusted; `schema_checks.py` has the limits.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from grue.mcp_transport.schema_checks import SchemaChecks
from grue.mcp_transport.schema_fits import fits
from grue.messages import JsonObject, ToolCallResult, ToolDefinition
from grue.protocol import tool_results
from grue.tool_sessions.notices import Notify


class OutputSchemas:
    """The output schemas of one session's tools.

    Args:
        notify: Receives a `bad_schema` notice for a schema or a result that cannot be checked.
    """

    def __init__(self, notify: Notify) -> None:
        self._checks = SchemaChecks(notify, schema="output schema", value="a result")

    def declare(self, tools: Iterable[ToolDefinition]) -> None:
        """Replace the tools by those of a new listing."""
        self._checks.declare(
            {tool.tool: tool.output_schema for tool in tools if tool.output_schema is not None}
        )

    async def checked(self, tool: str, answer: JsonObject, result: ToolCallResult) -> ToolCallResult:
        """Return the result of a call, or an error with the same content if it does not match the schema.

        Cancelling stops the check.

        Args:
            tool: Bare name.
            answer: The result object of `tools/call`.
            result: The same result, decoded.
        """
        if result.is_error or self._certainly_fits(tool, answer, result):
            return result
        if not await self._checks.usable(tool):
            return result
        fault: str | None = None
        if answer.get("structuredContent") is None:
            fault = "it has no structured content"
        elif tool_results.is_kept_as_text(answer):
            self._checks.too_large(tool)
        else:
            fault = await self._checks.fault(tool, result.content)
        if fault is None:
            return result
        message = f"The tool's result is not what its output schema says: {fault}"
        return replace(tool_results.failure(message, result.content), blocks=result.blocks)

    def _certainly_fits(self, tool: str, answer: JsonObject, result: ToolCallResult) -> bool:
        schema = self._checks.schema(tool)
        if schema is None:
            return True
        if answer.get("structuredContent") is None or not tool_results.is_small(answer):
            return False
        return fits(schema, result.content)
