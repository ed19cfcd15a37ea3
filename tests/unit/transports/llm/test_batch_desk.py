"""What providers send without end: a line of a batch's results, and the list of batches."""

import json
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from grue.policies import Batching
from grue.protocol.chat_wire.batch_forms import AnthropicBatches, BatchState, OpenAIBatches, Result
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.retry import RetryPolicy
from grue.transports.llm import batch_desk
from grue.transports.llm.batch_desk import BatchDesk, BatchRefused
from grue.transports.llm.batch_folder import BatchFolder, BatchManifest, Submission
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings
from grue.transports.llm.exchange import Answered

pytestmark = pytest.mark.anyio

LONG = b"x" * 30

TOO_LONG = Fault(kind="invalid_reply", message="too long")

CASES: dict[str, tuple[list[bytes | Fault], list[bytes]]] = {
    "whole": ([b"one\ntwo\n"], [b"one", b"two"]),
    "without a newline at the end": ([b"one\ntw", b"o"], [b"one", b"two"]),
    "a long line in the middle": ([b"one\n" + LONG, b"rest\ntwo\n"], [b"one", b"", b"two"]),
    "a file that is too long": ([b"one\ntw", TOO_LONG], [b"one", b""]),
    "a long last line": ([b"one\n" + LONG, b'{"custom_id": "a"}'], [b"one", b""]),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_line_that_is_too_long_is_empty(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, lines = CASES[case]

    async def download(path: str, most_bytes: int) -> AsyncIterator[bytes | Fault]:
        assert most_bytes == 3 * 20
        for piece in pieces:
            yield piece

    monkeypatch.setattr(batch_desk, "_MOST_LINE", 20)
    desk: Any = BatchDesk.__new__(BatchDesk)
    desk._endpoint = SimpleNamespace(download=download)
    assert [line async for line in desk._lines("/results", 3)] == lines


async def test_a_list_of_batches_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a gateway sends it that ignores from which batch on it is asked."""
    batch = {"id": "b1", "status": "in_progress", "created_at": 2_000_000_000}
    page = Answered(200, json.dumps({"data": [batch], "has_more": True}).encode())
    asked: list[object] = []

    async def call(*words: object, **options: object) -> Answered:
        asked.append((*words, options))
        return page

    monkeypatch.setattr(batch_desk, "_MOST_PAGES", 5)
    desk: Any = BatchDesk.__new__(BatchDesk)
    desk._form = OpenAIBatches()
    desk._patience = lambda: None
    desk._endpoint = SimpleNamespace(call=call, describe=lambda fault: fault)
    with pytest.raises(BatchRefused, match="more than 5 pages"):
        [each async for each in desk._batches(0.0)]
    assert len(asked) == 5


@pytest.mark.parametrize(("file_id", "found"), [("f1", "b1"), ("f2", None), ("", None)])
async def test_a_batch_without_metadata_is_found_by_its_file(file_id: str, found: str | None) -> None:
    """Some providers keep no metadata. A batch that is not found is made, and paid for, once more."""
    listed = {"id": "b1", "status": "in_progress", "created_at": 7, "input_file_id": "f1"}
    page = Answered(200, json.dumps({"data": [listed, {**listed, "input_file_id": None}]}).encode())

    async def call(*_: object, **options: object) -> Answered:
        return page

    desk: Any = BatchDesk.__new__(BatchDesk)
    desk._form = OpenAIBatches()
    desk._patience = lambda: None
    desk._folder = SimpleNamespace(submissions={})
    desk._endpoint = SimpleNamespace(call=call)
    batch = await desk._found(Submission(number=1, items=1, key="k", file_id=file_id))
    assert (None if batch is None else batch.id) == found


@pytest.mark.parametrize("asked_s", [None, 0.0, 1e9])
async def test_the_waits_for_a_provider_end_at_the_longest_however_many_tries_fail(
    asked_s: float | None,
) -> None:
    waits: list[float] = []

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    retry = RetryPolicy(initial_delay_s=1.0, exponential_base=10.0, max_delay_s=2.0)
    endpoint = LlmEndpoint(LlmSettings(model="m", retry=retry))
    patience = batch_desk._Patience(endpoint, math.inf, sleep)
    for _ in range(400):
        await patience.after(Fault(kind="unavailable", message="down", retry_after_s=asked_s))
    assert waits == [1.0, *[2.0] * 399]


@pytest.mark.parametrize("pages", [1, 2])
async def test_a_page_of_a_proxy_in_place_of_an_answer_is_survived_once(pages: int) -> None:
    answers = [Answered(200, b"<h1>Coffee</h1>")] * pages + [Answered(200, b'{"id": "b1"}')]

    async def ask() -> Answered:
        return answers.pop(0)

    async def sleep(_: float) -> None:
        """Wait for nothing."""

    desk: Any = BatchDesk.__new__(BatchDesk)
    desk._endpoint = LlmEndpoint(LlmSettings(model="m"))
    desk._patience = lambda: batch_desk._Patience(desk._endpoint, math.inf, sleep)
    asked = desk._surely("a batch", json.loads, ask)
    if pages == 1:
        assert await asked == {"id": "b1"}
    else:
        with pytest.raises(BatchRefused, match="a batch cannot be read"):
            await asked


async def test_a_provider_that_wants_credit_is_not_asked_again() -> None:
    async def ask() -> Answered:
        return Answered(429, b'{"error": {"message": "You have insufficient_quota."}}')

    async def sleep(_: float) -> None:
        pytest.fail("this would go on for an hour")

    desk: Any = BatchDesk.__new__(BatchDesk)
    desk._endpoint = LlmEndpoint(LlmSettings(model="m"))
    desk._patience = lambda: batch_desk._Patience(desk._endpoint, math.inf, sleep)
    with pytest.raises(BatchRefused) as refused:
        await desk._surely("a batch", json.loads, ask)
    assert refused.value.failure.reason == "credit"


def test_a_mark_of_the_byte_order_before_the_results_costs_no_reply() -> None:
    result = {"custom_id": "a", "response": {"status_code": 200, "body": {}}, "error": None}
    desk: Any = BatchDesk.__new__(BatchDesk)
    desk._form = OpenAIBatches()
    line = json.dumps(result).encode()
    assert desk._read(b"\xef\xbb\xbf" + line) == desk._read(line) is not None


@pytest.mark.parametrize("form", [OpenAIBatches(), AnthropicBatches()])
async def test_what_is_nested_too_deeply_to_be_decoded_counts_as_unreadable(form: Any) -> None:
    manifest = BatchManifest(address="http://127.0.0.1/v1", model="m", wire="responses")
    folder: Any = SimpleNamespace(form=form, manifest=manifest)
    desk: Any = BatchDesk(LlmEndpoint(LlmSettings(model="m")), folder, Batching(folder="unused"))
    deep = b"[" * 100_000 + b"]" * 100_000
    assert desk._read(b'{"custom_id":"a","response":{"status_code":200,"body":' + deep + b"}}") is None
    assert desk._read(b'{"custom_id":"a","result":{"type":"succeeded","message":' + deep + b"}}") is None
    with pytest.raises(BatchRefused, match="a batch cannot be read"):
        desk._read_as("a batch", desk._state_in, Answered(200, b'{"id":"b1","errors":' + deep + b"}"))


async def test_a_file_that_is_sent_again_is_not_taken_for_the_batch_that_was_refused(tmp_path: Path) -> None:
    """The queue was full at first, and the second attempt at a batch failed without one being made."""
    made: list[dict[str, Any]] = []
    full = {"data": [{"message": "Enqueued token limit reached"}]}
    posts = iter(("failed", "", "in_progress"))

    async def call(method: str, path: str, **options: Any) -> Answered:
        if path == "/files":
            return Answered(200, b'{"id": "f%d"}' % len(made))
        if method == "GET":
            found = made[-1:] if path.endswith("b1") else [{"data": made}]
            return Answered(200, json.dumps(found[0]).encode())
        status, asked = next(posts), json.loads(options["content"])
        if not status:
            return Answered(503, b"busy")
        batch = {"id": f"b{len(made) + 1}", "status": status, "errors": full, "created_at": time.time()}
        made.append({**batch, "metadata": asked["metadata"]})
        return Answered(200, json.dumps(batch).encode())

    async def sleep(_: float) -> None:
        pass

    manifest = BatchManifest(address="http://127.0.0.1/v1", model="m", wire="responses")
    with BatchFolder(tmp_path, manifest, OpenAIBatches()) as files:
        desk: Any = BatchDesk(
            LlmEndpoint(LlmSettings(model="m")), files, Batching(folder="unused"), sleep=sleep
        )
        desk._endpoint = SimpleNamespace(call=call, settings=desk._endpoint.settings)
        files.want(f"{files.manifest.run}-1-1-abc-1", "/responses", b"{}")
        await desk.send()
        files.submissions[9] = Submission(number=9, state="sent", batch_id="of another file")
        assert await desk._look(files.submissions[1]) == []
        await desk.send()
        assert files.submissions[1].batch_id == "b2"


@pytest.mark.parametrize("status", [401, 404])
async def test_a_batch_that_the_provider_does_not_have_can_be_sent_again(tmp_path: Path, status: int) -> None:
    async def call(*_: object, **options: object) -> Answered:
        return Answered(status, b'{"error": {"message": "No."}}')

    manifest = BatchManifest(address="http://127.0.0.1/v1", model="m", wire="responses")
    with BatchFolder(tmp_path, manifest, OpenAIBatches()) as files:
        desk: Any = BatchDesk(LlmEndpoint(LlmSettings(model="m")), files, Batching(folder="unused"))
        desk._endpoint = SimpleNamespace(call=call, describe=desk._endpoint.describe)
        with pytest.raises(BatchRefused) as refused:
            await desk._look(Submission(number=1, state="sent", batch_id="b1"))
    assert (f"remove {tmp_path}/submissions/0001.json:" in refused.value.failure.remedy) is (status == 404)


@pytest.mark.parametrize("status", [302, 404])
async def test_results_that_the_provider_refuses_are_not_asked_for_again_and_again(
    tmp_path: Path, status: int
) -> None:
    batch = {"id": "b1", "status": "completed", "output_file_id": "f1"}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/content"):
            return httpx.Response(status, json={"error": {"message": "No such File object: f1"}})
        return httpx.Response(200, json=batch)

    async def sleep(_: float) -> None:
        raise AssertionError("it waits")

    manifest = BatchManifest(address="http://127.0.0.1/v1", model="m", wire="responses")
    settings = LlmSettings(model="m", base_url="http://127.0.0.1/v1")
    async with LlmEndpoint(settings, transport=httpx.MockTransport(answer)) as endpoint:
        with BatchFolder(tmp_path, manifest, OpenAIBatches()) as files:
            item = files.item_of(1, 1, b"{}")
            files.want(item, "/responses", b"{}")
            (submission,) = files.unsent()
            sent = files.keep(replace(submission, state="sent", batch_id="b1"))
            desk = BatchDesk(endpoint, files, Batching(folder="unused"), sleep=sleep)
            with pytest.raises(BatchRefused) as refused:
                await desk.look()
            assert refused.value.failure.status == status
            assert (f"remove {files.file('submissions', 1)}:" in refused.value.failure.remedy) is (
                status == 404
            )
            assert files.submissions[1] == sent


async def test_an_intact_reply_is_kept_if_the_provider_has_it_no_longer(tmp_path: Path) -> None:
    manifest = BatchManifest(address="http://127.0.0.1/v1", model="m", wire="responses")

    def folder() -> BatchFolder:
        return BatchFolder(tmp_path, manifest, OpenAIBatches())

    with folder() as files:
        lost, kept = (files.item_of(turn, 1, b"{}") for turn in (1, 2))
        for item in (lost, kept):
            files.want(item, "/responses", b"{}")
        (submission,) = files.unsent()
        sent = files.keep(replace(submission, state="sent", batch_id="b1"))
        files.settle(sent, [Result(item=item, status=200) for item in (lost, kept)])
        replies = files.file("replies", 1)
    replies.write_bytes(b"\x00" + replies.read_bytes())
    with folder() as files:
        desk = BatchDesk(LlmEndpoint(LlmSettings(model="m")), files, Batching(folder="unused"))
        archived = BatchState(id="b1", state="ended")
        await desk._fetch(files.submissions[1], archived, files.items_in(1))
        assert [getattr(files.result(item), "status", 0) for item in (lost, kept)] == [None, 200]
    with folder() as files:
        assert files.submissions[1].state == "settled"


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("1764288000", 1764288000.0),
        ("2025-11-28T00:00:00Z", 1764288000.0),
        ("2025-11-28T01:00:00+01:00", 1764288000.0),
        ("nan", 7.0),
        ("yesterday", 7.0),
        ("", 7.0),
    ],
)
async def test_the_time_of_a_batch_is_read_in_seconds_and_as_a_date(written: str, seconds: float) -> None:
    batch = BatchState(id="b1", state="running", created_at=written)
    assert batch_desk._made_at(batch, otherwise=7.0) == seconds
