"""Conversations under a `ContextPolicy`, at an endpoint that enforces its window."""

from pathlib import Path
from typing import Any

import pytest

from grue import ContextPolicy, Conversation, Runner, TurnLimits
from grue.messages import RewriteHistory, RunTurn, Summarised
from grue.protocol.context.history import LEFT_OUT
from grue.protocol.retry import RetryPolicy
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.testing.llm_server import (
    ContextWindow,
    LlmReply,
    LlmRequest,
    ScriptedLlmServer,
    text_reply,
    tool_calls_reply,
)
from grue.tool_sessions.function_tools import FunctionTools
from grue.transports.llm.endpoint import LlmSettings

NEWS = "The troll is still here. " * 160
WINDOW = 32_000


def look(at: str) -> str:
    """Look at something."""
    return f"You see {at}. " * 400


def answer(request: LlmRequest) -> LlmReply:
    """Look at what the user names, and then say so."""
    last = request.messages[-1]
    if "replaced by your summary" in str(last["content"]):
        return text_reply("Much was looked at.")
    if last["role"] == "tool":
        assert "You see" in str(last["content"])
        return text_reply("seen")
    if not request.tool_names:
        return text_reply("seen")
    return tool_calls_reply(("eyes.look", {"at": str(last["content"]).rpartition(" ")[2]}))


class Talk:
    """A runner whose model looks once a turn, and everything that it sends and records."""

    def __init__(self, server: ScriptedLlmServer, **policy: Any) -> None:
        self.envelopes: list[Envelope[Any]] = []
        recorder = Recorder()
        recorder.add(lambda envelope, _line: self.envelopes.append(envelope))
        retry = RetryPolicy(max_retries=0)
        settings = LlmSettings(base_url=server.base_url, model="m", retry=retry, force_tool_support=True)
        self.runner = Runner(
            llm=settings,
            servers={"eyes": FunctionTools({"look": look})},
            limits=TurnLimits(max_tool_iterations=4),
            recorder=recorder,
            context=ContextPolicy(window_tokens=WINDOW, **policy),
            keep="loop",
        )

    def of(self, kind: type) -> list[Any]:
        return [envelope.body for envelope in self.envelopes if isinstance(envelope.body, kind)]


def ask(conversation: Conversation, number: int, **how: Any) -> str:
    return conversation.ask(f"{NEWS} Look at thing-{number}", **how).response


@pytest.mark.slow
def test_turns_fit_into_a_window_of_32k_at_a_flat_cost() -> None:
    with ScriptedLlmServer(answer, window=ContextWindow(WINDOW)) as server:
        talk = Talk(server)
        with talk.runner, talk.runner.conversation(system="Look.") as conversation:
            for number in range(500):
                assert ask(conversation, number, user_stub="[an earlier question]") == "seen"
    assert server.overflows == 0
    sizes = [len(request.raw) for request in server.requests]
    assert max(sizes) < WINDOW * 4
    half = (len(sizes) - 50) // 2
    late, early = sum(sizes[-half:]), sum(sizes[50 : 50 + half])
    assert late < 1.3 * early, "a turn costs more late in the conversation"
    changes = [rewrite.change for rewrite in talk.of(RewriteHistory)]
    assert any(change.texts for change in changes)
    assert all(run.history is not None for run in talk.of(RunTurn))
    assert max(len(run.earlier) for run in talk.of(RunTurn)) < 100


@pytest.mark.slow
def test_a_conversation_of_texts_goes_on_after_every_overflow_of_an_unknown_window(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    with ScriptedLlmServer(lambda _: text_reply("heard"), window=ContextWindow(4000)) as server:
        settings = LlmSettings(base_url=server.base_url, model="m", retry=RetryPolicy(max_retries=0))
        runner = Runner(llm=settings, context=ContextPolicy())
        with runner, runner.conversation(system="Listen.", path=path) as conversation:
            for number in range(30):
                assert conversation.ask(f"{NEWS[:2000]} {number}").response == "heard"
            kept = conversation.history
        assert 1 <= server.overflows <= 15
        with Runner(llm=settings, context=ContextPolicy()) as again, Conversation.load(path, again) as loaded:
            assert loaded.history == kept
            assert loaded.ask("And now?").response == "heard"
    assert len(kept) < 30
    assert any(LEFT_OUT in str(item) for item in kept)


@pytest.mark.slow
def test_a_summary_takes_the_place_of_a_conversation_and_its_file_can_be_loaded(tmp_path: Path) -> None:
    with ScriptedLlmServer(answer, window=ContextWindow(WINDOW)) as server:
        talk = Talk(server, max_summaries=1)
        path = tmp_path / "talk.jsonl"
        with talk.runner, talk.runner.conversation(system="Look.", path=path) as conversation:
            for number in range(60):
                assert ask(conversation, number) == "seen"
            kept = conversation.history
        again = Talk(server, max_summaries=1)
        with again.runner, Conversation.load(path, again.runner) as loaded:
            assert loaded.history == kept
            assert ask(loaded, 99) == "seen"
    assert server.overflows == 0
    summaries = [each for each in talk.of(RewriteHistory) if isinstance(each.change, Summarised)]
    assert summaries
    assert any("Much was looked at" in str(item) for item in kept)
    assert len(kept) < 60 * 4
