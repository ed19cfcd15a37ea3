"""A context window for the scripted endpoint: it counts each request, and refuses one that is too long."""

import json
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from grue.testing.llm_replies import LlmReply, error_reply

_FRAME_TOKENS = 4


class ContextWindow(Struct, frozen=True):
    """How long a request may be.

    Attributes:
        tokens: Longest request, with the tokens of the reply that it asks for.
        bytes_per_token: How many bytes of JSON count as one token.
    """

    tokens: int
    bytes_per_token: float = 4.0

    def count(self, chat: dict[str, Any]) -> int:
        """Return the tokens of a request in chat completions."""
        parts = [*chat.get("messages", ()), *chat.get("tools", ())]
        return sum(_FRAME_TOKENS + int(len(json.dumps(part)) / self.bytes_per_token) for part in parts)

    def refusal(self, chat: dict[str, Any]) -> LlmReply | None:
        """Return the refusal of a request that is too long, in OpenAI's words; `None`: it fits."""
        prompt = self.count(chat)
        reply = chat.get("max_completion_tokens") or chat.get("max_tokens") or 0
        if prompt + reply <= self.tokens:
            return None
        return error_reply(
            400,
            f"This model's maximum context length is {self.tokens} tokens. However, you requested "
            f"{prompt + reply} tokens ({prompt} in the messages, {reply} in the completion). Please reduce "
            "the length of the messages or completion.",
            type="invalid_request_error",
            code="context_length_exceeded",
        )

    def counted(self, reply: LlmReply, chat: dict[str, Any]) -> LlmReply:
        """Return a completion with the tokens of its request in its `usage`; any other reply is unchanged."""
        try:
            body = json.loads(reply.body)
            usage = body["usage"]
        except (ValueError, KeyError, TypeError):
            return reply
        prompt = self.count(chat)
        usage |= {"prompt_tokens": prompt, "total_tokens": prompt + usage.get("completion_tokens", 0)}
        return replace(reply, body=json.dumps(body).encode())
