"""`Runner(trace=...)` writes a trace, and closes it with the runner."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grue import LlmSettings, Runner, TraceWriter, TurnRequest
from grue.errors import TraceError
from grue.messages import AnyMessage, ServerName, ServerNoted
from grue.runtime.trace.reader import read_trace
from grue.runtime.trace.recorder import Recorder
from grue.testing.llm_server import ScriptedLlmServer, text_reply

NOWHERE = LlmSettings(base_url="http://127.0.0.1:1/v1", model="m")


def bodies(path: Path) -> list[str]:
    return [type(envelope.body).__name__ for envelope in read_trace(path, AnyMessage).envelopes]


@pytest.mark.parametrize("name", ["bot.jsonl", "runs"])
def test_a_runner_writes_its_trace(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "sk-shop-0123456789")
    with ScriptedLlmServer([text_reply("it is sk-shop-0123456789")]) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with Runner(llm=settings, trace=tmp_path / name) as runner:
            runner.run_turn(TurnRequest(system="s", user="u"))
            where = runner.trace
    assert where is not None
    file = where if where.suffix else where / "trace.jsonl"
    assert bodies(file)[0] == "RunTurn"
    assert bodies(file)[-1] == "TurnCompleted"
    assert b"sk-shop-0123456789" not in file.read_bytes()
    if name == "runs":
        assert where.parent == tmp_path / "runs"
        assert (where / "episode.log").exists()


@pytest.mark.parametrize("name", ["bot.jsonl", "runs"])
def test_the_trace_is_found_after_a_change_of_the_working_directory(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with Runner(llm=NOWHERE, trace=name) as runner:
        monkeypatch.chdir("elsewhere")
        assert runner.trace is not None
        assert runner.trace.exists()


def test_each_runner_has_a_folder_of_its_own(tmp_path: Path) -> None:
    with Runner(llm=NOWHERE, trace=tmp_path) as one, Runner(llm=NOWHERE, trace=tmp_path) as other:
        assert one.trace != other.trace


@pytest.mark.parametrize("name", ["{}.jsonl", "{}"])
def test_runners_that_follow_each_other_may_share_a_recorder(tmp_path: Path, name: str) -> None:
    recorder, seen = Recorder(), list[str]()
    recorder.add(lambda envelope, _: seen.append(type(envelope.body).__name__))
    with ScriptedLlmServer(["one", "two"]) as llm:
        traces = []
        for number in (1, 2):
            with Runner(llm=llm.settings, recorder=recorder, trace=tmp_path / name.format(number)) as runner:
                runner.run_turn("Go on.")
            assert runner.trace is not None
            traces.append(runner.trace if runner.trace.suffix else runner.trace / "trace.jsonl")
        with pytest.raises(TraceError, match="is closed"):
            runner.run_turn("Once more.")
    assert [bodies(trace).count("TurnCompleted") for trace in traces] == [1, 1]
    assert seen.count("TurnCompleted") == 2


@pytest.mark.skipif(sys.platform != "linux", reason="macOS refuses such names")
def test_a_file_whose_name_is_not_utf_8_is_a_trace_too(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"bot-\xff.jsonl")
    with Runner(llm=NOWHERE, trace=path):
        assert read_trace(path, AnyMessage).header.episode == "bot-\ufffd"


def test_a_file_that_the_system_refuses_to_look_for_is_an_error_of_the_trace(tmp_path: Path) -> None:
    # A name that is too long stands for a folder that is closed to this user: it is refused as any user.
    with pytest.raises(TraceError, match=r"Cannot write the trace file .*: File name too long"):
        Runner(llm=NOWHERE, trace=tmp_path / f"{'x' * 300}.jsonl")


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "bot.jsonl").write_text("mine")
    with pytest.raises(TraceError, match="exists already") as refused:
        Runner(llm=NOWHERE, trace=tmp_path / "bot.jsonl")
    assert f'trace="{tmp_path / "bot"}"' in str(refused.value)
    assert (tmp_path / "bot.jsonl").read_text() == "mine"


@pytest.mark.slow
def test_the_trace_of_a_runner_that_is_not_closed_is_written_at_the_end_of_the_program(
    tmp_path: Path,
) -> None:
    program = (
        "from grue import LlmSettings, Runner, TurnRequest\n"
        "from grue.testing.llm_server import ScriptedLlmServer, text_reply\n"
        "with ScriptedLlmServer([text_reply('yes')]) as llm:\n"
        "    runner = Runner(llm=LlmSettings(base_url=llm.base_url, model='m'), trace='bot.jsonl')\n"
        "    runner.run_turn(TurnRequest(system='s', user='u'))\n"
    )
    subprocess.run((sys.executable, "-c", program), cwd=tmp_path, check=True)
    assert bodies(tmp_path / "bot.jsonl")[-1] == "TurnCompleted"


@pytest.mark.parametrize("name", ["bot.jsonl", "runs"])
def test_the_trace_is_closed_even_if_an_observer_fails_at_the_end(tmp_path: Path, name: str) -> None:
    runner = Runner(llm=NOWHERE, trace=tmp_path / name)
    assert runner.trace is not None
    file = runner.trace if runner.trace.suffix else runner.trace / "trace.jsonl"
    episode = read_trace(file, AnyMessage).header.episode

    def refuse(envelope: object, line: bytes) -> None:
        raise ValueError("too long")

    async def record() -> None:
        # In an event loop, a thread shows a long message to the observers.
        runner.recorder.record(
            ServerNoted(server=ServerName("s"), kind="log", text="x" * 2**18), sender="host"
        )

    runner.recorder.add(refuse)
    asyncio.run(record())
    with pytest.raises(ValueError, match="too long"):
        runner.close()
    TraceWriter(file, episode=episode, resume=True).close()


def test_a_trace_writer_is_a_context_manager(tmp_path: Path) -> None:
    recorder = Recorder()
    with TraceWriter(tmp_path / "t.jsonl", episode="t") as writer:
        recorder.add(writer)
    with pytest.raises(TraceError, match="closed"):
        writer.flush()
