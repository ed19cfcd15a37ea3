"""The HTTP headers that mirror arguments of a tool call (`x-mcp-header` of the revision 2026-07-28).

A server marks parameters in a tool's input schema, so that load balancers can route a call by their values. A
call without these headers is refused. Only the listing says which parameters are marked.
"""

from typing import Any

from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map

from grue.tool_sessions.notices import Notify

_NAME_CHARS = 80


class ParamHeaders:
    """The marked parameters of one server's tools.

    Args:
        notify: Receives a `bad_tool` notice for each tool that is left out.
    """

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self._marked: dict[str, dict[tuple[str, ...], str]] = {}

    def listed(self, page: dict[str, Any], *, over_http: bool) -> dict[str, Any]:
        """Remember the marked parameters of a page of `tools/list`, and return the page.

        Over HTTP, a tool whose marks are wrong is left out, as the specification wants it. Elsewhere no
        headers are sent, and the marks mean nothing.
        """
        tools = page.get("tools")
        if not over_http or not isinstance(tools, list):
            return page
        return {**page, "tools": [tool for tool in tools if self._accepts(tool)]}

    def of_call(self, params: dict[str, Any]) -> dict[str, str]:
        """Return the headers of a `tools/call` with these parameters."""
        marked = self._marked.get(params.get("name", ""))
        return mcp_param_headers(marked, params.get("arguments") or {}) if marked else {}

    def _accepts(self, tool: object) -> bool:
        name = tool.get("name") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or not isinstance(name, str):
            return True  # `read_tools` reports it
        schema = tool.get("inputSchema")
        fault = find_invalid_x_mcp_header(schema)
        if fault is not None:
            self._notify("bad_tool", f"{name[:_NAME_CHARS]}: {fault}")
            return False
        self._marked[name] = x_mcp_header_map(schema)
        return True
