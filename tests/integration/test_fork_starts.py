"""The order in which a fork starts its servers: it waits for none that it does not start."""

import shlex
from pathlib import Path
from typing import Any

import anyio
import pytest
from forked_turns import model, runner
from msgspec.structs import replace
from transport_servers import faulty

from grue import FailurePolicy, TurnLimits
from grue.messages import ConnectFailed, SessionOpened
from grue.testing.fake_tools import FakeToolServer
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tool_sessions.connection import Listing
from grue.tracing.reading import open_episode, read_episode
from grue.tracing.replay import replay

WIRE = "chat_completions"


def bodies(trace: Path, kind: type) -> list[Any]:
    return [each.body for each in read_episode(trace).envelopes if isinstance(each.body, kind)]


def sound(trace: Path) -> None:
    assert all(each.divergence is None for each in replay(open_episode(trace)))


class SlowToStart(FakeToolServer):
    async def open(self, timeout_s: float) -> Listing:
        await anyio.sleep(0.2)
        return await super().open(timeout_s)


def test_a_fork_with_fewer_connect_retries_does_not_wait_for_the_others(tmp_path: Path) -> None:
    box = FakeToolServer("box")
    how: dict[str, Any] = {
        "servers": {"box": box, "yard": SlowToStart("yard")},
        "policy": FailurePolicy(connect_retries=2),
        "limits": TurnLimits(turn_timeout_s=5),
    }
    trace, forked = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    with ScriptedLlmServer(model) as server:
        with runner(server, WIRE, trace, **how) as each:
            each.run_turn("Tidy up.")
            box.fails_to_start(times=3)
            assert each.run_turn("Tidy up.").kind == "degraded"
        with runner(server, WIRE, forked, **how) as each:
            assert each.fork(trace, turn=2, connect_retries=0).kind == "degraded"
    assert (len(bodies(trace, ConnectFailed)), len(bodies(forked, ConnectFailed))) == (3, 1)
    sound(forked)


def test_a_fork_that_calls_only_one_of_two_servers_does_not_wait_for_the_other(tmp_path: Path) -> None:
    """In the recorded turn, the other server, which starts at its first call too, was ready first."""
    pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
    quick, wanted = faulty(), ["slow.echo", "quick.echo"]
    started = shlex.join((quick.command, *quick.args))
    slow = replace(quick, command="sh", args=("-c", f"sleep 0.5; exec {started}"))
    how: dict[str, Any] = {"servers": {"slow": slow, "quick": quick}, "start": "when_called"}

    def calls(request: LlmRequest) -> LlmReply:
        if any(message["role"] == "tool" for message in request.messages):
            return text_reply("done")
        return tool_calls_reply(*((name, {"text": "a"}) for name in wanted))

    trace, forked = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    with ScriptedLlmServer(calls) as server:
        with runner(server, WIRE, trace, limits=TurnLimits(turn_timeout_s=10), **how) as each:
            each.tools()
            each.run_turn("Learn the tools.")
            each.run_turn("Call both.")
        assert [body.server for body in bodies(trace, SessionOpened)][-2:] == ["quick", "slow"]
        wanted.pop()
        with runner(server, WIRE, forked, **how) as each:
            assert each.fork(trace, turn=2).response == "done"
    sound(forked)


def test_calls_with_recorded_results_need_no_server_also_if_sessions_are_kept(tmp_path: Path) -> None:
    """It was an `ActorCrashed`, because the session that did not open was asked for its state."""
    pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
    trace, forked = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    replies = [tool_calls_reply(("faulty.echo", {"text": "a"})), "done"] * 2
    with ScriptedLlmServer(replies) as server:
        with runner(server, WIRE, trace, servers={"faulty": faulty()}) as each:
            each.run_turn("Call it.")
        broken = {"faulty": faulty("--exit-at", "start")}
        with runner(server, WIRE, forked, servers=broken, keep="sessions") as each:
            assert each.fork(trace, misses="call").response == "done"
    sound(forked)
