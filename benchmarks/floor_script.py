"""The turn of sdk_script.py with blocking pipes and one blocking socket: the least time that a turn can take.

It uses no SDK and no event loop, and checks nothing. Nobody should write this. It shows how much of a turn's
time the server and the endpoint take, which no client can reduce.
"""

import http.client
import json
import socket
import subprocess
from collections.abc import Sequence
from itertools import count
from typing import Any
from urllib.parse import urlsplit


class Pipes:
    """A server process, to which requests are sent one after the other."""

    def __init__(self, command: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self._ids = count(1)

    def request(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request, and return its result."""
        self.send({"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params})
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())["result"]

    def send(self, message: dict[str, Any]) -> None:
        """Write a message as one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Close the server's standard input, and wait until the server has ended."""
        self._process.communicate()


def run_turn(command: Sequence[str], base_url: str, model: str) -> str:
    """Run the same turn as `sdk_script.run_turn`, and return the answer."""
    url = urlsplit(base_url)
    pipes = Pipes(command)
    http_client = http.client.HTTPConnection(url.hostname or "", url.port)
    http_client.connect()
    http_client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        capabilities: dict[str, Any] = {"capabilities": {}, "clientInfo": {"name": "floor", "version": "1"}}
        pipes.request("initialize", {"protocolVersion": "2025-11-25", **capabilities})
        pipes.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        tools = [_function_of(tool) for tool in pipes.request("tools/list", {})["tools"]]
        return _converse(pipes, http_client, f"{url.path}/chat/completions", model, tools)
    finally:
        http_client.close()
        pipes.close()


def _function_of(tool: dict[str, Any]) -> dict[str, Any]:
    function = {
        "name": tool["name"],
        "description": tool.get("description", ""),
        "parameters": tool["inputSchema"],
    }
    return {"type": "function", "function": function}


def _converse(
    pipes: Pipes, client: http.client.HTTPConnection, path: str, model: str, tools: list[dict[str, Any]]
) -> str:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are the player of a text adventure."},
        {"role": "user", "content": "You are in the living room. What do you do?"},
    ]
    while True:
        request = {"model": model, "messages": messages, "tools": tools}
        client.request("POST", path, json.dumps(request), {"Content-Type": "application/json"})
        message = json.loads(client.getresponse().read())["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return str(message["content"])
        for call in message["tool_calls"]:
            function = call["function"]
            params = {"name": function["name"], "arguments": json.loads(function["arguments"])}
            content = pipes.request("tools/call", params)["content"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content[0]["text"]})
