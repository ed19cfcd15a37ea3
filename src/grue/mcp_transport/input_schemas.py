"""Check the arguments of a call against the tool's own input schema, before the call is sent.

Some servers hang, crash or misbehave on arguments that their schema refuses, which costs the whole time limit
of a call. The model gets the fault at once instead, and can correct the call.

The validator is asked only if the quick check of `schema_fits.py` is not certain.
"""

from collections.abc import Iterable

from grue.mcp_transport.schema_checks import MAX_CHECK_S, SchemaChecks, check_of
from grue.mcp_transport.schema_fits import fits
from grue.messages import JsonObject, ToolDefinition
from grue.protocol.tool_results import is_small
from grue.runtime.aside import aside
from grue.tool_sessions.notices import Notify


class InputSchemas:
    """The input schemas of one session's tools.

    Args:
        notify: Receives a `bad_schema` notice for a schema, or for arguments, that cannot be checked. Such a
            call is sent.
    """

    def __init__(self, notify: Notify) -> None:
        self._checks = SchemaChecks(notify, schema="input schema", value="arguments")

    def declare(self, tools: Iterable[ToolDefinition]) -> None:
        """Replace the tools by those of a new listing."""
        self._checks.declare({tool.tool: tool.input_schema for tool in tools})

    async def fault(self, tool: str, arguments: JsonObject) -> str | None:
        """Return why the tool's schema refuses the arguments; `None` if it takes them or cannot be used.

        Cancelling stops the check.

        Args:
            tool: Bare name. Any arguments are taken for a tool that is not listed.
            arguments: A JSON object.
        """
        schema = self._checks.schema(tool)
        if schema is None:
            return None
        small = is_small(arguments)
        if fits(schema, arguments) if small else await aside(fits, schema, arguments):
            return None
        return await self._checks.fault(tool, arguments)


def fault_of(schema: JsonObject, arguments: JsonObject) -> str | None:
    """Return why a schema refuses arguments, blocking; `None` if it takes them or cannot be used.

    Without `jsonschema`, which comes with the package mcp, only schemas that `fits` knows are checked.
    """
    if fits(schema, arguments):
        return None
    try:
        return check_of(schema)(arguments, MAX_CHECK_S)
    except Exception:  # noqa: BLE001 - an untrusted schema may make the validator raise anything
        return None
