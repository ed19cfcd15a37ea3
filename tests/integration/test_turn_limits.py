"""A turn's time limit in both directions: the work gets nearly all of it, and nothing exceeds it."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from promises import within
from rows import first_of
from transport_servers import STUBBORN, faulty

from grue import FunctionTools, LlmSettings, Runner, TurnRequest
from grue.errors import TurnTimedOut
from grue.messages import CallId, CompletionReceived, RunTurn, ToolCall, TurnFailed, Usage
from grue.runtime.actor import Actor, Mailbox
from grue.runtime.trace.recorder import Envelope
from grue.testing.fake_tools import FakeToolServer
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, tool_calls_reply
from grue.tracing.reading import read_episode
from grue.tracing.replay import replay

SLOW_MODEL = "waiting for the model (request 1)"


@pytest.fixture
def llm() -> Iterator[str]:
    """A model that calls `faulty.echo` if it is offered, and else answers only when the test is over."""
    over = threading.Event()

    def answer(request: LlmRequest) -> LlmReply:
        tools = [tool["function"]["name"] for tool in request.body.get("tools", ())]
        if "faulty.echo" not in tools or any(message["role"] == "tool" for message in request.messages):
            over.wait(60)
        return tool_calls_reply(("faulty.echo", {"text": "hi"}))

    with assert_nothing_left(), ScriptedLlmServer(answer) as server:
        yield server.base_url
        over.set()


# The servers, the limit, and what the turn is doing when it has passed. A server has to start within it.
SERVERS: dict[str, tuple[dict[str, Any], float, str]] = {
    "none": ({}, 1.0, SLOW_MODEL),
    "functions": ({"f": FunctionTools({"look": lambda: "dark"})}, 1.0, SLOW_MODEL),
    "polite": ({"faulty": faulty()}, 5.0, "waiting for the model (request 2)"),
    "stubborn": ({"faulty": faulty("--silent-at", "call", *STUBBORN)}, 5.0, "waiting for faulty.echo"),
    "stubborn from the start": (
        {"faulty": faulty("--silent-at", "initialize", *STUBBORN)},
        1.0,
        "starting faulty",
    ),
}


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("lifetime", first_of(["nothing", "loop"]))
def test_the_work_gets_nine_tenths_of_the_limit_and_the_end_keeps_it(
    llm: str, kind: str, lifetime: Any
) -> None:
    servers, limit_s, doing = SERVERS[kind]
    begun: list[RunTurn] = []

    def keep(envelope: Envelope[Any], _line: bytes) -> None:
        if isinstance(envelope.body, RunTurn):
            begun.append(envelope.body)

    settings = LlmSettings(base_url=llm, model="m")
    with Runner(llm=settings, servers=servers, keep=lifetime) as runner:
        runner.warm_up()
        runner.recorder.add(keep)
        started = time.monotonic()
        with within(limit_s + 0.5), pytest.raises(TurnTimedOut) as missed:
            runner.run_turn(TurnRequest(system="s", user="u", turn_timeout_s=limit_s))
        took_s = time.monotonic() - started
    kept_s = begun[0].limits.teardown_s
    assert kept_s == (0.1 * limit_s if "faulty" in servers else 0.0)
    kept = (
        f" The work was stopped after {0.9 * limit_s:g} s: {kept_s:g} s of the limit are kept"
        if kept_s
        else ""
    )
    assert str(missed.value).startswith(f"Turn 1 did not end within {limit_s:g} s: it was {doing}.{kept}")
    assert missed.value.limit_s == limit_s
    assert took_s >= 0.9 * limit_s - 0.01


@pytest.mark.slow
def test_a_user_may_keep_more_for_closing(llm: str) -> None:
    from grue import TurnLimits

    limits = TurnLimits(turn_timeout_s=5.0, teardown_s=0.4)
    with (
        Runner(
            llm=LlmSettings(base_url=llm, model="m"), servers={"faulty": faulty()}, limits=limits
        ) as runner,
        pytest.raises(TurnTimedOut, match=r"after 4\.6 s: 0\.4 s of the limit are kept for closing"),
    ):
        runner.run_turn(TurnRequest(system="s", user="u"))


class Silent(Actor[Any]):
    """A model that answers nothing."""

    async def receive(self, envelope: Envelope[Any]) -> None:
        await anyio.sleep_forever()


@pytest.mark.virtual_time
@pytest.mark.anyio
async def test_a_model_that_says_nothing_holds_a_turn_for_half_an_hour_at_most() -> None:
    runner = Runner(llm=lambda mailbox, _agent, _note: Silent(mailbox))
    begun = anyio.current_time()
    with pytest.raises(TurnTimedOut, match="turn_timeout_seconds") as missed:
        await runner.run_turn_async(TurnRequest(user="u"))
    assert anyio.current_time() - begun == pytest.approx(1800)
    assert missed.value.limit_s == 1800
    assert "did not end within 1800 s: it was waiting for the model" in str(missed.value)
    assert "of the TurnRequest, or of the runner's TurnLimits" in str(missed.value)


class Answering(Actor[Any]):
    """A model that looks, and then answers at once."""

    def __init__(self, mailbox: Mailbox[Any], agent: Mailbox[Any]) -> None:
        super().__init__(mailbox)
        self._agent = agent

    async def receive(self, envelope: Envelope[Any]) -> None:
        usage, number = Usage(input_tokens=10, output_tokens=5), envelope.body.request
        calls = (ToolCall(call_id=CallId("c1"), name="slow.look", arguments="{}"),) if number == 1 else ()
        content = None if calls else "done"
        reply = CompletionReceived(request=number, content=content, tool_calls=calls, model="m", usage=usage)
        await self._agent.send(reply, sender=self.name, cause=envelope.seq)


class SlowToClose(FakeToolServer):
    """A server of the host's, whose close is not ended by a cancellation."""

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(60)


@pytest.mark.virtual_time
@pytest.mark.anyio
async def test_a_turn_that_cannot_close_its_session_in_time_is_paid_for_and_has_its_end_in_the_trace(
    tmp_path: Path,
) -> None:
    slow = SlowToClose("slow")
    slow.answers("look", "dark")
    path = tmp_path / "late.jsonl"
    runner = Runner(
        llm=lambda mailbox, agent, _: Answering(mailbox, agent), servers={"slow": slow}, trace=path
    )
    with pytest.raises(TurnTimedOut, match="closing its sessions") as missed:
        await runner.run_turn_async(TurnRequest(user="u", turn_timeout_s=10))
    assert (runner.spent.requests, runner.spent.usage.output_tokens) == (2, 10)
    assert [call.name for call in missed.value.tool_calls] == ["slow.look"]
    runner.close()
    (end,) = (each.body for each in read_episode(path).envelopes if isinstance(each.body, TurnFailed))
    assert (end.tool_calls, end.requests, end.iterations) == (missed.value.tool_calls, 2, 1)
    assert [turn.divergence for turn in replay(read_episode(path).envelopes)] == [None]


def test_the_limit_of_a_turn_is_a_setting(tmp_path: Path) -> None:
    toml = tmp_path / "pyproject.toml"
    toml.write_text("[tool.grue.llm]\nturn_timeout_seconds = 45.5\n")
    assert Runner.from_toml(toml).limits.turn_timeout_s == 45.5
    toml.write_text("[tool.grue.llm]\nagent_model = 'm'\n")
    assert Runner.from_toml(toml).limits.turn_timeout_s == 1800
