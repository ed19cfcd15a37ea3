"""A turn by Pydantic AI: one agent for all turns, its toolset entered around each run."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from turn_loop import API_KEY, SYSTEM, USER, Place, serve_async


def prepare(place: Place) -> Callable[[], Coroutine[Any, Any, str]]:
    # By default the transport keeps its server from one entry to the next; a fresh one is wanted.
    transport = StdioTransport(place.command, place.args, keep_alive=False)
    provider = OpenAIProvider(base_url=place.base_url, api_key=API_KEY)
    toolset = MCPToolset(transport, read_timeout=place.limit_s)
    agent = Agent(
        OpenAIChatModel(place.model, provider=provider),
        instructions=SYSTEM,
        toolsets=[toolset],
    )

    async def turn() -> str:
        # Entering the agent instead would close its HTTP client at the end of each turn, too.
        async with toolset:
            return (await agent.run(USER)).output

    return turn


if __name__ == "__main__":
    serve_async(prepare)
