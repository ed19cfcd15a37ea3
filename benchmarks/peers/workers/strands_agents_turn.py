"""A turn by Strands Agents: an MCP client entered for the turn, and an agent made over its tools."""

from collections.abc import Callable, Coroutine
from typing import Any

from mcp import StdioServerParameters, stdio_client
from openai import AsyncOpenAI
from strands import Agent
from strands.models.openai import OpenAIModel
from strands.tools.mcp import MCPClient
from turn_loop import API_KEY, SYSTEM, USER, Place, serve_async


def prepare(place: Place) -> Callable[[], Coroutine[Any, Any, str]]:
    server = StdioServerParameters(command=place.command, args=place.args)
    # Given only its arguments, the model makes a client for each completion.
    endpoint = AsyncOpenAI(base_url=place.base_url, api_key=API_KEY)
    model = OpenAIModel(client=endpoint, model_id=place.model)

    async def turn() -> str:
        client = MCPClient(lambda: stdio_client(server))
        with client:
            # Its default callback prints the reply on standard output.
            agent = Agent(model, tools=client.list_tools_sync(), system_prompt=SYSTEM, callback_handler=None)
            return str(await agent.invoke_async(USER)).strip()

    return turn


if __name__ == "__main__":
    serve_async(prepare)
