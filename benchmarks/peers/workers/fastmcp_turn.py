"""A turn with FastMCP's client, which has no agent: a plain loop over httpx around it."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from turn_loop import SYSTEM, USER, Place, serve_async


def prepare(place: Place) -> Callable[[], Coroutine[Any, Any, str]]:
    # By default the transport keeps its server from one entry to the next; a fresh one is wanted.
    transport = StdioTransport(place.command, place.args, keep_alive=False)
    client = Client(transport, timeout=place.limit_s, init_timeout=place.limit_s)
    http = httpx.AsyncClient(base_url=place.base_url, timeout=60.0)

    async def turn() -> str:
        async with client:
            return await converse(client, http, place.model)

    return turn


async def converse(client: Client[Any], http: httpx.AsyncClient, model: str) -> str:
    tools = [function_of(tool) for tool in await client.list_tools()]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": USER},
    ]
    while True:
        request = {"model": model, "messages": messages, "tools": tools}
        response = (await http.post("/chat/completions", json=request)).raise_for_status()
        message = response.json()["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return str(message["content"])
        for call in message["tool_calls"]:
            function = call["function"]
            result = await client.call_tool(function["name"], json.loads(function["arguments"]))
            content = "\n".join(part.text for part in result.content if part.type == "text")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


def function_of(tool: Any) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


if __name__ == "__main__":
    serve_async(prepare)
