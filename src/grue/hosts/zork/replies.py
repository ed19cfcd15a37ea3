"""The reply objects of `LLMClient`.

Source: R4.2, R4.3
"""

from dataclasses import dataclass


@dataclass
class FunctionCall:
    """Function call details.

    Attributes:
        name: Canonical tool name, such as `thoughtbox.think`.
        arguments: JSON text.
    """

    name: str
    arguments: str


@dataclass
class ToolCall:
    """A tool call from the model; `type` is always `function`."""

    id: str
    type: str
    function: FunctionCall


@dataclass
class LLMResponse:
    """A completion.

    Attributes:
        content: The text; `None` if there are tool calls.
        usage: Numbers of tokens, by OpenAI's names.
        tool_calls: The calls; `None` if there are none.
        finish_reason: The reason that the endpoint gives.

    Source: R4.3, P12
    """

    content: str | None
    model: str
    usage: dict[str, int] | None = None
    tool_calls: list[ToolCall] | None = None
    finish_reason: str | None = None
