"""The scripted model of `grue chat --offline`, which does what `_INTRODUCTION` says."""

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from grue import messages as m
from grue.runtime.safe_text import clipped
from grue.testing.offline.chat_request import ChatMessage, ChatRequest, text_of
from grue.testing.offline.repertoire import Thought
from grue.testing.offline.schema_instances import UnsatisfiableError
from grue.testing.offline.script import FunctionCall, Reply, thinking_tool

_CALL: Final = re.compile(r"\s*call\s+(?P<name>\S+)\s*(?P<arguments>.*)", re.IGNORECASE)
_THINK: Final = re.compile(r"\s*think(?:\s+about)?\s+(?P<text>\S.*)", re.IGNORECASE | re.DOTALL)
_RECALL: Final = re.compile(r"what did i say", re.IGNORECASE)
# Begins a user message of grue's own: attachments of tool results, or the request for the final answer.
_NOT_THE_USERS: Final = re.compile(rf"\[Returned by the tool call |{re.escape(m.FINAL_REQUEST)}")
_MOST_SHOWN: Final = 300
_INTRODUCTION: Final = (
    "I am a script that stands in for a model, so I cannot answer that. Write `call TOOL {JSON}` and I call a"
    " tool, `think about SOMETHING` and I think, `what did I say` and I repeat it. (scripted)"
)


def reply_in_chat(request: ChatRequest) -> Reply:
    """Reply with the tool results since the user's last message, or else as `_INTRODUCTION` says."""
    messages = request.messages
    said = [
        index
        for index, each in enumerate(messages)
        if each.role == "user" and not _NOT_THE_USERS.match(text_of(each.content))
    ]
    if not said:
        return Reply(content=_INTRODUCTION)
    text = text_of(messages[said[-1]].content)
    results = [each for each in messages[said[-1] :] if each.role == "tool"]
    if results:
        return Reply(content=_repeated(results))
    if _RECALL.search(text):
        return Reply(content=_recalled([text_of(messages[index].content) for index in said[:-1]]))
    calls = _calls(request, text)
    if isinstance(calls, str):
        return Reply(content=f"{calls} (scripted)")
    return Reply(calls=calls) if calls else Reply(content=_INTRODUCTION)


def _calls(request: ChatRequest, text: str) -> tuple[FunctionCall, ...] | str:
    """Return the calls that the text asks for, or a sentence that says why they cannot be made."""
    thought = _THINK.fullmatch(text)
    if thought is not None:
        return _think(request, thought["text"])
    calls: list[FunctionCall] = []
    for line in text.split("\n"):
        asked = _CALL.fullmatch(line)
        if asked is None:
            continue
        # Only letters and digits are compared: a request may have other characters in place of a name's dots.
        # In a chat, the names of MCP tools begin with `mcp.`, which the user may leave out.
        wanted = (_plain(asked["name"]), f"mcp{_plain(asked['name'])}")
        alike = (each for each in request.offered if _plain(each.name) in wanted)
        function = max(alike, key=lambda each: each.name.endswith(asked["name"]), default=None)
        if function is None:
            names = ", ".join(each.name for each in request.offered) or "none"
            return f"I have no tool {asked['name']}. I have: {names}."
        # The arguments may be invalid JSON, as a real model's may be.
        calls.append(_call(request, len(calls), function.name, asked["arguments"].strip() or "{}"))
    return tuple(calls)


def _think(request: ChatRequest, text: str) -> tuple[FunctionCall, ...] | str:
    tool = thinking_tool(request.offered)
    if tool is None:
        return "I have no tool to think with."
    try:
        arguments: m.JsonObject = tool.arguments(Thought(text.strip()), 1, 1)
    except UnsatisfiableError:
        return f"My tool {tool.name} does not take this thought."
    return (_call(request, 0, tool.name, msgspec.json.encode(arguments).decode()),)


def _call(request: ChatRequest, number: int, name: str, arguments: str) -> FunctionCall:
    digest = hashlib.sha256(repr((len(request.messages), number, name, arguments)).encode()).hexdigest()
    return FunctionCall(id=f"call_offline_{digest[:12]}", name=name, arguments=arguments)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def _repeated(results: Sequence[ChatMessage]) -> str:
    texts = [clipped(text_of(each.content), _MOST_SHOWN) for each in results]
    if len(texts) == 1:
        return f"The tool says: {texts[0]} (scripted)"
    return "\n".join(["The tools say (scripted):", *(f"- {text}" for text in texts)])


def _recalled(texts: Sequence[str]) -> str:
    if not texts:
        return "This is the first thing that you say. (scripted)"
    return "\n".join(["You have said (scripted):", *(f"- {clipped(text, _MOST_SHOWN)}" for text in texts)])
