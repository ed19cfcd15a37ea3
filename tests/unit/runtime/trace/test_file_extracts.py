"""Base64 in a trace: once, in a file of its own, whatever number of messages hold it."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from media import PNG, base64_of, image, padded

from grue.errors import TraceError
from grue.messages import (
    AnyMessage,
    BatchId,
    CallId,
    ConversationId,
    OfferTools,
    RequestCompletion,
    ToolCallRecord,
    ToolCallResult,
    ToolMessage,
    ToolReturned,
    TurnCompleted,
)
from grue.policies import TurnLimits
from grue.protocol.tools.results import MediaRoom, from_mcp, told
from grue.runtime.trace import reader as trace_reader
from grue.runtime.trace.file import TraceOptions, TraceWriter
from grue.runtime.trace.format import MIN_EXTRACT_BYTES, long_strings
from grue.runtime.trace.reader import read_trace
from grue.runtime.trace.recorder import Recorder

PICTURE = padded(PNG, 4033)


def messages(picture: bytes = PICTURE) -> tuple[AnyMessage, ...]:
    """Return what a turn records of one picture: the result, the request that shows it, the end."""
    result = from_mcp({"content": [{"type": "text", "text": "A map"}, image(picture), image(picture)]})
    message = ToolMessage(CallId("c"), *told(result, 1000, MediaRoom(TurnLimits())))
    record = ToolCallRecord(
        call_id=CallId("c"), name="a.b", arguments="{}", iteration=1, settlement="returned", result=result
    )
    return (
        ToolReturned(batch=BatchId(1), call_id=CallId("c"), result=result),
        RequestCompletion(
            conversation=ConversationId("turn-1"), request=2, new=(message,), mode=OfferTools()
        ),
        TurnCompleted(turn=1, kind="answered", tool_calls=(record,)),
    )


def write(path: Path, *bodies: AnyMessage, options: TraceOptions | None = None) -> None:
    recorder = Recorder()
    writer = TraceWriter(path, episode="e", options=options)
    recorder.add(writer)
    for body in bodies:
        recorder.record(body, sender="a")
    writer.close()


def read(path: Path) -> tuple[AnyMessage, ...]:
    return tuple(envelope.body for envelope in read_trace(path, AnyMessage).envelopes)


def files(path: Path) -> list[Path]:
    folder = path.parent / "payloads"
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("options", [None, TraceOptions(max_payload_bytes=300)])
def test_a_picture_is_in_the_trace_once_and_read_back_into_each_message(
    tmp_path: Path, options: TraceOptions | None
) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, *messages(), options=options)
    assert read(path) == messages()
    written = [path, *files(path)]
    holding = [file for file in written if base64_of(PICTURE) in file.read_text()]
    assert [json.loads(file.read_text()) for file in holding] == [base64_of(PICTURE)]
    assert (holding[0].stat().st_mode & 0o777) == 0o600


def test_a_line_says_what_was_taken_out_of_it_and_where_it_belongs(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, messages()[0])
    (file,) = files(path)
    line = json.loads(path.read_text().splitlines()[1])
    body = path.read_bytes().splitlines()[1].partition(b'"body":')[2]
    assert [block.get("data") for block in line["body"]["result"]["content"]] == [None, "", ""]
    assert [extract["$payload"] for extract in line["extracts"]] == [file.stem, file.stem]
    for extract in line["extracts"]:
        assert body[extract["at"] - 7 :].startswith(b'"data":""')
        assert extract["bytes"] == file.stat().st_size


def test_a_small_picture_stays_in_its_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, *messages(PNG))
    assert (read(path), files(path)) == (messages(PNG), [])
    assert b"extracts" not in path.read_bytes()


@pytest.mark.slow
@pytest.mark.made_up_trace  # it holds no turn
def test_sixty_megabytes_stand_once(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    huge = messages(padded(PNG, 60_000_000))
    write(path, *huge)
    assert read(path) == huge
    assert [round(file.stat().st_size / 1e6) for file in files(path)] == [80]
    assert path.stat().st_size < 5000


TEXTS = st.one_of(
    st.text(),
    st.sampled_from(["A" * MIN_EXTRACT_BYTES, 'data":"' * 300, '\\"data":"' + "B" * 2000, '"' * 2000]),
    st.integers(MIN_EXTRACT_BYTES - 3, MIN_EXTRACT_BYTES + 3).map(lambda size: "x" * size),
)
CONTENTS = st.recursive(
    TEXTS | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["data", "blob", 'k"data', "$payload", "text"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(CONTENTS, st.sampled_from([200, 65_536]))
def test_whatever_a_server_says_is_read_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, content: object, most: int
) -> None:
    path = tmp_path_factory.mktemp("t") / "trace.jsonl"
    message = ToolReturned(batch=BatchId(1), call_id=CallId("c"), result=ToolCallResult(content))
    write(path, message, message, options=TraceOptions(max_payload_bytes=most))
    assert read(path) == (message, message)


@given(CONTENTS)
def test_what_is_taken_out_are_whole_strings(content: object) -> None:
    line = msgspec.json.encode({"body": content})
    for start, end in long_strings(line):
        assert len(json.loads(line[start:end])) >= MIN_EXTRACT_BYTES - 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda line: line["extracts"][0].update(at=3), "line 2: there is no place in its body at byte 3"),
        (lambda line: line["extracts"].reverse(), "line 2: there is no place in its body"),
        (lambda line: line["extracts"][0].update(at=-5), "line 2: there is no place in its body"),
        (
            lambda line: line["extracts"][0].update({"$payload": "0" * 64}),
            r"line 2: cannot read its payload .*0\.json",
        ),
        (lambda line: line["extracts"][0].update({"$payload": "../x"}), "line 2: not a trace line"),
    ],
)
def test_a_trace_that_was_tampered_with_is_refused(tmp_path: Path, change: object, words: str) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, messages()[0])
    header, written = path.read_text().splitlines()
    line = json.loads(written)
    change(line)  # type: ignore[operator]
    path.write_text(f"{header}\n{json.dumps(line, separators=(',', ':'))}\n")
    with pytest.raises(TraceError, match=words):
        read(path)


def test_a_line_that_names_one_file_again_and_again_takes_no_more_memory_than_a_line_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_reader, "MAX_LINE_BYTES", 100_000)
    path = tmp_path / "trace.jsonl"
    write(path, messages()[0])
    header, written = path.read_text().splitlines()
    line = json.loads(written)
    extract = line["extracts"][0]
    line["body"] = [""] * 100
    line["extracts"] = [extract | {"at": 1 + 3 * number} for number in range(100)]
    path.write_text(f"{header}\n{json.dumps(line, separators=(',', ':'))}\n")
    with pytest.raises(TraceError, match="line 2: its body is too large with what was taken out of it"):
        read(path)
