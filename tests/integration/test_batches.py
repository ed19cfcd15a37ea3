"""Batches over real HTTP on loopback: what is asked, what waits, what a kill and a failing provider leave."""

import json
import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import waiting_batch
from commands import environment, forked
from media import PNG
from msgspec.structs import replace
from waiting_batch import WIRES, batching, counting, noting, requests, settings

from grue import AnswerSpec, Budget, ContextPolicy, Runner, TurnRequest
from grue.engine.turn import BatchItem
from grue.errors import BudgetSpent, LLMError, MCPConfigError, TraceError
from grue.messages import TurnWaits, UserText
from grue.policies import TurnLimits
from grue.protocol.chat_wire.batch_forms import AnthropicBatches
from grue.testing.llm_faults import rate_limited
from grue.testing.llm_server import (
    LlmReply,
    ScriptedLlmServer,
    error_reply,
    hang_up,
    json_reply,
    text_reply,
    tool_calls_reply,
)
from grue.testing.providers.batches import Unanswered
from grue.tracing.reading import open_episode
from grue.tracing.replay import replay
from grue.transports.llm.batch_desk import BatchDesk
from grue.transports.llm.batch_folder import BatchFolder, BatchFolderError, BatchManifest
from grue.transports.llm.endpoint import LlmEndpoint

PROGRAM = Path(waiting_batch.__file__)


def run(server: ScriptedLlmServer, tmp_path: Path, turns: int = 4, **more: Any) -> list[BatchItem[Any]]:
    given = {"wire": None, **more}
    tools = noting(tmp_path / "effects")
    asked = given.pop("asked", None) or requests(turns)
    options = given.pop("options", {})
    model = settings(server.base_url, given.pop("wire"), **given.pop("llm", {}))
    with Runner(llm=model, servers={"f": tools}, **given) as runner:
        return list(runner.map(asked, batch=batching(tmp_path / "batch", **options), concurrency=2))


def answers(items: list[BatchItem[Any]]) -> list[str]:
    return [item.outcome.response if item.outcome else type(item.error).__name__ for item in items]


def expected(turns: int) -> list[str]:
    return [f"heard turn {number // 2}" for number in range(turns)]


def is_replayed(path: Path) -> bool:
    return [each.divergence for each in replay(open_episode(path))] == [None]


def once(llm: ScriptedLlmServer, requests_: int) -> None:
    """Nothing was asked twice, in whichever batch, and nothing is missing."""
    made = Counter(item for items in llm.batches.made.values() for item in items)
    assert max(made.values()) == 1
    assert max(llm.batches.asked.values()) == 1
    assert sum(llm.batches.asked.values()) == requests_


@pytest.mark.parametrize("wire", WIRES)
def test_turns_with_tool_calls_take_rounds_of_one_batch_each(wire: str, tmp_path: Path) -> None:
    with ScriptedLlmServer(counting) as llm:
        items = run(llm, tmp_path, wire=wire)
        again = run(llm, tmp_path, wire=wire)
    assert answers(items) == expected(4)
    assert [len(batch) for batch in llm.batches.made.values()] == [4, 4]
    once(llm, 8)
    assert not any(request.refused for request in llm.requests)
    # As a turn that is asked at once: the tool was called once, and the texts are those. The turns make their
    # calls in any order.
    assert sorted((tmp_path / "effects").read_text().splitlines()) == [f"turn {n // 2}" for n in range(4)]
    assert [item.recalled for item in again] == [True] * 4
    assert answers(again) == expected(4)
    for item in items:
        assert item.outcome is not None
        kinds = [type(each).__name__ for each in item.outcome.said]
        assert kinds == ["UserText", "AssistantReply", "ToolMessage", "AssistantReply"]
    for number in range(1, 5):
        path = tmp_path / "batch" / "turns" / f"{number:06d}.jsonl"
        assert sum(isinstance(each.body, TurnWaits) for each in open_episode(path)) == 2
        assert is_replayed(path)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.slow
def test_a_batch_asks_byte_for_byte_what_a_turn_asks_at_once(wire: str, tmp_path: Path) -> None:
    def asked(batch: bool) -> list[Any]:
        with ScriptedLlmServer(refusing) as llm:
            if batch:
                items = run(llm, tmp_path, wire=wire, asked=[request])
                answer = items[0].outcome.response if items[0].outcome else items[0].error
            else:
                tools = noting(tmp_path / "other")
                with Runner(llm=settings(llm.base_url, wire), servers={"f": tools}) as runner:
                    answer = runner.run_turn(request).response
        assert answer == 7
        return [each.body for each in llm.requests]

    calls = iter(range(100))
    replies: list[LlmReply] = []

    def refusing(_: Any) -> LlmReply:
        # Two calls, an answer that the check refuses, and one that it takes: four requests of three kinds.
        return replies[next(calls) % 4]

    replies += [
        tool_calls_reply(("f.note", {"text": "a"}), ids=["call_a"]),
        tool_calls_reply(("f.note", {"text": "b"}), ids=["call_b"]),
        text_reply("none"),
        text_reply("7"),
    ]
    request = TurnRequest(system="Count.", user="How many?", answer=AnswerSpec(int))
    assert asked(batch=True) == asked(batch=False)


@pytest.mark.slow
def test_half_the_price_is_counted_and_the_budget_holds(tmp_path: Path) -> None:
    with ScriptedLlmServer(counting) as llm:
        tools = noting(tmp_path / "effects")
        with Runner(llm=settings(llm.base_url), servers={"f": tools}) as runner:
            items = list(runner.map(requests(2), batch=batching(tmp_path / "batch")))
            spent = runner.spent
    assert answers(items) == expected(2)
    # 4 replies of 10 and 5 tokens at 2 USD a million, halved.
    assert spent.usage.cost_usd == pytest.approx(4 * 15 * 1e-6)
    assert spent.requests == 4

    with ScriptedLlmServer(counting) as llm:
        limited = Budget(requests=3)
        items = run(llm, tmp_path / "small", 4, budget=limited)
        assert sum(isinstance(item.error, BudgetSpent) for item in items) >= 1
        assert sum(llm.batches.asked.values()) <= 3
        # What waits goes on with more money, and asks nothing again.
        rest = run(llm, tmp_path / "small", 4)
    assert answers(rest) == expected(4)
    once(llm, 8)


def test_the_budget_holds_for_what_an_earlier_run_has_asked(tmp_path: Path) -> None:
    with ScriptedLlmServer(counting) as llm:
        llm.batches.faults.looks = 10**6
        limited = Budget(requests=2)
        with pytest.raises(LLMError, match="has not ended"):
            run(llm, tmp_path, 2, budget=limited, options={"batch_timeout_s": 1e-6})
        with pytest.raises(LLMError, match="has not ended"):
            run(llm, tmp_path, 4, budget=limited, options={"batch_timeout_s": 1e-6})
        assert sum(map(len, llm.batches.made.values())) == 2
        llm.batches.faults.looks = 0
        assert answers(run(llm, tmp_path, 4)) == expected(4)
    once(llm, 8)


def test_a_turn_whose_trace_is_empty_is_run(tmp_path: Path) -> None:
    """As a process leaves it that was killed before it had written the header."""
    path = tmp_path / "batch" / "turns" / "000001.jsonl"
    path.parent.mkdir(parents=True)
    path.touch()
    with ScriptedLlmServer(counting) as llm:
        assert answers(run(llm, tmp_path, 2)) == expected(2)


FAILURES: dict[Unanswered, tuple[str, str]] = {
    "expired": ("timed_out", "timeout"),
    "cancelled": ("refused", "request"),
    "errored": ("unavailable", "overloaded"),
    "lost": ("invalid_reply", "reply"),
}


@pytest.mark.slow
def test_a_turn_whose_answer_is_not_accepted_any_more_runs_again_with_the_same_replies(
    tmp_path: Path,
) -> None:
    def two(text: str) -> str:
        if text != "two":
            raise ValueError("it is not two")
        return text

    with ScriptedLlmServer(["one", "two", "three"]) as llm:
        assert answers(run(llm, tmp_path, asked=[TurnRequest("a")])) == ["one"]
        strict = TurnRequest("a", answer=AnswerSpec(two))
        (item,) = run(llm, tmp_path, asked=[strict])
        assert (answers([item]), item.recalled) == (["two"], False)
        (item,) = run(llm, tmp_path, asked=[strict])
        assert (answers([item]), item.recalled) == (["two"], True)
        (other,) = run(llm, tmp_path, asked=[TurnRequest("b")])
        assert isinstance(other.error, TraceError)
    once(llm, 2)


def test_a_turn_whose_answer_held_a_secret_is_not_lost(tmp_path: Path) -> None:
    secret = "sk-live-0123456789abcdefghijklmnop"
    with ScriptedLlmServer([f"It is {secret}."]) as llm:
        for _ in range(2):
            items = run(llm, tmp_path, asked=[TurnRequest("a")], llm={"api_key": secret})
            assert answers(items) == [f"It is {secret}."]
    once(llm, 1)
    assert (tmp_path / "batch").stat().st_mode & 0o777 == 0o700


INTERRUPTED = (
    {"type": "TurnInterrupted", "reason": "cancelled"},
    {"type": "TurnFailed", "turn": 1, "failure": {"type": "Interrupted", "reason": "cancelled"}},
)
CLOSED = {"type": "SessionClosed", "server": "f", "ending": "none"}


def end_after(path: Path, last: str, *more: dict[str, Any]) -> None:
    """Let a trace end with its first message `last` and further ones, as if the process had ended then."""
    header, *lines = path.read_text().splitlines()
    at = next(at for at, line in enumerate(lines) if json.loads(line)["body"]["type"] == last)
    kept, envelope = lines[: at + 1], json.loads(lines[at])
    for body in more:
        to = "agent" if body is CLOSED else "trace"
        envelope = {**envelope, "seq": envelope["seq"] + 1, "from": "f", "to": to, "body": body}
        kept.append(json.dumps(envelope))
    path.write_text("\n".join([header, *kept, ""]))


@pytest.mark.parametrize(
    ("last", "more"),
    [
        ("AnswerAccepted", ()),
        ("AnswerAccepted", INTERRUPTED),
        ("CompletionPostponed", INTERRUPTED),
        ("RequestCompletion", (CLOSED, *INTERRUPTED)),
        ("ToolCalled", (CLOSED, *INTERRUPTED)),
    ],
    ids=["accepted and killed", "accepted", "waits", "session closed", "session closed in a call"],
)
def test_a_turn_that_is_ended_at_any_message_goes_on(
    last: str, more: tuple[dict[str, Any], ...], tmp_path: Path
) -> None:
    with ScriptedLlmServer(counting) as llm:
        assert answers(run(llm, tmp_path, turns=2)) == expected(2)
        path = tmp_path / "batch" / "turns" / "000001.jsonl"
        end_after(path, last, *more)
        first, second = run(llm, tmp_path, turns=2)
        assert second.recalled
        assert first.outcome is not None, first.error
        assert first.outcome.kind == "answered"
        if not more:
            assert [each.divergence for each in replay(open_episode(path))] == [None, None]
        if last == "AnswerAccepted":
            assert first.outcome.response == "heard turn 0"
            assert len((tmp_path / "effects").read_text().splitlines()) == 2, "no call is made again"
            once(llm, 4)


@pytest.mark.parametrize("wire", ["responses", "messages"])
@pytest.mark.slow
def test_each_item_that_fails_is_a_typed_failure_of_its_turn(wire: str, tmp_path: Path) -> None:
    what = [*FAILURES, None]

    def unanswered(item: str) -> Unanswered | None:
        return what[int(item.split("-")[1]) - 1] if item.split("-")[2] == "1" else None

    with ScriptedLlmServer(counting) as llm:
        llm.batches.faults.unanswered = unanswered
        items = run(llm, tmp_path, 5, wire=wire)
        for item, (kind, reason) in zip(items, FAILURES.values(), strict=False):
            assert isinstance(item.error, LLMError)
            assert (item.error.kind, item.error.reason) == (kind, reason)
        assert answers(items)[4] == "heard turn 2"
        # Another run says the same and asks nothing; told to, it asks those again that have failed.
        asked = sum(llm.batches.asked.values())
        assert [type(item.error) for item in run(llm, tmp_path, 5, wire=wire)] == [LLMError] * 4 + [
            type(None)
        ]
        assert sum(llm.batches.asked.values()) == asked
        llm.batches.faults.unanswered = lambda item: None
        assert answers(run(llm, tmp_path, 5, wire=wire, options={"retry_failed": True})) == expected(5)
    once(llm, 10)


@pytest.mark.parametrize("wire", ["responses", "messages"])
def test_a_scripted_reply_that_hangs_up_fails_only_its_own_request(wire: str, tmp_path: Path) -> None:
    with ScriptedLlmServer([hang_up(), "b"]) as llm:  # the last request of a batch is answered first
        items = run(llm, tmp_path, asked=[TurnRequest("a"), TurnRequest("c")], wire=wire)
    assert answers(items) == ["b", "LLMError"]
    assert isinstance(items[1].error, LLMError)
    assert (items[1].error.kind, items[1].error.reason) == FAILURES["errored"]


@pytest.mark.parametrize(
    ("ends", "reason"), [("expired", "timeout"), ("cancelled", "request"), ("failed", "")]
)
@pytest.mark.slow
def test_a_batch_that_ends_early_fails_what_it_has_not_answered(
    ends: Any, reason: str, tmp_path: Path
) -> None:
    with ScriptedLlmServer(counting) as llm:
        llm.batches.faults.ends = ends
        llm.batches.faults.unanswered = lambda item: "lost" if item.split("-")[1] == "2" else None
        items = run(llm, tmp_path, 2)
    if ends == "failed":
        assert [type(item.error) for item in items] == [LLMError, LLMError]
        assert "the file could not be read" in str(items[0].error)
        assert not llm.batches.asked
        return
    assert answers(items)[0] == "heard turn 0"
    assert isinstance(items[1].error, LLMError)
    assert items[1].error.reason == reason


@pytest.mark.parametrize("wire", ["chat_completions", "messages"])
@pytest.mark.slow
def test_results_that_arrive_damaged_are_read_again(wire: str, tmp_path: Path) -> None:
    def half(lines: bytes, times: int) -> bytes:
        return lines[: len(lines) // 2] if times == 1 else lines

    def garbage(lines: bytes, times: int) -> bytes:
        del times
        first, *rest = lines.splitlines(keepends=True)
        return b"".join((b"\x00{garbage\n", *rest, b"[]\n", b'{"custom_id":"foreign"}\n', first[:20]))

    with ScriptedLlmServer(counting) as llm:
        llm.batches.faults.results = half
        assert answers(run(llm, tmp_path / "half", wire=wire)) == expected(4)
        llm.batches.faults.results = garbage
        items = run(llm, tmp_path / "garbage", wire=wire)
    # Each of the two batches lacks one: its turn has failed, and the others have not.
    assert sum(isinstance(item.error, LLMError) for item in items) == 2
    assert sum(item.outcome is not None for item in items) == 2


@pytest.mark.parametrize("wire", ["chat_completions", "messages"])
@pytest.mark.slow
def test_replies_that_are_damaged_on_disk_are_fetched_again_and_not_paid_for(
    wire: str, tmp_path: Path
) -> None:
    with ScriptedLlmServer(counting) as llm:
        run(llm, tmp_path, wire=wire)
        first, second = sorted((tmp_path / "batch" / "replies").iterdir())
        first.write_bytes(b"\x00" + first.read_bytes())
        second.unlink()
        for trace in (tmp_path / "batch" / "turns").iterdir():
            trace.unlink()
        assert answers(run(llm, tmp_path, wire=wire)) == expected(4)
    once(llm, 8)


@pytest.mark.parametrize("wire", ["chat_completions", "messages"])
@pytest.mark.slow
def test_a_provider_that_stumbles_is_asked_again_and_makes_one_batch(wire: str, tmp_path: Path) -> None:
    def stumble(method: str, path: str, times: int) -> LlmReply | None:
        return {1: rate_limited(0), 2: error_reply(503, "busy"), 3: hang_up()}.get(times)

    with ScriptedLlmServer(counting) as llm:
        llm.batches.faults.in_place = stumble
        # The reply to the first batch that is made is lost: it has to be found again.
        llm.batches.faults.after = lambda method, path, times: (
            hang_up() if method == "POST" and path.endswith("batches") and times == 4 else None
        )
        assert answers(run(llm, tmp_path, wire=wire)) == expected(4)
    once(llm, 8)


@pytest.mark.anyio
async def test_a_running_batch_that_may_be_ours_holds_nothing_up(tmp_path: Path) -> None:
    manifest = BatchManifest(address="a", model="m", wire="messages")
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        assert len(waits) < 10, "it waits for the batch"
        waits.append(seconds)

    with ScriptedLlmServer(counting) as llm, BatchFolder(tmp_path, manifest, AnthropicBatches()) as files:
        body = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"turn 0"}]}'
        item = files.item_of(1, 1, body)
        files.want(item, "/messages", body)
        llm.batches.faults.looks = 10**6
        llm.batches.faults.after = lambda method, path, times: hang_up() if method == "POST" else None
        async with LlmEndpoint(settings(llm.base_url, "messages")) as endpoint:
            desk = BatchDesk(endpoint, files, batching(tmp_path), sleep=sleep)
            await desk.send()
            assert await desk.look() == []
            assert [each.state for each in files.submissions.values()] == ["sending"]
            llm.batches.faults.looks = 0
            assert await desk.look() == [item]
    assert len(llm.batches.made) == 1


@pytest.mark.parametrize("wire", ["responses", "messages"])
@pytest.mark.slow
def test_a_batch_that_never_ends_ends_the_run_and_loses_nothing(wire: str, tmp_path: Path) -> None:
    with ScriptedLlmServer(counting) as llm:
        llm.batches.faults.looks = 10**6
        for lost in (True, False):
            # At first the reply that names the batch is lost too, so that the batch has to be found again.
            llm.batches.faults.after = lambda method, path, times, lost=lost: (
                hang_up() if lost and method == "POST" and path.endswith("batches") else None
            )
            with pytest.raises(
                LLMError, match=r"batch_\d has not ended within 1e-06 s \(Batching\.batch_t"
            ) as ended:
                run(llm, tmp_path, wire=wire, options={"batch_timeout_s": 1e-6})
            assert "cancel the batch at the provider" in str(ended.value)
        llm.batches.faults.looks = 0
        assert answers(run(llm, tmp_path, wire=wire)) == expected(4)
    once(llm, 8)


@pytest.mark.slow
def test_a_refused_key_ends_the_run_and_loses_nothing(tmp_path: Path) -> None:
    with ScriptedLlmServer(counting) as llm:
        llm.batches.faults.in_place = lambda method, path, times: error_reply(
            401, "Incorrect API key provided"
        )
        with pytest.raises(LLMError) as caught:
            run(llm, tmp_path)
        assert caught.value.reason == "key"
        llm.batches.faults.in_place = lambda method, path, times: None
        assert answers(run(llm, tmp_path)) == expected(4)
    once(llm, 8)


@pytest.mark.slow
def test_a_refusal_that_teaches_the_form_is_followed_in_the_next_round(tmp_path: Path) -> None:
    def learning(request: Any) -> LlmReply:
        if "temperature" in request.body:
            return error_reply(
                400,
                "Unsupported parameter: 'temperature' is not supported with this model.",
                code="unsupported_parameter",
                param="temperature",
            )
        return counting(request)

    with ScriptedLlmServer(learning) as llm:
        items = run(llm, tmp_path, 2, llm={"temperature": 0.5})
    assert answers(items) == expected(2)
    assert max(llm.batches.asked.values()) == 1


@pytest.mark.slow
def test_a_turn_whose_image_is_refused_goes_on_in_the_next_round_and_replays(tmp_path: Path) -> None:
    def blind(request: Any) -> LlmReply:
        return error_reply(400, "no") if b"base64" in request.raw else text_reply("A pixel.")

    with ScriptedLlmServer(blind) as llm:
        items = run(llm, tmp_path, wire="messages", asked=[TurnRequest("What is this?", images=[PNG])])
    assert answers(items) == ["A pixel."]
    assert is_replayed(tmp_path / "batch" / "turns" / "000001.jsonl")


@pytest.mark.slow
def test_a_reply_that_was_cut_is_asked_for_with_a_larger_limit_in_the_next_round(tmp_path: Path) -> None:
    def cutting(request: Any) -> LlmReply:
        whole = request.body["max_tokens"] > 10_000
        return text_reply("All of it." if whole else "A part", finish_reason="stop" if whole else "length")

    with ScriptedLlmServer(cutting) as llm:
        items = run(llm, tmp_path, wire="messages", turns=1)
    assert answers(items) == ["All of it."]
    assert [len(batch) for batch in llm.batches.made.values()] == [1, 1]
    once(llm, 2)
    assert is_replayed(tmp_path / "batch" / "turns" / "000001.jsonl")


def test_a_batch_that_finds_the_queue_full_is_sent_again_after_another_has_ended(tmp_path: Path) -> None:
    def full(method: str, path: str, times: int) -> LlmReply | None:
        if not path.endswith("batch_4") or method != "GET":
            return None
        why = "Enqueued token limit reached for m. Please try again once some in_progress batches have ended."
        return json_reply({"id": "batch_4", "status": "failed", "errors": {"data": [{"message": why}]}})

    with ScriptedLlmServer(counting) as llm:
        llm.batches.faults.after, llm.batches.faults.looks = full, 1
        items = run(llm, tmp_path, turns=2, options={"most_items": 1})
    assert answers(items) == expected(2)
    assert llm.batches.made["batch_6"] == llm.batches.made["batch_4"] != llm.batches.made["batch_2"]


def test_what_no_batch_can_do_is_said_before_anything_is_asked(tmp_path: Path) -> None:
    with ScriptedLlmServer(counting) as llm:
        one = settings(llm.base_url)
        with (
            Runner(llm=[one, replace(one, model="other")]) as runner,
            pytest.raises(MCPConfigError, match="chain"),
        ):
            runner.map(requests(1), batch=tmp_path / "chain")
        with Runner(llm=one) as runner:
            said = (UserText(text="Hello"),)
            (item,) = runner.map([replace(requests(1)[0], history=said)], batch=tmp_path / "talk")
            assert isinstance(item.error, MCPConfigError)
        key = "sk-live-0123456789abcdefghijklmnop"
        with Runner(llm=replace(one, api_key=key)) as runner:
            (item,) = runner.map([TurnRequest(f"Hello, {key}.")], batch=tmp_path / "secret")
            assert str(item.error).startswith("This turn cannot wait for a batch: its texts contain a secret")
            assert "parking" not in str(item.error)
        assert answers(run(llm, tmp_path, 2)) == expected(2)
        # Another request in the place of one that was asked, and another model in the same folder.
        others = [TurnRequest(user="something else"), *requests(2)[1:]]
        assert isinstance(run(llm, tmp_path, asked=others)[0].error, TraceError)
        with pytest.raises(BatchFolderError, match="holds requests to m"):
            run(llm, tmp_path, llm={"model": "n"})
    once(llm, 4)


@pytest.mark.slow
def test_a_summary_waits_for_a_batch_like_any_request(tmp_path: Path) -> None:
    def talking(request: Any) -> LlmReply:
        if any("summar" in str(each).lower() for each in request.messages[-1:]):
            return text_reply("They have noted much.")
        if len(llm.requests) < 6:
            return tool_calls_reply(("f.note", {"text": "x" * 3000}))
        return text_reply("done")

    with ScriptedLlmServer(talking) as llm:
        context = ContextPolicy(window_tokens=2500, reply_tokens=200, max_summaries=1)
        items = run(llm, tmp_path, asked=[TurnRequest(user="note")], context=context)
    assert answers(items) == ["done"]
    assert max(llm.batches.asked.values()) == 1
    assert is_replayed(tmp_path / "batch" / "turns" / "000001.jsonl")


@pytest.mark.slow
def test_the_time_that_a_turn_waits_does_not_count_against_its_limit(tmp_path: Path) -> None:
    with ScriptedLlmServer(counting) as llm:
        llm.batches.faults.looks = 60
        items = run(llm, tmp_path, 1, limits=TurnLimits(turn_timeout_s=60.0))
        assert answers(items) == expected(1)
        trace = [*open_episode(tmp_path / "batch" / "turns" / "000001.jsonl")]
    waits = [each.t for each in trace if isinstance(each.body, TurnWaits)]
    after = [min(each.t for each in trace if each.t > t) for t in waits]
    assert max(later - t for t, later in zip(waits, after, strict=True)) < 1.0


@pytest.mark.slow
def test_a_turn_that_has_waited_can_be_forked_anywhere_and_becomes_a_test(tmp_path: Path) -> None:
    with ScriptedLlmServer(counting) as llm:
        (item,) = run(llm, tmp_path, 1)
        record = tmp_path / "batch" / "turns" / "000001.jsonl"
        places = [each.seq for each in open_episode(record) if not isinstance(each.body, TurnWaits)]
        for place in (None, *places[2::5], places[-1]):
            trace = tmp_path / f"fork-{place}.jsonl"
            with Runner(llm=settings(llm.base_url), trace=trace) as runner:
                outcome = runner.fork(record, at=place)
            assert item.outcome is not None
            assert outcome.response == item.outcome.response
            assert is_replayed(trace)
    # A fork asks at once, and its tools are answered from the record.
    assert (tmp_path / "effects").read_text() == "turn 0\n"


def on_disk(folder: Path) -> int:
    return sum(each.lstat().st_blocks * 512 for each in folder.rglob("*"))


@pytest.mark.slow
def test_a_turn_that_has_ended_takes_less_than_20_kb_on_disk(tmp_path: Path) -> None:
    with ScriptedLlmServer(counting) as llm:
        assert answers(run(llm, tmp_path, 40)) == expected(40)
    assert on_disk(tmp_path / "batch") / 40 < 20_000


@pytest.mark.slow
def test_two_thousand_turns_wait_in_less_than_40_mb(tmp_path: Path) -> None:
    with ScriptedLlmServer(counting) as llm:
        llm.batches.faults.in_place = lambda method, path, times: (
            error_reply(401, "Incorrect API key provided") if method == "GET" else None
        )
        with pytest.raises(LLMError):  # the first look; they wait on
            run(llm, tmp_path, 2_000)
    assert [len(batch) for batch in llm.batches.made.values()] == [2_000]
    assert on_disk(tmp_path / "batch") < 40 * 10**6


# --- Kills


class Killer:
    """Kills the program that asks, once at each of some places."""

    def __init__(self, llm: ScriptedLlmServer, places: set[tuple[str, str, str]]) -> None:
        self.program: subprocess.Popen[str] | None = None
        self._places = places
        llm.batches.faults.in_place = self._at("before")
        llm.batches.faults.after = self._at("after")

    def _at(self, when: str) -> Callable[[str, str, int], LlmReply | None]:
        def seen(method: str, path: str, times: int) -> LlmReply | None:
            del times
            kind = path.removeprefix("/v1/messages").removeprefix("/v1").split("/")
            place = (when, method, "/".join(part for part in kind if not any(map(str.isdigit, part))))
            if place not in self._places or self.program is None:
                return None
            self._places.discard(place)
            kill(self.program)
            self.program.wait()
            return hang_up() if when == "before" else None

        return seen


def program(llm: ScriptedLlmServer, wire: str, folder: Path, turns: int) -> "subprocess.Popen[str]":
    command = forked(str(PROGRAM), llm.base_url, wire, str(folder), str(turns))
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())


def kill(program: "subprocess.Popen[str]") -> None:
    program.send_signal(signal.SIGUSR1)  # tests/support/fork_server.py: kill the program itself


@pytest.mark.parametrize("wire", ["responses", "messages"])
@pytest.mark.slow
def test_a_driver_that_is_killed_anywhere_asks_nothing_twice_and_loses_nothing(
    wire: str, tmp_path: Path
) -> None:
    places = {("before", "POST", "/batches"), ("after", "POST", "/batches"), ("after", "GET", "/batches")}
    places |= {("before", "GET", "/batches"), ("before", "POST", "/files"), ("after", "POST", "/files")}
    places |= {("before", "GET", "/files/content"), ("before", "GET", "/batches/results")}
    (tmp_path / "kill-in-tool").touch()
    with ScriptedLlmServer(counting) as llm:
        killer = Killer(llm, places)
        kills, said = 0, ""
        for _ in range(20):
            killer.program = running = program(llm, wire, tmp_path / "batch", 6)
            said, _ = running.communicate()
            if running.returncode == 0:
                break
            assert running.returncode == -signal.SIGKILL
            kills += 1
    assert kills >= (7 if wire == "responses" else 6)
    answers_ = json.loads(said)
    # The calls that the process was killed in, two at most, may have had their effect. None is made again.
    interrupted = [each for each in answers_ if "interrupted" in each]
    assert 1 <= len(interrupted) <= 2
    assert [each for each in answers_ if each not in interrupted] == [
        each for each, answer in zip(expected(6), answers_, strict=True) if answer not in interrupted
    ]
    once(llm, 12)
    effects = Counter((tmp_path / "effects").read_text().splitlines())
    assert 6 - len(interrupted) < sum(effects.values()) <= 6
    assert max(effects.values()) <= 2


@pytest.mark.slow
def test_a_driver_that_is_killed_at_any_moment_asks_nothing_twice_and_loses_nothing(tmp_path: Path) -> None:
    # Soon after one of the requests that the program makes, so that it gets as far on any machine.
    chance, left = random.Random(7), 0
    running: subprocess.Popen[str] | None = None

    def seen(*_: object) -> LlmReply | None:
        nonlocal left
        left -= 1
        if left == 0 and running is not None:
            threading.Timer(chance.uniform(0.0, 0.05), kill, [running]).start()
        return None

    with ScriptedLlmServer(counting) as llm:
        llm.batches.faults.looks = 3
        llm.batches.faults.in_place = seen
        kills, said = -1, ""
        while running is None or running.returncode:
            # On a busy machine these lives may be too short, so the eighth one is not ended.
            kills, left = kills + 1, chance.randint(1, 2) if kills < 7 else 0
            running = program(llm, "chat_completions", tmp_path / "batch", 30)
            said, _ = running.communicate()
            assert running.returncode in (0, -signal.SIGKILL)
    answers_ = json.loads(said)
    wrong = [each for each, right in zip(answers_, expected(30), strict=True) if each != right]
    assert all("interrupted" in each for each in wrong)
    assert kills >= 3
    once(llm, 60)
    effects = Counter((tmp_path / "effects").read_text().splitlines())
    assert all(count <= 2 for count in effects.values())
