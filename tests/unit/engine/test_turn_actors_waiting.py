"""What a turn that waits for its model holds, for Python's garbage collector to walk through."""

import gc
from types import AsyncGeneratorType

import anyio
import httpx
import pytest
from msgspec import Struct

from grue import FailurePolicy, FunctionTools, LlmSettings, Runner, TurnLimits
from grue import messages as m
from grue.hosting import LlmEndpoint
from grue.protocol.turn.completion_attempts import Sent
from grue.protocol.turn.states import AwaitingCompletion, Turn
from grue.testing.llm_server import text_reply

TURNS = 10
PLAIN: tuple[type[Struct], ...] = (m.Message, TurnLimits, FailurePolicy, Turn, AwaitingCompletion, Sent)


class WaitingModel(httpx.AsyncBaseTransport):
    """Answers all requests once `asked` of them have come, after a look at what the process holds."""

    def __init__(self, asked: int) -> None:
        self._missing, self._all = asked, anyio.Event()
        self._before = {id(each) for each in gc.get_objects()}
        self.held: list[object] = []

    async def handle_async_request(self, _: httpx.Request) -> httpx.Response:
        self._missing -= 1
        if not self._missing:
            gc.collect()
            self.held = [each for each in gc.get_objects() if id(each) not in self._before]
            self._all.set()
        await self._all.wait()
        return httpx.Response(200, content=text_reply("done").body)


@pytest.mark.slow
def test_the_collector_does_not_look_at_the_messages_of_a_waiting_turn() -> None:
    async def look(text: str) -> str:
        return text

    async def turns() -> list[object]:
        gc.collect()
        model = WaitingModel(TURNS)
        runner = Runner(
            llm=LlmEndpoint(LlmSettings(model="m"), transport=model),
            servers={"t": FunctionTools({"look": look})},
        )
        async with anyio.create_task_group() as group:
            for _ in range(TURNS):
                group.start_soon(runner.run_turn_async, "What is here?")
        return model.held

    held = anyio.run(turns)
    assert not [each for each in held if isinstance(each, PLAIN)], "gc=False is missing"
    # The session's actor holds the generator of its `around`; no other actor has one, and no mailbox.
    assert sum(isinstance(each, AsyncGeneratorType) for each in held) <= TURNS
