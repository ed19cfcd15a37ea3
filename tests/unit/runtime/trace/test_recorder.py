"""The recorder: numbers, times, order."""

import json
import os
import re
import threading

import msgspec
import pytest
from plain_messages import Counted, Said, Seen

from grue.runtime.trace.recorder import Recorder


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


def test_a_resumed_recorder_goes_on_with_numbers_and_time() -> None:
    now = iter([100.0, 200.0, 200.5])
    recorder = Recorder(clock=lambda: next(now))
    recorder.resume(after_seq=41, after_t=7.25)
    envelope = recorder.record(Said("again"), sender="x")
    assert (envelope.seq, envelope.t) == (42, 7.75)


def test_a_recorder_that_has_recorded_cannot_resume() -> None:
    recorder = Recorder()
    recorder.record(Said("a"), sender="x")
    with pytest.raises(RuntimeError, match="has recorded 1 envelopes"):
        recorder.resume(after_seq=41, after_t=7.25)


def test_a_secret_from_bytes_that_are_no_text_is_hidden_as_messages_have_it() -> None:
    recorder, lines = Recorder(), list[bytes]()
    recorder.add(lambda envelope, line: lines.append(line))
    name, secret = os.fsdecode(b"\xff_KEY"), os.fsdecode(b"p\xe4ssw\xf6rd-1234")
    recorder.hide(name, secret)
    recorder.record(Said(f"it is {secret}", {}), sender="a")
    recorder.record(Said(f"it is {os.fsencode(secret).decode(errors='replace')}", {}), sender="a")
    assert [msgspec.json.decode(line)["body"]["text"] for line in lines] == [
        "it is [redacted:\ufffd_KEY]"
    ] * 2


@pytest.mark.parametrize("text", ["half: \ud83d", "\udfff", "é\ud800é", "x" * 17 * 2**20 + "\ud800"])
@pytest.mark.parametrize("sender", ["host", "llm"])
@pytest.mark.slow
def test_a_text_that_cannot_be_written_is_recorded_with_a_mark_in_its_place(text: str, sender: str) -> None:
    """A host's fact may hold half a character; the sender's own message keeps it."""
    recorder = Recorder(secrets={"key": "sk-0123456789"})
    seen = Seen(recorder)
    body = Said(text, {"k\ud800": [text[-20:], 1]})
    envelope = recorder.record(body, sender=sender, receiver="y")
    recorder.settle()
    assert envelope.body is body
    expected = re.sub("[\ud800-\udfff]", "\ufffd", text)
    assert seen.envelopes[0].body == Said(expected, {"k\ufffd": [expected[-20:], 1]})
    assert msgspec.json.decode(seen.lines[0])["body"]["text"] == expected
    assert recorder.redacted_body(body) == seen.envelopes[0].body
