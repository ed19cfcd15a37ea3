"""A turn by LangGraph and its MCP adapters: a session for the turn, and an agent made over its tools.

Without the explicit session, the adapters start a server to list the tools and another one for each call.
"""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from langchain_openai import ChatOpenAI
from turn_loop import API_KEY, SYSTEM, USER, Place, serve_async


def prepare(place: Place) -> Callable[[], Coroutine[Any, Any, str]]:
    connection = {"transport": "stdio", "command": place.command, "args": place.args}
    if place.limit_s is not None:
        limit = timedelta(seconds=place.limit_s)
        connection |= {"session_kwargs": {"read_timeout_seconds": limit}}
    servers = MultiServerMCPClient({"tools": connection})
    model = ChatOpenAI(model=place.model, base_url=place.base_url, api_key=API_KEY)

    async def turn() -> str:
        async with servers.session("tools") as session:
            agent = create_agent(model, await load_mcp_tools(session), system_prompt=SYSTEM)
            said = await agent.ainvoke({"messages": [{"role": "user", "content": USER}]})
        return str(said["messages"][-1].content)

    return turn


if __name__ == "__main__":
    serve_async(prepare)
