"""One turn of an agent, written by hand: the official MCP SDK, httpx, and a loop.

The benchmarks compare grue with this script. It is as fast as such a script can be: it has one SSL context
for all turns and one connection for both requests. It does no more than such a script usually does: no
retries, no timeouts of its own, no trace, no second server, and no handling of a server that hangs, dies or
leaves a child behind.

    python benchmarks/sdk_script.py http://127.0.0.1:8080/v1 MODEL COMMAND [ARGUMENT ...]
"""

import json
import ssl
import sys
from typing import Any

import anyio
import httpx
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import CallToolResult, TextContent, Tool

SYSTEM = "You are the player of a text adventure."
USER = "You are in the living room. What do you do?"
# Making a context takes 20 ms, and httpx makes one for every client that gets none.
SSL = ssl.create_default_context()


def run_turn(server: StdioServerParameters, base_url: str, model: str) -> str:
    """Start the server, let the model use its tools, stop the server; return the model's answer."""
    return anyio.run(converse, server, base_url, model)


async def converse(server: StdioServerParameters, base_url: str, model: str) -> str:
    async with (
        stdio_client(server) as (read, write),
        ClientSession(read, write) as session,
        httpx.AsyncClient(base_url=base_url, timeout=60.0, verify=SSL) as client,
    ):
        await session.initialize()
        tools = [function_of(tool) for tool in (await session.list_tools()).tools]
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": USER},
        ]
        while True:
            request = {"model": model, "messages": messages, "tools": tools}
            response = await client.post("/chat/completions", json=request)
            response.raise_for_status()
            message = response.json()["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                return str(message["content"])
            for call in message["tool_calls"]:
                function = call["function"]
                result = await session.call_tool(function["name"], json.loads(function["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": text_of(result)})


def function_of(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description or "",
            "parameters": tool.input_schema,
        },
    }


def text_of(result: CallToolResult) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, TextContent))


if __name__ == "__main__":
    base_url, model, command, *args = sys.argv[1:]
    print(run_turn(StdioServerParameters(command=command, args=args), base_url, model))
