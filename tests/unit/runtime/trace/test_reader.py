"""Reading trace files: whole ones, cut ones, damaged ones, those that are still being written."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_messages import Body, Counted, Said, rounded, write

from grue.errors import TraceError
from grue.runtime.trace.file import TraceOptions
from grue.runtime.trace.reader import Trace, TraceReader, read_trace

SMALL = TraceOptions(max_payload_bytes=100)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


@given(
    st.lists(
        st.builds(Said, st.text(), st.none() | st.integers() | st.text()) | st.builds(Counted, st.integers())
    ),
    st.sampled_from([0, 40, 100, 65_536]),
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[Said | Counted], max_payload_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    recorded = write(path, *bodies, options=TraceOptions(max_payload_bytes=max_payload_bytes))
    trace: Trace[Body] = read_trace(path, Body)
    assert trace.envelopes == tuple(map(rounded, recorded))
    assert (trace.header.episode, trace.header.started_at, trace.cut_short) == ("e-1", 1_700_000_000.0, False)


def test_a_line_cut_short_anywhere_is_tolerated_and_said(path: Path) -> None:
    write(path, Said("whole"), Said("cut 漢字 😀", {"n": 1.5}))
    content = path.read_bytes()
    start = content.rindex(b"\n", 0, -1) + 1
    for end in range(start + 1, len(content) - 1):
        path.write_bytes(content[:end])
        trace = read_trace(path, Body)
        assert ([envelope.body for envelope in trace.envelopes], trace.cut_short) == ([Said("whole")], True)
    path.write_bytes(content[:-1])
    assert (len(read_trace(path, Body).envelopes), read_trace(path, Body).cut_short) == (2, False)


@pytest.mark.parametrize("damage", [b"not json", b'{"seq": 1}', b"", b'\xff\xfe"'])
def test_a_damaged_line_before_the_last_is_refused_with_its_number(path: Path, damage: bytes) -> None:
    write(path, Said("a"), Said("b"), Said("c"))
    lines = path.read_bytes().splitlines()
    lines[2] = damage
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(TraceError, match=r"trace\.jsonl, line 3: not a trace line"):
        read_trace(path, Body)


def test_a_message_of_another_version_is_refused_with_its_line(path: Path) -> None:
    write(path, Said("a"), Counted(1))
    with pytest.raises(TraceError, match="line 3: not a message this version knows"):
        read_trace(path, Said)


@pytest.mark.parametrize("options", [None, TraceOptions(max_payload_bytes=0)])
def test_bodies_can_be_read_as_plain_json(path: Path, options: TraceOptions | None) -> None:
    write(path, Counted(7), options=options)
    assert read_trace(path, dict).envelopes[0].body == {"type": "Counted", "number": 7}


def test_a_newer_format_is_refused(path: Path) -> None:
    path.write_bytes(b'{"trace":"grue","format":3,"episode":"e","started_at":0.0}\n')
    with pytest.raises(TraceError, match="has trace format 3; this version reads up to 2"):
        read_trace(path, Body)


@pytest.mark.parametrize("content", [b"", b"\n", b"hello\n", b'{"trace":"other"}\n', b"\xff\n"])
def test_what_is_no_trace_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(TraceError, match="is not a grue trace"):
        read_trace(path, Body)


def test_a_missing_file_is_one_sentence(path: Path) -> None:
    with pytest.raises(TraceError, match=r"Cannot read the trace file .*: No such file or directory\."):
        read_trace(path, Body)


def test_an_unknown_field_of_a_later_writer_does_no_harm(path: Path) -> None:
    write(path, Said("a"))
    path.write_bytes(path.read_bytes().replace(b'{"seq":1', b'{"shoe":"red","seq":1'))
    assert len(read_trace(path, Body).envelopes) == 1


def test_a_reader_reads_again_from_the_start(path: Path) -> None:
    write(path, Said("a"), Said("b"))
    reader: TraceReader[Body] = TraceReader(path, Body)
    first = next(iter(reader))
    assert next(iter(reader)) == first
    assert len(list(reader)) == 2


# --- Damage ---


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("was", "damage"),
    [
        (b'"b"', b'"\xe9"'),  # in the body, which is decoded by itself
        (b'"x"', b'"\xff"'),
        (b'"b"', b"[" * 2000 + b"]" * 2000),
        (b'"b"', b"[" * 100_000),
        (b'"b"', b'"\\ud800"'),
        (b'"seq":2', b'"seq":' + b"2" * 5000),
        (b'"t":', b'"t":1e999,"t":'),
        (b'"at":', b'"at":1e300,"at_":'),
        (b'"seq":2', b'"seq":1'),
        (b'"seq":2', b'"seq":-2'),
        (b"\n", b"\r"),
        (b"{", b"\0"),
    ],
    ids=lambda value: str(value[:12]),
)
@pytest.mark.parametrize("follows", [False, True])
def test_any_damage_names_the_file_the_line_and_what_to_do(
    path: Path, was: bytes, damage: bytes, follows: bool
) -> None:
    write(path, Said("a"), Said("b"), Said("c"))
    lines = lines_of(path)
    assert was in lines[2]
    lines[2] = lines[2].replace(was, damage, 1)
    path.write_bytes(b"".join(lines))
    reader: TraceReader[Body] = TraceReader(path, Body)
    with pytest.raises(TraceError, match=r"trace\.jsonl, line 3: .*damaged.*copy it again") as told:
        list(reader.follow(lambda: True) if follows else reader)
    assert "head -n 2" in str(told.value)


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (0, 1, 1, 2), (0, 1, 2, 2)])
def test_lines_in_another_order_or_twice_are_refused(path: Path, order: tuple[int, ...]) -> None:
    write(path, Said("a"), Said("b"), Said("c"))
    lines = lines_of(path)
    path.write_bytes(b"".join(lines[number] for number in order))
    with pytest.raises(TraceError, match=r"line \d: not in order: message \d comes after message \d"):
        read_trace(path, Body)


def test_what_is_nested_as_deep_as_wires_admit_is_read_and_deeper_is_refused(path: Path) -> None:
    write(path, Said("a", 1), Said("{[" * 400, 2))
    whole = path.read_bytes()
    for depth, reads in ((240, True), (260, False), (900, False)):
        path.write_bytes(
            whole.replace(b'"extra":1', b'"extra":' + b'[{"a":' * (depth // 2) + b"1" + b"}]" * (depth // 2))
        )
        if reads:
            assert len(read_trace(path, Body).envelopes) == 2
        else:
            with pytest.raises(TraceError, match="line 2: nested deeper than 250 levels"):
                read_trace(path, Body)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"\x1f\x8b\x08\0", "compressed with gzip; unpack it first: gunzip"),
        (b'{"trace":"grue","format":0,"episode":"e","started_at":0.0}\n', "no trace format 0"),
        (b'{"trace":"grue","format":-1,"episode":"e","started_at":0.0}\n', "no trace format -1"),
        (b'{"trace":"grue","format":2,"episode":"\xe9","started_at":0.0}\n', "not a trace header"),
        (b'{"x":' + b"[" * 5000, "not a trace header"),
        (bytes(range(256)), "not a trace header"),
    ],
    ids=lambda value: str(value[:20]),
)
def test_what_begins_otherwise_than_a_trace_says_how(path: Path, content: bytes, words: str) -> None:
    path.write_bytes(content)
    with pytest.raises(TraceError, match=words):
        read_trace(path, Body)


def test_a_trace_without_its_header_is_no_trace(path: Path) -> None:
    write(path, Said("a"), Said("b"))
    path.write_bytes(b"".join(lines_of(path)[1:]))
    with pytest.raises(TraceError, match="its first line is not a trace header"):
        read_trace(path, Body)


def test_a_pipe_and_a_folder_are_refused_without_waiting(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(TraceError, match=r"Cannot read the trace file .* not a regular file\."):
        read_trace(path, Body)
    with pytest.raises(TraceError, match="Is a directory"):
        read_trace(path.parent, Body)


def test_a_file_that_may_not_be_read_is_one_sentence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, Said("a"))

    def denied(*_args: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(TraceError, match=r"Cannot read the trace file .*: Permission denied\."):
        read_trace(path, Body)


@pytest.mark.parametrize(
    "interrupted", ["trace.format.check_numbers", "trace.reader.next_line", "trace.reader.open_regular"]
)
def test_what_a_signal_handler_raises_is_no_error_of_the_file(
    path: Path, interrupted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, Said("a"))

    def struck(*_args: object) -> None:
        raise TimeoutError("the host's own alarm")

    monkeypatch.setattr(f"grue.runtime.{interrupted}", struck)
    with pytest.raises(TimeoutError, match="the host's own alarm"):
        read_trace(path, Body)


@pytest.mark.slow
def test_a_line_of_a_gigabyte_is_refused(path: Path) -> None:
    write(path, Said("a"))
    with path.open("r+b") as file:
        file.truncate(2**30)
    with pytest.raises(TraceError, match=r"line 3: cannot be read: it is longer than 512 MiB"):
        read_trace(path, Body)


# --- Payloads in files of their own ---


def payload(path: Path) -> Path:
    (file,) = (path.parent / "payloads").iterdir()
    return file


def test_a_missing_payload_is_named_with_its_line(path: Path) -> None:
    write(path, Said("a"), Said("b" * 200), options=SMALL)
    payload(path).unlink()
    with pytest.raises(TraceError, match=r"line 3: cannot read its payload .*\.json: No such file"):
        read_trace(path, Body)


def test_an_altered_payload_is_refused(path: Path) -> None:
    write(path, Said("b" * 200), options=SMALL)
    file = payload(path)
    file.write_bytes(file.read_bytes().replace(b"bbb", b"abb", 1))
    with pytest.raises(TraceError, match=r"line 2: its payload .*\.json is not what was written"):
        read_trace(path, Body)


@pytest.mark.parametrize("made", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_payload_that_is_no_regular_file_is_refused_without_waiting(
    path: Path, made: Callable[[Path], object]
) -> None:
    write(path, Said("b" * 200), options=SMALL)
    file = payload(path)
    file.unlink()
    made(file)
    with pytest.raises(TraceError, match=r"line 2: cannot read its payload .*copied together"):
        read_trace(path, Body)


def test_a_payload_that_was_cut_is_refused(path: Path) -> None:
    write(path, Said("b" * 200), options=SMALL)
    payload(path).write_bytes(payload(path).read_bytes()[:-1])
    with pytest.raises(TraceError, match=r"line 2: its payload .*the hash differs\. Copy it again"):
        read_trace(path, Body)


@pytest.mark.parametrize("sha256", ["../../secret", "", "a" * 63, "/" * 64, "A" * 64])
def test_a_reference_cannot_lead_anywhere_else(path: Path, sha256: str) -> None:
    write(path, Said("b" * 200), options=SMALL)
    line = json.loads(path.read_bytes().splitlines()[1])
    line["body"] = {"$payload": sha256, "bytes": 3}
    text = json.dumps(line, separators=(",", ":"))
    path.write_bytes(path.read_bytes().splitlines()[0] + b"\n" + text.encode() + b"\n")
    with pytest.raises(TraceError, match="line 2: not a reference to a payload"):
        read_trace(path, Body)


# --- Following ---


class Appending:
    """Is asked whether to stop when a reader has read all there is, and then does the next thing instead."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps: Iterator[Callable[[], object]] = iter(steps)

    def __call__(self) -> bool:
        step = next(self._steps, None)
        if step is None:
            return True
        step()
        return False


def append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


def test_a_follower_sees_what_is_appended_and_waits_for_the_rest_of_a_line(path: Path) -> None:
    write(path, Counted(1), Counted(2), Counted(3))
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))
    reader: TraceReader[Body] = TraceReader(path, Body)
    appending = Appending(
        lambda: append(path, lines[2][:30]),
        lambda: append(path, lines[2][30:-1]),
        lambda: append(path, lines[2][-1:]),
        lambda: append(path, lines[3]),
    )
    followed = [envelope.body for envelope in reader.follow(appending, 0.001)]
    assert followed == [Counted(1), Counted(2), Counted(3)]
    assert not reader.cut_short


def test_a_follower_is_not_misled_by_a_writer_that_cuts_a_half_line_off(path: Path) -> None:
    write(path, Counted(1), Counted(2))
    content = path.read_bytes()
    header, first, second = content.splitlines(keepends=True)
    path.write_bytes(header + first + second[:-9])
    reader: TraceReader[Body] = TraceReader(path, Body)
    resumed = Appending(
        lambda: path.write_bytes(header + first),
        lambda: append(path, second.replace(b"2}", b"3}")),
    )
    assert [envelope.body for envelope in reader.follow(resumed, 0.001)] == [Counted(1), Counted(3)]


def test_a_follower_says_that_it_stopped_before_a_half_line(path: Path) -> None:
    write(path, Counted(1), Counted(2))
    path.write_bytes(path.read_bytes()[:-5])
    reader: TraceReader[Body] = TraceReader(path, Body)
    assert [envelope.body for envelope in reader.follow(lambda: True)] == [Counted(1)]
    assert reader.cut_short


def test_a_follower_of_a_damaged_file_says_where(path: Path) -> None:
    write(path, Counted(1))
    reader: TraceReader[Body] = TraceReader(path, Body)
    with pytest.raises(TraceError, match="line 3: not a trace line"):
        list(reader.follow(Appending(lambda: append(path, b"rubbish\n")), 0.001))


@pytest.mark.parametrize("options", [None, TraceOptions(max_payload_bytes=0)])
def test_a_line_knows_its_tag_and_decodes_its_body_when_asked(
    path: Path, options: TraceOptions | None
) -> None:
    recorded = write(path, Said("a"), Counted(1), options=options)
    lines = list(TraceReader(path, Body).lines())
    assert [(line.place.number, line.tag) for line in lines] == [(2, "Said"), (3, "Counted")]
    assert [line.envelope() for line in lines] == list(map(rounded, recorded))


@pytest.mark.parametrize("body", ['{"text":"a","type":"Said"}', '{"type":"S\\u0061id","text":"a"}'])
def test_a_tag_that_no_grue_writes_there_is_found_by_decoding(path: Path, body: str) -> None:
    write(path, Said("a"))
    header, line = path.read_text().splitlines()
    before, _, _ = line.partition('"body":')
    path.write_text(f'{header}\n{before}"body":{body}}}\n')
    (found,) = TraceReader(path, Body).lines()
    assert (found.tag, found.envelope().body) == ("Said", Said("a"))


def test_an_error_quotes_little_of_a_damaged_line(path: Path) -> None:
    write(path, Said("a"))
    path.write_bytes(path.read_bytes().replace(b'"type":"Said"', b'"type":"' + b"\x7f" * 100_000 + b'"'))
    with pytest.raises(TraceError, match=r"line 2: .*\\u007f…") as caught:
        read_trace(path, Body)
    assert len(str(caught.value)) < 4_000


def test_a_damaged_body_is_an_error_for_those_who_ask_for_it(path: Path) -> None:
    write(path, Said("a"), Said("b"), Counted(1))
    path.write_bytes(path.read_bytes().replace(b'"text":"b"', b'"text":true'))
    lines = list(TraceReader(path, Body).lines())
    assert lines[2].envelope().body == Counted(1)
    with pytest.raises(TraceError, match=r"trace\.jsonl, line 3: not a message this version knows"):
        lines[1].envelope()
    path.write_bytes(path.read_bytes().replace(b'"text":true', b'"text":tru'))
    with pytest.raises(TraceError, match=r"trace\.jsonl, line 3: not a trace line"):
        list(TraceReader(path, Body).lines())
