"""The recorder, what it hides, the trace file and its reader."""

import json
import stat
import threading
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from grue.errors import TraceError
from grue.runtime.trace import Envelope, Recorder, Trace, TraceWriter, read_trace


class Said(Struct, frozen=True, tag=True):
    text: str
    extra: object = None


class Counted(Struct, frozen=True, tag=True):
    number: int


Body = Said | Counted
SECRET = "sk-live-0123456789"


class Seen:
    """Everything an observer was shown."""

    def __init__(self, recorder: Recorder) -> None:
        self.envelopes: list[Envelope[Any]] = []
        self.lines: list[bytes] = []
        recorder.add(self)

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        self.envelopes.append(envelope)
        self.lines.append(line)


def shown(body: Any, **secrets: str) -> tuple[Envelope[Any], bytes]:
    """What an observer is shown of `body`; the sender's envelope keeps the true value."""
    recorder = Recorder(secrets=secrets)
    seen = Seen(recorder)
    envelope = recorder.record(body, sender="x", receiver="y")
    assert envelope.body is body
    assert envelope.redacted is False
    return seen.envelopes[0], seen.lines[0]


# --- Recording ---


def test_envelopes_are_numbered_timed_and_shown_in_order() -> None:
    now = iter([10.0, 10.5, 12.0])
    recorder = Recorder(clock=lambda: next(now), wall_clock=lambda: 1000.0)
    seen = Seen(recorder)
    first = recorder.record(Said("a"), sender="x", receiver="y", turn=3)
    second = recorder.record(Said("b"), sender="y", cause=first.seq)
    assert (first.seq, first.t, first.at, first.turn, first.cause) == (1, 0.5, 1000.0, 3, None)
    assert (second.seq, second.t, second.receiver, second.cause) == (2, 2.0, "trace", 1)
    assert seen.envelopes == [first, second]
    assert json.loads(seen.lines[1]) == {
        "seq": 2,
        "t": 2.0,
        "at": 1000.0,
        "turn": 0,
        "from": "y",
        "to": "trace",
        "cause": 1,
        "body": {"type": "Said", "text": "b", "extra": None},
    }


def test_several_threads_may_record_at_once() -> None:
    recorder = Recorder()
    seen = Seen(recorder)
    threads = [
        threading.Thread(target=lambda: [recorder.record(Counted(n), sender="t") for n in range(200)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [envelope.seq for envelope in seen.envelopes] == list(range(1, 801))


# --- Redaction ---


@pytest.mark.parametrize(
    "body",
    [
        Said(SECRET),
        Said(f"Authorization: Bearer {SECRET}\n"),
        Said("", {"headers": [{"x": SECRET}]}),
        Said("", {SECRET: 1}),
        Said(json.dumps({"key": SECRET})),
        Said(json.dumps({"outer": json.dumps({"key": SECRET})})),
    ],
    ids=["raw", "within", "nested", "key", "JSON in text", "JSON in JSON in text"],
)
def test_a_secret_is_replaced_by_its_placeholder_and_the_envelope_marked(body: Said) -> None:
    envelope, line = shown(body, API_KEY=SECRET)
    assert envelope.redacted
    assert SECRET.encode() not in line
    assert b"[redacted:API_KEY]" in line
    assert json.loads(line)["redacted"] is True
    assert SECRET not in repr(envelope.body)
    assert isinstance(envelope.body, Said)


NASTY = [
    'pass"word\\with\nall',
    "schlüssel-für-漢字",
    "emoji-😀-secret",
    "a/b/c+d==/slashes",
    "tab\tand\x01control",
    "'single'",
]


@pytest.mark.parametrize("secret", NASTY)
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_a_secret_is_found_however_json_escapes_it(secret: str, ensure_ascii: bool) -> None:
    once = json.dumps({"key": secret}, ensure_ascii=ensure_ascii)
    twice = json.dumps(once, ensure_ascii=ensure_ascii)
    for text in (secret, once, twice):
        envelope, line = shown(Said(text, [text]), KEY=secret)
        assert envelope.body.text == text.replace(text_form(text, secret), "[redacted:KEY]")
        assert line.count(b"[redacted:KEY]") == 2


def text_form(text: str, secret: str) -> str:
    """How the secret stands in `text`."""
    forms = {secret}
    for _ in range(2):
        forms |= {
            json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in forms for ascii_only in (True, False)
        }
    return max((form for form in forms if form in text), key=len)


def test_an_escaped_slash_hides_nothing() -> None:
    _, line = shown(Said(r'{"url": "a\/secret\/path"}'), KEY="a/secret/path")
    assert b"secret" not in line


def test_of_overlapping_secrets_the_longest_goes_first() -> None:
    envelope, _ = shown(Said("0123456789abcdef 0123456789"), SHORT="0123456789", LONG="0123456789abcdef")
    assert envelope.body.text == "[redacted:LONG] [redacted:SHORT]"


def test_a_secret_of_digits_is_replaced_in_numbers_too() -> None:
    envelope, line = shown(Said("123456789012", {"id": 123456789012, "n": 5}), PIN="123456789012")
    assert envelope.body == Said("[redacted:PIN]", {"id": "[redacted:PIN]", "n": 5})
    assert b"123456789012" not in line


def test_a_number_that_a_message_needs_stays_a_number() -> None:
    envelope, _ = shown(Counted(123456789012), PIN="123456789012")
    assert envelope.body == Counted(123456789012)


@given(st.text(min_size=4, max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_no_secret_is_shown_whatever_it_is_made_of(secret: str, before: str, after: str) -> None:
    envelope, line = shown(Said(before + secret + after, {secret: [before]}), K=secret)
    assert envelope.redacted
    assert all(secret not in part for part in envelope.body.text.split("[redacted:K]"))
    assert json.loads(line)["body"]["type"] == "Said"


def test_what_holds_no_secret_is_shown_as_it_is() -> None:
    body = Said("plain")
    envelope, line = shown(body, KEY=SECRET, EMPTY="")
    assert envelope.body is body
    assert b"redacted" not in line


def test_an_escape_that_looks_like_a_secret_stays_whole() -> None:
    envelope, line = shown(Said("\x01\x00"), ZEROS="0000", REST="00\x001x")
    assert envelope.body == Said("\x01\x00")
    assert not envelope.redacted
    assert json.loads(line)["body"]["text"] == "\x01\x00"


def test_a_value_that_is_not_unicode_hides_nothing_and_harms_nothing() -> None:
    assert shown(Said("plain"), ODD="\udcff-not-unicode")[0].body == Said("plain")


def test_a_secret_may_become_known_later() -> None:
    recorder = Recorder()
    seen = Seen(recorder)
    recorder.hide("LATE", SECRET)
    recorder.record(Said(SECRET), sender="x")
    assert seen.envelopes[0].body == Said("[redacted:LATE]")


# --- The file ---


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def write(path: Path, *bodies: Any) -> list[Envelope[Any]]:
    recorder = Recorder()
    writer = TraceWriter(path, episode="e-1", started_at=1_700_000_000.0)
    recorder.add(writer)
    recorded = [recorder.record(body, sender="x", receiver="y", turn=1, cause=None) for body in bodies]
    writer.close()
    writer.close()
    return recorded


def rounded(envelope: Envelope[Any]) -> Envelope[Any]:
    return msgspec.structs.replace(envelope, t=round(envelope.t, 6), at=round(envelope.at, 6))


@given(
    st.lists(
        st.builds(Said, st.text(), st.none() | st.integers() | st.text()) | st.builds(Counted, st.integers())
    )
)
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, bodies: list[Any]) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    recorded = write(path, *bodies)
    trace: Trace[Body] = read_trace(path, Body)
    assert trace.envelopes == tuple(map(rounded, recorded))
    assert (trace.header.episode, trace.header.started_at, trace.cut_short) == ("e-1", 1_700_000_000.0, False)


def test_only_its_owner_may_read_it_also_where_the_file_was_there(path: Path) -> None:
    path.touch(mode=0o644)
    write(path, Said("a"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_every_line_is_in_the_file_before_record_returns(path: Path) -> None:
    recorder = Recorder()
    writer = TraceWriter(path, episode="e")
    recorder.add(writer)
    for number in range(3):
        recorder.record(Counted(number), sender="x")
        assert len(read_trace(path, Body).envelopes) == number + 1
    writer.close()


def test_a_file_that_holds_something_is_left_alone(path: Path) -> None:
    write(path, Said("first episode"))
    before = path.read_bytes()
    with pytest.raises(TraceError, match="exists already"):
        TraceWriter(path, episode="e-2")
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"Cannot write the trace file .*: No such file or directory\."):
        TraceWriter(tmp_path / "absent" / "trace.jsonl", episode="e")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_is_one_sentence_and_nothing_is_written_after_it() -> None:
    with pytest.raises(TraceError, match="No space left"):
        TraceWriter(Path("/dev/full"), episode="e")


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


def test_bodies_can_be_read_as_plain_json(path: Path) -> None:
    write(path, Counted(7))
    assert read_trace(path, dict).envelopes[0].body == {"type": "Counted", "number": 7}


def test_a_newer_format_is_refused(path: Path) -> None:
    path.write_bytes(b'{"trace":"grue","format":2,"episode":"e","started_at":0.0}\n')
    with pytest.raises(TraceError, match="has trace format 2; this version reads up to 1"):
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


def test_descriptors_are_closed(path: Path) -> None:
    process = psutil.Process()
    before = process.num_fds()
    write(path, Said("a"))
    with pytest.raises(TraceError):
        TraceWriter(path, episode="again")
    assert process.num_fds() == before
