"""Streams, put together: what comes out is what would have come at once, however the bytes were cut."""

import json
from collections.abc import Iterable
from typing import Any, get_args

import pytest
from case_tables import each_case
from chunks import PLACES, cut
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.messages import ReplyTokens
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.formats import FORMATS, WireName
from grue.protocol.chat_wire.server_events import EventLines
from grue.protocol.chat_wire.wire_format import Assembler, Delta, Reply
from grue.protocol.tools.names import WireNames
from grue.testing.providers.dialects import Dialect, dialect_of

NAMES = WireNames("canonical")
WIRES: tuple[WireName, ...] = get_args(WireName)


def dialect(wire: WireName) -> Dialect:
    found = dialect_of(FORMATS[wire].path)
    assert found is not None
    return found


def assembled(wire: WireName, chunks: Iterable[bytes]) -> tuple[Assembler, list[Delta]]:
    lines, assembler = EventLines(), FORMATS[wire].assembler()
    deltas: list[Delta] = []
    for chunk in chunks:
        for event in lines.feed(chunk):
            deltas += assembler.feed(event)
    for event in lines.end():
        deltas += assembler.feed(event)
    return assembler, deltas


def read(wire: WireName, body: bytes) -> Reply | Fault:
    return FORMATS[wire].decode(body, NAMES, request=1)


def outcome(wire: WireName, *events: object) -> Reply | Fault:
    """Return what a stream of these events means; each is an object or raw text after `data:`."""
    said = [event if isinstance(event, str) else json.dumps(event) for event in events]
    assembler, _ = assembled(wire, [f"data: {text}\n\n".encode() for text in said])
    return read(wire, assembler.body())


ARGUMENTS = st.sampled_from(
    ["{}", "", '{"a": "é"}', '{"a"', "[1, 2]", "5", '{"a":1}{"a":1}', '{"a":1}{"b":1}']
)
CALLS = st.lists(st.tuples(st.sampled_from(["a", "b", ""]), st.text(max_size=4), ARGUMENTS), max_size=4)
TEXTS = st.none() | st.text(max_size=60)


@st.composite
def completions(draw: st.DrawFn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": draw(TEXTS)}
    message |= {name: text for name in ("reasoning_content", "refusal") if (text := draw(st.none() | TEXTS))}
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in draw(CALLS)
    ]
    if calls:
        message["tool_calls"] = calls
    usage = {"prompt_tokens": draw(st.integers(0, 99)), "completion_tokens": 1}
    ends = ["stop", "length", "content_filter", *(["tool_calls"] if calls else [])]
    finish = draw(st.sampled_from(ends))
    return {
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": usage,
    }


@pytest.mark.parametrize("wire", WIRES)
@settings(max_examples=examples(200))
@given(completion=completions(), places=PLACES)
@pytest.mark.slow
def test_a_streamed_reply_is_what_would_have_come_at_once(
    wire: WireName, completion: dict[str, Any], places: list[int]
) -> None:
    request = {"stream": True, "stream_options": {"include_usage": True}}
    whole = dialect(wire).from_chat(completion, request)
    stream = b"".join(dialect(wire).events(whole, request))
    assembler, deltas = assembled(wire, cut(stream, places))
    reply = read(wire, assembler.body())
    assert reply == read(wire, json.dumps(whole).encode())
    assert assembler.finished
    assert assembler.whole
    if isinstance(reply, Reply):
        said = "".join(delta.text for delta in deltas if delta.part == "content")
        assert said.startswith(reply.content or "")
        thought = "".join(delta.text for delta in deltas if delta.part == "reasoning")
        assert thought.strip() == (reply.reasoning or "").strip()


@pytest.mark.parametrize("wire", WIRES)
@given(completion=completions(), kept=st.integers(0, 30))
def test_a_stream_that_breaks_off_never_raises(wire: WireName, completion: dict[str, Any], kept: int) -> None:
    whole = dialect(wire).from_chat(completion, {})
    events = tuple(dialect(wire).events(whole, {}))
    assembler, _ = assembled(wire, events[:kept])
    assert assembler.finished is (kept >= len(events))
    read(wire, assembler.body())


@pytest.mark.parametrize("wire", WIRES)
def test_an_error_event_ends_the_stream_with_the_endpoints_words(wire: WireName) -> None:
    assembler, _ = assembled(wire, [dialect(wire).broken_off()])
    fault = read(wire, assembler.body())
    assert assembler.finished
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.message) == ("unavailable", "The upstream broke off.")


@pytest.mark.parametrize("wire", WIRES)
def test_an_empty_stream_is_no_reply(wire: WireName) -> None:
    for events in ([], [b"data: {}\n\n"], [b"data:\n\n"], [b"event: ping\ndata: {}\n\n"]):
        assembler, deltas = assembled(wire, events)
        assert not assembler.whole
        assert deltas == []
        assert isinstance(read(wire, assembler.body()), Fault)


# --- Chat completions ---


def chunk(finish: str | None = None, **delta: object) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


def piece(arguments: object, **fields: object) -> dict[str, Any]:
    name = {"name": fields.pop("name")} if "name" in fields else {}
    return {**fields, "function": {**name, "arguments": arguments}}


def calls_of(*pieces: object) -> list[tuple[str, str, str]]:
    chunks = [chunk(tool_calls=[each]) for each in pieces]
    reply = outcome("chat_completions", *chunks, chunk("tool_calls"), "[DONE]")
    assert isinstance(reply, Reply), reply
    return [(call.call_id, call.name, call.arguments) for call in reply.tool_calls]


@each_case(
    "pieces, calls",
    [
        (  # as documented
            [piece("", index=0, id="a", name="s.t"), piece('{"a"', index=0), piece(":1}", index=0)],
            [("a", "s.t", '{"a":1}')],
        ),
        (  # two calls, their fragments in turns
            [
                piece('{"a"', index=0, id="a", name="s.t"),
                piece("{", index=1, id="b", name="s.u"),
                piece(":1}", index=0),
                piece("}", index=1),
            ],
            [("a", "s.t", '{"a":1}'), ("b", "s.u", "{}")],
        ),
        (  # no index: fragments without an id belong to the last call
            [piece("{", id="a", name="s.t"), piece("}"), piece("{}", id="b", name="s.t")],
            [("a", "s.t", "{}"), ("b", "s.t", "{}")],
        ),
        (  # no index and no id at all
            [piece("{", name="s.t"), piece("}"), piece("{}", name="s.u")],
            [("call_1_1", "s.t", "{}"), ("call_1_2", "s.u", "{}")],
        ),
        (  # the index never counts up: another id is another call, and what follows belongs to it
            [
                piece("{}", index=0, id="a", name="s.t"),
                piece("{", index=0, id="b", name="s.u"),
                piece("}", index=0),
            ],
            [("a", "s.t", "{}"), ("b", "s.u", "{}")],
        ),
        (  # the id and the name are repeated with every piece
            [piece("{", index=0, id="a", name="s.t"), piece("}", index=0, id="a", name="s.t")],
            [("a", "s.t", "{}")],
        ),
        (  # the id comes late
            [piece("{", index=0, name="s.t"), piece("}", index=0, id="a")],
            [("a", "s.t", "{}")],
        ),
        ([piece({"a": 1}, index=0, id="a", name="s.t")], [("a", "s.t", '{"a":1}')]),
        ([piece(None, index=0, id="a", name="s.t")], [("a", "s.t", "{}")]),
        ([piece({}, index=0, id="a", name="s.t")], [("a", "s.t", "{}")]),
        (  # a gateway that converts Anthropic's events begins each call with an empty object
            [
                piece({}, index=0, id="a", name="s.t"),
                piece('{"a"', index=0),
                piece(":1}", index=0),
                piece({}, index=1, id="b", name="s.u"),
                piece("", index=1),
            ],
            [("a", "s.t", '{"a":1}'), ("b", "s.u", "{}")],
        ),
        ([{"index": 0, "id": "a", "function": {"name": ""}}], [("a", "unnamed", "{}")]),
        (  # the numbers begin above 0 where a gateway counts the text
            [piece("{}", index=1, id="a", name="s.t"), piece("{}", index=2, id="b", name="s.u")],
            [("a", "s.t", "{}"), ("b", "s.u", "{}")],
        ),
        (  # ids without an index
            [
                piece("{", id="a", name="s.t"),
                piece("{", id="b", name="s.u"),
                piece("}", id="a"),
                piece("}"),
            ],
            [("a", "s.t", "{}"), ("b", "s.u", "{}")],
        ),
        ([piece("{}", index=[0], id="a", name="s.t"), piece("", index=[0])], [("a", "s.t", "{}")]),
    ],
)
def test_pieces_of_calls(pieces: list[object], calls: list[tuple[str, str, str]]) -> None:
    assert calls_of(*pieces) == calls


def test_thoughts_that_come_under_two_names_are_shown_once() -> None:
    both = chunk("stop", content="ok", reasoning_content="hm", reasoning="hm")
    _, deltas = assembled("chat_completions", [f"data: {json.dumps(both)}\n\n".encode()])
    assert [(delta.part, delta.text) for delta in deltas] == [("content", "ok"), ("reasoning", "hm")]


def test_an_error_as_llama_cpp_streams_it_says_what_failed() -> None:
    error = {"code": 400, "message": "the request exceeds the available context size", "type": "x"}
    lines = f"data: {json.dumps(chunk(content='Hm'))}\n\nerror: {json.dumps(error)}\n\n"
    assembler, _ = assembled("chat_completions", [lines.encode()])
    fault = read("chat_completions", assembler.body())
    assert isinstance(fault, Fault)
    assert (fault.status, fault.reason, fault.message) == (400, "too_long", error["message"])


def test_what_a_streamed_call_carries_beside_its_arguments_is_kept() -> None:
    signed = {"google": {"thought_signature": "s"}}
    reply = outcome(
        "chat_completions",
        chunk(tool_calls=[{**piece("{}", index=0, id="a", name="s.t"), "extra_content": signed}]),
        chunk(reasoning_details=[{"type": "x"}]),
        chunk("tool_calls", reasoning_details=[{"type": "y"}]),
    )
    assert isinstance(reply, Reply)
    assert reply.echo == {
        "tool_calls": {"a": {"extra_content": signed}},
        "reasoning_details": [{"type": "x"}, {"type": "y"}],
    }


def test_a_whole_message_may_come_as_the_one_chunk_but_is_not_said_twice() -> None:
    message = {"choices": [{"message": {"content": "look"}, "finish_reason": "stop"}]}
    said = outcome("chat_completions", message, "[DONE]")
    assert isinstance(said, Reply)
    assert said.content == "look"
    assert outcome("chat_completions", chunk(content="look"), message) == said


def test_a_stream_without_its_last_event_is_whole_once_it_has_a_reason_to_end() -> None:
    assembler, _ = assembled(
        "chat_completions", [b"data: " + json.dumps(chunk(content="lo")).encode() + b"\n\n"]
    )
    assert not assembler.whole
    ended = json.dumps(chunk("stop", content="ok")).encode()
    assembler, _ = assembled("chat_completions", [b"data: " + ended + b"\n\n"])
    assert (assembler.whole, assembler.finished) == (True, False)


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "cut", "code": 502}},
        {"error": {"message": "cut", "code": 502}, "choices": [{"delta": {"content": ""}}]},
        {"choices": [{"error": {"message": "cut", "code": 502}, "delta": {"content": "x"}}]},
    ],
)
def test_an_error_in_the_middle_outranks_what_came_before(error: dict[str, Any]) -> None:
    fault = outcome("chat_completions", chunk(content="lo"), error)
    assert fault == Fault(kind="unavailable", status=502, message="cut", reason="overloaded")


def test_usage_is_the_last_that_was_told() -> None:
    told = [{"choices": [], "usage": {"prompt_tokens": count}} for count in (1, 2)]
    reply = outcome("chat_completions", chunk("stop", content="x"), *told, {"choices": [], "usage": None})
    assert isinstance(reply, Reply)
    assert reply.usage.input_tokens == 2


# --- Responses ---


def test_items_that_are_done_stand_in_for_a_response_that_holds_none() -> None:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "look"}]}
    done = {"type": "response.output_item.done", "item": item}
    for output, content in (([], "look"), ([item, item], "looklook")):
        last = {"type": "response.completed", "response": {"status": "completed", "output": output}}
        reply = outcome("responses", done, last)
        assert isinstance(reply, Reply)
        assert reply.content == content


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"type": "error", "code": "server_error", "message": "hiccup"}, "hiccup"),
        ({"type": "error", "error": {"code": "server_error", "message": "hiccup"}}, "hiccup"),
        (
            {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "broke"}}},
            "broke",
        ),
        (
            {"type": "response.failed", "response": {"status": "failed", "output": []}},
            "the response is failed",
        ),
    ],
)
def test_a_response_that_fails(event: dict[str, Any], message: str) -> None:
    fault = outcome("responses", event)
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.message) == ("unavailable", message)


def test_an_empty_delta_is_not_shown() -> None:
    for delta in ("", None):
        event = {"type": "response.output_text.delta", "delta": delta}
        assert assembled("responses", [f"data: {json.dumps(event)}\n\n".encode()])[1] == []


# --- Anthropic's messages ---

STARTED = {
    "type": "message_start",
    "message": {"role": "assistant", "content": [], "usage": {"input_tokens": 3}},
}
ENDED = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn"},
    "usage": {"input_tokens": None, "output_tokens": 2},
}


def test_a_count_of_0_at_the_end_does_not_replace_the_count_at_the_start() -> None:
    usage = {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 2}
    reply = outcome("messages", STARTED, start(0, type="text", text="ok"), stop(0), {**ENDED, "usage": usage})
    assert isinstance(reply, Reply)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (3, 2)


def start(index: object, **block: object) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def add(index: object, kind: str, **delta: object) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **delta}}


def stop(index: object) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def test_a_message_of_blocks() -> None:
    reply = outcome(
        "messages",
        STARTED,
        start(0, type="thinking", thinking="", signature=""),
        add(0, "thinking_delta", thinking="deep"),
        add(0, "signature_delta", signature="s"),
        stop(0),
        start(1, type="text", text="lo"),
        add(1, "citations_delta", citation={}),
        add(1, "text_delta", text="ok"),
        stop(1),
        start(2, type="tool_use", id="a", name="s.t", input={}),
        add(2, "input_json_delta", partial_json=""),
        add(2, "input_json_delta", partial_json='{"a":'),
        add(2, "input_json_delta", partial_json="1}"),
        stop(2),
        ENDED,
    )
    assert isinstance(reply, Reply)
    assert (reply.content, reply.reasoning) == ("look", "deep")
    assert [(call.call_id, call.name, call.arguments) for call in reply.tool_calls] == [
        ("a", "s.t", '{"a":1}')
    ]
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (3, 2), "null is no count"
    assert reply.echo["content"] == [
        {"type": "thinking", "thinking": "deep", "signature": "s"},
        {"type": "text", "text": "look"},
        {"type": "tool_use", "id": "a"},
    ]


@pytest.mark.parametrize("index", [None, 0, [0], {"a": 1}])
def test_blocks_of_one_index_are_told_apart_by_where_they_start(index: object) -> None:
    reply = outcome(
        "messages",
        STARTED,
        start(index, type="text", text=""),
        add(index, "text_delta", text="look"),
        stop(index),
        start(index, type="tool_use", id="a", name="s.t", input={}),
        add(index, "input_json_delta", partial_json='{"a":1}'),
        stop(index),
        ENDED,
    )
    assert isinstance(reply, Reply)
    assert reply.content == "look"
    assert [call.arguments for call in reply.tool_calls] == ['{"a":1}']


def test_arguments_that_were_cut_short_go_on_as_the_text_that_they_are() -> None:
    reply = outcome(
        "messages",
        STARTED,
        start(0, type="tool_use", id="a", name="s.t", input={}),
        add(0, "input_json_delta", partial_json='{"a": [1'),
        stop(0),
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
    )
    assert isinstance(reply, Reply)
    assert reply.cut
    assert reply.tool_calls[0].arguments == '{"a": [1'


def test_a_message_is_whole_once_it_has_a_reason_to_stop() -> None:
    for events, whole in (([STARTED], False), ([STARTED, ENDED], True)):
        assembler, _ = assembled("messages", [f"data: {json.dumps(event)}\n\n".encode() for event in events])
        assert (assembler.whole, assembler.finished) == (whole, False)


def test_an_error_without_words_is_an_error() -> None:
    fault = outcome("messages", STARTED, {"type": "error", "why": "?"})
    assert isinstance(fault, Fault)
    assert fault.kind == "unavailable"


def test_the_tokens_of_a_stream_are_those_of_all_its_chunks() -> None:
    def told(text: str, token: int, **ids: object) -> dict[str, Any]:
        entry = {"id": token, "token": text, "logprob": -token / 8, "bytes": [1], "top_logprobs": [{}] * 9}
        choice = {"index": 0, "delta": {"content": text}, "logprobs": {"content": [entry]}, **ids}
        return {"choices": [choice]}

    reply = outcome("chat_completions", told("a", 1), told("b", 2), chunk("stop"))
    assert isinstance(reply, Reply)
    assert reply.tokens == ReplyTokens(ids=(1, 2), logprobs=(-0.125, -0.25))
    reply = outcome(
        "chat_completions", told("a", 1, token_ids=[5]), told("b", 2, token_ids=[6]), chunk("stop")
    )
    assert isinstance(reply, Reply)
    assert reply.tokens == ReplyTokens(ids=(5, 6), logprobs=(-0.125, -0.25))
    assembler, _ = assembled("chat_completions", [f"data: {json.dumps(told('a', 1))}\n\n".encode()])
    assert b"top_logprobs" not in assembler.body()
    assert assembler.held > 40
