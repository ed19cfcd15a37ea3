"""A script in place of a model, for `triage.py`: it looks orders up and refunds what came broken."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from grue import LlmSettings
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply


def answer(request: LlmRequest) -> LlmReply:
    """Reply to a request as a careful model would."""
    mail = next(each["content"] for each in request.messages if each["role"] == "user")
    results = [each["content"] for each in request.messages if each["role"] == "tool"]
    order = re.search(r"[Oo]rder (\d+)", str(mail))
    if order is None:
        return text_reply(json.dumps({"topic": "spam", "reply": "(none)"}))
    if not results:
        return tool_calls_reply(("shop.look_up", {"order": int(order[1])}))
    if "broken" not in str(mail):
        return text_reply(json.dumps({"topic": "question", "reply": "It is on its way."}))
    if len(results) == 1:
        return tool_calls_reply(("shop.refund", {"order": int(order[1])}))
    return text_reply(json.dumps({"topic": "refund", "reply": "Sorry! Your money is on its way."}))


@contextmanager
def scripted_model() -> Iterator[LlmSettings]:
    """Serve the script as an endpoint on loopback."""
    with ScriptedLlmServer(answer) as server:
        yield LlmSettings(base_url=server.base_url, model="scripted")
