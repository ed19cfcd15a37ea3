"""What the trace holds of a client's replies and a manager's listing."""

from typing import Any

import anyio
import pytest

from grue.hosts.zork.client_actor import client_actor
from grue.hosts.zork.manager_connection import connect_manager
from grue.messages import OfferTools, RequestCompletion, SystemText, UserText
from grue.runtime.actor import Supervisor
from grue.runtime.trace.recorder import Recorder
from grue.testing.doubles import MockLLMClient, MockMCPManager

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]


async def test_a_reply_has_its_request_as_its_cause() -> None:
    client = MockLLMClient()
    client.add_response(content="{}")
    client.add_response(content="{}")
    said = SystemText("You play."), UserText("A dark room.")
    async with Supervisor(Recorder(), stop_grace_s=0.05) as supervisor:
        agent, mailbox = supervisor.mailbox("agent"), supervisor.mailbox("llm")
        supervisor.start(client_actor(client, "gpt-4o")(mailbox, agent, supervisor.note))
        for number in (1, 2):
            request = RequestCompletion(conversation="turn", request=number, new=said, mode=OfferTools())
            await mailbox.send(request, sender="agent")
            with anyio.fail_after(60):
                replied = await agent.receive()
            assert (replied.cause, replied.seq) == (2 * number - 1, 2 * number)


class Listing(MockMCPManager):
    """A manager that lists tools of these names, each with its place as its description."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self._listed = names

    async def get_tool_schemas(self) -> Any:
        return [{"function": {"name": name, "description": str(n)}} for n, name in enumerate(self._listed)]


async def test_of_two_tools_with_one_name_the_first_counts_and_the_other_is_told() -> None:
    manager = Listing("thoughtbox.think", "thoughtbox.think", "think", "a.b", "a.b")
    notes: list[Any] = []

    def note(body: Any, **_: Any) -> Any:
        notes.append(body)

    async with connect_manager(manager, "thoughtbox")(note) as session:
        tools = (await session.open(60)).tools
        await session.call("think", {}, 60)
    assert [(tool.name, tool.description) for tool in tools] == [("thoughtbox.think", "0"), ("a.b", "3")]
    assert [note.text.partition(":")[0] for note in notes] == ["thoughtbox.think", "think", "a.b"]
    assert all(note.kind == "bad_tool" and "listed twice" in note.text for note in notes)
    assert manager.calls == [("thoughtbox.think", {})]
