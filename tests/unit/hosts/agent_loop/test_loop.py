"""The agent loop: inputs that follow each other, events as they happen, and how an input ends early."""

import _thread
import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from promises import cancelled_when

from grue import ApprovalQuestion, LlmSettings, MCPError, Recorder, ToolPolicy, ToolRule, TurnLimits
from grue import messages as m
from grue.errors import BudgetSpent, LLMError, MCPConfigError
from grue.hosts import agent_loop
from grue.hosts.agent_loop import AgentLoop, LoopEvent, ToolEnded, ToolStarted, Words
from grue.hosts.agent_loop.events import EventFeed
from grue.protocol.tools.results import success
from grue.runtime.loops import sync_edge
from grue.runtime.loops.sync_edge import BlockingInsideEventLoopWarning
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmReply, Script, ScriptedLlmServer, silence, text_reply, tool_calls_reply

ROOMS = {"north": "a forest", "south": "a cave"}


def look(direction: str) -> str:
    """Look in a direction."""
    return ROOMS[direction]


@contextmanager
def looping(script: Script, **how: Any) -> Iterator[tuple[AgentLoop, ScriptedLlmServer]]:
    with assert_nothing_left(), ScriptedLlmServer(script) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with AgentLoop(settings, **{"system": "You explore.", "tools": [look], **how}) as loop:
            yield loop, llm


def asks(direction: str, name: str = "tools.look") -> LlmReply:
    return tool_calls_reply((name, {"direction": direction}))


def test_each_input_knows_what_was_said_before() -> None:
    with looping([asks("north"), text_reply("A forest."), text_reply("I said so.")]) as (loop, llm):
        assert loop.run("What is north?") == "A forest."
        assert loop.run("Sure?") == "I said so."
        roles = [message["role"] for message in llm.requests[-1].messages]
        assert loop.last_outcome is not None
        assert loop.last_outcome.turn == 2
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]


def test_inside_an_event_loop_the_warning_names_the_loops_own_async_method() -> None:
    async def web_view() -> str:
        with looping([text_reply("Here.")]) as (loop, _):
            return loop.run("Look.")

    sync_edge._warned.clear()
    with pytest.warns(BlockingInsideEventLoopWarning, match=r"Use AgentLoop\.run_async instead"):
        assert asyncio.run(web_view()) == "Here."


def test_words_and_tool_calls_are_reported_in_the_callers_thread_as_they_happen() -> None:
    events: list[LoopEvent] = []
    threads: set[threading.Thread] = set()

    def report(event: LoopEvent) -> None:
        events.append(event)
        threads.add(threading.current_thread())

    calls = tool_calls_reply(
        ("tools.look", {"direction": "north"}),
        ("tools.look", {"direction": "up"}),
        ("tools.sing", {}),
        ("tools.look", "{"),
        content="Let me see.",
    )
    with looping([calls, text_reply("A forest.")], on_event=report) as (loop, _):
        loop.run("Look.")
    assert threads == {threading.current_thread()}
    words = [each for each in events if isinstance(each, Words)]
    assert "".join(each.text for each in words) == "Let me see.A forest."
    assert isinstance(events[0], Words)
    assert isinstance(events[-1], Words)
    started = [each for each in events if isinstance(each, ToolStarted)]
    ended = [each for each in events if isinstance(each, ToolEnded)]
    assert [(each.name, each.arguments) for each in started] == [
        ("tools.look", {"direction": "north"}),
        ("tools.look", {"direction": "up"}),
    ]
    assert sorted((each.name, str(each.result.error_message)[:40]) for each in ended) == [
        ("tools.look", "None"),
        ("tools.look", "Tool call failed: KeyError: 'up'"),
        ("tools.look", "Tool call failed: the arguments are not "),
        ("tools.sing", "Unknown MCP tool: tools.sing. Available "),
    ]


def test_a_callback_may_record_facts_and_call_the_loops_other_methods() -> None:
    names: list[str] = []

    def report(event: LoopEvent) -> None:
        if isinstance(event, ToolEnded):
            names.extend(tool.name for tool in loop.runner.tools())
            loop.runner.recorder.record({"seen": event.name}, sender="host")

    with looping([asks("north"), text_reply("A forest.")], on_event=report) as (loop, _):
        assert loop.run("Look.") == "A forest."
    assert names == ["tools.look"]


def test_an_exception_of_the_callback_ends_the_input_and_the_next_one_goes_on() -> None:
    failing = [ValueError("the window is closed")]

    def report(event: LoopEvent) -> None:
        if isinstance(event, ToolStarted) and failing:
            raise failing.pop()

    script = [asks("north"), text_reply("never"), text_reply("Here I am.")]
    with looping(lambda request: script[min(2, len(llm.requests) - 1)], on_event=report) as (loop, llm):
        with pytest.raises(ValueError, match="the window is closed"):
            loop.run("Look.")
        script[1] = text_reply("Here I am.")
        assert loop.run("Are you there?") == "Here I am."


@pytest.mark.parametrize("reporting", [True, False])
def test_ctrl_c_ends_the_input_and_the_conversation_goes_on(reporting: bool) -> None:
    def script(request: Any) -> LlmReply:
        if len(llm.requests) > 1:
            return text_reply("Here I am.")
        _thread.interrupt_main()
        return silence()

    on_event: Callable[[LoopEvent], object] | None = (lambda _: None) if reporting else None
    with looping(script, on_event=on_event) as (loop, llm):
        with pytest.raises(KeyboardInterrupt):
            loop.run("Look.")
        assert loop.run("Are you there?") == "Here I am."


@pytest.mark.slow
def test_an_event_between_two_inputs_is_dropped_and_not_kept() -> None:
    class Noise:
        pass

    with looping([text_reply("Here."), text_reply("Here.")], on_event=lambda _: None) as (loop, _):
        loop.run("Look.")
        noise = Noise()
        kept = weakref.ref(noise)
        loop.report(noise)
        del noise
        gc.collect()
        assert kept() is None


@pytest.mark.parametrize("on_event", [None, lambda _: None])
def test_a_second_input_meanwhile_is_refused(on_event: Any) -> None:
    def recurse() -> str:
        """Ask the loop itself."""
        return loop.run("Again.")

    script = [tool_calls_reply(("tools.recurse", {})), text_reply("done"), text_reply("next")]
    with looping(script, tools=[recurse], on_event=on_event) as (loop, _):
        assert loop.run("Go.") == "done"
        assert loop.last_outcome is not None
        (call,) = loop.last_outcome.tool_calls
        assert loop.run("And now?") == "next"
    assert "ConversationBusy: The agent loop is in the middle of an input" in str(call.result.error_message)


def test_a_turn_that_fails_raises_its_error_with_and_without_a_callback() -> None:
    from grue import Budget

    for on_event in (None, lambda _: None):
        with looping([text_reply("one")], budget=Budget(requests=1), on_event=on_event) as (loop, _):
            loop.run("One.")
            with pytest.raises(BudgetSpent):
                loop.run("Two.")


def test_the_options_are_the_runners_and_the_trace_holds_everything(tmp_path: Path) -> None:
    path = tmp_path / "loop.jsonl"
    limits = TurnLimits(max_tool_iterations=1)
    with looping([asks("north"), text_reply("A forest.")], trace=path, limits=limits) as (loop, _):
        loop.run("Look.")
        assert loop.last_outcome is not None
        assert loop.last_outcome.kind == "forced"
        assert loop.runner.trace == path
    assert b"tools.look" in path.read_bytes()
    with loop, pytest.raises(MCPError):
        loop.run("The trace is closed.")


def test_a_loop_always_keeps_its_sessions() -> None:
    wrong: Any = {"keep": "turn"}
    with pytest.raises(MCPConfigError, match="An AgentLoop has no keep=: its sessions stay open"):
        AgentLoop(LlmSettings(base_url="http://127.0.0.1:9/v1", model="m"), **wrong)
    ahead: Any
    for ahead in ("after_turn", "beside_turn", ("after_turn", "beside")):
        with pytest.raises(MCPConfigError, match="An AgentLoop keeps its sessions, so start="):
            AgentLoop(LlmSettings(base_url="http://127.0.0.1:9/v1", model="m"), start=ahead)


def test_a_configuration_makes_a_loop(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.grue.llm]\nagent_model = "m"\n[tool.grue.mcp]\nmax_tool_iterations = 3\n'
        '[[tool.grue.tool_policy.rules]]\ntools = ["tools.*"]\nverdict = "deny"\n',
        encoding="utf-8",
    )
    with ScriptedLlmServer([asks("north"), text_reply("Denied.")]) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with AgentLoop.from_toml(
            tmp_path / "pyproject.toml", llm=settings, tools=[look], system="You explore."
        ) as loop:
            assert loop.runner.limits.max_tool_iterations == 3
            loop.run("Look.")
            assert loop.last_outcome is not None
            assert [call.settlement for call in loop.last_outcome.tool_calls] == ["denied"]


def test_an_event_of_ones_own_comes_in_the_callers_thread_and_an_input_has_the_number_it_is_given() -> None:
    events: list[Any] = []

    async def approve(questions: tuple[ApprovalQuestion, ...]) -> bool:
        loop.report((questions[0].reason, threading.current_thread()))
        return True

    def report(event: Any) -> None:
        events.append(event if not isinstance(event, tuple) else (*event, threading.current_thread()))

    policy = ToolPolicy(rules=(ToolRule(verdict="ask", reason="why not"),))
    script = [asks("north"), text_reply("A forest.")]
    with looping(script, on_event=report, tool_policy=policy, approve=approve) as (loop, _llm):
        assert loop.run("What is north?", turn=7) == "A forest."
        assert loop.last_outcome is not None
        assert loop.last_outcome.turn == 7
    (mine,) = [each for each in events if isinstance(each, tuple)]
    assert (mine[0], mine[2]) == ("why not", threading.current_thread())
    assert mine[1] is not mine[2]
    first = next(index for index, each in enumerate(events) if isinstance(each, ToolStarted))
    assert events.index(mine) < first


def test_a_call_whose_server_asks_the_model_meanwhile_is_reported_to_its_end() -> None:
    events: list[LoopEvent] = []
    recorder = Recorder()
    recorder.add(EventFeed(events.append))
    call = m.ToolCall(call_id=m.CallId("c1"), name="mcp.a.look", arguments="{}")
    batch, server = m.BatchId(1), m.ServerName("mcp.a")
    for body, sender, receiver in (
        (m.CompletionReceived(request=1, tool_calls=(call,)), "llm", "agent"),
        (
            m.ToolCalled(server=server, batch=batch, call_id=call.call_id, tool="look", arguments={}),
            server,
            "trace",
        ),
        (m.CompletionReceived(request=1, content="a sampled text"), "llm-sampling", server),
        (m.ToolReturned(batch=batch, call_id=call.call_id, result=success("a cave")), server, "agent"),
    ):
        recorder.record(body, sender=sender, receiver=receiver, turn=1)
    assert [(type(each), each.name) for each in events if not isinstance(each, Words)] == [
        (ToolStarted, "mcp.a.look"),
        (ToolEnded, "mcp.a.look"),
    ]


@pytest.mark.anyio
async def test_in_an_event_loop_events_arrive_there_and_the_loop_goes_on() -> None:
    events: list[LoopEvent] = []

    def report(event: LoopEvent) -> None:
        assert threading.current_thread() is threading.main_thread()
        events.append(event)
        if isinstance(event, Words) and event.text == "x":
            raise ValueError("I have heard enough")

    script = [asks("north"), text_reply("A forest."), text_reply("x"), text_reply("Yes.")]
    with ScriptedLlmServer(script) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with AgentLoop(settings, tools=[look], on_event=report) as loop:
            assert await loop.run_async("Look.") == "A forest."
            assert [type(event) for event in events][:2] == [ToolStarted, ToolEnded]
            assert "".join(event.text for event in events if isinstance(event, Words)) == "A forest."
            with pytest.raises(ValueError, match="heard enough"):
                await loop.run_async("And now?")
            assert await loop.run_async("Still there?") == "Yes."
        with AgentLoop(settings) as loop, pytest.raises(LLMError):
            await loop.run_async("The script has ended.")


@pytest.mark.anyio
async def test_a_cancelled_input_ends_and_the_next_one_goes_on() -> None:
    def script(request: Any) -> LlmReply:
        return text_reply("Here I am.") if len(llm.requests) > 1 else silence()

    with ScriptedLlmServer(script) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with AgentLoop(settings, on_event=lambda _: None) as loop:
            await cancelled_when(lambda: llm.requests, lambda: loop.run_async("Look."))
            assert await loop.run_async("Are you there?") == "Here I am."


def test_with_an_injected_function_the_file_of_servers_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.grue.mcp]\nenabled = true\nconfig_file = 'nowhere.json'\n"
        '[[tool.grue.tool_policy.rules]]\ntools = ["files.delete"]\nverdict = "deny"\n',
        encoding="utf-8",
    )
    calls = tool_calls_reply(("mcp.files.read", {}), ("mcp.files.delete", {}))
    with ScriptedLlmServer([calls, text_reply("done")]) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        how: dict[str, Any] = {"llm": settings, "invoke_mcp_tool": lambda name, _: name}
        path = tmp_path / "pyproject.toml"
        with AgentLoop.from_toml(path, trace=tmp_path / "loop.jsonl", **how) as loop:
            loop.run("Go.")
            assert loop.last_outcome is not None
            read, deleted = loop.last_outcome.tool_calls
    assert read.result.content == "files.read"
    assert deleted.settlement == "denied"
    with pytest.raises(MCPConfigError, match=r"nowhere\.json"):
        AgentLoop.from_toml(path, llm=settings)


def test_the_host_stays_small() -> None:
    modules = Path(str(agent_loop.__file__)).parent.glob("*.py")
    assert sum(len(module.read_text(encoding="utf-8").splitlines()) for module in modules) < 900
