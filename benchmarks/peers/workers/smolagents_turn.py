"""A turn by smolagents: an MCP client entered for the turn, and a tool-calling agent over its tools."""

from collections.abc import Callable

from mcp import StdioServerParameters
from smolagents import LogLevel, MCPClient, OpenAIModel, ToolCallingAgent
from turn_loop import API_KEY, SYSTEM, USER, Place, serve


def prepare(place: Place) -> Callable[[], str]:
    server = StdioServerParameters(command=place.command, args=place.args)
    limits = {} if place.limit_s is None else {"client_session_timeout_seconds": place.limit_s}
    model = OpenAIModel(place.model, api_base=place.base_url, api_key=API_KEY)

    def turn() -> str:
        # The servers here answer with text alone.
        with MCPClient(server, adapter_kwargs=limits, structured_output=False) as tools:
            # It would draw its steps on standard output.
            agent = ToolCallingAgent(tools, model, instructions=SYSTEM, verbosity_level=LogLevel.OFF)
            return str(agent.run(USER))

    return turn


if __name__ == "__main__":
    serve(prepare)
