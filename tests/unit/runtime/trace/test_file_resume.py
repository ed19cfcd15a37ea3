"""Resuming a trace file that was cut off, and who may."""

import subprocess
from pathlib import Path

import pytest
from plain_messages import Body, Counted, Said, recording_program, write

from grue.errors import TraceError
from grue.runtime.trace.file import TraceOptions, TraceWriter
from grue.runtime.trace.reader import read_trace
from grue.runtime.trace.recorder import Recorder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def resume(path: Path, *bodies: Said | Counted) -> TraceWriter:
    writer = TraceWriter(path, episode="e-1", resume=True)
    recorder = Recorder()
    recorder.resume(after_seq=writer.last_seq, after_t=writer.last_t)
    recorder.add(writer)
    for body in bodies:
        recorder.record(body, sender="x")
    writer.close()
    return writer


def bodies(path: Path) -> list[Said | Counted]:
    trace = read_trace(path, Body)
    assert [envelope.seq for envelope in trace.envelopes] == list(range(1, len(trace.envelopes) + 1))
    times = [envelope.t for envelope in trace.envelopes]
    assert times == sorted(times)
    assert not trace.cut_short
    return [envelope.body for envelope in trace.envelopes]


def test_a_trace_goes_on_where_it_ended(path: Path) -> None:
    recorded = write(path, Counted(1), Counted(2))
    writer = resume(path, Counted(3))
    assert (writer.last_seq, writer.last_t) == (2, round(recorded[1].t, 6))
    assert bodies(path) == [Counted(1), Counted(2), Counted(3)]
    assert read_trace(path, Body).header.started_at == 1_700_000_000.0


@pytest.mark.slow
def test_it_goes_on_after_a_line_cut_short_anywhere(path: Path) -> None:
    write(path, Counted(1), Said("cut 漢字", {"n": 1.5}))
    content = path.read_bytes()
    start = content.rindex(b"\n", 0, -1) + 1
    for end in range(start, len(content) - 1):
        path.write_bytes(content[:end])
        resume(path, Counted(3))
        assert bodies(path) == [Counted(1), Counted(3)]


def test_a_last_line_that_lacks_only_its_newline_is_kept_as_a_reader_keeps_it(path: Path) -> None:
    write(path, Counted(1), Counted(2))
    path.write_bytes(path.read_bytes()[:-1])
    assert resume(path, Counted(3)).last_seq == 2
    assert bodies(path) == [Counted(1), Counted(2), Counted(3)]


@pytest.mark.parametrize("kept", [1, 0], ids=["whole", "without its newline"])
def test_a_header_alone_is_gone_on_with(path: Path, kept: int) -> None:
    write(path)
    path.write_bytes(path.read_bytes().rstrip(b"\n") + b"\n" * kept)
    assert resume(path, Counted(1)).last_seq == 0
    assert bodies(path) == [Counted(1)]


def test_a_header_and_half_a_line_is_gone_on_with(path: Path) -> None:
    write(path)
    path.write_bytes(path.read_bytes() + b'{"seq":1,"t"')
    assert resume(path, Counted(1)).last_seq == 0
    assert bodies(path) == [Counted(1)]


def test_lines_longer_than_one_look_back_are_found(path: Path) -> None:
    write(path, Said("x" * 200_000), Said("y" * 200_000), options=TraceOptions(max_payload_bytes=1_000_000))
    path.write_bytes(path.read_bytes()[:-100])
    assert resume(path, Counted(2)).last_seq == 1
    assert bodies(path) == [Said("x" * 200_000), Counted(2)]


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (None, r"Cannot read the trace file .*: No such file or directory\."),
        (b"", "is not a grue trace"),
        (b'{"trace":"gr', "is not a grue trace"),
        (b"my diary\n", "is not a grue trace"),
        (b'{"trace":"grue","format":1,"episode":"e-1","started_at":0}\n', "format 1; only format 2 can be"),
        (b'{"trace":"grue","format":3,"episode":"e-1","started_at":0}\n', "format 3; this version reads up"),
        (b'{"trace":"grue","format":2,"episode":"e-9","started_at":0}\n', "of the episode e-9, not of e-1"),
        (
            b'{"trace":"grue","format":2,"episode":"e-1","started_at":0}\nrubbish\n',
            "last line is not a trace",
        ),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused_and_left_alone(
    path: Path, content: bytes | None, refusal: str
) -> None:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceError, match=refusal):
        TraceWriter(path, episode="e-1", resume=True)
    assert (path.read_bytes() if path.exists() else None) == content


@pytest.mark.slow
def test_a_trace_that_is_being_written_is_nobody_elses(path: Path) -> None:
    program = "recorder.record(Counted(1), sender='host')\nprint('.', flush=True)\nsys.stdin.read()"
    process = subprocess.Popen(
        recording_program(program, path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == ".\n"
    for resuming in (True, False):
        with pytest.raises(TraceError, match="is still being played: another process or runner writes it"):
            TraceWriter(path, episode="e-1", resume=resuming)
    process.kill()
    process.communicate(timeout=150)
    resume(path, Counted(2))
    assert bodies(path) == [Counted(1), Counted(2)]


PLAYING_ON = """
while True:
    recorder.record(Said("large " * 20000), sender="x")
    seq = recorder.record(Said("a"), sender="x").seq
    recorder.record(Counted(seq + 1), sender="host")
    print(".", flush=True)
"""


@pytest.mark.slow
def test_an_episode_killed_again_and_again_goes_on(path: Path) -> None:
    write(path)
    for told in (1, 3, 2, 4):
        program = recording_program(PLAYING_ON, path, resume=True)
        process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(told)] == [".\n"] * told
        process.kill()
        process.wait(60)
        process.stdout.close()
    resume(path, Counted(0))
    noted = [envelope for envelope in read_trace(path, Body).envelopes if envelope.sender == "host"]
    assert len(noted) >= 1 + 3 + 2 + 4
    assert all(envelope.body == Counted(envelope.seq) for envelope in noted)
    bodies(path)


def test_a_recorder_that_begins_anew_is_told_how_to_go_on(path: Path) -> None:
    write(path, Counted(1), Counted(2))
    before = path.read_bytes()
    writer, recorder = TraceWriter(path, episode="e-1", resume=True), Recorder()
    recorder.add(writer)
    with pytest.raises(TraceError, match=r"Message 1 cannot be written after message 2 .*recorder\.resume\("):
        recorder.record(Counted(3), sender="x")
    writer.close()
    assert path.read_bytes() == before
