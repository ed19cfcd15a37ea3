"""What the actor runtime costs: to ask an actor and get its answer, and to record an envelope."""

import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from measuring import Bar, Effort, Section, figure, interleave, ratio, seconds_each

from grue.messages import BatchId, CallId, ToolCallResult, ToolReturned
from grue.runtime.actor import Actor, Supervisor, reply
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Envelope, Recorder

SECRETS = {"API_KEY": "sk-benchmark-0123456789", "TOKEN": "benchmark-9876543210"}
BODY = ToolReturned(
    batch=BatchId(1), call_id=CallId("call_1"), result=ToolCallResult("a brass lantern"), duration_s=0.01
)


class Echo(Actor[ToolReturned]):
    """An actor that answers each message with the same message."""

    async def receive(self, envelope: Envelope[ToolReturned]) -> None:
        """Answer the message."""
        reply(envelope, envelope.body)


Question: TypeAlias = tuple[ToolReturned, MemoryObjectSendStream[ToolReturned]]


def ask_section(effort: Effort) -> Section:
    """Compare a question to an actor with the same over anyio's streams (limit: twice the time)."""
    with tempfile.TemporaryDirectory() as folder:
        recorder, writer = _recorder_to_file(Path(folder) / "trace.jsonl")
        sides = {
            "file": partial(anyio.run, asks_of_an_actor, recorder, effort.asks),
            "none": partial(anyio.run, asks_of_an_actor, Recorder(), effort.asks),
            "bare": partial(anyio.run, asks_over_streams, effort.asks),
            "standing": partial(anyio.run, asks_over_standing_streams, effort.asks),
        }
        samples = interleave(effort.within(effort.rounds), sides)
        writer.close()
    return Section(
        "ask",
        "Ask and answer between two actors",
        "Measured: one question out and its answer back, one at a time, two tasks in one event loop. Bare "
        "streams do what an ask does: wait for room, and bring a stream for the answer. Beside them, the "
        "least that anyio can do: standing streams, no waiting for room, one asker.",
        [
            figure("actors, trace in a file", "us", samples["file"]),
            figure("actors, no trace", "us", samples["none"]),
            figure("bare anyio streams", "us", samples["bare"]),
            figure("bare, no waiting, one asker", "us", samples["standing"]),
        ],
        [
            Bar(
                "an ask between two actors, with a trace: time, as a ratio to bare anyio",
                ratio(samples["file"], samples["bare"]),
                2.0,
                "x",
            )
        ],
    )


def record_section(effort: Effort) -> Section:
    """Measure how long it takes to record an envelope (limit: 10 us)."""
    with tempfile.TemporaryDirectory() as folder:
        recorder, writer = _recorder_to_file(Path(folder) / "plain.jsonl")
        redacting, other = _recorder_to_file(Path(folder) / "secrets.jsonl", secrets=SECRETS)
        samples = interleave(
            effort.within(effort.rounds),
            {
                "file": partial(_record_us, recorder, effort.asks),
                "secrets": partial(_record_us, redacting, effort.asks),
                "none": partial(_record_us, Recorder(), effort.asks),
                "outside": partial(_record_us, recorder, effort.asks, sender="host"),
            },
        )
        writer.close()
        other.close()
    shown = figure("into a file", "us", samples["file"])
    return Section(
        "record",
        "Record an envelope",
        "Measured: a tool's result of a few words, numbered, timed, encoded and queued, and the share of the "
        "thread that hands it to the operating system meanwhile; from the outside (a few a turn): until it "
        "has. Not measured: the disk.",
        [
            shown,
            figure("into a file, two secrets hidden", "us", samples["secrets"]),
            figure("without an observer", "us", samples["none"]),
            figure("into a file, from the outside", "us", samples["outside"]),
        ],
        [Bar("time to record a message (envelope) in the trace", shown.median, 10, "us")],
    )


async def asks_of_an_actor(recorder: Recorder, times: int) -> float:
    """Return the microseconds of one question to an actor with its answer."""
    async with Supervisor(recorder) as supervisor:
        mailbox = supervisor.mailbox("echo")
        supervisor.start(Echo(mailbox))
        begun = time.perf_counter()
        for _ in range(times):
            await mailbox.ask(BODY, sender="asker")
        return (time.perf_counter() - begun) / times * 1e6


async def asks_over_streams(times: int) -> float:
    """Return the microseconds of one question, for whose answer a new stream is made."""
    entrance, exit_ = anyio.create_memory_object_stream[Question](16)
    async with anyio.create_task_group() as group, exit_, entrance:
        group.start_soon(_answer_each, exit_)
        begun = time.perf_counter()
        for _ in range(times):
            answer, answered = anyio.create_memory_object_stream[ToolReturned](1)
            with answer, answered:
                await entrance.send((BODY, answer))
                await answered.receive()
        took = time.perf_counter() - begun
        group.cancel_scope.cancel()
    return took / times * 1e6


async def asks_over_standing_streams(times: int) -> float:
    """Return the microseconds of a question and its answer over two streams that are made only once."""
    asked, questions = anyio.create_memory_object_stream[ToolReturned](16)
    answer, answers = anyio.create_memory_object_stream[ToolReturned](16)
    async with anyio.create_task_group() as group, asked, questions, answer, answers:
        group.start_soon(_pass_on, questions, answer)
        begun = time.perf_counter()
        for _ in range(times):
            asked.send_nowait(BODY)
            await answers.receive()
        took = time.perf_counter() - begun
        group.cancel_scope.cancel()
    return took / times * 1e6


async def _answer_each(questions: MemoryObjectReceiveStream[Question]) -> None:
    async for body, answer in questions:
        answer.send_nowait(body)


async def _pass_on(
    questions: MemoryObjectReceiveStream[ToolReturned], answer: MemoryObjectSendStream[ToolReturned]
) -> None:
    async for body in questions:
        answer.send_nowait(body)


def _record_us(recorder: Recorder, times: int, sender: str = "plain") -> float:
    def record() -> None:
        recorder.record(BODY, sender=sender, receiver="agent", cause=7, turn=1)

    return seconds_each(record, times) * 1e6


def _recorder_to_file(
    path: Path, *, secrets: Mapping[str, str] | None = None
) -> tuple[Recorder, TraceWriter]:
    recorder, writer = Recorder(secrets=secrets), TraceWriter(path, episode="benchmark")
    recorder.add(writer)
    return recorder, writer
