"""The observers of a `ToolClient` that makes calls for weeks keep nothing of the calls that have ended."""

import gc
import logging
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from grue import FunctionTools, Recorder, ToolClient
from grue.messages import ToolReturned
from grue.runtime.trace.recorder import Envelope
from grue.tracing.observers import spans
from grue.tracing.observers.events import LoggerObserver
from grue.tracing.observers.spans import SpanClosed, SpanFeed, ToolUse

CALLS = 400
MOST_BYTES = 60  # a call; an id that is kept takes more


class Spans:
    def __init__(self) -> None:
        self.ended = 0
        self._feed = SpanFeed()

    def __call__(self, envelope: Envelope[Any], _line: bytes) -> None:
        for event in self._feed.feed(envelope):
            if isinstance(event, SpanClosed) and isinstance(event.subject, ToolUse):
                assert isinstance(envelope.body, ToolReturned)
                assert event.subject.timeout_s is not None
                self.ended += 1


def silent() -> LoggerObserver:
    logger = logging.Logger("nobody reads it")
    logger.addHandler(logging.NullHandler())
    return LoggerObserver(logger)


async def stock() -> int:  # a coroutine function: coverage keeps something of each thread, so none must start
    return 12


@pytest.mark.parametrize("make", [silent, Spans])
def test_a_call_that_has_ended_takes_no_memory(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    monkeypatch.setattr(spans, "MOST_NUMBERS", 30)
    recorder, observer = Recorder(), make()
    recorder.add(observer)
    with ToolClient({"p": FunctionTools({"stock": stock})}, recorder=recorder) as client:

        def call(often: int) -> None:
            for _ in range(often):
                assert client.call("p.stock").content == 12

        call(CALLS)
        gc.collect()
        tracemalloc.start()
        try:
            call(CALLS)
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert kept < MOST_BYTES * CALLS
    assert getattr(observer, "ended", 2 * CALLS) == 2 * CALLS
