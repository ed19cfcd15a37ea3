"""The rules that each format gives its events. A stream that breaks one is damaged, whatever is left."""

import json
from typing import Any

import pytest
from case_tables import each_case
from growth import assert_linear

import grue.protocol.chat_wire.chat_completions as chat_stream
import grue.protocol.chat_wire.wire_format as wire_format
from grue.protocol.chat_wire.anthropic_messages import AnthropicAssembler
from grue.protocol.chat_wire.chat_completions import ChatAssembler
from grue.protocol.chat_wire.responses import ResponsesAssembler
from grue.protocol.chat_wire.server_events import DamagedStream, OversizedStream, ServerEvent
from grue.protocol.chat_wire.wire_format import Assembler


def feed(assembler: Assembler, *events: object) -> Assembler:
    """Feed it these events: objects, texts as they are, or a name and an object."""
    for event in events:
        kind, data = event if isinstance(event, tuple) else ("", event)
        list(assembler.feed(ServerEvent(kind, data if isinstance(data, str) else json.dumps(data))))
    return assembler


def fault(assembler: Assembler, *events: object) -> str:
    with pytest.raises(DamagedStream) as raised:
        feed(assembler, *events)
    return str(raised.value)


# --- Chat completions ---


def delta(finish: str | None = None, **fields: object) -> dict[str, Any]:
    return {"choices": [{"delta": fields, "finish_reason": finish}]}


def call(arguments: object = "{}", **fields: object) -> dict[str, Any]:
    name = {"name": fields.pop("name")} if "name" in fields else {}
    return delta(tool_calls=[{**fields, "function": {**name, "arguments": arguments}}])


def choice(index: int, finish: str | None = None, **fields: object) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": fields, "finish_reason": finish}]}


A = call("{}", index=0, id="a", name="s.t")


@each_case(
    "events, words",
    [
        ([5], "is not a JSON object"),
        (["{garbage"], "is not JSON"),
        ([{"choices": {}}], "choices that are not a list"),
        ([{"chpices": []}], "'choices' should be"),
        ([{"choices": [5]}], "a choice that is not an object"),
        ([{"choices": [{"delta": [1]}]}], "a delta that is not an object"),
        ([{"choices": [{"dalta": {}}]}], "'delta' should be"),
        ([delta(cpntent="x")], "'content' should be"),
        ([delta(content=5)], "a content that is not a text"),
        ([delta(tool_calls=[5])], "a tool call that is not an object"),
        ([delta(tool_calls=[{"index": 0, "function": [1]}])], "a function that is not an object"),
        ([delta(tool_calls=[{"index": 0, "functiom": {}}])], "'function' should be"),
        ([call(index=0)], "a tool call that has not begun"),
        ([call(id="a")], "a tool call that has not begun"),
        ([A, call("", index=1)], "a tool call that has not begun"),
        ([A, call(name="s.t")], "unlike the others"),
        ([call(name="s.t"), A], "unlike the others"),
        ([A, call(index=2, id="b", name="s.t")], "begins tool call 2 after tool call 0"),
        ([call(index=1, id="b", name="s.t"), A], "begins tool call 0 after tool call 1"),
        ([A, call(index=1, id="b", name="s.t"), call('{"a":1}', index=0)], "whose arguments are complete"),
        ([call('{"p', index=0, name="s.t"), call("{}", index=0, name="s.u")], "before the arguments"),
        ([call('{"p', index=0, id="a", name="s.t"), call("", index=0, id="a", name="s.u")], "before the arg"),
        ([choice(0, content="a"), choice(1, content="b")], "has choice 1 beside choice 0"),
        ([choice(0), choice(1, "stop")], "has choice 1 beside choice 0"),
        (["[DONE]"], "no event gave it a finish_reason"),
        ([delta(content="x"), "[DONE]"], "no event gave it a finish_reason"),
        ([delta("tool_calls", content="x")], "but there are none"),
    ],
)
def test_chunks_of_no_completion(events: list[object], words: str) -> None:
    assert words in fault(ChatAssembler(), *events)


@pytest.mark.parametrize(
    "events",
    [
        [delta(content="x", annotations=[]), delta("stop"), "[DONE]"],
        [{"choices": []}, {"choices": None}, {}, " ", {"type": "ping"}, delta("stop", content="x")],
        [delta(role="assistant", content=None), delta("stop", content=[{"type": "text", "text": "x"}])],
        [A, call(" ", index=0), call(index=1, id="b", name="s.t"), call("", index=0), delta("stop")],
        [A, A, delta("tool_calls")],
    ],
)
def test_chunks_that_are_odd_and_sound(events: list[object]) -> None:
    assert feed(ChatAssembler(), *events).whole


@pytest.mark.parametrize(
    ("events", "calls"),
    [
        ([call('{"p":', index=0, name="read"), call("1}", index=0), call("{}", index=0, name="delete")],
         [("read", '{"p":1}'), ("delete", "{}")]),
        ([call("", index=0, name="read"), call('{"p":1}', index=0), call("", index=0, name="read"),
          call('{"p":2}', index=0)],
         [("read", '{"p":1}{"p":2}')]),
        ([call('{"p":1}', index=0, name="read"), call('{"p":2}', index=0, name="read")],
         [("read", '{"p":1}'), ("read", '{"p":2}')]),
        ([call({"p": 1}, index=0, name="read"), call({"p": 2}, index=0, name="delete")],
         [("read", {"p": 1}), ("delete", {"p": 2})]),
        ([call("", index=0, name="read"), call('{"p"', index=0, name="read"),
          call(":1}", index=0, name="read")],
         [("read", '{"p":1}')]),
        ([call('{"p":1}', index=0, name="read"), call("", index=0, name="read")], [("read", '{"p":1}')]),
        ([call("", index=0, id="a", name="files."), call("", index=0, name="read"), call("{}", index=0)],
         [("files.read", "{}")]),
        ([call("", index=0, id="a", name="files."), call("", index=0, id="a", name="read"),
          call("{}", index=0)],
         [("files.read", "{}")]),
        ([call("", name="files."), call("", name="read"), call("{}")], [("files.read", "{}")]),
        ([call("{}", name="look"), call("{}", name="take")], [("look", "{}"), ("take", "{}")]),
        ([delta(tool_calls=[{"function": {"name": "look"}}, {"function": {"name": "take"}}])],
         [("look", ""), ("take", "")]),
    ],
)  # fmt: skip
def test_calls_are_told_apart_without_ids_and_numbers(events: list[object], calls: object) -> None:
    """A name that comes in two pieces is put together, and two calls are never one that can be made."""
    body = json.loads(feed(ChatAssembler(), *events, delta("tool_calls")).body())
    functions = [each["function"] for each in body["choices"][0]["message"]["tool_calls"]]
    assert [(function["name"], function["arguments"]) for function in functions] == calls


# --- Anthropic's messages ---

START = {"type": "message_start", "message": {"role": "assistant"}}
STOP = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}


def begin(index: object, kind: str = "text", **fields: object) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def add(index: object, kind: str = "text_delta", **fields: object) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def end(index: object) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


@each_case(
    "events, words",
    [
        ([[1]], "is not a JSON object"),
        ([START, START], "starts the message a second time"),
        ([begin(0)], "no message has started"),
        ([STOP], "no message has started"),
        (
            [START, ("content_block_stop", {"type": "content_block_stpp"})],
            "but is called 'content_block_stop'",
        ),
        ([START, {"type": "content_block_start", "index": 0}], "a block of no type"),
        ([START, {"type": "content_block_start", "index": 0, "content_block": {}}], "a block of no type"),
        ([START, begin(0, "tool_usf")], "'tool_use' should be"),
        ([START, begin(0, "tool_use")], "a tool call without a name"),
        ([START, begin(0), begin(0)], "starts block 0 a second time"),
        ([START, begin(0), end(0), begin(2)], "starts block 2 after block 0"),
        ([START, begin(1), end(1), begin(0)], "starts block 0 after block 1"),
        ([START, add(0, text="x")], "adds to block 0, which has not started"),
        ([START, begin(0), end(0), add(0, text="x")], "adds to block 0, which has ended"),
        ([START, begin(0), end(0), end(0)], "ends block 0, which has ended"),
        ([START, end(0)], "ends block 0, which has not started"),
        ([START, begin(0), add(0, "text_deltb", text="x")], "adds 'text_deltb' to a block of type 'text'"),
        ([START, begin(0), add(0, "input_json_delta", partial_json="")], "to a block of type 'text'"),
        ([START, begin(0), add(0)], "adds text_delta without a text"),
        ([START, begin(0), add(0, text=5)], "adds text_delta without a text"),
        ([START, begin(0), add(0, texu="x")], "'text' should be"),
        ([START, begin(0), STOP], "while a block is open"),
        ([START, {"type": "message_stop"}], "no event gave it a stop_reason"),
        ([START, {**STOP, "delta": {"stop_reason": "tool_use"}}], "but there are none"),
    ],
)
def test_events_of_no_message(events: list[object], words: str) -> None:
    assert words in fault(AnthropicAssembler(), *events)


@pytest.mark.parametrize(
    "events",
    [
        [START, begin(0), add(0, text=None), add(0, text="x"), end(0), STOP],
        [START, begin(0, "server_tool_use"), add(0, "input_json_delta", partial_json="{}"), end(0), STOP],
        [START, begin(0, "odd"), add(0, "odd_delta", odd=1), end(0), begin(1), end(1), STOP],
        [
            ("message_start", {"message": {}}),
            {"type": "ping"},
            ("ping", ""),
            ("odd", {"type": "strange"}),
            STOP,
        ],
    ],
)
def test_events_that_are_odd_and_sound(events: list[object]) -> None:
    assert feed(AnthropicAssembler(), *events).whole


# --- Responses ---


def event(kind: str, **fields: object) -> dict[str, Any]:
    return {"type": f"response.{kind}", **fields}


def completed(*output: object, **fields: object) -> dict[str, Any]:
    return event("completed", response={"status": "completed", "output": list(output)}, **fields)


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": text}]}


def function(arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "name": "s.t", "arguments": arguments}


def said(text: object, index: int = 0, kind: str = "output_text") -> dict[str, Any]:
    return event(f"{kind}.delta", output_index=index, delta=text)


def done(item: object, **fields: object) -> dict[str, Any]:
    return event("output_item.done", item=item, **fields)


def numbered(*numbers: int) -> list[object]:
    return [event("created", sequence_number=number) for number in numbers]


def tool(call_id: str, name: str = "s.t", arguments: str = "{}", **fields: object) -> dict[str, Any]:
    named = {"call_id": call_id, "id": f"fc_{call_id}"} if call_id else {}
    return {"type": "function_call", **named, "name": name, "arguments": arguments, **fields}


def streamed(item: dict[str, Any], index: int, arguments: str | None = None) -> list[object]:
    """Return the events of a call; `arguments`: what `arguments.done` says, if that is something else."""
    where = {"output_index": index, "item_id": item.get("id")}
    text = item["arguments"]
    return [
        event("output_item.added", output_index=index, item={**item, "arguments": ""}),
        event("function_call_arguments.delta", **where, delta=text[:1]),
        event("function_call_arguments.delta", **where, delta=text[1:]),
        event("function_call_arguments.done", **where, arguments=text if arguments is None else arguments),
        done(item, output_index=index),
    ]


ONE, TWO = tool("a", "s.read", '{"p":1}'), tool("b", "s.list", '{"p":2}')


@each_case(
    "events, words",
    [
        (["{"], "is not JSON"),
        ([*numbered(1, 2, 4), completed()], "has number 4 after number 2"),
        ([*numbered(1, 2, 2), completed()], "has number 2 after number 2"),
        ([*numbered(1, 3), done(function("{}")), completed()], "has number 3 after number 1"),
        ([("response.completed", {"type": "response.complefed"})], "but is called 'response.completed'"),
        ([said(5)], "without a text"),
        ([event("output_text.delta", output_index=0)], "without a text"),
        ([said("lo"), completed(message("look"))], "another text"),
        ([said("lo"), completed({"type": "message", "content": [{"type": "refusal"}]})], "another text"),
        ([said("{", 0, "function_call_arguments"), completed(function("{}"))], "with other arguments"),
        ([done(function("{}")), completed(function('{"a":1}'))], "is not in the events before it"),
        ([done({"type": "reasoning"}), completed({"type": "message"})], "with another type"),
        ([done(5)], "an item that is not an object"),
        ([done({}, output_index=0), done({}, output_index=0)], "ends item 0 a second time"),
        ([event("completed")], "without a response"),
        ([completed({"type": "messbge"})], "'message' should be"),
        (
            [completed({"type": "message", "content": [{"type": "output_text", "texu": ""}]})],
            "'text' should be",
        ),
        ([*streamed(ONE, 0), completed(ONE, TWO)], "is not in the events before it"),
        ([done(message("x")), completed(message("x"), ONE)], "is not in the events before it"),
        ([*streamed(ONE, 0), *streamed(TWO, 1), completed(ONE)], "lacks a tool call"),
        ([*streamed(ONE, 0), *streamed(TWO, 1)[:-1], completed()], "lacks a tool call"),
        ([*streamed(ONE, 0), completed({**ONE, "name": "s.delete"})], "with another name"),
        ([*streamed(ONE, 0), completed({**ONE, "arguments": "{}"})], "with other arguments"),
        ([*streamed(ONE, 0)[:-1], completed({**ONE, "arguments": "{}"})], "with other arguments"),
        ([*streamed(ONE, 0, "{}"), completed(ONE)], "with other arguments"),
        ([*streamed(ONE, 0)[:3], done({**ONE, "arguments": "{}"}), completed()], "with other arguments"),
        ([*streamed(ONE, 0)[:1], done({**ONE, "name": "s.delete"}), completed()], "with another name"),
        ([event("completed", response={"status": "incomplete", "output": []})], "is called completed"),
        ([event("incomplete", response={"status": "completed", "output": []})], "is called incomplete"),
        (
            [completed({"type": "reasoning", "summary": [{"type": "summary_texu"}]})],
            "'summary_text' should be",
        ),
    ],
)
def test_events_of_no_response(events: list[object], words: str) -> None:
    assert words in fault(ResponsesAssembler(), *events)


@pytest.mark.parametrize(
    "events",
    [
        [said("look "), completed(message(" look"))],
        [said("look", 1), completed(message("x"))],
        [said("look"), completed()],
        [said("", 0), said(None, 0), said("{}", 0, "function_call_arguments"), completed(function("{}"))],
        [done(message("x"), output_index=0), done(function("{}"), output_index=1), completed()],
        [done(message("x")), done(message("x")), completed()],
        [event("created", sequence_number=n) for n in (0, 0, 0)] + [completed(sequence_number=0)],
        [event("created", sequence_number=n) for n in (3, 4, 5)] + [completed(sequence_number=6)],
        [event("created", sequence_number=n) for n in (3, 4, 1, 5, 1)] + [completed(sequence_number=6)],
        [*numbered(1, 2, 4), completed(message("x"))],
        [*streamed(ONE, 1), *streamed(TWO, 2), completed(ONE, TWO)],
        [*streamed(ONE, 0), *streamed(TWO, 0), completed(TWO, ONE)],
        [*streamed(ONE, 0), *streamed({**TWO, "call_id": "a", "id": "fc_a"}, 1), completed(ONE, TWO)],
        [*streamed(ONE, 0), completed({**ONE, "call_id": "other", "id": "other"})],
        [*streamed(ONE, 0), done({**message(""), "id": "msg_1"}, output_index=0), completed(ONE)],
        [*streamed(ONE, 0), completed({"type": "code_interpreter_call", "id": "fc_a"})],
        [*streamed(ONE, 0), *streamed(TWO, 1)[:-1], event("incomplete", response={"output": []})],
        [event("created", sequence_number="x"), completed(5, {"type": "web_search_call"})],
        [event("created", sequence_number=1), {"type": "error", "sequence_number": 99, "message": "x"}],
    ],
)
def test_responses_that_are_odd_and_sound(events: list[object]) -> None:
    assert feed(ResponsesAssembler(), *events).whole


# --- Size ---


def test_more_calls_than_any_reply_has_end_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_format, "MAX_CALLS", 2)
    calls = [call(index=number, id=str(number), name="s.t") for number in range(3)]
    feed(ChatAssembler(), *calls[:2])
    with pytest.raises(OversizedStream, match="more than 2 tool calls"):
        feed(ChatAssembler(), *calls)
    blocks = [each for number in range(3) for each in (begin(number), end(number))]
    with pytest.raises(OversizedStream, match="more than 2 blocks"):
        feed(AnthropicAssembler(), START, *blocks)


def test_a_response_of_too_many_texts_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_format, "MAX_CALLS", 2)
    with pytest.raises(OversizedStream, match="more than 2 items"):
        feed(ResponsesAssembler(), *[said("x", number) for number in range(4)])


def test_calls_with_one_id_are_compared_in_linear_time() -> None:
    def all_but_the_end(count: int) -> tuple[Assembler, dict[str, Any]]:
        calls = [tool("a", "s.read", "{}")] * count
        events = [done(item, output_index=number) for number, item in enumerate(calls)]
        return feed(ResponsesAssembler(), *events), completed(*calls)

    def compare(prepared: tuple[Assembler, dict[str, Any]]) -> None:
        assert feed(*prepared).whole

    assert_linear(compare, wire_format.MAX_CALLS, all_but_the_end)


def test_a_stream_that_names_a_long_call_again_and_again_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_stream, "_MOST_READ", 20)
    pieces = [call(f'{begun}"{n}":{{}}', index=0, name="s.t") for n, begun in enumerate("{,,,,,")]
    with pytest.raises(OversizedStream, match="names its tool calls too often"):
        feed(ChatAssembler(), *pieces)


# --- How much a stream may hold ---

MANY = "many empty objects"
SMALL = {"prompt_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 3}}


def grown(assembler: Assembler, *events: object) -> list[int]:
    """Return how much more the assembler holds after each event."""
    before, grown = assembler.held, []
    for each in events:
        feed(assembler, each)
        grown.append(assembler.held - before)
        before = assembler.held
    return grown


@each_case(
    "crowded",
    [
        {"choices": [], "usage": {"x": MANY}},
        {"choices": [], "system_fingerprint": MANY},
        {"choices": MANY},
        delta(content=MANY),
        delta(reasoning=MANY),
        delta(reasoning_details=MANY),
        {"choices": [{"delta": {}, "logprobs": {"content": MANY}}]},
        {"choices": [{"delta": {}, "token_ids": MANY}]},
        call({"x": MANY}, index=0, id="a", name="s.t"),
        call("", index=0, id="a", name="s.t", extra_content=MANY),
    ],
)
@pytest.mark.slow
def test_what_takes_long_to_read_counts_whenever_it_comes(crowded: object) -> None:
    event = json.dumps(crowded).replace(json.dumps(MANY), json.dumps([{}] * 5000))
    assert min(grown(ChatAssembler(), event, event, event)) > 5000


def test_a_usage_in_every_chunk_counts_once() -> None:
    chunks = [delta(content="word") | {"usage": SMALL, "id": "c", "model": "m"} for _ in range(3)]
    first, *later = grown(ChatAssembler(), *chunks)
    assert first > 100
    assert later == [len("word")] * 2
