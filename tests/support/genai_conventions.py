"""OpenTelemetry's semantic conventions for GenAI and MCP: the attributes of each kind of span.

Taken from the models of github.com/open-telemetry/semantic-conventions-genai on 2026-11-22: gen-ai/spans.yaml
at 7e7e4e763354b505b8e1f76512f17a1977b00f70, mcp/spans.yaml at 5c50d346f1c9e8f745889f7777a412991564b334 and
mcp/common.yaml at 0e5e6a8d59d38c9c19556a5164a83cc11a7d53ff. The conventions have no release of their own yet;
everything in them is in development.
"""

from collections.abc import Iterable, Mapping

_REQUEST = {
    "gen_ai.operation.name": "required",
    "gen_ai.provider.name": "required",
    "gen_ai.request.model": "if available",
    "error.type": "if it failed",
    "gen_ai.conversation.id": "when available",
    "gen_ai.output.type": "if the request has an output format",
    "gen_ai.request.choice.count": "if in the request and not 1",
    "gen_ai.request.seed": "if in the request",
    "gen_ai.request.max_tokens": "recommended",
    "gen_ai.request.temperature": "recommended",
    "gen_ai.request.top_p": "recommended",
    "gen_ai.request.stop_sequences": "recommended",
    "gen_ai.request.frequency_penalty": "recommended",
    "gen_ai.request.presence_penalty": "recommended",
    "gen_ai.response.finish_reasons": "recommended",
    "gen_ai.usage.input_tokens": "recommended",
    "gen_ai.usage.output_tokens": "recommended",
    "gen_ai.usage.cache_read.input_tokens": "recommended",
    "gen_ai.usage.cache_creation.input_tokens": "recommended",
}
_CONTENT = {
    "gen_ai.system_instructions": "opt-in",
    "gen_ai.input.messages": "opt-in",
    "gen_ai.output.messages": "opt-in",
    "gen_ai.tool.definitions": "opt-in",
}
_ADDRESS = {"server.address": "recommended", "server.port": "if server.address is set"}

AGENT = {
    **_REQUEST,
    **_CONTENT,
    "gen_ai.agent.id": "if applicable",
    "gen_ai.agent.name": "when available",
    "gen_ai.agent.description": "when available",
    "gen_ai.agent.version": "when available",
    "gen_ai.data_source.id": "if applicable",
}
"""`gen_ai.invoke_agent.internal`."""

MODEL = {
    **_REQUEST,
    **_CONTENT,
    **_ADDRESS,
    "gen_ai.request.top_k": "if applicable",
    "gen_ai.request.stream": "if streaming",
    "gen_ai.response.id": "recommended",
    "gen_ai.response.model": "recommended",
    "gen_ai.response.time_to_first_chunk": "recommended if streaming",
    "gen_ai.usage.reasoning.output_tokens": "recommended when applicable",
    "openai.request.service_tier": "if in the request and not auto",
    "openai.response.service_tier": "if in the response",
    "openai.response.system_fingerprint": "recommended",
    "openai.api.type": "recommended",
}
"""`gen_ai.inference.client` with the refinement `openai.inference.client`."""

TOOL = {
    "gen_ai.operation.name": "required",
    "gen_ai.tool.name": "required",
    "gen_ai.tool.call.id": "recommended",
    "gen_ai.tool.description": "recommended",
    "gen_ai.tool.type": "recommended",
    "gen_ai.tool.call.arguments": "opt-in",
    "gen_ai.tool.call.result": "opt-in",
    "error.type": "if it failed",
}
"""`gen_ai.execute_tool.internal`."""

MCP_TOOL = {
    **TOOL,
    **_ADDRESS,
    "mcp.method.name": "required",
    "mcp.protocol.version": "recommended",
    "mcp.session.id": "recommended within a session",
    "mcp.resource.uri": "if the request names a resource",
    "gen_ai.prompt.name": "if the request names a prompt",
    "jsonrpc.request.id": "for a request",
    "jsonrpc.protocol.version": "recommended when not 2.0",
    "rpc.response.status_code": "if the response is an error",
    "network.transport": "recommended",
    "network.protocol.name": "recommended when applicable",
    "network.protocol.version": "recommended when applicable",
}
"""`gen_ai.execute_tool.internal` with the attributes of `mcp.client`, as the conventions want one span."""

NOT_HAD = {
    "gen_ai.agent.id": "the agent is not a service with an id",
    "gen_ai.data_source.id": "there is no data source",
    "mcp.session.id": "some servers accept it in place of credentials, so it does not leave the process",
    "mcp.resource.uri": "a tool call names none",
    "gen_ai.prompt.name": "a tool call names none",
    "jsonrpc.protocol.version": "it is 2.0",
}
"""What a span of grue never has, and why."""

_CHECKED = ("gen_ai.", "openai.", "mcp.", "jsonrpc.", "rpc.", "network.", "server.", "error.")
_EVERYWHERE = frozenset({"gen_ai.conversation.id"})


def differences(
    table: Mapping[str, str], span: Mapping[str, object], absent: Iterable[str] = ()
) -> list[str]:
    """Return how a span differs from a table; `absent`: attributes whose condition the span does not meet."""
    wanted = {name: level for name, level in table.items() if name not in {*NOT_HAD, *absent}}
    missing = [f"{name} is missing ({level})" for name, level in wanted.items() if name not in span]
    checked = [name for name in span if name.startswith(_CHECKED) and name not in _EVERYWHERE]
    unknown = [f"{name} is not in the conventions" for name in checked if name not in table]
    there = [f"{name} is there" for name in absent if name in span]
    return [*missing, *unknown, *there]
