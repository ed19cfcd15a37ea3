"""The files of `grue init`: a program and its test."""

AGENT = '''"""Answer a question with the tools of the servers in mcp_config.json.

python agent.py "What should I pack for a week in Oslo in March?"
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from grue import LlmSettings, Runner, TurnRequest
from grue.hosting import read_servers

CONFIG = Path(__file__).with_name("mcp_config.json")

# Any endpoint that speaks OpenAI's or Anthropic's format; a local one is http://127.0.0.1:11434/v1, say.
# The key is read from the environment: GRUE_API_KEY, or the provider's own, such as OPENROUTER_API_KEY.
LLM = LlmSettings(base_url="https://openrouter.ai/api/v1", model="anthropic/claude-haiku-5.5")


@dataclass
class Answer:
    """The answer that the model has to give."""

    text: str
    sure: bool


def ask(question: str, runner: Runner) -> Answer:
    """Ask one question. The model may use the tools before it answers."""
    request = TurnRequest(system="Think with the tools, then answer.", user=question, answer=Answer)
    return runner.run_turn(request).response


if __name__ == "__main__":
    with Runner(llm=LLM, servers=read_servers(CONFIG), trace="runs") as runner:
        print(ask(" ".join(sys.argv[1:]) or "What is six times seven?", runner).text)
    # Every message is on file, also of a run that failed. Read it with: grue trace show
    print(f"trace: {runner.trace}", file=sys.stderr)
'''

TEST = '''"""The program with a scripted model: no network, no key, and no process left behind."""

from grue import LlmSettings, Runner
from grue.hosting import MCPConfig
from grue.testing.llm_server import text_reply, tool_calls_reply

from agent import CONFIG, Answer, ask


def test_it_thinks_with_the_tool_and_answers(nothing_left, scripted_llm, fake_tool_session):
    mind = fake_tool_session("mind")
    mind.answers("think", "Noted.")
    llm = scripted_llm(
        tool_calls_reply(("mind.think", {"thought": "Six sevens are 42."})),
        text_reply('{"text": "42", "sure": true}'),
    )
    settings = LlmSettings(base_url=llm.base_url, model="scripted")
    with Runner(llm=settings, servers={"mind": mind}) as runner:
        assert ask("What is six times seven?", runner) == Answer("42", sure=True)
    assert mind.calls == [("think", {"thought": "Six sevens are 42."})]


def test_the_configuration_of_servers_is_valid():
    assert MCPConfig.from_file(CONFIG).mcpServers
'''
