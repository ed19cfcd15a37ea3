"""Writing trace files: who may read them, what a full or a slow disk does, forks, threads, payloads."""

import hashlib
import json
import os
import stat
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from plain_messages import Body, Counted, Said, recording_program, rounded, write
from promises import within

from grue.errors import MCPConfigError, TraceError
from grue.runtime.files import LineFile
from grue.runtime.trace.file import LineQueue, TraceOptions, TraceWriter
from grue.runtime.trace.reader import read_trace
from grue.runtime.trace.recorder import Recorder

SMALL = TraceOptions(max_payload_bytes=100)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def numbers(path: Path) -> list[int]:
    return [envelope.body.number for envelope in read_trace(path, Counted).envelopes]


def recording(writer: TraceWriter) -> Recorder:
    recorder = Recorder()
    recorder.add(writer)
    return recorder


def run(program: str, path: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        recording_program(program, path), capture_output=True, text=True, timeout=150, check=False
    )


def test_only_its_owner_may_read_it_also_where_the_file_was_there(path: Path) -> None:
    path.touch(mode=0o644)
    write(path, Said("a"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_comes_from_or_goes_to_the_outside_is_in_the_file_before_record_returns(path: Path) -> None:
    writer = TraceWriter(path, episode="e")
    recorder = recording(writer)
    recorder.record(Counted(1), sender="agent", receiver="llm")
    recorder.record(Counted(2), sender="host")
    assert numbers(path) == [1, 2]
    recorder.record(Counted(3), sender="llm", receiver="agent")
    recorder.record(Counted(4), sender="agent", receiver="host")
    assert numbers(path) == [1, 2, 3, 4]
    writer.close()


def test_the_outside_may_have_another_name(path: Path) -> None:
    writer = TraceWriter(path, episode="e", options=TraceOptions(outside="me"))
    recording(writer).record(Counted(1), sender="me")
    assert numbers(path) == [1]
    writer.close()


def test_its_path_may_be_a_string(path: Path) -> None:
    TraceWriter(str(path), episode="e").close()
    assert numbers(path) == []


def test_flush_brings_everything_into_the_file(path: Path) -> None:
    writer = TraceWriter(path, episode="e")
    recorder = recording(writer)
    for number in range(1000):
        recorder.record(Counted(number), sender="x")
    assert writer.flush()
    assert numbers(path) == list(range(1000))
    writer.close()


@pytest.mark.parametrize("fsync", [True, False])
def test_the_disk_is_asked_at_flushes_by_choice(
    path: Path, fsync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (real(fd), synced.append(os.fstat(fd).st_size)))
    writer = TraceWriter(path, episode="e", options=TraceOptions(fsync=fsync))
    recording(writer).record(Counted(1), sender="x")
    writer.flush()
    assert synced == ([path.stat().st_size] if fsync else [])
    writer.close()


def test_several_threads_may_record_at_once(path: Path) -> None:
    writer = TraceWriter(path, episode="e")
    recorder = recording(writer)

    def record(thread: int) -> None:
        for number in range(300):
            recorder.record(Counted(number), sender="host" if number % 50 == thread else "x")

    threads = [threading.Thread(target=record, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert [envelope.seq for envelope in read_trace(path, Body).envelopes] == list(range(1, 1201))


def test_no_thread_and_no_descriptor_is_left(path: Path) -> None:
    process = psutil.Process()
    before = process.num_fds(), threading.enumerate()
    write(path, Said("a" * 500), options=SMALL)
    with pytest.raises(TraceError):
        TraceWriter(path, episode="again")
    with pytest.raises(TraceError):
        TraceWriter(path, episode="another", resume=True)
    assert (process.num_fds(), threading.enumerate()) == before


def test_a_file_that_holds_something_is_left_alone(path: Path) -> None:
    write(path, Said("first episode"))
    before = path.read_bytes()
    with pytest.raises(TraceError, match="exists already"):
        TraceWriter(path, episode="e-2")
    assert path.read_bytes() == before


def test_a_closed_writer_says_so(path: Path) -> None:
    writer = TraceWriter(path, episode="e")
    recorder = recording(writer)
    writer.close()
    with pytest.raises(TraceError, match=r"is closed\. Make a new runner or writer\."):
        recorder.record(Counted(1), sender="x")
    with pytest.raises(TraceError, match="is closed"):
        writer.flush()


def test_the_header_says_what_a_reader_needs(path: Path) -> None:
    TraceWriter(path, episode="e", started_at=5.5, options=TraceOptions(version="1.2.3")).close()
    assert json.loads(path.read_bytes()) == {
        "trace": "grue",
        "format": 2,
        "episode": "e",
        "started_at": 5.5,
        "version": "1.2.3",
    }


# --- Disks that are full or slow ---


def test_a_file_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"Cannot write the trace file .*: No such file or directory\."):
        TraceWriter(tmp_path / "absent" / "trace.jsonl", episode="e")


def test_a_full_disk_is_one_sentence(path: Path, full_disk: None) -> None:
    with pytest.raises(TraceError, match=r"Cannot write the trace file .*: No space left on device\."):
        TraceWriter(path, episode="e")


FILLING = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
for number in range(10):
    recorder.record(Counted(number), sender="host")
told = []
for number in range(10, 100):
    recorder.record(Counted(number), sender="x")
for attempt in (lambda: writer.flush(), lambda: recorder.record(Counted(0), sender="x"), writer.close)[SLICE]:
    try:
        attempt()
    except TraceError as error:
        told.append(str(error).replace(str(path), "PATH"))
print(*told, sep="\\n")
"""
TOO_LARGE = "Cannot write the trace file PATH: File too large."


def test_a_flush_that_meets_a_close_does_not_wait_for_nothing(path: Path) -> None:
    writing, opened, refused = threading.Event(), threading.Event(), threading.Event()

    def write(_lines: list[bytes]) -> None:
        writing.set()
        opened.wait(60)

    def flush() -> None:
        with pytest.raises(TraceError, match="is closed"):
            queue.flush(within_s=60)
        refused.set()

    queue = LineQueue(LineFile(path, "trace file"), write)
    queue.put(b"{}")
    assert writing.wait(60)
    threads = [threading.Thread(target=each) for each in (queue.close, flush)]
    threads[0].start()
    while not queue._queue.qsize():  # until `close` has ended the queue
        time.sleep(0.001)
    threads[1].start()
    refused.wait(0.1)
    opened.set()
    assert refused.wait(30)
    for each in threads:
        each.join()


def test_a_line_that_is_lost_for_any_reason_is_told(path: Path) -> None:
    def write(lines: list[bytes]) -> None:
        raise MemoryError

    queue = LineQueue(LineFile(path, "trace file"), write)
    queue.put(b"{}")
    with pytest.raises(TraceError, match=r"Cannot write the trace file .*: MemoryError\."):
        queue.flush()
    queue.close()


@pytest.mark.parametrize("wrong", [{"max_payload_bytes": "1"}, {"flush_within_s": float("inf")}])
def test_options_that_cannot_be_used_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(MCPConfigError, match=next(iter(wrong))):
        TraceOptions(**wrong)


def test_a_flush_may_be_waited_for_without_end(path: Path) -> None:
    with TraceWriter(path, episode="e") as writer:
        assert writer.flush(float("inf"))


@pytest.mark.parametrize(("attempts", "times"), [(":", 2), ("2:", 1), ("1:", 1)])
@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_told_and_what_it_took_stays(
    path: Path, attempts: str, times: int
) -> None:
    done = run(FILLING.replace("SLICE", attempts), path)
    assert (done.stderr, done.stdout.splitlines()) == ("", [TOO_LARGE] * times)
    trace = read_trace(path, Counted)
    assert [envelope.body.number for envelope in trace.envelopes] == list(range(len(trace.envelopes)))
    assert len(trace.envelopes) > 10
    assert trace.cut_short


class StalledDisk:
    """A file that takes some 64 KiB and then nothing, until it is drained."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(self._end, True)
        self._received: list[bytes] = []
        self._draining = threading.Thread(target=self._drain)

    def answer(self) -> None:
        """Take everything from now on."""
        self._draining.start()

    def numbers(self) -> list[int]:
        """What was written, once its writer has closed."""
        self._draining.join(60)
        return [json.loads(line)["body"]["number"] for line in self._received[1:]]

    def _drain(self) -> None:
        with os.fdopen(self._end, "rb") as pipe:
            self._received.extend(pipe)


def test_a_disk_that_does_not_answer_delays_no_record_and_loses_nothing(path: Path) -> None:
    disk = StalledDisk(path)
    writer = TraceWriter(path, episode="e")
    recorder = recording(writer)
    for number in range(3000):
        recorder.record(Counted(number), sender="x")
    assert not writer.flush(within_s=0.05)
    disk.answer()
    assert writer.flush(within_s=30)
    writer.close()
    assert disk.numbers() == list(range(3000))


def test_after_a_late_flush_the_host_waits_50_ms_until_one_is_in_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    in_time = [True, False, False, True, True]

    def flush(_lines: LineQueue, within_s: float) -> bool:
        waited.append(within_s)
        return in_time[len(waited) - 1]

    writer = TraceWriter(path, episode="e")
    recorder = recording(writer)
    with monkeypatch.context() as patch:
        patch.setattr(LineQueue, "flush", flush)
        for number in range(5):
            recorder.record(Counted(number), sender="host")
    writer.close()
    assert waited == [2.0, 2.0, 0.05, 0.05, 2.0]


def test_a_disk_that_does_not_answer_is_waited_for_once(path: Path) -> None:
    disk = StalledDisk(path)
    writer = TraceWriter(path, episode="e", options=TraceOptions(flush_within_s=1.0))
    recorder = recording(writer)
    for number in range(1000):
        recorder.record(Counted(number), sender="x")
    begun = time.monotonic()
    with within(5, "each of the ten waited"):
        for number in range(1000, 1010):
            recorder.record(Counted(number), sender="host")
    assert time.monotonic() - begun >= 1.0
    disk.answer()
    writer.close()
    assert disk.numbers() == list(range(1010))


# --- Payloads ---


def test_what_is_too_large_for_a_line_stands_in_a_file_of_its_own(path: Path) -> None:
    recorded = write(path, Said("a"), Said("b" * 200), Said("c"), Said("b" * 200), options=SMALL)
    (file,) = (path.parent / "payloads").iterdir()
    reference = {"$payload": file.stem, "bytes": file.stat().st_size, "type": "Said"}
    bodies = [json.loads(line)["body"] for line in path.read_bytes().splitlines()[1:]]
    assert bodies == [
        {"type": "Said", "text": "a", "extra": None},
        reference,
        {"type": "Said", "text": "c", "extra": None},
        reference,
    ]
    assert json.loads(file.read_bytes()) == {"type": "Said", "text": "b" * 200, "extra": None}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert read_trace(path, Body).envelopes == tuple(map(rounded, recorded))


def test_a_trace_without_large_messages_is_one_file(path: Path) -> None:
    write(path, Said("a" * 1000))
    assert list(path.parent.iterdir()) == [path]


def test_a_half_payload_that_a_killed_writer_left_is_written_anew(path: Path) -> None:
    write(path, Said("b" * 200), options=SMALL)
    (file,) = (path.parent / "payloads").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:10])
    file.with_name(f"{hashlib.sha256(b'trace.jsonl').hexdigest()}.part").write_bytes(b"rest of another")
    path.unlink()
    write(path, Said("b" * 200), options=SMALL)
    assert {each: each.read_bytes() for each in file.parent.iterdir()} == {file: whole}


def test_two_traces_in_one_folder_may_write_the_same_payload_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [path.with_name("other.jsonl")]
    put_in_place = os.replace

    def after_another_writer(*args: Path, **options: int | None) -> None:
        while others:
            write(others.pop(), Said("b" * 200), options=SMALL)
        put_in_place(*args, **options)

    monkeypatch.setattr(os, "replace", after_another_writer)
    write(path, Said("b" * 200), options=SMALL)
    for trace in (path, path.with_name("other.jsonl")):
        assert [envelope.body for envelope in read_trace(trace, Body).envelopes] == [Said("b" * 200)]
    assert [each.suffix for each in (path.parent / "payloads").iterdir()] == [".json"]


def test_a_payload_that_cannot_be_written_is_told_with_its_name(path: Path) -> None:
    (path.parent / "payloads").write_text("in the way")
    writer = TraceWriter(path, episode="e", options=SMALL)
    recorder = recording(writer)
    recorder.record(Said("a"), sender="x")
    recorder.record(Said("b" * 200), sender="x")
    with pytest.raises(TraceError, match=r"Cannot write the trace's payload .*: File exists"):
        writer.flush()
    writer.close()
    assert [envelope.body for envelope in read_trace(path, Body).envelopes] == [Said("a")]


def test_a_file_that_is_deleted_is_noticed_at_the_next_word_to_or_from_the_host(path: Path) -> None:
    writer, recorder = TraceWriter(path, episode="e-1"), Recorder()
    recorder.add(writer)
    recorder.record(Counted(1), sender="host")
    path.unlink()
    recorder.record(Counted(2), sender="x")
    with pytest.raises(TraceError, match=r"trace\.jsonl was deleted while it was being written\."):
        recorder.record(Counted(3), sender="host")
    writer.close()


# --- Other processes ---


@pytest.mark.slow
def test_a_program_that_ends_without_closing_loses_nothing(path: Path) -> None:
    done = run("for number in range(500):\n    recorder.record(Counted(number), sender='x')", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert numbers(path) == list(range(500))


def test_a_program_that_ends_after_its_trace_was_deleted_gets_a_warning(path: Path) -> None:
    done = run("os.unlink(path)\nrecorder.record(Counted(1), sender='x')", path)
    assert done.returncode == 0
    assert f"RuntimeWarning: The trace file {path} was deleted while it was being written." in done.stderr
    assert "Traceback" not in done.stderr


FORKING = """
# From Python 3.12 on a fork beside threads warns; that there is a thread is the point here.
warnings.filterwarnings("ignore", message=".*multi-threaded", category=DeprecationWarning)
for number in range(3):
    recorder.record(Counted(number), sender="x")
ready, go = os.pipe(), os.pipe()
if not os.fork():
    for attempt in (lambda: recorder.record(Counted(9), sender="x"), writer.flush):
        try:
            attempt()
        except TraceError as error:
            print("not by a fork" in str(error), flush=True)
    writer.close()
    os.write(ready[1], b".")
    os.read(go[0], 1)
    os._exit(0)
os.read(ready[0], 1)
recorder.record(Counted(3), sender="host")
writer.close()
TraceWriter(path, episode="e-1", resume=True).close()
os.write(go[1], b".")
os.wait()
"""


@pytest.mark.slow
def test_a_forked_child_writes_nothing_and_holds_no_lock(path: Path) -> None:
    done = run(FORKING, path)
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", ["True", "True"])
    assert numbers(path) == [0, 1, 2, 3]


PLAYING = """
number = 0
while True:
    recorder.record(Counted(number), sender="x")
    recorder.record(Said("large " * 40000), sender="x") if number % 7 == 0 else None
    if number % 5 == 0:
        recorder.record(Counted(number), sender="host")
        print(number, flush=True)
    number += 1
"""


@pytest.mark.parametrize("told", [1, 2, 5, 9, 14, 27])
@pytest.mark.slow
def test_a_writer_killed_at_any_instant_leaves_what_it_has_told(path: Path, told: int) -> None:
    process = subprocess.Popen(recording_program(PLAYING, path), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    heard = [int(process.stdout.readline()) for _ in range(told)]
    process.kill()
    process.wait(60)
    process.stdout.close()
    envelopes = read_trace(path, Body).envelopes
    assert [envelope.seq for envelope in envelopes] == list(range(1, len(envelopes) + 1))
    noted = [envelope.body.number for envelope in envelopes if envelope.sender == "host"]
    assert noted[:told] == heard
