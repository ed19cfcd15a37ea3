"""An MCP server over stdio that floods its client, or sends answers that no client expects.

Without flags it is a correct small server with one tool, `echo`. Use it for messages that are too many, too
large or malformed; use `faulty_server` for other faults. Flags can be combined:

```python
import hostile_server

command, *args = hostile_server.argv("--flood", "ping")
```

PHASE is `initialize`, `list` or `call`. Standard library only, run as a script.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

PHASES = {"initialize": "initialize", "tools/list": "list", "tools/call": "call"}

_QUESTION = {"role": "user", "content": {"type": "text", "text": "Hello?"}}
FLOODS: dict[str, bytes] = {
    "empty": b"",
    "noise": b"Server listening...",
    "ping": b'{"jsonrpc":"2.0","id":"p","method":"ping"}',
    "log": b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"working"}}',
    "progress": b'{"jsonrpc":"2.0","method":"notifications/progress",'
    b'"params":{"progressToken":%d,"progress":1}}',
    "list-changed": b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}',
    "late": b'{"jsonrpc":"2.0","id":99999,"result":{}}',
    "sampling": json.dumps(
        {
            "jsonrpc": "2.0",
            "id": "s",
            "method": "sampling/createMessage",
            "params": {"messages": [_QUESTION], "maxTokens": 9},
        }
    ).encode(),
    "elicitation": json.dumps(
        {
            "jsonrpc": "2.0",
            "id": "e",
            "method": "elicitation/create",
            "params": {"message": "Your name?", "requestedSchema": {"type": "object", "properties": {}}},
        }
    ).encode(),
    "roots": b'{"jsonrpc":"2.0","id":"r","method":"roots/list"}',
}
"""The choices of `--flood`: what to write repeatedly. `%d` stands for the id of the current request."""

_BLOCK = '{"type":"text","text":""}'
_ROW = '{"id": 12345, "name": "some person", "score": 1.25, "tags": ["a", "b"]}'


def _array(unit: str, size: int) -> str:
    return "[" + ", ".join([unit] * max(1, size // (len(unit) + 2))) + "]"


def _blocks(text: str) -> str:
    return json.dumps({"content": [{"type": "text", "text": text}]})


RESULTS: dict[str, Callable[[int], str]] = {
    "text": lambda size: _blocks("x" * size),
    "unicode": lambda size: _blocks("\N{SNOWMAN}" * (size // 6)),
    "json-text": lambda size: _blocks(_array('{"a":1}', size)),
    "rows": lambda size: f'{{"content": [], "structuredContent": {{"rows": {_array(_ROW, size)}}}}}',
    "lists": lambda size: f'{{"content": [], "structuredContent": {{"rows": {_array("[]", size)}}}}}',
    "blocks": lambda size: f'{{"content": {_array(_BLOCK, size)}}}',
    "image": lambda size: json.dumps(
        {"content": [{"type": "image", "mimeType": "image/png", "data": "iVBORw0K" * (size // 8)}]}
    ),
    "error": lambda size: json.dumps({**json.loads(_blocks("x" * size)), "isError": True}),
}
"""The choices of `--result`: functions from a size in bytes to a call's result."""


def argv(*flags: str) -> tuple[str, ...]:
    """Return the command line that runs this server with `flags`, in this interpreter."""
    return (sys.executable, "-I", __file__, *flags)


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hostile_server", description="An MCP server that sends too much.")
    add = parser.add_argument
    add("--flood", choices=tuple(FLOODS), help="write this forever instead of answering")
    add("--at", metavar="PHASE", default="call", choices=tuple(PHASES.values()), help="when to flood")
    add("--result", metavar="KIND=BYTES", default="", help=f"answer calls with one of {', '.join(RESULTS)}")
    add("--description", metavar="BYTES", type=int, default=0, help="length of the tool's description")
    add("--tools", metavar="N", type=int, default=1, help="number of tools that it lists")
    add(
        "--say",
        metavar="PHASE=JSON",
        action="append",
        default=[],
        help="answer with this JSON; ID is replaced",
    )
    add("--error-text", metavar="BYTES", type=int, default=0, help="answer calls with an error so long")
    return parser


class HostileServer:
    """The server: answers requests one after the other, as `flags` say."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self._flags = flags
        self._said = dict(each.split("=", 1) for each in flags.say)

    def serve(self) -> None:
        """Answer until the end of input."""
        for line in sys.stdin.buffer:
            message = json.loads(line)
            if "method" in message and "id" in message:
                self._serve(message, PHASES.get(message["method"], "other"))

    def _serve(self, message: dict[str, Any], phase: str) -> None:
        if self._flags.flood and self._flags.at == phase:
            self._flood(message["id"])
        if phase in self._said:
            self._write(self._said[phase].replace("ID", json.dumps(message["id"])))
            return
        member = "error" if phase == "call" and self._flags.error_text else "result"
        body = self._body(message, phase)
        self._write(f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},"{member}":{body}}}')

    def _body(self, message: dict[str, Any], phase: str) -> str:
        flags, params = self._flags, message.get("params") or {}
        if phase == "initialize":
            named = {"serverInfo": {"name": "hostile", "version": "1.0"}}
            agreed = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
            return json.dumps({**agreed, **named})
        if phase == "list":
            tool = {"description": "y" * flags.description, "inputSchema": {"type": "object"}}
            names = ["echo", *(f"tool_{number}" for number in range(1, flags.tools))]
            return json.dumps({"tools": [{"name": name, **tool} for name in names]})
        if phase == "call" and flags.error_text:
            return json.dumps({"code": -32000, "message": "z" * flags.error_text})
        if phase == "call" and flags.result:
            kind, _, size = flags.result.partition("=")
            return RESULTS[kind](int(size))
        return _blocks("hi") if phase == "call" else "{}"

    def _flood(self, request_id: int) -> None:
        line = FLOODS[self._flags.flood]
        lines = (line % request_id if b"%d" in line else line) + b"\n"
        lines *= max(1, 65_536 // len(lines))
        while True:
            os.write(1, lines)

    def _write(self, line: str) -> None:
        sys.stdout.buffer.write(line.encode("utf-8", "surrogatepass") + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        HostileServer(_flags().parse_args()).serve()
    os._exit(0)  # skip the interpreter's flush of standard output, which would print BrokenPipeError
