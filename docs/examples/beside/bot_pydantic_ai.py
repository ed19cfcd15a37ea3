"""Talk to a model that has the tools of two MCP servers: python bot_pydantic_ai.py. With a trace."""

import asyncio
import os
import sys

from fastmcp.client.transports import StdioTransport
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from pydantic_ai import Agent, InstrumentationSettings
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


async def main() -> None:
    with open("bot.jsonl", "w") as trace:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=trace)))
        Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))
        llm = OpenAIProvider(base_url=os.environ["LLM_URL"], api_key=os.environ["GRUE_API_KEY"])
        toolsets = [
            MCPToolset(StdioTransport(sys.executable, [os.environ[f"{name.upper()}_SERVER"]])).prefixed(name)
            for name in ("notes", "clock")
        ]
        agent = Agent(
            OpenAIChatModel(os.environ["LLM_MODEL"], provider=llm),
            instructions="You keep my notes. Use the tools.",
            toolsets=toolsets,
        )
        history = []
        async with agent:
            for line in sys.stdin:
                result = await agent.run(line.strip(), message_history=history)
                history = result.all_messages()
                print(result.output, flush=True)


asyncio.run(main())
