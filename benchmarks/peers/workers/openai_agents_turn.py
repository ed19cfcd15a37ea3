"""A turn by the OpenAI Agents SDK: a server entered for the turn, and an agent made for it."""

from collections.abc import Callable, Coroutine
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from agents.mcp import MCPServerStdio
from openai import AsyncOpenAI
from turn_loop import API_KEY, SYSTEM, USER, Place, serve_async


def prepare(place: Place) -> Callable[[], Coroutine[Any, Any, str]]:
    # It would send traces to OpenAI.
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=place.base_url, api_key=API_KEY)
    model = OpenAIChatCompletionsModel(place.model, client)
    limit_s = place.limit_s or 5.0  # its default

    async def turn() -> str:
        # Without the cache it lists the tools before each completion.
        async with MCPServerStdio(
            {"command": place.command, "args": place.args},
            cache_tools_list=True,
            client_session_timeout_seconds=limit_s,
        ) as server:
            agent = Agent(name="player", instructions=SYSTEM, model=model, mcp_servers=[server])
            return str((await Runner.run(agent, USER)).final_output)

    return turn


if __name__ == "__main__":
    serve_async(prepare)
