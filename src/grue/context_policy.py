"""`ContextPolicy`: how a long turn or conversation stays within the model's context window.

Plain data, off by default: `TurnRequest(context=ContextPolicy(window_tokens=32_000))` turns it on. The rules
are in `protocol/context_fit.py`.
"""

from msgspec import Struct

from grue.errors import MCPConfigError

SUMMARY_REQUEST = (
    "The conversation so far will be replaced by your summary of it. Write down what is needed to go on "
    "without it: the task, what has been done and found out, with names, numbers and ids as they were given, "
    "what failed, and what is left to do. Use at most {words} words. Call no tools."
)


class ContextPolicy(Struct, frozen=True, kw_only=True):
    """How to keep a conversation within the model's context window.

    Above `high_water` the oldest tool results are replaced by stubs, down to `low_water`. If that is not
    enough, the model is asked for a summary, which takes the place of what was said. A result that does not
    fit into the rest of the window is cut in the middle. The last reply and its results are never replaced.

    Attributes:
        window_tokens: The model's context window, in tokens; `None`: not known. Then nothing is cleared
            before the endpoint has refused a request as too long, and that much is taken as the window.
        reply_tokens: The part of the window that is reserved for the reply; at most half of it is.
        high_water: Clear when a request would fill more than this share of the rest of the window.
        low_water: Clear until it fills at most this share.
        max_summaries: Most summaries in one turn; 0: never ask for one. Each is a request to the model, which
            counts for the budget, but not as an iteration.
        summary_request: The text that asks for a summary; `{words}` is replaced by a number.
        read_only: Patterns of canonical tool names (`files.*`). Their stubs say that the tool can be called
            again; those of other tools say that the call was made and must not be repeated. A tool that is
            trusted and annotated as read-only needs no pattern.
        bytes_per_token: The estimate of a text's size, until the endpoint's own counts correct it.

    Raises:
        MCPConfigError: A number is out of its range.
    """

    window_tokens: int | None = None
    reply_tokens: int = 2048
    high_water: float = 0.9
    low_water: float = 0.6
    max_summaries: int = 1
    summary_request: str = SUMMARY_REQUEST
    read_only: tuple[str, ...] = ()
    bytes_per_token: float = 3.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 < self.low_water < self.high_water <= 1:
            raise MCPConfigError(
                f"ContextPolicy: low_water ({self.low_water:g}) must be above 0 and below high_water "
                f"({self.high_water:g}), which must be at most 1."
            )
        if self.window_tokens is not None and self.window_tokens < 1:
            raise MCPConfigError(f"ContextPolicy: window_tokens is {self.window_tokens}; it must be above 0.")
        if self.reply_tokens < 0 or self.max_summaries < 0 or not 0 < self.bytes_per_token < 1000:
            raise MCPConfigError(
                "ContextPolicy: reply_tokens and max_summaries must not be negative, and bytes_per_token "
                "must be above 0."
            )


class ContextItem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The size of a part of a conversation.

    Attributes:
        tokens: Its size, as the endpoint has counted it or as it is estimated.
        counted: The endpoint has counted it.
        call_id: The tool call that it answers; empty: it is not a tool result.
        tool: Canonical name of that call's tool.
        stub: What takes its place if it is cleared; empty for a tool result, whose stub depends on its tool.
    """

    tokens: int
    counted: bool = False
    call_id: str = ""
    tool: str = ""
    stub: str = ""

    @property
    def clearable(self) -> bool:
        """Whether it can be replaced by a stub."""
        return bool(self.call_id or self.stub)


class ContextOverflow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An endpoint's refusal of a request that is too long.

    Attributes:
        window_tokens: The model's window, if the refusal says it.
        prompt_tokens: The size of the refused request, if the refusal says it.
    """

    window_tokens: int | None = None
    prompt_tokens: int | None = None
