"""What turns of an episode leave to each other, and whose turn a caller is inside."""

import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from patient_turns import ASK, PatientModel, patient_model, wait_until

from grue import FunctionTools, LlmSettings, Runner, TurnRequest
from grue.actors.sampling import CurrentSampler
from grue.engine.turn import EpisodeMemory, HostTurn, Spending, TurnSettings, refuse_inside_turn
from grue.engine.turn_actors import TurnResources
from grue.engine.wiring import TurnsUnderWay
from grue.errors import MCPError, TurnCancelled
from grue.messages import ServerName, Usage
from grue.policies import FailurePolicy, TurnLimits
from grue.protocol.turn.connection import Disabled, Proven
from grue.runtime.processes.process_group import ProcessRegistry
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


class Inside(HostTurn[str]):
    """A turn that calls `work` where others ask the model."""

    def __init__(self, settings: TurnSettings, work: Callable[[], Awaitable[None]]) -> None:
        super().__init__("", settings, EpisodeMemory())
        self._work = work

    async def _run(self, number: int, resources: TurnResources) -> Any:
        await self._work()


@pytest.mark.anyio
async def test_a_caller_is_inside_the_turns_around_it_and_no_others() -> None:
    llm = LlmSettings(base_url="http://127.0.0.1:9/v1", model="m")
    one, other = (Runner(llm=llm, servers={"own": FunctionTools({})})._settings() for _ in range(2))
    resources = TurnResources(registry=ProcessRegistry(), sampling=CurrentSampler())
    checked: list[str] = []

    async def in_both() -> None:
        for each in (one, other):
            with pytest.raises(MCPError, match="from inside one of its turns"):
                refuse_inside_turn(each.wiring)
        checked.append("both")

    async def in_one() -> None:
        refuse_inside_turn(other.wiring)
        await Inside(other, in_both).run(resources)
        refuse_inside_turn(other.wiring)

    async def in_one_again() -> None:
        with pytest.raises(MCPError, match="from inside one of its turns"):
            refuse_inside_turn(one.wiring)
        checked.append("one")

    await Inside(one, in_one).run(resources)
    refuse_inside_turn(one.wiring)
    # Forks, resumed turns and turns that wait for a batch have a wiring of their own.
    own = replace(one.wiring, servers={}, under_way=TurnsUnderWay())
    await Inside(replace(one, wiring=own), in_one_again).run(resources)
    assert checked == ["both", "one"]


def test_the_last_request_asks_for_an_answer() -> None:
    replies = [tool_calls_reply(("clock.time", {}), ids=("c1",)), text_reply("Noon.")]
    with ScriptedLlmServer(replies) as server:
        clock = FunctionTools({"time": lambda: "12:00"})
        llm = LlmSettings(base_url=server.base_url, model="m", api_key="")
        with Runner(llm=llm, servers={"clock": clock}, limits=TurnLimits(max_tool_iterations=1)) as runner:
            assert runner.run_turn(TurnRequest("What time is it?")).kind == "forced"
    asked = server.requests[-1].messages[-1]["content"]
    assert asked == "Please provide your final answer now without calling any more tools."
