"""An MCP server that supports only the revision 2026-07-28 of MCP; standard library only.

It refuses the handshake and requests without the revision's metadata. Its tool asks the user for a name.
"""

import json
import sys
from typing import Any

VERSION = "2026-07-28"
NAME = {"type": "object", "properties": {"name": {"type": "string"}}}
ASK = {
    "resultType": "input_required",
    "inputRequests": {
        "who": {"method": "elicitation/create", "params": {"message": "Your name?", "requestedSchema": NAME}}
    },
    "requestState": "opaque-17",
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | int:
    """Return the result of a request, or the code of an error."""
    if method == "initialize":
        return -32601
    if params.get("_meta", {}).get("io.modelcontextprotocol/protocolVersion") != VERSION:
        return -32602
    if method == "server/discover":
        return {"resultType": "complete", "supportedVersions": [VERSION], "capabilities": {"tools": {}}}
    if method == "tools/list":
        tool = {"name": "greet", "inputSchema": {"type": "object"}}
        return {"resultType": "complete", "tools": [tool], "ttlMs": 0, "cacheScope": "private"}
    if "inputResponses" not in params:
        return ASK
    assert params["requestState"] == "opaque-17"
    reply = params["inputResponses"]["who"]
    text = f"Hello {reply['content']['name']}" if reply["action"] == "accept" else "Hello stranger"
    return {"resultType": "complete", "content": [{"type": "text", "text": text}]}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        said = answer(message["method"], message.get("params", {}))
        body = {"error": {"code": said, "message": "no"}} if isinstance(said, int) else {"result": said}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
