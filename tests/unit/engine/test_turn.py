"""What turns of an episode leave to each other, and whose turn a caller is inside."""

import threading
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from patient_turns import ASK, PatientModel, patient_model, wait_until

from grue import FunctionTools, LlmSettings, Recorder, Runner, TurnRequest
from grue.engine.turn import EpisodeMemory, Spending, _inside_turn, refuse_inside_turn
from grue.engine.wiring import TurnsUnderWay, Wiring, wire
from grue.errors import MCPError, TurnCancelled
from grue.messages import ServerName, Usage
from grue.policies import FailurePolicy, TurnLimits
from grue.protocol.turn.connection import Disabled, Proven
from grue.testing.fake_tools import FakeToolServer
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply

A, B = ServerName("a"), ServerName("b")


def test_turns_are_numbered_from_one_unless_they_have_a_number() -> None:
    memory = EpisodeMemory()
    assert [memory.start(number) for number in (None, None, 7, None)] == [1, 2, 7, 8]


def test_new_states_replace_the_old_ones_and_change_no_mapping_in_place() -> None:
    memory = EpisodeMemory()
    memory.learn({A: Proven()})
    before = memory.connections
    memory.learn({B: Disabled("gone")})
    assert before == {A: Proven()}
    assert memory.connections == {A: Proven(), B: Disabled("gone")}


def test_nothing_that_threads_add_at_once_is_lost() -> None:
    memory, spending = EpisodeMemory(), Spending()

    def turns() -> None:
        for _ in range(500):
            memory.start(None)
            spending.add(1, Usage(input_tokens=2))

    threads = [threading.Thread(target=turns) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.turn == 2000
    assert (spending.spent.requests, spending.spent.usage.input_tokens) == (2000, 4000)


@pytest.fixture
def model() -> Iterator[PatientModel]:
    with patient_model() as one:
        yield one


def test_a_cancelled_turn_leaves_what_it_has_learned_of_its_servers(model: PatientModel) -> None:
    proven, disabled = FakeToolServer("a"), FakeToolServer("b")
    proven.answers("look", "a cave")
    disabled.fails_to_start()
    model.gate.clear()
    llm, servers = LlmSettings(base_url=model.server.base_url, model="m"), {"a": proven, "b": disabled}
    with Runner(llm=llm, servers=servers, policy=FailurePolicy(first_connect="disable")) as runner:
        turn = runner.start_turn(ASK)
        wait_until(lambda: model.server.requests)
        turn.cancel()
        with pytest.raises(TurnCancelled):
            turn.result()
        model.gate.set()
        proven.fails_to_start()
        # Of a server that had never been connected this would be the first connect, and disable it.
        runner.run_turn(ASK)
    assert (proven.sessions, disabled.sessions) == (3, 1)


def wiring() -> Wiring:
    llm = LlmSettings(base_url="http://127.0.0.1:9/v1", model="m")
    return wire(llm, {"own": FunctionTools({})}, recorder=Recorder())


def test_a_caller_is_inside_the_turns_around_it_and_no_others() -> None:
    one, other = wiring(), wiring()
    with _inside_turn(one), _inside_turn(other):
        for each in (one, other):
            with pytest.raises(MCPError, match="from inside one of its turns"):
                refuse_inside_turn(each)
    with _inside_turn(one):
        refuse_inside_turn(other)
    refuse_inside_turn(one)
    # Forks, resumed turns and turns that wait for a batch have a wiring of their own.
    with (
        _inside_turn(replace(one, servers={}, under_way=TurnsUnderWay())),
        pytest.raises(MCPError, match="from inside one of its turns"),
    ):
        refuse_inside_turn(one)


def test_the_last_request_asks_for_an_answer() -> None:
    replies = [tool_calls_reply(("clock.time", {}), ids=("c1",)), text_reply("Noon.")]
    with ScriptedLlmServer(replies) as server:
        clock = FunctionTools({"time": lambda: "12:00"})
        llm = LlmSettings(base_url=server.base_url, model="m", api_key="")
        with Runner(llm=llm, servers={"clock": clock}, limits=TurnLimits(max_tool_iterations=1)) as runner:
            assert runner.run_turn(TurnRequest("What time is it?")).kind == "forced"
    asked = server.requests[-1].messages[-1]["content"]
    assert asked == "Please provide your final answer now without calling any more tools."
