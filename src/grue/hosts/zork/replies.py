"""The seeds' reply objects (R4.2, R4.3)."""

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
        content: The text; `None` beside tool calls (R4.3, P12).
        usage: Tokens by the endpoint's names.
        tool_calls: `None` if there are none.
        finish_reason: The endpoint's word.
    """

    content: str | None
    model: str
    usage: dict[str, int] | None = None
    tool_calls: list[ToolCall] | None = None
    finish_reason: str | None = None
