"""Long messages are gone through beside the event loop, in order, and the host waits for them."""

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import anyio
import pytest
from plain_messages import Said

from grue.errors import TraceError
from grue.runtime.large_data import LONG
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.reader import TraceReader
from grue.runtime.trace.recorder import Backlog, Envelope, Recorder

LONG_TEXT = "the word is open-sesame. " * (LONG // 20)


class Gate:
    """An observer that waits until it is let through."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.seen: list[Any] = []

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        assert self.opened.wait(60), "nothing has let it through"
        self.seen.append(envelope.body.text[:24])


def test_an_event_loop_waits_neither_for_a_long_message_nor_for_what_follows_it() -> None:
    recorder, gate = Recorder(secrets={"door": "open-sesame"}), Gate()
    recorder.add(gate)

    async def record() -> None:
        for body in (Said(LONG_TEXT), Said("short"), Said("and short")):
            recorder.record(body, sender="x")
        assert gate.seen == []
        gate.opened.set()
        await recorder.shown()
        assert gate.seen == ["the word is [redacted:do", "short", "and short"]
        recorder.record(Said("short again"), sender="x")
        assert len(gate.seen) == 4

    anyio.run(record)


def test_outside_of_a_loop_a_long_message_was_shown_when_it_is_recorded() -> None:
    recorder, gate = Recorder(), Gate()
    recorder.add(gate)
    gate.opened.set()
    recorder.record(Said(LONG_TEXT), sender="x")
    assert len(gate.seen) == 1


def test_while_others_wait_a_loop_goes_on() -> None:
    recorder, gate = Recorder(), Gate()
    recorder.add(gate)

    async def record() -> None:
        recorder.record(Said(LONG_TEXT), sender="x")
        async with anyio.create_task_group() as group:
            group.start_soon(recorder.shown)
            await anyio.lowlevel.checkpoint()
            gate.opened.set()

    anyio.run(record)
    assert len(gate.seen) == 1


def test_calls_stay_in_order_if_another_thread_checks_the_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    backlog, order, submit = Backlog(), [], ThreadPoolExecutor.submit
    opened = threading.Event()

    def submit_while_another_checks(pool: ThreadPoolExecutor, *call_of: Any) -> Future[None]:
        call = submit(pool, *call_of)
        check = threading.Thread(target=backlog.check)
        check.start()
        check.join(0.05)  # it waits for `add`
        return call

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_while_another_checks)
    backlog.add(lambda: order.append("first" if opened.wait(60) else "too late"))
    backlog.add(lambda: order.append("second"))
    opened.set()
    backlog.wait()
    assert order == ["first", "second"]


def test_calls_stay_in_order_if_the_thread_ends_while_one_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    backlog, order, submit = Backlog(), [], ThreadPoolExecutor.submit
    before, opened = threading.Event(), threading.Event()
    threads: list[ThreadPoolExecutor] = []

    def submit_until_the_thread_ends(pool: ThreadPoolExecutor, *call_of: Any) -> Future[None]:
        threads.append(pool)
        call = submit(pool, *call_of)
        if len(threads) == 2:
            before.set()  # the first call ends
            wait(list(backlog.calls), 0.05)  # it waits for `add`
        return call

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_until_the_thread_ends)
    backlog.add(lambda: order.append("first" if before.wait(60) else "too late"))
    backlog.add(lambda: order.append("second" if opened.wait(60) else "too late"))
    backlog.add(lambda: order.append("third"))
    opened.set()
    backlog.wait()
    assert order == ["first", "second", "third"]
    assert len(set(threads)) == 1


def test_what_an_observer_raises_is_raised_to_who_waits() -> None:
    recorder = Recorder()

    def refuse(envelope: Envelope[Any], line: bytes) -> None:
        raise TraceError("the disk is full")

    recorder.add(refuse)

    async def record() -> None:
        recorder.record(Said(LONG_TEXT), sender="x")
        with pytest.raises(TraceError, match="full"):
            await recorder.shown()

    anyio.run(record)
    with pytest.raises(TraceError, match="full"):
        recorder.record(Said(LONG_TEXT), sender="x")
    with pytest.raises(TraceError, match="full"):
        recorder.record(Said("short"), sender="x")


@pytest.mark.slow
def test_a_forked_child_does_not_wait_for_its_parent() -> None:
    recorder, gate = Recorder(), Gate()
    recorder.add(gate)

    async def record() -> int:
        recorder.record(Said(LONG_TEXT), sender="x")
        child = os.fork()
        if not child:
            recorder.settle()
            os._exit(7)
        return child

    child = anyio.run(record)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    gate.opened.set()
    recorder.settle()
    assert len(gate.seen) == 1


@pytest.mark.slow
def test_a_writer_that_is_closed_inside_an_event_loop_has_every_long_message(tmp_path: Path) -> None:
    """As in a notebook, where `record` does not wait for the thread that works on long messages."""
    path = tmp_path / "trace.jsonl"

    async def main() -> None:
        recorder, writer = Recorder(), TraceWriter(path, episode="e")
        recorder.add(writer)
        for _ in range(5):
            recorder.record(Said("x" * 2_000_000), sender="a")
        recorder.record(Said("short"), sender="a")
        writer.close()

    anyio.run(main)
    read = list(TraceReader(path, Said))
    assert [len(each.body.text) for each in read] == [2_000_000] * 5 + [5]


def test_two_threads_may_check_a_backlog_at_the_same_time() -> None:
    backlog = Backlog()

    class Raced(Future[None]):
        """A finished call that another thread removes right after this one has seen that it is finished."""

        def done(self) -> bool:
            if self in backlog.calls:
                backlog.calls.remove(self)
            return True

    backlog.calls.append(Raced())
    backlog.check()
    assert not backlog.busy
