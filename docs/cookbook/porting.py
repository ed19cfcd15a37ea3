"""An agent with a tool and a typed answer. Comments say what each part is called in four other frameworks.

When you move an agent to grue, its tool's function and its answer's type can stay as they are.
"""

import os
from dataclasses import dataclass

from grue import FunctionTools, LlmSettings, MCPError, Runner, TurnRequest


@dataclass
class Verdict:
    """The answer. It was output_type (pydantic-ai, openai-agents) or response_format (LangGraph)."""

    urgent: bool


def customer_level(name: str) -> str:
    """Return the level of a customer: gold or plain."""
    # It was @agent.tool_plain, @function_tool, a node's @tool, or smolagents' @tool.
    return {"Ann": "gold"}.get(name, "plain")


# It was Agent(...) in pydantic-ai and openai-agents, create_react_agent(...), CodeAgent(...).
llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
with Runner(llm=llm, servers={"crm": FunctionTools([customer_level])}, trace="runs") as runner:
    # It was agent.run_sync, Runner.run_sync, graph.invoke, and agent.run of smolagents.
    request = TurnRequest(
        system="Mails of gold customers are urgent.",
        user="Ann writes: my order has not arrived.",
        answer=Verdict,
    )
    try:
        outcome = runner.run_turn(request)
    except MCPError as error:
        raise SystemExit(str(error)) from None
# It was .output, .final_output, ["structured_response"], and the returned value.
print(outcome.response, [call.name for call in outcome.tool_calls])
