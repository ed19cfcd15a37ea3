"""A policy that asks unless a tool's server runs in a box, with real servers and commands in both."""

from pathlib import Path

import boxes
import pytest
from msgspec.structs import replace
from transport_servers import faulty

from grue import (
    ApprovalQuestion,
    FunctionTools,
    LlmSettings,
    Runner,
    ShellTool,
    ToolPolicy,
    ToolRule,
    TurnRequest,
)
from grue.engine.outside_turns.tool_client import ToolClient
from grue.messages import AskApproval, SessionOpened, ToolsPresumed, ToolsVerified
from grue.protocol.tools.lock import ToolLock, lock_of
from grue.sandbox import kernel, launch
from grue.sandbox.box import Sandbox
from grue.sandbox.kernel import Coverage
from grue.sandbox.launch import reach
from grue.sandbox.learning import Watch, watching
from grue.testing import replay
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tool_sessions.server_specs import in_its_box, is_boxed
from grue.tracing.message_words import summarize
from grue.tracing.reading import open_episode

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

OLD = Coverage(system="Linux 5.10.0 on x86_64", landlock=0, seccomp=True, listener=True)
UNLESS_BOXED = ToolPolicy(rules=(ToolRule(boxed=False, verdict="ask"),))
CALLS = tool_calls_reply(
    ("boxed.echo", {"text": "in"}),
    ("open.echo", {"text": "out"}),
    ("shell.run", {"argv": ["true"]}),
    ("bare.run", {"argv": ["true"]}),
    ("mine.add", {}),
)


@boxes.needs_boxes
def test_only_calls_without_a_box_are_asked_about_and_the_trace_says_what_each_could_reach(
    tmp_path: Path,
) -> None:
    (tmp_path / "work").mkdir()
    trace = tmp_path / "turn.jsonl"
    asked: list[str] = []

    def approve(questions: tuple[ApprovalQuestion, ...]) -> bool:
        asked.extend(question.name for question in questions)
        return True

    box = Sandbox(read=("/opt/hunter2secret",))
    servers = {
        "boxed": replace(faulty(), name="boxed", sandbox=box, env={"TOKEN": "hunter2secret"}),
        "open": replace(faulty(), name="open"),
        "shell": ShellTool(folder=tmp_path / "work", commands=["true"], sandbox=Sandbox(preset="files")),
        "bare": ShellTool(folder=tmp_path / "work", commands=["true"]),
        "mine": FunctionTools({"add": lambda: "added"}),
    }
    with assert_nothing_left(), ScriptedLlmServer([CALLS, text_reply("done")]) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with Runner(
            llm=settings, servers=servers, trace=trace, tool_policy=UNLESS_BOXED, approve=approve
        ) as runner:
            outcome = runner.run_turn(TurnRequest(system="s", user="u"))
    assert [call.settlement for call in outcome.tool_calls] == ["returned"] * 5
    assert asked == ["open.echo", "bare.run", "mine.add"]
    said = [envelope.body for envelope in open_episode(trace)]
    opened = {body.server: body for body in said if isinstance(body, SessionOpened)}
    reached = {name: body.box for name, body in opened.items()}
    assert reached == {
        "boxed": "files: its own program and a scratch folder; reads /opt/[redacted:TOKEN]; network: none",
        "open": "",
        "shell": "files: its own program, a scratch folder and the workspace; network: none",
        "bare": "",
        "mine": "",
    }
    assert summarize(opened["boxed"]).endswith(f". Sandbox: {reached['boxed']}")
    assert "Box" not in summarize(opened["open"])
    assert sum(isinstance(body, AskApproval) for body in said) == 1
    assert replay(trace) > 0


@boxes.needs_boxes
@pytest.mark.slow
def test_a_listing_that_is_presumed_knows_the_box_of_now(tmp_path: Path) -> None:
    with ToolClient({"s": replace(faulty(), name="s")}) as client:
        free = client.connect("s")["s"]
    assert isinstance(free, SessionOpened)
    lock = ToolLock({"s": lock_of(free.tools)}, listings={"s": free.tools})
    trace = tmp_path / "turn.jsonl"
    replies = [tool_calls_reply(("s.echo", {"text": "in"})), text_reply("done")]
    server = replace(faulty(), name="s", sandbox=Sandbox())
    with assert_nothing_left(), ScriptedLlmServer(replies) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with Runner(
            llm=settings, servers={"s": server}, trace=trace, tool_policy=UNLESS_BOXED, tool_lock=lock
        ) as runner:
            outcome = runner.run_turn(TurnRequest(system="s", user="u"))
    assert [call.settlement for call in outcome.tool_calls] == ["returned"]
    said = [envelope.body for envelope in open_episode(trace)]
    presumed = next(body for body in said if isinstance(body, ToolsPresumed))
    assert all(tool.boxed for tool in presumed.listings[0].tools)
    assert [body for body in said if isinstance(body, ToolsVerified)] == [ToolsVerified(request=1)]
    # A listing of a server that ran in a box says nothing about one that no longer does.
    assert not any(tool.boxed for tool in in_its_box(faulty(), presumed.listings[0].tools))


def test_a_box_that_is_enforced_in_part_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kernel, launch):
        monkeypatch.setattr(module, "coverage", lambda: OLD)
    box = Sandbox(required=False)
    assert not is_boxed(box)
    assert "; not enforced: " in reach(box)


def test_a_server_that_is_only_watched_runs_in_no_box() -> None:
    box = watching(Watch())
    assert (is_boxed(box), reach(box)) == (False, "")
