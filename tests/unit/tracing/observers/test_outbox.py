import os
import subprocess
import sys
import threading
from typing import Any

import pytest
from recorded_turns import Tape

from grue.messages import AnswerRefused, TextDelta
from grue.testing.leftovers import assert_nothing_left
from grue.tracing.observers.outbox import Outbox, warn_once

DEADLINE_S = 60.0


class Collector:
    """A consumer that waits for leave, if it is told to, and raises at chosen envelopes."""

    def __init__(self, *, held: bool = False, fails_at: tuple[int, ...] = ()) -> None:
        self.seen: list[str] = []
        self.threads: set[str] = set()
        self.finished = 0
        self.busy = threading.Event()
        self.leave = threading.Event()
        self._fails_at = fails_at
        if not held:
            self.leave.set()

    def consume(self, envelope: Any) -> None:
        self.busy.set()
        assert self.leave.wait(DEADLINE_S)
        self.threads.add(threading.current_thread().name)
        self.seen.append(envelope.body.reason)
        if envelope.seq in self._fails_at:
            raise LookupError(f"cannot send {envelope.seq}")

    def finish(self) -> None:
        assert self.leave.wait(DEADLINE_S)
        self.finished += 1


def say(tape: Tape, *reasons: str) -> None:
    tape.say(*(AnswerRefused(reason=reason) for reason in reasons))


def test_envelopes_reach_the_consumer_in_order_in_one_thread_of_its_own() -> None:
    consumer = Collector()
    with assert_nothing_left():
        outbox = Outbox(consumer, name="test")
        say(Tape(outbox), "a", "b", "c")
        assert outbox.close(DEADLINE_S)
    assert (consumer.seen, consumer.finished) == (["a", "b", "c"], 1)
    assert consumer.threads == {"grue-test"}


def test_who_waits_until_it_is_idle_waits_for_all_that_was_taken_and_no_longer_than_asked() -> None:
    consumer = Collector(held=True)
    with assert_nothing_left():
        outbox = Outbox(consumer, name="test")
        assert outbox.wait_idle(DEADLINE_S), "nothing was taken"
        say(Tape(outbox), "a", "b", "c")
        assert consumer.busy.wait(DEADLINE_S)
        assert not outbox.wait_idle(0.01)
        consumer.leave.set()
        assert outbox.wait_idle(DEADLINE_S)
        assert consumer.seen == ["a", "b", "c"]
        assert not outbox.closed
        assert outbox.close(DEADLINE_S)
        assert outbox.closed
        assert outbox.wait_idle(DEADLINE_S)


def test_there_is_no_thread_before_the_first_envelope_and_none_after_the_end() -> None:
    before = {*threading.enumerate()}
    consumer = Collector()
    outbox = Outbox(consumer, name="test")
    assert {*threading.enumerate()} <= before, "another test's thread may end meanwhile"
    assert outbox.close()
    say(Tape(outbox), "late")
    assert {*threading.enumerate()} <= before, "another test's thread may end meanwhile"
    assert (consumer.seen, consumer.finished, outbox.statistics().taken) == ([], 0, 0)


def test_what_does_not_fit_is_dropped_counted_and_told_once() -> None:
    warnings: list[str] = []
    consumer = Collector(held=True)
    outbox = Outbox(consumer, name="test", bound=2, warn=warnings.append)
    tape = Tape(outbox)
    say(tape, "in the consumer's hands")
    assert consumer.busy.wait(DEADLINE_S)
    say(tape, "a", "b", "c", "d")  # returns although nobody takes anything
    counts = outbox.statistics()
    assert (counts.taken, counts.waiting, counts.dropped) == (3, 2, 2)
    assert warnings == []
    consumer.leave.set()
    assert outbox.close(DEADLINE_S)
    assert consumer.seen == ["in the consumer's hands", "a", "b"]
    assert warnings == ["test: 2 of 5 messages were dropped, too many waited."]


def test_a_consumer_that_raises_is_warned_of_once_and_goes_on() -> None:
    warnings: list[str] = []
    consumer = Collector(fails_at=(1, 3))
    outbox = Outbox(consumer, name="test", warn=warnings.append)
    say(Tape(outbox), "a", "b", "c", "d")
    assert outbox.close(DEADLINE_S)
    assert consumer.seen == ["a", "b", "c", "d"]
    assert warnings == ["test: something was not sent: LookupError: cannot send 1"]
    assert outbox.statistics().failed == 2


def test_closing_waits_no_longer_than_it_is_told_to() -> None:
    warnings: list[str] = []
    consumer = Collector(held=True)
    outbox = Outbox(consumer, name="test", warn=warnings.append)
    say(Tape(outbox), "a")
    assert not outbox.close(0)
    assert warnings == []
    assert not outbox.close(0.01)
    assert warnings == ["test: not everything could be sent within 0.01 s."]
    consumer.leave.set()
    assert outbox.close(DEADLINE_S)
    assert (consumer.seen, consumer.finished) == (["a"], 1)


def test_pieces_of_streamed_text_take_no_room() -> None:
    consumer = Collector()
    outbox = Outbox(consumer, name="test")
    tape = Tape(outbox)
    tape.say(TextDelta(request=1, text="Hm"))
    say(tape, "a")
    assert outbox.close(DEADLINE_S)
    assert (consumer.seen, outbox.statistics().taken) == (["a"], 1)


def test_a_warning_that_cannot_be_given_does_not_matter() -> None:
    def broken(text: str) -> None:
        raise LookupError(text)

    consumer = Collector(fails_at=(1,))
    outbox = Outbox(consumer, name="test", warn=broken)
    say(Tape(outbox), "a", "b")
    assert outbox.close(DEADLINE_S)
    assert consumer.seen == ["a", "b"]


def test_a_system_without_threads_left_costs_a_warning_and_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    warnings: list[str] = []
    outbox = Outbox(Collector(), name="test", warn=warnings.append)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        say(Tape(outbox), "a", "b")
    assert warnings == ["test: nothing is sent: can't start new thread."]
    assert outbox.close()


def test_only_the_first_warning_is_passed_on() -> None:
    warnings: list[str] = []
    warn = warn_once(warnings.append)
    warn("first")
    warn("second")
    assert warnings == ["first"]


def test_without_a_place_for_warnings_they_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    warn_once()("trouble")
    assert [(record.name, record.levelname, record.message) for record in caplog.records] == [
        ("grue", "WARNING", "trouble")
    ]


AT_EXIT = """
import os, sys
from grue.messages import AnswerRefused
from grue.tracing.observers.outbox import Outbox
from grue.runtime.trace.recorder import Recorder

class Printer:
    def consume(self, envelope): os.write(1, f"{envelope.body.reason} ".encode())
    def finish(self): os.write(1, b"end ")

recorder = Recorder()
outbox = Outbox(Printer(), name="test")
recorder.add(outbox)
recorder.record(AnswerRefused(reason="before"), sender="x")
"""
FORK = """
child = os.fork()
recorder.record(AnswerRefused(reason="child" if child == 0 else "parent"), sender="x")
if child:
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
assert outbox.close()
assert outbox.statistics().taken == 1  # nothing is kept either
"""


EARLY_FORK = """
import os
from grue.messages import AnswerRefused
from grue.tracing.observers.outbox import Outbox
from grue.runtime.trace.recorder import Recorder

recorder = Recorder()
recorder.add(Outbox(None, name="test", warn=lambda text: os.write(1, text.encode())))
if os.fork() == 0:
    for _ in range(2):
        recorder.record(AnswerRefused(reason="child"), sender="x")
    os._exit(0)
os.wait()
"""


def run(script: str, warnings: str = "error") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", warnings, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


@pytest.mark.slow
def test_the_end_of_the_program_sends_what_is_left() -> None:
    done = run(AT_EXIT)
    assert (done.stdout, done.stderr, done.returncode) == ("before end ", "", 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.slow
def test_a_forked_process_ends_at_once_and_sends_nothing() -> None:
    done = run(AT_EXIT + FORK, warnings="ignore")  # that there are threads is the point
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["before", "end", "parent"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.slow
def test_an_observer_that_was_made_before_a_fork_warns_once_in_the_child() -> None:
    done = run(EARLY_FORK)
    assert (done.stdout, done.stderr) == (
        "test: this process sends nothing, because it was forked after the observer was made. Make the"
        " observer in this process.",
        "",
    )
