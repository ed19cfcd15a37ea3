"""Test an agent of your own: against a correct server, and against servers and models that fail.

.venv/bin/python -m pytest docs/examples/test_my_agent.py
"""

import pytest

from grue import LlmSettings, TurnLimits
from grue.hosts.agent_loop import AgentLoop
from grue.testing.llm_server import text_reply, tool_calls_reply
from grue.testing.mock_server import MockServer


def my_agent(question, llm, server):
    """Your agent: here it has a conversation of one question."""
    with AgentLoop(llm, system="You sell.", servers={"shop": server}, limits=LIMITS) as loop:
        return loop.run(question)


LIMITS = TurnLimits(tool_call_timeout_s=0.5, server_startup_timeout_s=30)
SHOP = MockServer("shop")
SHOP.add_tool(lambda text: f"{text}: 4 euros", name="echo")
# AgentLoop names a tool mcp.SERVER.TOOL, a Runner SERVER.TOOL. The faulty server below has a tool echo, too.
QUESTION = tool_calls_reply(("mcp.shop.echo", {"text": "a lamp"}))
BROKEN = tool_calls_reply(("mcp.shop.echo", '{"text": "a la'))


def ask(scripted_llm, server, *replies):
    """Return the agent's answer, and what the model has read last."""
    llm = scripted_llm(*replies, text_reply("Four euros, I think."))
    answer = my_agent("What is a lamp?", LlmSettings(base_url=llm.base_url, model="m"), server)
    return answer, " ".join(str(message["content"]) for message in llm.requests[-1].messages)


def test_it_looks_the_price_up(nothing_left, scripted_llm, mock_mcp_server):
    answer, read = ask(scripted_llm, mock_mcp_server(SHOP), QUESTION)
    assert answer == "Four euros, I think."
    assert "a lamp: 4 euros" in read


def test_it_goes_on_after_a_call_that_was_cut(nothing_left, scripted_llm, mock_mcp_server):
    assert "a lamp: 4 euros" in ask(scripted_llm, mock_mcp_server(SHOP), BROKEN, QUESTION)[1]


@pytest.mark.parametrize(
    ("fault", "says"),
    [("--silent-at", "timed out"), ("--exit-at", "the server ended"), ("--error-at", "refuse")],
)
def test_it_answers_though_the_server_fails(nothing_left, scripted_llm, faulty_mcp_server, fault, says):
    answer, read = ask(scripted_llm, faulty_mcp_server(fault, "call"), QUESTION)
    assert answer == "Four euros, I think."
    assert says in read
