"""A real MCP server over HTTP, written with the SDK. It prints its port when it listens.

python http_mcp_server.py [--transport http|sse] [--json] [--stateless] [--record FILE] [--token TOKEN]
"""

import argparse
import json
import socket
import warnings
from pathlib import Path
from typing import Any

import anyio

warnings.simplefilter("ignore")  # of the SDK and its web framework, which are not under test

import uvicorn  # noqa: E402 - as are the next ones
from mcp.server.mcpserver import Context, MCPServer  # noqa: E402


def made_server() -> MCPServer:
    server = MCPServer("real", version="1.0")

    @server.tool(description="Return the text.", structured_output=False)
    def echo(text: str) -> str:
        return text

    @server.tool(structured_output=False)
    def fail() -> str:
        raise ValueError("told to fail")

    @server.tool(structured_output=False)
    async def slow(seconds: float) -> str:
        await anyio.sleep(seconds)
        return "at last"

    @server.tool(structured_output=False)
    def big(length: int) -> str:
        return "x" * length

    @server.tool(structured_output=False)
    async def chatty(ctx: Context) -> str:
        await ctx.report_progress(1, 2)
        return "done"

    return server


class Recorded:
    """An ASGI wrapper that records requests, and refuses those without the token."""

    def __init__(self, app: Any, record: str | None, token: str | None) -> None:
        self.app = app
        self.record = record
        self.token = token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            return await send({"type": "http.response.body", "body": b"who are you?"})

        async def receive_and_note() -> Any:
            message = await receive()
            if message.get("body"):
                self.note(scope, message["body"])
            return message

        if scope["method"] != "POST":
            self.note(scope, b"")
        return await self.app(scope, receive_and_note, send)

    def note(self, scope: Any, body: bytes) -> None:
        if self.record is None:
            return
        said = json.loads(body) if body else {}
        with Path(self.record).open("a") as record:
            line = {"http": scope["method"], "method": said.get("method"), "params": said.get("params")}
            record.write(json.dumps(line | {"id": said.get("id")}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", choices=["http", "sse"], default="http")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--stateless", action="store_true")
    parser.add_argument("--record")
    parser.add_argument("--token")
    parser.add_argument("--port", type=int, default=0)
    flags = parser.parse_args()
    server = made_server()
    if flags.transport == "sse":
        app = server.sse_app()
    else:
        app = server.streamable_http_app(json_response=flags.json, stateless_http=flags.stateless)
    with socket.create_server(("127.0.0.1", flags.port)) as listener:
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(
            Recorded(app, flags.record, flags.token), log_level="error", timeout_graceful_shutdown=0
        )
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
