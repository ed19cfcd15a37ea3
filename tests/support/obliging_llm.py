"""A scripted model that calls the first tool once, and then gives a minimal valid answer."""

import json
from typing import Any

from grue.testing.llm_server import LlmReply, LlmRequest, text_reply, tool_calls_reply
from grue.testing.offline.schema_instances import minimal


def oblige(request: LlmRequest) -> LlmReply:
    """Reply to any request. Without a schema, the answer is "Noted."; with one, a minimal instance."""
    tools: list[dict[str, Any]] = [each["function"] for each in request.chat.get("tools") or ()]
    after_user = request.messages[::-1]
    called = next((each["role"] for each in after_user if each["role"] in ("tool", "user")), "") == "tool"
    if tools and not called and request.chat.get("tool_choice") != "none":
        return tool_calls_reply((tools[0]["name"], minimal(tools[0]["parameters"])))
    schema = (request.chat.get("response_format") or {}).get("json_schema", {}).get("schema")
    return text_reply("Noted." if schema is None else json.dumps(minimal(schema)))
