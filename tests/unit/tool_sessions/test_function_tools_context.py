"""Progress and cancellation of function tools, from coroutines and from threads."""

import threading
from typing import Any

import anyio
import pytest

from grue.errors import TraceError
from grue.messages import ServerNoted
from grue.tool_sessions.failures import ToolTimedOutError
from grue.tool_sessions.function_tools import FunctionConnection, FunctionTools, ToolCancelled, ToolContext

pytestmark = pytest.mark.anyio


class Notes:
    """What a connection has recorded, and in which thread."""

    def __init__(self) -> None:
        self.bodies: list[ServerNoted] = []
        self.threads: set[int] = set()

    def __call__(self, body: Any, *, sender: str, cause: int | None = None) -> Any:
        assert sender == "mine"
        self.bodies.append(body)
        self.threads.add(threading.get_ident())

    @property
    def texts(self) -> list[tuple[str, str]]:
        return [(body.kind, body.text) for body in self.bodies]


def connection(notes: Notes, **functions: Any) -> FunctionConnection:
    return FunctionTools(functions).connect("mine", note=notes)  # type: ignore[arg-type]


def report(context: ToolContext) -> str:
    context.progress(1, 4, "digging")
    context.progress(2)
    context.log("a stone\x1b[31m")
    return f"{context.server}.{context.tool} {0 < context.remaining_s <= 60}"


async def report_later(context: ToolContext) -> str:
    return report(context)


@pytest.mark.parametrize("function", [report, report_later], ids=["thread", "coroutine"])
async def test_progress_is_recorded_in_the_event_loop_before_the_result(function: Any) -> None:
    notes = Notes()
    result = await connection(notes, dig=function).call("dig", {}, 60)
    assert result.content == "mine.dig True"
    assert notes.texts[:2] == [("progress", "1/4 digging"), ("progress", "2")]
    assert notes.texts[2][0] == "log"
    assert "\x1b" not in notes.texts[2][1]
    assert notes.threads == {threading.get_ident()}


@pytest.mark.slow
async def test_a_trace_that_cannot_be_written_is_reported_by_the_calls_settlement_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Full(Notes):
        def __call__(self, *words: Any, **named: Any) -> Any:
            raise TraceError("Cannot write the trace file.")

    def dig(context: ToolContext) -> str:
        context.log("a stone")
        return "done"

    assert (await connection(Full(), dig=dig).call("dig", {}, 60)).content == "done"
    assert not caplog.records, "a callback of the event loop has not raised it"


async def test_notices_are_short_and_few() -> None:
    def chatter(context: ToolContext) -> None:
        for _ in range(2000):
            context.log("x" * 10_000)

    notes = Notes()
    await connection(notes, talk=chatter).call("talk", {}, 60)
    assert len(notes.bodies) == 501
    assert [kind for kind, _ in notes.texts[498:500]] == ["log", "log"]
    assert notes.texts[-1] == ("too_large", "talk: more than 500 notices; further ones are left out")
    assert all(len(body.text) <= 500 for body in notes.bodies)


async def test_a_plain_function_is_told_that_it_has_timed_out_and_its_notices_are_dropped() -> None:
    ended = threading.Event()
    seen: list[object] = []

    def dig(context: ToolContext) -> None:
        seen.append(context.wait(60))
        seen.append(context.remaining_s)
        context.log("too late")
        try:
            context.raise_if_cancelled()
        except ToolCancelled as error:
            seen.append(str(error))
        ended.set()

    notes = Notes()
    with pytest.raises(ToolTimedOutError):
        await connection(notes, dig=dig).call("dig", {}, 0.3)
    assert await anyio.to_thread.run_sync(ended.wait, 10)
    assert seen == [True, 0.0, "The call of mine.dig was cancelled."]
    assert notes.bodies == []


async def test_a_cancelled_call_cancels_its_context() -> None:
    contexts: list[ToolContext] = []

    async def dig(context: ToolContext) -> None:
        contexts.append(context)
        scope.cancel()
        await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        await connection(Notes(), dig=dig).call("dig", {}, 60)
    assert contexts[0].cancelled


async def test_a_finished_call_is_not_cancelled_and_reports_nothing_more() -> None:
    contexts: list[ToolContext] = []

    def dig(context: ToolContext | None = None) -> None:
        assert context is not None
        context.raise_if_cancelled()
        contexts.append(context)

    notes = Notes()
    await connection(notes, dig=dig).call("dig", {}, 60)
    contexts[0].log("after the end")
    assert not contexts[0].cancelled
    assert notes.bodies == []
