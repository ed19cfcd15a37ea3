"""A whole turn without a network: scripted model over httpx, the real think server, everything between."""

import sys

import pytest

from grue.actors.llm import LlmActor, LlmEndpoint, LlmSettings
from grue.engine.runner import Runner, TurnRequest
from grue.errors import LLMError
from grue.hosts.servers import think
from grue.hosts.zork.agent import SYSTEM_PROMPT, answer_spec
from grue.hosts.zork.games.house import HouseGame
from grue.hosts.zork.orchestrator import Move, context_text
from grue.messages import CompletionReceived
from grue.runtime.trace.recorder import Recorder
from grue.testing.leftovers import assert_nothing_left
from grue.testing.offline import MODEL, ScriptedModelTransport, playbook_for
from grue.tool_sessions.server_specs import StdioServer

THINK = StdioServer(name="think", command=sys.executable, args=("-I", "-S", think.__file__))
SETTINGS = LlmSettings(model=MODEL, base_url="http://offline.invalid/v1")


def offline_llm(transport, settings=SETTINGS):
    """A factory of LLM actors that ask the transport."""
    endpoint = LlmEndpoint(settings, transport=transport)
    return lambda mailbox, agent, note: LlmActor(mailbox, agent, endpoint, note)


def requests(upto):
    """The first turns of the house as the host tells them, the script's commands played."""
    game, moves = HouseGame(), []
    seen = game.reset(7)
    for turn in range(1, upto + 1):
        user = context_text(game.name, turn, seen, moves, [])
        yield TurnRequest(system=SYSTEM_PROMPT, user=user, answer=answer_spec(), turn=turn)
        step = playbook_for(game.name, 7).steps[turn - 1]
        after = game.step(step.command)
        moves.append(Move(step.command, after.text, seen.location, after.score - seen.score))
        seen = after


def turn_for(command):
    """The request of the turn in which the house's script says `command`."""
    commands = [step.command for step in playbook_for("The House", 7).steps]
    return list(requests(commands.index(command) + 1))[-1]


@pytest.mark.parametrize("strict_names", [False, True])
@pytest.mark.slow
def test_three_iterations_through_a_real_server(strict_names):
    received = []
    recorder = Recorder()
    recorder.add(lambda envelope, _line: received.append(envelope.body))
    transport = ScriptedModelTransport(playbook_for("The House", 7), strict_names=strict_names)

    with (
        assert_nothing_left(),
        Runner(llm=offline_llm(transport), servers={"think": THINK}, recorder=recorder) as runner,
    ):
        outcome = runner.run_turn(turn_for("dial 734"))

    assert (outcome.kind, outcome.response.action) == ("answered", "dial 734")
    assert outcome.response.thinking.endswith("(scripted)")
    assert [call.name for call in outcome.tool_calls] == ["think.think"] * 3
    assert (outcome.iterations, outcome.requests) == (3, 4)
    assert outcome.tool_calls[-1].result.content["thoughtHistoryLength"] == 3
    assert not any(call.result.is_error for call in outcome.tool_calls)
    completions = [body for body in received if isinstance(body, CompletionReceived)]
    assert {each.model for each in completions} == {MODEL}
    assert outcome.usage.input_tokens > 0


def test_two_calls_in_one_reply_and_a_turn_without_any():
    transport = ScriptedModelTransport(playbook_for("The House", 7))

    with Runner(llm=offline_llm(transport), servers={"think": THINK}) as runner:
        teapot = runner.run_turn(turn_for("open teapot"))
        key = runner.run_turn(turn_for("take key"))

    assert ([call.iteration for call in teapot.tool_calls], teapot.response.action) == ([1, 1], "open teapot")
    assert (key.tool_calls, key.response.action) == ((), "take key")


def test_without_tools_the_answer_comes_at_once_in_the_required_shape():
    transport = ScriptedModelTransport(playbook_for("The House", 7))

    with Runner(llm=offline_llm(transport)) as runner:
        outcome = runner.run_turn(turn_for("dial 734"))

    assert (outcome.kind, outcome.requests, outcome.response.action) == ("answered", 1, "dial 734")


def test_what_a_provider_would_refuse_fails_the_turn():
    settings = LlmSettings(model=MODEL, base_url="http://offline.invalid/v1", temperature=9.0)

    with (
        Runner(llm=offline_llm(ScriptedModelTransport(), settings)) as runner,
        pytest.raises(LLMError, match="temperature"),
    ):
        runner.run_turn(turn_for("take key"))
