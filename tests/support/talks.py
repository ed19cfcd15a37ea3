"""A scripted model that thinks, calls tools and answers, and runners that use it, for conversations."""

import itertools
import json
from typing import Any, get_args

from wire_bodies import up_to_last_message, without_markers

from grue import FunctionTools, LlmSettings, RetryPolicy, Runner
from grue.protocol.chat_wire.formats import WireName
from grue.protocol.chat_wire.profiles import profile_for
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

WIRES: tuple[WireName, ...] = get_args(WireName)


def chatty(request: LlmRequest) -> LlmReply:
    """Answer each question after a thought; every third question also after two tool calls in one reply."""
    messages = request.messages
    number = sum(message["role"] == "user" for message in messages)
    if messages[-1]["role"] == "user" and number % 3 == 0 and request.tool_names:
        tool = next(name for name in request.tool_names if name.endswith("look"))
        calls = [(tool, json.dumps({"at": f"{number}-{each}"}, separators=(",", ":"))) for each in "ab"]
        return tool_calls_reply(*calls, content="One moment.", reasoning_content=f"Thought {number}.")
    return text_reply(f"Answer {number}.", reasoning_content=f"Reason {number}.")


def look(at: str) -> str:
    return f"seen {at}"


def runner_for(server: ScriptedLlmServer, wire: WireName = "chat_completions", **how: Any) -> Runner:
    llm = LlmSettings(base_url=server.base_url, model=how.pop("model", "scripted"), wire=wire, api_key="key")
    return Runner(llm=llm, servers={"house": FunctionTools({"look": how.pop("look", look)})}, **how)


def broken_runner() -> Runner:
    """Return a runner whose endpoint does not exist."""
    retry = RetryPolicy(max_retries=0)
    return Runner(llm=LlmSettings(base_url="http://127.0.0.1:9/v1", model="scripted", retry=retry))


def changed_prefixes(
    server: ScriptedLlmServer, wire: WireName = "chat_completions", *, first: int = 0
) -> int:
    """Count the requests, from `first` on, that do not begin with the previous one. Ignore cache markers."""
    profile = profile_for(server.base_url, wire=wire)
    raws = [request.raw for request in server.requests[first:]]
    return sum(
        not without_markers(after).startswith(up_to_last_message(before, profile))
        for before, after in itertools.pairwise(raws)
    )


def said_to(server: ScriptedLlmServer) -> list[str]:
    """Return the contents of the messages in the last request, oldest first."""
    return [str(message["content"]) for message in server.requests[-1].messages]
