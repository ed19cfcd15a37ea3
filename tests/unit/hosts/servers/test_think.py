"""The bundled reasoning server, without a process: its protocol, its tool, its lines."""

import ast
import io
import json
import sys
from pathlib import Path

import pytest
from case_tables import each_case
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from grue.hosts.servers import think
from grue.hosts.servers.think import Session, answer, answer_line, serve

NEWEST = think.VERSIONS[-1]
THOUGHT = {"thought": "The lamp first.", "thoughtNumber": 1, "totalThoughts": 3, "nextThoughtNeeded": True}


def request(method, params=None, identity=1):
    message = {"jsonrpc": "2.0", "id": identity, "method": method}
    return message if params is None else message | {"params": params}


def opened(version=NEWEST):
    session = Session()
    answer(session, request("initialize", {"protocolVersion": version}))
    return session


def result_of(session, method, params=None):
    return answer(session, request(method, params))["result"]


def call(session, **arguments):
    return result_of(session, "tools/call", {"name": "think", "arguments": arguments})


def standing(session, **changes):
    return call(session, **(THOUGHT | changes))["structuredContent"]


def complaint(session, **changes):
    result = call(session, **(THOUGHT | changes))
    assert result["isError"] is True
    assert "structuredContent" not in result
    return result["content"][0]["text"]


def validator(schema):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install mcp")
    return jsonschema.Draft202012Validator(schema)


# The handshake


@pytest.mark.parametrize(
    ("offered", "agreed"),
    [(version, version) for version in think.VERSIONS]
    + [("2026-07-28", NEWEST), ("1999-01-01", NEWEST), ("", NEWEST)],
)
def test_initialize_agrees_on_a_version(offered, agreed):
    result = result_of(Session(), "initialize", {"protocolVersion": offered, "capabilities": {}})
    assert result["protocolVersion"] == agreed
    assert result["capabilities"] == {"tools": {}}
    assert result["serverInfo"].keys() >= {"name", "version"}
    assert result["instructions"]


@pytest.mark.parametrize(
    ("version", "tool_fields", "server_title"),
    [
        ("2024-11-05", set(), False),
        ("2025-03-26", {"annotations"}, False),
        ("2025-06-18", {"annotations", "title", "outputSchema"}, True),
        ("2025-11-25", {"annotations", "title", "outputSchema"}, True),
    ],
)
def test_each_version_gets_only_the_fields_it_has(version, tool_fields, server_title):
    session = Session()
    server = result_of(session, "initialize", {"protocolVersion": version})["serverInfo"]
    (tool,) = result_of(session, "tools/list")["tools"]
    assert ("title" in server) is server_title
    assert tool.keys() == {"name", "description", "inputSchema"} | tool_fields
    assert ("structuredContent" in call(session, **THOUGHT)) is ("outputSchema" in tool_fields)


def test_text_block_holds_the_structured_content():
    result = call(opened(), **THOUGHT)
    (block,) = result["content"]
    assert block["type"] == "text"
    assert json.loads(block["text"]) == result["structuredContent"]
    assert result["isError"] is False


def test_schemas_are_valid_json_schemas():
    for schema in (think.INPUT_SCHEMA, think.OUTPUT_SCHEMA):
        validator(schema).check_schema(schema)


# The refusals of the protocol: what is sent -> code and id of the error

REFUSED = {
    "not an object": ("text", -32600, None),
    "no method": ({"jsonrpc": "2.0", "id": 4}, -32600, 4),
    "method not a string": ({"jsonrpc": "2.0", "id": 4, "method": 7}, -32600, 4),
    "no jsonrpc": ({"id": 4, "method": "ping"}, -32600, 4),
    "old jsonrpc": ({"jsonrpc": "1.0", "id": "a", "method": "ping"}, -32600, "a"),
    "null id": (request("ping", identity=None), -32600, None),
    "boolean id": (request("ping", identity=True), -32600, None),
    "fractional id": (request("ping", identity=1.5), -32600, None),
    "list id": (request("ping", identity=[1]), -32600, None),
    "unknown method": (request("resources/list"), -32601, 1),
    "notification name as request": (request("notifications/initialized"), -32601, 1),
    "params not an object": (request("ping", [1]), -32602, 1),
    "second initialize": (request("initialize", {"protocolVersion": NEWEST}), -32600, 1),
    "invalid cursor": (request("tools/list", {"cursor": "2"}), -32602, 1),
    "unknown tool": (request("tools/call", {"name": "thonk", "arguments": {}}), -32602, 1),
    "no tool name": (request("tools/call", {"arguments": {}}), -32602, 1),
    "arguments not an object": (request("tools/call", {"name": "think", "arguments": "{}"}), -32602, 1),
    "batch where there are none": ([request("ping")], -32600, None),
}


@each_case("message, code, identity", REFUSED.values())
def test_malformed_requests_are_refused(message, code, identity):
    reply = answer(opened(), message)
    assert reply.keys() == {"jsonrpc", "id", "error"}
    assert (reply["error"]["code"], reply["id"]) == (code, identity)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (request("tools/list"), -32600),
        (request("tools/call", {"name": "think", "arguments": THOUGHT}), -32600),
        (request("server/discover"), -32601),
        (request("initialize"), -32602),
        (request("initialize", {"protocolVersion": 3}), -32602),
    ],
)
def test_before_initialize_little_is_allowed(message, code):
    session = Session()
    assert answer(session, message)["error"]["code"] == code
    assert answer(session, request("ping"))["result"] == {}
    assert session.version is None


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
        {"jsonrpc": "2.0", "method": "notifications/from/the/future", "params": 3},
        {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "think", "arguments": THOUGHT}},
        {"jsonrpc": "2.0", "id": 9, "result": {}},
        {"jsonrpc": "2.0", "id": 9, "error": {"code": 1, "message": "no"}},
    ],
)
def test_notifications_and_replies_are_never_answered(message):
    session = opened()
    assert answer(session, message) is None
    assert session.thoughts == 0


def test_batches_where_the_version_has_them():
    session = opened("2025-03-26")
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
    replies = answer(session, [request("ping", identity="a"), note, 5, request("nope", identity="b")])
    assert [(reply["id"], reply.get("error", {}).get("code")) for reply in replies] == [
        ("a", None),
        (None, -32600),
        ("b", -32601),
    ]
    assert answer(session, [note, note]) is None
    assert answer(session, [])["error"]["code"] == -32600


# The tool


def test_total_grows_with_the_number():
    session = opened()
    assert standing(session, thoughtNumber=5, totalThoughts=3)["totalThoughts"] == 5
    assert standing(session, thoughtNumber=2, totalThoughts=3)["totalThoughts"] == 3


def test_history_revisions_and_branches():
    session = opened()
    standing(session)
    standing(session, thoughtNumber=2, isRevision=True, revisesThought=1)
    standing(session, thoughtNumber=3, branchFromThought=1, branchId="west")
    last = standing(session, thoughtNumber=4, branchId="west", nextThoughtNeeded=False)
    assert last == {
        "thoughtNumber": 4,
        "totalThoughts": 4,
        "nextThoughtNeeded": False,
        "branches": ["west"],
        "thoughtHistoryLength": 4,
    }


def test_null_options_and_whole_floats_are_accepted():
    nulls = dict.fromkeys(("isRevision", "revisesThought", "branchFromThought", "branchId"))
    assert standing(opened(), thoughtNumber=1.0, **nulls)["thoughtNumber"] == 1


@each_case(
    "changes, text",
    [
        ({"thought": ""}, "thought must be a text that is not empty"),
        ({"thought": None}, "thought is missing"),
        ({"thought": 7}, "thought must be"),
        ({"thoughtNumber": 0}, "thoughtNumber must be a whole number, 1 or more"),
        ({"thoughtNumber": True}, "thoughtNumber must be"),
        ({"thoughtNumber": 1.5}, "thoughtNumber must be"),
        ({"totalThoughts": "3"}, "totalThoughts must be"),
        ({"nextThoughtNeeded": "true"}, "nextThoughtNeeded must be true or false"),
        ({"nextThoughtNeeded": 1}, "nextThoughtNeeded must be"),
        ({"needsMoreThoughts": []}, "needsMoreThoughts must be"),
        ({"branchID": "x"}, "'branchID' is not an argument"),
        ({"isRevision": True}, "isRevision needs revisesThought"),
        ({"revisesThought": 2}, "revisesThought names thought 2, which does not exist (recorded: 1)"),
        ({"branchFromThought": 9, "branchId": "w"}, "branchFromThought names thought 9"),
        ({"branchFromThought": 1}, "branchFromThought needs branchId"),
        ({"branchId": "w"}, "there is no branch 'w'"),
    ],
)
def test_wrong_arguments_are_results_the_model_can_read(changes, text):
    session = opened()
    standing(session)
    assert text in complaint(session, **changes)
    assert standing(session)["thoughtHistoryLength"] == 2, "a refused thought must leave no mark"


def test_first_thought_has_nothing_to_revise():
    assert "(recorded: none yet)" in complaint(opened(), isRevision=True, revisesThought=1)


def test_everything_wrong_is_said_at_once():
    text = call(opened(), thoughtNumber=0, totalThoughts=0)["content"][0]["text"]
    for name in think.INPUT_SCHEMA["required"]:
        assert name in text


# Properties

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
NEAR_MISSES = st.sampled_from([None, True, False, 0, 1, 2, 2.0, 2.5, -1, "", "west", "1", [], {}]) | SCALARS
ARGUMENTS = st.dictionaries(
    st.sampled_from([*think.INPUT_SCHEMA["properties"], "branchID"]), NEAR_MISSES, max_size=6
)
PARAMS = VALUES | st.fixed_dictionaries(
    {}, optional={"name": st.just("think") | VALUES, "arguments": ARGUMENTS | VALUES, "cursor": VALUES}
)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | VALUES,
        "id": st.integers() | st.text() | VALUES,
        "method": st.sampled_from(list(think.METHODS)) | VALUES,
        "params": PARAMS,
    },
)
WELL_FORMED = st.fixed_dictionaries(
    {
        "jsonrpc": st.just("2.0"),
        "id": st.integers() | st.text(max_size=5),
        "method": st.sampled_from(list(think.METHODS)),
    },
    optional={"params": PARAMS},
)
VERSIONS = st.sampled_from([None, *think.VERSIONS])


def check_reply(reply, message):
    assert reply.keys() in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"})
    assert reply["jsonrpc"] == "2.0"
    sent = message.get("id") if isinstance(message, dict) else None
    if isinstance(sent, str | int) and not isinstance(sent, bool):
        assert reply["id"] == sent
    else:
        assert reply["id"] is None
        assert "error" in reply
    if "error" in reply:
        assert isinstance(reply["error"]["code"], int)
        assert isinstance(reply["error"]["message"], str)


@settings(max_examples=examples(200))
@given(VERSIONS, st.lists(WELL_FORMED | REQUESTS | st.lists(REQUESTS, max_size=3) | VALUES, max_size=4))
@pytest.mark.slow
def test_any_json_value_gets_a_valid_reply_or_silence(version, messages):
    session = opened(version) if version else Session()
    for message in messages:
        reply = answer(session, message)
        if isinstance(reply, list):
            assert reply
            assert len(reply) <= len(message)
            continue
        if reply is not None:
            check_reply(reply, message)
            json.dumps(reply, allow_nan=False)


@settings(max_examples=examples(200))
@given(st.lists(ARGUMENTS | st.builds(lambda extra: THOUGHT | extra, ARGUMENTS), max_size=4))
@pytest.mark.slow
def test_arguments_are_judged_as_the_schema_says(batches):
    valid_input, valid_output = validator(think.INPUT_SCHEMA), validator(think.OUTPUT_SCHEMA)
    session = opened()
    for arguments in batches:
        present = {name: value for name, value in arguments.items() if value is not None}
        result = call(session, **arguments)
        if result["isError"]:
            assert not valid_input.is_valid(present) or set(present) & {
                "isRevision",
                "revisesThought",
                "branchFromThought",
                "branchId",
            }
        else:
            valid_input.validate(present)
            valid_output.validate(result["structuredContent"])


@settings(max_examples=examples(200))
@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_any_line_gets_one_line_or_none(line):
    reply = answer_line(Session(), line)
    if reply is not None:
        assert reply.endswith(b"\n")
        assert reply.count(b"\n") == 1
        assert reply.isascii()
        json.loads(reply)


# The lines

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping\xff"}', -32700),
        (b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}', -32700),
        (b'{"jsonrpc":"2.0","id":1e999,"method":"ping"}', -32600),
        (b"1" * 5000, -32700),
        (b"[" * 100_000, -32700),
        ("\ufeff".encode() + PING, -32700),
        (PING.decode().encode("utf-16"), -32700),
    ],
)
def test_lines_that_are_no_message_are_refused_with_a_null_id(line, code):
    reply = json.loads(answer_line(Session(), line))
    assert (reply["error"]["code"], reply["id"]) == (code, None)


def test_lone_surrogates_come_back_as_they_came():
    line = b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}'
    assert json.loads(answer_line(Session(), line))["id"] == "\ud800"


def served(stdin):
    sink = io.BytesIO()
    serve(io.BytesIO(stdin), sink)
    return [json.loads(line) for line in sink.getvalue().splitlines()]


def test_blank_lines_crlf_and_a_cut_last_line():
    assert [reply["id"] for reply in served(b"\n\r\n  \n" + PING + b"\r\n" + PING)] == [1, 1]


def test_a_line_too_long_is_refused_once_and_the_next_is_served(monkeypatch):
    monkeypatch.setattr(think, "MAX_LINE_BYTES", 100)
    fitting = PING + b" " * (99 - len(PING)) + b"\n"
    for excess in (1, 2, 50, 101, 102, 203, 1000):
        replies = served(fitting + PING + b" " * (99 - len(PING) + excess) + b"\n" + PING + b"\n")
        assert [reply["id"] for reply in replies] == [1, None, 1], excess
        assert replies[1]["error"]["code"] == -32600
    assert len(served(b"x" * 1000)) == 1


def test_help_is_for_people(capsys):
    assert think.main(["--help"]) == 0
    assert capsys.readouterr().out == think.USAGE
    assert think.main(["--port", "80"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "unknown argument --port" in err


def test_it_imports_only_the_light_part_of_the_standard_library():
    imported = set()
    for node in ast.parse(Path(think.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    assert imported == {"__future__", "json", "os", "signal", "sys"}
    assert imported <= sys.stdlib_module_names
