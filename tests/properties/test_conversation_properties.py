"""Conversations under any sequence of turns that answer, fail or are cancelled, branches, saves and loads."""

import itertools
import json
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from replayed import replay_all
from wire_bodies import refusal, up_to_last_message, without_markers

from grue import Conversation, FunctionTools, LlmSettings, Recorder, RetryPolicy, Runner, TraceWriter
from grue.errors import LLMError
from grue.messages import AssistantReply, ToolMessage
from grue.protocol.chat_wire.profiles import OPENROUTER
from grue.transports.llm.endpoint import LlmEndpoint

PROFILE = replace(OPENROUTER, lists_parameters=False)
SETTINGS = LlmSettings(
    base_url="http://model.test/v1", model="m", profile=PROFILE, retry=RetryPolicy(max_retries=0)
)


class Model(httpx.AsyncBaseTransport):
    """An endpoint in memory. The last user text says what comes of its request."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.begun = threading.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        self.bodies.append(body)
        messages = json.loads(body)["messages"]
        asked = str([message["content"] for message in messages if message["role"] == "user"][-1])
        if "fail" in asked:
            return httpx.Response(500, json={"error": {"message": "no"}})
        if "hang" in asked:
            self.begun.set()
            await anyio.sleep_forever()
        message: Any = {"role": "assistant", "content": f"re: {len(messages)}"}
        if messages[-1]["role"] == "user" and ("tool" in asked or "stuck" in asked):
            at = "stuck" if "stuck" in asked else "here"
            function = {"name": "house__look", "arguments": json.dumps({"at": at})}
            # The same ids in every turn: a conversation has to make them different.
            message["tool_calls"] = [{"id": "same", "type": "function", "function": function}] * 2
            message["reasoning_details"] = [{"type": "reasoning.encrypted", "data": f"t{len(messages)}"}]
        return httpx.Response(200, json={"choices": [{"message": message, "finish_reason": "stop"}]})


class Scene:
    """Runners, conversations and what each of them has sent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = Model()
        self.recorder = Recorder()
        self.trace = TraceWriter(folder / "trace.jsonl", episode="talks")
        self.recorder.add(self.trace)
        self.begun = threading.Event()
        self.runner = self.new_runner()
        self.talks = [self.runner.conversation("Be brief.", path=folder / "0.jsonl")]
        self.sent: list[bytes] = [b""]

    def new_runner(self) -> Runner:
        async def look(at: str) -> str:
            if at == "stuck":
                self.begun.set()
                await anyio.sleep_forever()
            return f"seen {at}"

        endpoint = LlmEndpoint(SETTINGS, transport=self.model)
        tools = {"house": FunctionTools({"look": look})}
        return Runner(llm=endpoint, servers=tools, recorder=self.recorder, keep="loop")

    def ask(self, which: int, text: str) -> None:
        before = len(self.model.bodies)
        talk = self.talks[which]
        match text:
            case "hang" | "stuck":
                begun = self.model.begun if text == "hang" else self.begun
                begun.clear()
                handle = self.runner.start_turn(talk.request(text))
                assert begun.wait(60)
                handle.cancel()
                with pytest.raises(Exception, match="cancelled"):
                    handle.result(60)
            case "fail":
                with pytest.raises(LLMError):
                    talk.ask(text)
            case _:
                assert talk.ask(text).response.startswith("re:")
        self.check(which, self.model.bodies[before:])

    def check(self, which: int, bodies: list[bytes]) -> None:
        """Every request passes a strict provider's rules, and begins with the bytes of the one before."""
        for body in bodies:
            assert refusal(body, PROFILE) is None
            assert without_markers(body).startswith(self.sent[which])
            self.sent[which] = up_to_last_message(body, PROFILE)
        items = self.talks[which].history
        calls = [
            call.call_id for item in items if isinstance(item, AssistantReply) for call in item.tool_calls
        ]
        answers = [item.call_id for item in items if isinstance(item, ToolMessage)]
        assert calls == answers
        assert len(set(calls)) == len(calls)

    def branch(self, which: int) -> None:
        self.talks.append(self.talks[which].branch())
        self.sent.append(self.sent[which])

    def save(self, which: int) -> None:
        self.talks[which].save(self.folder / f"{which}-{next(NUMBERS)}.jsonl")

    def load(self, which: int) -> None:
        talk, path = self.talks[which], self.talks[which].path
        if path is not None:
            talk.close()
            self.runner.close()
            self.runner = self.new_runner()
            loaded = Conversation.load(path, self.runner)
            assert (loaded.id, loaded.history) == (talk.id, talk.history)
            self.talks = [Conversation(self.runner, other._kept) for other in self.talks]
            self.talks[which] = loaded

    def end(self) -> None:
        """What the trace holds is what each conversation holds."""
        self.runner.close()
        self.trace.close()
        replay_all(self.folder)
        for talk in self.talks:
            if len(talk.history) and talk.id in self.named:
                resumed = Conversation.from_trace(self.folder / "trace.jsonl", self.runner, name=talk.id)
                assert resumed.history == talk.history
            talk.close()

    @property
    def named(self) -> set[str]:
        lines = (self.folder / "trace.jsonl").read_text().splitlines()
        runs = [json.loads(line)["body"] for line in lines if '"type":"RunTurn"' in line]
        return {run["history"]["conversation"] for run in runs}


NUMBERS = itertools.count()
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["hello", "tool", "tool", "fail", "hang", "stuck", "branch", "save", "load", "load"]),
        st.integers(0, 3),
    ),
    max_size=7,
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@given(steps=STEPS)
def test_a_conversation_holds_the_same_whatever_happens_to_its_turns(
    folder: Path, steps: list[tuple[str, int]]
) -> None:
    own = folder / str(next(NUMBERS))
    own.mkdir()
    scene = Scene(own)
    for what, number in steps:
        which = number % len(scene.talks)
        match what:
            case "branch":
                scene.branch(which)
            case "save":
                scene.save(which)
            case "load":
                scene.load(which)
            case _:
                scene.ask(which, what)
    scene.end()
