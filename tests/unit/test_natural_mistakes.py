"""What people write first, and what they are told: refused where it is made, with the right form."""

from typing import Any

import pytest

from grue import Budget, FunctionTools, LlmSettings, Runner, TurnLimits
from grue.errors import MCPConfigError

LLM = LlmSettings(base_url="http://127.0.0.1:9/v1", model="m")


def weather(city: str) -> str:
    """Say what the weather is."""
    raise AssertionError("it was called")


def now() -> float:
    """Say what time it is."""
    raise AssertionError("it was called")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"llm": "http://localhost:8901/v1"}, "LlmSettings(base_url='http://localhost:8901/v1', model=...)"),
        ({"llm": {"model": "m"}}, "llm= wants LlmSettings(base_url=..., model=...)"),
        ({"llm": LlmSettings}, "llm= wants LlmSettings(base_url=..., model=...)"),
        ({"servers": [FunctionTools([now])]}, 'servers={"files": StdioServer(...)}, not a list'),
        ({"servers": {"w": weather}}, "FunctionTools([weather])"),
        ({"servers": {"w": now}}, "FunctionTools([now])"),
        ({"servers": {"w": len}}, "FunctionTools([len])"),
        ({"servers": {"w": "npx"}}, "StdioServer(name='w', command=...)"),
        ({"servers": {"w": "https://mcp.example.com"}}, "HttpServer(name='w', url=...)"),
        ({"servers": {"w": {"command": "npx"}}}, "StdioServer(name='w', command=..., args=(...))"),
        ({"servers": {"w": None}}, "StdioServer(name='w', command=..., args=(...))"),
    ],
)
def test_a_runner_refuses_what_is_no_model_and_no_server(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(MCPConfigError) as refused:
        Runner(**{"llm": LLM, **arguments})
    assert says in str(refused.value)


@pytest.mark.parametrize("limit", ["requests", "tokens", "cost_usd"])
def test_a_negative_budget_is_refused_where_it_is_made(limit: str) -> None:
    with pytest.raises(MCPConfigError, match=rf"Budget\({limit}=-1\): a limit may not be negative"):
        Budget(**{limit: -1})
    assert Budget(**{limit: 0})
    assert Budget() == TurnLimits().budget


@pytest.mark.parametrize(
    ("base_url", "meant"),
    [
        ("localhost:8901", "http://localhost:8901"),
        ("127.0.0.1:11434/v1", "http://127.0.0.1:11434/v1"),
        ("api.openai.com/v1", "https://api.openai.com/v1"),
    ],
)
def test_a_base_url_without_its_scheme_is_refused_where_it_is_made(base_url: str, meant: str) -> None:
    with pytest.raises(MCPConfigError, match="must start with http:// or https://") as refused:
        LlmSettings(base_url=base_url, model="m")
    assert f"Did you mean {meant}?" in str(refused.value)
