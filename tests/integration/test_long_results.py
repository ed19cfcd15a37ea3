"""Results that are too long for the conversation: told by reference, read on, also by a later process."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from talks import WIRES, changed_prefixes

from grue import (
    ContextPolicy,
    Conversation,
    FunctionTools,
    LlmSettings,
    Runner,
    ToolPolicy,
    ToolRule,
    TurnLimits,
    TurnRequest,
)
from grue.errors import ApprovalPending
from grue.messages import RequestCompletion, ToolCalled, ToolMessage, ToolReturned, TurnCompleted
from grue.protocol.chat_wire.formats import WireName
from grue.protocol.tools.names import SERVER
from grue.runtime.actor import Actor, Supervisor
from grue.testing import replay
from grue.testing.llm_server import (
    ContextWindow,
    LlmReply,
    LlmRequest,
    ScriptedLlmServer,
    text_reply,
    tool_calls_reply,
)
from grue.tracing.counts import count_episode
from grue.tracing.message_words import mark_of, severity_of, summarize
from grue.tracing.reading import open_episode, read_episode
from grue.tracing.stats_table import summary

LIMITS = TurnLimits(max_result_chars=400)


def log(number: int = 1) -> str:
    """Return a log of 3,000 lines, with one error."""
    lines = (f"{number}/{line} {'ERROR disk full' if line == 1234 else 'ok'}" for line in range(1, 3001))
    return "\n".join(lines)


def handles(request: LlmRequest) -> list[str]:
    """Return the handles that the model has been told, oldest first."""
    return re.findall(r'read_result with the handle \\?"([^"\\]+)', request.raw.decode())


def told(request: LlmRequest) -> str:
    """Return the newest tool result."""
    return [str(each["content"]) for each in request.messages if each["role"] == "tool"][-1]


def model(*steps: Callable[[LlmRequest], LlmReply]) -> Callable[[LlmRequest], LlmReply]:
    """Return a model that takes one step a request."""
    left = list(steps)
    return lambda request: left.pop(0)(request)


def calls(tool: str, **arguments: Any) -> Callable[[LlmRequest], LlmReply]:
    return lambda request: tool_calls_reply((_name(request, tool), arguments))


def reads(at: int = -1, **arguments: Any) -> Callable[[LlmRequest], LlmReply]:
    """Read on in the result whose handle was told at this place."""
    return lambda request: tool_calls_reply(("read_result", {"handle": handles(request)[at], **arguments}))


def answers(text: str = "done") -> Callable[[LlmRequest], LlmReply]:
    return lambda _: text_reply(text)


def _name(request: LlmRequest, tool: str) -> str:
    return next(name for name in request.tool_names if name.endswith(tool))


def runner_for(server: ScriptedLlmServer, wire: WireName = "chat_completions", **how: Any) -> Runner:
    llm = LlmSettings(base_url=server.base_url, model="scripted", wire=wire, api_key="key")
    how.setdefault("limits", LIMITS)
    return Runner(llm=llm, servers={"host": FunctionTools({"log": log})}, **how)


def test_what_reads_results_is_started_by_the_first_call_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    start = Supervisor.start

    def noted(group: Supervisor, actor: Actor[Any], **how: Any) -> None:
        started.append(actor.name)
        start(group, actor, **how)

    monkeypatch.setattr(Supervisor, "start", noted)
    script = model(calls("log"), answers(), calls("log"), reads(), answers())
    with ScriptedLlmServer(script) as server, runner_for(server) as runner:
        for expected in (["llm", "host", "agent"], ["llm", "host", "agent", SERVER]):
            started.clear()
            assert runner.run_turn(TurnRequest[str](user="What went wrong?")).response == "done"
            assert started == expected


@pytest.mark.parametrize("wire", WIRES)
def test_a_model_reads_on_in_a_result_that_is_too_long(tmp_path: Path, wire: WireName) -> None:
    script = model(
        calls("log"),
        reads(pattern="ERROR"),
        reads(first_line=1233, last_line=1235),
        reads(first_line=3000),
        reads(json_path="$.x"),
        lambda _: tool_calls_reply(("read_result", {"handle": "nonsense"})),
        answers(),
    )
    path = tmp_path / "trace.jsonl"
    with ScriptedLlmServer(script) as server, runner_for(server, wire, trace=path) as runner:
        outcome = runner.run_turn(TurnRequest[str](user="What went wrong?"))
        said = [told(request) for request in server.requests[1:]]
        offered = [[each for each in request.tool_names if "log" not in each] for request in server.requests]
    assert outcome.response == "done"
    assert said[0].startswith("1/1 ok\n")
    assert said[0].endswith("\n1/3000 ok")
    assert len(said[0]) < 600
    assert said[1:4] == [
        "[1 matching lines; there are no more]\n1234: 1/1234 ERROR disk full",
        "[lines 1233 to 1235 of 3000]\n1/1233 ok\n1/1234 ERROR disk full\n1/1235 ok",
        "[lines 3000 to 3000 of 3000]\n1/3000 ok",
    ]
    assert said[4] == "Error: Tool call failed: the result is not JSON: read its lines, or search it"
    assert "no result is kept under the handle 'nonsense'" in said[5]
    assert offered == [[], *[["read_result"]] * 6], "the tool is offered once there is something to read"
    assert [call.name for call in outcome.tool_calls] == ["host.log", *["read_result"] * 5]
    bodies = [envelope.body for envelope in read_episode(path).envelopes]
    assert sum(body.result.content == log() for body in bodies if isinstance(body, ToolReturned)) == 1
    assert [body.tool for body in bodies if isinstance(body, ToolCalled)] == ["log", *["read_result"] * 5]
    replay(path)


def test_a_long_text_in_an_object_is_told_and_read_by_its_own_lines() -> None:
    def page() -> dict[str, str]:
        return {"content": log()}

    script = model(calls("page"), reads(first_line=1234, last_line=1234), answers())
    with ScriptedLlmServer(script) as server:
        llm = LlmSettings(base_url=server.base_url, model="scripted", api_key="key")
        with Runner(llm=llm, servers={"host": FunctionTools([page])}, limits=LIMITS) as runner:
            runner.run_turn(TurnRequest[str](user="What went wrong?"))
        said = [told(request) for request in server.requests[1:]]
    assert said[0].startswith("1/1 ok\n")
    assert said[1] == "[lines 1234 to 1234 of 3000]\n1/1234 ERROR disk full"


@pytest.mark.parametrize("json_results", [False, True])
def test_a_result_that_was_cut_is_told_wherever_a_trace_is_read(tmp_path: Path, json_results: bool) -> None:
    path = tmp_path / "trace.jsonl"
    with (
        ScriptedLlmServer(model(calls("log"), answers())) as server,
        runner_for(server, trace=path) as runner,
    ):
        outcome = runner.run_turn(TurnRequest[str](user="Read it.", json_results=json_results))
        sent = len(told(server.requests[-1]))
    whole = len(log()) if not json_results else len(msgspec.json.encode({"content": log()}))
    bodies = [envelope.body for envelope in read_episode(path).envelopes]
    words = f"; {outcome.tool_calls[0].call_id} cut (max_result_chars):"
    words += f" the model was sent {sent:,} of {whole:,} characters"
    requests = [body for body in bodies if isinstance(body, RequestCompletion)]
    assert [summarize(body).partition(";")[1:] for body in requests] == [("", ""), (";", words[1:])]
    assert [mark_of(body) for body in bodies if severity_of(body) == "warn"] == ["cut"], "no other problem"
    assert [item.whole_chars for item in outcome.said if isinstance(item, ToolMessage)] == [whole]
    assert outcome.tool_calls[0].result.content == log()
    stats = count_episode(open_episode(path))
    assert stats.model.cut_results == 1
    assert "tool calls  1: 1 returned; cut before the model read it: 1" in summary(stats)
    replay(path)


def test_results_are_only_cut_where_the_limits_or_the_request_say_so(tmp_path: Path) -> None:
    for limits, json_results in (
        (TurnLimits(max_result_chars=400, long_results="cut"), False),
        (LIMITS, True),
    ):
        script = model(calls("log"), answers())
        with ScriptedLlmServer(script) as server, runner_for(server, limits=limits) as runner:
            runner.run_turn(TurnRequest[str](user="Read it.", json_results=json_results))
            assert "[cut: " in told(server.requests[-1])
            assert handles(server.requests[-1]) == []
            assert server.requests[-1].tool_names == server.requests[0].tool_names
    del tmp_path


@pytest.mark.parametrize("how", ["memory", "file", "trace", "branch"])
def test_a_later_turn_reads_on_with_the_same_tools_and_prefix(tmp_path: Path, how: str) -> None:
    script = model(
        calls("log", number=1),
        answers("first"),
        calls("log", number=2),
        answers("second"),
        reads(0, pattern="ERROR"),
        reads(-1, pattern="ERROR"),
        answers("third"),
    )
    trace = None if how == "memory" else tmp_path / "trace.jsonl"
    file = tmp_path / "talk.jsonl" if how == "file" else None
    with ScriptedLlmServer(script) as server:
        with runner_for(server, trace=trace) as runner:
            talk = runner.conversation("Read logs.", path=file, name="talk")
            assert [talk.ask("One?").response, talk.ask("Two?").response] == ["first", "second"]
            if how == "memory":
                assert talk.ask("Errors?").response == "third"
            elif how == "branch":
                assert talk.branch().ask("Errors?").response == "third"
            talk.close()
        if how in ("file", "trace"):
            with runner_for(server) as later:
                talk = Conversation.load(file, later) if file else Conversation.from_trace(trace or "", later)
                assert talk.ask("Errors?").response == "third"
                talk.close()
        found = [told(request) for request in server.requests[-2:]]
        assert found == [
            f"[1 matching lines; there are no more]\n1234: {n}/1234 ERROR disk full" for n in "12"
        ]
        assert "read_result" in server.requests[2].tool_names, "the tools stay as they are in the next turn"
        del server.requests[0]
        assert changed_prefixes(server) == 0


@pytest.mark.parametrize("how", ["held", "loaded", "from trace", "branch", "fork"])
def test_a_conversation_never_reads_the_result_of_another_one(tmp_path: Path, how: str) -> None:
    """In each `map` the turns are numbered from 1, and some endpoints give every call the same id."""

    def clerk(request: LlmRequest) -> LlmReply:
        asked = str(request.messages[-1]["content"])
        if request.messages[-1]["role"] == "tool":
            return text_reply(asked)
        if asked == "On?":
            return tool_calls_reply(("read_result", {"handle": "call_0"}), ids=["call_1"])
        return tool_calls_reply(("host.log", {"number": int(asked)}), ids=["call_0"])

    trace, saved = tmp_path / "t.jsonl", tmp_path / "first.jsonl"
    with ScriptedLlmServer(clerk) as server:
        with runner_for(server, trace=trace) as runner:
            first, second = runner.conversation(path=saved, name="first"), runner.conversation()
            list(runner.map([first.request("1"), second.request("2")]))
            list(runner.map([second.request("On?"), first.request("On?")]))
            talk = first.branch() if how == "branch" else first
            answer = talk.ask("On?").response if how in ("held", "branch") else ""
            first.close()
        with runner_for(server) as later:
            if how == "fork":
                answer = later.fork(trace, turn=2).response
            elif not answer:
                loaded = how == "loaded"
                talk = Conversation.load(saved, later) if loaded else Conversation.from_trace(trace, later)
                answer = talk.ask("On?").response
                talk.close()
    assert "\n1/3 ok" in answer


def test_a_file_of_an_older_version_does_not_name_the_conversation_of_a_result(tmp_path: Path) -> None:
    trace, saved = tmp_path / "t.jsonl", tmp_path / "talk.jsonl"
    script = model(calls("log"), answers(), reads(first_line=1), answers("read"))
    with ScriptedLlmServer(script) as server:
        with runner_for(server, trace=trace) as runner, runner.conversation(path=saved) as talk:
            talk.ask("Go.")
        lines = [msgspec.json.decode(line) for line in saved.read_text().splitlines()]
        recorded = [line for line in lines if line.get("type") == "recorded"]
        assert [line.pop("conversation") for line in recorded]
        saved.write_text("".join(f"{msgspec.json.encode(line).decode()}\n" for line in lines))
        with runner_for(server) as later, Conversation.load(saved, later) as talk:
            assert talk.ask("On?").response == "read"
    assert "1/3" in str(server.requests[-1].messages[-1]["content"])


def test_a_result_that_no_trace_and_no_process_holds_any_more_is_said_to_be_gone(tmp_path: Path) -> None:
    script = model(calls("log"), answers(), reads(first_line=1), answers("gone"))
    with ScriptedLlmServer(script) as server:
        with runner_for(server).conversation("Read logs.", path=tmp_path / "talk.jsonl") as talk:
            talk.ask("One?")
        with Conversation.load(tmp_path / "talk.jsonl", runner_for(server)) as talk:
            assert talk.ask("And?").response == "gone"
        assert "no result is kept under the handle" in told(server.requests[-1])


@pytest.mark.slow
def test_a_damaged_trace_of_a_later_turn_hides_no_older_result(tmp_path: Path) -> None:
    script = model(calls("log"), answers(), answers(), reads(first_line=1), answers("read"))
    saved = tmp_path / "talk.jsonl"
    with ScriptedLlmServer(script) as server:
        with (
            runner_for(server, trace=tmp_path / "one.jsonl") as runner,
            runner.conversation(path=saved) as talk,
        ):
            talk.ask("One?")
        with (
            runner_for(server, trace=tmp_path / "two.jsonl") as runner,
            Conversation.load(saved, runner) as talk,
        ):
            talk.ask("Two?")
        (tmp_path / "two.jsonl").write_text("")
        with runner_for(server) as later, Conversation.load(saved, later) as talk:
            assert talk.ask("On?").response == "read"
    assert "1/3" in told(server.requests[-1])


def test_a_cleared_result_is_read_again_in_place_of_a_second_call(tmp_path: Path) -> None:
    context = ContextPolicy(window_tokens=8_000, reply_tokens=500, max_summaries=0)
    steps = [calls("log", number=number) for number in range(1, 7)]
    script = model(*steps, reads(0, pattern="ERROR"), answers())
    limits = TurnLimits(max_result_chars=6_000)
    path = tmp_path / "trace.jsonl"
    with ScriptedLlmServer(script, window=ContextWindow(8_000)) as server:
        with runner_for(server, limits=limits, context=context, trace=path) as runner:
            outcome = runner.run_turn(TurnRequest[str](user="Read the logs."))
        results = [str(each["content"]) for each in server.requests[-2].messages if each["role"] == "tool"]
        first = outcome.tool_calls[0].call_id
        assert results[0] == f'[Cleared to save room; read_result with the handle "{first}" reads all of it]'
        assert told(server.requests[-1]).endswith("1234: 1/1234 ERROR disk full")
    assert outcome.response == "done"
    replay(path)


def test_no_policy_asks_about_reading_on(tmp_path: Path) -> None:
    policy = ToolPolicy(rules=(ToolRule(tools=("host.*",)), ToolRule(verdict="deny", reason="no")))
    script = model(calls("log"), reads(last_line=1), answers())
    with ScriptedLlmServer(script) as server, runner_for(server, tool_policy=policy) as runner:
        runner.run_turn(TurnRequest[str](user="Read it."))
        assert told(server.requests[-1]) == "[lines 1 to 1 of 3000]\n1/1 ok"
    del tmp_path


def test_a_parked_turn_reads_on_after_it_was_resumed(tmp_path: Path) -> None:
    policy = ToolPolicy(
        rules=(ToolRule(tools=("host.log",), max_calls=1), ToolRule(verdict="ask")), parking=True
    )
    servers = {"host": FunctionTools({"log": log, "sign": lambda: "signed"})}
    script = model(calls("log"), calls("sign"), reads(0, pattern="ERROR"), answers("signed"))
    path = tmp_path / "trace.jsonl"
    with ScriptedLlmServer(script) as server:
        llm = LlmSettings(base_url=server.base_url, model="scripted", api_key="key")
        how: dict[str, Any] = {"llm": llm, "servers": servers, "limits": LIMITS, "tool_policy": policy}
        with Runner(**how, trace=path) as runner, pytest.raises(ApprovalPending) as pending:
            runner.run_turn(TurnRequest[str](user="Read it, and sign."))
        with Runner(**how) as runner:
            outcome = runner.resume(path, [each.approve() for each in pending.value.questions])
        assert outcome.response == "signed"
        assert told(server.requests[-1]).endswith("1234: 1/1234 ERROR disk full")
        assert "read_result" in server.requests[-2].tool_names


KILLED = """
import os, signal, sys
from grue import FunctionTools, LlmSettings, Runner, TurnLimits

def log(number=1):
    return "\\n".join(f"{number}/{line} {'ERROR' if line == 1234 else 'ok'}" for line in range(1, 3001))

def die():
    os.kill(os.getpid(), signal.SIGKILL)

runner = Runner(
    llm=LlmSettings(base_url=sys.argv[1], model="scripted", api_key="key"),
    servers={"host": FunctionTools({"log": log, "die": die})},
    limits=TurnLimits(max_result_chars=400),
    trace=sys.argv[3],
)
runner.conversation("Read logs.", path=sys.argv[2]).ask("Read it, and die.")
"""


@pytest.mark.slow
def test_a_result_of_a_turn_whose_process_was_killed_can_be_read(tmp_path: Path) -> None:
    script = model(calls("log"), calls("die"), reads(0, pattern="ERROR"), answers("read"))
    talk_path, trace = tmp_path / "talk.jsonl", tmp_path / "trace.jsonl"
    with ScriptedLlmServer(script) as server:
        command = [sys.executable, "-c", KILLED, server.base_url, str(talk_path), str(trace)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        with Conversation.load(talk_path, runner_for(server)) as talk:
            assert talk.ask("What was the error?").response == "read"
        assert told(server.requests[-1]).endswith("1234: 1/1234 ERROR")


def test_a_trace_of_before_references_replays_with_results_that_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    limits = TurnLimits(max_result_chars=400, long_results="cut")
    script = model(calls("log"), answers())
    with ScriptedLlmServer(script) as server, runner_for(server, limits=limits, trace=path) as runner:
        runner.run_turn(TurnRequest[str](user="Read it."))
    old = path.read_text().replace(',"long_results":"cut"', "").replace(',"references":"never"', "")
    assert old != path.read_text()
    path.write_text(old)
    replay(path)
    bodies = [envelope.body for envelope in read_episode(path).envelopes]
    assert sum(isinstance(body, RequestCompletion | TurnCompleted) for body in bodies) == 3


@pytest.mark.parametrize(("window", "known"), [(3_000, 3_000), (3_000, 200_000)], ids=["window", "overflow"])
def test_a_result_that_is_cut_to_fit_keeps_its_handle(tmp_path: Path, window: int, known: int) -> None:
    context = ContextPolicy(window_tokens=known, reply_tokens=300, max_summaries=0)
    script = model(calls("log"), reads(0, pattern="ERROR"), answers())
    limits = TurnLimits(max_result_chars=100_000)
    path = tmp_path / "trace.jsonl"
    with ScriptedLlmServer(script, window=ContextWindow(window)) as server:
        with runner_for(server, limits=limits, context=context, trace=path) as runner:
            outcome = runner.run_turn(TurnRequest[str](user="Read the log."))
        handle = outcome.tool_calls[0].call_id
        cut = next(request for request in server.requests if handle in handles(request))
        assert told(cut).startswith("1/1 ok\n")
        assert told(cut).endswith(
            f'1/3000 ok\n[cut to save room; read_result with the handle "{handle}" reads all of it]'
        )
        assert told(server.requests[-1]).endswith("1234: 1/1234 ERROR disk full")
    assert outcome.response == "done"
    replay(path)
