"""An MCP server of the revision 2026-07-28 with one subscription; standard library only.

python listening_server.py WAY: `refuse` or `ignore` the request `subscriptions/listen`; or acknowledge it,
report one update, and then `end` (answer the request), `cancel` (withdraw the subscription), `die` when the
tool is called, or `update` (do nothing more). Its tool `streams` returns the ids of the subscriptions that
the client has cancelled.
"""

import json
import sys
from typing import Any

VERSION = "2026-07-28"
ID_KEY = "io.modelcontextprotocol/subscriptionId"
CANCELLED: list[str] = []


def write(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def notice(method: str, stream: str, **params: Any) -> None:
    write(method=method, params={**params, "_meta": {ID_KEY: stream}})


def listen(way: str, stream: str, params: dict[str, Any]) -> None:
    if way == "refuse":
        return write(id=stream, error={"code": -32000, "message": "too many listeners"})
    if way == "ignore":
        return None
    notice("notifications/subscriptions/acknowledged", stream, notifications=params["notifications"])
    notice("notifications/resources/updated", stream, uri="test://notes")
    match way:
        case "end":
            write(id=stream, result={"resultType": "complete"})
        case "cancel":
            write(method="notifications/cancelled", params={"requestId": stream})
    return None


def result_of(method: str) -> dict[str, Any]:
    match method:
        case "server/discover":
            return {"supportedVersions": [VERSION], "capabilities": {"tools": {}, "resources": {}}}
        case "tools/list":
            tool = {"name": "streams", "inputSchema": {"type": "object"}}
            return {"tools": [tool], "ttlMs": 0, "cacheScope": "private"}
    return {"content": [{"type": "text", "text": ",".join(CANCELLED)}]}


def main(way: str) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        method = message["method"]
        if method == "notifications/cancelled":
            CANCELLED.append(message["params"]["requestId"])
        elif method == "subscriptions/listen":
            listen(way, message["id"], message["params"])
        elif method == "initialize":
            write(id=message["id"], error={"code": -32601, "message": "there is no handshake"})
        elif method == "tools/call" and way == "die":
            sys.exit(3)
        else:
            write(id=message["id"], result={"resultType": "complete", **result_of(method)})


if __name__ == "__main__":
    main(sys.argv[1])
