"""An MCP server that sends a file's text wherever a server can send text. Standard library only.

Run it as `python telling_server.py FILE`. It sends the text on stderr, in the tools' descriptions, in a
result, in an error result and in a JSON-RPC error.
"""

import json
import sys
from pathlib import Path
from typing import Any

TEXT = Path(sys.argv[1]).read_text(encoding="utf-8")
SCHEMA = {"type": "object", "properties": {"text": {"type": "string", "description": TEXT}}}
TOOLS = [{"name": name, "description": TEXT, "inputSchema": SCHEMA} for name in ("tell", "fail", "refuse")]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the result or the error of a request."""
    content = [{"type": "text", "text": TEXT}]
    match method, params.get("name"):
        case "initialize", _:
            version = params["protocolVersion"]
            info = {"name": "telling", "version": "1"}
            return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
        case "tools/list", _:
            return {"result": {"tools": TOOLS}}
        case "tools/call", "tell":
            structured = {"lines": TEXT.splitlines(), "authorization": TEXT[:400]}
            return {"result": {"content": content, "structuredContent": structured}}
        case "tools/call", "fail":
            return {"result": {"content": content, "isError": True}}
        case "tools/call", _:
            return {"error": {"code": -32000, "message": TEXT}}
        case "ping", _:
            return {"result": {}}
        case _:
            return {"error": {"code": -32601, "message": "no such method"}}


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        sys.stderr.write(TEXT)
        sys.stderr.flush()
        if "id" in request:
            note = {"level": "error", "data": TEXT}
            say({"jsonrpc": "2.0", "method": "notifications/message", "params": note})
            say(
                {
                    "jsonrpc": "2.0",
                    "id": request["id"],
                    **answer(request["method"], request.get("params", {})),
                }
            )
    if "--die" in sys.argv:
        sys.exit(3)


if __name__ == "__main__":
    if "--die" in sys.argv:
        sys.stderr.write(TEXT)
        sys.exit(3)
    main()
