"""An MCP server that gets its listing and its only result on the command line; standard library only."""

import json
import sys
from typing import Any

from grue.tool_sessions.server_specs import ServerOptions, StdioServer


def typed_server(result: dict[str, Any], **tool: Any) -> StdioServer:
    """Return a server with the tool `answer` and these fields of it; every call returns `result`."""
    listed = {"name": "answer", "inputSchema": {"type": "object"}, **tool}
    args = (__file__, json.dumps([listed]), json.dumps(result))
    # On a busy machine, a start can take longer than the default limit of 10 s.
    return StdioServer(
        name="typed", command=sys.executable, args=args, options=ServerOptions(startup_timeout_s=60)
    )


def main(tools: str, result: str) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        body = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "typed", "version": "1"},
            },
            "tools/list": {"tools": json.loads(tools)},
            "tools/call": json.loads(result),
        }[message["method"]]
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": body}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
