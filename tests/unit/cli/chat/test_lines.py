"""The words of a chat: short, printable, and honest about what is left out."""

from typing import Any

import pytest

from grue.cli.chat import lines
from grue.hosts.agent_loop import ToolEnded, ToolStarted
from grue.messages import ToolCallResult, Usage
from grue.policies import ApprovalQuestion
from grue.protocol.tools.results import failure
from grue.protocol.turn.prices import Spent
from grue.runtime.safe_text import shown_whole

ESCAPE = "\x1b[31m\u202e\nred"
IMAGE = {"type": "image", "data": "A" * 4000, "mimeType": "image/png"}


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (ToolCallResult("plain"), "plain"),
        (ToolCallResult(None), "nothing"),
        (ToolCallResult(""), "nothing"),
        (ToolCallResult({"x": [1]}), '{"x": [1]}'),
        (ToolCallResult([1, 2]), "[1, 2]"),
        (ToolCallResult([{"no": "block"}]), '[{"no": "block"}]'),
        (ToolCallResult([{"type": "text", "text": "a"}, IMAGE]), "a [image/png, 3.0 kB]"),
        (ToolCallResult({"x": 1}, blocks=(IMAGE,)), '{"x": 1} [image/png, 3.0 kB]'),
        (ToolCallResult([{"type": "audio", "data": "AAA="}]), "[audio, 2 bytes]"),
        (ToolCallResult([{**IMAGE, "data": "A" * 4_000_000}]), "[image/png, 3.0 MB]"),
        (ToolCallResult([{"type": "resource_link", "uri": "file:///x"}]), "[file:///x]"),
        (ToolCallResult([{"type": "resource", "resource": {"uri": "u", "text": "t"}}]), "[u] t"),
        (ToolCallResult(float("nan")), "NaN"),
    ],
)
def test_a_result_is_one_line(result: ToolCallResult, words: str) -> None:
    assert lines.result_words(result) == words


def test_a_long_result_is_cut_and_its_length_told() -> None:
    words = lines.result_words(ToolCallResult("x" * 12_345))
    assert words.startswith("xxx")
    assert words.endswith("… (12,345 characters)")
    assert len(words) < 300
    assert lines.result_words(ToolCallResult("x" * 10_000_000)).endswith("… (over 100,000 characters)")


def test_what_tools_and_models_write_cannot_reach_the_terminal() -> None:
    question = ApprovalQuestion(
        call_id="1",
        name=f"a.{ESCAPE}",
        arguments={"x": ESCAPE},
        arguments_digest="",
        definition_digest="",
        reason=ESCAPE,
    )
    shown: list[Any] = [
        lines.started(ToolStarted(call_id="1", name=f"a.{ESCAPE}", arguments={"x": ESCAPE})),
        lines.ended(ToolEnded(call_id="1", name="a.b", result=ToolCallResult(ESCAPE), duration_s=1.0)),
        lines.ended(ToolEnded(call_id="1", name="a.b", result=failure(ESCAPE), duration_s=1.0)),
        lines.ended(ToolEnded(call_id="1", name=f"a.{ESCAPE}", result=failure(ESCAPE))),
        *lines.question_lines(question, shown_whole(question.arguments) or ()),
        *lines.undone_lines(ESCAPE, [ESCAPE]),
        *lines.greeting(ESCAPE, [ESCAPE], scripted=True),
        *lines.tool_lines([], ESCAPE),
        lines.complaint(ESCAPE),
        lines.notice(ESCAPE),
    ]
    text = "".join(f"{line.lead}{line.text}" for line in shown)
    assert "red" in text
    assert text.isprintable()


def test_ends_differ() -> None:
    def words(result: ToolCallResult, duration_s: float | None) -> str:
        event = ToolEnded(call_id="1", name="a.b", result=result, duration_s=duration_s)
        return lines.ended(event).text.strip()

    assert words(ToolCallResult("x"), 0.25) == "250 ms: x"
    assert words(failure("no"), 2.0) == "2.00 s, failed: no"
    assert words(failure("no"), None) == "! a.b was not called: no"


def test_costs() -> None:
    usage = Usage(input_tokens=12_000, output_tokens=30, cached_tokens=500, cost_usd=0.01234)
    shown = [line.text for line in lines.cost_lines(Spent(requests=1, usage=usage), "all is spent")]
    assert shown == ["1 request, 12,000 tokens in (500 from the cache), 30 out, $0.0123", "all is spent"]


def test_several_calls_that_remain_are_named_once() -> None:
    shown = [line.text for line in lines.undone_lines("x", ["a.b", "a.b", "c.d"])]
    assert shown[1].startswith("Its 3 tool calls were made (a.b, c.d).")
