"""Tell a user where a setting of `pyproject.toml` belongs, if it is written in another place."""

from collections.abc import Mapping

_LLM, _SAMPLING, _RETRY, _MCP = "llm", "agent_sampling", "retry", "mcp"

PLACES: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("model", "model_name", "agent_model"), (_LLM, "agent_model")),
    **dict.fromkeys(
        ("base_url", "api_base", "url", "endpoint", "client_base_url"), (_LLM, "client_base_url")
    ),
    **dict.fromkeys(("wire", "wire_format", "format"), (_LLM, "wire_format")),
    **dict.fromkeys(("headers", "extra_headers"), (_LLM, "extra_headers")),
    "extra_body": (_LLM, "extra_body"),
    **{
        name: (_SAMPLING, name)
        for name in ("temperature", "top_p", "top_k", "min_p", "reasoning_effort", "reasoning_tokens")
    },
    **dict.fromkeys(("max_tokens", "max_output_tokens"), (_SAMPLING, "max_tokens")),
    **dict.fromkeys(("retries", "max_retries"), (_RETRY, "max_retries")),
    **dict.fromkeys(("timeout", "timeout_s", "timeout_seconds"), (_RETRY, "timeout_seconds")),
    **dict.fromkeys(("enabled", "mcp_enabled"), (_MCP, "enabled")),
    **dict.fromkeys(("config_file", "mcp_config", "mcp_config_file"), (_MCP, "config_file")),
    **dict.fromkeys(("max_tool_iterations", "max_iterations"), (_MCP, "max_tool_iterations")),
    **dict.fromkeys(
        ("tool_call_timeout_s", "tool_call_timeout_seconds", "tool_timeout"),
        (_MCP, "tool_call_timeout_seconds"),
    ),
    **dict.fromkeys(
        ("server_startup_timeout_s", "server_startup_timeout_seconds", "startup_timeout"),
        (_MCP, "server_startup_timeout_seconds"),
    ),
    "tool_lock": (_MCP, "tool_lock"),
}
"""Names that other places and other programs have for a setting: its table and its key here."""

_ELSEWHERE = {
    **dict.fromkeys(
        ("api_key", "key", "token"),
        "Keys are not written into files: set GRUE_API_KEY, or the provider's own variable, in the"
        " environment.",
    ),
    **dict.fromkeys(
        ("servers", "mcp_servers", "mcpServers"),
        "MCP servers are configured in mcp_config.json: `grue init` writes one.",
    ),
}


def where_it_belongs(name: str, root: str, here: str = "") -> str:
    """Return a sentence that says where a setting belongs; empty: the name is not known.

    Args:
        name: What the user wrote.
        root: The table of grue's settings, such as `tool.grue`.
        here: The table in which the user wrote it; empty: in none.
    """
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    table, key = PLACES.get(name, ("", ""))
    if not table:
        return ""
    return f"Did you mean {key!r}?" if table == here else f"Write it as {key} in [{root}.{table}]."
