"""Long turns at an endpoint that enforces its context window: real HTTP, in every wire format."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from grue import ContextPolicy, Runner, ToolPolicy, ToolRule, TurnLimits, TurnRequest
from grue.errors import ApprovalPending, LLMError
from grue.messages import CompletionFailed, RewriteHistory, Summarised, ToolReturned
from grue.policies import ContextOverflow
from grue.protocol.retry import RetryPolicy
from grue.runtime.trace.file import TraceWriter
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

WORDS = "The cellar is dark. You hear a grue. "


def page(number: int, chars: int = 20_000) -> str:
    """Return a page of a long manual."""
    return f"Page {number}. " + WORDS * (chars // len(WORDS))


class Reader:
    """A scripted model that reads page after page, and sees to it that each call has one answer."""

    def __init__(self, pages: int, wanted: Any = None) -> None:
        self.pages, self.read = pages, 0
        self.summaries = 0

    def __call__(self, request: LlmRequest) -> LlmReply:
        messages = request.messages
        if "replaced by your summary" in str(messages[-1].get("content")):
            self.summaries += 1
            return text_reply("Some pages have been read; go on.")
        asked = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
        answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
        assert asked == answered, "a call has no answer, or two"
        if asked and messages[-1]["role"] == "tool":
            assert "The cellar is dark" in str(messages[-1]["content"]), "the newest page was cleared"
        if self.read == self.pages or not request.tool_names:
            return text_reply("done")
        self.read += 1
        return tool_calls_reply(("book.page", {"number": self.read}))


def run(
    server: ScriptedLlmServer,
    policy: ContextPolicy | None,
    *,
    path: str = "",
    rounds: int = 500,
    stream: bool = False,
) -> tuple[Any, list[Envelope[Any]]]:
    envelopes: list[Envelope[Any]] = []
    recorder = Recorder()
    recorder.add(lambda envelope, _line: envelopes.append(envelope))
    settings = LlmSettings(
        base_url=server.base_url + path,
        model="m",
        api_key="none",
        retry=RetryPolicy(max_retries=0),
        force_tool_support=True,
    )
    limits = TurnLimits(max_tool_iterations=rounds, max_result_chars=100_000)
    tools = {"book": FunctionTools({"page": page})}
    request = TurnRequest(system="Read.", user="Read the manual.", on_delta=print if stream else None)
    with Runner(llm=settings, servers=tools, limits=limits, recorder=recorder, context=policy) as runner:
        return runner.run_turn(request), envelopes


def rewrites(envelopes: list[Envelope[Any]]) -> list[RewriteHistory]:
    return [envelope.body for envelope in envelopes if isinstance(envelope.body, RewriteHistory)]


def prefix_changes(server: ScriptedLlmServer) -> int:
    """Return how many requests do not begin with the messages of the one before, cache markers masked."""
    plain = [[_unmarked(message) for message in request.messages] for request in server.requests]
    return sum(after[: len(before)] != before for before, after in itertools.pairwise(plain))


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _unmarked(item) for name, item in value.items() if name != "cache_control"}
    if not isinstance(value, list):
        return value
    # A text with a marker has to be a part; without one, the translation to chat makes it a string.
    parts = [_unmarked(item) for item in value]
    return parts[0]["text"] if len(parts) == 1 and parts[0].get("type") == "text" else parts


@pytest.mark.slow
@pytest.mark.parametrize("path", ["", "/responses", "/messages"], ids=["chat", "responses", "messages"])
def test_300_pages_of_20_kb_fit_into_a_window_of_32k(path: str) -> None:
    pages = 300 if not path else 40
    policy = ContextPolicy(window_tokens=32_000, reply_tokens=9_000 if path == "/messages" else 2_048)
    with ScriptedLlmServer(Reader(pages), window=ContextWindow(32_000)) as server:
        outcome, envelopes = run(server, policy, path=path)
    assert (outcome.kind, outcome.response) == ("answered", "done")
    assert [call.settlement for call in outcome.tool_calls] == ["returned"] * pages
    assert all(call.result.content == page(n) for n, call in enumerate(outcome.tool_calls, start=1))
    assert server.overflows == 0
    sizes = [len(request.raw) for request in server.requests]
    assert max(sizes) < 32_000 * 4
    if not path:
        assert sum(sizes[200:]) < 1.2 * sum(sizes[50:150]), "a request costs more late in the turn"
    assert prefix_changes(server) == len(rewrites(envelopes)), "history changed without a recorded rewrite"


def test_an_overflow_that_the_policy_did_not_expect_is_cleared_once_and_tried_again() -> None:
    policy = ContextPolicy(window_tokens=200_000)
    with ScriptedLlmServer(Reader(5), window=ContextWindow(16_000)) as server:
        outcome, envelopes = run(server, policy)
    assert (outcome.kind, len(outcome.tool_calls)) == ("answered", 5)
    assert server.overflows == 1, "what the endpoint says of its window counts from then on"
    (failed,) = (each.body for each in envelopes if isinstance(each.body, CompletionFailed))
    assert isinstance(failed.failure.overflow, ContextOverflow)
    assert failed.failure.overflow.window_tokens == 16_000
    assert rewrites(envelopes)[0].reason == "overflow"
    assert outcome.requests == len(server.requests)


def test_without_a_policy_an_overflow_ends_the_turn_with_a_remedy() -> None:
    with (
        ScriptedLlmServer(Reader(5), window=ContextWindow(16_000)) as server,
        pytest.raises(LLMError, match="Set a ContextPolicy, send less, or choose a model with a larger"),
    ):
        run(server, None)
    assert server.overflows == 1


@pytest.mark.slow
def test_a_summary_takes_the_place_of_what_was_said_and_is_no_iteration() -> None:
    pages = 60
    policy = ContextPolicy(window_tokens=8_000, reply_tokens=1_000, max_summaries=2)
    reader = Reader(pages)
    with ScriptedLlmServer(reader, window=ContextWindow(8_000)) as server:
        outcome, envelopes = run(server, policy, rounds=pages)
    assert (outcome.kind, outcome.iterations, outcome.requests) == ("forced", pages, pages + 1 + 2)
    assert (reader.summaries, server.overflows) == (2, 0)
    summaries = [rewrite for rewrite in rewrites(envelopes) if isinstance(rewrite.change, Summarised)]
    assert [item.text for item in summaries[0].change.items] == [
        "Summary of the conversation so far, which takes its place:\nSome pages have been read; go on."
    ]
    asked = [
        request for request in server.requests if "replaced by your summary" in str(request.messages[-1])
    ]
    assert not any(request.tool_names for request in asked)
    after = server.requests[server.requests.index(asked[0]) + 1]
    assert [message["role"] for message in after.messages] == ["system", "user", "user", "assistant", "tool"]


def test_a_result_that_is_too_large_is_cut_in_the_middle_and_whole_in_the_trace() -> None:
    policy = ContextPolicy(window_tokens=4_000, reply_tokens=500)
    with ScriptedLlmServer(Reader(1), window=ContextWindow(4_000)) as server:
        outcome, envelopes = run(server, policy)
    assert server.overflows == 0
    shown = server.requests[1].messages[-1]["content"]
    whole = page(1)
    shown, _, handle = shown.partition("\n[cut to save room; read_result with the handle ")
    assert handle.startswith(f'"{outcome.tool_calls[0].call_id}"')
    assert (shown[:8], shown[-8:]) == (whole[:8], whole[-8:])
    assert f" of {len(whole)} characters] …" in shown
    assert outcome.tool_calls[0].result.content == whole
    assert [e.body.result.content for e in envelopes if isinstance(e.body, ToolReturned)] == [whole]
    assert not rewrites(envelopes)


def test_a_turn_that_is_parked_after_a_clearing_goes_on_with_what_was_left(tmp_path: Path) -> None:
    def sign(name: str) -> str:
        return f"signed by {name}"

    def script(request: LlmRequest) -> LlmReply:
        read = [message for message in request.messages if message["role"] == "tool"]
        if len(read) < 4:
            return tool_calls_reply(("book.page", {"number": len(read) + 1}))
        if len(read) == 4:
            return tool_calls_reply(("book.sign", {"name": "Ann"}))
        return text_reply("done")

    path = tmp_path / "trace.jsonl"
    rules = (ToolRule(tools=("book.sign",), verdict="ask"),)
    with ScriptedLlmServer(script, window=ContextWindow(17_000)) as server:

        def runner() -> tuple[Runner, Recorder]:
            recorder = Recorder()
            settings = LlmSettings(base_url=server.base_url, model="m", force_tool_support=True)
            made = Runner(
                llm=settings,
                servers={"book": FunctionTools({"page": page, "sign": sign})},
                recorder=recorder,
                tool_policy=ToolPolicy(rules=rules, parking=True),
                context=ContextPolicy(window_tokens=17_000, reply_tokens=500),
            )
            return made, recorder

        first, recorder = runner()
        writer = TraceWriter(path, episode="book")
        recorder.add(writer)
        with first, pytest.raises(ApprovalPending) as pending:
            first.run_turn(TurnRequest(system="Read.", user="Read the manual, and sign."))
        writer.close()
        second, _ = runner()
        with second:
            outcome = second.resume(path, [question.approve() for question in pending.value.questions])
    assert (outcome.response, len(outcome.tool_calls), server.overflows) == ("done", 5, 0)
    before, after = ([_unmarked(m) for m in sent.messages] for sent in server.requests[-2:])
    assert any("Cleared to save room" in str(message) for message in before)
    assert after[: len(before)] == before, "the resumed conversation is not the one that was parked"
