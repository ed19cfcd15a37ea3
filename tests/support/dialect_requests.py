"""Convert chat completions requests into the other wire formats, and read replies in each format."""

import json
from typing import Any

Json = dict[str, Any]


def as_responses(chat: Json) -> Json:
    """Convert a chat completions request into one for `/v1/responses`, as its documentation says."""
    items: list[Json] = []
    for message in chat["messages"]:
        if message["role"] == "tool":
            answer = {"call_id": message["tool_call_id"], "output": message["content"]}
            items.append({"type": "function_call_output", **answer})
            continue
        kind = "output_text" if message["role"] == "assistant" else "input_text"
        if message["content"] is not None:
            part = {"type": kind, "text": message["content"]}
            items.append({"type": "message", "role": message["role"], "content": [part]})
        items += [
            {"type": "function_call", "call_id": call["id"], **call["function"]}
            for call in message.get("tool_calls", ())
        ]
    body: Json = {"model": chat["model"], "input": items}
    if "tools" in chat:
        body["tools"] = [{"type": "function", "strict": False, **tool["function"]} for tool in chat["tools"]]
    return body


def as_messages(chat: Json) -> Json:
    """Convert a chat completions request into one for `/v1/messages`, as its documentation says."""
    said: list[Json] = []
    body: Json = {"model": chat["model"], "max_tokens": 100, "messages": said}
    for message in chat["messages"]:
        text = [{"type": "text", "text": message["content"]}]
        match message["role"]:
            case "system":
                body["system"] = text
            case "assistant":
                uses = [
                    {
                        "type": "tool_use",
                        "id": call["id"],
                        "name": call["function"]["name"],
                        "input": json.loads(call["function"]["arguments"]),
                    }
                    for call in message.get("tool_calls", ())
                ]
                said.append({"role": "assistant", "content": (text if message["content"] else []) + uses})
            case "tool":
                answer = {"tool_use_id": message["tool_call_id"], "content": message["content"]}
                result = {"type": "tool_result", **answer}
                if said[-1]["role"] != "user":
                    said.append({"role": "user", "content": []})
                said[-1]["content"].append(result)
            case "user":
                if said and said[-1]["role"] == "user":
                    said[-1]["content"] += text
                else:
                    said.append({"role": "user", "content": text})
    if "tools" in chat:
        body["tools"] = [
            {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
            for tool in chat["tools"]
        ]
    return body


def as_chat(chat: Json) -> Json:
    """Return the request unchanged."""
    return chat


def read_chat(reply: Json) -> tuple[str | None, list[Json]]:
    """Return the text and the calls of a chat completion. A call has `id`, `name` and parsed `arguments`."""
    message = reply["choices"][0]["message"]
    calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls", ())]
    return message["content"], [{**call, "arguments": json.loads(call["arguments"])} for call in calls]


def read_response(reply: Json) -> tuple[str | None, list[Json]]:
    """Return the text and the calls of a reply of the Responses API, as `read_chat` does."""
    texts = [item["content"][0]["text"] for item in reply["output"] if item["type"] == "message"]
    calls = [
        {"id": item["call_id"], "name": item["name"], "arguments": json.loads(item["arguments"])}
        for item in reply["output"]
        if item["type"] == "function_call"
    ]
    return (texts[0] if texts else None), calls


def read_message(reply: Json) -> tuple[str | None, list[Json]]:
    """Return the text and the calls of a reply of the Messages API, as `read_chat` does."""
    texts = [block["text"] for block in reply["content"] if block["type"] == "text"]
    calls = [
        {"id": block["id"], "name": block["name"], "arguments": block["input"]}
        for block in reply["content"]
        if block["type"] == "tool_use"
    ]
    return (texts[0] if texts else None), calls
