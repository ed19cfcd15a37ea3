"""Prompts over real HTTP: servers that list their tools in another order each time change no byte of them."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rows import first_of
from talks import WIRES, changed_prefixes, chatty, look

from grue import FunctionTools, LlmSettings, Runner, TurnRequest
from grue.messages import OfferChanged, ToolDefinition
from grue.protocol.chat_wire.formats import WireName
from grue.testing import assert_prefix_stable
from grue.testing.actor_harness import TraceWatch
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tool_sessions.connection import Listing, WrappedConnection

SCHEMA = {
    "at": {"type": "string", "description": "Where."},
    "far": {"type": "boolean"},
    "by": {"type": "string"},
}


class Shuffled(WrappedConnection):
    """A server that lists its tools, and the keys of their schemas, in another order at each start."""

    order = random.Random(7)

    async def open(self, timeout_s: float) -> Listing:
        listing = await super().open(timeout_s)
        return Listing(tools=self.shuffled(listing.tools), protocol_version=listing.protocol_version)

    @classmethod
    def shuffled(cls, tools: tuple[ToolDefinition, ...]) -> tuple[ToolDefinition, ...]:
        first = tools[0]
        made = [
            ToolDefinition(
                server=first.server,
                tool=name,
                description=f"{name} at a place.",
                input_schema=cls.mixed({"type": "object", "properties": cls.mixed(SCHEMA)}),
            )
            for name in ("look", "listen", "smell", "touch", "taste")
        ]
        return tuple(cls.order.sample(made, len(made)))

    @classmethod
    def mixed(cls, schema: dict[str, Any]) -> dict[str, Any]:
        return dict(cls.order.sample(list(schema.items()), len(schema)))


def shuffled_runner(server: ScriptedLlmServer, wire: WireName = "chat_completions", **how: Any) -> Runner:
    llm = LlmSettings(base_url=server.base_url, model="scripted", wire=wire, api_key="key")
    houses = {
        name: lambda note, name=name: Shuffled(FunctionTools({"look": look}).connect(name, note=note))
        for name in ("house", "barn")
    }
    return Runner(llm=llm, servers=houses, **how)


@pytest.fixture
def server() -> Iterator[ScriptedLlmServer]:
    with ScriptedLlmServer(chatty) as server:
        yield server


@pytest.mark.parametrize("wire", first_of(WIRES))
@pytest.mark.slow
def test_a_conversation_with_servers_that_reorder_their_lists_changes_no_prefix(
    tmp_path: Path, server: ScriptedLlmServer, wire: WireName
) -> None:
    trace = tmp_path / "trace.jsonl"
    with shuffled_runner(server, wire, trace=trace) as runner:
        talk = runner.conversation("Answer briefly.")
        for number in range(12):
            talk.ask(f"Question {number}?")
    assert changed_prefixes(server, wire) == 0
    assert len({str(request.chat["tools"]) for request in server.requests}) == 1
    assert assert_prefix_stable(trace) == len(server.requests) == 16


@pytest.mark.slow
def test_a_thousand_turns_with_servers_that_reorder_their_lists_miss_no_cache(
    tmp_path: Path, server: ScriptedLlmServer
) -> None:
    # In ten conversations: in one, the server would spend most of the time on reading what was said before.
    for part in range(10):
        trace, first = tmp_path / f"trace-{part}.jsonl", len(server.requests)
        with shuffled_runner(server, trace=trace) as runner:
            talk = runner.conversation("Answer briefly.")
            for number in range(100):
                talk.ask(f"Question {number}?")
        assert changed_prefixes(server, first=first) == 0
        assert assert_prefix_stable(trace) == len(server.requests) - first


def test_tools_that_change_between_two_turns_are_noted(server: ScriptedLlmServer) -> None:
    watch = TraceWatch()
    tools = {"look": look}
    llm = LlmSettings(base_url=server.base_url, model="scripted", api_key="key")

    def connect(note: Any) -> Any:
        return FunctionTools(tools).connect("house", note=note)

    with Runner(llm=llm, servers={"house": connect}, recorder=watch.recorder) as runner:
        talk = runner.conversation("Answer briefly.")
        talk.ask("One?")
        watch.never(OfferChanged)
        tools |= {"listen": look}
        del tools["look"]
        talk.ask("Two?")
    changed = watch.happened(OfferChanged, times=1)
    assert (changed.added, changed.removed, changed.changed) == (("house.listen",), ("house.look",), ())


def test_tools_are_offered_by_server_and_name_in_each_request_of_a_turn() -> None:
    replies = [tool_calls_reply(("house.look", '{"at": "a"}')), text_reply("Done.")]
    with ScriptedLlmServer(replies) as server, shuffled_runner(server) as runner:
        runner.run_turn(TurnRequest(system="s", user="u"))
        names = [request.tool_names for request in server.requests]
    assert names[0] == sorted(names[0]) == names[1]
